/* common/wire/wire_dial.c - dialing for as long as it takes.
 *
 * A dialer of nng 1.5.2 connects again by itself, but now and then one gives up for good: when its connection is reset
 * in the first bytes (a program that ends, a proxy whose server is not there), it takes that for its own end. A node
 * would be cut off until it is started again. So the connections of a socket are counted, and one that has been
 * without for a while tries a plain connection. When the peer takes it, and some dialer's tries later there is still
 * none of nng's, the dialer is dead: a new one is started, then the old one closed. A dialer that still dials is left
 * alone, since closing one that connects at that moment may never return; but for one that a long cut put to sleep (its
 * packets are tried again after up to a minute). So all of this is done in a thread of its own, one at a time: when a
 * close did not return, the new dialer is the last.
 *
 * Nor does nng always tell that a pipe is gone: its only thread that frees pipes may stand still for ever, and a dialer
 * whose pipe is not freed never dials again. So the users of a socket judge by what comes of it: sl_dial_suspect(). */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"

#define WAIT_MIN_MS 1500  /* three times as long as a dialer waits between two tries */
#define WAIT_MAX_MS 12000 /* a try costs one connection, and a peer that is back is found so late */
#define SUSPECT_MAX_MS                                                                                       \
    600000            /* two renewals of a peer that has long nothing to say are this far apart in the end */
#define PROBE_MS 1000 /* a plain connection takes a round trip, or one more when its first packet is lost */

struct sl_dial {
    nng_socket sock;
    char *url;
    const struct sl_wire_guard *guard;
    nng_aio *look;        /* sleeps while there is no connection */
    pthread_mutex_t lock; /* of all below */
    nng_dialer dialer;
    int n_pipes;
    int refs; /* the owner's, and that of the thread that mends */
    nng_duration wait_ms;
    uint64_t suspect_ms; /* from when on a suspicion is heard */
    uint64_t suspect_wait_ms;
    bool looking, stopped, suspected;
    bool answered; /* the peer took a plain connection, and there was none of nng's since */
};

static void unref(struct sl_dial *d)
{
    pthread_mutex_lock(&d->lock);
    bool last = --d->refs == 0;
    pthread_mutex_unlock(&d->lock);
    if (!last)
        return;
    nng_aio_free(d->look);
    pthread_mutex_destroy(&d->lock);
    sl_free(d->url);
    sl_free(d);
}

/* Under the lock, but for the first. */
static enum sl_err start_dialer(struct sl_dial *d, struct sl_why *why)
{
    nng_tls_config *tls = NULL;
    enum sl_err err = sl_nng_tls(d->guard, d->url, false, &tls, why);
    if (err != SL_OK)
        return err;
    nng_dialer dialer;
    int rv = nng_dialer_create(&dialer, d->sock, d->url);
    bool created = rv == 0;
    if (rv == 0 && tls)
        rv = nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, tls);
    if (rv == 0)
        rv = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    if (tls) /* nng does not take NULL */
        nng_tls_config_free(tls);
    if (rv == 0)
        d->dialer = dialer;
    else if (created)
        nng_dialer_close(dialer); /* it never dialed */
    return rv == 0 ? SL_OK : sl_nng_url_error(rv, "dial", d->url, why);
}

/* Under the lock. */
static void look_later(struct sl_dial *d)
{
    d->looking = !d->stopped;
    if (d->looking)
        nng_sleep_aio(d->wait_ms, d->look);
}

/* nng tells of each pipe that it is about to add, and of its end; in between only of those that came so far. */
static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    (void)pipe;
    struct sl_dial *d = arg;
    pthread_mutex_lock(&d->lock);
    d->n_pipes += event == NNG_PIPE_EV_ADD_PRE ? 1 : -1;
    d->wait_ms = WAIT_MIN_MS;
    d->answered = false;
    if (d->n_pipes == 0 && !d->looking)
        look_later(d);
    pthread_mutex_unlock(&d->lock);
}

static bool connects(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0)
        return false;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int rv = connect(fd, a->ai_addr, a->ai_addrlen), err = 1;
    socklen_t len = sizeof err;
    if (rv != 0 && errno == EINPROGRESS && poll(&p, 1, PROBE_MS) == 1 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) == 0)
        rv = err;
    close(fd);
    return rv == 0;
}

/* Whether the peer takes a plain connection. One on this machine is not asked: a dialer of its kind connects at once
 * or fails, so it may be closed at any time. */
