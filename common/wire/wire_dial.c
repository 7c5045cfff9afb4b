/* common/wire/wire_dial.c - dialing for as long as it takes.
 *
 * A dialer of nng 1.5.2 connects again by itself, but now and then one gives up for good: when its connection is reset
 * in the first bytes (a program that ends, a proxy whose server is not there), it takes that for its own end. A node
 * would be cut off until it is started again. So the connections of a socket are counted, and one that has been
 * without for a while tries a plain connection. When the peer takes it, and some dialer's tries later there is still
 * none of nng's, the dialer is dead: a new one is started, then the old one closed. A dialer that still dials is left
 * alone, since closing one that connects at that moment may never return; but for one that a long cut put to sleep (its
 * packets are tried again after up to a minute). So all of this is done in a thread of its own, for which nobody waits.
 *
 * Nor does nng always tell that a pipe is gone: its only thread that frees pipes may stand still for ever
 * (wire_close.c), and a dialer whose pipe is not freed never dials again. So the users of a socket say what is under
 * way, and a connection on which nothing gets through is replaced, whether or not more is sent meanwhile. */
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
#define WATCH_MS    2000
/* Two renewals of a peer that has long nothing to say are this far apart in the end. */
#define SUSPECT_MAX_MS 600000
#define PROBE_MS       1000 /* a plain connection takes a round trip, or one more when its first packet is lost */

struct sl_dial {
    nng_socket sock;
    char *url;
    nng_tls_config *tls; /* NULL = none */
    nng_aio *look;       /* sleeps while there is no connection */
    nng_aio *watch;      /* sleeps while something is under way */
    void (*closed)(void *arg);
    void *closed_arg;
    pthread_mutex_t lock; /* of all below */
    nng_dialer dialer;
    int n_pipes;
    int refs; /* the owner's, and that of each thread that mends */
    nng_duration wait_ms;
    uint32_t n_under_way;
    uint64_t waits_ms;   /* since when nothing got through; 0 = nothing was under way since then */
    uint64_t suspect_ms; /* from when on a connection may be suspected */
    uint64_t suspect_wait_ms;
    bool looking, watching, mending, stopped, suspected;
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
    nng_aio_free(d->watch);
    if (d->tls) /* nng does not take NULL */
        nng_tls_config_free(d->tls);
    pthread_mutex_destroy(&d->lock);
    sl_free(d->url);
    sl_free(d);
}

/* Not under the lock: callbacks that take it come with locks of nng's. */
static int start_dialer(struct sl_dial *d, nng_dialer *out)
{
    nng_dialer dialer;
    int rv = nng_dialer_create(&dialer, d->sock, d->url);
    if (rv != 0)
        return rv;
    if (d->tls)
        rv = nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, d->tls);
    if (rv == 0)
        rv = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    if (rv == 0)
        *out = dialer;
    else
        nng_dialer_close(dialer); /* it never dialed */
    return rv;
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
    if (event == NNG_PIPE_EV_ADD_PRE && d->waits_ms)
        d->waits_ms = sl_now_ms(); /* for this one */
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

/* Under the lock: whether there seems to be a connection, and nothing gets through. */
static bool is_stuck(const struct sl_dial *d)
{
    return d->n_pipes > 0 && d->waits_ms && sl_now_ms() - d->waits_ms > SL_UNANSWERED_MS;
}

/* Under the lock: the peer was looked for because of a suspicion. */
static void suspect_later(struct sl_dial *d, bool renewed)
{
    d->suspect_ms = sl_now_ms() + (renewed ? d->suspect_wait_ms : WAIT_MIN_MS);
    if (renewed)
        d->suspect_wait_ms =
            d->suspect_wait_ms < SUSPECT_MAX_MS / 2 ? 2 * d->suspect_wait_ms : SUSPECT_MAX_MS;
}

/* Starts another dialer, and takes it for the one there was. False: there was none to be had, or the dial is closed. */
static bool renew(struct sl_dial *d, bool stuck, nng_dialer *old)
{
    nng_dialer dialer;
    int rv = start_dialer(d, &dialer);
    sl_log(stuck ? SL_LOG_WARN : SL_LOG_DEBUG, "%s url=%s result=\"%s\"",
           stuck ? "a control connection gave no answers, dialed anew" : "dialed anew", d->url,
           rv != 0 ? nng_strerror(rv) : "ok");
    if (rv != 0)
        return false;
    pthread_mutex_lock(&d->lock);
    bool renewed = !d->stopped;
    *old = d->dialer;
    if (renewed)
        d->dialer = dialer;
    pthread_mutex_unlock(&d->lock);
    if (!renewed)
        nng_dialer_close(dialer);
    return renewed;
}

