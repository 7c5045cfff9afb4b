/* router/flow/flow_thread.c - the flow thread: its loop, the queues it reads, the nodes' membership, and the
 * calls other threads make.
 *
 * One thread owns requests, nodes and records, so none of them has a lock. It reads four queues: items of
 * other threads, requests of nodes and sluicectl, event batches, and answers of commands; each callback takes
 * a bounded number and lets the loop come round.
 *
 * Order of the end: the door is shut (nothing new), every request is told, node links are closed (their calls
 * end in the answer queue), then sockets, queues, memory. */
#include "router/flow/flow_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rand.h"

#define SERVER_CONTEXTS 32   /* registrations, heartbeats or admin calls that are not answered yet */
#define INBOX_MAX       4096 /* from API threads; more are told to come again */
#define REQUESTS_MAX    (2 * SERVER_CONTEXTS) /* of two servers: never full */
#define EVENTS_MAX      8192  /* batches; then nodes wait, and what they lose is asked for again */
#define ANSWERS_MAX     65536 /* what does not fit waits at its socket */
#define PER_ROUND       128   /* messages of one queue between looks at the others */
#define ROUND_TOKENS    1024  /* or so many tokens, a few us each: what a new request waits for */
#define TICK_MIN_MS     20
#define STATS_MS        5000  /* nodes are asked for their counters this often */
#define WATCH_MS        10000 /* nodes are asked for their steps for so long after the last look */
#define URGENT_PART     8u    /* of max_requests, for requests that go before the others */
#define TAG_REGISTER    1
#define TAG_ADMIN       2

struct sl_node *sl_flow_leg_node(const struct sl_flow *f, const struct sl_leg *leg)
{
    struct sl_node *n =
        leg->state == SL_LEG_NONE ? NULL : sl_node_table_find_boot(f->nodes, leg->node, leg->boot_id);
    return n && n->state != SL_NODE_DEAD ? n : NULL;
}

void sl_flow_refresh_ready(struct sl_flow *f)
{
    struct sl_why why = {{0}};
    bool ready = sl_node_table_ready(f->nodes, &why);
    pthread_mutex_lock(&f->ready_lock);
    bool changed = ready != f->ready;
    f->ready = ready;
    f->not_ready = why;
    pthread_mutex_unlock(&f->ready_lock);
    if (changed)
        sl_cluster_event(f->events_log, ready ? "info" : "error", "router", "", "%s%s",
                         ready ? "ready: requests can be served" : "not ready: ", ready ? "" : why.text);
    if (changed)
        SL_INFO("%s", ready ? "ready: requests can be served" : "not ready: no node can decode now");
}

/* ---- membership ---- */

/* Its requests go elsewhere. A stalled node that still listens is told so by the cancels. */
static void leave_node(struct sl_flow *f, const char *name, uint64_t boot_id, enum sl_trouble what)
{
    /* sl_flow_trouble() may end the request it is given, but no other */
    struct sl_request *next;
    for (struct sl_request *r = sl_request_table_next(f->table, NULL); r; r = next) {
        next = sl_request_table_next(f->table, r);
        bool on_p = r->p.state != SL_LEG_NONE && r->p.boot_id == boot_id && strcmp(r->p.node, name) == 0;
        bool on_d = r->d.state != SL_LEG_NONE && r->d.boot_id == boot_id && strcmp(r->d.node, name) == 0;
        if ((!on_p && !on_d) || r->state == SL_REQ_WAITING)
            continue;
        struct sl_leg *leg = on_d ? &r->d : &r->p;
        if (!on_d && leg->state == SL_LEG_DONE)
            continue;
        struct sl_trouble_in t = {
            .what = what, .leg_p = !on_d, .err = SL_EPEER, .leg_accepted = leg->state == SL_LEG_ACCEPTED};
        if (what == SL_TROUBLE_NODE_STALLED)
            sl_flow_send_cancel(f, r, leg, "the node computes nothing");
        sl_flow_leg_done(f, leg);
        sl_flow_trouble(f, r, &t, NULL);
    }
}

