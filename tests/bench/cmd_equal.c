/* tests/bench/cmd_equal.c - the law of exactness, tested from outside.
 *
 * Each prompt is answered once as the base (colocated, whole prompt, alone) and then in every combination of
 * mode and split, chunk size, company in the batch, prefix cache and temperature. Tokens and the digest of
 * each sampled row's logits must be those of the base.
 *
 * A test of equality proves something only if the runs really differed: each run has a fresh cache_salt (but
 * for the cached ones), and its decision record must show the (P, s, D) asked for, the pages moved and the
 * chunks run. A record that does not is counted as unproven and fails the command as a difference does. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/conf.h"
#include "common/base/mem.h"
#include "common/base/rand.h"
#include "tests/bench/bench.h"
#include "tests/bench/cluster_info.h"
#include "tests/bench/workload.h"

#define FIRST_TEXT_ID  16 /* control tokens lie below it in the vocabularies served here */
#define COMPANY        7  /* other streams in the batch of a "mixed" run */
#define RUN_TIMEOUT_S  300.0
#define REPORT_WAIT_MS 30000 /* a report may come after the answer; of a node that was lost none comes */
#define REPORT_POLL_MS 5

struct options {
    char *url, *api_key, *json;
    struct sl_conf_list lengths, chunks, temperatures;
    uint32_t output_tokens;
    uint64_t seed;
    bool verbose;
};

