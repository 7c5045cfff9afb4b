/* tests/bench/cmd_replay.c - a request trace against a real cluster, over its OpenAI API.
 *
 * Requests come when the trace says (faster by --speed) and are as long as it says (by --token_scale): a
 * trace of a GPU fleet fits a small cluster that way, and is then another load than the original, which the
 * report says. Where the trace names blocks, equal blocks become equal tokens, so that prefix caches have the
 * hits that the trace had.
 *
 * Before the load some requests of the trace's lengths are sent one at a time: what they feel, straight lines
 * between them, is what the limits are multiples of. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rand.h"
#include "tests/bench/agents.h"
#include "tests/bench/bench.h"
#include "tests/bench/cluster_info.h"
#include "tests/bench/job_stats.h"
#include "tests/bench/trace.h"
#include "tests/bench/workload.h"

#define FIRST_TEXT_ID 16   /* control tokens lie below it in the vocabularies served here */
#define FIRST_AT_S    0.05 /* of the first request: the load is set up by then */
#define ALONE_OUTPUT  16u  /* tokens of a request that is alone: enough for a median gap */
#define ALONE_REPEATS 3u
#define ALONE_MAX     64u
#define WAIT_S        30.0       /* for the nodes */
#define STREAM_REST   UINT32_MAX /* of a prompt behind its shared blocks; blocks have stream 0 */
#define MIX           UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio: neighbouring numbers far apart */

struct options {
    char *url, *api_key, *trace, *mode, *chunk, *alone_from, *json;
    struct sl_conf_list agents;
    uint32_t requests, max_total, alone, nodes;
    double speed, rate, token_scale, slo_ttft, slo_gap, tell, temperature, timeout_s;
    uint64_t seed;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"url", SL_CONF_STRING, AT(url), "http://127.0.0.1:8000", "the router", 0, 0, NULL},
    {"api_key", SL_CONF_STRING, AT(api_key), NULL, "bearer key", 0, 0, NULL},
    {"agents", SL_CONF_LIST, AT(agents), NULL,
     "HOST:PORT of each sluice-bench agent that sends a part of the load; none = this process sends it", 0, 0,
     NULL},
    {"trace", SL_CONF_STRING, AT(trace), NULL,
     "trace as published (Azure CSV, Mooncake JSON lines), normalised, or a fitted one (.fit)", 0, 0, NULL},
    {"mode", SL_CONF_STRING, AT(mode), "hybrid", "X-Sluice-Mode of all requests", 0, 0, NULL},
    {"chunk", SL_CONF_STRING, AT(chunk), NULL,
     "X-Sluice-Chunk of all requests: auto, 0 (whole prompts), N; none = as the nodes are set", 0, 0, NULL},
    {"requests", SL_CONF_U32, AT(requests), "0", "cut or repeat the trace to that many; 0 = as it is", 0, 1e7,
     NULL},
    {"speed", SL_CONF_F64, AT(speed), "1", "arrivals of the trace that much faster", 1e-3, 1e4, NULL},
    {"rate", SL_CONF_F64, AT(rate), "0", "Poisson arrivals at this rate, requests/s; 0 = the trace's times",
     0, 1e6, NULL},
    {"token_scale", SL_CONF_F64, AT(token_scale), "1",
     "prompts, outputs and shared blocks that much longer than in the trace", 1e-4, 100, NULL},
    {"max_total", SL_CONF_U32, AT(max_total), "0",
     "cut longer requests to that many tokens; 0 = to what the model takes", 0, 1e7, NULL},
    {"alone", SL_CONF_U32, AT(alone), "5",
     "lengths at which the idle cluster is measured first; 0 = no limits are judged", 0, ALONE_MAX, NULL},
    {"alone_from", SL_CONF_STRING, AT(alone_from), NULL,
     "result of an earlier replay (--json): what the idle cluster took then counts, nothing is measured", 0,
     0, NULL},
    {"slo_ttft", SL_CONF_F64, AT(slo_ttft), "5", "TTFT limit, times that of an idle cluster", 0, 1e6, NULL},
    {"slo_gap", SL_CONF_F64, AT(slo_gap), "3", "longest gap limit, times the TPOT of an idle cluster", 0, 1e6,
     NULL},
    {"tell", SL_CONF_F64, AT(tell), "0",
     "requests tell their limits (X-Sluice-Ttft-Ms, X-Sluice-Tpot-Ms), that of the gap times this; 0 = they "
     "wish for nothing",
     0, 1, NULL},
    {"temperature", SL_CONF_F64, AT(temperature), "0.8", "of the sampling", 0, 2, NULL},
    {"seed", SL_CONF_U64, AT(seed), "1", "of everything drawn", 0, 0, NULL},
    {"nodes", SL_CONF_U32, AT(nodes), "1", "wait for that many nodes", 1, 1000, NULL},
    {"timeout_s", SL_CONF_F64, AT(timeout_s), "3600", "limit of the load, seconds", 1, 1e6, NULL},
    {"json", SL_CONF_STRING, AT(json), NULL, "write the result there, every request too", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct alone {
    uint32_t n_prompt;
    double ttft_ms, tpot_ms;
};

struct replay {
    const struct options *o;
    struct sl_router_ref router;
    struct sl_model_ref model;
    struct sl_agents *agents;
    struct sl_trace trace;
    struct alone alone[ALONE_MAX]; /* by n_prompt */
    uint32_t n_alone;
    struct sl_job *jobs;     /* [trace.n] */
    double *predicted_ms;    /* [trace.n] TTFT when it was placed; NaN = not known */
    json_t **placed;         /* [trace.n] [mode, P, split, D]; NULL = not known */
    struct sl_samples error; /* |predicted - real| / real, both by the router's clock */
};

/* ---- requests ---- */

static void fill_block(const struct replay *r, uint64_t id, int32_t *tokens, uint32_t n)
{
    struct sl_draw d = {r->o->seed ^ (id + 1) * MIX, 0, 0};
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)sl_draw_range(&d, (struct sl_range){FIRST_TEXT_ID, r->model.n_vocab - 1});
}

