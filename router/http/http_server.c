/* router/http/http_server.c - the http thread: our own epoll loop around daemons of libmicrohttpd.
 *
 * The library's internal epoll thread stalls when exactly 128 sockets become ready at once, so its daemons
 * run without threads: their epoll fds stand in our loop, which also accepts and gives each connection to one of
 * them. A round: wait -> some calls of the ready list (woken, answered, client gone) -> MHD_run() of those that
 * have something to do -> once a second, the time limits.
 * The ready list is how other threads reach this one; a call stands in it once at most, so it needs no limit
 * of its own. Only so many of it are served in a round: when a token comes for each of thousands of streams at
 * once, new clients are accepted and read between them.
 *
 * A connection past max_connections takes the place of the one that waits for its client longest: idle, else in the
 * middle of a request, else with an answer that it does not read. Where there is none, it is answered 503; past
 * REFUSED_CONNECTIONS more they wait to be accepted.
 * The library's inactivity timeout ends connections that take no bytes; times for receiving are ours, because one byte
 * a second counts as activity there. Over TLS no 408 can be sent past the library: those are only cut.
 *
 * Two things that version 0.9.75 gets wrong are made up for here. Its epoll is edge-triggered and a short read counts
 * as "no more is there", so it misses a client that sends half a request and closes in the same moment: our loop looks
 * for the end of each client. And it wants to be run again at once, forever, for a TLS handshake that waits for its
 * client and for a chunk's size that is longer than its buffer: a library that does nothing waits a little. */
#include "router/http/http_call.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rand.h"
#include "router/http/http_listen.h"
#include "router/http/http_tls_library.h"
#include "router/http/http_workers.h"

#define REFUSED_CONNECTIONS 64u                /* open at once only to be told 503 */
#define HEADER_MEMORY_BYTES ((size_t)32 << 10) /* the library's per connection, headers included */
/* The kernel's part of what a slow reader leaves unread; it would take megabytes. It doubles the number. */
#define SEND_BUFFER_BYTES (128 << 10)
#define SCAN_EVERY_MS     1000u
#define TLS_VERSIONS      "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"
#define IDLE_POLL_MS      5u  /* between looks whether the last answers are out, at the stop */
#define READY_PER_ROUND   64u /* calls, some 10 us each: what a new client waits for at most */
#define ACCEPTS_PER_ROUND 64u /* so that those who are here already are served between them */
#define RUNS_IN_VAIN      4u  /* in a row, at once: reading a head takes some without a callback */
#define VAIN_WAIT_MS      20u /* after that; what comes from a socket is seen at once all the same */
/* So long a connection keeps its place when there are too many: a client that comes has sent its request by then, and
 * most bodies have arrived. */
#define IDLE_PLACE_MS      1000u
#define RECEIVING_PLACE_MS 5000u
#define READING_PLACE_MS   5000u

static void accept_again(struct sl_http_server *s);

static void on_library(void *arg, uint32_t events)
{
    struct sl_http_library *l = arg;
    (void)events;
    l->ready = true;
}

SL_PRINTF(2, 0) static void on_library_log(void *arg, const char *fmt, va_list args)
{
    (void)arg;
    char line[256];
    if (!sl_log_on(SL_LOG_DEBUG))
        return;
    vsnprintf(line, sizeof line, fmt, args);
    line[strcspn(line, "\n")] = '\0';
    SL_DEBUG("http library says: %s", line);
}

/* ---- connections ---- */

void sl_http_conn_enter(struct sl_http_conn *k, enum sl_http_phase phase)
{
    struct sl_http_server *s = k->server;
    k->phase = phase;
    k->since_ms = sl_now_ms();
    sl_list_remove(&k->turn);
    if (phase != SL_HTTP_WORKING && !k->displaced)
        sl_list_add_tail(k->refused                   ? &s->refused
                         : phase == SL_HTTP_RECEIVING ? &s->receiving
                                                      : &s->idle,
                         &k->turn);
}

/* The client has ended its side. What it sent before is the library's to read; when that takes no more of it, either
 * all was read and is no whole request, or it never will be. */
