/* common/wire/wire_pipe.c - PUSH and PULL: events one way, in order, with back-pressure instead of loss.
 *
 * A pull socket that finds its queue full keeps the message and receives nothing until it could hand it over;
 * the sender's line then fills, its SL_EAGAIN makes a gap in the sequence numbers, and the receiver asks for
 * a resync. */
#include <pthread.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"

#include <nng/protocol/pipeline0/pull.h>
#include <nng/protocol/pipeline0/push.h>

#define RETRY_MS 5

struct sl_wire_pull {
    nng_socket sock;
    struct sl_queue *queue;
    const struct sl_secret *secret; /* NULL = none */
    uint64_t tag;
    char *url;
    nng_aio *aio;            /* receives, or sleeps while `kept` waits */
    struct sl_wire_in *kept; /* its callback's; the queue was full */
};

static void hand_over(struct sl_wire_pull *p, struct sl_wire_in *in)
{
    p->kept = sl_queue_push(p->queue, in) == SL_OK ? NULL : in;
    if (p->kept)
        nng_sleep_aio(RETRY_MS, p->aio);
    else
        nng_recv_aio(p->sock, p->aio);
}

static void on_pull(void *arg)
{
    struct sl_wire_pull *p = arg;
    int rv = nng_aio_result(p->aio);
    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED)
        return; /* being closed */
    if (p->kept) {
        hand_over(p, p->kept);
        return;
    }
    if (rv != 0) {
        nng_recv_aio(p->sock, p->aio);
        return;
    }
    nng_msg *m = nng_aio_get_msg(p->aio);
    nng_aio_set_msg(p->aio, NULL);
    Sluice__Envelope *e = NULL;
    struct sl_why why = {{0}};
    struct sl_seal seal;
    enum sl_err err = sl_nng_unpack(m, p->secret, SL_SEAL_EVENT, NULL, &seal, &e, &why);
    nng_msg_free(m);
    if (err == SL_OK) {
        hand_over(p, sl_nng_in_new(SL_WIRE_EVENT, SL_OK, e, p->tag));
        return;
    }
    static struct sl_log_limit limit;
    unsigned suppressed;
    if (sl_log_allow(&limit, 1000, &suppressed))
        SL_WARN("event dropped url=%s code=%s why=\"%s\" suppressed=%u", p->url, sl_err_name(err), why.text,
                suppressed);
    nng_recv_aio(p->sock, p->aio);
}

static void pull_free(struct sl_wire_pull *p)
{
    nng_aio_free(p->aio);
    sl_free(p->url);
    sl_free(p);
}

enum sl_err sl_wire_pull_open(const char *url, const struct sl_wire_guard *guard, struct sl_queue *queue,
                              uint64_t tag, struct sl_wire_pull **out, struct sl_why *why)
{
    struct sl_wire_pull *p = sl_xcalloc(1, sizeof *p);
    p->queue = queue;
    p->secret = sl_nng_secret(guard, url);
    p->tag = tag;
    int rv = nng_pull0_open(&p->sock);
    if (rv != 0) {
        sl_free(p);
        return sl_why_set(why, SL_EIO, "no socket for %s: %s", url, nng_strerror(rv));
    }
    sl_nng_set_options(p->sock);
    rv = nng_aio_alloc(&p->aio, on_pull, p);
    enum sl_err err = rv ? sl_why_set(why, SL_ENOMEM, "no memory for %s", url)
                         : sl_nng_listen(p->sock, url, guard, &p->url, why);
    if (err != SL_OK) {
        if (sl_nng_close(p->sock))
            pull_free(p);
        return err;
    }
    nng_recv_aio(p->sock, p->aio);
    *out = p;
    return SL_OK;
}

void sl_wire_pull_close(struct sl_wire_pull *p)
{
    if (!p)
        return;
    nng_aio_stop(p->aio);
    sl_wire_in_free(p->kept);
    if (sl_nng_close(p->sock))
        pull_free(p);
}

const char *sl_wire_pull_url(const struct sl_wire_pull *p)
{
    return p->url;
}

