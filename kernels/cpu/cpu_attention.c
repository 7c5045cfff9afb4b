/* kernels/cpu/cpu_attention.c - paged attention of portable and avx512: the arithmetic, and who does what.
 *
 * The arithmetic of one query row at position P, head_dim D, is fixed by absolute positions only:
 *   q = q * (log2(e) / sqrt(D))
 *   total = 0, total_m = -inf, total_l = 0
 *   for each segment of SL_ATTN_SEG positions up to P:
 *     acc = 0, m = -inf, l = 0
 *     for each block of SL_ATTN_BLOCK positions of the segment, n = its positions up to P:
 *       p[i] = sum over d of q[d] k[i][d], FMA in the order of d from 0
 *       m' = max(m, p[0..n)),  keep = exp2(m - m'),  p[i] = exp2(p[i] - m'), 0 from n on
 *       l = fma(l, keep, sum p), where lane j of 16 adds (p[j] + p[j+16]) + (p[j+32] + p[j+48]),
 *         then lanes j + 8, + 4, + 2, + 1
 *       acc = acc * keep, then acc = fma(p[i], v[i], acc) in the order of i up to n, never a factor 0
 *         for what lies behind the row: those bytes may be anything
 *     M = max(total_m, m)
 *     total = fma(acc, exp2(m - M), total * exp2(total_m - M)), total_l alike
 *   out = total * (1 / total_l)
 *
 * With K and V in bfloat16, q and p are rounded to it too, and products go in pairs as vdpbf16ps does:
 * over d by (d, d + 1), over positions by (i, i + 1) with i even, the odd one first; a partner from n on
 * counts as zero times zero. It is twice as fast; its error of 2^-9 / sqrt(3) in each factor is a fifth of
 * that of int8 activations. float16 and float32 K and V are computed with in float32.
 *
 * Segments exist so that a long context of one decode row can be shared by the threads: partial results
 * are merged in the order of segments, and a prompt row does the same sums in one go. A tile is up to
 * SL_ATTN_QROWS query rows (tokens x heads of one KV head), so that a block of K and V is converted once
 * for all of them. Threads take tiles from a counter; the results do not depend on the tiling. */
#include "kernels/cpu/cpu_dev.h"

#include <math.h>
#include <stdatomic.h>

#define ITEMS_PER_THREAD 4u  /* with fewer tiles than this, long ones are split by segments */
#define SPLIT_QROWS      32u /* only tiles of few rows are split: the others have work enough */

struct attn_job {
    struct sl_dev *d;
    const struct sl_kv *kv;
    const struct sl_attn_shape *s;
    const struct sl_batch_run *runs;
    const float *qkv;
    float *out;
    uint32_t layer, n_runs, group, tile_rows, n_items;
    int split;
    atomic_uint next;
};

static uint32_t n_tiles(const struct attn_job *j, const struct sl_batch_run *run)
{
    return (run->n_rows * j->group + j->tile_rows - 1) / j->tile_rows;
}

static uint32_t n_segments(const struct sl_batch_run *run)
{
    return (run->first_pos + run->n_rows - 1) / SL_ATTN_SEG + 1;
}

/* A run's tiles are split by segments when it has one small tile only. */
static int is_split(const struct attn_job *j, const struct sl_batch_run *run)
{
    return j->split && run->n_rows * j->group <= SPLIT_QROWS && n_segments(run) > 1;
}

static uint32_t n_run_items(const struct attn_job *j, const struct sl_batch_run *run)
{
    return n_tiles(j, run) * j->s->n_kv_heads * (is_split(j, run) ? n_segments(run) : 1);
}

static size_t partial_floats(const struct attn_job *j, const struct sl_batch_run *run)
{
    return is_split(j, run) ? (size_t)n_run_items(j, run) * run->n_rows * j->group * (j->s->head_dim + 2) : 0;
}

static void count_items(struct attn_job *j)
{
    uint32_t at = 0;
    for (uint32_t u = 0; u < j->n_runs; u++) {
        j->d->first_item[u] = at;
        at += n_run_items(j, &j->runs[u]);
    }
    j->d->first_item[j->n_runs] = at;
    j->n_items = at;
}

/* Offset of a run's partials: those of the runs before it. */
static float *run_partials(const struct attn_job *j, uint32_t u)
{
    float *at = j->d->partials;
    for (uint32_t i = 0; i < u; i++)
        at += partial_floats(j, &j->runs[i]);
    return at;
}

