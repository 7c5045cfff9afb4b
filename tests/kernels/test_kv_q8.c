/* K and V as int8: what a row becomes, in all instruction sets alike, and sums at the ends of their range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
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

static int open_rig(struct rig *g, const char *backend, uint32_t head_dim, uint32_t n_heads, uint32_t n_rows)
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
    struct sl_kv_geometry geometry = {1, 1, PAGE, head_dim, SL_Q8};
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
        float v[HD];
        float scale;
        int8_t codes[HD];
    } rows[] = {
        {{127, 0.5f, 1.5f, 2.5f, -0.5f, -3.5f}, 1, {127, 0, 2, 2, 0, -4}}, /* ties to even */
        {{0, -0.0f, 0, 0, 0, 0}, 0, {0}},
        {{-254, 254, 2, -2, 0.9f, 1.1f}, 2, {-127, 127, 1, -1, 0, 1}},
        {{0x1p-101f, 0, 0, 0, 0, 0}, 0, {0}}, /* as good as zero */
        {{0x1p-100f, 0, 0, 0, 0, -0x1p-101f}, 0x1p-100f / 127, {127, 0, 0, 0, 0, -64}},
        {{1e30f, -1e30f, 1e20f, 0, 0, 0}, 1e30f / 127, {127, -127, 0}},
    };
    for (size_t b = 1; b < SL_COUNTOF(backends); b++) {
        struct rig g;
        float qkv[SL_COUNTOF(rows) * 3 * HD] = {0};
        if (!open_rig(&g, backends[b], HD, 1, SL_COUNTOF(rows)))
            continue;
        for (size_t i = 0; i < SL_COUNTOF(rows); i++)
            memcpy(qkv + (i * 3 + 2) * HD, rows[i].v, sizeof rows[i].v);
        g.ops->rope_kv(g.d, g.kv, 0, &g.shape, &g.batch, qkv);
        for (uint32_t i = 0; i < SL_COUNTOF(rows); i++) {
            if (fabsf(scale_of_v(&g, i) - rows[i].scale) > rows[i].scale * 1e-6f)
                fail_msg("%s row %u: scale %g, not %g", backends[b], i, (double)scale_of_v(&g, i),
                         (double)rows[i].scale);
            assert_memory_equal(codes_of_v(&g, i), rows[i].codes, HD);
        }
        close_rig(&g);
    }
}

/* A value is at most half a code away from what its code stands for, in rows of any length; infinities and
 * NaN too become the same everywhere. */
static void rows_of_any_length_become_the_same_codes(void **state)
{
    (void)state;
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
            if (!open_rig(&g, backends[b], hd, 1, PAGE))
                continue;
            memcpy(x, qkv, n * sizeof *x);
            g.ops->rope_kv(g.d, g.kv, 0, &g.shape, &g.batch, x);
            for (uint32_t pos = 2; pos < PAGE; pos++)
                for (uint32_t i = 0; i < hd; i++) {
                    double code = codes_of_v(&g, pos)[i], scale = (double)scale_of_v(&g, pos);
                    assert_true(fabs(code * scale - (double)x[(pos * 3 + 2) * hd + i]) <= 0.50001 * scale);
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

/* Keys, queries and values as large as their codes get, at the largest head: integer sums do not wrap. Row 1
 * sees two positions, of which position 0 has all the weight or, with the sign of q turned, none. */
static void largest_sums_are_exact(void **state)
{
    (void)state;
    enum { HD = 1024, HEADS = 8, WIDTH = (HEADS + 2) * HD };
    for (size_t b = 0; b < SL_COUNTOF(backends); b++) {
        struct rig g;
        float *qkv = sl_xcalloc(2 * WIDTH, sizeof *qkv), *out = sl_xcalloc(2 * HEADS * HD, sizeof *out);
        if (!open_rig(&g, backends[b], HD, HEADS, 2)) {
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
        cmocka_unit_test(largest_sums_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
