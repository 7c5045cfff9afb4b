/* tests/bench/roofs.h - what this machine can do at most: arithmetic from registers, reading from memory.
 *
 * An engine's figures say little by themselves on a machine that others share; as part of roofs measured
 * around them they do. */
#ifndef SLUICE_TESTS_BENCH_ROOFS_H
#define SLUICE_TESTS_BENCH_ROOFS_H

#include <stdint.h>
#include "common/base/err.h"
#include "tests/bench/stats.h"

enum sl_roof { SL_ROOF_READ, SL_ROOF_INT8, SL_ROOF_BF16, SL_ROOF_F32, SL_N_ROOFS };

/* "read_gb_s", "int8_gop_s", "bf16_gflop_s", "f32_gflop_s" */
extern const char *const sl_roof_names[SL_N_ROOFS];

struct sl_roofs; /* opaque */

/* n_threads compute threads, thread i pinned to cpus[i] when there are cpus. The memory to read from is in
 * huge pages and touched; it should be many times the last cache. SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_roofs_open(uint32_t n_threads, const int *cpus, size_t n_cpus, uint64_t bytes,
                                        struct sl_roofs **out);
void sl_roofs_close(struct sl_roofs *r); /* takes NULL */

/* One sample with n <= n_threads threads at once, in 1e9 operations or bytes a second; 0 when this CPU has no
 * such instruction. A product and its sum count as two. */
double sl_roofs_sample(struct sl_roofs *r, enum sl_roof which, uint32_t n);

/* A few milliseconds: the arithmetic rate of all threads at once over n_threads times that of one alone, and
 * of one alone over the best one seen so far, whichever is smaller. 1 = a machine of our own; a core that is
 * taken away, or a clock that was throttled, shows. */
double sl_roofs_quiet(struct sl_roofs *r);

#endif
