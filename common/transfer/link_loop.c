/* common/transfer/link_loop.c - a transport inside one process, for tests: every link has an inbox, a message
 * is copied into it.
 *
 * Connections are pairs of ends; an end is owned by its link's thread. Everything that crosses threads goes
 * through an inbox under one mutex of the whole transport, which is simple and fast enough for tests. */
#include "common/transfer/link_loop.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/transfer/link.h"

#define MAX_LINKS       64
#define ITEMS_PER_ROUND 64

struct sl_conn {
    struct sl_link *link;
    struct sl_conn *other; /* NULL once either end closed; under the mutex */
    void *user;
    bool closed_told, dead;
    struct sl_list node; /* in link->conns, or once told closed in link->dead_conns until the link closes:
                            items of an inbox may still point to it */
};

enum item_kind { ITEM_ACCEPT, ITEM_MESSAGE, ITEM_LANDED, ITEM_SENT, ITEM_CLOSED };
struct item {
    struct sl_list node;
    enum item_kind kind;
    struct sl_conn *conn;
    uint64_t token;
    size_t header_len, payload_len;
    unsigned char header[SL_LINK_MAX_HEADER];
    unsigned char *payload;
    bool held, fails; /* of a message: its payload lands later, or not at all */
    void *dst;        /* of a payload that lands */
};

struct sl_link_rx {
    struct item *item;
};

struct sl_link {
    struct sl_link_events events;
    void *arg;
    char address[64];
    int efd;
    struct sl_list inbox; /* struct item, under the mutex */
    struct sl_list held;  /* ITEM_LANDED and ITEM_SENT not released, under the mutex */
    struct sl_list conns, dead_conns;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sl_link *links[MAX_LINKS];
static unsigned next_port = 1;
static sl_loop_fault_fn *fault_fn;
static void *fault_arg;

void sl_link_loop_set_fault(sl_loop_fault_fn *fn, void *arg)
{
    fault_fn = fn;
    fault_arg = arg;
}

/* Under the mutex. */
static void put(struct sl_link *l, struct item *it)
{
    sl_list_add_tail(&l->inbox, &it->node);
    uint64_t one = 1;
    if (write(l->efd, &one, sizeof one) < 0) {
        /* the counter is full, so the reader wakes anyway */
    }
}

static struct item *item_new(enum item_kind kind, struct sl_conn *c)
{
    struct item *it = sl_xcalloc(1, sizeof *it);
    it->kind = kind;
    it->conn = c;
    return it;
}

static void item_free(struct item *it)
{
    sl_free(it->payload);
    sl_free(it);
}

static enum sl_err loop_open(const struct sl_link_conf *conf, const struct sl_link_events *events, void *arg,
                             struct sl_link **out, struct sl_why *why)
{
    (void)conf;
    struct sl_link *l = sl_xcalloc(1, sizeof *l);
    l->events = *events;
    l->arg = arg;
    l->efd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sl_list_init(&l->inbox);
    sl_list_init(&l->held);
    sl_list_init(&l->conns);
    sl_list_init(&l->dead_conns);
    pthread_mutex_lock(&mutex);
    size_t i = 0;
    while (i < MAX_LINKS && links[i])
        i++;
    if (i < MAX_LINKS) {
        links[i] = l;
        snprintf(l->address, sizeof l->address, "loop:%u", next_port++);
    }
    pthread_mutex_unlock(&mutex);
    if (i == MAX_LINKS || l->efd < 0) {
        if (l->efd >= 0)
            close(l->efd);
        sl_free(l);
        return sl_why_set(why, SL_EIO, "no more than %d loop links fit a process", MAX_LINKS);
    }
    *out = l;
    return SL_OK;
}

/* Under the mutex: both ends part; the other end hears of it in its own thread. */
static void part(struct sl_conn *c)
{
    struct sl_conn *o = c->other;
    if (!o)
        return;
    c->other = NULL;
    o->other = NULL;
    put(o->link, item_new(ITEM_CLOSED, o));
}

static void loop_close(struct sl_link *l)
{
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < MAX_LINKS; i++)
        if (links[i] == l)
            links[i] = NULL;
    SL_LIST_FOREACH (n, &l->conns)
        part(SL_CONTAINER_OF(n, struct sl_conn, node));
    SL_LIST_FOREACH (n, &l->inbox) {
        struct item *it = SL_CONTAINER_OF(n, struct item, node);
        if (it->kind == ITEM_ACCEPT)
            part(it->conn);
    }
    pthread_mutex_unlock(&mutex);
    SL_LIST_FOREACH_SAFE (n, tmp, &l->inbox) {
        struct item *it = SL_CONTAINER_OF(n, struct item, node);
        if (it->kind == ITEM_ACCEPT)
            sl_free(it->conn); /* it never came into conns */
        item_free(it);
    }
    SL_LIST_FOREACH_SAFE (n, tmp, &l->held)
        item_free(SL_CONTAINER_OF(n, struct item, node));
    SL_LIST_FOREACH_SAFE (n, tmp, &l->conns)
        sl_free(SL_CONTAINER_OF(n, struct sl_conn, node));
    SL_LIST_FOREACH_SAFE (n, tmp, &l->dead_conns)
        sl_free(SL_CONTAINER_OF(n, struct sl_conn, node));
    close(l->efd);
    sl_free(l);
}

