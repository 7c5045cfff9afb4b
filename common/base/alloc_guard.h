/* common/base/alloc_guard.h - the guard of mem.h set aside for a moment, by what stands in for a device: an
 * emulation, a fake. What a driver allocates within a step is its own. */
#ifndef SLUICE_COMMON_BASE_ALLOC_GUARD_H
#define SLUICE_COMMON_BASE_ALLOC_GUARD_H

#ifdef __cplusplus
extern "C" {
#endif

/* Of this thread. Returns what to go on with by sl_alloc_guard_on(); NULL, which that takes too = it was off. */
const char *sl_alloc_guard_pause(void);

#ifdef __cplusplus
}
#endif
#endif
