/* common/node/node_leg.c - the table of legs and the one way each of them ends (steps 4 and 10 of the request
 * path).
 *
 * Legs of one request and duty hang in a chain, the newest attempt first: the table finds the chain by
 * request id, events of transfers find their attempt in it. A leg's memory stays until it was finished for a
 * while, so that whatever points at it (events of the round, the engine's owner pointer) needs no look-up. */
#include "common/node/node_leg.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/node/node_router.h"

#define CANCEL_RETRY_MS 10

struct tombstone {
    struct sl_list link;
    uint32_t attempt; /* this one and lower ones are refused */
    uint64_t until_ms;
    char request_id[SL_XFER_MAX_ID];
};

static size_t map_key(Sluice__Role role, const char *request_id, char key[SL_XFER_MAX_ID + 1])
{
    size_t n = strnlen(request_id, SL_XFER_MAX_ID - 1);
    key[0] = (char)role;
    memcpy(key + 1, request_id, n);
    return n + 1;
}

static void retry_cancels(void *arg)
{
    struct sl_node *n = arg;
    bool owed = false;
    SL_LIST_FOREACH_SAFE (p, next, &n->legs.active) {
        struct sl_leg *l = SL_CONTAINER_OF(p, struct sl_leg, link);
        if (l->cancel_owed && l->xfer == SL_LEG_XFER_OPEN)
            l->cancel_owed = l->duty->cancel_xfer(l, l->why) == SL_EAGAIN;
        owed |= l->cancel_owed && l->xfer == SL_LEG_XFER_OPEN;
    }
    if (owed)
        sl_timer_set(n->legs.retry, CANCEL_RETRY_MS);
}

void sl_legs_init(struct sl_node *n)
{
    struct sl_legs *t = &n->legs;
    t->by_request = sl_hashmap_new();
    t->tombstones = sl_hashmap_new();
    sl_list_init(&t->active);
    sl_list_init(&t->finished);
    sl_list_init(&t->tombstone_order);
    t->retry = sl_timer_new(n->loop, retry_cancels, n);
}

static struct sl_leg *newest(const struct sl_node *n, Sluice__Role role, const char *request_id)
{
    char key[SL_XFER_MAX_ID + 1];
    size_t len = map_key(role, request_id, key);
    return sl_hashmap_get(n->legs.by_request, key, len);
}

struct sl_leg *sl_leg_find(const struct sl_node *n, Sluice__Role role, const char *request_id,
                           uint32_t attempt)
{
    struct sl_leg *l = newest(n, role, request_id);
    while (l && l->key.epoch != attempt)
        l = l->older;
    return l;
}

/* Out of the chain and the table, memory gone. Its list was left before. */
static void leg_free(struct sl_leg *l)
{
    struct sl_node *n = l->node;
    char key[SL_XFER_MAX_ID + 1];
    size_t len = map_key(l->duty->role, l->key.request, key);
    struct sl_leg *first = sl_hashmap_get(n->legs.by_request, key, len);
    if (first == l) {
        if (l->older)
            sl_hashmap_put(n->legs.by_request, key, len, l->older);
        else
            sl_hashmap_del(n->legs.by_request, key, len);
    } else {
        while (first->older != l)
            first = first->older;
        first->older = l->older;
    }
    sl_timer_free(l->deadline);
    sl_free(l->tokens);
    sl_free(l->top_tokens);
    sl_free(l->top_logprobs);
    sl_free(l);
}

static void list_free(struct sl_list *list)
{
    SL_LIST_FOREACH_SAFE (p, next, list) {
        sl_list_remove(p);
        leg_free(SL_CONTAINER_OF(p, struct sl_leg, link));
    }
}

static void tombstone_free(struct sl_legs *t, struct tombstone *s)
{
    sl_list_remove(&s->link);
    sl_hashmap_del(t->tombstones, s->request_id, strlen(s->request_id));
    t->n_tombstones--;
    sl_free(s);
}

