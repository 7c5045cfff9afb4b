/* rope_kv and attention of the CUDA tables on an emulated device against the reference backend: ragged mixed
 * batches over pages, all KV types, odd shapes, windows, both schedules.
 *
 * Each op is judged alone: attention is given the reference's pages, and queries that are bfloat16 numbers,
 * which is what the fast kernels make of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "kernels/cpu/fp8.h"
#include "kernels/cuda/emulation/cu_emu.h"
#include "tests/kernels/op_setup.h"

#define MAX_ERROR 1e-3
#define LAYERS    2u
#define LAYER     1u
#define MAX_PAGES 256u

static const char *const tables[] = {"cuda", "cuda-plain"};

struct shape_case {
    uint32_t n_heads, n_kv_heads, head_dim, rope_dim;
    enum sl_rope_layout layout;
    uint32_t window;
    int qk_norm;
    enum sl_dtype type;
    uint32_t page_tokens;
};

static const struct shape_case shapes[] = {
    {9, 3, 64, 64, SL_ROPE_PAIRS, 0, 0, SL_BF16, 16},    /* SmolLM2-135M */
    {8, 2, 128, 128, SL_ROPE_HALVES, 0, 1, SL_BF16, 64}, /* Llama-3's and Qwen3's groups of 4 */
    {14, 2, 64, 64, SL_ROPE_HALVES, 100, 0, SL_BF16, 7}, /* a group of 7, a window, pages that divide nothing
                                                          */
    {20, 1, 64, 64, SL_ROPE_PAIRS, 0, 0, SL_BF16, 48},   /* a group larger than a tile of 16 rows */
    {4, 4, 128, 128, SL_ROPE_PAIRS, 65, 0, SL_BF16, 32}, /* no groups */
    {8, 1, 80, 32, SL_ROPE_HALVES, 0, 0, SL_BF16, 16},   /* head sizes and types that only the plain kernel
                                                            takes */
    {6, 2, 10, 6, SL_ROPE_PAIRS, 13, 1, SL_F32, 5},      {4, 2, 64, 64, SL_ROPE_PAIRS, 0, 0, SL_F16, 16},
    {2, 1, 128, 128, SL_ROPE_HALVES, 0, 0, SL_Q8, 16},   {6, 2, 10, 6, SL_ROPE_PAIRS, 70, 1, SL_Q8, 5},
    {3, 1, 64, 64, SL_ROPE_PAIRS, 0, 0, SL_Q8, 64},      {2, 1, 128, 128, SL_ROPE_HALVES, 0, 0, SL_FP8, 16},
    {6, 2, 10, 6, SL_ROPE_PAIRS, 70, 1, SL_FP8, 5},      {3, 1, 64, 64, SL_ROPE_PAIRS, 0, 0, SL_FP8, 7},
};

/* A run of the batch: n rows at positions from first_pos on; wanted[0] .. wanted[1] of them are attended to.
 */
struct run_case {
    uint32_t first_pos, n_rows, wanted[2];
};

static const struct run_case decodes[] = {{0, 1, {0, 1}}, {699, 1, {0, 1}}, {63, 1, {0, 1}}, {64, 1, {0, 1}}};
static const struct run_case chunks[] = {{0, 70, {0, 70}}, {130, 33, {5, 33}}};
static const struct run_case mixed[] = {{300, 1, {0, 1}}, {17, 40, {38, 40}}, {0, 5, {0, 5}},
                                        {511, 1, {0, 1}}, {250, 3, {0, 3}},   {90, 1, {0, 0}}};

struct batch_case {
    const struct run_case *runs;
    uint32_t n_runs;
};

static const struct batch_case batches[] = {
    {decodes, SL_COUNTOF(decodes)}, {chunks, SL_COUNTOF(chunks)}, {mixed, SL_COUNTOF(mixed)}};

/* One backend with a page pool. */
struct rig {
    const struct sl_backend_ops *ops;
    struct sl_dev *d;
    struct sl_kv *kv;
    uint32_t n_pages;
    struct sl_attn_shape shape;
    float *norms, *qkv, *out; /* device */
    size_t norm_bytes, qkv_bytes, out_bytes;
};

static float *device_copy(struct rig *g, const float *host, size_t bytes)
{
    float *p = g->ops->buf_alloc(g->d, bytes);
    assert_non_null(p);
    g->ops->upload(g->d, p, host, bytes);
    g->ops->sync(g->d);
    return p;
}

