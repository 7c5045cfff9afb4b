/* router/flow/request_flow.c - the life of a request (steps 3 and 11 of the request path).
 *
 *                       sl_flow_begin
 *                             |
 *       sl_flow_hold ------ place -------- no place ------> sl_flow_fail
 *             |               |                                 ^
 *        [ WAITING ]          |                                 |
 *             |               |                                 |
 *     sl_flow_let_go -------> |                                 |
 *                             |                                 |
 *        .------------------> |                                 |
 *        |               [ PLACED ] ------- deadline, ------>   |
 *        |                    |             bad input           |
 *        |             sl_flow_deliver (first token)            |
 *        |                    v                                 |
 *      place             [ STREAMING ] --- deadline, ------->   |
 *        ^                    |            nobody is left       |
 *        |                    |                                 |
 *        |   sl_flow_trouble: a leg failed, its node died       |
 *        '--- PLACE_AGAIN ----+                                 |
 *        |                    '-- WAIT --> [ WAITING ] ---------'
 *        '---- on_timer (retry) --------------'
 *                             |
 *              sl_flow_end: the last token is here, or a stop string
 *                             v
 *                        [ ENDING ]      the text is complete; the legs' last messages may bring facts for
 * usage and record
 *                             |
 *        sl_flow_settle: all legs are done; on_timer (settle)
 *                             v
 *                           close
 *
 * sl_flow_client_left goes from every state to close. Whatever leaves a placement cancels the legs that are
 * still open.
 *
 * Placing again sends prompt + tokens received with n_prompt unchanged; the attempt counts up, so that
 * whatever the old legs still say is dropped. */
#include "router/flow/flow_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/kv/kv_hash.h"

#define GAP_MS            50   /* a token that came early waits this long for the one before it */
#define GAP_MAX_MS        1600 /* so the wait doubles while a node gives no answer to what is missing */
#define SETTLE_MS         250  /* the client's last event waits this long for facts */
#define RETRY_MS          200  /* between placements while all nodes are full; doubles to 1.6 s */
#define RETRY_AFTER_MAX_S 60
#define PROBE_MS          3000 /* a silent decode leg is asked whether it still knows the request */
#define CHAIN_MAX         2048 /* pages of a prompt looked up in the nodes' prefix caches */

static bool emit(struct sl_flow *f, struct sl_request *r, const struct sl_gen_event *ev)
{
    return sl_door_call(f->door, r->door, ev);
}

static void emit_text(struct sl_flow *f, struct sl_request *r, const struct sl_text_piece *piece)
{
    if (piece->len == 0)
        return;
    r->n_chars_sent += piece->len;
    struct sl_gen_event ev = {.kind = SL_GEN_TOKEN,
                              .token = -1,
                              .index = r->n_received,
                              .text = piece->text,
                              .text_len = piece->len,
                              .stop_token = -1};
    emit(f, r, &ev);
}

void sl_flow_leg_done(struct sl_flow *f, struct sl_leg *leg)
{
    if (leg->state == SL_LEG_NONE)
        return;
    sl_node_charge_drop(sl_flow_leg_node(f, leg), &leg->charge, false);
    leg->state = SL_LEG_DONE;
    f->room = true;
}

static void cancel_legs(struct sl_flow *f, struct sl_request *r, const char *reason)
{
    struct sl_leg *legs[] = {&r->d, &r->p};
    for (size_t i = 0; i < SL_COUNTOF(legs); i++) {
        sl_flow_send_cancel(f, r, legs[i], reason);
        sl_flow_leg_done(f, legs[i]);
    }
}

/* A pair that met for this request had no measured link when it was placed. */
static void note_link(const struct sl_flow *f, struct sl_request *r)
{
    const struct sl_node *p = sl_flow_leg_node(f, &r->p);
    for (uint32_t i = 0; p && r->record->link_bytes_per_s <= 0 && i < p->n_peers; i++)
        if (p->peers[i].peer_boot_id == r->d.boot_id && strcmp(p->peers[i].peer, r->d.node) == 0)
            r->record->link_bytes_per_s = p->peers[i].bytes_per_s;
}

