/* kernels/cpu/cpu_attention.c - paged attention of all but the reference: the arithmetic, and who does what.
 *
 * The arithmetic of one query row at position P, head_dim D, is fixed by absolute positions only:
 *   q = q * (log2(e) * score_scale)
 *   total = 0, total_m = -inf, total_l = 0
 *   for each segment of SL_ATTN_SEG positions up to P that the window reaches:
 *     acc = 0, m = -inf, l = 0
 *     for each such block of SL_ATTN_BLOCK positions of the segment, n = its positions up to P, f = those in
 *         front of the window:
 *       p[i] = sum over d of q[d] k[i][d], FMA in the order of d from 0
 *       m' = max(m, p[f..n)),  keep = exp2(m - m'),  p[i] = exp2(p[i] - m'), 0 up to f and from n on
 *       l = fma(l, keep, sum p), where lane j of 16 adds (p[j] + p[j+16]) + (p[j+32] + p[j+48]),
 *         then lanes j + 8, + 4, + 2, + 1
 *       acc = acc * keep, then acc = fma(p[i], v[i], acc) in the order of i from f to n, never a factor 0
 *         for what the row does not see: those bytes may be anything
 *     M = max(total_m, m)
 *     total = fma(acc, exp2(m - M), total * exp2(total_m - M)), total_l alike
 *   out = total * (1 / total_l)
 *
 * With K and V in bfloat16, q and p are rounded to it too, and products go in pairs as vdpbf16ps does:
 * over d by (d, d + 1), over positions by (i, i + 1) with i even, the odd one first; a partner that is not
 * seen counts as zero times zero; p comes from a shorter polynomial. It is faster; its error of 2^-9 /
 * sqrt(3) in each factor is a fifth of that of int8 activations. float16 and float32 K and V are computed
 * with in float32. e4m3 (SL_FP8, fp8.h) is read as the bfloat16 numbers it stands for.
 *
 * With K and V in int8 (SL_Q8), scale(K)[i] and scale(V)[i] of position i, q and p become integers too (q8.h)
 * and products are exact sums of integers:
 *   qi = round(q * (SL_Q8_QUERY / max|q|)), sq = max|q| / SL_Q8_QUERY
 *   p[i] = float(sum over d of qi[d] k[i][d]) * sq * scale(K)[i], its exponential from the shorter polynomial
 *   u[i] = p[i] * scale(V)[i], w = round(u * (SL_Q8_WEIGHT / max u)), the maximum over positions f to n
 *   acc = fma(float(sum over i of w[i] v[i]), max u / SL_Q8_WEIGHT, acc * keep)
 *
 * Segments exist so that a long context of few rows can be shared by the threads: partial results are
 * merged in the order of segments, and a prompt row does the same sums in one go. A tile is up to
 * SL_ATTN_QROWS query rows (tokens x heads of one KV head), so that a block of K and V is converted once
 * for all of them. Threads take tiles as they come; the results do not depend on the tiling. */
#include "kernels/cpu/cpu_dev.h"

#include <math.h>

#define SHARES_PER_THREAD 4u  /* a tile of more than one share of the work is split by segments */
#define TILE_COST         16u /* rows that K and V of a tile cost to read */
#define MERGE_TOKENS      8u  /* of a split run, merged by one thread */

struct attn_job {
    struct sl_dev *d;
    const struct sl_kv *kv;
    const struct sl_attn_shape *s;
    const struct sl_batch_run *runs;
    struct sl_attn_run *plan; /* [n_runs + 1] */
    const float *qkv;
    float *out;
    uint32_t layer, n_runs, group, n_items, items_at_once;
    uint32_t merged_run; /* in merge_tokens() */
};

static uint32_t n_tiles(const struct attn_job *j, uint32_t u)
{
    return (j->runs[u].n_rows * j->group + j->plan[u].tile_rows - 1) / j->plan[u].tile_rows;
}

static uint32_t n_positions(const struct sl_batch_run *run)
{
    return run->first_pos + run->n_rows;
}

/* The first segment that a row of the run sees. */
static uint32_t first_segment(const struct attn_job *j, const struct sl_batch_run *run)
{
    return sl_attn_first_seen(j->s, run->first_pos) / SL_ATTN_SEG;
}

