/* tests/bench/cmd_engine.c - speed of model and backend alone: passes over hand-made batches, no scheduler.
 *
 *     sluice-bench engine --model FILE --threads 2 --json engine.json --plot engine.svg
 *
 * Prompts, decode rows over batch and depth, and mixed steps (chunk x decode rows x history) as a surface,
 * each the median of `repeat` samples after a warm-up, with the smallest and largest, and as part of the
 * roofs that are measured first. Around each figure the machine is asked whether all threads together do as
 * much as so many threads should: a figure taken while they did not is taken again, a few times, and marked
 * when that did not help. A cost model is fitted to all passes: how well its terms explain them is printed.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/conf.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/sched/cost_learn.h"
#include "tests/bench/bench.h"
#include "tests/bench/engine_plot.h"
#include "tests/bench/engine_run.h"
#include "tests/bench/roofs.h"

#define MAX_LIST   32
#define QUIET      0.85 /* all threads do at least this part of what they should */
#define FIT_ROUNDS 20   /* of the surface through the learner */
#define MIN_ROWS   512u /* activations of a pass, at least */

static const char *const kv_words[] = {"bf16", "f16", "f32", "q8", "fp8", NULL};
static const enum sl_dtype kv_types[] = {SL_BF16, SL_F16, SL_F32, SL_Q8, SL_FP8};

struct options {
    char *model, *backend, *cpus, *json, *plot;
    struct sl_conf_list prompts, batches, depths, chunks, decodes, histories;
    uint32_t threads, tensor_parallel, device, steps, repeat, retries, context;
    uint64_t kv_memory, roof_memory;
    int kv;
    bool cuda_graphs;
};

