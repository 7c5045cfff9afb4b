/* kernels/cpu/linear_portable.c - a packed panel times rows of activations, in C without intrinsics.
 *
 * The inner loops run over the columns of a panel without a condition, so that a compiler can vectorise them.
 * A block of quantised weights is unpacked to int16 [k][column] once for up to ROWS rows; products are summed
 * in int16 as long as they fit, which is exact in any order. The order of the float sums: struct sl_cpu_isa
 * (cpu_dev.h). */
#include "kernels/cpu/isa_portable.h"

#include "kernels/cpu/fma.h"
#include "kernels/cpu/half.h"

#define ROWS 16 /* rows to a pass over the panel */

static void store_row(const struct sl_segment *w, uint32_t p, uint32_t r, const float *acc,
                      const struct sl_store *to)
{
    uint32_t n0 = p * SL_PANEL, n = w->n_rows - n0 < SL_PANEL ? w->n_rows - n0 : SL_PANEL;
    float *y = to->y + r * to->stride + n0;
    for (uint32_t i = 0; i < n; i++) {
        float v = to->bias ? acc[i] + to->bias[n0 + i] : acc[i];
        y[i] = to->add ? y[i] + v : v;
    }
}

/* Vectors of gcc and clang of 16 bytes, which any target has or is given by pieces: loops this short are
 * unrolled before they are vectorised. Only operations lane by lane on lanes of one width, which are good on
 * every target. */
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

#define GROUPS (SL_PANEL / 8) /* of 8 columns */

/* An unpacked block: codes [group][element k] less their zero point, where a 32-bit lane i has columns i (low
 * half) and i + 4 (high half) of the group; and what they are multiplied with: d[1] is that of elements 16 to
 * 31, m of types with a minimum. */
struct block {
    i16x8 codes[GROUPS][SL_QBLOCK];
    float d[2][SL_PANEL], m[SL_PANEL];
};

/* bits of `mask` of byte k % 4 of the words of 8 columns at p, `shift` up */
static inline void bits_at(const uint8_t *p, uint32_t k, uint32_t shift, uint32_t mask, u32x4 *out)
{
    u32x4 low, high; /* a word is the quad of a column */
    memcpy(&low, p, sizeof low);
    memcpy(&high, p + sizeof low, sizeof high);
    *out = (low >> (k % 4 * 8 + shift) & mask) | (high >> (k % 4 * 8 + shift) & mask) << 16;
}

static void unpack(uint32_t bits, int zero, const uint8_t *p, i16x8 codes[GROUPS][SL_QBLOCK])
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t h = g / 2;
        const uint8_t *at = p + g % 2 * 32;
        for (uint32_t k = 0; k < SL_QBLOCK; k++) {
            u32x4 code, high = {0};
            if (bits == 8)
                bits_at(at + k / 4 * 128 + h * 64, k, 0, 255, &code);
            else
                bits_at(at + k % 16 / 4 * 128 + h * 64, k, k / 16 * 4, 15, &code);
            if (bits == 5)
                bits_at(at + 512 + h * 64, k, k / 4, 1, &high);
            else if (bits == 6)
                bits_at(at + 512 + h * 128 + k / 16 * 64, k, k % 16 / 4 * 2, 3, &high);
            codes[g][k] = (i16x8)(code | high << 4) - (int16_t)zero;
        }
    }
}

static void load_scales(enum sl_dtype type, const uint8_t *head, const uint8_t *p, struct block *b)
{
    for (uint32_t i = 0; i < SL_PANEL; i++) {
        b->m[i] = 0.0f;
        switch (type) {
        case SL_Q4_K:
        case SL_Q5_K:
            b->d[0][i] = b->d[1][i] = sl_f16_load(head + 2 * i) * (float)p[i];
            b->m[i] = -(sl_f16_load(head + 2 * SL_PANEL + 2 * i) * (float)p[SL_PANEL + i]);
            break;
        case SL_Q6_K:
            b->d[0][i] = sl_f16_load(head + 2 * i) * (float)(int8_t)p[i];
            b->d[1][i] = sl_f16_load(head + 2 * i) * (float)(int8_t)p[SL_PANEL + i];
            break;
        default:
            b->d[0][i] = b->d[1][i] = sl_f16_load(p + 2 * i);
            if (sl_form_of(type).has_min)
                b->m[i] = sl_f16_load(p + 2 * SL_PANEL + 2 * i);
        }
    }
}