static uint32_t n_segments(const struct attn_job *j, const struct sl_batch_run *run)
{
    return (n_positions(run) - 1) / SL_ATTN_SEG + 1 - first_segment(j, run);
}

/* Query rows of a tile: equal parts of the run, whole tokens while a group fits a tile. */
static uint32_t tile_rows(const struct attn_job *j, const struct sl_batch_run *run)
{
    if (j->group > SL_ATTN_QROWS)
        return SL_ATTN_QROWS;
    uint32_t most = SL_ATTN_QROWS / j->group, tiles = (run->n_rows + most - 1) / most;
    return (run->n_rows + tiles - 1) / tiles * j->group;
}

static uint64_t tile_cost(const struct attn_job *j, uint32_t u)
{
    const struct sl_batch_run *run = &j->runs[u];
    return (uint64_t)(j->plan[u].tile_rows + TILE_COST) *
           (n_positions(run) - sl_attn_first_seen(j->s, run->first_pos));
}

/* Cuts the runs into items (tile, KV head) or, where one would keep a thread while the others wait, (tile,
 * segment, KV head) with partial results. */
static void plan_items(struct attn_job *j)
{
    uint64_t total = 0;
    for (uint32_t u = 0; u < j->n_runs; u++) {
        j->plan[u].tile_rows = tile_rows(j, &j->runs[u]);
        total += tile_cost(j, u) * n_tiles(j, u) * j->s->n_kv_heads;
    }
    uint64_t share = total / (j->d->n_threads * SHARES_PER_THREAD);
    size_t used = 0;
    uint32_t item = 0;
    for (uint32_t u = 0; u < j->n_runs; u++) {
        struct sl_attn_run *p = &j->plan[u];
        uint32_t items = n_tiles(j, u) * j->s->n_kv_heads, segments = n_segments(j, &j->runs[u]);
        size_t floats = (size_t)items * segments * p->tile_rows * (j->s->head_dim + 2);
        p->first_item = item;
        p->partials = NULL;
        if (j->d->n_threads > 1 && segments > 1 && tile_cost(j, u) > share &&
            floats <= j->d->n_partials - used) {
            p->partials = j->d->partials + used;
            used += floats;
            items *= segments;
        }
        item += items;
    }
    j->plan[j->n_runs].first_item = item;
    j->n_items = item;
    /* the heads of a tile lie side by side: one thread takes them all when there are enough tiles */
    uint32_t at_once = item / (j->d->n_threads * SHARES_PER_THREAD);
    j->items_at_once = at_once < 1 ? 1 : at_once < j->s->n_kv_heads ? at_once : j->s->n_kv_heads;
}

