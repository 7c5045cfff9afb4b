/* common/wire/wire_close.c - closing sockets of nng without standing where nng stands.
 *
 * All connections and dialers of a process are freed by one thread of nng's. In nng 1.5.2 it may come to stand still
 * for ever: a connection that is closed just as the head of a message has been read begins the next read on an
 * operation that was stopped, which calls nobody back, and that thread waits for its end (tcptran_pipe_recv_cb, then
 * tcptran_pipe_stop). Nothing outside nng can end that. nng_close() waits for that thread.
 *
 * So every socket is closed by a thread of its own. Who owns it waits a moment, since what arrives for a connection
 * that is being closed is what makes that thread stand, and not at all where it stands already. The dialer goes first:
 * that ends its connections, so that the peer is told. What nng may still call into is freed when
 * nng_close() has returned; when it never does it stays behind, as does the thread, up to MAX_STANDING. */
#include <limits.h>
#include <pthread.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"

#define CLOSE_WAIT_MS 2000u /* a socket closes in milliseconds, or never */
#define LATER_WAIT_MS 200u  /* the same for threads that serve requests */
#define MAX_STANDING  32u   /* threads; further sockets are left alone: nng dials no more then */

struct closing {
    nng_socket socket;
    nng_dialer dialer; /* id 0 = none */
    void (*closed)(void *arg);
    void *arg;
    int refs; /* its thread, and who waits for it */
    bool done;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below, and of refs and done */
static pthread_cond_t done_cond = PTHREAD_COND_INITIALIZER;
static unsigned n_closing, n_left;
static uint64_t progress_ms; /* when one was closed, or began to be the only one */

/* Under the lock. */
static void unref(struct closing *c)
{
    if (--c->refs == 0)
        sl_free(c);
}

static void *close_socket(void *arg)
{
    struct closing *c = arg;
    if (c->dialer.id != 0)
        nng_dialer_close(c->dialer);
    nng_close(c->socket);
    if (c->closed)
        c->closed(c->arg);
    pthread_mutex_lock(&lock);
    n_closing--;
    progress_ms = sl_now_ms();
    c->done = true;
    pthread_cond_broadcast(&done_cond);
    unref(c);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* False: it has no thread. */
static bool start(struct closing *c, unsigned max_closing)
{
    pthread_t thread;
    pthread_mutex_lock(&lock);
    bool started = n_closing < max_closing && pthread_create(&thread, NULL, close_socket, c) == 0;
    if (started) {
        pthread_detach(thread);
        if (n_closing++ == 0)
            progress_ms = sl_now_ms();
    }
    pthread_mutex_unlock(&lock);
    return started;
}

/* Whether it was closed within that time. c is gone afterwards. */
static bool wait_closed(struct closing *c, unsigned ms)
{
    const struct timespec until = sl_in_ms(ms);
    pthread_mutex_lock(&lock);
    int rv = 0;
    while (!c->done && rv == 0)
        rv = pthread_cond_clockwait(&done_cond, &lock, CLOCK_MONOTONIC, &until);
    bool done = c->done;
    unref(c);
    pthread_mutex_unlock(&lock);
    return done;
}

bool sl_nng_close(nng_socket s)
{
    struct closing *c = sl_xcalloc(1, sizeof *c);
    *c = (struct closing){.socket = s, .refs = 2};
    if (!start(c, UINT_MAX)) {
        sl_free(c);
        nng_close(s);
        return true;
    }
    pthread_mutex_lock(&lock);
    /* another waits so long already */
    bool stands = n_closing > 1 && sl_now_ms() - progress_ms > CLOSE_WAIT_MS;
    pthread_mutex_unlock(&lock);
    const unsigned wait_ms = stands ? LATER_WAIT_MS : CLOSE_WAIT_MS;
    bool done = wait_closed(c, wait_ms);
    if (!done)
        SL_WARN("a control socket did not close in time and is left behind waited_ms=%u", wait_ms);
    return done;
}

void sl_nng_close_later(nng_socket s, nng_dialer dialer, void (*closed)(void *arg), void *arg)
{
    struct closing *c = sl_xcalloc(1, sizeof *c);
    *c = (struct closing){.socket = s, .dialer = dialer, .closed = closed, .arg = arg, .refs = 2};
    bool started = start(c, MAX_STANDING);
    pthread_mutex_lock(&lock);
    n_left += !started;
    unsigned n = n_closing + n_left;
    bool stands = !started || (n_closing > 1 && sl_now_ms() - progress_ms > LATER_WAIT_MS);
    pthread_mutex_unlock(&lock);
    if (started)
        wait_closed(c, stands ? 0 : LATER_WAIT_MS);
    else
        sl_free(c);
    if (stands)
        SL_WARN("a control socket is closed and what it holds stays behind, as nng frees no connections n=%u",
                n);
}

unsigned sl_nng_n_closing(void)
{
    pthread_mutex_lock(&lock);
    unsigned n = n_closing + n_left;
    pthread_mutex_unlock(&lock);
    return n;
}
