/* K and V of the types with a scale for each row, int8 and e4m3: what a row becomes, in all instruction sets alike,
 * and back; sums of int8 at the ends of their range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "kernels/cpu/fp8.h"
#include "tests/kernels/op_setup.h"

#define PAGE 16u

static const char *const backends[] = {"reference", "portable", "avx2", "avx512"};

/* A sequence in one page of one layer and one KV head. */
struct rig {
    const struct sl_backend_ops *ops;
    struct sl_dev *d;
    struct sl_kv *kv;
    struct sl_attn_shape shape;
    struct sl_batch_run run;
    struct sl_batch batch;
    uint32_t page;
};

static int open_rig(struct rig *g, const char *backend, enum sl_dtype type, uint32_t head_dim,
                    uint32_t n_heads, uint32_t n_rows)
{
    memset(g, 0, sizeof *g);
    g->ops = op_backend(backend);
    if (!g->ops)
        return 0;
    g->d = op_open(g->ops, 1, PAGE);
    g->shape = (struct sl_attn_shape){.n_heads = n_heads,
                                      .n_kv_heads = 1,
                                      .head_dim = head_dim,
                                      .rope_dim = 2,
                                      .rope_theta = 10000.0f,
                                      .score_scale = 1.0f};
    struct sl_kv_geometry geometry = {1, 1, PAGE, head_dim, type};
    struct sl_why why = {""};
    assert_int_equal(g->ops->kv_open(g->d, &geometry, 1, &g->kv, &why), SL_OK);
    g->run = (struct sl_batch_run){0, n_rows, 0, &g->page, 1};
    g->batch = (struct sl_batch){.n_rows = n_rows, .n_runs = 1, .runs = &g->run};
    return 1;
}

static void close_rig(struct rig *g)
{
    g->ops->kv_close(g->d, g->kv);
    g->ops->close(g->d);
}

/* The codes and the scale of V of position pos. */
static const int8_t *codes_of_v(const struct rig *g, uint32_t pos)
{
    size_t strip = (size_t)PAGE * (g->shape.head_dim + sizeof(float));
    return (const int8_t *)g->ops->kv_host_base(g->kv) + strip + (size_t)pos * g->shape.head_dim;
}

/* What code i of V of a position stands for. */
static double number_of_v(const struct rig *g, enum sl_dtype type, uint32_t pos, uint32_t i)
{
    int8_t code = codes_of_v(g, pos)[i];
    return type == SL_Q8 ? code : (double)sl_fp8_to_f32((uint8_t)code);
}

static float scale_of_v(const struct rig *g, uint32_t pos)
{
    float scale;
    memcpy(&scale, codes_of_v(g, PAGE) + pos * sizeof scale, sizeof scale);
    return scale;
}

static void row_becomes_codes_and_a_scale(void **state)
{
    (void)state;
    enum { HD = 6 };
    static const struct {
        enum sl_dtype type;
        float v[HD];
        float scale;
        uint8_t codes[HD];
    } rows[] = {
        {SL_Q8, {127, 0.5f, 1.5f, 2.5f, -0.5f, -3.5f}, 1, {127, 0, 2, 2, 0, 0xfc}}, /* ties to even */
        {SL_Q8, {0, -0.0f, 0, 0, 0, 0}, 0, {0}},
        {SL_Q8, {-254, 254, 2, -2, 0.9f, 1.1f}, 2, {0x81, 127, 1, 0xff, 0, 1}},
        {SL_Q8, {0x1p-101f, 0, 0, 0, 0, 0}, 0, {0}}, /* as good as zero */
        {SL_Q8, {0x1p-100f, 0, 0, 0, 0, -0x1p-101f}, 0x1p-100f / 127, {127, 0, 0, 0, 0, 0xc0}},
        {SL_Q8, {1e30f, -1e30f, 1e20f, 0, 0, 0}, 1e30f / 127, {127, 0x81, 0}},
        {SL_FP8, {448, 17, 19, -17, 0x1.8p-9f, -0x1p-10f}, 1, {0x7e, 0x58, 0x5a, 0xd8, 2, 0x80}},
        {SL_FP8, {0, -0.0f, 0, 0, 0, 0}, 0, {0, 0x80, 0}},
        {SL_FP8, {449, -224, 4, 0, 0, 0}, 2, {0x76, 0xee, 0x40, 0}}, /* too much for scale 1 */
        {SL_FP8, {0x1.8p-101f, 0, 0, 0, 0, 0}, 0, {0}},
        {SL_FP8, {0x1p-100f, 0, 0, 0, 0, -0x1p-109f}, 0x1p-108f, {0x78, 0, 0, 0, 0, 0xb0}},
        {SL_FP8, {57344, -57344, 1e30f, 1, 0, 0}, 128, {0x7e, 0xfe, 0x7e, 0x04, 0}}, /* all there is */
    };
    for (size_t b = 1; b < SL_COUNTOF(backends); b++) {
        struct rig g;
        for (uint32_t i = 0; i < SL_COUNTOF(rows); i++) {
            float qkv[3 * HD] = {0};
            if (!open_rig(&g, backends[b], rows[i].type, HD, 1, 1))
                continue;
            memcpy(qkv + 2 * HD, rows[i].v, sizeof rows[i].v);
            g.ops->rope_kv(g.d, g.kv, 0, &g.shape, &g.batch, qkv);
            if (fabsf(scale_of_v(&g, 0) - rows[i].scale) > rows[i].scale * 1e-6f)
                fail_msg("%s row %u: scale %g, not %g", backends[b], i, (double)scale_of_v(&g, 0),
                         (double)rows[i].scale);
            assert_memory_equal(codes_of_v(&g, 0), rows[i].codes, HD);
            close_rig(&g);
        }
    }
}

