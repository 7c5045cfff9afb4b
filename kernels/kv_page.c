/* kernels/kv_page.c - geometry and size of a KV page, the same on every device. */
#include "kernels/backend.h"

size_t sl_kv_value_bytes(const struct sl_kv_geometry *g)
{
    return g->dtype == SL_Q8 ? g->head_dim : sl_dtype_row_bytes(g->dtype, g->head_dim);
}

size_t sl_kv_scale_bytes(const struct sl_kv_geometry *g)
{
    return g->dtype == SL_Q8 ? sizeof(float) : 0;
}

size_t sl_kv_page_bytes(const struct sl_kv_geometry *g)
{
    return (size_t)g->n_layers * 2 * g->n_kv_heads * g->page_tokens *
           (sl_kv_value_bytes(g) + sl_kv_scale_bytes(g));
}

enum sl_err sl_kv_geometry_check(const struct sl_kv_geometry *g, uint32_t n_pages, struct sl_why *why)
{
    if (g->dtype != SL_F16 && g->dtype != SL_BF16 && g->dtype != SL_F32 && g->dtype != SL_Q8)
        return sl_why_set(why, SL_EUNSUPPORTED, "KV cannot be stored as %s; expected F16, BF16, F32 or Q8.",
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
