#include "tests/kernels/op_setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/mem.h"
#include "kernels/cpu/half.h"

uint32_t op_rand_u32(struct op_rand *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = r->state ^ r->state >> 29;
    return (uint32_t)(x * 0x9e3779b97f4a7c15u >> 32);
}

uint32_t op_rand_below(struct op_rand *r, uint32_t n)
{
    return (uint32_t)((uint64_t)op_rand_u32(r) * n >> 32);
}

float op_rand_float(struct op_rand *r)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(op_rand_u32(r) >> 8) * 0x1p-24f - 0.5f;
    return op_rand_below(r, 97) == 0 ? sum * 10.0f : sum * 1.7f;
}

void op_rand_floats(struct op_rand *r, float *to, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        to[i] = op_rand_float(r) * scale;
}

/* Where a block has its float16 numbers: one, or two with the minimum's second. */
static size_t halves_at(enum sl_dtype type, size_t block_bytes)
{
    return type == SL_Q6_K ? block_bytes - 2 : 0;
}

static int has_min(enum sl_dtype type)
{
    return type == SL_Q4_1 || type == SL_Q5_1 || type == SL_Q4_K || type == SL_Q5_K;
}

/* The largest of what the float16 scale of a type is multiplied with. */
static float code_max(enum sl_dtype type)
{
    switch (type) {
    case SL_Q8_0:
        return 64.0f;
    case SL_Q5_0:
    case SL_Q5_1:
        return 16.0f;
    case SL_Q4_K:
        return 8.0f * 64.0f;
    case SL_Q5_K:
        return 16.0f * 64.0f;
    case SL_Q6_K:
        return 32.0f * 128.0f;
    default:
        return 8.0f;
    }
}

static void random_block(struct op_rand *r, enum sl_dtype type, float scale, uint8_t *to)
{
    size_t bytes = sl_dtype_row_bytes(type, sl_dtype_block(type));
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)op_rand_u32(r);
    float d = op_rand_float(r) * scale / code_max(type);
    uint16_t h = sl_f32_to_f16(d);
    uint8_t *halves = to + halves_at(type, bytes);
    memcpy(halves, &h, 2);
    if (has_min(type)) {
        int k_type = sl_dtype_block(type) > 32;
        h = sl_f32_to_f16(k_type ? d * 8.0f : -7.5f * d + op_rand_float(r) * scale * 0.1f);
        memcpy(halves + 2, &h, 2);
    }
}

void *op_random_tensor(struct op_rand *r, enum sl_dtype type, uint32_t n_rows, uint32_t n_cols,
                       struct sl_tensor_view *out)
{
    size_t row = sl_dtype_row_bytes(type, n_cols);
    uint8_t *data = sl_xcalloc(n_rows, row);
    float scale = 1.0f / sqrtf((float)n_cols);
    for (size_t i = 0; i < (size_t)n_rows * row;) {
        float x = op_rand_float(r) * scale;
        uint16_t h = type == SL_F16 ? sl_f32_to_f16(x) : sl_f32_to_bf16(x);
        if (type == SL_F32) {
            memcpy(data + i, &x, 4);
            i += 4;
        } else if (type == SL_F16 || type == SL_BF16) {
            memcpy(data + i, &h, 2);
            i += 2;
        } else {
            random_block(r, type, scale, data + i);
            i += sl_dtype_row_bytes(type, sl_dtype_block(type));
        }
    }
    *out = (struct sl_tensor_view){type, n_rows, n_cols, data};
    return data;
}

const struct sl_backend_ops *op_backend(const char *name)
{
    const struct sl_backend_ops *ops;
    struct sl_why why = {""};
    enum sl_err e = sl_backend_find(name, &ops, &why);
    if (e == SL_EUNSUPPORTED)
        return NULL;
    if (e != SL_OK) {
        fprintf(stderr, "%s: %s\n", name, why.text);
        abort();
    }
    return ops;
}

struct sl_dev *op_open(const struct sl_backend_ops *ops, uint32_t n_threads, uint32_t max_rows)
{
    struct sl_dev_conf conf = {.n_threads = n_threads, .max_rows = max_rows};
    struct sl_dev *d;
    struct sl_why why = {""};
    if (ops->open(&conf, &d, &why) != SL_OK) {
        fprintf(stderr, "%s: %s\n", ops->name, why.text);
        abort();
    }
    return d;
}

void op_assert_same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            fprintf(stderr, "%s: element %zu of %zu differs: %a and %a\n", what, i, n, (double)a[i],
                    (double)b[i]);
            abort();
        }
}

double op_relative_error(const float *a, const float *b, size_t n)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return size > 0 ? sqrt(diff / size) : sqrt(diff);
}
