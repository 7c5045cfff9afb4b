/* common/wire/wire_client.c - REQ: many calls at once over one connection, every one of them answered.
 *
 * A slot is a context of nng with the call it carries; calls beyond the slots wait in a line. nng's timers
 * end what is in a slot; a slow tick, running only while it is needed, ends what waits too long in the line
 * and delivers answers that found the owner's queue full. */
#include <pthread.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"

#include <nng/protocol/reqrep0/req.h>

#define TICK_MS 10

/* nng sends a request again when its connection is lost, but may miss one that was handed over at that very
 * moment. Commands are idempotent, so sending again what got no answer for so long is harmless. */
#define RESEND_MS 2000

struct call {
    struct sl_list link;
    uint64_t tag, deadline_ms;
    nng_msg *msg;              /* not sealed; with a secret kept until the answer has come */
    struct sl_seal seal;       /* of what was sent last */
    struct sl_wire_in *answer; /* in the list of undelivered ones */
};

struct slot {
    struct sl_wire_client *client;
    nng_ctx ctx;
    nng_aio *aio;
    struct call *call; /* NULL: free */
    bool receiving;
};

struct sl_wire_client {
    nng_socket sock;
    struct sl_dial *dial;
    struct sl_queue *queue;
    const struct sl_secret *secret; /* NULL = none */
    uint64_t id;                    /* of its seals */
    nng_aio *tick;
    pthread_mutex_t lock; /* of all below, but not of the fields of a slot in use: those are its callback's */
    bool closing, ticking;
    uint64_t server_id, n_sealed;
    struct sl_list waiting, undelivered;
    uint32_t n_waiting, max_waiting;
    uint32_t n_slots;
    struct slot slots[];
};

/* Under the lock. */
static bool want_tick(struct sl_wire_client *c)
{
    if (c->ticking || c->closing || (sl_list_empty(&c->waiting) && sl_list_empty(&c->undelivered)))
        return false;
    return c->ticking = true;
}

static void call_free(struct call *k)
{
    if (k->msg)
        nng_msg_free(k->msg);
    sl_free(k);
}

/* Ends the call; k is gone afterwards. Not under the lock. */
static void deliver(struct sl_wire_client *c, struct call *k, enum sl_err err, Sluice__Envelope *msg)
{
    struct sl_wire_in *in = sl_nng_in_new(SL_WIRE_ANSWER, err, msg, k->tag);
    if (sl_queue_push(c->queue, in) == SL_OK) {
        call_free(k);
        return;
    }
    k->answer = in;
    pthread_mutex_lock(&c->lock);
    sl_list_add_tail(&c->undelivered, &k->link);
    bool tick = want_tick(c);
    pthread_mutex_unlock(&c->lock);
    if (tick)
        nng_sleep_aio(TICK_MS, c->tick);
}

static nng_duration time_left(const struct call *k)
{
    uint64_t now = sl_now_ms();
    return k->deadline_ms > now ? (nng_duration)(k->deadline_ms - now) : 1;
}

/* The call's message sealed for the server as it is known now, under a number of its own. */
static nng_msg *seal_call(struct sl_wire_client *c, struct call *k)
{
    nng_msg *m;
    SL_ASSERT(nng_msg_dup(&m, k->msg) == 0); /* dies without memory, as sl_xalloc() does */
    pthread_mutex_lock(&c->lock);
    struct sl_stamp stamp = {.from = c->id, .to = c->server_id, .number = ++c->n_sealed};
    pthread_mutex_unlock(&c->lock);
    sl_nng_seal(m, c->secret, SL_SEAL_REQUEST, NULL, &stamp, &k->seal);
    return m;
}

static void start(struct slot *s)
{
    sl_dial_begin(s->client->dial);
    nng_msg *m = s->call->msg;
    if (s->client->secret)
        m = seal_call(s->client, s->call);
    else
        s->call->msg = NULL;
    s->receiving = false;
    nng_aio_set_msg(s->aio, m);
    nng_aio_set_timeout(s->aio, time_left(s->call));
    nng_ctx_send(s->ctx, s->aio);
}

