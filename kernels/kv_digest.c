/* kernels/kv_digest.c - digest of a KV page, the same on every device. */
#include "common/base/digest.h"
#include "kernels/backend.h"

uint64_t sl_kv_page_digest(const struct sl_kv_geometry *g, const void *page, uint32_t n_tokens)
{
    if (n_tokens == g->page_tokens)
        return sl_digest64(page, sl_kv_page_bytes(g), 0);
    /* one strip per (layer, K or V, head); the seed chains them, the count keeps 3 tokens apart from 4 with a
     * zero one */
    size_t token_bytes = sl_dtype_row_bytes(g->dtype, g->head_dim), strip = token_bytes * g->page_tokens;
    size_t n_strips = (size_t)g->n_layers * 2 * g->n_kv_heads;
    const unsigned char *p = page;
    uint64_t h = n_tokens;
    for (size_t i = 0; i < n_strips; i++)
        h = sl_digest64(p + i * strip, token_bytes * n_tokens, h);
    return h;
}
