/* common/transfer/kv_recv.c - D's half of a transfer (steps 7 and 8 of the request path): grant, place what
 * arrives, check, answer.
 *
 *   WAIT --ANNOUNCE (before or after): GRANT--> GRANTED --last page checked-->+
 *     |                                            |                         |
 *     | no announce in time, ABORT, peer gone, deadline, cancel               |
 *     +--------------------------------------------+-----> CLOSING <---------+
 *                                       no receive into its pages pending: RECV_DONE
 *
 * A page: ABSENT -> PENDING (its bytes are landing) -> ARRIVED -> COMMITTED (digest compared; engine may read
 * it). A reject sends the pages from the first bad one back to ABSENT; it waits until none is PENDING, and what P sent
 * before it heard of it is dropped, so that what is sent again finds no page PENDING. A receive that failed leaves its
 * pages PENDING: the connection ends, and a loss is not to be taken for damage. Nothing is written into a page that is
 * COMMITTED, or PENDING already, or of a session that is CLOSING: what cannot be placed is dropped and
 * counted. */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/transfer/xfer.h"

static struct sl_recv *find(struct sl_xfer *x, const struct sl_xfer_key *k)
{
    return sl_hashmap_get(x->recv_by_key, k, sizeof *k);
}

static void destroy(struct sl_xfer *x, struct sl_recv *r)
{
    sl_hashmap_del(x->recv_by_key, &r->key, sizeof r->key);
    sl_hashmap_del_u64(x->recv_by_id, r->id);
    sl_list_remove(&r->node);
    x->n_recvs--;
    atomic_fetch_sub(&x->n_sessions, 1);
    sl_free(r->pages);
    sl_free(r->page_state);
    sl_free(r->digest);
    sl_free(r->placed);
    sl_free(r);
}

static uint32_t tokens_of(const struct sl_xfer *x, const struct sl_recv *r, uint32_t pages)
{
    uint32_t n = pages * x->conf.self.geometry.page_tokens;
    return n < r->n_tokens ? n : r->n_tokens;
}

/* The one end of a session: its place is free when the engine hears of it. */
static void settle(struct sl_xfer *x, struct sl_recv *r)
{
    if (r->state != SL_RECV_CLOSING || r->n_pending > 0)
        return;
    struct sl_xfer_event ev = {.kind = SL_XFER_RECV_DONE,
                               .key = r->key,
                               .err = r->err,
                               .n_tokens = tokens_of(x, r, r->committed),
                               .has_first = r->err == SL_OK && r->has_first,
                               .first = r->first,
                               .pages_moved = r->moved,
                               .resends = r->rejects,
                               .transfer_ms =
                                   r->granted_us ? (double)(sl_now_us() - r->granted_us) * 1e-3 : 0};
    memcpy(ev.why, r->why, sizeof ev.why);
    destroy(x, r);
    sl_xfer_emit(x, &ev);
}

static void close_session(struct sl_xfer *x, struct sl_recv *r, enum sl_err e, const char *why)
{
    if (r->state == SL_RECV_CLOSING)
        return;
    r->state = SL_RECV_CLOSING;
    r->closing_since_ms = sl_now_ms();
    r->err = e;
    sl_kv_text(r->why, sizeof r->why, why, strlen(why));
    settle(x, r);
}

static void tell_abort(struct sl_peer *p, const struct sl_xfer_key *k, const char *why)
{
    struct sl_kv_header h = {.type = SL_KV_ABORT, .key = *k};
    (void)sl_peer_send(p, &h, why,
                       strlen(why)); /* a peer that cannot be told finds out by its own deadline */
}

/* Pages of a device have no place of their own on the wire's side: any may follow any. */
static bool run_starts(const struct sl_recv *r, uint32_t i)
{
    return i == 0 || (!r->placed && r->pages[i] != r->pages[i - 1] + 1);
}

