/* router/admin/admin_trace.c - one request's time line over the nodes that had a part in it: spans in
 * milliseconds since it arrived, on lanes (the router, P, D).
 *
 * Clocks are not shared. A node tells times since the command came to it; the command cannot have come before
 * it was sent, nor so late that the node's whole time would not fit before its end was heard of. The middle of
 * the two is taken, and half their distance is the lane's error, told in the row of its queue.
 * Tokens are shown as the router received them. */
#include "router/admin/admin_tables.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SPANS (2 * SL_DECISION_CHUNKS + SL_DECISION_ATTEMPTS + 16)
#define DETAIL    320

struct span {
    int64_t at_us, us; /* since arrival; us < 0 = a moment */
    const char *lane, *part, *name;
    char detail[DETAIL];
};

struct trace {
    struct span *spans;
    uint32_t n;
};

static struct span *add(struct trace *t, const char *lane, const char *part, const char *name, int64_t at_us,
                        int64_t us)
{
    if (t->n == MAX_SPANS)
        return &t->spans[MAX_SPANS - 1];
    struct span *s = &t->spans[t->n++];
    *s = (struct span){.at_us = at_us, .us = us, .lane = lane, .part = part, .name = name};
    return s;
}

static int by_time(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->at_us != y->at_us ? (x->at_us > y->at_us ? 1 : -1) : (x->us < y->us) - (x->us > y->us);
}

/* When the command came to the node, on this router's clock since the arrival, and by how much that may be
 * wrong. */
static int64_t came_us(const struct sl_decision *d, const struct sl_decision_leg *leg, int64_t *error_us)
{
    int64_t earliest = (int64_t)leg->sent_us - (int64_t)d->arrived_us;
    int64_t latest = (int64_t)leg->done_us - (int64_t)d->arrived_us - (int64_t)leg->report.age_us;
    int64_t slack = leg->reported && leg->report.has_age_us && latest > earliest ? latest - earliest : 0;
    *error_us = slack / 2;
    return earliest + slack / 2;
}

/* from: tokens that were there before the first of them. */
static void chunks(struct trace *t, const char *lane, const struct sl_decision_leg *leg, int64_t came,
                   uint32_t from)
{
    for (uint32_t i = 0; i < leg->n_chunks; i++) {
        const struct sl_decision_chunk *c = &leg->chunks[i];
        bool sum = i + 1 == SL_DECISION_CHUNKS;
        struct span *s = add(t, lane, "prefill", sum ? "chunks" : "chunk",
                             came + (int64_t)c->end_us - (int64_t)c->us, (int64_t)c->us);
        snprintf(s->detail, sizeof s->detail, "%u tokens, %u so far%s", c->tokens, from += c->tokens,
                 sum ? "; several chunks in one row" : "");
    }
}

static void leg(struct trace *t, const struct sl_decision *d, const char *lane,
                const struct sl_decision_leg *leg)
{
    const Sluice__LegReport *r = &leg->report;
    int64_t error, came = came_us(d, leg, &error);
    if (!leg->sent_us)
        return;
    bool is_p = leg == &d->p;
    struct span *s = add(t, lane, "queue", "queue", came,
                         leg->reported && r->has_queue_ms ? (int64_t)(r->queue_ms * 1e3f) : -1);
    snprintf(s->detail, sizeof s->detail,
             "waits to be admitted; %u tokens were in its cache; this lane may be off by %.1f ms",
             leg->reported ? r->cached_tokens : 0, (double)error / 1e3);
    if (!leg->reported)
        return;
    uint32_t split = sl_decision_last(d)->split,
             received = split > r->recovered_tokens ? split - r->recovered_tokens : 0;
    chunks(t, lane, leg, came, is_p || r->cached_tokens > received ? r->cached_tokens : received);
    if (is_p && r->has_granted_us && r->has_age_us) {
        s = add(t, lane, "transfer", "transfer", came + r->granted_us,
                (int64_t)r->age_us - (int64_t)r->granted_us);
        snprintf(s->detail, sizeof s->detail,
                 "%u pages to %s from the grant to the last commit, %u sent again", r->pages_sent,
                 sl_decision_last(d)->d, r->resends);
    }
    if (!is_p && r->has_received_us) {
        int64_t start = (int64_t)(r->queue_ms * 1e3f);
        s = add(t, lane, "transfer", "receive", came + start, (int64_t)r->received_us - start);
        snprintf(s->detail, sizeof s->detail, "%u pages from %s%s", r->pages_received, sl_decision_last(d)->p,
                 r->recovered_tokens ? "; it was lost, the rest was computed here" : "");
    }
    if (r->has_age_us)
        snprintf(add(t, lane, "queue", "end", came + r->age_us, -1)->detail, DETAIL, "%s", leg->end);
}

