/* router/flow/flow_events.c - what nodes report while they work (step 10 of the request path): tokens, ends,
 * gaps.
 *
 * Three orders have to be put right here. Batches of one node carry numbers: a missing number means lost
 * tokens or ends, so every request on that node is asked for again from its first missing token. Tokens carry
 * their index: the first one may come from P while D's second is here already; it is held, and when the first
 * stays away D, which has it from P, is asked. The end of the decode leg may come before P's token for the
 * same reason; it waits until nothing is missing.
 *
 * A token of an attempt or a life of a node that no longer counts is dropped: the new attempt brings the same
 * one (the law of exactness). Two tokens of one index that differ break that law and are counted and logged.
 *
 * Nodes may be wrong. The router knows by itself which token is the last one (sl_flow_longest), so nothing behind
 * it reaches the client; a token that no request can have loses its node the leg, as an error of the leg does.
 */
#include "router/flow/flow_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"

static bool is_leg(const struct sl_leg *leg, const char *node, uint64_t boot_id)
{
    return leg->state != SL_LEG_NONE && leg->boot_id == boot_id && strcmp(leg->node, node) == 0;
}

/* The decode leg's end is here; is every token before it? P's first token may still be on its way; without any
 * no attempt ends. */
static bool tokens_complete(const struct sl_request *r)
{
    return !r->n_held && !r->resync_owed && r->n_received > r->n_placed;
}

static void try_end(struct sl_flow *f, struct sl_request *r)
{
    if (!r->ended_by_node || r->state == SL_REQ_ENDING) /* a stop string may have ended it before */
        return;
    if (tokens_complete(r)) {
        sl_flow_end(f, r, r->ended_by_length ? "length" : "stop");
        return;
    }
    if (!r->gap_since_us) {
        r->gap_since_us = sl_now_us();
        sl_flow_arm(f, r);
    }
}

/* Why no node that keeps to the protocol sends this token; NULL when one may. */
static const char *wrong_token(const struct sl_flow *f, const struct sl_request *r, const struct sl_leg *leg,
                               const Sluice__TokenEvent *ev)
{
    const struct sl_node *n = sl_flow_leg_node(f, leg);
    const uint32_t n_top = r->req->sampling.n_logprobs > 0 ? (uint32_t)r->req->sampling.n_logprobs : 0;
    if (ev->token < 0 || (n && (uint32_t)ev->token >= n->model.n_vocab))
        return "no token of the vocabulary";
    if (ev->index >= sl_flow_longest(f, r) || (r->state == SL_REQ_ENDING && ev->index >= r->n_received))
        return "behind the last token of the answer";
    if (leg == &r->p && ev->index != r->n_placed)
        return "a prefill node tells only the first token";
    if (ev->n_top_tokens > n_top || ev->n_top_logprobs != ev->n_top_tokens)
        return "other alternatives than were asked for";
    return NULL;
}

/* The leg is over, and its node is told so. r may be gone afterwards. */
static void leave_wrong_leg(struct sl_flow *f, struct sl_request *r, struct sl_leg *leg,
                            const Sluice__TokenEvent *ev, const char *wrong)
{
    unsigned suppressed;
    sl_request_metrics_wrong_token(f->metrics);
    if (sl_log_allow(&f->wrong_told, 1000, &suppressed))
        SL_WARN("a node told a token that cannot be; its part of the request is over req=%s peer=%s index=%u "
                "token=%d why=\"%s\" suppressed=%u",
                r->req->id, leg->node, ev->index, ev->token, wrong, suppressed);
    struct sl_trouble_in t = {
        .what = SL_TROUBLE_LEG_ERROR, .leg_p = leg == &r->p, .err = SL_EPROTO, .leg_accepted = true};
    sl_flow_send_cancel(f, r, leg, wrong);
    sl_flow_leg_done(f, leg);
    sl_flow_trouble(f, r, &t, wrong);
}

