/* kernels/cpu/attention_few_avx512.c - a block of K and V for few query rows: a decode row and its group.
 *
 * Lanes of a score are positions, so K is transposed on its way into the registers, 16 positions and 16 words
 * at a time, without a copy. Lanes of the output are head_dim; V comes straight from its rows too. */
#include "kernels/cpu/attention_avx512.h"

INLINE int is_pairs(enum sl_dtype type)
{
    return type == SL_BF16;
}

/* The low (odd = 0) or high float16 of each lane as float32. */
INLINE __m512i half_lanes(__m512i words, int odd)
{
    __m256i half = _mm512_cvtepi32_epi16(odd ? _mm512_srli_epi32(words, 16) : words);
    return _mm512_castps_si512(_mm512_cvtph_ps(half));
}

/* Word w of K of 16 positions into their scores x. A word of two float16 takes two words of q. */
INLINE void score_word(enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s, uint32_t width,
                       uint32_t w, __m512i k, __m512 x[ROWS])
{
    const uint32_t per = type == SL_F16 ? 2 : 1;
    UNROLL
    for (uint32_t h = 0; h < per; h++) {
        __m512i half = type == SL_F16 ? half_lanes(k, (int)h) : k;
        UNROLL
        for (uint32_t row = 0; row < rows; row++)
            x[row] =
                multiply(is_pairs(type), x[row], word_at(s->q + (size_t)row * width + per * w + h), half);
    }
}

/* Scores of positions [i, i + 16) into s->s [ROWS][BLK]. The next block is asked for line by line: in one go
 * the requests would fill the core's miss buffers and hold up the loads behind them. */
INLINE void score(enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s, uint32_t hd, uint32_t i,
                  const struct sl_avx512_block *b, const struct sl_avx512_block *next)
{
    uint32_t words = words_of(type != SL_F32, hd), width = sl_attn_width(hd);
    const uint8_t *k = b->k[i / LANES], *next_k = next->k[i / LANES];
    __m512 x[ROWS];
    UNROLL
    for (uint32_t row = 0; row < rows; row++)
        x[row] = _mm512_setzero_ps();
    for (uint32_t w = 0; w < words; w += LANES) {
        __m512i r[LANES];
        __mmask16 mask = lanes(w, words);
        size_t ahead = 4 * w < next->row_bytes ? (size_t)w * 4 : 0;
        UNROLL
        for (uint32_t j = 0; j < LANES; j++)
            r[j] = _mm512_maskz_loadu_epi32(mask, k + j * b->stride + (size_t)w * 4);
        transpose16(r);
        UNROLL
        for (uint32_t j = 0; j < LANES; j++) {
            if (w + j >= words)
                break;
            _mm_prefetch(next_k + j * next->stride + ahead, _MM_HINT_T1);
            score_word(type, rows, s, width, w + j, r[j], x);
        }
    }
    UNROLL
    for (uint32_t row = 0; row < rows; row++)
        _mm512_store_ps(s->s + (size_t)row * BLK + i, x[row]);
}

/* Softmax of the 64 scores in row r of s->s against positions [first, n): m, l and keep, and p in place of
 * the scores; for pairs as bfloat16 in the first half of the row, and rounded before it is summed. */
INLINE void softmax(int pairs, const struct sl_attn_scratch *s, uint32_t r, uint32_t first, uint32_t n)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    float *to = s->s + (size_t)r * BLK, old = s->m[r];
    __m512 v[4];
    UNROLL
    for (uint32_t c = 0; c < 4; c++)
        v[c] = _mm512_mask_mov_ps(none, between(16 * c, first, n), _mm512_load_ps(to + 16 * c));
    __m512 best = none;
    UNROLL
    for (uint32_t c = 0; c < 4; c++)
        best = _mm512_max_ps(v[c], best); /* the second operand where one is NaN: it is passed over */
    float most = _mm512_reduce_max_ps(best);
    float m = most > old ? most : old;
    UNROLL
    for (uint32_t c = 0; c < 4; c++) {
        v[c] = weight_of(pairs, _mm512_sub_ps(v[c], _mm512_set1_ps(m)));
        if (pairs) {
            __m256i h = (__m256i)_mm512_cvtneps_pbh(v[c]);
            _mm256_store_si256((__m256i *)to + c, h);
            v[c] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        } else {
            _mm512_store_ps(to + 16 * c, v[c]);
        }
    }
    float keep = m == old ? 1.0f : sl_exp2(old - m);
    float sum = sl_v_sum(_mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3])));
    s->l[r] = fmaf(s->l[r], keep, sum);
    s->m[r] = m;
    s->keep[r] = keep;
}

/* cols vectors of V from vector c on, at word k: a position, or a pair of which, unless it is whole, only the
 * halves in [first, n) count. */
