/* tests/gpu/gpu_compare.c - the ops of a table on this machine's device against the reference backend. The
 * shapes are small, since the reference is slow; tests/kernels/cuda has the odd ones, on the emulated device.
 */
#include "tests/gpu/gpu_check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "common/base/mem.h"
#include "common/model/sampler.h"
#include "kernels/cpu/fp8.h"

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

/* A strip of a page: numbers, and the scales of a type that has them. */
static void fill_strip(const struct sl_kv_geometry *geo, const float *numbers, uint8_t *to)
{
    size_t n = (size_t)geo->page_tokens * geo->head_dim;
    for (size_t i = 0; i < n; i++) {
        uint16_t half = sl_f32_to_bf16(numbers[i]);
        if (geo->dtype == SL_Q8)
            to[i] = (uint8_t)(int8_t)(numbers[i] * 70);
        else if (geo->dtype == SL_FP8)
            to[i] = sl_f32_to_fp8(numbers[i] * 140);
        else
            memcpy(to + 2 * i, &half, sizeof half);
    }
    for (uint32_t t = 0; sl_kv_scale_bytes(geo) > 0 && t < geo->page_tokens; t++) {
        float scale = geo->dtype == SL_Q8 ? (2 + numbers[t]) / 140 : numbers[t] < 0 ? 0x1p-8f : 0x1p-7f;
        memcpy(to + n + t * sizeof scale, &scale, sizeof scale);
    }
}

