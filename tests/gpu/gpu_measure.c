/* tests/gpu/gpu_measure.c - speed: what the card gives (reading, products), attention of decode rows, of a
 * prompt chunk and of both together, and whole steps of a model's layers.
 *
 * A time is the median of some runs, each between two waits for the stream: launches count. A step is what
 * common/model/forward.c does with the table; its layers share one set of matrices, which at 8B is larger
 * than any cache, so that each reads as much as one of its own would. */
#include "tests/gpu/gpu_check.h"

#include <stdio.h>
#include <stdlib.h>
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/gpu/read_roof.h"

#define MAX_REPEATS  32
#define STEP_PAGES   1024u /* of the pool of steps, 8.6 GB at 8B; longer batches use them again */
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

/* Median seconds of fn(arg), which queues work and waits for it; one run before does not count. */
static double seconds(unsigned repeats, void (*fn)(void *arg), void *arg)
{
    double s[MAX_REPEATS];
    repeats = repeats < MAX_REPEATS ? repeats : MAX_REPEATS;
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
    if (cu_stream_open(&j.s, &why) != SL_OK || !(j.p = cu_alloc(j.s, j.bytes)) ||
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

static struct sl_attn_shape shape_of(const struct gpu_sizes *s)
{
    return (struct sl_attn_shape){.n_heads = s->n_heads,
                                  .n_kv_heads = s->n_kv_heads,
                                  .head_dim = s->head_dim,
                                  .rope_dim = s->head_dim,
                                  .rope_theta = 500000.0f,
                                  .rope_layout = SL_ROPE_PAIRS};
}

/* Seconds of the batch's attention: all together, or its decode rows and its chunk apart. */
static double attention_seconds(struct gpu_rig *g, const struct gpu_sizes *s, const struct gpu_batch *b,
                                int apart)
{
    size_t width = (s->n_heads + 2 * s->n_kv_heads) * s->head_dim, n = (size_t)b->b.n_rows * width;
    size_t out_n = (size_t)b->b.n_rows * s->n_heads * s->head_dim;
    struct attention_job j = {.g = g, .shape = shape_of(s), .parts = {b->b}, .n_parts = 1};
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

static void measure_attention(const struct gpu_sizes *s, struct figures *f)
{
    uint32_t n_pages =
        s->decode_batch * (s->decode_context / s->page_tokens + 1) + s->max_rows / s->page_tokens + 1;
    struct gpu_rig g = gpu_rig_open("cuda", s, 1, s->max_rows, n_pages);
    double kv_bytes = 2.0 * s->n_kv_heads * s->head_dim * sizeof(uint16_t),
           flops = 4.0 * s->n_heads * s->head_dim;
    for (uint32_t n = s->decode_batch;; n = 1) {
        struct gpu_batch b = gpu_batch_make(&g, n, s->decode_context, 0, 0);
        double t = attention_seconds(&g, s, &b, 0);
        char name[64];
        snprintf(name, sizeof name, "attention.decode_%ux%u", n, s->decode_context);
        tell(f, name, n * kv_bytes * s->decode_context / t * 1e-9, "GB/s", f->read_gbs);
        gpu_batch_free(&b);
        if (n == 1)
            break;
    }
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

struct stepper {
    struct gpu_rig g;
    const struct gpu_sizes *s;
    uint32_t n_layers, max_rows;
    struct sl_weight *embed, *qkv, *out, *gate_up, *down; /* embed is the head too */
    float *norm, *x, *qkv_y, *attn, *gate_up_y, *logits;
    const struct sl_batch *b;
};

static struct stepper stepper_open(const char *table, const struct gpu_sizes *s, uint32_t n_layers,
                                   uint32_t max_rows, uint32_t max_out)
{
    uint32_t q_dim = s->n_heads * s->head_dim, width = q_dim + 2 * s->n_kv_heads * s->head_dim;
    struct stepper t = {.s = s, .n_layers = n_layers, .max_rows = max_rows};
    t.g = gpu_rig_open(table, s, n_layers, max_rows, STEP_PAGES);
    t.embed = gpu_matrix(&t.g, s->n_vocab, s->d_model);
    t.qkv = gpu_matrix(&t.g, width, s->d_model);
    t.out = gpu_matrix(&t.g, s->d_model, q_dim);
    t.gate_up = gpu_matrix(&t.g, 2 * s->d_ff, s->d_model);
    t.down = gpu_matrix(&t.g, s->d_model, s->d_ff);
    t.norm = gpu_buffer(&t.g, s->d_model, 1, 1);
    t.x = gpu_buffer(&t.g, (size_t)max_rows * s->d_model, 2, 1);
    t.qkv_y = gpu_buffer(&t.g, (size_t)max_rows * width, 3, 1);
    t.attn = gpu_buffer(&t.g, (size_t)max_rows * q_dim, 4, 1);
    t.gate_up_y = gpu_buffer(&t.g, (size_t)max_rows * 2 * s->d_ff, 5, 1);
    t.logits = gpu_buffer(&t.g, (size_t)max_out * s->n_vocab, 6, 1);
    return t;
}

static void stepper_close(struct stepper *t)
{
    struct sl_weight *weights[] = {t->embed, t->qkv, t->out, t->gate_up, t->down};
    float *buffers[] = {t->norm, t->x, t->qkv_y, t->attn, t->gate_up_y, t->logits};
    for (size_t i = 0; i < SL_COUNTOF(weights); i++)
        t->g.ops->weight_free(t->g.d, weights[i]);
    for (size_t i = 0; i < SL_COUNTOF(buffers); i++)
        t->g.ops->buf_free(t->g.d, buffers[i], 0); /* a device keeps no sizes */
    gpu_rig_close(&t->g);
}

static void linear(const struct stepper *t, const struct sl_weight *w, enum sl_prologue prologue,
                   const float *x, const uint32_t *x_rows, uint32_t n_rows, float *y, int add)
{
    struct sl_linear a = {.w = w,
                          .prologue = prologue,
                          .norm_w = t->norm,
                          .norm_eps = 1e-5f,
                          .x = x,
                          .x_rows = x_rows,
                          .y = y,
                          .add = add,
                          .n_rows = n_rows};
    t->g.ops->linear(t->g.d, &a);
}

static void run_step(void *arg)
{
    const struct stepper *t = arg;
    const struct sl_backend_ops *ops = t->g.ops;
    struct sl_attn_shape shape = shape_of(t->s);
    uint32_t n = t->b->n_rows;
    ops->embed(t->g.d, t->embed, t->b, 1, t->x);
    for (uint32_t l = 0; l < t->n_layers; l++) {
        linear(t, t->qkv, SL_PRO_RMSNORM, t->x, NULL, n, t->qkv_y, 0);
        ops->rope_kv(t->g.d, t->g.kv, l, &shape, t->b, t->qkv_y);
        ops->attention(t->g.d, t->g.kv, l, &shape, t->b, t->qkv_y, t->attn);
        linear(t, t->out, SL_PRO_NONE, t->attn, NULL, n, t->x, 1);
        linear(t, t->gate_up, SL_PRO_RMSNORM, t->x, NULL, n, t->gate_up_y, 0);
        linear(t, t->down, SL_PRO_SWIGLU, t->gate_up_y, NULL, n, t->x, 1);
    }
    linear(t, t->embed, SL_PRO_RMSNORM, t->x, t->b->out_rows, t->b->n_out, t->logits, 0);
    ops->sync(t->g.d);
}

static double step_ms(struct stepper *t, uint32_t n_decode, uint32_t context, uint32_t n_chunk,
                      uint32_t history)
{
    struct gpu_batch b = gpu_batch_make(&t->g, n_decode, context, n_chunk, history);
    t->b = &b.b;
    double ms = 1e3 * seconds(t->s->repeats, run_step, t);
    gpu_batch_free(&b);
    return ms;
}

static void tell_step(struct stepper *t, struct figures *f, uint32_t n_decode, uint32_t n_chunk)
{
    char name[64];
    snprintf(name, sizeof name, "step.decode_%u.chunk_%u", n_decode, n_chunk);
    tell(f, name, step_ms(t, n_decode, STEP_CONTEXT, n_chunk, 0), "ms", 0);
}

static void measure_steps(const struct gpu_sizes *s, struct figures *f)
{
    uint32_t max_decode = s->max_rows / 16;
    struct stepper t = stepper_open("cuda", s, s->n_layers, s->max_rows, max_decode + 1);
    for (uint32_t n = 1; n <= max_decode; n *= 2)
        tell_step(&t, f, n, 0);
    for (uint32_t n = s->max_rows / 32; n <= s->max_rows; n *= 2)
        tell_step(&t, f, 0, n);
    uint32_t n_decode = MIXED_DECODE < max_decode ? MIXED_DECODE : max_decode;
    for (uint32_t n = s->max_rows / 32; n <= s->max_rows / 4; n *= 2)
        tell_step(&t, f, n_decode, n);
    stepper_close(&t);
}

/* The exact table beside the fast one, on two layers: it is slow. */
static void measure_exactness(const struct gpu_sizes *s, struct figures *f)
{
    static const char *const tables[] = {"cuda", "cuda-plain"};
    double ms[2][2];
    uint32_t n_chunk = s->max_rows / 32;
    for (int i = 0; i < 2; i++) {
        struct stepper t = stepper_open(tables[i], s, 2, n_chunk, 1);
        ms[i][0] = step_ms(&t, 1, STEP_CONTEXT, 0, 0);
        ms[i][1] = step_ms(&t, 0, 1, n_chunk, 0);
        stepper_close(&t);
    }
    tell(f, "exact.decode_1.times", ms[1][0] / ms[0][0], "x", 0);
    tell(f, "exact.chunk.times", ms[1][1] / ms[0][1], "x", 0);
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
    measure_exactness(s, &f);
    fprintf(f.json, "\n]}\n");
    fclose(f.json);
}
