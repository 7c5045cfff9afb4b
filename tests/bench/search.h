/* tests/bench/search.h - the highest rate that passes, by doubling or halving and then bisection. Pure: what was tried
 * in, what to try next out. */
#ifndef SLUICE_TESTS_BENCH_SEARCH_H
#define SLUICE_TESTS_BENCH_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

struct sl_search {
    double passes, fails; /* the highest rate that did, the lowest that did not; 0, INFINITY = none yet */
    uint32_t outside;     /* doublings and halvings so far */
};

void sl_search_init(struct sl_search *h);
void sl_search_learn(struct sl_search *h, double rate, bool passed);
/* The rate to try next: first when nothing is known, within a factor of (1 + tolerance) at last; 0 = ended, and passes
 * is the answer (0 when no rate passed). */
double sl_search_next(struct sl_search *h, double first, double tolerance);

#endif
