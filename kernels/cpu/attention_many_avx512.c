/* kernels/cpu/attention_many_avx512.c - a block of K and V for many query rows (a prompt chunk).
 *
 * Lanes are query rows, in a score and in the output: a word of K or V is broadcast from memory to the 16
 * rows of up to GROUP vectors. So K needs no transposing, and the softmax of a row stays in its lane: maxima
 * and sums go down the positions, without a reduction over lanes; only queries and output are transposed,
 * once a tile and once a segment. With few rows most lanes would idle: attention_few_avx512.c.
 *
 * A block that all rows see is computed without masks. Else a row's lane is masked at every product with V
 * that it does not see: it keeps its bits, whatever lies there. */
#include "kernels/cpu/attention_many_avx512.h"

static __attribute__((noinline)) void copy_v_f32(const struct sl_attn_scratch *s, uint32_t hd,
                                                 const struct sl_avx512_block *b)
{
    uint32_t width = sl_attn_width(hd);
    for (uint32_t i = b->first; i < b->n; i++)
        for (uint32_t d = 0; d < hd; d += LANES)
            _mm512_store_ps(s->v + (size_t)i * width + d,
                            _mm512_maskz_loadu_ps(lanes(d, hd), row_at(b->v, b->stride, i) + (size_t)d * 4));
}

/* A pair of positions; NULL stands for zeros. */
INLINE void copy_pair(const uint8_t *even, const uint8_t *odd, uint32_t hd, float *to)
{
    for (uint32_t d = 0; d < hd; d += 2 * LANES) {
        __m512i lo, hi;
        interleave(even, odd, d, hd, &lo, &hi);
        _mm512_store_si512(to + d, lo);
        if (d + LANES < hd)
            _mm512_store_si512(to + d + LANES, hi);
    }
}

/* V as pairs of positions [BLK / 2][width]; a partner that no row sees is zero. */
static __attribute__((noinline)) void copy_v_pairs(const struct sl_attn_scratch *s, uint32_t hd,
                                                   const struct sl_avx512_block *b)
{
    uint32_t width = sl_attn_width(hd), i = b->first;
    if (i % 2 != 0) {
        copy_pair(NULL, row_at(b->v, b->stride, i), hd, s->v + (size_t)(i / 2) * width);
        i++;
    }
    for (; i + 1 < b->n; i += 2) {
        const uint8_t *even = row_at(b->v, b->stride, i);
        copy_pair(even, even + b->stride, hd, s->v + (size_t)(i / 2) * width);
    }
    if (i < b->n)
        copy_pair(row_at(b->v, b->stride, i), NULL, hd, s->v + (size_t)(i / 2) * width);
}

/* Scores of positions [i, i + DEEP) into s->s [BLK][SPAN]. */
INLINE void score(int pairs, uint32_t vecs, const struct sl_avx512_group *g, uint32_t i)
{
    const float *q = g->s->q_t + g->first;
    const size_t stride = g->block->stride;
    const uint8_t *k = row_at(g->block->k, stride, i), *end = k + words_of(pairs, g->hd) * sizeof(int32_t);
    __m512 x[DEEP][GROUP];
    UNROLL
    for (uint32_t p = 0; p < DEEP; p++) {
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            x[p][v] = _mm512_setzero_ps();
    }
    for (; k < end; k += sizeof(int32_t), q += SL_ATTN_QROWS) {
        __m512i f[GROUP];
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            f[v] = _mm512_load_si512(q + LANES * v);
        UNROLL
        for (uint32_t p = 0; p < DEEP; p++) {
            __m512i word = word_at(k + p * stride);
            UNROLL
            for (uint32_t v = 0; v < vecs; v++)
                x[p][v] = multiply(pairs, x[p][v], word, f[v]);
        }
    }
    UNROLL
    for (uint32_t p = 0; p < DEEP; p++) {
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            _mm512_store_ps(g->s->s + (size_t)(i + p) * SPAN + LANES * v, x[p][v]);
    }
}

/* p of positions i and i + 1 as words into to; *even and *odd are what is summed. */
INLINE void weigh_pair(const float *x, __m512 m, float *to, __m512 *even, __m512 *odd)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512 p0 = weight_of(1, _mm512_sub_ps(_mm512_load_ps(x), m));
    __m512 p1 = weight_of(1, _mm512_sub_ps(_mm512_load_ps(x + SPAN), m));
    __m512i word = _mm512_permutexvar_epi16(mix, (__m512i)_mm512_cvtne2ps_pbh(p1, p0));
    _mm512_store_si512(to, word);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(word, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(word, _mm512_set1_epi32((int32_t)0xffff0000u)));
}

