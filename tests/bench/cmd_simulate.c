/* tests/bench/cmd_simulate.c - the cluster in virtual time: the same report as compare, for machines that are
 * not there.
 *
 * An arm is a mode with a chunk setting: "hybrid", "colocated:512", "pd:0". SLOs are multiples of what the
 * request would feel alone on an idle node. Capacity is the highest speed of the trace at which the wanted
 * share of all requests meets both SLOs, found by bisection; what was refused or not finished misses. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/conf.h"
#include "common/base/mem.h"
#include "tests/bench/bench.h"
#include "tests/bench/simulate/sim.h"
#include "tests/bench/stats.h"

#define MAX_ARMS     16u
#define BISECT_CLOSE 1.025 /* capacity is known to 2.5 % */
#define BISECT_STEPS 16u
#define FIRST_STRIDE 1.2 /* from the speed given; each further stride is the square of the one before.. */
#define LAST_STRIDE  4.0 /* ..up to this */
#define SPEED_LEAST  1e-3
#define SPEED_MOST   1e4

struct options {
    char *cluster, *model, *trace, *json, *csv;
    struct sl_conf_list arms;
    uint32_t prefill, decode, requests, max_tokens, max_total, seeds;
    double speed, rate, token_scale, slo_ttft, slo_gap, tell, cost_error, noise, spikes, share, warm_up;
    uint64_t seed;
    bool capacity, stop, quiet, each;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"cluster", SL_CONF_STRING, AT(cluster), NULL, "cluster file (tests/bench/simulate/README.md); else:", 0,
     0, NULL},
    {"model", SL_CONF_STRING, AT(model), "a100-llama3-8b", "cost model of all nodes", 0, 0, NULL},
    {"prefill", SL_CONF_U32, AT(prefill), "4", "nodes that prefer prefill; all may do both", 0,
     SL_PLACE_MAX_NODES, NULL},
    {"decode", SL_CONF_U32, AT(decode), "4", "nodes that prefer decode", 0, SL_PLACE_MAX_NODES, NULL},
    {"trace", SL_CONF_STRING, AT(trace), NULL,
     "trace file, as published or normalised; else requests are drawn", 0, 0, NULL},
    {"speed", SL_CONF_F64, AT(speed), "1", "arrivals of the trace that much faster", SPEED_LEAST, SPEED_MOST,
     NULL},
    {"rate", SL_CONF_F64, AT(rate), "0", "Poisson arrivals at this rate, requests/s; 0 = the trace's times",
     0, 1e6, NULL},
    {"token_scale", SL_CONF_F64, AT(token_scale), "1",
     "prompts, outputs and shared blocks that much longer than in the trace", 1e-4, 100, NULL},
    {"requests", SL_CONF_U32, AT(requests), "0",
     "cut or repeat the trace to that many; 0 = as many as it has", 0, 1e8, NULL},
    {"max_total", SL_CONF_U32, AT(max_total), "0", "cut longer requests to that many tokens; 0 = never", 0,
     1e7, NULL},
    {"max_tokens", SL_CONF_U32, AT(max_tokens), "2048", "what clients allow; how many come is the trace's", 1,
     1e6, NULL},
    {"arms", SL_CONF_LIST, AT(arms), "pd,colocated,hybrid",
     "modes to compare, each with :N for a fixed chunk, :0 for whole prompts", 0, 0, NULL},
    {"slo_ttft", SL_CONF_F64, AT(slo_ttft), "5", "TTFT limit, times the request's own on an idle node", 0,
     1e6, NULL},
    {"slo_gap", SL_CONF_F64, AT(slo_gap), "3", "longest gap limit, times a decode step alone", 0, 1e6, NULL},
    {"tell", SL_CONF_F64, AT(tell), "0",
     "requests tell their limits as wishes, that of the gap times this; 0 = they wish for nothing", 0, 1,
     NULL},
    {"share", SL_CONF_F64, AT(share), "0.99", "of requests that must meet both, for the capacity", 0, 1,
     NULL},
    {"capacity", SL_CONF_BOOL, AT(capacity), "false", "search the highest speed instead of one run", 0, 0,
     NULL},
    {"stop", SL_CONF_BOOL, AT(stop), "false",
     "end a run as soon as too many missed for that share; its figures are those until then", 0, 0, NULL},
    {"cost_error", SL_CONF_F64, AT(cost_error), "0.1",
     "the policies' cost model starts up to that far from the truth, relative", 0, 0.9, NULL},
    {"noise", SL_CONF_F64, AT(noise), "0.02", "standard deviation of a step's time, relative", 0, 1, NULL},
    {"spikes", SL_CONF_F64, AT(spikes), "0",
     "share of the steps that something else on the computer delays, by 20 % in the mean", 0, 1, NULL},
    {"warm_up", SL_CONF_F64, AT(warm_up), "0.1",
     "share of the requests, at the beginning, that is not judged: the cluster fills, cost models learn", 0,
     0.9, NULL},
    {"seed", SL_CONF_U64, AT(seed), "1", "of everything drawn", 0, 0, NULL},
    {"seeds", SL_CONF_U32, AT(seeds), "1", "runs with seed, seed + 1, .., judged together", 1, 1000, NULL},
    {"quiet", SL_CONF_BOOL, AT(quiet), "false", "no progress line", 0, 0, NULL},
    {"json", SL_CONF_STRING, AT(json), NULL, "write the whole result there", 0, 0, NULL},
    {"each", SL_CONF_BOOL, AT(each), "false", "with every request in it", 0, 0, NULL},
    {"csv", SL_CONF_STRING, AT(csv), NULL, "write a line for each request there: where it ran, what it felt",
     0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct arm {
    char name[32];
    enum sl_place_mode mode;
    int32_t chunk; /* SL_CHUNK_DEFAULT = as the cluster says */
};

static bool parse_arm(const char *text, struct arm *a)
{
    char mode[16];
    size_t n = strcspn(text, ":");
    snprintf(a->name, sizeof a->name, "%s", text);
    snprintf(mode, sizeof mode, "%.*s", (int)(n < sizeof mode ? n : sizeof mode - 1), text);
    a->chunk = SL_CHUNK_DEFAULT;
    if (text[n]) {
        char *end;
        a->chunk = (int32_t)strtol(text + n + 1, &end, 10);
        if (*end || end == text + n + 1 || a->chunk < 0)
            return false;
    }
    return sl_place_mode_parse(mode, &a->mode);
}

static struct sim_limits limits_of(const struct options *o)
{
    return (struct sim_limits){.ttft_times = o->slo_ttft, .gap_times = o->slo_gap, .misses = SIZE_MAX};
}

/* Of all requests, also those refused or not finished. */
static double attained(const struct options *o, const struct sim_result *r)
{
    const struct sim_limits limits = limits_of(o);
    size_t good = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct sim_outcome *q = &r->outcomes[i];
        good += q->done && !sim_is_late(&limits, q) && !sim_is_paused(&limits, q);
    }
    return (double)good / (double)r->n;
}

