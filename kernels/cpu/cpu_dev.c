/* kernels/cpu/cpu_dev.c - the CPU as a device: a compute pool, buffers in huge pages, and the scratch of the
 * ops.
 *
 * Nothing is allocated inside an op: scratch grows when a matrix is packed or a page pool opened, never
 * later. Device memory is host memory, so upload and download are copies and sync has nothing to wait for. */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>

/* Room for the partial results of split tiles, 4 MiB: 40 tokens of 9 heads over 44 segments at head_dim 64.
 */
#define PARTIAL_FLOATS ((size_t)1 << 20)
/* Of an item of the pool: the kernel zeroes it in some milliseconds. */
#define TOUCH_ITEM_BYTES ((size_t)16 << 20)

/* Between the forms of a batch's activations, which begin on cache lines. */
#define ACTS_SLACK ((size_t)4096)

enum sl_err sl_cpu_open(const struct sl_dev_conf *conf, const struct sl_cpu_isa *isa, struct sl_dev **out,
                        struct sl_why *why)
{
    struct sl_dev *d = sl_xcalloc(1, sizeof *d);
    d->isa = isa;
    d->n_threads = conf->n_threads ? conf->n_threads : 1;
    d->max_rows = conf->max_rows ? conf->max_rows : 1;
    enum sl_err e = sl_cpu_pool_open(d->n_threads, conf->cpus, conf->n_cpus, &d->pool);
    if (e != SL_OK) {
        sl_free(d);
        return sl_why_set(
            why, e,
            "The compute pool of %u threads could not be started (%s); check the thread count and that "
            "the process may use the CPUs it is pinned to.",
            conf->n_threads, sl_err_name(e));
    }
    d->attn_plan = sl_xcalloc((size_t)d->max_rows + 1, sizeof *d->attn_plan);
    for (uint32_t i = 0; i < SL_ROPE_BASES; i++)
        d->rope_bases[i].freq = sl_xcalloc(SL_HEAD_DIM_MAX / 2, sizeof *d->rope_bases[i].freq);
    d->rope_freq = sl_xcalloc(SL_HEAD_DIM_MAX / 2, sizeof *d->rope_freq);
    d->rope_angles = sl_xcalloc((size_t)d->n_threads * SL_HEAD_DIM_MAX, sizeof *d->rope_angles);
    *out = d;
    return SL_OK;
}

void sl_cpu_close(struct sl_dev *d)
{
    if (!d)
        return;
    sl_cpu_pool_close(d->pool);
    sl_huge_free(d->acts, d->acts_bytes);
    sl_huge_free(d->rows, d->rows_bytes);
    sl_huge_free(d->attn_mem, d->attn_mem_bytes);
    sl_huge_free(d->partials, d->n_partials * sizeof *d->partials);
    sl_free(d->attn);
    sl_free(d->attn_plan);
    for (uint32_t i = 0; i < SL_ROPE_BASES; i++)
        sl_free(d->rope_bases[i].freq);
    sl_free(d->rope_freq);
    sl_free(d->rope_angles);
    sl_free(d);
}

struct touch_job {
    uint8_t *p;
    size_t bytes;
    _Atomic int failed;
};

static void touch_part(void *arg, uint32_t item, unsigned worker)
{
    (void)worker;
    struct touch_job *j = arg;
    size_t at = item * TOUCH_ITEM_BYTES,
           n = j->bytes - at < TOUCH_ITEM_BYTES ? j->bytes - at : TOUCH_ITEM_BYTES;
    if (!sl_huge_touch(j->p + at, n))
        j->failed = 1;
}

void *sl_cpu_touched_alloc(struct sl_dev *d, size_t bytes)
{
    struct touch_job j = {.p = sl_huge_alloc(bytes, false), .bytes = bytes};
    if (!j.p || bytes / TOUCH_ITEM_BYTES >= SL_CPU_POOL_MAX_ITEMS)
        return j.p;
    sl_cpu_pool_run(d->pool, (uint32_t)((bytes + TOUCH_ITEM_BYTES - 1) / TOUCH_ITEM_BYTES), touch_part, &j);
    if (!j.failed)
        return j.p;
    sl_huge_free(j.p, bytes);
    return NULL;
}

void *sl_cpu_buf_alloc(struct sl_dev *d, size_t bytes)
{
    return sl_cpu_touched_alloc(d, bytes ? bytes : 1);
}

void sl_cpu_buf_free(struct sl_dev *d, void *p, size_t bytes)
{
    (void)d;
    sl_huge_free(p, bytes ? bytes : 1);
}

void sl_cpu_copy(struct sl_dev *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes)
        memcpy(dst, src, bytes);
}

void sl_cpu_copy_rows(struct sl_dev *d, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                      size_t bytes, size_t n)
{
    (void)d;
    for (size_t i = 0; i < n; i++)
        memcpy((char *)dst + i * dst_stride, (const char *)src + i * src_stride, bytes);
}

