/* common/node/node_router.c - registration, heartbeats and event batches of one router (step 10 of the
 * request path).
 *
 * A batch is a list of references into legs until it is sent: legs outlive the round. Sequence numbers count
 * every batch made in this life of the node, sent or lost, so that the router sees a gap; a gap with nothing
 * behind it is shown by an empty batch at the next heartbeat. They count on at another router behind the same url:
 * the former may come back, and would take lower ones for sent again. */
#include "common/node/node_router.h"

#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/node/node_stats.h"

#define DEFAULT_HEARTBEAT_MS 1000u /* until the router says how often.. */
#define DEFAULT_DEAD_MS      3000u /* ..and how long it may be silent */
#define LEAVING_BEAT_MS      20u   /* while the node waits for nothing but that its last events are taken.. */
#define LEAVING_DEAD_MS      5000u /* ..for which a router that is silent so long is not waited.. */
#define LEAVING_BLIND_MS     300u  /* ..nor longer for one too old to say what it took */
#define REFUSED_RETRY_MS     5000u /* a person has to change something first */
#define MAX_EVENTS_WAITING   1024u /* batches; more are lost, and asked for again because of the gap */
#define MESSAGE_ARENA_BYTES  ((size_t)64 << 20) /* of one message, far more than any has */

enum call_kind { CALL_REGISTER = 1, CALL_HEARTBEAT = 2 };

enum entry_kind { ENTRY_TOKEN, ENTRY_STATE, ENTRY_DONE, N_ENTRY_KINDS };
struct entry {
    enum entry_kind kind;
    struct sl_leg *leg;
    uint32_t at;       /* ENTRY_TOKEN: of leg->tokens */
    const char *state; /* ENTRY_STATE */
};

struct sl_node_router {
    struct sl_node *node;
    char *url;
    size_t index;
    struct sl_wire_client *client;
    struct sl_wire_push *push; /* NULL until registered once */
    char *event_url;
    uint64_t boot_id; /* 0 until registered once */
    bool registered, silent, calling, beat_wanted;
    uint32_t info, info_sent, info_told; /* changes of what this node is: so many, sent, accepted */
    uint32_t heartbeat_ms, dead_ms;
    uint64_t last_heard_ms;
    struct sl_timer *beat;
    struct sl_log_limit unreachable;

    struct entry *entries;
    size_t n_entries, cap;
    size_t n_of_kind[N_ENTRY_KINDS];
    uint64_t seq;    /* of the last batch made */
    uint64_t taken;  /* of the last one that the router said it took.. */
    bool says_taken; /* ..if it does */
    bool gap;        /* the last one was lost and nothing was sent since */
};

size_t sl_node_router_of_tag(uint64_t tag)
{
    return (size_t)(tag >> 8);
}

static uint32_t chosen(uint32_t configured, bool has, uint32_t told, uint32_t dflt)
{
    if (configured)
        return configured;
    return has && told ? told : dflt;
}

/* ---- calls ---- */

static void call(struct sl_node_router *r, Sluice__Envelope *e, enum call_kind kind)
{
    enum sl_err err = sl_wire_call(r->client, e, (uint64_t)r->index << 8 | kind, r->heartbeat_ms + 1000);
    r->calling = err == SL_OK;
    if (err != SL_OK)
        SL_ERROR("call to the router not made router=%s code=%s", r->url, sl_err_name(err));
}

static void send_register(struct sl_node_router *r)
{
    struct sl_arena *a = sl_arena_new(MESSAGE_ARENA_BYTES);
    Sluice__Register m = SLUICE__REGISTER__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    m.node = sl_node_info(r->node, a);
    r->info_sent = r->info;
    e.body_case = SLUICE__ENVELOPE__BODY_REGISTER_NODE;
    e.register_node = &m;
    call(r, &e, CALL_REGISTER);
    sl_arena_free(a);
}