static size_t warm_up_of(const struct options *o, size_t n)
{
    return (size_t)(o->warm_up * (double)n);
}

/* Adds one run's outcomes to those of the runs before it, less the warm-up. Takes them. */
static void pool(const struct options *o, struct sim_result *all, struct sim_result *r, unsigned n_before)
{
    size_t warm = warm_up_of(o, r->n), n = r->n - warm;
    all->outcomes = sl_xrealloc_array(all->outcomes, all->n + n, sizeof *all->outcomes);
    memcpy(all->outcomes + all->n, r->outcomes + warm, n * sizeof *all->outcomes);
    all->n += n;
    all->n_refused += r->n_refused;
    all->n_unfinished += r->n_unfinished;
    all->n_missed += r->n_missed;
    all->stopped |= r->stopped;
    all->hit_tokens += r->hit_tokens;
    all->moved_tokens += r->moved_tokens;
    all->prompt_tokens += r->prompt_tokens;
    all->span_s += r->span_s;
    all->steps += r->steps;
    all->tokens += r->tokens;
    all->preemptions += r->preemptions;
    all->busy_share += (r->busy_share - all->busy_share) / (n_before + 1);
    all->step_error += (r->step_error - all->step_error) / (n_before + 1);
    all->wall_s += r->wall_s;
    sim_result_fini(r);
}

/* To be known before a run is over: how many may miss in all seeds together, less those that did. */
static size_t misses_left(const struct options *o, size_t n, size_t missed)
{
    double allowed = (1 - o->share) * (double)(n - warm_up_of(o, n)) * o->seeds + 1e-9;
    return allowed > (double)missed ? (size_t)allowed - missed : 0;
}

