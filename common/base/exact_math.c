/* common/base/exact_math.c - log(x) = e log(2) + 2 atanh((m - 1) / (m + 1)) with m in [sqrt(1/2), sqrt(2)),
 * by its series; exp(x) = 2^n exp(r) with |r| <= log(2) / 2, by its series. Scalar and rarely called (once
 * per sampled row, when a model is opened), so that they may be slow. */
#include "common/base/exact_math.h"

#include <math.h>

double sl_exact_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t e = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double t = (m - 1) / (m + 1), t2 = t * t; /* |t| < 0.172: 12 terms reach 2^-60 */
    double sum = 0;
    for (int n = 23; n >= 1; n -= 2)
        sum = sum * t2 + 1.0 / n;
    /* log(2) in two parts, the first with 21 zero bits at its end, so that e * high is exact. */
    return (double)e * 6.93147180369123816490e-01 + (2 * t * sum + (double)e * 1.90821492927058770002e-10);
}

double sl_exact_exp_double(double x)
{
    double n = rint(x * 1.44269504088896340736);
    /* log(2) in the two parts of above: |n| * high is exact. */
    double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10, sum = 1;
    for (int i = 18; i >= 1; i--)
        sum = 1 + r / i * sum;
    return ldexp(sum, (int)n);
}