/* Half a step at x, both in units of the scale. */
static double half_step(enum sl_dtype type, double x)
{
    return type == SL_Q8 ? 0.5 : fmax(0x1p-10, fabs(x) / 16);
}

/* A value is at most half a step away from what its code stands for, in rows of any length; infinities and
 * NaN too become the same everywhere. */
static void check_rows_of_any_length(enum sl_dtype type)
{
    struct op_rand r = {51};
    for (uint32_t hd = 2; hd <= 150; hd += hd < 40 ? 2 : 22) {
        size_t page = 2 * PAGE * (hd + sizeof(float)), n = (size_t)PAGE * 3 * hd;
        float *qkv = sl_xcalloc(n, sizeof *qkv), *x = sl_xcalloc(n, sizeof *x);
        uint8_t *want = NULL;
        op_rand_floats(&r, qkv, n, 2.0f);
        qkv[2 * hd] = INFINITY;
        qkv[(3 + 2) * hd + 1] = NAN;
        for (size_t b = 1; b < SL_COUNTOF(backends); b++) {
            struct rig g;
            if (!open_rig(&g, backends[b], type, hd, 1, PAGE))
                continue;
            memcpy(x, qkv, n * sizeof *x);
            g.ops->rope_kv(g.d, g.kv, 0, &g.shape, &g.batch, x);
            for (uint32_t pos = 2; pos < PAGE; pos++)
                for (uint32_t i = 0; i < hd; i++) {
                    double got = number_of_v(&g, type, pos, i), scale = (double)scale_of_v(&g, pos);
                    double exact = (double)x[(pos * 3 + 2) * hd + i] / scale;
                    assert_true(fabs(got - exact) <= 1.00001 * half_step(type, exact));
                }
            if (!want)
                want = memcpy(sl_xalloc(page), g.ops->kv_host_base(g.kv), page);
            if (memcmp(want, g.ops->kv_host_base(g.kv), page) != 0)
                fail_msg("%s: other bytes at head_dim %u", backends[b], hd);
            close_rig(&g);
        }
        sl_free(qkv);
        sl_free(x);
        sl_free(want);
    }
}

static void rows_of_any_length_become_the_same_codes(void **state)
{
    (void)state;
    check_rows_of_any_length(SL_Q8);
    check_rows_of_any_length(SL_FP8);
}

/* Every number of e4m3 is its own code; between two neighbours the even one is nearer to the middle. */
static void e4m3_is_rounded_to_the_nearest(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x7f; c++) {
        float x = sl_fp8_to_f32((uint8_t)c), middle = (x + sl_fp8_to_f32((uint8_t)(c + 1))) / 2;
        uint32_t even = c + (c & 1);
        if (c == 0x7e) /* there is none behind it */
            even = 0x7e, middle = 464.0f;
        assert_true(c < 8 ? x == (float)c * 0x1p-9f : x == ldexpf((float)(8 + c % 8), (int)(c / 8) - 10));
        assert_int_equal(sl_f32_to_fp8(x), c);
        assert_int_equal(sl_f32_to_fp8(middle), even);
        assert_int_equal(sl_f32_to_fp8(-middle), even | 0x80);
        assert_int_equal(sl_f32_to_fp8(nextafterf(middle, 0)), c);
        assert_int_equal(sl_f32_to_fp8(nextafterf(middle, 1e9f)), c < 0x7e ? c + 1 : 0x7e);
    }
    assert_int_equal(sl_f32_to_fp8(INFINITY), 0x7e);
    assert_int_equal(sl_f32_to_fp8(-INFINITY), 0xfe);
    assert_int_equal(sl_f32_to_fp8(NAN), 0x7e);
}