static void send_heartbeat(struct sl_node_router *r)
{
    struct sl_node *n = r->node;
    struct sl_arena *a = sl_arena_new(MESSAGE_ARENA_BYTES);
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    Sluice__Heartbeat m = SLUICE__HEARTBEAT__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    sl_node_load(n, &load);
    m.node = n->conf->name;
    m.boot_id = n->boot_id;
    m.router_boot_id = r->boot_id;
    m.load = &load;
    m.n_links = sl_node_links(n, a, &m.links);
    m.cost = sl_node_cost(n, a);
    m.n_prefix_hashes = sl_node_prefix_hashes(n, a, &m.prefix_hashes);
    e.body_case = SLUICE__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &m;
    call(r, &e, CALL_HEARTBEAT);
    sl_arena_free(a);
}

static void push_batch(struct sl_node_router *r);

static void on_beat(void *arg)
{
    struct sl_node_router *r = arg;
    uint64_t now = sl_now_ms();
    r->last_heard_ms = sl_heard_ms(r->last_heard_ms, sl_timer_late_ms(r->beat), now);
    sl_timer_set(r->beat, r->heartbeat_ms);
    if (r->boot_id && !r->silent && now - r->last_heard_ms > r->dead_ms) {
        r->silent = true;
        SL_WARN("router silent, its requests are canceled router=%s silent_ms=%u", r->url, r->dead_ms);
        sl_legs_end(r->node, r->boot_id, false, SLUICE__DONE_REASON__DONE_CANCELED, SL_EPEER,
                    "the router is silent");
    }
    if (r->gap)
        push_batch(r);
    if (r->calling)
        return;
    if (r->registered && r->info_told == r->info)
        send_heartbeat(r);
    else
        send_register(r);
}

/* event_url with the host by which the router was dialed, when the router listens on all its addresses. */
static char *reachable_event_url(const struct sl_node_router *r, const char *event_url)
{
    const char *host = strstr(event_url, "://"), *port = strrchr(event_url, ':'),
               *dialed = strrchr(r->url, ':');
    bool any = host && (strncmp(host, "://0.0.0.0:", 11) == 0 || strncmp(host, "://[::]:", 8) == 0);
    if (!any || !strstr(r->url, "tcp://"))
        return sl_xstrdup(event_url);
    return sl_xasprintf("%.*s%s", (int)(dialed - r->url), r->url, port);
}

static void registered(struct sl_node_router *r, const Sluice__RegisterReply *m)
{
    if (!m->accepted || !m->event_url) {
        SL_ERROR("the router refused this node router=%s why=\"%s\"", r->url,
                 m->why        ? m->why
                 : m->accepted ? "it named no address for events"
                               : "it did not say");
        sl_timer_set(r->beat, REFUSED_RETRY_MS);
        return;
    }
    bool same = r->boot_id == m->router_boot_id;
    if (!same && r->boot_id)
        sl_legs_end(r->node, r->boot_id, false, SLUICE__DONE_REASON__DONE_CANCELED, SL_EPEER,
                    "the router restarted");
    r->heartbeat_ms =
        chosen(r->node->conf->heartbeat_ms, m->has_heartbeat_ms, m->heartbeat_ms, DEFAULT_HEARTBEAT_MS);
    r->dead_ms =
        chosen(r->node->conf->router_dead_ms, m->has_router_dead_ms, m->router_dead_ms, DEFAULT_DEAD_MS);
    char *event_url = reachable_event_url(r, m->event_url);
    if (!same || !r->push || strcmp(event_url, r->event_url) != 0) {
        struct sl_wire_push *push;
        struct sl_why why = {{0}};
        if (sl_wire_push_open(event_url, &r->node->guard, MAX_EVENTS_WAITING, &push, &why) != SL_OK) {
            SL_ERROR("the router's address for events does not work router=%s why=\"%s\"", r->url, why.text);
            sl_free(event_url);
            sl_timer_set(r->beat, REFUSED_RETRY_MS);
            return;
        }
        sl_wire_push_close(r->push);
        r->push = push;
        sl_free(r->event_url);
        r->event_url = event_url;
        event_url = NULL;
    }
    sl_free(event_url);
    if (!same) {
        r->gap = r->seq > 0; /* the numbers that others got */
        r->taken = 0;
        r->n_entries = 0;
        memset(r->n_of_kind, 0, sizeof r->n_of_kind);
    }
    r->boot_id = m->router_boot_id;
    r->registered = true;
    r->info_told = r->info_sent;
    r->silent = false;
    r->last_heard_ms = sl_now_ms();
    SL_INFO("registered router=%s events=%s heartbeat_ms=%u", r->url, r->event_url, r->heartbeat_ms);
    sl_timer_set(r->beat, 0);
}

