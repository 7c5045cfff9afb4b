/* router/place/prefix_index.c - a sorted array per node. A heartbeat brings at most a few thousand hashes
 * once a second, a request asks some hundred times: sorting once and searching by halves beats keeping a map
 * up to date. */
#include "router/place/prefix_index.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/order.h"

void sl_prefix_set_fini(struct sl_prefix_set *s)
{
    sl_free(s->hashes);
    *s = (struct sl_prefix_set){0};
}

void sl_prefix_set_update(struct sl_prefix_set *s, const uint64_t *hashes, size_t n)
{
    if (n > s->cap) {
        s->hashes = sl_xrealloc_array(s->hashes, n, sizeof *hashes);
        s->cap = n;
    }
    if (n)
        memcpy(s->hashes, hashes, n * sizeof *hashes);
    s->n = n;
    if (n)
        qsort(s->hashes, n, sizeof *s->hashes, sl_order_u64);
}

uint32_t sl_prefix_set_hit(const struct sl_prefix_set *s, const uint64_t *chain, uint32_t n)
{
    uint32_t hit = 0;
    while (hit < n && s->n && bsearch(&chain[hit], s->hashes, s->n, sizeof *chain, sl_order_u64))
        hit++;
    return hit;
}
