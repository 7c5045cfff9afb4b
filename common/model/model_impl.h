/* common/model/model_impl.h - what model.c, forward.c and numerics.c share. */
#ifndef SLUICE_COMMON_MODEL_MODEL_IMPL_H
#define SLUICE_COMMON_MODEL_MODEL_IMPL_H

#include "common/model/model.h"
#include "common/model/weights.h"

struct sl_model {
    struct sl_model_conf conf;
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    enum sl_dtype kv_dtype;
    uint32_t page_tokens, max_rows;
    uint32_t slice_rows; /* at most SL_MODEL_SLICE_ROWS */
    float *rope_factors; /* [rope_dim / 2], what conf.attn.rope_factors points to */
    struct sl_weights weights;
    struct sl_model_times times;
    char *cache_dir; /* NULL = no cache */
    /* Activations, float32 on the device. */
    struct sl_vector x;       /* [max_rows, d_model] the residual stream */
    struct sl_vector qkv;     /* [slice_rows, (n_heads + 2 n_kv_heads) * head_dim] */
    struct sl_vector attn;    /* [slice_rows, n_heads * head_dim] */
    struct sl_vector gate_up; /* [slice_rows, 2 d_ff] */
    struct sl_vector branch;  /* [slice_rows, d_model] what is normed before it is added to x; or none */
    /* Host scratch of forward.c. */
    struct sl_batch *slices;          /* [max_rows / slice_rows, rounded up] */
    struct sl_batch_run *slice_runs;  /* [max_rows + slices] */
    uint32_t *slice_out;              /* [max_rows] */
    struct sl_batch_run *wanted_runs; /* [slice_rows] */
    struct sl_vector
        logits; /* [min(max_rows, SL_HEAD_ROWS), n_vocab]; none where the device writes to the host */
};

#endif
