/* prefill_node/kv_push.c - step 7 of the request path, on P: finished chunks go to the transfer, the first
 * token to the router.
 *
 * Pages are handed to the transfer only once the grant is there and the sequence is pinned: before, the
 * engine may take pages of an ungranted sequence back for a granted one, and the transfer must never hold
 * such a page. The first token goes to the router without waiting for anything, and to the decode node with
 * the last commit: sl_xfer_send_first() comes before the sl_xfer_send_ready() that completes s, so a computed
 * whole prompt waits for its token.
 *
 * What the decode node has from its own cache is not sent. When that is all of [0, s), the leg ends at the
 * grant, whatever is computed by then. */
#include "prefill_node/prefill_node.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/node/node_router.h"

/* Everything computed so far, when it may be sent. */
static void push(struct sl_prefill_leg *p)
{
    struct sl_leg *l = &p->leg;
    if (!p->granted || p->computed == 0)
        return;
    uint32_t upto = p->computed;
    if (upto >= l->split) {
        upto = l->split;
        if (p->samples && !p->sampled)
            return; /* its token comes in the same step */
    }
    struct sl_seq_view v;
    sl_seq_view(l->seq, &v);
    enum sl_err err = sl_xfer_send_ready(l->node->xfer, &l->key, v.pages, upto);
    if (err != SL_OK)
        sl_leg_end(l, SLUICE__DONE_REASON__DONE_ERROR, err, "the transfer takes no more pages");
}

/* The decode node has all of [0, s) in its cache: nothing is to be computed here for it. */
static void end_early(struct sl_prefill_leg *p)
{
    struct sl_leg *l = &p->leg;
    enum sl_err err = sl_xfer_send_ready(l->node->xfer, &l->key, NULL, l->split);
    if (err != SL_OK)
        sl_leg_end(l, SLUICE__DONE_REASON__DONE_ERROR, err, "the transfer takes no more pages");
}

static bool ends_request(const struct sl_prefill_leg *p, const struct sl_engine_event *ev)
{
    if (ev->token_index + 1 >= p->max_tokens)
        return true;
    for (uint32_t i = 0; i < p->n_stop_ids && !p->ignore_eos; i++) {
        if (p->stop_ids[i] == ev->sampled.token)
            return true;
    }
    return false;
}

static void on_token(struct sl_prefill_leg *p, const struct sl_engine_event *ev)
{
    struct sl_leg *l = &p->leg;
    sl_leg_token(l, ev->token_index, &ev->sampled, true);
    p->sampled = true;
    struct sl_xfer_first first = {
        .token = ev->sampled.token,
        .ended = ends_request(p, ev),
        .logits_digest = ev->sampled.logits_digest,
        .has_logprobs = l->n_logprobs >= 0,
    };
    if (first.has_logprobs) {
        first.logprob = ev->sampled.logprob;
        first.n_top = ev->sampled.n_top;
        memcpy(first.top_token, ev->sampled.top_token, first.n_top * sizeof first.top_token[0]);
        memcpy(first.top_logprob, ev->sampled.top_logprob, first.n_top * sizeof first.top_logprob[0]);
    }
    enum sl_err err = sl_xfer_send_first(l->node->xfer, &l->key, &first);
    if (err != SL_OK) {
        sl_leg_end(l, SLUICE__DONE_REASON__DONE_ERROR, err, "the transfer does not take the first token");
        return;
    }
    push(p);
}

void sl_kv_push_on_engine(struct sl_leg *l, const struct sl_engine_event *ev)
{
    struct sl_prefill_leg *p = (struct sl_prefill_leg *)l;
    switch (ev->kind) {
    case SL_EV_ADMITTED:
        sl_leg_admitted(l);
        break;
    case SL_EV_COMPUTED:
        if (p->computed == 0)
            sl_leg_state(l, "computing", true);
        p->computed = ev->computed_tokens;
        push(p);
        break;
    case SL_EV_TOKEN:
        on_token(p, ev);
        break;
    case SL_EV_PREEMPTED:
        p->computed = 0; /* only without a grant: nothing was handed over */
        break;
    case SL_EV_FINISHED:
        break; /* the leg ends when the decode node has the pages */
    }
}

static void take_transfer_report(struct sl_leg *l, const struct sl_xfer_event *ev)
{
    Sluice__LegReport *r = &l->report;
    r->has_pages_sent = r->has_transfer_ms = r->has_bytes_after_first = r->has_resends = true;
    r->pages_sent = ev->pages_moved;
    r->transfer_ms = (float)ev->transfer_ms;
    r->bytes_after_first = ev->bytes_after_ready;
    r->resends = ev->resends;
}

void sl_kv_push_on_xfer(struct sl_leg *l, const struct sl_xfer_event *ev)
{
    struct sl_prefill_leg *p = (struct sl_prefill_leg *)l;
    switch (ev->kind) {
    case SL_XFER_GRANTED:
        p->granted = true;
        l->report.has_granted_us = true;
        l->report.granted_us = sl_leg_age_us(l);
        sl_engine_seq_pin(l->node->engine, l->seq, true);
        sl_engine_seq_grant(l->node->engine, l->seq);
        sl_leg_state(l, "granted", true);
        if (!p->samples && ev->have_pages * l->node->conf->page_tokens >= l->split)
            end_early(p);
        else
            push(p);
        break;
    case SL_XFER_SEND_DONE:
        take_transfer_report(l, ev);
        if (ev->err == SL_OK) {
            sl_leg_state(l, "committed", true);
            sl_leg_end(l, SLUICE__DONE_REASON__DONE_PREFILLED, SL_OK, NULL);
        } else if (ev->err == SL_ECANCELED) {
            sl_leg_end(l, SLUICE__DONE_REASON__DONE_CANCELED, SL_ECANCELED, ev->why);
        } else {
            sl_leg_end(l, SLUICE__DONE_REASON__DONE_ERROR, ev->err, ev->why);
        }
        break;
    default:
        break;
    }
}

enum sl_err sl_kv_push_cancel(struct sl_leg *l, const char *why)
{
    return sl_xfer_send_abort(l->node->xfer, &l->key, &l->peer, why);
}
