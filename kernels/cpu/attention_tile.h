/* kernels/cpu/attention_tile.h - an attention tile as a walk over segments and blocks, with the inner loops
 * of an instruction set. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_TILE_H
#define SLUICE_KERNELS_CPU_ATTENTION_TILE_H

#include "kernels/cpu/cpu_dev.h"

/* Addresses of the positions of a block in the pages. */
struct sl_attn_block {
    uint32_t n; /* positions; the addresses behind repeat the last, so that they may be read */
    const uint8_t *k[SL_ATTN_BLOCK], *v[SL_ATTN_BLOCK];
    const uint8_t *k_scale[SL_ATTN_BLOCK],
        *v_scale[SL_ATTN_BLOCK]; /* of any alignment; of types that have them */
};

/* What the rows of a tile see of a block. */
struct sl_attn_seen {
    uint32_t first[SL_ATTN_QROWS], n[SL_ATTN_QROWS]; /* positions [first, n) of the block, rising with r */
};

/* The inner loops. In scratch, q, acc and total have rows of sl_attn_width() floats. */
struct sl_attn_loops {
    /* row r of s->q = q times scale, rounded as K's type asks for */
    void (*query)(const float *q, uint32_t head_dim, float scale, enum sl_dtype type,
                  const struct sl_attn_scratch *s, uint32_t r);
    /* Takes block b into acc, m and l of the rows [r, end) of the tile, which see something of it. next is
     * asked for meanwhile. */
    void (*block)(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                  const struct sl_attn_seen *seen, const struct sl_attn_block *b,
                  const struct sl_attn_block *next);
    void (*merge)(float *total, float *total_m, float *total_l, const float *acc, float m, float l,
                  uint32_t head_dim);
    void (*finish)(const float *total, float total_l, uint32_t head_dim, float *out);
};

void sl_attn_walk_tile(const struct sl_attn_loops *loops, const struct sl_attn_tile *t,
                       const struct sl_attn_scratch *s);

#endif
