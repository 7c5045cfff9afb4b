/* common/transfer/kv_send.c - P's half of a transfer (step 7 of the request path): announce, wait for the
 * grant, push finished pages, commit.
 *
 *   CONNECT --peer up: ANNOUNCE--> ANNOUNCED --GRANT--> GRANTED --all committed-->+
 *      |                               |                   |  ^ ANSWER reject:    |
 *      | peer refused, gone, deadline, abort, second reject|  | once, send again   |
 *      +-------------------------------+-------------------+--+-----> CLOSING <----+
 *                                                             no payload in flight: SEND_DONE
 *
 * Pages of a device go through the stage (stage.c) first, and their digests come from it.
 *
 * A source page may be reused only after SEND_DONE: every payload left and D answered, or the connection is
 * gone. A digest is of the page as it lies at P when it is sent; D compares it with what it received. Runs:
 * D's grant says where its own page ids stop being neighbours, so that one message never needs two places. */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/transfer/xfer.h"

static struct sl_send *find(struct sl_xfer *x, const struct sl_xfer_key *k)
{
    return sl_hashmap_get(x->send_by_key, k, sizeof *k);
}

static void destroy(struct sl_xfer *x, struct sl_send *s)
{
    sl_hashmap_del(x->send_by_key, &s->key, sizeof s->key);
    sl_hashmap_del_u64(x->send_by_id, s->id);
    sl_list_remove(&s->node);
    x->n_sends--;
    if (!s->silent)
        atomic_fetch_sub(&x->n_sessions, 1);
    sl_free(s->run_starts);
    sl_free(s->pages);
    sl_free(s->digest);
    sl_free(s);
}

static struct sl_xfer_event done_event(const struct sl_send *s)
{
    struct sl_xfer_event ev = {.kind = SL_XFER_SEND_DONE,
                               .key = s->key,
                               .err = s->err,
                               .n_tokens = s->n_tokens,
                               .pages_moved = s->moved,
                               .resends = s->resends,
                               .bytes_after_ready = s->bytes_after_ready,
                               .transfer_ms = s->ready_us ? (double)(sl_now_us() - s->ready_us) * 1e-3 : 0};
    memcpy(ev.why, s->why, sizeof ev.why);
    return ev;
}

/* The one end of a session: its place is free when the engine hears of it. */
static void settle(struct sl_xfer *x, struct sl_send *s)
{
    if (s->state != SL_SEND_CLOSING || s->n_inflight > 0)
        return;
    struct sl_xfer_event ev = done_event(s);
    bool silent = s->silent;
    destroy(x, s);
    if (!silent)
        sl_xfer_emit(x, &ev);
}

static void tell_abort(struct sl_peer *p, const struct sl_xfer_key *k, const char *why)
{
    struct sl_kv_header h = {.type = SL_KV_ABORT, .key = *k};
    if (p && p->state == SL_PEER_UP)
        (void)sl_peer_send(p, &h, why,
                           strlen(why)); /* a peer that cannot be told finds out by its own deadline */
}

static void close_session(struct sl_xfer *x, struct sl_send *s, enum sl_err e, const char *why)
{
    if (s->state == SL_SEND_CLOSING)
        return;
    s->state = SL_SEND_CLOSING;
    s->closing_since_ms = sl_now_ms();
    s->err = e;
    if (why != s->why)
        sl_kv_text(s->why, sizeof s->why, why, strlen(why));
    settle(x, s);
}

static struct sl_send *session_new(struct sl_xfer *x, const struct sl_xfer_key *k)
{
    struct sl_send *s = sl_xcalloc(1, sizeof *s);
    s->key = *k;
    s->id = x->next_id++;
    sl_list_add_tail(&x->sends, &s->node);
    sl_hashmap_put(x->send_by_key, &s->key, sizeof s->key, s);
    sl_hashmap_put_u64(x->send_by_id, s->id, s);
    x->n_sends++;
    return s;
}

static void announce(struct sl_xfer *x, struct sl_send *s)
{
    uint64_t now = sl_now_ms();
    if (s->silent) {
        tell_abort(s->peer, &s->key, s->why);
        close_session(x, s, SL_ECANCELED, s->why);
        return;
    }
    struct sl_kv_header h = {.type = SL_KV_ANNOUNCE,
                             .key = s->key,
                             .n_tokens = s->n_tokens,
                             .deadline_ms = s->deadline_ms > now ? (uint32_t)(s->deadline_ms - now) : 0};
    if (sl_peer_send(s->peer, &h, NULL, 0) == SL_OK)
        s->state = SL_SEND_ANNOUNCED;
}

