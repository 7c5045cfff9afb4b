/* The K types and those of five bits: what they mean (vectors of gguf's own quants module and,
 * when there, of ggml's C code), that the packed matrix has the same values, and that it is as exact over
 * batches, threads and backends as any. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/philox.h"
#include "kernels/backend.h"
#include "tests/support/make_model/make_model.h"

#define MAX_VALUES 512
#define N_OUT      71 /* two panels and a rest */
#define N_COLS     768
#define N_ROWS     21

static const struct {
    enum sl_dtype type;
    const char *name;
} types[] = {{SL_Q5_0, "q5_0"}, {SL_Q5_1, "q5_1"}, {SL_Q4_K, "q4_K"}, {SL_Q5_K, "q5_K"}, {SL_Q6_K, "q6_K"}};

static const char *const backends[] = {"portable", "avx2", "avx512"};

static const struct sl_backend_ops *backend(const char *name)
{
    const struct sl_backend_ops *ops = NULL;
    return sl_backend_find(name, &ops, NULL) == SL_OK ? ops : NULL;
}

static struct sl_dev *dev_open(const struct sl_backend_ops *ops, uint32_t n_threads)
{
    struct sl_dev *d = NULL;
    assert_int_equal(ops->open(&(struct sl_dev_conf){.n_threads = n_threads, .max_rows = N_ROWS}, &d, NULL),
                     SL_OK);
    return d;
}

static void embed(const char *name, const struct sl_tensor_view *v, float *out)
{
    const struct sl_backend_ops *ops = backend(name);
    struct sl_dev *d = dev_open(ops, 2);
    struct sl_weight *w = NULL;
    assert_int_equal(ops->weight_pack(d, v, 1, &w, NULL), SL_OK);
    for (int32_t t = 0; t < (int32_t)v->n_rows; t++) {
        struct sl_batch b = {.n_rows = 1, .tokens = &t};
        ops->embed(d, w, &b, 1, out + (size_t)t * v->n_cols);
    }
    ops->weight_free(d, w);
    ops->close(d);
}

static void check_packed(const struct sl_tensor_view *v)
{
    size_t n = v->n_rows * v->n_cols;
    float *want = sl_xcalloc(n, sizeof *want), *got = sl_xcalloc(n, sizeof *got);
    for (uint64_t r = 0; r < v->n_rows; r++)
        sl_dequant_row(v->type, (const uint8_t *)v->data + r * sl_dtype_row_bytes(v->type, v->n_cols),
                       v->n_cols, want + r * v->n_cols);
    for (size_t b = 0; b < SL_COUNTOF(backends); b++) {
        if (backend(backends[b]) == NULL)
            continue;
        embed(backends[b], v, got);
        assert_memory_equal(got, want, n * sizeof *got);
    }
    sl_free(want);
    sl_free(got);
}

/* Lines {type, n, hex, f32} of the types above. Returns how many were compared; -1 when there is no file. */
static int check_file(const char *path, double tolerance)
{
    FILE *f = fopen(path, "r");
    static char line[65536];
    int n_checked = 0;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        json_t *j = json_loads(line, 0, NULL);
        assert_non_null(j);
        const char *name = json_string_value(json_object_get(j, "type")),
                   *hex = json_string_value(json_object_get(j, "hex"));
        json_t *want = json_object_get(j, "f32");
        size_t n = json_array_size(want);
        for (size_t t = 0; t < SL_COUNTOF(types); t++) {
            if (strcmp(name, types[t].name) != 0)
                continue;
            uint8_t bytes[1024];
            float out[MAX_VALUES];
            size_t n_bytes = sl_dtype_row_bytes(types[t].type, n);
            assert_true(n <= MAX_VALUES && n_bytes <= sizeof bytes);
            assert_int_equal(strlen(hex), 2 * n_bytes);
            for (size_t i = 0; i < n_bytes; i++)
                bytes[i] = (uint8_t)strtoul((char[]){hex[2 * i], hex[2 * i + 1], 0}, NULL, 16);
            sl_dequant_row(types[t].type, bytes, n, out);
            for (size_t i = 0; i < n; i++) {
                double w = json_number_value(json_array_get(want, i));
                if (!(fabs((double)out[i] - w) <= tolerance * fabs(w)))
                    fail_msg("%s: element %zu is %.9g, expected %.9g", name, i, (double)out[i], w);
            }
            struct sl_tensor_view v = {types[t].type, 1, n, bytes};
            check_packed(&v);
            n_checked++;
        }
        json_decref(j);
    }
    if (f == NULL)
        return -1;
    fclose(f);
    return n_checked;
}

static void own_vectors_are_exact(void **state)
{
    (void)state;
    assert_int_equal(check_file(SL_TEST_DATA "/golden/quant/dequant.jsonl", 0), 25);
}

/* Printed with 9 digits: exact in float32, not in double. */
static void shared_vectors_agree(void **state)
{
    (void)state;
    int n = check_file(SL_SHARED_DATA "/fixtures/quant/dequant_vectors.jsonl", 1e-7);
    if (n < 0)
        skip();
    assert_int_equal(n, 20);
}

