/* tests/gpu/gpu_measure.c - speed: what the card gives (reading, products), attention of decode rows, of a
 * prompt chunk and of both together, and whole steps of a model's layers.
 *
 * A time is the median of some runs, each between two waits for the stream: launches count. */
#include "tests/gpu/gpu_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/gpu/read_roof.h"

#define MAX_REPEATS  32
#define STEP_CONTEXT 1024u /* positions of a decode row in a step */
#define MIXED_DECODE 32u

/* ---- figures: a line in the table and one in the JSON ---- */

struct figures {
    FILE *json;
    unsigned n;
    double read_gbs, gemm_tflops; /* the ceilings */
};

static void tell(struct figures *f, const char *name, double value, const char *unit, double ceiling)
{
    fprintf(f->json, "%s\n  {\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}", f->n++ ? "," : "", name,
            value, unit);
    if (ceiling > 0)
        printf("%-44s %12.4g %-8s %5.1f %% of ceiling\n", name, value, unit, 100 * value / ceiling);
    else
        printf("%-44s %12.4g %s\n", name, value, unit);
    fflush(stdout);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of fn(arg), which queues work and waits for it; two runs before do not count: a pass is kept in
 * the second. */
static double seconds(unsigned repeats, void (*fn)(void *arg), void *arg)
{
    double s[MAX_REPEATS];
    repeats = repeats < MAX_REPEATS ? repeats : MAX_REPEATS;
    fn(arg);
    fn(arg);
    for (unsigned i = 0; i < repeats; i++) {
        uint64_t start = sl_now_ns();
        fn(arg);
        s[i] = (double)(sl_now_ns() - start) * 1e-9;
    }
    qsort(s, repeats, sizeof *s, by_size);
    return s[repeats / 2];
}

/* ---- what the card gives ---- */

struct read_job {
    struct cu_stream *s;
    void *p;
    size_t bytes;
    uint32_t *out;
};

static void run_read(void *arg)
{
    const struct read_job *j = arg;
    gpu_read(j->s, j->p, j->bytes, j->out);
    cu_sync(j->s);
}

static void measure_read(const struct gpu_sizes *s, struct figures *f)
{
    struct read_job j = {.bytes = s->read_bytes};
    struct sl_why why = {""};
    if (cu_stream_open(0, &j.s, &why) != SL_OK || !(j.p = cu_alloc(j.s, j.bytes)) ||
        !(j.out = cu_alloc(j.s, sizeof *j.out))) {
        fprintf(stderr, "gpu_check: no device or no memory to read from: %s\n", why.text);
        exit(1);
    }
    f->read_gbs = (double)j.bytes / seconds(s->repeats, run_read, &j) * 1e-9;
    tell(f, "read", f->read_gbs, "GB/s", 0);
    cu_free(j.s, j.p);
    cu_free(j.s, j.out);
    cu_stream_close(j.s);
}

struct linear_job {
    struct gpu_rig *g;
    struct sl_linear a;
};

static void run_linear(void *arg)
{
    const struct linear_job *j = arg;
    j->g->ops->linear(j->g->d, &j->a);
    j->g->ops->sync(j->g->d);
}

static void measure_gemm(const struct gpu_sizes *s, struct figures *f)
{
    struct gpu_rig g = gpu_rig_open("cuda", s, 1, s->gemm_rows, 1);
    struct sl_weight *w = gpu_matrix(&g, s->d_model, s->d_model);
    for (uint32_t rows = s->gemm_rows; rows >= s->gemm_rows / 4; rows /= 2) {
        size_t n = (size_t)rows * s->d_model;
        struct linear_job j = {&g, {.w = w, .n_rows = rows}};
        float *x = gpu_buffer(&g, n, 1, 1), *y = gpu_buffer(&g, n, 2, 1);
        j.a.x = x;
        j.a.y = y;
        double tflops = 2.0 * (double)n * s->d_model / seconds(s->repeats, run_linear, &j) * 1e-12;
        f->gemm_tflops = tflops > f->gemm_tflops ? tflops : f->gemm_tflops;
        char name[64];
        snprintf(name, sizeof name, "gemm.rows_%u", rows);
        tell(f, name, tflops, "TFLOP/s", 0);
        g.ops->buf_free(g.d, x, n * sizeof *x);
        g.ops->buf_free(g.d, y, n * sizeof *y);
    }
    g.ops->weight_free(g.d, w);
    gpu_rig_close(&g);
}

/* ---- attention ---- */

struct attention_job {
    struct gpu_rig *g;
    struct sl_attn_shape shape;
    struct sl_batch parts[2]; /* run one after the other */
    unsigned n_parts;
    float *qkv, *out;
};

static void run_attention(void *arg)
{
    const struct attention_job *j = arg;
    for (unsigned i = 0; i < j->n_parts; i++)
        j->g->ops->attention(j->g->d, j->g->kv, 0, &j->shape, &j->parts[i], j->qkv, j->out);
    j->g->ops->sync(j->g->d);
}

/* Seconds of the batch's attention: all together, or its decode rows and its chunk apart. */
static double attention_seconds(struct gpu_rig *g, const struct gpu_sizes *s, const struct gpu_batch *b,
                                int apart)
{
    size_t width = (s->n_heads + 2 * s->n_kv_heads) * s->head_dim, n = (size_t)b->b.n_rows * width;
    size_t out_n = (size_t)b->b.n_rows * s->n_heads * s->head_dim;
    struct attention_job j = {.g = g, .shape = gpu_attn_shape(s), .parts = {b->b}, .n_parts = 1};
    if (apart) {
        j.n_parts = 2;
        j.parts[1] = b->b;
        j.parts[0].n_runs--;
        j.parts[1].runs += j.parts[0].n_runs;
        j.parts[1].n_runs = 1;
    }
    j.qkv = gpu_buffer(g, n, 3, 1);
    j.out = gpu_buffer(g, out_n, 4, 1);
    double t = seconds(s->repeats, run_attention, &j);
    g->ops->buf_free(g->d, j.qkv, n * sizeof *j.qkv);
    g->ops->buf_free(g->d, j.out, out_n * sizeof *j.out);
    return t;
}

static uint32_t attention_pages(const struct gpu_sizes *s)
{
    return s->decode_batch * (s->decode_context / s->page_tokens + 1) + s->max_rows / s->page_tokens + 1;
}

static void measure_decode(const struct gpu_sizes *s, struct figures *f, const char *suffix)
{
    struct gpu_rig g = gpu_rig_open("cuda", s, 1, s->max_rows, attention_pages(s));
    double kv_bytes = (double)sl_kv_page_bytes(&g.geometry) / s->page_tokens;
    for (uint32_t n = s->decode_batch;; n = 1) {
        struct gpu_batch b = gpu_batch_make(&g, n, s->decode_context, 0, 0);
        double t = attention_seconds(&g, s, &b, 0);
        char name[64];
        snprintf(name, sizeof name, "attention.decode_%ux%u%s", n, s->decode_context, suffix);
        tell(f, name, n * kv_bytes * s->decode_context / t * 1e-9, "GB/s", f->read_gbs);
        gpu_batch_free(&b);
        if (n == 1)
            break;
    }
    gpu_rig_close(&g);
}

static void measure_attention(const struct gpu_sizes *s, struct figures *f)
{
    struct gpu_sizes q8 = *s, fp8 = *s;
    q8.kv_dtype = SL_Q8;
    fp8.kv_dtype = SL_FP8;
    measure_decode(s, f, "");
    measure_decode(&q8, f, "_q8");
    measure_decode(&fp8, f, "_fp8");
    struct gpu_rig g = gpu_rig_open("cuda", s, 1, s->max_rows, attention_pages(s));
    double flops = 4.0 * s->n_heads * s->head_dim;
    for (uint32_t history = 0; history <= s->chunk_history; history += s->chunk_history) {
        struct gpu_batch b = gpu_batch_make(&g, 0, 1, s->chunk, history);
        double seen = (double)s->chunk * (history + (s->chunk + 1) / 2.0),
               t = attention_seconds(&g, s, &b, 0);
        char name[64];
        snprintf(name, sizeof name, "attention.chunk_%u_behind_%u", s->chunk, history);
        tell(f, name, flops * seen / t * 1e-12, "TFLOP/s", f->gemm_tflops);
        gpu_batch_free(&b);
    }
    struct gpu_batch b =
        gpu_batch_make(&g, s->decode_batch / 2, s->decode_context / 4, s->chunk / 8, s->chunk_history);
    double together = attention_seconds(&g, s, &b, 0), apart = attention_seconds(&g, s, &b, 1);
    tell(f, "attention.mixed.together", together * 1e6, "us", 0);
    tell(f, "attention.mixed.apart", apart * 1e6, "us", 0);
    gpu_batch_free(&b);
    gpu_rig_close(&g);
}

/* ---- steps ---- */

static double step_ms(struct gpu_stepper *t, uint32_t n_decode, uint32_t context, uint32_t n_chunk,
                      uint32_t history)
{
    struct gpu_batch b = gpu_batch_make(&t->g, n_decode, context, n_chunk, history);
    t->b = &b.b;
    double ms = 1e3 * seconds(t->s->repeats, gpu_step, t);
    gpu_batch_free(&b);
    return ms;
}

static void tell_step(struct gpu_stepper *t, struct figures *f, uint32_t n_decode, uint32_t n_chunk)
{
    char name[64];
    snprintf(name, sizeof name, "step.decode_%u.chunk_%u", n_decode, n_chunk);
    tell(f, name, step_ms(t, n_decode, STEP_CONTEXT, n_chunk, 0), "ms", 0);
}

static void measure_steps(const struct gpu_sizes *s, struct figures *f)
{
    uint32_t max_decode = s->max_rows / 16;
    struct gpu_stepper t = gpu_stepper_open("cuda", s, s->n_layers, s->max_rows, max_decode + 1, 0);
    for (uint32_t n = 1; n <= max_decode; n *= 2)
        tell_step(&t, f, n, 0);
    for (uint32_t n = s->max_rows / 32; n <= s->max_rows; n *= 2)
        tell_step(&t, f, 0, n);
    uint32_t n_decode = MIXED_DECODE < max_decode ? MIXED_DECODE : max_decode;
    for (uint32_t n = s->max_rows / 32; n <= s->max_rows / 4; n *= 2)
        tell_step(&t, f, n_decode, n);
    gpu_stepper_close(&t);
}

/* Decode steps whose launches are made one by one, beside those of measure_steps() that are a graph. */
static void measure_without_graphs(const struct gpu_sizes *s, struct figures *f)
{
    uint32_t max_decode = s->max_rows / 16;
    struct gpu_stepper t = gpu_stepper_open("cuda", s, s->n_layers, max_decode, max_decode, 1);
    for (uint32_t n = 1; n <= max_decode; n *= 16) {
        char name[64];
        snprintf(name, sizeof name, "no_graph.decode_%u", n);
        tell(f, name, step_ms(&t, n, STEP_CONTEXT, 0, 0), "ms", 0);
    }
    gpu_stepper_close(&t);
}

/* The exact table beside the fast one, on two layers: it is slow. */
static void measure_exactness(const struct gpu_sizes *s, struct figures *f)
{
    static const char *const tables[] = {"cuda", "cuda-plain"};
    double ms[2][2];
    uint32_t n_chunk = s->max_rows / 32;
    for (int i = 0; i < 2; i++) {
        struct gpu_stepper t = gpu_stepper_open(tables[i], s, 2, n_chunk, 1, 0);
        ms[i][0] = step_ms(&t, 1, STEP_CONTEXT, 0, 0);
        ms[i][1] = step_ms(&t, 0, 1, n_chunk, 0);
        gpu_stepper_close(&t);
    }
    tell(f, "exact.decode_1.times", ms[1][0] / ms[0][0], "x", 0);
    tell(f, "exact.chunk.times", ms[1][1] / ms[0][1], "x", 0);
}

/* ---- sampling ---- */

struct sample_job {
    struct gpu_rig *g;
    float *logits;
    struct sl_pick picks[SL_PICK_MAX_ROWS];
    struct sl_picked out[SL_PICK_MAX_ROWS];
    uint32_t n_vocab, n_rows;
};

static void run_sample(void *arg)
{
    struct sample_job *j = arg;
    j->g->ops->sample(j->g->d, j->logits, j->n_vocab, j->picks, j->n_rows, j->out);
    j->g->ops->sync(j->g->d);
}

static void measure_sampling(const struct gpu_sizes *s, struct figures *f)
{
    static const struct {
        const char *name;
        struct sl_pick pick;
    } kinds[] = {
        {"greedy", {.top_p = 1}},
        {"top_p", {.inv_temperature = 1 / 0.7f, .top_p = 0.95f, .lowest_x = -INFINITY, .uniform = 0.4f}},
        {"logprobs_5", {.top_p = 1, .want_sum = 1, .n_top = 5}},
        {"digest", {.top_p = 1, .want_digest = 1}},
    };
    struct gpu_rig g = gpu_rig_open("cuda", s, 1, s->max_rows, 1);
    struct sample_job j = {.g = &g, .n_vocab = s->n_vocab};
    j.logits = gpu_buffer(&g, (size_t)SL_PICK_MAX_ROWS * s->n_vocab, 8, 12);
    for (uint32_t n = 1; n <= SL_PICK_MAX_ROWS; n *= SL_PICK_MAX_ROWS)
        for (size_t k = 0; k < SL_COUNTOF(kinds); k++) {
            char name[64];
            j.n_rows = n;
            for (uint32_t i = 0; i < n; i++)
                j.picks[i] = kinds[k].pick;
            snprintf(name, sizeof name, "sample.%s_%u", kinds[k].name, n);
            tell(f, name, 1e6 * seconds(s->repeats, run_sample, &j), "us", 0);
        }
    g.ops->buf_free(g.d, j.logits, (size_t)SL_PICK_MAX_ROWS * s->n_vocab * sizeof *j.logits);
    gpu_rig_close(&g);
}

/* ---- pages under way ---- */

struct move_job {
    const struct sl_kv_mover_ops *mv;
    struct sl_kv_mover *m;
    uint64_t (*call)(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens, uint32_t n,
                     uint32_t slot);
    const uint32_t *pages, *n_tokens;
    uint32_t n, n_runs;
};

/* In runs, so that copies over the bus and gathering have each other beside them. */
static void run_move(void *arg)
{
    const struct move_job *j = arg;
    uint64_t last = 0;
    uint32_t per_run = j->n / j->n_runs;
    for (uint32_t r = 0; r < j->n_runs; r++)
        last = j->call(j->m, j->pages + r * per_run, j->n_tokens ? j->n_tokens + r * per_run : NULL, per_run,
                       r * per_run);
    j->mv->wait(j->m, last);
}

/* Bytes of pages in a second; on the device each is read and written. */
static void measure_pages(const struct gpu_sizes *s, struct figures *f)
{
    enum { RUNS = 4 };
    uint32_t n = RUNS * s->move_pages, pages[64], n_tokens[64];
    struct gpu_rig g = gpu_rig_open("cuda", s, s->n_layers, 1, 2 * n);
    struct move_job j = {.mv = g.ops->mover, .pages = pages, .n = n};
    struct sl_why why = {""};
    if (j.mv->open(g.d, g.kv, n, &j.m, &why) != SL_OK) {
        fprintf(stderr, "gpu_check: %s\n", why.text);
        exit(1);
    }
    for (uint32_t i = 0; i < n; i++) {
        pages[i] = (i * 37 + 5) % (2 * n);
        n_tokens[i] = s->page_tokens;
    }
    const struct {
        const char *name;
        uint64_t (*call)(struct sl_kv_mover *, const uint32_t *, const uint32_t *, uint32_t, uint32_t);
        uint32_t n_runs;
        const uint32_t *n_tokens;
        double ceiling;
    } kinds[] = {{"pages.gather", j.mv->gather, 1, NULL, f->read_gbs / 2},
                 {"pages.scatter", j.mv->scatter, 1, NULL, f->read_gbs / 2},
                 {"pages.gather_and_digest", j.mv->gather, 1, n_tokens, 0},
                 {"pages.fetch", j.mv->fetch, RUNS, NULL, 0},
                 {"pages.fetch_and_digest", j.mv->fetch, RUNS, n_tokens, 0},
                 {"pages.place", j.mv->place, RUNS, NULL, 0}};
    double bytes = (double)n * (double)j.mv->slots(j.m).page_bytes;
    for (size_t k = 0; k < SL_COUNTOF(kinds); k++) {
        j.call = kinds[k].call;
        j.n_runs = kinds[k].n_runs;
        j.n_tokens = kinds[k].n_tokens;
        tell(f, kinds[k].name, bytes / seconds(s->repeats, run_move, &j) * 1e-9, "GB/s", kinds[k].ceiling);
    }
    j.mv->close(j.m);
    gpu_rig_close(&g);
}

#define PATH_RUNS 4u

struct path_job {
    const struct sl_kv_mover_ops *mv;
    struct sl_kv_mover *from, *to;
    const uint32_t *pages, *n_tokens; /* [n] */
    uint32_t n;
};

/* As two nodes have it: a run is on the bus while the next is gathered, the host hands it over as shared memory would,
 * and one is placed while the next comes. */
static void run_path(void *arg)
{
    const struct path_job *j = arg;
    struct sl_kv_slots from = j->mv->slots(j->from), to = j->mv->slots(j->to);
    uint32_t per_run = j->n / PATH_RUNS;
    size_t bytes = per_run * from.page_bytes;
    uint64_t fetched[PATH_RUNS], last = 0;
    for (uint32_t r = 0; r < PATH_RUNS; r++)
        fetched[r] =
            j->mv->fetch(j->from, j->pages + r * per_run, j->n_tokens + r * per_run, per_run, r * per_run);
    for (uint32_t r = 0; r < PATH_RUNS; r++) {
        j->mv->wait(j->from, fetched[r]);
        memcpy((char *)to.host + r * bytes, (const char *)from.host + r * bytes, bytes);
        last = j->mv->place(j->to, j->pages + r * per_run, j->n_tokens + r * per_run, per_run, r * per_run);
    }
    j->mv->wait(j->to, last);
    for (uint32_t i = 0; i < j->n; i++)
        if (from.digests[i] != to.digests[i]) {
            fprintf(stderr, "gpu_check: page %u of pages.node_to_node did not arrive as it was sent\n", i);
            exit(1);
        }
}

static void measure_page_path(const struct gpu_sizes *s, struct figures *f)
{
    uint32_t n = PATH_RUNS * s->move_pages, pages[64], n_tokens[64];
    struct gpu_rig p = gpu_rig_open("cuda", s, s->n_layers, 1, n),
                   d = gpu_rig_open("cuda", s, s->n_layers, 1, n);
    struct path_job j = {.mv = p.ops->mover, .pages = pages, .n_tokens = n_tokens, .n = n};
    struct sl_why why = {""};
    if (j.mv->open(p.d, p.kv, n, &j.from, &why) != SL_OK || j.mv->open(d.d, d.kv, n, &j.to, &why) != SL_OK) {
        fprintf(stderr, "gpu_check: %s\n", why.text);
        exit(1);
    }
    uint8_t *page = sl_xalloc(j.mv->slots(j.from).page_bytes);
    for (uint32_t i = 0; i < n; i++) {
        memset(page, 1 + (int)i, j.mv->slots(j.from).page_bytes);
        p.ops->kv_write(p.d, p.kv, i, page);
        pages[i] = n - 1 - i;
        n_tokens[i] = s->page_tokens - i % 2; /* whole pages, and one token less */
    }
    double bytes = (double)n * (double)j.mv->slots(j.from).page_bytes;
    tell(f, "pages.node_to_node", bytes / seconds(s->repeats, run_path, &j) * 1e-9, "GB/s", 0);
    sl_free(page);
    j.mv->close(j.from);
    j.mv->close(j.to);
    gpu_rig_close(&p);
    gpu_rig_close(&d);
}

void gpu_measure(const struct gpu_sizes *s, const char *path)
{
    struct figures f = {.json = fopen(path, "w")};
    if (!f.json) {
        fprintf(stderr, "gpu_check: cannot write %s\n", path);
        exit(1);
    }
    fprintf(f.json, "{\"sizes\": \"%s\", \"figures\": [", s->name);
    measure_read(s, &f);
    measure_gemm(s, &f);
    measure_attention(s, &f);
    measure_steps(s, &f);
    measure_without_graphs(s, &f);
    measure_exactness(s, &f);
    measure_sampling(s, &f);
    measure_pages(s, &f);
    measure_page_path(s, &f);
    fprintf(f.json, "\n]}\n");
    fclose(f.json);
}