void sl_legs_fini(struct sl_node *n)
{
    struct sl_legs *t = &n->legs;
    if (!t->by_request)
        return;
    SL_LIST_FOREACH (p, &t->active) {
        struct sl_leg *l = SL_CONTAINER_OF(p, struct sl_leg, link);
        if (l->seq)
            sl_engine_seq_close(n->engine, l->seq);
    }
    list_free(&t->active);
    list_free(&t->finished);
    while (!sl_list_empty(&t->tombstone_order))
        tombstone_free(t, SL_CONTAINER_OF(t->tombstone_order.next, struct tombstone, link));
    sl_timer_free(t->retry);
    sl_hashmap_free(t->by_request);
    sl_hashmap_free(t->tombstones);
}

/* ---- tombstones ---- */

static void tombstone_add(struct sl_node *n, const char *request_id, uint32_t attempt, uint32_t ms)
{
    struct sl_legs *t = &n->legs;
    uint64_t until = sl_now_ms() + ms;
    struct tombstone *s = sl_hashmap_get(t->tombstones, request_id, strlen(request_id));
    if (!s) {
        if (t->n_tombstones == SL_LEGS_MAX_TOMBSTONES)
            tombstone_free(t, SL_CONTAINER_OF(t->tombstone_order.next, struct tombstone, link));
        s = sl_xcalloc(1, sizeof *s);
        snprintf(s->request_id, sizeof s->request_id, "%s", request_id);
        sl_hashmap_put(t->tombstones, s->request_id, strlen(s->request_id), s);
        sl_list_add_tail(&t->tombstone_order, &s->link);
        t->n_tombstones++;
    }
    if (attempt > s->attempt)
        s->attempt = attempt;
    if (until > s->until_ms)
        s->until_ms = until;
}

static bool tombstone_covers(const struct sl_node *n, const char *request_id, uint32_t attempt)
{
    const struct tombstone *s = sl_hashmap_get(n->legs.tombstones, request_id, strlen(request_id));
    return s && attempt <= s->attempt && sl_now_ms() < s->until_ms;
}

/* ---- a leg's beginning ---- */

static void on_deadline(void *arg)
{
    struct sl_leg *l = arg;
    l->node->counters.expired++;
    sl_leg_end(l, SLUICE__DONE_REASON__DONE_ERROR, SL_EDEADLINE, "the request's deadline passed");
}

static void leave_active(struct sl_leg *l)
{
    sl_list_remove(&l->link);
    l->node->legs.n_active--;
    l->node->legs.n_constrained -= l->constrained;
}

static struct sl_leg *leg_new(struct sl_node *n, const struct sl_duty_ops *duty, const struct sl_order *o)
{
    struct sl_leg *l = sl_xcalloc(1, duty->leg_bytes);
    l->node = n;
    l->duty = duty;
    snprintf(l->key.request, sizeof l->key.request, "%s", o->request_id);
    l->key.epoch = o->attempt;
    l->router_boot_id = o->router_boot_id;
    l->n_tokens = (uint32_t)o->n_tokens;
    l->n_prompt = o->n_prompt;
    l->first_index = l->n_tokens - l->n_prompt;
    l->split = o->split_tokens;
    l->n_logprobs = o->sampling->n_logprobs;
    l->want_digest = o->want_digest;
    l->constrained = o->sampling->json_schema != NULL;
    l->came_us = sl_now_us();
    l->deadline_us = l->came_us + (uint64_t)o->deadline_ms * 1000;
    l->state = "waiting";
    sl_order_peer(o, &l->peer);
    sluice__leg_report__init(&l->report);
    l->report.chunk_tokens = l->chunk_tokens;
    l->report.chunk_end_us = l->chunk_end_us;
    l->report.chunk_us = l->chunk_us;
    l->deadline = sl_timer_new(n->loop, on_deadline, l);
    sl_timer_set(l->deadline, o->deadline_ms);

    char key[SL_XFER_MAX_ID + 1];
    size_t len = map_key(duty->role, l->key.request, key);
    l->older = sl_hashmap_put(n->legs.by_request, key, len, l);
    sl_list_add_tail(&n->legs.active, &l->link);
    n->legs.n_active++;
    n->legs.n_constrained += l->constrained;
    return l;
}

