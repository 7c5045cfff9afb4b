/* common/transfer/transfer.c - the transfer thread: commands in, events out, timers; and the link's callbacks
 * handed to peer.c, kv_send.c and kv_recv.c.
 *
 * Everything behind struct sl_xfer belongs to the one thread, except the command queue, the event queue,
 * n_sessions and the link reports. A command is a copy of its arguments. Events that do not fit the bounded
 * queue wait in a backlog that is no longer than the open sessions make it. */
#include "common/transfer/transfer.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/transfer/xfer.h"

#define COMMAND_QUEUE 4096u /* commands waiting for the thread; more are SL_EAGAIN */
#define BYE_MS        20u

enum cmd_kind {
    CMD_SEND_OPEN,
    CMD_SEND_READY,
    CMD_SEND_FIRST,
    CMD_SEND_ABORT,
    CMD_RECV_OPEN,
    CMD_RECV_CANCEL,
    CMD_RETEST
};

struct cmd {
    enum cmd_kind kind;
    struct sl_xfer_key key;
    struct sl_xfer_peer peer;
    uint32_t n_tokens, have_pages, deadline_ms;
    struct sl_xfer_first first;
    uint32_t *pages;
    char why[SL_KV_MAX_WHY];
};

struct backlog_event {
    struct sl_list node;
    struct sl_xfer_event *ev;
};

struct sl_flight *sl_flight_new(struct sl_xfer *x, struct sl_peer *p, uint64_t session)
{
    struct sl_flight *f = sl_xcalloc(1, sizeof *f);
    f->peer = p;
    f->session = session;
    sl_list_add_tail(&x->flights, &f->node);
    return f;
}

void sl_flight_free(struct sl_xfer *x, struct sl_flight *f)
{
    if (f->staged)
        sl_stage_release(x, f);
    sl_list_remove(&f->node);
    sl_free(f->copy);
    sl_free(f);
}

void sl_flight_departed(struct sl_xfer *x, struct sl_flight *f, enum sl_err e)
{
    if (f->peer)
        f->peer->inflight_bytes -= f->bytes;
    sl_send_departed(x, f, e);
    sl_flight_free(x, f);
    x->pump_wanted = true;
}

static void flush_backlog(struct sl_xfer *x)
{
    while (!sl_list_empty(&x->backlog)) {
        struct backlog_event *b = SL_CONTAINER_OF(x->backlog.next, struct backlog_event, node);
        if (sl_queue_push(x->conf.events, b->ev) != SL_OK)
            return;
        sl_list_remove(&b->node);
        sl_free(b);
    }
}

void sl_xfer_emit(struct sl_xfer *x, const struct sl_xfer_event *ev)
{
    if (atomic_load(&x->stop))
        return; /* sl_xfer_close(): the queue may be on its way out */
    struct backlog_event *b = sl_xcalloc(1, sizeof *b);
    b->ev = sl_xmemdup(ev, sizeof *ev);
    sl_list_add_tail(&x->backlog, &b->node);
    flush_backlog(x);
}

/* ---- callbacks of the link ---- */

static void on_accept(void *arg, struct sl_conn *c)
{
    struct sl_xfer *x = arg;
    x->active = true;
    sl_peer_accept(x, c);
}

static void on_closed(void *arg, struct sl_conn *c)
{
    struct sl_xfer *x = arg;
    struct sl_peer *p = x->ops->user(c);
    x->active = true;
    if (p)
        sl_peer_closed(p);
}

/* What counts before the peer has shown who it is. */
static bool is_handshake(uint8_t type)
{
    return type == SL_KV_HELLO || type == SL_KV_HELLO_ACK || type == SL_KV_CHALLENGE || type == SL_KV_PROOF ||
           type == SL_KV_BYE;
}

