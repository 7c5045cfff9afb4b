/* kernels/cpu/attention_f32_avx512.c - a block of float16 or float32 K and V: both become float32, products
 * are FMA.
 *
 * Lanes of a score are positions, so K is transposed and a score is summed over head_dim in one lane; lanes
 * of the output are head_dim. A tile of many rows has K and V converted to scratch once, and takes all scores
 * before all products with V: each of the two then has the nearest cache for itself. A tile of few rows (a
 * decode row and its group) uses both straight from the conversion. */
#include "kernels/cpu/attention_avx512.h"

/* The low (odd = 0) or high float16 of each lane as float32. */
INLINE __m512 half_lanes(__m512i pairs, int odd)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(odd ? _mm512_srli_epi32(pairs, 16) : pairs));
}

/* 16 positions of K to columns [0, 16) of k. 32-bit words are transposed: pairs of float16 are taken apart
 * afterwards. */
INLINE void transpose_k(enum sl_dtype type, const uint8_t *const rows[16], uint32_t hd, float *k)
{
    uint32_t words = type == SL_F32 ? hd : hd / 2;
    for (uint32_t w = 0; w < words; w += 16) {
        __m512i r[16];
        load_transposed(rows, w, words, r);
        UNROLL
        for (uint32_t i = 0; i < 16; i++) {
            if (w + i >= words)
                break;
            if (type == SL_F32) {
                _mm512_store_ps(k + (size_t)(w + i) * BLK, _mm512_castsi512_ps(r[i]));
            } else {
                _mm512_store_ps(k + (size_t)(2 * (w + i)) * BLK, half_lanes(r[i], 0));
                _mm512_store_ps(k + (size_t)(2 * (w + i) + 1) * BLK, half_lanes(r[i], 1));
            }
        }
    }
}

/* Elements [i, i + 16) of a row, those below hd. */
INLINE __m512 convert16(enum sl_dtype type, const uint8_t *row, uint32_t i, uint32_t hd)
{
    __mmask16 mask = lanes(i, hd);
    if (type == SL_F32)
        return _mm512_maskz_loadu_ps(mask, row + (size_t)i * 4);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + (size_t)i * 2));
}

