/* tests/bench/cmd_router.c - what the router adds to the first token: a real router, clients and nodes that
 * are not there.
 *
 *     taskset -c 0 sluice-router --model M ... &
 *     sluice-bench router --url http://127.0.0.1:8000 --register-url tcp://127.0.0.1:7100 --model M
 *
 * Nodes of this process register at the router, say yes to every request, send its first token at once and
 * the others at a pace. So the time to the first token is the router's: HTTP, JSON, placement, two messages,
 * text, the frame. The clients are this process's too; their share of the time is in the figure. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/text/vocab.h"
#include "common/wire/wire_sock.h"
#include "tests/bench/bench.h"
#include "tests/bench/stats.h"
#include "tests/bench/workload.h"

#define MAX_NODES    64u
#define QUEUE        65536u
#define CONTEXTS     64u
#define CALL_MS      10000u
#define TICK_MS      1
#define BATCH        256u /* tokens of one message */
#define HEARTBEAT_NS UINT64_C(1000000000)
#define PAGES        1000000u
#define PAGE_TOKENS  16u
#define FIRST_ID     1000u /* ids below may be control tokens */
#define LETTERS      16u   /* answers are of the ids from FIRST_ID on */

struct options {
    char *url, *register_url, *model, *name, *key;
    double rate, seconds, pace_ms;
    uint32_t tokens, prompt_tokens, nodes;
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
    {"rate", SL_CONF_F64, AT(rate), "500", "requests a second, Poisson", 0.1, 1e5, NULL},
    {"seconds", SL_CONF_F64, AT(seconds), "10", "of arrivals", 1, 3600, NULL},
    {"tokens", SL_CONF_U32, AT(tokens), "32", "of each answer", 1, 4096, NULL},
    {"pace_ms", SL_CONF_F64, AT(pace_ms), "50", "between tokens", 1, 10000, NULL},
    {"prompt_tokens", SL_CONF_U32, AT(prompt_tokens), "128", "of each prompt", 1, 4096, NULL},
    {"nodes", SL_CONF_U32, AT(nodes), "4", "nodes that are not there", 1, MAX_NODES, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

/* ---- nodes ---- */

struct stream { /* one request at a node */
    struct sl_list link;
    char id[80];
    uint32_t attempt, sent, most;
    uint64_t next_ns;
};

struct node {
    char name[24], command_url[96];
    uint64_t boot_id, router_boot_id, seq, beat_ns;
    uint64_t pace_ns;
    uint32_t n_vocab;
    struct sl_queue *queue;
    struct sl_wire_server *server;
    struct sl_wire_client *registry;
    struct sl_wire_push *push;
    struct sl_list streams; /* by next_ns: all have one pace */
    struct sl_thread thread;
    atomic_bool *stop;
};

static void answer(struct sl_wire_in *in)
{
    Sluice__CommandReply ok = SLUICE__COMMAND_REPLY__INIT;
    Sluice__StatsReply stats = SLUICE__STATS_REPLY__INIT;
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_COMMAND_REPLY;
    e.command_reply = &ok;
    if (in->msg->body_case == SLUICE__ENVELOPE__BODY_STATS) {
        load.free_pages = load.total_pages = PAGES;
        stats.load = &load;
        e.body_case = SLUICE__ENVELOPE__BODY_STATS_REPLY;
        e.stats_reply = &stats;
    }
    sl_wire_reply(in, &e);
}

static void take(struct node *n, struct sl_wire_in *in, uint64_t now_ns)
{
    if (in->kind != SL_WIRE_REQUEST) {
        sl_wire_in_free(in);
        return;
    }
    if (in->msg->body_case == SLUICE__ENVELOPE__BODY_SUBMIT) {
        const Sluice__Submit *m = in->msg->submit;
        struct stream *s = sl_xcalloc(1, sizeof *s);
        snprintf(s->id, sizeof s->id, "%s", m->request_id);
        s->attempt = m->attempt;
        s->most = m->sampling->max_tokens;
        s->next_ns = now_ns;
        sl_list_init(&s->link);
        sl_list_add_head(&n->streams, &s->link);
    }
    answer(in);
}

/* One message with what is due, as a step of an engine would send it. False: nothing is left that is. */
static bool send_due(struct node *n, uint64_t now_ns)
{
    static const int32_t letters[] = {FIRST_ID, FIRST_ID + LETTERS / 2, FIRST_ID + LETTERS - 1};
    Sluice__TokenEvent token[BATCH], *tokens[BATCH];
    Sluice__DoneEvent done[BATCH], *ends[BATCH];
    struct stream *over[BATCH];
    Sluice__EventBatch b = SLUICE__EVENT_BATCH__INIT;
    b.tokens = tokens;
    b.done = ends;
    while (!sl_list_empty(&n->streams) && b.n_tokens < BATCH) {
        struct stream *s = SL_CONTAINER_OF(n->streams.next, struct stream, link);
        if (s->next_ns > now_ns)
            break;
        sl_list_remove(&s->link);
        Sluice__TokenEvent *t = tokens[b.n_tokens] = &token[b.n_tokens];
        b.n_tokens++;
        sluice__token_event__init(t);
        t->request_id = s->id;
        t->attempt = s->attempt;
        t->index = s->sent++;
        t->token = letters[t->index % SL_COUNTOF(letters)];
        if (s->sent < s->most) {
            s->next_ns += n->pace_ns;
            sl_list_add_tail(&n->streams, &s->link);
            continue;
        }
        Sluice__DoneEvent *d = ends[b.n_done] = &done[b.n_done];
        over[b.n_done++] = s;
        sluice__done_event__init(d);
        d->request_id = s->id;
        d->attempt = s->attempt;
        d->duty = SLUICE__ROLE__ROLE_DECODE;
        d->reason = SLUICE__DONE_REASON__DONE_LENGTH;
    }
    if (b.n_tokens == 0)
        return false;
    b.node = n->name;
    b.boot_id = n->boot_id;
    b.router_boot_id = n->router_boot_id;
    b.seq = ++n->seq;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_EVENTS;
    e.events = &b;
    if (sl_wire_push_send(n->push, &e))
        fprintf(stderr, "node %s: events are lost, the router does not read them\n", n->name);
    for (size_t i = 0; i < b.n_done; i++)
        sl_free(over[i]);
    return b.n_tokens == BATCH;
}

static void beat(struct node *n, uint64_t now_ns)
{
    if (now_ns < n->beat_ns)
        return;
    n->beat_ns = now_ns + HEARTBEAT_NS;
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    load.free_pages = load.total_pages = PAGES;
    Sluice__Heartbeat m = SLUICE__HEARTBEAT__INIT;
    m.node = n->name;
    m.boot_id = n->boot_id;
    m.router_boot_id = n->router_boot_id;
    m.load = &load;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &m;
    (void)!sl_wire_call(n->registry, &e, 0, CALL_MS); /* the next one tells as much */
}

static void node_main(void *arg)
{
    struct node *n = arg;
    while (!atomic_load(n->stop)) {
        (void)sl_queue_wait(n->queue, TICK_MS);
        uint64_t now_ns = sl_now_ns();
        struct sl_wire_in *in;
        while ((in = sl_queue_pop(n->queue)) != NULL)
            take(n, in, now_ns);
        while (send_due(n, now_ns))
            ;
        beat(n, now_ns);
    }
}

static enum sl_err register_node(struct node *n, const char *register_url, struct sl_why *why)
{
    uint8_t digest[16] = {1};
    Sluice__ModelInfo model = SLUICE__MODEL_INFO__INIT;
    model.name = (char *)"paced";
    model.digest = (ProtobufCBinaryData){.len = sizeof digest, .data = digest};
    model.context_length = 8192;
    model.n_vocab = n->n_vocab;
    model.n_layers = model.n_kv_heads = 1;
    model.head_dim = 64;
    model.page_tokens = PAGE_TOKENS;
    model.page_bytes = 4096;
    model.numerics_id = 1;
    Sluice__Role permits[] = {SLUICE__ROLE__ROLE_DECODE};
    Sluice__NodeInfo info = SLUICE__NODE_INFO__INIT;
    info.name = n->name;
    info.boot_id = n->boot_id;
    info.prefers = SLUICE__ROLE__ROLE_DECODE;
    info.permits = permits;
    info.n_permits = SL_COUNTOF(permits);
    info.command_url = n->command_url;
    info.transfer_address = (char *)"127.0.0.1:1";
    info.model = &model;
    info.kv_pages = PAGES;
    info.threads = 1;
    Sluice__Register m = SLUICE__REGISTER__INIT;
    m.node = &info;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT, *a;
    e.body_case = SLUICE__ENVELOPE__BODY_REGISTER_NODE;
    e.register_node = &m;
    enum sl_err err = sl_wire_call_wait(register_url, NULL, &e, CALL_MS, &a, why);
    if (err)
        return err;
    if (a->body_case != SLUICE__ENVELOPE__BODY_REGISTER_REPLY || !a->register_reply->accepted)
        err = sl_why_set(why, SL_EPROTO, "the router refused a node: %s",
                         a->body_case == SLUICE__ENVELOPE__BODY_REGISTER_REPLY && a->register_reply->why
                             ? a->register_reply->why
                             : "no reason given");
    else
        err = sl_wire_push_open(a->register_reply->event_url, NULL, QUEUE, &n->push, why);
    if (!err)
        n->router_boot_id = a->register_reply->router_boot_id;
    sl_wire_free(a);
    return err;
}

static enum sl_err open_node(struct node *n, uint32_t i, const struct options *o, uint32_t n_vocab,
                             atomic_bool *stop, struct sl_why *why)
{
    *n = (struct node){.boot_id = sl_now_ns() + i,
                       .pace_ns = (uint64_t)(o->pace_ms * 1e6),
                       .n_vocab = n_vocab,
                       .queue = sl_queue_new(QUEUE),
                       .stop = stop};
    sl_list_init(&n->streams);
    snprintf(n->name, sizeof n->name, "paced-%u", i);
    enum sl_err e = sl_wire_server_open("tcp://127.0.0.1:0", NULL, CONTEXTS, n->queue, 0, &n->server, why);
    if (e)
        return e;
    snprintf(n->command_url, sizeof n->command_url, "%s", sl_wire_server_url(n->server));
    e = sl_wire_client_open(o->register_url, NULL, 1, 4, n->queue, &n->registry, why);
    if (!e)
        e = register_node(n, o->register_url, why);
    if (!e)
        e = sl_thread_start(&n->thread, "paced-node", node_main, n);
    return e;
}

static void close_node(struct node *n)
{
    sl_thread_join(&n->thread);
    sl_wire_push_close(n->push);
    sl_wire_client_close(n->registry);
    sl_wire_server_close(n->server);
    struct sl_wire_in *in;
    while (n->queue && (in = sl_queue_pop(n->queue)) != NULL)
        sl_wire_in_free(in);
    sl_queue_free(n->queue);
    while (n->streams.next && !sl_list_empty(&n->streams)) {
        struct stream *s = SL_CONTAINER_OF(n->streams.next, struct stream, link);
        sl_list_remove(&s->link);
        sl_free(s);
    }
}

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
        sl_prompt_random(&draw, o->prompt_tokens, FIRST_ID, model->n_vocab, &p);
        sl_job_completion(&jobs[i], &p, &c);
        sl_free(p.tokens);
        jobs[i].at_s = at += 1 / o->rate;
    }
    *out = jobs;
    return n;
}

