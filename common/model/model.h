/* common/model/model.h - a loaded model on a device, and one forward pass (step 6 of the request path).
 *
 * One layer loop for all devices (forward.c). A model belongs to the engine's device thread after open. */
#ifndef SLUICE_COMMON_MODEL_MODEL_H
#define SLUICE_COMMON_MODEL_MODEL_H

#include <stdatomic.h>
#include "common/model/model_conf.h"

/* Rows of a batch that go through a layer together: bounds all activations but the residual stream, and what
 * scratch the device needs (sl_dev_conf.max_rows); wide enough that reading a layer's weights once per slice
 * is little beside computing. */
#define SL_MODEL_SLICE_ROWS 512u

/* Rows of logits on the device at a time: bounds the buffer (12 MB with 49152 tokens), wide enough for the
 * head's matrix. */
#define SL_HEAD_ROWS 64u

struct sl_model; /* opaque */
struct sl_rank_group;

struct sl_model_open {
    const char *path;                 /* sl_model_file_open() */
    const struct sl_backend_ops *ops; /* from sl_backend_find() */
    struct sl_dev *dev;               /* borrowed, outlives the model */
    enum sl_dtype kv_dtype;
    uint32_t page_tokens;
    uint32_t max_rows;        /* most rows of one batch: sizes the activations */
    unsigned n_threads;       /* that load; 0 = 1 */
    const char *cache_dir;    /* see engine.h; NULL = no cache */
    uint64_t other_bytes;     /* what else the caller will take: KV pages */
    uint64_t available_bytes; /* what there is for all of it; 0 = unknown */
    /* Tensor parallelism: so many ranks, 0 and 1 = none. dev is rank 0's; the model opens the others' and calls them
     * in threads of its own. node is what sl_share_dev() gives each its part of, dev too. */
    uint32_t tensor_parallel;
    const struct sl_dev_conf *node;
    /* Of as many ranks, borrowed; NULL = through host memory, where buffers are that. */
    struct sl_rank_group *group;
    /* Called with 0..100 while weights are packed; may be NULL. */
    void (*progress)(void *arg, unsigned percent);
    void *progress_arg;
};

/* Maps, checks and packs. Errors as sl_model_conf_read() and sl_model_file_open(); SL_ENOMEM, and
 * SL_ETOOBIG when it cannot fit, SL_EUNSUPPORTED when it cannot be cut into so many ranks, with numbers in why. */
SL_MUST_CHECK enum sl_err sl_model_open(const struct sl_model_open *o, struct sl_model **out,
                                        struct sl_why *why);
void sl_model_close(struct sl_model *m); /* takes NULL */

/* Saves packed weights to the cache in the background, when there is a cache and they are not there yet. Call
 * when loading and measuring are over, and the CPU is free. */
void sl_model_save_packed(struct sl_model *m);

/* Milliseconds that the parts of sl_model_open() took. */
struct sl_model_times {
    double file_ms, digest_ms, weights_ms, buffers_ms;
    bool from_cache;
};
const struct sl_model_times *sl_model_times(const struct sl_model *m);

const struct sl_model_conf *sl_model_conf(const struct sl_model *m);
/* Of whole pages, whatever the degree. */
struct sl_kv_geometry sl_model_kv_geometry(const struct sl_model *m);
/* The pages that passes run over, once for a model of several ranks, each of which gets its heads of them. *out is the
 * caller's, to be closed by the table's kv_close() before the model. SL_ENOMEM, and what the table refuses. */
SL_MUST_CHECK enum sl_err sl_model_open_kv(struct sl_model *m, uint32_t n_pages, struct sl_kv **out,
                                           struct sl_why *why);
size_t sl_model_weight_bytes(const struct sl_model *m);

/* Digest of a fixed probe run over every op on this device plus KV dtype, block sizes and degree: nodes with
 * different ids do not compute the same bits (docs/architecture.md). Costs a few milliseconds; call once
 * after open. */
uint64_t sl_model_numerics_id(struct sl_model *m);

/* Runs one pass. The batch's pages must be of kv; KV of its rows is written, logits of out_rows go to logits
 * [n_out, n_vocab] (host memory). NULL: not yet, sl_model_logits() gives them. Tokens and positions are
 * trusted (the engine checks them). *progress is incremented once per layer: a long pass is progress, a
 * wedged one is not. No allocation inside. */
void sl_model_forward(struct sl_model *m, struct sl_kv *kv, const struct sl_batch *b, float *logits,
                      atomic_uint_fast64_t *progress);
/* For tests: the last rank never comes to the end of the next pass, nor does the pass. */
void sl_model_stall(struct sl_model *m);
/* Of the batch of the last pass: logits of out_rows [first, first + n) to logits [n, n_vocab]. */
void sl_model_logits(struct sl_model *m, const struct sl_batch *b, uint32_t first, uint32_t n, float *logits);
/* The same for devices with memory of their own, where they stay until the next call, with several ranks on the first
 * one's: at most SL_HEAD_ROWS, not waited for. */
float *sl_model_logits_on_device(struct sl_model *m, const struct sl_batch *b, uint32_t first, uint32_t n);

#endif