static void *mend(void *arg)
{
    struct sl_dial *d = arg;
    bool there = peer_is_there(d->url);
    nng_dialer old;
    pthread_mutex_lock(&d->lock);
    bool stuck = d->suspected && is_stuck(d);
    bool missing = (d->n_pipes == 0 || stuck) && !d->stopped;
    bool dead = missing && there && (d->answered || stuck);
    pthread_mutex_unlock(&d->lock);
    bool renewed = dead && renew(d, stuck, &old);
    pthread_mutex_lock(&d->lock);
    if (missing)
        d->answered = there && !dead && d->n_pipes == 0;
    if (missing && there)
        d->wait_ms = WAIT_MIN_MS;
    if (stuck)
        suspect_later(d, renewed);
    d->suspected = false;
    d->mending = false;
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
    if (!d->mending && pthread_create(&thread, NULL, mend, d) == 0) {
        pthread_detach(thread);
        d->mending = true;
        d->refs++;
    }
}

/* Under the lock. */
static void check(struct sl_dial *d)
{
    if (is_stuck(d) && !d->stopped && sl_now_ms() >= d->suspect_ms) {
        d->suspected = true;
        start_mending(d);
    }
}

/* Under the lock. */
static void watch_on(struct sl_dial *d)
{
    if (d->watching || d->stopped || d->n_under_way == 0)
        return;
    d->watching = true;
    nng_sleep_aio(WATCH_MS, d->watch);
}

static void on_watch(void *arg)
{
    struct sl_dial *d = arg;
    pthread_mutex_lock(&d->lock);
    d->watching = false;
    if (d->n_under_way > 0)
        check(d);
    watch_on(d);
    pthread_mutex_unlock(&d->lock);
}

void sl_dial_begin(struct sl_dial *d)
{
    pthread_mutex_lock(&d->lock);
    d->n_under_way++;
    if (!d->waits_ms)
        d->waits_ms = sl_now_ms();
    check(d);
    watch_on(d);
    pthread_mutex_unlock(&d->lock);
}

void sl_dial_end(struct sl_dial *d, bool got_through)
{
    pthread_mutex_lock(&d->lock);
    d->n_under_way--;
    if (got_through) {
        d->waits_ms = d->n_under_way > 0 ? sl_now_ms() : 0;
        d->suspect_wait_ms = SL_UNANSWERED_MS;
        d->suspect_ms = 0;
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
                          .refs = 1,
                          .wait_ms = WAIT_MIN_MS,
                          .suspect_wait_ms = SL_UNANSWERED_MS};
    pthread_mutex_init(&d->lock, NULL);
    if (nng_aio_alloc(&d->look, on_look, d) != 0 || nng_aio_alloc(&d->watch, on_watch, d) != 0) {
        unref(d);
        return sl_why_set(why, SL_ENOMEM, "no memory for %s", url);
    }
    enum sl_err err = sl_nng_tls(guard, url, false, &d->tls, why);
    if (err != SL_OK) {
        unref(d);
        return err;
    }
    nng_pipe_notify(sock, NNG_PIPE_EV_ADD_PRE, on_pipe, d);
    nng_pipe_notify(sock, NNG_PIPE_EV_REM_POST, on_pipe, d);
    nng_dialer dialer;
    int rv = start_dialer(d, &dialer);
    if (rv != 0) {
        err = sl_nng_url_error(rv, "dial", url, why);
        unref(d);
        return err;
    }
    pthread_mutex_lock(&d->lock);
    d->dialer = dialer;
    if (d->n_pipes == 0 && !d->looking)
        look_later(d);
    pthread_mutex_unlock(&d->lock);
    *out = d;
    return SL_OK;
}

static void on_closed(void *arg)
{
    struct sl_dial *d = arg;
    if (d->closed)
        d->closed(d->closed_arg);
    unref(d);
}

void sl_dial_close(struct sl_dial *d, void (*closed)(void *arg), void *arg)
{
    pthread_mutex_lock(&d->lock);
    d->stopped = true;
    d->closed = closed;
    d->closed_arg = arg;
    nng_dialer dialer = d->dialer;
    pthread_mutex_unlock(&d->lock);
    nng_aio_stop(d->look);
    nng_aio_stop(d->watch);
    sl_nng_close_later(d->sock, dialer, on_closed, d);
}