static void connect_session(struct sl_xfer *x, struct sl_send *s, const struct sl_xfer_peer *to)
{
    struct sl_why why = {0};
    s->peer = sl_peer_dial(x, to, &why);
    if (!s->peer)
        close_session(x, s, SL_EPEER, why.text);
    else if (s->peer->state == SL_PEER_UP)
        announce(x, s);
}

void sl_send_open(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *to,
                  uint32_t n_tokens, uint32_t deadline_ms)
{
    struct sl_send *s = find(x, k);
    if (s && s->silent) { /* aborted before it was opened, and D is still to be told */
        struct sl_xfer_event ev = done_event(s);
        ev.err = SL_ECANCELED;
        ev.n_tokens = n_tokens;
        atomic_fetch_sub(&x->n_sessions, 1);
        sl_xfer_emit(x, &ev);
        return;
    }
    if (s) {
        SL_WARN("a transfer was opened twice req=%s epoch=%u", k->request, k->epoch);
        atomic_fetch_sub(&x->n_sessions, 1);
        return;
    }
    s = session_new(x, k);
    s->n_tokens = n_tokens;
    s->n_pages = sl_xfer_pages_of(x, n_tokens);
    s->pages = sl_xalloc(s->n_pages * sizeof *s->pages);
    if (x->stage)
        s->digest = sl_xalloc(s->n_pages * sizeof *s->digest);
    s->deadline_ms = sl_now_ms() + deadline_ms;
    connect_session(x, s, to);
}

static enum sl_err send_probs(const struct sl_send *s)
{
    unsigned char bytes[SL_KV_PROBS_MAX_BYTES];
    struct sl_kv_header h = {.type = SL_KV_PROBS, .key = s->key};
    if (!s->has_first || !s->first.has_logprobs)
        return SL_OK;
    return sl_peer_send(s->peer, &h, bytes, sl_kv_probs_pack(&s->first, bytes));
}

/* Digests and sends commits for all pages sent and not yet in one; the last commit ends the pages and carries
 * the first token. */
static void send_commits(struct sl_xfer *x, struct sl_send *s)
{
    unsigned char bytes[SL_KV_MAX_COMMIT * 8];
    while (!s->last_commit_sent && (s->commit_page < s->sent_page || s->sent_page == s->n_pages)) {
        uint32_t n = s->sent_page - s->commit_page;
        if (s->sent_page == s->n_pages && s->ready_pages < s->n_pages)
            return; /* D has them all, but P has not computed them: the first token is still to come */
        if (n > SL_KV_MAX_COMMIT)
            n = SL_KV_MAX_COMMIT;
        memset(bytes, 0, (size_t)n * 8);
        for (uint32_t i = 0; i < n && x->conf.digests; i++) {
            uint32_t index = s->commit_page + i;
            uint64_t d = s->digest
                             ? s->digest[index]
                             : sl_kv_page_digest(&x->conf.self.geometry, sl_xfer_page(x, s->pages[index]),
                                                 sl_xfer_page_valid(x, index, s->n_tokens));
            for (int b = 0; b < 8; b++)
                bytes[i * 8 + (uint32_t)b] = (unsigned char)(d >> (8 * b));
        }
        bool last = s->commit_page + n == s->n_pages;
        struct sl_kv_header h = {.type = SL_KV_COMMIT,
                                 .key = s->key,
                                 .index = s->commit_page,
                                 .count = n,
                                 .n_tokens = s->n_tokens};
        if (last) {
            h.flags = SL_KV_FLAG_LAST | (s->has_first ? SL_KV_FLAG_FIRST : 0) |
                      (s->first.ended ? SL_KV_FLAG_ENDED : 0);
            h.token = s->first.token;
            h.value = s->first.logits_digest;
            if (send_probs(s) != SL_OK)
                return;
        }
        if (sl_peer_send(s->peer, &h, bytes, (size_t)n * 8) != SL_OK)
            return;
        s->commit_page += n;
        s->last_commit_sent = last;
    }
}

static bool d_run_starts(const struct sl_send *s, uint32_t index)
{
    return s->run_starts[index / 8] >> (index % 8) & 1;
}

