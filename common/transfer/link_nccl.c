/* common/transfer/link_nccl.c - the NCCL transport: pages from device to device by a communicator of two ranks
 * per connection, everything small over an UCX connection beside it.
 *
 * NCCL has no small messages, no "who is there" and no notice that a peer went away, so the connection is
 * UCX's: handshake, grants, commits, heartbeats and BYE pass through unchanged, and its end is the end of the
 * communicator. Who dialled (P) is rank 0; its payloads go over NCCL, in the order sent:
 *
 *   P -> D  ID       the unique id, before the first payload     D joins, when it has shaken hands with P
 *           PAYLOAD  a message of the layer above, and how many bytes follow over NCCL
 *           GROUP    the next sends: D posts receives of the same sizes in one group
 *
 * Bytes of payloads lie one behind the other in the slots, cut where a slot ends; D knows from the PAYLOADs
 * which bytes are whose, and copies them where the layer above said, or nowhere (nccl_pair.h). That may be
 * memory of the host or, where pages lie on the device, the slots of its stage (stage.c): a copy inside the
 * device takes a hundredth of the wire's time, and buys that an abort that hangs holds none of them.
 *
 * These three begin with a byte that no message of the page protocol begins with: to a node whose transport
 * is ucx they mean nothing, and the handshake says in words that the transports differ.
 *
 * Rejected: a communicator over all nodes, which nobody can join or leave; NCCL straight into pages, as an
 * abort leaves its destination undefined and cannot be waited for. NCCL has no descriptor to wait on: while
 * something is under way a timer wakes the thread. */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/transfer/link.h"
#include "common/transfer/nccl_pair.h"

#define POLL_US      100u   /* NCCL takes ~10 us for a small message, ~100 us for a slot at 40 GB/s */
#define PATIENCE_MS  30000u /* when the configuration gives none */
#define MAX_WAITING  65536u /* payloads announced and not placed: SL_KV_MAX_PAGES */
#define REAP_MS      2000u  /* at close: an abort that works takes milliseconds */
#define HEADER_BYTES 24u

enum message { MESSAGE_ID = 0xe1, MESSAGE_PAYLOAD, MESSAGE_GROUP };

struct sl_conn {
    struct sl_link *link;
    struct sl_conn *beside; /* UCX's; NULL once it is closed */
    void *user;
    struct sl_list node; /* link->conns */
    bool dialled, dead;
    uint32_t n_beside; /* payloads that travel by UCX: those of D */
    bool admitted, has_id;
    struct sl_nccl_id id;
    struct sl_nccl_pair *pair;
    /* struct payload: not all in slots yet, and waiting for the slot of their last byte */
    struct sl_list queued, moving;
    uint32_t n_queued;
    char why[160]; /* of give_up() */
};

struct payload {
    struct sl_list node;
    uint64_t token;
    unsigned char *at; /* NULL: nobody wants it */
    size_t len, done;
};

struct sl_link_rx {
    struct sl_link_rx *beside; /* of a payload by UCX, else */
    struct payload *payload;
};

struct sl_link {
    struct sl_link_events events;
    void *arg;
    struct sl_link *beside;
    struct sl_list conns;
    uint32_t patience_ms;
    int efd, timer;
    bool ticking;
    void *pinned;
};

#define BESIDE (&sl_link_ucx)

static void put_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

static uint32_t get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Ends the connection for a reason of this file. */
static void give_up(struct sl_conn *c, const char *why)
{
    snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
    c->dead = true;
    BESIDE->disconnect(c->beside);
}

/* kind, and up to five numbers */
static bool tell(struct sl_conn *c, enum message kind, const uint32_t *numbers, size_t n, const void *payload,
                 size_t len)
{
    unsigned char header[HEADER_BYTES] = {(unsigned char)kind};
    SL_ASSERT(n <= (HEADER_BYTES - 4) / 4);
    for (size_t i = 0; i < n; i++)
        put_u32(header + 4 + 4 * i, numbers[i]);
    return !c->dead && BESIDE->send(c->beside, header, sizeof header, payload, len, true, 0) == SL_OK;
}

/* ---- payloads and slots ---- */

