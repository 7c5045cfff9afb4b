/* common/node/node.c - the engine thread: commands in, steps, events out.
 *
 * A round: epoll hands out what is ready (end of a step, transfer events, commands, answers, timers); then
 * the engine's events go to their legs, the next step starts, and what the round had to say goes out as one
 * message per router, while the step already runs. Legs that are long finished are forgotten last, as nothing
 * of the round points at them any more. */
#include "common/node/node.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/notify.h"
#include "common/base/rand.h"
#include "common/node/node_admin.h"
#include "common/node/node_leg.h"
#include "common/node/node_router.h"
#include "common/node/node_stats.h"
#include "common/transfer/nccl_group.h"
#include "kernels/backend.h"

#define COMMANDS_AT_ONCE  64u    /* taken and not answered yet: a router has 8 under way (node_link.c) */
#define MAX_XFER_EVENTS   65536u /* what does not fit waits in the transfer's backlog */
#define STEPS_PER_ROUND   16     /* that ended before they were looked at */
#define EVENTS_PER_POLL   64u
#define LOOK_MS           500 /* between two looks at what stands still; a transfer that goes on shows within one */
#define MAX_RESYNC_TOKENS 32768u
#define REPLY_ARENA_BYTES ((size_t)64 << 20)
/* one percent of the largest model from the slowest disk: 1 TB at 100 MB/s */
#define LOADING_PERCENT_US 100000000ull

bool sl_node_may(const struct sl_node *n, Sluice__Role role)
{
    return role == SLUICE__ROLE__ROLE_PREFILL ? n->conf->may_prefill : n->conf->may_decode;
}

bool sl_node_idle(const struct sl_node *n)
{
    return n->legs.n_active == 0 && sl_xfer_open_sessions(n->xfer) == 0;
}

bool sl_node_last_words(struct sl_node *n)
{
    bool told = true;
    for (size_t i = 0; i < n->n_routers; i++) {
        if (sl_node_router_is_told(n->routers[i]))
            continue;
        told = false;
        if (!n->last_words_ms)
            sl_node_router_beat(n->routers[i]);
    }
    if (!n->last_words_ms)
        n->last_words_ms = sl_now_ms();
    return told;
}

void sl_node_end_all(struct sl_node *n, enum sl_err code, const char *why)
{
    sl_legs_end(n, 0, true, SLUICE__DONE_REASON__DONE_ERROR, code, why);
}

static void on_drain_end(void *arg)
{
    struct sl_node *n = arg;
    if (n->legs.n_active == 0)
        return;
    SL_WARN("drain ran out of time, what runs is given back to the routers legs=%u", n->legs.n_active);
    sl_node_end_all(n, SL_EDRAINING, "the node had to stop");
}

/* Two nodes that wait for each other's pages: this one gives up waiting for one request's and computes it,
 * when it found itself so twice in a row. What the other node computed of it is lost, and nothing else. */
static void on_look(void *arg)
{
    struct sl_node *n = arg;
    struct sl_seq *s = sl_engine_blocking(n->engine);
    if (s && s == n->blocking) {
        struct sl_seq_view v;
        sl_seq_view(s, &v);
        struct sl_leg *l = v.owner;
        if (l->xfer == SL_LEG_XFER_OPEN)
            (void)l->duty->cancel_xfer(l,
                                       "two nodes wait for each other's pages"); /* a full queue: next time */
        s = NULL;
    }
    n->blocking = s;
    /* A step in flight must have computed a layer since the last look; without one, coming round is enough. */
    uint64_t layers = sl_engine_progress(n->engine);
    if (!sl_engine_in_flight(n->engine) || layers != n->layers_seen)
        sl_xfer_progress(n->xfer);
    n->layers_seen = layers;
    sl_timer_set(n->look_timer, LOOK_MS);
}

void sl_node_drain(struct sl_node *n, bool on, uint32_t deadline_ms)
{
    if (n->draining != on)
        SL_INFO("draining is %s legs=%u deadline_ms=%u", on ? "on" : "off", n->legs.n_active, deadline_ms);
    n->draining = on;
    if (on && deadline_ms)
        sl_timer_set(n->drain_timer, deadline_ms);
    else
        sl_timer_clear(n->drain_timer);
    for (size_t i = 0; i < n->n_routers; i++)
        sl_node_router_beat(n->routers[i]);
}

/* ---- commands ---- */

static void reply_code(struct sl_wire_in *in, enum sl_err code, const char *why)
{
    Sluice__CommandReply r = SLUICE__COMMAND_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    r.code = (uint32_t)code;
    r.why = why && *why ? (char *)(uintptr_t)why : NULL;
    e.body_case = SLUICE__ENVELOPE__BODY_COMMAND_REPLY;
    e.command_reply = &r;
    sl_wire_reply(in, &e);
}