#define AT(member) offsetof(struct options, member)
static const struct sl_conf_opt option_table[] = {
    {"model", SL_CONF_STRING, AT(model), NULL,
     "GGUF file or Hugging Face folder (sluice-make-model writes random files of any shape)", 0, 0, NULL},
    {"threads", SL_CONF_U32, AT(threads), "1", "compute threads", 1, 1024, NULL},
    {"tensor_parallel", SL_CONF_U32, AT(tensor_parallel), "1", "ranks that share each layer, and the threads",
     1, 64, NULL},
    {"device", SL_CONF_U32, AT(device), "0", "first CUDA device", 0, 1023, NULL},
    {"cuda_graphs", SL_CONF_BOOL, AT(cuda_graphs), "true", "keep passes of backend cuda as graphs", 0, 0,
     NULL},
    {"cpus", SL_CONF_STRING, AT(cpus), NULL, "CPUs to pin the threads to, as 0-1; none = not pinned", 0, 0,
     NULL},
    {"backend", SL_CONF_STRING, AT(backend), "auto", "auto, or a backend's name", 0, 0, NULL},
    {"kv", SL_CONF_ENUM, AT(kv), "bf16", "type of the KV memory", 0, 0, kv_words},
    {"prompt", SL_CONF_LIST, AT(prompts), "128,512,2048", "prompt lengths, tokens; none = skip", 0, 0, NULL},
    {"batch", SL_CONF_LIST, AT(batches), "1,2,4,8,16,32,64", "decode batches, rows; none = skip", 0, 0, NULL},
    {"depth", SL_CONF_LIST, AT(depths), "0,1024,4096,16384",
     "context before the first decode step, tokens; what exceeds the model's is left out", 0, 0, NULL},
    {"steps", SL_CONF_U32, AT(steps), "8", "decode steps of one sample", 1, 1e5, NULL},
    {"chunk", SL_CONF_LIST, AT(chunks), "8,16,32,64,128,256,512", "prompt rows of mixed steps; none = skip",
     0, 0, NULL},
    {"decodes", SL_CONF_LIST, AT(decodes), "0,1,4,8,16,32", "decode rows of mixed steps", 0, 0, NULL},
    {"history", SL_CONF_LIST, AT(histories), "0,4096", "tokens before the chunk of mixed steps", 0, 0, NULL},
    {"context", SL_CONF_U32, AT(context), "512", "context of the decode rows of mixed steps, tokens", 0, 1e6,
     NULL},
    {"repeat", SL_CONF_U32, AT(repeat), "5", "samples of a figure; the median counts", 1, 1000, NULL},
    {"retries", SL_CONF_U32, AT(retries), "2", "times a disturbed figure is taken again", 0, 100, NULL},
    {"kv_memory", SL_CONF_BYTES, AT(kv_memory), "2G",
     "bytes of KV at most; contexts share pages beyond it, as 512M", 1 << 20, 1e15, NULL},
    {"roof_memory", SL_CONF_BYTES, AT(roof_memory), "512M",
     "bytes read for the bandwidth roof: many times the last cache", 1 << 20, 1e15, NULL},
    {"json", SL_CONF_STRING, AT(json), NULL, "file for the result; - = standard output, and no table", 0, 0,
     NULL},
    {"plot", SL_CONF_STRING, AT(plot), NULL, "file for a picture (SVG)", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct list {
    uint32_t v[MAX_LIST];
    size_t n;
};

struct point { /* of the surface, for the fit */
    struct sl_step_load load;
    double ms;
};

struct bench {
    const struct options *o;
    struct list prompts, batches, depths, chunks, decodes, histories;
    int *cpus;
    size_t n_cpus;
    struct sl_roofs *roofs;
    struct sl_engine_run *run;
    double roof[SL_N_ROOFS]; /* of all threads, the largest sample */
    enum sl_roof peak;       /* of the weights' type */
    bool table;              /* print as we go */
    struct point *points;
    size_t n_points, points_cap;
    uint32_t n_disturbed;
};

/* Median of the samples, and how much of the machine was ours meanwhile. */
struct figure {
    double ms, min_ms, max_ms, quiet;
};

static bool list_read(const struct sl_conf_list *in, struct list *out)
{
    out->n = 0;
    if (in->n == 1 && strcmp(in->items[0], "none") == 0)
        return true;
    for (size_t i = 0; i < in->n; i++) {
        char *end;
        unsigned long v = strtoul(in->items[i], &end, 10);
        if (end == in->items[i] || *end || v > 1u << 24 || out->n == MAX_LIST)
            return false;
        out->v[out->n++] = (uint32_t)v;
    }
    return true;
}

static uint32_t list_max(const struct list *l)
{
    uint32_t m = 0;
    for (size_t i = 0; i < l->n; i++)
        m = l->v[i] > m ? l->v[i] : m;
    return m;
}

static void list_limit(struct list *l, uint32_t most, const char *what)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i] <= most)
            l->v[kept++] = l->v[i];
        else
            fprintf(stderr, "%s %u is left out: the model's context allows %u\n", what, l->v[i], most);
    l->n = kept;
}

/* ---- one figure ---- */

static double sample_ms(struct bench *b, const struct sl_pass *p, uint32_t steps)
{
    struct sl_pass at = *p;
    double ms = 0;
    for (uint32_t i = 0; i < steps; i++, at.context++)
        ms += sl_engine_run_ms(b->run, &at);
    return ms;
}

static struct figure figure_once(struct bench *b, const struct sl_pass *p, uint32_t steps)
{
    struct sl_samples s = {0};
    double quiet = sl_roofs_quiet(b->roofs);
    for (uint32_t i = 0; i < b->o->repeat; i++)
        sl_samples_add(&s, sample_ms(b, p, steps));
    quiet = fmin(quiet, sl_roofs_quiet(b->roofs));
    struct figure f = {sl_samples_percentile(&s, 50), sl_samples_percentile(&s, 0),
                       sl_samples_percentile(&s, 100), quiet};
    sl_samples_fini(&s);
    return f;
}