static void on_end(void *arg, uint32_t events)
{
    struct sl_http_conn *k = arg;
    int unread = 0;
    (void)events;
    bool working = k->phase == SL_HTTP_WORKING; /* its answer is on the way: until then nobody looks */
    bool over = !working && (ioctl(k->fd, FIONREAD, &unread) != 0 || unread == k->unread);
    k->unread = unread;
    k->library->ready = true;
    if (over)
        shutdown(k->fd, SHUT_RDWR); /* which the library sees whatever it does */
    if (over || working) {
        sl_loop_remove(k->server->loop, k->fd);
        k->watched = false;
    }
}

void sl_http_conn_watch(struct sl_http_conn *k)
{
    k->unread = -1;
    k->watched = sl_loop_add(k->server->loop, k->fd, EPOLLRDHUP, on_end, k) == SL_OK;
    if (!k->watched)
        sl_loop_remove(k->server->loop, k->fd); /* a call that is over may stand there */
}

static void give_way(struct sl_http_conn *k)
{
    struct sl_http_server *s = k->server;
    sl_list_remove(&k->turn);
    k->displaced = true;
    k->library->ready = true;
    s->n_served -= !k->refused;
    s->n_displaced++;
    sl_metric_add(s->m_displaced, 1);
    shutdown(k->fd, SHUT_RDWR); /* closed in the library's next run */
}

static bool displace(struct sl_list *turns, uint64_t least_ms)
{
    struct sl_http_conn *k = SL_CONTAINER_OF(turns->next, struct sl_http_conn, turn);
    if (sl_list_empty(turns) || sl_now_ms() - k->since_ms < least_ms)
        return false;
    give_way(k);
    return true;
}

/* Since when its client takes nothing of an answer that is there; UINT64_MAX: it does, or there is none. */
static uint64_t reads_nothing_since_ms(const struct sl_http_conn *k)
{
    const struct sl_http_call *c = k->call;
    if (!c || c->aborted || k->displaced)
        return UINT64_MAX;
    uint64_t since_ms = c->suspended ? c->stuck_since_ms : c->given_ms;
    return since_ms ? since_ms : UINT64_MAX;
}

static bool displace_reader(struct sl_http_server *s)
{
    struct sl_http_conn *slowest = NULL;
    uint64_t oldest_ms = sl_now_ms() - READING_PLACE_MS;
    SL_LIST_FOREACH (at, &s->conns) {
        struct sl_http_conn *k = SL_CONTAINER_OF(at, struct sl_http_conn, link);
        if (reads_nothing_since_ms(k) < oldest_ms) {
            slowest = k;
            oldest_ms = reads_nothing_since_ms(k);
        }
    }
    if (!slowest)
        return false;
    sl_http_cut(slowest->call);
    sl_http_call_post(slowest->call);
    give_way(slowest);
    return true;
}

static bool displace_served(struct sl_http_server *s)
{
    return displace(&s->idle, IDLE_PLACE_MS) || displace(&s->receiving, RECEIVING_PLACE_MS) ||
           displace_reader(s);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct sl_http_library *l = arg;
    struct sl_http_server *s = l->server;
    struct sl_http_conn *k = *context;
    s->n_steps++;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const int on = 1, send_buffer = SEND_BUFFER_BYTES;
        k = sl_xcalloc(1, sizeof *k);
        k->server = s;
        k->library = l;
        k->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        k->refused = s->n_served >= s->conf.max_connections && !displace_served(s);
        sl_list_init(&k->turn);
        sl_http_conn_enter(k, SL_HTTP_FRESH);
        sl_http_conn_watch(k);
        setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(k->fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
        sl_list_add_tail(&s->conns, &k->link);
        s->n_conns++;
        s->n_served += !k->refused;
        *context = k;
    } else if (k) {
        if (k->watched)
            sl_loop_remove(s->loop, k->fd);
        sl_list_remove(&k->link);
        sl_list_remove(&k->turn);
        s->n_served -= !k->refused && !k->displaced;
        s->n_displaced -= k->displaced;
        s->n_conns--;
        sl_free(k);
        *context = NULL;
        accept_again(s);
    }
    sl_metric_set(s->m_conns, s->n_conns);
}

