/* kernels/cpu/attention_q8_avx2.c - a block of int8 K and V with AVX2; arithmetic: cpu_attention.c.
 *
 * All integers become 16 bits, whose products vpmaddwd adds in pairs: of head_dim in a score, of positions in
 * the output. The block is converted once for all rows of the tile. What a row does not see has the weight 0,
 * and integers are never NaN: no row needs an edge of its own. */
#include "kernels/cpu/attention_avx2.h"

#include <string.h>
#include "kernels/cpu/q8.h"
#include "kernels/cpu/vmath_avx2.h"

#define PASS 3u /* rows of the output at a time: a group of heads is often as many */

static int16_t *query_at(const struct sl_attn_scratch *s, uint32_t r, uint32_t hd)
{
    return (int16_t *)(s->q + (size_t)r * sl_attn_width(hd));
}

/* The weights of row r of the tile, [BLK]. */
static int16_t *weights_at(const struct sl_attn_scratch *s, uint32_t r)
{
    return (int16_t *)s->p + (size_t)r * BLK;
}

void sl_avx2_q8_query(const float *q, uint32_t hd, float scale, const struct sl_attn_scratch *s, uint32_t r)
{
    uint32_t width = sl_attn_width(hd);
    float x[SL_HEAD_DIM_MAX];
    for (uint32_t i = 0; i < hd; i++)
        x[i] = q[i] * scale;
    memset(x + hd, 0, (width - hd) * sizeof *x);
    float most = sl_q8_most(x, hd), up = sl_q8_up(most, SL_Q8_QUERY);
    for (uint32_t i = 0; i < width; i++)
        query_at(s, r, hd)[i] = (int16_t)sl_q8_round(x[i] * up, SL_Q8_QUERY);
    s->q_scale[r] = sl_q8_scale(most, SL_Q8_QUERY);
}

/* 16 elements of which n are there, the others zero. */
static inline __m256i load_16(const uint8_t *from, uint32_t n)
{
    uint8_t some[16] = {0};
    if (n < 16)
        from = memcpy(some, from, n);
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
}

/* Asks for a row that will be read. */
INLINE void prefetch_row(const uint8_t *row, uint32_t hd)
{
    for (uint32_t at = 0; at < hd; at += 64)
        _mm_prefetch(row + at, _MM_HINT_T1);
}

/* K to s->k [BLK][width], V as pairs of positions to s->v [BLK / 2][width][2]; their scales. */
static void load_block(const struct sl_attn_scratch *s, uint32_t hd, const struct sl_attn_block *b,
                       const struct sl_attn_block *next)
{
    uint32_t width = sl_attn_width(hd);
    for (uint32_t i = 0; i < BLK; i++) {
        prefetch_row(next->k[i], hd);
        memcpy(&s->k_scale[i], b->k_scale[i], sizeof *s->k_scale);
        memcpy(&s->v_scale[i], b->v_scale[i], sizeof *s->v_scale);
        for (uint32_t d = 0; d < width; d += 16)
            _mm256_store_si256((__m256i *)((int16_t *)s->k + (size_t)i * width + d),
                               load_16(b->k[i] + d, hd - d));
    }
    for (uint32_t i = 0; i < BLK; i += 2) {
        prefetch_row(next->v[i], hd);
        prefetch_row(next->v[i + 1], hd);
        for (uint32_t d = 0; d < width; d += 16) {
            __m256i x = load_16(b->v[i] + d, hd - d), y = load_16(b->v[i + 1] + d, hd - d);
            __m256i lo = _mm256_unpacklo_epi16(x, y), hi = _mm256_unpackhi_epi16(x, y);
            __m256i *to = (__m256i *)(s->v + (size_t)i / 2 * width + d);
            _mm256_store_si256(to, _mm256_permute2x128_si256(lo, hi, 0x20));
            _mm256_store_si256(to + 1, _mm256_permute2x128_si256(lo, hi, 0x31));
        }
    }
}

/* Lane i of the result is the sum of a[i]. */
static inline __m256i sums_of(const __m256i a[8])
{
    __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
    __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(a[4], a[5]), _mm256_hadd_epi32(a[6], a[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                            _mm256_permute2x128_si256(low, high, 0x31));
}

/* Scores of row r against the positions [i, i + 8). */
static inline __m256 score(const struct sl_attn_scratch *s, uint32_t r, uint32_t hd, uint32_t i)
{
    uint32_t width = sl_attn_width(hd);
    const int16_t *q = query_at(s, r, hd), *k = (const int16_t *)s->k + (size_t)i * width;
    __m256i a[8];
    UNROLL
    for (uint32_t j = 0; j < 8; j++)
        a[j] = _mm256_setzero_si256();
    for (uint32_t d = 0; d < width; d += 16) {
        __m256i x = _mm256_load_si256((const __m256i *)(q + d));
        UNROLL
        for (uint32_t j = 0; j < 8; j++) {
            __m256i y = _mm256_load_si256((const __m256i *)(k + (size_t)j * width + d));
            a[j] = _mm256_add_epi32(a[j], _mm256_madd_epi16(x, y));
        }
    }
    __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(sums_of(a)), _mm256_set1_ps(s->q_scale[r]));
    return _mm256_mul_ps(x, _mm256_load_ps(s->k_scale + i));
}