/* The slot's call is over: the next one in line takes it. */
static void next_call(struct slot *s)
{
    struct sl_wire_client *c = s->client;
    struct call *next = NULL;
    pthread_mutex_lock(&c->lock);
    if (!c->closing && !sl_list_empty(&c->waiting)) {
        next = SL_CONTAINER_OF(c->waiting.next, struct call, link);
        sl_list_remove(&next->link);
        c->n_waiting--;
    }
    s->call = next; /* once it is NULL the slot is free: not to be looked at again */
    pthread_mutex_unlock(&c->lock);
    if (next)
        start(s);
}

/* Whether the server asks for the message sealed anew. */
static bool not_taken(struct sl_wire_client *c, const struct sl_seal *answer)
{
    if (!c->secret)
        return false;
    struct sl_stamp stamp = sl_seal_stamp(answer);
    pthread_mutex_lock(&c->lock);
    c->server_id = stamp.from;
    pthread_mutex_unlock(&c->lock);
    return stamp.number == SL_NOT_TAKEN;
}

static void tell_refused(enum sl_err err, const struct sl_why *why)
{
    static struct sl_log_limit limit;
    unsigned suppressed;
    if (sl_log_allow(&limit, 1000, &suppressed))
        SL_WARN("answer refused code=%s why=\"%s\" suppressed=%u", sl_err_name(err), why->text, suppressed);
}

static void on_aio(void *arg)
{
    struct slot *s = arg;
    struct sl_wire_client *c = s->client;
    int rv = nng_aio_result(s->aio);
    if (rv == 0 && !s->receiving) {
        s->receiving = true;
        nng_aio_set_timeout(s->aio, time_left(s->call));
        nng_ctx_recv(s->ctx, s->aio);
        return;
    }
    Sluice__Envelope *e = NULL;
    enum sl_err err = SL_EPEER;
    bool again = false;
    if (rv == 0 || !s->receiving) { /* the answer; or the request, which stayed here */
        nng_msg *m = nng_aio_get_msg(s->aio);
        nng_aio_set_msg(s->aio, NULL);
        if (rv == 0) {
            struct sl_why why = {{0}};
            struct sl_seal seal;
            err = sl_nng_unpack(m, c->secret, SL_SEAL_ANSWER, &s->call->seal, &seal, &e, &why);
            if (err != SL_OK) {
                tell_refused(err, &why);
                err = err == SL_EMISMATCH ? err : SL_EPROTO;
            } else {
                again = not_taken(c, &seal) && sl_now_ms() < s->call->deadline_ms;
            }
        }
        if (m)
            nng_msg_free(m);
    }
    pthread_mutex_lock(&c->lock);
    bool closing = c->closing;
    pthread_mutex_unlock(&c->lock);
    sl_dial_end(c->dial, rv == 0);
    if (closing) { /* sl_wire_client_close() ends the call */
        sl_wire_free(e);
        return;
    }
    if (again) {
        sl_wire_free(e);
        start(s);
        return;
    }
    deliver(c, s->call, err, e);
    next_call(s);
}

static void on_tick(void *arg)
{
    struct sl_wire_client *c = arg;
    struct sl_list late;
    sl_list_init(&late);
    uint64_t now = sl_now_ms();
    pthread_mutex_lock(&c->lock);
    c->ticking = false;
    SL_LIST_FOREACH_SAFE (l, next, &c->undelivered) {
        struct call *k = SL_CONTAINER_OF(l, struct call, link);
        if (c->closing || sl_queue_push(c->queue, k->answer) != SL_OK)
            break;
        sl_list_remove(&k->link);
        call_free(k);
    }
    SL_LIST_FOREACH_SAFE (l, next, &c->waiting) {
        struct call *k = SL_CONTAINER_OF(l, struct call, link);
        if (c->closing || k->deadline_ms > now)
            continue;
        sl_list_remove(&k->link);
        c->n_waiting--;
        sl_list_add_tail(&late, &k->link);
    }
    bool tick = want_tick(c);
    pthread_mutex_unlock(&c->lock);
    if (tick)
        nng_sleep_aio(TICK_MS, c->tick);
    SL_LIST_FOREACH_SAFE (l, next, &late) {
        sl_list_remove(l);
        deliver(c, SL_CONTAINER_OF(l, struct call, link), SL_EPEER, NULL);
    }
}

static void client_free(void *arg)
{
    struct sl_wire_client *c = arg;
    for (uint32_t i = 0; i < c->n_slots; i++) {
        nng_aio *aio = c->slots[i].aio;
        nng_msg *m = nng_aio_get_msg(aio); /* begun after it was stopped */
        if (m)
            nng_msg_free(m);
        nng_aio_free(aio);
    }
    nng_aio_free(c->tick);
    pthread_mutex_destroy(&c->lock);
    sl_free(c);
}