static struct figure figure_take(struct bench *b, const struct sl_pass *p, uint32_t steps)
{
    sample_ms(b, p, 1); /* warms caches and threads */
    struct figure best = figure_once(b, p, steps);
    for (uint32_t i = 0; i < b->o->retries && best.quiet < QUIET; i++) {
        struct figure f = figure_once(b, p, steps);
        if (f.quiet > best.quiet)
            best = f;
    }
    b->n_disturbed += best.quiet < QUIET;
    if (b->n_points == b->points_cap) {
        b->points_cap = b->points_cap ? 2 * b->points_cap : 64;
        b->points = sl_xrealloc_array(b->points, b->points_cap, sizeof *b->points);
    }
    struct sl_pass middle = *p;
    middle.context += steps / 2;
    b->points[b->n_points++] = (struct point){sl_pass_load(&middle), best.ms / steps};
    return best;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* What every figure of a pass says beside its speed. */
static json_t *figure_json(struct bench *b, const struct sl_pass *p, uint32_t steps, const struct figure *f)
{
    struct sl_pass middle = *p;
    middle.context += steps / 2;
    struct sl_pass_work w = sl_engine_run_work(b->run, &middle);
    double gop_s = w.ops * steps / f->ms / 1e6, gb_s = w.bytes * steps / f->ms / 1e6;
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:b}", "ms", f->ms / steps, "min_ms",
                     f->min_ms / steps, "max_ms", f->max_ms / steps, "gop_s", gop_s, "percent_of_peak",
                     percent(gop_s, b->roof[b->peak]), "gb_s", gb_s, "percent_of_read",
                     percent(gb_s, b->roof[SL_ROOF_READ]), "quiet", f->quiet, "disturbed", f->quiet < QUIET);
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void print_rate(const struct bench *b, const char *what, uint32_t n, uint32_t depth, const json_t *o)
{
    if (b->table)
        printf("%-8s %7u %7u %11.1f %11.1f %11.1f %9.1f %9.1f%s\n", what, n, depth, number(o, "tokens_per_s"),
               number(o, "min"), number(o, "max"), number(o, "percent_of_peak"), number(o, "percent_of_read"),
               json_is_true(json_object_get(o, "disturbed")) ? "  disturbed" : "");
}

static json_t *rate_take(struct bench *b, const char *what, const struct sl_pass *p, uint32_t steps)
{
    struct figure f = figure_take(b, p, steps);
    json_t *o = figure_json(b, p, steps, &f);
    double tokens = (p->chunk + p->decodes) * (double)steps * 1e3;
    json_object_set_new(o, "tokens_per_s", json_real(tokens / f.ms));
    json_object_set_new(o, "min", json_real(tokens / f.max_ms));
    json_object_set_new(o, "max", json_real(tokens / f.min_ms));
    print_rate(b, what, p->chunk + p->decodes, p->context, o);
    return o;
}

/* ---- the groups ---- */

static json_t *take_roofs(struct bench *b)
{
    json_t *all = json_array();
    if (b->table)
        printf("%-8s %15s %15s %15s %15s\n", "roofs", sl_roof_names[0], sl_roof_names[1], sl_roof_names[2],
               sl_roof_names[3]);
    for (uint32_t n = 1; n <= b->o->threads; n += b->o->threads > 1 ? b->o->threads - 1 : 1) {
        json_t *one = json_pack("{s:i}", "threads", (int)n);
        if (b->table)
            printf("%2u thr. ", n);
        for (enum sl_roof w = 0; w < SL_N_ROOFS; w++) {
            struct sl_samples s = {0};
            for (uint32_t i = 0; i < b->o->repeat; i++)
                sl_samples_add(&s, sl_roofs_sample(b->roofs, w, n));
            double median = sl_samples_percentile(&s, 50);
            b->roof[w] = sl_samples_percentile(&s, 100); /* a roof is what was ever reached */
            json_object_set_new(one, sl_roof_names[w],
                                json_pack("{s:f,s:f,s:f}", "median", median, "min",
                                          sl_samples_percentile(&s, 0), "max", b->roof[w]));
            sl_samples_fini(&s);
            if (b->table)
                printf(" %15.1f", b->roof[w]);
        }
        if (b->table)
            printf("\n");
        json_array_append_new(all, one);
    }
    return all;
}

