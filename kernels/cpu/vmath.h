/* kernels/cpu/vmath.h - exp and sincos with fixed polynomials: the same bits on every CPU and in
 * vmath_avx512.h, which does the same operations on 16 lanes. The C library's picks its code by CPU and may
 * not define numerics.
 *
 * Errors against exact values (tests/kernels/test_vmath.c): exp2, exp 2 ulp; sincos 2e-7 absolute for |x| <
 * 2^20. */
#ifndef SLUICE_KERNELS_CPU_VMATH_H
#define SLUICE_KERNELS_CPU_VMATH_H

#include <math.h>
#include "kernels/cpu/fma.h"
#include "kernels/cpu/half.h"

#define SL_LOG2E    0x1.715476p+0f
#define SL_LOG2E_LO 0x1.4ae0cp-26f
/* 2^f on [-0.5, 0.5], relative error 2e-8; the constant term is 1, so that exp2(0) is 1 exactly */
#define SL_EXP2_C1 0x1.62e430p-1f
#define SL_EXP2_C2 0x1.ebfbdcp-3f
#define SL_EXP2_C3 0x1.c6aee8p-5f
#define SL_EXP2_C4 0x1.3b2d4cp-7f
#define SL_EXP2_C5 0x1.5f3e52p-10f
#define SL_EXP2_C6 0x1.41fbbcp-13f
/* below SL_EXP2_MIN the result is 0 (no subnormals), above SL_EXP2_MAX it is that of SL_EXP2_MAX */
#define SL_EXP2_MIN (-125.0f)
#define SL_EXP2_MAX 126.0f

/* twice sqrt(2 / pi), and that times 0.044715 */
#define SL_GELU_C1 0x1.988454p+0f
#define SL_GELU_C3 0x1.2444f2p-4f

/* 2^f on [-0.5, 0.5], relative error 8e-5: a seventh of what rounding to bfloat16 adds */
#define SL_EXP2_COARSE_C0 0x1.fff692p-1f
#define SL_EXP2_COARSE_C1 0x1.62f31ap-1f
#define SL_EXP2_COARSE_C2 0x1.f0de1ap-3f
#define SL_EXP2_COARSE_C3 0x1.c3f76p-5f
/* the integer nearest to it is the exponent of subnormals, and the power beside it is above 1 */
#define SL_EXP2_COARSE_MIN (-126.75f)
#define SL_ROUND_MAGIC     0x1.8p23f /* x + this has round(x) in its low bits */

#define SL_2_OVER_PI 0x1.45f306p-1f
#define SL_PI_2_A    0x1.921fb6p+0f
#define SL_PI_2_B    (-0x1.777a5cp-25f)
#define SL_PI_2_C    (-0x1.ee59dap-50f)
#define SL_SIN_C1    (-0x1.55554p-3f)
#define SL_SIN_C2    0x1.1105b4p-7f
#define SL_SIN_C3    (-0x1.98da52p-13f)
#define SL_COS_C1    0x1.55554ap-5f
#define SL_COS_C2    (-0x1.6c0c8cp-10f)
#define SL_COS_C3    0x1.9a024cp-16f

/* 2^(t + low), |low| small: exp() keeps there what the product with log2(e) lost. */
static inline float sl_exp2_split(float t, float low)
{
    float c = t > SL_EXP2_MAX ? SL_EXP2_MAX : t;
    c = c > SL_EXP2_MIN ? c : SL_EXP2_MIN; /* NaN too: it must not reach the conversion below */
    float n = rintf(c), f = (c - n) + low;
    float p = sl_fma(f, SL_EXP2_C6, SL_EXP2_C5);
    p = sl_fma(p, f, SL_EXP2_C4);
    p = sl_fma(p, f, SL_EXP2_C3);
    p = sl_fma(p, f, SL_EXP2_C2);
    p = sl_fma(p, f, SL_EXP2_C1);
    p = sl_fma(p, f, 1.0f);
    float r = p * sl_bits_float((uint32_t)((int32_t)n + 127) << 23);
    return t < SL_EXP2_MIN ? 0.0f : r;
}

static inline float sl_exp2(float t)
{
    return sl_exp2_split(t, 0.0f);
}

/* 2^t for t <= 0, to be rounded to bfloat16: what is below its normal numbers comes out subnormal, which
 * counts as 0 there. NaN gives that too. */
static inline float sl_exp2_coarse(float t)
{
    float c = t > SL_EXP2_COARSE_MIN ? t : SL_EXP2_COARSE_MIN, z = c + SL_ROUND_MAGIC;
    float f = c - (z - SL_ROUND_MAGIC);
    float p = sl_fma(f, SL_EXP2_COARSE_C3, SL_EXP2_COARSE_C2);
    p = sl_fma(p, f, SL_EXP2_COARSE_C1);
    p = sl_fma(p, f, SL_EXP2_COARSE_C0);
    return sl_bits_float(sl_float_bits(p) + (sl_float_bits(z) << 23));
}

static inline float sl_exp(float x)
{
    float t = x * SL_LOG2E;
    float low = sl_fma(x, SL_LOG2E_LO, sl_fma(x, SL_LOG2E, -t));
    low = t > SL_EXP2_MAX || t < SL_EXP2_MIN ? 0.0f : low;
    return sl_exp2_split(t, low);
}

static inline float sl_silu(float x)
{
    return x / (1.0f + sl_exp(-x));
}

/* 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
static inline float sl_gelu(float x)
{
    return x / (1.0f + sl_exp(-(x * sl_fma(x * x, SL_GELU_C3, SL_GELU_C1))));
}

static inline void sl_sincos(float x, float *sin_out, float *cos_out)
{
    float k = rintf(x * SL_2_OVER_PI);
    float r = sl_fma(-k, SL_PI_2_A, x);
    r = sl_fma(-k, SL_PI_2_B, r);
    r = sl_fma(-k, SL_PI_2_C, r);
    float r2 = r * r;
    float s = sl_fma(sl_fma(SL_SIN_C3, r2, SL_SIN_C2), r2, SL_SIN_C1);
    s = sl_fma(s * r2, r, r);
    float c = sl_fma(sl_fma(SL_COS_C3, r2, SL_COS_C2), r2, SL_COS_C1);
    c = sl_fma(c * r2, r2, sl_fma(-0.5f, r2, 1.0f));
    uint32_t q = (uint32_t)(int32_t)k;
    float a = q & 1u ? c : s, b = q & 1u ? s : c;
    *sin_out = sl_bits_float(sl_float_bits(a) ^ (q & 2u) << 30);
    *cos_out = sl_bits_float(sl_float_bits(b) ^ ((q + 1u) & 2u) << 30);
}

#endif
