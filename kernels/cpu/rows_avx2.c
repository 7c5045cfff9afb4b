/* kernels/cpu/rows_avx2.c - row operations around the products on 8 lanes; the bits of rows_portable.c. What
 * is left of a row behind its last full vector is done by the scalar functions of vmath.h and half.h, the
 * same operations. */
#include <immintrin.h>

#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/q8.h"
#include "kernels/cpu/vmath_avx2.h"

/* 1 / sqrt(mean(x^2) + eps) */
static float inverse_rms(const float *x, float eps, uint32_t n)
{
    __m256 lo = _mm256_setzero_ps(), hi = _mm256_setzero_ps();
    float lanes[16];
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        lo = _mm256_fmadd_ps(a, a, lo);
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    _mm256_storeu_ps(lanes, lo);
    _mm256_storeu_ps(lanes + 8, hi);
    for (uint32_t j = 0; i + j < n; j++)
        lanes[j] = fmaf(x[i + j], x[i + j], lanes[j]);
    float sum = sl_v8_sum(_mm256_add_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8)));
    return 1.0f / sqrtf(sum / (float)n + eps);
}

void sl_avx2_rmsnorm_row(const float *x, const float *w, float eps, uint32_t n, float *y)
{
    float r = inverse_rms(x, eps, n);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(r));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++)
        y[i] = x[i] * r * w[i];
}

void sl_avx2_norm_add_row(const float *y, const float *w, float eps, uint32_t n, float *x)
{
    float r = inverse_rms(y, eps, n);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(y + i), _mm256_set1_ps(r));
        v = _mm256_mul_ps(v, _mm256_loadu_ps(w + i));
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), v));
    }
    for (; i < n; i++)
        x[i] += y[i] * r * w[i];
}

void sl_avx2_swiglu_row(const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_mul_ps(sl_v8_silu(_mm256_loadu_ps(x + i)), _mm256_loadu_ps(x + n + i)));
    for (; i < n; i++)
        y[i] = sl_silu(x[i]) * x[n + i];
}

void sl_avx2_geglu_row(const float *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_mul_ps(sl_v8_gelu(_mm256_loadu_ps(x + i)), _mm256_loadu_ps(x + n + i)));
    for (; i < n; i++)
        y[i] = sl_gelu(x[i]) * x[n + i];
}

/* max|x| of a part; NaN is passed over. */
static inline float part_max(const float *x)
{
    __m256 most = _mm256_max_ps(sl_v8_abs(_mm256_loadu_ps(x)), _mm256_setzero_ps());
    return sl_v8_max(_mm256_max_ps(sl_v8_abs(_mm256_loadu_ps(x + 8)), most));
}

/* Round to even of x * up; the clamps act on infinities and NaN only. */
static inline __m256i quantise8(const float *x, __m256 up)
{
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x), up);
    v = _mm256_max_ps(_mm256_min_ps(v, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-127.0f));
    return _mm256_cvtps_epi32(v);
}

static inline int32_t sum_epi32(__m256i x)
{
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    b = _mm_add_epi32(b, _mm_unpackhi_epi64(b, b));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 1)));
}

void sl_avx2_quant_row(const float *x, uint32_t n, struct sl_qblock *to, size_t stride)
{
    /* packing works within 128-bit lanes and leaves quads in this order */
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (uint32_t b = 0; b < n / SL_QBLOCK; b++, x += SL_QBLOCK, to += stride) {
        float scale[2];
        __m256 up[2];
        for (uint32_t part = 0; part < 2; part++) {
            float most = part_max(x + part * SL_QPART);
            int none = most < 0x1p-100f;
            scale[part] = none ? 0.0f : most * (1.0f / 127.0f);
            up[part] = _mm256_set1_ps(none ? 0.0f : 127.0f / most);
        }
        __m256i q0 = quantise8(x, up[0]), q1 = quantise8(x + 8, up[0]), q2 = quantise8(x + 16, up[1]),
                q3 = quantise8(x + 24, up[1]);
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));
        _mm256_storeu_si256((__m256i *)to->q, _mm256_permutevar8x32_epi32(bytes, in_order));
        const int32_t sum[2] = {sum_epi32(_mm256_add_epi32(q0, q1)), sum_epi32(_mm256_add_epi32(q2, q3))};
        sl_qblock_finish(to, scale, sum);
    }
}

void sl_avx2_bf16_row(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i a = sl_v8_to_bf16(_mm256_loadu_ps(x + i)), b = sl_v8_to_bf16(_mm256_loadu_ps(x + i + 8));
        _mm256_storeu_si256((__m256i *)(y + i), _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
    }
    for (; i < n; i++)
        y[i] = sl_f32_to_bf16(x[i]);
}