static void on_listen(void *arg, uint32_t events)
{
    struct sl_http_server *s = arg;
    (void)events;
    for (uint32_t i = 0; i < ACCEPTS_PER_ROUND; i++) {
        struct sockaddr_storage from;
        socklen_t len = sizeof from;
        int fd = -1;
        bool full = s->n_conns >= s->conf.max_connections + REFUSED_CONNECTIONS;
        if (full && !s->n_displaced && !displace(&s->refused, IDLE_PLACE_MS))
            (void)displace_served(s);
        if (!full)
            fd = accept4(s->listen_fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        else
            errno = EMFILE;
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            sl_loop_remove(s->loop, s->listen_fd);
            s->accepts = false; /* until one closes, or the next look at the times */
            return;
        }
        if (fd < 0)
            continue; /* that client is gone already */
        struct sl_http_library *l = &s->libraries[s->n_accepted++ % SL_HTTP_LIBRARIES];
        l->ready = true;
        (void)MHD_add_connection(l->daemon, fd, (struct sockaddr *)&from, len); /* closes it where it fails */
    }
}

static void accept_again(struct sl_http_server *s)
{
    if (!s->accepts && s->listen_fd >= 0)
        s->accepts = sl_loop_add(s->loop, s->listen_fd, EPOLLIN, on_listen, s) == SL_OK;
}

/* Whole answers are looked at here: what leaves one unread for a scan or more when there is too much in all, and has
 * more than an even share of it, is the cause. Streams are when they grow (http_stream.c). */
static bool leaves_too_much(struct sl_http_call *c)
{
    struct sl_http_server *s = c->server;
    uint64_t most = s->conf.max_unread_total_bytes;
    bool before = c->over_at_a_scan;
    c->over_at_a_scan = most && !c->streaming && !c->aborted && s->unread_bytes > most &&
                        c->counted > most / sl_http_server_open_calls(s);
    return before && c->over_at_a_scan;
}