void sl_flow_node_died(struct sl_flow *f, const char *name, uint64_t boot_id, const char *how)
{
    SL_WARN("node lost; its requests are placed again peer=%s boot=%016" PRIx64 " why=\"%s\"", name, boot_id,
            how);
    leave_node(f, name, boot_id, SL_TROUBLE_NODE_DEAD);
}

static void leave_stalled(struct sl_flow *f)
{
    for (uint32_t i = 0; i < sl_node_table_len(f->nodes); i++) {
        struct sl_node *n = sl_node_table_at(f->nodes, i);
        if (!sl_node_newly_stalled(n))
            continue;
        SL_WARN("node stalled, it computes no layer; its requests are placed again peer=%s stall_ms=%u",
                n->name, f->conf.node_stall_ms);
        leave_node(f, n->name, n->boot_id, SL_TROUBLE_NODE_STALLED);
    }
}

static void drop_link(struct sl_node *n)
{
    sl_node_link_close(n->link);
    n->link = NULL;
}

static void reply_register(struct sl_flow *f, struct sl_wire_in *in, bool accepted, const char *why)
{
    Sluice__RegisterReply m = SLUICE__REGISTER_REPLY__INIT;
    m.accepted = accepted;
    m.why = (char *)(why && *why ? why : NULL);
    m.router_boot_id = f->conf.boot_id;
    m.event_url = (char *)sl_wire_pull_url(f->pull);
    m.has_heartbeat_ms = m.has_router_dead_ms = true;
    m.heartbeat_ms = f->conf.heartbeat_ms;
    m.router_dead_ms = 2 * f->conf.node_dead_ms; /* a router that is only slow must not lose its work */
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_REGISTER_REPLY;
    e.register_reply = &m;
    sl_wire_reply(in, &e);
}

static void on_register(struct sl_flow *f, struct sl_wire_in *in)
{
    const Sluice__NodeInfo *info = in->msg->register_node->node;
    struct sl_node *n;
    enum sl_node_joined joined;
    uint64_t old_boot;
    struct sl_why why = {{0}};
    enum sl_err err = sl_node_table_register(f->nodes, info, sl_now_ms(), &n, &joined, &old_boot, &why);
    bool restarted = !err && joined == SL_NODE_RESTARTED; /* also one that cannot be reached now */
    if (!err && joined != SL_NODE_SAME) {
        drop_link(n); /* of the life before */
        err = sl_node_link_open(f->calls, n->command_url, &n->link, &why);
        if (err)
            sl_node_table_mark_dead(n);
    }
    if (err) {
        sl_cluster_event(f->events_log, "warning", "node", info->name, "refused: %s", why.text);
        SL_WARN("node refused peer=%.64s code=%s why=\"%s\"", info->name, sl_err_name(err), why.text);
    } else if (joined != SL_NODE_SAME) {
        sl_cluster_event(f->events_log, "info", "node", n->name, "%s, boot %016" PRIx64 ", at %s",
                         joined == SL_NODE_NEW ? "joined" : "was started again", n->boot_id, n->command_url);
        SL_INFO("node joined peer=%s boot=%016" PRIx64 " prefers=%s pages=%u threads=%u command=%s", n->name,
                n->boot_id, n->prefers_prefill ? "prefill" : "decode", n->kv_pages, n->threads,
                n->command_url);
    }
    sl_flow_refresh_ready(f);
    reply_register(f, in, !err, why.text);
    if (restarted)
        sl_flow_node_died(f, n->name, old_boot, "it registered anew");
}

static void on_heartbeat(struct sl_flow *f, struct sl_wire_in *in)
{
    const Sluice__Heartbeat *hb = in->msg->heartbeat;
    Sluice__HeartbeatReply m = SLUICE__HEARTBEAT_REPLY__INIT;
    m.router_boot_id = f->conf.boot_id;
    const struct sl_node *n = NULL;
    if (hb->router_boot_id == f->conf.boot_id)
        n = sl_node_table_heartbeat(f->nodes, hb, sl_now_ms());
    m.known = m.has_events_taken = n != NULL;
    m.events_taken = n ? n->event_seq : 0;
    sl_flow_refresh_ready(f);
    sl_flow_let_go(f);
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_HEARTBEAT_REPLY;
    e.heartbeat_reply = &m;
    sl_wire_reply(in, &e);
}

