/* The product of every backend, type and prologue: against the reference within the error of the activations'
 * rounding, and bit for bit over batches, threads and backends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "tests/kernels/op_setup.h"

#define MAX_ROWS  72u
#define MAX_VIEWS 3u

static const enum sl_dtype types[] = {SL_F32,  SL_F16,  SL_BF16, SL_Q8_0, SL_Q4_0, SL_Q4_1,
                                      SL_Q5_0, SL_Q5_1, SL_Q4_K, SL_Q5_K, SL_Q6_K};
static const enum sl_prologue prologues[] = {SL_PRO_NONE, SL_PRO_RMSNORM, SL_PRO_SWIGLU, SL_PRO_GEGLU};
static const struct {
    uint32_t n, k;
} shapes[] = {{1, 32}, {31, 64}, {32, 96}, {33, 160}, {100, 288}, {576, 576}, {65, 1536}};

/* The shape's K, in whole blocks of the type. */
static uint32_t cols_of(enum sl_dtype type, uint32_t k)
{
    uint32_t block = sl_dtype_block(type);
    return block <= 32 ? k : (k + block - 1) / block * block;
}

/* One case: its inputs in host memory. */
struct linear_case {
    struct sl_tensor_view views[MAX_VIEWS];
    void *tensors[MAX_VIEWS];
    uint32_t n_views;
    uint32_t n, k;
    enum sl_prologue prologue;
    float *x, *norm, *bias, *y0;
};

/* n rows, cut into one view for each of the types. */
static struct linear_case make_stack(struct op_rand *r, const enum sl_dtype *stack, uint32_t n_views,
                                     uint32_t n, uint32_t k, enum sl_prologue prologue)
{
    struct linear_case c = {.n = n, .k = k, .prologue = prologue, .n_views = n_views};
    for (uint32_t i = 0; i < n_views; i++)
        c.tensors[i] = op_random_tensor(r, stack[i], n * (i + 1) / n_views - n * i / n_views, k, &c.views[i]);
    c.x = sl_xcalloc((size_t)MAX_ROWS * k, 2 * sizeof(float));
    c.norm = sl_xcalloc(k, sizeof(float));
    c.bias = sl_xcalloc(n, sizeof(float));
    c.y0 = sl_xcalloc((size_t)MAX_ROWS * n, sizeof(float));
    op_rand_floats(r, c.x, (size_t)MAX_ROWS * k * 2, 1.0f);
    memset(c.x + 2 * (size_t)k, 0, k * sizeof(float)); /* a row or block of zeros has no scale */
    op_rand_floats(r, c.norm, k, 1.0f);
    op_rand_floats(r, c.bias, n, 1.0f);
    op_rand_floats(r, c.y0, (size_t)MAX_ROWS * n, 1.0f);
    return c;
}

static struct linear_case make_case(struct op_rand *r, enum sl_dtype type, uint32_t n, uint32_t k,
                                    enum sl_prologue prologue)
{
    return make_stack(r, (const enum sl_dtype[]){type, type}, n > 1 ? 2 : 1, n, cols_of(type, k), prologue);
}

static void free_case(struct linear_case *c)
{
    for (uint32_t i = 0; i < c->n_views; i++)
        sl_free(c->tensors[i]);
    sl_free(c->x);
    sl_free(c->norm);
    sl_free(c->bias);
    sl_free(c->y0);
}

struct opened {
    const struct sl_backend_ops *ops;
    struct sl_dev *d;
    struct sl_weight *w;
};

static struct opened open_case(const char *backend, uint32_t threads, const struct linear_case *c,
                               uint32_t max_rows)
{
    struct opened o = {.ops = op_backend(backend)};
    if (!o.ops)
        return o;
    o.d = op_open(o.ops, threads, max_rows);
    struct sl_why why = {""};
    assert_int_equal(o.ops->weight_pack(o.d, c->views, c->n_views, &o.w, &why), SL_OK);
    return o;
}