static void on_stats(struct sl_node *n, struct sl_wire_in *in)
{
    struct sl_arena *a = sl_arena_new(REPLY_ARENA_BYTES);
    Sluice__StatsReply r;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    const Sluice__StatsRequest *m = in->msg->stats;
    if (m->has_steps_after)
        sl_node_steps_reply(n, a, m->steps_after, &r);
    else
        sl_node_stats_reply(n, a, m->has_requests && m->requests, &r);
    e.body_case = SLUICE__ENVELOPE__BODY_STATS_REPLY;
    e.stats_reply = &r;
    sl_wire_reply(in, &e);
    sl_arena_free(a);
}

static void on_resync(struct sl_node *n, struct sl_wire_in *in)
{
    const Sluice__Resync *m = in->msg->resync;
    struct sl_leg *l = sl_leg_find(n, SLUICE__ROLE__ROLE_DECODE, m->request_id, m->attempt);
    if (!l)
        l = sl_leg_find(n, SLUICE__ROLE__ROLE_PREFILL, m->request_id, m->attempt);
    n->counters.resyncs++;
    Sluice__ResyncReply r = SLUICE__RESYNC_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    Sluice__DoneEvent done;
    struct sl_arena *a = sl_arena_new(REPLY_ARENA_BYTES);
    e.body_case = SLUICE__ENVELOPE__BODY_RESYNC_REPLY;
    e.resync_reply = &r;
    r.code = l ? SL_OK : SL_ELOST;
    uint32_t first = l && m->from_index > l->first_index ? m->from_index - l->first_index : 0;
    uint32_t n_tokens = l && l->n_token_log > first ? l->n_token_log - first : 0;
    bool all = n_tokens <= MAX_RESYNC_TOKENS;
    if (!all)
        n_tokens = MAX_RESYNC_TOKENS; /* the router asks on from there */
    if (n_tokens) {
        Sluice__TokenEvent *tokens = sl_arena_alloc(a, n_tokens * sizeof *tokens);
        r.tokens = sl_arena_alloc(a, n_tokens * sizeof *r.tokens);
        SL_ASSERT(tokens && r.tokens);
        for (uint32_t i = 0; i < n_tokens; i++) {
            sl_leg_token_event(l, first + i, &tokens[i]);
            r.tokens[i] = &tokens[i];
        }
        r.n_tokens = n_tokens;
    }
    if (l && l->ended && all) {
        sl_leg_done_event(l, &done);
        r.done = &done;
    }
    sl_wire_reply(in, &e);
    sl_arena_free(a);
}

static void on_order(struct sl_node *n, struct sl_wire_in *in, const struct sl_order *o)
{
    const struct sl_duty_ops *duty = NULL;
    for (size_t i = 0; n->duties[i]; i++) {
        if (n->duties[i]->command == in->msg->body_case)
            duty = n->duties[i];
    }
    if (!duty) {
        reply_code(in, SL_EUNSUPPORTED, "this node does not have the duty that was asked for");
        return;
    }
    struct sl_why why = {{0}};
    enum sl_err err = sl_leg_place(n, duty, o, &why);
    reply_code(in, err, why.text);
}

static void on_command(struct sl_node *n, struct sl_wire_in *in)
{
    const Sluice__Envelope *e = in->msg;
    struct sl_order order;
    if (sl_order_read(e, &order)) {
        on_order(n, in, &order);
        return;
    }
    switch (e->body_case) {
    case SLUICE__ENVELOPE__BODY_CANCEL:
        sl_leg_cancel(n, e->cancel->request_id, e->cancel->attempt, e->cancel->tombstone_ms,
                      e->cancel->reason ? e->cancel->reason : "canceled");
        reply_code(in, SL_OK, NULL);
        return;
    case SLUICE__ENVELOPE__BODY_DRAIN:
        if (n->leaving) {
            reply_code(in, e->drain->on ? SL_OK : SL_EDRAINING, e->drain->on ? NULL : "the node is stopping");
            return;
        }
        sl_node_drain(n, e->drain->on, e->drain->has_deadline_ms ? e->drain->deadline_ms : 0);
        reply_code(in, SL_OK, NULL);
        return;
    case SLUICE__ENVELOPE__BODY_STATS:
        on_stats(n, in);
        return;
    case SLUICE__ENVELOPE__BODY_RESYNC:
        on_resync(n, in);
        return;
    case SLUICE__ENVELOPE__BODY_ADMIN:
        sl_node_admin(n, in);
        return;
    default:
        reply_code(in, SL_EUNSUPPORTED, "a node does not take this message");
        return;
    }
}