static void plan(const struct replay *r, const struct sl_trace_request *q, uint64_t number, uint32_t n_output,
                 const char *mode, const char *salt, struct sl_job *j)
{
    struct sl_draw rest = {r->o->seed ^ (number + 1) * MIX, STREAM_REST, 0};
    struct sl_prompt p;
    uint32_t block = r->trace.block_tokens;
    sl_prompt_random(&rest, q->n_prompt, FIRST_TEXT_ID, r->model.n_vocab, &p);
    for (uint32_t i = 0; i < q->n_blocks; i++)
        fill_block(r, r->trace.blocks[q->first_block + i], p.tokens + (size_t)i * block, block);
    *j = (struct sl_job){.at_s = FIRST_AT_S + q->at_s};
    sl_job_completion(j, &p,
                      &(struct sl_completion_opts){.model = r->model.id,
                                                   .max_tokens = n_output,
                                                   .temperature = r->o->temperature,
                                                   .seed = r->o->seed + number,
                                                   .cache_salt = salt,
                                                   .token_ids = true});
    sl_job_header(j, "X-Sluice-Mode", mode);
    if (r->o->chunk)
        sl_job_header(j, "X-Sluice-Chunk", r->o->chunk);
    sl_free(p.tokens);
}

/* Whole milliseconds of a wish, as its header has them. */
static void wish(struct sl_job *j, const char *header, double ms)
{
    char text[24];
    snprintf(text, sizeof text, "%.0f", fmax(ms, 1));
    sl_job_header(j, header, text);
}

/* ---- the idle cluster ---- */

static int by_prompt(const void *a, const void *b)
{
    uint32_t x = (*(const struct sl_trace_request *const *)a)->n_prompt,
             y = (*(const struct sl_trace_request *const *)b)->n_prompt;
    return (x > y) - (x < y);
}

static enum sl_err measure_one(struct replay *r, const struct sl_trace_request *q, uint32_t number,
                               struct alone *out, struct sl_why *why)
{
    struct sl_samples ttft = {0}, tpot = {0};
    enum sl_err e = SL_OK;
    for (uint32_t k = 0; k < ALONE_REPEATS && !e; k++) {
        struct sl_trace_request alone = *q;
        struct sl_job j;
        char salt[32];
        snprintf(salt, sizeof salt, "%" PRIx64, sl_random_u64()); /* no cache hits */
        alone.at_s = 0;
        plan(r, &alone, number, q->n_output < ALONE_OUTPUT ? q->n_output + 1 : ALONE_OUTPUT, "colocated",
             salt, &j);
        e = sl_client_run(r->o->url, r->o->api_key, &j, 1, r->o->timeout_s, NULL);
        if (e || !sl_job_ok(&j) || j.n_tokens < 2)
            e = sl_why_set(why, SL_EPEER, "a request to the idle cluster failed: %.200s",
                           j.error[0] ? j.error : "no tokens came");
        else {
            sl_samples_add(&ttft, (j.token_s[0] - j.at_s) * 1e3);
            sl_samples_add(&tpot, sl_job_tpot_ms(&j));
        }
        sl_job_fini(&j);
    }
    *out = (struct alone){q->n_prompt, sl_samples_percentile(&ttft, 50), sl_samples_percentile(&tpot, 50)};
    sl_samples_fini(&ttft);
    sl_samples_fini(&tpot);
    return e;
}