enum sl_err sl_wire_client_open(const char *url, const struct sl_wire_guard *guard, uint32_t n_contexts,
                                uint32_t max_waiting, struct sl_queue *queue, struct sl_wire_client **out,
                                struct sl_why *why)
{
    SL_ASSERT(n_contexts > 0);
    struct sl_wire_client *c = sl_xcalloc(1, sizeof *c + n_contexts * sizeof c->slots[0]);
    c->queue = queue;
    c->secret = sl_nng_secret(guard, url);
    c->id = sl_seal_new_id();
    c->max_waiting = max_waiting;
    sl_list_init(&c->waiting);
    sl_list_init(&c->undelivered);
    pthread_mutex_init(&c->lock, NULL);
    int rv = nng_req0_open(&c->sock);
    if (rv != 0) {
        client_free(c);
        return sl_why_set(why, SL_EIO, "no socket for %s: %s", url, nng_strerror(rv));
    }
    sl_nng_set_options(c->sock);
    nng_socket_set_ms(c->sock, NNG_OPT_REQ_RESENDTIME, RESEND_MS);
    rv = nng_aio_alloc(&c->tick, on_tick, c);
    for (; c->n_slots < n_contexts && rv == 0; c->n_slots++) {
        struct slot *s = &c->slots[c->n_slots];
        s->client = c;
        rv = nng_ctx_open(&s->ctx, c->sock);
        if (rv == 0)
            rv = nng_aio_alloc(&s->aio, on_aio, s);
        if (rv != 0)
            break;
    }
    enum sl_err err = rv ? sl_why_set(why, SL_ENOMEM, "no context for %s: %s", url, nng_strerror(rv))
                         : sl_dial_open(c->sock, url, guard, &c->dial, why);
    if (err != SL_OK) {
        if (sl_nng_close(c->sock))
            client_free(c);
        return err;
    }
    *out = c;
    return SL_OK;
}

static void end_call(struct sl_wire_client *c, struct call *k)
{
    struct sl_wire_in *in = k->answer ? k->answer : sl_nng_in_new(SL_WIRE_ANSWER, SL_EPEER, NULL, k->tag);
    if (sl_queue_push(c->queue, in) != SL_OK) {
        SL_WARN("answer dropped at close, the queue is full tag=%llu", (unsigned long long)k->tag);
        sl_wire_in_free(in);
    }
    call_free(k);
}

static void end_calls(struct sl_wire_client *c, struct sl_list *list)
{
    SL_LIST_FOREACH_SAFE (l, next, list) {
        sl_list_remove(l);
        end_call(c, SL_CONTAINER_OF(l, struct call, link));
    }
}

void sl_wire_client_close(struct sl_wire_client *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->n_slots; i++)
        nng_aio_stop(c->slots[i].aio);
    nng_aio_stop(c->tick);
    /* no callback runs any more */
    end_calls(c, &c->undelivered);
    for (uint32_t i = 0; i < c->n_slots; i++) {
        struct slot *s = &c->slots[i];
        if (!s->call)
            continue;
        end_call(c, s->call);
    }
    end_calls(c, &c->waiting);
    sl_dial_close(c->dial, client_free, c);
}

enum sl_err sl_wire_call(struct sl_wire_client *c, Sluice__Envelope *msg, uint64_t tag, uint32_t timeout_ms)
{
    nng_msg *m;
    enum sl_err err = sl_nng_pack(msg, &m);
    if (err != SL_OK)
        return err;
    struct call *k = sl_xcalloc(1, sizeof *k);
    *k = (struct call){.tag = tag, .deadline_ms = sl_now_ms() + timeout_ms, .msg = m};
    sl_list_init(&k->link);
    struct slot *slot = NULL;
    bool tick = false;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n_slots && !slot; i++) {
        if (!c->slots[i].call)
            slot = &c->slots[i];
    }
    if (slot) {
        slot->call = k;
    } else if (c->n_waiting < c->max_waiting) {
        sl_list_add_tail(&c->waiting, &k->link);
        c->n_waiting++;
        tick = want_tick(c);
    } else {
        err = SL_EAGAIN;
    }
    pthread_mutex_unlock(&c->lock);
    if (slot)
        start(slot);
    if (tick)
        nng_sleep_aio(TICK_MS, c->tick);
    if (err != SL_OK)
        call_free(k);
    return err;
}