static void close_case(struct opened *o)
{
    o->ops->weight_free(o->d, o->w);
    o->ops->close(o->d);
}

/* Rows [r0, r0 + n_rows) of the case; with_bias and add as given. y gets n_rows rows. */
static void run(const struct opened *o, const struct linear_case *c, uint32_t r0, uint32_t n_rows,
                int with_bias, int add, float *y)
{
    int gated = c->prologue == SL_PRO_SWIGLU || c->prologue == SL_PRO_GEGLU;
    size_t stride = gated ? 2 * (size_t)c->k : c->k;
    memcpy(y, c->y0 + (size_t)r0 * c->n, (size_t)n_rows * c->n * sizeof *y);
    struct sl_linear a = {
        .w = o->w,
        .prologue = c->prologue,
        .norm_w = c->norm,
        .norm_eps = 1e-5f,
        .x = c->x + r0 * stride,
        .bias = with_bias ? c->bias : NULL,
        .y = y,
        .add = add,
        .n_rows = n_rows,
    };
    o->ops->linear(o->d, &a);
}

/* int8 activations: per block an error of amax / 254 / sqrt(3) in each element; with amax of 3 to 10
 * deviations about 0.7 to 2 % of the result. bfloat16: 2^-9 / sqrt(3). float32: rounding over K. */
static double tolerance(enum sl_dtype type)
{
    return type == SL_F32 || type == SL_F16 ? 2e-6 : type == SL_BF16 ? 3e-3 : 2.5e-2;
}

static void linear_any_shape_is_near_the_reference(void **state)
{
    (void)state;
    struct op_rand r = {1};
    for (size_t t = 0; t < SL_COUNTOF(types); t++)
        for (size_t s = 0; s < SL_COUNTOF(shapes); s++)
            for (size_t p = 0; p < SL_COUNTOF(prologues); p++) {
                struct linear_case c = make_case(&r, types[t], shapes[s].n, shapes[s].k, prologues[p]);
                struct opened ref = open_case("reference", 2, &c, MAX_ROWS),
                              fast = open_case("auto", 2, &c, MAX_ROWS);
                float *a = sl_xcalloc((size_t)MAX_ROWS * c.n, sizeof *a),
                      *b = sl_xcalloc((size_t)MAX_ROWS * c.n, sizeof *b);
                for (int flags = 0; flags < 4; flags++) {
                    run(&ref, &c, 0, 19, flags & 1, flags >> 1, a);
                    run(&fast, &c, 0, 19, flags & 1, flags >> 1, b);
                    double e = op_relative_error(b, a, (size_t)19 * c.n);
                    if (e > tolerance(types[t]))
                        fail_msg("%s %ux%u prologue %d flags %d: error %g", sl_dtype_name(types[t]), c.n, c.k,
                                 (int)prologues[p], flags, e);
                }
                sl_free(a);
                sl_free(b);
                close_case(&ref);
                close_case(&fast);
                free_case(&c);
            }
}

/* Every row count, threads, position in the batch, and all fast backends give the row's one result. */
static void check_bits(struct op_rand *r, const struct linear_case *c, int with_bias, int add,
                       const char *name)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    float *want = sl_xcalloc((size_t)MAX_ROWS * c->n, sizeof *want),
          *got = sl_xcalloc((size_t)MAX_ROWS * c->n, sizeof *got);
    struct opened one = open_case("portable", 1, c, 1);
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        run(&one, c, i, 1, with_bias, add, want + (size_t)i * c->n);
    close_case(&one);
    for (size_t b = 0; b < SL_COUNTOF(names); b++)
        for (uint32_t threads = 1; threads <= 3; threads++) {
            struct opened o = open_case(names[b], threads, c, MAX_ROWS);
            if (!o.ops)
                continue;
            for (uint32_t rows = 1; rows <= 70;
                 rows = rows < 20 ? rows + 1 : rows + 1 + op_rand_below(r, 17)) {
                uint32_t r0 = op_rand_below(r, MAX_ROWS - rows + 1);
                char what[128];
                snprintf(what, sizeof what, "%s %s %ux%u rows %u+%u threads %u", names[b], name, c->n, c->k,
                         r0, rows, threads);
                run(&o, c, r0, rows, with_bias, add, got);
                op_assert_same_bits(got, want + (size_t)r0 * c->n, (size_t)rows * c->n, what);
            }
            close_case(&o);
        }
    sl_free(want);
    sl_free(got);
}

