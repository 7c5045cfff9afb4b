/* tests/bench/cmd_sweep.c - modes against load: what share of the requests meets the objectives at each rate, and the
 * highest rate at which enough of them do.
 *
 * A run is one arm at one rate with one seed; the same seed gives every arm the same requests at the same times, and
 * arms take turns within a seed. The capacity of an arm is found for each seed by itself: from the rates that were run,
 * doubled or halved until one passes and one does not, then bisected until the two are within the tolerance. So each
 * seed gives one capacity, and means and ratios have intervals over seeds (seeds.h). The first arm is run once more
 * under another name: what it differs by is what the measurement cannot tell.
 *
 * Times count from the planned arrival. A request that fails misses. */
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
#include "tests/bench/search.h"
#include "tests/bench/seeds.h"
#include "tests/bench/serve_load.h"
#include "tests/bench/serve_stats.h"
#include "tests/bench/workload.h"

#define MAX_ARMS      9
#define MAX_SEEDS     64
#define MAX_NODES     256
#define FIRST_TEXT_ID 16   /* control tokens lie below it in the vocabularies served here */
#define FIRST_AT_S    0.05 /* of the first request: the load is set up by then */
#define AGAIN         "+again"

struct options {
    char *url, *api_key, *prompt_tokens, *output_tokens, *json, *csv;
    struct sl_conf_list arms, rates, goodput, agents;
    double rate_from, rate_to, rate_factor, attainment, tolerance, timeout_s, saturated, temperature;
    uint32_t requests, seeds, nodes;
    uint64_t seed;
    bool bisect, aa;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"url", SL_CONF_STRING, AT(url), "http://127.0.0.1:8000",
     "the router, or another OpenAI-compatible server", 0, 0, NULL},
    {"api_key", SL_CONF_STRING, AT(api_key), NULL, "bearer key", 0, 0, NULL},
    {"arms", SL_CONF_LIST, AT(arms), "pd,colocated,hybrid",
     "modes to compare (X-Sluice-Mode); \"default\" sends no mode, for any other server", 0, 0, NULL},
    {"aa", SL_CONF_BOOL, AT(aa), "true", "run the first arm once more, as the last one, to see the noise", 0,
     0, NULL},
    {"rates", SL_CONF_LIST, AT(rates), NULL, "requests a second, ascending; none = rate_from to rate_to", 0,
     0, NULL},
    {"rate_from", SL_CONF_F64, AT(rate_from), "1", "first rate", 1e-3, 1e6, NULL},
    {"rate_to", SL_CONF_F64, AT(rate_to), "4", "no rate is above", 1e-3, 1e6, NULL},
    {"rate_factor", SL_CONF_F64, AT(rate_factor), "2", "each rate is that many times the one before", 1.01,
     100, NULL},
    {"saturated", SL_CONF_F64, AT(saturated), "0.5",
     "higher rates are left out for an arm of whose requests a smaller share meets the objectives", 0, 1,
     NULL},
    {"goodput", SL_CONF_LIST, AT(goodput), "ttft:2000,tpot:100",
     "objectives ttft:MS tpot:MS e2el:MS, all to be met", 0, 0, NULL},
    {"bisect", SL_CONF_BOOL, AT(bisect), "true", "find the highest rate at which enough requests meet them",
     0, 0, NULL},
    {"attainment", SL_CONF_F64, AT(attainment), "0.99", "share of requests that is enough", 0.01, 1, NULL},
    {"tolerance", SL_CONF_F64, AT(tolerance), "0.025", "of that rate", 0.001, 1, NULL},
    {"requests", SL_CONF_U32, AT(requests), "200", "requests of a run", 1, 1e6, NULL},
    {"seeds", SL_CONF_U32, AT(seeds), "3", "every run is made with that many seeds", 1, MAX_SEEDS, NULL},
    {"seed", SL_CONF_U64, AT(seed), "1", "the first of them", 0, 0, NULL},
    {"prompt_tokens", SL_CONF_STRING, AT(prompt_tokens), "64:512", "prompt length, N or LOW:HIGH", 0, 0,
     NULL},
    {"output_tokens", SL_CONF_STRING, AT(output_tokens), "16:64", "answer length", 0, 0, NULL},
    {"temperature", SL_CONF_F64, AT(temperature), "0.8", "of the sampling", 0, 2, NULL},
    {"nodes", SL_CONF_U32, AT(nodes), "0", "wait for that many nodes; 0 = do not ask (other servers)", 0,
     1000, NULL},
    {"timeout_s", SL_CONF_F64, AT(timeout_s), "600", "limit of one run, seconds", 1, 1e5, NULL},
    {"agents", SL_CONF_LIST, AT(agents), NULL,
     "HOST:PORT of each sluice-bench agent that sends a part of the load; none = this process sends it", 0, 0,
     NULL},
    {"json", SL_CONF_STRING, AT(json), NULL, "write all runs and capacities there", 0, 0, NULL},
    {"csv", SL_CONF_STRING, AT(csv), NULL, "write a line for each run there", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

/* What the nodes of one role did in a run, by their own counters. */
struct role {
    uint32_t nodes;
    double prompt_tokens, decode_tokens;
};

struct run {
    size_t arm, seed; /* indices */
    double rate, attainment, goodput, output_tokens_per_s, prompt_tokens_per_s, busy_s;
    bool bisecting; /* one of the search for a capacity */
    struct role prefill, decode;
    struct sl_job_stats felt;
};

struct sweep {
    const struct options *o;
    struct sl_router_ref router;
    struct sl_model_ref model;
    struct sl_agents *agents;
    struct sl_slo slo;
    struct sl_range prompt, output;
    const char *arms[MAX_ARMS];
    size_t n_arms;
    double *rates;
    size_t n_rates;
    struct run *runs;
    size_t n_runs, cap_runs;
    struct sl_search search[MAX_ARMS][MAX_SEEDS];
    double capacity[MAX_ARMS][MAX_SEEDS];
    bool saturated[MAX_ARMS];
    uint64_t run_id;
};

/* ---- one run ---- */

/* Token ids where the server says its vocabulary, so that lengths are exact; words elsewhere. */
static enum sl_err make_jobs(struct sweep *s, uint64_t seed, double rate, const char *mode, const char *salt,
                             struct sl_job *jobs, struct sl_why *why)
{
    const struct options *o = s->o;
    struct sl_load load = {0};
    double *at_s = sl_xcalloc(o->requests, sizeof *at_s);
    bool ids = s->model.n_vocab > FIRST_TEXT_ID;
    sl_load_arrivals(&(struct sl_arrivals){.rate = rate, .burstiness = 1, .exact_end = true}, seed, at_s,
                     o->requests);
    const struct sl_load_conf words = {.dataset = SL_DATASET_RANDOM,
                                       .n = o->requests,
                                       .seed = seed,
                                       .input_tokens = (s->prompt.lo + s->prompt.hi) / 2,
                                       .range_ratio = (double)(s->prompt.hi - s->prompt.lo) /
                                                      ((double)s->prompt.hi + s->prompt.lo),
                                       .output_tokens = (s->output.lo + s->output.hi) / 2};
    enum sl_err e = ids ? SL_OK : sl_load_open(&words, &load, why);
    struct sl_draw d = {seed, 0, 0};
    for (uint32_t i = 0; !e && i < o->requests; i++) {
        uint32_t n_prompt = sl_draw_range(&d, s->prompt), n_out = sl_draw_range(&d, s->output);
        if (ids) {
            struct sl_draw text = {seed, 1000000 + i, 0};
            struct sl_prompt p;
            sl_prompt_random(&text, n_prompt, FIRST_TEXT_ID, s->model.n_vocab, &p);
            sl_job_completion(&jobs[i], &p,
                              &(struct sl_completion_opts){.model = s->model.id,
                                                           .max_tokens = n_out,
                                                           .temperature = o->temperature,
                                                           .seed = seed + i,
                                                           .cache_salt = salt});
            sl_free(p.tokens);
        } else {
            load.requests[i].n_output = n_out;
            sl_load_job(&load.requests[i], "/v1/completions", s->model.id, true, NULL, &jobs[i]);
        }
        if (strcmp(mode, "default") != 0)
            sl_job_header(&jobs[i], "X-Sluice-Mode", mode);
        jobs[i].at_s = FIRST_AT_S + at_s[i];
    }
    sl_load_close(&load);
    sl_free(at_s);
    return e;
}

/* The counters of all nodes, summed by the role that they prefer; zeroes where the server has none. */
static void read_roles(const struct sweep *s, struct role *prefill, struct role *decode)
{
    json_t *nodes, *one;
    struct sl_why why;
    *prefill = *decode = (struct role){0};
    if (!s->o->nodes || sl_info_tables(&s->router, "nodes", &nodes, &why))
        return;
    const char *name;
    for (size_t i = 0; i < MAX_NODES && (name = sl_info_cell(nodes, "nodes", i, "node")) != NULL; i++) {
        const char *prefers = sl_info_cell(nodes, "nodes", i, "prefers");
        struct role *r = prefers && strcmp(prefers, "prefill") == 0 ? prefill : decode;
        char *op = sl_xasprintf("nodes/%s", name);
        r->nodes++;
        if (sl_info_tables(&s->router, op, &one, &why) == SL_OK) {
            const char *prompt = sl_info_value(one, "counters", "prompt_tokens_total"),
                       *rows = sl_info_value(one, "counters", "decode_tokens_total");
            r->prompt_tokens += prompt ? strtod(prompt, NULL) : 0;
            r->decode_tokens += rows ? strtod(rows, NULL) : 0;
            json_decref(one);
        }
        sl_free(op);
    }
    json_decref(nodes);
}

static void since(struct role *now, const struct role *before)
{
    now->prompt_tokens -= before->prompt_tokens;
    now->decode_tokens -= before->decode_tokens;
}

static struct run *add_run(struct sweep *s)
{
    if (s->n_runs == s->cap_runs) {
        s->cap_runs = s->cap_runs ? 2 * s->cap_runs : 64;
        s->runs = sl_xrealloc_array(s->runs, s->cap_runs, sizeof *s->runs);
    }
    s->runs[s->n_runs] = (struct run){0};
    return &s->runs[s->n_runs++];
}

static enum sl_err run_one(struct sweep *s, size_t arm, size_t seed, double rate, bool bisecting,
                           double *attainment, struct sl_why *why)
{
    const struct options *o = s->o;
    struct sl_job *jobs = sl_xcalloc(o->requests, sizeof *jobs);
    char mode[40], salt[64], label[120];
    snprintf(mode, sizeof mode, "%.*s", (int)strcspn(s->arms[arm], "+"), s->arms[arm]);
    snprintf(salt, sizeof salt, "%" PRIx64 "-%zu", s->run_id,
             s->n_runs); /* nobody finds another's prefixes */
    snprintf(label, sizeof label, "%s, %.4g requests/s, seed %" PRIu64, s->arms[arm], rate, o->seed + seed);
    enum sl_err e = make_jobs(s, o->seed + seed, rate, mode, salt, jobs, why);
    struct role before[2];
    read_roles(s, &before[0], &before[1]);
    if (!e)
        e = sl_agents_run(s->agents, jobs, o->requests, o->timeout_s, label, why);
    if (!e) {
        struct run *r = add_run(s);
        size_t good = 0;
        uint64_t prompt = 0, output = 0;
        *r = (struct run){.arm = arm, .seed = seed, .rate = rate, .bisecting = bisecting};
        read_roles(s, &r->prefill, &r->decode);
        since(&r->prefill, &before[0]);
        since(&r->decode, &before[1]);
        sl_job_stats_add(&r->felt, jobs, o->requests);
        for (uint32_t i = 0; i < o->requests; i++) {
            good += sl_slo_met(&s->slo, &jobs[i], jobs[i].at_s);
            prompt += jobs[i].prompt_tokens;
            output += sl_job_output_tokens(&jobs[i]);
        }
        r->busy_s = r->felt.busy_s;
        r->attainment = *attainment = (double)good / o->requests;
        double busy_s = r->busy_s > 0 ? r->busy_s : INFINITY;
        r->goodput = (double)good / busy_s;
        r->output_tokens_per_s = (double)output / busy_s;
        r->prompt_tokens_per_s = (double)prompt / busy_s;
    } else if (!why->text[0]) {
        sl_why_set(why, e, "%s stopped answering during: %s", o->url, label);
    }
    for (uint32_t i = 0; i < o->requests; i++)
        sl_job_fini(&jobs[i]);
    sl_free(jobs);
    return e;
}

/* ---- the rates, the search ---- */

static enum sl_err run_rates(struct sweep *s, struct sl_why *why)
{
    enum sl_err e = SL_OK;
    for (size_t k = 0; k < s->n_rates && !e; k++) {
        double sum[MAX_ARMS] = {0};
        for (size_t seed = 0; seed < s->o->seeds && !e; seed++)
            for (size_t turn = 0; turn < s->n_arms && !e; turn++) {
                size_t arm = (turn + seed + k) % s->n_arms;
                double attainment = 0;
                if (s->saturated[arm])
                    continue;
                e = run_one(s, arm, seed, s->rates[k], false, &attainment, why);
                if (!e)
                    sl_search_learn(&s->search[arm][seed], s->rates[k], attainment >= s->o->attainment);
                sum[arm] += attainment;
            }
        for (size_t arm = 0; arm < s->n_arms; arm++)
            s->saturated[arm] |= sum[arm] / s->o->seeds < s->o->saturated;
    }
    return e;
}

static enum sl_err find_capacities(struct sweep *s, struct sl_why *why)
{
    enum sl_err e = SL_OK;
    for (size_t seed = 0; seed < s->o->seeds && !e; seed++) {
        size_t running = s->n_arms;
        while (running && !e) {
            running = 0;
            for (size_t arm = 0; arm < s->n_arms && !e; arm++) {
                struct sl_search *h = &s->search[arm][seed];
                double attainment = 0, rate = sl_search_next(h, s->rates[0], s->o->tolerance);
                if (rate <= 0)
                    continue;
                running++;
                e = run_one(s, arm, seed, rate, true, &attainment, why);
                if (!e)
                    sl_search_learn(h, rate, attainment >= s->o->attainment);
            }
        }
        for (size_t arm = 0; arm < s->n_arms; arm++)
            s->capacity[arm][seed] = s->search[arm][seed].passes;
    }
    return e;
}

/* ---- what came of it ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *interval(struct sl_interval i)
{
    return json_pack("{s:o, s:o, s:o}", "mean", number(i.mean), "low", number(i.low), "high", number(i.high));
}

static json_t *role_report(const struct role *r, double busy_s)
{
    double per_node = r->nodes && busy_s > 0 ? 1 / (busy_s * r->nodes) : 0;
    return json_pack("{s:i, s:f, s:f}", "nodes", (int)r->nodes, "prompt_tokens_per_s_per_node",
                     r->prompt_tokens * per_node, "decode_tokens_per_s_per_node",
                     r->decode_tokens * per_node);
}

static json_t *runs_report(struct sweep *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_runs; i++) {
        struct run *r = &s->runs[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:f, s:I, s:b, s:f, s:f, s:f, s:f, s:o, s:{s:o, s:o}}", "arm", s->arms[r->arm],
                      "rate", r->rate, "seed", (json_int_t)(s->o->seed + r->seed), "bisecting",
                      (int)r->bisecting, "attainment", r->attainment, "goodput", r->goodput,
                      "output_tokens_per_s", r->output_tokens_per_s, "prompt_tokens_per_s",
                      r->prompt_tokens_per_s, "felt", sl_job_stats_report(&r->felt), "roles", "prefill",
                      role_report(&r->prefill, r->busy_s), "decode", role_report(&r->decode, r->busy_s)));
    }
    return list;
}

/* The runs of an arm at a planned rate: values of all seeds. */
static size_t values_at(const struct sweep *s, size_t arm, double rate, size_t offset, double *v)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_runs && n < MAX_SEEDS; i++)
        if (s->runs[i].arm == arm && s->runs[i].rate == rate && !s->runs[i].bisecting)
            v[n++] = *(const double *)((const char *)&s->runs[i] + offset);
    return n;
}