static enum sl_err place(struct sl_node *n, const struct sl_duty_ops *duty, const struct sl_order *o,
                         bool *duplicate, struct sl_why *why)
{
    struct sl_leg *old = newest(n, duty->role, o->request_id);
    *duplicate = false;
    if (old && old->key.epoch == o->attempt) {
        *duplicate = true;
        n->counters.duplicates++;
        return SL_OK;
    }
    if (old && old->key.epoch > o->attempt)
        return sl_why_set(why, SL_ECANCELED, "attempt %u of the request is over, attempt %u is here",
                          o->attempt, old->key.epoch);
    if (tombstone_covers(n, o->request_id, o->attempt))
        return sl_why_set(why, SL_ECANCELED, "the request was canceled before it came");
    if (!sl_node_may(n, duty->role))
        return sl_why_set(why, SL_EUNSUPPORTED, "node %s may not %s; its option roles says so", n->conf->name,
                          duty->name);
    if (n->draining)
        return sl_why_set(why, SL_EDRAINING, "node %s takes no new work, it is draining", n->conf->name);
    struct sl_node_router *r = sl_node_router_find(n, o->router_boot_id);
    if (!r)
        return sl_why_set(why, SL_ENOTREADY, "node %s is not registered with this router", n->conf->name);
    sl_node_router_heard(r);
    enum sl_err err = sl_order_check(o, n->conf->page_tokens, why);
    if (err != SL_OK)
        return err;
    for (; old; old = old->older) {
        if (!old->ended)
            n->counters.superseded++;
        sl_leg_end(old, SLUICE__DONE_REASON__DONE_CANCELED, SL_ECANCELED, "a later attempt came");
    }
    if (o->sampling->json_schema && n->legs.n_constrained >= n->conf->max_constrained)
        return sl_why_set(why, SL_EAGAIN, "node %s holds %u answers to a schema, its max_constrained",
                          n->conf->name, n->legs.n_constrained);
    struct sl_leg *l = leg_new(n, duty, o);
    err = duty->accept(l, o, why);
    if (err == SL_OK)
        return SL_OK;
    SL_ASSERT(!l->seq && l->xfer != SL_LEG_XFER_OPEN);
    leave_active(l);
    leg_free(l);
    return err;
}

enum sl_err sl_leg_place(struct sl_node *n, const struct sl_duty_ops *duty, const struct sl_order *o,
                         struct sl_why *why)
{
    bool duplicate;
    enum sl_err err = place(n, duty, o, &duplicate, why);
    if (err != SL_OK) {
        n->counters.refused++;
        SL_DEBUG("request refused req=%s attempt=%u duty=%s code=%s why=\"%s\"", o->request_id, o->attempt,
                 duty->name, sl_err_name(err), why->text);
        if (duty->refused)
            duty->refused(n, o, why->text);
    } else if (!duplicate) {
        n->counters.accepted++;
        SL_DEBUG("request accepted req=%s attempt=%u duty=%s tokens=%zu split=%u", o->request_id, o->attempt,
                 duty->name, o->n_tokens, o->split_tokens);
    }
    return err;
}

void sl_leg_cancel(struct sl_node *n, const char *request_id, uint32_t attempt, uint32_t tombstone_ms,
                   const char *why)
{
    tombstone_add(n, request_id, attempt, tombstone_ms);
    for (size_t i = 0; n->duties[i]; i++) {
        for (struct sl_leg *l = newest(n, n->duties[i]->role, request_id); l; l = l->older) {
            if (l->key.epoch > attempt || l->ended)
                continue;
            n->counters.canceled++;
            sl_leg_end(l, SLUICE__DONE_REASON__DONE_CANCELED, SL_ECANCELED, why);
        }
    }
}

/* ---- its middle ---- */

void sl_leg_state(struct sl_leg *l, const char *state, bool tell)
{
    SL_TRACE("leg moves on req=%s attempt=%u duty=%s from=%s to=%s", l->key.request, l->key.epoch,
             l->duty->name, l->state, state);
    l->state = state;
    if (tell)
        sl_node_tell_state(l);
}

void sl_leg_admitted(struct sl_leg *l)
{
    struct sl_seq_view v;
    sl_seq_view(l->seq, &v);
    if (l->admitted_once)
        return;
    l->admitted_once = true;
    l->report.has_cached_tokens = true;
    l->report.cached_tokens = v.hit_tokens;
    l->report.has_queue_ms = true;
    l->report.queue_ms = (float)(v.admitted_us - v.opened_us) / 1000.0f;
    sl_leg_state(l, "admitted", true);
}