static void grant(struct sl_recv *r)
{
    unsigned char bitmap[SL_KV_MAX_PAGES / 8] = {0};
    struct sl_kv_header h = {.type = SL_KV_GRANT, .key = r->key, .index = r->have_pages, .count = r->n_pages};
    for (uint32_t i = 0; i < r->n_pages; i++)
        if (run_starts(r, i))
            bitmap[i / 8] = (unsigned char)(bitmap[i / 8] | 1u << (i % 8));
    r->granted_us = sl_now_us();
    if (sl_peer_send(r->peer, &h, bitmap, (r->n_pages + 7) / 8) == SL_OK)
        r->state = SL_RECV_GRANTED; /* else on_closed follows */
}

/* ---- keys that have no session ---- */

/* Who says it is part of it: until D's engine comes, nobody knows which node is this request's P. */
static struct sl_early *find_early(struct sl_xfer *x, const struct sl_xfer_key *k, const char *from)
{
    SL_LIST_FOREACH (n, &x->earlies) {
        struct sl_early *e = SL_CONTAINER_OF(n, struct sl_early, node);
        if (memcmp(&e->key, k, sizeof *k) == 0 && strcmp(e->from, from) == 0)
            return e;
    }
    return NULL;
}

static void drop_early(struct sl_xfer *x, struct sl_early *e)
{
    sl_list_remove(&e->node);
    x->n_earlies--;
    sl_free(e);
}

/* The newest word counts. */
static struct sl_early *keep_early(struct sl_xfer *x, const struct sl_xfer_key *k, enum sl_early_kind kind,
                                   const struct sl_xfer_peer *from, struct sl_peer *p, const char *why)
{
    struct sl_early *e = find_early(x, k, from->name);
    if (!e) {
        if (x->n_earlies >= x->conf.max_sessions) {
            struct sl_early *oldest = SL_CONTAINER_OF(x->earlies.next, struct sl_early, node);
            if (oldest->kind == SL_EARLY_ANNOUNCED && oldest->peer)
                tell_abort(oldest->peer, &oldest->key, "too many transfers wait at the decode node");
            drop_early(x, oldest);
        }
        e = sl_xcalloc(1, sizeof *e);
        e->key = *k;
        memcpy(e->from, from->name, sizeof e->from);
        sl_list_add_tail(&x->earlies, &e->node);
        x->n_earlies++;
    }
    e->kind = kind;
    e->peer = p;
    e->boot_id = from->boot_id;
    /* An end has no deadline of its own: it is kept as long as the other side's message may be on its way. */
    e->until_ms = sl_now_ms() + 2 * x->conf.wait_ms;
    sl_kv_text(e->why, sizeof e->why, why, strlen(why));
    return e;
}

/* D's own end of a session: P is told now, or when it announces. */
static void give_up(struct sl_xfer *x, struct sl_recv *r, enum sl_err err, const char *why)
{
    if (r->peer)
        tell_abort(r->peer, &r->key, why);
    else
        keep_early(x, &r->key, SL_EARLY_ENDED, &r->from, NULL, why);
    close_session(x, r, err, why);
}

static bool announced_as_asked(const struct sl_recv *r, const char *name, uint64_t boot_id, uint32_t n_tokens)
{
    return strcmp(r->from.name, name) == 0 && r->from.boot_id == boot_id && r->n_tokens == n_tokens;
}

static const char not_as_asked[] = "the prefill node announced another transfer than the router asked for";

/* What P said before the session was there. */
static void apply_early(struct sl_xfer *x, struct sl_recv *r, const struct sl_early *e)
{
    switch (e->kind) {
    case SL_EARLY_ABORTED:
        close_session(x, r, SL_EPEER, e->why);
        break;
    case SL_EARLY_ANNOUNCED:
        r->peer = e->peer;
        if (!announced_as_asked(r, e->from, e->boot_id, e->n_tokens))
            give_up(x, r, SL_EPROTO, not_as_asked);
        else if (!r->peer)
            close_session(x, r, SL_EPEER, "the prefill node is gone");
        else
            grant(r);
        break;
    case SL_EARLY_ENDED:
        break; /* of an earlier session with this key */
    }
}

