/* rope_kv and attention over pages: against the reference, and bit for bit over chunkings of a prompt, batch
 * mates, threads, page sizes and backends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "tests/kernels/op_setup.h"

#define LAYERS    2u
#define LAYER     1u
#define MAX_RUNS  40u
#define MAX_PAGES 2048u

struct shape_case {
    uint32_t n_heads, n_kv_heads, head_dim, rope_dim;
    enum sl_rope_layout layout;
    uint32_t window;
    float score_scale;
    int qk_norm;
};

static const struct shape_case shapes[] = {
    {9, 3, 64, 64, SL_ROPE_PAIRS, 0, 0, 0},     /* SmolLM2-135M */
    {4, 4, 16, 16, SL_ROPE_HALVES, 0, 0, 1},    /* no groups */
    {8, 1, 80, 32, SL_ROPE_HALVES, 0, 0.2f, 0}, /* partial rotation, head_dim no power of two */
    {14, 2, 128, 128, SL_ROPE_PAIRS, 0, 0, 0},  /* long heads */
    {6, 2, 10, 6, SL_ROPE_PAIRS, 0, 0, 1},      /* no multiple of any vector */
    {100, 1, 32, 32, SL_ROPE_PAIRS, 0, 0, 0},   /* a group larger than a tile */
    {9, 3, 64, 64, SL_ROPE_PAIRS, 13, 0, 0},    /* windows: inside a block and across two, */
    {4, 1, 32, 32, SL_ROPE_HALVES, 65, 0, 1},   /* a block and a position, */
    {6, 2, 10, 6, SL_ROPE_PAIRS, 100, 0.3f, 0}, /* several blocks, */
    {4, 4, 16, 16, SL_ROPE_HALVES, 1, 0, 0},    /* only the row itself */
};

static const enum sl_dtype kv_types[] = {SL_F16, SL_BF16, SL_F32, SL_Q8, SL_FP8};

/* A sequence: its raw qkv rows by position. */
struct seq {
    uint32_t n;
    float *qkv; /* [n, width] */
};

struct rig {
    const struct sl_backend_ops *ops;
    struct sl_dev *d;
    struct sl_kv *kv;
    struct sl_attn_shape shape;
    float *norms; /* [2, head_dim] device, of q and k */
    uint32_t page_tokens, next_page, width, out_width;
    uint32_t pages[MAX_RUNS][MAX_PAGES];
};

static struct sl_attn_shape attn_shape(const struct shape_case *c)
{
    return (struct sl_attn_shape){.n_heads = c->n_heads,
                                  .n_kv_heads = c->n_kv_heads,
                                  .head_dim = c->head_dim,
                                  .rope_dim = c->rope_dim,
                                  .rope_theta = 10000.0f,
                                  .rope_layout = c->layout,
                                  .window = c->window,
                                  .score_scale = c->score_scale};
}

static void set_norms(struct rig *g)
{
    uint32_t n = 2 * g->shape.head_dim;
    struct op_rand r = {10};
    float *host = sl_xcalloc(n, sizeof *host);
    op_rand_floats(&r, host, n, 0.3f);
    g->norms = g->ops->buf_alloc(g->d, n * sizeof *host);
    g->ops->upload(g->d, g->norms, host, n * sizeof *host);
    g->ops->sync(g->d);
    sl_free(host);
    g->shape.q_norm = g->norms;
    g->shape.k_norm = g->norms + g->shape.head_dim;
    g->shape.qk_norm_eps = 1e-5f;
}

/* Pages are handed out backwards and filled with NaN, which must never reach a result. */
static struct rig *open_rig(const char *backend, uint32_t threads, const struct shape_case *c,
                            enum sl_dtype type, uint32_t page_tokens, uint32_t n_pages)
{
    const struct sl_backend_ops *ops = op_backend(backend);
    if (!ops)
        return NULL;
    struct rig *g = sl_xcalloc(1, sizeof *g);
    g->ops = ops;
    g->d = op_open(ops, threads, 4096);
    g->shape = attn_shape(c);
    if (c->qk_norm)
        set_norms(g);
    g->page_tokens = page_tokens;
    g->next_page = n_pages;
    g->width = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    g->out_width = c->n_heads * c->head_dim;
    struct sl_kv_geometry geo = {LAYERS, c->n_kv_heads, page_tokens, c->head_dim, type};
    struct sl_why why = {""};
    assert_int_equal(ops->kv_open(g->d, &geo, n_pages, &g->kv, &why), SL_OK);
    memset(ops->kv_host_base(g->kv), 0xff, sl_kv_page_bytes(&geo) * n_pages);
    return g;
}

