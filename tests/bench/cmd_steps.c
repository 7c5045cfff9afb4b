/* tests/bench/cmd_steps.c - the stall bench without a cluster: streams decode, a long prompt arrives, one
 * engine in this process, no router, client or sockets.
 *
 *     sluice-bench steps --model FILE --threads 2 --csv steps.csv
 *
 * What is left is the engine's own share of a gap: the plan (how long the step was meant to be), the cost
 * model (how wrong that was) and the machine. Each arm is another chunk setting; arms take turns. With
 * --clock cpu time is the processor time of this process over its threads, so that other work on the machine
 * counts little. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/conf.h"
#include "common/base/mem.h"
#include "common/base/philox.h"
#include "common/base/thread.h"
#include "common/engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/stats.h"

#define PAGE_TOKENS 32u
#define EVENTS      256
#define WORST       5 /* steps told at the end */

enum clock_word { CLOCK_WALL, CLOCK_CPU };
static const char *const clock_words[] = {"wall", "cpu", NULL};

struct options {
    char *model, *backend, *cpus, *cache_dir, *json, *csv;
    struct sl_conf_list chunks;
    uint32_t threads, streams, stream_prompt, prompt_tokens, lead_steps, warm_rounds, rounds;
    double stretch;
    uint64_t kv_memory;
    int clock;
};

