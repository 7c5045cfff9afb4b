/* kernels/cuda/cuda_memory.c - matrices and pages on the device.
 *
 * A matrix is bfloat16 whatever the file has: what is quantised is dequantised while it is loaded, and what
 * has more bits is rounded. Pages are the device's alone: whoever wants their bytes takes kv_read and kv_write
 * between steps, or the mover beside them. */
#include "kernels/cuda/cuda_dev.h"

#include <string.h>
#include "common/base/mem.h"
#include "kernels/cpu/half.h"

/* Of rows made bfloat16 on the host before one copy, which PCIe takes a millisecond for. */
#define STAGING_BYTES ((size_t)16 << 20)

/* One part of a tensor on its way: rows [first, ...) to bfloat16. */
struct pack_job {
    const struct sl_tensor_view *v;
    uint64_t first;
    uint16_t *staging; /* [rows of the part, n_cols] */
    float *rows;       /* a dequantised row per worker */
};

static void pack_row(void *arg, uint32_t item, unsigned worker)
{
    const struct pack_job *j = arg;
    size_t n = j->v->n_cols, row_bytes = sl_dtype_row_bytes(j->v->type, n);
    const uint8_t *file = (const uint8_t *)j->v->data + (j->first + item) * row_bytes;
    uint16_t *to = j->staging + item * n;
    if (j->v->type == SL_BF16) {
        memcpy(to, file, row_bytes);
        return;
    }
    float *row = j->rows + worker * n;
    sl_dequant_row(j->v->type, file, n, row);
    for (size_t i = 0; i < n; i++)
        to[i] = sl_f32_to_bf16(row[i]);
}

static void pack_view(struct sl_dev *d, struct pack_job *j, uint64_t rows_at_once, uint16_t *to)
{
    for (j->first = 0; j->first < j->v->n_rows; j->first += rows_at_once) {
        uint64_t left = j->v->n_rows - j->first, n = left < rows_at_once ? left : rows_at_once;
        sl_cpu_pool_run(d->pool, (uint32_t)n, pack_row, j);
        cu_upload(d->stream, to + j->first * j->v->n_cols, j->staging, n * j->v->n_cols * sizeof *to);
        cu_sync(d->stream);
    }
}

/* Scratch for the activations of the widest matrix. */
static enum sl_err fit_acts(struct sl_dev *d, uint32_t n_cols)
{
    if (n_cols <= d->widest)
        return SL_OK;
    uint16_t *p = cu_alloc(d->stream, (size_t)d->max_rows * n_cols * sizeof *p);
    if (!p)
        return SL_ENOMEM;
    sl_cuda_passes_drop(d);
    cu_free(d->stream, d->acts);
    d->acts = p;
    d->widest = n_cols;
    return SL_OK;
}

enum sl_err sl_cuda_weight_pack(struct sl_dev *d, const struct sl_tensor_view *views, size_t n,
                                struct sl_weight **out, struct sl_why *why)
{
    enum sl_err e = sl_views_check(views, n, why);
    if (e != SL_OK)
        return e;
    struct sl_weight *w = sl_xcalloc(1, sizeof *w);
    w->n_cols = (uint32_t)views[0].n_cols;
    for (size_t i = 0; i < n; i++)
        w->n_rows += (uint32_t)views[i].n_rows;
    w->bytes = (size_t)w->n_rows * w->n_cols * sizeof *w->data;
    size_t row_bytes = w->n_cols * sizeof *w->data;
    uint64_t rows_at_once = STAGING_BYTES > row_bytes ? STAGING_BYTES / row_bytes : 1;
    if (rows_at_once > SL_CPU_POOL_MAX_ITEMS)
        rows_at_once = SL_CPU_POOL_MAX_ITEMS;
    struct pack_job j = {.staging = sl_try_alloc(rows_at_once * row_bytes),
                         .rows = sl_try_alloc((size_t)d->n_threads * w->n_cols * sizeof(float))};
    w->data = cu_alloc(d->stream, w->bytes);
    if (!w->data || !j.staging || !j.rows || fit_acts(d, w->n_cols) != SL_OK) {
        e = sl_why_set(
            why, SL_ENOMEM,
            "The CUDA device has no memory for a matrix of %u x %u bfloat16 (%zu MiB); take a smaller "
            "model or a larger card.",
            w->n_rows, w->n_cols, w->bytes >> 20);
        sl_cuda_weight_free(d, w);
    } else {
        uint16_t *to = w->data;
        for (size_t i = 0; i < n; to += views[i].n_rows * w->n_cols, i++) {
            j.v = &views[i];
            pack_view(d, &j, rows_at_once, to);
        }
        *out = w;
    }
    sl_free(j.staging);
    sl_free(j.rows);
    return e;
}

void sl_cuda_weight_free(struct sl_dev *d, struct sl_weight *w)
{
    if (!w)
        return;
    sl_cuda_passes_drop(d);
    cu_free(d->stream, w->data);
    sl_free(w);
}

size_t sl_cuda_memory_free(const struct sl_dev *d)
{
    return cu_memory_free(d->stream);
}

size_t sl_cuda_weight_bytes(const struct sl_weight *w)
{
    return w->bytes;
}