static void on_message(void *arg, struct sl_conn *c, const void *header, size_t header_len, const void *data,
                       size_t len, struct sl_link_rx *rx)
{
    struct sl_xfer *x = arg;
    struct sl_peer *p = x->ops->user(c);
    struct sl_kv_header h;
    if (!p)
        return;
    x->active = true;
    if (sl_kv_header_unpack(header, header_len, &h) != SL_OK) {
        p->count.dropped++;
        return;
    }
    p->last_heard_ms = sl_now_ms();
    if (p->state != SL_PEER_UP && !is_handshake(h.type)) {
        p->count.dropped++;
        return;
    }
    switch (h.type) {
    case SL_KV_ANNOUNCE:
    case SL_KV_GRANT:
    case SL_KV_PAGES:
    case SL_KV_COMMIT:
    case SL_KV_PROBS:
    case SL_KV_ANSWER:
    case SL_KV_ABORT:
        /* who dialled is P on this connection */
        if (p->dialled)
            sl_send_message(x, p, &h, data, len);
        else
            sl_recv_message(x, p, &h, data, len, rx);
        break;
    default:
        sl_peer_message(p, &h, data, len, rx);
    }
}

static void on_sent(void *arg, struct sl_conn *c, uint64_t token, enum sl_err e)
{
    struct sl_xfer *x = arg;
    struct sl_flight *f = (struct sl_flight *)(uintptr_t)token;
    (void)c;
    if (f)
        sl_flight_departed(x, f, e);
}

static void on_received(void *arg, struct sl_conn *c, uint64_t token, enum sl_err e)
{
    struct sl_xfer *x = arg;
    struct sl_flight *f = (struct sl_flight *)(uintptr_t)token;
    (void)c;
    if (f->staged && e == SL_OK) {
        sl_stage_place(x, f);
        return;
    }
    if (f->session) {
        sl_recv_landed(x, f, e);
    } else if (f->peer && e == SL_OK) {
        struct sl_kv_header ack = {.type = SL_KV_PROBE_ACK, .value = f->value};
        (void)sl_peer_send(f->peer, &ack, NULL, 0); /* a lost peer shows by itself */
    }
    sl_flight_free(x, f);
}

static const struct sl_link_events link_events = {
    .on_accept = on_accept,
    .on_closed = on_closed,
    .on_message = on_message,
    .on_sent = on_sent,
    .on_received = on_received,
};

/* ---- the thread ---- */

static void run_command(struct sl_xfer *x, struct cmd *c)
{
    switch (c->kind) {
    case CMD_SEND_OPEN:
        sl_send_open(x, &c->key, &c->peer, c->n_tokens, c->deadline_ms);
        break;
    case CMD_SEND_READY:
        sl_send_ready(x, &c->key, c->pages, c->n_tokens);
        break;
    case CMD_SEND_FIRST:
        sl_send_first(x, &c->key, &c->first);
        break;
    case CMD_SEND_ABORT:
        sl_send_abort(x, &c->key, &c->peer, c->why);
        break;
    case CMD_RECV_OPEN:
        sl_recv_open(x, &c->key, &c->peer, c->pages, c->n_tokens, c->have_pages, c->deadline_ms);
        break;
    case CMD_RECV_CANCEL:
        sl_recv_cancel(x, &c->key);
        break;
    case CMD_RETEST:
        sl_peers_retest(x);
        break;
    }
}

static void cmd_free(struct cmd *c)
{
    sl_free(c->pages);
    sl_free(c);
}

static void on_commands(void *arg, uint32_t events)
{
    struct sl_xfer *x = arg;
    struct cmd *c;
    (void)events;
    x->active = true;
    while ((c = sl_queue_pop(x->commands)) != NULL) {
        run_command(x, c);
        cmd_free(c);
    }
}

static void update_reports(struct sl_xfer *x)
{
    pthread_mutex_lock(&x->report_mutex);
    x->n_reports = 0;
    x->totals = x->gone;
    SL_LIST_FOREACH (n, &x->peers) {
        struct sl_peer *p = SL_CONTAINER_OF(n, struct sl_peer, node);
        sl_count_add(&x->totals, &p->count);
        if (p->dialled && !p->fenced && x->n_reports < SL_XFER_MAX_PEERS)
            sl_peer_report(p, &x->reports[x->n_reports++]);
    }
    pthread_mutex_unlock(&x->report_mutex);
}