/* Batches may have been lost behind the socket. While nothing else is told, an empty one shows the router that some
 * are missing. */
static void see_taken(struct sl_node_router *r, const Sluice__HeartbeatReply *m)
{
    r->gap |= r->node->last_words_ms && m->has_events_taken && m->events_taken == r->taken &&
              r->taken < r->seq && r->n_entries == 0;
    r->says_taken = m->has_events_taken;
    r->taken = m->events_taken;
}

void sl_node_router_answer(struct sl_node_router *r, const struct sl_wire_in *in)
{
    r->calling = false;
    unsigned suppressed;
    if (in->err != SL_OK) {
        if (sl_log_allow(&r->unreachable, 30000, &suppressed))
            SL_WARN("router does not answer router=%s code=%s suppressed=%u", r->url, sl_err_name(in->err),
                    suppressed);
        return;
    }
    const Sluice__Envelope *e = in->msg;
    if (e->body_case == SLUICE__ENVELOPE__BODY_REGISTER_REPLY && (in->tag & 0xff) == CALL_REGISTER) {
        registered(r, e->register_reply);
    } else if (e->body_case == SLUICE__ENVELOPE__BODY_HEARTBEAT_REPLY && (in->tag & 0xff) == CALL_HEARTBEAT) {
        bool same = e->heartbeat_reply->router_boot_id == r->boot_id;
        if (same) {
            sl_node_router_heard(r);
            see_taken(r, e->heartbeat_reply);
        }
        if (!e->heartbeat_reply->known || !same) {
            r->registered = false;
            sl_timer_set(r->beat, 0);
        } else if (r->beat_wanted) {
            sl_timer_set(r->beat, 0);
        } else if (r->node->last_words_ms && !sl_node_router_is_told(r)) {
            sl_timer_set(r->beat, LEAVING_BEAT_MS);
        }
        r->beat_wanted = false;
    } else if (e->body_case == SLUICE__ENVELOPE__BODY_COMMAND_REPLY) {
        if (sl_log_allow(&r->unreachable, 30000, &suppressed))
            SL_ERROR("the router refused a message router=%s code=%s why=\"%s\"", r->url,
                     sl_err_name((enum sl_err)e->command_reply->code),
                     e->command_reply->why ? e->command_reply->why : "");
    } else if (sl_log_allow(&r->unreachable, 30000, &suppressed)) {
        SL_WARN("the router's answer makes no sense router=%s body=%d", r->url, (int)e->body_case);
    }
}

void sl_node_router_heard(struct sl_node_router *r)
{
    r->last_heard_ms = sl_now_ms();
    r->silent = false;
}

void sl_node_router_beat(struct sl_node_router *r)
{
    if (r->calling)
        r->beat_wanted = true;
    else
        sl_timer_set(r->beat, 0);
}

void sl_node_router_tell_info(struct sl_node_router *r)
{
    r->info++;
    sl_node_router_beat(r);
}

bool sl_node_router_registered(const struct sl_node_router *r)
{
    return r->registered;
}

