/* kernels/cpu/linear_portable.c - a packed panel times rows of activations, in C without intrinsics.
 *
 * The loops over the 32 columns of a panel are the inner ones, so that a compiler can vectorise them; a block
 * of quantised weights is unpacked to int16 once and used for all rows. The order of the sums: struct
 * sl_cpu_isa (cpu_dev.h). */
#include "kernels/cpu/isa_portable.h"

#include <math.h>
#include "kernels/cpu/half.h"

#define ROWS 16 /* rows per unpacked block */

static void store_row(const struct sl_weight *w, uint32_t p, uint32_t r, const float *acc,
                      const struct sl_store *to)
{
    uint32_t n0 = p * SL_PANEL, n = w->n_rows - n0 < SL_PANEL ? w->n_rows - n0 : SL_PANEL;
    float *y = to->y + r * to->stride + n0;
    for (uint32_t i = 0; i < n; i++) {
        float v = to->bias ? acc[i] + to->bias[n0 + i] : acc[i];
        y[i] = to->add ? y[i] + v : v;
    }
}

/* Codes of a packed block as [k][column]. */
static void unpack(enum sl_dtype type, const uint8_t *block, int16_t codes[SL_QBLOCK][SL_PANEL])
{
    uint32_t quads = type == SL_Q8_0 ? 8 : 4;
    for (uint32_t c = 0; c < SL_PANEL; c++)
        for (uint32_t s = 0; s < quads; s++)
            for (uint32_t j = 0; j < 4; j++) {
                uint8_t b = block[((c / 16 * quads + s) * 16 + c % 16) * 4 + j];
                if (type == SL_Q8_0) {
                    codes[4 * s + j][c] = b;
                } else {
                    codes[4 * s + j][c] = b & 15;
                    codes[16 + 4 * s + j][c] = b >> 4;
                }
            }
}

static void panel_quantised(const struct sl_weight *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                            uint32_t n, float acc[ROWS][SL_PANEL])
{
    uint32_t n_blocks = w->n_cols / SL_QBLOCK, code_bytes = w->type == SL_Q8_0 ? 1024 : 512;
    const uint8_t *block = w->data + p * w->panel_bytes;
    int16_t codes[SL_QBLOCK][SL_PANEL];
    float d[SL_PANEL], m[SL_PANEL] = {0};
    for (uint32_t b = 0; b < n_blocks; b++, block += w->block_bytes) {
        unpack(w->type, block, codes);
        for (uint32_t i = 0; i < SL_PANEL; i++) {
            d[i] = sl_f16_load(block + code_bytes + 2 * i);
            if (w->type == SL_Q4_1)
                m[i] = sl_f16_load(block + code_bytes + 64 + 2 * i);
        }
        for (uint32_t r = 0; r < n; r++) {
            size_t at = sl_acts_block(x, r0 + r, b);
            const int8_t *q = x->q + at * SL_QBLOCK;
            int32_t t[SL_PANEL];
            for (uint32_t i = 0; i < SL_PANEL; i++)
                t[i] = w->type == SL_Q4_1 ? 0 : x->start[at];
            for (uint32_t k = 0; k < SL_QBLOCK; k++)
                for (uint32_t i = 0; i < SL_PANEL; i++)
                    t[i] += (int32_t)codes[k][i] * q[k];
            for (uint32_t i = 0; i < SL_PANEL; i++)
                acc[r][i] = fmaf(x->scale[at] * d[i], (float)t[i], acc[r][i]);
            if (w->type == SL_Q4_1)
                for (uint32_t i = 0; i < SL_PANEL; i++)
                    acc[r][i] = fmaf(x->scaled_sum[at], m[i], acc[r][i]);
        }
    }
}

static void panel_f32(const struct sl_weight *w, uint32_t p, const float *x, float *acc)
{
    const float *panel = (const float *)(w->data + p * w->panel_bytes);
    for (uint32_t k = 0; k < w->n_cols; k++, panel += SL_PANEL)
        for (uint32_t i = 0; i < SL_PANEL; i++)
            acc[i] = fmaf(x[k], panel[i], acc[i]);
}

static void panel_f16(const struct sl_weight *w, uint32_t p, const float *x, float *acc)
{
    const uint16_t *panel = (const uint16_t *)(w->data + p * w->panel_bytes);
    for (uint32_t k = 0; k < w->n_cols; k++, panel += SL_PANEL)
        for (uint32_t i = 0; i < SL_PANEL; i++)
            acc[i] = fmaf(x[k], sl_f16_to_f32(panel[i]), acc[i]);
}

static void panel_bf16(const struct sl_weight *w, uint32_t p, const uint16_t *x, float *acc)
{
    const uint16_t *panel = (const uint16_t *)(w->data + p * w->panel_bytes);
    for (uint32_t k = 0; k < (w->n_cols + 1) / 2; k++, panel += 2 * SL_PANEL) {
        float x0 = sl_bf16_to_f32(x[2 * k]), x1 = sl_bf16_to_f32(x[2 * k + 1]);
        for (uint32_t i = 0; i < SL_PANEL; i++)
            acc[i] =
                sl_bf16_dot2(acc[i], x0, sl_bf16_to_f32(panel[2 * i]), x1, sl_bf16_to_f32(panel[2 * i + 1]));
    }
}

void sl_portable_panel(const struct sl_weight *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                       uint32_t r1, const struct sl_store *to)
{
    for (uint32_t r = r0; r < r1; r += ROWS) {
        uint32_t n = r1 - r < ROWS ? r1 - r : ROWS;
        float acc[ROWS][SL_PANEL] = {{0}};
        switch (w->type) {
        case SL_F32:
            for (uint32_t i = 0; i < n; i++)
                panel_f32(w, p, x->f + (r + i) * x->f_stride, acc[i]);
            break;
        case SL_F16:
            for (uint32_t i = 0; i < n; i++)
                panel_f16(w, p, x->f + (r + i) * x->f_stride, acc[i]);
            break;
        case SL_BF16:
            for (uint32_t i = 0; i < n; i++)
                panel_bf16(w, p, x->bf + (r + i) * x->bf_stride, acc[i]);
            break;
        default:
            panel_quantised(w, p, x, r, n, acc);
        }
        for (uint32_t i = 0; i < n; i++)
            store_row(w, p, r + i, acc[i], to);
    }
}
