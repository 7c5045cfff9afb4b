/* common/base/rand.h - unpredictable bytes from the kernel: boot ids, request ids, seeds nobody chose. */
#ifndef SLUICE_COMMON_BASE_RAND_H
#define SLUICE_COMMON_BASE_RAND_H

#include <stddef.h>
#include <stdint.h>

void sl_random_bytes(void *p, size_t n);
uint64_t sl_random_u64(void);

#endif