bool sl_node_router_is_told(const struct sl_node_router *r)
{
    uint64_t now = sl_now_ms(), asked_ms = r->node->last_words_ms ? r->node->last_words_ms : now;
    if (!r->registered || r->silent || now - r->last_heard_ms > LEAVING_DEAD_MS)
        return true;
    if (!r->says_taken)
        return now - asked_ms > LEAVING_BLIND_MS;
    return r->n_entries == 0 && !r->gap && r->taken >= r->seq;
}

struct sl_node_router *sl_node_router_find(struct sl_node *n, uint64_t boot_id)
{
    for (size_t i = 0; i < n->n_routers; i++) {
        if (n->routers[i]->boot_id == boot_id && boot_id)
            return n->routers[i];
    }
    return NULL;
}

enum sl_err sl_node_router_open(struct sl_node *n, const char *url, size_t index, struct sl_node_router **out,
                                struct sl_why *why)
{
    struct sl_node_router *r = sl_xcalloc(1, sizeof *r);
    r->node = n;
    r->index = index;
    r->heartbeat_ms = chosen(n->conf->heartbeat_ms, false, 0, DEFAULT_HEARTBEAT_MS);
    r->dead_ms = chosen(n->conf->router_dead_ms, false, 0, DEFAULT_DEAD_MS);
    enum sl_err err = sl_wire_client_open(url, &r->node->guard, 2, 0, n->answers, &r->client, why);
    if (err != SL_OK) {
        sl_free(r);
        return err;
    }
    r->url = sl_xstrdup(url);
    r->beat = sl_timer_new(n->loop, on_beat, r);
    sl_timer_set(r->beat, 0);
    *out = r;
    return SL_OK;
}

void sl_node_router_close(struct sl_node_router *r)
{
    if (!r)
        return;
    sl_timer_free(r->beat);
    sl_wire_client_close(r->client);
    sl_wire_push_close(r->push);
    sl_free(r->entries);
    sl_free(r->event_url);
    sl_free(r->url);
    sl_free(r);
}

/* ---- batches ---- */

static void add_entry(struct sl_leg *l, struct entry e)
{
    struct sl_node_router *r = sl_node_router_find(l->node, l->router_boot_id);
    if (!r)
        return;
    if (r->n_entries == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 64;
        r->entries = sl_xrealloc_array(r->entries, r->cap, sizeof *r->entries);
    }
    r->entries[r->n_entries++] = e;
    r->n_of_kind[e.kind]++;
}

void sl_node_tell_token(struct sl_leg *l, uint32_t at)
{
    add_entry(l, (struct entry){.kind = ENTRY_TOKEN, .leg = l, .at = at});
}

void sl_node_tell_state(struct sl_leg *l)
{
    add_entry(l, (struct entry){.kind = ENTRY_STATE, .leg = l, .state = l->state});
}

void sl_node_tell_done(struct sl_leg *l)
{
    add_entry(l, (struct entry){.kind = ENTRY_DONE, .leg = l});
}

void sl_leg_token_event(const struct sl_leg *l, uint32_t at, Sluice__TokenEvent *out)
{
    const struct sl_leg_token *t = &l->tokens[at];
    sluice__token_event__init(out);
    out->request_id = (char *)(uintptr_t)l->key.request;
    out->attempt = l->key.epoch;
    out->index = l->first_index + at;
    out->token = t->token;
    if (l->n_logprobs >= 0) {
        out->has_logprob = !isnan(t->logprob);
        out->logprob = out->has_logprob ? t->logprob : 0;
        out->n_top_tokens = out->n_top_logprobs = t->n_top;
        out->top_tokens = t->n_top ? l->top_tokens + t->first_top : NULL;
        out->top_logprobs = t->n_top ? l->top_logprobs + t->first_top : NULL;
    }
    if (l->want_digest) {
        out->has_logits_digest = true;
        out->logits_digest = t->logits_digest;
    }
}

