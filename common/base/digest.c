/* common/base/digest.c - XXH3 of libxxhash; its values are the same on every machine and vector width. */
#include "common/base/digest.h"

#include <xxhash.h>

#include "common/base/err.h"
#include "common/base/mem.h"

struct sl_digest64_stream {
    XXH3_state_t *state; /* made by the library: it wants 64-byte alignment */
};

uint64_t sl_digest64(const void *p, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(p, n, seed);
}

struct sl_digest128 sl_digest128(const void *p, size_t n, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(p, n, seed);
    return (struct sl_digest128){.lo = h.low64, .hi = h.high64};
}

struct sl_digest64_stream *sl_digest64_new(uint64_t seed)
{
    struct sl_digest64_stream *s = sl_xalloc(sizeof *s);
    s->state = XXH3_createState();
    SL_ASSERT(s->state && XXH3_64bits_reset_withSeed(s->state, seed) == XXH_OK);
    return s;
}

void sl_digest64_update(struct sl_digest64_stream *s, const void *p, size_t n)
{
    if (n)
        SL_ASSERT(XXH3_64bits_update(s->state, p, n) == XXH_OK);
}

uint64_t sl_digest64_end(struct sl_digest64_stream *s)
{
    uint64_t h = XXH3_64bits_digest(s->state);
    XXH3_freeState(s->state);
    sl_free(s);
    return h;
}