static enum sl_err run_seed(const struct options *o, const struct sim_cluster *c, const struct arm *a,
                            double speed, uint64_t seed, size_t missed, struct sim_result *out,
                            struct sl_why *why)
{
    struct sl_trace trace;
    struct sl_trace_conf tc = {.path = o->trace,
                               .speed = speed,
                               .rate = o->rate * speed / o->speed,
                               .token_scale = o->token_scale,
                               .n = o->requests,
                               .max_total = o->max_total,
                               .seed = seed};
    struct sim_conf conf = {.mode = a->mode,
                            .cost_error = o->cost_error,
                            .noise = o->noise,
                            .spikes = o->spikes,
                            .max_tokens = o->max_tokens,
                            .tell = o->tell,
                            .seed = seed,
                            .progress = !o->quiet};
    enum sl_err e = sl_trace_open(&tc, &trace, why);
    if (e)
        return e;
    conf.limits = limits_of(o);
    conf.limits.skip = warm_up_of(o, trace.n);
    if (o->capacity || o->stop)
        conf.limits.misses = misses_left(o, trace.n, missed);
    e = sim_run(c, &trace, &conf, out, why);
    sl_trace_close(&trace);
    return e;
}

/* The runs of all seeds as one result. */
static enum sl_err run_arm(const struct options *o, const struct sim_cluster *cluster, const struct arm *a,
                           double speed, struct sim_result *out, double *share, struct sl_why *why)
{
    struct sim_cluster c = *cluster;
    for (uint32_t g = 0; g < c.n_groups && a->chunk != SL_CHUNK_DEFAULT; g++)
        c.groups[g].chunk_tokens = a->chunk;
    *out = (struct sim_result){0};
    for (uint32_t i = 0; i < o->seeds && !out->stopped; i++) {
        struct sim_result r;
        enum sl_err e = run_seed(o, &c, a, speed, o->seed + i, out->n_missed, &r, why);
        if (e) {
            sim_result_fini(out);
            return e;
        }
        pool(o, out, &r, i);
    }
    *share = attained(o, out);
    return SL_OK;
}

/* ---- report ---- */

enum metric { TTFT, SECOND, TPOT, GAP_MAX, PREDICTION, N_METRICS };
static const char *const metric_key[N_METRICS] = {"ttft_ms", "second_token_ms", "tpot_ms", "gap_max_ms",
                                                  "ttft_prediction_error"};
static const char *const metric_name[N_METRICS] = {"TTFT", "2nd token", "TPOT", "longest gap", "TTFT error"};
static const double percentiles[] = {50, 90, 99, 100};
static const char *const percentile_key[] = {"p50", "p90", "p99", "max"};

static double value_of(const struct sim_outcome *q, enum metric m)
{
    const double all[N_METRICS] = {q->ttft, q->second, q->tpot, q->gap_max,
                                   fabs((double)q->predicted_ttft - q->ttft) / q->ttft};
    return all[m];
}

/* Which limit was missed, by what the placement was: a policy that loses shows here where. */
static json_t *report_misses(const struct options *o, const struct sim_result *r)
{
    json_t *doc = json_object();
    const struct sim_limits limits = limits_of(o);
    for (enum sl_place_mode m = SL_PLACE_PD; m <= SL_PLACE_HYBRID; m++) {
        uint64_t done = 0, late = 0, paused = 0;
        for (size_t i = 0; i < r->n; i++) {
            const struct sim_outcome *q = &r->outcomes[i];
            if (!q->done || q->mode != m)
                continue;
            done++;
            late += sim_is_late(&limits, q);
            paused += sim_is_paused(&limits, q);
        }
        if (done)
            printf("%-16s placed %-10s %8" PRIu64 " done, %" PRIu64 " late first tokens, %" PRIu64
                   " long gaps\n",
                   "", sl_place_mode_name(m), done, late, paused);
        json_object_set_new(doc, sl_place_mode_name(m),
                            json_pack("{s:I, s:I, s:I}", "done", (json_int_t)done, "late", (json_int_t)late,
                                      "long_gap", (json_int_t)paused));
    }
    return doc;
}

/* [ttft_ms, second_ms, tpot_ms, gap_max_ms, predicted_ttft_ms, mode, P, split, D] of each request, nodes by number;
 * null when it was refused or not finished. */
static json_t *report_each(const struct sim_result *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n; i++) {
        const struct sim_outcome *q = &r->outcomes[i];
        json_array_append_new(
            list, q->done ? json_pack("[f, f, f, f, f, s, I, I, I]", (double)q->ttft, (double)q->second,
                                      (double)q->tpot, (double)q->gap_max, (double)q->predicted_ttft,
                                      sl_place_mode_name(q->mode), (json_int_t)q->prefilled_by,
                                      (json_int_t)q->split, (json_int_t)q->decoded_by)
                          : json_null());
    }
    return list;
}