static void refuse(struct sl_wire_in *in)
{
    Sluice__CommandReply m = SLUICE__COMMAND_REPLY__INIT;
    m.code = SL_EUNSUPPORTED;
    m.why = (char *)"This socket of a router does not take such a message.";
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_COMMAND_REPLY;
    e.command_reply = &m;
    sl_wire_reply(in, &e);
}

static void ask_stats(struct sl_flow *f)
{
    uint64_t now = sl_now_ms();
    if (now < f->next_stats_ms)
        return;
    f->next_stats_ms = now + STATS_MS;
    for (uint32_t i = 0; i < sl_node_table_len(f->nodes); i++) {
        struct sl_node *n = sl_node_table_at(f->nodes, i);
        if (n->state != SL_NODE_DEAD && n->heartbeats && sl_flow_send_stats(f, n, 0, NULL))
            SL_DEBUG("counters not asked for peer=%s", n->name);
    }
}

/* Only while somebody looks: nodes keep their last steps, so whoever comes sees what was before. */
static void ask_steps(struct sl_flow *f)
{
    if (sl_now_ms() >= atomic_load(&f->watched_until_ms))
        return;
    for (uint32_t i = 0; i < sl_node_table_len(f->nodes); i++) {
        struct sl_node *n = sl_node_table_at(f->nodes, i);
        if (n->state != SL_NODE_DEAD)
            sl_flow_ask_steps(n);
    }
}

static void on_tick(void *arg)
{
    struct sl_flow *f = arg;
    struct sl_node *n;
    sl_node_table_forgive(f->nodes, sl_timer_late_ms(f->tick), sl_now_ms());
    while ((n = sl_node_table_expire(f->nodes, sl_now_ms())) != NULL) {
        drop_link(n);
        sl_flow_node_died(f, n->name, n->boot_id, "no heartbeat");
    }
    leave_stalled(f);
    uint32_t running = 0, waiting = 0;
    for (struct sl_request *r = sl_request_table_next(f->table, NULL); r;
         r = sl_request_table_next(f->table, r)) {
        running += r->state == SL_REQ_PLACED || r->state == SL_REQ_STREAMING;
        waiting += r->state == SL_REQ_WAITING;
    }
    sl_flow_let_go(f);
    sl_cluster_events_watch(f->events_log, f->nodes);
    ask_stats(f);
    ask_steps(f);
    sl_flow_refresh_ready(f);
    sl_request_metrics_now(
        f->metrics, &(struct sl_request_gauges){.nodes = f->nodes,
                                                .mode = f->mode,
                                                .ready = sl_flow_ready(f, NULL),
                                                .n_running = running,
                                                .n_held = waiting,
                                                .n_replays = f->n_events_repeated +
                                                             sl_wire_server_refused(f->register_server) +
                                                             sl_wire_server_refused(f->admin_server)});
    /* not later than the next node would be lost: its streams stand still until then */
    uint64_t tick = f->conf.heartbeat_ms / 4, now = sl_now_ms(), lost = sl_node_table_next_loss(f->nodes);
    tick = tick > TICK_MIN_MS ? tick : TICK_MIN_MS;
    sl_timer_set(f->tick, lost >= now + tick ? tick : lost > now ? lost - now : 1);
}

/* ---- queues ---- */

static void on_requests(void *arg, uint32_t events)
{
    (void)events;
    struct sl_flow *f = arg;
    struct sl_wire_in *in;
    for (int i = 0; i < PER_ROUND && (in = sl_queue_pop(f->requests)) != NULL; i++) {
        int body = in->msg ? (int)in->msg->body_case : 0;
        if (in->tag == TAG_ADMIN && body == SLUICE__ENVELOPE__BODY_ADMIN)
            sl_flow_on_admin_wire(f, in);
        else if (in->tag == TAG_REGISTER && body == SLUICE__ENVELOPE__BODY_REGISTER_NODE)
            on_register(f, in);
        else if (in->tag == TAG_REGISTER && body == SLUICE__ENVELOPE__BODY_HEARTBEAT)
            on_heartbeat(f, in);
        else
            refuse(in);
    }
}