static struct rig rig_open(const char *table, const struct shape_case *c, const float *norms,
                           const float *qkv, const float *out, uint32_t n_rows, uint32_t n_pages)
{
    struct rig g = {.ops = op_backend(table), .n_pages = n_pages};
    g.d = op_open(g.ops, 2, n_rows);
    struct sl_kv_geometry geo = {LAYERS, c->n_kv_heads, c->page_tokens, c->head_dim, c->type};
    assert_int_equal(g.ops->kv_open(g.d, &geo, n_pages, &g.kv, NULL), SL_OK);
    g.norm_bytes = 2 * c->head_dim * sizeof(float);
    g.qkv_bytes = (size_t)n_rows * (c->n_heads + 2 * c->n_kv_heads) * c->head_dim * sizeof(float);
    g.out_bytes = (size_t)n_rows * c->n_heads * c->head_dim * sizeof(float);
    g.norms = device_copy(&g, norms, g.norm_bytes);
    g.qkv = device_copy(&g, qkv, g.qkv_bytes);
    g.out = device_copy(&g, out, g.out_bytes);
    g.shape = (struct sl_attn_shape){.n_heads = c->n_heads,
                                     .n_kv_heads = c->n_kv_heads,
                                     .head_dim = c->head_dim,
                                     .rope_dim = c->rope_dim,
                                     .rope_theta = 10000.0f,
                                     .rope_layout = c->layout,
                                     .window = c->window,
                                     .q_norm = c->qk_norm ? g.norms : NULL,
                                     .k_norm = c->qk_norm ? g.norms + c->head_dim : NULL,
                                     .qk_norm_eps = 1e-5f};
    return g;
}

static void rig_close(struct rig *g)
{
    g->ops->buf_free(g->d, g->norms, g->norm_bytes);
    g->ops->buf_free(g->d, g->qkv, g->qkv_bytes);
    g->ops->buf_free(g->d, g->out, g->out_bytes);
    g->ops->kv_close(g->d, g->kv);
    g->ops->close(g->d);
}

static void fetch(struct rig *g, float *host, const float *device, size_t bytes)
{
    g->ops->download(g->d, host, device, bytes);
    g->ops->sync(g->d);
}

static struct sl_kv_geometry geometry_of(const struct shape_case *c)
{
    return (struct sl_kv_geometry){LAYERS, c->n_kv_heads, c->page_tokens, c->head_dim, c->type};
}

/* The row of strip h (K and V of all heads) at a slot of a page, and its scale. */
static uint8_t *row_at(const struct shape_case *c, uint8_t *page, uint32_t strip, uint32_t slot,
                       uint8_t **scale)
{
    struct sl_kv_geometry geo = geometry_of(c);
    size_t values = sl_kv_value_bytes(&geo), all = values + sl_kv_scale_bytes(&geo);
    uint8_t *p = page + strip * all * c->page_tokens;
    *scale = p + c->page_tokens * values + slot * sl_kv_scale_bytes(&geo);
    return p + slot * values;
}

static void fill_row(const struct shape_case *c, struct op_rand *r, uint8_t *to, uint8_t *scale)
{
    for (uint32_t i = 0; i < c->head_dim; i++) {
        float x = op_rand_float(r);
        uint16_t half = c->type == SL_F16 ? sl_f32_to_f16(x) : sl_f32_to_bf16(x);
        if (c->type == SL_Q8)
            to[i] = (uint8_t)(int8_t)(x * 127);
        else if (c->type == SL_FP8)
            to[i] = sl_f32_to_fp8(x * 448);
        else if (c->type == SL_F32)
            memcpy(to + 4 * (size_t)i, &x, 4);
        else
            memcpy(to + 2 * (size_t)i, &half, 2);
    }
    float worth = (1.5f + op_rand_float(r)) / 127;
    if (c->type == SL_FP8)
        worth = worth < 1.5f / 127 ? 0x1p-9f : 0x1p-8f;
    if (c->type == SL_Q8 || c->type == SL_FP8)
        memcpy(scale, &worth, sizeof worth);
}