/* Nothing has come of this node for stall_ms: whoever waits for it at the other end of a session is told now and
 * goes on without it, as it does not know better: this thread answers its pings. */
static void judge_progress(struct sl_xfer *x, uint64_t now, uint64_t late)
{
    uint32_t n = atomic_load_explicit(&x->n_progress, memory_order_relaxed);
    x->progressed_ms = n == x->progress_seen ? sl_heard_ms(x->progressed_ms, late, now) : now;
    x->progress_seen = n;
    if (!x->conf.stall_ms || x->n_sends + x->n_recvs == 0 ||
        !sl_xfer_due(x, x->progressed_ms + x->conf.stall_ms, now))
        return;
    static const char why[] = "the node computes nothing";
    sl_send_give_up_all(x, why);
    sl_recv_give_up_all(x, why);
}

/* What the link has. True: there may be more. */
static bool drain_link(struct sl_xfer *x)
{
    return !(x->stage && sl_stage_is_full(x)) && x->ops->progress(x->link);
}

/* Heartbeats, deadlines, what did not fit the event queue. An idle thread sleeps until one of them is due; what came
 * while it slept, or while it was at a command, is looked at before anything is found late. */
static void on_tick(void *arg)
{
    struct sl_xfer *x = arg;
    (void)drain_link(x);
    uint64_t now = sl_now_ms(), late = sl_timer_late_ms(x->tick), wait = SL_XFER_TICK_MS;
    x->next_due_ms = now + SL_XFER_IDLE_MS;
    SL_LIST_FOREACH_SAFE (n, tmp, &x->peers)
        sl_peer_tick(SL_CONTAINER_OF(n, struct sl_peer, node), now, late);
    judge_progress(x, now, late);
    sl_send_tick(x, now);
    sl_recv_tick(x, now);
    flush_backlog(x);
    update_reports(x);
    if (!x->active && sl_list_empty(&x->backlog) && x->next_due_ms > now + wait)
        wait = x->next_due_ms - now;
    x->active = false;
    x->tick_far = wait > SL_XFER_TICK_MS;
    sl_timer_set(x->tick, wait);
}

static void on_link(void *arg, uint32_t events)
{
    (void)arg; /* progress() runs at the top of every round */
    (void)events;
}

/* One round: what the link has, what sessions may send, then fds and timers. Busy rounds do not wait, and
 * each is bounded: deadlines and cancels are seen while pages flow. */
static void round_once(struct sl_xfer *x, uint32_t max_wait_ms)
{
    bool busy = drain_link(x);
    if (x->stage)
        busy |= sl_stage_step(x);
    if (x->pump_wanted) {
        x->pump_wanted = false;
        sl_send_pump(x);
        busy = true;
    }
    if (x->active && x->tick_far) {
        x->tick_far = false;
        sl_timer_set(x->tick, SL_XFER_TICK_MS);
    }
    sl_loop_once(x->loop, busy ? 0 : max_wait_ms);
}

/* BYE, and a moment for it and for last answers to leave: a force close drops what is still in the socket. */
static void say_bye(struct sl_xfer *x)
{
    struct sl_kv_header bye = {.type = SL_KV_BYE};
    bool any = false;
    SL_LIST_FOREACH (n, &x->peers) {
        struct sl_peer *p = SL_CONTAINER_OF(n, struct sl_peer, node);
        /* a peer that cannot be told sees the closed connection */
        if (p->conn && p->state == SL_PEER_UP)
            any |= sl_peer_send(p, &bye, NULL, 0) == SL_OK;
    }
    for (uint64_t end = sl_now_ms() + BYE_MS; any && sl_now_ms() < end;)
        round_once(x, 1);
}

static void thread_main(void *arg)
{
    struct sl_xfer *x = arg;
    if (x->conf.cpu >= 0 && sl_thread_pin(x->conf.cpu) != SL_OK)
        SL_WARN("transfer thread not pinned cpu=%d", x->conf.cpu);
    sl_timer_set(x->tick, SL_XFER_TICK_MS);
    while (!atomic_load(&x->stop))
        round_once(x, SL_XFER_IDLE_MS);
    say_bye(x);
}

