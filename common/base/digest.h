/* common/base/digest.h - 64- and 128-bit digests (XXH3) of bytes: pages, logits, prefixes, model files.
 * Not against an attacker who can choose bytes; prefix hits are confirmed by comparing tokens. */
#ifndef SLUICE_COMMON_BASE_DIGEST_H
#define SLUICE_COMMON_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

struct sl_digest128 {
    uint64_t lo, hi;
};

uint64_t sl_digest64(const void *p, size_t n, uint64_t seed);
struct sl_digest128 sl_digest128(const void *p, size_t n, uint64_t seed);
/* Streaming, for data that is not contiguous. */
struct sl_digest64_stream; /* opaque */
struct sl_digest64_stream *sl_digest64_new(uint64_t seed);
void sl_digest64_update(struct sl_digest64_stream *s, const void *p, size_t n);
uint64_t sl_digest64_end(struct sl_digest64_stream *s); /* value; frees s */

#endif
