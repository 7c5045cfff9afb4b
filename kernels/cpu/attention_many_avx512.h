/* kernels/cpu/attention_many_avx512.h - what the kernels for many query rows share. Included by
 * attention_many*_avx512.c only. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_MANY_AVX512_H
#define SLUICE_KERNELS_CPU_ATTENTION_MANY_AVX512_H

#include "kernels/cpu/attention_avx512.h"

#define GROUP 3u /* vectors of rows at a time: x 8 sums of each, 24 registers */
#define DEEP  8u /* positions of K, or elements of V, at a time; twice that for one vector */
#define SPAN  (GROUP * LANES)

/* The rows [first, first + LANES * vecs) of a tile against a block. */
struct sl_avx512_group {
    const struct sl_attn_scratch *s;
    const struct sl_avx512_seen *seen;
    const struct sl_avx512_block *block, *next;
    uint32_t first, hd, lo, hi; /* positions [lo, hi) are seen by some row */
    int whole;                  /* all rows see all 64 */
    int loads;                  /* the first of the block: copies V, asks for the next block */
};

/* A block of SL_Q8 for vecs <= GROUP vectors of rows. */
void sl_avx512_attn_group_q8(const struct sl_avx512_group *g, uint32_t vecs);

/* While positions [i, i + DEEP) are scored: asks for the same of the next block, and for V of this one
 * nearer. Piece by piece, since in one go the requests would fill the core's miss buffers and hold up the
 * loads behind them. */
INLINE void prefetch(const struct sl_avx512_block *b, const struct sl_avx512_block *next, uint32_t i)
{
    for (uint32_t j = i; j < i + DEEP; j++) {
        const uint8_t *k = row_at(next->k, next->stride, j), *v = row_at(next->v, next->stride, j);
        for (uint32_t at = 0; at < next->row_bytes; at += 64) {
            _mm_prefetch(k + at, _MM_HINT_T1);
            _mm_prefetch(v + at, _MM_HINT_T1);
        }
        for (uint32_t at = 0; at < b->row_bytes; at += 64)
            _mm_prefetch(row_at(b->v, b->stride, j) + at, _MM_HINT_T0);
    }
}

INLINE __mmask16 seen_at(__m512i first, __m512i n, uint32_t i)
{
    __m512i pos = _mm512_set1_epi32((int32_t)i);
    return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(first, pos), n, pos);
}

/* The greatest score of each row of vector v; what a row does not see becomes -inf. */
INLINE __m512 greatest(const struct sl_avx512_group *g, uint32_t v)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    float *x = g->s->s + LANES * v;
    __m512 most[4] = {none, none, none, none};
    if (g->whole) {
        for (uint32_t i = 0; i < BLK; i += 4) {
            UNROLL
            for (uint32_t c = 0; c < 4; c++)
                most[c] = _mm512_max_ps(_mm512_load_ps(x + (size_t)(i + c) * SPAN), most[c]);
        }
    } else {
        __m512i first = _mm512_load_si512(g->seen->first + g->first + LANES * v);
        __m512i n = _mm512_load_si512(g->seen->n + g->first + LANES * v);
        for (uint32_t i = 0; i < BLK; i++) {
            __m512 s = _mm512_mask_mov_ps(none, seen_at(first, n, i), _mm512_load_ps(x + (size_t)i * SPAN));
            _mm512_store_ps(x + (size_t)i * SPAN, s);
            most[0] = _mm512_max_ps(s, most[0]);
        }
    }
    return _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
}

/* Adds a[i + step] to a[i], step 8, 4, 2, 1. */
INLINE __m512 sum_of(__m512 a[LANES])
{
    UNROLL
    for (uint32_t step = LANES / 2; step > 0; step /= 2) {
        UNROLL
        for (uint32_t i = 0; i < step; i++)
            a[i] = _mm512_add_ps(a[i], a[i + step]);
    }
    return a[0];
}

#endif
