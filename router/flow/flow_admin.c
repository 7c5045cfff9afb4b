/* router/flow/flow_admin.c - sluicectl's operations, asked over the admin socket or by the HTTP front,
 * answered on the flow thread.
 *
 * Most are answered at once; drain waits for the node's answer. Whoever asked from another thread may stop
 * waiting: the wait is then freed by the one that comes last. */
#include "router/flow/flow_core.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "router/admin/admin_tables.h"

#define MAX_ARGS    8
#define RECENT      20 /* ended requests that `requests` shows */
#define RECENT_MAX  1000
#define UI_REQUESTS 200 /* open ones, the oldest */
#define UI_EVENTS   40
#define UI_ENDED    12

/* Someone who waits for an operation. */
struct sl_admin_wait {
    struct sl_wire_in *in; /* asked over the socket; else by sl_flow_admin() */
    char *op;
    char **args;
    size_t n_args;
    pthread_mutex_t lock;
    pthread_cond_t done_cond;
    bool done, abandoned;
    Sluice__AdminReply *reply;
};

static void wait_free(struct sl_admin_wait *w)
{
    for (size_t i = 0; i < w->n_args; i++)
        sl_free(w->args[i]);
    sl_free(w->args);
    sl_free(w->op);
    pthread_cond_destroy(&w->done_cond);
    pthread_mutex_destroy(&w->lock);
    sl_free(w);
}

static struct sl_admin_wait *wait_new(const char *op, const char *const *args, size_t n_args)
{
    struct sl_admin_wait *w = sl_xcalloc(1, sizeof *w);
    w->op = sl_xstrdup(op);
    w->n_args = n_args < MAX_ARGS ? n_args : MAX_ARGS;
    w->args = sl_xcalloc(w->n_args ? w->n_args : 1, sizeof *w->args);
    for (size_t i = 0; i < w->n_args; i++)
        w->args[i] = sl_xstrdup(args[i]);
    SL_ASSERT(pthread_mutex_init(&w->lock, NULL) == 0);
    SL_ASSERT(pthread_cond_init(&w->done_cond, NULL) == 0);
    return w;
}

/* Gives the answer to whoever waits; w is not the flow's any more. */
static void answer(struct sl_admin_wait *w, struct sl_admin_out *o)
{
    if (w->in) {
        Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
        e.body_case = SLUICE__ENVELOPE__BODY_ADMIN_REPLY;
        e.admin_reply = &o->reply;
        sl_wire_reply(w->in, &e);
        wait_free(w);
    } else {
        pthread_mutex_lock(&w->lock);
        bool abandoned = w->abandoned;
        if (!abandoned) {
            w->reply = sl_admin_out_copy(o);
            w->done = true;
            pthread_cond_signal(&w->done_cond);
        }
        pthread_mutex_unlock(&w->lock);
        if (abandoned)
            wait_free(w);
    }
    sl_admin_out_fini(o);
}

static struct sl_admin_state state_of(const struct sl_flow *f)
{
    return (struct sl_admin_state){.mode = f->mode,
                                   .draining = atomic_load(&f->draining),
                                   .boot_id = f->conf.boot_id,
                                   .now_ms = sl_now_ms(),
                                   .now_us = sl_now_us(),
                                   .nodes = f->nodes,
                                   .requests = f->table,
                                   .decisions = f->decisions,
                                   .events = f->events_log};
}

/* ---- operations; true: answered, false: the answer comes later ---- */

static bool op_status(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    (void)w;
    struct sl_admin_state s = state_of(f);
    sl_admin_status(o, &s);
    return true;
}

/* The node of w's first argument, alive; NULL: o says why. */
static struct sl_node *find_alive(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    struct sl_node *n = sl_node_table_find(f->nodes, w->args[0]);
    if (!n)
        sl_admin_refuse(o, SL_ENOTFOUND, "No node '%.64s'; `nodes` lists them.", w->args[0]);
    else if (n->state == SL_NODE_DEAD)
        sl_admin_refuse(o, SL_EPEER, "Node %s is dead.", n->name);
    return n && n->state != SL_NODE_DEAD ? n : NULL;
}

static bool op_nodes(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    if (w->n_args == 0) {
        struct sl_admin_state s = state_of(f);
        sl_admin_nodes(o, &s);
        return true;
    }
    struct sl_node *n = find_alive(f, w, o);
    if (!n)
        return true;
    enum sl_err err = sl_flow_send_stats(f, n, 0, w);
    if (err)
        sl_admin_refuse(o, err, "Node %s could not be asked (%s).", n->name, sl_err_name(err));
    return err != SL_OK;
}

static bool op_links(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    (void)w;
    struct sl_admin_state s = state_of(f);
    sl_admin_links(o, &s);
    return true;
}

