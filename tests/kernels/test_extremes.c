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

#define COLS       256u /* of x: eight blocks, one of a K type */
#define PATTERNS   12u
#define MOST_BYTES (COLS / 32 * 34)

static const char *const backends[] = {"portable", "avx2", "avx512"};

/* Low or high: all alike, alternating by 1, 2, 4, .. elements, and all of these the other way round. */
static int is_high(uint32_t pattern, uint32_t k)
{
    uint32_t step = pattern / 2, flip = pattern & 1;
    return step == 0 ? (int)flip : (int)((k >> (step - 1) & 1) ^ flip);
}

/* The least or greatest codes of a block of 32 behind its scale and minimum, in types of 4, 5 and 8 bits. */
static void write_codes(enum sl_dtype type, uint32_t pattern, uint32_t first, uint8_t *to)
{
    const int five = type == SL_Q5_0 || type == SL_Q5_1;
    uint8_t *fifth = to, *nibbles = five ? to + 4 : to;
    for (uint32_t i = 0; i < 32; i++) {
        int high = is_high(pattern, first + i);
        if (type == SL_Q8_0) {
            to[i] = high ? 127 : 128; /* as int8: -128 */
        } else if (high) {
            nibbles[i % 16] |= (uint8_t)(i < 16 ? 0x0f : 0xf0);
            if (five)
                fifth[i / 8] |= (uint8_t)(1u << i % 8);
        }
    }
}

/* The same of 256 elements of Q6_K, whose parts all have scale 1. */
static void write_k6(uint32_t pattern, uint8_t *to)
{
    uint8_t *q = to, *h = to + 128;
    uint16_t one = sl_f32_to_f16(1.0f);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t half = i / 128, e = i % 128;
        if (!is_high(pattern, i))
            continue;
        q[half * 64 + e % 64] |= (uint8_t)(e < 64 ? 0x0f : 0xf0);
        h[half * 32 + e % 32] |= (uint8_t)(3u << e / 32 * 2);
    }
    memset(to + 192, 1, 16);
    memcpy(to + 208, &one, 2);
}

/* A row of the least and the greatest codes with scale 1 and, where there is one, minimum -1; returns its bytes. */
static size_t write_row(enum sl_dtype type, uint32_t pattern, uint8_t *to)
{
    const int has_min = type == SL_Q4_1 || type == SL_Q5_1;
    size_t all = sl_dtype_row_bytes(type, COLS), bytes = all / (COLS / 32);
    uint16_t one = sl_f32_to_f16(1.0f), minus_one = sl_f32_to_f16(-1.0f);
    memset(to, 0, all);
    if (type == SL_Q6_K) {
        write_k6(pattern, to);
        return all;
    }
    for (uint32_t b = 0; b < COLS / 32; b++, to += bytes) {
        memcpy(to, &one, 2);
        if (has_min)
            memcpy(to + 2, &minus_one, 2);
        write_codes(type, pattern, b * 32, to + (has_min ? 4 : 2));
    }
    return all;
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
    static const enum sl_dtype types[] = {SL_Q8_0, SL_Q4_0, SL_Q4_1, SL_Q5_0, SL_Q5_1, SL_Q6_K};
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