/* The pages of f leave; false: the connection is closed, and on_closed follows and ends the session. */
static bool send_pages(struct sl_xfer *x, struct sl_send *s, struct sl_flight *f, const void *payload)
{
    struct sl_peer *p = s->peer;
    unsigned char header[SL_KV_HEADER_BYTES];
    struct sl_kv_header h = {.type = SL_KV_PAGES, .key = s->key, .index = f->index, .count = f->count};
    x->n_pages_sent += f->count;
    if (x->flip_bit_page && x->n_pages_sent >= x->flip_bit_page && (!x->stage || sl_stage_is_host(x))) {
        /* The fault shown in docs/benchmarks.md: a wire that flips one bit. */
        x->flip_bit_page = 0;
        f->copy = sl_xmemdup(payload, f->bytes);
        ((unsigned char *)f->copy)[x->conf.page_bytes / 3] ^= 0x40;
        payload = f->copy;
        SL_WARN("one bit of a page is flipped on purpose req=%s page=%u", s->key.request, f->index);
    }
    sl_kv_header_pack(&h, header);
    /* Counted before: the link may complete at once. */
    p->count.pages_sent += f->count;
    p->count.bytes_sent += f->bytes;
    s->moved += f->count;
    s->sent_page += f->count;
    if (x->ops->send(p->conn, header, sizeof header, payload, f->bytes, false, (uintptr_t)f) == SL_OK)
        return true;
    sl_flight_departed(x, f, SL_EPEER);
    return false;
}

/* The next pages as one message: those that are neighbours here and there, or, through a stage, there. The bytes of
 * it; 0 when nothing can go now. */
static uint64_t send_run(struct sl_xfer *x, struct sl_send *s)
{
    struct sl_peer *p = s->peer;
    size_t page_bytes = x->conf.page_bytes;
    uint32_t first = s->next_page, n = 1;
    while (first + n < s->ready_pages && (n + 1) * page_bytes <= p->max_inflight_bytes / SL_XFER_MESSAGES &&
           (x->stage || s->pages[first + n] == s->pages[first + n - 1] + 1) && !d_run_starts(s, first + n))
        n++;
    if (x->stage && (n = sl_stage_room(x, n)) == 0)
        return 0; /* what leaves the stage sets pump_wanted */
    struct sl_flight *f = sl_flight_new(x, p, s->id);
    uint64_t bytes = f->bytes = n * page_bytes;
    f->index = first;
    f->count = n;
    f->value = s->n_rejects;
    s->n_inflight++;
    s->inflight_bytes += bytes;
    p->inflight_bytes += bytes;
    s->next_page += n;
    if (x->stage)
        sl_stage_fetch(x, f, s->pages + first, s->n_tokens);
    else if (!send_pages(x, s, f, sl_xfer_page(x, s->pages[first])))
        return 0;
    return bytes;
}

/* f's pages lie in the stage. Those of a session that has ended meanwhile stay here, and so do those that D has
 * rejected since: they are fetched again. */
void sl_send_fetched(struct sl_xfer *x, struct sl_flight *f)
{
    struct sl_send *s = sl_hashmap_get_u64(x->send_by_id, f->session);
    SL_ASSERT(s); /* a session with payloads under way is never freed */
    if (s->state != SL_SEND_GRANTED || !s->peer->conn || f->value != s->n_rejects) {
        sl_flight_departed(x, f, SL_ECANCELED);
        return;
    }
    SL_ASSERT(f->index == s->sent_page);
    memcpy(s->digest + f->index, f->staged->digests, f->count * sizeof *s->digest);
    x->pump_wanted = true; /* commits follow */
    (void)send_pages(x, s, f, sl_stage_payload(x, f));
}

/* False when more could go than one round may send: links that complete at once would keep the thread. */
static bool pump(struct sl_xfer *x, struct sl_send *s, uint64_t *budget)
{
    if (s->state != SL_SEND_GRANTED || !s->peer || !s->peer->conn)
        return true;
    while (s->next_page < s->ready_pages && s->peer->inflight_bytes < s->peer->max_inflight_bytes) {
        if (*budget == 0)
            return false;
        uint64_t sent = send_run(x, s);
        if (sent == 0)
            break;
        *budget -= sent < *budget ? sent : *budget;
    }
    send_commits(x, s);
    return true;
}

