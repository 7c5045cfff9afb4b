/* Every op of the CUDA tables on an emulated device against the reference backend: odd sizes, both schedules.
 *
 * A product takes bfloat16 of both sides. That rounding is part of the op and judged elsewhere; here the
 * reference is given what was rounded, so that the bound says something about the kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "kernels/cpu/half.h"
#include "kernels/cuda/emulation/cu_emu.h"
#include "tests/kernels/op_setup.h"

#define MAX_ERROR 1e-3
#define MAX_ROWS  40u /* less than some calls have rows: those go in parts */

static const char *const tables[] = {"cuda", "cuda-plain"};

/* Runs fn for each table and schedule. */
static void for_each_way(void (*fn)(const struct sl_backend_ops *ops, struct sl_dev *d))
{
    for (unsigned t = 0; t < SL_COUNTOF(tables); t++)
        for (int s = CU_EMU_FORWARD; s <= CU_EMU_REVERSE; s++) {
            cu_emu_set_schedule((enum cu_emu_schedule)s);
            const struct sl_backend_ops *ops = op_backend(tables[t]);
            struct sl_dev *d = op_open(ops, 2, MAX_ROWS);
            fn(ops, d);
            ops->close(d);
        }
}

static void *to_device(const struct sl_backend_ops *ops, struct sl_dev *d, const void *host, size_t bytes)
{
    void *p = ops->buf_alloc(d, bytes);
    assert_non_null(p);
    ops->upload(d, p, host, bytes);
    return p;
}

static float *floats(struct op_rand *r, size_t n, float scale)
{
    float *p = sl_xcalloc(n, sizeof *p);
    op_rand_floats(r, p, n, scale);
    return p;
}

static void round_all(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = sl_bf16_to_f32(sl_f32_to_bf16(x[i]));
}

/* The matrix as the device has it. */
static void *rounded_tensor(const struct sl_tensor_view *v, struct sl_tensor_view *out)
{
    uint16_t *data = sl_xcalloc(v->n_rows * v->n_cols, sizeof *data);
    float *row = sl_xcalloc(v->n_cols, sizeof *row);
    for (uint64_t r = 0; r < v->n_rows; r++) {
        sl_dequant_row(v->type, (const uint8_t *)v->data + r * sl_dtype_row_bytes(v->type, v->n_cols),
                       v->n_cols, row);
        for (uint64_t k = 0; k < v->n_cols; k++)
            data[r * v->n_cols + k] = sl_f32_to_bf16(row[k]);
    }
    sl_free(row);
    *out = (struct sl_tensor_view){SL_BF16, v->n_rows, v->n_cols, data};
    return data;
}

struct product_case {
    enum sl_dtype type;
    enum sl_prologue prologue;
    uint32_t n, k, n_rows;
    int bias, add, gather;
};

static const struct product_case products[] = {
    {SL_BF16, SL_PRO_NONE, 70, 33, 1, 0, 0, 0},       {SL_F32, SL_PRO_RMSNORM, 65, 100, 17, 1, 0, 0},
    {SL_Q8_0, SL_PRO_SWIGLU, 40, 64, 45, 0, 1, 0},    {SL_Q4_K, SL_PRO_RMSNORM, 33, 256, 3, 0, 0, 1},
    {SL_F16, SL_PRO_GEGLU, 96, 35, 7, 1, 1, 0},       {SL_Q4_1, SL_PRO_NONE, 1, 32, 16, 0, 1, 1},
    {SL_BF16, SL_PRO_RMSNORM, 128, 129, 64, 0, 0, 1},
};

/* What the prologue makes of the rows, in float32 on the host by the reference's rules, rounded. */
static float *prologue_rows(const struct product_case *c, const float *x, const float *norm_w, float eps,
                            const uint32_t *x_rows)
{
    /* a product with the unit matrix gives the prologue itself */
    const struct sl_backend_ops *ref = op_backend("reference");
    struct sl_dev *d = op_open(ref, 1, MAX_ROWS);
    float *unit = sl_xcalloc((size_t)c->k * c->k, sizeof *unit);
    float *y = sl_xcalloc((size_t)c->n_rows * c->k, sizeof *y);
    for (uint32_t i = 0; i < c->k; i++)
        unit[(size_t)i * c->k + i] = 1.0f;
    struct sl_tensor_view v = {SL_F32, c->k, c->k, unit};
    struct sl_weight *w;
    assert_int_equal(ref->weight_pack(d, &v, 1, &w, NULL), SL_OK);
    struct sl_linear a = {w, c->prologue, norm_w, eps, x, x_rows, NULL, y, 0, c->n_rows};
    ref->linear(d, &a);
    round_all(y, (size_t)c->n_rows * c->k);
    ref->weight_free(d, w);
    ref->close(d);
    sl_free(unit);
    return y;
}

