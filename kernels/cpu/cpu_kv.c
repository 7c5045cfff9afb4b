/* kernels/cpu/cpu_kv.c - the memory of a page pool: one stretch of huge pages, page i at base + i *
 * page_bytes. */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>

enum sl_err sl_cpu_kv_open(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                           struct sl_kv **out, struct sl_why *why)
{
    enum sl_err e = sl_kv_geometry_check(g, n_pages, why);
    if (e != SL_OK)
        return e;
    size_t page_bytes = sl_kv_page_bytes(g);
    uint8_t *base = sl_cpu_touched_alloc(d, page_bytes * n_pages);
    if (!base || sl_cpu_fit_attention(d, g->head_dim) != SL_OK) {
        sl_huge_free(base, page_bytes * n_pages);
        return sl_why_set(why, SL_ENOMEM,
                          "There is no memory for %u KV pages of %zu bytes (%zu MiB); lower kv_memory.",
                          n_pages, page_bytes, page_bytes * n_pages >> 20);
    }
    struct sl_kv *kv = sl_xcalloc(1, sizeof *kv);
    kv->g = *g;
    kv->n_pages = n_pages;
    kv->page_bytes = page_bytes;
    kv->token_bytes = sl_kv_value_bytes(g);
    kv->strip_bytes = (kv->token_bytes + sl_kv_scale_bytes(g)) * g->page_tokens;
    kv->base = base;
    kv->bytes = page_bytes * n_pages;
    *out = kv;
    return SL_OK;
}

void sl_cpu_kv_close(struct sl_dev *d, struct sl_kv *kv)
{
    (void)d;
    if (!kv)
        return;
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