static struct payload *first_queued(struct sl_conn *c)
{
    return sl_list_empty(&c->queued) ? NULL : SL_CONTAINER_OF(c->queued.next, struct payload, node);
}

static void add_payload(struct sl_conn *c, struct payload *p)
{
    sl_list_add_tail(&c->queued, &p->node);
    c->n_queued++;
}

/* n more bytes of p went into a slot or out of it. */
static void advance(struct sl_conn *c, struct payload *p, struct sl_nccl_slot *s, uint32_t n)
{
    p->done += n;
    if (p->done < p->len)
        return;
    sl_list_remove(&p->node);
    sl_list_add_tail(&c->moving, &p->node);
    c->n_queued--;
    s->n_ends++;
}

static uint32_t smaller(uint32_t a, size_t b)
{
    return b < a ? (uint32_t)b : a;
}

static void fill_slots(struct sl_conn *c, bool *moved)
{
    struct sl_nccl_slot *s;
    struct payload *p;
    while (first_queued(c) && (s = sl_nccl_pair_room(c->pair)) != NULL) {
        while ((p = first_queued(c)) != NULL && sl_nccl_slot_room(s) > 0) {
            uint32_t n = smaller(sl_nccl_slot_room(s), p->len - p->done);
            sl_nccl_pair_gather(c->pair, s, p->at + p->done, n);
            advance(c, p, s, n);
        }
        sl_nccl_pair_filled(c->pair, s);
        *moved = true;
    }
}

static bool on_posted(void *arg, const struct sl_nccl_group *g)
{
    uint32_t numbers[1 + SL_NCCL_SLOTS] = {g->n};
    memcpy(numbers + 1, g->bytes, sizeof g->bytes);
    return tell(arg, MESSAGE_GROUP, numbers, SL_COUNTOF(numbers), NULL, 0);
}

static bool on_arrived(void *arg, struct sl_nccl_slot *s)
{
    struct sl_conn *c = arg;
    for (uint32_t at = 0; at < s->bytes;) {
        struct payload *p = first_queued(c);
        if (!p)
            return false;
        uint32_t n = smaller(s->bytes - at, p->len - p->done);
        if (p->at)
            sl_nccl_pair_scatter(c->pair, s, at, p->at + p->done, n);
        advance(c, p, s, n);
        at += n;
    }
    return true;
}

static void complete(struct sl_conn *c, struct payload *p, enum sl_err e)
{
    struct sl_link *l = c->link;
    sl_list_remove(&p->node);
    if (c->dialled)
        l->events.on_sent(l->arg, c, p->token, e);
    else if (p->at)
        l->events.on_received(l->arg, c, p->token, e);
    sl_free(p);
}

static void on_done(void *arg, struct sl_nccl_slot *s)
{
    struct sl_conn *c = arg;
    for (; s->n_ends > 0; s->n_ends--)
        complete(c, SL_CONTAINER_OF(c->moving.next, struct payload, node), SL_OK);
}

static const struct sl_nccl_pair_events pair_events = {
    .posted = on_posted,
    .arrived = on_arrived,
    .done = on_done,
};

static void open_pair(struct sl_conn *c)
{
    struct sl_why why = {0};
    if (sl_nccl_pair_open(&c->id, c->dialled ? 0 : 1, c->link->patience_ms, &pair_events, c, &c->pair,
                          &why) != SL_OK)
        give_up(c, why.text);
}

/* ---- connections ---- */

static struct sl_conn *conn_new(struct sl_link *l, struct sl_conn *beside, bool dialled)
{
    struct sl_conn *c = sl_xcalloc(1, sizeof *c);
    c->link = l;
    c->beside = beside;
    c->dialled = dialled;
    sl_list_init(&c->queued);
    sl_list_init(&c->moving);
    sl_list_add_tail(&l->conns, &c->node);
    BESIDE->set_user(beside, c);
    return c;
}

static void free_if_over(struct sl_conn *c)
{
    if (c->beside || c->n_beside > 0)
        return;
    sl_list_remove(&c->node);
    sl_free(c);
}

static void on_accept(void *arg, struct sl_conn *beside)
{
    struct sl_link *l = arg;
    l->events.on_accept(l->arg, conn_new(l, beside, false));
}

