/* common/model/numerics.c - what this device computes, as one number.
 *
 * A fixed probe goes through every op: each weight type, each prologue, bias, addition, gathered rows;
 * rotation and attention with the model's own head shape over a few softmax blocks, in the KV dtype. Two
 * nodes whose probes end in the same bits pair in exact mode, whatever the backends are called. The law of
 * exactness makes the result independent of threads and of how many rows go at a time, so neither is held
 * constant here. */
#include "common/model/model_impl.h"

#include "common/base/mem.h"
#include "common/base/philox.h"
#include <string.h>

#define PROBE_ROWS      5
#define PROBE_COLS      352  /* K: a multiple of a quantised block, and of no larger vector */
#define PROBE_COLS_K    512  /* of the K types, with blocks of 256 */
#define PROBE_OUT       72   /* N: a whole panel of the packed layouts and a rest */
#define PROBE_SCALE     1.7f /* of embed */
#define PROBE_POSITIONS (2 * SL_ATTN_BLOCK + 9)
#define PROBE_WINDOW    (SL_ATTN_BLOCK + 5)
#define PROBE_PAGE      16
#define PROBE_PAGES     ((PROBE_POSITIONS + PROBE_PAGE - 1) / PROBE_PAGE)

struct probe {
    struct sl_model *m;
    struct sl_digest64_stream *digest;
    uint32_t rows; /* at most, of one call */
};

static void random_words(uint32_t stream, uint32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        uint32_t r[4];
        sl_philox4x32((const uint32_t[4]){(uint32_t)(i / 4), stream, 0, 0},
                      (const uint32_t[2]){0x736c7563, 0}, r);
        memcpy(out + i, r, (n - i < 4 ? n - i : 4) * sizeof *r);
    }
}

/* In (-2, 2), with all mantissa bits in use. */
static void random_floats(uint32_t stream, float *out, size_t n)
{
    uint32_t *words = sl_xalloc(n * sizeof *words);
    random_words(stream, words, n);
    for (size_t i = 0; i < n; i++)
        out[i] = ((float)(words[i] >> 8) + 0.5f) * 0x1p-22f - 2;
    sl_free(words);
}

/* One matrix of a type, n bytes, a multiple of 4: codes at random, scales and 16-bit values of a sane size.
 */
static void random_matrix(enum sl_dtype type, uint8_t *p, size_t n)
{
    uint32_t stream = 100 + (uint32_t)type;
    if (type == SL_F32) {
        random_floats(stream, (float *)(void *)p, n / sizeof(float));
        return;
    }
    random_words(stream, (uint32_t *)(void *)p, n / sizeof(uint32_t));
    size_t block = sl_dtype_row_bytes(type, sl_dtype_block(type));
    size_t n_halves = type == SL_Q4_1 || type == SL_Q5_1 || type == SL_Q4_K || type == SL_Q5_K ? 2 : 1;
    size_t first = type == SL_Q6_K ? block - 2 : 0;
    for (size_t at = 0; at < n; at += block) {
        for (size_t i = 0; i < n_halves; i++) {
            /* sign and mantissa stay; 2^-5 to 2^-3 in F16, 2^-3 to 2^-1 in BF16 */
            uint8_t *high = p + at + first + 2 * i + 1;
            *high = type == SL_BF16 ? (uint8_t)((*high & 0x80) | 0x3e) : (uint8_t)((*high & 0x87) | 0x28);
        }
    }
}

static float *device_floats(struct sl_model *m, uint32_t stream, size_t n)
{
    float *host = sl_xalloc(n * sizeof *host), *p = m->ops->buf_alloc(m->dev, n * sizeof *host);
    SL_ASSERT(p != NULL);
    random_floats(stream, host, n);
    m->ops->upload(m->dev, p, host, n * sizeof *host);
    m->ops->sync(m->dev);
    sl_free(host);
    return p;
}

static void digest_device(struct probe *p, const float *y, size_t n)
{
    float *host = sl_xalloc(n * sizeof *host);
    p->m->ops->download(p->m->dev, host, y, n * sizeof *host);
    p->m->ops->sync(p->m->dev);
    sl_digest64_update(p->digest, host, n * sizeof *host);
    sl_free(host);
}