/* The request leaves the router. */
static void close_request(struct sl_flow *f, struct sl_request *r, const char *finish)
{
    struct sl_decision *d = r->record;
    sl_flow_unhold(f, r);
    d->done_us = sl_now_us();
    d->n_generated = r->n_received;
    note_link(f, r);
    sl_request_gaps(r, &d->itl_median_ms, &d->gap_max_ms);
    sl_decision_keep_gaps(d, r->gap_us, r->n_received);
    if (r->state == SL_REQ_ENDING)
        sl_output_mean_add(sl_flow_outputs(f, r->req), r->n_received);
    snprintf(d->finish, sizeof d->finish, "%s", finish);
    sl_request_metrics_done(f->metrics, d);
    SL_DEBUG("request over req=%s finish=%s tokens=%u attempts=%u", r->req->id, finish, r->n_received,
             r->attempt);
    sl_door_leave(f->door, r->door);
    sl_request_table_remove(f->table, r);
    atomic_fetch_sub(&f->open_requests, 1);
}

void sl_flow_client_left(struct sl_flow *f, struct sl_request *r)
{
    cancel_legs(f, r, "the client left");
    close_request(f, r, "canceled");
}

/* What a client that may come again should wait: as long as was predicted for it or, where nothing was, for
 * the nodes' queues; at least a second. */
static uint32_t retry_after_s(struct sl_flow *f, const struct sl_request *r, enum sl_err err)
{
    if (sl_err_class(err) != SL_CLASS_LATER && err != SL_EPEER)
        return 0;
    double ms = r->retry_ms;
    if (!r->retry_ms) {
        sl_node_table_view(f->nodes, sl_now_ms(), NULL, f->view);
        ms = sl_place_wait_ms(&f->view->state);
    }
    double s = 1 + ms / 1e3;
    return s < RETRY_AFTER_MAX_S ? (uint32_t)s : RETRY_AFTER_MAX_S;
}

void sl_flow_fail(struct sl_flow *f, struct sl_request *r, enum sl_err err, const char *why)
{
    cancel_legs(f, r, why);
    snprintf(r->record->error, sizeof r->record->error, "%s: %s", sl_err_name(err), why);
    if (sl_err_class(err) != SL_CLASS_LATER && err != SL_ECANCELED) /* a storm of refusals is no news each */
        sl_cluster_event(f->events_log, "warning", "request", r->req->id, "failed after %u tokens, %s: %s",
                         r->n_received, sl_err_name(err), why);
    SL_INFO("request failed req=%s code=%s tokens=%u why=\"%s\"", r->req->id, sl_err_name(err), r->n_received,
            why);
    struct sl_gen_event ev = {.kind = SL_GEN_ERROR,
                              .err = err,
                              .why = why,
                              .stop_token = -1,
                              .retry_after_s = retry_after_s(f, r, err)};
    emit(f, r, &ev);
    close_request(f, r, "error");
}

uint32_t sl_flow_longest(const struct sl_flow *f, const struct sl_request *r)
{
    const uint32_t most = r->req->sampling.max_tokens, context = f->conf.context_length;
    if (!context)
        return most;
    const uint32_t left = context > r->req->n_tokens ? context - r->req->n_tokens : 0;
    return left < most ? left : most;
}

/* The last token is here: why it is the last; NULL = there are more. */
static const char *over(const struct sl_flow *f, const struct sl_request *r)
{
    if (r->n_received == 0)
        return NULL;
    if (sl_text_out_is_last(r->text, r->received[r->n_received - 1], r->n_received - 1))
        return "stop";
    return r->n_received >= sl_flow_longest(f, r) ? "length" : NULL;
}

/* ---- time ---- */

static uint64_t earliest(uint64_t a, uint64_t b)
{
    return b && b < a ? b : a;
}

static uint64_t probe_at(const struct sl_request *r)
{
    bool asks = (r->state == SL_REQ_PLACED || r->state == SL_REQ_STREAMING) &&
                r->d.state == SL_LEG_ACCEPTED && !r->resync_open;
    return asks ? r->last_heard_us + PROBE_MS * 1000 : 0;
}

static uint64_t gap_at(const struct sl_request *r)
{
    bool asks =
        (r->state == SL_REQ_PLACED || r->state == SL_REQ_STREAMING) && r->gap_since_us && !r->resync_open;
    if (!asks)
        return 0;
    uint64_t wait_ms = GAP_MS;
    for (uint32_t i = 0; i < r->n_resyncs_failed && wait_ms < GAP_MAX_MS; i++)
        wait_ms *= 2;
    return r->gap_since_us + wait_ms * 1000;
}

