/* tests/gpu/gpu_rig.c - devices, batches and numbers for gpu_check. */
#include "tests/gpu/gpu_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/mem.h"
#include "kernels/cpu/half.h"

static void must(enum sl_err e, const char *what, const struct sl_why *why)
{
    if (e == SL_OK)
        return;
    fprintf(stderr, "gpu_check: %s: %s\n", what, why->text);
    exit(1);
}

struct gpu_rig gpu_rig_open(const char *table, const struct gpu_sizes *s, uint32_t n_layers,
                            uint32_t max_rows, uint32_t n_pages)
{
    return gpu_rig_open_conf(table, s, n_layers, n_pages,
                             &(struct sl_dev_conf){.n_threads = 4, .max_rows = max_rows});
}

struct gpu_rig gpu_rig_open_conf(const char *table, const struct gpu_sizes *s, uint32_t n_layers,
                                 uint32_t n_pages, const struct sl_dev_conf *conf)
{
    struct gpu_rig g = {.n_pages = n_pages, .page_tokens = s->page_tokens};
    struct sl_why why = {""};
    must(sl_backend_find(table, &g.ops, &why), table, &why);
    must(g.ops->open(conf, &g.d, &why), table, &why);
    g.geometry = (struct sl_kv_geometry){n_layers, s->n_kv_heads, s->page_tokens, s->head_dim,
                                         s->kv_dtype ? s->kv_dtype : SL_BF16};
    must(g.ops->kv_open(g.d, &g.geometry, n_pages, &g.kv, &why), "pages", &why);
    return g;
}

void gpu_rig_close(struct gpu_rig *g)
{
    g->ops->kv_close(g->d, g->kv);
    g->ops->close(g->d);
}

static void add_run(struct gpu_rig *g, struct gpu_batch *b, uint32_t *n_pages, uint32_t first_pos,
                    uint32_t n_rows)
{
    uint32_t n = (first_pos + n_rows + g->page_tokens - 1) / g->page_tokens;
    uint32_t *pages = b->pages + *n_pages;
    for (uint32_t i = 0; i < n; i++)
        pages[i] = g->next_page++ % g->n_pages;
    *n_pages += n;
    b->runs[b->b.n_runs++] = (struct sl_batch_run){b->b.n_rows, n_rows, first_pos, pages, n};
    b->b.n_rows += n_rows;
    b->out_rows[b->b.n_out++] = b->b.n_rows - 1;
}

struct gpu_batch gpu_batch_make(struct gpu_rig *g, uint32_t n_decode, uint32_t context, uint32_t n_chunk,
                                uint32_t chunk_history)
{
    uint32_t n_rows = n_decode + n_chunk, n_pages = 0;
    size_t most =
        (size_t)n_decode * (context / g->page_tokens + 1) + (chunk_history + n_chunk) / g->page_tokens + 1;
    struct gpu_batch b = {.runs = sl_xcalloc(n_decode + 1, sizeof *b.runs),
                          .tokens = sl_xcalloc(n_rows, sizeof *b.tokens),
                          .pages = sl_xcalloc(most, sizeof *b.pages),
                          .out_rows = sl_xcalloc(n_decode + 1, sizeof *b.out_rows)};
    for (uint32_t i = 0; i < n_decode; i++)
        add_run(g, &b, &n_pages, context - 1, 1);
    if (n_chunk > 0)
        add_run(g, &b, &n_pages, chunk_history, n_chunk);
    b.b.runs = b.runs;
    b.b.tokens = b.tokens;
    b.b.out_rows = b.out_rows;
    return b;
}

void gpu_batch_free(struct gpu_batch *b)
{
    sl_free(b->runs);
    sl_free(b->tokens);
    sl_free(b->pages);
    sl_free(b->out_rows);
}

void gpu_fill(float *to, size_t n, uint32_t seed, float scale)
{
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        to[i] = ((float)(x >> 8) * 0x1p-23f - 1.0f) * scale;
    }
}

float *gpu_buffer(struct gpu_rig *g, size_t n, uint32_t seed, float scale)
{
    float *host = sl_xcalloc(n, sizeof *host), *p = g->ops->buf_alloc(g->d, n * sizeof *host);
    if (!p) {
        fprintf(stderr, "gpu_check: no memory for %zu floats\n", n);
        exit(1);
    }
    gpu_fill(host, n, seed, scale);
    g->ops->upload(g->d, p, host, n * sizeof *host);
    g->ops->sync(g->d);
    sl_free(host);
    return p;
}

/* Rows that differ in a matrix; the rest repeats them, since making them takes longer than measuring. */
#define OWN_ROWS 64u

struct sl_weight *gpu_matrix(struct gpu_rig *g, uint32_t n_rows, uint32_t n_cols)
{
    size_t n = (size_t)n_rows * n_cols;
    uint16_t *data = sl_xcalloc(n, sizeof *data);
    float *row = sl_xcalloc(n_cols, sizeof *row);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint16_t *to = data + (size_t)r * n_cols;
        if (r >= OWN_ROWS) {
            memcpy(to, data + (size_t)(r % OWN_ROWS) * n_cols, n_cols * sizeof *to);
            continue;
        }
        gpu_fill(row, n_cols, r + 1, 0.03f); /* outputs about as large as inputs at thousands of columns */
        for (uint32_t k = 0; k < n_cols; k++)
            to[k] = sl_f32_to_bf16(row[k]);
    }
    struct sl_tensor_view v = {SL_BF16, n_rows, n_cols, data};
    struct sl_weight *w;
    struct sl_why why = {""};
    must(g->ops->weight_pack(g->d, &v, 1, &w, &why), "a matrix", &why);
    sl_free(data);
    sl_free(row);
    return w;
}