static void random_floats(uint64_t stream, float scale, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (sl_philox_uniform(stream, 0, (uint32_t)i) - 0.5f) * scale;
}

static void *random_tensor(enum sl_dtype type, struct sl_tensor_view *v)
{
    float row[N_COLS];
    size_t row_bytes = sl_dtype_row_bytes(type, N_COLS);
    uint8_t *data = sl_xcalloc(N_OUT, row_bytes);
    assert_int_equal(sl_quantise_row_bytes(type, N_COLS), row_bytes);
    for (uint32_t r = 0; r < N_OUT; r++) {
        random_floats(1000 * (uint64_t)type + r, 0.1f, row, N_COLS);
        sl_quantise_row(type, row, N_COLS, data + r * row_bytes);
    }
    *v = (struct sl_tensor_view){type, N_OUT, N_COLS, data};
    return data;
}

/* y of rows [0, N_ROWS), at most `most` at a time; false when the machine cannot run the backend. */
static bool product(const char *name, uint32_t n_threads, uint32_t most, const struct sl_tensor_view *v,
                    const float *x, float *y)
{
    const struct sl_backend_ops *ops = backend(name);
    if (ops == NULL)
        return false;
    struct sl_dev *d = dev_open(ops, n_threads);
    struct sl_weight *w = NULL;
    struct sl_tensor_view parts[2] = {*v, *v}; /* stacked from two */
    parts[0].n_rows = 40;
    parts[1].n_rows = N_OUT - 40;
    parts[1].data = (const uint8_t *)v->data + 40 * sl_dtype_row_bytes(v->type, v->n_cols);
    assert_int_equal(ops->weight_pack(d, parts, 2, &w, NULL), SL_OK);
    for (uint32_t r = 0; r < N_ROWS; r += most) {
        struct sl_linear a = {.w = w,
                              .x = x + (size_t)r * N_COLS,
                              .y = y + (size_t)r * N_OUT,
                              .n_rows = N_ROWS - r < most ? N_ROWS - r : most};
        ops->linear(d, &a);
    }
    ops->weight_free(d, w);
    ops->close(d);
    return true;
}

static void product_is_near_the_reference_and_has_the_same_bits_everywhere(void **state)
{
    (void)state;
    static float x[N_ROWS * N_COLS], ref[N_ROWS * N_OUT], want[N_ROWS * N_OUT], got[N_ROWS * N_OUT];
    random_floats(7, 2, x, SL_COUNTOF(x));
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        struct sl_tensor_view v;
        void *data = random_tensor(types[t].type, &v);
        check_packed(&v);
        assert_true(product("reference", 1, N_ROWS, &v, x, ref));
        assert_true(product("portable", 1, 1, &v, x, want));
        double error = 0, size = 0;
        for (size_t i = 0; i < SL_COUNTOF(ref); i++) {
            error += ((double)want[i] - (double)ref[i]) * ((double)want[i] - (double)ref[i]);
            size += (double)ref[i] * (double)ref[i];
        }
        if (!(sqrt(error / size) < 2.5e-2)) /* int8 activations: tests/kernels/test_linear.c */
            fail_msg("%s: relative error %g", types[t].name, sqrt(error / size));
        for (size_t b = 0; b < SL_COUNTOF(backends); b++) {
            static const uint32_t most[] = {1, 2, 5, 8, 13, N_ROWS};
            for (size_t i = 0; i < SL_COUNTOF(most); i++) {
                if (product(backends[b], 1 + (uint32_t)i % 2, most[i], &v, x, got))
                    assert_memory_equal(got, want, sizeof got);
            }
        }
        sl_free(data);
    }
}

static void rows_of_partial_blocks_are_refused(void **state)
{
    (void)state;
    assert_int_equal(sl_dtype_row_bytes(SL_Q5_0, 64), 44);
    assert_int_equal(sl_dtype_row_bytes(SL_Q5_1, 64), 48);
    assert_int_equal(sl_dtype_row_bytes(SL_Q4_K, 512), 288);
    assert_int_equal(sl_dtype_row_bytes(SL_Q5_K, 512), 352);
    assert_int_equal(sl_dtype_row_bytes(SL_Q6_K, 512), 420);
    assert_int_equal(sl_dtype_row_bytes(SL_Q6_K, 128), 0);
    const struct sl_backend_ops *ops = backend("portable");
    struct sl_dev *d = dev_open(ops, 1);
    struct sl_weight *w = NULL;
    struct sl_why why = {{0}};
    uint8_t bytes[144] = {0};
    struct sl_tensor_view v = {SL_Q4_K, 1, 128, bytes};
    assert_int_equal(ops->weight_pack(d, &v, 1, &w, &why), SL_EUNSUPPORTED);
    assert_non_null(strstr(why.text, "Q4_K"));
    ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_vectors_are_exact),
        cmocka_unit_test(shared_vectors_agree),
        cmocka_unit_test(product_is_near_the_reference_and_has_the_same_bits_everywhere),
        cmocka_unit_test(rows_of_partial_blocks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
