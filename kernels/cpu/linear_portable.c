/* kernels/cpu/linear_portable.c - a packed panel times rows of activations, in C without intrinsics.
 *
 * The inner loops run over the columns of a panel without a condition, so that a compiler can vectorise them.
 * A block of quantised weights is unpacked to int16 [k][column] once for up to ROWS rows; products are summed
 * in int16 as long as they fit, which is exact in any order. The order of the float sums: struct sl_cpu_isa
 * (cpu_dev.h). */
#include "kernels/cpu/isa_portable.h"

#include <math.h>
#include "kernels/cpu/half.h"

#define ROWS 16 /* rows to a pass over the panel */

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

/* Vectors of gcc and clang, which any target has: loops this short are unrolled before they are vectorised.
 */
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

/* An unpacked block: [half h][element k], lanes are columns; Q8_0 less its zero point. */
struct codes {
    i16x16 at[2][SL_QBLOCK];
};

static void unpack(enum sl_dtype type, const uint8_t *block, struct codes *codes)
{
    uint32_t quads = type == SL_Q8_0 ? 8 : 4;
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t s = 0; s < quads; s++, block += 64) {
            u32x16 words; /* a word is the quad of a column */
            memcpy(&words, block, sizeof words);
            for (uint32_t j = 0; j < 4; j++) {
                u32x16 bytes = words >> 8 * j & 255;
                if (type == SL_Q8_0) {
                    codes->at[h][4 * s + j] = __builtin_convertvector(bytes, i16x16) - 128;
                } else {
                    codes->at[h][4 * s + j] = __builtin_convertvector(bytes & 15, i16x16);
                    codes->at[h][16 + 4 * s + j] = __builtin_convertvector(bytes >> 4, i16x16);
                }
            }
        }
}

/* t[column] = sum over k of codes times q. n products at a time fit int16: 16 of 15 * 127, 2 of 128 * 127. */
static inline void dot(uint32_t n, const struct codes *codes, const int8_t *q, int32_t t[SL_PANEL])
{
    i32x16 all[2] = {{0}, {0}};
    for (uint32_t k0 = 0; k0 < SL_QBLOCK; k0 += n) {
        i16x16 sum[2] = {{0}, {0}};
        for (uint32_t k = k0; k < k0 + n; k++) {
            sum[0] += codes->at[0][k] * q[k];
            sum[1] += codes->at[1][k] * q[k];
        }
        all[0] += __builtin_convertvector(sum[0], i32x16);
        all[1] += __builtin_convertvector(sum[1], i32x16);
    }
    memcpy(t, all, sizeof all);
}

static void panel_quantised(const struct sl_weight *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                            uint32_t n, float acc[ROWS][SL_PANEL])
{
    uint32_t n_blocks = w->n_cols / SL_QBLOCK, code_bytes = w->type == SL_Q8_0 ? 1024 : 512;
    const uint8_t *block = w->data + p * w->panel_bytes;
    struct codes codes;
    float d[SL_PANEL], m[SL_PANEL] = {0};
    for (uint32_t b = 0; b < n_blocks; b++, block += w->block_bytes) {
        unpack(w->type, block, &codes);
        for (uint32_t i = 0; i < SL_PANEL; i++) {
            d[i] = sl_f16_load(block + code_bytes + 2 * i);
            if (w->type == SL_Q4_1)
                m[i] = sl_f16_load(block + code_bytes + 64 + 2 * i);
        }
        for (uint32_t r = 0; r < n; r++) {
            size_t at = sl_acts_block(x, r0 + r, b);
            int32_t t[SL_PANEL];
            const int8_t *q = x->q + at * SL_QBLOCK;
            if (w->type == SL_Q8_0)
                dot(2, &codes, q, t); /* the zero point is taken off the codes, not by x->start */
            else
                dot(16, &codes, q, t);
            int32_t start = w->type == SL_Q4_0 ? x->start[at] : 0;
            for (uint32_t i = 0; i < SL_PANEL; i++)
                acc[r][i] = fmaf(x->scale[at] * d[i], (float)(start + t[i]), acc[r][i]);
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
        for (uint32_t i = 0; i < SL_PANEL; i++) {
            float w0 = sl_bf16_flush(sl_bf16_to_f32(panel[2 * i]));
            float w1 = sl_bf16_flush(sl_bf16_to_f32(panel[2 * i + 1]));
            acc[i] = sl_bf16_dot2(acc[i], x0, w0, x1, w1);
        }
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
