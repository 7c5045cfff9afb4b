/* kernels/cpu/attention_avx512.c - an attention tile with AVX-512: queries, blocks, segments and their
 * merging. A block is computed by attention_many_avx512.c, or for few rows by attention_few_avx512.c;
 * arithmetic: cpu_attention.c, the bits of attention_portable.c.
 *
 * Few rows wait for memory. In a page the strips of a layer's KV heads lie side by side, K of all and then V of
 * all, and a strip is short (4 KiB in a page of 32 tokens): head by head, the hardware's prefetching starts anew
 * at each. So the KV heads of such a tile walk together, a block at a time: K of all of them, then V of all. */
#include "kernels/cpu/attention_avx512.h"

#include <float.h>
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/q8.h"

/* Before the first score of a segment. Not -inf, whose difference to the -inf of what a row does not see is
 * NaN. */
#define NO_SCORE (-FLT_MAX)

#define TOGETHER 8u /* most KV heads: their blocks and the next ones are to fit L2 beside all else */

_Static_assert(SL_ATTN_QROWS >= ROWS * TOGETHER, "the rows of all of them lie in one thread's scratch");

/* One KV head of a tile, and its part of the thread's scratch. */
struct head {
    struct sl_attn_tile t;
    struct sl_attn_scratch s;
    struct sl_avx512_block blocks[2];
};

static int is_pairs(const struct sl_attn_tile *t)
{
    return sl_attn_type(t->kv) == SL_BF16;
}

static int is_few(const struct sl_attn_tile *t)
{
    return t->j1 - t->j0 <= ROWS;
}

static int is_q8(const struct sl_attn_tile *t)
{
    return t->kv->g.dtype == SL_Q8;
}

/* Row r in two parts of int8, x = 128 * high + low: high [width], low [width]. As K is taken with 128 added,
 * so that it is unsigned, a score starts from -128 * sum(x). */
static void quantise_query(const float *q, uint32_t hd, __m512 scale, const struct sl_attn_scratch *s,
                           uint32_t r)
{
    const __m512 top = _mm512_set1_ps(SL_Q8_QUERY), bottom = _mm512_set1_ps(-SL_Q8_QUERY);
    uint32_t width = sl_attn_width(hd);
    int8_t *to = (int8_t *)(s->q + (size_t)r * width);
    __m512 sizes = _mm512_setzero_ps();
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t i = 0; i < hd; i += LANES) {
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes(i, hd), q + i), scale);
        sizes = _mm512_max_ps(_mm512_abs_ps(v), sizes); /* the second operand where one is NaN */
    }
    float most = _mm512_reduce_max_ps(sizes);
    __m512 up = _mm512_set1_ps(sl_q8_up(most, SL_Q8_QUERY));
    for (uint32_t i = 0; i < hd; i += LANES) {
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes(i, hd), q + i), scale);
        v = _mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(v, up), top), bottom);
        __m512i x = _mm512_cvtps_epi32(v);
        __m512i high = _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(64)), 7);
        __m512i low = _mm512_sub_epi32(x, _mm512_slli_epi32(high, 7));
        sum = _mm512_add_epi32(sum, x);
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128((__m128i *)(void *)(to + width + i), _mm512_cvtepi32_epi8(low));
    }
    s->q_scale[r] = sl_q8_scale(most, SL_Q8_QUERY);
    s->q_start[r] = -128 * _mm512_reduce_add_epi32(sum);
}

/* Rows of words, scaled, [n_rows][width]. */
static void load_queries(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd);
    __m512 scale = _mm512_set1_ps(SL_LOG2E * sl_attn_score_scale(t->shape));
    for (uint32_t j = t->j0; j < t->j1; j++) {
        const float *q = t->qkv + (t->run->first_row + j / t->group) * t->qkv_stride +
                         (size_t)(t->kv_head * t->group + j % t->group) * hd;
        float *to = s->q + (size_t)(j - t->j0) * width;
        if (is_q8(t)) {
            quantise_query(q, hd, scale, s, j - t->j0);
            continue;
        }
        for (uint32_t i = 0; i < hd; i += LANES) {
            __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes(i, hd), q + i), scale);
            if (is_pairs(t))
                _mm256_store_si256((__m256i *)((uint16_t *)(void *)to + i), (__m256i)_mm512_cvtneps_pbh(v));
            else
                _mm512_store_ps(to + i, v);
        }
    }
}