/* ---- the loop ---- */

static void on_commands(void *arg, uint32_t events)
{
    struct sl_node *n = arg;
    (void)events;
    for (struct sl_wire_in *in; (in = sl_queue_pop(n->commands));)
        on_command(n, in);
}

static void on_answers(void *arg, uint32_t events)
{
    struct sl_node *n = arg;
    (void)events;
    for (struct sl_wire_in *in; (in = sl_queue_pop(n->answers));) {
        size_t at = sl_node_router_of_tag(in->tag);
        if (at < n->n_routers)
            sl_node_router_answer(n->routers[at], in);
        sl_wire_in_free(in);
    }
}

static void on_xfer_events(void *arg, uint32_t events)
{
    struct sl_node *n = arg;
    (void)events;
    for (struct sl_xfer_event *ev; (ev = sl_queue_pop(n->xfer_events));) {
        sl_leg_on_xfer(n, ev);
        sl_free(ev);
    }
}

/* The end of a step wakes the loop; the round collects it. */
static void on_engine(void *arg, uint32_t events)
{
    (void)arg;
    (void)events;
}

static size_t collect(struct sl_node *n)
{
    struct sl_engine_event ev[EVENTS_PER_POLL];
    size_t all = 0, got;
    while ((got = sl_engine_poll(n->engine, ev, EVENTS_PER_POLL)) > 0) {
        for (size_t i = 0; i < got; i++) {
            bool result = ev[i].kind == SL_EV_COMPUTED || ev[i].kind == SL_EV_TOKEN;
            n->n_results += result;
            if (result && n->n_results == n->conf->fault_hold_after && !n->hold_over)
                SL_WARN("fault injection: the hold begins results=%u", n->n_results);
            sl_leg_on_engine(n, &ev[i]);
        }
        all += got;
    }
    return all;
}

/* Everything but the engine goes on: tokens and pages it has made leave, commands are answered. So a test
 * meets the node in the middle of a request, however fast or slow either of them is. */
static bool is_held(const struct sl_node *n)
{
    uint32_t after = n->conf->fault_hold_after;
    return after && n->n_results >= after && !n->hold_over;
}

void sl_node_end_hold(struct sl_node *n)
{
    if (is_held(n))
        SL_WARN("fault injection: the hold is over results=%u", n->n_results);
    n->hold_over = true;
}

/* A step may end before the loop sleeps, and then nothing wakes it for the next one: the round ends with a step
 * in flight, with nothing to do, or with a wake-up of its own so that commands and timers have their turn. */
static void end_round(struct sl_node *n)
{
    bool started;
    uint32_t steps = 0;
    collect(n);
    do {
        if (++steps > STEPS_PER_ROUND) {
            sl_loop_wake(n->loop);
            break;
        }
        started = !is_held(n) && sl_engine_step(n->engine, sl_now_us());
        for (size_t i = 0; i < n->n_routers; i++)
            sl_node_router_flush(n->routers[i]);
    } while (collect(n) > 0 || (started && !sl_engine_in_flight(n->engine)));
    sl_legs_reap(n, sl_now_ms());
    if (n->after_round)
        n->after_round(n->after_round_arg);
}

void sl_node_run(struct sl_node *n)
{
    sl_timer_set(n->look_timer, LOOK_MS);
    end_round(n);
    while (!atomic_load(&n->stop)) {
        sl_loop_once(n->loop, UINT32_MAX);
        end_round(n);
    }
}

void sl_node_stop(struct sl_node *n)
{
    atomic_store(&n->stop, 1);
    sl_loop_wake(n->loop);
}

/* ---- start and end ---- */

/* systemd shows it, and waits on: a large model on a slow disk is no start that hangs. */
static void loading(void *arg, unsigned percent)
{
    (void)arg;
    SL_DEBUG("loading the model percent=%u", percent);
    sl_notify("STATUS=loading the model, %u %%\nEXTEND_TIMEOUT_USEC=%llu", percent, LOADING_PERCENT_US);
}

/* Before the model is loaded, which may take minutes. */
static enum sl_err check_backend(const struct sl_node_conf *c, struct sl_why *why)
{
    const struct sl_backend_ops *ops;
    enum sl_err err = sl_backend_find(c->backend, &ops, why);
    if (err != SL_OK || !c->exact || !ops->inexact)
        return err;
    return sl_why_set(
        why, SL_ECONFIG,
        "backend = %s does not give a request the same bits in every batch, and exact is true; set "
        "exact = false, or take backend = cuda-plain",
        ops->name);
}

