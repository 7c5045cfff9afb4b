/* tests/bench/paced_node.c - see paced_node.h.
 *
 * All streams of a node have one pace, so a list in the order of what was sent is in the order of what is due:
 * a new stream goes to its front, one that was sent a token to its end. */
#include "tests/bench/paced_node.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hashmap.h"
#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/wire/wire_sock.h"

#define QUEUE        65536u
#define CONTEXTS     64u
#define CALL_MS      10000u
#define TICK_MS      1
#define BATCH        256u   /* tokens of one message */
#define MAX_TOKENS   32768u /* of one answer to a Resync */
#define HEARTBEAT_NS UINT64_C(1000000000)
#define PAGES        1000000u
#define PAGE_TOKENS  16u

struct stream { /* one request at a node */
    struct sl_list link;
    char id[80];
    uint32_t attempt, sent, most;
    uint64_t next_ns;
    unsigned era;
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
    struct sl_list streams;   /* by next_ns */
    struct sl_hashmap *by_id; /* of the same */
    struct sl_thread thread;
    struct sl_paced_report report;
    struct sl_paced *all;
};

struct sl_paced {
    uint32_t n_nodes;
    atomic_bool stop;
    atomic_uint era; /* streams of an earlier one end */
    struct node nodes[];
};

static struct stream *find(struct node *n, const char *id)
{
    return sl_hashmap_get(n->by_id, id, strlen(id));
}

static void drop(struct node *n, struct stream *s)
{
    if (!s)
        return;
    sl_hashmap_del(n->by_id, s->id, strlen(s->id));
    sl_list_remove(&s->link);
    sl_free(s);
}

static void token_event(const struct stream *s, uint32_t index, Sluice__TokenEvent *out)
{
    static const int32_t letters[] = {SL_PACED_FIRST_ID, SL_PACED_FIRST_ID + SL_PACED_LETTERS / 2,
                                      SL_PACED_FIRST_ID + SL_PACED_LETTERS - 1};
    sluice__token_event__init(out);
    out->request_id = (char *)(uintptr_t)s->id;
    out->attempt = s->attempt;
    out->index = index;
    out->token = letters[index % SL_COUNTOF(letters)];
}

/* ---- what the router asks ---- */

static void reply_command(struct sl_wire_in *in)
{
    Sluice__CommandReply ok = SLUICE__COMMAND_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_COMMAND_REPLY;
    e.command_reply = &ok;
    sl_wire_reply(in, &e);
}

static void reply_stats(struct sl_wire_in *in)
{
    Sluice__StatsReply stats = SLUICE__STATS_REPLY__INIT;
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    load.free_pages = load.total_pages = PAGES;
    stats.load = &load;
    e.body_case = SLUICE__ENVELOPE__BODY_STATS_REPLY;
    e.stats_reply = &stats;
    sl_wire_reply(in, &e);
}

static void reply_resync(struct node *n, struct sl_wire_in *in)
{
    const Sluice__Resync *m = in->msg->resync;
    const struct stream *s = find(n, m->request_id);
    bool known = s && s->attempt == m->attempt;
    uint32_t n_tokens = known && s->sent > m->from_index ? s->sent - m->from_index : 0;
    n_tokens = n_tokens < MAX_TOKENS ? n_tokens : MAX_TOKENS;
    Sluice__TokenEvent *events = sl_xcalloc(n_tokens + 1, sizeof *events);
    Sluice__ResyncReply r = SLUICE__RESYNC_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_RESYNC_REPLY;
    e.resync_reply = &r;
    r.code = known ? SL_OK : SL_ELOST;
    r.tokens = sl_xcalloc(n_tokens + 1, sizeof *r.tokens);
    r.n_tokens = n_tokens;
    for (uint32_t i = 0; i < n_tokens; i++) {
        token_event(s, m->from_index + i, &events[i]);
        r.tokens[i] = &events[i];
    }
    n->report.n_resyncs++;
    sl_wire_reply(in, &e);
    sl_free(r.tokens);
    sl_free(events);
}

static void submit(struct node *n, const Sluice__Submit *m, uint64_t now_ns)
{
    drop(n, find(n, m->request_id)); /* its attempt before */
    struct stream *s = sl_xcalloc(1, sizeof *s);
    snprintf(s->id, sizeof s->id, "%s", m->request_id);
    s->attempt = m->attempt;
    s->most = m->sampling->max_tokens;
    s->next_ns = now_ns;
    s->era = atomic_load(&n->all->era);
    sl_list_init(&s->link);
    sl_list_add_head(&n->streams, &s->link);
    sl_hashmap_put(n->by_id, s->id, strlen(s->id), s);
}

static void take(struct node *n, struct sl_wire_in *in, uint64_t now_ns)
{
    if (in->kind != SL_WIRE_REQUEST) {
        sl_wire_in_free(in);
        return;
    }
    switch ((int)in->msg->body_case) {
    case SLUICE__ENVELOPE__BODY_STATS:
        reply_stats(in);
        return;
    case SLUICE__ENVELOPE__BODY_RESYNC:
        reply_resync(n, in);
        return;
    case SLUICE__ENVELOPE__BODY_SUBMIT:
        submit(n, in->msg->submit, now_ns);
        break;
    case SLUICE__ENVELOPE__BODY_CANCEL:
        drop(n, find(n, in->msg->cancel->request_id));
        break;
    }
    reply_command(in);
}