void sl_leg_token(struct sl_leg *l, uint32_t index, const struct sl_sampled *t, bool tell)
{
    SL_ASSERT(index == l->first_index + l->n_token_log);
    if (l->n_token_log == l->token_cap) {
        l->token_cap = l->token_cap ? 2 * l->token_cap : 32;
        l->tokens = sl_xrealloc_array(l->tokens, l->token_cap, sizeof *l->tokens);
    }
    uint32_t n_top = l->n_logprobs > 0 ? t->n_top : 0;
    if (l->n_top + n_top > l->top_cap) {
        l->top_cap = 2 * (l->n_top + n_top);
        l->top_tokens = sl_xrealloc_array(l->top_tokens, l->top_cap, sizeof *l->top_tokens);
        l->top_logprobs = sl_xrealloc_array(l->top_logprobs, l->top_cap, sizeof *l->top_logprobs);
    }
    for (uint32_t i = 0; i < n_top; i++) {
        l->top_tokens[l->n_top + i] = t->top_token[i];
        l->top_logprobs[l->n_top + i] = t->top_logprob[i];
    }
    l->tokens[l->n_token_log] = (struct sl_leg_token){.token = t->token,
                                                      .logprob = t->logprob,
                                                      .logits_digest = t->logits_digest,
                                                      .first_top = l->n_top,
                                                      .n_top = n_top};
    l->n_top += n_top;
    if (tell)
        sl_node_tell_token(l, l->n_token_log);
    l->n_token_log++;
}