#define AT(member) offsetof(struct options, member)
static const struct sl_conf_opt option_table[] = {
    {"model", SL_CONF_STRING, AT(model), NULL, "model file", 0, 0, NULL},
    {"threads", SL_CONF_U32, AT(threads), "1", "compute threads", 1, 1024, NULL},
    {"cpus", SL_CONF_STRING, AT(cpus), NULL, "CPUs to pin the threads to, as 0-1; none = not pinned", 0, 0,
     NULL},
    {"backend", SL_CONF_STRING, AT(backend), "auto", "auto, or a backend's name", 0, 0, NULL},
    {"cache_dir", SL_CONF_STRING, AT(cache_dir), NULL,
     "folder of packed weights and cost model; none = no cache", 0, 0, NULL},
    {"chunks", SL_CONF_LIST, AT(chunks), "auto,0",
     "chunk_tokens of the long prompt, one arm each: auto, 0, N", 0, 0, NULL},
    {"streams", SL_CONF_U32, AT(streams), "7", "sequences that decode", 1, 1000, NULL},
    {"stream_prompt", SL_CONF_U32, AT(stream_prompt), "64", "their prompts, tokens", 1, 1e6, NULL},
    {"prompt_tokens", SL_CONF_U32, AT(prompt_tokens), "4096", "the long prompt, tokens", 1, 1e6, NULL},
    {"lead_steps", SL_CONF_U32, AT(lead_steps), "200", "decode steps before it arrives", 10, 1e6, NULL},
    {"warm_rounds", SL_CONF_U32, AT(warm_rounds), "1", "rounds that are not counted: the cost model learns",
     0, 1000, NULL},
    {"rounds", SL_CONF_U32, AT(rounds), "3", "repetitions; medians are printed", 1, 1000, NULL},
    {"stretch", SL_CONF_F64, AT(stretch), "0", "chunk_stretch; 0 = the engine's", 0, 100, NULL},
    {"kv_memory", SL_CONF_BYTES, AT(kv_memory), "1G", "bytes of KV", 1 << 20, 1e15, NULL},
    {"clock", SL_CONF_ENUM, AT(clock), "wall", "wall, or cpu: processor time of the process / threads", 0, 0,
     clock_words},
    {"json", SL_CONF_STRING, AT(json), NULL, "write the result there", 0, 0, NULL},
    {"csv", SL_CONF_STRING, AT(csv), NULL, "write each step there (CSV)", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

/* One step as a stream feels it: from the end of the step before to its own. */
struct moment {
    double gap_ms, predicted_ms, actual_ms;
    uint32_t prompt_rows, decode_rows, history;
};

struct trial {
    struct moment *steps;
    size_t n, cap, n_before; /* those before the prompt came */
    double ttft_ms;
};

struct arm {
    struct sl_samples before, longest, ratio, ttft, error, meant;
};

struct bench {
    const struct options *o;
    struct sl_engine *e;
    struct sl_seq **seqs; /* [streams + 1], the long prompt is the last */
    uint64_t n_drawn;
    FILE *csv;
};

static uint32_t clock_threads; /* of --clock cpu: the engine asks without an argument */

static uint64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return ((uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000) / clock_threads;
}

static uint64_t (*clock_of(const struct options *o))(void)
{
    clock_threads = o->threads;
    return o->clock == CLOCK_CPU ? cpu_us : sl_now_us;
}

static int32_t parse_chunk(const char *s)
{
    return strcmp(s, "auto") == 0 ? SL_CHUNK_AUTO : (int32_t)strtol(s, NULL, 10);
}

static enum sl_err open_seq(struct bench *b, uint32_t i, uint32_t n_tokens, uint32_t max_tokens,
                            int32_t chunk, struct sl_why *why)
{
    static const struct sl_sampling sampling = {
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .ignore_eos = true};
    uint32_t n_vocab = sl_engine_model(b->e)->n_vocab;
    int32_t *tokens = sl_xcalloc(n_tokens, sizeof *tokens);
    for (uint32_t k = 0; k < n_tokens; k++)
        tokens[k] = (int32_t)(sl_philox_uniform(1, 0, b->n_drawn++) * (float)n_vocab);
    struct sl_seq_spec spec = {.owner = &b->seqs[i],
                               .tokens = tokens,
                               .n_tokens = n_tokens,
                               .n_prompt = n_tokens,
                               .max_tokens = max_tokens,
                               .sampling = &sampling,
                               .compute_to = n_tokens,
                               .sample = true,
                               .decode = true,
                               .granted = true,
                               .chunk_tokens = chunk};
    enum sl_err e = sl_engine_seq_open(b->e, &spec, &b->seqs[i], why);
    sl_free(tokens);
    return e;
}

/* Runs one step to its end. SL_ENOPAGES: nothing can run, the streams do not fit the pool together.
 * *first_token: of the long prompt. */
static enum sl_err step(struct bench *b, struct trial *t, uint64_t (*now_us)(void), uint64_t *last_us,
                        bool *first_token, struct sl_why *why)
{
    struct sl_engine_stats s0, s1;
    struct sl_engine_event ev[EVENTS];
    struct sl_seq_view v;
    uint32_t history = 0;
    if (b->seqs[b->o->streams]) {
        sl_seq_view(b->seqs[b->o->streams], &v);
        history = v.computed_tokens;
    }
    sl_engine_stats(b->e, &s0);
    *first_token = false;
    if (!sl_engine_step(b->e, now_us()))
        return sl_why_set(why, SL_ENOPAGES,
                          "the streams and the prompt do not fit the KV pool; give more kv_memory");
    sl_engine_wait(b->e);
    for (size_t n; (n = sl_engine_poll(b->e, ev, EVENTS)) > 0;)
        for (size_t i = 0; i < n; i++)
            *first_token |= ev[i].kind == SL_EV_TOKEN && ev[i].owner == &b->seqs[b->o->streams];
    sl_engine_stats(b->e, &s1);
    uint64_t end_us = now_us();
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->steps = sl_xrealloc_array(t->steps, t->cap, sizeof *t->steps);
    }
    t->steps[t->n++] = (struct moment){.gap_ms = (double)(end_us - *last_us) / 1e3,
                                       .predicted_ms = s1.predicted_ms - s0.predicted_ms,
                                       .actual_ms = s1.actual_ms - s0.actual_ms,
                                       .prompt_rows = (uint32_t)(s1.prompt_tokens - s0.prompt_tokens),
                                       .decode_rows = (uint32_t)(s1.decode_tokens - s0.decode_tokens),
                                       .history = history};
    *last_us = end_us;
    return SL_OK;
}

static void close_all(struct bench *b)
{
    for (uint32_t i = 0; i <= b->o->streams; i++) {
        if (b->seqs[i])
            sl_engine_seq_close(b->e, b->seqs[i]);
        b->seqs[i] = NULL;
    }
}

static enum sl_err run_trial(struct bench *b, int32_t chunk, struct trial *t, struct sl_why *why)
{
    const struct options *o = b->o;
    uint64_t (*now_us)(void) = clock_of(o);
    /* every prompt step gives a token at most: no stream ends before the prompt is done */
    uint32_t enough = o->lead_steps + o->prompt_tokens + o->streams * o->stream_prompt;
    uint64_t last_us = now_us();
    enum sl_err e = SL_OK;
    for (uint32_t i = 0; i < o->streams && !e; i++)
        e = open_seq(b, i, o->stream_prompt, enough, SL_CHUNK_AUTO, why);
    struct sl_engine_stats s = {0};
    bool first_token = false;
    while (!e && s.decode_rows < o->streams) {
        e = step(b, t, now_us, &last_us, &first_token, why);
        sl_engine_stats(b->e, &s);
    }
    t->n = 0;
    while (!e && t->n < o->lead_steps)
        e = step(b, t, now_us, &last_us, &first_token, why);
    t->n_before = t->n;
    if (!e)
        e = open_seq(b, o->streams, o->prompt_tokens, 1, chunk, why);
    uint64_t sent_us = now_us();
    while (!e && !first_token)
        e = step(b, t, now_us, &last_us, &first_token, why);
    t->ttft_ms = (double)(last_us - sent_us) / 1e3;
    close_all(b);
    return e;
}

static double error_of(const struct moment *m)
{
    return m->predicted_ms / m->actual_ms - 1;
}

static void judge(const struct trial *t, struct arm *a)
{
    struct sl_samples before = {0}, during = {0}, error = {0}, alone = {0};
    double meant = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct moment *m = &t->steps[i];
        sl_samples_add(i < t->n_before ? &before : &during, m->gap_ms);
        if (i < t->n_before)
            sl_samples_add(&alone, m->predicted_ms);
        else
            sl_samples_add(&error, 100 * fabs(error_of(m)));
        meant = i < t->n_before ? meant : fmax(meant, m->predicted_ms);
    }
    double base = sl_samples_percentile(&before, 50), longest = sl_samples_percentile(&during, 100);
    sl_samples_add(&a->before, base);
    sl_samples_add(&a->longest, longest);
    sl_samples_add(&a->ratio, longest / base);
    sl_samples_add(&a->ttft, t->ttft_ms);
    sl_samples_add(&a->error, sl_samples_percentile(&error, 50));
    sl_samples_add(&a->meant, meant / sl_samples_percentile(&alone, 50));
    sl_samples_fini(&before);
    sl_samples_fini(&during);
    sl_samples_fini(&error);
    sl_samples_fini(&alone);
}