static int report(const struct options *o, struct sl_job *jobs, size_t n, struct sl_why *why)
{
    static const double percentiles[] = {50, 90, 99, 100};
    struct sl_samples first = {0}, late = {0}, gap = {0};
    size_t good = 0;
    const char *error = "";
    for (size_t i = 0; i < n; i++) {
        const struct sl_job *j = &jobs[i];
        if (!sl_job_ok(j) || j->n_tokens != o->tokens) {
            error = j->error[0] ? j->error : "an answer is not whole";
            continue;
        }
        good++;
        sl_samples_add(&first, (j->token_s[0] - j->sent_s) * 1e3);
        sl_samples_add(&late, (j->sent_s - j->at_s) * 1e3);
        for (size_t k = 1; k < j->n_tokens; k++)
            sl_samples_add(&gap, (j->token_s[k] - j->token_s[k - 1]) * 1e3 - o->pace_ms);
    }
    const struct {
        const char *name;
        const struct sl_samples *s;
    } rows[] = {
        {"first token after", &first}, {"gap, less the pace", &gap}, {"sent late by the client", &late}};
    printf("%-24s %9s %9s %9s %9s  ms\n", "", "P50", "P90", "P99", "max");
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        printf("%-24s", rows[i].name);
        for (size_t k = 0; k < SL_COUNTOF(percentiles); k++)
            printf(" %9.2f", sl_samples_percentile((struct sl_samples *)rows[i].s, percentiles[k]));
        printf("\n");
    }
    printf("%zu of %zu requests whole, %.0f a second, %u tokens each\n", good, n, o->rate, o->tokens);
    sl_samples_fini(&first);
    sl_samples_fini(&late);
    sl_samples_fini(&gap);
    if (good == n)
        return SL_BENCH_OK;
    sl_why_set(why, SL_EPROTO, "%zu requests failed, the last one so: %s", n - good, error);
    return SL_BENCH_FAILED;
}

