/* common/base/philox.h - Philox4x32-10, the counter-based generator behind every sampled token.
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11; vectors of Random123 in its
 * test. */
#ifndef SLUICE_COMMON_BASE_PHILOX_H
#define SLUICE_COMMON_BASE_PHILOX_H

#include <stdint.h>

/* out[4] = Philox4x32-10(counter[4], key[2]). */
void sl_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1) with 24 bits for (seed, choice, position): key = seed, counter = (position, choice, 0,
 * 0). */
float sl_philox_uniform(uint64_t seed, uint32_t choice, uint64_t position);

#endif
