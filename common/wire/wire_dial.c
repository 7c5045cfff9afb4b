/* common/wire/wire_dial.c - dialing for as long as it takes.
 *
 * A dialer of nng 1.5.2 connects again by itself, but now and then one gives up for good: when its connection is reset
 * in the first bytes (a program that ends, a proxy whose server is not there), it takes that for its own end. A node
 * would be cut off until it is started again. So the connections of a socket are counted, and one that has been
 * without for a while gets a new dialer, and loses the old one. That is done in a thread of its own, since closing a
 * dialer that connects at that moment may never return; then the new one is the last. */
#include <pthread.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"

#define WAIT_MIN_MS 1500  /* three times as long as a dialer waits between two tries */
#define WAIT_MAX_MS 60000 /* for a peer that is away for long nothing has to be mended */

struct sl_dial {
    nng_socket sock;
    char *url;
    const struct sl_wire_guard *guard;
    nng_aio *look;        /* sleeps while there is no connection */
    pthread_mutex_t lock; /* of all below */
    nng_dialer dialer;
    int n_pipes;
    int refs; /* the owner's, and that of the thread that renews */
    nng_duration wait_ms;
    bool looking, stopped;
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
    int rv = nng_dialer_create(&d->dialer, d->sock, d->url);
    if (rv == 0 && tls)
        rv = nng_dialer_set_ptr(d->dialer, NNG_OPT_TLS_CONFIG, tls);
    if (rv == 0)
        rv = nng_dialer_start(d->dialer, NNG_FLAG_NONBLOCK);
    if (tls) /* nng does not take NULL */
        nng_tls_config_free(tls);
    return rv == 0 ? SL_OK : sl_nng_url_error(rv, "dial", d->url, why);
}

/* Under the lock. */
static void look_later(struct sl_dial *d)
{
    d->looking = !d->stopped;
    if (d->looking)
        nng_sleep_aio(d->wait_ms, d->look);
}

static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    (void)pipe;
    struct sl_dial *d = arg;
    pthread_mutex_lock(&d->lock);
    d->n_pipes += event == NNG_PIPE_EV_ADD_POST ? 1 : -1;
    d->wait_ms = WAIT_MIN_MS;
    if (d->n_pipes == 0 && !d->looking)
        look_later(d);
    pthread_mutex_unlock(&d->lock);
}

static void *renew(void *arg)
{
    struct sl_dial *d = arg;
    struct sl_why why = {{0}};
    pthread_mutex_lock(&d->lock);
    nng_dialer old = d->dialer;
    bool renewed = !d->stopped && start_dialer(d, &why) == SL_OK;
    pthread_mutex_unlock(&d->lock);
    if (renewed)
        nng_dialer_close(old);
    else
        SL_DEBUG("not dialled again why=\"%s\"", why.text);
    unref(d);
    return NULL;
}

static void on_look(void *arg)
{
    struct sl_dial *d = arg;
    pthread_t thread;
    pthread_mutex_lock(&d->lock);
    d->looking = false;
    d->wait_ms = d->wait_ms < WAIT_MAX_MS / 2 ? 2 * d->wait_ms : WAIT_MAX_MS;
    if (d->n_pipes == 0 && !d->stopped) {
        if (d->refs == 1 && pthread_create(&thread, NULL, renew, d) == 0) {
            pthread_detach(thread);
            d->refs++;
        }
        look_later(d);
    }
    pthread_mutex_unlock(&d->lock);
}

enum sl_err sl_dial_open(nng_socket sock, const char *url, const struct sl_wire_guard *guard,
                         struct sl_dial **out, struct sl_why *why)
{
    struct sl_dial *d = sl_xcalloc(1, sizeof *d);
    *d = (struct sl_dial){
        .sock = sock, .url = sl_xstrdup(url), .guard = guard, .refs = 1, .wait_ms = WAIT_MIN_MS};
    pthread_mutex_init(&d->lock, NULL);
    if (nng_aio_alloc(&d->look, on_look, d) != 0) {
        unref(d);
        return sl_why_set(why, SL_ENOMEM, "no memory for %s", url);
    }
    nng_pipe_notify(sock, NNG_PIPE_EV_ADD_POST, on_pipe, d);
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
