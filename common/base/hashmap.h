/* common/base/hashmap.h - open-addressing map from a byte-string or u64 key to a pointer. One thread.
 *
 * Keys are copied; values belong to the caller. Keys come from outside, so the hash is seeded per map. */
#ifndef SLUICE_COMMON_BASE_HASHMAP_H
#define SLUICE_COMMON_BASE_HASHMAP_H

#include <stdint.h>
#include "common/base/err.h"

struct sl_hashmap; /* opaque */

struct sl_hashmap *sl_hashmap_new(void);
void sl_hashmap_free(struct sl_hashmap *m); /* takes NULL; not the values */
/* Takes now, and touches, the memory that n entries need, so that they grow nothing. m must be empty. */
void sl_hashmap_reserve(struct sl_hashmap *m, size_t n);
size_t sl_hashmap_len(const struct sl_hashmap *m);

/* Returns the value replaced, or NULL. value may not be NULL. */
void *sl_hashmap_put(struct sl_hashmap *m, const void *key, size_t key_len, void *value);
void *sl_hashmap_get(const struct sl_hashmap *m, const void *key, size_t key_len); /* NULL when absent */
void *sl_hashmap_del(struct sl_hashmap *m, const void *key, size_t key_len); /* the value removed, or NULL */

void *sl_hashmap_put_u64(struct sl_hashmap *m, uint64_t key, void *value);
void *sl_hashmap_get_u64(const struct sl_hashmap *m, uint64_t key);
void *sl_hashmap_del_u64(struct sl_hashmap *m, uint64_t key);

/* Walks in no order: start with *it = 0, false at the end. Deleting the entry just returned is allowed,
 * adding is not. */
bool sl_hashmap_next(const struct sl_hashmap *m, size_t *it, void **value);

#endif
