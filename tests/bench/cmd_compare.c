/* tests/bench/cmd_compare.c - the same load in every mode.
 *
 * Open loop: requests are sent at Poisson times drawn before the run, and every time counts from the intended
 * arrival, so a slow server cannot slow the load down and hide it. Arms take turns (round by round, the order
 * rotating), each with the same seeds and a fresh cache_salt, on the same nodes, threads and cores: the
 * fingerprint of the cluster is taken before each arm and must not change. The tokens and logit digests of
 * the arms are compared as well: a mode that is fast and wrong does not count. */
#include <jansson.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/conf.h"
#include "common/base/mem.h"
#include "common/base/rand.h"
#include "tests/bench/agents.h"
#include "tests/bench/bench.h"
#include "tests/bench/cluster_info.h"
#include "tests/bench/job_stats.h"
#include "tests/bench/workload.h"

#define MAX_ARMS      8
#define FIRST_TEXT_ID 16 /* control tokens lie below it in the vocabularies served here */

struct options {
    char *url, *api_key, *prompt_tokens, *output_tokens, *json, *cached_arm;
    struct sl_conf_list arms, agents;
    double rate, timeout_s, temperature;
    uint32_t requests, rounds, nodes;
    uint64_t seed;
};

static const struct sl_conf_opt option_table[] = {
    {"url", SL_CONF_STRING, offsetof(struct options, url), "http://127.0.0.1:8000", "the router", 0, 0, NULL},
    {"api_key", SL_CONF_STRING, offsetof(struct options, api_key), NULL, "bearer key", 0, 0, NULL},
    {"arms", SL_CONF_LIST, offsetof(struct options, arms), "pd,colocated,hybrid",
     "modes to compare; \"+cached\" behind one shares prefixes between its rounds", 0, 0, NULL},
    {"rate", SL_CONF_F64, offsetof(struct options, rate), "2", "requests per second (Poisson)", 0.001, 1e6,
     NULL},
    {"requests", SL_CONF_U32, offsetof(struct options, requests), "20", "requests of an arm in a round", 1,
     1e6, NULL},
    {"rounds", SL_CONF_U32, offsetof(struct options, rounds), "3", "times every arm is run", 1, 1000, NULL},
    {"prompt_tokens", SL_CONF_STRING, offsetof(struct options, prompt_tokens), "64:512",
     "prompt length, N or LOW:HIGH", 0, 0, NULL},
    {"output_tokens", SL_CONF_STRING, offsetof(struct options, output_tokens), "16:64", "answer length", 0, 0,
     NULL},
    {"temperature", SL_CONF_F64, offsetof(struct options, temperature), "0.8", "of the sampling", 0, 2, NULL},
    {"seed", SL_CONF_U64, offsetof(struct options, seed), "1", "of lengths, times, tokens and sampling", 0, 0,
     NULL},
    {"nodes", SL_CONF_U32, offsetof(struct options, nodes), "2", "wait for that many nodes", 1, 1000, NULL},
    {"timeout_s", SL_CONF_F64, offsetof(struct options, timeout_s), "600",
     "limit of one arm in one round, seconds", 1, 1e5, NULL},
    {"agents", SL_CONF_LIST, offsetof(struct options, agents), NULL,
     "HOST:PORT of each sluice-bench agent that sends a part of the load; none = this process sends it", 0, 0,
     NULL},
    {"json", SL_CONF_STRING, offsetof(struct options, json), NULL, "write the whole result there", 0, 0,
     NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct arm {
    char mode[32];
    bool cached;
    struct sl_job_stats stats;
    int32_t **ids; /* per request of the first round: token ids, for the comparison with the first arm */
    uint64_t **digest;
    size_t *n_ids;
    json_t *requests; /* [prompt tokens, TTFT in ms] of each answer, for the report */
};

/* Reads the decision record of each request that moved pages. */
static void measure_handover(const struct sl_router_ref *router, struct arm *a, const struct sl_job *jobs,
                             size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct sl_why why;
        json_t *record;
        if (!sl_job_ok(&jobs[i]) || !jobs[i].request_id[0])
            continue;
        char *op = sl_xasprintf("explain/%s", jobs[i].request_id);
        if (sl_info_tables(router, op, &record, &why) == SL_OK) {
            const char *pages = sl_info_value(record, "record", "pages_received");
            const char *ms = sl_info_value(record, "record", "handover_ms");
            if (pages && strtoul(pages, NULL, 10) > 0 && ms && *ms != '-')
                sl_samples_add(&a->stats.felt[SL_HANDOVER], strtod(ms, NULL));
            json_decref(record);
        }
        sl_free(op);
    }
}

/* Keeps the answers of this round and counts requests whose tokens or digests differ from the first arm's. */
static uint64_t compare_answers(struct arm *arms, size_t which, struct sl_job *jobs, size_t n)
{
    struct arm *a = &arms[which], *first = &arms[0];
    uint64_t differences = 0;
    for (size_t i = 0; i < n; i++) {
        struct sl_job *j = &jobs[i];
        if (which == 0) {
            sl_free(a->ids[i]);
            sl_free(a->digest[i]);
            a->ids[i] = sl_xmemdup(j->token_id, j->n_tokens * sizeof *j->token_id);
            a->digest[i] = sl_xmemdup(j->digest, j->n_tokens * sizeof *j->digest);
            a->n_ids[i] = sl_job_ok(j) ? j->n_tokens : 0;
        } else if (sl_job_ok(j) && first->n_ids[i] > 0) {
            bool same = j->n_tokens == first->n_ids[i] &&
                        memcmp(j->token_id, first->ids[i], j->n_tokens * sizeof *j->token_id) == 0 &&
                        memcmp(j->digest, first->digest[i], j->n_tokens * sizeof *j->digest) == 0;
            differences += !same;
        }
    }
    return differences;
}

static void plan_round(const struct options *o, uint32_t round, const struct sl_model_ref *m,
                       struct sl_range prompt, struct sl_range output, const char *mode, const char *salt,
                       struct sl_job *jobs)
{
    struct sl_draw d = {o->seed, round, 0};
    double at = 0.05;
    for (uint32_t i = 0; i < o->requests; i++) {
        struct sl_prompt p;
        uint32_t n_prompt = sl_draw_range(&d, prompt), n_out = sl_draw_range(&d, output);
        struct sl_draw text = {o->seed, 1000000 + i + round * o->requests, 0};
        sl_prompt_random(&text, n_prompt, FIRST_TEXT_ID, m->n_vocab, &p);
        jobs[i] = (struct sl_job){.at_s = at};
        sl_job_completion(&jobs[i], &p,
                          &(struct sl_completion_opts){.model = m->id,
                                                       .max_tokens = n_out,
                                                       .temperature = o->temperature,
                                                       .seed = o->seed + i,
                                                       .cache_salt = salt,
                                                       .want_digest = true,
                                                       .token_ids = true});
        sl_job_header(&jobs[i], "X-Sluice-Mode", mode);
        sl_free(p.tokens);
        at += -log1p(-sl_draw(&d)) / o->rate;
    }
}

static void keep_requests(struct arm *a, const struct sl_job *jobs, size_t n)
{
    if (!a->requests)
        a->requests = json_array();
    for (size_t i = 0; i < n; i++)
        if (sl_job_ok(&jobs[i]) && jobs[i].n_tokens)
            json_array_append_new(a->requests, json_pack("[I, f]", (json_int_t)jobs[i].prompt_tokens,
                                                         (jobs[i].token_s[0] - jobs[i].at_s) * 1e3));
}

static void print_table(struct arm *arms, size_t n)
{
    sl_job_stats_print_head();
    for (size_t a = 0; a < n; a++)
        if (arms[a].stats.requests) /* else an agent was lost before its turn */
            sl_job_stats_print(&arms[a].stats, arms[a].mode);
}

static json_t *report(const struct options *o, struct arm *arms, size_t n, const char *model,
                      uint64_t differences, const char *nodes)
{
    json_t *modes = json_object();
    for (size_t a = 0; a < n; a++) {
        json_t *felt = sl_job_stats_report(&arms[a].stats);
        json_object_set(felt, "by_request", arms[a].requests);
        json_object_set_new(modes, arms[a].mode, felt);
    }
    return json_pack("{s:s, s:o, s:I, s:s, s:{s:f, s:i, s:i, s:s, s:s, s:I, s:f}}", "model", model, "modes",
                     modes, "differences", (json_int_t)differences, "nodes", nodes, "load", "rate", o->rate,
                     "requests", (int)o->requests, "rounds", (int)o->rounds, "prompt_tokens",
                     o->prompt_tokens, "output_tokens", o->output_tokens, "seed", (json_int_t)o->seed,
                     "temperature", o->temperature);
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct sl_router_ref router = {o->url, o->api_key};
    struct sl_model_ref model = {0};
    struct sl_range prompt, output;
    struct arm arms[MAX_ARMS] = {0};
    size_t n_arms = o->arms.n;
    int rc = SL_BENCH_UNREACHABLE;
    uint64_t differences = 0, run_id = sl_random_u64();

    if (sl_range_parse(o->prompt_tokens, &prompt, why) || sl_range_parse(o->output_tokens, &output, why))
        return SL_BENCH_USAGE;
    if (n_arms == 0 || n_arms > MAX_ARMS) {
        sl_why_set(why, SL_EINVAL, "%zu arms given; 1 to %d can be compared", n_arms, MAX_ARMS);
        return SL_BENCH_USAGE;
    }
    if (sl_info_model(&router, &model, why))
        return SL_BENCH_UNREACHABLE;
    if (model.n_vocab <= FIRST_TEXT_ID) {
        sl_why_set(why, SL_EPROTO,
                   "the router does not say its vocabulary size (meta.n_vocab of /v1/models)");
        return SL_BENCH_UNREACHABLE;
    }
    struct sl_agents *agents;
    if (sl_agents_open(&o->agents, o->url, o->api_key, &agents, why))
        return SL_BENCH_UNREACHABLE;
    char *nodes = sl_info_fingerprint(&router, o->nodes, 30, why);
    if (!nodes) {
        sl_agents_close(agents);
        return SL_BENCH_UNREACHABLE;
    }
    for (size_t a = 0; a < n_arms; a++) {
        snprintf(arms[a].mode, sizeof arms[a].mode, "%s", o->arms.items[a]);
        arms[a].cached = strstr(arms[a].mode, "+cached") != NULL;
    }
    arms[0].ids = sl_xcalloc(o->requests, sizeof *arms[0].ids);
    arms[0].digest = sl_xcalloc(o->requests, sizeof *arms[0].digest);
    arms[0].n_ids = sl_xcalloc(o->requests, sizeof *arms[0].n_ids);
    struct sl_job *jobs = sl_xcalloc(o->requests, sizeof *jobs);
    for (uint32_t round = 0; round < o->rounds; round++) {
        for (size_t turn = 0; turn < n_arms; turn++) {
            /* The first arm stays first within a round, since the others are compared with it; the others
             * rotate. */
            size_t a = turn == 0 ? 0 : 1 + (turn - 1 + round) % (n_arms - 1);
            char *now = sl_info_fingerprint(&router, o->nodes, 30, why);
            if (!now || strcmp(now, nodes) != 0) {
                if (now)
                    sl_why_set(
                        why, SL_EMISMATCH,
                        "the nodes changed between arms, so the arms cannot be compared; before:\n%snow:\n%s",
                        nodes, now);
                sl_free(now);
                rc = SL_BENCH_FAILED;
                goto done;
            }
            sl_free(now);
            char mode[32], salt[96], label[96];
            snprintf(mode, sizeof mode, "%.*s", (int)strcspn(arms[a].mode, "+"), arms[a].mode);
            if (arms[a].cached)
                snprintf(salt, sizeof salt, "%" PRIx64 "-%s", run_id, arms[a].mode);
            else
                snprintf(salt, sizeof salt, "%" PRIx64 "-%s-%u", run_id, arms[a].mode, round);
            /* A cached arm repeats the prompts of round 0, so that every round after it finds them. */
            plan_round(o, arms[a].cached ? 0 : round, &model, prompt, output, mode, salt, jobs);
            snprintf(label, sizeof label, "round %u of %u, %s", round + 1, o->rounds, arms[a].mode);
            enum sl_err e = sl_agents_run(agents, jobs, o->requests, o->timeout_s, label, why);
            sl_job_stats_add(&arms[a].stats, jobs, o->requests);
            keep_requests(&arms[a], jobs, o->requests);
            measure_handover(&router, &arms[a], jobs, o->requests);
            if (!arms[a].cached || round == 0)
                differences += compare_answers(arms, a, jobs, o->requests);
            for (uint32_t i = 0; i < o->requests; i++)
                sl_job_fini(&jobs[i]);
            if (e) { /* what was measured until then is still told */
                rc = why->text[0] ? SL_BENCH_FAILED : SL_BENCH_UNREACHABLE;
                if (rc == SL_BENCH_UNREACHABLE)
                    sl_why_set(why, e, "the router at %s stopped answering during round %u", o->url,
                               round + 1);
                goto tell;
            }
        }
    }
    rc = SL_BENCH_OK;
tell:
    print_table(arms, n_arms);
    sl_agents_print(agents);
    printf("answers that differ between arms (tokens or logit digests): %" PRIu64 "\n", differences);
    bool bad = differences > 0;
    for (size_t a = 0; a < n_arms; a++)
        bad |= arms[a].stats.errors > 0;
    if (bad && rc == SL_BENCH_OK)
        rc = SL_BENCH_FAILED;
    if (o->json) {
        json_t *doc = report(o, arms, n_arms, model.id, differences, nodes);
        json_object_set_new(doc, "agents", sl_agents_report(agents));
        if (json_dump_file(doc, o->json, JSON_INDENT(1)) != 0) {
            sl_why_set(why, SL_EIO, "cannot write %s", o->json);
            rc = SL_BENCH_FAILED;
        }
        json_decref(doc);
    }
    if (differences)
        sl_why_set(why, SL_EDIGEST, "%" PRIu64 " answers differ between the modes", differences);
done:
    for (size_t a = 0; a < n_arms; a++) {
        sl_job_stats_fini(&arms[a].stats);
        json_decref(arms[a].requests);
    }
    for (uint32_t i = 0; i < o->requests; i++) {
        sl_free(arms[0].ids[i]);
        sl_free(arms[0].digest[i]);
    }
    sl_free(arms[0].ids);
    sl_free(arms[0].digest);
    sl_free(arms[0].n_ids);
    sl_free(jobs);
    sl_free(nodes);
    sl_agents_close(agents);
    return rc;
}

const struct sl_bench_command sl_bench_compare = {
    .name = "compare",
    .usage = "[options]",
    .help = "the same open-loop load in every mode, arms interleaved: TTFT, TPOT, gaps, throughput",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