static int by_gap(const void *a, const void *b)
{
    double x = ((const struct moment *)a)->gap_ms, y = ((const struct moment *)b)->gap_ms;
    return (x < y) - (x > y);
}

/* The steps that a gap was longest in, and why: planned long, or longer than planned, or not in the step. */
static void print_worst(const char *chunk, struct trial *t)
{
    size_t n = t->n - t->n_before;
    qsort(t->steps + t->n_before, n, sizeof *t->steps, by_gap);
    printf("longest gaps of chunk %s: gap, step, predicted ms; rows\n", chunk);
    for (size_t i = 0; i < n && i < WORST; i++) {
        const struct moment *m = &t->steps[t->n_before + i];
        printf("  %8.2f %8.2f %8.2f   %u prompt rows after %u, %u decode rows\n", m->gap_ms, m->actual_ms,
               m->predicted_ms, m->prompt_rows, m->history, m->decode_rows);
    }
}

static void write_csv(struct bench *b, const char *chunk, uint32_t round, const struct trial *t)
{
    for (size_t i = 0; b->csv && i < t->n; i++) {
        const struct moment *m = &t->steps[i];
        fprintf(b->csv, "%s,%u,%d,%u,%u,%u,%.3f,%.3f,%.3f\n", chunk, round, i >= t->n_before, m->prompt_rows,
                m->history, m->decode_rows, m->predicted_ms, m->actual_ms, m->gap_ms);
    }
}

static json_t *report(const struct options *o, struct arm *arms)
{
    json_t *doc = json_object();
    printf("%u-token prompt into %u decoding streams, medians of %u, %s clock\n", o->prompt_tokens,
           o->streams, o->rounds, clock_words[o->clock]);
    printf("%-8s %14s %12s %8s %14s %10s %10s\n", "chunk", "gap before ms", "longest ms", "ratio",
           "ratio planned", "error %", "TTFT ms");
    for (size_t a = 0; a < o->chunks.n; a++) {
        double v[] = {sl_samples_percentile(&arms[a].before, 50), sl_samples_percentile(&arms[a].longest, 50),
                      sl_samples_percentile(&arms[a].ratio, 50),  sl_samples_percentile(&arms[a].meant, 50),
                      sl_samples_percentile(&arms[a].error, 50),  sl_samples_percentile(&arms[a].ttft, 50)};
        printf("%-8s %14.2f %12.2f %8.2f %14.2f %10.1f %10.0f\n", o->chunks.items[a], v[0], v[1], v[2], v[3],
               v[4], v[5]);
        json_object_set_new(doc, o->chunks.items[a],
                            json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "gap_before_ms", v[0], "longest_gap_ms",
                                      v[1], "ratio", v[2], "ratio_planned", v[3], "error_median_percent",
                                      v[4], "ttft_ms", v[5]));
    }
    return doc;
}

