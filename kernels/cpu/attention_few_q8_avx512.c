/* kernels/cpu/attention_few_q8_avx512.c - a block of int8 K and V for few query rows; the lanes are those of
 * attention_few_avx512.c. What a row does not see has the weight 0, and integers are never NaN: no row needs
 * an edge of its own. */
#include "kernels/cpu/attention_q8_avx512.h"

#define PASS 3u /* rows of the output at a time: x 4 vectors of 2 sums, 24 registers */

/* Weights of a row, in its part of s->p. */
struct weights {
    uint8_t high[BLK], low[BLK];
    float worth; /* of a weight's unit */
};

static struct weights *weights_of(const struct sl_attn_scratch *s, uint32_t row)
{
    return (struct weights *)(void *)(s->p + (size_t)row * BLK);
}

/* Asks for the scales of 16 positions of the next block. */
INLINE void prefetch_scales(const struct sl_avx512_block *next, uint32_t i)
{
    if (next->row_bytes == 0)
        return;
    _mm_prefetch(next->k_scale[i / LANES], _MM_HINT_T1);
    _mm_prefetch(next->v_scale[i / LANES], _MM_HINT_T1);
}

/* Scores of positions [i, i + 16) into s->s [ROWS][BLK]; the next block is asked for line by line. */
INLINE void score(uint32_t rows, const struct sl_attn_scratch *s, uint32_t hd, uint32_t i,
                  const struct sl_avx512_block *b, const struct sl_avx512_block *next)
{
    uint32_t words = (hd + 3) / 4, width = sl_attn_width(hd);
    const uint8_t *k = b->k[i / LANES], *next_k = next->k[i / LANES];
    const int8_t *q = (const int8_t *)s->q;
    __m512i high[ROWS], low[ROWS];
    UNROLL
    for (uint32_t row = 0; row < rows; row++)
        high[row] = low[row] = _mm512_setzero_si512();
    prefetch_scales(next, i);
    for (uint32_t w = 0; w < words; w += LANES) {
        __m512i r[LANES];
        __mmask64 mask = bytes(4 * w, hd);
        size_t ahead = 4 * w < next->row_bytes ? (size_t)w * 4 : 0;
        UNROLL
        for (uint32_t j = 0; j < LANES; j++)
            r[j] = add_128(_mm512_maskz_loadu_epi8(mask, k + j * b->stride + (size_t)w * 4));
        transpose16(r);
        UNROLL
        for (uint32_t j = 0; j < LANES; j++) {
            if (w + j >= words)
                break;
            _mm_prefetch(next_k + j * next->stride + ahead, _MM_HINT_T1);
            UNROLL
            for (uint32_t row = 0; row < rows; row++) {
                const int8_t *at = q + (size_t)row * width * sizeof(float) + 4 * (size_t)(w + j);
                high[row] = _mm512_dpbusd_epi32(high[row], r[j], word_at(at));
                low[row] = _mm512_dpbusd_epi32(low[row], r[j], word_at(at + width));
            }
        }
    }
    __m512 scale = _mm512_loadu_ps(b->k_scale[i / LANES]);
    UNROLL
    for (uint32_t row = 0; row < rows; row++) {
        __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[row], Q_LOW_BITS), low[row]);
        __m512 x = _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_set1_epi32(s->q_start[row])));
        x = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(s->q_scale[row])), scale);
        _mm512_store_ps(s->s + (size_t)row * BLK + i, x);
    }
}

/* Softmax of the 64 scores in row r of s->s against positions [first, n): m, l, keep and the weights. */
static __attribute__((noinline)) void softmax(const struct sl_attn_scratch *s, uint32_t r, uint32_t first,
                                              uint32_t n, const struct sl_avx512_block *b)
{
    struct weights *w = weights_of(s, r);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    float old = s->m[r];
    __m512 v[4], best = none, most = _mm512_setzero_ps();
    UNROLL
    for (uint32_t c = 0; c < 4; c++) {
        v[c] = _mm512_mask_mov_ps(none, between(16 * c, first, n),
                                  _mm512_load_ps(s->s + (size_t)r * BLK + 16 * c));
        best = _mm512_max_ps(v[c], best); /* the second operand where one is NaN: it is passed over */
    }
    float best_one = _mm512_reduce_max_ps(best), m = best_one > old ? best_one : old;
    UNROLL
    for (uint32_t c = 0; c < 4; c++)
        v[c] = _mm512_maskz_mov_ps(between(16 * c, first, n),
                                   sl_v_exp2_coarse(_mm512_sub_ps(v[c], _mm512_set1_ps(m))));
    s->keep[r] = m == old ? 1.0f : sl_exp2(old - m);
    s->l[r] = fmaf(s->l[r], s->keep[r],
                   sl_v_sum(_mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3]))));
    s->m[r] = m;
    UNROLL
    for (uint32_t c = 0; c < 4; c++) {
        v[c] = _mm512_maskz_mul_ps(between(16 * c, first, n), v[c], _mm512_loadu_ps(b->v_scale[c]));
        most = _mm512_max_ps(v[c], most);
    }
    float most_one = _mm512_reduce_max_ps(most);
    __m512 up = _mm512_set1_ps(sl_q8_up(most_one, SL_Q8_WEIGHT));
    UNROLL
    for (uint32_t c = 0; c < 4; c++) {
        __m512i x = weight_int(v[c], up);
        _mm_store_si128((__m128i *)(void *)w->high + c,
                        _mm512_cvtepi32_epi8(_mm512_srli_epi32(x, W_LOW_BITS)));
        _mm_store_si128((__m128i *)(void *)w->low + c, _mm512_cvtepi32_epi8(x));
    }
    w->worth = sl_q8_scale(most_one, SL_Q8_WEIGHT);
}