/* A number in w's argument i, or the default where it is not given; false: o says what is wrong. */
static bool number_arg(struct sl_admin_wait *w, size_t i, uint64_t dflt, uint64_t max, const char *what,
                       struct sl_admin_out *o, uint64_t *out)
{
    char *end;
    *out = dflt;
    if (i >= w->n_args)
        return true;
    *out = strtoull(w->args[i], &end, 10);
    if (end != w->args[i] && !*end && w->args[i][0] != '-' && *out <= max)
        return true;
    sl_admin_refuse(o, SL_EINVAL, "%s a number from 0 to %" PRIu64 ", not '%.40s'.", what, max, w->args[i]);
    return false;
}

static bool op_requests(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    struct sl_admin_state s = state_of(f);
    uint64_t n;
    if (number_arg(w, 0, RECENT, RECENT_MAX, "How many ended requests to show is", o, &n))
        sl_admin_requests(o, &s, UINT32_MAX, (uint32_t)n);
    return true;
}

static bool op_events(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    uint64_t n;
    if (w->n_args == 2 && strcmp(w->args[0], "after") == 0) {
        if (number_arg(w, 1, 0, UINT64_MAX - 1, "The number of an event is", o, &n))
            sl_admin_events_after(o, f->events_log, n);
    } else if (w->n_args == 2) {
        sl_admin_refuse(o, SL_EINVAL, "Operation events takes N, or: after NUMBER.");
    } else if (number_arg(w, 0, RECENT, SL_CLUSTER_EVENTS, "How many events to show is", o, &n)) {
        sl_admin_events(o, f->events_log, (uint32_t)n);
    }
    return true;
}

/* All that /ui shows beside the steps. */
static bool op_ui(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    (void)w;
    struct sl_admin_state s = state_of(f);
    sl_admin_nodes(o, &s);
    sl_admin_links(o, &s);
    sl_admin_requests(o, &s, UI_REQUESTS, UI_ENDED);
    sl_admin_events(o, f->events_log, UI_EVENTS);
    sl_admin_status(o, &s);
    return true;
}

static bool op_explain(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    struct sl_admin_state s = state_of(f);
    sl_admin_explain(o, &s, w->args[0]);
    return true;
}

static bool op_trace(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    struct sl_admin_state s = state_of(f);
    sl_admin_trace(o, &s, w->args[0]);
    return true;
}

static bool op_mode(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    if (w->n_args) {
        enum sl_place_mode mode;
        if (!sl_place_mode_parse(w->args[0], &mode)) {
            sl_admin_refuse(o, SL_EINVAL, "There is no mode '%.40s'; the modes are pd, colocated and hybrid.",
                            w->args[0]);
            return true;
        }
        if (mode != f->mode) {
            sl_cluster_event(f->events_log, "info", "router", "", "mode %s instead of %s",
                             sl_place_mode_name(mode), sl_place_mode_name(f->mode));
            SL_INFO("mode changed from=%s to=%s", sl_place_mode_name(f->mode), sl_place_mode_name(mode));
        }
        f->mode = mode;
    }
    sl_admin_say(o, "The mode is %s.", sl_place_mode_name(f->mode));
    sl_admin_table(o, "mode", "key,value");
    sl_admin_pair(o, "mode", "%s", sl_place_mode_name(f->mode));
    return true;
}

static bool op_cancel(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    struct sl_request *r = sl_request_table_find(f->table, w->args[0]);
    if (!r) {
        sl_admin_refuse(o, SL_ENOTFOUND, "No request '%.80s' is open; `requests` lists them.", w->args[0]);
        return true;
    }
    sl_admin_say(o, "Canceled %s after %u tokens.", r->req->id, r->n_received);
    sl_flow_fail(f, r, SL_ECANCELED, "An administrator canceled the request.");
    return true;
}

static bool drain(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o, bool on)
{
    struct sl_node *n = find_alive(f, w, o);
    if (!n)
        return true;
    sl_node_set_drain(n, on);
    sl_flow_refresh_ready(f);
    sl_cluster_event(f->events_log, "info", "node", n->name, "%s was asked for", on ? "drain" : "undrain");
    SL_INFO("%s asked peer=%s", on ? "drain" : "undrain", n->name);
    enum sl_err err = sl_flow_send_drain(f, n, on, 0, w);
    if (err) {
        sl_admin_refuse(o, err, "Nothing new is placed on %s, but the node itself could not be told (%s).",
                        n->name, sl_err_name(err));
        return true;
    }
    return false;
}

static bool op_drain(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    return drain(f, w, o, true);
}

static bool op_undrain(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    return drain(f, w, o, false);
}