static void print_interval(struct sl_interval i, double scale, const char *unit)
{
    if (isnan(i.low))
        printf(" %8.3g%s %19s", i.mean * scale, unit, "");
    else
        printf(" %8.3g%s [%7.3g, %7.3g]", i.mean * scale, unit, i.low * scale, i.high * scale);
}

static json_t *tell_rates(const struct sweep *s)
{
    json_t *list = json_array();
    double v[MAX_SEEDS];
    printf("%-18s %9s  %-31s  %-30s  %-30s\n", "arm", "requests/s", "within objectives [95 %]",
           "goodput, requests/s", "output tokens/s");
    for (size_t k = 0; k < s->n_rates; k++)
        for (size_t arm = 0; arm < s->n_arms; arm++) {
            size_t n = values_at(s, arm, s->rates[k], offsetof(struct run, attainment), v);
            if (n == 0)
                continue;
            struct sl_interval a = sl_seeds_mean(v, n);
            values_at(s, arm, s->rates[k], offsetof(struct run, goodput), v);
            struct sl_interval g = sl_seeds_mean(v, n);
            values_at(s, arm, s->rates[k], offsetof(struct run, output_tokens_per_s), v);
            struct sl_interval t = sl_seeds_mean(v, n);
            printf("%-18s %9.4g ", s->arms[arm], s->rates[k]);
            print_interval(a, 100, " %");
            print_interval(g, 1, "");
            print_interval(t, 1, "");
            printf("\n");
            json_array_append_new(list, json_pack("{s:s, s:f, s:o, s:o, s:o}", "arm", s->arms[arm], "rate",
                                                  s->rates[k], "attainment", interval(a), "goodput",
                                                  interval(g), "output_tokens_per_s", interval(t)));
        }
    return list;
}