/* Requests that do not arrive: told so where an answer can still be understood, then cut. */
static void enforce_times(struct sl_http_server *s, uint64_t now_ms)
{
    static const char late[] =
        "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Content-Length: 112\r\n\r\n"
        "{\"error\":{\"message\":\"The request did not arrive in time.\",\"type\":\"RequestTimeoutError\","
        "\"param\":null,\"code\":408}}";
    s->last_scan_ms = now_ms;
    SL_LIST_FOREACH_SAFE (at, next, &s->conns) {
        struct sl_http_conn *k = SL_CONTAINER_OF(at, struct sl_http_conn, link);
        if (k->call && k->call->stuck_since_ms &&
            now_ms - k->call->stuck_since_ms >= (uint64_t)s->conf.idle_timeout_s * 1000) {
            sl_http_cut(k->call);
            sl_http_call_post(k->call);
        }
        if (k->call && leaves_too_much(k->call)) {
            sl_http_cut(k->call);
            s->unread_bytes -= k->call->counted;
            k->call->counted = 0;
        }
        uint64_t limit_s = k->phase == SL_HTTP_KEPT ? s->conf.idle_timeout_s : s->conf.receive_timeout_s;
        if (k->phase == SL_HTTP_WORKING || now_ms - k->since_ms < limit_s * 1000)
            continue;
        if (k->phase == SL_HTTP_RECEIVING) {
            ssize_t sent = s->conf.tls ? 0 : send(k->fd, late, sizeof late - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            (void)sent; /* a courtesy */
            sl_metric_add(s->m_timeouts, 1);
        }
        shutdown(k->fd, SHUT_RDWR);
        k->since_ms = now_ms; /* once is enough; the library sees the end and closes */
    }
}

static uint32_t n_ready(struct sl_http_server *s)
{
    pthread_mutex_lock(&s->ready_lock);
    uint32_t n = s->n_ready;
    pthread_mutex_unlock(&s->ready_lock);
    return n;
}

/* Serves at most so many of the calls that are ready. */
static void run_ready(struct sl_http_server *s, uint32_t most)
{
    for (; most; most--) {
        pthread_mutex_lock(&s->ready_lock);
        struct sl_http_call *c = s->ready_first;
        if (c) {
            s->ready_first = c->next_ready;
            s->n_ready--;
            c->queued = false; /* before it is looked at: a wake from now on counts again */
        }
        pthread_mutex_unlock(&s->ready_lock);
        if (!c)
            return;
        sl_http_call_proceed(c);
        sl_http_unref(c);
    }
}

static void run_library(struct sl_http_library *l)
{
    unsigned long long wait_ms = 0;
    uint64_t before = l->server->n_steps;
    l->ready = false;
    MHD_run(l->daemon);
    bool waits = MHD_get_timeout(l->daemon, &wait_ms) == MHD_YES;
    bool in_vain = waits && wait_ms == 0 && l->server->n_steps == before;
    l->n_in_vain = in_vain ? l->n_in_vain + 1 : 0;
    if (l->n_in_vain > RUNS_IN_VAIN)
        wait_ms = VAIN_WAIT_MS;
    l->due_ms = waits ? sl_now_ms() + wait_ms : UINT64_MAX;
}

static uint64_t time_to_wait_ms(struct sl_http_server *s)
{
    uint64_t now_ms = sl_now_ms(), until_ms = n_ready(s) ? now_ms : now_ms + SCAN_EVERY_MS;
    for (size_t i = 0; i < SL_HTTP_LIBRARIES; i++) {
        const struct sl_http_library *l = &s->libraries[i];
        if (l->ready || l->due_ms < until_ms)
            until_ms = l->ready ? now_ms : l->due_ms;
    }
    return until_ms > now_ms ? until_ms - now_ms : 0;
}

static void round_once(struct sl_http_server *s)
{
    sl_loop_once(s->loop, (uint32_t)time_to_wait_ms(s));
    run_ready(s, READY_PER_ROUND);
    uint64_t now_ms = sl_now_ms();
    for (size_t i = 0; i < SL_HTTP_LIBRARIES; i++)
        if (s->libraries[i].ready || s->libraries[i].due_ms <= now_ms)
            run_library(&s->libraries[i]);
    now_ms = sl_now_ms(); /* after all that puts down when something began */
    if (now_ms - s->last_scan_ms >= SCAN_EVERY_MS) {
        accept_again(s);
        enforce_times(s, now_ms);
    }
}

static void stop_libraries(struct sl_http_server *s)
{
    for (size_t i = 0; i < SL_HTTP_LIBRARIES; i++)
        if (s->libraries[i].daemon)
            MHD_stop_daemon(s->libraries[i].daemon);
    memset(s->libraries, 0, sizeof s->libraries);
}

static void http_main(void *arg)
{
    struct sl_http_server *s = arg;
    s->self = pthread_self();
    while (!atomic_load(&s->stop))
        round_once(s);
    sl_http_workers_close(s->workers); /* here, where calls are given to them: none can come after */
    /* the library wants no suspended connection when it stops */
    run_ready(s, n_ready(s));
    SL_LIST_FOREACH (at, &s->conns) {
        struct sl_http_conn *k = SL_CONTAINER_OF(at, struct sl_http_conn, link);
        if (k->call) {
            sl_http_call_abort(k->call);
            sl_http_call_proceed(k->call);
        }
    }
    for (size_t i = 0; i < SL_HTTP_LIBRARIES; i++)
        MHD_run(s->libraries[i].daemon);
    stop_libraries(s);
    run_ready(s, n_ready(s));
}

static void run_on_worker(struct sl_http_call *c)
{
    c->server->conf.handle(c->server->conf.arg, c);
    atomic_store_explicit(&c->busy, false, memory_order_release);
    sl_http_call_post(c);
    sl_http_unref(c);
}

static void register_metrics(struct sl_http_server *s)
{
    struct sl_metrics *m = s->conf.metrics;
    s->m_conns = sl_gauge(m, "sluice_http_connections", NULL, "Open client connections.");
    s->m_refused = sl_counter(m, "sluice_http_connections_refused_total", NULL,
                              "Connections answered 503 over max_connections.");
    s->m_displaced =
        sl_counter(m, "sluice_http_connections_displaced_total", NULL,
                   "Connections that waited for their client, closed to make room over max_connections.");
    s->m_timeouts =
        sl_counter(m, "sluice_http_receive_timeouts_total", NULL, "Requests that did not arrive in time.");
    s->m_left = sl_counter(m, "sluice_http_clients_left_total", NULL,
                           "Clients that left before their answer was complete.");
    s->m_cut = sl_counter(m, "sluice_http_slow_readers_cut_total", NULL,
                          "Streams cut because the client did not read.");
    for (unsigned i = 1; i < SL_COUNTOF(s->m_status); i++) {
        char labels[24];
        snprintf(labels, sizeof labels, "status=\"%uxx\"", i);
        s->m_status[i] =
            sl_counter(m, "sluice_http_requests_total", labels, "Requests answered, by class of status.");
    }
    s->m_status[0] = s->m_status[5];
}

static enum sl_err start_library(struct sl_http_server *s, struct sl_http_library *l, struct sl_why *why)
{
    static const struct MHD_OptionItem no_tls[] = {{MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)sl_http_tls_retrieve},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_VERSIONS},
        {MHD_OPTION_END, 0, NULL},
    };
    l->server = s;
    l->daemon = MHD_start_daemon(
        (s->conf.tls ? MHD_USE_TLS : 0) | MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET |
            MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG,
        0, NULL, NULL, sl_http_call_access, s, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, s,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->conf.max_connections + REFUSED_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->conf.idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        HEADER_MEMORY_BYTES, MHD_OPTION_NOTIFY_COMPLETED, sl_http_call_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, l, MHD_OPTION_URI_LOG_CALLBACK, sl_http_call_begin, s,
        MHD_OPTION_ARRAY, s->conf.tls ? tls : no_tls, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!l->daemon)
        return sl_why_set(why, SL_EIO,
                          "the HTTP library did not start on %s (more connections than open files allowed?)",
                          s->listen);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    enum sl_err err = sl_loop_add(s->loop, info->epoll_fd, EPOLLIN, on_library, l);
    return err ? sl_why_set(why, err, "the HTTP library's epoll descriptor cannot be watched") : SL_OK;
}

