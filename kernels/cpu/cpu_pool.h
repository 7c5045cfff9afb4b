/* kernels/cpu/cpu_pool.h - the threads of a CPU device: a run is a number of items, and is over when all
 * items are done - not when every thread has looked. */
#ifndef SLUICE_KERNELS_CPU_CPU_POOL_H
#define SLUICE_KERNELS_CPU_CPU_POOL_H

#include <stdint.h>
#include "common/base/err.h"

#define SL_CPU_POOL_MAX_ITEMS ((uint32_t)1 << 23)

struct sl_cpu_pool; /* opaque */

/* n_threads counts the caller, who is worker 0; cpus[i % n_cpus] for worker i >= 1, n_cpus 0 = not pinned.
 * SL_EINVAL, and what starting a thread gives. */
SL_MUST_CHECK enum sl_err sl_cpu_pool_open(unsigned n_threads, const int *cpus, size_t n_cpus,
                                           struct sl_cpu_pool **out);
void sl_cpu_pool_close(struct sl_cpu_pool *p); /* takes NULL */

/* Calls fn once for each item 0 .. n_items - 1 (at most SL_CPU_POOL_MAX_ITEMS), items in rising order, on any
 * thread; a worker has one item at a time. One caller at a time, always the same thread. */
typedef void sl_cpu_item_fn(void *arg, uint32_t item, unsigned worker);
void sl_cpu_pool_run(struct sl_cpu_pool *p, uint32_t n_items, sl_cpu_item_fn *fn, void *arg);

#endif