static json_t *tell_capacities(const struct sweep *s)
{
    json_t *list = json_array();
    printf("\nhighest rate with %.3g %% within all objectives, to %.3g %%; 95 %% intervals by Student's t "
           "over %u seeds\n",
           s->o->attainment * 100, s->o->tolerance * 100, s->o->seeds);
    printf("%-18s  %-29s  %s\n", "arm", "requests/s", "over the first arm, paired by seed");
    for (size_t arm = 0; arm < s->n_arms; arm++) {
        struct sl_interval c = sl_seeds_mean(s->capacity[arm], s->o->seeds),
                           r = sl_seeds_ratio(s->capacity[arm], s->capacity[0], s->o->seeds);
        json_t *each = json_array();
        for (size_t k = 0; k < s->o->seeds; k++)
            json_array_append_new(each, json_real(s->capacity[arm][k]));
        printf("%-18s ", s->arms[arm]);
        print_interval(c, 1, "");
        if (arm)
            print_interval(r, 1, "");
        printf("\n");
        json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:o}", "arm", s->arms[arm], "rate",
                                              interval(c), "over_first", interval(r), "by_seed", each));
    }
    return list;
}

static enum sl_err write_csv(struct sweep *s, struct sl_why *why)
{
    FILE *f = fopen(s->o->csv, "we");
    if (!f)
        return sl_why_set(why, SL_EIO, "cannot write %s", s->o->csv);
    fputs("arm,rate,seed,bisecting,attainment,goodput,errors,ttft_p50_ms,ttft_p99_ms,tpot_p50_ms,tpot_p99_ms,"
          "send_lag_p99_ms,output_tokens_per_s,prompt_tokens_per_s\n",
          f);
    for (size_t i = 0; i < s->n_runs; i++) {
        struct run *r = &s->runs[i];
        struct sl_samples *felt = r->felt.felt;
        fprintf(f, "%s,%g,%" PRIu64 ",%d,%g,%g,%" PRIu64 ",%g,%g,%g,%g,%g,%g,%g\n", s->arms[r->arm], r->rate,
                s->o->seed + r->seed, r->bisecting, r->attainment, r->goodput, r->felt.errors,
                sl_samples_percentile(&felt[SL_TTFT], 50), sl_samples_percentile(&felt[SL_TTFT], 99),
                sl_samples_percentile(&felt[SL_TPOT], 50), sl_samples_percentile(&felt[SL_TPOT], 99),
                sl_samples_percentile(&felt[SL_SEND_LAG], 99), r->output_tokens_per_s,
                r->prompt_tokens_per_s);
    }
    return fclose(f) == 0 ? SL_OK : sl_why_set(why, SL_EIO, "cannot write %s", s->o->csv);
}

