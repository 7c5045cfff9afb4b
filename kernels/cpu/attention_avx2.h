/* kernels/cpu/attention_avx2.h - what the parts of attention with AVX2 share. Included by attention_*avx2.c
 * only. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_AVX2_H
#define SLUICE_KERNELS_CPU_ATTENTION_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/attention_tile.h"

#define BLK    SL_ATTN_BLOCK
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The compiler is to make a sum step by step, in this register: moved about it would spill. */
#define IN_TURN(sum) __asm__("" : "+x"(sum))

/* Lanes of all ones at the positions in [first, n) of the 8 from i on. */
INLINE __m256 between(uint32_t i, uint32_t first, uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32((int)i));
    __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)first), at);
    __m256i high = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), at);
    return _mm256_castsi256_ps(_mm256_andnot_si256(low, high));
}

/* SL_Q8: the parts of struct sl_attn_loops (attention_q8_avx2.c). */
void sl_avx2_q8_query(const float *q, uint32_t hd, float scale, const struct sl_attn_scratch *s, uint32_t r);
void sl_avx2_q8_block(const struct sl_attn_scratch *s, uint32_t r, uint32_t end, uint32_t hd,
                      const struct sl_attn_seen *seen, const struct sl_attn_block *b,
                      const struct sl_attn_block *next);

#endif