static void on_events(void *arg, uint32_t events)
{
    (void)events;
    struct sl_flow *f = arg;
    struct sl_wire_in *in;
    size_t n_tokens = 0;
    for (int i = 0; i < PER_ROUND && n_tokens < ROUND_TOKENS && (in = sl_queue_pop(f->events)) != NULL; i++) {
        if (in->msg && in->msg->body_case == SLUICE__ENVELOPE__BODY_EVENTS) {
            n_tokens += in->msg->events->n_tokens;
            sl_flow_on_batch(f, in->msg->events);
        }
        sl_wire_in_free(in);
    }
    if (f->room)
        sl_flow_let_go(f);
}

static void on_answers(void *arg, uint32_t events)
{
    (void)events;
    struct sl_flow *f = arg;
    struct sl_wire_in *in;
    for (int i = 0; i < PER_ROUND && (in = sl_queue_pop(f->answers)) != NULL; i++)
        sl_flow_on_answer(f, in);
}

static void on_canceled(struct sl_flow *f)
{
    char id[64];
    while (sl_door_next_canceled(f->door, id)) {
        struct sl_request *r = sl_request_table_find(f->table, id);
        if (r) /* else it is on its way here; sl_flow_begin() finds the door closed */
            sl_flow_client_left(f, r);
    }
}

static void on_inbox(void *arg, uint32_t events)
{
    (void)events;
    struct sl_flow *f = arg;
    struct sl_flow_item *item;
    for (int i = 0; i < PER_ROUND && (item = sl_queue_pop(f->inbox)) != NULL; i++) {
        if (item->kind == SL_ITEM_SUBMIT)
            sl_flow_begin(f, item->req, item->door);
        else
            sl_flow_on_admin_item(f, item->admin);
        sl_free(item);
    }
    on_canceled(f);
    if (f->room)
        sl_flow_let_go(f);
}

/* ---- the thread ---- */

static void end_all(struct sl_flow *f)
{
    struct sl_flow_item *item;
    while ((item = sl_queue_pop(f->inbox)) != NULL) { /* the door is shut: nothing comes after */
        if (item->kind == SL_ITEM_SUBMIT)
            sl_flow_begin(f, item->req, item->door);
        else
            sl_flow_on_admin_item(f, item->admin);
        sl_free(item);
    }
    on_canceled(f);
    struct sl_request *r;
    while ((r = sl_request_table_next(f->table, NULL)) != NULL)
        sl_flow_fail(f, r, SL_EDRAINING, "The router is stopping.");
    for (uint32_t i = 0; i < sl_node_table_len(f->nodes); i++)
        drop_link(sl_node_table_at(f->nodes, i));
    on_answers(f, 0);
    struct sl_wire_in *in;
    while ((in = sl_queue_pop(f->answers)) != NULL)
        sl_flow_on_answer(f, in);
}

static void flow_main(void *arg)
{
    struct sl_flow *f = arg;
    on_tick(f);
    sl_loop_run(f->loop);
    end_all(f);
}

static void free_all(struct sl_flow *f)
{
    sl_wire_server_close(f->admin_server);
    sl_wire_server_close(f->register_server);
    sl_wire_pull_close(f->pull);
    struct sl_queue *queues[] = {f->requests, f->events, f->answers};
    for (size_t i = 0; i < SL_COUNTOF(queues); i++) {
        struct sl_wire_in *in;
        while (queues[i] && (in = sl_queue_pop(queues[i])) != NULL)
            sl_wire_in_free(in);
        sl_queue_free(queues[i]);
    }
    sl_queue_free(f->inbox);
    sl_timer_free(f->tick);
    sl_loop_close(f->loop);
    sl_node_calls_free(f->calls);
    sl_node_table_free(f->nodes);
    sl_request_table_free(f->table);
    sl_decisions_free(f->decisions);
    sl_cluster_events_free(f->events_log);
    sl_request_metrics_free(f->metrics);
    sl_step_log_free(f->steps);
    sl_door_free(f->door);
    sl_free(f->view);
    sl_free(f->held);
    sl_flow_free_books(f);
    pthread_mutex_destroy(&f->ready_lock);
    sl_free(f);
}