static enum sl_err no_pages(struct sl_why *why, uint32_t device, uint32_t n_pages, size_t page_bytes,
                            size_t left)
{
    return sl_why_set(why, SL_ENOMEM,
                      "CUDA device %u has no memory for %u KV pages of %zu bytes (%zu MiB; free are %zu "
                      "MiB); lower kv_memory.",
                      device, n_pages, page_bytes, page_bytes * n_pages >> 20, left >> 20);
}

/* The memory of n_pages pages of the geometry. */
static enum sl_err pool_open(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                             struct sl_kv **out, struct sl_why *why)
{
    size_t page_bytes = sl_kv_page_bytes(g), bytes = page_bytes * n_pages, left = cu_memory_free(d->stream);
    uint8_t *base = bytes <= left ? cu_alloc(d->stream, bytes) : NULL;
    if (!base)
        return no_pages(why, d->device, n_pages, page_bytes, left);
    struct sl_kv *kv = sl_xcalloc(1, sizeof *kv);
    *kv = (struct sl_kv){.g = *g,
                         .n_pages = n_pages,
                         .page_bytes = page_bytes,
                         .stream = d->stream,
                         .device = d->device,
                         .base = base};
    cu_sync(d->stream); /* the zeroes are there before a mover looks, which has streams of its own */
    *out = kv;
    return SL_OK;
}

enum sl_err sl_cuda_kv_open(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                            struct sl_kv **out, struct sl_why *why)
{
    enum sl_err e = sl_kv_geometry_check(g, n_pages, why);
    return e ? e : pool_open(d, g, n_pages, out, why);
}

enum sl_err sl_cuda_kv_open_parts(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                                  uint32_t n_parts, struct sl_kv **out, struct sl_why *why)
{
    enum sl_err e = sl_kv_geometry_check(g, n_pages, why);
    if (e)
        return e;
    struct sl_kv *kv = sl_xcalloc(1, sizeof *kv);
    *kv = (struct sl_kv){.g = *g,
                         .n_pages = n_pages,
                         .page_bytes = sl_kv_page_bytes(g),
                         .stream = d->stream,
                         .device = d->device,
                         .parts = sl_xcalloc(n_parts, sizeof(struct sl_kv *))};
    *out = kv;
    return SL_OK;
}

enum sl_err sl_cuda_kv_part(struct sl_dev *d, struct sl_kv *kv, uint32_t first_head, uint32_t n_heads,
                            struct sl_kv **out, struct sl_why *why)
{
    struct sl_kv_geometry g = kv->g;
    g.n_kv_heads = n_heads;
    SL_ASSERT(kv->parts);
    enum sl_err e = pool_open(d, &g, kv->n_pages, out, why);
    if (e)
        return e;
    (*out)->first_head = first_head;
    kv->parts[kv->n_parts++] = *out;
    return SL_OK;
}

struct cuda_strips sl_cuda_strips(const struct sl_kv *whole, const struct sl_kv *part)
{
    size_t strip = whole->page_bytes / ((size_t)whole->g.n_layers * 2 * whole->g.n_kv_heads);
    return (struct cuda_strips){.first = part->first_head * strip,
                                .run_bytes = part->g.n_kv_heads * strip,
                                .run_stride = whole->g.n_kv_heads * strip,
                                .n_runs = 2 * whole->g.n_layers};
}

void sl_cuda_kv_close(struct sl_dev *d, struct sl_kv *kv)
{
    if (!kv)
        return;
    sl_cuda_passes_drop(d);
    cu_free(d->stream, kv->base);
    sl_free(kv->parts);
    sl_free(kv);
}

void *sl_cuda_kv_host_base(struct sl_kv *kv)
{
    (void)kv;
    return NULL;
}

/* Every part's strips of a page, to the host or from it. */
static void copy_strips(const struct sl_kv *kv, uint32_t page, uint8_t *host, bool to_host)
{
    for (uint32_t i = 0; i < kv->n_parts; i++) {
        const struct sl_kv *p = kv->parts[i];
        struct cuda_strips s = sl_cuda_strips(kv, p);
        uint8_t *at = p->base + page * p->page_bytes, *there = host + s.first;
        if (to_host)
            cu_copy_rows(p->stream, there, s.run_stride, at, s.run_bytes, s.run_bytes, s.n_runs);
        else
            cu_copy_rows(p->stream, at, s.run_bytes, there, s.run_stride, s.run_bytes, s.n_runs);
        cu_sync(p->stream);
    }
}

void sl_cuda_kv_read(struct sl_dev *d, struct sl_kv *kv, uint32_t page, void *host)
{
    copy_strips(kv, page, host, true);
    if (kv->base)
        cu_download(d->stream, host, kv->base + page * kv->page_bytes, kv->page_bytes);
    sl_cuda_sync(d);
}

void sl_cuda_kv_write(struct sl_dev *d, struct sl_kv *kv, uint32_t page, const void *host)
{
    copy_strips(kv, page, (uint8_t *)(uintptr_t)host, false); /* which only reads it */
    if (kv->base)
        cu_upload(d->stream, kv->base + page * kv->page_bytes, host, kv->page_bytes);
    sl_cuda_sync(d);
}
