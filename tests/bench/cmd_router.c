/* tests/bench/cmd_router.c - what the router adds to the first token: a real router, clients and nodes that
 * are not there (paced_node.h).
 *
 *     taskset -c 0 sluice-router --model M ... &
 *     sluice-bench router --url http://127.0.0.1:8000 --register-url tcp://127.0.0.1:7100 --model M
 *
 * The nodes send the first token at once and the others at a pace. So the time to the first token is the
 * router's: HTTP, JSON, placement, two messages, text, the frame. The clients are this process's too; their
 * share of the time is in the figure. To tell nodes and clients apart, each is a process of its own:
 *
 *     sluice-bench router --part nodes ... &
 *     sluice-bench router --part clients ...
 *
 * SIGUSR1 lets the nodes end all streams that are open; SIGTERM ends the nodes. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/vocab.h"
#include "tests/bench/bench.h"
#include "tests/bench/client.h"
#include "tests/bench/paced_node.h"
#include "tests/bench/stats.h"
#include "tests/bench/workload.h"

#define MAX_NODES 64u
#define HANG_S    300.0 /* past the last token's time: for a router that hangs, not for a slow machine */

enum part { BOTH, NODES, CLIENTS };
static const char *const part_words[] = {"both", "nodes", "clients", NULL};

struct options {
    char *url, *register_url, *model, *name, *key;
    double rate, seconds, pace_ms;
    uint32_t tokens, prompt_tokens, nodes;
    int part;
};