/* Elements [d, d + 64) of the output of rows [r, r + rows), rows <= PASS: quads [k, end) of V. */
INLINE void values_at(uint32_t rows, const struct sl_attn_scratch *s, uint32_t hd,
                      const struct sl_avx512_block *b, const struct sl_avx512_block *next, uint32_t r,
                      uint32_t d, uint32_t k, uint32_t end)
{
    uint32_t width = sl_attn_width(hd);
    size_t ahead = next->row_bytes ? d : 0;
    __m512i high[PASS][4], low[PASS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < 4; j++)
            high[i][j] = low[i][j] = _mm512_setzero_si512();
    }
    for (; k < end; k++) {
        __m512i x[4];
        load_quad(row_at(b->v, b->stride, 4 * k), b->stride, d, hd, x);
        const uint8_t *next_v = row_at(next->v, next->stride, 4 * k) + ahead;
        UNROLL
        for (uint32_t j = 0; j < 4; j++)
            _mm_prefetch(next_v + j * next->stride, _MM_HINT_T1);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            const struct weights *w = weights_of(s, r + i);
            __m512i f = word_at(w->high + 4 * (size_t)k), e = word_at(w->low + 4 * (size_t)k);
            UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                high[i][j] = _mm512_dpbusd_epi32(high[i][j], f, x[j]);
                low[i][j] = _mm512_dpbusd_epi32(low[i][j], e, x[j]);
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        float *acc = s->acc + (size_t)(r + i) * width + d;
        UNROLL
        for (uint32_t j = 0; j < 4; j++)
            high[i][j] = _mm512_add_epi32(_mm512_slli_epi32(high[i][j], W_LOW_BITS), low[i][j]);
        in_order(high[i]);
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            if (d + LANES * j >= width)
                break;
            __m512 kept = _mm512_mul_ps(_mm512_load_ps(acc + LANES * j), _mm512_set1_ps(s->keep[r + i]));
            _mm512_store_ps(acc + LANES * j,
                            _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[i][j]),
                                            _mm512_set1_ps(weights_of(s, r + i)->worth), kept));
        }
    }
}

void sl_avx512_attn_few_q8_weights(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                                   const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                                   const struct sl_avx512_block *next)
{
    for (uint32_t i = b->first / LANES * LANES; i < b->n; i += LANES)
        switch (n_rows) { /* a constant each, so that the sums stay in registers */
        case 1:
            score(1, s, hd, i, b, next);
            break;
        case 2:
            score(2, s, hd, i, b, next);
            break;
        case 3:
            score(3, s, hd, i, b, next);
            break;
        case 4:
            score(4, s, hd, i, b, next);
            break;
        case 5:
            score(5, s, hd, i, b, next);
            break;
        default:
            score(ROWS, s, hd, i, b, next);
        }
    for (uint32_t r = 0; r < n_rows; r++)
        softmax(s, r, (uint32_t)seen->first[r], (uint32_t)seen->n[r], b);
}

void sl_avx512_attn_few_q8_values(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                                  const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                                  const struct sl_avx512_block *next)
{
    uint32_t from = BLK, to = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t first = (uint32_t)seen->first[r], n = (uint32_t)seen->n[r];
        from = n > 0 && first < from ? first : from;
        to = n > to ? n : to;
    }
    for (uint32_t r = 0; r < n_rows; r += PASS)
        for (uint32_t d = 0; d < hd; d += 64)
            switch (n_rows - r) {
            case 1:
                values_at(1, s, hd, b, next, r, d, from / 4, (to + 3) / 4);
                break;
            case 2:
                values_at(2, s, hd, b, next, r, d, from / 4, (to + 3) / 4);
                break;
            default:
                values_at(PASS, s, hd, b, next, r, d, from / 4, (to + 3) / 4);
            }
}
