/* tests/gpu/gpu_compare.c - the ops of a table on this machine's device against the reference backend. The
 * shapes are small, since the reference is slow; tests/kernels/cuda has the odd ones, on the emulated device.
 */
#include "tests/gpu/gpu_check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "common/base/mem.h"
#include "kernels/cpu/half.h"

/* Inputs of products and queries are rounded to bfloat16 on the device only: 2^-9 of each at most, of their
 * sums about 0.0011. */
#define MAX_ERROR 3e-3

static const uint32_t product_rows[] = {1, 7, 16, 33, 100};
static const uint32_t product_shapes[][2] = {
    {256, 512}, {520, 256}, {70, 33}}; /* the last not for cuBLASLt */
static const enum sl_prologue prologues[] = {SL_PRO_NONE, SL_PRO_RMSNORM, SL_PRO_SWIGLU, SL_PRO_GEGLU};

static unsigned judge(const char *table, const char *what, const float *got, const float *want, size_t n)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    double error = sqrt(diff / size);
    unsigned wrong = !(error < MAX_ERROR);
    printf("%-10s %-44s %.2e %s\n", table, what, error, wrong ? "WRONG" : "ok");
    return wrong;
}

static float *fetch(struct gpu_rig *g, const float *device, size_t n)
{
    float *host = sl_xcalloc(n, sizeof *host);
    g->ops->download(g->d, host, device, n * sizeof *host);
    g->ops->sync(g->d);
    return host;
}

static float *product(struct gpu_rig *g, uint32_t n, uint32_t k, uint32_t rows, enum sl_prologue prologue,
                      int extras)
{
    struct sl_weight *w = gpu_matrix(g, n, k);
    float *x = gpu_buffer(g, (size_t)rows * 2 * k, 1, 1), *norm = gpu_buffer(g, k, 2, 1);
    float *bias = gpu_buffer(g, n, 3, 1), *y = gpu_buffer(g, (size_t)rows * n, 4, 1);
    struct sl_linear a = {.w = w,
                          .prologue = prologue,
                          .norm_w = norm,
                          .norm_eps = 1e-5f,
                          .x = x,
                          .bias = extras ? bias : NULL,
                          .y = y,
                          .add = extras,
                          .n_rows = rows};
    g->ops->linear(g->d, &a);
    float *out = fetch(g, y, (size_t)rows * n);
    g->ops->weight_free(g->d, w);
    g->ops->buf_free(g->d, x, (size_t)rows * 2 * k * sizeof *x);
    g->ops->buf_free(g->d, norm, k * sizeof *norm);
    g->ops->buf_free(g->d, bias, n * sizeof *bias);
    g->ops->buf_free(g->d, y, (size_t)rows * n * sizeof *y);
    return out;
}

static unsigned compare_products(struct gpu_rig *dev, struct gpu_rig *ref)
{
    unsigned wrong = 0;
    for (size_t s = 0; s < SL_COUNTOF(product_shapes); s++)
        for (size_t r = 0; r < SL_COUNTOF(product_rows); r++)
            for (size_t p = 0; p < SL_COUNTOF(prologues); p++) {
                uint32_t n = product_shapes[s][0], k = product_shapes[s][1], rows = product_rows[r];
                int extras = (s + r + p) % 2;
                float *got = product(dev, n, k, rows, prologues[p], extras);
                float *want = product(ref, n, k, rows, prologues[p], extras);
                char what[64];
                snprintf(what, sizeof what, "product n %u k %u rows %u prologue %d%s", n, k, rows,
                         (int)prologues[p], extras ? " += bias" : "");
                wrong += judge(dev->ops->name, what, got, want, (size_t)rows * n);
                sl_free(got);
                sl_free(want);
            }
    return wrong;
}

/* Pages full of numbers, the same on both. */
static void fill_pool(struct gpu_rig *g, const struct sl_kv_geometry *geo)
{
    size_t n = sl_kv_page_bytes(geo) / sizeof(uint16_t);
    float *numbers = sl_xcalloc(n, sizeof *numbers);
    uint16_t *page = sl_xcalloc(n, sizeof *page);
    for (uint32_t p = 0; p < g->n_pages; p++) {
        gpu_fill(numbers, n, p + 1, 1.7f);
        for (size_t i = 0; i < n; i++)
            page[i] = sl_f32_to_bf16(numbers[i]);
        g->ops->kv_write(g->d, g->kv, p, page);
    }
    sl_free(numbers);
    sl_free(page);
}

static float *attend(struct gpu_rig *g, const struct gpu_sizes *s, uint32_t window, size_t *n)
{
    struct gpu_batch b = gpu_batch_make(g, 3, 333, 50, 77);
    uint32_t width = (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    *n = (size_t)b.b.n_rows * s->n_heads * s->head_dim;
    float *qkv = gpu_buffer(g, (size_t)b.b.n_rows * width, 5, 1.7f), *out = gpu_buffer(g, *n, 6, 1);
    struct sl_attn_shape shape = {.n_heads = s->n_heads,
                                  .n_kv_heads = s->n_kv_heads,
                                  .head_dim = s->head_dim,
                                  .rope_dim = s->head_dim,
                                  .rope_theta = 10000.0f,
                                  .rope_layout = SL_ROPE_HALVES,
                                  .window = window};
    g->ops->rope_kv(g->d, g->kv, 0, &shape, &b.b, qkv);
    g->ops->attention(g->d, g->kv, 0, &shape, &b.b, qkv, out);
    float *got = fetch(g, out, *n);
    g->ops->buf_free(g->d, qkv, (size_t)b.b.n_rows * width * sizeof *qkv);
    g->ops->buf_free(g->d, out, *n * sizeof *out);
    gpu_batch_free(&b);
    return got;
}

static unsigned compare_attention(const char *table)
{
    static const uint32_t heads[][3] = {{9, 3, 64}, {32, 8, 128}, {20, 1, 64}, {8, 8, 128}, {6, 2, 80}};
    unsigned wrong = 0;
    for (size_t i = 0; i < SL_COUNTOF(heads); i++)
        for (uint32_t window = 0; window <= 100; window += 100) {
            struct gpu_sizes s = {.n_heads = heads[i][0],
                                  .n_kv_heads = heads[i][1],
                                  .head_dim = heads[i][2],
                                  .page_tokens = 16};
            struct gpu_rig dev = gpu_rig_open(table, &s, 1, 64, 80),
                           ref = gpu_rig_open("reference", &s, 1, 64, 80);
            struct sl_kv_geometry geo = {1, s.n_kv_heads, s.page_tokens, s.head_dim, SL_BF16};
            fill_pool(&dev, &geo);
            fill_pool(&ref, &geo);
            size_t n;
            float *got = attend(&dev, &s, window, &n), *want = attend(&ref, &s, window, &n);
            char what[64];
            snprintf(what, sizeof what, "attention %u/%u heads of %u, window %u", s.n_heads, s.n_kv_heads,
                     s.head_dim, window);
            wrong += judge(table, what, got, want, n);
            sl_free(got);
            sl_free(want);
            gpu_rig_close(&dev);
            gpu_rig_close(&ref);
        }
    return wrong;
}

unsigned gpu_compare(const char *table, const struct gpu_sizes *s)
{
    struct gpu_rig dev = gpu_rig_open(table, s, 1, 64, 1), ref = gpu_rig_open("reference", s, 1, 64, 1);
    unsigned wrong = compare_products(&dev, &ref);
    gpu_rig_close(&dev);
    gpu_rig_close(&ref);
    return wrong + compare_attention(table);
}
