/* common/base/memory_info.h - what memory this process has, and what it could still get. */
#ifndef SLUICE_COMMON_BASE_MEMORY_INFO_H
#define SLUICE_COMMON_BASE_MEMORY_INFO_H

#include <stdint.h>

/* Bytes that could be taken now: what the machine has available, or what the limits of this process's control
 * groups (version 2, all levels) leave, whichever is less. More would end in the kernel killing somebody, not
 * in an error. 0 = unknown. */
uint64_t sl_memory_available(void);
/* The same below another root than "": for tests. */
uint64_t sl_memory_available_at(const char *root);

/* Bytes of this process in memory now; 0 = unknown. */
uint64_t sl_memory_resident(void);

#endif
