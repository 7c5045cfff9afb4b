/* kernels/cpu/attention_q8_avx512.h - what both kernels for int8 K and V share. Included by
 * attention_*_q8_avx512.c only.
 *
 * Products are vpdpbusd: sums of four products of an unsigned and a signed byte. A score takes K, with 128
 * added, times the two parts of q (attention_avx512.c); the output takes the two bytes of a weight times V,
 * in quads of positions. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_Q8_AVX512_H
#define SLUICE_KERNELS_CPU_ATTENTION_Q8_AVX512_H

#include "kernels/cpu/attention_avx512.h"
#include "kernels/cpu/q8.h"

#define QUADS      (BLK / 4)
#define Q_LOW_BITS 7 /* of the low part of a query */
#define W_LOW_BITS 8 /* of the low part of a weight */

/* The bytes below n of the 64 from i on. */
static inline __mmask64 bytes(uint32_t i, uint32_t n)
{
    return n - i >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (n - i)) - 1;
}

/* K made unsigned. */
INLINE __m512i add_128(__m512i k)
{
    return _mm512_xor_si512(k, _mm512_set1_epi8(-128));
}

/* Elements [d, d + 64) of four positions of V as words of a byte each. Lane L of x[j] has the elements d + 16
 * L + 4 j on: in_order() sorts them, or sums of them. */
INLINE void load_quad(const uint8_t *row, size_t stride, uint32_t d, uint32_t hd, __m512i x[4])
{
    __mmask64 mask = bytes(d, hd);
    __m512i a = _mm512_maskz_loadu_epi8(mask, row + d), b = _mm512_maskz_loadu_epi8(mask, row + stride + d);
    __m512i e = _mm512_maskz_loadu_epi8(mask, row + 2 * stride + d);
    __m512i f = _mm512_maskz_loadu_epi8(mask, row + 3 * stride + d);
    __m512i ab0 = _mm512_unpacklo_epi8(a, b), ab1 = _mm512_unpackhi_epi8(a, b);
    __m512i ef0 = _mm512_unpacklo_epi8(e, f), ef1 = _mm512_unpackhi_epi8(e, f);
    x[0] = _mm512_unpacklo_epi16(ab0, ef0);
    x[1] = _mm512_unpackhi_epi16(ab0, ef0);
    x[2] = _mm512_unpacklo_epi16(ab1, ef1);
    x[3] = _mm512_unpackhi_epi16(ab1, ef1);
}

/* Of 128-bit lanes: x[j] lane i -> x[i] lane j */
INLINE void in_order(__m512i x[4])
{
    __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    __m512i c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    x[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

/* p times the scales of V as integers: a product that is NaN becomes the greatest. */
INLINE __m512i weight_int(__m512 u, __m512 up)
{
    return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(u, up), _mm512_set1_ps(SL_Q8_WEIGHT)));
}

#endif