/* ---- open and close ---- */

static bool address_is_private(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET) {
        uint32_t v = ntohl(((const struct sockaddr_in *)(const void *)sa)->sin_addr.s_addr);
        return v >> 24 == 127 || v >> 24 == 10 || v >> 20 == 0xac1 || v >> 16 == 0xc0a8 || v >> 16 == 0xa9fe;
    }
    const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(a) || IN6_IS_ADDR_LINKLOCAL(a) || (a->s6_addr[0] & 0xfe) == 0xfc;
}

/* A UCX port over tcp trusts whoever reaches it: everything but loopback and private addresses must be asked
 * for. All addresses of a name count; a name that cannot be resolved is refused by the link. */
static bool listens_in_public(const char *listen)
{
    struct sl_link_address a;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *res = NULL;
    bool in_public = false;
    if (sl_link_address_split(listen, &a, NULL) != SL_OK || getaddrinfo(a.host, a.port, &hints, &res) != 0)
        return false;
    for (const struct addrinfo *i = res; i; i = i->ai_next)
        in_public |= !address_is_private(i->ai_addr);
    freeaddrinfo(res);
    return in_public;
}

static void free_all(struct sl_xfer *x)
{
    struct cmd *c;
    if (x->link)
        x->ops->close(x->link);
    sl_stage_stop(x);
    while (x->commands && (c = sl_queue_pop(x->commands)) != NULL)
        cmd_free(c);
    sl_send_free_all(x);
    sl_recv_free_all(x);
    SL_LIST_FOREACH_SAFE (n, tmp, &x->peers)
        sl_peer_free(SL_CONTAINER_OF(n, struct sl_peer, node));
    SL_LIST_FOREACH_SAFE (n, tmp, &x->flights)
        sl_flight_free(x, SL_CONTAINER_OF(n, struct sl_flight, node));
    sl_stage_close(x);
    SL_LIST_FOREACH_SAFE (n, tmp, &x->backlog) {
        struct backlog_event *b = SL_CONTAINER_OF(n, struct backlog_event, node);
        sl_free(b->ev);
        sl_free(b);
    }
    sl_hashmap_free(x->send_by_key);
    sl_hashmap_free(x->recv_by_key);
    sl_hashmap_free(x->send_by_id);
    sl_hashmap_free(x->recv_by_id);
    explicit_bzero(&x->secret, sizeof x->secret);
    sl_timer_free(x->tick);
    sl_loop_close(x->loop);
    sl_queue_free(x->commands);
    sl_free(x->probe_bytes);
    sl_free(x->reports);
    pthread_mutex_destroy(&x->report_mutex);
    sl_free(x);
}

