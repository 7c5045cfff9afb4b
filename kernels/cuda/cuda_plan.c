/* kernels/cuda/cuda_plan.c - see cuda_plan.h.
 *
 * The length of a stretch: all blocks of positions of all tiles, spread over the grid, but no less than
 * MIN_STRETCH, below which putting partial results together costs more than it gains. A tile longer than that
 * is cut into equal stretches. So there are at most 2 n_blocks stretches of cut tiles, which bounds the
 * partial results. Items are dealt in order of the batch to the block with the least cost so far, on a heap
 * of costs. Source of the scheme: the persistent attention of FlashInfer (Ye et al., 2025), written anew. */
#include "kernels/cuda/cuda_plan.h"

#include <string.h>
#include "common/base/mem.h"

#define MIN_STRETCH 2u /* KV blocks: 128 positions */
/* Cost of an item beside its KV blocks, in KV blocks: queries in, results out. */
#define ITEM_COST 1u
/* A KV block costs a large tile more: 64 rows are multiplied instead of 16. */
#define LARGE_COST 2u

struct tile {
    uint32_t rows; /* CU_SMALL_TILE or CU_LARGE_TILE */
    uint32_t p0, n_p;
    uint32_t kv_first, kv_begin, kv_end, n_kv_blocks;
};

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

static uint32_t tile_rows(const struct sl_batch_run *run, uint32_t group)
{
    return run->n_rows == 1 || run->n_rows * group <= CU_SMALL_TILE ? CU_SMALL_TILE : CU_LARGE_TILE;
}

/* The i-th tile of a run. */
static struct tile tile_at(const struct cuda_plan_shape *s, const struct sl_batch_run *run, uint32_t i)
{
    uint32_t group = s->n_heads / s->n_kv_heads, n_all = run->n_rows * group;
    struct tile t = {.rows = tile_rows(run, group)};
    t.p0 = i * t.rows;
    t.n_p = n_all - t.p0 < t.rows ? n_all - t.p0 : t.rows;
    uint32_t first_end = run->first_pos + t.p0 / group + 1;
    t.kv_end = run->first_pos + (t.p0 + t.n_p - 1) / group + 1;
    t.kv_first = s->window && first_end > s->window ? first_end - s->window : 0;
    t.kv_begin = t.kv_first / CU_KV_BLOCK * CU_KV_BLOCK;
    t.n_kv_blocks = divide_up(t.kv_end - t.kv_begin, CU_KV_BLOCK);
    return t;
}

static uint32_t n_tiles(const struct sl_batch_run *run, uint32_t group)
{
    return divide_up(run->n_rows * group, tile_rows(run, group));
}

uint32_t cuda_plan_max_items(const struct cuda_plan_shape *s, uint32_t n_rows)
{
    return n_rows * divide_up(s->n_heads / s->n_kv_heads, CU_SMALL_TILE) * s->n_kv_heads + 2 * s->n_blocks;
}

uint32_t cuda_plan_max_merges(const struct cuda_plan_shape *s)
{
    return s->n_blocks * CU_LARGE_TILE; /* a cut tile has at least two stretches */
}

uint32_t cuda_plan_max_partials(const struct cuda_plan_shape *s)
{
    return 2 * s->n_blocks * CU_LARGE_TILE;
}

void cuda_plan_init(struct cuda_plan *p, const struct cuda_plan_shape *s, uint32_t max_rows)
{
    uint32_t n = cuda_plan_max_items(s, max_rows);
    *p = (struct cuda_plan){
        .block_items = sl_xcalloc(s->n_blocks + 2, sizeof *p->block_items),
        .items = sl_xcalloc(n, sizeof *p->items),
        .merges = sl_xcalloc(cuda_plan_max_merges(s), sizeof *p->merges),
        .undealt = sl_xcalloc(n, sizeof *p->undealt),
        .owner = sl_xcalloc(n, sizeof *p->owner),
        .cost = sl_xcalloc(s->n_blocks, sizeof *p->cost),
    };
}

void cuda_plan_fini(struct cuda_plan *p)
{
    sl_free(p->block_items);
    sl_free(p->items);
    sl_free(p->merges);
    sl_free(p->undealt);
    sl_free(p->owner);
    sl_free(p->cost);
    *p = (struct cuda_plan){0};
}

/* KV blocks of a stretch, at most. */
static uint32_t stretch_of(const struct cuda_plan_shape *s, const struct sl_batch *b)
{
    uint32_t group = s->n_heads / s->n_kv_heads;
    uint64_t all = 0;
    for (uint32_t u = 0; u < b->n_runs; u++)
        for (uint32_t i = 0; i < n_tiles(&b->runs[u], group); i++)
            all += tile_at(s, &b->runs[u], i).n_kv_blocks;
    uint64_t share = (all * s->n_kv_heads + s->n_blocks - 1) / s->n_blocks;
    return share > MIN_STRETCH ? (uint32_t)share : MIN_STRETCH;
}

