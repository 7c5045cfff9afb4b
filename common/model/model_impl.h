/* common/model/model_impl.h - what model.c, forward.c and numerics.c share.
 *
 * Under tensor parallelism a model is one such struct for each rank, with a device, weights and activations of its
 * own. The caller holds rank 0's, whose functions let all ranks run the same loop over their shares. */
#ifndef SLUICE_COMMON_MODEL_MODEL_IMPL_H
#define SLUICE_COMMON_MODEL_MODEL_IMPL_H

#include "common/model/model.h"
#include "common/model/ranks.h"
#include "common/model/weights.h"
#include "kernels/rank_group.h"

struct sl_model {
    struct sl_model_conf conf; /* of the whole model */
    struct sl_share share;
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    enum sl_dtype kv_dtype;
    uint32_t page_tokens, max_rows;
    uint32_t slice_rows; /* at most SL_MODEL_SLICE_ROWS */
    float *rope_factors; /* [rope_dim / 2], what conf.attn.rope_factors points to */
    struct sl_weights weights;
    struct sl_model_times times;
    char *cache_dir;             /* NULL = no cache */
    struct sl_pack_saver *saver; /* rank 0's, of all ranks; NULL = nothing was to be saved */
    /* Activations, float32 on the device; n_heads, n_kv_heads, d_ff of this rank. */
    struct sl_vector x;       /* [max_rows, d_model] the residual stream */
    struct sl_vector qkv;     /* [slice_rows, (n_heads + 2 n_kv_heads) * head_dim] */
    struct sl_vector attn;    /* [slice_rows, n_heads * head_dim] */
    struct sl_vector gate_up; /* [slice_rows, 2 d_ff] */
    struct sl_vector branch;  /* [slice_rows, d_model] what is normed before it is added to x; or none */
    /* Of several ranks, else none: what each adds to rows, and its logits. */
    struct sl_vector parts;      /* [n_ranks, slice_rows, d_model] */
    struct sl_vector head_parts; /* [n_ranks, min(max_rows, SL_HEAD_ROWS), n_vocab / n_ranks rounded up] */
    struct sl_rank_group *group;
    bool owns_group; /* rank 0, of one it made */
    /* Rank 0's, where the group is in the order of streams, and so can be in a kept pass. */
    struct sl_rank_group *votes;
    struct sl_ranks *ranks;  /* rank 0's */
    struct sl_model **peers; /* [n_ranks - 1] rank 0's */
    struct sl_kv *kv;        /* the heads of this rank in the pool of sl_model_open_kv() */
    const struct sl_kv *kv_of;
    atomic_uint_fast64_t unheard; /* progress of the other ranks: a pass is where rank 0 is */
    bool stalls;                  /* sl_model_stall() */
    /* Host scratch of forward.c. */
    struct sl_batch *slices;          /* [max_rows / slice_rows, rounded up] */
    struct sl_batch_run *slice_runs;  /* [max_rows + slices] */
    uint32_t *slice_out;              /* [max_rows] */
    struct sl_batch_run *wanted_runs; /* [slice_rows] */
    /* [min(max_rows, SL_HEAD_ROWS), n_vocab] rank 0's; none where the device writes to the host */
    struct sl_vector logits;
};

static inline struct sl_model *sl_model_rank(struct sl_model *m, uint32_t rank)
{
    return rank == 0 ? m : m->peers[rank - 1];
}

#endif
