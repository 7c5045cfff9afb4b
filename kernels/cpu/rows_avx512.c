/* kernels/cpu/rows_avx512.c - row operations around the products on 16 lanes; the bits of rows_portable.c. */
#include <immintrin.h>

#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/q8.h"
#include "kernels/cpu/vmath_avx512.h"

/* The lanes below n of the 16 from i on. */
static inline __mmask16 lanes(uint32_t i, uint32_t n)
{
    return n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
}

/* 1 / sqrt(mean(x^2) + eps) in all lanes */
static inline __m512 inverse_rms(const float *x, float eps, uint32_t n)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(lanes(i, n), x + i);
        sum = _mm512_fmadd_ps(v, v, sum);
    }
    return _mm512_set1_ps(1.0f / sqrtf(sl_v_sum(sum) / (float)n + eps));
}

void sl_avx512_rmsnorm_row(const float *x, const float *w, float eps, uint32_t n, float *y)
{
    __m512 r = inverse_rms(x, eps, n);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes(i, n);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

void sl_avx512_norm_add_row(const float *y, const float *w, float eps, uint32_t n, float *x)
{
    __m512 r = inverse_rms(y, eps, n);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes(i, n);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, y + i), r);
        v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i));
        _mm512_mask_storeu_ps(x + i, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, x + i), v));
    }
}

void sl_avx512_swiglu_row(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes(i, n);
        __m512 gate = sl_v_silu(_mm512_maskz_loadu_ps(m, x + i));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(gate, _mm512_maskz_loadu_ps(m, x + n + i)));
    }
}

void sl_avx512_geglu_row(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes(i, n);
        __m512 gate = sl_v_gelu(_mm512_maskz_loadu_ps(m, x + i));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(gate, _mm512_maskz_loadu_ps(m, x + n + i)));
    }
}

/* max|x| of the parts x0 and x1 in lanes 0 and 1; NaN is passed over, being the first operand. */
static inline __m128 part_max(__m512 x0, __m512 x1)
{
    __m512 a0 = _mm512_max_ps(_mm512_abs_ps(x0), _mm512_setzero_ps()),
           a1 = _mm512_max_ps(_mm512_abs_ps(x1), _mm512_setzero_ps());
    __m512 both = _mm512_max_ps(_mm512_shuffle_f32x4(a0, a1, 0x44), _mm512_shuffle_f32x4(a0, a1, 0xee));
    both =
        _mm512_max_ps(both, _mm512_shuffle_f32x4(both, both, 0xb1)); /* lanes 0 to 3 of x0, 8 to 11 of x1 */
    __m128 m0 = _mm512_castps512_ps128(both), m1 = _mm512_extractf32x4_ps(both, 2);
    __m128 m = _mm_max_ps(_mm_unpacklo_ps(m0, m1), _mm_unpackhi_ps(m0, m1));
    return _mm_max_ps(m, _mm_movehl_ps(m, m));
}

/* The conversion rounds to even; the clamps act on infinities and NaN only. */
static inline __m512i quantise16(__m512 x, __m512 up)
{
    __m512 v = _mm512_min_ps(_mm512_mul_ps(x, up), _mm512_set1_ps(127.0f));
    return _mm512_cvtps_epi32(_mm512_max_ps(v, _mm512_set1_ps(-127.0f)));
}

void sl_avx512_quant_row(const float *x, uint32_t n, struct sl_qblock *to, size_t stride)
{
    for (uint32_t b = 0; b < n / SL_QBLOCK; b++, x += SL_QBLOCK, to += stride) {
        __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
        __m128 most = part_max(x0, x1);
        __mmask8 some = _mm_cmp_ps_mask(most, _mm_set1_ps(0x1p-100f), _CMP_GE_OQ);
        __m128 up = _mm_maskz_div_ps(some, _mm_set1_ps(127.0f), most);
        __m128 scale = _mm_maskz_mul_ps(some, most, _mm_set1_ps(1.0f / 127.0f));
        __m512i q0 = quantise16(x0, _mm512_broadcastss_ps(up));
        __m512i q1 = quantise16(x1, _mm512_broadcastss_ps(_mm_movehdup_ps(up)));
        __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(q0)),
                                            _mm512_cvtepi32_epi8(q1), 1);
        _mm256_store_si256((__m256i *)to->q, q);
        __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
        sums = _mm256_hadd_epi32(sums, sums);
        sums = _mm256_hadd_epi32(sums, sums);
        const int32_t sum[2] = {_mm256_cvtsi256_si32(sums), _mm256_extract_epi32(sums, 4)};
        float scales[4];
        _mm_storeu_ps(scales, scale);
        sl_qblock_finish(to, scales, sum);
    }
}