static const struct sl_conf_opt option_table[] = {
    {"url", SL_CONF_STRING, offsetof(struct options, url), "http://127.0.0.1:8000", "the router", 0, 0, NULL},
    {"api_key", SL_CONF_STRING, offsetof(struct options, api_key), NULL, "bearer key", 0, 0, NULL},
    {"prompt_tokens", SL_CONF_LIST, offsetof(struct options, lengths), "9,64,200,700", "prompt lengths", 0, 0,
     NULL},
    {"chunks", SL_CONF_LIST, offsetof(struct options, chunks), "16,64,512,0",
     "chunk sizes, 0 = the whole prompt", 0, 0, NULL},
    {"temperatures", SL_CONF_LIST, offsetof(struct options, temperatures), "0,0.8", "sampling temperatures",
     0, 0, NULL},
    {"output_tokens", SL_CONF_U32, offsetof(struct options, output_tokens), "12", "answer length", 2, 4096,
     NULL},
    {"seed", SL_CONF_U64, offsetof(struct options, seed), "1", "of prompts and sampling", 0, 0, NULL},
    {"verbose", SL_CONF_BOOL, offsetof(struct options, verbose), "no", "a line per run", 0, 0, NULL},
    {"json", SL_CONF_STRING, offsetof(struct options, json), NULL, "write the result there", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct context {
    const struct options *o;
    struct sl_router_ref router;
    struct sl_model_ref model;
    uint64_t run_id;
    uint64_t runs, differences, unproven, errors;
    char first_problem[600];
};

enum cache { CACHE_FRESH, CACHE_FILL, CACHE_HIT };

/* One way of answering. */
struct variant {
    const char *mode;
    int64_t split; /* tokens from P, -1 = by the mode */
    const char *chunk;
    bool company;
    enum cache cache;
};

struct answer {
    int32_t *ids;
    uint64_t *digest;
    size_t n;
    char request_id[80];
};

static void problem(struct context *c, const char *what, const char *who, const char *detail)
{
    if (!c->first_problem[0])
        snprintf(c->first_problem, sizeof c->first_problem, "%s: %s: %s", what, who, detail);
    if (c->o->verbose)
        printf("  %s: %s: %s\n", what, who, detail);
}

static void job_for(struct context *c, struct sl_job *j, const struct sl_prompt *p, const struct variant *v,
                    double temperature, uint64_t seed, const char *salt, uint32_t max_tokens)
{
    *j = (struct sl_job){.at_s = 0};
    sl_job_completion(j, p,
                      &(struct sl_completion_opts){.model = c->model.id,
                                                   .max_tokens = max_tokens,
                                                   .temperature = temperature,
                                                   .seed = seed,
                                                   .cache_salt = salt,
                                                   .want_digest = true,
                                                   .token_ids = true});
    char split[32];
    sl_job_header(j, "X-Sluice-Mode", v->mode);
    sl_job_header(j, "X-Sluice-Chunk", v->chunk);
    if (v->split >= 0) {
        snprintf(split, sizeof split, "%" PRId64, v->split);
        sl_job_header(j, "X-Sluice-Split", split);
    }
}

static void name_variant(const struct variant *v, uint32_t n_prompt, double temperature, char *out, size_t n)
{
    snprintf(out, n, "%s split=%" PRId64 " chunk=%s prompt=%u temperature=%g%s%s", v->mode, v->split,
             v->chunk, n_prompt, temperature, v->company ? " mixed" : "",
             v->cache == CACHE_HIT ? " cached" : "");
}

static long value_of(json_t *record, const char *key)
{
    const char *text = sl_info_value(record, "record", key);
    return text ? strtol(text, NULL, 10) : -1;
}

static bool has_reports(json_t *record)
{
    const char *p = sl_info_value(record, "record", "prefill_chunks_P"),
               *d = sl_info_value(record, "record", "prefill_chunks_D");
    return p && d && strcmp(p, "-") != 0 && strcmp(d, "-") != 0;
}

/* The record with the reports of all nodes that took part. On SL_OK *out is the caller's. */
static enum sl_err fetch_record(struct context *c, const char *request_id, json_t **out, struct sl_why *why)
{
    const uint64_t end_ms = sl_now_ms() + REPORT_WAIT_MS;
    char *op = sl_xasprintf("explain/%s", request_id);
    enum sl_err e;
    while ((e = sl_info_tables(&c->router, op, out, why)) == SL_OK && !has_reports(*out) &&
           sl_now_ms() < end_ms) {
        json_decref(*out);
        nanosleep(&(struct timespec){.tv_nsec = REPORT_POLL_MS * 1000000l}, NULL);
    }
    sl_free(op);
    return e;
}

/* Holds the decision record of a run against what was asked. Returns NULL when it shows it, else what is
 * wrong (static). */
static const char *check_record(struct context *c, const struct variant *v, uint32_t n_prompt,
                                const char *request_id, struct sl_why *why)
{
    json_t *record = NULL;
    if (fetch_record(c, request_id, &record, why))
        return why->text;
    const char *wrong = NULL;
    long s = value_of(record, "s");
    long want_s = strcmp(v->mode, "colocated") == 0 ? 0
                  : strcmp(v->mode, "pd") == 0      ? (long)n_prompt
                                                    : (long)v->split;
    long pages = s <= 0 ? 0 : (s + (long)c->model.page_tokens - 1) / (long)c->model.page_tokens;
    long moved = value_of(record, "pages_received"), cached_d = value_of(record, "cached_tokens_D");
    long chunks_p = value_of(record, "prefill_chunks_P"), chunks_d = value_of(record, "prefill_chunks_D");
    long largest_p = value_of(record, "largest_chunk_P"), largest_d = value_of(record, "largest_chunk_D");
    long chunk = strtol(v->chunk, NULL, 10);
    long local_d = (long)n_prompt - (s > 0 ? s : 0);
    const char *p = sl_info_value(record, "record", "P"), *d = sl_info_value(record, "record", "D");
    if (s != want_s)
        wrong = "the record shows another split than the one asked for";
    else if (value_of(record, "attempts") != 1)
        wrong = "the request was placed more than once";
    else if (s > 0 && (!p || !d || !*p || strcmp(p, d) == 0))
        wrong = "prefill and decode did not run on two nodes";
    else if (value_of(record, "recovered_tokens") > 0)
        wrong = "tokens meant for the prefill node were computed at the decode node";
    else if (v->cache != CACHE_HIT && moved != pages)
        wrong = "not all pages of [0, s) moved";
    else if (v->cache == CACHE_HIT && moved + cached_d / (long)c->model.page_tokens < pages)
        wrong = "pages neither moved nor cached";
    else if (v->cache != CACHE_HIT && s > 0 && chunks_p < (chunk > 0 ? (s + chunk - 1) / chunk : 1))
        wrong = "the prefill node ran fewer chunks than the chunk size means";
    else if (v->cache != CACHE_HIT && local_d > 0 &&
             chunks_d < (chunk > 0 ? (local_d + chunk - 1) / chunk : 1))
        wrong = "the decode node ran fewer chunks than the chunk size means";
    else if (chunk > 0 && (largest_p > chunk || largest_d > chunk))
        wrong = "a chunk was larger than asked for";
    else if (v->cache == CACHE_HIT && value_of(record, "cached_tokens_P") <= 0 && cached_d <= 0 &&
             n_prompt > c->model.page_tokens)
        wrong = "a run meant to hit the prefix cache did not";
    json_decref(record);
    return wrong;
}

static bool take_answer(struct context *c, struct sl_job *j, const char *name, struct answer *out)
{
    if (!sl_job_ok(j) || j->n_tokens != c->o->output_tokens) {
        char detail[320];
        snprintf(detail, sizeof detail, "%s (%zu tokens)", j->error[0] ? j->error : "wrong number of tokens",
                 j->n_tokens);
        problem(c, "failed", name, detail);
        c->errors++;
        return false;
    }
    out->ids = sl_xmemdup(j->token_id, j->n_tokens * sizeof *j->token_id);
    out->digest = sl_xmemdup(j->digest, j->n_tokens * sizeof *j->digest);
    out->n = j->n_tokens;
    snprintf(out->request_id, sizeof out->request_id, "%s", j->request_id);
    return true;
}

static void answer_fini(struct answer *a)
{
    sl_free(a->ids);
    sl_free(a->digest);
    *a = (struct answer){0};
}

/* Runs one variant of one prompt (with company when asked) and compares it with base; base->n == 0 makes this
 * run the base. */
static void run_variant(struct context *c, const struct sl_prompt *p, const struct variant *v,
                        double temperature, uint64_t seed, struct answer *base)
{
    struct sl_job jobs[1 + COMPANY] = {0};
    size_t n = 1;
    char name[160], salt[64];
    name_variant(v, p->n, temperature, name, sizeof name);
    if (v->cache != CACHE_FRESH)
        snprintf(salt, sizeof salt, "%" PRIx64 "-cached-%u-%g", c->run_id, p->n, temperature);
    else
        snprintf(salt, sizeof salt, "%" PRIx64 "-%" PRIu64, c->run_id, c->runs);
    job_for(c, &jobs[0], p, v, temperature, seed, salt, c->o->output_tokens);
    if (v->company) {
        /* Streams of other lengths that are under way when this one arrives and go on while it runs. */
        static const char *const modes[] = {"colocated", "pd", "colocated", "hybrid"};
        jobs[0].at_s = 0.05;
        for (size_t k = 0; k < COMPANY; k++) {
            struct sl_draw d = {c->o->seed + c->runs, (uint32_t)(77 + k), 0};
            struct sl_prompt q;
            struct variant other = {modes[k % 4], -1, k % 2 ? "64" : "0", false, CACHE_FRESH};
            char other_salt[80];
            snprintf(other_salt, sizeof other_salt, "%s-company-%zu", salt, k);
            sl_prompt_random(&d, sl_draw_range(&d, (struct sl_range){5, 150}), FIRST_TEXT_ID,
                             c->model.n_vocab, &q);
            job_for(c, &jobs[n++], &q, &other, 1.0, k, other_salt, 3 * c->o->output_tokens);
            sl_free(q.tokens);
        }
    }
    enum sl_err e = sl_client_run(c->router.url, c->router.api_key, jobs, n, RUN_TIMEOUT_S, NULL);
    c->runs++;
    struct answer a = {0};
    if (e) {
        problem(c, "failed", name, "the router does not answer");
        c->errors++;
    } else if (take_answer(c, &jobs[0], name, &a)) {
        struct sl_why why = {0};
        const char *wrong = check_record(c, v, p->n, a.request_id, &why);
        if (wrong) {
            problem(c, "unproven", name, wrong);
            c->unproven++;
        }
        if (base->n == 0) {
            *base = a;
            a = (struct answer){0};
        } else if (memcmp(a.ids, base->ids, a.n * sizeof *a.ids) != 0) {
            problem(c, "different tokens", name, a.request_id);
            c->differences++;
        } else if (memcmp(a.digest, base->digest, a.n * sizeof *a.digest) != 0) {
            problem(c, "different logits", name, a.request_id);
            c->differences++;
        } else if (c->o->verbose) {
            printf("  equal: %s\n", name);
        }
    }
    for (size_t i = 1; i < n && !e; i++)
        if (!sl_job_ok(&jobs[i])) {
            problem(c, "failed", "company", jobs[i].error);
            c->errors++;
        }
    answer_fini(&a);
    for (size_t i = 0; i < n; i++)
        sl_job_fini(&jobs[i]);
}

/* Splits of a hybrid run: the first page, the middle, the last page border below the prompt's end. */
static size_t splits_of(uint32_t n_prompt, uint32_t page, int64_t out[3])
{
    size_t n = 0;
    uint32_t last = (n_prompt - 1) / page * page, middle = last / 2 / page * page;
    if (last >= page)
        out[n++] = page;
    if (middle > page)
        out[n++] = middle;
    if (last > page && last != middle)
        out[n++] = last;
    return n;
}

static void run_prompt(struct context *c, uint32_t n_prompt, double temperature, const char *progress)
{
    const struct options *o = c->o;
    struct sl_draw d = {o->seed, n_prompt, 0};
    struct sl_prompt p;
    struct answer base = {0};
    int64_t splits[3];
    sl_prompt_random(&d, n_prompt, FIRST_TEXT_ID, c->model.n_vocab, &p);
    size_t n_splits = splits_of(n_prompt, c->model.page_tokens, splits);
    uint64_t seed = o->seed * 1000 + n_prompt;

    run_variant(c, &p, &(struct variant){"colocated", -1, "0", false, CACHE_FRESH}, temperature, seed, &base);
    for (size_t k = 0; k < o->chunks.n && base.n; k++) {
        for (int company = 0; company < 2; company++) {
            const char *chunk = o->chunks.items[k];
            if (company || strcmp(chunk, "0") != 0)
                run_variant(c, &p, &(struct variant){"colocated", -1, chunk, company, CACHE_FRESH},
                            temperature, seed, &base);
            run_variant(c, &p, &(struct variant){"pd", -1, chunk, company, CACHE_FRESH}, temperature, seed,
                        &base);
            for (size_t i = 0; i < n_splits; i++)
                run_variant(c, &p, &(struct variant){"hybrid", splits[i], chunk, company, CACHE_FRESH},
                            temperature, seed, &base);
            if (isatty(STDERR_FILENO))
                fprintf(stderr, "\r%s: %" PRIu64 " runs, %" PRIu64 " differences ", progress, c->runs,
                        c->differences);
        }
    }
    /* The same prompt again under one salt: the first fills the caches of both nodes, the rest hit them. */
    if (base.n && n_prompt > c->model.page_tokens) {
        run_variant(c, &p, &(struct variant){"pd", -1, "auto", false, CACHE_FILL}, temperature, seed, &base);
        run_variant(c, &p, &(struct variant){"pd", -1, "auto", false, CACHE_HIT}, temperature, seed, &base);
        run_variant(c, &p, &(struct variant){"colocated", -1, "auto", false, CACHE_HIT}, temperature, seed,
                    &base);
        for (size_t i = 0; i < n_splits; i++)
            run_variant(c, &p, &(struct variant){"hybrid", splits[i], "auto", true, CACHE_HIT}, temperature,
                        seed, &base);
    }
    answer_fini(&base);
    sl_free(p.tokens);
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct context context = {.o = o, .router = {o->url, o->api_key}, .run_id = sl_random_u64()},
                   *c = &context;
    if (sl_info_model(&c->router, &c->model, why))
        return SL_BENCH_UNREACHABLE;
    char *nodes = sl_info_fingerprint(&c->router, 2, 30, why);
    if (!nodes)
        return SL_BENCH_UNREACHABLE;
    sl_free(nodes);
    if (c->model.n_vocab <= FIRST_TEXT_ID || c->model.page_tokens == 0) {
        sl_why_set(why, SL_EPROTO,
                   "the router does not say its vocabulary and page size (meta of /v1/models)");
        return SL_BENCH_UNREACHABLE;
    }
    for (size_t t = 0; t < o->temperatures.n; t++)
        for (size_t i = 0; i < o->lengths.n; i++) {
            unsigned long n = strtoul(o->lengths.items[i], NULL, 10);
            char progress[64];
            if (n == 0 || n + 3 * o->output_tokens > c->model.max_model_len) {
                sl_why_set(why, SL_EINVAL,
                           "a prompt of \"%s\" tokens does not fit the context of %u with its answer",
                           o->lengths.items[i], c->model.max_model_len);
                return SL_BENCH_USAGE;
            }
            snprintf(progress, sizeof progress, "prompt of %lu, temperature %s", n, o->temperatures.items[t]);
            run_prompt(c, (uint32_t)n, strtod(o->temperatures.items[t], NULL), progress);
        }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%*s\r", 76, "");
    printf("%" PRIu64 " runs over modes, splits, chunk sizes, batch mixes, caches and temperatures: %" PRIu64
           " differences, %" PRIu64 " unproven, %" PRIu64 " failed\n",
           c->runs, c->differences, c->unproven, c->errors);
    if (c->first_problem[0])
        printf("first: %s\n", c->first_problem);
    if (o->json) {
        json_t *doc = json_pack("{s:I, s:I, s:I, s:I, s:s}", "runs", (json_int_t)c->runs, "differences",
                                (json_int_t)c->differences, "unproven", (json_int_t)c->unproven, "failed",
                                (json_int_t)c->errors, "first_problem", c->first_problem);
        if (json_dump_file(doc, o->json, JSON_INDENT(1)) != 0)
            sl_why_set(why, SL_EIO, "cannot write %s", o->json);
        json_decref(doc);
    }
    return c->differences || c->unproven || c->errors ? SL_BENCH_FAILED : SL_BENCH_OK;
}

const struct sl_bench_command sl_bench_equal = {
    .name = "equal",
    .usage = "[options]",
    .help = "the same prompts in every mode, split, chunk size and batch: tokens and logits must not differ",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
