/* kernels/cuda/cuda_pass.c - passes that are kept as CUDA graphs: one per number of rows serves every batch.
 *
 * What changes from batch to batch - tokens, rows, page lists, the plans of attention - lies at fixed places of the
 * device, and kernels' grids depend on the number of rows alone. A batch is filled up to one of a few numbers of
 * rows with rows of no sequence (CU_NO_ROW), which no attention looks at and no page gets. The first pass of a
 * number runs op by op, and so makes what ops make once (ways of cuBLASLt, frequencies, kinds of plans); the second
 * is captured; from then on it is launched. A capture that fails is tried no more for that number.
 *
 * A kept pass holds addresses: whatever frees memory that ops may have been given drops all of them.
 *
 * Of several ranks the all-gathers of NCCL are in the graph, which NCCL wants of all ranks or of none. So ranks vote:
 * before a pass on how it runs, and behind a capture on whether all have a graph; one that has none makes all go op by
 * op. Rejected: graphs between the all-gathers, two a layer, since starting one costs about as much as the kernels
 * that would be in it. */
#include "kernels/cuda/cuda_dev.h"

#include <string.h>
#include "common/base/log.h"
#include "common/base/mem.h"

#define FIRST_PAGES 16384u /* of a batch, at first: 64 rows of 8k positions twice over, in pages of 64 */

static uint32_t bucket_of(uint32_t n_rows, uint32_t max_rows)
{
    uint32_t bucket = CUDA_PASS_LEAST_ROWS;
    while (bucket < n_rows)
        bucket *= 2;
    return bucket < max_rows ? bucket : max_rows;
}

void sl_cuda_passes_drop(struct sl_dev *d)
{
    struct cuda_passes *p = &d->passes;
    if (p->n_kept == 0)
        return;
    cu_sync(d->stream);
    for (uint32_t i = 0; i < p->n_kept; i++)
        cu_graph_free(p->kept[i].graph);
    p->n_kept = 0;
}

static void area_free(struct sl_dev *d, struct cuda_area *a)
{
    cu_free(d->stream, a->host);
    cu_free(d->stream, a->device);
    *a = (struct cuda_area){0};
}

/* True when there is room; what was there is lost when it grows. */
static bool area_fit(struct sl_dev *d, struct cuda_area *a, size_t bytes)
{
    if (bytes <= a->bytes)
        return true;
    area_free(d, a);
    *a = (struct cuda_area){cu_alloc_pinned(d->stream, bytes), cu_alloc(d->stream, bytes), bytes};
    if (a->host && a->device)
        return true;
    area_free(d, a);
    return false;
}

/* Room for a batch of n_pages; what was there is lost. */
static bool batch_fit(struct sl_dev *d, size_t n_pages)
{
    struct cuda_passes *p = &d->passes;
    p->max_pages = n_pages > FIRST_PAGES ? 2 * (uint32_t)n_pages : FIRST_PAGES;
    return area_fit(d, &p->batch_area,
                    d->max_rows * (sizeof *p->tokens + sizeof *p->rows) + p->max_pages * sizeof *p->pages);
}

enum sl_err sl_cuda_passes_open(struct sl_dev *d)
{
    return d->passes.off || batch_fit(d, 0) ? SL_OK : SL_ENOMEM;
}

void sl_cuda_passes_close(struct sl_dev *d)
{
    sl_cuda_passes_drop(d);
    area_free(d, &d->passes.batch_area);
    for (uint32_t i = 0; i < d->passes.n_kinds; i++)
        area_free(d, &d->passes.kinds[i].area);
}

/* ---- what changes from batch to batch ---- */