enum sl_err sl_xfer_open(const struct sl_xfer_conf *conf, struct sl_xfer **out, struct sl_why *why)
{
    const char *flip = getenv("SLUICE_FAULT_FLIP_BIT");
    const struct sl_link_ops *ops = sl_link_find(conf->transport);
    if (!ops)
        return sl_why_set(why, SL_ECONFIG, "transfer_transport \"%s\" is not known; known are ucx and nccl",
                          conf->transport);
    if (!conf->listen || !*conf->listen)
        return sl_why_set(why, SL_ECONFIG, "transfer_listen is empty; give host:port, port 0 for any");
    if (ops != &sl_link_loop && !conf->trust_network && listens_in_public(conf->listen))
        return sl_why_set(why, SL_ECONFIG,
                          "transfer_listen %s is neither loopback nor a private address, and whoever reaches "
                          "a UCX port is trusted; "
                          "bind a private address, or set trust_network = true",
                          conf->listen);
    struct sl_xfer *x = sl_xcalloc(1, sizeof *x);
    x->conf = *conf;
    x->conf.transport = x->conf.listen = x->conf.ucx_tls = x->conf.ucx_devices = NULL; /* the caller's */
    if (conf->secret) {
        x->secret = *conf->secret;
        x->conf.secret = &x->secret;
    }
    snprintf(x->conf.self.transport, sizeof x->conf.self.transport, "%s", ops->name);
    x->ops = ops;
    x->next_id = 1;
    x->flip_bit_page = flip ? strtoull(flip, NULL, 10) : 0;
    pthread_mutex_init(&x->report_mutex, NULL);
    sl_list_init(&x->peers);
    sl_list_init(&x->sends);
    sl_list_init(&x->recvs);
    sl_list_init(&x->earlies);
    sl_list_init(&x->flights);
    sl_list_init(&x->backlog);
    x->send_by_key = sl_hashmap_new();
    x->recv_by_key = sl_hashmap_new();
    x->send_by_id = sl_hashmap_new();
    x->recv_by_id = sl_hashmap_new();
    x->commands = sl_queue_new(COMMAND_QUEUE);
    x->probe_bytes = sl_xalloc(SL_XFER_PROBE_BYTES);
    memset(x->probe_bytes, 0x55, SL_XFER_PROBE_BYTES); /* a first touch would be measured as the link */
    x->reports = sl_xcalloc(SL_XFER_MAX_PEERS, sizeof *x->reports);
    x->progressed_ms = sl_now_ms();
    enum sl_err e = sl_loop_open(&x->loop);
    if (e) {
        sl_why_set(why, e, "no event loop for transfers; raise the limit of open files");
    } else {
        x->tick = sl_timer_new(x->loop, on_tick, x);
        struct sl_link_conf link = {.listen = conf->listen,
                                    .cuda_device = conf->cuda_device,
                                    .tls = conf->ucx_tls,
                                    .devices = conf->ucx_devices,
                                    .pool = conf->pool,
                                    .pool_bytes = (size_t)conf->n_pages * conf->page_bytes,
                                    .patience_ms = conf->wait_ms};
        if (!conf->pool) {
            link.pool_on_device = ops->takes_device && ops->takes_device(&link);
            e = sl_stage_open(x, link.pool_on_device, why);
        }
        if (!e && x->stage)
            link.pool = sl_stage_memory(x, &link.pool_bytes);
        if (!e)
            e = ops->open(&link, &link_events, x, &x->link, why);
    }
    if (!e && (sl_loop_add(x->loop, ops->fd(x->link), EPOLLIN, on_link, x) != SL_OK ||
               sl_loop_add(x->loop, sl_queue_fd(x->commands), EPOLLIN, on_commands, x) != SL_OK ||
               sl_thread_start(&x->thread, "sl-transfer", thread_main, x) != SL_OK))
        e = sl_why_set(why, SL_EIO,
                       "the transfer thread cannot start; raise the limits of threads and of open files");
    if (e) {
        free_all(x);
        return e;
    }
    *out = x;
    return SL_OK;
}

void sl_xfer_progress(struct sl_xfer *x)
{
    atomic_fetch_add_explicit(&x->n_progress, 1, memory_order_relaxed);
}

void sl_xfer_close(struct sl_xfer *x)
{
    if (!x)
        return;
    atomic_store(&x->stop, true);
    sl_loop_wake(x->loop);
    sl_thread_join(&x->thread);
    free_all(x);
}

const char *sl_xfer_address(const struct sl_xfer *x)
{
    return x->ops->address(x->link);
}

/* ---- calls of the engine thread ---- */

static struct cmd *cmd_new(enum cmd_kind kind, const struct sl_xfer_key *k)
{
    struct cmd *c = sl_xcalloc(1, sizeof *c);
    c->kind = kind;
    snprintf(c->key.request, sizeof c->key.request, "%s",
             k->request); /* zero-filled: keys are compared as bytes */
    c->key.epoch = k->epoch;
    return c;
}

static enum sl_err give(struct sl_xfer *x, struct cmd *c)
{
    enum sl_err e = sl_queue_push(x->commands, c);
    if (e)
        cmd_free(c);
    return e;
}

