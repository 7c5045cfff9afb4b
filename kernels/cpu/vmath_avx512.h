/* kernels/cpu/vmath_avx512.h - vmath.h on 16 lanes: the same operations in the same order, so the same bits.
 * Included by
 * *_avx512.c only. */
#ifndef SLUICE_KERNELS_CPU_VMATH_AVX512_H
#define SLUICE_KERNELS_CPU_VMATH_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/vmath.h"

static inline __m512 sl_v_negate(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN)));
}

static inline __m512 sl_v_exp2_split(__m512 t, __m512 low)
{
    const __m512 most = _mm512_set1_ps(SL_EXP2_MAX), least = _mm512_set1_ps(SL_EXP2_MIN);
    /* vmaxps and vminps give the second operand when one is NaN */
    __m512 c = _mm512_max_ps(_mm512_min_ps(most, t), least);
    __m512 n = _mm512_roundscale_ps(c, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_add_ps(_mm512_sub_ps(c, n), low);
    __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(SL_EXP2_C6), _mm512_set1_ps(SL_EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    __m512i power = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    __m512 r = _mm512_mul_ps(p, _mm512_castsi512_ps(power));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(t, least, _CMP_NLT_UQ), r);
}

static inline __m512 sl_v_exp2(__m512 t)
{
    return sl_v_exp2_split(t, _mm512_setzero_ps());
}

static inline __m512 sl_v_exp2_coarse(__m512 t)
{
    const __m512 magic = _mm512_set1_ps(SL_ROUND_MAGIC);
    __m512 c = _mm512_max_ps(t, _mm512_set1_ps(SL_EXP2_COARSE_MIN)), z = _mm512_add_ps(c, magic);
    __m512 f = _mm512_sub_ps(c, _mm512_sub_ps(z, magic));
    __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(SL_EXP2_COARSE_C3), _mm512_set1_ps(SL_EXP2_COARSE_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_COARSE_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_COARSE_C0));
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(z), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
}

static inline __m512 sl_v_exp(__m512 x)
{
    const __m512 log2e = _mm512_set1_ps(SL_LOG2E);
    __m512 t = _mm512_mul_ps(x, log2e);
    __m512 low = _mm512_fmadd_ps(x, _mm512_set1_ps(SL_LOG2E_LO), _mm512_fmadd_ps(x, log2e, sl_v_negate(t)));
    __mmask16 inside = _mm512_cmp_ps_mask(t, _mm512_set1_ps(SL_EXP2_MAX), _CMP_NGT_UQ) &
                       _mm512_cmp_ps_mask(t, _mm512_set1_ps(SL_EXP2_MIN), _CMP_NLT_UQ);
    return sl_v_exp2_split(t, _mm512_maskz_mov_ps(inside, low));
}

static inline __m512 sl_v_silu(__m512 x)
{
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), sl_v_exp(sl_v_negate(x))));
}

static inline __m512 sl_v_gelu(__m512 x)
{
    __m512 u = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(SL_GELU_C3), _mm512_set1_ps(SL_GELU_C1));
    __m512 e = sl_v_exp(sl_v_negate(_mm512_mul_ps(x, u)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

static inline void sl_v_sincos(__m512 x, __m512 *sin_out, __m512 *cos_out)
{
    const __m512i one = _mm512_set1_epi32(1), two = _mm512_set1_epi32(2);
    __m512 k = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(SL_2_OVER_PI)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(k, _mm512_set1_ps(SL_PI_2_A), x);
    r = _mm512_fnmadd_ps(k, _mm512_set1_ps(SL_PI_2_B), r);
    r = _mm512_fnmadd_ps(k, _mm512_set1_ps(SL_PI_2_C), r);
    __m512 r2 = _mm512_mul_ps(r, r);
    __m512 s = _mm512_fmadd_ps(_mm512_set1_ps(SL_SIN_C3), r2, _mm512_set1_ps(SL_SIN_C2));
    s = _mm512_fmadd_ps(s, r2, _mm512_set1_ps(SL_SIN_C1));
    s = _mm512_fmadd_ps(_mm512_mul_ps(s, r2), r, r);
    __m512 c = _mm512_fmadd_ps(_mm512_set1_ps(SL_COS_C3), r2, _mm512_set1_ps(SL_COS_C2));
    c = _mm512_fmadd_ps(c, r2, _mm512_set1_ps(SL_COS_C1));
    c = _mm512_fmadd_ps(_mm512_mul_ps(c, r2), r2,
                        _mm512_fmadd_ps(_mm512_set1_ps(-0.5f), r2, _mm512_set1_ps(1.0f)));
    __m512i q = _mm512_cvtps_epi32(k);
    __mmask16 odd = _mm512_test_epi32_mask(q, one);
    __m512 a = _mm512_mask_mov_ps(s, odd, c), b = _mm512_mask_mov_ps(c, odd, s);
    __m512i flip_a = _mm512_slli_epi32(_mm512_and_si512(q, two), 30);
    __m512i flip_b = _mm512_slli_epi32(_mm512_and_si512(_mm512_add_epi32(q, one), two), 30);
    *sin_out = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), flip_a));
    *cos_out = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(b), flip_b));
}

/* Lanes i + (i + 8), then + 4, + 2, + 1. */
static inline float sl_v_sum(__m512 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

#endif