/* from [n][from_stride] to to [m][to_stride], both multiples of 16. */
static void transpose(const float *from, size_t from_stride, uint32_t n, uint32_t m, float *to,
                      size_t to_stride)
{
    for (uint32_t i = 0; i < n; i += LANES)
        for (uint32_t j = 0; j < m; j += LANES) {
            __m512i r[LANES];
            UNROLL
            for (uint32_t k = 0; k < LANES; k++)
                r[k] = _mm512_load_si512(from + (i + k) * from_stride + j);
            transpose16(r);
            UNROLL
            for (uint32_t k = 0; k < LANES; k++)
                _mm512_store_si512(to + (j + k) * to_stride + i, r[k]);
        }
}

static uint32_t whole_vectors(uint32_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* Whether a block can be computed where it lies: each 16 positions in one page, of a type the kernel takes.
 */
static int in_place(const struct sl_attn_tile *t)
{
    enum sl_dtype type = t->kv->g.dtype;
    return t->kv->g.page_tokens % LANES == 0 && type != SL_FP8 && (type != SL_F16 || is_few(t));
}

/* A row of SL_FP8 as bfloat16. */
static void widen_fp8(const uint8_t *from, const uint8_t *scale, uint32_t hd, uint8_t *to)
{
    const __m512 worth = _mm512_set1_ps(sl_fp8_scale(scale) * 0x1p8f);
    for (uint32_t i = 0; i < hd; i += 2 * LANES) {
        __mmask32 mask = hd - i >= 2 * LANES ? 0xffffffffu : (1u << (hd - i)) - 1;
        /* float16 of 2^-8 the size: the sign in place, 7 bits behind a zero */
        __m512i h = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(mask, from + i));
        h = _mm512_and_si512(_mm512_slli_epi16(h, 7), _mm512_set1_epi16((int16_t)0xbfff));
        __m512 low = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(h)), worth);
        __m512 high = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)), worth);
        _mm512_mask_storeu_epi16(to + 2 * (size_t)i, mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* n positions of K or V of one page, and their scales, as the kernels take them. */
static void load_rows(const struct sl_attn_tile *t, const uint8_t *from, const uint8_t *scales, uint32_t n,
                      uint8_t *to, size_t stride)
{
    uint32_t hd = t->shape->head_dim;
    for (uint32_t i = 0; i < n; i++, from += t->kv->token_bytes, to += stride) {
        if (t->kv->g.dtype == SL_FP8) {
            widen_fp8(from, scales + i * sizeof(float), hd, to);
            continue;
        }
        if (t->kv->g.dtype != SL_F16) {
            memcpy(to, from, t->kv->token_bytes);
            continue;
        }
        for (uint32_t d = 0; d < hd; d += LANES)
            _mm512_store_ps((float *)(void *)to + d,
                            _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(d, hd), from + 2 * (size_t)d)));
    }
}

/* Positions [b->first, b->n) of K or V of the block at pos into scratch, page by page. */
static void gather(const struct sl_attn_tile *t, uint32_t pos, uint32_t which, float *to,
                   struct sl_avx512_block *b)
{
    uint32_t page_tokens = t->kv->g.page_tokens;
    const uint8_t **rows = which == 0 ? b->k : b->v;
    uint8_t *base = (uint8_t *)to;
    for (uint32_t i = b->first; i < b->n;) {
        uint32_t left = page_tokens - (pos + i) % page_tokens, n = left < b->n - i ? left : b->n - i;
        load_rows(t, sl_kv_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i),
                  sl_kv_scale_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i), n,
                  base + i * b->stride, b->stride);
        i += n;
    }
    for (uint32_t g = 0; g < BLK / LANES; g++)
        rows[g] = base + g * LANES * b->stride;
}