static const char *loop_address(const struct sl_link *l)
{
    return l->address;
}

static int loop_fd(const struct sl_link *l)
{
    return l->efd;
}

static enum sl_err loop_connect(struct sl_link *l, const char *address, struct sl_conn **out,
                                struct sl_why *why)
{
    struct sl_conn *a = sl_xcalloc(1, sizeof *a);
    (void)why;
    a->link = l;
    sl_list_add_tail(&l->conns, &a->node);
    pthread_mutex_lock(&mutex);
    struct sl_link *peer = NULL;
    for (size_t i = 0; i < MAX_LINKS; i++)
        if (links[i] && strcmp(links[i]->address, address) == 0)
            peer = links[i];
    if (peer) {
        struct sl_conn *b = sl_xcalloc(1, sizeof *b);
        b->link = peer;
        a->other = b;
        b->other = a;
        put(peer, item_new(ITEM_ACCEPT, b));
    } else {
        put(l, item_new(ITEM_CLOSED, a));
    }
    pthread_mutex_unlock(&mutex);
    *out = a;
    return SL_OK;
}

static enum sl_err loop_send(struct sl_conn *c, const void *header, size_t header_len, const void *payload,
                             size_t payload_len, bool control, uint64_t token)
{
    enum sl_loop_fault f = fault_fn ? fault_fn(fault_arg, header, header_len, payload_len) : SL_LOOP_DELIVER;
    enum sl_err e = SL_OK;
    SL_ASSERT(header_len <= SL_LINK_MAX_HEADER);
    pthread_mutex_lock(&mutex);
    if (!c->other || c->dead) {
        e = SL_EPEER;
    } else if (f == SL_LOOP_CUT) {
        part(c);
        put(c->link, item_new(ITEM_CLOSED, c));
        e = SL_EPEER;
    } else {
        for (int copies = f == SL_LOOP_DROP ? 0 : f == SL_LOOP_DUPLICATE ? 2 : 1; copies > 0; copies--) {
            struct item *it = item_new(ITEM_MESSAGE, c->other);
            memcpy(it->header, header, header_len);
            it->header_len = header_len;
            it->payload = payload_len ? sl_xmemdup(payload, payload_len) : NULL;
            it->payload_len = payload_len;
            it->held = f == SL_LOOP_HOLD;
            it->fails = f == SL_LOOP_FAIL;
            if (f == SL_LOOP_CORRUPT && payload_len)
                it->payload[payload_len / 2] ^= 0x10;
            put(c->other->link, it);
        }
        if (!control) {
            struct item *it = item_new(ITEM_SENT, c);
            it->token = token;
            if (f == SL_LOOP_HOLD) /* the receiver has not fetched it yet */
                sl_list_add_tail(&c->link->held, &it->node);
            else
                put(c->link, it);
        }
    }
    pthread_mutex_unlock(&mutex);
    return e;
}

