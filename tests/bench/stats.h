/* tests/bench/stats.h - samples and their percentiles. */
#ifndef SLUICE_TESTS_BENCH_STATS_H
#define SLUICE_TESTS_BENCH_STATS_H

#include <stddef.h>

struct sl_samples {
    double *v;
    size_t n, cap;
};

void sl_samples_add(struct sl_samples *s, double v);
void sl_samples_fini(struct sl_samples *s);
/* Percentile q in [0, 100] by linear interpolation between closest ranks (numpy's default); NaN when empty.
 * Sorts. */
double sl_samples_percentile(struct sl_samples *s, double q);
double sl_samples_mean(const struct sl_samples *s);
double sl_samples_std(const struct sl_samples *s); /* of the samples themselves, over n; 0 when empty */

#endif
