/* decode_node/grants.c - steps 7 and 8 of the request path, on D: pages for the prefill node to fill,
 * commits, and what happens when it is lost.
 *
 * The grant follows admission: the sequence has its pages, those of a prefix hit are told as "have". From
 * then on until the last event of the transfer the sequence is pinned. Losing the prefill node is no error of
 * the request: what was committed stays, the rest of [0, s) is computed here, the same path with another s.
 */
#include "decode_node/decode_node.h"

#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"

static void go_local(struct sl_leg *l, uint32_t committed, const char *why)
{
    struct sl_seq_view v;
    sl_seq_view(l->seq, &v);
    if (v.state != SL_SEQ_REMOTE)
        return; /* a prefix hit reaches beyond s: nothing was waited for */
    l->node->counters.peers_lost++;
    l->report.has_recovered_tokens = true;
    l->report.recovered_tokens = l->split > committed ? l->split - committed : 0;
    SL_WARN("prefill node lost, the rest is computed here req=%s peer=%s committed=%u of=%u why=\"%s\"",
            l->key.request, l->peer.name, committed, l->split, why);
    sl_leg_state(l, "peer_lost", true);
    sl_engine_seq_go_local(l->node->engine, l->seq);
}

void sl_grants_on_admitted(struct sl_leg *l)
{
    if (l->split == 0 || l->xfer != SL_LEG_XFER_NONE)
        return; /* also after a preemption: the transfer is over by then */
    struct sl_seq_view v;
    sl_seq_view(l->seq, &v);
    const uint32_t page_tokens = l->node->conf->page_tokens;
    uint32_t n_pages = (l->split + page_tokens - 1) / page_tokens;
    uint32_t have = v.hit_tokens / page_tokens;
    if (have > l->split / page_tokens)
        have = l->split / page_tokens;
    SL_ASSERT(v.n_pages >= n_pages);
    uint64_t now = sl_now_us();
    uint32_t left_ms = l->deadline_us > now ? (uint32_t)((l->deadline_us - now) / 1000) + 1 : 1;
    enum sl_err err = sl_xfer_recv_open(l->node->xfer, &l->key, &l->peer, v.pages, l->split, have, left_ms);
    if (err != SL_OK) {
        go_local(l, v.hit_tokens, "no more transfers can be open here");
        return;
    }
    l->xfer = SL_LEG_XFER_OPEN;
    sl_engine_seq_pin(l->node->engine, l->seq, true);
}

static void ready(struct sl_decode_leg *d, uint32_t n_tokens)
{
    if (n_tokens <= d->ready_tokens)
        return;
    d->ready_tokens = n_tokens;
    sl_engine_seq_ready(d->leg.node->engine, d->leg.seq, n_tokens);
}

static void on_complete(struct sl_decode_leg *d, const struct sl_xfer_event *ev)
{
    struct sl_leg *l = &d->leg;
    ready(d, l->split);
    sl_leg_state(l, "committed", true);
    if (l->split < l->n_tokens)
        return;
    if (!ev->has_first) {
        go_local(l, l->split, "it sent all pages and no first token");
        return;
    }
    const struct sl_xfer_first *first = &ev->first;
    struct sl_sampled t = {.token = first->token, .logits_digest = first->logits_digest, .logprob = NAN};
    if (first->has_logprobs) {
        t.logprob = first->logprob;
        t.n_top = first->n_top;
        memcpy(t.top_token, first->top_token, t.n_top * sizeof t.top_token[0]);
        memcpy(t.top_logprob, first->top_logprob, t.n_top * sizeof t.top_logprob[0]);
    }
    sl_token_out_first(l, &t);
    sl_engine_seq_first_token(l->node->engine, l->seq, &t);
}

void sl_grants_on_xfer(struct sl_leg *l, const struct sl_xfer_event *ev)
{
    struct sl_decode_leg *d = (struct sl_decode_leg *)l;
    switch (ev->kind) {
    case SL_XFER_RECV_READY:
        ready(d, ev->n_tokens);
        break;
    case SL_XFER_RECV_DONE:
        l->report.has_pages_received = l->report.has_transfer_ms = l->report.has_resends = true;
        l->report.pages_received = ev->pages_moved;
        l->report.transfer_ms = (float)ev->transfer_ms;
        l->report.resends = ev->resends;
        l->report.has_received_us = true;
        l->report.received_us = sl_leg_age_us(l);
        if (ev->err == SL_OK) {
            on_complete(d, ev);
        } else if (ev->err == SL_EDEADLINE) { /* the request's own, seen there first */
            sl_leg_end(l, SLUICE__DONE_REASON__DONE_ERROR, SL_EDEADLINE, ev->why);
        } else {
            ready(d, ev->n_tokens);
            go_local(l, ev->n_tokens, ev->why[0] ? ev->why : sl_err_name(ev->err));
        }
        break;
    default:
        break;
    }
}

enum sl_err sl_grants_cancel(struct sl_leg *l, const char *why)
{
    (void)why;
    return sl_xfer_recv_cancel(l->node->xfer, &l->key);
}