static void see_token(struct sl_flow *f, const Sluice__TokenEvent *ev, const char *node, uint64_t boot_id)
{
    struct sl_request *r = sl_request_table_find(f->table, ev->request_id);
    if (!r || r->attempt != ev->attempt || r->state == SL_REQ_WAITING)
        return;
    bool from_d = is_leg(&r->d, node, boot_id), from_p = is_leg(&r->p, node, boot_id);
    if (!from_d && !from_p)
        return;
    if (r->stop_reason)
        return; /* a node cannot know that a stop string ended the answer */
    struct sl_leg *leg = from_d ? &r->d : &r->p;
    const char *wrong = wrong_token(f, r, leg, ev);
    if (wrong) {
        if (leg->state != SL_LEG_DONE || (from_d && r->state != SL_REQ_ENDING))
            leave_wrong_leg(f, r, leg, ev, wrong);
        return;
    }
    if (r->state == SL_REQ_ENDING)
        return;
    r->last_heard_us = sl_now_us();
    sl_flow_leg_accepted(f, r, leg); /* if its event overtook its answer */
    struct sl_node *n = sl_flow_leg_node(f, leg);
    sl_node_charge_drop(n, &leg->charge, true); /* a token means that the prompt is done */
    f->room |= ev->index == r->n_placed;

    if (ev->index < r->n_received) {
        r->record->n_duplicates++;
        if (r->received[ev->index] != ev->token) {
            unsigned suppressed;
            if (sl_log_allow(&f->mismatch_told, 1000, &suppressed))
                SL_ERROR("two nodes sampled different tokens; the answer depends on the node req=%s peer=%s "
                         "index=%u token=%d before=%d suppressed=%u",
                         r->req->id, node, ev->index, ev->token, r->received[ev->index], suppressed);
            sl_request_metrics_mismatch(f->metrics);
        }
        return;
    }
    if (ev->index > r->n_received) {
        sl_request_hold(r, ev);
        if (!r->gap_since_us) {
            r->gap_since_us = r->last_heard_us;
            sl_flow_arm(f, r);
        }
        return;
    }
    if (!sl_flow_deliver(f, r, ev))
        return;
    struct sl_held *h;
    while ((h = sl_request_take_held(r, r->n_received)) != NULL) {
        bool goes_on = sl_flow_deliver(f, r, sl_held_event(h));
        sl_held_free(h);
        if (!goes_on)
            return;
    }
    if (r->n_held == 0 && !r->resync_owed)
        r->gap_since_us = 0;
    try_end(f, r);
}

static void take_report(struct sl_decision_leg *out, const Sluice__DoneEvent *ev)
{
    static const char *const reasons[] = {"?", "stop", "length", "canceled", "error", "prefilled"};
    unsigned reason = (unsigned)ev->reason < SL_COUNTOF(reasons) ? (unsigned)ev->reason : 0;
    if (ev->reason == SLUICE__DONE_REASON__DONE_ERROR)
        snprintf(out->end, sizeof out->end, "error %s", sl_err_name((enum sl_err)ev->code));
    else
        snprintf(out->end, sizeof out->end, "%s", reasons[reason]);
    out->done_us = sl_now_us();
    if (ev->report)
        sl_decision_leg_report(out, ev->report);
}

/* An end that comes after its request: the record still wants the facts. */
static void late_report(struct sl_flow *f, const Sluice__DoneEvent *ev, const char *node)
{
    struct sl_decision *d = sl_decisions_find(f->decisions, ev->request_id);
    const struct sl_decision_attempt *a = d ? sl_decision_last(d) : NULL;
    if (!a || a->attempt != ev->attempt)
        return;
    bool duty_p = ev->duty == SLUICE__ROLE__ROLE_PREFILL;
    struct sl_decision_leg *leg = duty_p ? &d->p : &d->d;
    if (!leg->reported && strcmp(duty_p ? a->p : a->d, node) == 0)
        take_report(leg, ev);
}

/* P's pages are at D. */
static void note_transfer(struct sl_flow *f, const struct sl_request *r)
{
    const struct sl_decision_leg *p = &r->record->p;
    if (r->p.granted_us && p->reported && p->report.has_pages_sent && p->report.pages_sent)
        sl_step_log_transfer(f->steps, &(struct sl_step_transfer){.from = r->p.node,
                                                                  .to = r->d.node,
                                                                  .request = r->req->id,
                                                                  .start_us = r->p.granted_us,
                                                                  .end_us = sl_now_us(),
                                                                  .pages = p->report.pages_sent});
}

/* D, which has ended or forgotten the request, cannot tell what is missing. */
static void lost_by_d(struct sl_flow *f, struct sl_request *r)
{
    struct sl_trouble_in t = {.what = SL_TROUBLE_LOST, .err = SL_ELOST};
    sl_flow_leg_done(f, &r->d);
    sl_flow_trouble(f, r, &t, NULL);
}

