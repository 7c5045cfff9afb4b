/* tests/bench/seeds.h - what several seeds say together: a mean and its 95 % interval by Student's t. The seeds are
 * the independent repeats; requests within one share a queue and are not. */
#ifndef SLUICE_TESTS_BENCH_SEEDS_H
#define SLUICE_TESTS_BENCH_SEEDS_H

#include <stddef.h>

struct sl_interval {
    double mean, low, high; /* low and high are NaN with a single value */
};
/* Values that are NaN are left out; all NaN when none is left. */
struct sl_interval sl_seeds_mean(const double *v, size_t n);
/* Of the ratios a[i] / b[i], paired by seed, on a logarithmic scale; a pair with a value that is not above 0 is left
 * out. */
struct sl_interval sl_seeds_ratio(const double *a, const double *b, size_t n);

#endif