/* p of vector v into s->p [BLK or BLK / 2][SPAN]; their sum in the order of cpu_attention.c. */
INLINE __m512 weigh(int pairs, const struct sl_avx512_group *g, uint32_t v, __m512 m)
{
    const float *x = g->s->s + LANES * v;
    float *to = g->s->p + LANES * v;
    __m512 a[LANES], p[2][4];
    for (uint32_t j = 0; j < LANES; j += 2) {
        UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            size_t i = LANES * c + j;
            if (pairs) {
                weigh_pair(x + i * SPAN, m, to + i / 2 * SPAN, &p[0][c], &p[1][c]);
                continue;
            }
            UNROLL
            for (uint32_t o = 0; o < 2; o++) {
                p[o][c] = weight_of(0, _mm512_sub_ps(_mm512_load_ps(x + (i + o) * SPAN), m));
                _mm512_store_ps(to + (i + o) * SPAN, p[o][c]);
            }
        }
        UNROLL
        for (uint32_t o = 0; o < 2; o++)
            a[j + o] = _mm512_add_ps(_mm512_add_ps(p[o][0], p[o][1]), _mm512_add_ps(p[o][2], p[o][3]));
    }
    return sum_of(a);
}

/* True when a row's maximum grew, so that its output has to be scaled. */
INLINE int softmax(int pairs, const struct sl_avx512_group *g, uint32_t v)
{
    uint32_t r = g->first + LANES * v;
    __m512 old = _mm512_load_ps(g->s->m + r), most = greatest(g, v), m = _mm512_max_ps(most, old);
    __m512 keep = sl_v_exp2(_mm512_sub_ps(old, m));
    _mm512_store_ps(g->s->m + r, m);
    _mm512_store_ps(g->s->keep + r, keep);
    __m512 sum = weigh(pairs, g, v, m);
    _mm512_store_ps(g->s->l + r, _mm512_fmadd_ps(_mm512_load_ps(g->s->l + r), keep, sum));
    return _mm512_cmp_ps_mask(old, m, _CMP_NEQ_UQ) != 0;
}

/* multiply() in the lanes of the mask; the others keep their bits. */
INLINE __m512 multiply_masked(int pairs, __m512 acc, __mmask16 mask, __m512i a, __m512i b)
{
    return pairs ? _mm512_mask_dpbf16_ps(acc, mask, (__m512bh)a, (__m512bh)b)
                 : _mm512_mask3_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), acc, mask);
}

/* Lanes that see all of word k; for pairs also those that see its first half only, and its second. */
INLINE void masks_of(int pairs, const struct sl_avx512_group *g, uint32_t v, uint32_t k, __mmask16 mask[3])
{
    __m512i first = _mm512_load_si512(g->seen->first + g->first + LANES * v);
    __m512i n = _mm512_load_si512(g->seen->n + g->first + LANES * v);
    if (!pairs) {
        mask[0] = seen_at(first, n, k);
        mask[1] = mask[2] = 0;
        return;
    }
    __mmask16 even = seen_at(first, n, 2 * k), odd = seen_at(first, n, 2 * k + 1);
    mask[0] = even & odd;
    mask[1] = even & (__mmask16)~odd;
    mask[2] = odd & (__mmask16)~even;
}

/* Elements [d, d + deep) of the output. */
INLINE void values(int pairs, int whole, uint32_t vecs, uint32_t deep, const struct sl_avx512_group *g,
                   int rescale, uint32_t d)
{
    uint32_t width = sl_attn_width(g->hd), end = pairs ? (g->hi + 1) / 2 : g->hi,
             k = pairs ? g->lo / 2 : g->lo;
    float *out = g->s->acc_t + (size_t)d * SL_ATTN_QROWS + g->first;
    const float *p = g->s->p + (size_t)k * SPAN, *word = g->s->v + (size_t)k * width + d;
    __m512 a[2 * DEEP][GROUP];
    UNROLL
    for (uint32_t e = 0; e < deep; e++) {
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            a[e][v] = _mm512_load_ps(out + e * SL_ATTN_QROWS + LANES * v);
    }
    if (rescale) {
        UNROLL
        for (uint32_t v = 0; v < vecs; v++) {
            __m512 keep = _mm512_load_ps(g->s->keep + g->first + LANES * v);
            UNROLL
            for (uint32_t e = 0; e < deep; e++)
                a[e][v] = _mm512_mul_ps(a[e][v], keep);
        }
    }
    for (; k < end; k++, p += SPAN, word += width) {
        __m512i f[GROUP];
        __mmask16 mask[GROUP][3], halves = 0;
        UNROLL
        for (uint32_t v = 0; v < vecs; v++) {
            f[v] = _mm512_load_si512(p + LANES * v);
            if (!whole) {
                masks_of(pairs, g, v, k, mask[v]);
                halves |= mask[v][1] | mask[v][2];
            }
        }
        UNROLL
        for (uint32_t e = 0; e < deep; e++) {
            __m512i x = word_at(word + e);
            UNROLL
            for (uint32_t v = 0; v < vecs; v++)
                a[e][v] = whole ? multiply(pairs, a[e][v], x, f[v])
                                : multiply_masked(pairs, a[e][v], mask[v][0], x, f[v]);
        }
        if (whole || !halves)
            continue;
        UNROLL
        for (uint32_t e = 0; e < deep; e++) {
            __m512i x = word_at(word + e), even = _mm512_and_si512(x, _mm512_set1_epi32(0xffff));
            UNROLL
            for (uint32_t v = 0; v < vecs; v++) {
                a[e][v] = multiply_masked(pairs, a[e][v], mask[v][1], even, f[v]);
                a[e][v] = multiply_masked(pairs, a[e][v], mask[v][2], _mm512_xor_si512(x, even), f[v]);
            }
        }
    }
    UNROLL
    for (uint32_t e = 0; e < deep; e++) {
        UNROLL
        for (uint32_t v = 0; v < vecs; v++)
            _mm512_store_ps(out + e * SL_ATTN_QROWS + LANES * v, a[e][v]);
    }
}

