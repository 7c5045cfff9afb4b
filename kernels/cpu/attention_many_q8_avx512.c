/* kernels/cpu/attention_many_q8_avx512.c - a block of int8 K and V for many query rows; the lanes are those
 * of attention_many_avx512.c. What a row does not see has the weight 0, and integers are never NaN: products
 * with V need no masks.
 *
 * The high and the low parts of a query, or of weights, are multiplied one after the other, so that one
 * vector holds a sum: it is shifted in between. */
#include "kernels/cpu/attention_many_avx512.h"
#include "kernels/cpu/attention_q8_avx512.h"

/* K of the block, unsigned, to s->k [BLK][width] bytes. */
static __attribute__((noinline)) void copy_k(const struct sl_attn_scratch *s, uint32_t hd,
                                             const struct sl_avx512_block *b)
{
    uint32_t width = sl_attn_width(hd);
    for (uint32_t i = b->first; i < b->n; i++)
        for (uint32_t d = 0; d < hd; d += 64) {
            __m512i k = _mm512_maskz_loadu_epi8(bytes(d, hd), row_at(b->k, b->stride, i) + d);
            _mm512_mask_storeu_epi8((uint8_t *)s->k + (size_t)i * width + d, bytes(d, width), add_128(k));
        }
}

/* V of the block as quads to s->v [QUADS][width] words. */
static __attribute__((noinline)) void copy_v(const struct sl_attn_scratch *s, uint32_t hd,
                                             const struct sl_avx512_block *b)
{
    uint32_t width = sl_attn_width(hd);
    for (uint32_t k = b->first / 4; 4 * k < b->n; k++)
        for (uint32_t d = 0; d < hd; d += 64) {
            __m512i x[4];
            load_quad(row_at(b->v, b->stride, 4 * k), b->stride, d, hd, x);
            in_order(x);
            for (uint32_t j = 0; j < 4 && d + LANES * j < width; j++)
                _mm512_store_si512(s->v + (size_t)k * width + d + LANES * j, x[j]);
        }
}

static float scale_at(const uint8_t *const scales[BLK / LANES], uint32_t i)
{
    float scale;
    memcpy(&scale, scales[i / LANES] + i % LANES * sizeof scale, sizeof scale);
    return scale;
}

/* Scores of positions [i, i + DEEP) into s->s [BLK][SPAN]. */
INLINE void score(uint32_t vecs, const struct sl_avx512_group *g, uint32_t i)
{
    uint32_t width = sl_attn_width(g->hd), words = (g->hd + 3) / 4;
    const float *q = g->s->q_t + g->first;
    const uint8_t *k = (const uint8_t *)g->s->k + (size_t)i * width;
    __m512i x[DEEP][GROUP];
    UNROLL
    for (uint32_t p = 0; p < DEEP; p++) {
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            x[p][v] = _mm512_setzero_si512();
    }
    for (uint32_t part = 0; part < 2; part++, q += (size_t)width / 4 * SL_ATTN_QROWS) {
        UNROLL
        for (uint32_t p = 0; p < DEEP; p++) {
            UNROLL
            for (uint32_t v = 0; v < vecs; v++)
                x[p][v] = _mm512_slli_epi32(x[p][v], Q_LOW_BITS);
        }
        for (uint32_t w = 0; w < words; w++) {
            __m512i f[GROUP];
            UNROLL
            for (uint32_t v = 0; v < vecs; v++)
                f[v] = _mm512_load_si512(q + (size_t)w * SL_ATTN_QROWS + LANES * v);
            UNROLL
            for (uint32_t p = 0; p < DEEP; p++) {
                __m512i word = word_at(k + (size_t)p * width + 4 * (size_t)w);
                UNROLL
                for (uint32_t v = 0; v < vecs; v++)
                    x[p][v] = _mm512_dpbusd_epi32(x[p][v], word, f[v]);
            }
        }
    }
    UNROLL
    for (uint32_t v = 0; v < vecs; v++) {
        __m512i start = _mm512_load_si512(g->s->q_start + g->first + LANES * v);
        __m512 scale = _mm512_load_ps(g->s->q_scale + g->first + LANES * v);
        UNROLL
        for (uint32_t p = 0; p < DEEP; p++) {
            __m512 score = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(x[p][v], start)), scale);
            _mm512_store_ps(g->s->s + (size_t)(i + p) * SPAN + LANES * v,
                            _mm512_mul_ps(score, _mm512_set1_ps(scale_at(g->block->k_scale, i + p))));
        }
    }
}

/* p of vector v, times the scales of V, in place of the scores: the greatest. *sum is that of p, in the order
 * of cpu_attention.c. */
INLINE __m512 weigh(const struct sl_avx512_group *g, uint32_t v, __m512 m, __m512 *sum)
{
    float *x = g->s->s + LANES * v;
    __m512i first = _mm512_load_si512(g->seen->first + g->first + LANES * v);
    __m512i n = _mm512_load_si512(g->seen->n + g->first + LANES * v);
    __m512 a[LANES], most = _mm512_setzero_ps();
    for (uint32_t j = 0; j < LANES; j++) {
        __m512 p[4];
        UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            uint32_t i = LANES * c + j;
            __mmask16 in = g->whole ? 0xffff : seen_at(first, n, i);
            p[c] = _mm512_maskz_mov_ps(
                in, sl_v_exp2_coarse(_mm512_sub_ps(_mm512_load_ps(x + (size_t)i * SPAN), m)));
            __m512 u = _mm512_maskz_mul_ps(in, p[c], _mm512_set1_ps(scale_at(g->block->v_scale, i)));
            _mm512_store_ps(x + (size_t)i * SPAN, u);
            most = _mm512_max_ps(u, most); /* the second operand where one is NaN: it is passed over */
        }
        a[j] = _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3]));
    }
    *sum = sum_of(a);
    return most;
}