/* Pages full of numbers, the same on both. */
static void fill_pool(struct gpu_rig *g)
{
    const struct sl_kv_geometry *geo = &g->geometry;
    size_t n = (size_t)geo->page_tokens * geo->head_dim,
           n_strips = (size_t)geo->n_layers * 2 * geo->n_kv_heads;
    size_t page_bytes = sl_kv_page_bytes(geo);
    float *numbers = sl_xcalloc(n, sizeof *numbers);
    uint8_t *page = sl_xalloc(page_bytes);
    for (uint32_t p = 0; p < g->n_pages; p++) {
        for (size_t k = 0; k < n_strips; k++) {
            gpu_fill(numbers, n, (uint32_t)(p * n_strips + k + 1), 1.7f);
            fill_strip(geo, numbers, page + k * (page_bytes / n_strips));
        }
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
    static const struct gpu_sizes kinds[] = {
        {.n_heads = 9, .n_kv_heads = 3, .head_dim = 64},
        {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
        {.n_heads = 20, .n_kv_heads = 1, .head_dim = 64},
        {.n_heads = 8, .n_kv_heads = 8, .head_dim = 128},
        {.n_heads = 6, .n_kv_heads = 2, .head_dim = 80},
        {.n_heads = 4, .n_kv_heads = 1, .head_dim = 128, .kv_dtype = SL_Q8},
        {.n_heads = 3, .n_kv_heads = 1, .head_dim = 64, .kv_dtype = SL_Q8},
        {.n_heads = 6, .n_kv_heads = 2, .head_dim = 10, .kv_dtype = SL_Q8},
        {.n_heads = 4, .n_kv_heads = 1, .head_dim = 128, .kv_dtype = SL_FP8},
        {.n_heads = 3, .n_kv_heads = 1, .head_dim = 64, .kv_dtype = SL_FP8},
        {.n_heads = 6, .n_kv_heads = 2, .head_dim = 10, .kv_dtype = SL_FP8},
    };
    unsigned wrong = 0;
    for (size_t i = 0; i < SL_COUNTOF(kinds); i++)
        for (uint32_t window = 0; window <= 100; window += 100) {
            struct gpu_sizes s = kinds[i];
            s.page_tokens = 16;
            struct gpu_rig dev = gpu_rig_open(table, &s, 1, 64, 80),
                           ref = gpu_rig_open("reference", &s, 1, 64, 80);
            fill_pool(&dev);
            fill_pool(&ref);
            size_t n;
            float *got = attend(&dev, &s, window, &n), *want = attend(&ref, &s, window, &n);
            char what[64];
            snprintf(what, sizeof what, "attention %u/%u heads of %u, %s, window %u", s.n_heads, s.n_kv_heads,
                     s.head_dim, sl_dtype_name(dev.geometry.dtype), window);
            wrong += judge(table, what, got, want, n);
            sl_free(got);
            sl_free(want);
            gpu_rig_close(&dev);
            gpu_rig_close(&ref);
        }
    return wrong;
}

/* The pages after one prompt of numbers of all sizes, infinities and NaN among V where the type has scales. */
static uint8_t *stored(const char *table, const struct gpu_sizes *s, uint32_t n_rows, size_t *bytes)
{
    struct gpu_rig g = gpu_rig_open(table, s, 1, n_rows, n_rows / s->page_tokens);
    struct gpu_batch b = gpu_batch_make(&g, 0, 1, n_rows, 0);
    size_t head = s->head_dim, row = (s->n_heads + 2 * s->n_kv_heads) * head, n = n_rows * row;
    float *numbers = sl_xcalloc(n, sizeof *numbers), *qkv = g.ops->buf_alloc(g.d, n * sizeof *qkv);
    gpu_fill(numbers, n, 7, 1.7f);
    for (size_t i = 0; i < n; i++)
        numbers[i] = ldexpf(numbers[i], (int)(i % 13) - (int)(i / row % 20));
    if (sl_kv_scale_bytes(&g.geometry) > 0) {
        numbers[row - 2] = NAN;
        numbers[2 * row - 3] = -INFINITY;
    }
    g.ops->upload(g.d, qkv, numbers, n * sizeof *qkv);
    struct sl_attn_shape shape = gpu_attn_shape(s);
    g.ops->rope_kv(g.d, g.kv, 0, &shape, &b.b, qkv);
    size_t page_bytes = sl_kv_page_bytes(&g.geometry);
    uint8_t *pages = sl_xcalloc(g.n_pages, page_bytes);
    *bytes = g.n_pages * page_bytes;
    for (uint32_t p = 0; p < g.n_pages; p++)
        g.ops->kv_read(g.d, g.kv, p, pages + p * page_bytes);
    g.ops->sync(g.d);
    g.ops->buf_free(g.d, qkv, n * sizeof *qkv);
    sl_free(numbers);
    gpu_batch_free(&b);
    gpu_rig_close(&g);
    return pages;
}

/* V, which is not rotated, is stored to the bit as on a CPU. */
static unsigned compare_stores(const char *table)
{
    enum { PAGES = 4, PAGE = 16 };
    static const enum sl_dtype types[] = {SL_F32, SL_F16, SL_BF16, SL_Q8, SL_FP8};
    unsigned wrong = 0;
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        struct gpu_sizes s = {
            .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .page_tokens = PAGE, .kv_dtype = types[i]};
        size_t bytes, differ = 0;
        uint8_t *got = stored(table, &s, PAGES * PAGE, &bytes),
                *want = stored("portable", &s, PAGES * PAGE, &bytes);
        for (size_t at = 0; at < bytes; at++)
            differ += at % (bytes / PAGES) >= bytes / PAGES / 2 && got[at] != want[at];
        printf("%-10s V stored as %s: %zu bytes of %zu differ %s\n", table, sl_dtype_name(types[i]), differ,
               bytes / 2, differ ? "WRONG" : "ok");
        wrong += differ > 0;
        sl_free(got);
        sl_free(want);
    }
    return wrong;
}

/* A step kept as a graph and the same op by op: two batches of one number of rows, the second run by the graph that
 * the first one made. */
static unsigned compare_passes(const char *table, const struct gpu_sizes *s)
{
    enum { ROWS = 32, OUT = 4 };
    struct gpu_stepper kept = gpu_stepper_open(table, s, 2, ROWS, OUT, 0),
                       plain = gpu_stepper_open(table, s, 2, ROWS, OUT, 1);
    size_t n = (size_t)OUT * s->n_vocab;
    unsigned wrong = 0;
    for (uint32_t i = 0; i < 4; i++) {
        struct gpu_batch a = gpu_batch_make(&kept.g, OUT - 1, 5 + 9 * i, 20 + i, 3 * i),
                         b = gpu_batch_make(&plain.g, OUT - 1, 5 + 9 * i, 20 + i, 3 * i);
        kept.b = &a.b;
        plain.b = &b.b;
        gpu_step(&kept);
        gpu_step(&plain);
        float *got = fetch(&kept.g, kept.logits, n), *want = fetch(&plain.g, plain.logits, n);
        char what[64];
        snprintf(what, sizeof what, "pass %u of %u rows, as a graph from the 2nd on", i + 1, a.b.n_rows);
        wrong += judge(table, what, got, want, n);
        sl_free(got);
        sl_free(want);
        gpu_batch_free(&a);
        gpu_batch_free(&b);
    }
    gpu_stepper_close(&kept);
    gpu_stepper_close(&plain);
    return wrong;
}

/* Rows sampled on the device and by sampler.c: bit for bit. */
static unsigned compare_sampling(const char *table, const struct gpu_sizes *s)
{
    struct gpu_rig g = gpu_rig_open(table, s, 1, 1, 1);
    struct sl_sampler *host = sl_sampler_new(s->n_vocab);
    size_t n = (size_t)SL_PICK_MAX_ROWS * s->n_vocab;
    float *logits = gpu_buffer(&g, n, 9, 14), *rows = fetch(&g, logits, n);
    static struct sl_sampling p[SL_PICK_MAX_ROWS];
    static struct sl_pick picks[SL_PICK_MAX_ROWS];
    static struct sl_logit_edit edits[SL_PICK_MAX_ROWS][16];
    static struct sl_picked picked[SL_PICK_MAX_ROWS];
    const int32_t history[] = {1, 5, 5, 7, 3};
    unsigned wrong = 0, left = 0;
    for (uint32_t i = 0; i < SL_PICK_MAX_ROWS; i++) {
        p[i] = (struct sl_sampling){.temperature = i % 8 ? 0.3f + 0.25f * (float)(i % 5) : 0,
                                    .top_p = i % 3 ? 0.8f : 1,
                                    .top_k = i % 4 ? 0 : 50,
                                    .min_p = i % 5 ? 0 : 0.03f,
                                    .repetition_penalty = i % 2 ? 1 : 1.3f,
                                    .seed = i,
                                    .n_logprobs = (int32_t)(i % 4) - 1};
        wrong += !sl_sampler_pick(host, &p[i], history, 5, 2, false, edits[i], 16, &picks[i]);
    }
    g.ops->sample(g.d, logits, s->n_vocab, picks, SL_PICK_MAX_ROWS, picked);
    g.ops->sync(g.d);
    for (uint32_t i = 0; i < SL_PICK_MAX_ROWS; i++) {
        struct sl_sampled want, got;
        sl_sample(host, rows + (size_t)i * s->n_vocab, &p[i], history, 5, 2, false, &want);
        sl_sampled_from_pick(&picks[i], &picked[i], &got);
        left += got.token == SL_PICK_LEFT;
        if (got.token != SL_PICK_LEFT &&
            (got.token != want.token || got.logprob != want.logprob || got.n_top != want.n_top)) {
            printf("%-10s sampled row %u: token %d for %d, log-probability %a for %a WRONG\n", table, i,
                   got.token, want.token, (double)got.logprob, (double)want.logprob);
            wrong++;
        }
    }
    printf("%-10s %u rows sampled, %u left to the host %s\n", table, SL_PICK_MAX_ROWS, left,
           wrong ? "WRONG" : "ok");
    sl_sampler_free(host);
    sl_free(rows);
    g.ops->buf_free(g.d, logits, n * sizeof *logits);
    gpu_rig_close(&g);
    return wrong;
}

unsigned gpu_compare(const char *table, const struct gpu_sizes *s)
{
    struct gpu_rig dev = gpu_rig_open(table, s, 1, 64, 1), ref = gpu_rig_open("reference", s, 1, 64, 1);
    unsigned wrong = compare_products(&dev, &ref);
    gpu_rig_close(&dev);
    gpu_rig_close(&ref);
    return wrong + compare_stores(table) + compare_attention(table) +
           compare_passes(table, &gpu_sizes_small) + compare_sampling(table, s);
}
