/* common/transfer/peer.c - who is at the other end of a connection: handshake, heartbeats, link test.
 *
 * P dials D once and keeps the connection. Identity is (name, boot id): a HELLO with a new boot id fences the
 * connection of the old one. A pair that does not match is refused in words and not dialled again for
 * SL_XFER_RETRY_MS. With a cluster secret (peer_proof.c) nothing is told, fenced or granted before P has
 * proven it, and P believes nothing before D has.
 *
 * A connection that was lost is dialled again from here, ever more rarely: routers place nothing on a link
 * that is down, so no request would do it.
 *
 *   dialled:   CONNECTING --HELLO sent--> HELLO --HELLO_ACK ok--> UP --closed--> CLOSED --retry--> CONNECTING
 *   accepted:  CONNECTING ------------HELLO received------------> UP --closed--> (freed)
 *
 *   with a cluster secret
 *   dialled:   HELLO --CHALLENGE: PROOF--> PROVING --HELLO_ACK ok, with D's proof--> UP
 *   accepted:  CONNECTING --HELLO: CHALLENGE--> PROVING --PROOF right: HELLO_ACK--> UP
 *
 * UCX notices a hung peer late or never while data is in flight, so every side pings and force-closes what
 * stays silent. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rand.h"
#include "common/transfer/xfer.h"

static struct sl_kv_hello my_hello(const struct sl_xfer *x)
{
    return (struct sl_kv_hello){SL_KV_PROTOCOL, x->conf.self};
}

/* The first reason is the reason, until the next try begins. */
static void set_why(struct sl_peer *p, const char *why, size_t n)
{
    if (p->why[0] && !p->why_is_old)
        return;
    sl_kv_text(p->why, sizeof p->why, why, n);
    p->why_is_old = false;
}

static void take_connection(struct sl_peer *p, struct sl_conn *c)
{
    p->why_is_old = p->why[0] != '\0';
    p->conn = c;
    p->state = SL_PEER_CONNECTING;
    p->probing = false;
    p->connect_since_ms = p->last_heard_ms = sl_now_ms();
    snprintf(p->transport, sizeof p->transport, "%s", p->x->ops->transport(c));
    p->x->ops->set_user(c, p);
}

static struct sl_peer *peer_new(struct sl_xfer *x, struct sl_conn *c, bool dialled)
{
    struct sl_peer *p = sl_xcalloc(1, sizeof *p);
    p->x = x;
    p->dialled = dialled;
    p->max_inflight_bytes = SL_XFER_MAX_INFLIGHT;
    p->retry_wait_ms = SL_XFER_RETRY_MS;
    take_connection(p, c);
    sl_list_add_tail(&x->peers, &p->node);
    x->n_peers++;
    return p;
}

void sl_count_add(struct sl_xfer_totals *to, const struct sl_xfer_totals *n)
{
    to->pages_sent += n->pages_sent;
    to->bytes_sent += n->bytes_sent;
    to->pages_received += n->pages_received;
    to->rejects += n->rejects;
    to->dropped += n->dropped;
}