#define AT(member) offsetof(struct options, member)
static const struct sl_conf_opt option_table[] = {
    {"url", SL_CONF_STRING, AT(url), "http://127.0.0.1:8000", "the router's HTTP address", 0, 0, NULL},
    {"register_url", SL_CONF_STRING, AT(register_url), "tcp://127.0.0.1:7100", "where its nodes register", 0,
     0, NULL},
    {"model", SL_CONF_STRING, AT(model), NULL,
     "the router's model file: for its name and the size of its vocabulary", 0, 0, NULL},
    {"name", SL_CONF_STRING, AT(name), NULL, "what the router calls it; none = as the file says", 0, 0, NULL},
    {"key", SL_CONF_STRING, AT(key), NULL, "API key", 0, 0, NULL},
    {"rate", SL_CONF_F64, AT(rate), "500", "requests a second, evenly", 0.1, 1e5, NULL},
    {"seconds", SL_CONF_F64, AT(seconds), "10", "of arrivals", 1, 3600, NULL},
    {"tokens", SL_CONF_U32, AT(tokens), "32", "of each answer", 1, 4096, NULL},
    {"pace_ms", SL_CONF_F64, AT(pace_ms), "50", "between tokens", 1, 10000, NULL},
    {"prompt_tokens", SL_CONF_U32, AT(prompt_tokens), "128", "of each prompt", 1, 4096, NULL},
    {"nodes", SL_CONF_U32, AT(nodes), "4", "nodes that are not there", 1, MAX_NODES, NULL},
    {"part", SL_CONF_ENUM, AT(part), "both",
     "what this process is: both, nodes until it is told to end, or clients of nodes that are another "
     "process's",
     0, 0, part_words},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

/* ---- clients ---- */

static size_t make_jobs(const struct options *o, const struct sl_model_info *model, struct sl_job **out)
{
    size_t n = (size_t)(o->rate * o->seconds);
    struct sl_job *jobs = sl_xcalloc(n ? n : 1, sizeof *jobs);
    struct sl_draw draw = {.seed = 1};
    const struct sl_completion_opts c = {.model = o->name ? o->name : model->name, .max_tokens = o->tokens};
    double at = 0;
    for (size_t i = 0; i < n; i++) {
        struct sl_prompt p;
        sl_prompt_random(&draw, o->prompt_tokens, SL_PACED_FIRST_ID, model->n_vocab, &p);
        sl_job_completion(&jobs[i], &p, &c);
        sl_free(p.tokens);
        jobs[i].at_s = at += 1 / o->rate;
    }
    *out = jobs;
    return n;
}

/* Whether every token that the router counted is here, and all that were asked for unless the nodes ended it. */
static bool whole(const struct sl_job *j, uint32_t tokens)
{
    return sl_job_ok(j) && j->n_tokens == j->completion_tokens &&
           (j->n_tokens == tokens || strcmp(j->finish, "stop") == 0);
}

static void print_head(void)
{
    printf("%-24s %9s %9s %9s %9s  ms\n", "", "P50", "P90", "P99", "max");
}

static void print_row(const char *name, struct sl_samples *s)
{
    printf("%-24s %9.2f %9.2f %9.2f %9.2f\n", name, sl_samples_percentile(s, 50),
           sl_samples_percentile(s, 90), sl_samples_percentile(s, 99), sl_samples_percentile(s, 100));
}

static int report_clients(const struct options *o, struct sl_job *jobs, size_t n, struct sl_why *why)
{
    struct sl_samples first = {0}, late = {0}, gap = {0};
    size_t good = 0, n_tokens = 0;
    const char *error = "";
    for (size_t i = 0; i < n; i++) {
        const struct sl_job *j = &jobs[i];
        n_tokens += j->n_tokens;
        if (!whole(j, o->tokens)) {
            error = j->error[0] ? j->error : "an answer is not whole";
            continue;
        }
        good++;
        sl_samples_add(&first, (j->token_s[0] - j->sent_s) * 1e3);
        sl_samples_add(&late, (j->sent_s - j->at_s) * 1e3);
        for (size_t k = 1; k < j->n_tokens; k++)
            sl_samples_add(&gap, (j->token_s[k] - j->token_s[k - 1]) * 1e3 - o->pace_ms);
    }
    print_head();
    print_row("first token after", &first);
    print_row("gap, less the pace", &gap);
    print_row("sent late by the client", &late);
    printf("%zu of %zu requests whole, %.0f a second, %u tokens each; %zu tokens received\n", good, n,
           o->rate, o->tokens, n_tokens);
    sl_samples_fini(&first);
    sl_samples_fini(&late);
    sl_samples_fini(&gap);
    if (good == n)
        return SL_BENCH_OK;
    sl_why_set(why, SL_EPROTO, "%zu requests failed, the last one so: %s", n - good, error);
    return SL_BENCH_FAILED;
}

static void stop_nodes(struct sl_paced *nodes)
{
    struct sl_paced_report r;
    sl_paced_stop(nodes, &r);
    print_head();
    print_row("sent late by the nodes", &r.late_ms);
    printf("%zu tokens sent; asked %llu times what became of a stream\n", r.late_ms.n,
           (unsigned long long)r.n_resyncs);
    sl_samples_fini(&r.late_ms);
}

static enum sl_err read_model(const char *path, struct sl_model_info *out, struct sl_why *why)
{
    struct sl_vocab_src src;
    if (!path)
        return sl_why_set(why, SL_EINVAL, "no model is given; set --model to the router's model file");
    sl_vocab_src_init(&src);
    enum sl_err e = sl_vocab_load(path, &src, out, why);
    sl_vocab_src_fini(&src);
    if (!e && out->n_vocab <= SL_PACED_FIRST_ID + SL_PACED_LETTERS)
        e = sl_why_set(
            why, SL_EINVAL,
            "the model has %u tokens; prompts are drawn from id %u on: set --model to a larger vocabulary",
            out->n_vocab, SL_PACED_FIRST_ID);
    return e;
}

static int run_clients(const struct options *o, const struct sl_model_info *model, struct sl_why *why)
{
    struct sl_job *jobs;
    size_t n = make_jobs(o, model, &jobs);
    double limit_s = o->seconds + o->tokens * o->pace_ms / 1e3 + HANG_S;
    int rc = SL_BENCH_UNREACHABLE;
    if (sl_client_run(o->url, o->key, jobs, n, limit_s, NULL) == SL_OK)
        rc = report_clients(o, jobs, n, why);
    else
        sl_why_set(why, SL_EPEER, "no router answers at %s", o->url);
    for (size_t i = 0; i < n; i++)
        sl_job_fini(&jobs[i]);
    sl_free(jobs);
    return rc;
}

/* Until a signal says that it is over. signals are blocked. */
static void serve(struct sl_paced *nodes, const sigset_t *signals)
{
    int s = 0;
    while (sigwait(signals, &s) == 0 && s == SIGUSR1)
        sl_paced_end_streams(nodes);
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct sl_model_info model;
    sigset_t signals;
    if (read_model(o->model, &model, why))
        return SL_BENCH_USAGE;
    if (o->part == CLIENTS)
        return run_clients(o, &model, why);
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (o->part == NODES)
        pthread_sigmask(SIG_BLOCK, &signals, NULL); /* before there are threads: all have it so */
    struct sl_paced *nodes;
    const struct sl_paced_conf conf = {.register_url = o->register_url,
                                       .n_nodes = o->nodes,
                                       .n_vocab = model.n_vocab,
                                       .pace_ms = o->pace_ms};
    if (sl_paced_open(&conf, &nodes, why))
        return SL_BENCH_UNREACHABLE;
    int rc = SL_BENCH_OK;
    if (o->part == NODES)
        serve(nodes, &signals);
    else
        rc = run_clients(o, &model, why);
    stop_nodes(nodes);
    sl_paced_close(nodes);
    return rc;
}

const struct sl_bench_command sl_bench_router = {
    .name = "router",
    .usage = "--model FILE [options]",
    .help = "what a router adds to the first token: nodes that are not there answer at a pace",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