static void linear_row_has_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    struct op_rand r = {2};
    static const uint32_t odd_k[] = {1, 7, 33, 250};
    for (size_t t = 0; t < SL_COUNTOF(types); t++)
        for (size_t s = 0; s < SL_COUNTOF(shapes) + SL_COUNTOF(odd_k); s++) {
            int odd = s >= SL_COUNTOF(shapes);
            if (odd && sl_dtype_block(types[t]) > 1)
                continue;
            uint32_t n = odd ? 45 : shapes[s].n, k = odd ? odd_k[s - SL_COUNTOF(shapes)] : shapes[s].k;
            struct linear_case c = make_case(&r, types[t], n, k, prologues[s % SL_COUNTOF(prologues)]);
            check_bits(&r, &c, s % 2 == 0, s % 3 == 0, sl_dtype_name(types[t]));
            free_case(&c);
        }
}

static const enum sl_dtype stacks[][MAX_VIEWS] = {{SL_Q4_K, SL_Q4_K, SL_Q6_K},
                                                  {SL_Q8_0, SL_Q4_0, SL_Q5_0},
                                                  {SL_F32, SL_Q4_1, SL_BF16},
                                                  {SL_Q5_K, SL_F16, SL_Q5_K}};

/* A stack's columns are those of its tensors alone. */
static void linear_of_a_stack_of_types_is_that_of_its_tensors(void **state)
{
    (void)state;
    struct op_rand r = {6};
    for (size_t i = 0; i < SL_COUNTOF(stacks); i++) {
        enum { N = 100, ROWS = 9 };
        struct linear_case c = make_stack(&r, stacks[i], MAX_VIEWS, N, 512, prologues[i]);
        static float whole[ROWS * N], part[ROWS * N];
        check_bits(&r, &c, i % 2 == 0, i % 2, "stack");
        struct opened o = open_case("auto", 2, &c, MAX_ROWS), ref = open_case("reference", 2, &c, MAX_ROWS);
        run(&ref, &c, 0, ROWS, 0, 0, part);
        run(&o, &c, 0, ROWS, 0, 0, whole);
        assert_true(op_relative_error(whole, part, (size_t)ROWS * N) < tolerance(SL_Q8_0));
        close_case(&ref);
        close_case(&o);
        for (uint32_t v = 0, first = 0; v < MAX_VIEWS; first += (uint32_t)c.views[v++].n_rows) {
            struct linear_case alone = c;
            alone.n_views = 1;
            alone.views[0] = c.views[v];
            alone.n = (uint32_t)c.views[v].n_rows;
            struct opened one = open_case("auto", 2, &alone, MAX_ROWS);
            run(&one, &alone, 0, ROWS, 0, 0, part);
            for (uint32_t row = 0; row < ROWS; row++)
                op_assert_same_bits(part + row * alone.n, whole + row * N + first, alone.n, "stack");
            close_case(&one);
        }
        free_case(&c);
    }
}