static void router_lane(struct trace *t, const struct sl_decision *d, uint64_t now_us)
{
    int64_t arrived = (int64_t)d->arrived_us;
    struct span *s =
        add(t, "router", "request", "request", 0, (int64_t)(d->done_us ? d->done_us : now_us) - arrived);
    snprintf(s->detail, sizeof s->detail, "%u prompt tokens, %u generated, %s", d->n_prompt, d->n_generated,
             d->finish[0] ? d->finish : "running");
    if (d->placed_us)
        snprintf(add(t, "router", "queue", "queue", 0, (int64_t)d->placed_us - arrived)->detail, DETAIL,
                 "waits for its turn");
    for (uint32_t i = 0; i < d->n_attempts && i < SL_DECISION_ATTEMPTS; i++) {
        const struct sl_decision_attempt *a = &d->attempts[i];
        s = add(t, "router", "queue", "placed", (int64_t)a->at_us - arrived, -1);
        snprintf(s->detail, sizeof s->detail, "%s%s%s %s%s: %s", sl_place_mode_name(a->mode),
                 a->p[0] ? " on " : "", a->p, a->p[0] ? "and " : "on ", a->d, a->why);
    }
    if (d->first_us)
        snprintf(add(t, "router", "request", "first token", (int64_t)d->first_us - arrived, -1)->detail,
                 DETAIL, "time to first token");
}

static void decode_span(struct trace *t, const struct sl_decision *d, const char *lane,
                        const uint32_t *gap_us, uint32_t n)
{
    int64_t us = 0;
    for (uint32_t i = 1; i < n; i++)
        us += gap_us[i];
    if (n < 2)
        return;
    struct span *s = add(t, lane, "decode", "decode", (int64_t)(d->first_us - d->arrived_us), us);
    snprintf(s->detail, sizeof s->detail,
             "%u tokens after the first, %.2f ms between them; each of them: -o wide", n - 1,
             (double)us / 1e3 / (n - 1));
}

static void spans_table(struct sl_admin_out *o, struct trace *t)
{
    qsort(t->spans, t->n, sizeof *t->spans, by_time);
    sl_admin_table(o, "trace", "at_ms,ms,lane,part,what,detail");
    for (uint32_t i = 0; i < t->n; i++) {
        const struct span *s = &t->spans[i];
        sl_admin_row(o);
        sl_admin_cell(o, "%.3f", (double)s->at_us / 1e3);
        if (s->us < 0)
            sl_admin_cell(o, "-");
        else
            sl_admin_cell(o, "%.3f", (double)s->us / 1e3);
        sl_admin_cell(o, "%s", s->lane);
        sl_admin_cell(o, "%s", s->part);
        sl_admin_cell(o, "%s", s->name);
        sl_admin_cell(o, "%s", s->detail);
    }
}

static void tokens_table(struct sl_admin_out *o, const struct sl_decision *d, const uint32_t *gap_us,
                         uint32_t n)
{
    uint64_t at = d->first_us - d->arrived_us;
    sl_admin_table(o, "tokens", "token,token_at_ms,gap_ms");
    for (uint32_t i = 0; i < n; i++) {
        at += i ? gap_us[i] : 0;
        sl_admin_row(o);
        sl_admin_cell(o, "%u", i);
        sl_admin_cell(o, "%.3f", (double)at / 1e3);
        sl_admin_cell(o, "%.3f", i ? gap_us[i] / 1e3 : 0.0);
    }
}

void sl_admin_trace(struct sl_admin_out *o, const struct sl_admin_state *s, const char *id)
{
    const struct sl_decision *d = sl_admin_find(o, s, id);
    if (!d)
        return;
    const struct sl_request *open = sl_request_table_find(s->requests, d->id);
    const uint32_t *gap_us = open ? open->gap_us : d->gap_us;
    uint32_t n = open ? open->n_received : d->n_gaps;
    n = n < SL_DECISION_TOKENS ? n : SL_DECISION_TOKENS;
    struct trace t = {.spans = sl_xcalloc(MAX_SPANS, sizeof *t.spans)};
    const struct sl_decision_attempt *a = sl_decision_last(d);
    router_lane(&t, d, s->now_us);
    if (a && a->p[0])
        leg(&t, d, a->p, &d->p);
    if (a)
        leg(&t, d, a->d, &d->d);
    if (a && d->first_us)
        decode_span(&t, d, a->d, gap_us, n);
    sl_admin_say(o, "%s: milliseconds since it came to the router%s.", d->id,
                 d->n_attempts > 1 ? "; of its nodes the last placement's only" : "");
    spans_table(o, &t);
    if (d->first_us)
        tokens_table(o, d, gap_us, n);
    sl_free(t.spans);
}