static void check_product(const struct sl_backend_ops *ops, struct sl_dev *d, const struct product_case *c)
{
    struct op_rand r = {c->n + c->k};
    uint32_t gated = c->prologue == SL_PRO_SWIGLU || c->prologue == SL_PRO_GEGLU ? 2 : 1;
    uint32_t x_count = c->gather ? c->n_rows + 5 : c->n_rows;
    size_t y_n = (size_t)c->n_rows * c->n, x_n = (size_t)x_count * c->k * gated;
    float *x = floats(&r, x_n, 1.0f), *norm_w = floats(&r, c->k, 1.0f), *bias = floats(&r, c->n, 1.0f);
    float *want = floats(&r, y_n, 1.0f), *got = sl_xmemdup(want, y_n * sizeof *want);
    uint32_t *x_rows = sl_xcalloc(c->n_rows, sizeof *x_rows);
    for (uint32_t i = 0; i < c->n_rows; i++)
        x_rows[i] = (i * 3 + 2) % x_count;
    const uint32_t *gather = c->gather ? x_rows : NULL;

    struct sl_tensor_view views[2], rounded[2];
    void *data[4];
    for (int i = 0; i < 2;
         i++) { /* two stacked: c->n - c->n / 3 rows and the rest, when there are that many */
        uint32_t n_rows = i ? c->n / 3 : c->n - c->n / 3;
        data[i] = op_random_tensor(&r, c->type, n_rows, c->k, &views[i]);
        data[2 + i] = rounded_tensor(&views[i], &rounded[i]);
    }
    size_t n_views = c->n >= 3 ? 2 : 1;

    const struct sl_backend_ops *ref = op_backend("reference");
    struct sl_dev *rd = op_open(ref, 2, MAX_ROWS);
    struct sl_weight *w, *rw;
    assert_int_equal(ref->weight_pack(rd, rounded, n_views, &rw, NULL), SL_OK);
    assert_int_equal(ops->weight_pack(d, views, n_views, &w, NULL), SL_OK);
    float *px = prologue_rows(c, x, norm_w, 1e-5f, gather);
    ref->linear(
        rd,
        &(struct sl_linear){
            .w = rw, .x = px, .bias = c->bias ? bias : NULL, .y = want, .add = c->add, .n_rows = c->n_rows});

    float *dx = to_device(ops, d, x, x_n * sizeof *x), *dn = to_device(ops, d, norm_w, c->k * sizeof *norm_w);
    float *db = to_device(ops, d, bias, c->n * sizeof *bias), *dy = to_device(ops, d, got, y_n * sizeof *got);
    struct sl_linear a = {w, c->prologue, dn, 1e-5f, dx, gather, c->bias ? db : NULL, dy, c->add, c->n_rows};
    ops->linear(d, &a);
    memset(x_rows, 0xff, c->n_rows * sizeof *x_rows); /* the op is over for the host: its list is free */
    ops->download(d, got, dy, y_n * sizeof *got);
    ops->sync(d);
    double error = op_relative_error(got, want, y_n);
    if (!(error < MAX_ERROR))
        print_error("%s: n %u, k %u, rows %u: relative error %g\n", ops->name, c->n, c->k, c->n_rows, error);
    assert_true(error < MAX_ERROR);

    ops->buf_free(d, dx, x_n * sizeof *x);
    ops->buf_free(d, dn, c->k * sizeof *norm_w);
    ops->buf_free(d, db, c->n * sizeof *bias);
    ops->buf_free(d, dy, y_n * sizeof *got);
    ops->weight_free(d, w);
    ref->weight_free(rd, rw);
    ref->close(rd);
    for (int i = 0; i < 4; i++)
        sl_free(data[i]);
    sl_free(px);
    sl_free(x), sl_free(norm_w), sl_free(bias), sl_free(want), sl_free(got), sl_free(x_rows);
}

static void check_products(const struct sl_backend_ops *ops, struct sl_dev *d)
{
    for (unsigned i = 0; i < SL_COUNTOF(products); i++)
        check_product(ops, d, &products[i]);
}

static void linear_equals_reference(void **state)
{
    (void)state;
    for_each_way(check_products);
}

static void check_embed(const struct sl_backend_ops *ops, struct sl_dev *d)
{
    struct op_rand r = {5};
    struct sl_tensor_view v;
    void *data = op_random_tensor(&r, SL_BF16, 50, 33, &v);
    struct sl_weight *w;
    assert_int_equal(ops->weight_pack(d, &v, 1, &w, NULL), SL_OK);
    int32_t tokens[3] = {49, 0, 7};
    struct sl_batch b = {.n_rows = 3, .tokens = tokens};
    float got[3 * 33], row[33], *x = ops->buf_alloc(d, sizeof got);
    ops->embed(d, w, &b, 1.5f, x);
    const int32_t kept[3] = {49, 0, 7};
    memset(tokens, 0, sizeof tokens);
    ops->download(d, got, x, sizeof got);
    ops->sync(d);
    for (int i = 0; i < 3; i++) {
        sl_dequant_row(v.type, (const uint8_t *)data + (size_t)kept[i] * 33 * 2, 33, row);
        for (int k = 0; k < 33; k++)
            assert_true(got[i * 33 + k] == 1.5f * row[k]);
    }
    ops->buf_free(d, x, sizeof got);
    ops->weight_free(d, w);
    sl_free(data);
}