void sl_avx512_bf16_row(const float *x, uint32_t n, uint16_t *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes(i, n);
        _mm256_mask_storeu_epi16(y + i, m, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(m, x + i)));
    }
}

void sl_avx512_angles(uint32_t pos, const float *freq, uint32_t n, float *cos_out, float *sin_out)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes(i, n);
        __m512 s, c;
        sl_v_sincos(_mm512_mul_ps(_mm512_set1_ps((float)pos), _mm512_maskz_loadu_ps(m, freq + i)), &s, &c);
        _mm512_mask_storeu_ps(cos_out + i, m, c);
        _mm512_mask_storeu_ps(sin_out + i, m, s);
    }
}

static inline void rotate16(__m512 *a, __m512 *b, __m512 c, __m512 s)
{
    __m512 x = *a, y = *b;
    *a = _mm512_fmadd_ps(x, c, sl_v_negate(_mm512_mul_ps(y, s)));
    *b = _mm512_fmadd_ps(x, s, _mm512_mul_ps(y, c));
}

void sl_avx512_rotate(float *head, uint32_t n_pairs, enum sl_rope_layout layout, const float *cos_in,
                      const float *sin_in)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    for (uint32_t i = 0; i < n_pairs; i += 16) {
        __mmask16 m = lanes(i, n_pairs);
        __m512 c = _mm512_maskz_loadu_ps(m, cos_in + i), s = _mm512_maskz_loadu_ps(m, sin_in + i);
        if (layout == SL_ROPE_HALVES) {
            __m512 a = _mm512_maskz_loadu_ps(m, head + i), b = _mm512_maskz_loadu_ps(m, head + n_pairs + i);
            rotate16(&a, &b, c, s);
            _mm512_mask_storeu_ps(head + i, m, a);
            _mm512_mask_storeu_ps(head + n_pairs + i, m, b);
            continue;
        }
        uint32_t floats = 2 * (n_pairs - i);
        __mmask16 m0 = lanes(0, floats), m1 = floats > 16 ? lanes(16, floats) : 0;
        __m512 h0 = _mm512_maskz_loadu_ps(m0, head + 2 * i),
               h1 = _mm512_maskz_loadu_ps(m1, head + 2 * i + 16);
        __m512 a = _mm512_permutex2var_ps(h0, even, h1);
        __m512 b = _mm512_permutex2var_ps(h0, _mm512_add_epi32(even, _mm512_set1_epi32(1)), h1);
        rotate16(&a, &b, c, s);
        _mm512_mask_storeu_ps(head + 2 * i, m0, _mm512_permutex2var_ps(a, low, b));
        _mm512_mask_storeu_ps(head + 2 * i + 16, m1,
                              _mm512_permutex2var_ps(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b));
    }
}

void sl_avx512_kv_store(const float *x, uint32_t n, enum sl_dtype type, void *to)
{
    uint16_t *h = to;
    if (type == SL_F32) {
        memcpy(to, x, n * sizeof *x);
        return;
    }
    if (type == SL_BF16) {
        sl_avx512_bf16_row(x, n, h);
        return;
    }
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = lanes(i, n);
        __m256i v = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_mask_storeu_epi16(h + i, m, v);
    }
}

static void quantise_int8(const float *x, uint32_t n, int8_t *to, void *scale)
{
    const __m512 top = _mm512_set1_ps(SL_Q8_VALUE), bottom = _mm512_set1_ps(-SL_Q8_VALUE);
    __m512 sizes = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16)
        sizes = _mm512_max_ps(_mm512_abs_ps(_mm512_maskz_loadu_ps(lanes(i, n), x + i)), sizes);
    float most = _mm512_reduce_max_ps(sizes), worth = sl_q8_scale(most, SL_Q8_VALUE);
    __m512 up = _mm512_set1_ps(sl_q8_up(most, SL_Q8_VALUE));
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes(i, n), x + i), up);
        __m512i q = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(v, top), bottom));
        _mm512_mask_cvtepi32_storeu_epi8(to + i, lanes(i, n), q);
    }
    memcpy(scale, &worth, sizeof worth);
}

void sl_avx512_kv_quantise(const float *x, uint32_t n, enum sl_dtype type, void *to, void *scale)
{
    if (type == SL_FP8)
        sl_fp8_row(x, n, to, scale);
    else
        quantise_int8(x, n, to, scale);
}
