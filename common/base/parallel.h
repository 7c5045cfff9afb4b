/* common/base/parallel.h - a loop over items on a few threads that live as long as the loop: for loading. */
#ifndef SLUICE_COMMON_BASE_PARALLEL_H
#define SLUICE_COMMON_BASE_PARALLEL_H

#include <stddef.h>

/* Calls fn once for each item 0 .. n_items - 1, items in rising order, on n_threads threads, the caller's
 * included; returns when all are done. Threads that cannot be started are done without. */
void sl_parallel_run(unsigned n_threads, size_t n_items, void (*fn)(void *arg, size_t item), void *arg);

#endif