static json_t *take_prompts(struct bench *b)
{
    json_t *all = json_array();
    for (size_t i = 0; i < b->prompts.n; i++) {
        struct sl_pass p = {.chunk = b->prompts.v[i], .ends_prompt = true};
        json_t *o = rate_take(b, "prompt", &p, 1);
        json_object_set_new(o, "tokens", json_integer(p.chunk));
        json_array_append_new(all, o);
    }
    return all;
}

static json_t *take_decodes(struct bench *b)
{
    json_t *all = json_array();
    for (size_t d = 0; d < b->depths.n; d++)
        for (size_t i = 0; i < b->batches.n; i++) {
            struct sl_pass p = {.decodes = b->batches.v[i], .context = b->depths.v[d]};
            json_t *o = rate_take(b, "decode", &p, b->o->steps);
            json_object_set_new(o, "batch", json_integer(p.decodes));
            json_object_set_new(o, "depth", json_integer(p.context));
            json_array_append_new(all, o);
        }
    return all;
}

static json_t *take_mixed(struct bench *b)
{
    json_t *all = json_array();
    for (size_t h = 0; h < b->histories.n; h++) {
        if (b->table && b->chunks.n) {
            printf("mixed steps, ms: history %u, decode rows at %u\n%8s", b->histories.v[h], b->o->context,
                   "chunk");
            for (size_t d = 0; d < b->decodes.n; d++)
                printf(" %8u", b->decodes.v[d]);
            printf(" decode rows\n");
        }
        for (size_t c = 0; c < b->chunks.n; c++) {
            if (b->table)
                printf("%8u", b->chunks.v[c]);
            for (size_t d = 0; d < b->decodes.n; d++) {
                struct sl_pass p = {.chunk = b->chunks.v[c],
                                    .history = b->histories.v[h],
                                    .decodes = b->decodes.v[d],
                                    .context = b->o->context};
                if (p.chunk + p.decodes == 0) { /* no step at all */
                    if (b->table)
                        printf(" %8s", "-");
                    continue;
                }
                struct figure f = figure_take(b, &p, 1);
                json_t *o = figure_json(b, &p, 1, &f);
                json_object_set_new(o, "chunk", json_integer(p.chunk));
                json_object_set_new(o, "history", json_integer(p.history));
                json_object_set_new(o, "decodes", json_integer(p.decodes));
                json_array_append_new(all, o);
                if (b->table)
                    printf(" %8.2f%s", f.ms, f.quiet < QUIET ? "*" : "");
            }
            if (b->table)
                printf("\n");
        }
    }
    return all;
}

/* ---- the cost model that explains them ---- */

static struct sl_cost_model first_model(const struct bench *b)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
    struct sl_cost_model m;
    double most = 1;
    for (size_t i = 0; i < b->n_points; i++)
        most = fmax(most, b->points[i].load.prompt_rows + b->points[i].load.decode_rows);
    double per_row = 0;
    for (size_t i = 0; i < b->n_points; i++)
        if (b->points[i].load.prompt_rows + b->points[i].load.decode_rows == most)
            per_row = b->points[i].ms / most;
    sl_cost_init_linear(&m, per_row, per_row);
    m.n_points = 0;
    for (size_t i = 0; i < SL_COUNTOF(rows) && (i == 0 || rows[i - 1] < most); i++) {
        m.rows[m.n_points] = rows[i];
        m.ms[m.n_points++] = per_row * (1 + rows[i]);
    }
    return m;
}