/* A pool with numbers at the positions in front of each run, and NaN wherever nobody may look. */
static void fill_pages(struct rig *g, const struct shape_case *c, const struct batch_case *b,
                       uint32_t pages[][MAX_PAGES])
{
    struct sl_kv_geometry geo = geometry_of(c);
    size_t page_bytes = sl_kv_page_bytes(&geo);
    struct op_rand r = {3};
    uint8_t *pool = sl_xalloc(page_bytes * g->n_pages), *scale;
    memset(pool, 0xff, page_bytes * g->n_pages);
    for (uint32_t u = 0; u < b->n_runs; u++)
        for (uint32_t pos = 0; pos < b->runs[u].first_pos; pos++)
            for (uint32_t h = 0; h < 2 * c->n_kv_heads; h++) {
                uint8_t *row = row_at(c, pool + pages[u][pos / c->page_tokens] * page_bytes,
                                      LAYER * 2 * c->n_kv_heads + h, pos % c->page_tokens, &scale);
                fill_row(c, &r, row, scale);
            }
    for (uint32_t p = 0; p < g->n_pages; p++)
        g->ops->kv_write(g->d, g->kv, p, pool + p * page_bytes);
    sl_free(pool);
}

/* What a row is worth, as float32. */
static void row_numbers(const struct shape_case *c, const uint8_t *row, const uint8_t *scale, float *to)
{
    float worth = 1;
    if (c->type != SL_Q8 && c->type != SL_FP8) {
        sl_dequant_row(c->type, row, c->head_dim, to);
        return;
    }
    memcpy(&worth, scale, sizeof worth);
    for (uint32_t i = 0; i < c->head_dim; i++)
        to[i] = worth * (c->type == SL_Q8 ? (float)(int8_t)row[i] : sl_fp8_to_f32(row[i]));
}

/* All numbers of a pool that are none of the NaNs, as float32; returns how many. */
static size_t pool_numbers(struct rig *g, const struct shape_case *c, float *to)
{
    struct sl_kv_geometry geo = geometry_of(c);
    uint8_t *page = sl_xalloc(sl_kv_page_bytes(&geo)), *scale;
    float row[SL_HEAD_DIM_MAX];
    size_t n = 0;
    for (uint32_t p = 0; p < g->n_pages; p++) {
        g->ops->kv_read(g->d, g->kv, p, page);
        for (uint32_t strip = 0; strip < LAYERS * 2 * c->n_kv_heads; strip++)
            for (uint32_t slot = 0; slot < c->page_tokens; slot++) {
                const uint8_t *from = row_at(c, page, strip, slot, &scale);
                row_numbers(c, from, scale, row);
                for (uint32_t i = 0; i < c->head_dim; i++)
                    if (!isnan(row[i]))
                        to[n++] = row[i];
            }
    }
    sl_free(page);
    return n;
}

static void copy_pool(struct rig *from, struct rig *to, const struct shape_case *c)
{
    struct sl_kv_geometry geo = {LAYERS, c->n_kv_heads, c->page_tokens, c->head_dim, c->type};
    uint8_t *page = sl_xalloc(sl_kv_page_bytes(&geo));
    for (uint32_t p = 0; p < from->n_pages; p++) {
        from->ops->kv_read(from->d, from->kv, p, page);
        to->ops->kv_write(to->d, to->kv, p, page);
    }
    sl_free(page);
}

static void assert_near(const float *got, const float *want, size_t n, double bound, const char *table,
                        const char *what, size_t shape, size_t batch)
{
    double error = op_relative_error(got, want, n);
    if (!(error < bound))
        print_error("%s, shape %zu, batch %zu: %s is off by %g\n", table, shape, batch, what, error);
    assert_true(error < bound);
}

static uint32_t pages_of(const struct shape_case *c, const struct run_case *r)
{
    return (r->first_pos + r->n_rows + c->page_tokens - 1) / c->page_tokens;
}

