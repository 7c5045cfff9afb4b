/* common/model/sample_rows.h - samples the rows of a pass: on the device where it can, else on its host threads.
 *
 * Rows do not meet (sampler.h), and a device gives what the host gives, so who samples which is not seen in the
 * result. A device that samples leaves to the host: rows with more edits than SL_SAMPLE_MAX_EDITS (penalties over
 * a long history), and those it gives back itself (kernels/sample.h). */
#ifndef SLUICE_COMMON_MODEL_SAMPLE_ROWS_H
#define SLUICE_COMMON_MODEL_SAMPLE_ROWS_H

#include "common/model/model.h"
#include "common/model/sampler.h"
#include "kernels/backend.h"

#define SL_SAMPLE_MAX_EDITS 4096u /* of a row; 12 bytes each, for SL_PICK_MAX_ROWS rows */

struct sl_samplers; /* opaque: scratch for each thread of a device */

/* ops and dev outlive it; n_threads as the device was opened with. */
struct sl_samplers *sl_samplers_new(const struct sl_backend_ops *ops, struct sl_dev *dev, uint32_t n_threads,
                                    uint32_t n_vocab);
void sl_samplers_free(struct sl_samplers *s); /* takes NULL */

/* One row: the arguments of sl_sample(). */
struct sl_sample_row {
    const struct sl_sampling *sampling;
    const int32_t *history;
    uint32_t n_history, n_prompt;
    bool want_digest;
};

/* logits [n_rows, n_vocab] (host), overwritten; out [n_rows]. Device thread; allocates nothing. */
void sl_sample_rows(struct sl_samplers *s, float *logits, const struct sl_sample_row *rows, uint32_t n_rows,
                    struct sl_sampled *out);

/* logits [n_rows, n_vocab] lie on a device that samples, n_rows <= SL_PICK_MAX_ROWS; scratch [n_rows, n_vocab] is
 * the host's. */
void sl_sample_rows_on_device(struct sl_samplers *s, const float *logits, float *scratch,
                              const struct sl_sample_row *rows, uint32_t n_rows, struct sl_sampled *out);

/* The head and sampling for out_rows [first, first + n_rows) of the last pass's batch; scratch as above. */
void sl_sample_pass(struct sl_samplers *s, struct sl_model *m, const struct sl_batch *b, uint32_t first,
                    float *scratch, const struct sl_sample_row *rows, uint32_t n_rows,
                    struct sl_sampled *out);

#endif
