/* tests/bench/cmd_link.c - the page path between nodes, pair by pair: prompts that one node computes and another goes
 * on with, and what the nodes and the router measured of it.
 *
 * Speed and latency are the link's own (its test when the pair first met, then what transfers reached); the handover is
 * the router's, from the decision record; pages and megabytes are the difference of the link's counters. Nothing is
 * measured by this process, so no clock but theirs is in the figures. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rand.h"
#include "tests/bench/bench.h"
#include "tests/bench/cluster_info.h"
#include "tests/bench/job_stats.h"
#include "tests/bench/workload.h"

#define FIRST_TEXT_ID  16 /* control tokens lie below it in the vocabularies served here */
#define MAX_NODES      256
#define OUTPUT_TOKENS  4      /* the second one ends the handover */
#define REPORT_WAIT_MS 10000u /* for the counters of the last pages: nodes tell them with their heartbeat */

struct options {
    char *url, *api_key, *prefill, *decode, *json;
    uint32_t requests, prompt_tokens;
    bool at_once;
    double timeout_s;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"url", SL_CONF_STRING, AT(url), "http://127.0.0.1:8000", "the router", 0, 0, NULL},
    {"api_key", SL_CONF_STRING, AT(api_key), NULL, "bearer key", 0, 0, NULL},
    {"prefill", SL_CONF_STRING, AT(prefill), NULL, "node that sends; none = every one that prefers prefill",
     0, 0, NULL},
    {"decode", SL_CONF_STRING, AT(decode), NULL, "node that receives; none = every one that prefers decode",
     0, 0, NULL},
    {"requests", SL_CONF_U32, AT(requests), "8", "prompts of a pair", 1, 10000, NULL},
    {"prompt_tokens", SL_CONF_U32, AT(prompt_tokens), "512", "of each prompt", 1, 1000000, NULL},
    {"at_once", SL_CONF_BOOL, AT(at_once), "false", "all prompts of a pair at once, not one after the other",
     0, 0, NULL},
    {"timeout_s", SL_CONF_F64, AT(timeout_s), "600", "limit of a pair, seconds", 1, 1e5, NULL},
    {"json", SL_CONF_STRING, AT(json), NULL, "write the result there", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct bench {
    const struct options *o;
    struct sl_router_ref router;
    struct sl_model_ref model;
    json_t *pairs;
    uint32_t n_failed;
};

/* A row of the table of links. */
struct link {
    char state[32], transport[64];
    double mb_per_s, latency_us, pages, mb, rejects; /* 0 = not known */
};

static double cell_number(json_t *t, size_t row, const char *column)
{
    const char *text = sl_info_cell(t, "links", row, column);
    return text && *text != '-' ? strtod(text, NULL) : 0;
}

static enum sl_err read_link(const struct bench *b, const char *p, const char *d, struct link *out,
                             struct sl_why *why)
{
    json_t *t;
    *out = (struct link){.state = "not met"};
    enum sl_err e = sl_info_tables(&b->router, "links", &t, why);
    if (e)
        return e;
    const char *from;
    for (size_t i = 0; (from = sl_info_cell(t, "links", i, "prefill")) != NULL; i++) {
        const char *to = sl_info_cell(t, "links", i, "decode");
        if (strcmp(from, p) != 0 || !to || strcmp(to, d) != 0)
            continue;
        snprintf(out->state, sizeof out->state, "%s", sl_info_cell(t, "links", i, "state"));
        snprintf(out->transport, sizeof out->transport, "%s", sl_info_cell(t, "links", i, "transport"));
        out->mb_per_s = cell_number(t, i, "mb_per_s");
        out->latency_us = cell_number(t, i, "latency_us");
        out->pages = cell_number(t, i, "pages_sent");
        out->mb = cell_number(t, i, "mb_sent");
        out->rejects = cell_number(t, i, "rejects");
    }
    json_decref(t);
    return SL_OK;
}

static void make_job(const struct bench *b, const char *p, const char *d, uint32_t i, struct sl_job *j)
{
    struct sl_draw draw = {sl_random_u64(), i, 0};
    struct sl_prompt prompt;
    char salt[32];
    snprintf(salt, sizeof salt, "%" PRIx64, sl_random_u64()); /* pages that are cached are not sent */
    sl_prompt_random(&draw, b->o->prompt_tokens, FIRST_TEXT_ID, b->model.n_vocab, &prompt);
    *j = (struct sl_job){0};
    sl_job_completion(
        j, &prompt,
        &(struct sl_completion_opts){.model = b->model.id, .max_tokens = OUTPUT_TOKENS, .cache_salt = salt});
    sl_job_header(j, "X-Sluice-Mode", "pd");
    sl_job_header(j, "X-Sluice-Prefill-Node", p);
    sl_job_header(j, "X-Sluice-Decode-Node", d);
    sl_free(prompt.tokens);
}

/* Pages that D received, and the samples of the record. */
static double read_record(const struct bench *b, const char *id, struct sl_samples *handover,
                          struct sl_samples *transfer)
{
    struct sl_why why;
    json_t *record;
    double pages = 0;
    char *op = sl_xasprintf("explain/%s", id);
    if (sl_info_tables(&b->router, op, &record, &why) == SL_OK) {
        const char *n = sl_info_value(record, "record", "pages_received"),
                   *h = sl_info_value(record, "record", "handover_ms"),
                   *t = sl_info_value(record, "record", "transfer_ms");
        pages = n && *n != '-' ? strtod(n, NULL) : 0;
        if (h && *h != '-')
            sl_samples_add(handover, strtod(h, NULL));
        if (t && *t != '-')
            sl_samples_add(transfer, strtod(t, NULL));
        json_decref(record);
    }
    sl_free(op);
    return pages;
}

static json_t *number(struct sl_samples *s, double q)
{
    return s->n ? json_real(sl_samples_percentile(s, q)) : json_null();
}

static void tell_pair(struct bench *b, const char *p, const char *d, const struct link *before,
                      const struct link *after, struct sl_samples *handover, struct sl_samples *transfer,
                      uint32_t failed)
{
    printf("%-14s %-14s %-9s %-12s %9.1f %9.0f %8.0f %9.1f", p, d, after->state, after->transport,
           after->mb_per_s, after->latency_us, after->pages - before->pages, after->mb - before->mb);
    if (handover->n)
        printf(" %9.2f %9.2f", sl_samples_percentile(handover, 50), sl_samples_percentile(handover, 100));
    printf("\n");
    json_array_append_new(
        b->pairs, json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:i, s:o, s:o, s:o, s:o}",
                            "prefill", p, "decode", d, "state", after->state, "transport", after->transport,
                            "mb_per_s", after->mb_per_s, "latency_us", after->latency_us, "pages",
                            after->pages - before->pages, "mb", after->mb - before->mb, "rejects",
                            after->rejects - before->rejects, "failed", (int)failed, "handover_ms_p50",
                            number(handover, 50), "handover_ms_max", number(handover, 100), "transfer_ms_p50",
                            number(transfer, 50), "transfer_ms_max", number(transfer, 100)));
}