/* ---- what it sends ---- */

/* One message with what is due, as a step of an engine would send it. False: nothing is left that is. */
static bool send_due(struct node *n)
{
    Sluice__TokenEvent token[BATCH], *tokens[BATCH];
    Sluice__DoneEvent done[BATCH], *ends[BATCH];
    struct stream *over[BATCH];
    Sluice__EventBatch b = SLUICE__EVENT_BATCH__INIT;
    b.tokens = tokens;
    b.done = ends;
    unsigned era = atomic_load(&n->all->era);
    uint64_t now_ns = sl_now_ns();
    while (!sl_list_empty(&n->streams) && b.n_tokens < BATCH) {
        struct stream *s = SL_CONTAINER_OF(n->streams.next, struct stream, link);
        if (s->next_ns > now_ns)
            break;
        sl_list_remove(&s->link);
        tokens[b.n_tokens] = &token[b.n_tokens];
        token_event(s, s->sent++, &token[b.n_tokens++]);
        sl_samples_add(&n->report.late_ms, (double)(now_ns - s->next_ns) / 1e6);
        if (s->sent < s->most && s->era == era) {
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
        d->reason = s->sent < s->most ? SLUICE__DONE_REASON__DONE_STOP : SLUICE__DONE_REASON__DONE_LENGTH;
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
        drop(n, over[i]);
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
    while (!atomic_load(&n->all->stop)) {
        (void)sl_queue_wait(n->queue, TICK_MS);
        uint64_t now_ns = sl_now_ns();
        struct sl_wire_in *in;
        while ((in = sl_queue_pop(n->queue)) != NULL)
            take(n, in, now_ns);
        while (send_due(n))
            ;
        beat(n, now_ns);
    }
}

/* ---- open, stop, close ---- */

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

static enum sl_err open_node(struct node *n, uint32_t i, const struct sl_paced_conf *conf,
                             struct sl_paced *all, struct sl_why *why)
{
    *n = (struct node){.boot_id = sl_now_ns() + i,
                       .pace_ns = (uint64_t)(conf->pace_ms * 1e6),
                       .n_vocab = conf->n_vocab,
                       .queue = sl_queue_new(QUEUE),
                       .by_id = sl_hashmap_new(),
                       .all = all};
    sl_list_init(&n->streams);
    snprintf(n->name, sizeof n->name, "paced-%u", i);
    enum sl_err e = sl_wire_server_open("tcp://127.0.0.1:0", NULL, CONTEXTS, n->queue, 0, &n->server, why);
    if (e)
        return e;
    snprintf(n->command_url, sizeof n->command_url, "%s", sl_wire_server_url(n->server));
    e = sl_wire_client_open(conf->register_url, NULL, 1, 4, n->queue, &n->registry, why);
    if (!e)
        e = register_node(n, conf->register_url, why);
    if (!e)
        e = sl_thread_start(&n->thread, "paced-node", node_main, n);
    return e;
}

static void close_node(struct node *n)
{
    sl_wire_push_close(n->push);
    sl_wire_client_close(n->registry);
    sl_wire_server_close(n->server);
    struct sl_wire_in *in;
    while ((in = sl_queue_pop(n->queue)) != NULL)
        sl_wire_in_free(in);
    sl_queue_free(n->queue);
    while (!sl_list_empty(&n->streams))
        drop(n, SL_CONTAINER_OF(n->streams.next, struct stream, link));
    sl_hashmap_free(n->by_id);
    sl_samples_fini(&n->report.late_ms);
}

static void join(struct sl_paced *p)
{
    atomic_store(&p->stop, true);
    for (uint32_t i = 0; i < p->n_nodes; i++)
        sl_thread_join(&p->nodes[i].thread);
}

enum sl_err sl_paced_open(const struct sl_paced_conf *conf, struct sl_paced **out, struct sl_why *why)
{
    struct sl_paced *p = sl_xcalloc(1, sizeof *p + conf->n_nodes * sizeof p->nodes[0]);
    enum sl_err e = SL_OK;
    while (p->n_nodes < conf->n_nodes && e == SL_OK) {
        e = open_node(&p->nodes[p->n_nodes], p->n_nodes, conf, p, why);
        p->n_nodes++;
    }
    if (e) {
        sl_paced_close(p);
        return e;
    }
    *out = p;
    return SL_OK;
}

void sl_paced_end_streams(struct sl_paced *p)
{
    atomic_fetch_add(&p->era, 1);
}

void sl_paced_stop(struct sl_paced *p, struct sl_paced_report *out)
{
    join(p);
    *out = (struct sl_paced_report){0};
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const struct sl_paced_report *r = &p->nodes[i].report;
        for (size_t k = 0; k < r->late_ms.n; k++)
            sl_samples_add(&out->late_ms, r->late_ms.v[k]);
        out->n_resyncs += r->n_resyncs;
    }
}

void sl_paced_close(struct sl_paced *p)
{
    if (!p)
        return;
    join(p);
    for (uint32_t i = 0; i < p->n_nodes; i++)
        close_node(&p->nodes[i]);
    sl_free(p);
}
