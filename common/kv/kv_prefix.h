/* common/kv/kv_prefix.h - the prefix cache: full, final pages found again by their tokens.
 *
 * A tree of pages: the child of a page continues its prefix by one page. Pages are named by chain hashes
 * (kv_hash.h) and believed only after the tokens of the whole way from the root were compared. The cache
 * holds one reference to each of its pages. It may evict a page when that is the only one and no page behind
 * it is in use; victims are leaves, least recently used first.
 *
 * Pages in use are counted here: who wants a further reference to a page that may be cached takes and gives
 * it back by sl_kv_prefix_hold() and sl_kv_prefix_drop(), and evictable_pages is exact at any time.
 * Engine thread only. The rules of a page's life are in README.md. */
#ifndef SLUICE_COMMON_KV_KV_PREFIX_H
#define SLUICE_COMMON_KV_KV_PREFIX_H

#include "common/kv/kv_pool.h"

struct sl_kv_prefix; /* opaque */

/* The pool outlives the cache. Memory: page_tokens ints and a node per page of the pool. */
struct sl_kv_prefix *sl_kv_prefix_new(struct sl_kv_pool *pool, uint32_t page_tokens);
void sl_kv_prefix_free(struct sl_kv_prefix *c); /* takes NULL; gives all cached pages back */

/* A prefix as its pages see it: hashes[i] names page i, tokens holds n_pages * page_tokens. */
struct sl_kv_chain {
    uint64_t salt;
    const uint64_t *hashes;
    const int32_t *tokens;
    uint32_t n_pages;
};

/* Leading pages of the chain in the cache. Counts no use. */
uint32_t sl_kv_prefix_match(const struct sl_kv_prefix *c, const struct sl_kv_chain *chain);
/* The same, with a reference to each in pages[]: the caller drops them. */
uint32_t sl_kv_prefix_take(struct sl_kv_prefix *c, const struct sl_kv_chain *chain, uint32_t *pages);
/* Makes the caller's final pages [0, n_pages) findable. Where the cache has an equal page already the
 * caller's own stays private. Never fails: what cannot be inserted (a collision) is not cached. */
void sl_kv_prefix_insert(struct sl_kv_prefix *c, const struct sl_kv_chain *chain, const uint32_t *pages);

void sl_kv_prefix_hold(struct sl_kv_prefix *c, uint32_t page);
/* Gives one reference back. A caller gives a sequence's pages back from the last to the first, so that the
 * deepest is the least recently used. */
void sl_kv_prefix_drop(struct sl_kv_prefix *c, uint32_t page);

bool sl_kv_prefix_cached(const struct sl_kv_prefix *c, uint32_t page);
uint32_t sl_kv_prefix_cached_pages(const struct sl_kv_prefix *c);
uint32_t sl_kv_prefix_evictable_pages(const struct sl_kv_prefix *c);
/* Frees up to n pages; returns how many. */
uint32_t sl_kv_prefix_evict(struct sl_kv_prefix *c, uint32_t n);

/* Chain hashes, the most recently inserted or taken first; returns how many. */
size_t sl_kv_prefix_newest(const struct sl_kv_prefix *c, uint64_t *out, size_t n);

/* Recounts everything; SL_EBUG with the first difference. */
SL_MUST_CHECK enum sl_err sl_kv_prefix_check(const struct sl_kv_prefix *c, struct sl_why *why);

#endif
