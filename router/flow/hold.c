/* router/flow/hold.c - who waits at the router while nodes are full, and who goes next
 * (router/place/fair_share.h has the rules).
 *
 * A request waits when the best place for it has hold_ms of work to do first, or when others wait already.
 * Its waiting time is predicted when it comes, and it is refused then or never: one that waits is served,
 * unless its deadline passes. Whoever asked for nodes or a split by name does not wait: it compares
 * placements. */
#include "router/flow/flow_core.h"

#include <math.h>

#include "common/base/clock.h"

/* Placements looked at in vain before the next event: of those whose turn it is, and of those behind them that were
 * not looked at for the longest time. */
#define FIRST_TRIES 2u
#define OTHER_TRIES 2u

bool sl_flow_must_wait(const struct sl_flow *f, const struct sl_request *r,
                       const struct sl_place_choice *choice)
{
    const struct sl_gen_req *q = r->req;
    if (!f->conf.hold_ms || r->attempt > 0 || q->split >= 0 || q->mode != SL_MODE_DEFAULT ||
        q->want_prefill_node || q->want_decode_node)
        return false;
    return f->n_waiting > 0 || choice->best.predicted.wait_ms > f->conf.hold_ms;
}

/* The longest that r may wait at the router. ttft_ms: what it takes after that. */
static double patience_ms(const struct sl_flow *f, const struct sl_request *r, double ttft_ms,
                          uint64_t now_us)
{
    double ms = r->deadline_us > now_us ? (double)(r->deadline_us - now_us) / 1e3 : 0;
    if (f->conf.max_wait_ms)
        ms = fmin(ms, f->conf.max_wait_ms);
    if (f->conf.slo_miss == SL_SLO_REFUSE && r->req->ttft_ms)
        ms = fmin(ms, (double)sl_flow_ttft_left_ms(r) - ttft_ms);
    return ms;
}

static void refuse(struct sl_flow *f, struct sl_request *r, double wait_ms, double patience)
{
    r->record->slo_predicted_miss = r->req->ttft_ms || r->req->tpot_ms;
    r->retry_ms = (uint32_t)fmin(wait_ms - fmax(patience, 0), UINT32_MAX / 2);
    sl_flow_fail(f, r, SL_EAGAIN,
                 "More requests wait than nodes can serve in the time this one has; try again later.");
}

void sl_flow_hold(struct sl_flow *f, struct sl_request *r, const struct sl_place_choice *choice)
{
    uint64_t now = sl_now_us();
    struct sl_share_entry mine = {.who = r,
                                  .account = r->account,
                                  .priority = sl_flow_priority(r),
                                  .arrived_us = r->record->arrived_us,
                                  .since_us = now,
                                  .work = r->req->n_tokens};
    sl_share_enter(&f->share, r->account, f->held, f->n_waiting, now);
    const struct sl_place_prediction *p = &choice->best.predicted;
    double wait_ms = sl_share_wait_ms(&f->share, f->held, f->n_waiting, &mine,
                                      sl_place_tokens_per_ms(&f->view->state, f->mode));
    double more_ms = fmax(0, p->wait_ms - f->conf.hold_ms), ttft_ms = p->ttft_ms - more_ms;
    wait_ms += more_ms;
    double patience = patience_ms(f, r, ttft_ms, now);
    if (wait_ms > patience) {
        refuse(f, r, wait_ms, patience);
        return;
    }
    if (f->conf.slo_miss == SL_SLO_RELEGATE && r->req->ttft_ms &&
        ttft_ms + wait_ms > sl_flow_ttft_left_ms(r)) {
        r->relegated = r->record->relegated = r->record->slo_predicted_miss = true;
        mine.priority = sl_flow_priority(r);
    }
    r->state = SL_REQ_WAITING;
    r->held_back = true;
    f->held[f->n_waiting++] = mine;
    sl_flow_arm(f, r);
    sl_flow_let_go(f);
}

void sl_flow_unhold(struct sl_flow *f, struct sl_request *r)
{
    for (uint32_t i = 0; r->held_back && i < f->n_waiting; i++)
        if (f->held[i].who == r) {
            f->held[i] = f->held[--f->n_waiting];
            r->held_back = false;
        }
}

/* The next one to look at, or SL_SHARE_NONE. After FIRST_TRIES those that were looked at at former events stand back,
 * until all were looked at. */
static uint32_t next_to_try(struct sl_flow *f, uint32_t tries, uint64_t now)
{
    if (tries == FIRST_TRIES)
        sl_share_stand_back(f->held, f->n_waiting);
    uint32_t i =
        tries < FIRST_TRIES + OTHER_TRIES ? sl_share_next(f->held, f->n_waiting, now) : SL_SHARE_NONE;
    if (i == SL_SHARE_NONE && tries < FIRST_TRIES + OTHER_TRIES)
        sl_share_all_seen(f->held, f->n_waiting);
    return i;
}

void sl_flow_let_go(struct sl_flow *f)
{
    f->room = false;
    sl_share_anew(f->held, f->n_waiting);
    for (uint32_t tries = 0;;) {
        uint64_t now = sl_now_us();
        uint32_t i = next_to_try(f, tries, now);
        if (i == SL_SHARE_NONE)
            return;
        struct sl_request *r = f->held[i].who;
        struct sl_place_choice choice;
        struct sl_why why = {{0}};
        enum sl_err err = sl_flow_choose(f, r, &choice, &why);
        if (!err && choice.best.predicted.wait_ms > f->conf.hold_ms) {
            sl_share_skip(&f->held[i]);
            tries++;
            continue;
        }
        sl_share_served(&f->share, f->held, f->n_waiting, i, now);
        sl_flow_unhold(f, r);
        if (!err) {
            sl_flow_go(f, r, &choice);
            continue;
        }
        struct sl_trouble_in t = {.what = SL_TROUBLE_NO_PLACE, .err = err};
        sl_flow_trouble(f, r, &t, why.text);
    }
}
