/* tests/bench/stats.c - see stats.h. */
#include "tests/bench/stats.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/order.h"

void sl_samples_add(struct sl_samples *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->v = sl_xrealloc_array(s->v, s->cap, sizeof *s->v);
    }
    s->v[s->n++] = v;
}

void sl_samples_fini(struct sl_samples *s)
{
    sl_free(s->v);
    *s = (struct sl_samples){0};
}

double sl_samples_percentile(struct sl_samples *s, double q)
{
    if (s->n == 0)
        return NAN;
    qsort(s->v, s->n, sizeof *s->v, sl_order_f64);
    double rank = q / 100.0 * (double)(s->n - 1);
    size_t lo = (size_t)rank;
    if (lo + 1 >= s->n)
        return s->v[s->n - 1];
    return s->v[lo] + (rank - (double)lo) * (s->v[lo + 1] - s->v[lo]);
}

double sl_samples_mean(const struct sl_samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->v[i];
    return s->n ? sum / (double)s->n : NAN;
}

double sl_samples_std(const struct sl_samples *s)
{
    double mean = sl_samples_mean(s), sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += (s->v[i] - mean) * (s->v[i] - mean);
    return s->n ? sqrt(sum / (double)s->n) : 0;
}
