/* kernels/cpu/half.h - float16 and bfloat16 <-> float32 in integer arithmetic: the same bits as the F16C and
 * AVX512_BF16 instructions give, on any machine. Round to nearest even. bfloat16 has no subnormals here: they
 * become signed zeros, as vcvtneps2bf16 and vdpbf16ps treat them. */
#ifndef SLUICE_KERNELS_CPU_HALF_H
#define SLUICE_KERNELS_CPU_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float sl_bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t sl_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float sl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = (uint32_t)(h & 0x7fffu) << 13;
    /* 2^112 moves the exponent from float16's bias to float32's; a subnormal becomes normal on the way */
    uint32_t finite = sl_float_bits(sl_bits_float(body) * 0x1p112f);
    uint32_t special = body | 0x7f800000u;
    return sl_bits_float(sign | ((h & 0x7c00u) == 0x7c00u ? special : finite));
}

static inline uint16_t sl_f32_to_f16(float f)
{
    uint32_t u = sl_float_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t nan = 0x7e00u | (a >> 13 & 0x3ffu);
    /* adding 0.5 leaves the units of 2^-24 in the low bits, rounded by the adder */
    uint32_t subnormal = sl_float_bits(sl_bits_float(a) + 0.5f) - 0x3f000000u;
    uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    uint32_t h = a > 0x7f800000u ? nan : a >= 0x477ff000u ? 0x7c00u : a < 0x38800000u ? subnormal : normal;
    return (uint16_t)(sign | h);
}

static inline float sl_bf16_to_f32(uint16_t h)
{
    return sl_bits_float((uint32_t)h << 16);
}

static inline uint16_t sl_f32_to_bf16(float f)
{
    uint32_t u = sl_float_bits(f), a = u & 0x7fffffffu;
    uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    uint32_t h = a > 0x7f800000u ? (u >> 16 | 0x40u) : a < 0x00800000u ? (u >> 16 & 0x8000u) : rounded;
    return (uint16_t)h;
}

static inline float sl_bf16_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

/* The least size that rounds to a normal number when the exponent has no end: x86 flushes what is below. */
#define SL_BF16_NORMAL 0x1.ffffffp-127

/* acc + x w as an FMA without subnormal results, x and w of bfloat16. Their product has 16 bits, so in double
 * the sum is exact, or its parts lie so far apart that it rounds like the larger one. */
static inline float sl_bf16_fma(float acc, float x, float w)
{
    double sum = (double)x * w + acc;
    float rounded = (float)sum;
    return fabs(sum) < SL_BF16_NORMAL ? copysignf(0.0f, rounded) : rounded;
}

/* x0 w0 + x1 w1 + acc as vdpbf16ps does it: the odd pair first. None of the arguments may be subnormal: the
 * instruction would take it as zero. */
static inline float sl_bf16_dot2(float acc, float x0, float w0, float x1, float w1)
{
    return sl_bf16_fma(sl_bf16_fma(acc, x1, w1), x0, w0);
}

/* From memory of any alignment. */
static inline float sl_f16_load(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return sl_f16_to_f32(h);
}

static inline float sl_bf16_load(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return sl_bf16_to_f32(h);
}

#endif