INLINE void load_values(enum sl_dtype type, int whole, uint32_t cols, const struct sl_avx512_block *b,
                        uint32_t hd, uint32_t c, uint32_t k, uint32_t first, uint32_t n, __m512i x[4])
{
    const int pairs = is_pairs(type);
    const uint8_t *row = row_at(b->v, b->stride, pairs ? 2 * k : k);
    UNROLL
    for (uint32_t j = 0; j < cols; j += 1 + (uint32_t)pairs) {
        uint32_t d = LANES * (c + j);
        if (pairs)
            interleave(whole || 2 * k >= first ? row : NULL, whole || 2 * k + 1 < n ? row + b->stride : NULL,
                       d, hd, &x[j], &x[j + 1]);
        else if (type == SL_F16)
            x[j] = _mm512_castps_si512(
                _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(d, hd), row + (size_t)d * 2)));
        else
            x[j] = _mm512_maskz_loadu_epi32(lanes(d, hd), row + (size_t)d * 4);
    }
}

/* cols vectors of the output of the rows from vector c on: words [k, end), which all rows see. cols is 4, 2
 * or 1, 1 for the last vector only. */
INLINE void common_values(enum sl_dtype type, uint32_t rows, uint32_t cols, const struct sl_attn_scratch *s,
                          uint32_t hd, const struct sl_avx512_block *b, const struct sl_avx512_block *next,
                          uint32_t c, uint32_t k, uint32_t end)
{
    const uint32_t per = 1 + (uint32_t)is_pairs(type), bytes = cols * LANES * (type == SL_F32 ? 4 : 2);
    uint32_t width = sl_attn_width(hd);
    size_t ahead = next->row_bytes ? c * (bytes / cols) : 0;
    float *acc = s->acc + LANES * c;
    __m512 a[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            a[i][j] = _mm512_load_ps(acc + (size_t)i * width + LANES * j);
    }
    for (; k < end; k++) {
        __m512i x[4];
        load_values(type, 1, cols, b, hd, c, k, 0, BLK, x);
        const uint8_t *next_v = row_at(next->v, next->stride, per * k) + ahead;
        UNROLL
        for (uint32_t j = 0; j < per; j++) {
            UNROLL
            for (uint32_t i = 0; i < bytes; i += 64)
                _mm_prefetch(next_v + j * next->stride + i, _MM_HINT_T1);
        }
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512i f = word_at(s->s + (size_t)i * BLK + k);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = multiply(is_pairs(type), a[i][j], f, x[j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            _mm512_store_ps(acc + (size_t)i * width + LANES * j, a[i][j]);
    }
}

/* Words [k, end) for row r alone, which sees positions [first, n). */
INLINE void edge_values(enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t r, uint32_t hd,
                        uint32_t first, uint32_t n, const struct sl_avx512_block *b, uint32_t k, uint32_t end)
{
    const uint32_t cols = 1 + (uint32_t)is_pairs(type);
    uint32_t width = sl_attn_width(hd);
    for (; k < end; k++) {
        __m512i f = word_at(s->s + (size_t)r * BLK + k);
        for (uint32_t c = 0; c < width / LANES; c += cols) {
            float *acc = s->acc + (size_t)r * width + LANES * c;
            __m512i x[4];
            load_values(type, 0, cols, b, hd, c, k, first, n, x);
            _mm512_store_ps(acc, multiply(is_pairs(type), _mm512_load_ps(acc), f, x[0]));
            if (cols == 2 && c + 1 < width / LANES)
                _mm512_store_ps(acc + LANES, multiply(1, _mm512_load_ps(acc + LANES), f, x[1]));
        }
    }
}

/* Once for all numbers of rows: these do the little that is left in a block at the end of what a row sees. */
static __attribute__((noinline)) void edge(enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t r,
                                           uint32_t hd, const struct sl_avx512_seen *seen,
                                           const struct sl_avx512_block *b, uint32_t k, uint32_t end)
{
    uint32_t first = (uint32_t)seen->first[r], n = (uint32_t)seen->n[r];
    if (type == SL_BF16)
        edge_values(SL_BF16, s, r, hd, first, n, b, k, end);
    else if (type == SL_F16)
        edge_values(SL_F16, s, r, hd, first, n, b, k, end);
    else
        edge_values(SL_F32, s, r, hd, first, n, b, k, end);
}

static __attribute__((noinline)) void softmax_pairs(const struct sl_attn_scratch *s, uint32_t n_rows,
                                                    const struct sl_avx512_seen *seen)
{
    for (uint32_t r = 0; r < n_rows; r++)
        softmax(1, s, r, (uint32_t)seen->first[r], (uint32_t)seen->n[r]);
}

static __attribute__((noinline)) void softmax_f32(const struct sl_attn_scratch *s, uint32_t n_rows,
                                                  const struct sl_avx512_seen *seen)
{
    for (uint32_t r = 0; r < n_rows; r++)
        softmax(0, s, r, (uint32_t)seen->first[r], (uint32_t)seen->n[r]);
}

/* The words that all of the rows see whole: [*from, *to). */
INLINE void find_common(enum sl_dtype type, uint32_t rows, const struct sl_avx512_seen *seen, uint32_t *from,
                        uint32_t *to)
{
    const uint32_t per = 1 + (uint32_t)is_pairs(type);
    *from = 0;
    *to = BLK / per;
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t first = ((uint32_t)seen->first[i] + per - 1) / per, end = (uint32_t)seen->n[i] / per;
        *from = first > *from ? first : *from;
        *to = end < *to ? end : *to;
    }
    *to = *to < *from ? *from : *to;
}

/* Scales the output where a maximum grew. Not inlined, as little as it is: it would be in every tile. */
static __attribute__((noinline)) void rescale(const struct sl_attn_scratch *s, uint32_t rows, uint32_t width)
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t d = 0; s->keep[i] != 1.0f && d < width; d += LANES) {
            float *acc = s->acc + (size_t)i * width + d;
            _mm512_store_ps(acc, _mm512_mul_ps(_mm512_load_ps(acc), _mm512_set1_ps(s->keep[i])));
        }
}