void sl_flow_arm(struct sl_flow *f, struct sl_request *r)
{
    (void)f;
    uint64_t now = sl_now_us(), at = r->settle_at_us;
    if (r->state != SL_REQ_ENDING) { /* what on_timer() does not look at then would set it again at once */
        at = earliest(r->deadline_us, r->retry_at_us);
        at = earliest(at, gap_at(r));
        at = earliest(at, probe_at(r));
    }
    sl_timer_set(r->timer, at > now ? (at - now + 999) / 1000 : 0);
}

static void place(struct sl_flow *f, struct sl_request *r);
static void place_again(struct sl_flow *f, struct sl_request *r);
static void finish(struct sl_flow *f, struct sl_request *r);

static void on_timer(void *arg)
{
    struct sl_request *r = arg;
    struct sl_flow *f = r->flow;
    uint64_t now = sl_now_us();
    if (r->state == SL_REQ_ENDING) {
        if (now >= r->settle_at_us)
            finish(f, r);
        else
            sl_flow_arm(f, r);
        return;
    }
    if (now >= r->deadline_us) {
        struct sl_trouble_in t = {.what = SL_TROUBLE_DEADLINE};
        sl_flow_trouble(f, r, &t, NULL);
        return;
    }
    if (r->retry_at_us && now >= r->retry_at_us) {
        r->retry_at_us = 0;
        place(f, r);
        return;
    }
    uint64_t gap = gap_at(r), probe = probe_at(r);
    if (gap && now >= gap) {
        r->gap_since_us = now; /* the next look, when this one cannot ask */
        sl_flow_ask_resync(f, r);
    } else if (probe && now >= probe) {
        r->last_heard_us = now;
        sl_flow_ask_resync(f, r);
    }
    sl_flow_arm(f, r);
}

void sl_flow_leg_accepted(struct sl_flow *f, struct sl_request *r, struct sl_leg *leg)
{
    if (leg->state != SL_LEG_SENT)
        return;
    leg->state = SL_LEG_ACCEPTED;
    if (!r->record->submitted_us && r->d.state != SL_LEG_SENT && r->p.state != SL_LEG_SENT)
        r->record->submitted_us = sl_now_us();
    sl_flow_arm(f, r); /* from now on its silence is looked after */
}

/* ---- placing ---- */

/* Names of the prompt's full pages, computed once: the router looks where they are cached. */
static void make_chain(struct sl_flow *f, struct sl_request *r)
{
    if (r->chain_page_tokens || r->req->no_prefix_cache)
        return;
    const struct sl_node *n = NULL;
    for (uint32_t i = 0; i < sl_node_table_len(f->nodes) && !n; i++)
        if (sl_node_table_at(f->nodes, i)->state != SL_NODE_DEAD)
            n = sl_node_table_at(f->nodes, i);
    if (!n)
        return;
    struct sl_digest128 model;
    memcpy(&model, n->model.digest, sizeof model);
    uint32_t pt = n->model.page_tokens, pages = r->req->n_tokens / pt;
    if (pages > CHAIN_MAX)
        pages = CHAIN_MAX;
    r->chain_page_tokens = pt;
    r->chain = sl_xcalloc(pages ? pages : 1, sizeof *r->chain);
    uint64_t salt = sl_kv_salt_hash(r->req->cache_salt), parent = SL_KV_CHAIN_ROOT;
    for (uint32_t i = 0; i < pages; i++)
        r->chain[i] = parent = sl_kv_chain_hash(&model, salt, parent, r->req->tokens + (size_t)i * pt, pt);
    r->n_chain = pages;
}