void sl_avx2_angles(uint32_t pos, const float *freq, uint32_t n, float *cos_out, float *sin_out)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 s, c;
        sl_v8_sincos(_mm256_mul_ps(_mm256_set1_ps((float)pos), _mm256_loadu_ps(freq + i)), &s, &c);
        _mm256_storeu_ps(cos_out + i, c);
        _mm256_storeu_ps(sin_out + i, s);
    }
    for (; i < n; i++)
        sl_sincos((float)pos * freq[i], &sin_out[i], &cos_out[i]);
}

static inline void rotate8(__m256 *a, __m256 *b, __m256 c, __m256 s)
{
    __m256 x = *a, y = *b;
    *a = _mm256_fmsub_ps(x, c, _mm256_mul_ps(y, s));
    *b = _mm256_fmadd_ps(x, s, _mm256_mul_ps(y, c));
}

static inline void rotate_one(float *a, float *b, float c, float s)
{
    float x = *a, y = *b;
    *a = fmaf(x, c, -(y * s));
    *b = fmaf(x, s, y * c);
}

static void rotate_halves(float *head, uint32_t n, const float *cos_in, const float *sin_in)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 a = _mm256_loadu_ps(head + i), b = _mm256_loadu_ps(head + n + i);
        rotate8(&a, &b, _mm256_loadu_ps(cos_in + i), _mm256_loadu_ps(sin_in + i));
        _mm256_storeu_ps(head + i, a);
        _mm256_storeu_ps(head + n + i, b);
    }
    for (; i < n; i++)
        rotate_one(&head[i], &head[n + i], cos_in[i], sin_in[i]);
}

/* Shuffles work within 128-bit lanes: the pairs of two vectors come in the order 0 1 4 5 2 3 6 7, and so do
 * cos and sin. */
static void rotate_pairs(float *head, uint32_t n, const float *cos_in, const float *sin_in)
{
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        float *at = head + 2 * (size_t)i;
        __m256 h0 = _mm256_loadu_ps(at), h1 = _mm256_loadu_ps(at + 8);
        __m256 c = _mm256_permutevar8x32_ps(_mm256_loadu_ps(cos_in + i), order);
        __m256 s = _mm256_permutevar8x32_ps(_mm256_loadu_ps(sin_in + i), order);
        __m256 a = _mm256_shuffle_ps(h0, h1, 0x88), b = _mm256_shuffle_ps(h0, h1, 0xdd);
        rotate8(&a, &b, c, s);
        _mm256_storeu_ps(at, _mm256_unpacklo_ps(a, b));
        _mm256_storeu_ps(at + 8, _mm256_unpackhi_ps(a, b));
    }
    for (; i < n; i++)
        rotate_one(&head[2 * i], &head[2 * i + 1], cos_in[i], sin_in[i]);
}

void sl_avx2_rotate(float *head, uint32_t n_pairs, enum sl_rope_layout layout, const float *cos_in,
                    const float *sin_in)
{
    if (layout == SL_ROPE_HALVES)
        rotate_halves(head, n_pairs, cos_in, sin_in);
    else
        rotate_pairs(head, n_pairs, cos_in, sin_in);
}

void sl_avx2_kv_store(const float *x, uint32_t n, enum sl_dtype type, void *to)
{
    uint16_t *h = to;
    uint32_t i = 0;
    if (type == SL_F32) {
        memcpy(to, x, n * sizeof *x);
        return;
    }
    if (type == SL_BF16) {
        sl_avx2_bf16_row(x, n, h);
        return;
    }
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(h + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        h[i] = sl_f32_to_f16(x[i]);
}

static void quantise_int8(const float *x, uint32_t n, int8_t *to, void *scale)
{
    __m256 sizes = _mm256_setzero_ps();
    uint32_t whole = n / 8 * 8, i = 0;
    for (; i < whole; i += 8)
        sizes = _mm256_max_ps(sl_v8_abs(_mm256_loadu_ps(x + i)), sizes);
    float most = sl_v8_max(sizes), rest = sl_q8_most(x + whole, n - whole);
    most = rest > most ? rest : most;
    float up = sl_q8_up(most, SL_Q8_VALUE), worth = sl_q8_scale(most, SL_Q8_VALUE);
    for (i = 0; i < whole; i += 8) {
        __m256i q = quantise8(x + i, _mm256_set1_ps(up));
        __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
        _mm_storel_epi64((__m128i *)(void *)(to + i), _mm_packs_epi16(halves, halves));
    }
    for (; i < n; i++)
        to[i] = (int8_t)sl_q8_round(x[i] * up, SL_Q8_VALUE);
    memcpy(scale, &worth, sizeof worth);
}

void sl_avx2_kv_quantise(const float *x, uint32_t n, enum sl_dtype type, void *to, void *scale)
{
    if (type == SL_FP8)
        sl_fp8_row(x, n, to, scale);
    else
        quantise_int8(x, n, to, scale);
}