/* Tokens, rows and pages of the batch, at their places. */
static bool send_batch(struct sl_dev *d, const struct sl_batch *b, uint32_t bucket)
{
    struct cuda_passes *p = &d->passes;
    size_t n_pages = 0, tokens_bytes = d->max_rows * sizeof *p->tokens,
           rows_bytes = d->max_rows * sizeof *p->rows;
    for (uint32_t u = 0; u < b->n_runs; u++)
        n_pages += b->runs[u].n_pages;
    if (n_pages > p->max_pages || !p->batch_area.bytes) {
        sl_cuda_passes_drop(d);
        if (!batch_fit(d, n_pages))
            return false;
    }
    uint8_t *host = p->batch_area.host, *device = p->batch_area.device;
    memcpy(host, b->tokens, b->n_rows * sizeof *p->tokens);
    memset(host + b->n_rows * sizeof *p->tokens, 0, (bucket - b->n_rows) * sizeof *p->tokens);
    size_t pages_bytes = sl_cuda_rows_and_pages(b, bucket, (struct cu_row *)(void *)(host + tokens_bytes),
                                                (uint32_t *)(void *)(host + tokens_bytes + rows_bytes));
    cu_copy_pinned(d->stream, device, host, tokens_bytes + rows_bytes + pages_bytes);
    p->tokens = (const int32_t *)(const void *)device;
    p->rows = (const struct cu_row *)(const void *)(device + tokens_bytes);
    p->pages = (const uint32_t *)(const void *)(device + tokens_bytes + rows_bytes);
    return true;
}

static void send_kind(struct sl_dev *d, struct cuda_kind *k)
{
    sl_cuda_plan_for(d, &k->shape, &d->passes.batch);
    const struct cuda_plan *plan = &d->tiles.plan;
    uint8_t *host = k->area.host;
    const struct {
        const void *src;
        size_t at, bytes;
    } parts[] = {{plan->block_items, 0, (k->shape.n_blocks + 2) * sizeof *plan->block_items},
                 {plan->items, k->items_at, plan->n_items * sizeof *plan->items},
                 {plan->merges, k->merges_at, plan->n_merges * sizeof *plan->merges}};
    for (size_t i = 0; i < SL_COUNTOF(parts); i++) {
        if (parts[i].bytes == 0)
            continue;
        memcpy(host + parts[i].at, parts[i].src, parts[i].bytes);
        cu_copy_pinned(d->stream, k->area.device + parts[i].at, host + parts[i].at, parts[i].bytes);
    }
}

static struct cuda_kind *kind_new(struct sl_dev *d, const struct cuda_plan_shape *s)
{
    struct cuda_passes *p = &d->passes;
    if (p->n_kinds == CUDA_PASS_KINDS)
        return NULL;
    struct cuda_kind *k = &p->kinds[p->n_kinds];
    *k = (struct cuda_kind){.shape = *s};
    k->items_at = (s->n_blocks + 2) * sizeof(uint32_t);
    k->items_at += -k->items_at % 16;
    k->merges_at = k->items_at + cuda_plan_max_items(s, d->max_rows) * sizeof(struct cu_item);
    if (!area_fit(d, &k->area, k->merges_at + cuda_plan_max_merges(s) * sizeof(struct cu_merge)))
        return NULL;
    p->n_kinds++;
    return k;
}

bool sl_cuda_pass_plan(struct sl_dev *d, const struct cuda_plan_shape *s, struct cuda_sent_plan *out)
{
    struct cuda_passes *p = &d->passes;
    struct cuda_kind *k = NULL;
    for (uint32_t i = 0; i < p->n_kinds && !k; i++)
        if (memcmp(&p->kinds[i].shape, s, sizeof *s) == 0)
            k = &p->kinds[i];
    if (!k) {
        p->spoiled = p->capturing; /* its lists would be this batch's for ever */
        k = kind_new(d, s);
        if (!k)
            return false;
        send_kind(d, k);
    }
    out->block_items = (const uint32_t *)(const void *)k->area.device;
    out->items = (const struct cu_item *)(const void *)(k->area.device + k->items_at);
    out->merges = (const struct cu_merge *)(const void *)(k->area.device + k->merges_at);
    return true;
}

/* ---- a pass ---- */

