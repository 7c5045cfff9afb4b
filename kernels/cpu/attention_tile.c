/* kernels/cpu/attention_tile.c - an attention tile: its queries, the segments and blocks its rows see, the
 * merging of segments. Arithmetic: cpu_attention.c. */
#include "kernels/cpu/attention_tile.h"

#include <string.h>
#include "kernels/cpu/vmath.h"

#define BLK SL_ATTN_BLOCK

/* Addresses of the n positions from pos on; the rest of the block repeats the last. */
static void find_rows(const struct sl_attn_tile *t, uint32_t which, uint32_t pos, uint32_t n,
                      const uint8_t *rows[BLK])
{
    uint32_t page_tokens = t->kv->g.page_tokens;
    size_t step = t->kv->token_bytes;
    for (uint32_t i = 0; i < n;) {
        uint32_t left = page_tokens - (pos + i) % page_tokens, count = left < n - i ? left : n - i;
        const uint8_t *at = sl_kv_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i);
        for (uint32_t j = 0; j < count; j++)
            rows[i + j] = at + j * step;
        i += count;
    }
    for (uint32_t i = n; i < BLK; i++)
        rows[i] = rows[n - 1];
}

/* And of their scales. */
static void find_scales(const struct sl_attn_tile *t, uint32_t which, uint32_t pos, uint32_t n,
                        const uint8_t *scales[BLK])
{
    for (uint32_t i = 0; i < n; i++)
        scales[i] = sl_kv_scale_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i);
    for (uint32_t i = n; i < BLK; i++)
        scales[i] = scales[n - 1];
}

/* The block at pos of the positions below stop. */
static void find_block(const struct sl_attn_tile *t, uint32_t pos, uint32_t stop, struct sl_attn_block *b)
{
    b->n = stop - pos < BLK ? stop - pos : BLK;
    find_rows(t, 0, pos, b->n, b->k);
    find_rows(t, 1, pos, b->n, b->v);
    if (!t->kv->scale_bytes)
        return;
    find_scales(t, 0, pos, b->n, b->k_scale);
    find_scales(t, 1, pos, b->n, b->v_scale);
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

/* The first block of the tile that one of its rows sees. */
static uint32_t first_block(const struct sl_attn_tile *t)
{
    uint32_t seen = row_first(t, 0) / BLK * BLK, start = t->seg0 * SL_ATTN_SEG;
    return seen > start ? seen : start;
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

/* The block at pos for the rows that see something of it. */
static void attend_block(const struct sl_attn_loops *loops, const struct sl_attn_tile *t,
                         const struct sl_attn_scratch *s, uint32_t pos, const struct sl_attn_block *b,
                         const struct sl_attn_block *next)
{
    struct sl_attn_seen seen;
    uint32_t r = 0, end = t->j1 - t->j0;
    while (row_pos(t, r) < pos)
        r++;
    while (row_first(t, end - 1) >= pos + BLK)
        end--;
    for (uint32_t i = r; i < end; i++) {
        uint32_t first = row_first(t, i), n = row_pos(t, i) - pos + 1;
        seen.first[i] = first > pos ? first - pos : 0;
        seen.n[i] = n < BLK ? n : BLK;
    }
    loops->block(t, s, r, end, &seen, b, next);
}

/* The blocks of [pos, end). Positions below stop are seen by the tile: those behind end in its next segment.
 */
static void attend_blocks(const struct sl_attn_loops *loops, const struct sl_attn_tile *t,
                          const struct sl_attn_scratch *s, uint32_t pos, uint32_t end, uint32_t stop)
{
    struct sl_attn_block blocks[2];
    find_block(t, pos, stop, &blocks[0]);
    for (uint32_t i = 0; pos < end; pos += BLK, i ^= 1) {
        const struct sl_attn_block *next = &blocks[find_next(t, pos, stop, &blocks[i ^ 1]) ? i ^ 1 : i];
        attend_block(loops, t, s, pos, &blocks[i], next);
    }
}

/* Where row r's head lies in a batch of rows of stride floats. */
static size_t head_at(const struct sl_attn_tile *t, uint32_t r, size_t stride)
{
    uint32_t j = t->j0 + r;
    return (t->run->first_row + j / t->group) * stride +
           (size_t)(t->kv_head * t->group + j % t->group) * t->shape->head_dim;
}

static void clear(uint32_t n_rows, uint32_t width, float *acc, float *m, float *l)
{
    memset(acc, 0, (size_t)n_rows * width * sizeof *acc);
    for (uint32_t r = 0; r < n_rows; r++) {
        m[r] = -INFINITY;
        l[r] = 0.0f;
    }
}

/* The end of a segment for row r: into the total, or out as a partial. */
static void end_segment(const struct sl_attn_loops *loops, const struct sl_attn_tile *t,
                        const struct sl_attn_scratch *s, uint32_t r)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd);
    const float *acc = s->acc + (size_t)r * width;
    if (!t->partial) {
        loops->merge(s->total + (size_t)r * width, &s->total_m[r], &s->total_l[r], acc, s->m[r], s->l[r], hd);
        return;
    }
    float *to = t->partial + (size_t)r * (hd + 2);
    memcpy(to, acc, hd * sizeof *to);
    to[hd] = s->m[r];
    to[hd + 1] = s->l[r];
}

static void walk_head(const struct sl_attn_loops *loops, const struct sl_attn_tile *t,
                      const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd), n_rows = t->j1 - t->j0;
    uint32_t last = row_pos(t, n_rows - 1), first = first_block(t);
    uint32_t stop = t->seg1 * SL_ATTN_SEG < last + 1 ? t->seg1 * SL_ATTN_SEG : last + 1;
    float scale = SL_LOG2E * sl_attn_score_scale(t->shape);
    for (uint32_t r = 0; r < n_rows; r++)
        loops->query(t->qkv + head_at(t, r, t->qkv_stride), hd, scale, sl_attn_type(t->kv), s, r);
    clear(n_rows, width, s->total, s->total_m, s->total_l);
    for (uint32_t start = t->seg0 * SL_ATTN_SEG; start < stop; start += SL_ATTN_SEG) {
        clear(n_rows, width, s->acc, s->m, s->l);
        attend_blocks(loops, t, s, first > start ? first : start,
                      stop - start < SL_ATTN_SEG ? stop : start + SL_ATTN_SEG, stop);
        for (uint32_t r = 0; r < n_rows; r++) /* the others end before this segment or start behind it */
            if (row_pos(t, r) >= start && row_first(t, r) < start + SL_ATTN_SEG)
                end_segment(loops, t, s, r);
    }
    for (uint32_t r = 0; r < n_rows && !t->partial; r++)
        loops->finish(s->total + (size_t)r * width, s->total_l[r], hd, t->out + head_at(t, r, t->out_stride));
}

void sl_attn_walk_tile(const struct sl_attn_loops *loops, const struct sl_attn_tile *t,
                       const struct sl_attn_scratch *s)
{
    for (uint32_t i = 0; i < t->n_heads; i++) {
        struct sl_attn_tile one = sl_attn_tile_of_head(t, i);
        walk_head(loops, &one, s);
    }
}