/* Payloads end with an error when their memory is left alone, which is when the copies have ended. */
static void on_closed(void *arg, struct sl_conn *beside)
{
    struct sl_link *l = arg;
    struct sl_conn *c = BESIDE->user(beside);
    c->dead = true;
    l->events.on_closed(l->arg, c);
    sl_nccl_pair_close(c->pair);
    c->pair = NULL;
    while (!sl_list_empty(&c->moving))
        complete(c, SL_CONTAINER_OF(c->moving.next, struct payload, node), SL_EPEER);
    while (!sl_list_empty(&c->queued))
        complete(c, SL_CONTAINER_OF(c->queued.next, struct payload, node), SL_EPEER);
    c->beside = NULL;
    free_if_over(c);
}

static void take_id(struct sl_conn *c, const void *data, size_t len)
{
    if (c->dialled || !c->admitted || c->has_id || !data || len != sizeof c->id) {
        give_up(c, "a communicator was offered that this node did not wait for");
        return;
    }
    memcpy(&c->id, data, sizeof c->id);
    c->has_id = true;
    open_pair(c);
}

/* The message inside is announced; when the layer above wants its payload, recv() says where it goes. */
static void take_payload(struct sl_conn *c, uint32_t bytes, const void *data, size_t len)
{
    struct sl_link *l = c->link;
    if (!c->pair || c->dialled || bytes == 0 || !data || len > SL_LINK_MAX_HEADER ||
        c->n_queued >= MAX_WAITING) {
        give_up(c, "a payload was announced that this node cannot take");
        return;
    }
    struct payload *p = sl_xcalloc(1, sizeof *p);
    p->len = bytes;
    add_payload(c, p);
    l->events.on_message(l->arg, c, data, len, NULL, bytes, &(struct sl_link_rx){.payload = p});
}

static void take_group(struct sl_conn *c, const unsigned char *header)
{
    struct sl_nccl_group g = {.n = get_u32(header + 4)};
    for (size_t i = 0; i < SL_COUNTOF(g.bytes); i++)
        g.bytes[i] = get_u32(header + 8 + 4 * i);
    if (!c->pair || !sl_nccl_pair_expect(c->pair, &g))
        give_up(c, "a group was announced that this node cannot take");
}

static void on_message(void *arg, struct sl_conn *beside, const void *header, size_t header_len,
                       const void *data, size_t len, struct sl_link_rx *rx)
{
    struct sl_link *l = arg;
    struct sl_conn *c = BESIDE->user(beside);
    const unsigned char *h = header;
    struct sl_link_rx mine = {.beside = rx};
    if (c->dead)
        return;
    if (header_len != HEADER_BYTES || h[0] < MESSAGE_ID || h[0] > MESSAGE_GROUP)
        l->events.on_message(l->arg, c, header, header_len, data, len, &mine);
    else if (h[0] == MESSAGE_ID)
        take_id(c, data, len);
    else if (h[0] == MESSAGE_PAYLOAD)
        take_payload(c, get_u32(h + 4), data, len);
    else
        take_group(c, h);
}

static void on_sent_beside(void *arg, struct sl_conn *beside, uint64_t token, enum sl_err e)
{
    struct sl_link *l = arg;
    struct sl_conn *c = BESIDE->user(beside);
    c->n_beside--;
    l->events.on_sent(l->arg, c, token, e);
    free_if_over(c);
}

static void on_received_beside(void *arg, struct sl_conn *beside, uint64_t token, enum sl_err e)
{
    struct sl_link *l = arg;
    struct sl_conn *c = BESIDE->user(beside);
    c->n_beside--;
    l->events.on_received(l->arg, c, token, e);
    free_if_over(c);
}

static const struct sl_link_events beside_events = {
    .on_accept = on_accept,
    .on_closed = on_closed,
    .on_message = on_message,
    .on_sent = on_sent_beside,
    .on_received = on_received_beside,
};

static enum sl_err nccl_connect(struct sl_link *l, const char *address, struct sl_conn **out,
                                struct sl_why *why)
{
    struct sl_conn *beside;
    enum sl_err e = BESIDE->connect(l->beside, address, &beside, why);
    if (!e)
        *out = conn_new(l, beside, true);
    return e;
}