static struct sl_place_req placement_request(struct sl_flow *f, const struct sl_request *r)
{
    const struct sl_gen_req *q = r->req;
    const uint32_t most = q->sampling.max_tokens > r->n_received ? q->sampling.max_tokens - r->n_received : 0;
    struct sl_place_req p = {.n_tokens = q->n_tokens + r->n_received,
                             .n_prompt = q->n_tokens,
                             .max_new = most,
                             .expected_new =
                                 sl_output_mean_expect(sl_flow_outputs(f, q), r->n_received, most, 0),
                             .mode = f->mode,
                             .demanded = q->mode != SL_MODE_DEFAULT,
                             .strict = r->attempt == 0,
                             .split = q->split,
                             .chunk = q->chunk,
                             .ttft_ms = r->n_received ? 0 : sl_flow_ttft_left_ms(r),
                             .tpot_ms = q->tpot_ms,
                             .want_p = q->want_prefill_node,
                             .want_d = q->want_decode_node};
    switch (q->mode) {
    case SL_MODE_DEFAULT:
        /* the cluster's split is for prompts that reach beyond it; a request's own goes before it */
        if (q->split < 0 && f->split && f->split < q->n_tokens && f->mode == SL_PLACE_HYBRID)
            p.split = f->split;
        break;
    case SL_MODE_PD:
        p.mode = SL_PLACE_PD;
        break;
    case SL_MODE_COLOCATED:
        p.mode = SL_PLACE_COLOCATED;
        break;
    case SL_MODE_HYBRID:
        p.mode = SL_PLACE_HYBRID;
        break;
    }
    return p;
}

static void start_leg(struct sl_flow *f, struct sl_leg *leg, const char *name,
                      const struct sl_node_ledger *amount, int32_t priority)
{
    struct sl_node *n = sl_node_table_find(f->nodes, name);
    SL_ASSERT(n != NULL); /* the view was made of this table just now */
    *leg = (struct sl_leg){.state = SL_LEG_SENT, .boot_id = n->boot_id};
    snprintf(leg->node, sizeof leg->node, "%s", n->name);
    snprintf(leg->peer_address, sizeof leg->peer_address, "%s", n->transfer_address);
    sl_node_charge(n, &leg->charge, amount, priority, sl_now_ms());
}

static uint32_t work(uint32_t from, uint32_t to, uint32_t hit)
{
    uint32_t start = hit > from ? hit : from;
    return start < to ? to - start : 1; /* the last token is computed always */
}

static void start_legs(struct sl_flow *f, struct sl_request *r, const struct sl_place_choice *choice,
                       uint32_t n_tokens)
{
    const struct sl_place_node *nodes = f->view->nodes, *d = &nodes[choice->best.d];
    uint32_t s = choice->best.split;
    r->split = s;
    r->n_placed = r->n_received;
    r->attempt++;
    struct sl_node_ledger at_d = {.rows = 1,
                                  .pages = (n_tokens + d->page_tokens) / d->page_tokens,
                                  .prompt_tokens = s < n_tokens ? work(s, n_tokens, d->hit_tokens) : 0,
                                  .context_tokens = n_tokens};
    start_leg(f, &r->d, d->name, &at_d, sl_flow_priority(r));
    r->p = (struct sl_leg){.state = SL_LEG_NONE};
    if (choice->best.p >= 0) {
        const struct sl_place_node *p = &nodes[choice->best.p];
        struct sl_node_ledger at_p = {.pages = (s + p->page_tokens - 1) / p->page_tokens,
                                      .prompt_tokens = work(0, s, p->hit_tokens)};
        start_leg(f, &r->p, p->name, &at_p, sl_flow_priority(r));
    }
}

/* D first: without it the work of P is for nobody. */
static void send_legs(struct sl_flow *f, struct sl_request *r)
{
    struct sl_leg *leg = &r->d;
    enum sl_err err = sl_flow_send_submit(f, r, 0);
    if (!err && r->p.state == SL_LEG_SENT) {
        leg = &r->p;
        err = sl_flow_send_prefill(f, r, 0);
    }
    if (err) {
        sl_flow_leg_done(f, leg);
        struct sl_trouble_in t = {.what = SL_TROUBLE_COMMAND, .leg_p = leg == &r->p, .err = err};
        sl_flow_trouble(f, r, &t, "The command could not be sent.");
        return;
    }
    sl_flow_arm(f, r);
}

/* No placement is predicted to meet the request's wishes. False: it is over. */
static bool missed(struct sl_flow *f, struct sl_request *r, const struct sl_place_prediction *p)
{
    r->record->slo_predicted_miss = true;
    if (f->conf.slo_miss == SL_SLO_RELEGATE)
        r->relegated = r->record->relegated = true;
    if (f->conf.slo_miss != SL_SLO_REFUSE)
        return true;
    r->retry_ms = r->req->ttft_ms && p->ttft_ms > r->req->ttft_ms && p->ttft_ms < UINT32_MAX
                      ? (uint32_t)p->ttft_ms - r->req->ttft_ms
                      : 0;
    sl_flow_fail(f, r, SL_EAGAIN,
                 "No node is predicted to give this request the times it wishes; try again later.");
    return false;
}