/* Addresses whose connect ends at once when nobody listens there. */
static bool is_local(const char *url)
{
    return strncmp(url, "ipc:", 4) == 0 || strncmp(url, "tcp://127.", 10) == 0 ||
           strncmp(url, "tcp://localhost:", 16) == 0;
}

static int ask_once(nng_socket s, nng_msg *m, uint64_t deadline_ms, nng_msg **answer)
{
    uint64_t now = sl_now_ms();
    nng_socket_set_ms(s, NNG_OPT_SENDTIMEO, deadline_ms > now ? (nng_duration)(deadline_ms - now) : 1);
    int rv = nng_sendmsg(s, m, 0);
    if (rv != 0) {
        nng_msg_free(m);
        return rv;
    }
    now = sl_now_ms();
    nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, deadline_ms > now ? (nng_duration)(deadline_ms - now) : 1);
    return nng_recvmsg(s, answer, 0);
}

/* Asks until the message is taken, as a client's slot does. */
static enum sl_err ask(nng_socket s, const char *url, const struct sl_secret *secret, const nng_msg *msg,
                       uint32_t timeout_ms, Sluice__Envelope **answer, struct sl_why *why)
{
    const uint64_t deadline_ms = sl_now_ms() + timeout_ms;
    struct sl_stamp stamp = {.from = sl_seal_new_id()}, got;
    do {
        nng_msg *m, *reply;
        struct sl_seal asked, seal;
        stamp.number++;
        SL_ASSERT(nng_msg_dup(&m, msg) == 0);
        sl_nng_seal(m, secret, SL_SEAL_REQUEST, NULL, &stamp, &asked);
        int rv = ask_once(s, m, deadline_ms, &reply);
        if (rv != 0)
            return sl_why_set(why, SL_EPEER, "no answer from %s within %u ms: %s", url, timeout_ms,
                              nng_strerror(rv));
        enum sl_err err =
            sl_nng_unpack(reply, secret, SL_SEAL_ANSWER, secret ? &asked : NULL, &seal, answer, why);
        nng_msg_free(reply);
        if (err != SL_OK || !secret)
            return err;
        got = sl_seal_stamp(&seal);
        stamp.to = got.from;
        if (got.number != SL_NOT_TAKEN)
            return SL_OK;
        sl_wire_free(*answer);
    } while (sl_now_ms() < deadline_ms);
    return sl_why_set(why, SL_EPEER, "%s took the message not once within %u ms, however it was sealed", url,
                      timeout_ms);
}

enum sl_err sl_wire_call_wait(const char *url, const struct sl_wire_guard *guard, Sluice__Envelope *msg,
                              uint32_t timeout_ms, Sluice__Envelope **answer, struct sl_why *why)
{
    nng_msg *m;
    enum sl_err err = sl_nng_pack(msg, &m);
    if (err != SL_OK)
        return sl_why_set(why, err, "the message is too large to be sent");
    nng_socket s;
    int rv = nng_req0_open(&s);
    if (rv != 0) {
        nng_msg_free(m);
        return sl_why_set(why, SL_EIO, "no socket for %s: %s", url, nng_strerror(rv));
    }
    struct sl_dial *dial = NULL;
    sl_nng_set_options(s);
    if (is_local(url)) {
        rv = nng_dial(s, url, NULL, 0);
        if (rv == NNG_ECONNREFUSED || rv == NNG_ENOENT)
            err = sl_why_set(why, SL_EPEER, "nobody listens on %s; is the program there running?", url);
        else if (rv == NNG_EPERM)
            err = sl_why_set(why, SL_EDENIED, "no permission to open %s", url);
        else if (rv != 0)
            err = sl_why_set(why, SL_EPEER, "cannot dial %s: %s", url, nng_strerror(rv));
    } else {
        err = sl_dial_open(s, url, guard, &dial, why);
    }
    if (err == SL_OK)
        err = ask(s, url, sl_nng_secret(guard, url), m, timeout_ms, answer, why);
    nng_msg_free(m);
    if (dial)
        sl_dial_close(dial, NULL, NULL);
    else
        sl_nng_close(s);
    return err;
}
