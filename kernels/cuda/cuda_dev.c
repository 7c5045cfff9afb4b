/* kernels/cuda/cuda_dev.c - see cuda_dev.h. */
#include "kernels/cuda/cuda_dev.h"

#include <string.h>
#include "common/base/mem.h"

/* At first; a step of 512 rows over 1000 pages each takes half of it. */
#define RING_BYTES ((size_t)4 << 20)
#define RING_ALIGN ((size_t)16) /* bytes: vector loads of the kernels */

static enum sl_err ring_open(struct sl_dev *d, struct cuda_ring *r, size_t bytes)
{
    *r = (struct cuda_ring){
        .host = cu_alloc_pinned(d->stream, bytes), .device = cu_alloc(d->stream, bytes), .bytes = bytes};
    return r->host && r->device ? SL_OK : SL_ENOMEM;
}

static void ring_close(struct sl_dev *d, struct cuda_ring *r)
{
    cu_free(d->stream, r->host);
    cu_free(d->stream, r->device);
}

void sl_cuda_sync(struct sl_dev *d)
{
    cu_sync(d->stream);
    d->batches.used = d->lists.used = 0;
    d->last_batch_bytes = 0;
    d->tiles.sent_for = 0;
    d->in_flight = false;
}

/* Offset of room for `bytes`; the rings start over, after a wait, when there is none left. */
static size_t ring_room(struct sl_dev *d, struct cuda_ring *r, size_t bytes)
{
    if (r->used + bytes > r->bytes)
        sl_cuda_sync(d);
    if (bytes > r->bytes) {
        ring_close(d, r);
        enum sl_err e = ring_open(d, r, 2 * bytes);
        SL_ASSERT(e == SL_OK); /* megabytes, where gigabytes were had at start */
    }
    return r->used;
}

static void ring_send(struct sl_dev *d, struct cuda_ring *r, size_t bytes)
{
    cu_copy_pinned(d->stream, r->device + r->used, r->host + r->used, bytes);
    r->used += (bytes + RING_ALIGN - 1) & ~(RING_ALIGN - 1);
}

void sl_cuda_send_room(struct sl_dev *d, size_t bytes, size_t n_parts)
{
    ring_room(d, &d->lists, bytes + n_parts * RING_ALIGN);
}

void sl_cuda_send_parts(struct sl_dev *d, struct cuda_part *parts, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += parts[i].bytes + RING_ALIGN;
    ring_room(d, &d->lists, all);
    for (size_t i = 0; i < n; i++) {
        parts[i].sent = d->lists.device + d->lists.used;
        if (parts[i].bytes == 0)
            continue;
        memcpy(d->lists.host + d->lists.used, parts[i].src, parts[i].bytes);
        ring_send(d, &d->lists, parts[i].bytes);
    }
}

const void *sl_cuda_send(struct sl_dev *d, const void *src, size_t bytes)
{
    struct cuda_part part = {.src = src, .bytes = bytes};
    sl_cuda_send_parts(d, &part, 1);
    return part.sent;
}

size_t sl_cuda_rows_and_pages(const struct sl_batch *b, uint32_t n_rows, struct cu_row *rows, uint32_t *pages)
{
    uint32_t next = 0;
    memset(rows, 0xff, n_rows * sizeof *rows); /* CU_NO_ROW */
    for (uint32_t u = 0; u < b->n_runs; u++) {
        const struct sl_batch_run *run = &b->runs[u];
        for (uint32_t t = 0; t < run->n_rows; t++)
            rows[run->first_row + t] = (struct cu_row){run->first_pos + t, next};
        memcpy(pages + next, run->pages, run->n_pages * sizeof *pages);
        next += run->n_pages;
    }
    return next * sizeof *pages;
}

struct cuda_batch sl_cuda_send_batch(struct sl_dev *d, const struct sl_batch *b)
{
    struct cuda_ring *ring = &d->batches;
    if (d->passes.on)
        return (struct cuda_batch){d->passes.rows, d->passes.pages, d->n_batches};
    size_t rows_bytes = b->n_rows * sizeof(struct cu_row), n_pages = 0;
    for (uint32_t u = 0; u < b->n_runs; u++)
        n_pages += b->runs[u].n_pages;
    size_t bytes = rows_bytes + n_pages * sizeof(uint32_t), at = ring_room(d, ring, bytes + RING_ALIGN);
    struct cu_row *rows = (struct cu_row *)(void *)(ring->host + at);
    sl_cuda_rows_and_pages(b, b->n_rows, rows, (uint32_t *)(void *)(ring->host + at + rows_bytes));
    if (bytes == d->last_batch_bytes && rows_bytes == d->last_pages &&
        memcmp(ring->host + d->last_batch, rows, bytes) == 0) {
        at = d->last_batch;
    } else {
        ring_send(d, ring, bytes);
        d->last_batch = at;
        d->last_batch_bytes = bytes;
        d->last_pages = rows_bytes;
        d->n_batches++;
    }
    return (struct cuda_batch){(const struct cu_row *)(const void *)(ring->device + at),
                               (const uint32_t *)(const void *)(ring->device + at + rows_bytes),
                               d->n_batches};
}