static enum sl_err open_engine(struct sl_node *n, struct sl_why *why)
{
    const struct sl_node_conf *c = n->conf;
    enum sl_err err = check_backend(c, why);
    if (err != SL_OK)
        return err;
    const struct sl_engine_conf ec = {
        .model_path = c->model,
        .backend = c->backend,
        .cache_dir = c->cache_path,
        .n_threads = c->threads,
        .tensor_parallel = c->tensor_parallel,
        .device = c->device,
        .open_group = sl_nccl_group_open,
        .no_graphs = !c->cuda_graphs,
        .cpus = c->cpu_list,
        .n_cpus = c->n_cpus,
        .kv_dtype = c->kv_dtype,
        .page_tokens = c->page_tokens,
        .kv_memory_bytes = c->kv_memory_bytes,
        .max_batch_tokens = c->max_batch_tokens,
        .max_sequences = c->max_sequences,
        .max_waiting = c->max_waiting,
        .chunk_tokens = c->chunk_tokens,
        .speculation = c->speculation,
        .tpot_target_ms = c->tpot_target_ms,
        .chunk_stretch = c->chunk_stretch,
        .ungranted_pages = c->ungranted_pages,
        .progress = loading,
        .pace = c->pace,
        .fault_wedge_step = c->fault_wedge_step,
    };
    return sl_engine_open(&ec, &n->engine, why);
}

static enum sl_err open_xfer(struct sl_node *n, struct sl_why *why)
{
    const struct sl_node_conf *c = n->conf;
    struct sl_xfer_conf xc = {
        .transport = c->transport,
        .listen = c->transfer_listen,
        .trust_network = c->trust_network,
        .secret = c->has_secret ? &c->secret : NULL,
        .ucx_tls = c->ucx_tls,
        .cuda_device = c->device,
        .ucx_devices = c->ucx_devices && *c->ucx_devices ? c->ucx_devices : NULL,
        .self = {.boot_id = n->boot_id,
                 .model_digest = sl_engine_model(n->engine)->digest,
                 .geometry = sl_engine_geometry(n->engine),
                 .numerics_id = sl_engine_numerics_id(n->engine),
                 .tensor_parallel = c->tensor_parallel,
                 .exact = c->exact},
        .pool = sl_engine_page_base(n->engine),
        .device = sl_engine_kv_on_device(n->engine),
        .n_pages = sl_engine_n_pages(n->engine),
        .digests = c->digests,
        .peer_dead_ms = c->peer_dead_ms,
        .wait_ms = c->peer_wait_ms,
        .heartbeat_ms = c->peer_heartbeat_ms,
        .stall_ms = c->stall_ms,
        .max_sessions = c->max_transfers,
        .link_test = c->link_test,
        .cpu = -1, /* the thread inherits the node's CPUs */
        .events = n->xfer_events,
    };
    snprintf(xc.self.name, sizeof xc.self.name, "%s", c->name);
    xc.page_bytes = sl_kv_page_bytes(&xc.self.geometry);
    if (c->fault_flip_bit) {
        char number[16];
        snprintf(number, sizeof number, "%u", c->fault_flip_bit);
        setenv("SLUICE_FAULT_FLIP_BIT", number, 1);
        SL_WARN("fault injection is on: one bit of a page will be flipped page=%u", c->fault_flip_bit);
    }
    return sl_xfer_open(&xc, &n->xfer, why);
}

/* host:port with the advertised host when bound to all addresses; scheme is kept. */
static enum sl_err reachable(const struct sl_node_conf *c, const char *bound, const char *key, char **out,
                             struct sl_why *why)
{
    const char *host = strstr(bound, "://") ? strstr(bound, "://") + 3 : bound;
    const char *port = strrchr(host, ':');
    bool any = strncmp(host, "0.0.0.0:", 8) == 0 || strncmp(host, "[::]:", 5) == 0 || *host == ':';
    if (!any) {
        *out = sl_xstrdup(bound);
        return SL_OK;
    }
    if (!c->advertise || !*c->advertise)
        return sl_why_set(why, SL_ECONFIG,
                          "%s is %s, all addresses; set advertise to the host by which others reach it", key,
                          bound);
    *out = sl_xasprintf("%.*s%s%s", (int)(host - bound), bound, c->advertise, port);
    return SL_OK;
}