static json_t *fit_cost(struct bench *b)
{
    if (b->n_points == 0)
        return json_null();
    struct sl_cost_model m = first_model(b);
    struct sl_cost_learner k;
    sl_cost_learner_init(&k, &m, SL_COST_DOUBT_GUESSED);
    for (int round = 0; round < FIT_ROUNDS; round++)
        for (size_t i = 0; i < b->n_points; i++)
            sl_cost_observe(&k, &m, &b->points[i].load, b->points[i].ms);
    struct sl_samples errors = {0};
    for (size_t i = 0; i < b->n_points; i++)
        sl_samples_add(&errors, 100 * fabs(sl_cost_predict_ms(&m, &b->points[i].load) / b->points[i].ms - 1));
    double median = sl_samples_percentile(&errors, 50), p90 = sl_samples_percentile(&errors, 90);
    sl_samples_fini(&errors);
    json_t *rows = json_array(), *ms = json_array();
    for (uint32_t i = 0; i < m.n_points; i++) {
        json_array_append_new(rows, json_integer(m.rows[i]));
        json_array_append_new(ms, json_real(m.ms[i]));
    }
    if (b->table)
        printf("cost model: head %.3f ms a row, prompt attention %.0f, prompt read %.0f, decode attention "
               "%.0f ms per 1e6 positions; error median %.1f %%, P90 %.1f %%\n",
               m.head_ms_per_row, m.prompt_attn_ms_per_mtoken, m.prompt_read_ms_per_mtoken,
               m.decode_attn_ms_per_mtoken, median, p90);
    return json_pack("{s:o,s:o,s:f,s:f,s:f,s:f,s:f,s:f}", "rows", rows, "ms", ms, "head_ms_per_row",
                     m.head_ms_per_row, "prompt_attn_ms_per_mtoken", m.prompt_attn_ms_per_mtoken,
                     "prompt_read_ms_per_mtoken", m.prompt_read_ms_per_mtoken, "decode_attn_ms_per_mtoken",
                     m.decode_attn_ms_per_mtoken, "error_median_percent", median, "error_p90_percent", p90);
}

/* ---- open, run, write ---- */

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static enum sl_err bench_open(struct bench *b, struct sl_why *why)
{
    const struct options *o = b->o;
    if (!list_read(&o->prompts, &b->prompts) || !list_read(&o->batches, &b->batches) ||
        !list_read(&o->depths, &b->depths) || !list_read(&o->chunks, &b->chunks) ||
        !list_read(&o->decodes, &b->decodes) || !list_read(&o->histories, &b->histories))
        return sl_why_set(why, SL_ECONFIG, "a list wants up to %d whole numbers, as 1,8,32, or none",
                          MAX_LIST);
    struct sl_model_file *f;
    struct sl_model_conf c;
    enum sl_err e = sl_model_file_open(o->model, &f, why);
    if (e)
        return e;
    e = sl_model_conf_read(f, &c, why);
    sl_model_file_close(f);
    if (e)
        return e;
    uint32_t most_chunk = list_max(&b->chunks);
    if (c.context_length <= most(most_chunk, o->steps) || c.context_length <= o->context)
        return sl_why_set(why, SL_ETOOBIG,
                          "the model's context of %u is shorter than chunk, steps or context",
                          c.context_length);
    list_limit(&b->prompts, c.context_length, "prompt");
    list_limit(&b->depths, c.context_length - o->steps, "depth");
    list_limit(&b->histories, c.context_length - most_chunk, "history");
    uint32_t rows = most(most(list_max(&b->prompts), MIN_ROWS),
                         most(list_max(&b->batches), most_chunk + list_max(&b->decodes)));
    uint32_t tokens = most(most(list_max(&b->prompts), list_max(&b->depths) + o->steps),
                           most(list_max(&b->histories) + most_chunk, o->context + 1));
    if ((e = sl_cpu_list_parse(o->cpus, &b->cpus, &b->n_cpus)) != SL_OK)
        return sl_why_set(why, e, "cpus: \"%s\" is no list of CPUs, as 0-1", o->cpus);
    if ((e = sl_roofs_open(o->threads, b->cpus, b->n_cpus, o->roof_memory, &b->roofs)) != SL_OK)
        return sl_why_set(why, e, "no memory for the %llu bytes of the bandwidth roof",
                          (unsigned long long)o->roof_memory);
    struct sl_engine_run_conf rc = {.model = o->model,
                                    .backend = o->backend,
                                    .n_threads = o->threads,
                                    .tensor_parallel = o->tensor_parallel,
                                    .device = o->device,
                                    .no_graphs = !o->cuda_graphs,
                                    .cpus = b->cpus,
                                    .n_cpus = b->n_cpus,
                                    .kv_dtype = kv_types[o->kv],
                                    .max_rows = rows,
                                    .max_decodes =
                                        most(1, most(list_max(&b->batches), list_max(&b->decodes))),
                                    .max_tokens = tokens,
                                    .kv_bytes = o->kv_memory};
    if ((e = sl_engine_run_open(&rc, &b->run, why)) != SL_OK)
        return e;
    enum sl_dtype t = sl_engine_run_weight_type(b->run);
    b->peak = t == SL_BF16 ? SL_ROOF_BF16 : t == SL_F32 || t == SL_F16 ? SL_ROOF_F32 : SL_ROOF_INT8;
    return SL_OK;
}