/* The scales of the positions that gather() took. */
static void gather_scales(const struct sl_attn_tile *t, uint32_t pos, uint32_t which, float *to,
                          struct sl_avx512_block *b)
{
    for (uint32_t i = b->first; i < b->n; i++)
        memcpy(&to[i], sl_kv_scale_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i), sizeof *to);
    for (uint32_t g = 0; g < BLK / LANES; g++)
        (which == 0 ? b->k_scale : b->v_scale)[g] = (uint8_t *)(to + (size_t)g * LANES);
}

/* The position of row r of the tile, the last it sees. */
static uint32_t row_pos(const struct sl_attn_tile *t, uint32_t r)
{
    return t->run->first_pos + (t->j0 + r) / t->group;
}

/* The first position that row r sees. */
static uint32_t row_first(const struct sl_attn_tile *t, uint32_t r)
{
    return sl_attn_first_seen(t->shape, row_pos(t, r));
}

/* The block at pos of the positions below stop, where it lies; nothing to ask for when its rows are
 * scattered. */
static void find_block(const struct sl_attn_tile *t, uint32_t pos, uint32_t stop, struct sl_avx512_block *b)
{
    uint32_t first = row_first(t, 0);
    b->n = stop - pos < BLK ? stop - pos : BLK;
    b->first = first > pos ? first - pos : 0;
    b->type = t->kv->g.dtype;
    b->stride = t->kv->token_bytes;
    b->row_bytes = t->kv->g.page_tokens % LANES == 0 ? t->kv->token_bytes : 0;
    for (uint32_t g = 0; g < BLK / LANES; g++) {
        uint32_t at = g * LANES < b->n ? pos + g * LANES : pos; /* what is not there may still be asked for */
        b->k[g] = sl_kv_at(t->kv, t->run, t->layer, 0, t->kv_head, at);
        b->v[g] = sl_kv_at(t->kv, t->run, t->layer, 1, t->kv_head, at);
        if (is_q8(t)) {
            b->k_scale[g] = sl_kv_scale_at(t->kv, t->run, t->layer, 0, t->kv_head, at);
            b->v_scale[g] = sl_kv_scale_at(t->kv, t->run, t->layer, 1, t->kv_head, at);
        }
    }
}

/* Makes a block found at pos one that the kernels take. */
static void load_block(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                       struct sl_avx512_block *b)
{
    uint32_t width = sl_attn_width(t->shape->head_dim);
    if (in_place(t))
        return;
    b->type = is_pairs(t) ? SL_BF16 : b->type == SL_F16 ? SL_F32 : b->type;
    b->stride = width * (is_q8(t) ? sizeof(int8_t) : is_pairs(t) ? sizeof(uint16_t) : sizeof(float));
    gather(t, pos, 0, s->rows, b);
    gather(t, pos, 1, s->rows + (size_t)BLK * width, b);
    if (is_q8(t)) {
        gather_scales(t, pos, 0, s->k_scale, b);
        gather_scales(t, pos, 1, s->v_scale, b);
    }
}

/* The first block of the tile that one of its rows sees. */
static uint32_t first_block(const struct sl_attn_tile *t)
{
    uint32_t seen = row_first(t, 0) / BLK * BLK, start = t->seg0 * SL_ATTN_SEG;
    return seen > start ? seen : start;
}

/* What the rows see of the block at pos. */
static void look(const struct sl_attn_tile *t, uint32_t pos, struct sl_avx512_seen *seen)
{
    uint32_t n_rows = t->j1 - t->j0, r = 0;
    seen->whole = row_first(t, n_rows - 1) <= pos && row_pos(t, 0) + 1 >= pos + BLK;
    if (seen->whole) {
        for (; r < ROWS; r++) {
            seen->first[r] = 0;
            seen->n[r] = (int32_t)BLK;
        }
        return;
    }
    for (; r < n_rows; r++) {
        uint32_t first = row_first(t, r), end = row_pos(t, r) + 1;
        int some = first < pos + BLK && end > pos;
        seen->first[r] = some && first > pos ? (int32_t)(first - pos) : 0;
        seen->n[r] = !some ? 0 : end - pos < BLK ? (int32_t)(end - pos) : (int32_t)BLK;
    }
    for (; r < whole_vectors(n_rows); r++)
        seen->first[r] = seen->n[r] = 0;
}