enum sl_err sl_cuda_open(const struct sl_dev_conf *conf, int plain, struct sl_dev **out, struct sl_why *why)
{
    struct sl_dev *d = sl_xcalloc(1, sizeof *d);
    d->plain = plain;
    d->device = conf->device;
    d->passes.off = conf->no_graphs;
    d->max_rows = conf->max_rows ? conf->max_rows : 1;
    enum sl_err e = cu_stream_open(conf->device, &d->stream, why);
    if (e != SL_OK)
        goto close;
    d->n_threads = conf->n_threads ? conf->n_threads : 1;
    e = sl_cpu_pool_open(d->n_threads, conf->cpus, conf->n_cpus, &d->pool);
    if (e != SL_OK) {
        sl_why_set(why, e, "The pool of %u threads beside the CUDA device could not be started (%s).",
                   d->n_threads, sl_err_name(e));
        goto close;
    }
    e = ring_open(d, &d->batches, RING_BYTES);
    if (e == SL_OK)
        e = ring_open(d, &d->lists, RING_BYTES);
    if (e == SL_OK)
        e = sl_cuda_tiles_open(d);
    if (e == SL_OK)
        e = sl_cuda_passes_open(d);
    for (uint32_t i = 0; i < CUDA_ROPE_BASES && e == SL_OK; i++) {
        d->rope[i].frequency = cu_alloc(d->stream, SL_HEAD_DIM_MAX / 2 * sizeof(float));
        e = d->rope[i].frequency ? SL_OK : SL_ENOMEM;
    }
    if (e != SL_OK) {
        sl_why_set(why, e, "The CUDA device has no memory left; is another process using it?");
        goto close;
    }
    d->blaslt = plain ? NULL : cu_blaslt_open(d->stream);
    *out = d;
    return SL_OK;
close:
    sl_cuda_close(d);
    return e;
}

void sl_cuda_close(struct sl_dev *d)
{
    if (!d)
        return;
    if (d->stream) {
        sl_cuda_passes_close(d);
        ring_close(d, &d->batches);
        ring_close(d, &d->lists);
        cu_blaslt_close(d->blaslt);
        sl_cuda_tiles_close(d);
        sl_cuda_sampling_close(d);
        cu_free(d->stream, d->acts);
        for (uint32_t i = 0; i < CUDA_ROPE_BASES; i++)
            cu_free(d->stream, d->rope[i].frequency);
        cu_stream_close(d->stream);
    }
    sl_cpu_pool_close(d->pool);
    sl_free(d);
}

void *sl_cuda_buf_alloc(struct sl_dev *d, size_t bytes)
{
    return cu_alloc(d->stream, bytes ? bytes : 1);
}

void sl_cuda_buf_free(struct sl_dev *d, void *p, size_t bytes)
{
    (void)bytes;
    sl_cuda_passes_drop(d);
    cu_free(d->stream, p);
}

void sl_cuda_upload(struct sl_dev *d, void *dst, const void *src, size_t bytes)
{
    if (bytes)
        cu_upload(d->stream, dst, src, bytes);
}

void sl_cuda_download(struct sl_dev *d, void *dst, const void *src, size_t bytes)
{
    if (bytes)
        cu_download(d->stream, dst, src, bytes);
}

void sl_cuda_copy_rows(struct sl_dev *d, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                       size_t bytes, size_t n)
{
    cu_copy_rows(d->stream, dst, dst_stride, src, src_stride, bytes, n);
}

void *sl_cuda_native_stream(struct sl_dev *d)
{
    return cu_native_stream(d->stream);
}

void sl_cuda_parallel(struct sl_dev *d, uint32_t n_items, sl_parallel_fn *fn, void *arg)
{
    sl_cpu_pool_run(d->pool, n_items, fn, arg);
}