void sl_recv_open(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *from,
                  const uint32_t *pages, uint32_t n_tokens, uint32_t have_pages, uint32_t deadline_ms)
{
    if (find(x, k)) {
        SL_WARN("a transfer was opened twice req=%s epoch=%u", k->request, k->epoch);
        atomic_fetch_sub(&x->n_sessions, 1);
        return;
    }
    struct sl_recv *r = sl_xcalloc(1, sizeof *r);
    uint64_t now = sl_now_ms();
    r->key = *k;
    r->id = x->next_id++;
    r->from = *from;
    r->n_tokens = n_tokens;
    r->n_pages = sl_xfer_pages_of(x, n_tokens);
    r->have_pages = r->committed = r->answered = r->commit_to = have_pages;
    r->pages = sl_xmemdup(pages, r->n_pages * sizeof *pages);
    r->page_state = sl_xcalloc(r->n_pages, 1);
    memset(r->page_state, SL_PAGE_COMMITTED, have_pages);
    r->digest = sl_xcalloc(r->n_pages, sizeof *r->digest);
    if (x->stage)
        r->placed = sl_xcalloc(r->n_pages, sizeof *r->placed);
    r->deadline_ms = now + deadline_ms;
    r->announce_by_ms = now + x->conf.wait_ms;
    r->absent_since_ms = now;
    sl_list_add_tail(&x->recvs, &r->node);
    sl_hashmap_put(x->recv_by_key, &r->key, sizeof r->key, r);
    sl_hashmap_put_u64(x->recv_by_id, r->id, r);
    x->n_recvs++;

    struct sl_early *e = find_early(x, k, from->name);
    if (!e)
        return;
    struct sl_early said = *e;
    drop_early(x, e);
    apply_early(x, r, &said);
}

void sl_recv_cancel(struct sl_xfer *x, const struct sl_xfer_key *k)
{
    struct sl_recv *r = find(x, k);
    if (r && r->state != SL_RECV_CLOSING)
        give_up(x, r, SL_ECANCELED, "the decode node gave it up");
    /* else it ended meanwhile: RECV_DONE is on its way */
}

static void reject(struct sl_xfer *x, struct sl_recv *r, uint32_t bad)
{
    struct sl_kv_header h = {.type = SL_KV_ANSWER, .key = r->key, .index = bad, .count = ++r->rejects};
    SL_WARN("page arrived damaged req=%s peer=%s page=%u", r->key.request, r->peer->ref.name, bad);
    r->peer->count.rejects++;
    r->commit_to = bad;
    r->rejected = true;
    r->last = false;
    for (uint32_t i = bad; i < r->n_pages; i++)
        if (r->page_state[i] == SL_PAGE_ARRIVED)
            r->page_state[i] = SL_PAGE_ABSENT;
    (void)sl_peer_send(r->peer, &h, NULL, 0); /* on failure on_closed follows */
    if (r->rejects >= SL_XFER_MAX_REJECTS) {
        sl_peer_degrade(r->peer);
        close_session(x, r, SL_EDIGEST, "pages arrived damaged twice");
    }
}

static uint64_t digest_here(const struct sl_xfer *x, const struct sl_recv *r, uint32_t i)
{
    return r->placed ? r->placed[i]
                     : sl_kv_page_digest(&x->conf.self.geometry, sl_xfer_page(x, r->pages[i]),
                                         sl_xfer_page_valid(x, i, r->n_tokens));
}