/* Of one position the softmax is 1, so out is V: every code at the least scale, the greatest and between. */
static void e4m3_in_a_page_is_what_it_stands_for(void **state)
{
    (void)state;
    enum { HD = 254, HEADS = 9 }; /* tiles of few rows and of many */
    static const float scales[] = {0x1p-108f, 0x1p-9f, 1, 0x1p7f};
    for (size_t b = 0; b < SL_COUNTOF(backends); b++)
        for (size_t k = 0; k < SL_COUNTOF(scales); k++)
            for (uint32_t heads = 1; heads <= HEADS; heads += HEADS - 1) {
                struct rig g;
                float qkv[(HEADS + 2) * HD] = {0}, out[HEADS * HD];
                if (!open_rig(&g, backends[b], SL_FP8, HD, heads, 1))
                    continue;
                g.ops->rope_kv(g.d, g.kv, 0, &g.shape, &g.batch, qkv);
                uint8_t *v = (uint8_t *)g.ops->kv_host_base(g.kv) + PAGE * (HD + sizeof(float));
                for (uint32_t i = 0; i < HD; i++)
                    v[i] = (uint8_t)(i < HD / 2 ? i : i + 1); /* not 0x7f and 0xff */
                memcpy(v + (size_t)PAGE * HD, &scales[k], sizeof scales[k]);
                g.ops->attention(g.d, g.kv, 0, &g.shape, &g.batch, qkv, out);
                for (uint32_t i = 0; i < heads * HD; i++)
                    if (out[i] != sl_fp8_to_f32(v[i % HD]) * scales[k])
                        fail_msg("%s, %u heads: code %02x at scale %g is %g", backends[b], heads, v[i % HD],
                                 (double)scales[k], (double)out[i]);
                close_rig(&g);
            }
}

/* Keys, queries and values as large as their codes get, at the largest head: integer sums do not wrap. Row 1
 * sees two positions, of which position 0 has all the weight or, with the sign of q turned, none. */
static void largest_sums_are_exact(void **state)
{
    (void)state;
    enum { HD = 1024, HEADS = 8, WIDTH = (HEADS + 2) * HD };
    for (size_t b = 0; b < SL_COUNTOF(backends); b++) {
        struct rig g;
        float *qkv = sl_xcalloc(2 * WIDTH, sizeof *qkv), *out = sl_xcalloc(2 * HEADS * HD, sizeof *out);
        if (!open_rig(&g, backends[b], SL_Q8, HD, HEADS, 2)) {
            sl_free(qkv);
            sl_free(out);
            continue;
        }
        for (uint32_t i = 0; i < 2 * WIDTH; i++)
            qkv[i] = i < WIDTH ? 1.0f : -1.0f; /* the rotation keeps the greatest of the other elements */
        for (uint32_t i = HD; i < 2 * HD; i++)
            qkv[WIDTH + i] = 1.0f; /* head 1 of row 1 */
        g.ops->rope_kv(g.d, g.kv, 0, &g.shape, &g.batch, qkv);
        g.ops->attention(g.d, g.kv, 0, &g.shape, &g.batch, qkv, out);
        for (uint32_t i = 0; i < HD; i++) {
            assert_true(fabsf(out[i] - 1.0f) < 1e-4f);                    /* row 0 sees itself */
            assert_true(fabsf(out[HEADS * HD + i] + 1.0f) < 1e-4f);       /* row 1: -1 times -1 wins */
            assert_true(fabsf(out[(HEADS + 1) * HD + i] - 1.0f) < 1e-4f); /* its head 1: 1 times 1 */
        }
        close_rig(&g);
        sl_free(qkv);
        sl_free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_becomes_codes_and_a_scale),
        cmocka_unit_test(rows_of_any_length_become_the_same_codes),
        cmocka_unit_test(e4m3_is_rounded_to_the_nearest),
        cmocka_unit_test(e4m3_in_a_page_is_what_it_stands_for),
        cmocka_unit_test(largest_sums_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
