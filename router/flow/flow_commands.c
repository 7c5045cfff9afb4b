/* router/flow/flow_commands.c - messages to nodes and what comes of their answers (step 4 of the request
 * path, seen from here).
 *
 * A command without an answer is sent once more, built anew from the journal: all are idempotent by (request,
 * attempt). An answer counts only for the attempt and the life of the node it was meant for; others are let
 * go. */
#include "router/flow/flow_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/sched/speculate.h"

#define CANCEL_TOMBSTONE_MIN_MS 1000
#define RELEGATED_LEVELS        30 /* of priority: five minutes of ageing (slack.h) behind the others */

static uint32_t left_ms(const struct sl_request *r)
{
    uint64_t now = sl_now_us();
    uint64_t left = r->deadline_us > now ? (r->deadline_us - now + 999) / 1000 : 1;
    return left < UINT32_MAX ? (uint32_t)left : UINT32_MAX;
}

int32_t sl_flow_priority(const struct sl_request *r)
{
    int64_t p = (int64_t)r->req->priority + (r->relegated ? RELEGATED_LEVELS : 0);
    return p > INT32_MAX ? INT32_MAX : (int32_t)p;
}

/* At least 1 ms where there is a wish: one that cannot be met is still urgent. */
uint32_t sl_flow_ttft_left_ms(const struct sl_request *r)
{
    if (!r->req->ttft_ms)
        return 0;
    uint64_t due = r->record->arrived_us + (uint64_t)r->req->ttft_ms * 1000, now = sl_now_us();
    return due > now + 1000 ? (uint32_t)((due - now) / 1000) : 1;
}

static struct sl_node_call call_for(const struct sl_request *r, const struct sl_leg *leg,
                                    enum sl_node_command c, uint32_t tries)
{
    struct sl_node_call call = {.command = c, .boot_id = leg->boot_id, .attempt = r->attempt, .tries = tries};
    snprintf(call.node, sizeof call.node, "%s", leg->node);
    snprintf(call.request_id, sizeof call.request_id, "%s", r->req->id);
    return call;
}

/* Prompt and tokens received, freed with sl_free(). */
static int32_t *all_tokens(const struct sl_request *r, size_t *n)
{
    *n = (size_t)r->req->n_tokens + r->n_placed;
    int32_t *t = sl_xalloc(*n * sizeof *t);
    memcpy(t, r->req->tokens, r->req->n_tokens * sizeof *t);
    if (r->n_placed)
        memcpy(t + r->req->n_tokens, r->received, r->n_placed * sizeof *t);
    return t;
}

static void fill_peer(Sluice__PeerRef *peer, struct sl_leg *leg)
{
    sluice__peer_ref__init(peer);
    peer->name = leg->node;
    peer->boot_id = leg->boot_id;
    peer->transfer_address = leg->peer_address;
}

enum sl_err sl_flow_send_submit(struct sl_flow *f, struct sl_request *r, uint32_t tries)
{
    struct sl_node *n = sl_flow_leg_node(f, &r->d);
    if (!n || !n->link)
        return SL_EPEER;
    Sluice__Submit m = SLUICE__SUBMIT__INIT;
    Sluice__PeerRef peer;
    const struct sl_gen_req *q = r->req;
    m.request_id = r->req->id;
    m.attempt = r->attempt;
    m.router_boot_id = f->conf.boot_id;
    m.tokens = all_tokens(r, &m.n_tokens);
    m.n_prompt = q->n_tokens;
    m.sampling = &r->req->sampling;
    m.deadline_ms = left_ms(r);
    m.split_tokens = r->split;
    if (r->split) {
        fill_peer(&peer, &r->p);
        m.prefill_peer = &peer;
    }
    m.cache_salt = (char *)q->cache_salt;
    m.has_chunk_tokens = q->chunk != -2;
    m.chunk_tokens = q->chunk;
    m.has_speculation = q->speculation != SL_SPEC_DEFAULT;
    m.speculation = q->speculation;
    m.priority = sl_flow_priority(r);
    m.has_priority = m.priority != 0;
    m.ttft_ms = r->n_received ? 0 : sl_flow_ttft_left_ms(r);
    m.has_ttft_ms = m.ttft_ms > 0;
    m.tpot_ms = r->relegated ? 0 : q->tpot_ms;
    m.has_tpot_ms = m.tpot_ms > 0;
    const struct sl_output_mean *outputs = sl_flow_outputs(f, q);
    m.expected_tokens = outputs->n ? (uint32_t)outputs->tokens + 1 : 0; /* rounded up: never none */
    m.has_expected_tokens = m.expected_tokens > 0;
    m.has_want_digest = m.want_digest = q->want_digest;
    m.has_no_prefix_cache = m.no_prefix_cache = q->no_prefix_cache;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_SUBMIT;
    e.submit = &m;
    struct sl_node_call call = call_for(r, &r->d, SL_CMD_SUBMIT, tries);
    r->record->d.sent_us = sl_now_us();
    enum sl_err err = sl_node_link_send(n->link, &e, &call);
    sl_free(m.tokens);
    return err;
}

