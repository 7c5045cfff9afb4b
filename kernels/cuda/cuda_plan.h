/* kernels/cuda/cuda_plan.h - who computes what in an attention over tiles: a pure function of the batch.
 *
 * Each run of the batch is cut into tiles of rows, each tile into stretches of positions where that is needed
 * to keep all blocks of the grid busy, and the items go to the block that has least to do. */
#ifndef SLUICE_KERNELS_CUDA_CUDA_PLAN_H
#define SLUICE_KERNELS_CUDA_CUDA_PLAN_H

#include "kernels/cuda/cu_kernels.h"

struct cuda_plan_shape {
    uint32_t n_heads, n_kv_heads, window;
    uint32_t n_blocks; /* of the grid */
};

struct cuda_plan {
    /* [n_blocks + 2]: items of block i are [block_items[i], block_items[i + 1]); the last is n_merges */
    uint32_t *block_items;
    struct cu_item *items;                  /* [max_items] */
    struct cu_merge *merges;                /* [max_merges] */
    uint32_t n_items, n_merges, n_partials; /* partials: rows of partial results in use */
    /* scratch */
    struct cu_item *undealt; /* [max_items] */
    uint32_t *owner;         /* [max_items]: block of an item */
    uint32_t *cost;          /* [n_blocks] */
};

/* Most of each for any batch of n_rows rows. */
uint32_t cuda_plan_max_items(const struct cuda_plan_shape *s, uint32_t n_rows);
uint32_t cuda_plan_max_merges(const struct cuda_plan_shape *s);
uint32_t cuda_plan_max_partials(const struct cuda_plan_shape *s);

/* Arrays for batches of up to max_rows rows; fini takes a plan of zeros. */
void cuda_plan_init(struct cuda_plan *p, const struct cuda_plan_shape *s, uint32_t max_rows);
void cuda_plan_fini(struct cuda_plan *p);
void cuda_plan_make(const struct cuda_plan_shape *s, const struct sl_batch *b, struct cuda_plan *plan);

#endif
