/* tests/bench/cmd_engine.c - prompt and decode speed of the backend alone: forward passes over hand-made
 * batches, no scheduler.
 *
 *     sluice-bench engine -m FILE -t 2 -p 512 -n 64 -b 1,8,32 -d 0 --json
 *
 * Prompt: one pass over p tokens, logits of the last row only. Decode: batch rows, each at its own sequence,
 * n steps from depth d on; argmax of each row is the next token. Medians of -r repetitions. */
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/philox.h"
#include "common/base/thread.h"
#include "common/model/model.h"
#include "tests/bench/bench.h"
#include "tests/bench/stats.h"

#define MAX_LIST    16
#define PAGE_TOKENS 32u

struct list {
    uint32_t v[MAX_LIST];
    size_t n;
};

struct options {
    const char *model, *backend, *cpus, *kv;
    struct list prompts, batches, depths;
    uint32_t threads, steps, repeat;
    bool json;
};

struct bench {
    const struct options *o;
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    struct sl_model *model;
    struct sl_kv *kv;
    uint32_t n_pages, pages_per_seq, n_vocab;
    uint32_t *pages; /* identity: page i is page i; a sequence takes a run of pages_per_seq */
    int32_t *tokens;
    struct sl_batch_run *runs;
    uint32_t *out_rows;
    float *logits;
    atomic_uint_fast64_t progress;
};

static bool list_parse(const char *text, struct list *l)
{
    l->n = 0;
    for (char *end; *text; text = end) {
        unsigned long v = strtoul(text, &end, 10);
        if (end == text || l->n == MAX_LIST || v > 1u << 24)
            return false;
        l->v[l->n++] = (uint32_t)v;
        if (*end == ',')
            end++;
        else if (*end)
            return false;
    }
    return l->n > 0;
}

static uint32_t list_max(const struct list *l)
{
    uint32_t m = 0;
    for (size_t i = 0; i < l->n; i++)
        m = l->v[i] > m ? l->v[i] : m;
    return m;
}

static int32_t random_token(struct bench *b, uint64_t n)
{
    return (int32_t)(sl_philox_uniform(1, 0, n) * (float)b->n_vocab);
}

/* Positions [from, from + n) of sequence seq in one pass; logits of the last row when wanted. */
static void prefill(struct bench *b, uint32_t seq, uint32_t from, uint32_t n, bool want_logits)
{
    for (uint32_t i = 0; i < n; i++)
        b->tokens[i] = random_token(b, (uint64_t)seq << 32 | (from + i));
    b->runs[0] =
        (struct sl_batch_run){0, n, from, b->pages + (size_t)seq * b->pages_per_seq, b->pages_per_seq};
    b->out_rows[0] = n - 1;
    struct sl_batch batch = {n, 1, want_logits, b->tokens, b->runs, b->out_rows};
    sl_model_forward(b->model, b->kv, &batch, b->logits, &b->progress);
}

static double bench_prompt(struct bench *b, uint32_t n)
{
    struct sl_samples s = {0};
    for (uint32_t r = 0; r <= b->o->repeat; r++) {
        uint64_t t0 = sl_now_ns();
        prefill(b, 0, 0, n, true);
        if (r > 0) /* the first is the warm-up */
            sl_samples_add(&s, (double)n * 1e9 / (double)(sl_now_ns() - t0));
    }
    double median = sl_samples_percentile(&s, 50);
    sl_samples_fini(&s);
    return median;
}