/* The block to ask for while the one at pos is computed: the one behind it or, at the end, the first of the
 * next KV head, which the same thread takes next when it walks alone and there is much to do; or one with nothing
 * to ask for. */
static void find_next(const struct sl_attn_tile *t, int alone, uint32_t pos, uint32_t stop,
                      struct sl_avx512_block *b)
{
    struct sl_attn_tile other = *t;
    if (pos + BLK < stop) {
        find_block(t, pos + BLK, stop, b);
        return;
    }
    other.kv_head = alone && t->kv_head + 1 < t->kv->g.n_kv_heads ? t->kv_head + 1 : t->kv_head;
    find_block(&other, first_block(t), stop, b);
    if (other.kv_head == t->kv_head)
        b->row_bytes = 0;
}

/* The blocks of [pos, end) of n heads. Positions below stop are seen by the tile: those behind end in its next
 * segment. */
static void attend_blocks(struct head *heads, uint32_t n, uint32_t pos, uint32_t end, uint32_t stop)
{
    const struct sl_attn_tile *t = &heads->t;
    uint32_t n_rows = t->j1 - t->j0, hd = t->shape->head_dim;
    struct sl_avx512_seen seen;
    for (uint32_t h = 0; h < n; h++)
        find_block(&heads[h].t, pos, stop, &heads[h].blocks[0]);
    for (uint32_t i = 0; pos < end; pos += BLK, i ^= 1) {
        for (uint32_t h = 0; h < n; h++) {
            find_next(&heads[h].t, n == 1, pos, stop, &heads[h].blocks[i ^ 1]);
            load_block(&heads[h].t, &heads[h].s, pos, &heads[h].blocks[i]);
        }
        look(t, pos, &seen);
        if (!is_few(t)) {
            sl_avx512_attn_many(&heads->s, n_rows, hd, &seen, &heads->blocks[i], &heads->blocks[i ^ 1]);
            continue;
        }
        for (uint32_t h = 0; h < n; h++)
            sl_avx512_attn_few_weights(&heads[h].s, n_rows, hd, &seen, &heads[h].blocks[i],
                                       &heads[h].blocks[i ^ 1]);
        for (uint32_t h = 0; h < n; h++)
            sl_avx512_attn_few_values(&heads[h].s, n_rows, hd, &seen, &heads[h].blocks[i],
                                      &heads[h].blocks[i ^ 1]);
    }
}

void sl_avx512_attn_merge(float *total, float *total_m, float *total_l, const float *acc, float m, float l,
                          uint32_t head_dim)
{
    float most = m > *total_m ? m : *total_m, keep = sl_exp2(*total_m - most), add = sl_exp2(m - most);
    for (uint32_t i = 0; i < head_dim; i += 16) {
        __mmask16 mask = lanes(i, head_dim);
        __m512 old = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, total + i), _mm512_set1_ps(keep));
        __m512 sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, acc + i), _mm512_set1_ps(add), old);
        _mm512_mask_storeu_ps(total + i, mask, sum);
    }
    *total_l = fmaf(l, add, *total_l * keep);
    *total_m = most;
}

void sl_avx512_attn_finish(const float *total, float total_l, uint32_t head_dim, float *out)
{
    __m512 scale = _mm512_set1_ps(1.0f / total_l);
    for (uint32_t i = 0; i < head_dim; i += 16) {
        __mmask16 mask = lanes(i, head_dim);
        _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, total + i), scale));
    }
}

/* The end of a segment for row r: into the total, or out as a partial. */
static void end_segment(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t r)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd);
    const float *acc = s->acc + (size_t)r * width;
    if (!t->partial) {
        sl_avx512_attn_merge(s->total + (size_t)r * width, &s->total_m[r], &s->total_l[r], acc, s->m[r],
                             s->l[r], hd);
        return;
    }
    float *to = t->partial + (size_t)r * (hd + 2);
    memcpy(to, acc, hd * sizeof *to);
    to[hd] = s->m[r];
    to[hd + 1] = s->l[r];
}

