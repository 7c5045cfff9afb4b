/* common/model/ranks.h - the threads of a model's ranks: each calls the ops of its own device. */
#ifndef SLUICE_COMMON_MODEL_RANKS_H
#define SLUICE_COMMON_MODEL_RANKS_H

#include <stdint.h>

#include "common/base/err.h"

struct sl_ranks; /* opaque */

/* Starts the threads of ranks 1 .. n_ranks - 1; rank 0 is whoever calls sl_ranks_run(). */
SL_MUST_CHECK enum sl_err sl_ranks_start(uint32_t n_ranks, struct sl_ranks **out);
void sl_ranks_stop(struct sl_ranks *r); /* takes NULL; not while they run */

/* Calls fn(arg, rank) once for each rank, each in its thread; returns when all are done. One caller at a time. The
 * ranks may wait for each other inside. */
void sl_ranks_run(struct sl_ranks *r, void (*fn)(void *arg, uint32_t rank), void *arg);

#endif
