/* common/wire/wire_server.c - REP: requests into a queue, answers out of it.
 *
 * Each context goes round: receive, held by whoever took the request from the queue, send the answer. A
 * request that is held keeps the server's memory alive, so that it may be answered or dropped after the
 * server was closed; the answer then goes nowhere. So does one that its connection does not take in time, or a
 * client that reads no answers would keep all contexts.
 *
 * The socket is closed when nobody is just handing a context to nng: in nng 1.5.2 whoever lets go of a context last ends
 * it only after nng_close() was told that it is gone, on a socket that may be freed by then. */
#include <pthread.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"

#include <nng/protocol/reqrep0/rep.h>

/* Other answers of the same connection are ahead of it: the kernel has megabytes for those. Not longer than nodes are
 * silent to each other and to routers: their requests wait for a context meanwhile. A client asks again. */
#define ANSWER_MS 1000

struct context {
    struct sl_wire_server *server;
    nng_ctx ctx;
    nng_aio *aio;
    bool sending;
    struct sl_seal asked;   /* of the request that is held ... */
    struct sl_stamp answer; /* ... and what its answer is stamped with */
};

struct sl_wire_server {
    nng_socket sock;
    struct sl_queue *queue;
    const struct sl_secret *secret; /* NULL = none */
    struct sl_fresh *fresh;
    uint64_t tag;
    char *url;
    pthread_mutex_t lock;     /* of all below but contexts */
    pthread_cond_t no_caller; /* n_calling is 0 */
    uint32_t n_calling;       /* threads that hand a context to nng, which takes no time */
    bool closing;
    uint32_t refs; /* the owner, and each request that is held */
    uint32_t n_contexts;
    struct context contexts[];
};

static void unref(struct sl_wire_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool last = --s->refs == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < s->n_contexts; i++)
        nng_aio_free(s->contexts[i].aio);
    sl_fresh_free(s->fresh);
    pthread_cond_destroy(&s->no_caller);
    pthread_mutex_destroy(&s->lock);
    sl_free(s->url);
    sl_free(s);
}

/* False when the server is being closed. */
static bool ref(struct sl_wire_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool open = !s->closing;
    if (open)
        s->refs++;
    pthread_mutex_unlock(&s->lock);
    return open;
}

static bool is_open(struct sl_wire_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool open = !s->closing;
    pthread_mutex_unlock(&s->lock);
    return open;
}

/* False when the server is being closed; else end_calling() when nng has the context. */
static bool begin_calling(struct sl_wire_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool open = !s->closing;
    s->n_calling += open;
    pthread_mutex_unlock(&s->lock);
    return open;
}

static void end_calling(struct sl_wire_server *s)
{
    pthread_mutex_lock(&s->lock);
    if (--s->n_calling == 0)
        pthread_cond_broadcast(&s->no_caller);
    pthread_mutex_unlock(&s->lock);
}

/* m is taken. */
static void send_answer(struct context *c, nng_msg *m)
{
    if (!begin_calling(c->server)) {
        nng_msg_free(m);
        return;
    }
    c->sending = true;
    nng_aio_set_msg(c->aio, m);
    nng_aio_set_timeout(c->aio, ANSWER_MS);
    nng_ctx_send(c->ctx, c->aio);
    end_calling(c->server);
}