static void add_merges(const struct cuda_plan_shape *s, const struct sl_batch_run *run, const struct tile *t,
                       uint32_t kv_head, uint32_t n_cuts, struct cuda_plan *plan)
{
    uint32_t group = s->n_heads / s->n_kv_heads;
    for (uint32_t m = 0; m < t->n_p; m++) {
        uint32_t p = t->p0 + m;
        plan->merges[plan->n_merges++] = (struct cu_merge){.row = run->first_row + p / group,
                                                           .head = kv_head * group + p % group,
                                                           .partial = plan->n_partials + m,
                                                           .stride = t->n_p,
                                                           .n = n_cuts};
    }
}

/* The stretches of a tile, as items. */
static void add_tile(const struct cuda_plan_shape *s, const struct sl_batch_run *run, const struct tile *t,
                     uint32_t first_page, uint32_t kv_head, uint32_t stretch, struct cuda_plan *plan)
{
    uint32_t n_cuts = divide_up(t->n_kv_blocks, stretch);
    if (n_cuts > 1)
        add_merges(s, run, t, kv_head, n_cuts, plan);
    for (uint32_t c = 0; c < n_cuts; c++) {
        uint32_t from = (uint32_t)((uint64_t)t->n_kv_blocks * c / n_cuts);
        uint32_t to = (uint32_t)((uint64_t)t->n_kv_blocks * (c + 1) / n_cuts);
        plan->undealt[plan->n_items++] = (struct cu_item){
            .tile = t->rows,
            .kv_head = kv_head,
            .first_row = run->first_row,
            .first_pos = run->first_pos,
            .first_page = first_page,
            .p0 = t->p0,
            .n_p = t->n_p,
            .kv_begin = t->kv_begin + from * CU_KV_BLOCK,
            .kv_end = c + 1 == n_cuts ? t->kv_end : t->kv_begin + to * CU_KV_BLOCK,
            .kv_first = t->kv_first,
            .partial = n_cuts > 1 ? plan->n_partials : CU_NO_PARTIAL,
        };
        plan->n_partials += n_cuts > 1 ? t->n_p : 0;
    }
}

static uint32_t item_cost(const struct cu_item *it)
{
    uint32_t n = divide_up(it->kv_end - it->kv_begin, CU_KV_BLOCK);
    return ITEM_COST + n * (it->tile == CU_LARGE_TILE ? LARGE_COST : 1);
}

/* Block i of the heap is heap[i]; the one with the least cost is on top. */
static void sink(uint32_t *heap, const uint32_t *cost, uint32_t n)
{
    for (uint32_t i = 0;;) {
        uint32_t child = 2 * i + 1, block = heap[i];
        if (child + 1 < n && cost[heap[child + 1]] < cost[heap[child]])
            child++;
        if (child >= n || cost[heap[child]] >= cost[block])
            return;
        heap[i] = heap[child];
        heap[child] = block;
        i = child;
    }
}

/* Deals the items to the blocks and sorts them by block. */
static void deal(const struct cuda_plan_shape *s, struct cuda_plan *plan)
{
    uint32_t *heap = plan->block_items, *cost = plan->cost;
    const struct cu_item *from = plan->undealt;
    memset(cost, 0, s->n_blocks * sizeof *cost);
    for (uint32_t i = 0; i < s->n_blocks; i++)
        heap[i] = i;
    for (uint32_t i = 0; i < plan->n_items; i++) {
        plan->owner[i] = heap[0];
        cost[heap[0]] += item_cost(&from[i]);
        sink(heap, cost, s->n_blocks);
    }
    uint32_t *start = plan->block_items; /* the heap is done */
    memset(start, 0, (s->n_blocks + 1) * sizeof *start);
    for (uint32_t i = 0; i < plan->n_items; i++)
        start[plan->owner[i] + 1]++;
    for (uint32_t i = 0; i < s->n_blocks; i++)
        start[i + 1] += start[i];
    memcpy(cost, start, s->n_blocks * sizeof *cost);
    for (uint32_t i = 0; i < plan->n_items; i++)
        plan->items[cost[plan->owner[i]]++] = from[i];
}

void cuda_plan_make(const struct cuda_plan_shape *s, const struct sl_batch *b, struct cuda_plan *plan)
{
    uint32_t group = s->n_heads / s->n_kv_heads, stretch = stretch_of(s, b), first_page = 0;
    plan->n_items = plan->n_merges = plan->n_partials = 0;
    for (uint32_t u = 0; u < b->n_runs; first_page += b->runs[u++].n_pages)
        for (uint32_t i = 0; i < n_tiles(&b->runs[u], group); i++) {
            struct tile t = tile_at(s, &b->runs[u], i);
            for (uint32_t h = 0; h < s->n_kv_heads; h++)
                add_tile(s, &b->runs[u], &t, first_page, h, stretch, plan);
        }
    deal(s, plan);
    plan->block_items[s->n_blocks + 1] = plan->n_merges;
}