static enum sl_err measure_pair(struct bench *b, const char *p, const char *d, struct sl_why *why)
{
    const struct options *o = b->o;
    struct link before, after;
    struct sl_samples handover = {0}, transfer = {0};
    struct sl_job *jobs = sl_xcalloc(o->requests, sizeof *jobs);
    uint32_t failed = 0;
    double pages = 0;
    enum sl_err e = read_link(b, p, d, &before, why);
    const struct sl_client_conf c = {.base_url = o->url,
                                     .api_key = o->api_key,
                                     .timeout_s = o->timeout_s,
                                     .max_running = o->at_once ? 0 : 1};
    for (uint32_t i = 0; i < o->requests; i++)
        make_job(b, p, d, i, &jobs[i]);
    if (!e && (e = sl_client_run_conf(&c, jobs, o->requests)) != SL_OK)
        sl_why_set(why, e, "the router at %s stopped answering", o->url);
    for (uint32_t i = 0; i < o->requests && !e; i++) {
        if (sl_job_ok(&jobs[i]))
            pages += read_record(b, jobs[i].request_id, &handover, &transfer);
        else if (failed++ == 0)
            fprintf(stderr, "%s -> %s: a request failed: %s\n", p, d, jobs[i].error);
    }
    uint64_t end_ms = sl_now_ms() + REPORT_WAIT_MS;
    for (bool told = false; !e && !told;) {
        e = read_link(b, p, d, &after, why);
        told = e || after.pages - before.pages >= pages || sl_now_ms() >= end_ms;
        if (!told)
            usleep(100 * 1000);
    }
    if (!e)
        tell_pair(b, p, d, &before, &after, &handover, &transfer, failed);
    b->n_failed += failed;
    for (uint32_t i = 0; i < o->requests; i++)
        sl_job_fini(&jobs[i]);
    sl_free(jobs);
    sl_samples_fini(&handover);
    sl_samples_fini(&transfer);
    return e;
}

