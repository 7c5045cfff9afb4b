/* tests/bench/search.c - see search.h. */
#include "tests/bench/search.h"

#include <math.h>

#define MAX_OUTSIDE                                                                                          \
    12 /* a factor of 4096 from the first rate: who is further off has asked the wrong question */

void sl_search_init(struct sl_search *h)
{
    *h = (struct sl_search){.fails = INFINITY};
}

void sl_search_learn(struct sl_search *h, double rate, bool passed)
{
    if (!passed) {
        h->fails = fmin(h->fails, rate);
        if (h->passes >= rate) /* by luck */
            h->passes = 0;
    } else if (rate < h->fails) { /* a rate that passes behind one that does not is none */
        h->passes = fmax(h->passes, rate);
    }
}

double sl_search_next(struct sl_search *h, double first, double tolerance)
{
    if (h->passes > 0 && isfinite(h->fails))
        return h->fails / h->passes <= 1 + tolerance ? 0 : sqrt(h->passes * h->fails);
    if (h->outside++ >= MAX_OUTSIDE)
        return 0;
    return h->passes > 0 ? 2 * h->passes : isfinite(h->fails) ? h->fails / 2 : first;
}