enum sl_err sl_flow_choose(struct sl_flow *f, struct sl_request *r, struct sl_place_choice *choice,
                           struct sl_why *why)
{
    make_chain(f, r);
    const struct sl_place_req q = placement_request(f, r);
    const struct sl_node_asker who = {
        .priority = sl_flow_priority(r), .n_tokens = q.n_tokens, .chain = r->chain, .n_chain = r->n_chain};
    sl_node_table_view(f->nodes, sl_now_ms(), &who, f->view);
    for (uint32_t i = 0; i < f->view->state.n_nodes; i++)
        if (sl_request_is_excluded(r, f->view->nodes[i].name, sl_node_table_at(f->nodes, i)->boot_id))
            f->view->nodes[i].excluded = "failed or refused it before";
    return sl_place(&f->view->state, &q, choice, why);
}

void sl_flow_go(struct sl_flow *f, struct sl_request *r, const struct sl_place_choice *choice)
{
    uint32_t n_tokens = r->req->n_tokens + r->n_received;
    if (!r->charged)
        sl_share_charge(r->account, r->req->n_tokens);
    r->charged = true;
    r->state = SL_REQ_PLACED;
    start_legs(f, r, choice, n_tokens);
    sl_decision_placed(r->record, &f->view->state, choice, r->attempt, n_tokens,
                       r->because[0] ? r->because : NULL, sl_now_us());
    r->last_heard_us = sl_now_us();
    if (r->attempt == 1)
        r->record->placed_us = r->last_heard_us;
    SL_DEBUG("placed req=%s attempt=%u p=%s split=%u d=%s tokens=%u", r->req->id, r->attempt,
             r->p.state == SL_LEG_NONE ? "-" : r->p.node, r->split, r->d.node, n_tokens);
    send_legs(f, r);
}

static void place(struct sl_flow *f, struct sl_request *r)
{
    struct sl_place_choice choice;
    struct sl_why why = {{0}};
    enum sl_err err = sl_flow_choose(f, r, &choice, &why);
    if (err) {
        struct sl_trouble_in t = {.what = SL_TROUBLE_NO_PLACE, .err = err};
        sl_flow_trouble(f, r, &t, why.text);
        return;
    }
    if (sl_flow_must_wait(f, r, &choice)) {
        sl_flow_hold(f, r, &choice);
        return;
    }
    if (choice.best.predicted.miss > 0 && r->attempt == 0 && !missed(f, r, &choice.best.predicted))
        return;
    sl_flow_go(f, r, &choice);
}

void sl_flow_begin(struct sl_flow *f, struct sl_gen_req *req, struct sl_door_entry *door)
{
    struct sl_request *r = sl_request_table_add(f->table, req);
    SL_ASSERT(r != NULL); /* the door let one in under this id */
    r->flow = f;
    r->door = door;
    r->account = sl_flow_account(f, req);
    r->timer = sl_timer_new(f->loop, on_timer, r);
    uint32_t deadline_ms = req->deadline_ms ? req->deadline_ms : f->conf.default_deadline_ms;
    uint64_t now = sl_now_us(), arrived = req->arrived_us && req->arrived_us <= now ? req->arrived_us : now;
    r->deadline_us = arrived + (uint64_t)deadline_ms * 1000;

    struct sl_decision *d = r->record = sl_decisions_add(f->decisions, req->id);
    snprintf(d->client_id, sizeof d->client_id, "%s", req->client_id ? req->client_id : "");
    static const char *const modes[] = {"", "pd", "colocated", "hybrid"};
    if (req->mode == SL_MODE_DEFAULT)
        snprintf(d->asked_mode, sizeof d->asked_mode, "(%s)", sl_place_mode_name(f->mode));
    else
        snprintf(d->asked_mode, sizeof d->asked_mode, "%s", modes[req->mode]);
    d->asked_split = req->split;
    d->chunk = req->chunk;
    d->n_prompt = req->n_tokens;
    d->arrived_us = arrived;
    snprintf(d->slo_class, sizeof d->slo_class, "%s", req->slo_class ? req->slo_class : "");
    d->slo_ttft_ms = req->ttft_ms;
    d->slo_tpot_ms = req->tpot_ms;
    sl_request_metrics_arrived(f->metrics, req);

    if (!sl_door_is_open(f->door, door)) {
        sl_flow_client_left(f, r);
        return;
    }
    struct sl_why why = {{0}};
    enum sl_err err = sl_text_out_new(f->conf.tokenizer, req, &r->text, &why);
    if (err) {
        sl_flow_fail(f, r, err, why.text);
        return;
    }
    place(f, r);
}