/* The weights of four positions as two words: their high bytes, their low bytes. */
INLINE void pack_quad(const float *u, __m512 up, float *high, float *low)
{
    const __m512i even = _mm512_set1_epi32(0x00ff00ff);
    __m512i w[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        w[i] = weight_int(_mm512_load_ps(u + (size_t)i * SPAN), up);
    __m512i a = _mm512_or_si512(w[0], _mm512_slli_epi32(w[2], 16));
    __m512i b = _mm512_or_si512(w[1], _mm512_slli_epi32(w[3], 16));
    /* 0xca: the first operand chooses the second where it is 1 */
    _mm512_store_si512(high, _mm512_ternarylogic_epi32(even, _mm512_srli_epi32(a, 8), b, 0xca));
    _mm512_store_si512(low, _mm512_ternarylogic_epi32(even, a, _mm512_slli_epi32(b, 8), 0xca));
}

/* Of vector v: m, l, keep, and the weights into s->p [QUADS][2][SPAN]; worth is what their unit is. */
static __attribute__((noinline)) void softmax(const struct sl_avx512_group *g, uint32_t v, float *worth)
{
    uint32_t r = g->first + LANES * v;
    __m512 old = _mm512_load_ps(g->s->m + r), m = _mm512_max_ps(greatest(g, v), old), sum;
    __m512 keep = sl_v_exp2(_mm512_sub_ps(old, m)), most = weigh(g, v, m, &sum);
    _mm512_store_ps(g->s->m + r, m);
    _mm512_store_ps(g->s->keep + r, keep);
    _mm512_store_ps(g->s->l + r, _mm512_fmadd_ps(_mm512_load_ps(g->s->l + r), keep, sum));
    __mmask16 some = _mm512_cmp_ps_mask(most, _mm512_set1_ps(SL_Q8_LEAST), _CMP_NLT_UQ);
    __m512 up = _mm512_maskz_div_ps(some, _mm512_set1_ps(SL_Q8_WEIGHT), most);
    _mm512_store_ps(worth, _mm512_maskz_mul_ps(some, most, _mm512_set1_ps(1.0f / SL_Q8_WEIGHT)));
    for (uint32_t k = 0; k < QUADS; k++) {
        float *to = g->s->p + (size_t)2 * k * SPAN + LANES * v;
        pack_quad(g->s->s + (size_t)4 * k * SPAN + LANES * v, up, to, to + SPAN);
    }
}

/* Elements [d, d + deep) of the output. */
INLINE void values(uint32_t vecs, uint32_t deep, const struct sl_avx512_group *g, const float *worth,
                   uint32_t d)
{
    uint32_t width = sl_attn_width(g->hd), end = (g->hi + 3) / 4;
    __m512i a[2 * DEEP][GROUP];
    UNROLL
    for (uint32_t e = 0; e < deep; e++) {
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            a[e][v] = _mm512_setzero_si512();
    }
    for (uint32_t part = 0; part < 2; part++) {
        UNROLL
        for (uint32_t e = 0; e < deep; e++) {
            UNROLL
            for (uint32_t v = 0; v < vecs; v++)
                a[e][v] = _mm512_slli_epi32(a[e][v], W_LOW_BITS);
        }
        for (uint32_t k = g->lo / 4; k < end; k++) {
            const float *p = g->s->p + (size_t)(2 * k + part) * SPAN, *word = g->s->v + (size_t)k * width + d;
            __m512i f[GROUP];
            UNROLL
            for (uint32_t v = 0; v < vecs; v++)
                f[v] = _mm512_load_si512(p + LANES * v);
            UNROLL
            for (uint32_t e = 0; e < deep; e++) {
                __m512i x = word_at(word + e);
                UNROLL
                for (uint32_t v = 0; v < vecs; v++)
                    a[e][v] = _mm512_dpbusd_epi32(a[e][v], f[v], x);
            }
        }
    }
    UNROLL
    for (uint32_t v = 0; v < vecs; v++) {
        __m512 unit = _mm512_load_ps(worth + LANES * v);
        __m512 keep = _mm512_load_ps(g->s->keep + g->first + LANES * v);
        UNROLL
        for (uint32_t e = 0; e < deep; e++) {
            float *out = g->s->acc_t + (size_t)(d + e) * SL_ATTN_QROWS + g->first + LANES * v;
            __m512 kept = _mm512_mul_ps(_mm512_load_ps(out), keep);
            _mm512_store_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[e][v]), unit, kept));
        }
    }
}

INLINE void attend(uint32_t vecs, const struct sl_avx512_group *g)
{
    const uint32_t deep = vecs == 1 ? 2 * DEEP : DEEP;
    _Alignas(64) float worth[SPAN];
    if (g->loads)
        copy_k(g->s, g->hd, g->block);
    for (uint32_t i = g->lo / DEEP * DEEP; i < g->hi; i += DEEP) {
        if (g->loads)
            prefetch(g->block, g->next, i);
        score(vecs, g, i);
    }
    if (g->loads)
        copy_v(g->s, g->hd, g->block);
    for (uint32_t v = 0; v < vecs; v++)
        softmax(g, v, worth + LANES * v);
    for (uint32_t d = 0; d < g->hd; d += deep)
        values(vecs, deep, g, worth, d);
}

void sl_avx512_attn_group_q8(const struct sl_avx512_group *g, uint32_t vecs)
{
    switch (vecs) {
    case 1:
        attend(1, g);
        break;
    case 2:
        attend(2, g);
        break;
    default:
        attend(GROUP, g);
    }
}