/* Checks pages in order as far as commits and arrivals go, tells engine and P. */
static void advance(struct sl_xfer *x, struct sl_recv *r)
{
    uint32_t before = r->committed;
    if (r->state != SL_RECV_GRANTED)
        return;
    while (r->committed < r->commit_to) {
        uint32_t i = r->committed;
        if (r->page_state[i] == SL_PAGE_PENDING)
            break;
        bool good = r->page_state[i] == SL_PAGE_ARRIVED;
        if (good && x->conf.digests)
            good = digest_here(x, r, i) == r->digest[i];
        if (!good)
            break;
        r->page_state[i] = SL_PAGE_COMMITTED;
        r->committed++;
    }
    bool complete = r->last && r->committed == r->n_pages;
    if (r->committed > before && !complete) { /* with all pages D may be through before it hears of the end */
        struct sl_xfer_event ev = {
            .kind = SL_XFER_RECV_READY, .key = r->key, .n_tokens = tokens_of(x, r, r->committed)};
        sl_xfer_emit(x, &ev);
    }
    if (r->committed < r->commit_to && r->page_state[r->committed] != SL_PAGE_PENDING && r->n_pending == 0) {
        reject(x, r, r->committed);
        return;
    }
    if (r->committed > r->answered || complete) {
        struct sl_kv_header h = {
            .type = SL_KV_ANSWER, .flags = SL_KV_FLAG_OK, .key = r->key, .index = r->committed};
        (void)sl_peer_send(r->peer, &h, NULL, 0); /* on failure on_closed follows */
        r->answered = r->committed;
    }
    if (complete)
        close_session(x, r, SL_OK, "");
}

static void take_pages(struct sl_xfer *x, struct sl_peer *p, struct sl_recv *r, const struct sl_kv_header *h,
                       bool is_here, size_t len, struct sl_link_rx *rx)
{
    bool good = r->state == SL_RECV_GRANTED && h->count > 0 && h->index + h->count <= r->n_pages &&
                len == (size_t)h->count * x->conf.page_bytes && (!r->rejected || h->index == r->commit_to);
    for (uint32_t i = h->index; good && i < h->index + h->count; i++)
        good = (r->page_state[i] == SL_PAGE_ABSENT || r->page_state[i] == SL_PAGE_ARRIVED) &&
               (i == h->index || !run_starts(r, i));
    if (!good) {
        p->count.dropped++;
        return;
    }
    struct sl_flight *f = sl_flight_new(x, p, r->id);
    f->index = h->index;
    f->count = h->count;
    void *at = x->stage ? sl_stage_receive(x, f, r->pages + h->index, r->n_tokens, is_here)
                        : sl_xfer_page(x, r->pages[h->index]);
    if (!at) {
        sl_flight_free(x, f);
        sl_peer_disconnect(p, "more pages are on their way at once than a prefill node may send");
        return;
    }
    r->rejected = false;
    memset(r->page_state + h->index, SL_PAGE_PENDING, h->count);
    r->n_pending++;
    x->ops->recv(p->conn, rx, at, len, (uintptr_t)f);
}

void sl_recv_landed(struct sl_xfer *x, const struct sl_flight *f, enum sl_err e)
{
    struct sl_recv *r = sl_hashmap_get_u64(x->recv_by_id, f->session);
    SL_ASSERT(r); /* a session with a receive pending is never freed */
    r->n_pending--;
    if (e == SL_OK) {
        memset(r->page_state + f->index, SL_PAGE_ARRIVED, f->count);
        if (f->staged)
            memcpy(r->placed + f->index, f->staged->digests, f->count * sizeof *r->placed);
        r->moved += f->count;
        if (f->peer)
            f->peer->count.pages_received += f->count;
    }
    if (r->state == SL_RECV_CLOSING)
        settle(x, r);
    else if (e == SL_OK)
        advance(x, r);
    else if (f->peer)
        sl_peer_disconnect(f->peer, "a receive failed"); /* it mostly failed because the connection did */
}