/* At the middles of n equal parts of the trace's prompts, by length. */
static enum sl_err measure_alone(struct replay *r, struct sl_why *why)
{
    const struct sl_trace_request **sorted = sl_xcalloc(r->trace.n, sizeof *sorted);
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < r->trace.n; i++)
        sorted[i] = &r->trace.requests[i];
    qsort(sorted, r->trace.n, sizeof *sorted, by_prompt);
    for (uint32_t i = 0; i < r->o->alone && !e; i++) {
        const struct sl_trace_request *q = sorted[(2 * i + 1) * r->trace.n / (2 * r->o->alone)];
        if (r->n_alone && r->alone[r->n_alone - 1].n_prompt == q->n_prompt)
            continue;
        e = measure_one(r, q, i, &r->alone[r->n_alone], why);
        r->n_alone += e == SL_OK;
    }
    sl_free(sorted);
    return e;
}

static double between(double x, double x0, double y0, double x1, double y1)
{
    return x1 > x0 ? y0 + (x - x0) * (y1 - y0) / (x1 - x0) : y0;
}

/* What a prompt of that length feels alone; the first and last line go on beyond the ends, to 0 at most. */
static struct alone alone_at(const struct replay *r, uint32_t n_prompt)
{
    uint32_t i = 1;
    while (i + 1 < r->n_alone && r->alone[i].n_prompt < n_prompt)
        i++;
    if (r->n_alone < 2)
        return r->alone[0];
    const struct alone *a = &r->alone[i - 1], *b = &r->alone[i];
    double ttft = between(n_prompt, a->n_prompt, a->ttft_ms, b->n_prompt, b->ttft_ms);
    double tpot = between(n_prompt, a->n_prompt, a->tpot_ms, b->n_prompt, b->tpot_ms);
    return (struct alone){n_prompt, fmax(ttft, 0), fmax(tpot, 0)};
}

/* Those of an earlier result: arms that take turns are judged by the same limits. */
static enum sl_err read_alone(struct replay *r, struct sl_why *why)
{
    json_t *doc = json_load_file(r->o->alone_from, 0, NULL), *row;
    size_t i;
    json_array_foreach (json_object_get(doc, "alone"), i, row) {
        struct alone a = {(uint32_t)json_integer_value(json_array_get(row, 0)),
                          json_number_value(json_array_get(row, 1)),
                          json_number_value(json_array_get(row, 2))};
        bool ascends = i == 0 || a.n_prompt > r->alone[i - 1].n_prompt;
        if (i == ALONE_MAX || a.n_prompt == 0 || !(a.ttft_ms > 0) || !(a.tpot_ms > 0) || !ascends)
            break;
        r->alone[r->n_alone++] = a;
    }
    bool whole = r->n_alone > 0 && r->n_alone == json_array_size(json_object_get(doc, "alone"));
    json_decref(doc);
    return whole ? SL_OK
                 : sl_why_set(why, SL_EINVAL,
                              "%s is no result of replay with --alone: its member \"alone\" lacks rows "
                              "[prompt tokens, TTFT ms, TPOT ms], shortest first",
                              r->o->alone_from);
}

/* ---- after the load ---- */

static void read_record(struct replay *r, size_t i)
{
    struct sl_why why;
    json_t *record;
    char *op = sl_xasprintf("explain/%s", r->jobs[i].request_id);
    r->predicted_ms[i] = NAN;
    if (sl_job_ok(&r->jobs[i]) && r->jobs[i].request_id[0] &&
        sl_info_tables(&r->router, op, &record, &why) == SL_OK) {
        const char *predicted = sl_info_cell(record, "placements", 0, "ttft_ms"),
                   *real = sl_info_value(record, "record", "ttft_ms");
        if (predicted && real && strtod(real, NULL) > 0) {
            r->predicted_ms[i] = strtod(predicted, NULL);
            sl_samples_add(&r->error, fabs(r->predicted_ms[i] / strtod(real, NULL) - 1));
        }
        if (predicted)
            r->placed[i] =
                json_pack("[s, s, I, s]", sl_info_cell(record, "placements", 0, "mode"),
                          sl_info_cell(record, "placements", 0, "P"),
                          (json_int_t)strtoll(sl_info_cell(record, "placements", 0, "s"), NULL, 10),
                          sl_info_cell(record, "placements", 0, "D"));
        json_decref(record);
    }
    sl_free(op);
}