static void probe_linear(struct probe *p, struct sl_linear a, const float *x, size_t x_cols, float *y)
{
    float before[PROBE_ROWS * PROBE_OUT]; /* what an addition adds to */
    random_floats(4, before, PROBE_ROWS * PROBE_OUT);
    for (uint32_t r = 0; r < PROBE_ROWS; r += p->rows) {
        uint32_t n = PROBE_ROWS - r < p->rows ? PROBE_ROWS - r : p->rows, reversed[PROBE_ROWS];
        for (uint32_t i = 0; i < n; i++)
            reversed[i] = PROBE_ROWS - 1 - r - i;
        a.x = x;
        a.x_rows = reversed;
        a.y = y;
        a.n_rows = n;
        p->m->ops->upload(p->m->dev, y, before + (size_t)r * PROBE_OUT, n * PROBE_OUT * sizeof *y);
        p->m->ops->sync(p->m->dev);
        if (a.prologue == SL_PRO_SWIGLU || a.prologue == SL_PRO_GEGLU) { /* the other way to name rows */
            a.x = x + r * x_cols;
            a.x_rows = NULL;
        }
        p->m->ops->linear(p->m->dev, &a);
        digest_device(p, y, (size_t)n * PROBE_OUT);
    }
}

static void probe_type(struct probe *p, enum sl_dtype type)
{
    const struct sl_backend_ops *ops = p->m->ops;
    struct sl_dev *dev = p->m->dev;
    const uint32_t cols = sl_dtype_block(type) == 256 ? PROBE_COLS_K : PROBE_COLS;
    size_t bytes = PROBE_OUT * sl_dtype_row_bytes(type, cols);
    uint8_t *raw = sl_xalloc(bytes);
    random_matrix(type, raw, bytes);
    struct sl_tensor_view view = {type, PROBE_OUT, cols, raw};
    struct sl_weight *w = NULL;
    SL_ASSERT(ops->weight_pack(dev, &view, 1, &w, NULL) == SL_OK);
    float *x = device_floats(p->m, 1, (size_t)PROBE_ROWS * 2 * cols);
    float *norm = device_floats(p->m, 2, cols), *bias = device_floats(p->m, 3, PROBE_OUT);
    float *y = device_floats(p->m, 4, (size_t)PROBE_ROWS * PROBE_OUT);
    float *rows = device_floats(p->m, 5, (size_t)PROBE_ROWS * cols);

    probe_linear(p, (struct sl_linear){.w = w}, x, cols, y);
    probe_linear(p,
                 (struct sl_linear){
                     .w = w, .prologue = SL_PRO_RMSNORM, .norm_w = norm, .norm_eps = 1e-5f, .bias = bias},
                 x, cols, y);
    probe_linear(p, (struct sl_linear){.w = w, .prologue = SL_PRO_SWIGLU, .add = 1}, x, 2 * cols, y);
    probe_linear(p, (struct sl_linear){.w = w, .prologue = SL_PRO_GEGLU}, x, 2 * cols, y);
    for (uint32_t r = 0; r < PROBE_ROWS; r++)
        ops->norm_add(dev, x + (size_t)r * cols, norm, 1e-5f, 1, cols, rows);
    digest_device(p, rows, cols);
    for (int32_t t = 0; t < PROBE_ROWS; t++) {
        int32_t token = t * 17 % PROBE_OUT;
        struct sl_batch b = {.n_rows = 1, .tokens = &token};
        ops->embed(dev, w, &b, PROBE_SCALE, rows);
        digest_device(p, rows, cols);
    }

    ops->buf_free(dev, x, (size_t)PROBE_ROWS * 2 * cols * sizeof *x);
    ops->buf_free(dev, norm, cols * sizeof *norm);
    ops->buf_free(dev, bias, PROBE_OUT * sizeof *bias);
    ops->buf_free(dev, y, (size_t)PROBE_ROWS * PROBE_OUT * sizeof *y);
    ops->buf_free(dev, rows, (size_t)PROBE_ROWS * cols * sizeof *rows);
    ops->weight_free(dev, w);
    sl_free(raw);
}