/* ---- trouble ---- */

/* Takes work, and is left out because it failed r before. */
static bool left_out_lives(const struct sl_flow *f, const struct sl_request *r)
{
    for (uint32_t i = 0; i < sl_node_table_len(f->nodes); i++) {
        const struct sl_node *n = sl_node_table_at(f->nodes, i);
        if (n->state == SL_NODE_UP && n->may_decode && sl_request_is_excluded(r, n->name, n->boot_id))
            return true;
    }
    return false;
}

void sl_flow_trouble(struct sl_flow *f, struct sl_request *r, const struct sl_trouble_in *in, const char *why)
{
    if (r->state == SL_REQ_ENDING) {
        sl_flow_settle(f, r); /* the answer is complete; only facts are lost */
        return;
    }
    struct sl_trouble_in t = *in;
    t.streaming = r->state == SL_REQ_STREAMING;
    t.n_received = r->n_received;
    t.n_faults = r->n_faults;
    if (t.what == SL_TROUBLE_NO_PLACE && r->n_excluded) {
        t.before = r->before;
        t.left_out_lives = left_out_lives(f, r);
    }
    struct sl_recovery_out out = sl_recover(&t);
    char text[SL_WHY_MAX];
    if (t.before)
        snprintf(text, sizeof text, "The %s, as %s (%s).",
                 t.n_received ? "answer cannot go on" : "request cannot be served", out.because, r->because);
    else
        snprintf(text, sizeof text, "%s", why ? why : out.because);
    struct sl_leg *leg = t.leg_p ? &r->p : &r->d;

    switch (out.action) {
    case SL_RECOVERY_RECORD:
        r->record->n_recovered++;
        SL_DEBUG("a leg failed, the other goes on req=%s why=\"%s\"", r->req->id, text);
        break;
    case SL_RECOVERY_PLACE_AGAIN:
        r->record->n_recovered++;
        r->before = t.err ? t.err : SL_EPEER;
        r->n_faults += sl_err_class(r->before) != SL_CLASS_LATER;
        sl_request_exclude(r, leg->node, leg->boot_id);
        snprintf(r->because, sizeof r->because, "%.64s: %.80s", leg->node, out.because);
        sl_cluster_event(f->events_log, "info", "request", r->req->id, "placed again after %u tokens, %s",
                         r->n_received, r->because);
        SL_INFO("placed again req=%s attempt=%u tokens=%u why=\"%s: %s\"", r->req->id, r->attempt + 1,
                r->n_received, leg->node, out.because);
        cancel_legs(f, r, "placed again");
        sl_request_drop_held(r);
        r->gap_since_us = 0;
        r->n_resyncs_failed = 0;
        r->resync_owed = r->resync_open = r->resync_again = r->ended_by_node = r->ended_by_length = false;
        sl_request_metrics_recovered(f->metrics);
        place_again(f, r);
        break;
    case SL_RECOVERY_WAIT:
        r->state = SL_REQ_WAITING;
        r->n_excluded = 0;
        r->p.state = r->d.state = SL_LEG_NONE;
        r->retry_at_us = sl_now_us() + ((uint64_t)RETRY_MS << (r->n_waits < 3 ? r->n_waits : 3)) * 1000;
        r->n_waits++;
        sl_flow_arm(f, r);
        break;
    case SL_RECOVERY_FAIL:
        sl_flow_fail(f, r, out.err, text);
        break;
    }
}

/* So many nodes left out were full, most of them: a request is lost to nothing else so often. */
_Static_assert(SL_EXCLUDED_MAX > SL_MAX_FAULTS, "nodes that failed fill the list of those left out");

static void place_again(struct sl_flow *f, struct sl_request *r)
{
    if (r->n_excluded < SL_EXCLUDED_MAX) {
        place(f, r);
        return;
    }
    r->before = SL_EAGAIN;
    struct sl_trouble_in t = {.what = SL_TROUBLE_NO_PLACE, .err = SL_EAGAIN};
    sl_flow_trouble(f, r, &t, NULL);
}