static bool within_limits(const struct replay *r, size_t i)
{
    const struct sl_job *j = &r->jobs[i];
    struct alone a = alone_at(r, r->trace.requests[i].n_prompt);
    return sl_job_ok(j) && j->n_tokens && (j->token_s[0] - j->at_s) * 1e3 <= r->o->slo_ttft * a.ttft_ms &&
           sl_job_gap_max_ms(j) <= r->o->slo_gap * a.tpot_ms;
}

/* [at_s, prompt, output, ttft_ms, second_ms, tpot_ms, gap_max_ms, predicted_ttft_ms, mode, P, split, D] of each
 * request; nothing behind the output where there was no answer, nor behind the prediction without a record. */
static json_t *report_requests(const struct replay *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->trace.n; i++) {
        const struct sl_trace_request *q = &r->trace.requests[i];
        const struct sl_job *j = &r->jobs[i];
        json_t *row = json_pack("[f, I, I]", q->at_s, (json_int_t)q->n_prompt, (json_int_t)q->n_output);
        if (sl_job_ok(j) && j->n_tokens) {
            double second = j->n_tokens > 1 ? (j->token_s[1] - j->at_s) * 1e3 : 0;
            json_array_append_new(row, json_real((j->token_s[0] - j->at_s) * 1e3));
            json_array_append_new(row, json_real(second));
            json_array_append_new(row, json_real(sl_job_tpot_ms(j)));
            json_array_append_new(row, json_real(sl_job_gap_max_ms(j)));
            json_array_append_new(row,
                                  isnan(r->predicted_ms[i]) ? json_null() : json_real(r->predicted_ms[i]));
            if (r->placed[i])
                json_array_extend(row, r->placed[i]);
        }
        json_array_append_new(list, row);
    }
    return list;
}

static enum sl_err tell(struct replay *r, struct sl_why *why)
{
    const struct options *o = r->o;
    struct sl_job_stats stats = {0};
    size_t good = 0;
    sl_job_stats_add(&stats, r->jobs, r->trace.n);
    for (size_t i = 0; i < r->trace.n; i++) {
        read_record(r, i);
        good += r->n_alone && within_limits(r, i);
    }
    double share = (double)good / (double)r->trace.n;
    double error = sl_samples_percentile(&r->error, 50);
    json_t *alone = json_array();
    sl_job_stats_print_head();
    sl_job_stats_print(&stats, o->mode);
    for (uint32_t i = 0; i < r->n_alone; i++) {
        const struct alone *a = &r->alone[i];
        printf("alone: prompt of %u tokens: TTFT %.1f ms, TPOT %.2f ms\n", a->n_prompt, a->ttft_ms,
               a->tpot_ms);
        json_array_append_new(alone, json_pack("[I, f, f]", (json_int_t)a->n_prompt, a->ttft_ms, a->tpot_ms));
    }
    if (r->n_alone)
        printf("%.2f %% of all requests within %g times the idle TTFT and %g times the idle TPOT\n",
               100 * share, o->slo_ttft, o->slo_gap);
    if (r->error.n)
        printf("predicted TTFT off by %.1f %% (median of %zu)\n", 100 * error, r->error.n);
    if (o->speed != 1 || o->rate > 0 || o->token_scale != 1)
        printf("not the trace itself: speed %g, rate %g, tokens x %g\n", o->speed, o->rate, o->token_scale);
    sl_agents_print(r->agents);
    json_t *doc = json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:o, s:f, s:o, s:o, s:o}",
                            "trace", o->trace, "model", r->model.id, "mode", o->mode, "speed", o->speed,
                            "rate", o->rate, "token_scale", o->token_scale, "seed", (json_int_t)o->seed,
                            "slo_ttft", o->slo_ttft, "slo_gap", o->slo_gap, "tell", o->tell, "alone", alone,
                            "within_slo", share, "felt", sl_job_stats_report(&stats), "agents",
                            sl_agents_report(r->agents), "requests", report_requests(r));
    json_object_set_new(doc, "ttft_prediction_error_p50", isnan(error) ? json_null() : json_real(error));
    enum sl_err e = stats.errors ? sl_why_set(why, SL_EPEER, "%" PRIu64 " requests failed; the first: %.200s",
                                              stats.errors, stats.first_error)
                                 : SL_OK;
    if (o->json && json_dump_file(doc, o->json, JSON_INDENT(1)) != 0)
        e = sl_why_set(why, SL_EIO, "cannot write %s", o->json);
    json_decref(doc);
    sl_job_stats_fini(&stats);
    return e;
}