static enum sl_err open_sockets(struct sl_flow *f, const struct sl_flow_conf *conf, struct sl_why *why)
{
    enum sl_err err = sl_wire_pull_open(conf->event_url, conf->guard, f->events, 0, &f->pull, why);
    if (!err)
        err = sl_wire_server_open(conf->register_url, conf->guard, SERVER_CONTEXTS, f->requests, TAG_REGISTER,
                                  &f->register_server, why);
    if (!err && conf->admin_url && *conf->admin_url)
        err = sl_wire_server_open(conf->admin_url, conf->guard, SERVER_CONTEXTS, f->requests, TAG_ADMIN,
                                  &f->admin_server, why);
    return err;
}

static enum sl_err open_loop(struct sl_flow *f)
{
    enum sl_err err = sl_loop_open(&f->loop);
    if (err)
        return err;
    f->tick = sl_timer_new(f->loop, on_tick, f);
    const struct {
        struct sl_queue *q;
        sl_loop_fd_fn *fn;
    } in[] = {
        {f->inbox, on_inbox}, {f->requests, on_requests}, {f->events, on_events}, {f->answers, on_answers}};
    for (size_t i = 0; i < SL_COUNTOF(in) && !err; i++)
        err = sl_loop_add(f->loop, sl_queue_fd(in[i].q), EPOLLIN, in[i].fn, f);
    return err;
}

enum sl_err sl_flow_open(const struct sl_flow_conf *conf, struct sl_flow **out, struct sl_why *why)
{
    struct sl_flow *f = sl_xcalloc(1, sizeof *f);
    f->conf = *conf;
    f->conf.register_url = f->conf.event_url = f->conf.admin_url = NULL; /* used here only */
    f->conf.model_name = f->conf.version = NULL;
    if (conf->model_digest)
        f->conf.model_digest = memcpy(f->model_digest, conf->model_digest, sizeof f->model_digest);
    f->mode = (enum sl_place_mode)conf->mode;
    SL_ASSERT(f->mode >= SL_PLACE_PD && f->mode <= SL_PLACE_HYBRID);
    pthread_mutex_init(&f->ready_lock, NULL);
    f->inbox = sl_queue_new(INBOX_MAX);
    f->requests = sl_queue_new(REQUESTS_MAX);
    f->events = sl_queue_new(EVENTS_MAX);
    f->answers = sl_queue_new(ANSWERS_MAX);
    f->door = sl_door_new();
    struct sl_node_conf nc = {.dead_ms = conf->node_dead_ms,
                              .stall_ms = conf->node_stall_ms,
                              .model_digest = f->conf.model_digest,
                              .n_vocab = conf->tokenizer ? sl_tokenizer_n_vocab(conf->tokenizer) : 0,
                              .exact = conf->exact};
    f->nodes = sl_node_table_new(&nc);
    f->calls = sl_node_calls_new(f->answers, conf->guard, conf->command_timeout_ms);
    f->table = sl_request_table_new();
    f->events_log = sl_cluster_events_new();
    f->decisions = sl_decisions_new(conf->max_requests < SL_DECISIONS ? SL_DECISIONS
                                                                      : conf->max_requests + SL_DECISIONS);
    f->metrics = sl_request_metrics_new(conf->metrics, conf->model_name, conf->version);
    f->steps = sl_step_log_new(sl_now_us());
    f->view = sl_xcalloc(1, sizeof *f->view);
    f->held = sl_xcalloc(conf->max_requests, sizeof *f->held);
    f->accounts = sl_hashmap_new();
    f->outputs = sl_hashmap_new();
    atomic_init(&f->next_id, 1);
    sl_flow_refresh_ready(f);