/* ---- tokens and the end ---- */

bool sl_flow_deliver(struct sl_flow *f, struct sl_request *r, const Sluice__TokenEvent *ev)
{
    const uint64_t now = sl_now_us();
    const uint32_t index = r->n_received;
    sl_request_receive(r, ev->token, now);
    sl_share_charge(r->account, SL_SHARE_OUTPUT);
    r->state = SL_REQ_STREAMING;
    /* From the decode node, since the first may be the prefill node's: nodes that failed it before may be well again. How
     * often it fails is counted. */
    if (index > r->n_placed)
        r->n_excluded = r->n_waits = 0;
    if (index == 0)
        r->record->first_us = now;
    else if (index == 1)
        r->record->second_us = now;
    sl_request_metrics_token(f->metrics, r->record, index, r->gap_us[index]);

    struct sl_text_piece piece;
    sl_text_out_push(r->text, ev->token, index, &piece);
    r->n_chars_sent += piece.len;
    struct sl_gen_event out = {.kind = SL_GEN_TOKEN,
                               .token = ev->token,
                               .index = index,
                               .text = piece.text,
                               .text_len = piece.len,
                               .raw = ev,
                               .stop_token = -1};
    if (!emit(f, r, &out)) {
        sl_flow_client_left(f, r);
        return false;
    }
    if (piece.stopped_by) {
        r->stop_reason = piece.stopped_by;
        sl_flow_end(f, r, "stop");
        return false;
    }
    /* not left to the node, whose end may be lost, or never come */
    const char *reason = over(f, r);
    if (reason)
        sl_flow_end(f, r, reason);
    return !reason;
}

/* Tokens neither node computed, as the last attempt's nodes told. */
static uint32_t cached_tokens(const struct sl_request *r)
{
    const struct sl_decision_leg *leg = r->split ? &r->record->p : &r->record->d;
    const struct sl_decision_leg *d = &r->record->d;
    uint32_t cached = leg->report.has_cached_tokens ? leg->report.cached_tokens : 0;
    if (r->split && d->report.has_cached_tokens && d->report.cached_tokens >= r->split)
        cached = d->report.cached_tokens; /* P was not needed */
    return cached < r->req->n_tokens ? cached : r->req->n_tokens;
}

static void finish(struct sl_flow *f, struct sl_request *r)
{
    struct sl_gen_event ev = {.kind = SL_GEN_DONE,
                              .token = -1,
                              .finish_reason = r->finish_reason,
                              .stop_reason = r->stop_reason,
                              .stop_token = r->stop_token,
                              .usage = {.prompt_tokens = r->req->n_tokens,
                                        .completion_tokens = r->n_received,
                                        .cached_tokens = cached_tokens(r)}};
    emit(f, r, &ev);
    cancel_legs(f, r, "over");
    close_request(f, r, r->finish_reason);
}

static bool all_legs_done(const struct sl_request *r)
{
    return (r->p.state == SL_LEG_NONE || r->p.state == SL_LEG_DONE) &&
           (r->d.state == SL_LEG_NONE || r->d.state == SL_LEG_DONE);
}

void sl_flow_settle(struct sl_flow *f, struct sl_request *r)
{
    if (all_legs_done(r))
        finish(f, r);
}

void sl_flow_end(struct sl_flow *f, struct sl_request *r, const char *reason)
{
    SL_ASSERT(r->state != SL_REQ_ENDING); /* a request ends once, for one reason */
    r->state = SL_REQ_ENDING;
    r->finish_reason = reason;
    if (!r->stop_reason) {
        struct sl_text_piece rest;
        sl_text_out_end(r->text, &rest);
        emit_text(f, r, &rest);
        r->stop_reason = rest.stopped_by;
        int32_t last = r->n_received ? r->received[r->n_received - 1] : -1;
        if (strcmp(reason, "stop") == 0 && last >= 0)
            r->stop_token = last;
        if (r->stop_reason)
            r->finish_reason = "stop";
    }
    if (all_legs_done(r)) {
        finish(f, r);
        return;
    }
    if (r->stop_reason) { /* the router's to find: the nodes still decode */
        sl_flow_send_cancel(f, r, &r->d, "stop string");
        sl_flow_send_cancel(f, r, &r->p, "stop string");
    }
    r->settle_at_us = sl_now_us() + SETTLE_MS * 1000;
    sl_flow_arm(f, r);
}