static enum sl_err give_open(struct sl_xfer *x, struct cmd *c)
{
    if (atomic_fetch_add(&x->n_sessions, 1) >= x->conf.max_sessions) {
        atomic_fetch_sub(&x->n_sessions, 1);
        cmd_free(c);
        return SL_EAGAIN;
    }
    enum sl_err e = give(x, c);
    if (e)
        atomic_fetch_sub(&x->n_sessions, 1);
    return e;
}

static bool in_pool(const struct sl_xfer *x, const uint32_t *pages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (pages[i] >= x->conf.n_pages)
            return false;
    return true;
}

enum sl_err sl_xfer_retest(struct sl_xfer *x)
{
    const struct sl_xfer_key none = {0};
    return give(x, cmd_new(CMD_RETEST, &none));
}

enum sl_err sl_xfer_send_open(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *to,
                              uint32_t n_tokens, uint32_t deadline_ms)
{
    SL_ASSERT(n_tokens > 0 && sl_xfer_pages_of(x, n_tokens) <= SL_KV_MAX_PAGES);
    struct cmd *c = cmd_new(CMD_SEND_OPEN, k);
    c->peer = *to;
    c->n_tokens = n_tokens;
    c->deadline_ms = deadline_ms;
    return give_open(x, c);
}

enum sl_err sl_xfer_send_ready(struct sl_xfer *x, const struct sl_xfer_key *k, const uint32_t *pages,
                               uint32_t n_tokens)
{
    uint32_t n = sl_xfer_pages_of(x, n_tokens);
    SL_ASSERT(!pages || in_pool(x, pages, n));
    struct cmd *c = cmd_new(CMD_SEND_READY, k);
    c->n_tokens = n_tokens;
    c->pages = pages ? sl_xmemdup(pages, n * sizeof *pages) : NULL;
    return give(x, c);
}

enum sl_err sl_xfer_send_first(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_first *t)
{
    struct cmd *c = cmd_new(CMD_SEND_FIRST, k);
    c->first = *t;
    return give(x, c);
}

enum sl_err sl_xfer_send_abort(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *to,
                               const char *why)
{
    struct cmd *c = cmd_new(CMD_SEND_ABORT, k);
    c->peer = *to;
    sl_kv_text(c->why, sizeof c->why, why, why ? strlen(why) : 0);
    return give(x, c);
}

enum sl_err sl_xfer_recv_open(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *from,
                              const uint32_t *pages, uint32_t n_tokens, uint32_t have_pages,
                              uint32_t deadline_ms)
{
    uint32_t n = sl_xfer_pages_of(x, n_tokens);
    SL_ASSERT(n_tokens > 0 && n <= SL_KV_MAX_PAGES && have_pages <= n && in_pool(x, pages, n));
    struct cmd *c = cmd_new(CMD_RECV_OPEN, k);
    c->peer = *from;
    c->n_tokens = n_tokens;
    c->have_pages = have_pages;
    c->deadline_ms = deadline_ms;
    c->pages = sl_xmemdup(pages, n * sizeof *pages);
    return give_open(x, c);
}

enum sl_err sl_xfer_recv_cancel(struct sl_xfer *x, const struct sl_xfer_key *k)
{
    return give(x, cmd_new(CMD_RECV_CANCEL, k));
}

size_t sl_xfer_links(struct sl_xfer *x, struct sl_link_report *out, size_t max)
{
    pthread_mutex_lock(&x->report_mutex);
    size_t n = x->n_reports < max ? x->n_reports : max;
    memcpy(out, x->reports, n * sizeof *out);
    pthread_mutex_unlock(&x->report_mutex);
    return n;
}

struct sl_xfer_totals sl_xfer_totals(struct sl_xfer *x)
{
    pthread_mutex_lock(&x->report_mutex);
    struct sl_xfer_totals t = x->totals;
    pthread_mutex_unlock(&x->report_mutex);
    return t;
}

uint32_t sl_xfer_staged_pages(struct sl_xfer *x)
{
    return atomic_load(&x->n_staged);
}

uint32_t sl_xfer_open_sessions(struct sl_xfer *x)
{
    return atomic_load(&x->n_sessions);
}