static enum sl_err run_all(struct bench *b, struct arm *arms, struct sl_why *why)
{
    const struct options *o = b->o;
    enum sl_err e = SL_OK;
    for (uint32_t round = 0; round < o->warm_rounds + o->rounds && !e; round++)
        for (size_t a = 0; a < o->chunks.n && !e; a++) {
            struct trial t = {0};
            e = run_trial(b, parse_chunk(o->chunks.items[a]), &t, why);
            if (!e && round >= o->warm_rounds) {
                judge(&t, &arms[a]);
                write_csv(b, o->chunks.items[a], round, &t);
                if (round + 1 == o->warm_rounds + o->rounds)
                    print_worst(o->chunks.items[a], &t);
            }
            sl_free(t.steps);
        }
    return e;
}

static enum sl_err engine_open(struct bench *b, struct sl_why *why)
{
    const struct options *o = b->o;
    int *cpus = NULL;
    size_t n_cpus = 0;
    if (sl_cpu_list_parse(o->cpus, &cpus, &n_cpus))
        return sl_why_set(why, SL_ECONFIG, "cpus: \"%s\" is no list of CPUs, as 0-1", o->cpus);
    struct sl_engine_conf c = {.model_path = o->model,
                               .backend = o->backend,
                               .cache_dir = o->cache_dir,
                               .n_threads = o->threads,
                               .cpus = cpus,
                               .n_cpus = n_cpus,
                               .kv_dtype = SL_BF16,
                               .page_tokens = PAGE_TOKENS,
                               .kv_memory_bytes = o->kv_memory,
                               .max_sequences = o->streams + 1,
                               .max_batch_tokens = o->prompt_tokens + o->streams,
                               .chunk_tokens = SL_CHUNK_AUTO,
                               .chunk_stretch = o->stretch,
                               .clock_us = clock_of(o)};
    enum sl_err e = sl_engine_open(&c, &b->e, why);
    sl_free(cpus);
    return e;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    if (!o->model) {
        sl_why_set(why, SL_ECONFIG, "no model; give --model FILE");
        return SL_BENCH_USAGE;
    }
    struct bench b = {.o = o, .seqs = sl_xcalloc(o->streams + 1, sizeof(struct sl_seq *))};
    struct arm *arms = sl_xcalloc(o->chunks.n, sizeof *arms);
    int rc = SL_BENCH_USAGE;
    if (o->csv && !(b.csv = fopen(o->csv, "w")))
        sl_why_set(why, SL_EIO, "cannot write %s", o->csv);
    else if (engine_open(&b, why) == SL_OK) {
        if (b.csv)
            fputs("chunk,round,during,prompt_rows,history,decode_rows,predicted_ms,actual_ms,gap_ms\n",
                  b.csv);
        rc = run_all(&b, arms, why) == SL_OK ? SL_BENCH_OK : SL_BENCH_FAILED;
    }
    if (rc == SL_BENCH_OK) {
        json_t *doc = report(o, arms);
        if (o->json && json_dump_file(doc, o->json, JSON_INDENT(1)) != 0) {
            sl_why_set(why, SL_EIO, "cannot write %s", o->json);
            rc = SL_BENCH_FAILED;
        }
        json_decref(doc);
    }
    for (size_t a = 0; a < o->chunks.n; a++) {
        struct sl_samples *all[] = {&arms[a].before, &arms[a].longest, &arms[a].ratio,
                                    &arms[a].ttft,   &arms[a].error,   &arms[a].meant};
        for (size_t i = 0; i < SL_COUNTOF(all); i++)
            sl_samples_fini(all[i]);
    }
    if (b.csv)
        fclose(b.csv);
    sl_engine_close(b.e);
    sl_free(b.seqs);
    sl_free(arms);
    return rc;
}

const struct sl_bench_command sl_bench_steps = {
    .name = "steps",
    .usage = "--model FILE [options]",
    .help = "a long prompt into decoding streams, in one process: what each step was meant to take",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
