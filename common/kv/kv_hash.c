/* common/kv/kv_hash.c - model, salt and parent fold into the seed of the page's token digest. */
#include "common/kv/kv_hash.h"

#include <string.h>

#define SALT_SEED UINT64_C(0x736c756963650001) /* keeps salts apart from other digests of the same text */

uint64_t sl_kv_salt_hash(const char *cache_salt)
{
    if (!cache_salt || !*cache_salt)
        return 0;
    return sl_digest64(cache_salt, strlen(cache_salt), SALT_SEED);
}

uint64_t sl_kv_chain_hash(const struct sl_digest128 *model, uint64_t salt_hash, uint64_t parent,
                          const int32_t *tokens, uint32_t page_tokens)
{
    uint64_t head[4] = {model->lo, model->hi, salt_hash, parent};
    uint64_t seed = sl_digest64(head, sizeof head, page_tokens);
    return sl_digest64(tokens, page_tokens * sizeof *tokens, seed);
}