static void see_done(struct sl_flow *f, const Sluice__DoneEvent *ev, const char *node, uint64_t boot_id)
{
    struct sl_request *r = sl_request_table_find(f->table, ev->request_id);
    bool duty_p = ev->duty == SLUICE__ROLE__ROLE_PREFILL;
    if (!r || r->attempt != ev->attempt || r->state == SL_REQ_WAITING) {
        late_report(f, ev, node);
        return;
    }
    struct sl_leg *leg = duty_p ? &r->p : &r->d;
    if (!is_leg(leg, node, boot_id) || leg->state == SL_LEG_DONE)
        return;
    r->last_heard_us = sl_now_us();
    sl_flow_leg_done(f, leg);
    take_report(duty_p ? &r->record->p : &r->record->d, ev);
    if (duty_p && ev->reason == SLUICE__DONE_REASON__DONE_PREFILLED)
        note_transfer(f, r);
    if (r->state == SL_REQ_ENDING) {
        sl_flow_settle(f, r);
        return;
    }
    struct sl_trouble_in t = {.what = SL_TROUBLE_LEG_ERROR, .leg_p = duty_p, .leg_accepted = true};
    switch (ev->reason) {
    case SLUICE__DONE_REASON__DONE_PREFILLED:
        if (duty_p) {
            try_end(f, r);
            return;
        }
        t.err = SL_EPROTO; /* the answer is not over, and no decode leg ends before it */
        break;
    case SLUICE__DONE_REASON__DONE_STOP:
    case SLUICE__DONE_REASON__DONE_LENGTH:
        /* from P: its first token was the last one */
        r->ended_by_node = true;
        r->ended_by_length = ev->reason == SLUICE__DONE_REASON__DONE_LENGTH;
        try_end(f, r);
        return;
    case SLUICE__DONE_REASON__DONE_CANCELED:
        t.err = SL_ECANCELED; /* not by us */
        break;
    case SLUICE__DONE_REASON__DONE_ERROR:
    default:
        t.err = ev->has_code && ev->code > SL_OK && ev->code < SL_N_ERR ? (enum sl_err)ev->code : SL_EPEER;
        break;
    }
    SL_INFO("a leg ended without success req=%s peer=%s duty=%s code=%s why=\"%s\"", r->req->id, node,
            duty_p ? "prefill" : "decode", sl_err_name(t.err), ev->why ? ev->why : "");
    sl_flow_trouble(f, r, &t, ev->why);
}

static void see_leg(struct sl_flow *f, const Sluice__LegEvent *ev, const char *node, uint64_t boot_id)
{
    struct sl_request *r = sl_request_table_find(f->table, ev->request_id);
    if (!r || r->attempt != ev->attempt)
        return;
    struct sl_leg *leg = ev->duty == SLUICE__ROLE__ROLE_PREFILL ? &r->p : &r->d;
    if (!is_leg(leg, node, boot_id))
        return;
    r->last_heard_us = sl_now_us();
    sl_flow_leg_accepted(f, r, leg);
    if (leg == &r->p && !leg->granted_us && strcmp(ev->state, "granted") == 0)
        leg->granted_us = r->last_heard_us;
    if (ev->has_cached_tokens) { /* the client's usage must not depend on a last message that comes late */
        Sluice__LegReport *known = leg == &r->p ? &r->record->p.report : &r->record->d.report;
        known->has_cached_tokens = true;
        known->cached_tokens = ev->cached_tokens;
    }
    SL_DEBUG("leg moved on req=%s peer=%s duty=%s state=%s", r->req->id, node,
             leg == &r->p ? "prefill" : "decode", ev->state);
}

void sl_flow_resync_failed(struct sl_request *r)
{
    r->resync_open = r->resync_again = false;
    r->n_resyncs_failed++;
    r->gap_since_us = sl_now_us(); /* the timer asks again, until the node answers or is dead */
}

void sl_flow_ask_resync(struct sl_flow *f, struct sl_request *r)
{
    if (r->d.state == SL_LEG_NONE || r->state == SL_REQ_ENDING || r->state == SL_REQ_WAITING)
        return;
    r->resync_owed = true;
    /* while the Submit is under way a Resync could overtake it and be told that the request is unknown */
    if (r->d.state == SL_LEG_SENT) {
        r->gap_since_us = sl_now_us(); /* the timer asks */
        sl_flow_arm(f, r);
        return;
    }
    if (r->resync_open) {
        r->resync_again = true; /* what is missing now may be younger than the answer under way */
        return;
    }
    r->record->n_resyncs++;
    sl_request_metrics_resync(f->metrics);
    if (sl_flow_send_resync(f, r, 0) == SL_OK)
        r->resync_open = true;
    else
        sl_flow_resync_failed(r);
    sl_flow_arm(f, r);
}

