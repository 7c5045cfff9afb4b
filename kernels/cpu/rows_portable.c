/* kernels/cpu/rows_portable.c - row operations around the products in C without intrinsics: norms, gates,
 * quantisation, rotation, storing of K and V. The order of operations is fixed by struct sl_cpu_isa
 * (cpu_dev.h). */
#include "kernels/cpu/isa_portable.h"

#include <math.h>
#include <string.h>
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/q8.h"
#include "kernels/cpu/vmath.h"

#define LANES 16

static float sum_lanes(float *s)
{
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            s[i] += s[i + step];
    return s[0];
}

/* 1 / sqrt(mean(x^2) + eps) */
static float inverse_rms(const float *x, float eps, uint32_t n)
{
    float lanes[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] = sl_fma(x[i + (uint32_t)j], x[i + (uint32_t)j], lanes[j]);
    for (int j = 0; i < n; i++, j++)
        lanes[j] = sl_fma(x[i], x[i], lanes[j]);
    return 1.0f / sqrtf(sum_lanes(lanes) / (float)n + eps);
}

void sl_portable_rmsnorm_row(const float *x, const float *w, float eps, uint32_t n, float *y)
{
    float r = inverse_rms(x, eps, n);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * r * w[i];
}

void sl_portable_norm_add_row(const float *y, const float *w, float eps, uint32_t n, float *x)
{
    float r = inverse_rms(y, eps, n);
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i] * r * w[i];
}

void sl_portable_swiglu_row(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = sl_silu(x[i]) * x[n + i];
}

void sl_portable_geglu_row(const float *x, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = sl_gelu(x[i]) * x[n + i];
}

/* The scale of a part, its q and their sum. */
static float quant_part(const float *x, int8_t *q, int32_t *sum)
{
    float most = 0.0f;
    for (uint32_t i = 0; i < SL_QPART; i++) {
        float a = fabsf(x[i]);
        most = a > most ? a : most;
    }
    float up = most < 0x1p-100f ? 0.0f : 127.0f / most;
    *sum = 0;
    for (uint32_t i = 0; i < SL_QPART; i++) {
        float v = rintf(x[i] * up);
        v = v < 127.0f ? v : 127.0f; /* only infinities and NaN pass 127 */
        v = v > -127.0f ? v : -127.0f;
        q[i] = (int8_t)v;
        *sum += q[i];
    }
    return most < 0x1p-100f ? 0.0f : most * (1.0f / 127.0f);
}

void sl_portable_quant_row(const float *x, uint32_t n, struct sl_qblock *to, size_t stride)
{
    for (uint32_t b = 0; b < n / SL_QBLOCK; b++, x += SL_QBLOCK, to += stride) {
        float scale[2];
        int32_t sum[2];
        for (uint32_t part = 0; part < 2; part++)
            scale[part] = quant_part(x + part * SL_QPART, to->q + part * SL_QPART, &sum[part]);
        sl_qblock_finish(to, scale, sum);
    }
}

void sl_portable_bf16_row(const float *x, uint32_t n, uint16_t *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = sl_f32_to_bf16(x[i]);
}

void sl_portable_angles(uint32_t pos, const float *freq, uint32_t n, float *cos_out, float *sin_out)
{
    for (uint32_t i = 0; i < n; i++)
        sl_sincos((float)pos * freq[i], &sin_out[i], &cos_out[i]);
}

void sl_portable_rotate(float *head, uint32_t n_pairs, enum sl_rope_layout layout, const float *cos_in,
                        const float *sin_in)
{
    uint32_t step = layout == SL_ROPE_PAIRS ? 2 : 1, apart = layout == SL_ROPE_PAIRS ? 1 : n_pairs;
    for (uint32_t i = 0; i < n_pairs; i++) {
        float *a = &head[i * step], *b = a + apart, x = *a, y = *b;
        *a = sl_fma(x, cos_in[i], -(y * sin_in[i]));
        *b = sl_fma(x, sin_in[i], y * cos_in[i]);
    }
}

void sl_portable_kv_store(const float *x, uint32_t n, enum sl_dtype type, void *to)
{
    uint16_t *h = to;
    if (type == SL_F32)
        memcpy(to, x, n * sizeof *x);
    else if (type == SL_F16)
        for (uint32_t i = 0; i < n; i++)
            h[i] = sl_f32_to_f16(x[i]);
    else
        sl_portable_bf16_row(x, n, h);
}

static void quantise_int8(const float *x, uint32_t n, int8_t *to, void *scale)
{
    float most = sl_q8_most(x, n), up = sl_q8_up(most, SL_Q8_VALUE), worth = sl_q8_scale(most, SL_Q8_VALUE);
    for (uint32_t i = 0; i < n; i++)
        to[i] = (int8_t)sl_q8_round(x[i] * up, SL_Q8_VALUE);
    memcpy(scale, &worth, sizeof worth);
}

void sl_portable_kv_quantise(const float *x, uint32_t n, enum sl_dtype type, void *to, void *scale)
{
    if (type == SL_FP8)
        sl_fp8_row(x, n, to, scale);
    else
        quantise_int8(x, n, to, scale);
}
