/* router/place/prefix_index.h - which node holds which pages: the chain hashes of the nodes' last heartbeats.
 *
 * A hint only: the node compares tokens before it believes a hit, and pages may be gone by then. Threads:
 * flow thread only. */
#ifndef SLUICE_ROUTER_PLACE_PREFIX_INDEX_H
#define SLUICE_ROUTER_PLACE_PREFIX_INDEX_H

#include <stddef.h>
#include <stdint.h>
#include "common/base/err.h"

struct sl_prefix_set { /* of one node; zeroed = empty */
    uint64_t *hashes;  /* ascending */
    size_t n, cap;
};

void sl_prefix_set_fini(struct sl_prefix_set *s);
/* Replaces what was there. */
void sl_prefix_set_update(struct sl_prefix_set *s, const uint64_t *hashes, size_t n);
/* How many leading hashes of the chain the node holds. */
uint32_t sl_prefix_set_hit(const struct sl_prefix_set *s, const uint64_t *chain, uint32_t n);

#endif
