/* common/kv/kv_pool.h - the node's fixed set of KV pages: take, share, give back.
 *
 * One page holds K and V of page_tokens consecutive tokens of one sequence, all layers of this node's
 * shard: [n_layers, 2, n_kv_heads, page_tokens, head_dim], KV dtype, row-major. The pool knows page ids
 * only; the bytes belong to the engine (common/engine/engine.h).
 *
 * Ownership: each holder of an id has one reference; the last unref makes the page free for reuse. A page
 * that the prefix cache may hold is referenced and given back through kv_prefix.h, which counts its users.
 * Threads:   engine thread only.
 * Errors:    SL_ENOPAGES is normal under load (see preempt.h); after open nothing else fails. */
#ifndef SLUICE_COMMON_KV_KV_POOL_H
#define SLUICE_COMMON_KV_KV_POOL_H

#include <stdint.h>
#include "common/base/err.h"

#define SL_KV_NO_PAGE UINT32_MAX

struct sl_kv_pool; /* opaque */

/* On SL_OK *out is the caller's, to be closed with sl_kv_pool_close(); on error *out is untouched. Errors:
 * SL_EINVAL (n_pages is 0 or SL_KV_NO_PAGE), SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_kv_pool_open(uint32_t n_pages, struct sl_kv_pool **out);
void sl_kv_pool_close(struct sl_kv_pool *p); /* takes NULL */

uint32_t sl_kv_pool_total_pages(const struct sl_kv_pool *p);
uint32_t sl_kv_pool_free_pages(const struct sl_kv_pool *p);

/* Takes n free pages with one reference each, all or none (SL_ENOPAGES). Prefers the pages right behind
 * `after` (SL_KV_NO_PAGE = no wish), then the smallest run that holds the rest: neighbours travel in one
 * message. */
SL_MUST_CHECK enum sl_err sl_kv_pool_take(struct sl_kv_pool *p, uint32_t n, uint32_t after, uint32_t *out);
void sl_kv_pool_ref(struct sl_kv_pool *p, uint32_t page);
void sl_kv_pool_unref(struct sl_kv_pool *p, uint32_t page);
uint32_t sl_kv_pool_refs(const struct sl_kv_pool *p, uint32_t page); /* 0 = free */

#endif