static enum sl_err read_model(const char *path, struct sl_model_info *out, struct sl_why *why)
{
    struct sl_vocab_src src;
    if (!path)
        return sl_why_set(why, SL_EINVAL, "no model is given; set --model to the router's model file");
    sl_vocab_src_init(&src);
    enum sl_err e = sl_vocab_load(path, &src, out, why);
    sl_vocab_src_fini(&src);
    if (!e && out->n_vocab <= FIRST_ID + LETTERS)
        e = sl_why_set(
            why, SL_EINVAL,
            "the model has %u tokens; prompts are drawn from id %u on: set --model to a larger vocabulary",
            out->n_vocab, FIRST_ID);
    return e;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct sl_model_info model;
    uint32_t opened = 0;
    if (read_model(o->model, &model, why))
        return SL_BENCH_USAGE;
    atomic_bool stop = false;
    struct node *nodes = sl_xcalloc(o->nodes, sizeof *nodes);
    enum sl_err e = SL_OK;
    while (opened < o->nodes && e == SL_OK) {
        e = open_node(&nodes[opened], opened, o, model.n_vocab, &stop, why);
        opened++;
    }
    struct sl_job *jobs = NULL;
    size_t n = 0;
    int rc = SL_BENCH_UNREACHABLE;
    if (e == SL_OK) {
        n = make_jobs(o, &model, &jobs);
        double limit_s = o->seconds + o->tokens * o->pace_ms / 1e3 + CALL_MS / 1e3;
        if (sl_client_run(o->url, o->key, jobs, n, limit_s, NULL) == SL_OK)
            rc = report(o, jobs, n, why);
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < opened; i++)
        close_node(&nodes[i]);
    for (size_t i = 0; i < n; i++)
        sl_job_fini(&jobs[i]);
    sl_free(jobs);
    sl_free(nodes);
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