    enum sl_err err = open_loop(f);
    if (err)
        sl_why_set(why, err, "The flow's event loop could not be set up.");
    if (!err)
        err = open_sockets(f, conf, why);
    if (!err && (err = sl_thread_start(&f->thread, "sl-flow", flow_main, f)) != SL_OK)
        sl_why_set(why, err, "The flow thread did not start.");
    if (err) {
        free_all(f);
        return err;
    }
    SL_INFO("nodes are taken register=%s events=%s", sl_wire_server_url(f->register_server),
            sl_wire_pull_url(f->pull));
    *out = f;
    return SL_OK;
}

void sl_flow_close(struct sl_flow *f)
{
    if (!f)
        return;
    sl_door_shut(f->door);
    atomic_store(&f->stop, true);
    sl_loop_stop(f->loop);
    sl_thread_join(&f->thread);
    free_all(f);
}

/* ---- any thread ---- */

void sl_flow_steps(struct sl_flow *f, uint64_t after, struct sl_buf *out)
{
    atomic_store(&f->watched_until_ms, sl_now_ms() + WATCH_MS);
    sl_step_log_json(f->steps, after, sl_now_us(), out);
}

enum sl_err sl_flow_submit(struct sl_flow *f, struct sl_gen_req *req, sl_gen_event_fn *on_event, void *arg,
                           struct sl_why *why)
{
    struct sl_why not_ready = {{0}};
    enum sl_err err = SL_OK;
    if (atomic_load(&f->draining) || sl_door_is_shut(f->door))
        err = sl_why_set(why, SL_EDRAINING, "This router is stopping and takes no new requests.");
    else if (!sl_flow_ready(f, &not_ready))
        err = sl_why_set(why, SL_ENOTREADY, "%s", not_ready.text);
    if (err) {
        sl_arena_free(req->arena);
        return err;
    }
    uint32_t most = f->conf.max_requests - (req->priority < 0 ? 0 : f->conf.max_requests / URGENT_PART);
    if (atomic_fetch_add(&f->open_requests, 1) >= most) {
        atomic_fetch_sub(&f->open_requests, 1);
        sl_arena_free(req->arena);
        return sl_why_set(why, SL_EAGAIN,
                          "%u requests are open, which is this router's limit; try again in a moment.", most);
    }
    struct sl_flow_item *item = sl_xcalloc(1, sizeof *item);
    *item = (struct sl_flow_item){.kind = SL_ITEM_SUBMIT, .req = req};
    err = sl_door_enter(f->door, req->id, on_event, arg, f->inbox, item, &item->door);
    if (!err)
        return SL_OK; /* item is the flow thread's */
    sl_free(item);
    atomic_fetch_sub(&f->open_requests, 1);
    sl_arena_free(req->arena);
    if (err == SL_EDRAINING)
        return sl_why_set(why, err, "This router is stopping and takes no new requests.");
    if (err == SL_EINVAL)
        return sl_why_set(why, err, "A request with this id is open already.");
    return sl_why_set(why, err, "Too many requests came at once; try again in a moment.");
}

void sl_flow_cancel(struct sl_flow *f, const char *id)
{
    if (sl_door_cancel(f->door, id))
        sl_queue_wake(f->inbox);
}

void sl_flow_new_id(struct sl_flow *f, const char *prefix, char id[64])
{
    snprintf(id, 64, "%.16s%016" PRIx64 "-%" PRIx64, prefix, f->conf.boot_id,
             (uint64_t)atomic_fetch_add(&f->next_id, 1));
}

bool sl_flow_ready(struct sl_flow *f, struct sl_why *why)
{
    pthread_mutex_lock(&f->ready_lock);
    bool ready = f->ready;
    if (!ready && why)
        *why = f->not_ready;
    pthread_mutex_unlock(&f->ready_lock);
    return ready;
}

uint32_t sl_flow_open_requests(struct sl_flow *f)
{
    return atomic_load(&f->open_requests);
}

void sl_flow_drain(struct sl_flow *f, uint32_t *open_requests)
{
    atomic_store(&f->draining, true);
    *open_requests = atomic_load(&f->open_requests);
}
