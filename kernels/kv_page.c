/* kernels/kv_page.c - geometry and size of a KV page, the same on every device. */
#include "kernels/backend.h"

/* What K and V can be stored as: bytes of a number, and of the scale of a row. */
static const struct kv_type {
    enum sl_dtype type;
    uint32_t value_bytes, scale_bytes;
} kv_types[] = {{SL_F16, 2, 0}, {SL_BF16, 2, 0}, {SL_F32, 4, 0}, {SL_Q8, 1, 4}, {SL_FP8, 1, 4}};

/* NULL for another. */
static const struct kv_type *type_of(const struct sl_kv_geometry *g)
{
    for (size_t i = 0; i < sizeof kv_types / sizeof *kv_types; i++)
        if (kv_types[i].type == g->dtype)
            return &kv_types[i];
    return NULL;
}

size_t sl_kv_value_bytes(const struct sl_kv_geometry *g)
{
    const struct kv_type *t = type_of(g);
    return t ? (size_t)t->value_bytes * g->head_dim : 0;
}

size_t sl_kv_scale_bytes(const struct sl_kv_geometry *g)
{
    const struct kv_type *t = type_of(g);
    return t ? t->scale_bytes : 0;
}

size_t sl_kv_page_bytes(const struct sl_kv_geometry *g)
{
    return (size_t)g->n_layers * 2 * g->n_kv_heads * g->page_tokens *
           (sl_kv_value_bytes(g) + sl_kv_scale_bytes(g));
}

enum sl_err sl_kv_geometry_check(const struct sl_kv_geometry *g, uint32_t n_pages, struct sl_why *why)
{
    if (!type_of(g))
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "KV cannot be stored as %s; expected F16, BF16, F32, Q8 or FP8.",
                          sl_dtype_name(g->dtype));
    if (g->head_dim == 0 || g->head_dim % 2 != 0 || g->head_dim > SL_HEAD_DIM_MAX)
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "Head size %u is not supported; expected an even one up to %u.", g->head_dim,
                          SL_HEAD_DIM_MAX);
    if (g->n_layers == 0 || g->n_kv_heads == 0 || g->page_tokens == 0 || n_pages == 0)
        return sl_why_set(why, SL_EINVAL,
                          "A page pool needs layers, heads, tokens and pages; one of them is 0.");
    size_t page_bytes = sl_kv_page_bytes(g);
    if (page_bytes > SIZE_MAX / n_pages)
        return sl_why_set(why, SL_ENOMEM, "%u pages of %zu bytes are more than this machine can address.",
                          n_pages, page_bytes);
    return SL_OK;
}