static void close_rig(struct rig *g)
{
    g->ops->kv_close(g->d, g->kv);
    if (g->norms)
        g->ops->buf_free(g->d, g->norms, 2 * g->shape.head_dim * sizeof *g->norms);
    g->ops->close(g->d);
    sl_free(g);
}

/* Gives sequence slot i pages for n positions. */
static void take_pages(struct rig *g, uint32_t slot, uint32_t n)
{
    for (uint32_t i = 0; i < (n + g->page_tokens - 1) / g->page_tokens; i++) {
        assert_true(g->next_page > 0 && i < MAX_PAGES);
        g->pages[slot][i] = --g->next_page;
    }
}

struct part {
    uint32_t slot, from, to; /* positions [from, to) of the sequence in the slot */
};

/* One pass over the parts; out rows go to outs[slot] + position. */
static void pass(struct rig *g, const struct seq *seqs, const struct part *parts, uint32_t n_parts,
                 float **outs)
{
    struct sl_batch_run runs[MAX_RUNS];
    struct sl_batch b = {.n_runs = n_parts, .runs = runs};
    for (uint32_t i = 0; i < n_parts; i++) {
        runs[i] = (struct sl_batch_run){b.n_rows, parts[i].to - parts[i].from, parts[i].from,
                                        g->pages[parts[i].slot],
                                        (parts[i].to + g->page_tokens - 1) / g->page_tokens};
        b.n_rows += runs[i].n_rows;
    }
    float *qkv = sl_xcalloc((size_t)b.n_rows * g->width, sizeof *qkv);
    float *out = sl_xcalloc((size_t)b.n_rows * g->out_width, sizeof *out);
    for (uint32_t i = 0; i < n_parts; i++)
        memcpy(qkv + (size_t)runs[i].first_row * g->width,
               seqs[parts[i].slot].qkv + (size_t)parts[i].from * g->width,
               (size_t)runs[i].n_rows * g->width * sizeof *qkv);
    g->ops->rope_kv(g->d, g->kv, LAYER, &g->shape, &b, qkv);
    g->ops->attention(g->d, g->kv, LAYER, &g->shape, &b, qkv, out);
    g->ops->sync(g->d);
    for (uint32_t i = 0; i < n_parts; i++)
        memcpy(outs[parts[i].slot] + (size_t)parts[i].from * g->out_width,
               out + (size_t)runs[i].first_row * g->out_width,
               (size_t)runs[i].n_rows * g->out_width * sizeof *out);
    sl_free(qkv);
    sl_free(out);
}