static void loop_recv(struct sl_conn *c, struct sl_link_rx *rx, void *dst, size_t len, uint64_t token)
{
    SL_ASSERT(len == rx->item->payload_len);
    if (rx->item->held) {
        struct item *it = item_new(ITEM_LANDED, c);
        it->token = token;
        it->dst = dst;
        it->payload = rx->item->payload;
        it->payload_len = len;
        rx->item->payload = NULL;
        pthread_mutex_lock(&mutex);
        sl_list_add_tail(&c->link->held, &it->node);
        pthread_mutex_unlock(&mutex);
        return;
    }
    if (!rx->item->fails)
        memcpy(dst, rx->item->payload, len);
    c->link->events.on_received(c->link->arg, c, token, rx->item->fails ? SL_EPEER : SL_OK);
}

static void loop_disconnect(struct sl_conn *c)
{
    pthread_mutex_lock(&mutex);
    if (!c->dead) {
        part(c);
        put(c->link, item_new(ITEM_CLOSED, c));
    }
    pthread_mutex_unlock(&mutex);
}

/* Payloads held for c, or for all when c is NULL, may land now. Under the mutex. */
static void release(struct sl_link *l, const struct sl_conn *c)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &l->held) {
        struct item *it = SL_CONTAINER_OF(n, struct item, node);
        if (c && it->conn != c)
            continue;
        sl_list_remove(&it->node);
        put(l, it);
    }
}

void sl_link_loop_release(void)
{
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < MAX_LINKS; i++)
        if (links[i])
            release(links[i], NULL);
    pthread_mutex_unlock(&mutex);
}

static void run_item(struct sl_link *l, struct item *it)
{
    struct sl_conn *c = it->conn;
    struct sl_link_rx rx = {it};
    switch (it->kind) {
    case ITEM_ACCEPT:
        sl_list_add_tail(&l->conns, &c->node);
        l->events.on_accept(l->arg, c);
        break;
    case ITEM_MESSAGE:
        if (!c->dead)
            l->events.on_message(l->arg, c, it->header, it->header_len, it->payload, it->payload_len, &rx);
        break;
    case ITEM_LANDED:
        if (!c->dead)
            memcpy(it->dst, it->payload, it->payload_len);
        l->events.on_received(l->arg, c, it->token, c->dead ? SL_EPEER : SL_OK);
        break;
    case ITEM_SENT:
        l->events.on_sent(l->arg, c, it->token, c->dead ? SL_EPEER : SL_OK);
        break;
    case ITEM_CLOSED:
        if (c->dead)
            break;
        c->dead = true;
        l->events.on_closed(l->arg, c);
        sl_list_remove(&c->node);
        sl_list_add_tail(&l->dead_conns, &c->node);
        pthread_mutex_lock(&mutex);
        release(l, c); /* to end with an error */
        pthread_mutex_unlock(&mutex);
        break;
    }
}

static bool loop_progress(struct sl_link *l)
{
    uint64_t count;
    if (read(l->efd, &count, sizeof count) < 0) {
        /* nothing was written: the inbox is looked at all the same */
    }
    for (int i = 0; i < ITEMS_PER_ROUND; i++) {
        pthread_mutex_lock(&mutex);
        struct item *it = NULL;
        if (!sl_list_empty(&l->inbox)) {
            it = SL_CONTAINER_OF(l->inbox.next, struct item, node);
            sl_list_remove(&it->node);
        }
        pthread_mutex_unlock(&mutex);
        if (!it)
            return false;
        run_item(l, it);
        item_free(it);
    }
    return true;
}

static void loop_set_user(struct sl_conn *c, void *user)
{
    c->user = user;
}

static void *loop_user(const struct sl_conn *c)
{
    return c->user;
}

static const char *loop_transport(const struct sl_conn *c)
{
    (void)c;
    return "loop";
}

const struct sl_link_ops sl_link_loop = {
    .name = "loop",
    .open = loop_open,
    .close = loop_close,
    .address = loop_address,
    .progress = loop_progress,
    .fd = loop_fd,
    .connect = loop_connect,
    .send = loop_send,
    .recv = loop_recv,
    .disconnect = loop_disconnect,
    .set_user = loop_set_user,
    .user = loop_user,
    .transport = loop_transport,
};
