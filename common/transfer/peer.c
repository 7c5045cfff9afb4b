/* common/transfer/peer.c - who is at the other end of a connection: handshake, heartbeats, link test.
 *
 * P dials D once and keeps the connection. Identity is (name, boot id): a HELLO with a new boot id fences the
 * connection of the old one. A pair that does not match is refused in words and not dialled again for
 * SL_XFER_RETRY_MS.
 *
 *   dialled:   CONNECTING --HELLO sent--> HELLO --HELLO_ACK ok--> UP --closed--> CLOSED
 *   accepted:  CONNECTING ------------HELLO received------------> UP --closed--> (freed)
 *
 * UCX notices a hung peer late or never while data is in flight, so every side pings and force-closes what
 * stays silent. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/transfer/xfer.h"

static struct sl_kv_hello my_hello(const struct sl_xfer *x)
{
    return (struct sl_kv_hello){SL_KV_PROTOCOL, x->conf.self};
}

static struct sl_peer *peer_new(struct sl_xfer *x, struct sl_conn *c, bool dialled)
{
    struct sl_peer *p = sl_xcalloc(1, sizeof *p);
    p->x = x;
    p->conn = c;
    p->dialled = dialled;
    p->state = SL_PEER_CONNECTING;
    p->connect_since_ms = p->last_heard_ms = sl_now_ms();
    snprintf(p->transport, sizeof p->transport, "%s", x->ops->transport(c));
    x->ops->set_user(c, p);
    sl_list_add_tail(&x->peers, &p->node);
    x->n_peers++;
    return p;
}

void sl_peer_free(struct sl_peer *p)
{
    struct sl_xfer *x = p->x;
    SL_LIST_FOREACH(n, &x->flights)
    {
        struct sl_flight *f = SL_CONTAINER_OF(n, struct sl_flight, node);
        if (f->peer == p)
            f->peer = NULL;
    }
    sl_list_remove(&p->node);
    x->n_peers--;
    sl_free(p);
}

enum sl_err sl_peer_send(struct sl_peer *p, const struct sl_kv_header *h, const void *payload, size_t len)
{
    unsigned char bytes[SL_KV_HEADER_BYTES];
    if (!p->conn)
        return SL_EPEER;
    sl_kv_header_pack(h, bytes);
    return p->x->ops->send(p->conn, bytes, sizeof bytes, payload, len, true, 0);
}

void sl_peer_disconnect(struct sl_peer *p, const char *why)
{
    if (why && !p->why[0])
        snprintf(p->why, sizeof p->why, "%s", why);
    if (p->conn)
        p->x->ops->disconnect(p->conn);
}

static void say_hello(struct sl_peer *p)
{
    unsigned char id[SL_KV_IDENTITY_BYTES];
    struct sl_kv_hello mine = my_hello(p->x);
    struct sl_kv_header h = {.type = SL_KV_HELLO};
    sl_kv_hello_pack(&mine, id);
    if (sl_peer_send(p, &h, id, sizeof id) == SL_OK)
        p->state = SL_PEER_HELLO;
}

struct sl_peer *sl_peer_dial(struct sl_xfer *x, const struct sl_xfer_peer *to, struct sl_why *why)
{
    struct sl_conn *c;
    uint64_t now = sl_now_ms();
    SL_LIST_FOREACH_SAFE(n, tmp, &x->peers)
    {
        struct sl_peer *p = SL_CONTAINER_OF(n, struct sl_peer, node);
        if (!p->dialled || strcmp(p->ref.name, to->name) != 0)
            continue;
        bool same = p->ref.boot_id == to->boot_id && strcmp(p->ref.address, to->address) == 0;
        if (same && p->state != SL_PEER_CLOSED)
            return p;
        if (same && p->refused && now < p->retry_ms) {
            sl_why_set(why, SL_EMISMATCH, "%s", p->why);
            return NULL;
        }
        if (p->state == SL_PEER_CLOSED)
            sl_peer_free(p);
        else
            sl_peer_disconnect(p, "the node was started again"); /* fenced: its sessions end with on_closed */
    }
    if (x->n_peers >= SL_XFER_MAX_PEERS) {
        sl_why_set(why, SL_EAGAIN, "%u peers are connected, the most this node keeps", x->n_peers);
        return NULL;
    }
    if (x->ops->connect(x->link, to->address, &c, why) != SL_OK)
        return NULL;
    struct sl_peer *p = peer_new(x, c, true);
    p->ref = *to;
    say_hello(p);
    return p;
}

void sl_peer_accept(struct sl_xfer *x, struct sl_conn *c)
{
    if (x->n_peers >= SL_XFER_MAX_PEERS) {
        x->ops->set_user(c, NULL);
        x->ops->disconnect(c);
        return;
    }
    peer_new(x, c, false);
}

