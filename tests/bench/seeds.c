/* tests/bench/seeds.c - see seeds.h. */
#include "tests/bench/seeds.h"

#include <math.h>

#include "common/base/err.h"
#include "common/base/mem.h"

/* 97.5 % quantile of Student's t. */
static double t975(size_t freedom)
{
    static const double table[] = {NAN,   12.706, 4.303, 3.182, 2.776, 2.571, 2.447,
                                   2.365, 2.306,  2.262, 2.228, 2.201, 2.179, 2.160,
                                   2.145, 2.131,  2.120, 2.110, 2.101, 2.093, 2.086};
    return freedom < SL_COUNTOF(table) ? table[freedom] : 1.96 + 2.52 / (double)freedom; /* within 0.1 % */
}

struct sl_interval sl_seeds_mean(const double *v, size_t n)
{
    double sum = 0, squares = 0;
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(v[i])) {
            sum += v[i];
            m++;
        }
    double mean = m ? sum / (double)m : NAN;
    for (size_t i = 0; i < n; i++)
        if (!isnan(v[i]))
            squares += (v[i] - mean) * (v[i] - mean);
    if (m < 2)
        return (struct sl_interval){mean, NAN, NAN};
    double half = t975(m - 1) * sqrt(squares / (double)(m - 1) / (double)m);
    return (struct sl_interval){mean, mean - half, mean + half};
}

struct sl_interval sl_seeds_ratio(const double *a, const double *b, size_t n)
{
    double *logs = sl_xcalloc(n + 1, sizeof *logs);
    for (size_t i = 0; i < n; i++)
        logs[i] = a[i] > 0 && b[i] > 0 ? log(a[i] / b[i]) : NAN;
    struct sl_interval r = sl_seeds_mean(logs, n);
    sl_free(logs);
    return (struct sl_interval){exp(r.mean), exp(r.low), exp(r.high)};
}
