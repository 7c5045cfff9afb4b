/* common/model/exact_math.c - log(x) = e log(2) + 2 atanh((m - 1) / (m + 1)) with m in [sqrt(1/2), sqrt(2)),
 * by its series: scalar and rarely called (once per sampled row), so that it may be slow. */
#include "common/model/exact_math.h"

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
