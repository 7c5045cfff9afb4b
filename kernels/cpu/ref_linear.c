/* kernels/cpu/ref_linear.c - the reference product: float32 weights, float32 activations, each output summed
 * in the order of K by multiplication and addition. Weights lie as [panel][K][32] float32 only so that the
 * loop over columns is the inner one. */
#include "kernels/cpu/cpu_dev.h"

#include <math.h>
#include <string.h>
#include "kernels/cpu/vmath.h"

static float inverse_rms(const float *x, float eps, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)n + eps);
}

void sl_ref_norm_add(struct sl_dev *d, const float *y, const float *norm_w, float eps, uint32_t n_rows,
                     uint32_t n, float *x)
{
    (void)d;
    for (; n_rows > 0; n_rows--, x += n, y += n) {
        float r = inverse_rms(y, eps, n);
        for (uint32_t i = 0; i < n; i++)
            x[i] += y[i] * r * norm_w[i];
    }
}

static void prepare_row(const struct sl_linear *a, const float *x, uint32_t n, float *y)
{
    switch (a->prologue) {
    case SL_PRO_NONE:
        memcpy(y, x, n * sizeof *y);
        return;
    case SL_PRO_RMSNORM: {
        float r = inverse_rms(x, a->norm_eps, n);
        for (uint32_t i = 0; i < n; i++)
            y[i] = x[i] * r * a->norm_w[i];
        return;
    }
    case SL_PRO_SWIGLU:
        for (uint32_t i = 0; i < n; i++)
            y[i] = sl_silu(x[i]) * x[n + i];
        return;
    case SL_PRO_GEGLU:
        for (uint32_t i = 0; i < n; i++)
            y[i] = sl_gelu(x[i]) * x[n + i];
        return;
    }
}

struct ref_job {
    const struct sl_linear *a;
    const float *x; /* [n_rows, K] after the prologue */
    uint32_t first_row, n_rows;
};

static void multiply_panel(void *arg, uint32_t p, unsigned worker)
{
    (void)worker;
    const struct ref_job *j = arg;
    const struct sl_weight *w = j->a->w;
    const float *panel = (const float *)w->data + (size_t)p * w->n_cols * SL_PANEL;
    uint32_t n0 = p * SL_PANEL, n = w->n_rows - n0 < SL_PANEL ? w->n_rows - n0 : SL_PANEL;
    for (uint32_t r = 0; r < j->n_rows; r++) {
        const float *x = j->x + (size_t)r * w->n_cols;
        float acc[SL_PANEL] = {0};
        for (uint32_t k = 0; k < w->n_cols; k++)
            for (uint32_t i = 0; i < SL_PANEL; i++)
                acc[i] += x[k] * panel[(size_t)k * SL_PANEL + i];
        float *y = j->a->y + (size_t)(j->first_row + r) * w->n_rows + n0;
        for (uint32_t i = 0; i < n; i++) {
            float v = j->a->bias ? acc[i] + j->a->bias[n0 + i] : acc[i];
            y[i] = j->a->add ? y[i] + v : v;
        }
    }
}

void sl_ref_linear(struct sl_dev *d, const struct sl_linear *a)
{
    const struct sl_weight *w = a->w;
    uint32_t k = w->n_cols;
    size_t stride = sl_linear_x_cols(a->prologue, k);
    for (uint32_t r0 = 0; r0 < a->n_rows; r0 += d->max_rows) {
        uint32_t n = a->n_rows - r0 < d->max_rows ? a->n_rows - r0 : d->max_rows;
        float *x = (float *)d->acts;
        for (uint32_t r = 0; r < n; r++)
            prepare_row(a, a->x + (a->x_rows ? a->x_rows[r0 + r] : r0 + r) * stride, k, x + (size_t)r * k);
        struct ref_job job = {a, x, r0, n};
        sl_cpu_pool_run(d->pool, w->n_panels, multiply_panel, &job);
    }
}