static uint32_t run_of_item(const struct attn_job *j, uint32_t item)
{
    uint32_t lo = 0, hi = j->n_runs;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (j->d->first_item[mid] <= item)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static void run_item(const struct attn_job *j, uint32_t item, unsigned worker)
{
    uint32_t u = run_of_item(j, item), i = item - j->d->first_item[u], heads = j->s->n_kv_heads;
    const struct sl_batch_run *run = &j->runs[u];
    uint32_t n_rows = run->n_rows * j->group, hd = j->s->head_dim;
    struct sl_attn_tile t = {
        .kv = j->kv,
        .run = run,
        .shape = j->s,
        .layer = j->layer,
        .kv_head = i % heads,
        .group = j->group,
        .qkv = j->qkv,
        .qkv_stride = (size_t)(j->s->n_heads + 2 * heads) * hd,
        .out = j->out,
        .out_stride = (size_t)j->s->n_heads * hd,
    };
    if (is_split(j, run)) {
        t.j1 = n_rows;
        t.seg0 = i / heads;
        t.seg1 = t.seg0 + 1;
        t.partial = run_partials(j, u) + (size_t)i * n_rows * (hd + 2);
    } else {
        /* the last tile sees the most positions: first, so that no thread is left with it at the end */
        uint32_t tile = n_tiles(j, run) - 1 - i / heads;
        t.j0 = tile * j->tile_rows;
        t.j1 = n_rows - t.j0 < j->tile_rows ? n_rows : t.j0 + j->tile_rows;
        t.seg1 = (run->first_pos + (t.j1 - 1) / j->group) / SL_ATTN_SEG + 1;
    }
    j->d->isa->attn_tile(&t, &j->d->attn[worker]);
}

static void attention_worker(void *arg, unsigned worker, unsigned n_workers)
{
    (void)n_workers;
    struct attn_job *j = arg;
    for (;;) {
        uint32_t i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (i >= j->n_items)
            return;
        run_item(j, i, worker);
    }
}

/* Adds the partials of a split run in the order of segments. */
static void merge_run(const struct attn_job *j, uint32_t u)
{
    const struct sl_batch_run *run = &j->runs[u];
    const struct sl_cpu_isa *isa = j->d->isa;
    uint32_t hd = j->s->head_dim, n_rows = run->n_rows * j->group, heads = j->s->n_kv_heads;
    const float *partials = run_partials(j, u);
    float *total = j->d->attn[0].total;
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t r = 0; r < n_rows; r++) {
            uint32_t token = r / j->group;
            float m = -INFINITY, l = 0.0f;
            for (uint32_t i = 0; i < hd; i++)
                total[i] = 0.0f;
            for (uint32_t seg = 0; seg <= (run->first_pos + token) / SL_ATTN_SEG; seg++) {
                const float *p = partials + ((size_t)(seg * heads + h) * n_rows + r) * (hd + 2);
                isa->attn_merge(total, &m, &l, p, p[hd], p[hd + 1], hd);
            }
            isa->attn_finish(
                total, l, hd,
                j->out +
                    ((size_t)(run->first_row + token) * j->s->n_heads + h * j->group + r % j->group) * hd);
        }
}

static void attend_runs(struct attn_job *j)
{
    count_items(j);
    if (j->d->n_threads > 1 && j->n_items < j->d->n_threads * ITEMS_PER_THREAD) {
        j->split = 1;
        size_t floats = 0;
        for (uint32_t u = 0; u < j->n_runs; u++)
            floats += partial_floats(j, &j->runs[u]);
        j->split = floats > 0 && floats <= j->d->n_partials;
        count_items(j);
    }
    sl_pool_run(j->d->pool, attention_worker, j);
    for (uint32_t u = 0; j->split && u < j->n_runs; u++)
        if (is_split(j, &j->runs[u]))
            merge_run(j, u);
}

void sl_cpu_attention(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                      const struct sl_batch *b, const float *qkv, float *out)
{
    uint32_t group = s->n_heads / s->n_kv_heads;
    for (uint32_t u = 0; u < b->n_runs; u += d->max_rows) {
        struct attn_job j = {
            .d = d, .kv = kv, .s = s, .runs = b->runs + u, .qkv = qkv, .out = out, .layer = layer};
        j.n_runs = b->n_runs - u < d->max_rows ? b->n_runs - u : d->max_rows;
        j.group = group;
        j.tile_rows = group < SL_ATTN_QROWS ? SL_ATTN_QROWS / group * group : SL_ATTN_QROWS;
        attend_runs(&j);
    }
}