static void nccl_admit(struct sl_conn *c)
{
    c->admitted = true;
}

/* The first payload makes the communicator: not before, as a pair that is refused needs none. */
static bool offer_pair(struct sl_conn *c)
{
    int rc = sl_nccl.ncclGetUniqueId(&c->id);
    if (rc != SL_NCCL_SUCCESS)
        give_up(c, sl_nccl.ncclGetErrorString(rc));
    else if (!tell(c, MESSAGE_ID, NULL, 0, &c->id, sizeof c->id))
        give_up(c, "the peer cannot be told of a communicator");
    else
        open_pair(c);
    return !c->dead;
}

static enum sl_err nccl_send(struct sl_conn *c, const void *header, size_t header_len, const void *payload,
                             size_t payload_len, bool control, uint64_t token)
{
    if (c->dead)
        return SL_EPEER;
    if (control || !c->dialled || payload_len == 0 || payload_len > UINT32_MAX) {
        enum sl_err e;
        c->n_beside += !control; /* it may end at once */
        e = BESIDE->send(c->beside, header, header_len, payload, payload_len, control, token);
        if (e)
            c->n_beside -= !control;
        return e;
    }
    uint32_t bytes = (uint32_t)payload_len;
    if ((!c->pair && !offer_pair(c)) || !tell(c, MESSAGE_PAYLOAD, &bytes, 1, header, header_len))
        return SL_EPEER;
    struct payload *p = sl_xcalloc(1, sizeof *p);
    *p = (struct payload){.token = token, .at = (unsigned char *)(uintptr_t)payload, .len = payload_len};
    add_payload(c, p);
    return SL_OK;
}

static void nccl_recv(struct sl_conn *c, struct sl_link_rx *rx, void *dst, size_t len, uint64_t token)
{
    if (!rx->payload) {
        c->n_beside++; /* it may end at once */
        BESIDE->recv(c->beside, rx->beside, dst, len, token);
        return;
    }
    SL_ASSERT(len == rx->payload->len);
    rx->payload->at = dst;
    rx->payload->token = token;
}

static void nccl_disconnect(struct sl_conn *c)
{
    c->dead = true;
    if (c->beside)
        BESIDE->disconnect(c->beside);
}

/* ---- the link ---- */

static void set_ticking(struct sl_link *l, bool on)
{
    struct itimerspec t = {.it_interval.tv_nsec = on ? POLL_US * 1000 : 0, .it_value = {0}};
    t.it_value = t.it_interval;
    if (l->ticking != on && timerfd_settime(l->timer, 0, &t, NULL) == 0)
        l->ticking = on;
}

static bool nccl_progress(struct sl_link *l)
{
    uint64_t ticks;
    bool moved = BESIDE->progress(l->beside), waits = false;
    if (read(l->timer, &ticks, sizeof ticks) < 0) {
        /* it has not come: what is under way is looked at all the same */
    }
    SL_LIST_FOREACH (n, &l->conns) {
        struct sl_conn *c = SL_CONTAINER_OF(n, struct sl_conn, node);
        struct sl_why why = {0};
        if (c->dead || !c->pair)
            continue;
        if (c->dialled)
            fill_slots(c, &moved);
        if (sl_nccl_pair_step(c->pair, &moved, &why) != SL_OK)
            give_up(c, why.text);
        waits |= !c->dead && sl_nccl_pair_waits(c->pair);
        moved |= c->dead; /* on_closed is to come */
    }
    set_ticking(l, waits);
    return moved;
}