static void linear_selected_rows_are_those_rows(void **state)
{
    (void)state;
    struct op_rand r = {3};
    static const char *const names[] = {"reference", "portable", "avx2", "avx512"};
    static const uint32_t pick[] = {3, 4, 9, 70, 71};
    for (size_t t = 0; t < SL_COUNTOF(types); t++)
        for (size_t b = 0; b < SL_COUNTOF(names); b++)
            for (size_t p = 0; p < SL_COUNTOF(prologues); p++) {
                struct linear_case c = make_case(&r, types[t], 70, 96, prologues[p]);
                struct opened o =
                    open_case(names[b], 2, &c, 4); /* fewer than the rows: scratch is used twice */
                if (o.ops) {
                    float all[MAX_ROWS * 70], got[SL_COUNTOF(pick) * 70];
                    run(&o, &c, 0, MAX_ROWS, 0, 0, all);
                    struct sl_linear a = {.w = o.w,
                                          .prologue = c.prologue,
                                          .norm_w = c.norm,
                                          .norm_eps = 1e-5f,
                                          .x = c.x,
                                          .x_rows = pick,
                                          .y = got,
                                          .n_rows = SL_COUNTOF(pick)};
                    o.ops->linear(o.d, &a);
                    for (size_t i = 0; i < SL_COUNTOF(pick); i++)
                        op_assert_same_bits(got + i * 70, all + (size_t)pick[i] * 70, 70, names[b]);
                    close_case(&o);
                }
                free_case(&c);
            }
}

static void check_embed(const struct linear_case *c, const char *backend, float scale)
{
    struct opened o = open_case(backend, 2, c, 8);
    if (!o.ops)
        return;
    int32_t tokens[77];
    float *x = sl_xcalloc((size_t)77 * c->k, sizeof *x), *want = sl_xcalloc(c->k, sizeof *want);
    for (int i = 0; i < 77; i++)
        tokens[i] = (i * 31 + 5) % 77;
    struct sl_batch batch = {.n_rows = 77, .tokens = tokens};
    o.ops->embed(o.d, o.w, &batch, scale, x);
    for (int i = 0; i < 77; i++) {
        uint64_t row = (uint64_t)tokens[i];
        const struct sl_tensor_view *v = c->views;
        for (; row >= v->n_rows; v++)
            row -= v->n_rows;
        sl_dequant_row(v->type, (const char *)v->data + row * sl_dtype_row_bytes(v->type, c->k), c->k, want);
        for (uint32_t k = 0; k < c->k; k++)
            want[k] *= scale;
        op_assert_same_bits(x + (size_t)i * c->k, want, c->k, sl_dtype_name(v->type));
    }
    sl_free(x);
    sl_free(want);
    close_case(&o);
}

static void embed_gives_the_dequantised_row_scaled(void **state)
{
    (void)state;
    struct op_rand r = {4};
    static const char *const names[] = {"reference", "portable", "avx2", "avx512"};
    for (size_t b = 0; b < SL_COUNTOF(names); b++) {
        for (size_t t = 0; t < SL_COUNTOF(types); t++) {
            struct linear_case c = make_case(&r, types[t], 77, 160, SL_PRO_NONE);
            check_embed(&c, names[b], t % 2 ? 5.3f : 1.0f);
            free_case(&c);
        }
        for (size_t i = 0; i < SL_COUNTOF(stacks); i++) {
            struct linear_case c = make_stack(&r, stacks[i], MAX_VIEWS, 77, 256, SL_PRO_NONE);
            check_embed(&c, names[b], 1.0f);
            free_case(&c);
        }
    }
}