/* What the last commit's token is worth; another message may say it again. */
static void take_probs(struct sl_peer *p, struct sl_recv *r, const void *data, size_t len)
{
    if (r->state != SL_RECV_GRANTED || r->last || !data || sl_kv_probs_unpack(data, len, &r->first) != SL_OK)
        p->count.dropped++;
}

static void take_commit(struct sl_xfer *x, struct sl_peer *p, struct sl_recv *r, const struct sl_kv_header *h,
                        const void *data, size_t len)
{
    const unsigned char *d = data;
    bool good = r->state == SL_RECV_GRANTED && h->index == r->commit_to &&
                h->index + h->count <= r->n_pages && len == (size_t)h->count * 8 && (data || len == 0) &&
                h->n_tokens == r->n_tokens &&
                (!(h->flags & SL_KV_FLAG_LAST) || h->index + h->count == r->n_pages);
    if (!good) {
        p->count.dropped++; /* also commits sent before P saw a reject */
        return;
    }
    for (uint32_t i = 0; i < h->count; i++) {
        uint64_t v = 0;
        for (int b = 0; b < 8; b++)
            v |= (uint64_t)d[i * 8 + (uint32_t)b] << (8 * b);
        r->digest[h->index + i] = v;
    }
    r->commit_to += h->count;
    if (h->flags & SL_KV_FLAG_LAST) {
        r->last = true;
        r->has_first = h->flags & SL_KV_FLAG_FIRST;
        r->first.token = h->token;
        r->first.ended = h->flags & SL_KV_FLAG_ENDED;
        r->first.logits_digest = h->value;
    }
    advance(x, r);
}

static void take_announce(struct sl_xfer *x, struct sl_peer *p, struct sl_recv *r,
                          const struct sl_kv_header *h)
{
    if (r && r->state != SL_RECV_WAIT) {
        p->count.dropped++;
        return;
    }
    if (r && !announced_as_asked(r, p->ref.name, p->ref.boot_id, h->n_tokens)) {
        tell_abort(p, &r->key, not_as_asked);
        if (strcmp(r->from.name, p->ref.name) == 0)
            close_session(x, r, SL_EPROTO, not_as_asked);
        return;
    }
    if (r) {
        r->peer = p;
        grant(r);
        return;
    }
    struct sl_early *e = find_early(x, &h->key, p->ref.name);
    if (e && e->kind == SL_EARLY_ENDED) {
        tell_abort(p, &h->key, e->why);
    } else {
        e = keep_early(x, &h->key, SL_EARLY_ANNOUNCED, &p->ref, p, "");
        e->n_tokens = h->n_tokens;
        e->until_ms = sl_now_ms() + h->deadline_ms; /* admission may take as long as the request has */
    }
}

static void take_abort(struct sl_xfer *x, struct sl_peer *p, struct sl_recv *r, const struct sl_kv_header *h,
                       const void *data, size_t len)
{
    char why[SL_KV_MAX_WHY];
    sl_kv_text(why, sizeof why, data, data ? len : 0);
    const char *text = why[0] ? why : "the prefill node gave it up";
    if (!r)
        keep_early(x, &h->key, SL_EARLY_ABORTED, &p->ref, p, text);
    else if (r->peer == p || (!r->peer && strcmp(r->from.name, p->ref.name) == 0))
        close_session(x, r, SL_EPEER, text);
    else
        p->count.dropped++;
}

void sl_recv_message(struct sl_xfer *x, struct sl_peer *p, const struct sl_kv_header *h, const void *data,
                     size_t len, struct sl_link_rx *rx)
{
    struct sl_recv *r = find(x, &h->key);
    if (h->type == SL_KV_ANNOUNCE)
        take_announce(x, p, r, h);
    else if (h->type == SL_KV_ABORT)
        take_abort(x, p, r, h, data, len);
    else if (!r || r->peer != p)
        p->count.dropped++;
    else if (h->type == SL_KV_PAGES)
        take_pages(x, p, r, h, data != NULL, len, rx);
    else if (h->type == SL_KV_COMMIT)
        take_commit(x, p, r, h, data, len);
    else if (h->type == SL_KV_PROBS)
        take_probs(p, r, data, len);
    else
        p->count.dropped++;
}