/* Scores of rows [r, r + rows) into s->s. */
INLINE void score_rows(uint32_t rows, const struct sl_attn_scratch *s, uint32_t r, uint32_t hd)
{
    uint32_t width = sl_attn_width(hd);
    const float *q = s->q + (size_t)r * width, *k = s->k;
    __m512 x[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = _mm512_setzero_ps();
    for (uint32_t d = 0; d < hd; d++, k += BLK) {
        __m512 k0 = _mm512_load_ps(k), k1 = _mm512_load_ps(k + 16), k2 = _mm512_load_ps(k + 32),
               k3 = _mm512_load_ps(k + 48);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512 f = _mm512_set1_ps(q[(size_t)i * width + d]);
            x[i][0] = _mm512_fmadd_ps(f, k0, x[i][0]);
            x[i][1] = _mm512_fmadd_ps(f, k1, x[i][1]);
            x[i][2] = _mm512_fmadd_ps(f, k2, x[i][2]);
            x[i][3] = _mm512_fmadd_ps(f, k3, x[i][3]);
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
        softmax_row(SL_F32, s, r, seen->first[r], seen->n[r]);
}

/* cols vectors of acc of rows [r, r + rows) from vector c on. The first of the rows sees least. */
INLINE void value_rows(uint32_t rows, uint32_t cols, const struct sl_attn_scratch *s, uint32_t r,
                       const uint32_t *n, uint32_t hd, uint32_t c)
{
    uint32_t width = sl_attn_width(hd), common = n[0];
    const float *p = s->s + (size_t)r * BLK, *v = s->v + 16 * c;
    __m512 a[ROWS][4];
    load_acc(rows, cols, s, r, width, c, a);
    for (uint32_t k = 0; k < common; k++, v += width) {
        __m512 x[4];
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            x[j] = _mm512_load_ps(v + 16 * j);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512 f = _mm512_set1_ps(p[(size_t)i * BLK + k]);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = _mm512_fmadd_ps(f, x[j], a[i][j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        const float *at = v;
        for (uint32_t k = common; k < n[i]; k++, at += width) {
            __m512 f = _mm512_set1_ps(p[(size_t)i * BLK + k]);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = _mm512_fmadd_ps(f, _mm512_load_ps(at + 16 * j), a[i][j]);
        }
    }
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

INLINE void many(enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t first, uint32_t n_rows,
                 const struct sl_attn_seen *seen, uint32_t hd, const struct sl_attn_block *b,
                 const struct sl_attn_block *next)
{
    uint32_t width = sl_attn_width(hd), token_bytes = type == SL_F32 ? 4 * hd : 2 * hd;
    for (uint32_t i = 0; i < b->n; i += 16)
        transpose_k(type, b->k + i, hd, s->k + i);
    prefetch_rows(next->k, next->n, token_bytes);
    for (uint32_t r = first; r < n_rows; r += ROWS)
        BY_ROWS(n_rows - r, score_rows, s, r, hd)
    softmax_rows(s, first, n_rows, seen);
    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t d = 0; d < hd; d += 16)
            _mm512_store_ps(s->v + (size_t)i * width + d, convert16(type, b->v[i], d, hd));
    prefetch_rows(next->v, next->n, token_bytes);
    for (uint32_t r = first; r < n_rows; r += ROWS)
        BY_ROWS(n_rows - r, value_columns, s, r, seen->n + r, hd)
}

void sl_avx512_attn_many_f16(const struct sl_attn_scratch *s, uint32_t first, uint32_t n_rows,
                             const struct sl_attn_seen *seen, uint32_t hd, const struct sl_attn_block *b,
                             const struct sl_attn_block *next)
{
    many(SL_F16, s, first, n_rows, seen, hd, b, next);
}

void sl_avx512_attn_many_f32(const struct sl_attn_scratch *s, uint32_t first, uint32_t n_rows,
                             const struct sl_attn_seen *seen, uint32_t hd, const struct sl_attn_block *b,
                             const struct sl_attn_block *next)
{
    many(SL_F32, s, first, n_rows, seen, hd, b, next);
}

/* The next block is asked for line by line: in one go the requests would fill the core's miss buffers and
 * hold up the loads behind them. */
INLINE void score_few(uint32_t rows, enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t hd,
                      const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    uint32_t words = type == SL_F32 ? hd : hd / 2, width = sl_attn_width(hd);
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
                const float *q = s->q + (type == SL_F32 ? w + j : 2 * (w + j));
                __m512 k0 = type == SL_F32 ? _mm512_castsi512_ps(r[j]) : half_lanes(r[j], 0);
                UNROLL
                for (uint32_t i = 0; i < rows; i++)
                    x[i] = _mm512_fmadd_ps(_mm512_set1_ps(q[(size_t)i * width]), k0, x[i]);
                if (type == SL_F32)
                    continue;
                __m512 k1 = half_lanes(r[j], 1);
                UNROLL
                for (uint32_t i = 0; i < rows; i++)
                    x[i] = _mm512_fmadd_ps(_mm512_set1_ps(q[(size_t)i * width + 1]), k1, x[i]);
            }
        }
        UNROLL
        for (uint32_t i = 0; i < rows; i++)
            _mm512_store_ps(s->s + (size_t)i * BLK + g, x[i]);
    }
    for (uint32_t i = 0; i < rows; i++)
        softmax_row(SL_F32, s, i, b->first, b->n);
}

INLINE void value_few(uint32_t rows, uint32_t cols, enum sl_dtype type, const struct sl_attn_scratch *s,
                      uint32_t hd, const struct sl_attn_block *b, uint32_t c)
{
    uint32_t width = sl_attn_width(hd);
    __m512 a[ROWS][4];
    load_acc(rows, cols, s, 0, width, c, a);
    for (uint32_t k = 0; k < b->n; k++) {
        __m512 x[4];
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            x[j] = convert16(type, b->v[k], 16 * (c + j), hd);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512 f = _mm512_set1_ps(s->s[(size_t)i * BLK + k]);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = _mm512_fmadd_ps(f, x[j], a[i][j]);
        }
    }
    store_acc(rows, cols, s, 0, width, c, a);
}

INLINE void few(uint32_t rows, enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t hd,
                const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    uint32_t vectors = sl_attn_width(hd) / 16, c = 0;
    score_few(rows, type, s, hd, b, next);
    for (; c + 4 <= vectors; c += 4)
        value_few(rows, 4, type, s, hd, b, c);
    for (; c < vectors; c++)
        value_few(rows, 1, type, s, hd, b, c);
}

void sl_avx512_attn_few_f16(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                            const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    BY_ROWS(n_rows, few, SL_F16, s, hd, b, next)
}

void sl_avx512_attn_few_f32(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                            const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    BY_ROWS(n_rows, few, SL_F32, s, hd, b, next)
}
