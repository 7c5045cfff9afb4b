/* common/base/philox.c - ten rounds of two 32x32 -> 64 multiplications; integers only, so equal on every
 * machine. */
#include "common/base/philox.h"

#define MUL_0  0xD2511F53u
#define MUL_1  0xCD9E8D57u
#define WEYL_0 0x9E3779B9u
#define WEYL_1 0xBB67AE85u
#define ROUNDS 10

void sl_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t p0 = (uint64_t)MUL_0 * c0;
        uint64_t p1 = (uint64_t)MUL_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

float sl_philox_uniform(uint64_t seed, uint32_t choice, uint64_t position)
{
    /* the third word is 0 for every position below 2^32 */
    const uint32_t counter[4] = {(uint32_t)position, choice, (uint32_t)(position >> 32), 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    sl_philox4x32(counter, key, out);
    return (float)(out[0] >> 8) * 0x1p-24f;
}
