/* kernels/cpu/attention_avx512.c - an attention tile with AVX-512: queries, segments and their merging. The
 * blocks are in attention_f32_avx512.c and attention_bf16_avx512.c, by the type of K and V; arithmetic:
 * cpu_attention.c, the bits of attention_portable.c. */
#include "kernels/cpu/attention_avx512.h"

/* Scaled; for bfloat16 K also rounded, packed at the start of the buffer. */
static void load_queries(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd);
    __m512 scale = _mm512_set1_ps(SL_LOG2E * sl_attn_score_scale(t->shape));
    for (uint32_t j = t->j0; j < t->j1; j++) {
        const float *q = t->qkv + (t->run->first_row + j / t->group) * t->qkv_stride +
                         (size_t)(t->kv_head * t->group + j % t->group) * hd;
        size_t to = (size_t)(j - t->j0) * width;
        for (uint32_t i = 0; i < hd; i += 16) {
            __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes(i, hd), q + i), scale);
            if (t->kv->g.dtype == SL_BF16)
                _mm256_store_si256((__m256i *)((uint16_t *)(void *)s->q + to + i),
                                   (__m256i)_mm512_cvtneps_pbh(v));
            else
                _mm512_store_ps(s->q + to + i, v);
        }
    }
}

/* Addresses of the n positions from pos on; the rest of the block repeats the last. */
static void find_rows(const struct sl_attn_tile *t, uint32_t which, uint32_t pos, uint32_t n,
                      const uint8_t *rows[BLK])
{
    uint32_t page_tokens = t->kv->g.page_tokens;
    for (uint32_t i = 0; i < n;) {
        uint32_t left = page_tokens - (pos + i) % page_tokens;
        const uint8_t *at = sl_kv_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i);
        for (; left > 0 && i < n; left--, i++, at += t->kv->token_bytes)
            rows[i] = at;
    }
    for (uint32_t i = n; i < BLK; i++)
        rows[i] = rows[n - 1];
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

/* The block at pos of the positions below stop. */
static void find_block(const struct sl_attn_tile *t, uint32_t pos, uint32_t stop, struct sl_attn_block *b)
{
    uint32_t first = row_first(t, 0);
    b->n = stop - pos < BLK ? stop - pos : BLK;
    b->first = first > pos ? first - pos : 0;
    find_rows(t, 0, pos, b->n, b->k);
    find_rows(t, 1, pos, b->n, b->v);
}

/* The first block of the tile that one of its rows sees. */
static uint32_t first_block(const struct sl_attn_tile *t)
{
    uint32_t seen = row_first(t, 0) / BLK * BLK, start = t->seg0 * SL_ATTN_SEG;
    return seen > start ? seen : start;
}

static void attend_few(const struct sl_attn_tile *t, const struct sl_attn_scratch *s,
                       const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    uint32_t hd = t->shape->head_dim, n_rows = t->j1 - t->j0;
    if (t->kv->g.dtype == SL_BF16)
        sl_avx512_attn_few_bf16(s, n_rows, hd, b, next);
    else if (t->kv->g.dtype == SL_F16)
        sl_avx512_attn_few_f16(s, n_rows, hd, b, next);
    else
        sl_avx512_attn_few_f32(s, n_rows, hd, b, next);
}

static void attend_many(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                        const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    uint32_t hd = t->shape->head_dim, n_rows = t->j1 - t->j0, first = 0;
    struct sl_attn_seen seen;
    while (row_pos(t, first) < pos)
        first++;
    while (row_first(t, n_rows - 1) >= pos + BLK)
        n_rows--;
    for (uint32_t r = first; r < n_rows; r++) {
        seen.first[r] = row_first(t, r) > pos ? row_first(t, r) - pos : 0;
        seen.n[r] = row_pos(t, r) - pos + 1 < BLK ? row_pos(t, r) - pos + 1 : BLK;
    }
    if (t->kv->g.dtype == SL_BF16)
        sl_avx512_attn_many_bf16(s, first, n_rows, &seen, hd, b, next);
    else if (t->kv->g.dtype == SL_F16)
        sl_avx512_attn_many_f16(s, first, n_rows, &seen, hd, b, next);
    else
        sl_avx512_attn_many_f32(s, first, n_rows, &seen, hd, b, next);
}

/* The block to ask for while the one at pos is computed: the one behind it or, at the end, the first of the
 * next KV head, which the same thread takes next when there is much to do. False when there is none. */
static int find_next(const struct sl_attn_tile *t, uint32_t pos, uint32_t stop, struct sl_attn_block *b)
{
    struct sl_attn_tile other = *t;
    if (pos + BLK < stop) {
        find_block(t, pos + BLK, stop, b);
        return 1;
    }
    if (++other.kv_head == t->kv->g.n_kv_heads)
        return 0;
    find_block(&other, first_block(t), stop, b);
    return 1;
}

/* The blocks of [pos, end). Positions below stop are seen by the tile: those behind end in its next segment.
 */
static void attend_blocks(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                          uint32_t end, uint32_t stop)
{
    struct sl_attn_block blocks[2];
    int few = t->j1 - t->j0 <= ROWS && row_pos(t, 0) == row_pos(t, t->j1 - t->j0 - 1);
    find_block(t, pos, stop, &blocks[0]);
    for (uint32_t i = 0; pos < end; pos += BLK, i ^= 1) {
        const struct sl_attn_block *next = &blocks[find_next(t, pos, stop, &blocks[i ^ 1]) ? i ^ 1 : i];
        if (few)
            attend_few(t, s, &blocks[i], next);
        else
            attend_many(t, s, pos, &blocks[i], next);
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

void sl_avx512_attn_tile(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd), n_rows = t->j1 - t->j0;
    uint32_t last = row_pos(t, n_rows - 1);
    uint32_t stop = t->seg1 * SL_ATTN_SEG < last + 1 ? t->seg1 * SL_ATTN_SEG : last + 1;
    load_queries(t, s);
    memset(s->total, 0, (size_t)n_rows * width * sizeof *s->total);
    for (uint32_t r = 0; r < n_rows; r++) {
        s->total_m[r] = -INFINITY;
        s->total_l[r] = 0.0f;
    }
    uint32_t first = first_block(t);
    for (uint32_t start = t->seg0 * SL_ATTN_SEG; start < stop; start += SL_ATTN_SEG) {
        memset(s->acc, 0, (size_t)n_rows * width * sizeof *s->acc);
        for (uint32_t r = 0; r < n_rows; r++) {
            s->m[r] = -INFINITY;
            s->l[r] = 0.0f;
        }
        attend_blocks(t, s, first > start ? first : start,
                      stop - start < SL_ATTN_SEG ? stop : start + SL_ATTN_SEG, stop);
        for (uint32_t r = 0; r < n_rows; r++) /* the others end before this segment or start behind it */
            if (row_pos(t, r) >= start && row_first(t, r) < start + SL_ATTN_SEG)
                end_segment(t, s, r);
    }
    for (uint32_t r = 0; r < n_rows && !t->partial; r++) {
        uint32_t j = t->j0 + r;
        sl_avx512_attn_finish(s->total + (size_t)r * width, s->total_l[r], hd,
                              t->out + (t->run->first_row + j / t->group) * t->out_stride +
                                  (size_t)(t->kv_head * t->group + j % t->group) * hd);
    }
}