void sl_peer_free(struct sl_peer *p)
{
    struct sl_xfer *x = p->x;
    sl_count_add(&x->gone, &p->count);
    SL_LIST_FOREACH (n, &x->flights) {
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
    set_why(p, why, strlen(why));
    if (p->conn)
        p->x->ops->disconnect(p->conn);
}

static void say_hello(struct sl_peer *p)
{
    unsigned char payload[SL_KV_IDENTITY_BYTES + SL_NONCE_BYTES];
    struct sl_kv_hello mine = my_hello(p->x);
    struct sl_kv_header h = {.type = SL_KV_HELLO, .value = p->ref.boot_id};
    sl_kv_hello_pack(&mine, payload);
    sl_random_bytes(p->nonces.p, SL_NONCE_BYTES);
    memcpy(payload + SL_KV_IDENTITY_BYTES, p->nonces.p, SL_NONCE_BYTES);
    if (sl_peer_send(p, &h, payload, p->x->conf.secret ? sizeof payload : SL_KV_IDENTITY_BYTES) == SL_OK)
        p->state = SL_PEER_HELLO;
}

bool sl_peer_is(const struct sl_peer *p, const char *name, uint64_t boot_id)
{
    return strcmp(p->ref.name, name) == 0 && p->ref.boot_id == boot_id;
}

bool sl_peer_is_here(const struct sl_xfer *x, const struct sl_xfer_peer *who)
{
    SL_LIST_FOREACH (n, &x->peers) {
        const struct sl_peer *p = SL_CONTAINER_OF(n, struct sl_peer, node);
        if (!p->dialled && p->state == SL_PEER_UP && sl_peer_is(p, who->name, who->boot_id))
            return true;
    }
    return false;
}

/* What is known of a link outlives its connections; counts begin anew with each start of the other node, as
 * routers take them. */
static void inherit(struct sl_peer *p, struct sl_peer *old)
{
    if (old->ref.boot_id == p->ref.boot_id) {
        sl_count_add(&p->count, &old->count);
        old->count = (struct sl_xfer_totals){0};
        p->retry_wait_ms = old->retry_wait_ms;
    }
    p->degraded_until_ms = old->degraded_until_ms;
}

static void free_one_closed(struct sl_xfer *x)
{
    SL_LIST_FOREACH (n, &x->peers) {
        struct sl_peer *p = SL_CONTAINER_OF(n, struct sl_peer, node);
        if (p->state == SL_PEER_CLOSED) {
            sl_peer_free(p);
            return;
        }
    }
}

struct sl_peer *sl_peer_dial(struct sl_xfer *x, const struct sl_xfer_peer *to, struct sl_why *why)
{
    struct sl_conn *c;
    uint64_t now = sl_now_ms();
    SL_LIST_FOREACH (n, &x->peers) {
        struct sl_peer *p = SL_CONTAINER_OF(n, struct sl_peer, node);
        if (!p->dialled || !sl_peer_is(p, to->name, to->boot_id) || strcmp(p->ref.address, to->address) != 0)
            continue;
        if (p->state != SL_PEER_CLOSED)
            return p;
        if (p->refused && now < p->retry_ms) {
            sl_why_set(why, SL_EMISMATCH, "%s", p->why);
            return NULL;
        }
    }
    if (x->n_peers >= SL_XFER_MAX_PEERS)
        free_one_closed(x);
    if (x->n_peers >= SL_XFER_MAX_PEERS) {
        sl_why_set(why, SL_EAGAIN, "%u peers are connected, the most this node keeps", x->n_peers);
        return NULL;
    }
    if (x->ops->connect(x->link, to->address, &c, why) != SL_OK)
        return NULL;
    struct sl_peer *p = peer_new(x, c, true);
    p->ref = *to;
    SL_LIST_FOREACH_SAFE (n, tmp, &x->peers) {
        struct sl_peer *old = SL_CONTAINER_OF(n, struct sl_peer, node);
        if (old == p || !old->dialled || old->state != SL_PEER_CLOSED || strcmp(old->ref.name, to->name) != 0)
            continue;
        inherit(p, old);
        sl_peer_free(old);
    }
    say_hello(p);
    return p;
}

/* p has shown who it is: connections to or from an earlier start of that node are fenced; their sessions end
 * with on_closed, and they are not dialled again. Only now, as a late message may name an old boot id. */
static void fence_others(struct sl_peer *p)
{
    SL_LIST_FOREACH_SAFE (n, tmp, &p->x->peers) {
        struct sl_peer *old = SL_CONTAINER_OF(n, struct sl_peer, node);
        if (old == p || old->dialled != p->dialled || strcmp(old->ref.name, p->ref.name) != 0)
            continue;
        if (old->dialled && !old->fenced) {
            inherit(p, old);
            old->fenced = true;
        }
        if (old->conn)
            sl_peer_disconnect(old, old->ref.boot_id == p->ref.boot_id
                                        ? "a newer connection of this node came"
                                        : "the node was started again");
        else if (old->dialled)
            sl_peer_free(old);
    }
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

static void back_off(struct sl_peer *p)
{
    uint64_t now = sl_now_ms();
    if (!p->down_since_ms)
        p->down_since_ms = now;
    p->retry_ms = now + p->retry_wait_ms;
    p->retry_wait_ms =
        p->retry_wait_ms < SL_XFER_RETRY_MAX_MS / 2 ? p->retry_wait_ms * 2 : SL_XFER_RETRY_MAX_MS;
}

/* A link that shakes hands and then breaks at the first payload, as where NCCL cannot connect, is dialled ever more
 * rarely too: only what a link carries says that it is well. */
static void carried(struct sl_peer *p)
{
    p->retry_wait_ms = SL_XFER_RETRY_MS;
}

static void came_up(struct sl_peer *p)
{
    p->state = SL_PEER_UP;
    if (p->x->ops->admit)
        p->x->ops->admit(p->conn);
    p->down_since_ms = 0;
    p->why[0] = 0;
    if (!p->x->conf.link_test)
        carried(p);
}

/* A lost peer is tried again, or forgotten: p may be gone after this. One that said goodbye comes back as
 * another start, one that refused the pair would do so again. */
static void try_again(struct sl_peer *p, uint64_t now)
{
    struct sl_conn *c;
    struct sl_why why = {0};
    if (p->refused || p->bye || !sl_xfer_due(p->x, p->retry_ms, now))
        return;
    if (now - p->down_since_ms > SL_XFER_FORGET_MS) {
        sl_peer_free(p);
    } else if (p->x->ops->connect(p->x->link, p->ref.address, &c, &why) == SL_OK) {
        take_connection(p, c);
        say_hello(p);
    } else {
        p->why_is_old = true;
        set_why(p, why.text, strlen(why.text));
        back_off(p);
    }
}

void sl_peer_closed(struct sl_peer *p)
{
    struct sl_xfer *x = p->x;
    bool was_up = p->state == SL_PEER_UP;
    char why[SL_KV_MAX_WHY];
    const char *cause = x->ops->why ? x->ops->why(p->conn) : NULL;
    if (cause)
        set_why(p, cause, strlen(cause));
    snprintf(why, sizeof why,
             was_up ? "the connection to %s broke"
                    : "no connection to %s: see transfer_listen there, ucx_devices here, and firewalls",
             p->ref.address[0] ? p->ref.address : "it");
    set_why(p, why, strlen(why));
    x->ops->set_user(p->conn, NULL);
    p->conn = NULL;
    p->state = SL_PEER_CLOSED;
    back_off(p);
    if (was_up && !p->bye && !atomic_load(&x->stop))
        SL_WARN("peer lost peer=%s why=\"%s\"", p->ref.name, p->why);
    sl_send_peer_gone(x, p, p->refused ? SL_EMISMATCH : SL_EPEER, p->why);
    sl_recv_peer_gone(x, p, was_up && !p->dialled, p->why);
    if (!p->dialled || p->fenced)
        sl_peer_free(p);
}

/* of HELLO_ACK's payload: identity, why, proof */
#define ACK_PROOF (SL_KV_IDENTITY_BYTES + SL_KV_MAX_WHY)

static void answer_hello(struct sl_peer *p, enum sl_err verdict, const char *text)
{
    struct sl_xfer *x = p->x;
    unsigned char payload[ACK_PROOF + SL_PROOF_BYTES] = {0};
    struct sl_kv_hello mine = my_hello(x);
    struct sl_kv_header h = {.type = SL_KV_HELLO_ACK, .flags = verdict == SL_OK ? SL_KV_FLAG_OK : 0};
    sl_kv_hello_pack(&mine, payload);
    sl_kv_text((char *)payload + SL_KV_IDENTITY_BYTES, SL_KV_MAX_WHY, text, strlen(text));
    if (verdict == SL_OK && x->conf.secret)
        sl_peer_prove_d(p, p->hello, payload, payload + ACK_PROOF);
    (void)sl_peer_send(p, &h, payload, sizeof payload); /* on failure on_closed follows */
    if (verdict != SL_OK) {
        p->refused = true;
        set_why(p, text, strlen(text));
        sl_log(verdict == SL_EMISMATCH ? SL_LOG_ERROR : SL_LOG_WARN, "pair refused peer=%s why=\"%s\"",
               p->ref.name, text);
    }
}

/* The accepted peer has proven the cluster secret, or none is asked for. */
static void judge_hello(struct sl_peer *p, const struct sl_kv_hello *theirs)
{
    struct sl_xfer *x = p->x;
    struct sl_kv_hello mine = my_hello(x);
    struct sl_why why = {0};
    enum sl_err e = p->wanted_boot_id == x->conf.self.boot_id
                        ? sl_kv_identity_match(&mine, theirs, &why)
                        : sl_why_set(&why, SL_EPEER, "another start of node %s was asked for", mine.id.name);
    answer_hello(p, e, why.text);
    if (e) {
        sl_recv_peer_refused(x, p, why.text);
        return;
    }
    came_up(p); /* first: it is here while its former connection goes */
    fence_others(p);
    SL_INFO("peer connected peer=%s direction=in transport=\"%s\"", p->ref.name, p->transport);
}

static void take_hello(struct sl_peer *p, const struct sl_kv_header *h, const void *data, size_t len)
{
    struct sl_xfer *x = p->x;
    struct sl_kv_hello theirs;
    struct sl_why why = {0};
    if (p->dialled || p->state != SL_PEER_CONNECTING || p->refused || !data ||
        sl_kv_hello_unpack(data, len, &theirs) != SL_OK) {
        p->count.dropped++;
        return;
    }
    memcpy(p->ref.name, theirs.id.name, sizeof p->ref.name);
    p->ref.boot_id = theirs.id.boot_id;
    p->wanted_boot_id = h->value;
    bool has_nonce = len >= SL_KV_IDENTITY_BYTES + SL_NONCE_BYTES;
    if (has_nonce != (x->conf.secret != NULL)) {
        const char *has = has_nonce ? p->ref.name : x->conf.self.name,
                   *has_not = has_nonce ? x->conf.self.name : p->ref.name;
        sl_why_set(&why, SL_EMISMATCH,
                   "%.24s has a cluster secret and %.24s has none; set cluster_secret_file at %.24s", has,
                   has_not, has_not);
        answer_hello(p, SL_EMISMATCH, why.text);
    } else if (!has_nonce) {
        judge_hello(p, &theirs);
    } else {
        struct sl_kv_header challenge = {.type = SL_KV_CHALLENGE};
        memcpy(p->hello, data, sizeof p->hello);
        memcpy(p->nonces.p, (const char *)data + SL_KV_IDENTITY_BYTES, SL_NONCE_BYTES);
        sl_random_bytes(p->nonces.d, SL_NONCE_BYTES);
        p->state = SL_PEER_PROVING;
        (void)sl_peer_send(p, &challenge, p->nonces.d, SL_NONCE_BYTES); /* on failure on_closed follows */
    }
}

static void take_challenge(struct sl_peer *p, const void *data, size_t len)
{
    struct sl_kv_header h = {.type = SL_KV_PROOF};
    struct sl_kv_hello mine = my_hello(p->x);
    unsigned char id[SL_KV_IDENTITY_BYTES], proof[SL_PROOF_BYTES];
    if (!p->dialled || p->state != SL_PEER_HELLO || !p->x->conf.secret || !data || len != SL_NONCE_BYTES) {
        p->count.dropped++;
        return;
    }
    memcpy(p->nonces.d, data, SL_NONCE_BYTES);
    sl_kv_hello_pack(&mine, id);
    sl_peer_prove_p(p, id, p->ref.name, p->ref.boot_id, proof);
    p->state = SL_PEER_PROVING;
    (void)sl_peer_send(p, &h, proof, sizeof proof); /* on failure on_closed follows */
}

static void take_proof(struct sl_peer *p, const void *data, size_t len)
{
    struct sl_xfer *x = p->x;
    struct sl_kv_hello theirs;
    struct sl_why why = {0};
    unsigned char proof[SL_PROOF_BYTES];
    if (p->dialled || p->state != SL_PEER_PROVING || p->refused || !data || len != SL_PROOF_BYTES ||
        sl_kv_hello_unpack(p->hello, sizeof p->hello, &theirs) != SL_OK) {
        p->count.dropped++;
        return;
    }
    sl_peer_prove_p(p, p->hello, x->conf.self.name, p->wanted_boot_id, proof);
    if (sl_secret_equal(proof, data, sizeof proof)) {
        judge_hello(p, &theirs);
        return;
    }
    sl_why_set(&why, SL_EMISMATCH,
               "%.24s has another cluster secret than %.24s; give both the same cluster_secret_file",
               p->ref.name, x->conf.self.name);
    answer_hello(p, SL_EMISMATCH, why.text);
}

/* Whether D's HELLO_ACK proves the cluster secret, or none is asked for. */
static bool ack_proves(struct sl_peer *p, const unsigned char *data, size_t len, struct sl_why *why)
{
    struct sl_kv_hello mine = my_hello(p->x);
    unsigned char id[SL_KV_IDENTITY_BYTES], proof[SL_PROOF_BYTES];
    if (!p->x->conf.secret)
        return true;
    sl_kv_hello_pack(&mine, id);
    sl_peer_prove_d(p, id, data, proof);
    if (p->state == SL_PEER_PROVING && len >= ACK_PROOF + SL_PROOF_BYTES &&
        sl_secret_equal(proof, data + ACK_PROOF, sizeof proof))
        return true;
    sl_why_set(why, SL_EMISMATCH,
               "%.24s does not prove the cluster secret of %.24s; give both the same release and "
               "cluster_secret_file",
               p->ref.name, mine.id.name);
    return false;
}

/* Latency first, then large payloads, when the pair first meets and later when the link is idle. A waiting
 * request feels some milliseconds once. */
static void probe_next(struct sl_peer *p)
{
    struct sl_xfer *x = p->x;
    unsigned char header[SL_KV_HEADER_BYTES];
    bool large = p->probe_round >= SL_XFER_PROBE_ROUNDS;
    struct sl_kv_header h = {.type = SL_KV_PROBE, .value = p->probe_round};
    p->probing = true;
    p->probe_sent_us = sl_now_us();
    if (!large) {
        (void)sl_peer_send(p, &h, NULL, 0); /* on failure on_closed follows */
        return;
    }
    struct sl_flight *f = sl_flight_new(x, p, 0);
    f->bytes = SL_XFER_PROBE_BYTES;
    p->inflight_bytes += f->bytes;
    sl_kv_header_pack(&h, header);
    if (x->ops->send(p->conn, header, sizeof header, x->probe_bytes, SL_XFER_PROBE_BYTES, false,
                     (uintptr_t)f) != SL_OK) {
        p->inflight_bytes -= f->bytes;
        sl_flight_free(x, f);
    }
}

/* On a slow link a long queue only delays cancels and heartbeats. */
static void set_rate(struct sl_peer *p, double bytes_per_s)
{
    double queue = bytes_per_s * SL_XFER_INFLIGHT_MS * 1e-3;
    p->bytes_per_s = bytes_per_s;
    p->max_inflight_bytes = queue > SL_XFER_MAX_INFLIGHT   ? SL_XFER_MAX_INFLIGHT
                            : queue < SL_XFER_MIN_INFLIGHT ? SL_XFER_MIN_INFLIGHT
                                                           : (uint64_t)queue;
}

/* What real transfers reach, digests and other requests included, is nearer to what the next one will. */
void sl_peer_saw_rate(struct sl_peer *p, uint64_t bytes, double us)
{
    if (p->bytes_per_s > 0 && bytes >= SL_XFER_PROBE_BYTES && us > 0)
        set_rate(p, p->bytes_per_s * 0.75 + (double)bytes / us * 1e6 * 0.25);
}

static void probe_start(struct sl_peer *p)
{
    p->probe_round = 0;
    p->small_us = p->large_us = 0;
    p->next_probe_ms = sl_now_ms() + SL_XFER_PROBE_MS;
    probe_next(p);
}

static const char slow_link[] = "slow: check the network, transfer_listen, ucx_tls and ucx_devices";

static void take_probe_ack(struct sl_peer *p, uint64_t round)
{
    if (!p->probing || round != p->probe_round)
        return;
    double us = (double)(sl_now_us() - p->probe_sent_us);
    double *best = p->probe_round < SL_XFER_PROBE_ROUNDS ? &p->small_us : &p->large_us;
    if (*best == 0 || us < *best)
        *best = us;
    p->probing = false;
    if (++p->probe_round < SL_XFER_PROBE_ROUNDS + SL_XFER_PROBE_LARGE) {
        probe_next(p);
        return;
    }
    double wire_us = p->large_us > p->small_us + 1 ? p->large_us - p->small_us : 1;
    p->latency_us = p->small_us / 2;
    carried(p);
    set_rate(p, (double)SL_XFER_PROBE_BYTES / wire_us * 1e6);
    bool slow = p->bytes_per_s < SL_XFER_SLOW_MB_PER_S * 1e6;
    snprintf(p->why, sizeof p->why, "%s", slow ? slow_link : "");
    sl_log(slow ? SL_LOG_WARN : SL_LOG_INFO,
           "link measured peer=%s transport=\"%s\" mb_per_s=%.1f latency_us=%.0f%s%s", p->ref.name,
           p->transport, p->bytes_per_s / 1e6, p->latency_us, slow ? " why=" : "", p->why);
}

static void take_hello_ack(struct sl_peer *p, const struct sl_kv_header *h, const void *data, size_t len)
{
    struct sl_xfer *x = p->x;
    struct sl_kv_hello theirs, mine = my_hello(x);
    struct sl_why why = {0};
    if (!p->dialled || (p->state != SL_PEER_HELLO && p->state != SL_PEER_PROVING) || !data ||
        sl_kv_hello_unpack(data, len, &theirs) != SL_OK) {
        p->count.dropped++;
        return;
    }
    if (strcmp(theirs.id.name, p->ref.name) != 0 || theirs.id.boot_id != p->ref.boot_id) {
        sl_peer_disconnect(p, "another node, or another start of it, answers at this address");
        return;
    }
    if (!(h->flags & SL_KV_FLAG_OK)) {
        p->refused = true;
        set_why(p, (const char *)data + SL_KV_IDENTITY_BYTES, len - SL_KV_IDENTITY_BYTES);
        SL_ERROR("the peer refused the pair peer=%s why=\"%s\"", p->ref.name, p->why);
        sl_peer_disconnect(p, "the peer refused the pair");
        return;
    }
    if (!ack_proves(p, data, len, &why) || sl_kv_identity_match(&mine, &theirs, &why) != SL_OK) {
        p->refused = true;
        SL_ERROR("pair refused peer=%s why=\"%s\"", p->ref.name, why.text);
        sl_peer_disconnect(p, why.text);
        return;
    }
    fence_others(p);
    came_up(p);
    SL_INFO("peer connected peer=%s direction=out transport=\"%s\"", p->ref.name, p->transport);
    sl_send_peer_up(x, p);
    if (x->conf.link_test)
        probe_start(p);
}

void sl_peer_message(struct sl_peer *p, const struct sl_kv_header *h, const void *data, size_t len,
                     struct sl_link_rx *rx)
{
    struct sl_xfer *x = p->x;
    struct sl_kv_header answer = {.value = h->value};
    switch (h->type) {
    case SL_KV_HELLO:
        take_hello(p, h, data, len);
        break;
    case SL_KV_HELLO_ACK:
        take_hello_ack(p, h, data, len);
        break;
    case SL_KV_CHALLENGE:
        take_challenge(p, data, len);
        break;
    case SL_KV_PROOF:
        take_proof(p, data, len);
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
            x->ops->recv(p->conn, rx, x->probe_bytes, len, (uintptr_t)f);
        } else {
            p->count.dropped++;
        }
        break;
    case SL_KV_PROBE_ACK:
        take_probe_ack(p, h->value);
        break;
    default:
        p->count.dropped++;
    }
}

void sl_peer_tick(struct sl_peer *p, uint64_t now, uint64_t late)
{
    const struct sl_xfer_conf *c = &p->x->conf;
    if (!p->conn) {
        if (p->dialled)
            try_again(p, now);
        return;
    }
    p->connect_since_ms = sl_heard_ms(p->connect_since_ms, late, now);
    p->last_heard_ms = sl_heard_ms(p->last_heard_ms, late, now);
    if (p->state != SL_PEER_UP) { /* what is to be sent there ends with the connection */
        if (p->dialled && p->state == SL_PEER_CONNECTING) { /* its name was not resolved yet */
            say_hello(p);
            (void)sl_xfer_due(p->x, now + SL_XFER_TICK_MS, now);
        }
        if (sl_xfer_due(p->x, p->connect_since_ms + c->wait_ms, now))
            sl_peer_disconnect(p, "no handshake in time");
        return;
    }
    if (sl_xfer_due(p->x, p->last_heard_ms + c->peer_dead_ms, now)) {
        sl_peer_disconnect(p, "silent for longer than peer_dead_ms");
        return;
    }
    if (sl_xfer_due(p->x, p->next_ping_ms, now)) {
        struct sl_kv_header ping = {.type = SL_KV_PING};
        p->next_ping_ms = now + c->heartbeat_ms;
        (void)sl_peer_send(p, &ping, NULL, 0); /* on failure on_closed follows */
    }
    /* also a test whose answer never came */
    if (c->link_test && p->dialled && now >= p->next_probe_ms && sl_send_idle(p->x, p))
        probe_start(p);
}

void sl_peers_retest(struct sl_xfer *x)
{
    SL_LIST_FOREACH (n, &x->peers) {
        struct sl_peer *p = SL_CONTAINER_OF(n, struct sl_peer, node);
        if (!p->dialled)
            continue;
        p->next_probe_ms = p->retry_ms = 0;
        p->retry_wait_ms = SL_XFER_RETRY_MS;
        p->degraded_until_ms = 0;
    }
}

void sl_peer_degrade(struct sl_peer *p)
{
    p->degraded_until_ms = sl_now_ms() + SL_XFER_DEGRADED_MS;
}

void sl_peer_report(const struct sl_peer *p, struct sl_link_report *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->peer, sizeof out->peer, "%s", p->ref.name);
    out->peer_boot_id = p->ref.boot_id;
    snprintf(out->transport, sizeof out->transport, "%s", p->transport);
    bool tested = p->bytes_per_s > 0 || !p->x->conf.link_test;
    out->state = p->refused                           ? "refused"
                 : p->down_since_ms                   ? "down"
                 : p->degraded_until_ms > sl_now_ms() ? "degraded"
                 : p->state == SL_PEER_UP && tested   ? "up"
                                                      : "testing";
    out->bytes_per_s = p->bytes_per_s;
    out->latency_us = p->latency_us;
    out->pages_sent = p->count.pages_sent;
    out->bytes_sent = p->count.bytes_sent;
    out->pages_received = p->count.pages_received;
    out->rejects = p->count.rejects;
    out->dropped = p->count.dropped;
    memcpy(out->why, p->why, sizeof out->why);
}
