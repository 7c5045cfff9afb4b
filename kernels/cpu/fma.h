/* kernels/cpu/fma.h - x * y + z rounded once, on any CPU.
 *
 * Where the instruction is missing the C library's fmaf works in software, one call and some hundred cycles
 * an element. In double it is some ten operations that a compiler vectorises: the product of two float32 is
 * exact, and a sum that is not exact is rounded to odd - its last bit says that something follows - so that
 * rounding it to float32 sees on which side of the middle the exact value lies. */
#ifndef SLUICE_KERNELS_CPU_FMA_H
#define SLUICE_KERNELS_CPU_FMA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t sl_double_bits(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

static inline double sl_bits_double(uint64_t u)
{
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static inline float sl_fma_in_double(float x, float y, float z)
{
    double product = (double)x * y, sum = product + z;
    double z_part = sum - product, rest = (product - (sum - z_part)) + (z - z_part);
    uint64_t u = sl_double_bits(sum);
    uint64_t inward = (sl_double_bits(rest) ^ u) >> 63; /* the exact value is nearer to zero */
    uint64_t odd = u + (~u & 1) - ((~u & 1 & inward) << 1);
    return (float)(fabs(rest) > 0.0 ? sl_bits_double(odd) : sum); /* infinities leave NaN: not greater */
}

static inline float sl_fma(float x, float y, float z)
{
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
    return fmaf(x, y, z);
#else
    return sl_fma_in_double(x, y, z);
#endif
}

#endif
