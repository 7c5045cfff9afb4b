/* kernels/cpu/vmath_avx2.h - vmath.h on 8 lanes: the same operations in the same order, so the same bits.
 * Included by *_avx2.c only. */
#ifndef SLUICE_KERNELS_CPU_VMATH_AVX2_H
#define SLUICE_KERNELS_CPU_VMATH_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/vmath.h"

#define SL_V8_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

static inline __m256 sl_v8_negate(__m256 x)
{
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}

static inline __m256 sl_v8_abs(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

static inline __m256 sl_v8_exp2_split(__m256 t, __m256 low)
{
    const __m256 most = _mm256_set1_ps(SL_EXP2_MAX), least = _mm256_set1_ps(SL_EXP2_MIN);
    /* vminps and vmaxps give the second operand when one is NaN */
    __m256 c = _mm256_max_ps(_mm256_min_ps(most, t), least);
    __m256 n = _mm256_round_ps(c, SL_V8_NEAREST);
    __m256 f = _mm256_add_ps(_mm256_sub_ps(c, n), low);
    __m256 p = _mm256_fmadd_ps(f, _mm256_set1_ps(SL_EXP2_C6), _mm256_set1_ps(SL_EXP2_C5));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_C4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_C3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_C2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_C1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    __m256 r = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
    return _mm256_and_ps(r, _mm256_cmp_ps(t, least, _CMP_NLT_UQ));
}

static inline __m256 sl_v8_exp2(__m256 t)
{
    return sl_v8_exp2_split(t, _mm256_setzero_ps());
}

static inline __m256 sl_v8_exp2_coarse(__m256 t)
{
    const __m256 magic = _mm256_set1_ps(SL_ROUND_MAGIC);
    __m256 c = _mm256_max_ps(t, _mm256_set1_ps(SL_EXP2_COARSE_MIN)), z = _mm256_add_ps(c, magic);
    __m256 f = _mm256_sub_ps(c, _mm256_sub_ps(z, magic));
    __m256 p = _mm256_fmadd_ps(f, _mm256_set1_ps(SL_EXP2_COARSE_C3), _mm256_set1_ps(SL_EXP2_COARSE_C2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_COARSE_C1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_COARSE_C0));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(z), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
}

static inline __m256 sl_v8_exp(__m256 x)
{
    const __m256 log2e = _mm256_set1_ps(SL_LOG2E);
    __m256 t = _mm256_mul_ps(x, log2e);
    __m256 low = _mm256_fmadd_ps(x, _mm256_set1_ps(SL_LOG2E_LO), _mm256_fmsub_ps(x, log2e, t));
    __m256 inside = _mm256_and_ps(_mm256_cmp_ps(t, _mm256_set1_ps(SL_EXP2_MAX), _CMP_NGT_UQ),
                                  _mm256_cmp_ps(t, _mm256_set1_ps(SL_EXP2_MIN), _CMP_NLT_UQ));
    return sl_v8_exp2_split(t, _mm256_and_ps(low, inside));
}

static inline __m256 sl_v8_silu(__m256 x)
{
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), sl_v8_exp(sl_v8_negate(x))));
}

static inline __m256 sl_v8_gelu(__m256 x)
{
    __m256 u = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(SL_GELU_C3), _mm256_set1_ps(SL_GELU_C1));
    __m256 e = sl_v8_exp(sl_v8_negate(_mm256_mul_ps(x, u)));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

static inline void sl_v8_sincos(__m256 x, __m256 *sin_out, __m256 *cos_out)
{
    const __m256i one = _mm256_set1_epi32(1), two = _mm256_set1_epi32(2);
    __m256 k = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(SL_2_OVER_PI)), SL_V8_NEAREST);
    __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(SL_PI_2_A), x);
    r = _mm256_fnmadd_ps(k, _mm256_set1_ps(SL_PI_2_B), r);
    r = _mm256_fnmadd_ps(k, _mm256_set1_ps(SL_PI_2_C), r);
    __m256 r2 = _mm256_mul_ps(r, r);
    __m256 s = _mm256_fmadd_ps(_mm256_set1_ps(SL_SIN_C3), r2, _mm256_set1_ps(SL_SIN_C2));
    s = _mm256_fmadd_ps(s, r2, _mm256_set1_ps(SL_SIN_C1));
    s = _mm256_fmadd_ps(_mm256_mul_ps(s, r2), r, r);
    __m256 c = _mm256_fmadd_ps(_mm256_set1_ps(SL_COS_C3), r2, _mm256_set1_ps(SL_COS_C2));
    c = _mm256_fmadd_ps(c, r2, _mm256_set1_ps(SL_COS_C1));
    c = _mm256_fmadd_ps(_mm256_mul_ps(c, r2), r2,
                        _mm256_fmadd_ps(_mm256_set1_ps(-0.5f), r2, _mm256_set1_ps(1.0f)));
    __m256i q = _mm256_cvtps_epi32(k);
    __m256 odd = _mm256_castsi256_ps(_mm256_slli_epi32(q, 31)); /* the blend looks at the sign bit */
    __m256 a = _mm256_blendv_ps(s, c, odd), b = _mm256_blendv_ps(c, s, odd);
    __m256i flip_a = _mm256_slli_epi32(_mm256_and_si256(q, two), 30);
    __m256i flip_b = _mm256_slli_epi32(_mm256_and_si256(_mm256_add_epi32(q, one), two), 30);
    *sin_out = _mm256_xor_ps(a, _mm256_castsi256_ps(flip_a));
    *cos_out = _mm256_xor_ps(b, _mm256_castsi256_ps(flip_b));
}

/* Lanes i + (i + 4), then + 2, + 1: the end of a sum over 16 lanes whose halves were added. */
static inline float sl_v8_sum(__m256 x)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float sl_v8_max(__m256 x)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/* Eight float32 as bfloat16, the bits of sl_f32_to_bf16() (half.h), in the low halves of the lanes. */
static inline __m256i sl_v8_to_bf16(__m256 x)
{
    const __m256i one = _mm256_set1_epi32(1);
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i a = _mm256_castps_si256(sl_v8_abs(x));
    __m256i bias = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, one));
    __m256i h = _mm256_srli_epi32(_mm256_add_epi32(u, bias), 16);
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), a);
    __m256i nan = _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f800000));
    h = _mm256_blendv_epi8(h, _mm256_and_si256(high, _mm256_set1_epi32(0x8000)), small);
    return _mm256_blendv_epi8(h, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}

#endif
