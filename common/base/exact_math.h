/* common/base/exact_math.h - exp and log with the same bits on every machine (the C library picks its own by
 * CPU).
 *
 * Plain IEEE operations in a fixed order, no FMA (the build sets -ffp-contract=off): the compiler may put
 * many elements into one vector register, each element's bits stay the same. */
#ifndef SLUICE_COMMON_BASE_EXACT_MATH_H
#define SLUICE_COMMON_BASE_EXACT_MATH_H

#include <stdint.h>
#include <string.h>

/* e^x for x <= 0, relative error below 2e-7; x below -87 counts as -87 (2e-38, the smallest normal numbers).
 * Coefficients: Cephes expf. Inline: the sampler calls it for every entry of a vocabulary and wants it
 * vectorised. */
#if defined(__CUDACC__)
__host__ __device__
#endif
    static inline float
    sl_exact_exp(float x)
{
    float c = x < -87.0f ? -87.0f : x;
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    float shifted = c * 1.44269504088896341f + magic;
    float k = shifted - magic;
    float r = (c - k * 0.693359375f) - k * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r) * r + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u; /* 2^k */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* Natural logarithm of a positive, finite, normal x; error below 1e-15 relative to max(1, |result|). */
double sl_exact_log(double x);

/* e^x for |x| <= 700, relative error below 1e-14. */
double sl_exact_exp_double(double x);

#endif