enum sl_err sl_http_server_open(const struct sl_http_conf *conf, struct sl_http_server **out,
                                struct sl_why *why)
{
    struct sl_http_server *s = sl_xcalloc(1, sizeof *s);
    s->conf = *conf;
    s->listen = sl_xstrdup(conf->listen);
    s->id_base = sl_random_u64();
    sl_list_init(&s->conns);
    sl_list_init(&s->idle);
    sl_list_init(&s->receiving);
    sl_list_init(&s->refused);
    SL_ASSERT(pthread_mutex_init(&s->ready_lock, NULL) == 0);
    register_metrics(s);
    enum sl_err err = sl_http_listen_open(conf->listen, &s->listen_fd, &s->port, why);
    if (err)
        goto free_server;
    err = sl_loop_open(&s->loop);
    if (err) {
        sl_why_set(why, err, "the event loop of the HTTP thread did not open");
        goto close_listen;
    }
    err = sl_http_workers_open(conf->n_workers ? conf->n_workers : 1, conf->max_waiting, run_on_worker,
                               &s->workers);
    if (err) {
        sl_why_set(why, err, "the API threads did not start");
        goto close_loop;
    }
    for (size_t i = 0; i < SL_HTTP_LIBRARIES && !err; i++)
        err = start_library(s, &s->libraries[i], why);
    if (err)
        goto stop_libraries;
    accept_again(s);
    err = sl_thread_start(&s->thread, "http", http_main, s);
    if (err) {
        sl_why_set(why, err, "the HTTP thread did not start");
        goto stop_libraries;
    }
    *out = s;
    return SL_OK;
stop_libraries:
    stop_libraries(s);
    sl_http_workers_close(s->workers);
close_loop:
    sl_loop_close(s->loop);
close_listen:
    close(s->listen_fd);
free_server:
    pthread_mutex_destroy(&s->ready_lock);
    sl_free(s->listen);
    sl_free(s);
    return err;
}

void sl_http_server_close(struct sl_http_server *s)
{
    if (!s)
        return;
    atomic_store(&s->stop, true);
    sl_loop_wake(s->loop);
    sl_thread_join(&s->thread);
    sl_loop_close(s->loop);
    close(s->listen_fd);
    pthread_mutex_destroy(&s->ready_lock);
    sl_free(s->listen);
    sl_free(s);
}

bool sl_http_server_wait_idle(struct sl_http_server *s, uint32_t timeout_ms)
{
    uint64_t until_ms = sl_now_ms() + timeout_ms;
    while (sl_http_server_open_calls(s) > 0) {
        if (sl_now_ms() >= until_ms)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = IDLE_POLL_MS * 1000000l}, NULL);
    }
    return true;
}

uint16_t sl_http_server_port(const struct sl_http_server *s)
{
    return s->port;
}

uint32_t sl_http_server_open_calls(const struct sl_http_server *s)
{
    return atomic_load(&s->n_open_calls);
}