void sl_send_pump(struct sl_xfer *x)
{
    uint64_t budget = SL_XFER_MAX_INFLIGHT;
    /* Oldest first: the request that waits longest gets the wire. */
    SL_LIST_FOREACH_SAFE (n, tmp, &x->sends)
        if (!pump(x, SL_CONTAINER_OF(n, struct sl_send, node), &budget)) {
            x->pump_wanted = true;
            return;
        }
}

bool sl_send_idle(const struct sl_xfer *x, const struct sl_peer *p)
{
    SL_LIST_FOREACH (n, &x->sends)
        if (SL_CONTAINER_OF(n, struct sl_send, node)->peer == p)
            return false;
    return true;
}

/* What is unsent when the last page is ready: by the handover metric, the time the wire takes after it. */
static void note_unsent(const struct sl_xfer *x, struct sl_send *s)
{
    s->bytes_after_ready = (uint64_t)(s->n_pages - s->next_page) * x->conf.page_bytes + s->inflight_bytes;
}

void sl_send_ready(struct sl_xfer *x, const struct sl_xfer_key *k, const uint32_t *pages, uint32_t n_tokens)
{
    struct sl_send *s = find(x, k);
    if (!s || s->silent || s->state == SL_SEND_CLOSING)
        return; /* it ended meanwhile; SEND_DONE is on its way, or nobody waits for it */
    SL_ASSERT(n_tokens <= s->n_tokens && (pages || s->next_page == s->n_pages));
    uint32_t known = sl_xfer_pages_of(x, n_tokens);
    uint32_t ready = n_tokens == s->n_tokens ? s->n_pages : n_tokens / x->conf.self.geometry.page_tokens;
    if (pages && known > s->n_known) {
        memcpy(s->pages + s->n_known, pages + s->n_known, (known - s->n_known) * sizeof *pages);
        s->n_known = known;
    }
    if (ready > s->ready_pages)
        s->ready_pages = ready;
    if (n_tokens == s->n_tokens && s->ready_us == 0) {
        s->ready_us = sl_now_us();
        note_unsent(x, s);
    }
    x->pump_wanted = true;
}

void sl_send_first(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_first *t)
{
    struct sl_send *s = find(x, k);
    if (!s)
        return;
    s->has_first = true;
    s->first = *t;
}

void sl_send_abort(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *to,
                   const char *why)
{
    struct sl_send *s = find(x, k);
    bool connecting = s && s->state == SL_SEND_CONNECT;
    if (s && (s->silent || !connecting)) {
        tell_abort(s->peer, k, why);
        close_session(x, s, SL_ECANCELED, why);
        return;
    }
    if (!s)
        s = session_new(x, k);
    sl_kv_text(s->why, sizeof s->why, why, strlen(why));
    if (connecting) { /* over for the engine; it stays to tell D */
        s->err = SL_ECANCELED;
        struct sl_xfer_event ev = done_event(s);
        atomic_fetch_sub(&x->n_sessions, 1);
        sl_xfer_emit(x, &ev);
    }
    s->silent = true;
    s->deadline_ms = sl_now_ms() + x->conf.wait_ms;
    if (!connecting)
        connect_session(x, s, to);
}

static void take_grant(struct sl_xfer *x, struct sl_send *s, const struct sl_kv_header *h, const void *data,
                       size_t len)
{
    size_t bitmap = (s->n_pages + 7) / 8;
    if (s->state != SL_SEND_ANNOUNCED || h->count != s->n_pages || h->index > s->n_pages || len != bitmap ||
        !data) {
        s->peer->count.dropped++;
        return;
    }
    s->run_starts = sl_xmemdup(data, bitmap);
    s->have_pages = s->next_page = s->sent_page = s->commit_page = s->committed = h->index;
    s->state = SL_SEND_GRANTED;
    if (s->ready_us)
        note_unsent(x, s); /* D has the first pages: less is to be sent than was thought */
    struct sl_xfer_event ev = {.kind = SL_XFER_GRANTED, .key = s->key, .have_pages = h->index};
    sl_xfer_emit(x, &ev);
    x->pump_wanted = true;
}