static void nccl_close(struct sl_link *l)
{
    if (!l)
        return;
    SL_LIST_FOREACH (n, &l->conns) {
        struct sl_conn *c = SL_CONTAINER_OF(n, struct sl_conn, node);
        sl_nccl_pair_close(c->pair);
        c->pair = NULL;
    }
    if (l->beside)
        BESIDE->close(l->beside); /* no callbacks: the connections here are left */
    SL_LIST_FOREACH_SAFE (n, tmp, &l->conns) {
        struct sl_conn *c = SL_CONTAINER_OF(n, struct sl_conn, node);
        struct sl_list *lists[] = {&c->queued, &c->moving};
        for (size_t i = 0; i < SL_COUNTOF(lists); i++)
            SL_LIST_FOREACH_SAFE (m, next, lists[i])
                sl_free(SL_CONTAINER_OF(m, struct payload, node));
        sl_free(c);
    }
    sl_nccl_pair_reap(REAP_MS);
    if (l->pinned)
        sl_nccl.cuMemHostUnregister(l->pinned);
    if (l->efd >= 0)
        close(l->efd);
    if (l->timer >= 0)
        close(l->timer);
    sl_free(l);
}

/* Copies from memory that is not pinned are slower. */
static void pin(struct sl_link *l, void *pool, size_t bytes)
{
    if (bytes == 0 || sl_nccl.cuCtxSetCurrent(sl_nccl_context) != SL_CUDA_SUCCESS)
        return;
    int rc = sl_nccl.cuMemHostRegister(pool, bytes, 0);
    if (rc == SL_CUDA_SUCCESS)
        l->pinned = pool;
    else
        SL_INFO("pages are not pinned for NCCL why=\"%s\"", sl_cuda_text(rc));
}

static bool nccl_takes_device(const struct sl_link_conf *conf)
{
    (void)conf;
    return true;
}

static enum sl_err nccl_open(const struct sl_link_conf *conf, const struct sl_link_events *events, void *arg,
                             struct sl_link **out, struct sl_why *why)
{
    struct sl_link_conf beside = *conf;
    enum sl_err e = sl_nccl_load(conf->cuda_device, why);
    if (e)
        return e;
    struct sl_link *l = sl_xcalloc(1, sizeof *l);
    l->events = *events;
    l->arg = arg;
    l->patience_ms = conf->patience_ms ? conf->patience_ms : PATIENCE_MS;
    sl_list_init(&l->conns);
    l->efd = epoll_create1(EPOLL_CLOEXEC);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    beside.pool = NULL;
    beside.pool_bytes = 0; /* no page goes by UCX */
    beside.pool_on_device = false;
    e = BESIDE->open(&beside, &beside_events, l, &l->beside, why);
    struct epoll_event in = {.events = EPOLLIN};
    if (!e && (l->efd < 0 || l->timer < 0 || epoll_ctl(l->efd, EPOLL_CTL_ADD, l->timer, &in) != 0 ||
               epoll_ctl(l->efd, EPOLL_CTL_ADD, BESIDE->fd(l->beside), &in) != 0))
        e = sl_why_set(why, SL_EIO,
                       "transport \"nccl\" cannot make its descriptors; raise the limit of open files");
    if (e) {
        nccl_close(l);
        return e;
    }
    if (!conf->pool_on_device)
        pin(l, conf->pool, conf->pool_bytes);
    SL_INFO("NCCL carries pages version=%d beside=%s", sl_nccl_version, BESIDE->address(l->beside));
    *out = l;
    return SL_OK;
}

static const char *nccl_address(const struct sl_link *l)
{
    return BESIDE->address(l->beside);
}

static int nccl_fd(const struct sl_link *l)
{
    return l->efd;
}

static void nccl_set_user(struct sl_conn *c, void *user)
{
    c->user = user;
}

static void *nccl_user(const struct sl_conn *c)
{
    return c->user;
}

static const char *nccl_why(const struct sl_conn *c)
{
    return c->why[0] ? c->why : BESIDE->why(c->beside);
}

static const char *nccl_transport(const struct sl_conn *c)
{
    (void)c;
    return "nccl";
}

const struct sl_link_ops sl_link_nccl = {
    .name = "nccl",
    .takes_device = nccl_takes_device,
    .open = nccl_open,
    .close = nccl_close,
    .address = nccl_address,
    .progress = nccl_progress,
    .fd = nccl_fd,
    .connect = nccl_connect,
    .admit = nccl_admit,
    .send = nccl_send,
    .recv = nccl_recv,
    .disconnect = nccl_disconnect,
    .set_user = nccl_set_user,
    .user = nccl_user,
    .why = nccl_why,
    .transport = nccl_transport,
};