static void check_case(const char *table, size_t shape, size_t batch)
{
    const struct shape_case *c = &shapes[shape];
    const struct batch_case *b = &batches[batch];
    static uint32_t pages[8][MAX_PAGES];
    struct sl_batch_run runs[8], wanted[8];
    struct sl_batch all = {.n_runs = b->n_runs, .runs = runs}, some = {.runs = wanted};
    uint32_t pool_pages = 0;
    for (uint32_t u = 0; u < b->n_runs; u++)
        pool_pages += pages_of(c, &b->runs[u]);
    uint32_t next = pool_pages;
    for (uint32_t u = 0; u < b->n_runs; u++) {
        const struct run_case *r = &b->runs[u];
        uint32_t n_pages = pages_of(c, r);
        assert_true(n_pages <= MAX_PAGES);
        for (uint32_t i = 0; i < n_pages; i++)
            pages[u][i] = --next;
        runs[u] = (struct sl_batch_run){all.n_rows, r->n_rows, r->first_pos, pages[u], n_pages};
        if (r->wanted[1] > r->wanted[0])
            wanted[some.n_runs++] =
                (struct sl_batch_run){all.n_rows + r->wanted[0], r->wanted[1] - r->wanted[0],
                                      r->first_pos + r->wanted[0], pages[u], n_pages};
        all.n_rows += r->n_rows;
    }
    some.n_rows = all.n_rows;

    struct op_rand r = {shape * 10 + batch};
    size_t qkv_n = (size_t)all.n_rows * (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    size_t out_n = (size_t)all.n_rows * c->n_heads * c->head_dim;
    size_t pool_n = (size_t)pool_pages * LAYERS * 2 * c->n_kv_heads * c->page_tokens * c->head_dim;
    float *norms = sl_xcalloc(2 * c->head_dim, sizeof *norms), *qkv = sl_xcalloc(qkv_n, sizeof *qkv);
    float *out = sl_xcalloc(out_n, sizeof *out), *got = sl_xcalloc(qkv_n + out_n + pool_n, sizeof *got);
    float *want = sl_xcalloc(qkv_n + out_n + pool_n, sizeof *want);
    op_rand_floats(&r, norms, 2 * c->head_dim, 0.5f);
    op_rand_floats(&r, qkv, qkv_n, 1.0f);
    op_rand_floats(&r, out, out_n, 1.0f); /* rows left out keep it */
    struct rig ref = rig_open("reference", c, norms, qkv, out, all.n_rows, pool_pages);
    struct rig dev = rig_open(table, c, norms, qkv, out, all.n_rows, pool_pages);
    fill_pages(&ref, c, b, pages);
    fill_pages(&dev, c, b, pages);

    ref.ops->rope_kv(ref.d, ref.kv, LAYER, &ref.shape, &all, ref.qkv);
    dev.ops->rope_kv(dev.d, dev.kv, LAYER, &dev.shape, &all, dev.qkv);
    fetch(&ref, want, ref.qkv, ref.qkv_bytes);
    fetch(&dev, got, dev.qkv, dev.qkv_bytes);
    assert_near(got, want, qkv_n, 1e-5, table, "rotation", shape, batch);
    size_t n_want = pool_numbers(&ref, c, want), n_got = pool_numbers(&dev, c, got);
    assert_int_equal(n_got, n_want);
    assert_near(got, want, n_want, MAX_ERROR, table, "what lies in the pages", shape, batch);

    copy_pool(&ref, &dev, c);
    fetch(&ref, want, ref.qkv, ref.qkv_bytes);
    for (size_t i = 0; i < qkv_n; i++)
        want[i] = sl_bf16_to_f32(sl_f32_to_bf16(want[i]));
    ref.ops->upload(ref.d, ref.qkv, want, ref.qkv_bytes);
    dev.ops->upload(dev.d, dev.qkv, want, dev.qkv_bytes);
    ref.ops->attention(ref.d, ref.kv, LAYER, &ref.shape, &some, ref.qkv, ref.out);
    dev.ops->attention(dev.d, dev.kv, LAYER, &dev.shape, &some, dev.qkv, dev.out);
    memset(runs, 0xff, sizeof runs); /* the host's again */
    memset(wanted, 0xff, sizeof wanted);
    fetch(&ref, want, ref.out, ref.out_bytes);
    fetch(&dev, got, dev.out, dev.out_bytes);
    assert_near(got, want, out_n, MAX_ERROR, table, "attention", shape, batch);

    rig_close(&ref);
    rig_close(&dev);
    sl_free(norms), sl_free(qkv), sl_free(out), sl_free(got), sl_free(want);
}

static void rope_and_attention_equal_reference(void **state)
{
    (void)state;
    for (unsigned t = 0; t < SL_COUNTOF(tables); t++)
        for (int s = CU_EMU_FORWARD; s <= CU_EMU_REVERSE; s++) {
            cu_emu_set_schedule((enum cu_emu_schedule)s);
            for (size_t i = 0; i < SL_COUNTOF(shapes); i++)
                for (size_t b = 0; b < SL_COUNTOF(batches); b++)
                    check_case(tables[t], i, b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_and_attention_equal_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