enum sl_err sl_flow_send_prefill(struct sl_flow *f, struct sl_request *r, uint32_t tries)
{
    struct sl_node *n = sl_flow_leg_node(f, &r->p);
    if (!n || !n->link)
        return SL_EPEER;
    Sluice__Prefill m = SLUICE__PREFILL__INIT;
    Sluice__PeerRef peer;
    const struct sl_gen_req *q = r->req;
    m.request_id = r->req->id;
    m.attempt = r->attempt;
    m.router_boot_id = f->conf.boot_id;
    m.tokens = all_tokens(r, &m.n_tokens);
    m.n_prompt = q->n_tokens;
    m.sampling = &r->req->sampling;
    m.deadline_ms = left_ms(r);
    m.split_tokens = r->split;
    fill_peer(&peer, &r->d);
    m.decode_peer = &peer;
    m.cache_salt = (char *)q->cache_salt;
    m.has_chunk_tokens = q->chunk != -2;
    m.chunk_tokens = q->chunk;
    m.priority = sl_flow_priority(r);
    m.has_priority = m.priority != 0;
    m.ttft_ms = r->n_received ? 0 : sl_flow_ttft_left_ms(r);
    m.has_ttft_ms = m.ttft_ms > 0;
    m.has_want_digest = m.want_digest = q->want_digest;
    m.has_no_prefix_cache = m.no_prefix_cache = q->no_prefix_cache;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_PREFILL;
    e.prefill = &m;
    struct sl_node_call call = call_for(r, &r->p, SL_CMD_PREFILL, tries);
    r->record->p.sent_us = sl_now_us();
    enum sl_err err = sl_node_link_send(n->link, &e, &call);
    sl_free(m.tokens);
    return err;
}

void sl_flow_send_cancel_to(struct sl_flow *f, const struct sl_node_call *what, uint32_t tombstone_ms,
                            const char *reason)
{
    struct sl_node *n = sl_node_table_find(f->nodes, what->node);
    if (!n || !n->link || n->state == SL_NODE_DEAD)
        return;
    Sluice__Cancel m = SLUICE__CANCEL__INIT;
    m.request_id = (char *)what->request_id;
    m.attempt = what->attempt;
    m.tombstone_ms = tombstone_ms;
    m.reason = (char *)reason;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_CANCEL;
    e.cancel = &m;
    struct sl_node_call call = *what;
    call.command = SL_CMD_CANCEL;
    call.boot_id = n->boot_id;
    enum sl_err err = sl_node_link_send(n->link, &e, &call);
    if (err)
        SL_WARN("cancel could not be sent; the node's own deadline ends it req=%s peer=%s code=%s",
                what->request_id, what->node, sl_err_name(err));
}

void sl_flow_send_cancel(struct sl_flow *f, struct sl_request *r, struct sl_leg *leg, const char *reason)
{
    if (leg->state != SL_LEG_SENT && leg->state != SL_LEG_ACCEPTED)
        return;
    struct sl_node_call call = call_for(r, leg, SL_CMD_CANCEL, 0);
    uint32_t tombstone = left_ms(r);
    sl_flow_send_cancel_to(f, &call,
                           tombstone > CANCEL_TOMBSTONE_MIN_MS ? tombstone : CANCEL_TOMBSTONE_MIN_MS, reason);
}

enum sl_err sl_flow_send_resync(struct sl_flow *f, struct sl_request *r, uint32_t tries)
{
    struct sl_node *n = sl_flow_leg_node(f, &r->d);
    if (!n || !n->link)
        return SL_EPEER;
    Sluice__Resync m = SLUICE__RESYNC__INIT;
    m.request_id = r->req->id;
    m.attempt = r->attempt;
    m.from_index = r->n_received;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_RESYNC;
    e.resync = &m;
    struct sl_node_call call = call_for(r, &r->d, SL_CMD_RESYNC, tries);
    call.from_index = m.from_index;
    return sl_node_link_send(n->link, &e, &call);
}