void sl_peer_closed(struct sl_peer *p)
{
    struct sl_xfer *x = p->x;
    bool was_up = p->state == SL_PEER_UP;
    x->ops->set_user(p->conn, NULL);
    p->conn = NULL;
    p->state = SL_PEER_CLOSED;
    p->retry_ms = sl_now_ms() + SL_XFER_RETRY_MS;
    if (was_up && !p->bye && !atomic_load(&x->stop))
        SL_WARN("peer lost peer=%s why=\"%s\"", p->ref.name, p->why[0] ? p->why : "its connection broke");
    sl_send_peer_gone(x, p, p->refused ? SL_EMISMATCH : SL_EPEER, p->why[0] ? p->why : "the peer is gone");
    sl_recv_peer_gone(x, p, p->why[0] ? p->why : "the peer is gone");
    if (!p->dialled)
        sl_peer_free(p);
}

static void answer_hello(struct sl_peer *p, const struct sl_kv_hello *theirs, enum sl_err verdict,
                         const char *text)
{
    struct sl_xfer *x = p->x;
    unsigned char payload[SL_KV_IDENTITY_BYTES + SL_KV_MAX_WHY] = {0};
    struct sl_kv_hello mine = my_hello(x);
    struct sl_kv_header h = {.type = SL_KV_HELLO_ACK, .flags = verdict == SL_OK ? SL_KV_FLAG_OK : 0};
    sl_kv_hello_pack(&mine, payload);
    snprintf((char *)payload + SL_KV_IDENTITY_BYTES, SL_KV_MAX_WHY, "%.*s", SL_KV_MAX_WHY - 1, text);
    (void)sl_peer_send(p, &h, payload, sizeof payload); /* on failure on_closed follows */
    if (verdict != SL_OK) {
        p->refused = true;
        snprintf(p->why, sizeof p->why, "%.*s", (int)sizeof p->why - 1, text);
        SL_ERROR("pair refused peer=%s why=\"%s\"", theirs->id.name, text);
    }
}

static void take_hello(struct sl_peer *p, const void *data, size_t len)
{
    struct sl_xfer *x = p->x;
    struct sl_kv_hello theirs, mine = my_hello(x);
    struct sl_why why = {0};
    if (p->dialled || p->state != SL_PEER_CONNECTING || !data ||
        sl_kv_hello_unpack(data, len, &theirs) != SL_OK) {
        p->dropped++;
        return;
    }
    snprintf(p->ref.name, sizeof p->ref.name, "%s", theirs.id.name);
    p->ref.boot_id = theirs.id.boot_id;
    enum sl_err e = sl_kv_identity_match(&mine, &theirs, &why);
    answer_hello(p, &theirs, e, why.text);
    if (e)
        return;
    SL_LIST_FOREACH_SAFE(n, tmp, &x->peers)
    {
        struct sl_peer *old = SL_CONTAINER_OF(n, struct sl_peer, node);
        if (old != p && !old->dialled && old->conn && strcmp(old->ref.name, p->ref.name) == 0)
            sl_peer_disconnect(old, "a newer connection of this node came");
    }
    p->state = SL_PEER_UP;
    SL_INFO("peer connected peer=%s direction=in transport=\"%s\"", p->ref.name, p->transport);
}

/* Latency first, then one large payload. Runs when the pair first meets: a waiting request feels some
 * milliseconds once. */
static void probe_next(struct sl_peer *p)
{
    struct sl_xfer *x = p->x;
    unsigned char header[SL_KV_HEADER_BYTES];
    bool large = p->probe_round == SL_XFER_PROBE_ROUNDS;
    struct sl_kv_header h = {.type = SL_KV_PROBE, .value = p->probe_round};
    p->probing = true;
    p->probe_sent_us = sl_now_us();
    if (!large) {
        (void)sl_peer_send(p, &h, NULL, 0);
        return;
    }
    struct sl_flight *f = sl_flight_new(x, p, 0);
    f->bytes = SL_XFER_PROBE_BYTES;
    p->inflight_bytes += f->bytes;
    sl_kv_header_pack(&h, header);
    if (x->ops->send(p->conn, header, sizeof header, x->probe_bytes, SL_XFER_PROBE_BYTES, false,
                     (uintptr_t)f) != SL_OK) {
        p->inflight_bytes -= f->bytes;
        sl_flight_free(f);
    }
}

static void take_probe_ack(struct sl_peer *p, uint64_t round)
{
    if (!p->probing || round != p->probe_round)
        return;
    double us = (double)(sl_now_us() - p->probe_sent_us);
    p->probing = false;
    if (p->probe_round < SL_XFER_PROBE_ROUNDS) {
        /* half a round trip */
        if (p->latency_us == 0 || us / 2 < p->latency_us)
            p->latency_us = us / 2;
        p->probe_round++;
        probe_next(p);
        return;
    }
    double wire_us = us - p->latency_us * 2;
    p->bytes_per_s = (double)SL_XFER_PROBE_BYTES / (wire_us > 1 ? wire_us : 1) * 1e6;
    p->probe_round = SL_XFER_PROBE_ROUNDS + 1;
    SL_INFO("link measured peer=%s transport=\"%s\" mb_per_s=%.0f latency_us=%.0f", p->ref.name, p->transport,
            p->bytes_per_s / 1e6, p->latency_us);
}

