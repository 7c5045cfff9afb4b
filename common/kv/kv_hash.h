/* common/kv/kv_hash.h - the name of a cached prefix: a chain of hashes, one per full page of tokens.
 *
 * hash(page i) covers model, salt and all tokens of pages 0..i, so equal names mean equal prefixes - up to a
 * collision, which is why the cache compares the tokens (kv_prefix.h). Nodes and router compute the same
 * values; base only. */
#ifndef SLUICE_COMMON_KV_KV_HASH_H
#define SLUICE_COMMON_KV_KV_HASH_H

#include "common/base/digest.h"

#define SL_KV_CHAIN_ROOT UINT64_C(0) /* parent of the first page */

/* Of a request's cache_salt; NULL and "" are the shared cache. */
uint64_t sl_kv_salt_hash(const char *cache_salt);
uint64_t sl_kv_chain_hash(const struct sl_digest128 *model, uint64_t salt_hash, uint64_t parent,
                          const int32_t *tokens, uint32_t page_tokens);

#endif
