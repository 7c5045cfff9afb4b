/* kernels/cpu/fp8.h - K and V as SL_FP8: numbers of e4m3 (sign, 4 bits of exponent, 3 of mantissa, no
 * infinity) and one scale for the row, a power of two. It takes the row to the upper end of e4m3's range and
 * costs no rounding: number times scale is a bfloat16 number, so attention is that of bfloat16.
 *
 * Integer arithmetic, branch-free, so that compilers make vectors of the loops; the same bits as
 * cvt.rn.satfinite.e4m3x2.f32 of the scaled row (kernels/cuda). */
#ifndef SLUICE_KERNELS_CPU_FP8_H
#define SLUICE_KERNELS_CPU_FP8_H

#include "kernels/cpu/half.h"

#define SL_FP8_TOP       448.0f      /* the greatest number, 1.75 * 2^8 */
#define SL_FP8_LEAST     0x0d800000u /* bits of 2^-100: a row of less is zero */
#define SL_FP8_SCALE_MAX 134u        /* exponent of 2^7, the greatest whose product with 2^120 bfloat16 has */

/* Bits of max|x|; NaN is passed over. */
static inline uint32_t sl_fp8_most(const float *x, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = sl_float_bits(x[i]) & 0x7fffffffu;
        u = u > 0x7f800000u ? 0 : u;
        most = u > most ? u : most;
    }
    return most;
}

/* The exponent, as float32 has it, of the least power of two whose SL_FP8_TOP-fold is no less than the number
 * with these bits, up to SL_FP8_SCALE_MAX; 0 for a row of zeros. */
static inline uint32_t sl_fp8_exponent(uint32_t most)
{
    uint32_t e = ((most + 0x1fffffu) >> 23) - 8; /* a mantissa above 1.75 carries into the exponent */
    return most < SL_FP8_LEAST ? 0 : e < SL_FP8_SCALE_MAX ? e : SL_FP8_SCALE_MAX;
}

/* To even; up to SL_FP8_TOP, which NaN becomes too. */
static inline uint8_t sl_f32_to_fp8(float x)
{
    float v = x < SL_FP8_TOP ? x : SL_FP8_TOP;
    uint32_t u = sl_float_bits(v > -SL_FP8_TOP ? v : -SL_FP8_TOP), a = u & 0x7fffffffu;
    uint32_t normal = (a - 0x3c000000u + 0x7ffffu + (a >> 20 & 1u)) >> 20;
    /* adding 2^14 leaves the units of 2^-9 in the low bits, rounded by the adder */
    uint32_t subnormal = sl_float_bits(sl_bits_float(a) + 0x1p14f) - 0x46800000u;
    return (uint8_t)((u >> 24 & 0x80u) | (a < 0x3c800000u ? subnormal : normal));
}

/* 0x7f and 0xff, which are NaN elsewhere and never written, are 480. */
static inline float sl_fp8_to_f32(uint8_t b)
{
    /* a float16 of 2^-8 the size */
    return sl_f16_to_f32((uint16_t)((b & 0x80u) << 8 | (b & 0x7fu) << 7)) * 0x1p8f;
}

/* A row and its scale, which may have any alignment. */
static inline void sl_fp8_row(const float *x, uint32_t n, uint8_t *to, void *scale)
{
    uint32_t e = sl_fp8_exponent(sl_fp8_most(x, n)), worth = e << 23;
    float up = e ? sl_bits_float((254u - e) << 23) : 0.0f; /* 1 / scale */
    memcpy(scale, &worth, sizeof worth);
    for (uint32_t i = 0; i < n; i++)
        to[i] = sl_f32_to_fp8(x[i] * up);
}

/* From memory of any alignment. */
static inline float sl_fp8_scale(const void *p)
{
    float scale;
    memcpy(&scale, p, sizeof scale);
    return scale;
}

#endif
