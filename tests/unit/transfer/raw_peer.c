/* tests/unit/transfer/raw_peer.c - see raw_peer.h. */
#include "tests/unit/transfer/raw_peer.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void on_accept(void *arg, struct sl_conn *c)
{
    struct raw_peer *r = arg;
    r->conn = c;
}

static void on_closed(void *arg, struct sl_conn *c)
{
    struct raw_peer *r = arg;
    if (r->conn == c)
        r->conn = NULL;
}

static void on_message(void *arg, struct sl_conn *c, const void *header, size_t header_len, const void *data,
                       size_t len, struct sl_link_rx *rx)
{
    struct raw_peer *r = arg;
    struct raw_message *m = sl_xcalloc(1, sizeof *m);
    (void)rx;
    if (sl_kv_header_unpack(header, header_len, &m->h) != SL_OK)
        fail_msg("a node sent a header that cannot be read");
    m->len = len;
    if (data && len)
        m->payload = sl_xmemdup(data, len);
    if (m->h.type == SL_KV_PING) { /* stays a live peer whatever the test does */
        struct sl_kv_header pong = {.type = SL_KV_PONG};
        unsigned char bytes[SL_KV_HEADER_BYTES];
        sl_kv_header_pack(&pong, bytes);
        (void)r->ops->send(c, bytes, sizeof bytes, NULL, 0, true, 0);
    }
    sl_list_add_tail(&r->inbox, &m->node);
}

/* A payload must stay until it was sent. */
struct payload {
    struct sl_list node;
    unsigned char bytes[];
};

static void payload_free(struct payload *p)
{
    sl_list_remove(&p->node);
    sl_free(p);
}

static void on_done(void *arg, struct sl_conn *c, uint64_t token, enum sl_err e)
{
    (void)arg;
    (void)c;
    (void)e;
    payload_free((struct payload *)(uintptr_t)token);
}

static const struct sl_link_events events = {
    .on_accept = on_accept,
    .on_closed = on_closed,
    .on_message = on_message,
    .on_sent = on_done,
    .on_received = on_done,
};

void raw_open(struct raw_peer *r, const char *transport, const char *name, uint64_t boot_id)
{
    struct sl_why why = {0};
    memset(r, 0, sizeof *r);
    sl_list_init(&r->inbox);
    sl_list_init(&r->payloads);
    r->hello.protocol = SL_KV_PROTOCOL;
    rig_identity(&r->hello.id);
    snprintf(r->hello.id.name, sizeof r->hello.id.name, "%s", name);
    r->hello.id.boot_id = boot_id;
    snprintf(r->hello.id.transport, sizeof r->hello.id.transport, "%s", transport);
    r->ops = sl_link_find(transport);
    if (r->ops->open(&(struct sl_link_conf){.listen = "127.0.0.1:0", .devices = "lo"}, &events, r, &r->link,
                     &why) != SL_OK)
        fail_msg("%s", why.text);
}

void raw_free(struct raw_message *m)
{
    sl_list_remove(&m->node);
    sl_free(m->payload);
    sl_free(m);
}

void raw_close(struct raw_peer *r)
{
    r->ops->close(r->link);
    while (!sl_list_empty(&r->inbox))
        raw_free(SL_CONTAINER_OF(r->inbox.next, struct raw_message, node));
    while (!sl_list_empty(&r->payloads))
        payload_free(SL_CONTAINER_OF(r->payloads.next, struct payload, node));
}

struct sl_xfer_peer raw_ref(const struct raw_peer *r)
{
    struct sl_xfer_peer p = {.boot_id = r->hello.id.boot_id};
    memcpy(p.name, r->hello.id.name, sizeof p.name);
    snprintf(p.address, sizeof p.address, "%s", r->ops->address(r->link));
    return p;
}

void raw_progress(struct raw_peer *r, uint32_t wait_ms)
{
    struct pollfd p = {.fd = r->ops->fd(r->link), .events = POLLIN};
    bool connected = r->conn != NULL;
    if (r->ops->progress(r->link) || !sl_list_empty(&r->inbox) || connected != (r->conn != NULL))
        return; /* something happened */
    if (poll(&p, 1, (int)wait_ms) > 0)
        r->ops->progress(r->link);
}

void raw_send_bytes(struct raw_peer *r, const void *header, size_t header_len, const void *payload,
                    size_t len, bool control)
{
    struct payload *p = NULL;
    if (!control) {
        p = sl_xalloc(sizeof *p + len);
        memcpy(p->bytes, payload, len);
        sl_list_add_tail(&r->payloads, &p->node);
    }
    if (!r->conn || r->ops->send(r->conn, header, header_len, p ? p->bytes : payload, len, control,
                                 (uintptr_t)p) != SL_OK) {
        if (p) /* the node has closed the connection: as good an answer as any */
            payload_free(p);
    }
}

void raw_send(struct raw_peer *r, const struct sl_kv_header *h, const void *payload, size_t len)
{
    unsigned char bytes[SL_KV_HEADER_BYTES];
    sl_kv_header_pack(h, bytes);
    raw_send_bytes(r, bytes, sizeof bytes, payload, len, h->type != SL_KV_PAGES);
}

struct raw_message *raw_next(struct raw_peer *r)
{
    if (sl_list_empty(&r->inbox))
        return NULL;
    struct raw_message *m = SL_CONTAINER_OF(r->inbox.next, struct raw_message, node);
    sl_list_remove(&m->node);
    return m;
}

struct raw_message *raw_wait(struct raw_peer *r, enum sl_kv_type type)
{
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_now_ms() < end; raw_progress(r, 20)) {
        struct raw_message *m;
        while ((m = raw_next(r)) != NULL) {
            if (m->h.type == type)
                return m;
            raw_free(m);
        }
    }
    fail_msg("message %d did not come", (int)type);
    return NULL;
}

void raw_wait_closed(struct raw_peer *r)
{
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; r->conn && sl_now_ms() < end;)
        raw_progress(r, 20);
    assert_null(r->conn);
}

void raw_connect(struct raw_peer *r, const struct rig_node *to)
{
    struct sl_why why = {0};
    if (r->ops->connect(r->link, to->peer.address, &r->conn, &why) != SL_OK)
        fail_msg("%s", why.text);
}

static void send_hello(struct raw_peer *r, enum sl_kv_type type, uint8_t flags, uint64_t value)
{
    unsigned char id[SL_KV_IDENTITY_BYTES];
    sl_kv_hello_pack(&r->hello, id);
    raw_send(r, &(struct sl_kv_header){.type = (uint8_t)type, .flags = flags, .value = value}, id, sizeof id);
}

void raw_join(struct raw_peer *r, const struct rig_node *to)
{
    raw_connect(r, to);
    send_hello(r, SL_KV_HELLO, 0, to->peer.boot_id);
    struct raw_message *m = raw_wait(r, SL_KV_HELLO_ACK);
    assert_int_equal(m->h.flags, SL_KV_FLAG_OK);
    raw_free(m);
}

void raw_be_joined(struct raw_peer *r)
{
    raw_free(raw_wait(r, SL_KV_HELLO));
    send_hello(r, SL_KV_HELLO_ACK, SL_KV_FLAG_OK, 0);
}
