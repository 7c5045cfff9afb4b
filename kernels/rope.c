/* kernels/rope.c - the frequencies of a rotation, the same on every device.
 *
 * They are theta^(-2i/dim), as float32 from a double computed here: the C library's pow may differ between
 * machines. They are rounded as 1 / float(theta^float(2i/dim)), the way models are trained and served
 * elsewhere. */
#include "kernels/backend.h"

#include <math.h>

#define LN2 0x1.62e42fefa39efp-1

/* Natural logarithm: x = m 2^e with m in [sqrt(1/2), sqrt(2)], ln m = 2 atanh((m - 1) / (m + 1)). */
static double ln(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double z = (m - 1) / (m + 1), z2 = z * z, sum = 0;
    for (int i = 27; i >= 1; i -= 2)
        sum = sum * z2 + 1.0 / i;
    return 2 * z * sum + e * LN2;
}

static double exp_double(double x)
{
    double n = rint(x / LN2), r = x - n * LN2, sum = 1;
    for (int i = 18; i >= 1; i--)
        sum = 1 + r / i * sum;
    return ldexp(sum, (int)n);
}

void sl_rope_frequencies(float theta, uint32_t dim, float *out)
{
    double log_theta = ln((double)theta);
    for (uint32_t i = 0; i < dim / 2; i++)
        out[i] = 1.0f / (float)exp_double((double)((float)(2 * i) / (float)dim) * log_theta);
}
