/* common/model/logits_row.c - each pass is written once, as plain loops, and compiled for three vector
 * widths.
 *
 * The compiler vectorises over entries (or over the lanes that the pass names), never over the order of a
 * sum, and the build neither contracts nor reorders floating point: so all widths give the same bits.
 * Rejected: intrinsics (the loops are simple enough), and the compiler's own clones (their resolvers run
 * before the sanitizers are set up). */
#include "common/model/logits_row.h"

#include <math.h>
#include <stddef.h>

#include "common/base/exact_math.h"

#define INLINE           static inline __attribute__((always_inline))
#define LAST_BIN         (SL_ROW_BINS - 1)
#define MEMBERS_PER_LOOK 64u

INLINE float max_of(const float *x, uint32_t n)
{
    float m[SL_ROW_LANES];
    for (uint32_t j = 0; j < SL_ROW_LANES; j++)
        m[j] = -INFINITY;
    for (uint32_t i = 0; i + SL_ROW_LANES <= n; i += SL_ROW_LANES)
        for (uint32_t j = 0; j < SL_ROW_LANES; j++)
            m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (uint32_t i = n - n % SL_ROW_LANES; i < n; i++)
        m[0] = x[i] > m[0] ? x[i] : m[0];
    for (uint32_t half = SL_ROW_LANES / 2; half; half /= 2)
        for (uint32_t j = 0; j < half; j++)
            m[j] = m[j + half] > m[j] ? m[j + half] : m[j];
    return m[0];
}

INLINE void block_max(const float *x, uint32_t n, float *out)
{
    uint32_t full = n / SL_ROW_BLOCK;
    for (uint32_t b = 0; b < full; b++)
        out[b] = max_of(&x[(size_t)b * SL_ROW_BLOCK], SL_ROW_BLOCK);
    if (n % SL_ROW_BLOCK)
        out[full] = max_of(&x[(size_t)full * SL_ROW_BLOCK], n % SL_ROW_BLOCK);
}

INLINE void weigh(const float *x, uint32_t n, float max, float inv_temperature, float *restrict weight,
                  uint16_t *restrict bin)
{
    for (uint32_t i = 0; i < n; i++) {
        float d = (x[i] - max) * inv_temperature;
        weight[i] = sl_exact_exp(d);
        float depth = d * -(float)SL_BINS_PER_NAT;
        depth = depth < (float)LAST_BIN ? depth : (float)LAST_BIN;
        int32_t b = (int32_t)depth;
        bin[i] = (uint16_t)(x[i] > -INFINITY ? b : (int32_t)SL_ROW_NO_BIN);
    }
}

INLINE void members(const uint16_t *bin, uint32_t n, uint16_t which, uint32_t count, uint32_t *out)
{
    uint32_t got = 0, i = 0;
    for (; got < count && i + MEMBERS_PER_LOOK <= n; i += MEMBERS_PER_LOOK) {
        uint16_t any = 0;
        for (uint32_t j = 0; j < MEMBERS_PER_LOOK; j++)
            any |= bin[i + j] == which;
        for (uint32_t j = 0; any && j < MEMBERS_PER_LOOK; j++)
            if (bin[i + j] == which)
                out[got++] = i + j;
    }
    for (; got < count; i++)
        if (bin[i] == which)
            out[got++] = i;
}

INLINE double sum_exp(const float *x, uint32_t n, float max)
{
    double total = 0;
    for (uint32_t i = 0; i < n;) {
        float lane[SL_ROW_LANES] = {0};
        uint32_t end = n - i > SL_ROW_FLOAT_SUM ? i + SL_ROW_FLOAT_SUM : n;
        for (; i + SL_ROW_LANES <= end; i += SL_ROW_LANES)
            for (uint32_t j = 0; j < SL_ROW_LANES; j++)
                lane[j] += sl_exact_exp(x[i + j] - max);
        for (; i < end; i++)
            lane[0] += sl_exact_exp(x[i] - max);
        for (uint32_t j = 0; j < SL_ROW_LANES; j++)
            total += (double)lane[j];
    }
    return total;
}

/* The table `name` with the passes compiled under attribute `target`. */
#define PASSES(name, target)                                                                                 \
    target static void name##_block_max(const float *x, uint32_t n, float *out)                              \
    {                                                                                                        \
        block_max(x, n, out);                                                                                \
    }                                                                                                        \
    target static void name##_weigh(const float *x, uint32_t n, float max, float inv_temperature,            \
                                    float *weight, uint16_t *bin)                                            \
    {                                                                                                        \
        weigh(x, n, max, inv_temperature, weight, bin);                                                      \
    }                                                                                                        \
    target static void name##_members(const uint16_t *bin, uint32_t n, uint16_t which, uint32_t count,       \
                                      uint32_t *out)                                                         \
    {                                                                                                        \
        members(bin, n, which, count, out);                                                                  \
    }                                                                                                        \
    target static double name##_sum_exp(const float *x, uint32_t n, float max)                               \
    {                                                                                                        \
        return sum_exp(x, n, max);                                                                           \
    }                                                                                                        \
    static const struct sl_row_passes name##_passes = {#name, name##_block_max, name##_weigh,                \
                                                       name##_members, name##_sum_exp};

PASSES(plain, )

#if defined(__x86_64__)
PASSES(avx2, __attribute__((target("avx2"))))
#if defined(__clang__)
PASSES(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), min_vector_width(512))))
#else
PASSES(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))))
#endif

const struct sl_row_passes *const *sl_row_passes_all(void)
{
    static const struct sl_row_passes *const all[] = {&avx512_passes, &avx2_passes, &plain_passes, NULL};
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return all;
    return __builtin_cpu_supports("avx2") ? all + 1 : all + 2;
}
#else
const struct sl_row_passes *const *sl_row_passes_all(void)
{
    static const struct sl_row_passes *const all[] = {&plain_passes, NULL};
    return all;
}
#endif