/* ---- the command ---- */

static enum sl_err open_trace(struct replay *r, struct sl_why *why)
{
    const struct options *o = r->o;
    struct sl_trace_conf c = {.path = o->trace,
                              .speed = o->speed,
                              .rate = o->rate,
                              .token_scale = o->token_scale,
                              .n = o->requests,
                              .max_total = o->max_total ? o->max_total : r->model.max_model_len,
                              .seed = o->seed};
    if (!o->trace)
        return sl_why_set(why, SL_EINVAL, "no trace; give --trace FILE");
    return sl_trace_open(&c, &r->trace, why);
}

static enum sl_err open_cluster(struct replay *r, struct sl_why *why)
{
    enum sl_err e = sl_info_model(&r->router, &r->model, why);
    if (e)
        return e;
    if (r->model.n_vocab <= FIRST_TEXT_ID)
        return sl_why_set(why, SL_EPROTO,
                          "the router does not say its vocabulary size (meta.n_vocab of /v1/models)");
    char *nodes = sl_info_fingerprint(&r->router, r->o->nodes, WAIT_S, why);
    sl_free(nodes);
    return nodes ? sl_agents_open(&r->o->agents, r->o->url, r->o->api_key, &r->agents, why) : SL_EPEER;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct replay r = {.o = o, .router = {o->url, o->api_key}};
    int rc = SL_BENCH_UNREACHABLE;
    if (open_cluster(&r, why))
        goto done;
    rc = SL_BENCH_USAGE;
    if (open_trace(&r, why))
        goto done;
    rc = SL_BENCH_FAILED;
    if (o->alone_from ? read_alone(&r, why) : measure_alone(&r, why))
        goto done;
    if (o->tell > 0 && r.n_alone == 0) {
        rc = SL_BENCH_USAGE;
        sl_why_set(why, SL_EINVAL,
                   "--tell without limits: --alone is 0, so that none are known; give it some lengths");
        goto done;
    }
    r.jobs = sl_xcalloc(r.trace.n, sizeof *r.jobs);
    r.predicted_ms = sl_xcalloc(r.trace.n, sizeof *r.predicted_ms);
    r.placed = sl_xcalloc(r.trace.n, sizeof(json_t *));
    char salt[32];
    snprintf(salt, sizeof salt, "%" PRIx64, sl_random_u64());
    for (size_t i = 0; i < r.trace.n; i++) {
        plan(&r, &r.trace.requests[i], ALONE_MAX + i, r.trace.requests[i].n_output, o->mode, salt,
             &r.jobs[i]);
        if (o->tell <= 0 || r.n_alone == 0)
            continue;
        struct alone a = alone_at(&r, r.trace.requests[i].n_prompt);
        wish(&r.jobs[i], "X-Sluice-Ttft-Ms", o->slo_ttft * a.ttft_ms);
        wish(&r.jobs[i], "X-Sluice-Tpot-Ms", o->tell * o->slo_gap * a.tpot_ms);
    }
    enum sl_err lost = sl_agents_run(r.agents, r.jobs, r.trace.n, o->timeout_s, "replay", why);
    if (tell(&r, lost ? NULL : why) == SL_OK && !lost)
        rc = SL_BENCH_OK;
done:
    for (size_t i = 0; i < r.trace.n && r.jobs; i++)
        sl_job_fini(&r.jobs[i]);
    sl_free(r.jobs);
    for (size_t i = 0; i < r.trace.n && r.placed; i++)
        json_decref(r.placed[i]);
    sl_free(r.predicted_ms);
    sl_free(r.placed);
    sl_samples_fini(&r.error);
    sl_trace_close(&r.trace);
    sl_agents_close(r.agents);
    return rc;
}

const struct sl_bench_command sl_bench_replay = {
    .name = "replay",
    .usage = "--trace FILE [options]",
    .help = "a request trace against a running cluster, faster or shorter if need be",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