static json_t *take_all(struct bench *b)
{
    const struct options *o = b->o;
    const struct sl_model_conf *c = sl_engine_run_model(b->run);
    const char *type = sl_dtype_name(sl_engine_run_weight_type(b->run));
    if (b->table)
        printf("%s (%s, %s), %s, %u threads, KV %s%s\n", o->model, c->name, type,
               sl_engine_run_backend(b->run), o->threads, kv_words[o->kv],
               sl_engine_run_shares(b->run) ? ", contexts share pages: kv_memory is short" : "");
    json_t *doc = json_pack("{s:s,s:s,s:s,s:s,s:s,s:i,s:b}", "model", o->model, "name", c->name, "type", type,
                            "backend", sl_engine_run_backend(b->run), "kv", kv_words[o->kv], "threads",
                            (int)o->threads, "shared_pages", sl_engine_run_shares(b->run));
    json_object_set_new(doc, "roofs", take_roofs(b));
    json_object_set_new(doc, "peak", json_string(sl_roof_names[b->peak]));
    if (b->table)
        printf("%-8s %7s %7s %11s %11s %11s %9s %9s\n", "", "rows", "depth", "tokens/s", "min", "max",
               "% peak", "% read");
    json_object_set_new(doc, "prompt", take_prompts(b));
    json_object_set_new(doc, "decode", take_decodes(b));
    json_object_set_new(doc, "mixed", take_mixed(b));
    json_object_set_new(doc, "mixed_context", json_integer(o->context));
    json_object_set_new(doc, "cost_model", fit_cost(b));
    json_object_set_new(doc, "disturbed", json_integer(b->n_disturbed));
    if (b->n_disturbed)
        fprintf(stderr, "%u of %zu figures were disturbed: other work ran on these cores\n", b->n_disturbed,
                b->n_points);
    return doc;
}

static enum sl_err write_all(const struct options *o, const json_t *doc, struct sl_why *why)
{
    const size_t flags = JSON_INDENT(1) | JSON_REAL_PRECISION(6);
    int bad = 0;
    if (o->json && strcmp(o->json, "-") == 0) {
        bad = json_dumpf(doc, stdout, flags);
        putchar('\n');
    } else if (o->json) {
        bad = json_dump_file(doc, o->json, flags);
    }
    if (bad)
        return sl_why_set(why, SL_EIO, "cannot write %s", o->json);
    return o->plot ? sl_engine_plot(doc, o->plot, why) : SL_OK;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    if (!o->model) {
        sl_why_set(why, SL_ECONFIG, "no model; give --model FILE");
        return SL_BENCH_USAGE;
    }
    struct bench b = {.o = o, .table = !o->json || strcmp(o->json, "-") != 0};
    int rc = SL_BENCH_USAGE;
    if (bench_open(&b, why) == SL_OK) {
        setvbuf(stdout, NULL, _IOLBF, 0);
        json_t *doc = take_all(&b);
        rc = write_all(o, doc, why) == SL_OK ? SL_BENCH_OK : SL_BENCH_FAILED;
        json_decref(doc);
    }
    sl_engine_run_close(b.run);
    sl_roofs_close(b.roofs);
    sl_free(b.cpus);
    sl_free(b.points);
    return rc;
}

const struct sl_bench_command sl_bench_engine = {
    .name = "engine",
    .usage = "--model FILE [options]",
    .help = "prompt, decode and mixed steps of the backend alone, and parts of the roofs",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
