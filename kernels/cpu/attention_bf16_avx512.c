/* kernels/cpu/attention_bf16_avx512.c - a block of bfloat16 K and V: vdpbf16ps takes them as they are, in
 * pairs, at twice the rate of float32 FMA. A score multiplies pairs of head_dim, so K is transposed by 32-bit
 * words; the output multiplies pairs of positions, so two rows of V are interleaved. q and p are rounded to
 * bfloat16. Otherwise as attention_f32_avx512.c. */
#include "kernels/cpu/attention_avx512.h"

INLINE __m512bh pair_at(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* p of row r as written by softmax_row(). */
INLINE const uint16_t *weights(const struct sl_attn_scratch *s, uint32_t r)
{
    return (const uint16_t *)(const void *)(s->s + (size_t)r * BLK);
}

/* Elements [i, i + 32) of two rows of V, those below hd, interleaved: lo has the first 16, hi the others. */
INLINE void interleave(const uint8_t *even, const uint8_t *odd, uint32_t i, uint32_t hd, __m512i *lo,
                       __m512i *hi)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                         38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __mmask32 mask = hd - i >= 32 ? 0xffffffffu : (1u << (hd - i)) - 1;
    __m512i a = _mm512_maskz_loadu_epi16(mask, even + (size_t)i * 2);
    __m512i b = odd ? _mm512_maskz_loadu_epi16(mask, odd + (size_t)i * 2) : _mm512_setzero_si512();
    *lo = _mm512_permutex2var_epi16(a, low, b);
    *hi = _mm512_permutex2var_epi16(a, high, b);
}

/* K as [head_dim / 2][BLK] words. */
static void load_k(const struct sl_attn_scratch *s, uint32_t hd, const struct sl_attn_block *b)
{
    for (uint32_t g = 0; g < b->n; g += 16)
        for (uint32_t w = 0; w < hd / 2; w += 16) {
            __m512i r[16];
            load_transposed(b->k + g, w, hd / 2, r);
            UNROLL
            for (uint32_t i = 0; i < 16; i++) {
                if (w + i >= hd / 2)
                    break;
                _mm512_store_si512(s->k + (size_t)(w + i) * BLK + g, r[i]);
            }
        }
}

/* V as [BLK / 2][width] pairs; the odd partner of a last even position is zero. */
static void load_v(const struct sl_attn_scratch *s, uint32_t hd, const struct sl_attn_block *b)
{
    uint32_t width = sl_attn_width(hd);
    for (uint32_t k = 0; 2 * k < b->n; k++)
        for (uint32_t i = 0; i < hd; i += 32) {
            __m512i lo, hi;
            interleave(b->v[2 * k], 2 * k + 1 < b->n ? b->v[2 * k + 1] : NULL, i, hd, &lo, &hi);
            _mm512_store_si512(s->v + (size_t)k * width + i, lo);
            if (i + 16 < width)
                _mm512_store_si512(s->v + (size_t)k * width + i + 16, hi);
        }
}

