/* kernels/cuda/cuda_attention.c - attention: over tiles where they fit and the table is the fast one, else
 * the plain kernel. */
#include "kernels/cuda/cuda_dev.h"

#include <math.h>

/* Blocks of the grid: as many as run at once, so that each takes its list from start to end. */
#define BLOCKS_PER_MULTIPROCESSOR 2u
#define MERGE_BLOCKS              4u /* for each of those, of what puts cut rows together */
#define TILES_MAX_HEAD_DIM        128u

static uint32_t n_blocks(const struct sl_dev *d)
{
    return BLOCKS_PER_MULTIPROCESSOR * cu_multiprocessors(d->stream);
}

enum sl_err sl_cuda_tiles_open(struct sl_dev *d)
{
    struct cuda_plan_shape s = {.n_blocks = n_blocks(d)};
    size_t n = cuda_plan_max_partials(&s);
    d->tiles.partial_sums = cu_alloc(d->stream, n * TILES_MAX_HEAD_DIM * sizeof(float));
    d->tiles.partial_scales = cu_alloc(d->stream, n * 2 * sizeof(float));
    return d->tiles.partial_sums && d->tiles.partial_scales ? SL_OK : SL_ENOMEM;
}

void sl_cuda_tiles_close(struct sl_dev *d)
{
    cu_free(d->stream, d->tiles.partial_sums);
    cu_free(d->stream, d->tiles.partial_scales);
    cuda_plan_fini(&d->tiles.plan);
}

/* Room for plans of a model is made when its first batch comes: the probe of its numerics, at start. */
static void fit_plan(struct sl_dev *d, const struct cuda_plan_shape *s)
{
    struct cuda_plan_shape *now = &d->tiles.shape;
    if (now->n_heads != s->n_heads || now->n_kv_heads != s->n_kv_heads) {
        cuda_plan_fini(&d->tiles.plan);
        cuda_plan_init(&d->tiles.plan, s, d->max_rows);
    }
    if (now->n_heads != s->n_heads || now->n_kv_heads != s->n_kv_heads || now->window != s->window)
        d->tiles.sent_for = 0;
    *now = *s;
}

void sl_cuda_plan_for(struct sl_dev *d, const struct cuda_plan_shape *s, const struct sl_batch *b)
{
    fit_plan(d, s);
    d->tiles.sent_for = 0;
    cuda_plan_make(s, b, &d->tiles.plan);
}

static struct cuda_sent_plan send_plan(struct sl_dev *d, const struct cuda_plan_shape *s,
                                       const struct sl_batch *b, uint64_t number)
{
    struct cuda_tiles *t = &d->tiles;
    fit_plan(d, s);
    if (t->sent_for == number)
        return t->sent;
    sl_cuda_plan_for(d, s, b);
    struct cuda_part parts[] = {
        {.src = t->plan.block_items, .bytes = (s->n_blocks + 2) * sizeof *t->plan.block_items},
        {.src = t->plan.items, .bytes = t->plan.n_items * sizeof *t->plan.items},
        {.src = t->plan.merges, .bytes = t->plan.n_merges * sizeof *t->plan.merges},
    };
    sl_cuda_send_parts(d, parts, SL_COUNTOF(parts));
    t->sent = (struct cuda_sent_plan){parts[0].sent, parts[1].sent, parts[2].sent};
    t->sent_for = number;
    return t->sent;
}

static void attend_tiles(struct sl_dev *d, const struct sl_batch *b, uint64_t number,
                         const struct cu_attention_args *a)
{
    struct cuda_plan_shape s = {a->n_heads, a->kv.n_kv_heads, a->window, n_blocks(d)};
    struct cuda_tiles *t = &d->tiles;
    struct cuda_sent_plan plan;
    if (!d->passes.on || !sl_cuda_pass_plan(d, &s, &plan))
        plan = send_plan(d, &s, b, number);
    struct cu_tile_args ta = {.kv = a->kv,
                              .page_list = a->page_list,
                              .block_items = plan.block_items,
                              .items = plan.items,
                              .n_heads = a->n_heads,
                              .window = a->window,
                              .score_scale = a->score_scale,
                              .qkv = a->qkv,
                              .out = a->out,
                              .partial_sums = t->partial_sums,
                              .partial_scales = t->partial_scales};
    struct cu_merge_args ma = {.merges = plan.merges,
                               .n = plan.block_items + s.n_blocks + 1,
                               .n_heads = a->n_heads,
                               .head_dim = a->kv.head_dim,
                               .partial_sums = t->partial_sums,
                               .partial_scales = t->partial_scales,
                               .out = a->out};
    cu_attention_tile(d->stream, s.n_blocks, &ta);
    cu_attention_merge(d->stream, MERGE_BLOCKS * s.n_blocks, &ma);
}

void sl_cuda_attention(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                       const struct sl_batch *b, const float *qkv, float *out)
{
    struct cuda_batch batch = sl_cuda_send_batch(d, b);
    struct cu_attention_args a = {.kv = sl_cuda_pages(kv, layer),
                                  .rows = batch.rows,
                                  .page_list = batch.pages,
                                  .n_heads = s->n_heads,
                                  .window = s->window,
                                  .score_scale =
                                      s->score_scale != 0 ? s->score_scale : 1.0f / sqrtf((float)s->head_dim),
                                  .qkv = qkv,
                                  .out = out};
    if (d->plain || !cu_attention_tile_fits(&a.kv))
        cu_attention_plain(d->stream, b->n_rows, &a);
    else
        attend_tiles(d, b, batch.number, &a);
}