enum sl_err sl_node_open(const struct sl_node_conf *conf, const struct sl_duty_ops *const *duties,
                         struct sl_node **out, struct sl_why *why)
{
    struct sl_node *n = sl_xcalloc(1, sizeof *n);
    n->conf = conf;
    n->guard = (struct sl_wire_guard){.secret = conf->has_secret ? &conf->secret : NULL,
                                      .tls_ca_file = conf->control_tls_ca_file,
                                      .tls_cert_file = conf->control_tls_cert_file,
                                      .tls_key_file = conf->control_tls_key_file};
    n->duties = duties;
    while (!n->boot_id)
        n->boot_id = sl_random_u64();
    n->commands = sl_queue_new(COMMANDS_AT_ONCE);
    n->answers = sl_queue_new(4 * conf->routers.n + 16);
    n->xfer_events = sl_queue_new(MAX_XFER_EVENTS);
    enum sl_err err = sl_loop_open(&n->loop);
    if (err != SL_OK) {
        sl_why_set(why, err, "no event loop; raise the limit of open files");
        goto fail;
    }
    if ((err = sl_wire_guard_check(&n->guard, why)) != SL_OK)
        goto fail;
    sl_legs_init(n);
    n->drain_timer = sl_timer_new(n->loop, on_drain_end, n);
    n->look_timer = sl_timer_new(n->loop, on_look, n);
    if ((err = open_engine(n, why)) != SL_OK || (err = open_xfer(n, why)) != SL_OK)
        goto fail;
    n->words = sl_node_words_open(conf->model, sl_engine_model(n->engine)->n_vocab);
    if ((err = sl_wire_server_open(conf->listen, &n->guard, COMMANDS_AT_ONCE, n->commands, 0, &n->server,
                                   why)) != SL_OK)
        goto fail;
    if ((err = reachable(conf, sl_wire_server_url(n->server), "listen", &n->command_url, why)) != SL_OK ||
        (err = reachable(conf, sl_xfer_address(n->xfer), "transfer_listen", &n->transfer_address, why)) !=
            SL_OK)
        goto fail;
    if (sl_loop_add(n->loop, sl_queue_fd(n->commands), EPOLLIN, on_commands, n) != SL_OK ||
        sl_loop_add(n->loop, sl_queue_fd(n->answers), EPOLLIN, on_answers, n) != SL_OK ||
        sl_loop_add(n->loop, sl_queue_fd(n->xfer_events), EPOLLIN, on_xfer_events, n) != SL_OK ||
        sl_loop_add(n->loop, sl_engine_fd(n->engine), EPOLLIN, on_engine, n) != SL_OK) {
        err = sl_why_set(why, SL_EIO, "the event loop takes no more files; raise the limit of open files");
        goto fail;
    }
    n->routers = sl_xcalloc(conf->routers.n, sizeof *n->routers);
    for (; n->n_routers < conf->routers.n; n->n_routers++) {
        err = sl_node_router_open(n, conf->routers.items[n->n_routers], n->n_routers,
                                  &n->routers[n->n_routers], why);
        if (err != SL_OK)
            goto fail;
    }
    SL_INFO("node is up node=%s model=%s backend=%s pages=%u page_tokens=%u commands=%s transfers=%s",
            conf->name, sl_engine_model(n->engine)->name, sl_engine_backend(n->engine),
            sl_engine_n_pages(n->engine), conf->page_tokens, n->command_url, n->transfer_address);
    *out = n;
    return SL_OK;
fail:
    sl_node_close(n);
    return err;
}

void sl_node_close(struct sl_node *n)
{
    if (!n)
        return;
    if (n->xfer) {
        sl_node_end_all(n, SL_EDRAINING, "the node stops");
        for (size_t i = 0; i < n->n_routers; i++)
            sl_node_router_flush(n->routers[i]);
    }
    sl_wire_server_close(n->server);
    for (size_t i = 0; i < n->n_routers; i++)
        sl_node_router_close(n->routers[i]);
    if (n->xfer)
        sl_xfer_close(n->xfer);
    sl_legs_fini(n); /* after the transfers: nothing is written into pages any more */
    sl_engine_close(n->engine);
    sl_node_words_close(n->words);
    for (struct sl_wire_in *in; (in = sl_queue_pop(n->commands));)
        sl_wire_in_free(in);
    for (struct sl_wire_in *in; (in = sl_queue_pop(n->answers));)
        sl_wire_in_free(in);
    for (void *ev; (ev = sl_queue_pop(n->xfer_events));)
        sl_free(ev);
    sl_timer_free(n->drain_timer);
    sl_timer_free(n->look_timer);
    sl_queue_free(n->commands);
    sl_queue_free(n->answers);
    sl_queue_free(n->xfer_events);
    sl_loop_close(n->loop);
    sl_free(n->routers);
    sl_free(n->command_url);
    sl_free(n->transfer_address);
    sl_free(n);
}