/* What V adds: in front of what the rows see in common, that, and behind it. */
INLINE void values(enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s, uint32_t hd,
                   const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                   const struct sl_avx512_block *next)
{
    const uint32_t per = 1 + (uint32_t)is_pairs(type);
    uint32_t vectors = sl_attn_width(hd) / LANES, c = 0, from, to;
    find_common(type, rows, seen, &from, &to);
    rescale(s, rows, LANES * vectors);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t first = (uint32_t)seen->first[i] / per, end = ((uint32_t)seen->n[i] + per - 1) / per;
        end = end < from ? end : from;
        if (first < end)
            edge(type, s, i, hd, seen, b, first, end);
    }
    for (; c + 4 <= vectors; c += 4)
        common_values(type, rows, 4, s, hd, b, next, c, from, to);
    for (; c + 2 <= vectors; c += 2)
        common_values(type, rows, 2, s, hd, b, next, c, from, to);
    if (c < vectors)
        common_values(type, rows, 1, s, hd, b, next, c, from, to);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t end = ((uint32_t)seen->n[i] + per - 1) / per;
        if (to < end)
            edge(type, s, i, hd, seen, b, to, end);
    }
}

INLINE void weights(enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s, uint32_t hd,
                    const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                    const struct sl_avx512_block *next)
{
    for (uint32_t i = b->first / LANES * LANES; i < b->n; i += LANES)
        score(type, rows, s, hd, i, b, next);
    if (is_pairs(type))
        softmax_pairs(s, rows, seen);
    else
        softmax_f32(s, rows, seen);
}

/* Either step, rows being a constant each, so that the sums stay in registers. */
#define FOR_ROWS(step, type)                                                                                 \
    switch (n_rows) {                                                                                        \
    case 1:                                                                                                  \
        step(type, 1, s, hd, seen, b, next);                                                                 \
        break;                                                                                               \
    case 2:                                                                                                  \
        step(type, 2, s, hd, seen, b, next);                                                                 \
        break;                                                                                               \
    case 3:                                                                                                  \
        step(type, 3, s, hd, seen, b, next);                                                                 \
        break;                                                                                               \
    case 4:                                                                                                  \
        step(type, 4, s, hd, seen, b, next);                                                                 \
        break;                                                                                               \
    case 5:                                                                                                  \
        step(type, 5, s, hd, seen, b, next);                                                                 \
        break;                                                                                               \
    default:                                                                                                 \
        step(type, ROWS, s, hd, seen, b, next);                                                              \
    }

void sl_avx512_attn_few_weights(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                                const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                                const struct sl_avx512_block *next)
{
    if (b->type == SL_BF16)
        FOR_ROWS(weights, SL_BF16)
    else if (b->type == SL_Q8)
        sl_avx512_attn_few_q8_weights(s, n_rows, hd, seen, b, next);
    else if (b->type == SL_F16)
        FOR_ROWS(weights, SL_F16)
    else
        FOR_ROWS(weights, SL_F32)
}

void sl_avx512_attn_few_values(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                               const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                               const struct sl_avx512_block *next)
{
    if (b->type == SL_BF16)
        FOR_ROWS(values, SL_BF16)
    else if (b->type == SL_Q8)
        sl_avx512_attn_few_q8_values(s, n_rows, hd, seen, b, next);
    else if (b->type == SL_F16)
        FOR_ROWS(values, SL_F16)
    else
        FOR_ROWS(values, SL_F32)
}