enum sl_err sl_flow_send_drain(struct sl_flow *f, struct sl_node *n, bool on, uint32_t tries, void *user)
{
    (void)f;
    if (!n->link)
        return SL_EPEER;
    Sluice__Drain m = SLUICE__DRAIN__INIT;
    m.on = on;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_DRAIN;
    e.drain = &m;
    struct sl_node_call call = {
        .command = SL_CMD_DRAIN, .boot_id = n->boot_id, .attempt = on, .tries = tries, .user = user};
    snprintf(call.node, sizeof call.node, "%s", n->name);
    return sl_node_link_send(n->link, &e, &call);
}

enum sl_err sl_flow_send_stats(struct sl_flow *f, struct sl_node *n, uint32_t tries, void *user)
{
    (void)f;
    if (!n->link)
        return SL_EPEER;
    Sluice__StatsRequest m = SLUICE__STATS_REQUEST__INIT;
    m.has_requests = m.requests = user != NULL;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_STATS;
    e.stats = &m;
    struct sl_node_call call = {.command = SL_CMD_STATS, .boot_id = n->boot_id, .tries = tries, .user = user};
    snprintf(call.node, sizeof call.node, "%s", n->name);
    return sl_node_link_send(n->link, &e, &call);
}

void sl_flow_ask_steps(struct sl_node *n)
{
    if (n->steps_asked || !n->tells_steps || !n->link)
        return;
    Sluice__StatsRequest m = SLUICE__STATS_REQUEST__INIT;
    m.has_steps_after = true;
    m.steps_after = n->steps_seen;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_STATS;
    e.stats = &m;
    struct sl_node_call call = {.command = SL_CMD_STEPS, .boot_id = n->boot_id};
    snprintf(call.node, sizeof call.node, "%s", n->name);
    n->steps_asked = sl_node_link_send(n->link, &e, &call) == SL_OK;
}

static void on_steps_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                            const Sluice__StatsReply *reply)
{
    struct sl_node *n = sl_node_table_find_boot(f->nodes, call->node, call->boot_id);
    if (!n)
        return;
    n->steps_asked = false;
    if (reply && reply->steps)
        n->steps_seen =
            sl_step_log_take(f->steps, n->name, n->boot_id, reply->steps, n->steps_seen, sl_now_us());
    else if (err == SL_OK)
        n->tells_steps = false;
}

enum sl_err sl_flow_send_admin(struct sl_flow *f, struct sl_node *n, const char *op, char **args,
                               size_t n_args, void *user)
{
    (void)f;
    if (!n->link)
        return SL_EPEER;
    Sluice__AdminRequest m = SLUICE__ADMIN_REQUEST__INIT;
    m.op = (char *)(uintptr_t)op;
    m.args = args;
    m.n_args = n_args;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_ADMIN;
    e.admin = &m;
    struct sl_node_call call = {.command = SL_CMD_ADMIN, .boot_id = n->boot_id, .user = user};
    snprintf(call.node, sizeof call.node, "%s", n->name);
    return sl_node_link_send(n->link, &e, &call);
}

/* The request and leg an answer is for; NULL when that is over. */
static struct sl_request *request_of(struct sl_flow *f, const struct sl_node_call *call, struct sl_leg **leg)
{
    struct sl_request *r = sl_request_table_find(f->table, call->request_id);
    if (!r || r->attempt != call->attempt)
        return NULL;
    *leg = call->command == SL_CMD_PREFILL ? &r->p : &r->d;
    return strcmp((*leg)->node, call->node) == 0 && (*leg)->boot_id == call->boot_id ? r : NULL;
}