static void embed_gives_scaled_rows(void **state)
{
    (void)state;
    for_each_way(check_embed);
}

static void check_norm_add(const struct sl_backend_ops *ops, struct sl_dev *d)
{
    enum { N = 300, ROWS = 5 };
    struct op_rand r = {6};
    float *y = floats(&r, ROWS * N, 1), *w = floats(&r, N, 1), *want = floats(&r, ROWS * N, 1), got[ROWS * N];
    float *dy = to_device(ops, d, y, sizeof got), *dw = to_device(ops, d, w, N * sizeof *w);
    float *dx = to_device(ops, d, want, sizeof got);
    ops->norm_add(d, dy, dw, 1e-6f, ROWS, N, dx);
    ops->download(d, got, dx, sizeof got);
    ops->sync(d);
    const struct sl_backend_ops *ref = op_backend("reference");
    struct sl_dev *rd = op_open(ref, 1, ROWS);
    ref->norm_add(rd, y, w, 1e-6f, ROWS, N, want);
    ref->close(rd);
    assert_true(op_relative_error(got, want, ROWS * N) < 1e-5);
    ops->buf_free(d, dy, sizeof got), ops->buf_free(d, dw, N * sizeof *w), ops->buf_free(d, dx, sizeof got);
    sl_free(y), sl_free(w), sl_free(want);
}

static void norm_add_equals_reference(void **state)
{
    (void)state;
    for_each_way(check_norm_add);
}

static void check_sum_ranks(const struct sl_backend_ops *ops, struct sl_dev *d)
{
    struct op_rand r = {6};
    static const size_t sizes[] = {1, 255, 1030};
    enum { PARTS = 4, MOST = 1030 };
    static float parts[PARTS * MOST], y[MOST], got[MOST], want[MOST];
    float *dparts = ops->buf_alloc(d, sizeof parts), *dy = ops->buf_alloc(d, sizeof y);
    const struct sl_backend_ops *judge = op_backend("reference");
    struct sl_dev *jd = op_open(judge, 1, 4);
    for (size_t i = 0; i < 2 * SL_COUNTOF(sizes); i++) {
        size_t n = sizes[i / 2];
        int add = i % 2;
        op_rand_floats(&r, parts, PARTS * n, 3.0f);
        op_rand_floats(&r, y, n, 3.0f);
        ops->upload(d, dparts, parts, PARTS * n * sizeof *parts);
        ops->upload(d, dy, y, n * sizeof *y);
        ops->sum_ranks(d, dparts, PARTS, n, add, dy);
        ops->download(d, got, dy, n * sizeof *y);
        ops->sync(d);
        memcpy(want, y, n * sizeof *y);
        judge->sum_ranks(jd, parts, PARTS, n, add, want);
        op_assert_same_bits(got, want, n, "sum of ranks");
    }
    judge->close(jd);
    ops->buf_free(d, dparts, sizeof parts), ops->buf_free(d, dy, sizeof y);
}

static void sum_ranks_equals_reference(void **state)
{
    (void)state;
    for_each_way(check_sum_ranks);
}

static void check_refusals(const struct sl_backend_ops *ops, struct sl_dev *d)
{
    static const char data[64];
    struct sl_weight *w = NULL;
    struct sl_kv *kv = NULL;
    struct sl_why why = {""};
    struct sl_tensor_view v = {SL_Q4_0, 1, 33, data};
    assert_int_equal(ops->weight_pack(d, &v, 1, &w, &why), SL_EUNSUPPORTED);
    assert_non_null(strstr(why.text, "33"));
    struct sl_kv_geometry g = {1, 1, 16, 64, SL_Q8_0};
    assert_int_equal(ops->kv_open(d, &g, 4, &kv, &why), SL_EUNSUPPORTED);
    g = (struct sl_kv_geometry){64, 64, 1024, 1024,
                                SL_F32}; /* 32 GiB a page: more than the emulated card has */
    assert_int_equal(ops->kv_open(d, &g, 4, &kv, &why), SL_ENOMEM);
    assert_non_null(strstr(why.text, "kv_memory"));
    assert_null(w);
    assert_null(kv);
    ops->weight_free(d, NULL);
    ops->kv_close(d, NULL);
}

static void what_it_cannot_take_is_refused_in_words(void **state)
{
    (void)state;
    for_each_way(check_refusals);
}

static void only_the_plain_table_is_exact(void **state)
{
    (void)state;
    assert_true(op_backend("cuda")->inexact);
    assert_false(op_backend("cuda-plain")->inexact);
    assert_false(op_backend("reference")->inexact);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_equals_reference),
        cmocka_unit_test(embed_gives_scaled_rows),
        cmocka_unit_test(norm_add_equals_reference),
        cmocka_unit_test(sum_ranks_equals_reference),
        cmocka_unit_test(only_the_plain_table_is_exact),
        cmocka_unit_test(what_it_cannot_take_is_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
