/* common/base/thread.h - named threads, optionally pinned. */
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

#endif