static bool peer_is_there(const char *url)
{
    const char *host = strstr(url, "tcp://");
    if (!host)
        return true;
    host += strlen("tcp://");
    const char *colon = strrchr(host, ':');
    if (!colon)
        return false;
    bool brackets = *host == '[' && colon[-1] == ']';
    char *name = sl_xasprintf("%.*s", (int)(colon - host - 2 * brackets), host + brackets);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    bool there = false;
    if (getaddrinfo(name, colon + 1, &hints, &list) == 0) {
        for (const struct addrinfo *a = list; a && !there; a = a->ai_next)
            there = connects(a);
        freeaddrinfo(list);
    }
    sl_free(name);
    return there;
}

static void *mend(void *arg)
{
    struct sl_dial *d = arg;
    struct sl_why why = {{0}};
    bool there = peer_is_there(d->url), renewed = false;
    pthread_mutex_lock(&d->lock);
    nng_dialer old = d->dialer;
    bool suspected = d->suspected;
    d->suspected = false;
    if ((d->n_pipes == 0 || suspected) && !d->stopped) {
        bool dead = there && (d->answered || suspected);
        d->answered = there && !dead;
        if (dead) {
            enum sl_err err = start_dialer(d, &why);
            renewed = err == SL_OK;
            sl_log(suspected ? SL_LOG_WARN : SL_LOG_DEBUG, "%s url=%s code=%s why=\"%s\"",
                   suspected ? "a control connection gave no answers, dialed anew" : "dialed anew", d->url,
                   sl_err_name(err), why.text);
        }
        if (there)
            d->wait_ms = WAIT_MIN_MS;
    }
    pthread_mutex_unlock(&d->lock);
    if (renewed)
        nng_dialer_close(old);
    unref(d);
    return NULL;
}

/* Under the lock. */
static void start_mending(struct sl_dial *d)
{
    pthread_t thread;
    if (d->refs == 1 && pthread_create(&thread, NULL, mend, d) == 0) {
        pthread_detach(thread);
        d->refs++;
    }
}

void sl_dial_suspect(struct sl_dial *d)
{
    uint64_t now = sl_now_ms();
    pthread_mutex_lock(&d->lock);
    if (d->n_pipes > 0 && !d->stopped && d->refs == 1 && now >= d->suspect_ms) {
        d->suspected = true;
        d->suspect_ms = now + d->suspect_wait_ms;
        d->suspect_wait_ms =
            d->suspect_wait_ms < SUSPECT_MAX_MS / 2 ? 2 * d->suspect_wait_ms : SUSPECT_MAX_MS;
        start_mending(d);
    }
    pthread_mutex_unlock(&d->lock);
}

static void on_look(void *arg)
{
    struct sl_dial *d = arg;
    pthread_mutex_lock(&d->lock);
    d->looking = false;
    if (d->n_pipes == 0 && !d->stopped) {
        start_mending(d);
        look_later(d);
        d->wait_ms = d->wait_ms < WAIT_MAX_MS / 2 ? 2 * d->wait_ms : WAIT_MAX_MS;
    }
    pthread_mutex_unlock(&d->lock);
}

enum sl_err sl_dial_open(nng_socket sock, const char *url, const struct sl_wire_guard *guard,
                         struct sl_dial **out, struct sl_why *why)
{
    struct sl_dial *d = sl_xcalloc(1, sizeof *d);
    *d = (struct sl_dial){.sock = sock,
                          .url = sl_xstrdup(url),
                          .guard = guard,
                          .refs = 1,
                          .wait_ms = WAIT_MIN_MS,
                          .suspect_wait_ms = SL_UNANSWERED_MS};
    pthread_mutex_init(&d->lock, NULL);
    if (nng_aio_alloc(&d->look, on_look, d) != 0) {
        unref(d);
        return sl_why_set(why, SL_ENOMEM, "no memory for %s", url);
    }
    nng_pipe_notify(sock, NNG_PIPE_EV_ADD_PRE, on_pipe, d);
    nng_pipe_notify(sock, NNG_PIPE_EV_REM_POST, on_pipe, d);
    enum sl_err err = start_dialer(d, why);
    if (err != SL_OK) {
        unref(d);
        return err;
    }
    pthread_mutex_lock(&d->lock);
    if (d->n_pipes == 0 && !d->looking)
        look_later(d);
    pthread_mutex_unlock(&d->lock);
    *out = d;
    return SL_OK;
}

void sl_dial_close(struct sl_dial *d)
{
    pthread_mutex_lock(&d->lock);
    d->stopped = true;
    pthread_mutex_unlock(&d->lock);
    nng_aio_stop(d->look);
    if (sl_nng_close(d->sock))
        unref(d); /* else its connections still call here */
}
