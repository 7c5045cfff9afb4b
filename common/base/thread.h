/* common/base/thread.h - named threads, optionally pinned; and the compute pool of an engine. */
#ifndef SLUICE_COMMON_BASE_THREAD_H
#define SLUICE_COMMON_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>
#include "common/base/err.h"

struct sl_thread {
    pthread_t handle;
    bool started;
};

/* name is cut at 15 bytes. All signals are blocked in the new thread: main handles them by signalfd. */
SL_MUST_CHECK enum sl_err sl_thread_start(struct sl_thread *t, const char *name, void (*fn)(void *),
                                          void *arg);
void sl_thread_join(struct sl_thread *t); /* harmless when not started */

/* Parses "0,2-3" into CPU numbers. cpus NULL or "" = *n 0 = no pinning. Owner frees *out with sl_free. Order
 * and repeats are kept. SL_EPARSE on anything else. */
SL_MUST_CHECK enum sl_err sl_cpu_list_parse(const char *cpus, int **out, size_t *n);
/* Pins the calling thread; a CPU this process may not use is SL_EINVAL. */
SL_MUST_CHECK enum sl_err sl_thread_pin(int cpu);

/* A pool of n_threads workers, the caller being worker 0. sl_pool_run() calls fn(arg, worker, n_workers) on
 * all of them and returns when every one has returned. Waiting is a short spin, then futex: a pool must not
 * collapse when a core is taken away. One caller at a time, from any thread. What fn wrote is visible to the
 * caller. Worker i is pinned to cpus[i % n_cpus] (n_cpus 0 = none); the caller pins itself. Errors: SL_EINVAL
 * (n_threads 0 or over 1024, a CPU this process may not use), SL_ENOMEM. */
struct sl_pool; /* opaque */
SL_MUST_CHECK enum sl_err sl_pool_open(unsigned n_threads, const int *cpus, size_t n_cpus,
                                       struct sl_pool **out);
void sl_pool_close(struct sl_pool *p); /* takes NULL */
unsigned sl_pool_size(const struct sl_pool *p);
typedef void sl_pool_fn(void *arg, unsigned worker, unsigned n_workers);
void sl_pool_run(struct sl_pool *p, sl_pool_fn *fn, void *arg);

#endif
