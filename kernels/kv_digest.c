/* kernels/kv_digest.c - digest of a KV page, the same on every device. */
#include "common/base/digest.h"
#include "kernels/backend.h"

uint64_t sl_kv_page_digest(const struct sl_kv_geometry *g, const void *page, uint32_t n_tokens)
{
    if (n_tokens == g->page_tokens)
        return sl_digest64(page, sl_kv_page_bytes(g), 0);
    /* the tokens' values and then their scales, strip by strip; the seed chains them, the count keeps 3
     * tokens apart from 4 with a zero one */
    const size_t parts[] = {sl_kv_value_bytes(g), sl_kv_scale_bytes(g)};
    size_t n_strips = (size_t)g->n_layers * 2 * g->n_kv_heads;
    const unsigned char *p = page;
    uint64_t h = n_tokens;
    for (size_t i = 0; i < n_strips; i++)
        for (size_t k = 0; k < 2 && parts[k] > 0; p += parts[k++] * g->page_tokens)
            h = sl_digest64(p, parts[k] * n_tokens, h);
    return h;
}