void sl_cpu_sync(struct sl_dev *d)
{
    (void)d;
}

void sl_cpu_parallel(struct sl_dev *d, uint32_t n_items, sl_parallel_fn *fn, void *arg)
{
    sl_cpu_pool_run(d->pool, n_items, fn, arg);
}

enum sl_err sl_cpu_fit_acts(struct sl_dev *d, uint32_t n_cols, size_t row_bytes)
{
    size_t bytes = ((size_t)d->max_rows + SL_CHUNK_ROWS) * row_bytes + ACTS_SLACK;
    if (bytes > d->acts_bytes) {
        uint8_t *p = sl_cpu_touched_alloc(d, bytes);
        if (!p)
            return SL_ENOMEM;
        sl_huge_free(d->acts, d->acts_bytes);
        d->acts = p;
        d->acts_bytes = bytes;
    }
    if (n_cols > d->widest) {
        size_t rows_bytes = sl_cpu_row_floats(n_cols) * d->n_threads * sizeof(float);
        float *rows = sl_huge_alloc(rows_bytes, true);
        if (!rows)
            return SL_ENOMEM;
        sl_huge_free(d->rows, d->rows_bytes);
        d->rows = rows;
        d->rows_bytes = rows_bytes;
        d->widest = n_cols;
    }
    return SL_OK;
}

/* Cuts n floats, rounded up to a cache line, off *at. */
static float *cut(uint8_t **at, size_t n)
{
    float *p = (float *)*at;
    *at += (n * sizeof(float) + 63) & ~(size_t)63;
    return p;
}

enum sl_err sl_cpu_fit_attention(struct sl_dev *d, uint32_t head_dim)
{
    if (head_dim <= d->attn_head_dim)
        return SL_OK;
    size_t width = sl_attn_width(head_dim);
    size_t floats =
        6 * SL_ATTN_BLOCK * width + SL_ATTN_QROWS * (5 * width + 2 * SL_ATTN_BLOCK + 7) + 2 * SL_ATTN_BLOCK;
    size_t per_thread = (floats * sizeof(float) + 20 * 64 + 4095) & ~(size_t)4095;
    uint8_t *mem = sl_huge_alloc(per_thread * d->n_threads, true);
    float *partials = d->partials ? d->partials : sl_huge_alloc(PARTIAL_FLOATS * sizeof(float), true);
    if (!mem || !partials) {
        sl_huge_free(mem, per_thread * d->n_threads);
        if (!d->partials)
            sl_huge_free(partials, PARTIAL_FLOATS * sizeof(float));
        return SL_ENOMEM;
    }
    sl_huge_free(d->attn_mem, d->attn_mem_bytes);
    d->attn_mem = mem;
    d->attn_mem_bytes = per_thread * d->n_threads;
    d->partials = partials;
    d->n_partials = PARTIAL_FLOATS;
    d->attn = sl_xrealloc_array(d->attn, d->n_threads, sizeof *d->attn);
    d->attn_head_dim = head_dim;
    for (unsigned i = 0; i < d->n_threads; i++) {
        uint8_t *at = mem + i * per_thread;
        struct sl_attn_scratch *s = &d->attn[i];
        s->k = cut(&at, SL_ATTN_BLOCK * width);
        s->v = cut(&at, SL_ATTN_BLOCK * width);
        s->rows = cut(&at, 2 * SL_ATTN_BLOCK * width);
        s->q = cut(&at, SL_ATTN_QROWS * width);
        s->q_t = cut(&at, SL_ATTN_QROWS * width);
        s->s = cut(&at, (size_t)SL_ATTN_QROWS * SL_ATTN_BLOCK);
        s->wide = cut(&at, 2 * (size_t)SL_ATTN_BLOCK * width);
        s->p = cut(&at, (size_t)SL_ATTN_QROWS * SL_ATTN_BLOCK);
        s->acc = cut(&at, SL_ATTN_QROWS * width);
        s->acc_t = cut(&at, SL_ATTN_QROWS * width);
        s->total = cut(&at, SL_ATTN_QROWS * width);
        s->m = cut(&at, SL_ATTN_QROWS);
        s->l = cut(&at, SL_ATTN_QROWS);
        s->keep = cut(&at, SL_ATTN_QROWS);
        s->total_m = cut(&at, SL_ATTN_QROWS);
        s->total_l = cut(&at, SL_ATTN_QROWS);
        s->q_scale = cut(&at, SL_ATTN_QROWS);
        s->q_start = (int32_t *)cut(&at, SL_ATTN_QROWS);
        s->k_scale = cut(&at, SL_ATTN_BLOCK);
        s->v_scale = cut(&at, SL_ATTN_BLOCK);
    }
    return SL_OK;
}