static uint32_t legs_on(const struct sl_flow *f, const char *node)
{
    uint32_t n = 0;
    for (struct sl_request *r = sl_request_table_next(f->table, NULL); r;
         r = sl_request_table_next(f->table, r)) {
        const struct sl_leg *legs[] = {&r->p, &r->d};
        for (size_t i = 0; i < SL_COUNTOF(legs); i++)
            n += legs[i]->state != SL_LEG_NONE && legs[i]->state != SL_LEG_DONE &&
                 strcmp(legs[i]->node, node) == 0;
    }
    return n;
}

void sl_flow_on_drain_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                             const char *why)
{
    struct sl_node *n = sl_node_table_find_boot(f->nodes, call->node, call->boot_id);
    bool on = call->attempt != 0;
    if (err == SL_EPEER && call->tries == 0 && n && n->state != SL_NODE_DEAD &&
        sl_flow_send_drain(f, n, on, 1, call->user) == SL_OK)
        return;
    struct sl_admin_out o;
    sl_admin_out_init(&o);
    if (err) {
        sl_admin_refuse(&o, err, "Node %s: %s (%s). This router places nothing new there all the same.",
                        call->node, why ? why : "no answer", sl_err_name(err));
    } else if (on) {
        sl_admin_say(&o, "Node %s drains: nothing new is placed there, %u parts of requests still run.",
                     call->node, legs_on(f, call->node));
    } else {
        sl_admin_say(&o, "Node %s takes work again.", call->node);
    }
    answer(call->user, &o);
}

void sl_flow_on_stats_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                             const Sluice__StatsReply *reply)
{
    struct sl_node *n = sl_node_table_find_boot(f->nodes, call->node, call->boot_id);
    for (size_t i = 0; n && reply && i < reply->n_values; i++)
        sl_request_metrics_node_value(f->metrics, n, reply->values[i]->name, reply->values[i]->value);
    if (!call->user)
        return;
    if (err == SL_EPEER && call->tries == 0 && n && n->state != SL_NODE_DEAD &&
        sl_flow_send_stats(f, n, 1, call->user) == SL_OK)
        return;
    struct sl_admin_out o;
    sl_admin_out_init(&o);
    if (reply)
        sl_admin_node(&o, call->node, reply);
    else
        sl_admin_refuse(&o, err ? err : SL_EPROTO, "Node %s did not tell (%s).", call->node,
                        sl_err_name(err ? err : SL_EPROTO));
    answer(call->user, &o);
}

/* Asks the node of w's first argument; the others are the operation's. */
static bool forward(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o, const char *op)
{
    struct sl_node *n = find_alive(f, w, o);
    if (!n)
        return true;
    enum sl_err err = sl_flow_send_admin(f, n, op, w->args + 1, w->n_args - 1, w);
    if (err)
        sl_admin_refuse(o, err, "Node %s could not be asked (%s).", n->name, sl_err_name(err));
    return err != SL_OK;
}

void sl_flow_on_admin_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                             const char *why, const Sluice__AdminReply *reply)
{
    struct sl_admin_out o;
    (void)f;
    sl_admin_out_init(&o);
    if (reply)
        o.reply = *reply; /* sent or copied before the message goes */
    else
        sl_admin_refuse(&o, err ? err : SL_EPROTO, "Node %s did not do it: %s (%s).", call->node,
                        why ? why : "no answer", sl_err_name(err ? err : SL_EPROTO));
    answer(call->user, &o);
}

static bool op_set(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    if (sl_node_table_find(f->nodes, w->args[0]))
        sl_cluster_event(f->events_log, "info", "node", w->args[0], "%.40s = %.80s was asked for", w->args[1],
                         w->args[2]);
    return forward(f, w, o, "set");
}

static bool op_retest(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    return forward(f, w, o, "retest");
}

static bool op_config(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    if (w->n_args)
        return forward(f, w, o, "config");
    if (f->conf.tell_config)
        f->conf.tell_config(f->conf.tell_config_arg, o);
    else
        sl_admin_refuse(o, SL_EUNSUPPORTED, "This router has no options to show.");
    return true;
}

static bool op_reload(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    if (w->n_args)
        return forward(f, w, o, "reload");
    if (!f->conf.tell_config) {
        sl_admin_refuse(o, SL_EUNSUPPORTED, "This router has no config file to read.");
        return true;
    }
    kill(getpid(), SIGHUP); /* main() reads the files */
    sl_cluster_event(f->events_log, "info", "router", "", "a reload was asked for");
    sl_admin_say(o, "The router reads its files again; its journal says what came of it.");
    return true;
}