static void take_hello_ack(struct sl_peer *p, const struct sl_kv_header *h, const void *data, size_t len)
{
    struct sl_xfer *x = p->x;
    struct sl_kv_hello theirs, mine = my_hello(x);
    struct sl_why why = {0};
    if (!p->dialled || p->state != SL_PEER_HELLO || !data ||
        sl_kv_hello_unpack(data, len, &theirs) != SL_OK) {
        p->dropped++;
        return;
    }
    if (!(h->flags & SL_KV_FLAG_OK)) {
        const char *text = (const char *)data + SL_KV_IDENTITY_BYTES;
        size_t max = len - SL_KV_IDENTITY_BYTES;
        p->refused = true;
        snprintf(p->why, sizeof p->why, "%.*s", (int)strnlen(text, max), text);
        sl_peer_disconnect(p, NULL);
        return;
    }
    if (sl_kv_identity_match(&mine, &theirs, &why) != SL_OK) {
        p->refused = true;
        sl_peer_disconnect(p, why.text);
        return;
    }
    if (strcmp(theirs.id.name, p->ref.name) != 0 || theirs.id.boot_id != p->ref.boot_id) {
        sl_peer_disconnect(p, "another node, or another start of it, answers at this address");
        return;
    }
    p->state = SL_PEER_UP;
    SL_INFO("peer connected peer=%s direction=out transport=\"%s\"", p->ref.name, p->transport);
    sl_send_peer_up(x, p);
    if (x->conf.link_test)
        probe_next(p);
}

void sl_peer_message(struct sl_peer *p, const struct sl_kv_header *h, const void *data, size_t len,
                     struct sl_link_rx *rx)
{
    struct sl_xfer *x = p->x;
    struct sl_kv_header answer = {.value = h->value};
    switch (h->type) {
    case SL_KV_HELLO:
        take_hello(p, data, len);
        break;
    case SL_KV_HELLO_ACK:
        take_hello_ack(p, h, data, len);
        break;
    case SL_KV_BYE:
        p->bye = true;
        sl_peer_disconnect(p, "the peer said goodbye");
        break;
    case SL_KV_PING:
        answer.type = SL_KV_PONG;
        (void)sl_peer_send(p, &answer, NULL, 0);
        break;
    case SL_KV_PONG:
        break; /* heard: that was all */
    case SL_KV_PROBE:
        if (len == 0) {
            answer.type = SL_KV_PROBE_ACK;
            (void)sl_peer_send(p, &answer, NULL, 0);
        } else if (len <= SL_XFER_PROBE_BYTES) {
            struct sl_flight *f = sl_flight_new(x, p, 0);
            f->value = h->value;
            (void)x->ops->recv(p->conn, rx, x->probe_bytes, len, (uintptr_t)f); /* on_received tells */
        } else {
            p->dropped++;
        }
        break;
    case SL_KV_PROBE_ACK:
        take_probe_ack(p, h->value);
        break;
    default:
        p->dropped++;
    }
}

void sl_peer_tick(struct sl_peer *p, uint64_t now)
{
    const struct sl_xfer_conf *c = &p->x->conf;
    if (!p->conn)
        return;
    if (p->state != SL_PEER_UP) {
        if (now - p->connect_since_ms > c->wait_ms)
            sl_peer_disconnect(p, p->refused ? NULL : "no handshake in time");
        return;
    }
    if (now - p->last_heard_ms > c->peer_dead_ms) {
        sl_peer_disconnect(p, "silent for longer than peer_dead_ms");
        return;
    }
    if (now >= p->next_ping_ms) {
        struct sl_kv_header ping = {.type = SL_KV_PING};
        p->next_ping_ms = now + c->heartbeat_ms;
        (void)sl_peer_send(p, &ping, NULL, 0);
    }
}

void sl_peer_report(const struct sl_peer *p, struct sl_link_report *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->peer, sizeof out->peer, "%s", p->ref.name);
    out->peer_boot_id = p->ref.boot_id;
    snprintf(out->transport, sizeof out->transport, "%s", p->transport);
    out->state = p->refused                                      ? "refused"
                 : p->state == SL_PEER_CLOSED                    ? "down"
                 : p->degraded                                   ? "degraded"
                 : p->state != SL_PEER_UP                        ? "connecting"
                 : p->x->conf.link_test && p->bytes_per_s == 0.0 ? "testing"
                                                                 : "up";
    out->bytes_per_s = p->bytes_per_s;
    out->latency_us = p->latency_us;
    out->pages_sent = p->pages_sent;
    out->bytes_sent = p->bytes_sent;
    out->pages_received = p->pages_received;
    out->rejects = p->rejects;
    out->dropped = p->dropped;
    snprintf(out->why, sizeof out->why, "%s", p->why);
}
