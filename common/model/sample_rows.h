/* common/model/sample_rows.h - samples the rows of a pass, spread over the device's threads.
 *
 * Rows do not meet (sampler.h), so who samples which is not seen in the result. */
#ifndef SLUICE_COMMON_MODEL_SAMPLE_ROWS_H
#define SLUICE_COMMON_MODEL_SAMPLE_ROWS_H

#include "common/model/sampler.h"
#include "kernels/backend.h"

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

/* logits [n_rows, n_vocab], overwritten; out [n_rows]. Device thread; allocates nothing. */
void sl_sample_rows(struct sl_samplers *s, float *logits, const struct sl_sample_row *rows, uint32_t n_rows,
                    struct sl_sampled *out);

#endif