uint32_t sl_leg_age_us(const struct sl_leg *l)
{
    uint64_t us = sl_now_us() - l->came_us;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* A prompt chunk of this leg for its time line. */
static void note_chunk(struct sl_leg *l, const struct sl_engine_event *ev)
{
    struct sl_seq_view v;
    if (ev->step_ms <= 0)
        return; /* they were in the cache */
    sl_seq_view(l->seq, &v);
    uint32_t tokens = v.prompt_tokens_computed - l->chunked_tokens;
    l->chunked_tokens = v.prompt_tokens_computed;
    size_t at = l->report.n_chunk_tokens;
    if (at == SL_LEG_CHUNKS)
        at--;
    else
        l->report.n_chunk_tokens = l->report.n_chunk_end_us = l->report.n_chunk_us = at + 1;
    l->chunk_tokens[at] += tokens;
    l->chunk_end_us[at] = sl_leg_age_us(l);
    l->chunk_us[at] += (uint32_t)(ev->step_ms * 1e3);
}

void sl_leg_on_engine(struct sl_node *n, const struct sl_engine_event *ev)
{
    struct sl_leg *l = ev->owner;
    (void)n;
    if (l->ended || l->seq != ev->seq)
        return;
    if (ev->kind == SL_EV_PREEMPTED)
        SL_DEBUG("sequence preempted req=%s duty=%s", l->key.request, l->duty->name);
    if (ev->kind == SL_EV_COMPUTED)
        note_chunk(l, ev);
    l->duty->on_engine(l, ev);
}

/* ---- its end ---- */

static size_t kept_bytes(const struct sl_leg *l)
{
    return l->token_cap * sizeof *l->tokens + l->top_cap * (sizeof *l->top_tokens + sizeof *l->top_logprobs);
}

/* Ended and no transfer open: the pages go. */
static void release(struct sl_leg *l)
{
    struct sl_node *n = l->node;
    if (l->seq)
        sl_engine_seq_close(n->engine, l->seq);
    l->seq = NULL;
    leave_active(l);
    sl_list_add_tail(&n->legs.finished, &l->link);
    n->legs.n_finished++;
    n->legs.finished_bytes += kept_bytes(l);
    l->ended_ms = sl_now_ms();
}

static void take_report(struct sl_leg *l)
{
    l->report.has_age_us = true;
    l->report.age_us = sl_leg_age_us(l);
    if (!l->seq)
        return;
    struct sl_seq_view v;
    sl_seq_view(l->seq, &v);
    Sluice__LegReport *r = &l->report;
    r->has_prompt_tokens_computed = r->has_chunks = r->has_largest_chunk = r->has_preemptions = true;
    r->prompt_tokens_computed = v.prompt_tokens_computed;
    r->chunks = v.chunks;
    r->largest_chunk = v.largest_chunk;
    r->preemptions = v.preemptions;
    r->has_drafted_tokens = r->has_accepted_tokens = true;
    r->drafted_tokens = v.drafted;
    r->accepted_tokens = v.accepted;
    if (v.prefilled_us > v.admitted_us && v.admitted_us) {
        r->has_prefill_ms = true;
        r->prefill_ms = (float)(v.prefilled_us - v.admitted_us) / 1000.0f;
    }
}

void sl_leg_end(struct sl_leg *l, Sluice__DoneReason reason, enum sl_err code, const char *why)
{
    if (l->ended)
        return;
    l->ended = true;
    l->reason = reason;
    l->code = code;
    snprintf(l->why, sizeof l->why, "%s", why ? why : "");
    take_report(l);
    sl_timer_clear(l->deadline);
    sl_leg_state(l, "ended", false);
    sl_node_tell_done(l);
    if (reason == SLUICE__DONE_REASON__DONE_ERROR)
        SL_INFO("request ended with an error req=%s attempt=%u duty=%s code=%s why=\"%s\"", l->key.request,
                l->key.epoch, l->duty->name, sl_err_name(code), l->why);
    if (l->xfer != SL_LEG_XFER_OPEN) {
        release(l);
        return;
    }
    l->cancel_owed = l->duty->cancel_xfer(l, l->why) == SL_EAGAIN;
    if (l->cancel_owed)
        sl_timer_set(l->node->legs.retry, CANCEL_RETRY_MS);
}

void sl_leg_on_xfer(struct sl_node *n, const struct sl_xfer_event *ev)
{
    bool send = ev->kind == SL_XFER_GRANTED || ev->kind == SL_XFER_SEND_DONE;
    bool last = ev->kind == SL_XFER_SEND_DONE || ev->kind == SL_XFER_RECV_DONE;
    struct sl_leg *l = sl_leg_find(n, send ? SLUICE__ROLE__ROLE_PREFILL : SLUICE__ROLE__ROLE_DECODE,
                                   ev->key.request, ev->key.epoch);
    if (!l || l->xfer != SL_LEG_XFER_OPEN)
        return; /* an abort of an order that was refused ends here too */
    if (last) {
        l->xfer = SL_LEG_XFER_OVER;
        l->cancel_owed = false;
        if (l->seq)
            sl_engine_seq_pin(n->engine, l->seq, false);
    }
    if (!l->ended)
        l->duty->on_xfer(l, ev);
    else if (last)
        release(l);
}

void sl_legs_reap(struct sl_node *n, uint64_t now_ms)
{
    struct sl_legs *t = &n->legs;
    while (!sl_list_empty(&t->finished)) {
        struct sl_leg *l = SL_CONTAINER_OF(t->finished.next, struct sl_leg, link);
        bool full = t->n_finished > SL_LEGS_MAX_FINISHED || t->finished_bytes > SL_LEGS_MAX_BYTES;
        if (!full && now_ms < l->ended_ms + SL_LEGS_KEEP_MS)
            break;
        sl_list_remove(&l->link);
        t->n_finished--;
        t->finished_bytes -= kept_bytes(l);
        leg_free(l);
    }
    while (!sl_list_empty(&t->tombstone_order)) {
        struct tombstone *s = SL_CONTAINER_OF(t->tombstone_order.next, struct tombstone, link);
        if (now_ms < s->until_ms)
            break;
        tombstone_free(t, s);
    }
}

void sl_legs_end(struct sl_node *n, uint64_t router_boot_id, bool every, Sluice__DoneReason reason,
                 enum sl_err code, const char *why)
{
    SL_LIST_FOREACH_SAFE (p, next, &n->legs.active) {
        struct sl_leg *l = SL_CONTAINER_OF(p, struct sl_leg, link);
        if (every || l->router_boot_id == router_boot_id)
            sl_leg_end(l, reason, code, why);
    }
}