static json_t *report_arm(const struct options *o, const struct arm *a, const struct sim_result *r,
                          double speed, double share)
{
    json_t *doc =
        json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "arm",
                  a->name, "speed", speed, "within_slo", share, "span_s", r->span_s, "tokens_per_s",
                  (double)r->tokens / r->span_s, "busy_share", r->busy_share, "step_error_p50", r->step_error,
                  "steps", (json_int_t)r->steps, "refused", (json_int_t)r->n_refused, "unfinished",
                  (json_int_t)r->n_unfinished, "preemptions", (json_int_t)r->preemptions, "prompt_tokens",
                  (json_int_t)r->prompt_tokens, "hit_tokens", (json_int_t)r->hit_tokens, "moved_tokens",
                  (json_int_t)r->moved_tokens, "wall_s", r->wall_s);
    printf("%-16s %-12s %9s %9s %9s %9s\n", a->name, "ms", "P50", "P90", "P99", "max");
    for (unsigned m = 0; m < N_METRICS; m++) {
        struct sl_samples s = {0};
        json_t *p = json_object();
        for (size_t i = 0; i < r->n; i++)
            if (r->outcomes[i].done)
                sl_samples_add(&s, value_of(&r->outcomes[i], (enum metric)m));
        printf("%-16s %-12s", "", metric_name[m]);
        for (size_t k = 0; k < SL_COUNTOF(percentiles); k++) {
            double v = sl_samples_percentile(&s, percentiles[k]);
            printf(m == PREDICTION ? " %9.3f" : " %9.1f", v);
            json_object_set_new(p, percentile_key[k], isnan(v) ? json_null() : json_real(v));
        }
        printf("\n");
        json_object_set_new(doc, metric_key[m], p);
        sl_samples_fini(&s);
    }
    printf("%-16s speed %.3g: %.2f %% within both SLOs, %.0f tokens/s, nodes busy %.0f %%, %zu refused, %zu "
           "unfinished\n",
           "", speed, 100 * share, (double)r->tokens / r->span_s, 100 * r->busy_share, r->n_refused,
           r->n_unfinished);
    printf("%-16s prompt tokens: %.1f %% found in prefix caches, %.1f %% travelled; %" PRIu64
           " preemptions\n",
           "", 100 * (double)r->hit_tokens / (double)r->prompt_tokens,
           100 * (double)r->moved_tokens / (double)r->prompt_tokens, r->preemptions);
    printf("%-16s step prediction off by %.1f %% (median); %" PRIu64 " steps in %.1f s\n", "",
           100 * r->step_error, r->steps, r->wall_s);
    json_object_set_new(doc, "placed", report_misses(o, r));
    if (o->each)
        json_object_set_new(doc, "requests", report_each(r));
    return doc;
}

/* A line for each judged request. */
static void write_requests(FILE *f, const struct arm *a, double speed, const struct sim_result *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct sim_outcome *q = &r->outcomes[i];
        fprintf(f, "%s,%g,%zu,%d,%.6f,%u,%u,%s,%u,%u,%u,%u,%u,%.3f,%.3f,%.3f,%.3f,%.3f,%.6f,%u,%.3f,%.3f\n",
                a->name, speed, i, q->done, q->arrived_s, q->n_prompt, q->n_output,
                sl_place_mode_name(q->mode), q->prefilled_by, q->split, q->hit_p, q->decoded_by, q->hit_d,
                (double)q->predicted_ttft, (double)q->ttft, (double)q->second, (double)q->tpot,
                (double)q->gap_max, q->gap_s, q->gap_token, (double)q->alone_ttft, (double)q->alone_gap);
    }
}

static FILE *open_csv(const char *path, struct sl_why *why)
{
    FILE *f = fopen(path, "w");
    if (!f) {
        sl_why_set(why, SL_EIO, "cannot write %s", path);
        return NULL;
    }
    fprintf(
        f,
        "arm,speed,request,done,arrived_s,prompt_tokens,output_tokens,placed,prefilled_by,split,"
        "hit_p_tokens,decoded_by,hit_d_tokens,predicted_ttft_ms,ttft_ms,second_token_ms,tpot_ms,gap_max_ms,"
        "gap_at_s,gap_token,alone_ttft_ms,alone_gap_ms\n");
    return f;
}