static struct cuda_kept *kept_for(struct cuda_passes *p, const void *owner, const struct sl_kv *kv,
                                  uint32_t bucket)
{
    for (uint32_t i = 0; i < p->n_kept; i++)
        if (p->kept[i].owner == owner && p->kept[i].kv == kv && p->kept[i].n_rows == bucket)
            return &p->kept[i];
    if (p->n_kept == CUDA_PASS_KEPT)
        return NULL;
    p->kept[p->n_kept] = (struct cuda_kept){.owner = owner, .kv = kv, .n_rows = bucket};
    return &p->kept[p->n_kept++];
}

/* How a pass can run, as ranks vote on it. */
enum way { WAY_NONE, WAY_OPS, WAY_CAPTURE, WAY_GRAPH };

static uint32_t agreed(const struct cuda_passes *p, uint32_t mine)
{
    return p->vote ? p->vote->least(p->vote->arg, mine) : mine;
}

static enum way way_of(const struct cuda_kept *k)
{
    if (!k || k->state == CUDA_KEPT_FAILED)
        return WAY_NONE;
    if (k->graph)
        return WAY_GRAPH;
    return k->state == CUDA_KEPT_WARM ? WAY_CAPTURE : WAY_OPS;
}

/* At its begin or at its end, on this rank or another. */
static void capture_failed(struct cuda_passes *p, struct cuda_kept *k)
{
    k->state = CUDA_KEPT_FAILED;
    p->n_failed++;
    SL_WARN("a pass could not be kept as a CUDA graph, it runs op by op rows=%u", k->n_rows);
}

enum sl_pass_state sl_cuda_pass_begin(struct sl_dev *d, const void *owner, struct sl_kv *kv,
                                      uint32_t max_rows, const struct sl_vote *vote, struct sl_batch *b)
{
    struct cuda_passes *p = &d->passes;
    max_rows = max_rows < d->max_rows ? max_rows : d->max_rows;
    if (p->off || b->n_rows > max_rows || b->n_rows > CUDA_PASS_MOST_ROWS)
        return SL_PASS_NONE; /* as all ranks find */
    uint32_t bucket = bucket_of(b->n_rows, max_rows);
    if (d->in_flight)
        sl_cuda_sync(d); /* what the last one sent is overwritten */
    struct cuda_kept *k = send_batch(d, b, bucket) ? kept_for(p, owner, kv, bucket) : NULL;
    p->vote = vote;
    enum way way = agreed(p, way_of(k));
    if (way == WAY_NONE)
        return SL_PASS_NONE;
    p->batch = *b;
    for (uint32_t i = 0; i < p->n_kinds; i++)
        send_kind(d, &p->kinds[i]);
    d->in_flight = true;
    if (way == WAY_GRAPH) {
        cu_graph_launch(d->stream, k->graph);
        p->n_launched++;
        return SL_PASS_QUEUED;
    }
    cu_graph_free(k->graph); /* one that not all have */
    k->graph = NULL;
    b->n_rows = bucket;
    d->n_batches++;
    p->current = k;
    p->on = true;
    p->spoiled = false;
    p->capturing = way == WAY_CAPTURE && cu_capture_begin(d->stream);
    if (way == WAY_CAPTURE && !agreed(p, p->capturing)) {
        if (p->capturing)
            cu_graph_free(cu_capture_end(d->stream));
        p->capturing = false;
        capture_failed(p, k);
    }
    return SL_PASS_RUN;
}

int sl_cuda_pass_end(struct sl_dev *d)
{
    struct cuda_passes *p = &d->passes;
    struct cuda_kept *k = p->current;
    if (!p->capturing) {
        p->on = false;
        if (k->state == CUDA_KEPT_COLD)
            k->state = CUDA_KEPT_WARM;
        return 1;
    }
    p->capturing = false;
    struct cu_graph *g = cu_capture_end(d->stream);
    if (agreed(p, g && !p->spoiled)) {
        k->graph = g;
        cu_graph_launch(d->stream, g);
        p->n_launched++;
        p->on = false;
        return 1;
    }
    cu_graph_free(g);
    capture_failed(p, k);
    for (uint32_t i = 0; i < p->n_kinds; i++)
        send_kind(d, &p->kinds[i]); /* one that is new was captured, and not sent */
    return 0;                       /* once more, op by op */
}