/* t[column] = sum over a part of codes times q, `fit` products at a time in int16. */
static inline void dot(uint32_t fit, const struct block *b, uint32_t k0, const int8_t *q, int32_t t[SL_PANEL])
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        i32x4 low = {0}, high = {0};
        for (uint32_t k1 = k0; k1 < k0 + SL_QPART; k1 += fit) {
            i16x8 sum = {0};
            for (uint32_t k = k1; k < k1 + fit; k++)
                sum += b->codes[g][k] * q[k];
            low += (i32x4)((u32x4)sum << 16) >> 16;
            high += (i32x4)sum >> 16;
        }
        memcpy(t + 8 * g, &low, sizeof low);
        memcpy(t + 8 * g + 4, &high, sizeof high);
    }
}

/* What fits: 16 products of at most 15 * 127, 8 of 31 * 127, 8 of 32 * 127, 2 of 128 * 127. */
static inline void dot_bits(uint32_t bits, const struct block *b, uint32_t k0, const int8_t *q,
                            int32_t t[SL_PANEL])
{
    if (bits == 4)
        dot(16, b, k0, q, t);
    else if (bits == 8)
        dot(2, b, k0, q, t);
    else
        dot(8, b, k0, q, t);
}

static float zero_of(enum sl_dtype type, const struct sl_qblock *x)
{
    switch (type) {
    case SL_Q4_0:
        return x->zero_8;
    case SL_Q5_0:
        return x->zero_16;
    case SL_Q8_0:
        return x->zero_128;
    default:
        return -0.0f; /* leaves any product as it is */
    }
}

static void add_block(const struct sl_form *f, enum sl_dtype type, const struct block *b,
                      const struct sl_qblock *x, float *acc)
{
    int32_t t[2][SL_PANEL];
    float zero = zero_of(type, x);
    /* the block's codes are less their zero point, for products that fit: this is what its sums lack */
    int32_t point = f->has_min ? 0 : 1 << (f->code_bits - 1), lack[2];
    for (int part = 0; part < 2; part++)
        lack[part] = x->start_32[part] / -32 * point;
    dot_bits(f->code_bits, b, 0, x->q, t[0]);
    dot_bits(f->code_bits, b, SL_QPART, x->q, t[1]);
    if (type == SL_Q6_K) {
        for (uint32_t i = 0; i < SL_PANEL; i++) {
            acc[i] = sl_fma(x->scale[0] * b->d[0][i], (float)t[0][i], acc[i]);
            acc[i] = sl_fma(x->scale[1] * b->d[1][i], (float)t[1][i], acc[i]);
        }
        return;
    }
    for (uint32_t i = 0; i < SL_PANEL; i++) {
        float sum = sl_fma(x->scale[0], (float)(t[0][i] + lack[0]), zero);
        sum = sl_fma(x->scale[1], (float)(t[1][i] + lack[1]), sum);
        acc[i] = sl_fma(b->d[0][i], sum, acc[i]);
    }
    if (f->has_min)
        for (uint32_t i = 0; i < SL_PANEL; i++)
            acc[i] = sl_fma(x->scaled_sum, b->m[i], acc[i]);
}

static void panel_quantised(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                            uint32_t n, float acc[ROWS][SL_PANEL])
{
    const struct sl_form f = sl_form_of(w->type);
    const int zero = f.has_min ? 0 : 1 << (f.code_bits - 1);
    const uint8_t *panel = w->data + p * w->panel_bytes;
    struct block block;
    for (uint32_t b = 0; b < w->n_cols / SL_QBLOCK; b++) {
        const uint8_t *head = panel + b / f.n_blocks * sl_form_bytes(&f),
                      *at = head + f.head + b % f.n_blocks * (f.codes + f.scales);
        unpack(f.code_bits, zero, at, block.codes);
        load_scales(w->type, head, at + f.codes, &block);
        for (uint32_t r = 0; r < n; r++)
            add_block(&f, w->type, &block, sl_acts_block(x, r0 + r, b), acc[r]);
    }
}

static void panel_f32(const struct sl_segment *w, uint32_t p, const float *x, float *acc)
{
    const float *panel = (const float *)(w->data + p * w->panel_bytes);
    for (uint32_t k = 0; k < w->n_cols; k++, panel += SL_PANEL)
        for (uint32_t i = 0; i < SL_PANEL; i++)
            acc[i] = sl_fma(x[k], panel[i], acc[i]);
}

static void panel_f16(const struct sl_segment *w, uint32_t p, const float *x, float *acc)
{
    const uint16_t *panel = (const uint16_t *)(w->data + p * w->panel_bytes);
    for (uint32_t k = 0; k < w->n_cols; k++, panel += SL_PANEL)
        for (uint32_t i = 0; i < SL_PANEL; i++)
            acc[i] = sl_fma(x[k], sl_f16_to_f32(panel[i]), acc[i]);
}

static void panel_bf16(const struct sl_segment *w, uint32_t p, const uint16_t *x, float *acc)
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

void sl_portable_panel(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
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