static enum sl_err tell(struct sweep *s, bool whole, struct sl_why *why)
{
    const struct options *o = s->o;
    enum sl_err e = SL_OK;
    uint64_t errors = 0;
    json_t *points = tell_rates(s), *capacities = o->bisect && whole ? tell_capacities(s) : json_array(),
           *slo;
    for (size_t i = 0; i < s->n_runs; i++)
        errors += s->runs[i].felt.errors;
    printf("%zu runs of %u requests, %" PRIu64 " errors\n", s->n_runs, o->requests, errors);
    if (o->requests * (1 - o->attainment) < 1)
        printf("With %u requests a run, a single miss is more than is allowed: take %.0f or more.\n",
               o->requests, ceil(1 / (1 - fmin(o->attainment, 0.9999))));
    slo = json_pack("{s:f, s:f, s:f}", "ttft_ms", s->slo.ttft_ms, "tpot_ms", s->slo.tpot_ms, "e2el_ms",
                    s->slo.e2el_ms);
    json_t *doc =
        json_pack("{s:s, s:s, s:b, s:o, s:f, s:f, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o}", "kind", "sweep",
                  "model", s->model.id, "whole", (int)whole, "slo", slo, "attainment", o->attainment,
                  "tolerance", o->tolerance, "prompt_tokens", o->prompt_tokens, "output_tokens",
                  o->output_tokens, "requests", (int)o->requests, "seeds", (int)o->seeds, "points", points,
                  "capacities", capacities, "runs", runs_report(s), "agents", sl_agents_report(s->agents));
    if (o->json && json_dump_file(doc, o->json, JSON_INDENT(1)) != 0)
        e = sl_why_set(why, SL_EIO, "cannot write %s", o->json);
    json_decref(doc);
    return o->csv && !e ? write_csv(s, why) : e;
}