static void probe_attention(struct probe *p, const struct sl_attn_shape *s)
{
    const struct sl_backend_ops *ops = p->m->ops;
    struct sl_dev *dev = p->m->dev;
    struct sl_kv_geometry g = sl_model_kv_geometry(p->m);
    g.n_layers = 1;
    g.page_tokens = PROBE_PAGE;
    struct sl_kv *kv = NULL;
    SL_ASSERT(ops->kv_open(dev, &g, PROBE_PAGES, &kv, NULL) == SL_OK);
    size_t q_dim = (size_t)s->n_heads * s->head_dim, row = q_dim + 2 * (size_t)s->n_kv_heads * s->head_dim;
    float *qkv = device_floats(p->m, 6, PROBE_POSITIONS * row),
          *out = device_floats(p->m, 7, p->rows * q_dim);
    uint32_t pages[PROBE_PAGES];
    for (uint32_t i = 0; i < PROBE_PAGES; i++)
        pages[i] = PROBE_PAGES - 1 - i;
    for (uint32_t pos = 0; pos < PROBE_POSITIONS; pos += p->rows) {
        uint32_t n = PROBE_POSITIONS - pos < p->rows ? PROBE_POSITIONS - pos : p->rows;
        struct sl_batch_run run = {.n_rows = n, .first_pos = pos, .pages = pages, .n_pages = PROBE_PAGES};
        struct sl_batch b = {.n_rows = n, .n_runs = 1, .runs = &run};
        ops->rope_kv(dev, kv, 0, s, &b, qkv + pos * row);
        ops->attention(dev, kv, 0, s, &b, qkv + pos * row, out);
        digest_device(p, out, n * q_dim);
    }
    size_t page_bytes = sl_kv_page_bytes(&g);
    uint8_t *page = sl_xalloc(page_bytes);
    ops->kv_read(dev, kv, pages[1], page);
    sl_digest64_update(p->digest, page, page_bytes);
    sl_free(page);
    ops->buf_free(dev, qkv, PROBE_POSITIONS * row * sizeof *qkv);
    ops->buf_free(dev, out, p->rows * q_dim * sizeof *out);
    ops->kv_close(dev, kv);
}

/* With all that a shape may ask for, whatever this model does. */
static void probe_attention_extras(struct probe *p)
{
    struct sl_attn_shape s = p->m->conf.attn;
    size_t head_bytes = s.head_dim * sizeof(float);
    float *q_norm = device_floats(p->m, 8, s.head_dim), *k_norm = device_floats(p->m, 9, s.head_dim);
    s.window = PROBE_WINDOW;
    s.score_scale = 0.25f;
    s.q_norm = q_norm;
    s.k_norm = k_norm;
    s.qk_norm_eps = 1e-5f;
    probe_attention(p, &s);
    p->m->ops->buf_free(p->m->dev, q_norm, head_bytes);
    p->m->ops->buf_free(p->m->dev, k_norm, head_bytes);
}

/* Where there is more than one rank: that what they computed is added in their order. The ranks' devices are of one
 * table, so that rank 0's tells of all. */
static void probe_sum(struct probe *p)
{
    float *parts = device_floats(p->m, 10, (size_t)PROBE_ROWS * PROBE_OUT),
          *y = device_floats(p->m, 11, PROBE_OUT);
    p->m->ops->sum_ranks(p->m->dev, parts, PROBE_ROWS, PROBE_OUT, 1, y);
    digest_device(p, y, PROBE_OUT);
    p->m->ops->buf_free(p->m->dev, parts, (size_t)PROBE_ROWS * PROBE_OUT * sizeof *parts);
    p->m->ops->buf_free(p->m->dev, y, PROBE_OUT * sizeof *y);
}

uint64_t sl_model_numerics_id(struct sl_model *m)
{
    static const enum sl_dtype types[] = {SL_F32,  SL_F16,  SL_BF16, SL_Q8_0, SL_Q4_0, SL_Q4_1,
                                          SL_Q5_0, SL_Q5_1, SL_Q4_K, SL_Q5_K, SL_Q6_K};
    const uint32_t constants[] = {(uint32_t)m->kv_dtype, SL_ATTN_BLOCK, SL_ATTN_SEG, m->share.n_ranks};
    struct probe p = {
        .m = m, .digest = sl_digest64_new(0), .rows = m->max_rows < PROBE_ROWS ? m->max_rows : PROBE_ROWS};
    sl_digest64_update(p.digest, constants, sizeof constants);
    for (size_t i = 0; i < SL_COUNTOF(types); i++)
        probe_type(&p, types[i]);
    probe_attention(&p, &p.m->conf.attn);
    probe_attention_extras(&p);
    if (m->share.n_ranks > 1)
        probe_sum(&p);
    return sl_digest64_end(p.digest);
}
