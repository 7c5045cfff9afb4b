/* Products at the ends of their number ranges: codes and activations as large as they get, where integer sums
 * of the inner loops would saturate or wrap, and bfloat16 near the smallest normal number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "kernels/cpu/half.h"
#include "tests/kernels/op_setup.h"

#define COLS       64u /* of x: two blocks */
#define PATTERNS   12u
#define MOST_BYTES (COLS / 32 * 34)

static const char *const backends[] = {"portable", "avx2", "avx512"};

/* Low or high: all alike, alternating by 1, 2, 4, .. elements, and all of these the other way round. */
static int is_high(uint32_t pattern, uint32_t k)
{
    uint32_t step = pattern / 2, flip = pattern & 1;
    return step == 0 ? (int)flip : (int)((k >> (step - 1) & 1) ^ flip);
}

/* A row of the least and the greatest codes with scale 1 and, for Q4_1, minimum -1; returns its bytes. */
static size_t write_row(enum sl_dtype type, uint32_t pattern, uint8_t *to)
{
    size_t head = type == SL_Q4_1 ? 4 : 2, bytes = sl_dtype_row_bytes(type, 32);
    uint16_t one = sl_f32_to_f16(1.0f), minus_one = sl_f32_to_f16(-1.0f);
    for (uint32_t b = 0; b < COLS / 32; b++, to += bytes) {
        memset(to, 0, bytes);
        memcpy(to, &one, 2);
        if (type == SL_Q4_1)
            memcpy(to + 2, &minus_one, 2);
        for (uint32_t i = 0; i < 32; i++) {
            int high = is_high(pattern, b * 32 + i);
            if (type == SL_Q8_0)
                to[head + i] = high ? 127 : 128; /* as int8: -128 */
            else if (high)
                to[head + i % 16] |= (uint8_t)(i < 16 ? 0x0f : 0xf0);
        }
    }
    return bytes * (COLS / 32);
}

struct product {
    const struct sl_backend_ops *ops;
    struct sl_dev *d;
    struct sl_weight *w;
};

static int open_product(const char *backend, const struct sl_tensor_view *v, struct product *p)
{
    p->ops = op_backend(backend);
    if (!p->ops)
        return 0;
    p->d = op_open(p->ops, 1, 64);
    assert_int_equal(p->ops->weight_pack(p->d, v, 1, &p->w, NULL), SL_OK);
    return 1;
}

static void multiply(const struct product *p, const float *x, uint32_t n_rows, float *y)
{
    struct sl_linear a = {.w = p->w, .x = x, .y = y, .n_rows = n_rows};
    p->ops->linear(p->d, &a);
}

static void close_product(struct product *p)
{
    p->ops->weight_free(p->d, p->w);
    p->ops->close(p->d);
}

static void largest_codes_times_largest_activations_are_exact(void **state)
{
    (void)state;
    static const enum sl_dtype types[] = {SL_Q8_0, SL_Q4_0, SL_Q4_1};
    float x[PATTERNS * COLS], row[COLS];
    for (uint32_t i = 0; i < PATTERNS; i++)
        for (uint32_t k = 0; k < COLS; k++)
            x[i * COLS + k] = is_high(i, k) ? 1.0f : -1.0f; /* codes 127 and -127 */
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        uint8_t file[PATTERNS * MOST_BYTES];
        size_t bytes = 0;
        for (uint32_t i = 0; i < PATTERNS; i++)
            bytes += write_row(types[t], i, file + bytes);
        struct sl_tensor_view v = {types[t], PATTERNS, COLS, file};
        for (size_t b = 0; b < SL_COUNTOF(backends); b++) {
            struct product p;
            if (!open_product(backends[b], &v, &p))
                continue;
            for (uint32_t n_rows = 1; n_rows <= PATTERNS; n_rows++) {
                float y[PATTERNS * PATTERNS];
                multiply(&p, x, n_rows, y);
                for (uint32_t i = 0; i < n_rows * PATTERNS; i++) {
                    sl_dequant_row(types[t], file + i % PATTERNS * (bytes / PATTERNS), COLS, row);
                    double want = 0, size = 0;
                    for (uint32_t k = 0; k < COLS; k++) {
                        want += (double)row[k] * x[i / PATTERNS * COLS + k];
                        size += fabs((double)row[k]);
                    }
                    if (fabs(y[i] - want) > size * 1e-6)
                        fail_msg("%s %s column %u row %u: %g, not %g", backends[b], sl_dtype_name(types[t]),
                                 i % PATTERNS, i / PATTERNS, (double)y[i], want);
                }
            }
            close_product(&p);
        }
    }
}

/* A bfloat16 of random mantissa with an exponent of [low, low + 6). */
static uint16_t random_bf16(struct op_rand *r, int low)
{
    float x = ldexpf(1.0f + (float)op_rand_below(r, 128) / 128.0f, low + (int)op_rand_below(r, 6));
    return sl_f32_to_bf16(op_rand_below(r, 2) ? x : -x);
}

/* Sums of a few products near 2^-126, where results are flushed to zero. */
static void smallest_bfloat16_products_have_the_same_bits(void **state)
{
    (void)state;
    struct op_rand r = {21};
    enum { ROWS = 32, N = 96, K = 6 };
    uint16_t *w = sl_xcalloc(N * K, sizeof *w);
    float *x = sl_xcalloc(ROWS * K, sizeof *x), *want = sl_xcalloc(ROWS * N, sizeof *want),
          *got = sl_xcalloc(ROWS * N, sizeof *got);
    for (int round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < N * K; i++)
            w[i] = op_rand_below(&r, 40) == 0 ? (uint16_t)op_rand_below(&r, 128) /* subnormal: as zero */
                                              : random_bf16(&r, -66);
        for (uint32_t i = 0; i < ROWS * K; i++)
            x[i] = sl_bf16_to_f32(random_bf16(&r, -66));
        struct sl_tensor_view v = {SL_BF16, N, K, w};
        for (size_t b = 0; b < SL_COUNTOF(backends); b++) {
            struct product p;
            if (!open_product(backends[b], &v, &p))
                continue;
            multiply(&p, x, ROWS, b == 0 ? want : got);
            if (b > 0)
                op_assert_same_bits(got, want, ROWS * N, backends[b]);
            close_product(&p);
        }
    }
    sl_free(w);
    sl_free(x);
    sl_free(want);
    sl_free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(largest_codes_times_largest_activations_are_exact),
        cmocka_unit_test(smallest_bfloat16_products_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
