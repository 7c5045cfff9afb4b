/* kernels/cpu/q8.h - rounding a row to integers with one scale: K and V as SL_Q8, and what they are
 * multiplied with. The products are then sums of integers, exact in any order and in any instruction set.
 *
 * K and V have 8 bits. Queries and weights have 15, so that they add nothing to the error that K and V have:
 * an instruction set with products of 8 bits takes them in two parts, one with 16 bits as they are. */
#ifndef SLUICE_KERNELS_CPU_Q8_H
#define SLUICE_KERNELS_CPU_Q8_H

#include <math.h>

#define SL_Q8_VALUE  127.0f
#define SL_Q8_QUERY  16256.0f /* 127 * 128: 1024 products with values stay below 2^31 */
#define SL_Q8_WEIGHT 32767.0f
#define SL_Q8_LEAST  0x1p-100f /* a row of less is zero */

/* x is rounded as x * up, up to top, where most = max|x|. */
static inline float sl_q8_up(float most, float top)
{
    return most < SL_Q8_LEAST ? 0.0f : top / most;
}

/* What an integer is worth. */
static inline float sl_q8_scale(float most, float top)
{
    return most < SL_Q8_LEAST ? 0.0f : most * (1.0f / top);
}

/* To even; NaN, which an infinity makes, becomes top. */
static inline float sl_q8_round(float x, float top)
{
    float v = rintf(x);
    v = v < top ? v : top;
    return v > -top ? v : -top;
}

/* max|x|; NaN is passed over. */
static inline float sl_q8_most(const float *x, uint32_t n)
{
    float most = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

#endif