/* The highest speed with enough requests within both SLOs, and the run at it. 0: not even SPEED_LEAST. */
static enum sl_err find_capacity(const struct options *o, const struct sim_cluster *c, const struct arm *a,
                                 double *speed, struct sim_result *best, double *best_share,
                                 struct sl_why *why)
{
    double low = 0, high = 0, at = o->speed, stride = FIRST_STRIDE;
    *best = (struct sim_result){0};
    for (unsigned i = 0; i < BISECT_STEPS && !(low > 0 && high > 0 && high / low <= BISECT_CLOSE); i++) {
        struct sim_result r;
        double share;
        enum sl_err e = run_arm(o, c, a, at, &r, &share, why);
        if (e)
            return e;
        if (share >= o->share) {
            low = at;
            sim_result_fini(best);
            *best = r;
            *best_share = share;
        } else {
            high = at;
            sim_result_fini(&r);
        }
        at = low == 0 ? high / stride : high == 0 ? low * stride : sqrt(low * high);
        stride = fmin(stride * stride, LAST_STRIDE);
        if (at < SPEED_LEAST || at > SPEED_MOST)
            break;
    }
    *speed = low;
    return SL_OK;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct sim_cluster cluster;
    struct arm arms[MAX_ARMS];
    enum sl_err e = o->cluster ? sim_cluster_read(o->cluster, &cluster, why)
                               : sim_cluster_plain(o->model, o->prefill, o->decode, &cluster, why);
    if (e)
        return SL_BENCH_USAGE;
    if (o->arms.n == 0 || o->arms.n > MAX_ARMS) {
        sl_why_set(why, SL_EINVAL, "%zu arms given; 1 to %u can be compared", o->arms.n, MAX_ARMS);
        return SL_BENCH_USAGE;
    }
    for (size_t i = 0; i < o->arms.n; i++)
        if (!parse_arm(o->arms.items[i], &arms[i])) {
            sl_why_set(why, SL_EINVAL, "arm \"%s\": expected pd, colocated or hybrid, and perhaps :CHUNK",
                       o->arms.items[i]);
            return SL_BENCH_USAGE;
        }
    FILE *csv = o->csv ? open_csv(o->csv, why) : NULL;
    if (o->csv && !csv)
        return SL_BENCH_USAGE;
    json_t *list = json_array();
    for (size_t i = 0; i < o->arms.n && e == SL_OK; i++) {
        struct sim_result r = {0};
        double speed = o->speed, share = 0;
        e = o->capacity ? find_capacity(o, &cluster, &arms[i], &speed, &r, &share, why)
                        : run_arm(o, &cluster, &arms[i], speed, &r, &share, why);
        if (e == SL_OK && r.n)
            json_array_append_new(list, report_arm(o, &arms[i], &r, speed, share));
        else if (e == SL_OK)
            printf("%-16s no speed down to %g keeps %.1f %% within both SLOs\n", arms[i].name, SPEED_LEAST,
                   100 * o->share);
        if (csv)
            write_requests(csv, &arms[i], speed, &r);
        sim_result_fini(&r);
    }
    if (csv && fclose(csv) != 0 && e == SL_OK)
        e = sl_why_set(why, SL_EIO, "cannot write %s", o->csv);
    json_t *doc =
        json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:I, s:o}", "trace", o->trace ? o->trace : "drawn", "model",
                  o->cluster ? o->cluster : o->model, "slo_ttft", o->slo_ttft, "slo_gap", o->slo_gap,
                  "cost_error", o->cost_error, "noise", o->noise, "seed", (json_int_t)o->seed, "arms", list);
    if (e == SL_OK && o->json && json_dump_file(doc, o->json, JSON_INDENT(1)) != 0)
        e = sl_why_set(why, SL_EIO, "cannot write %s", o->json);
    json_decref(doc);
    return e ? SL_BENCH_FAILED : SL_BENCH_OK;
}

static void list_models(FILE *out)
{
    fprintf(out, "\nmodels:\n");
    for (uint32_t i = 0; sl_cost_preset_at(i); i++)
        fprintf(out, "  %-22s %s\n", sl_cost_preset_at(i)->name, sl_cost_preset_at(i)->what);
}

const struct sl_bench_command sl_bench_simulate = {
    .name = "simulate",
    .usage = "[options]",
    .help =
        "the cluster in virtual time with the daemons' policies: modes against a trace, capacity within SLOs",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
    .more_help = list_models,
};