static bool op_split(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    bool rule = w->n_args && strcmp(w->args[0], "auto") == 0;
    uint64_t n = f->split;
    if (w->n_args && !rule &&
        !number_arg(w, 0, 0, f->conf.context_length ? f->conf.context_length : UINT32_MAX,
                    "A split is auto, or", o, &n))
        return true;
    uint32_t split = rule ? 0 : (uint32_t)n;
    if (split != f->split)
        sl_cluster_event(f->events_log, "info", "router", "", "split %u instead of %u tokens (0 = by cost)",
                         split, f->split);
    f->split = split;
    if (split)
        sl_admin_say(o, "In mode hybrid prompts of more than %u tokens are split there%s.", split,
                     f->mode == SL_PLACE_HYBRID ? "" : "; the mode is another one now");
    else
        sl_admin_say(o, "Where a prompt is split in mode hybrid is decided by cost.");
    sl_admin_table(o, "split", "key,value");
    if (split)
        sl_admin_pair(o, "split", "%u", split);
    else
        sl_admin_pair(o, "split", "auto");
    return true;
}

static bool op_slo(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o)
{
    struct sl_admin_state s = state_of(f);
    (void)w;
    sl_admin_slo(o, &s);
    return true;
}

/* ---- dispatch ---- */

static const struct op {
    const char *name;
    size_t min_args, max_args;
    bool (*run)(struct sl_flow *f, struct sl_admin_wait *w, struct sl_admin_out *o);
} ops[] = {
    {"status", 0, 0, op_status},     {"nodes", 0, 1, op_nodes},   {"links", 0, 0, op_links},
    {"mode", 0, 1, op_mode},         {"drain", 1, 1, op_drain},   {"undrain", 1, 1, op_undrain},
    {"requests", 0, 1, op_requests}, {"cancel", 1, 1, op_cancel}, {"explain", 1, 1, op_explain},
    {"events", 0, 2, op_events},     {"trace", 1, 1, op_trace},   {"set", 3, 3, op_set},
    {"retest", 1, 1, op_retest},     {"config", 0, 1, op_config}, {"reload", 0, 1, op_reload},
    {"split", 0, 1, op_split},       {"slo", 0, 0, op_slo},       {"ui", 0, 0, op_ui},
};

static void run(struct sl_flow *f, struct sl_admin_wait *w)
{
    struct sl_admin_out o;
    sl_admin_out_init(&o);
    const struct op *op = NULL;
    for (size_t i = 0; i < SL_COUNTOF(ops); i++)
        if (strcmp(ops[i].name, w->op) == 0)
            op = &ops[i];
    bool done = true;
    if (atomic_load(&f->stop))
        sl_admin_refuse(&o, SL_EDRAINING, "The router is stopping.");
    else if (!op)
        sl_admin_refuse(&o, SL_EUNSUPPORTED, "This router knows no operation '%.40s'.", w->op);
    else if (w->n_args < op->min_args || w->n_args > op->max_args)
        sl_admin_refuse(&o, SL_EINVAL, "Operation %s takes %zu to %zu arguments, not %zu.", op->name,
                        op->min_args, op->max_args, w->n_args);
    else
        done = op->run(f, w, &o);
    if (done)
        answer(w, &o);
    else
        sl_admin_out_fini(&o);
}

void sl_flow_on_admin_wire(struct sl_flow *f, struct sl_wire_in *in)
{
    const Sluice__AdminRequest *q = in->msg->admin;
    struct sl_admin_wait *w = wait_new(q->op, (const char *const *)q->args, q->n_args);
    w->in = in;
    run(f, w);
}

void sl_flow_on_admin_item(struct sl_flow *f, struct sl_admin_wait *w)
{
    run(f, w);
}

/* Any thread. */
enum sl_err sl_flow_admin(struct sl_flow *f, const char *op, const char *const *args, size_t n_args,
                          uint32_t timeout_ms, Sluice__AdminReply **reply)
{
    if (sl_door_is_shut(f->door))
        return SL_EDRAINING;
    struct sl_admin_wait *w = wait_new(op, args, n_args);
    struct sl_flow_item *item = sl_xcalloc(1, sizeof *item);
    *item = (struct sl_flow_item){.kind = SL_ITEM_ADMIN, .admin = w};
    enum sl_err err = sl_queue_push(f->inbox, item);
    if (err) {
        sl_free(item);
        wait_free(w);
        return err;
    }
    const struct timespec end = sl_in_ms(timeout_ms);
    pthread_mutex_lock(&w->lock);
    while (!w->done && pthread_cond_clockwait(&w->done_cond, &w->lock, CLOCK_MONOTONIC, &end) != ETIMEDOUT)
        ;
    bool done = w->done;
    if (!done)
        w->abandoned = true;
    Sluice__AdminReply *got = w->reply;
    pthread_mutex_unlock(&w->lock);
    if (!done)
        return SL_EAGAIN;
    wait_free(w);
    if (!got)
        return SL_ENOMEM;
    *reply = got;
    return SL_OK;
}
