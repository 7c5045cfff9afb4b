/* tests/gpu/no_digest.c - sampler.c and kv_digest.c name the digest of libxxhash, which a machine with nothing but
 * CUDA lacks, and which gpu_check asks neither for. */
#include "common/base/digest.h"
#include "common/base/err.h"

uint64_t sl_digest64(const void *p, size_t n, uint64_t seed)
{
    (void)p, (void)n, (void)seed;
    SL_ASSERT(false);
    return 0;
}
