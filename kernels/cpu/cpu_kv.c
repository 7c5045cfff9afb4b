/* kernels/cpu/cpu_kv.c - the memory of a page pool: one stretch of huge pages, page i at base + i *
 * page_bytes. A part has no memory: other devices write and read their heads' strips of the same pages.
 *
 * The kernel zeroes a gigabyte in 0.1 to 0.5 s, which no start waits for: a thread of lower priority
 * asks for the memory while the pool is already used, so that later steps seldom do. Whether it is there was
 * checked before (common/model/model.c). */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>
#include <unistd.h>

/* nice(2): it gives way, but is never kept off the cores for long with the lock of the address space held. */
#define TOUCH_NICE 5
/* At a time: a huge page. Meanwhile no other thread of the process can map memory. */
#define TOUCH_BYTES ((size_t)2 << 20)

static void touch_pages(void *arg)
{
    struct sl_kv *kv = arg;
    (void)!nice(TOUCH_NICE); /* on Linux of this thread alone */
    for (size_t at = 0; at < kv->bytes && !atomic_load(&kv->closing); at += TOUCH_BYTES) {
        size_t left = kv->bytes - at;
        if (!sl_huge_touch(kv->base + at, left < TOUCH_BYTES ? left : TOUCH_BYTES))
            return;
    }
}

enum sl_err sl_cpu_kv_open(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                           struct sl_kv **out, struct sl_why *why)
{
    enum sl_err e = sl_kv_geometry_check(g, n_pages, why);
    if (e != SL_OK)
        return e;
    size_t page_bytes = sl_kv_page_bytes(g);
    uint8_t *base = sl_huge_alloc(page_bytes * n_pages, false);
    if (!base || sl_cpu_fit_attention(d, g->head_dim) != SL_OK) {
        sl_huge_free(base, page_bytes * n_pages);
        return sl_why_set(why, SL_ENOMEM,
                          "There is no memory for %u KV pages of %zu bytes (%zu MiB); lower kv_memory.",
                          n_pages, page_bytes, page_bytes * n_pages >> 20);
    }
    struct sl_kv *kv = sl_xcalloc(1, sizeof *kv);
    kv->g = *g;
    kv->n_pages = n_pages;
    kv->page_heads = g->n_kv_heads;
    kv->page_bytes = page_bytes;
    kv->token_bytes = sl_kv_value_bytes(g);
    kv->scale_bytes = sl_kv_scale_bytes(g);
    kv->strip_bytes = (kv->token_bytes + kv->scale_bytes) * g->page_tokens;
    kv->base = base;
    kv->bytes = page_bytes * n_pages;
    atomic_init(&kv->closing, false);
    (void)!sl_thread_start(&kv->toucher, "sl-kv-touch", touch_pages, kv); /* only a help */
    *out = kv;
    return SL_OK;
}

enum sl_err sl_cpu_kv_part(struct sl_dev *d, struct sl_kv *kv, uint32_t first_head, uint32_t n_heads,
                           struct sl_kv **out, struct sl_why *why)
{
    if (sl_cpu_fit_attention(d, kv->g.head_dim) != SL_OK)
        return sl_why_set(why, SL_ENOMEM, "There is no memory for attention over heads of %u.",
                          kv->g.head_dim);
    struct sl_kv *part = sl_xcalloc(1, sizeof *part);
    part->g = kv->g;
    part->g.n_kv_heads = n_heads;
    part->n_pages = kv->n_pages;
    part->page_heads = kv->page_heads;
    part->page_bytes = kv->page_bytes;
    part->strip_bytes = kv->strip_bytes;
    part->token_bytes = kv->token_bytes;
    part->scale_bytes = kv->scale_bytes;
    part->base = kv->base + first_head * kv->strip_bytes;
    *out = part;
    return SL_OK;
}

void sl_cpu_kv_close(struct sl_dev *d, struct sl_kv *kv)
{
    (void)d;
    if (!kv)
        return;
    atomic_store(&kv->closing, true);
    sl_thread_join(&kv->toucher);
    if (kv->bytes)
        sl_huge_free(kv->base, kv->bytes);
    sl_free(kv);
}

void *sl_cpu_kv_host_base(struct sl_kv *kv)
{
    return kv->base;
}

void sl_cpu_kv_read(struct sl_dev *d, struct sl_kv *kv, uint32_t page, void *host)
{
    (void)d;
    memcpy(host, kv->base + (size_t)page * kv->page_bytes, kv->page_bytes);
}

void sl_cpu_kv_write(struct sl_dev *d, struct sl_kv *kv, uint32_t page, const void *host)
{
    (void)d;
    memcpy(kv->base + (size_t)page * kv->page_bytes, host, kv->page_bytes);
}