void sl_leg_done_event(const struct sl_leg *l, Sluice__DoneEvent *out)
{
    sluice__done_event__init(out);
    out->request_id = (char *)(uintptr_t)l->key.request;
    out->attempt = l->key.epoch;
    out->duty = l->duty->role;
    out->reason = l->reason;
    if (l->code != SL_OK) {
        out->has_code = true;
        out->code = (uint32_t)l->code;
    }
    if (l->why[0])
        out->why = (char *)(uintptr_t)l->why;
    out->report = (Sluice__LegReport *)(uintptr_t)&l->report;
}

/* Arrays of n messages and of the pointers that protobuf-c wants. */
static void *message_array(struct sl_arena *a, size_t n, size_t bytes, void ***pointers)
{
    char *items = sl_arena_alloc(a, n * bytes);
    *pointers = sl_arena_alloc(a, n * sizeof **pointers);
    SL_ASSERT(items && *pointers);
    for (size_t i = 0; i < n; i++)
        (*pointers)[i] = items + i * bytes;
    return items;
}

static void push_batch(struct sl_node_router *r)
{
    struct sl_node *n = r->node;
    /* sizes are ours: one entry per event of a round */
    struct sl_arena *a = sl_arena_new(SIZE_MAX / 2);
    Sluice__EventBatch b = SLUICE__EVENT_BATCH__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    void **pt, **ps, **pd;
    Sluice__TokenEvent *tokens = message_array(a, r->n_of_kind[ENTRY_TOKEN], sizeof *tokens, &pt);
    Sluice__LegEvent *states = message_array(a, r->n_of_kind[ENTRY_STATE], sizeof *states, &ps);
    Sluice__DoneEvent *done = message_array(a, r->n_of_kind[ENTRY_DONE], sizeof *done, &pd);
    for (size_t i = 0; i < r->n_entries; i++) {
        struct entry *x = &r->entries[i];
        switch (x->kind) {
        case ENTRY_TOKEN:
            sl_leg_token_event(x->leg, x->at, &tokens[b.n_tokens++]);
            break;
        case ENTRY_STATE: {
            Sluice__LegEvent *s = &states[b.n_legs++];
            sluice__leg_event__init(s);
            s->request_id = x->leg->key.request;
            s->attempt = x->leg->key.epoch;
            s->duty = x->leg->duty->role;
            s->state = (char *)(uintptr_t)x->state;
            s->has_cached_tokens = x->leg->report.has_cached_tokens;
            s->cached_tokens = x->leg->report.cached_tokens;
            break;
        }
        default:
            sl_leg_done_event(x->leg, &done[b.n_done++]);
            break;
        }
    }
    b.node = n->conf->name;
    b.boot_id = n->boot_id;
    b.router_boot_id = r->boot_id;
    b.seq = ++r->seq;
    b.tokens = (Sluice__TokenEvent **)(void *)pt;
    b.legs = (Sluice__LegEvent **)(void *)ps;
    b.done = (Sluice__DoneEvent **)(void *)pd;
    e.body_case = SLUICE__ENVELOPE__BODY_EVENTS;
    e.events = &b;
    enum sl_err err = sl_wire_push_send(r->push, &e);
    r->gap = err != SL_OK;
    if (err == SL_OK) {
        n->counters.batches_sent++;
        n->counters.tokens_sent += b.n_tokens;
    } else {
        n->counters.batches_lost++;
        unsigned suppressed;
        if (sl_log_allow(&r->unreachable, 1000, &suppressed))
            SL_WARN("events not sent, the router does not take them router=%s code=%s suppressed=%u", r->url,
                    sl_err_name(err), suppressed);
    }
    r->n_entries = 0;
    memset(r->n_of_kind, 0, sizeof r->n_of_kind);
    sl_arena_free(a);
}

void sl_node_router_flush(struct sl_node_router *r)
{
    if (r->n_entries && r->push)
        push_batch(r);
}