static double bench_decode(struct bench *b, uint32_t batch_rows, uint32_t depth)
{
    struct sl_samples s = {0};
    for (uint32_t seq = 0; seq < batch_rows; seq++)
        for (uint32_t from = 0; from < depth; from += 512)
            prefill(b, seq, from, depth - from < 512 ? depth - from : 512, false);
    for (uint32_t r = 0; r <= b->o->repeat; r++) {
        uint64_t t0 = sl_now_ns();
        for (uint32_t i = 0; i < batch_rows; i++)
            b->tokens[i] = random_token(b, i);
        for (uint32_t step = 0; step < b->o->steps; step++) {
            for (uint32_t i = 0; i < batch_rows; i++) {
                b->runs[i] = (struct sl_batch_run){i, 1, depth + step,
                                                   b->pages + (size_t)i * b->pages_per_seq, b->pages_per_seq};
                b->out_rows[i] = i;
            }
            struct sl_batch batch = {batch_rows, batch_rows, batch_rows, b->tokens, b->runs, b->out_rows};
            sl_model_forward(b->model, b->kv, &batch, b->logits, &b->progress);
            for (uint32_t i = 0; i < batch_rows; i++) {
                const float *row = b->logits + (size_t)i * b->n_vocab;
                int32_t best = 0;
                for (uint32_t v = 1; v < b->n_vocab; v++)
                    if (row[v] > row[best])
                        best = (int32_t)v;
                b->tokens[i] = best;
            }
        }
        if (r > 0)
            sl_samples_add(&s, (double)batch_rows * b->o->steps * 1e9 / (double)(sl_now_ns() - t0));
    }
    double median = sl_samples_percentile(&s, 50);
    sl_samples_fini(&s);
    return median;
}

static enum sl_err bench_open(struct bench *b, struct sl_why *why)
{
    const struct options *o = b->o;
    uint32_t max_prompt = list_max(&o->prompts), max_batch = list_max(&o->batches),
             max_depth = list_max(&o->depths);
    uint32_t context = max_depth + o->steps > max_prompt ? max_depth + o->steps : max_prompt;
    uint32_t max_rows = max_prompt > max_batch ? max_prompt : max_batch;
    int *cpus = NULL;
    size_t n_cpus = 0;
    if (max_rows < 512)
        max_rows = 512;
    enum sl_err e = sl_backend_find(o->backend, &b->ops, why);
    if (!e)
        e = sl_cpu_list_parse(o->cpus, &cpus, &n_cpus);
    if (!e)
        e = b->ops->open(&(struct sl_dev_conf){o->threads, cpus, n_cpus, max_rows}, &b->dev, why);
    sl_free(cpus);
    enum sl_dtype kv = strcmp(o->kv, "f32") == 0 ? SL_F32 : strcmp(o->kv, "bf16") == 0 ? SL_BF16 : SL_F16;
    if (!e)
        e = sl_model_open(&(struct sl_model_open){.path = o->model,
                                                  .ops = b->ops,
                                                  .dev = b->dev,
                                                  .kv_dtype = kv,
                                                  .page_tokens = PAGE_TOKENS,
                                                  .max_rows = max_rows},
                          &b->model, why);
    if (e)
        return e;
    const struct sl_model_conf *c = sl_model_conf(b->model);
    if (context > c->context_length)
        return sl_why_set(why, SL_ETOOBIG, "%u positions are asked for, the model's context is %u", context,
                          c->context_length);
    struct sl_kv_geometry g = sl_model_kv_geometry(b->model);
    b->n_vocab = c->n_vocab;
    b->pages_per_seq = (context + PAGE_TOKENS - 1) / PAGE_TOKENS;
    b->n_pages = b->pages_per_seq * max_batch;
    e = b->ops->kv_open(b->dev, &g, b->n_pages, &b->kv, why);
    if (e)
        return e;
    b->pages = sl_xalloc(b->n_pages * sizeof *b->pages);
    for (uint32_t i = 0; i < b->n_pages; i++)
        b->pages[i] = i;
    b->tokens = sl_xalloc(max_rows * sizeof *b->tokens);
    b->runs = sl_xalloc(max_batch * sizeof *b->runs);
    b->out_rows = sl_xalloc(max_batch * sizeof *b->out_rows);
    b->logits = sl_xalloc((size_t)max_batch * b->n_vocab * sizeof *b->logits);
    return SL_OK;
}

static void bench_close(struct bench *b)
{
    sl_free(b->pages);
    sl_free(b->tokens);
    sl_free(b->runs);
    sl_free(b->out_rows);
    sl_free(b->logits);
    if (b->kv)
        b->ops->kv_close(b->dev, b->kv);
    sl_model_close(b->model);
    if (b->dev)
        b->ops->close(b->dev);
}