static void on_place_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                            const char *why)
{
    struct sl_leg *leg = NULL;
    struct sl_request *r = request_of(f, call, &leg);
    if (!r) {
        /* The request ended or moved while this was under way. A node that said yes, or did not say, holds it
         * for nobody; so may the next life of one that died, since a command without an answer is delivered
         * again when the connection comes back. */
        if (err == SL_OK || err == SL_EPEER) {
            struct sl_node_call cancel = *call;
            cancel.tries = 0;
            sl_flow_send_cancel_to(f, &cancel, CANCEL_TOMBSTONE_MIN_MS, "no longer wanted");
        }
        return;
    }
    if (err == SL_OK) {
        struct sl_node *n = sl_flow_leg_node(f, leg);
        if (n)
            sl_node_charge_accepted(n, &leg->charge);
        sl_flow_leg_accepted(f, r, leg);
        return;
    }
    if (leg->state != SL_LEG_SENT || r->state == SL_REQ_ENDING)
        return; /* an event of this leg came first: the node has it */
    bool is_p = leg == &r->p;
    if (err == SL_EPEER && call->tries == 0) {
        r->record->n_retries++;
        enum sl_err again = is_p ? sl_flow_send_prefill(f, r, 1) : sl_flow_send_submit(f, r, 1);
        if (again == SL_OK)
            return;
    }
    SL_INFO("a node did not take its part req=%s peer=%s duty=%s code=%s why=\"%s\"", r->req->id, leg->node,
            is_p ? "prefill" : "decode", sl_err_name(err), why ? why : "");
    if (err == SL_EPEER) /* it may have got it all the same */
        sl_flow_send_cancel(f, r, leg, "no answer");
    sl_flow_leg_done(f, leg);
    struct sl_trouble_in t = {.what = SL_TROUBLE_COMMAND, .leg_p = is_p, .err = err};
    sl_flow_trouble(f, r, &t, why);
}

static void on_resync_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                             const Sluice__ResyncReply *reply)
{
    if (err == SL_OK && reply) {
        sl_flow_on_resync_reply(f, call, reply);
        return;
    }
    struct sl_leg *leg = NULL;
    struct sl_request *r = request_of(f, call, &leg);
    if (!r)
        return;
    if (err == SL_OK || err == SL_EUNSUPPORTED) {
        /* A node that answers and does not say would say no more the next time, and until then the request could
         * not end: for us it has lost it. */
        Sluice__ResyncReply lost = SLUICE__RESYNC_REPLY__INIT;
        lost.code = SL_ELOST;
        sl_flow_send_cancel(f, r, leg, "it was asked for lost tokens and did not say");
        sl_flow_on_resync_reply(f, call, &lost);
        return;
    }
    sl_flow_resync_failed(r);
    sl_flow_arm(f, r);
}

void sl_flow_on_answer(struct sl_flow *f, struct sl_wire_in *in)
{
    struct sl_node_call call;
    if (!sl_node_calls_take(f->calls, in->tag, &call)) {
        sl_wire_in_free(in);
        return;
    }
    enum sl_err err = in->err;
    const char *why = NULL;
    const Sluice__Envelope *e = in->msg;
    if (!err && e->body_case == SLUICE__ENVELOPE__BODY_COMMAND_REPLY) {
        err = e->command_reply->code < SL_N_ERR ? (enum sl_err)e->command_reply->code : SL_EPROTO;
        why = e->command_reply->why;
    } else if (!err && call.command != SL_CMD_RESYNC && call.command != SL_CMD_STATS &&
               call.command != SL_CMD_STEPS && call.command != SL_CMD_ADMIN) {
        err = SL_EPROTO;
        why = "The node answered with another kind of message.";
    }
    if (err == SL_EPEER && !why)
        why = "The node did not answer.";
    switch (call.command) {
    case SL_CMD_SUBMIT:
    case SL_CMD_PREFILL:
        on_place_answer(f, &call, err, why);
        break;
    case SL_CMD_RESYNC:
        on_resync_answer(f, &call, err,
                         e && e->body_case == SLUICE__ENVELOPE__BODY_RESYNC_REPLY ? e->resync_reply : NULL);
        break;
    case SL_CMD_CANCEL:
        if (err == SL_EPEER && call.tries == 0) {
            call.tries = 1;
            sl_flow_send_cancel_to(f, &call, CANCEL_TOMBSTONE_MIN_MS, "canceled");
        }
        break;
    case SL_CMD_DRAIN:
        sl_flow_on_drain_answer(f, &call, err, why);
        break;
    case SL_CMD_STEPS:
        on_steps_answer(f, &call, err,
                        e && e->body_case == SLUICE__ENVELOPE__BODY_STATS_REPLY ? e->stats_reply : NULL);
        break;
    case SL_CMD_ADMIN:
        sl_flow_on_admin_answer(f, &call, err, why,
                                e && e->body_case == SLUICE__ENVELOPE__BODY_ADMIN_REPLY ? e->admin_reply
                                                                                        : NULL);
        break;
    case SL_CMD_STATS:
        sl_flow_on_stats_answer(
            f, &call, err, e && e->body_case == SLUICE__ENVELOPE__BODY_STATS_REPLY ? e->stats_reply : NULL);
        break;
    }
    sl_wire_in_free(in);
}