static void take_answer(struct sl_xfer *x, struct sl_send *s, const struct sl_kv_header *h)
{
    if (s->state != SL_SEND_GRANTED || h->index > s->commit_page || h->index < s->committed) {
        s->peer->count.dropped++;
        return;
    }
    if (h->flags & SL_KV_FLAG_OK) {
        s->committed = h->index;
        if (s->last_commit_sent && s->committed == s->n_pages) {
            sl_peer_saw_rate(s->peer, s->bytes_after_ready, (double)(sl_now_us() - s->ready_us));
            close_session(x, s, SL_OK, "");
        }
        return;
    }
    if (h->count != s->n_rejects + 1) {
        s->peer->count.dropped++;
        return;
    }
    s->peer->count.rejects++;
    SL_WARN("page rejected by the receiver req=%s peer=%s page=%u", s->key.request, s->peer->ref.name,
            h->index);
    if (++s->n_rejects >= SL_XFER_MAX_REJECTS) {
        sl_peer_degrade(s->peer);
        tell_abort(s->peer, &s->key, "pages arrived damaged twice");
        close_session(x, s, SL_EDIGEST, "pages arrived damaged twice");
        return;
    }
    s->resends += s->sent_page - h->index;
    s->next_page = s->sent_page = s->commit_page = h->index;
    s->last_commit_sent = false;
    x->pump_wanted = true;
}

void sl_send_message(struct sl_xfer *x, struct sl_peer *p, const struct sl_kv_header *h, const void *data,
                     size_t len)
{
    struct sl_send *s = find(x, &h->key);
    if (!s || s->peer != p) {
        p->count.dropped++;
        return;
    }
    if (h->type == SL_KV_GRANT)
        take_grant(x, s, h, data, len);
    else if (h->type == SL_KV_ANSWER)
        take_answer(x, s, h);
    else if (h->type != SL_KV_ABORT)
        p->count.dropped++;
    else {
        char why[SL_KV_MAX_WHY];
        sl_kv_text(why, sizeof why, data, data ? len : 0);
        close_session(x, s, SL_ECANCELED, why[0] ? why : "the decode node gave it up");
    }
}

void sl_send_departed(struct sl_xfer *x, const struct sl_flight *f, enum sl_err e)
{
    struct sl_send *s = f->session ? sl_hashmap_get_u64(x->send_by_id, f->session) : NULL;
    (void)e; /* an error means that the connection is gone: on_closed ends the session */
    if (!s)
        return;
    s->n_inflight--;
    s->inflight_bytes -= f->bytes;
    settle(x, s);
}

void sl_send_peer_up(struct sl_xfer *x, struct sl_peer *p)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->sends) {
        struct sl_send *s = SL_CONTAINER_OF(n, struct sl_send, node);
        if (s->peer == p && s->state == SL_SEND_CONNECT)
            announce(x, s);
    }
}

void sl_send_peer_gone(struct sl_xfer *x, struct sl_peer *p, enum sl_err e, const char *why)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->sends) {
        struct sl_send *s = SL_CONTAINER_OF(n, struct sl_send, node);
        if (s->peer != p)
            continue;
        s->peer = NULL;
        close_session(x, s, e, why);
    }
}

void sl_send_tick(struct sl_xfer *x, uint64_t now)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->sends) {
        struct sl_send *s = SL_CONTAINER_OF(n, struct sl_send, node);
        if (s->state == SL_SEND_CLOSING) {
            /* Payloads that do not leave: force-closing the connection is the only cancel. */
            if (s->peer && sl_xfer_due(x, s->closing_since_ms + x->conf.peer_dead_ms, now))
                sl_peer_disconnect(s->peer, "a cancelled transfer did not end");
        } else if (sl_xfer_due(x, s->deadline_ms, now)) {
            tell_abort(s->peer, &s->key, "the deadline passed");
            close_session(x, s, SL_EDEADLINE, "the deadline passed");
        }
    }
}

void sl_send_give_up_all(struct sl_xfer *x, const char *why)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->sends) {
        struct sl_send *s = SL_CONTAINER_OF(n, struct sl_send, node);
        if (s->state == SL_SEND_CLOSING || s->silent)
            continue;
        const struct sl_xfer_key k = s->key; /* s may be gone after this */
        SL_WARN("transfer given up req=%s why=\"%s\"", k.request, why);
        sl_send_abort(x, &k, &s->peer->ref, why);
    }
}

void sl_send_free_all(struct sl_xfer *x)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &x->sends)
        destroy(x, SL_CONTAINER_OF(n, struct sl_send, node));
}