static void help(FILE *out)
{
    fputs("usage: sluice-bench engine -m FILE [options]\n\n"
          "  -m, --model FILE      GGUF file\n"
          "  -t, --threads N       compute threads (1)\n"
          "  -p, --prompt LIST     prompt lengths (512)\n"
          "  -n, --steps N         decode steps of a measurement (64)\n"
          "  -b, --batch LIST      decode batch sizes (1,8)\n"
          "  -d, --depth LIST      tokens before the first decode step (0)\n"
          "  -r, --repeat N        repetitions after a warm-up; medians are printed (3)\n"
          "      --backend NAME    auto, avx512, avx2, portable, reference\n"
          "      --kv TYPE         f16, bf16, f32 (bf16)\n"
          "      --cpus LIST       pin threads, \"0-1\"\n"
          "      --json            print JSON instead of a table\n",
          out);
}

static int run(const struct options *o)
{
    struct bench b = {.o = o};
    struct sl_why why = {0};
    if (bench_open(&b, &why)) {
        fprintf(stderr, "sluice-bench engine: %s\n", why.text);
        bench_close(&b);
        return SL_BENCH_USAGE;
    }
    json_t *prompt = json_array(), *decode = json_array();
    if (!o->json)
        printf("%s, %s, %u threads, KV %s\n%-8s %8s %8s %12s\n", o->model, b.ops->name, o->threads, o->kv, "",
               "tokens", "depth", "tokens/s");
    for (size_t i = 0; i < o->prompts.n; i++) {
        double v = bench_prompt(&b, o->prompts.v[i]);
        json_array_append_new(prompt,
                              json_pack("{s:i,s:f}", "tokens", (int)o->prompts.v[i], "tokens_per_s", v));
        if (!o->json)
            printf("%-8s %8u %8u %12.1f\n", "prompt", o->prompts.v[i], 0, v);
    }
    for (size_t d = 0; d < o->depths.n; d++)
        for (size_t i = 0; i < o->batches.n; i++) {
            double v = bench_decode(&b, o->batches.v[i], o->depths.v[d]);
            json_array_append_new(decode, json_pack("{s:i,s:i,s:f}", "batch", (int)o->batches.v[i], "depth",
                                                    (int)o->depths.v[d], "tokens_per_s", v));
            if (!o->json)
                printf("%-8s %8u %8u %12.1f\n", "decode", o->batches.v[i], o->depths.v[d], v);
        }
    json_t *doc = json_pack("{s:s,s:s,s:i,s:o,s:o}", "model", o->model, "backend", b.ops->name, "threads",
                            (int)o->threads, "prompt", prompt, "decode", decode);
    if (o->json) {
        json_dumpf(doc, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
    }
    json_decref(doc);
    bench_close(&b);
    return SL_BENCH_OK;
}

int sl_bench_engine(int argc, char **argv)
{
    static const struct option longs[] = {{"model", required_argument, NULL, 'm'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"prompt", required_argument, NULL, 'p'},
                                          {"steps", required_argument, NULL, 'n'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"depth", required_argument, NULL, 'd'},
                                          {"repeat", required_argument, NULL, 'r'},
                                          {"backend", required_argument, NULL, 'B'},
                                          {"kv", required_argument, NULL, 'k'},
                                          {"cpus", required_argument, NULL, 'c'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct options o = {.backend = "auto", .kv = "bf16", .threads = 1, .steps = 64, .repeat = 3};
    bool good = list_parse("512", &o.prompts) && list_parse("1,8", &o.batches) && list_parse("0", &o.depths);
    for (int c; (c = getopt_long(argc, argv, "m:t:p:n:b:d:r:h", longs, NULL)) != -1;)
        switch (c) {
        case 'm':
            o.model = optarg;
            break;
        case 't':
            o.threads = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'n':
            o.steps = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'r':
            o.repeat = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'p':
            good &= list_parse(optarg, &o.prompts);
            break;
        case 'b':
            good &= list_parse(optarg, &o.batches);
            break;
        case 'd':
            good &= list_parse(optarg, &o.depths);
            break;
        case 'B':
            o.backend = optarg;
            break;
        case 'k':
            o.kv = optarg;
            break;
        case 'c':
            o.cpus = optarg;
            break;
        case 'j':
            o.json = true;
            break;
        case 'h':
            help(stdout);
            return SL_BENCH_OK;
        default:
            good = false;
        }
    if (!good || !o.model || optind < argc || o.steps == 0 || o.threads == 0 || o.repeat == 0) {
        help(stderr);
        return SL_BENCH_USAGE;
    }
    return run(&o);
}