/* Not inlined: their constants would push the sums of the products out of their registers. */
static __attribute__((noinline)) int softmax_pairs(const struct sl_avx512_group *g, uint32_t v)
{
    return softmax(1, g, v);
}

static __attribute__((noinline)) int softmax_f32(const struct sl_avx512_group *g, uint32_t v)
{
    return softmax(0, g, v);
}

INLINE void attend(int pairs, uint32_t vecs, const struct sl_avx512_group *g)
{
    const uint32_t deep = vecs == 1 ? 2 * DEEP : DEEP;
    int rescale = 0;
    for (uint32_t i = g->lo / DEEP * DEEP; i < g->hi; i += DEEP) {
        if (g->loads)
            prefetch(g->block, g->next, i);
        score(pairs, vecs, g, i);
    }
    if (g->loads && pairs)
        copy_v_pairs(g->s, g->hd, g->block);
    else if (g->loads)
        copy_v_f32(g->s, g->hd, g->block);
    for (uint32_t v = 0; v < vecs; v++)
        rescale |= pairs ? softmax_pairs(g, v) : softmax_f32(g, v);
    for (uint32_t d = 0; d < g->hd; d += deep) {
        if (g->whole)
            values(pairs, 1, vecs, deep, g, rescale, d);
        else
            values(pairs, 0, vecs, deep, g, rescale, d);
    }
}

static void attend_pairs(const struct sl_avx512_group *g, uint32_t vecs)
{
    switch (vecs) {
    case 1:
        attend(1, 1, g);
        break;
    case 2:
        attend(1, 2, g);
        break;
    default:
        attend(1, GROUP, g);
    }
}

static void attend_f32(const struct sl_avx512_group *g, uint32_t vecs)
{
    switch (vecs) {
    case 1:
        attend(0, 1, g);
        break;
    case 2:
        attend(0, 2, g);
        break;
    default:
        attend(0, GROUP, g);
    }
}

/* What the rows of the group see; false when it is nothing. */
static int look(struct sl_avx512_group *g, uint32_t n_rows)
{
    const int32_t *first = g->seen->first + g->first, *n = g->seen->n + g->first;
    if (g->seen->whole) {
        g->lo = 0;
        g->hi = BLK;
        g->whole = 1;
        return 1;
    }
    g->lo = BLK;
    g->hi = 0;
    g->whole = 1;
    for (uint32_t r = 0; r < n_rows; r++) {
        g->whole = g->whole && first[r] == 0 && n[r] == (int32_t)BLK;
        if (n[r] == 0)
            continue;
        g->lo = (uint32_t)first[r] < g->lo ? (uint32_t)first[r] : g->lo;
        g->hi = (uint32_t)n[r] > g->hi ? (uint32_t)n[r] : g->hi;
    }
    return g->hi > 0;
}

void sl_avx512_attn_many(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                         const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                         const struct sl_avx512_block *next)
{
    uint32_t vectors = (n_rows + LANES - 1) / LANES;
    int loaded = 0;
    for (uint32_t v = 0; v < vectors;) {
        uint32_t left = vectors - v, vecs = left == 4 || left == 2 ? 2 : left >= GROUP ? GROUP : 1;
        struct sl_avx512_group g = {
            .s = s, .seen = seen, .block = b, .next = next, .first = v * LANES, .hd = hd, .loads = !loaded};
        uint32_t rows = n_rows - g.first;
        if (look(&g, rows < vecs * LANES ? rows : vecs * LANES)) {
            if (b->type == SL_BF16)
                attend_pairs(&g, vecs);
            else if (b->type == SL_Q8)
                sl_avx512_attn_group_q8(&g, vecs);
            else
                attend_f32(&g, vecs);
            loaded = 1;
        }
        v += vecs;
    }
}