/* ---- the command ---- */

static enum sl_err read_rates(struct sweep *s, struct sl_why *why)
{
    const struct options *o = s->o;
    s->rates = sl_xcalloc(o->rates.n + 1, sizeof *s->rates);
    for (size_t i = 0; i < o->rates.n; i++) {
        char *end;
        double v = strtod(o->rates.items[i], &end);
        if (*end || !(v > 0) || !isfinite(v) || (i && v <= s->rates[i - 1]))
            return sl_why_set(why, SL_EINVAL, "\"%.40s\" in --rates: expected numbers above 0, ascending",
                              o->rates.items[i]);
        s->rates[s->n_rates++] = v;
    }
    if (o->rates.n == 0 && o->rate_from > o->rate_to)
        return sl_why_set(why, SL_EINVAL, "rate_from %g is above rate_to %g", o->rate_from, o->rate_to);
    for (double v = o->rate_from; o->rates.n == 0 && v <= o->rate_to * (1 + 1e-9); v *= o->rate_factor) {
        s->rates = sl_xrealloc_array(s->rates, s->n_rates + 1, sizeof *s->rates);
        s->rates[s->n_rates++] = v;
    }
    return SL_OK;
}

static enum sl_err prepare(struct sweep *s, struct sl_why *why)
{
    const struct options *o = s->o;
    enum sl_err e = read_rates(s, why);
    if (!e)
        e = sl_range_parse(o->prompt_tokens, &s->prompt, why);
    if (!e)
        e = sl_range_parse(o->output_tokens, &s->output, why);
    if (!e)
        e = sl_slo_parse(&o->goodput, &s->slo, why);
    if (!e && !sl_slo_any(&s->slo))
        e = sl_why_set(why, SL_EINVAL, "no objective is given; say --goodput ttft:MS tpot:MS");
    if (!e && (o->arms.n == 0 || o->arms.n >= MAX_ARMS))
        e = sl_why_set(why, SL_EINVAL, "%zu arms given; 1 to %d can be compared", o->arms.n, MAX_ARMS - 1);
    for (size_t i = 0; !e && i < o->arms.n; i++)
        s->arms[s->n_arms++] = o->arms.items[i];
    return e;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct sweep *s = sl_xcalloc(1, sizeof *s);
    char *again = NULL, *nodes = NULL;
    int rc = SL_BENCH_USAGE;
    s->o = o;
    s->router = (struct sl_router_ref){o->url, o->api_key};
    s->run_id = sl_random_u64();
    for (size_t i = 0; i < MAX_ARMS * MAX_SEEDS; i++)
        sl_search_init(&s->search[i / MAX_SEEDS][i % MAX_SEEDS]);
    if (prepare(s, why))
        goto done;
    if (o->aa)
        s->arms[s->n_arms++] = again = sl_xasprintf("%s" AGAIN, s->arms[0]);
    rc = SL_BENCH_UNREACHABLE;
    if (sl_info_model(&s->router, &s->model, why) ||
        sl_agents_open(&o->agents, o->url, o->api_key, &s->agents, why))
        goto done;
    if (o->nodes && !(nodes = sl_info_fingerprint(&s->router, o->nodes, 30, why)))
        goto done;
    rc = SL_BENCH_FAILED;
    enum sl_err e = run_rates(s, why);
    if (!e && o->bisect)
        e = find_capacities(s, why);
    if (s->n_runs && tell(s, !e, e ? NULL : why) == SL_OK && !e)
        rc = SL_BENCH_OK;
done:
    for (size_t i = 0; i < s->n_runs; i++)
        sl_job_stats_fini(&s->runs[i].felt);
    sl_agents_close(s->agents);
    sl_free(s->runs);
    sl_free(s->rates);
    sl_free(again);
    sl_free(nodes);
    sl_free(s);
    return rc;
}

const struct sl_bench_command sl_bench_sweep = {
    .name = "sweep",
    .usage = "[options]",
    .help =
        "modes against load: share within the objectives at each rate, and the highest rate that holds them",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