/* Scores and softmax of row r against positions [first, n): m, l, keep and the weights; returns what a
 * weight's unit is worth. */
static float weigh(const struct sl_attn_scratch *s, uint32_t r, uint32_t hd, uint32_t first, uint32_t n)
{
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 v[8], best = none, most = _mm256_setzero_ps();
    UNROLL
    for (uint32_t c = 0; c < 8; c++) {
        v[c] = _mm256_blendv_ps(none, score(s, r, hd, 8 * c), between(8 * c, first, n));
        best = _mm256_max_ps(v[c], best); /* the second operand where one is NaN: it is passed over */
    }
    float best_one = sl_v8_max(best), m = best_one > s->m[r] ? best_one : s->m[r];
    UNROLL
    for (uint32_t c = 0; c < 8; c++)
        v[c] = _mm256_and_ps(sl_v8_exp2_coarse(_mm256_sub_ps(v[c], _mm256_set1_ps(m))),
                             between(8 * c, first, n));
    s->keep[r] = sl_exp2(s->m[r] - m);
    __m256 low = _mm256_add_ps(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[4], v[6]));
    __m256 high = _mm256_add_ps(_mm256_add_ps(v[1], v[3]), _mm256_add_ps(v[5], v[7]));
    s->l[r] = fmaf(s->l[r], s->keep[r], sl_v8_sum(_mm256_add_ps(low, high)));
    s->m[r] = m;
    UNROLL
    for (uint32_t c = 0; c < 8; c++) {
        v[c] =
            _mm256_and_ps(_mm256_mul_ps(v[c], _mm256_load_ps(s->v_scale + 8 * c)), between(8 * c, first, n));
        most = _mm256_max_ps(v[c], most);
    }
    float most_one = sl_v8_max(most);
    __m256 up = _mm256_set1_ps(sl_q8_up(most_one, SL_Q8_WEIGHT)), top = _mm256_set1_ps(SL_Q8_WEIGHT);
    UNROLL
    for (uint32_t c = 0; c < 8; c += 2) {
        __m256i w0 = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_mul_ps(v[c], up), top));
        __m256i w1 = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_mul_ps(v[c + 1], up), top));
        __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(w0, w1), 0xd8);
        _mm256_store_si256((__m256i *)(weights_at(s, r) + 8 * c), both);
    }
    return sl_q8_scale(most_one, SL_Q8_WEIGHT);
}

/* Elements [d, d + 16) of the output of rows [r, r + rows). */
INLINE void values(uint32_t rows, const struct sl_attn_scratch *s, uint32_t r, uint32_t hd, uint32_t d,
                   const float *worth)
{
    uint32_t width = sl_attn_width(hd);
    const int32_t *w = (const int32_t *)(const void *)weights_at(s, r);
    __m256i a[PASS][2];
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        a[i][0] = a[i][1] = _mm256_setzero_si256();
    for (uint32_t k = 0; k < BLK / 2; k++) {
        const __m256i *v = (const __m256i *)(const void *)(s->v + (size_t)k * width + d);
        __m256i x = _mm256_load_si256(v), y = _mm256_load_si256(v + 1);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m256i f = _mm256_set1_epi32(w[(size_t)i * BLK / 2 + k]);
            a[i][0] = _mm256_add_epi32(a[i][0], _mm256_madd_epi16(f, x));
            a[i][1] = _mm256_add_epi32(a[i][1], _mm256_madd_epi16(f, y));
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            float *acc = s->acc + (size_t)(r + i) * width + d + 8 * j;
            __m256 kept = _mm256_mul_ps(_mm256_load_ps(acc), _mm256_set1_ps(s->keep[r + i]));
            _mm256_store_ps(acc,
                            _mm256_fmadd_ps(_mm256_cvtepi32_ps(a[i][j]), _mm256_set1_ps(worth[i]), kept));
        }
    }
}

void sl_avx2_q8_block(const struct sl_attn_scratch *s, uint32_t r, uint32_t end, uint32_t hd,
                      const struct sl_attn_seen *seen, const struct sl_attn_block *b,
                      const struct sl_attn_block *next)
{
    float worth[SL_ATTN_QROWS];
    load_block(s, hd, b, next);
    for (uint32_t i = r; i < end; i++)
        worth[i] = weigh(s, i, hd, seen->first[i], seen->n[i]);
    for (uint32_t d = 0; d < hd; d += 16) {
        uint32_t i = r;
        for (; i + PASS <= end; i += PASS)
            values(PASS, s, i, hd, d, worth + i);
        for (; i < end; i++)
            values(1, s, i, hd, d, worth + i);
    }
}