void sl_recv_peer_gone(struct sl_xfer *x, struct sl_peer *p, bool was_here, const char *why)
{
    bool lost = was_here && !sl_peer_is_here(x, &p->ref);
    SL_LIST_FOREACH_SAFE (n, tmp, &x->recvs) {
        struct sl_recv *r = SL_CONTAINER_OF(n, struct sl_recv, node);
        if (r->peer == p) {
            r->peer = NULL;
            close_session(x, r, SL_EPEER, why);
        } else if (lost && r->state == SL_RECV_WAIT && sl_peer_is(p, r->from.name, r->from.boot_id)) {
            give_up(x, r, SL_EPEER, why);
        }
    }
    SL_LIST_FOREACH (n, &x->earlies) {
        struct sl_early *e = SL_CONTAINER_OF(n, struct sl_early, node);
        if (e->peer == p)
            e->peer = NULL;
    }
}

void sl_recv_peer_refused(struct sl_xfer *x, const struct sl_peer *p, const char *why)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->recvs) {
        struct sl_recv *r = SL_CONTAINER_OF(n, struct sl_recv, node);
        if (r->state == SL_RECV_WAIT && sl_peer_is(p, r->from.name, r->from.boot_id))
            close_session(x, r, SL_EPEER, why);
    }
}

/* P may be busy with a long step before it announces; one that is not even connected is believed no longer
 * than a silent one. */
static bool waits_in_vain(struct sl_xfer *x, struct sl_recv *r, uint64_t now)
{
    if (sl_peer_is_here(x, &r->from))
        r->absent_since_ms = now;
    bool absent = sl_xfer_due(x, r->absent_since_ms + x->conf.peer_dead_ms, now);
    return sl_xfer_due(x, r->announce_by_ms, now) || absent;
}

void sl_recv_tick(struct sl_xfer *x, uint64_t now)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->recvs) {
        struct sl_recv *r = SL_CONTAINER_OF(n, struct sl_recv, node);
        if (r->state == SL_RECV_CLOSING) {
            /* A receive that does not end: force-closing the connection is the only cancel. */
            if (r->peer && sl_xfer_due(x, r->closing_since_ms + x->conf.peer_dead_ms, now))
                sl_peer_disconnect(r->peer, "a cancelled transfer did not end");
        } else if (sl_xfer_due(x, r->deadline_ms, now)) {
            give_up(x, r, SL_EDEADLINE, "the deadline passed");
        } else if (r->state == SL_RECV_WAIT && waits_in_vain(x, r, now)) {
            give_up(x, r, SL_EPEER, "the prefill node did not announce its pages in time");
        }
    }
    SL_LIST_FOREACH_SAFE (n, tmp, &x->earlies) {
        struct sl_early *e = SL_CONTAINER_OF(n, struct sl_early, node);
        if (sl_xfer_due(x, e->until_ms, now))
            drop_early(x, e);
    }
}

void sl_recv_give_up_all(struct sl_xfer *x, const char *why)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->recvs) {
        struct sl_recv *r = SL_CONTAINER_OF(n, struct sl_recv, node);
        if (r->state == SL_RECV_CLOSING)
            continue;
        SL_WARN("transfer given up req=%s why=\"%s\"", r->key.request, why);
        give_up(x, r, SL_EPEER, why);
    }
}

void sl_recv_free_all(struct sl_xfer *x)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->recvs)
        destroy(x, SL_CONTAINER_OF(n, struct sl_recv, node));
    SL_LIST_FOREACH_SAFE (n, tmp, &x->earlies)
        drop_early(x, SL_CONTAINER_OF(n, struct sl_early, node));
}