static uint32_t run_of_item(const struct attn_job *j, uint32_t item)
{
    uint32_t lo = 0, hi = j->n_runs;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (j->plan[mid].first_item <= item)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static float *partial(const struct attn_job *j, uint32_t u, uint32_t tile, uint32_t seg, uint32_t head)
{
    const struct sl_batch_run *run = &j->runs[u];
    size_t i = ((size_t)tile * n_segments(j, run) + seg - first_segment(j, run)) * j->s->n_kv_heads + head;
    return j->plan[u].partials + i * j->plan[u].tile_rows * (j->s->head_dim + 2);
}

/* Items [item, item + n_heads), which are neighbouring KV heads. */
static void run_items(const struct attn_job *j, uint32_t item, uint32_t n_heads, unsigned worker)
{
    uint32_t u = run_of_item(j, item), i = item - j->plan[u].first_item, heads = j->s->n_kv_heads;
    const struct sl_batch_run *run = &j->runs[u];
    const struct sl_attn_run *p = &j->plan[u];
    uint32_t n_rows = run->n_rows * j->group, segments = p->partials ? n_segments(j, run) : 1;
    /* the last tile sees the most positions: first, so that no thread is left with it at the end */
    uint32_t tile = n_tiles(j, u) - 1 - i / heads / segments, seg = i / heads % segments;
    struct sl_attn_tile t = {
        .kv = j->kv,
        .run = run,
        .shape = j->s,
        .layer = j->layer,
        .group = j->group,
        .kv_head = i % heads,
        .n_heads = n_heads,
        .j0 = tile * p->tile_rows,
        .qkv = j->qkv,
        .qkv_stride = (size_t)(j->s->n_heads + 2 * heads) * j->s->head_dim,
        .out = j->out,
        .out_stride = (size_t)j->s->n_heads * j->s->head_dim,
    };
    t.j1 = n_rows - t.j0 < p->tile_rows ? n_rows : t.j0 + p->tile_rows;
    t.seg0 = sl_attn_first_seen(j->s, run->first_pos + t.j0 / j->group) / SL_ATTN_SEG;
    t.seg1 = (run->first_pos + (t.j1 - 1) / j->group) / SL_ATTN_SEG + 1;
    if (p->partials) {
        seg += first_segment(j, run);
        if (seg < t.seg0 || seg >= t.seg1)
            return; /* the tile starts behind this segment or ends before it */
        t.seg0 = seg;
        t.seg1 = seg + 1;
        t.partial = partial(j, u, tile, seg, t.kv_head);
        t.partial_stride = (size_t)p->tile_rows * (j->s->head_dim + 2);
    }
    j->d->isa->attn_tile(&t, &j->d->attn[worker]);
}

static void attention_items(void *arg, uint32_t item, unsigned worker)
{
    const struct attn_job *j = arg;
    uint32_t i = item * j->items_at_once, end = i + j->items_at_once, heads = j->s->n_kv_heads;
    end = end < j->n_items ? end : j->n_items;
    while (i < end) {
        uint32_t left = heads - i % heads, n = left < end - i ? left : end - i;
        run_items(j, i, n, worker);
        i += n;
    }
}

/* Adds the partials of query row r of a split run for one KV head in the order of segments. */
static void merge_row(const struct attn_job *j, uint32_t u, uint32_t r, uint32_t head, float *total)
{
    const struct sl_batch_run *run = &j->runs[u];
    uint32_t hd = j->s->head_dim, rows = j->plan[u].tile_rows, token = r / j->group;
    uint32_t pos = run->first_pos + token;
    float m = -INFINITY, l = 0.0f;
    for (uint32_t i = 0; i < hd; i++)
        total[i] = 0.0f;
    for (uint32_t seg = sl_attn_first_seen(j->s, pos) / SL_ATTN_SEG; seg <= pos / SL_ATTN_SEG; seg++) {
        const float *p = partial(j, u, r / rows, seg, head) + (size_t)(r % rows) * (hd + 2);
        j->d->isa->attn_merge(total, &m, &l, p, p[hd], p[hd + 1], hd);
    }
    size_t out_head = (size_t)(run->first_row + token) * j->s->n_heads + head * j->group + r % j->group;
    j->d->isa->attn_finish(total, l, hd, j->out + out_head * hd);
}

static void merge_tokens(void *arg, uint32_t item, unsigned worker)
{
    const struct attn_job *j = arg;
    uint32_t u = j->merged_run, n_rows = j->runs[u].n_rows * j->group, r = item * MERGE_TOKENS * j->group;
    for (uint32_t end = r + MERGE_TOKENS * j->group; r < end && r < n_rows; r++)
        for (uint32_t head = 0; head < j->s->n_kv_heads; head++)
            merge_row(j, u, r, head, j->d->attn[worker].total);
}

static void attend_runs(struct attn_job *j)
{
    plan_items(j);
    sl_cpu_pool_run(j->d->pool, (j->n_items - 1) / j->items_at_once + 1, attention_items, j);
    for (uint32_t u = 0; u < j->n_runs; u++)
        if (j->plan[u].partials) {
            j->merged_run = u;
            sl_cpu_pool_run(j->d->pool, (j->runs[u].n_rows - 1) / MERGE_TOKENS + 1, merge_tokens, j);
        }
}

void sl_cpu_attention(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                      const struct sl_batch *b, const float *qkv, float *out)
{
    for (uint32_t u = 0; u < b->n_runs; u += d->max_rows) {
        struct attn_job j = {.d = d,
                             .kv = kv,
                             .s = s,
                             .runs = b->runs + u,
                             .plan = d->attn_plan,
                             .qkv = qkv,
                             .out = out,
                             .layer = layer,
                             .group = s->n_heads / s->n_kv_heads};
        j.n_runs = b->n_runs - u < d->max_rows ? b->n_runs - u : d->max_rows;
        attend_runs(&j);
    }
}