static void start_segment(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t width = sl_attn_width(t->shape->head_dim), n_rows = t->j1 - t->j0;
    if (is_few(t))
        memset(s->acc, 0, (size_t)n_rows * width * sizeof *s->acc);
    else
        memset(s->acc_t, 0, (size_t)width * SL_ATTN_QROWS * sizeof *s->acc_t);
    for (uint32_t r = 0; r < (is_few(t) ? n_rows : whole_vectors(n_rows)); r++) {
        s->m[r] = NO_SCORE;
        s->l[r] = 0.0f;
    }
}

static void start_head(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd), n_rows = t->j1 - t->j0;
    load_queries(t, s);
    if (!is_few(t))
        transpose(s->q, width, whole_vectors(n_rows),
                  whole_vectors(is_q8(t) ? 2 * width / 4 : words_of(is_pairs(t), hd)), s->q_t, SL_ATTN_QROWS);
    memset(s->total, 0, (size_t)n_rows * width * sizeof *s->total);
    for (uint32_t r = 0; r < n_rows; r++) {
        s->total_m[r] = -INFINITY;
        s->total_l[r] = 0.0f;
    }
}

static void end_rows(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t start)
{
    uint32_t width = sl_attn_width(t->shape->head_dim), n_rows = t->j1 - t->j0;
    if (!is_few(t))
        transpose(s->acc_t, SL_ATTN_QROWS, width, whole_vectors(n_rows), s->acc, width);
    for (uint32_t r = 0; r < n_rows; r++) /* the others end before this segment or start behind it */
        if (row_pos(t, r) >= start && row_first(t, r) < start + SL_ATTN_SEG)
            end_segment(t, s, r);
}

static void finish_head(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd), n_rows = t->j1 - t->j0;
    for (uint32_t r = 0; r < n_rows && !t->partial; r++) {
        uint32_t j = t->j0 + r;
        sl_avx512_attn_finish(s->total + (size_t)r * width, s->total_l[r], hd,
                              t->out + (t->run->first_row + j / t->group) * t->out_stride +
                                  (size_t)(t->kv_head * t->group + j % t->group) * hd);
    }
}

static void attend_heads(struct head *heads, uint32_t n)
{
    const struct sl_attn_tile *t = &heads->t;
    uint32_t last = row_pos(t, t->j1 - t->j0 - 1), first = first_block(t);
    uint32_t stop = t->seg1 * SL_ATTN_SEG < last + 1 ? t->seg1 * SL_ATTN_SEG : last + 1;
    for (uint32_t h = 0; h < n; h++)
        start_head(&heads[h].t, &heads[h].s);
    for (uint32_t start = t->seg0 * SL_ATTN_SEG; start < stop; start += SL_ATTN_SEG) {
        for (uint32_t h = 0; h < n; h++)
            start_segment(&heads[h].t, &heads[h].s);
        attend_blocks(heads, n, first > start ? first : start,
                      stop - start < SL_ATTN_SEG ? stop : start + SL_ATTN_SEG, stop);
        for (uint32_t h = 0; h < n; h++)
            end_rows(&heads[h].t, &heads[h].s, start);
    }
    for (uint32_t h = 0; h < n; h++)
        finish_head(&heads[h].t, &heads[h].s);
}

/* Scratch of the few, from row r on. */
static struct sl_attn_scratch scratch_from(const struct sl_attn_scratch *s, uint32_t r, uint32_t head_dim)
{
    struct sl_attn_scratch part = *s;
    size_t width = sl_attn_width(head_dim);
    part.q += r * width;
    part.s += r * BLK;
    part.p += r * BLK;
    part.acc += r * width;
    part.total += r * width;
    part.m += r;
    part.l += r;
    part.keep += r;
    part.total_m += r;
    part.total_l += r;
    part.q_scale += r;
    part.q_start += r;
    return part;
}

void sl_avx512_attn_tile(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    struct head heads[TOGETHER];
    uint32_t most = is_few(t) && in_place(t) ? TOGETHER : 1;
    for (uint32_t i = 0; i < t->n_heads; i += most) {
        uint32_t n = t->n_heads - i < most ? t->n_heads - i : most;
        for (uint32_t h = 0; h < n; h++) {
            heads[h].t = sl_attn_tile_of_head(t, i + h);
            heads[h].s = scratch_from(s, h * (t->j1 - t->j0), t->shape->head_dim);
        }
        attend_heads(heads, n);
    }
}