INLINE void score_rows(uint32_t rows, const struct sl_attn_scratch *s, uint32_t r, uint32_t hd)
{
    uint32_t width = sl_attn_width(hd);
    const uint16_t *q = (const uint16_t *)(const void *)s->q + (size_t)r * width;
    const float *k = s->k;
    __m512 x[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = _mm512_setzero_ps();
    for (uint32_t d = 0; d < hd; d += 2, k += BLK) {
        __m512bh k0 = (__m512bh)_mm512_load_si512(k), k1 = (__m512bh)_mm512_load_si512(k + 16),
                 k2 = (__m512bh)_mm512_load_si512(k + 32), k3 = (__m512bh)_mm512_load_si512(k + 48);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512bh f = pair_at(q + (size_t)i * width + d);
            x[i][0] = _mm512_dpbf16_ps(x[i][0], f, k0);
            x[i][1] = _mm512_dpbf16_ps(x[i][1], f, k1);
            x[i][2] = _mm512_dpbf16_ps(x[i][2], f, k2);
            x[i][3] = _mm512_dpbf16_ps(x[i][3], f, k3);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        float *to = s->s + (size_t)(r + i) * BLK;
        _mm512_store_ps(to, x[i][0]);
        _mm512_store_ps(to + 16, x[i][1]);
        _mm512_store_ps(to + 32, x[i][2]);
        _mm512_store_ps(to + 48, x[i][3]);
    }
}

/* Not inlined: its constants would push the sums of score_rows() out of their registers. */
static __attribute__((noinline)) void softmax_rows(const struct sl_attn_scratch *s, uint32_t first,
                                                   uint32_t n_rows, const struct sl_attn_seen *seen)
{
    for (uint32_t r = first; r < n_rows; r++)
        softmax_row(SL_BF16, s, r, seen->first[r], seen->n[r]);
}

/* The pairs from position 2 k on for one row that sees n positions; a partner behind them is taken as zero.
 */
INLINE void value_rest(uint32_t cols, const uint16_t *p, const float *v, uint32_t width, uint32_t k,
                       uint32_t n, __m512 a[4])
{
    for (; 2 * k < n; k++, v += width) {
        __m512i seen = _mm512_set1_epi32(2 * k + 1 < n ? -1 : 0xffff);
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            a[j] = _mm512_dpbf16_ps(a[j], pair_at(p + 2 * (size_t)k),
                                    (__m512bh)_mm512_and_si512(_mm512_load_si512(v + 16 * j), seen));
    }
}

INLINE void value_rows(uint32_t rows, uint32_t cols, const struct sl_attn_scratch *s, uint32_t r,
                       const uint32_t *n, uint32_t hd, uint32_t c)
{
    uint32_t width = sl_attn_width(hd), common = n[0] / 2;
    const uint16_t *p = weights(s, r);
    const float *v = s->v + 16 * c;
    __m512 a[ROWS][4];
    load_acc(rows, cols, s, r, width, c, a);
    for (uint32_t k = 0; k < common; k++, v += width) {
        __m512bh x[4];
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            x[j] = (__m512bh)_mm512_load_si512(v + 16 * j);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512bh f = pair_at(p + (size_t)i * 2 * BLK + 2 * (size_t)k);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = _mm512_dpbf16_ps(a[i][j], f, x[j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        value_rest(cols, p + (size_t)i * 2 * BLK, v, width, common, n[i], a[i]);
    store_acc(rows, cols, s, r, width, c, a);
}

INLINE void value_columns(uint32_t rows, const struct sl_attn_scratch *s, uint32_t r, const uint32_t *n,
                          uint32_t hd)
{
    uint32_t vectors = sl_attn_width(hd) / 16, c = 0;
    for (; c + 4 <= vectors; c += 4)
        value_rows(rows, 4, s, r, n, hd, c);
    if (vectors - c >= 2) {
        value_rows(rows, 2, s, r, n, hd, c);
        c += 2;
    }
    if (c < vectors)
        value_rows(rows, 1, s, r, n, hd, c);
}

void sl_avx512_attn_many_bf16(const struct sl_attn_scratch *s, uint32_t first, uint32_t n_rows,
                              const struct sl_attn_seen *seen, uint32_t hd, const struct sl_attn_block *b,
                              const struct sl_attn_block *next)
{
    load_k(s, hd, b);
    prefetch_rows(next->k, next->n, 2 * hd);
    for (uint32_t r = first; r < n_rows; r += ROWS)
        BY_ROWS(n_rows - r, score_rows, s, r, hd)
    softmax_rows(s, first, n_rows, seen);
    load_v(s, hd, b);
    prefetch_rows(next->v, next->n, 2 * hd);
    for (uint32_t r = first; r < n_rows; r += ROWS)
        BY_ROWS(n_rows - r, value_columns, s, r, seen->n + r, hd)
}

INLINE void score_few(uint32_t rows, const struct sl_attn_scratch *s, uint32_t hd,
                      const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    uint32_t words = hd / 2, width = sl_attn_width(hd);
    const uint16_t *q = (const uint16_t *)(const void *)s->q;
    for (uint32_t g = 0; g < b->n; g += 16) {
        __m512 x[ROWS];
        UNROLL
        for (uint32_t i = 0; i < rows; i++)
            x[i] = _mm512_setzero_ps();
        for (uint32_t w = 0; w < words; w += 16) {
            __m512i r[16];
            load_transposed(b->k + g, w, words, r);
            UNROLL
            for (uint32_t j = 0; j < 16; j++) {
                if (w + j >= words)
                    break;
                _mm_prefetch(next->k[g + j] + (size_t)w * 4, _MM_HINT_T1);
                _mm_prefetch(next->v[g + j] + (size_t)w * 4, _MM_HINT_T1);
                UNROLL
                for (uint32_t i = 0; i < rows; i++)
                    x[i] =
                        _mm512_dpbf16_ps(x[i], pair_at(q + (size_t)i * width + 2 * (w + j)), (__m512bh)r[j]);
            }
        }
        UNROLL
        for (uint32_t i = 0; i < rows; i++)
            _mm512_store_ps(s->s + (size_t)i * BLK + g, x[i]);
    }
    for (uint32_t i = 0; i < rows; i++)
        softmax_row(SL_BF16, s, i, b->first, b->n);
}

/* cols is even, or 1 for the last vector. */
INLINE void value_few(uint32_t rows, uint32_t cols, const struct sl_attn_scratch *s, uint32_t hd,
                      const struct sl_attn_block *b, uint32_t c)
{
    uint32_t width = sl_attn_width(hd);
    const uint16_t *p = weights(s, 0);
    __m512 a[ROWS][4];
    load_acc(rows, cols, s, 0, width, c, a);
    for (uint32_t k = 0; k < b->n; k += 2) {
        __m512i x[4];
        UNROLL
        for (uint32_t j = 0; j < cols; j += 2)
            interleave(b->v[k], k + 1 < b->n ? b->v[k + 1] : NULL, 16 * (c + j), hd, &x[j], &x[j + 1]);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512bh f = pair_at(p + (size_t)i * 2 * BLK + k);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = _mm512_dpbf16_ps(a[i][j], f, (__m512bh)x[j]);
        }
    }
    store_acc(rows, cols, s, 0, width, c, a);
}

INLINE void few(uint32_t rows, const struct sl_attn_scratch *s, uint32_t hd, const struct sl_attn_block *b,
                const struct sl_attn_block *next)
{
    uint32_t vectors = sl_attn_width(hd) / 16, c = 0;
    score_few(rows, s, hd, b, next);
    for (; c + 4 <= vectors; c += 4)
        value_few(rows, 4, s, hd, b, c);
    for (; c + 2 <= vectors; c += 2)
        value_few(rows, 2, s, hd, b, c);
    if (c < vectors)
        value_few(rows, 1, s, hd, b, c);
}

void sl_avx512_attn_few_bf16(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                             const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    BY_ROWS(n_rows, few, s, hd, b, next)
}