static struct seq make_seq(struct op_rand *r, const struct shape_case *c, uint32_t n)
{
    size_t width = (size_t)(c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    struct seq s = {n, sl_xcalloc(n * width, sizeof(float))};
    op_rand_floats(r, s.qkv, n * width, 1.5f);
    return s;
}

/* A whole prompt in one pass. */
static float *whole(const char *backend, uint32_t threads, const struct shape_case *c, enum sl_dtype type,
                    uint32_t page_tokens, const struct seq *s)
{
    struct rig *g =
        open_rig(backend, threads, c, type, page_tokens, (s->n + page_tokens - 1) / page_tokens + 1);
    if (!g)
        return NULL;
    float *out = sl_xcalloc((size_t)s->n * g->out_width, sizeof *out);
    take_pages(g, 0, s->n);
    struct part all = {0, 0, s->n};
    pass(g, s, &all, 1, &out);
    close_rig(g);
    return out;
}

/* float32 everywhere; a float16 K may round the other way after the rotation's last bit, rarely, as may a
 * code of an int8 K, whose queries and weights are rounded to 15 bits; bfloat16 also rounds q and p, by 2^-9
 * / sqrt(3) each, and scores have deviations above 2; so does e4m3, read as bfloat16. */
static double error_limit(enum sl_dtype type)
{
    return type == SL_F32 ? 3e-6 : type == SL_BF16 || type == SL_FP8 ? 6e-3 : 3e-4;
}

static void attention_any_shape_is_near_the_reference(void **state)
{
    (void)state;
    struct op_rand r = {11};
    for (size_t i = 0; i < SL_COUNTOF(shapes); i++)
        for (size_t t = 0; t < SL_COUNTOF(kv_types); t++) {
            struct seq s = make_seq(&r, &shapes[i], i == 0 ? 540 : 150);
            float *a = whole("reference", 2, &shapes[i], kv_types[t], 16, &s);
            float *b = whole("auto", 2, &shapes[i], kv_types[t], 16, &s);
            double e = op_relative_error(b, a, (size_t)s.n * shapes[i].n_heads * shapes[i].head_dim);
            if (e > error_limit(kv_types[t]))
                fail_msg("shape %zu %s: error %g", i, sl_dtype_name(kv_types[t]), e);
            sl_free(a);
            sl_free(b);
            sl_free(s.qkv);
        }
}

/* Cuts of a prompt into chunks: any chunking gives the rows of the whole. */
static void attention_any_chunking_has_the_same_bits(void **state)
{
    (void)state;
    struct op_rand r = {12};
    static const char *const names[] = {"portable", "avx2", "avx512"};
    static const uint32_t page_sizes[] = {16, 32, 64, 128, 5};
    for (size_t i = 0; i < SL_COUNTOF(shapes); i++)
        for (size_t t = 0; t < SL_COUNTOF(kv_types); t++) {
            struct seq s = make_seq(&r, &shapes[i], i == 0 ? 600 : 140);
            size_t n_out = (size_t)s.n * shapes[i].n_heads * shapes[i].head_dim;
            float *want = whole("portable", 1, &shapes[i], kv_types[t], 64, &s),
                  *got = sl_xcalloc(n_out, sizeof *got);
            for (size_t b = 0; b < SL_COUNTOF(names); b++)
                for (size_t p = 0; p < SL_COUNTOF(page_sizes); p++) {
                    if (b == 0 && (p + i + t) % 3 != 0)
                        continue; /* portable is slow: each page size with some shapes and types */
                    uint32_t threads = 1 + (uint32_t)(p + b + t) % 3;
                    struct rig *g = open_rig(names[b], threads, &shapes[i], kv_types[t], page_sizes[p], 300);
                    if (!g)
                        continue;
                    take_pages(g, 0, s.n);
                    for (uint32_t at = 0; at < s.n;) {
                        static const uint32_t most[] = {1, 7, 40, 130, 700};
                        uint32_t n = 1 + op_rand_below(&r, most[op_rand_below(&r, SL_COUNTOF(most))]);
                        struct part part = {0, at, at + n < s.n ? at + n : s.n};
                        pass(g, &s, &part, 1, &got);
                        at = part.to;
                    }
                    char what[96];
                    snprintf(what, sizeof what, "%s shape %zu %s page_tokens %u threads %u", names[b], i,
                             sl_dtype_name(kv_types[t]), page_sizes[p], threads);
                    op_assert_same_bits(got, want, n_out, what);
                    close_rig(g);
                }
            sl_free(want);
            sl_free(got);
            sl_free(s.qkv);
        }
}

/* Several sequences mixed: decode rows and chunks in one pass give what each gives alone. */
static void attention_mixed_batch_has_the_same_bits(void **state)
{
    (void)state;
    struct op_rand r = {13};
    static const char *const names[] = {"portable", "avx2", "avx512"};
    const struct shape_case *c = &shapes[0];
    enum { N = 9 };
    struct seq seqs[N];
    float *want[N], *got[N];
    size_t width = (size_t)c->n_heads * c->head_dim;
    for (uint32_t i = 0; i < N; i++) {
        seqs[i] = make_seq(&r, c, i == 0 ? 600 : 1 + op_rand_below(&r, 150));
        want[i] = whole("portable", 2, c, SL_F16, 16, &seqs[i]);
        got[i] = sl_xcalloc(seqs[i].n * width, sizeof(float));
    }
    for (size_t b = 0; b < SL_COUNTOF(names); b++)
        for (uint32_t threads = 1; threads <= 3; threads++) {
            struct rig *g = open_rig(names[b], threads, c, SL_F16, 16, 300);
            if (!g)
                continue;
            uint32_t at[N] = {0};
            for (uint32_t i = 0; i < N; i++)
                take_pages(g, i, seqs[i].n);
            for (;;) {
                struct part parts[N];
                uint32_t n = 0;
                for (uint32_t i = 0; i < N; i++) {
                    uint32_t step = op_rand_below(&r, 3) ? 1 + op_rand_below(&r, 3)
                                                         : op_rand_below(&r, i == 0 ? 300 : 60);
                    step = step < seqs[i].n - at[i] ? step : seqs[i].n - at[i];
                    if (step == 0)
                        continue;
                    parts[n++] = (struct part){i, at[i], at[i] + step};
                    at[i] += step;
                }
                if (n == 0 && memcmp(&at[0], &seqs[0].n, sizeof at[0]) == 0)
                    break;
                if (n > 0)
                    pass(g, seqs, parts, n, got);
                uint32_t done = 0;
                for (uint32_t i = 0; i < N; i++)
                    done += at[i] == seqs[i].n;
                if (done == N)
                    break;
            }
            for (uint32_t i = 0; i < N; i++)
                op_assert_same_bits(got[i], want[i], seqs[i].n * width, names[b]);
            close_rig(g);
        }
    for (uint32_t i = 0; i < N; i++) {
        sl_free(want[i]);
        sl_free(got[i]);
        sl_free(seqs[i].qkv);
    }
}

/* Decode rows of many sequences: a thread takes all KV heads of one at once, more than walk together too; one
 * row's segments are shared by threads. */
static void many_decode_rows(const struct shape_case *c, enum sl_dtype type, uint32_t page_tokens)
{
    struct op_rand r = {20};
    static const char *const names[] = {"portable", "avx2", "avx512"};
    enum { N = 16 };
    struct seq seqs[N];
    float *want[N], *got[N];
    size_t width = (size_t)c->n_heads * c->head_dim;
    for (uint32_t i = 0; i < N; i++) {
        seqs[i] = make_seq(&r, c, i == 0 ? 600 : 2 + op_rand_below(&r, 100));
        want[i] = whole("portable", 2, c, type, page_tokens, &seqs[i]);
        got[i] = sl_xcalloc(seqs[i].n * width, sizeof(float));
    }
    for (size_t b = 0; b < SL_COUNTOF(names); b++)
        for (uint32_t threads = 1; threads <= 2; threads++) {
            struct rig *g = open_rig(names[b], threads, c, type, page_tokens, 700);
            if (!g)
                continue;
            struct part heads[N], rows[N];
            for (uint32_t i = 0; i < N; i++) {
                take_pages(g, i, seqs[i].n);
                heads[i] = (struct part){i, 0, seqs[i].n - 1};
                rows[i] = (struct part){i, seqs[i].n - 1, seqs[i].n};
            }
            pass(g, seqs, heads, N, got);
            pass(g, seqs, rows, N, got);
            for (uint32_t i = 0; i < N; i++)
                op_assert_same_bits(got[i], want[i], seqs[i].n * width, names[b]);
            close_rig(g);
        }
    for (uint32_t i = 0; i < N; i++) {
        sl_free(want[i]);
        sl_free(got[i]);
        sl_free(seqs[i].qkv);
    }
}

static void attention_many_decode_rows_have_the_same_bits(void **state)
{
    (void)state;
    static const struct shape_case cases[] = {{10, 10, 16, 16, SL_ROPE_PAIRS, 0, 0, 0},
                                              {9, 3, 64, 64, SL_ROPE_PAIRS, 70, 0, 0}};
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        for (size_t t = 0; t < SL_COUNTOF(kv_types); t++)
            many_decode_rows(&cases[i], kv_types[t], i == 1 && t % 2 ? 5 : 32);
}

/* One decode row over a long context is split among threads by segments: same bits. */
static void split_long_decode_row(enum sl_dtype type)
{
    struct op_rand r = {14};
    const struct shape_case *c = &shapes[0];
    static const char *const names[] = {"portable", "avx2", "avx512"};
    struct seq s = make_seq(&r, c, 1300);
    size_t width = (size_t)c->n_heads * c->head_dim;
    float *want = whole("portable", 2, c, type, 64, &s);
    for (size_t b = 0; b < SL_COUNTOF(names); b++)
        for (uint32_t threads = 1; threads <= 4; threads++) {
            struct rig *g = open_rig(names[b], threads, c, type, 64, 64);
            if (!g)
                continue;
            float *got = sl_xcalloc(s.n * width, sizeof *got);
            take_pages(g, 0, s.n);
            static const struct part parts[] = {{0, 0, 511},     {0, 511, 512},  {0, 512, 513},
                                                {0, 513, 520},   {0, 520, 1022}, {0, 1022, 1032},
                                                {0, 1032, 1299}, {0, 1299, 1300}};
            for (size_t i = 0; i < SL_COUNTOF(parts); i++)
                pass(g, &s, &parts[i], 1, &got);
            op_assert_same_bits(got, want, s.n * width, names[b]);
            sl_free(got);
            close_rig(g);
        }
    sl_free(want);
    sl_free(s.qkv);
}

static void attention_long_decode_row_has_the_same_bits_split(void **state)
{
    (void)state;
    split_long_decode_row(SL_BF16);
    split_long_decode_row(SL_Q8);
    split_long_decode_row(SL_FP8);
}

/* What lies in front of the window's first block is not read: pages full of NaN there change nothing, over
 * several segments, alone and in a chunk, with segments shared by threads and not. */
static void attention_with_a_window_reads_nothing_in_front(void **state)
{
    (void)state;
    struct op_rand r = {17};
    static const char *const names[] = {"portable", "avx2", "avx512"};
    const struct shape_case c = {9, 3, 64, 64, SL_ROPE_PAIRS, 600, 0, 0};
    enum { N = 1200, LAST = 20 };
    struct seq s = make_seq(&r, &c, N);
    size_t width = (size_t)c.n_heads * c.head_dim;
    for (size_t b = 0; b < SL_COUNTOF(names); b++)
        for (uint32_t threads = 1; threads <= 2; threads++) {
            float *want = whole(names[b], threads, &c, SL_BF16, 16, &s);
            struct rig *g = open_rig(names[b], threads, &c, SL_BF16, 16, N / 16 + 1);
            if (!g)
                continue;
            float *got = sl_xcalloc(N * width, sizeof *got);
            take_pages(g, 0, N);
            struct part head = {0, 0, N - LAST}, chunk = {0, N - LAST, N - 1}, row = {0, N - 1, N};
            pass(g, &s, &head, 1, &got);
            uint32_t first = (N - LAST + 1 - c.window) / SL_ATTN_BLOCK * SL_ATTN_BLOCK / 16;
            struct sl_kv_geometry geo = {LAYERS, c.n_kv_heads, 16, c.head_dim, SL_BF16};
            for (uint32_t i = 0; i < first; i++)
                memset((char *)g->ops->kv_host_base(g->kv) + g->pages[0][i] * sl_kv_page_bytes(&geo), 0xff,
                       sl_kv_page_bytes(&geo));
            pass(g, &s, &chunk, 1, &got);
            pass(g, &s, &row, 1, &got);
            op_assert_same_bits(got, want, N * width, names[b]);
            sl_free(got);
            sl_free(want);
            close_rig(g);
        }
    sl_free(s.qkv);
}

/* Nor is V read that stands before the window inside of the window's first block: NaN there changes nothing.
 */
static void attention_with_a_window_takes_no_v_in_front(void **state)
{
    (void)state;
    struct op_rand r = {19};
    static const char *const names[] = {"portable", "avx2", "avx512"};
    static const enum sl_dtype kv[] = {SL_F32, SL_F16, SL_BF16, SL_Q8, SL_FP8};
    const struct shape_case c = {4, 2, 32, 32, SL_ROPE_PAIRS, 45, 0, 0};
    enum { N = 150, LAST = 9 };
    struct seq s = make_seq(&r, &c, N);
    size_t width = (size_t)c.n_heads * c.head_dim;
    for (size_t i = 0; i < SL_COUNTOF(names) * SL_COUNTOF(kv); i++) {
        const char *name = names[i / SL_COUNTOF(kv)];
        enum sl_dtype type = kv[i % SL_COUNTOF(kv)];
        float *want = whole(name, 1, &c, type, 1, &s);
        struct rig *g = open_rig(name, 1, &c, type, 1, N + 1);
        if (!g)
            continue;
        float *got = sl_xcalloc(N * width, sizeof *got);
        take_pages(g, 0, N);
        struct part head = {0, 0, N - LAST}, chunk = {0, N - LAST, N - 1}, row = {0, N - 1, N};
        pass(g, &s, &head, 1, &got);
        struct sl_kv_geometry geo = {LAYERS, c.n_kv_heads, 1, c.head_dim, type};
        size_t bytes = sl_kv_page_bytes(&geo), strip = bytes / (LAYERS * 2);
        for (uint32_t at = 0; at + c.window <= N - LAST;
             at++) /* V of every layer, in pages of one position */
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                memset((char *)g->ops->kv_host_base(g->kv) + g->pages[0][at] * bytes +
                           (2 * layer + 1) * strip,
                       0xff, strip);
        pass(g, &s, &chunk, 1, &got);
        pass(g, &s, &row, 1, &got);
        op_assert_same_bits(got, want, N * width, name);
        sl_free(got);
        sl_free(want);
        close_rig(g);
    }
    sl_free(s.qkv);
}

/* A window of one position: the softmax is 1, so out is the row's own V. */
static void attention_with_a_window_of_one_gives_v(void **state)
{
    (void)state;
    struct op_rand r = {18};
    static const char *const names[] = {"reference", "portable", "avx2", "avx512"};
    const struct shape_case c = {4, 2, 16, 16, SL_ROPE_PAIRS, 1, 0, 0};
    struct seq s = make_seq(&r, &c, 150);
    for (size_t b = 0; b < SL_COUNTOF(names); b++) {
        float *out = whole(names[b], 2, &c, SL_F32, 16, &s);
        for (uint32_t t = 0; out && t < s.n; t++)
            for (uint32_t h = 0; h < c.n_heads; h++)
                op_assert_same_bits(out + (t * c.n_heads + h) * 16, s.qkv + (t * 8 + 6 + h / 2) * 16, 16,
                                    names[b]);
        sl_free(out);
    }
    sl_free(s.qkv);
}

/* Runs that leave rows of the batch out: the others get what they get in the whole, the rest is not written.
 */
static void attention_over_some_rows_leaves_the_others_alone(void **state)
{
    (void)state;
    struct op_rand r = {16};
    static const char *const names[] = {"reference", "portable", "avx2", "avx512"};
    const struct shape_case *c = &shapes[0];
    size_t width = (size_t)c->n_heads * c->head_dim;
    for (size_t b = 0; b < SL_COUNTOF(names); b++) {
        struct rig *g = open_rig(names[b], 2, c, SL_BF16, 16, 8);
        if (!g)
            continue;
        struct seq s = make_seq(&r, c, 90);
        float *all = sl_xcalloc(s.n * width, sizeof *all), *some = sl_xcalloc(s.n * width, sizeof *some);
        take_pages(g, 0, s.n);
        struct sl_batch_run whole_run = {0, s.n, 0, g->pages[0], 6};
        struct sl_batch_run parts[] = {
            {7, 1, 7, g->pages[0], 6}, {20, 35, 20, g->pages[0], 6}, {89, 1, 89, g->pages[0], 6}};
        struct sl_batch batch = {.n_rows = s.n, .n_runs = 1, .runs = &whole_run};
        g->ops->rope_kv(g->d, g->kv, LAYER, &g->shape, &batch, s.qkv);
        g->ops->attention(g->d, g->kv, LAYER, &g->shape, &batch, s.qkv, all);
        batch.runs = parts;
        batch.n_runs = SL_COUNTOF(parts);
        g->ops->attention(g->d, g->kv, LAYER, &g->shape, &batch, s.qkv, some);
        for (uint32_t t = 0; t < s.n; t++) {
            int in = t == 7 || (t >= 20 && t < 55) || t == 89;
            for (size_t i = 0; i < width && !in; i++)
                assert_true(some[t * width + i] == 0.0f);
            if (in)
                op_assert_same_bits(some + t * width, all + t * width, width, names[b]);
        }
        sl_free(all);
        sl_free(some);
        sl_free(s.qkv);
        close_rig(g);
    }
}

/* rope_kv in the reference rotates by the angles of theta; position 0 leaves a row as it is, and lengths are
 * kept. */
static void rope_keeps_lengths_and_position_zero(void **state)
{
    (void)state;
    struct op_rand r = {15};
    static const char *const names[] = {"reference", "portable", "avx2", "avx512"};
    for (size_t b = 0; b < SL_COUNTOF(names); b++)
        for (int layout = 0; layout < 2; layout++) {
            struct shape_case c = {4, 2, 48, 32, layout ? SL_ROPE_HALVES : SL_ROPE_PAIRS, 0, 0, 0};
            struct rig *g = open_rig(names[b], 2, &c, SL_F32, 16, 8);
            if (!g)
                continue;
            float qkv[64 * 8 * 48], was[64 * 8 * 48];
            op_rand_floats(&r, qkv, SL_COUNTOF(qkv), 1.0f);
            memcpy(was, qkv, sizeof qkv);
            take_pages(g, 0, 64);
            struct sl_batch_run run = {0, 64, 0, g->pages[0], 4};
            struct sl_batch batch = {.n_rows = 64, .n_runs = 1, .runs = &run};
            g->ops->rope_kv(g->d, g->kv, LAYER, &g->shape, &batch, qkv);
            op_assert_same_bits(qkv, was, 8 * 48, "position 0");
            for (uint32_t t = 0; t < 64; t++)
                for (uint32_t h = 0; h < 8; h++) {
                    const float *x = qkv + (t * 8 + h) * 48, *y = was + (t * 8 + h) * 48;
                    double a = 0, e = 0;
                    for (int i = 0; i < 32; i++) {
                        a += (double)x[i] * x[i];
                        e += (double)y[i] * y[i];
                    }
                    assert_true(a > e * 0.99999 && a < e * 1.00001);
                    op_assert_same_bits(x + 32, y + 32, 16, "behind rope_dim");
                    if (h >= 6) /* v */
                        op_assert_same_bits(x, y, 48, "v");
                }
            close_rig(g);
        }
}

static void page_digest_ignores_what_lies_behind_the_tokens(void **state)
{
    (void)state;
    static const struct {
        enum sl_dtype type;
        size_t values, scale; /* bytes of a token in a strip */
    } types[] = {{SL_F16, 16, 0}, {SL_F32, 32, 0}, {SL_Q8, 8, 4}, {SL_FP8, 8, 4}};
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        struct sl_kv_geometry g = {3, 2, 16, 8, types[t].type};
        size_t bytes = sl_kv_page_bytes(&g), values = 16 * types[t].values,
               strip = values + 16 * types[t].scale;
        assert_int_equal(bytes, 3 * 2 * 2 * strip);
        unsigned char *a = sl_xcalloc(1, bytes), *b = sl_xcalloc(1, bytes);
        for (size_t i = 0; i < bytes; i++) {
            size_t at = i % strip,
                   token = at < values ? at / types[t].values : (at - values) / types[t].scale;
            a[i] = (unsigned char)(i * 7 + 1);
            b[i] = token < 5 ? a[i] : 0xee;
        }
        assert_true(sl_kv_page_digest(&g, a, 5) == sl_kv_page_digest(&g, b, 5));
        assert_true(sl_kv_page_digest(&g, a, 6) != sl_kv_page_digest(&g, b, 6));
        assert_true(sl_kv_page_digest(&g, a, 16) != sl_kv_page_digest(&g, b, 16));
        assert_true(sl_kv_page_digest(&g, a, 5) != sl_kv_page_digest(&g, a, 4));
        b[4 * types[t].values] ^= 1; /* a bit of the last token */
        assert_true(sl_kv_page_digest(&g, a, 5) != sl_kv_page_digest(&g, b, 5));
        b[4 * types[t].values] ^= 1;
        b[strip - 11 * types[t].scale - 1] ^= 1; /* of its scale or, without one, behind it */
        assert_true((sl_kv_page_digest(&g, a, 5) == sl_kv_page_digest(&g, b, 5)) == (types[t].scale == 0));
        sl_free(a);
        sl_free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_any_shape_is_near_the_reference),
        cmocka_unit_test(attention_any_chunking_has_the_same_bits),
        cmocka_unit_test(attention_mixed_batch_has_the_same_bits),
        cmocka_unit_test(attention_many_decode_rows_have_the_same_bits),
        cmocka_unit_test(attention_long_decode_row_has_the_same_bits_split),
        cmocka_unit_test(attention_with_a_window_reads_nothing_in_front),
        cmocka_unit_test(attention_with_a_window_takes_no_v_in_front),
        cmocka_unit_test(attention_with_a_window_of_one_gives_v),
        cmocka_unit_test(attention_over_some_rows_leaves_the_others_alone),
        cmocka_unit_test(rope_keeps_lengths_and_position_zero),
        cmocka_unit_test(page_digest_ignores_what_lies_behind_the_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