/* The node that is named, or all that prefer the role. */
static bool takes_part(json_t *nodes, size_t row, const char *named, const char *role)
{
    const char *name = sl_info_cell(nodes, "nodes", row, "node"),
               *prefers = sl_info_cell(nodes, "nodes", row, "prefers");
    return named ? strcmp(name, named) == 0 : prefers && strcmp(prefers, role) == 0;
}

static enum sl_err measure_all(struct bench *b, struct sl_why *why)
{
    const struct options *o = b->o;
    const char *p, *d;
    json_t *nodes;
    enum sl_err e = sl_info_tables(&b->router, "nodes", &nodes, why);
    if (e)
        return e;
    printf("%-14s %-14s %-9s %-12s %9s %9s %8s %9s %9s %9s\n", "prefill", "decode", "state", "transport",
           "MB/s", "us", "pages", "MB", "handover", "max, ms");
    for (size_t i = 0; i < MAX_NODES && !e && (p = sl_info_cell(nodes, "nodes", i, "node")) != NULL; i++)
        for (size_t k = 0; takes_part(nodes, i, o->prefill, "prefill") && k < MAX_NODES && !e &&
                           (d = sl_info_cell(nodes, "nodes", k, "node")) != NULL;
             k++)
            if (i != k && takes_part(nodes, k, o->decode, "decode"))
                e = measure_pair(b, p, d, why);
    json_decref(nodes);
    if (!e && json_array_size(b->pairs) == 0)
        e = sl_why_set(
            why, SL_ENOTFOUND,
            "no pair of nodes is there to measure; `sluicectl nodes` lists them, --prefill and --decode name "
            "two");
    return e;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct bench b = {.o = o, .router = {o->url, o->api_key}};
    if (sl_info_model(&b.router, &b.model, why))
        return SL_BENCH_UNREACHABLE;
    if (b.model.n_vocab <= FIRST_TEXT_ID) {
        sl_why_set(why, SL_EPROTO,
                   "the router does not say its vocabulary size (meta.n_vocab of /v1/models)");
        return SL_BENCH_UNREACHABLE;
    }
    b.pairs = json_array();
    enum sl_err e = measure_all(&b, why);
    if (!e && o->json) {
        json_t *doc = json_pack("{s:s, s:s, s:i, s:i, s:b, s:O}", "kind", "link", "model", b.model.id,
                                "requests", (int)o->requests, "prompt_tokens", (int)o->prompt_tokens,
                                "at_once", (int)o->at_once, "pairs", b.pairs);
        if (json_dump_file(doc, o->json, JSON_INDENT(1)) != 0)
            e = sl_why_set(why, SL_EIO, "cannot write %s", o->json);
        json_decref(doc);
    }
    json_decref(b.pairs);
    return e || b.n_failed ? SL_BENCH_FAILED : SL_BENCH_OK;
}

const struct sl_bench_command sl_bench_link = {
    .name = "link",
    .usage = "[--prefill NODE --decode NODE] [options]",
    .help = "the page path between nodes: speed, latency, handover",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