struct sl_wire_push {
    nng_socket sock;
    struct sl_dial *dial;
    nng_aio *aio;
    const struct sl_secret *secret; /* NULL = none */
    uint64_t id;
    pthread_mutex_t lock; /* of all below */
    uint64_t n_sent;
    bool sending, closing;
    uint32_t head, n, max;
    nng_msg *line[]; /* ring of those behind the one being sent */
};

/* Under the lock: the next message to send, or NULL. */
static nng_msg *next_message(struct sl_wire_push *p)
{
    p->sending = p->n > 0 && !p->closing;
    if (!p->sending)
        return NULL;
    nng_msg *m = p->line[p->head];
    p->head = p->head + 1 == p->max ? 0 : p->head + 1;
    p->n--;
    return m;
}

static void send_message(struct sl_wire_push *p, nng_msg *m)
{
    sl_dial_begin(p->dial);
    nng_aio_set_msg(p->aio, m);
    nng_send_aio(p->sock, p->aio);
}

static void on_push(void *arg)
{
    struct sl_wire_push *p = arg;
    int rv = nng_aio_result(p->aio);
    sl_dial_end(p->dial, rv == 0);
    if (rv != 0) {
        nng_msg_free(nng_aio_get_msg(p->aio));
        nng_aio_set_msg(p->aio, NULL);
    }
    pthread_mutex_lock(&p->lock);
    nng_msg *m = next_message(p);
    pthread_mutex_unlock(&p->lock);
    if (m)
        send_message(p, m);
}

static void push_free(void *arg)
{
    struct sl_wire_push *p = arg;
    nng_aio_free(p->aio);
    pthread_mutex_destroy(&p->lock);
    sl_free(p);
}

enum sl_err sl_wire_push_open(const char *url, const struct sl_wire_guard *guard, uint32_t max_waiting,
                              struct sl_wire_push **out, struct sl_why *why)
{
    SL_ASSERT(max_waiting > 0);
    struct sl_wire_push *p = sl_xcalloc(1, sizeof *p + max_waiting * sizeof p->line[0]);
    p->max = max_waiting;
    p->secret = sl_nng_secret(guard, url);
    p->id = sl_seal_new_id();
    pthread_mutex_init(&p->lock, NULL);
    int rv = nng_push0_open(&p->sock);
    if (rv != 0) {
        push_free(p);
        return sl_why_set(why, SL_EIO, "no socket for %s: %s", url, nng_strerror(rv));
    }
    sl_nng_set_options(p->sock);
    rv = nng_aio_alloc(&p->aio, on_push, p);
    enum sl_err err = rv ? sl_why_set(why, SL_ENOMEM, "no memory for %s", url)
                         : sl_dial_open(p->sock, url, guard, &p->dial, why);
    if (err != SL_OK) {
        if (sl_nng_close(p->sock))
            push_free(p);
        return err;
    }
    *out = p;
    return SL_OK;
}

void sl_wire_push_close(struct sl_wire_push *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_mutex_unlock(&p->lock);
    nng_aio_stop(p->aio);
    for (; p->n; p->n--) {
        nng_msg_free(p->line[p->head]);
        p->head = p->head + 1 == p->max ? 0 : p->head + 1;
    }
    sl_dial_close(p->dial, push_free, p);
}

enum sl_err sl_wire_push_send(struct sl_wire_push *p, Sluice__Envelope *msg)
{
    nng_msg *m;
    enum sl_err err = sl_nng_pack(msg, &m);
    if (err != SL_OK)
        return err;
    pthread_mutex_lock(&p->lock);
    nng_msg *now = NULL;
    if (p->n == p->max) {
        err = SL_EAGAIN;
    } else {
        struct sl_stamp stamp = {.from = p->id, .number = ++p->n_sent};
        struct sl_seal seal;
        sl_nng_seal(m, p->secret, SL_SEAL_EVENT, NULL, &stamp, &seal);
        uint32_t at = p->head + p->n;
        p->line[at >= p->max ? at - p->max : at] = m;
        p->n++;
        if (!p->sending)
            now = next_message(p);
    }
    pthread_mutex_unlock(&p->lock);
    if (now)
        send_message(p, now);
    if (err != SL_OK)
        nng_msg_free(m);
    return err;
}