static void norm_add_adds_the_normed_row(void **state)
{
    (void)state;
    struct op_rand r = {5};
    static const char *const names[] = {"portable", "avx2", "avx512"};
    static const uint32_t widths[] = {1, 15, 16, 33, 576, 1000};
    for (size_t s = 0; s < SL_COUNTOF(widths); s++) {
        uint32_t n = widths[s], rows = 21;
        size_t total = (size_t)rows * n;
        float *y = sl_xcalloc(total, sizeof *y), *x = sl_xcalloc(total, sizeof *x),
              *w = sl_xcalloc(n, sizeof *w), *want = sl_xcalloc(total, sizeof *want),
              *first = sl_xcalloc(total, sizeof *first), *got = sl_xcalloc(total, sizeof *got);
        op_rand_floats(&r, y, total, 3.0f);
        op_rand_floats(&r, x, total, 1.0f);
        op_rand_floats(&r, w, n, 1.0f);
        memset(y + n, 0, n * sizeof *y); /* a row of zeros has no root mean square */
        for (uint32_t row = 0; row < rows; row++) {
            double sum = 0;
            for (uint32_t i = 0; i < n; i++)
                sum += (double)y[row * n + i] * y[row * n + i];
            for (uint32_t i = 0; i < n; i++)
                want[row * n + i] = (float)(x[row * n + i] + y[row * n + i] / sqrt(sum / n + 1e-5) * w[i]);
        }
        const struct sl_backend_ops *ref = op_backend("reference");
        struct sl_dev *d = op_open(ref, 2, 4);
        memcpy(got, x, total * sizeof *x);
        ref->norm_add(d, y, w, 1e-5f, rows, n, got);
        assert_true(op_relative_error(got, want, total) < 2e-7);
        ref->close(d);
        for (size_t b = 0; b < SL_COUNTOF(names); b++)
            for (uint32_t at_once = 1; at_once <= rows; at_once += 4) {
                const struct sl_backend_ops *ops = op_backend(names[b]);
                if (!ops)
                    continue;
                d = op_open(ops, 2, 4);
                memcpy(got, x, total * sizeof *x);
                for (uint32_t row = 0; row < rows; row += at_once)
                    ops->norm_add(d, y + row * n, w, 1e-5f, rows - row < at_once ? rows - row : at_once, n,
                                  got + row * n);
                ops->close(d);
                assert_true(op_relative_error(got, want, total) < 2e-7);
                if (b == 0 && at_once == 1)
                    memcpy(first, got, total * sizeof *got);
                op_assert_same_bits(got, first, total, names[b]);
            }
        sl_free(y);
        sl_free(x);
        sl_free(w);
        sl_free(want);
        sl_free(first);
        sl_free(got);
    }
}

/* Rounding tells one order from another: large parts hide what a small one between them adds. */
static void sum_of_ranks_is_in_their_order(void **state)
{
    (void)state;
    struct op_rand r = {6};
    static const char *const names[] = {"reference", "portable", "avx2", "avx512"};
    static const size_t sizes[] = {1, 511, 513, 5000};
    enum { PARTS = 5, MOST = 5000 };
    static float parts[PARTS * MOST], y[MOST], got[MOST], want[MOST];
    for (size_t s = 0; s < SL_COUNTOF(sizes); s++) {
        size_t n = sizes[s];
        op_rand_floats(&r, parts, PARTS * n, 3.0f);
        op_rand_floats(&r, y, n, 3.0f);
        for (int add = 0; add < 2; add++) {
            for (size_t i = 0; i < n; i++) {
                float sum = parts[i];
                for (size_t p = 1; p < PARTS; p++)
                    sum += parts[p * n + i];
                want[i] = add ? y[i] + sum : sum;
            }
            for (size_t b = 0; b < SL_COUNTOF(names); b++) {
                const struct sl_backend_ops *ops = op_backend(names[b]);
                if (!ops)
                    continue;
                struct sl_dev *d = op_open(ops, 2, 4);
                memcpy(got, y, n * sizeof *got);
                ops->sum_ranks(d, parts, PARTS, n, add, got);
                ops->close(d);
                op_assert_same_bits(got, want, n, names[b]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_any_shape_is_near_the_reference),
        cmocka_unit_test(linear_row_has_the_same_bits_in_any_batch),
        cmocka_unit_test(linear_of_a_stack_of_types_is_that_of_its_tensors),
        cmocka_unit_test(linear_selected_rows_are_those_rows),
        cmocka_unit_test(norm_add_adds_the_normed_row),
        cmocka_unit_test(sum_of_ranks_is_in_their_order),
        cmocka_unit_test(embed_gives_the_dequantised_row_scaled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