/* How many of its requests run there. */
static unsigned resync_node(struct sl_flow *f, const struct sl_node *n)
{
    unsigned n_there = 0;
    for (struct sl_request *r = sl_request_table_next(f->table, NULL); r;
         r = sl_request_table_next(f->table, r))
        if (is_leg(&r->d, n->name, n->boot_id) || is_leg(&r->p, n->name, n->boot_id)) {
            sl_flow_ask_resync(f, r);
            n_there++;
        }
    return n_there;
}

void sl_flow_on_batch(struct sl_flow *f, const Sluice__EventBatch *b)
{
    struct sl_node *n = sl_node_table_find_boot(f->nodes, b->node, b->boot_id);
    if (b->router_boot_id != f->conf.boot_id || !n || n->state == SL_NODE_DEAD) {
        SL_DEBUG("events of a node that is not known under this boot id, dropped peer=%s seq=%" PRIu64,
                 b->node, b->seq);
        return;
    }
    if (b->seq <= n->event_seq) { /* an overtaken one was asked for again by the gap that it left */
        f->n_events_repeated++;
        unsigned suppressed;
        if (sl_log_allow(&f->repeated_told, 1000, &suppressed))
            SL_INFO("events that were here already, or sent again by someone who heard them, dropped peer=%s "
                    "seq=%" PRIu64 " suppressed=%u",
                    b->node, b->seq, suppressed);
        return;
    }
    bool gap = b->seq > n->event_seq + 1;
    n->event_seq = b->seq;
    if (gap) {
        unsigned n_there = resync_node(f, n);
        if (n_there)
            SL_WARN("events were lost; asking for them again peer=%s seq=%" PRIu64 " requests=%u", b->node,
                    b->seq, n_there);
        else
            SL_INFO(
                "events went to another router, or were lost for none of the requests peer=%s seq=%" PRIu64,
                b->node, b->seq);
    }
    for (size_t i = 0; i < b->n_legs; i++)
        see_leg(f, b->legs[i], b->node, b->boot_id);
    for (size_t i = 0; i < b->n_tokens; i++)
        see_token(f, b->tokens[i], b->node, b->boot_id);
    for (size_t i = 0; i < b->n_done; i++)
        see_done(f, b->done[i], b->node, b->boot_id);
}

void sl_flow_on_resync_reply(struct sl_flow *f, const struct sl_node_call *call,
                             const Sluice__ResyncReply *reply)
{
    struct sl_request *r = sl_request_table_find(f->table, call->request_id);
    if (!r || r->attempt != call->attempt || !is_leg(&r->d, call->node, call->boot_id))
        return;
    bool again = r->resync_again;
    r->resync_owed = r->resync_open = r->resync_again = false;
    r->n_resyncs_failed = 0;
    r->gap_since_us = 0;
    r->last_heard_us = sl_now_us();
    sl_flow_arm(f, r);
    if (r->state == SL_REQ_ENDING || r->state == SL_REQ_WAITING)
        return;
    if (reply->code != SL_OK) {
        if (r->ended_by_node && tokens_complete(r)) {
            try_end(f, r); /* forgotten there because it is over, and nothing was missing */
            return;
        }
        lost_by_d(f, r);
        return;
    }
    const char *id = call->request_id;
    const uint32_t n_before = r->n_received;
    const bool ended = r->ended_by_node;
    r->ended_by_node = false; /* until all are seen: the end is not behind the first of them */
    for (size_t i = 0; i < reply->n_tokens; i++)
        if (strcmp(reply->tokens[i]->request_id, id) == 0)
            see_token(f, reply->tokens[i], call->node, call->boot_id);
    r = sl_request_table_find(f->table, id);
    if (!r || r->attempt != call->attempt)
        return;
    r->ended_by_node = ended;
    if (reply->done && strcmp(reply->done->request_id, id) == 0) {
        see_done(f, reply->done, call->node, call->boot_id);
        r = sl_request_table_find(f->table, id);
    }
    if (!r || r->attempt != call->attempt)
        return;
    /* what one answer has no room for comes with the next, and the end with the last */
    bool cut = r->d.state == SL_LEG_DONE && !reply->done && r->n_received > n_before;
    if (again || cut)
        sl_flow_ask_resync(f, r);
    else if (r->d.state == SL_LEG_DONE && r->state != SL_REQ_ENDING && !tokens_complete(r))
        lost_by_d(f, r); /* it would tell no more the next time */
    else
        try_end(f, r);
}