static void receive_next(struct context *c)
{
    if (!begin_calling(c->server))
        return;
    c->sending = false;
    nng_aio_set_timeout(c->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(c->ctx, c->aio);
    end_calling(c->server);
}

/* An answer sealed for the request that the context has taken. */
static void send_sealed(struct context *c, nng_msg *m)
{
    struct sl_seal seal;
    sl_nng_seal(m, c->server->secret, SL_SEAL_ANSWER, &c->asked, &c->answer, &seal);
    send_answer(c, m);
}

static void tell_refused(const struct sl_wire_server *s, enum sl_err err, const char *why)
{
    static struct sl_log_limit limit;
    unsigned suppressed;
    if (sl_log_allow(&limit, 1000, &suppressed))
        SL_WARN("message refused url=%s code=%s why=\"%s\" suppressed=%u", s->url, sl_err_name(err), why,
                suppressed);
}

/* Whether a sealed request is one to take; else it is answered, or passed over. */
static bool is_fresh(struct context *c, uint32_t pipe)
{
    static const char replayed[] = "the message was sent before, or to a former life of this program: by its "
                                   "sender, who will seal it anew, or by someone who heard it";
    struct sl_wire_server *s = c->server;
    struct sl_stamp asked = sl_seal_stamp(&c->asked);
    c->answer = (struct sl_stamp){.to = asked.from, .number = asked.number};
    switch (sl_fresh_take(s->fresh, &asked, pipe, &c->answer.from)) {
    case SL_FRESH_TAKEN:
        return true;
    case SL_FRESH_AGAIN:
        receive_next(c);
        return false;
    case SL_FRESH_REFUSED:
    default:
        if (asked.to != 0)
            tell_refused(s, SL_EMISMATCH, replayed);
        c->answer.number = SL_NOT_TAKEN;
        send_sealed(c, sl_nng_refusal(SL_EMISMATCH, replayed));
        return false;
    }
}

/* m is taken. */
static void take_request(struct context *c, nng_msg *m)
{
    struct sl_wire_server *s = c->server;
    Sluice__Envelope *e = NULL;
    struct sl_why why = {{0}};
    size_t n = nng_msg_len(m);
    enum sl_err err = sl_seal_check(s->secret, SL_SEAL_REQUEST, NULL, nng_msg_body(m), &n, &c->asked, &why);
    if (err == SL_OK && s->secret && !is_fresh(c, (uint32_t)nng_pipe_id(nng_msg_get_pipe(m)))) {
        nng_msg_free(m);
        return;
    }
    if (err == SL_OK)
        err = sl_wire_unpack(nng_msg_body(m), n, &e, &why);
    nng_msg_free(m);
    if (err != SL_OK) {
        tell_refused(s, err, why.text);
        /* not sealed, so that a peer without our secret reads it */
        send_answer(c, sl_nng_refusal(err, why.text));
        return;
    }
    struct sl_wire_in *in = sl_nng_in_new(SL_WIRE_REQUEST, SL_OK, e, s->tag);
    if (!ref(s)) {
        sl_wire_in_free(in);
        return;
    }
    in->internal = c;
    if (sl_queue_push(s->queue, in) == SL_OK)
        return;
    in->internal = NULL;
    sl_wire_in_free(in);
    send_sealed(c, sl_nng_refusal(SL_EAGAIN, "the receiver's queue is full; try again later"));
    unref(s); /* never the last: the owner waits for this callback before it lets go */
}

static void on_aio(void *arg)
{
    struct context *c = arg;
    int rv = nng_aio_result(c->aio);
    if (!is_open(c->server)) {
        nng_msg *m = rv == 0 && c->sending ? NULL : nng_aio_get_msg(c->aio);
        nng_aio_set_msg(c->aio, NULL);
        if (m)
            nng_msg_free(m);
        return;
    }
    if (!c->sending && rv == 0) {
        nng_msg *m = nng_aio_get_msg(c->aio);
        nng_aio_set_msg(c->aio, NULL);
        take_request(c, m);
        return;
    }
    if (c->sending && rv != 0) { /* the peer has gone, or takes nothing; its message stayed here */
        nng_msg_free(nng_aio_get_msg(c->aio));
        nng_aio_set_msg(c->aio, NULL);
    }
    receive_next(c);
}

enum sl_err sl_wire_server_open(const char *url, const struct sl_wire_guard *guard, uint32_t n_contexts,
                                struct sl_queue *queue, uint64_t tag, struct sl_wire_server **out,
                                struct sl_why *why)
{
    SL_ASSERT(n_contexts > 0);
    struct sl_wire_server *s = sl_xcalloc(1, sizeof *s + n_contexts * sizeof s->contexts[0]);
    s->queue = queue;
    s->secret = sl_nng_secret(guard, url);
    s->fresh = sl_fresh_new();
    s->tag = tag;
    s->refs = 1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->no_caller, NULL);
    int rv = nng_rep0_open(&s->sock);
    if (rv != 0) {
        unref(s);
        return sl_why_set(why, SL_EIO, "no socket for %s: %s", url, nng_strerror(rv));
    }
    sl_nng_set_options(s->sock);
    for (; s->n_contexts < n_contexts && rv == 0; s->n_contexts++) {
        struct context *c = &s->contexts[s->n_contexts];
        c->server = s;
        rv = nng_ctx_open(&c->ctx, s->sock);
        if (rv == 0)
            rv = nng_aio_alloc(&c->aio, on_aio, c);
        if (rv != 0)
            break;
    }
    enum sl_err err = rv ? sl_why_set(why, SL_ENOMEM, "no context for %s: %s", url, nng_strerror(rv))
                         : sl_nng_listen(s->sock, url, guard, &s->url, why);
    if (err != SL_OK) {
        if (sl_nng_close(s->sock))
            unref(s);
        return err;
    }
    for (uint32_t i = 0; i < s->n_contexts; i++)
        receive_next(&s->contexts[i]);
    *out = s;
    return SL_OK;
}

void sl_wire_server_close(struct sl_wire_server *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    while (s->n_calling > 0)
        pthread_cond_wait(&s->no_caller, &s->lock);
    pthread_mutex_unlock(&s->lock);
    /* Before the aios: a context that nobody reads any more would swallow a request, and its client would not
     * send it again. A socket that only listens has no dialer to hang on. */
    bool closed = sl_nng_close(s->sock);
    for (uint32_t i = 0; i < s->n_contexts; i++)
        nng_aio_stop(s->contexts[i].aio);
    if (closed)
        unref(s); /* else it stays behind */
}

const char *sl_wire_server_url(const struct sl_wire_server *s)
{
    return s->url;
}

uint64_t sl_wire_server_refused(const struct sl_wire_server *s)
{
    return s ? sl_fresh_refused(s->fresh) : 0;
}

void sl_wire_reply(struct sl_wire_in *in, Sluice__Envelope *reply)
{
    struct context *c = in->internal;
    SL_ASSERT(in->kind == SL_WIRE_REQUEST && c);
    nng_msg *m;
    enum sl_err err = sl_nng_pack(reply, &m);
    if (err != SL_OK) {
        SL_ERROR("answer not sent, it is too large url=%s code=%s", c->server->url, sl_err_name(err));
        m = sl_nng_refusal(err, "the answer is too large for one message; ask for less");
    }
    in->internal = NULL;
    sl_wire_in_free(in);
    struct sl_wire_server *s = c->server;
    send_sealed(c, m);
    unref(s);
}

void sl_nng_server_drop(struct sl_wire_in *in)
{
    struct context *c = in->internal;
    in->internal = NULL;
    struct sl_wire_server *s = c->server;
    send_sealed(c, sl_nng_refusal(SL_EBUG, "the request was dropped without an answer"));
    unref(s);
}
