/* The server over loopback: answers, streams, limits, clients that leave. No test waits for a time; reads
 * give up after seconds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "router/http/http_call.h"
#include "router/http/http_error.h"
#include "router/http/http_server.h"
#include "tests/unit/router/http_client.h"

#define N_FRAMES      200
#define BULK_BYTES    (8u << 20) /* more than all buffers between the two ends */
#define BULK_PIECE    4001u
#define READER_BUFFER 16384
#define N_MANY        300u   /* streams: more than the server serves between two looks at its sockets */
#define LONG_MS       120000 /* a limit for what hangs, not for a slow machine */

/* What the handler does is in the path. */
struct rig {
    struct sl_http_server *server;
    struct sl_metrics *metrics;
    uint16_t port;
    sem_t hold;           /* /hold waits here on the worker */
    sem_t closed;         /* posted by each closed() */
    _Atomic int complete; /* the last closed()'s */
    _Atomic int holding;
    _Atomic size_t flooded; /* bytes that the last /flood could write */
    /* /many: calls that all get their one frame when all_at_once is set */
    struct sl_http_call *many[N_MANY];
    _Atomic size_t n_many;
    _Atomic bool all_at_once;
    size_t n_given;                /* frames; http thread */
    _Atomic size_t n_given_before; /* the same when /count came */
};

struct stream {
    struct rig *rig;
    struct sl_http_call *call;
    _Atomic int ready; /* frames made by the producer */
    int written;
    bool begun, flood, over;
    bool bulk;
    _Atomic bool bulk_over;
    size_t bulk_written;
    pthread_t producer;
};

static void *produce(void *arg)
{
    struct stream *s = arg;
    struct sl_http_call *call = s->call;
    for (int i = 0; i < N_FRAMES; i++) {
        atomic_fetch_add(&s->ready, 1);
        sl_http_wake(call);
    }
    sl_http_unref(call);
    return NULL;
}

/* A stream whose owner does not care how much is unread: it goes on when there is room. */
static void *keep_waking(void *arg)
{
    struct stream *s = arg;
    struct sl_http_call *call = s->call;
    while (!atomic_load(&s->bulk_over)) {
        sl_http_wake(call);
        sched_yield();
    }
    sl_http_unref(call);
    return NULL;
}

static char bulk_byte(size_t i)
{
    return (char)(i * 2654435761u >> 13);
}

static void write_bulk(struct stream *s)
{
    while (s->bulk_written < BULK_BYTES) {
        char piece[BULK_PIECE];
        size_t n = BULK_BYTES - s->bulk_written < BULK_PIECE ? BULK_BYTES - s->bulk_written : BULK_PIECE;
        for (size_t i = 0; i < n; i++)
            piece[i] = bulk_byte(s->bulk_written + i);
        if (!sl_http_stream_write(s->call, piece, n))
            return;
        s->bulk_written += n;
    }
    sl_http_stream_end(s->call);
}

static void stream_wake(void *arg)
{
    static char block[8192];
    struct stream *s = arg;
    if (!s->begun)
        sl_http_stream_begin(s->call, "text/event-stream");
    s->begun = true;
    if (s->bulk) {
        write_bulk(s);
        return;
    }
    while (s->flood && !s->over)
        if (!sl_http_stream_write(s->call, block, sizeof block)) {
            s->over = true;
            sl_http_cut(s->call);
        } else {
            atomic_fetch_add(&s->rig->flooded, sizeof block);
        }
    while (!s->flood && s->written < atomic_load(&s->ready)) {
        char frame[32];
        int n = snprintf(frame, sizeof frame, "data: %d\n\n", s->written++);
        assert_true(sl_http_stream_write(s->call, frame, (size_t)n));
        if (s->written == N_FRAMES)
            sl_http_stream_end(s->call);
    }
}

static void stream_closed(void *arg, bool complete)
{
    struct stream *s = arg;
    struct rig *rig = s->rig;
    atomic_store(&s->bulk_over, true);
    if (s->producer)
        pthread_join(s->producer, NULL);
    sl_http_unref(s->call);
    sl_free(s);
    atomic_store(&rig->complete, complete);
    sem_post(&rig->closed);
}

static void handle_stream(struct rig *rig, struct sl_http_call *c, const char *path)
{
    struct stream *s = sl_xcalloc(1, sizeof *s);
    s->rig = rig;
    s->call = c;
    s->flood = strcmp(path, "/flood") == 0;
    s->bulk = strcmp(path, "/bulk") == 0;
    sl_http_ref(c);
    sl_http_attach(c, &(struct sl_http_owner){stream_wake, stream_closed, s});
    if (strcmp(path, "/stream") == 0 || s->bulk) {
        sl_http_ref(c);
        assert_int_equal(pthread_create(&s->producer, NULL, s->bulk ? keep_waking : produce, s), 0);
    } else if (s->flood) {
        sl_http_wake(c);
    } else if (strcmp(path, "/begun") == 0) { /* one frame, then nothing */
        s->ready = 1;
        sl_http_wake(c);
    } /* else /silent: nothing ever comes */
}

static void many_wake(void *arg)
{
    struct stream *s = arg;
    if (!atomic_load(&s->rig->all_at_once) || s->over)
        return;
    s->over = true;
    s->rig->n_given++;
    sl_http_stream_begin(s->call, "text/event-stream");
    assert_true(sl_http_stream_write(s->call, "data: one\n\n", 11));
    sl_http_stream_end(s->call);
}

static void handle_many(struct rig *rig, struct sl_http_call *c)
{
    struct stream *s = sl_xcalloc(1, sizeof *s);
    s->rig = rig;
    s->call = c;
    sl_http_ref(c);
    sl_http_attach(c, &(struct sl_http_owner){many_wake, stream_closed, s});
    rig->many[atomic_load(&rig->n_many)] = c;
    atomic_fetch_add(&rig->n_many, 1);
}

static enum sl_http_where check(void *arg, struct sl_http_call *c)
{
    const char *path = sl_http_path(c);
    (void)arg;
    if (strcmp(path, "/refused") == 0)
        sl_http_answer_error(c, &(struct sl_http_error){.err = SL_EDENIED});
    bool here = strcmp(path, "/here") == 0 || strcmp(path, "/hold-here") == 0 || strcmp(path, "/count") == 0;
    return here ? SL_HTTP_HERE : SL_HTTP_ON_WORKER;
}

static void handle(void *arg, struct sl_http_call *c)
{
    struct rig *rig = arg;
    const char *path = sl_http_path(c), *bytes;
    size_t n;
    struct sl_buf body;
    if (strcmp(path, "/stream") == 0 || strcmp(path, "/silent") == 0 || strcmp(path, "/begun") == 0 ||
        strcmp(path, "/flood") == 0 || strcmp(path, "/bulk") == 0) {
        handle_stream(rig, c, path);
        return;
    }
    if (strcmp(path, "/many") == 0) {
        handle_many(rig, c);
        return;
    }
    if (strcmp(path, "/count") == 0)
        atomic_store(&rig->n_given_before, rig->n_given);
    if (strcmp(path, "/hold") == 0 || strcmp(path, "/hold-here") == 0) {
        atomic_fetch_add(&rig->holding, 1);
        sem_wait(&rig->hold);
    }
    sl_http_body(c, &bytes, &n);
    sl_buf_init(&body, 1 << 24);
    if (strcmp(path, "/large") == 0) {
        static const char block[8192];
        while (body.len < BULK_BYTES)
            sl_buf_append(&body, block, sizeof block);
    }
    sl_buf_printf(&body, "%s:", sl_http_method(c));
    sl_buf_append(&body, bytes, n);
    sl_http_answer(c, 200, "text/plain", &body);
    sl_buf_fini(&body);
}

static void open_rig(struct rig *rig, struct sl_http_conf *conf)
{
    struct sl_why why = {0};
    memset(rig, 0, sizeof *rig);
    sem_init(&rig->hold, 0, 0);
    sem_init(&rig->closed, 0, 0);
    rig->metrics = sl_metrics_new();
    conf->listen = "127.0.0.1:0";
    conf->n_workers = conf->n_workers ? conf->n_workers : 1;
    conf->max_waiting = conf->max_waiting ? conf->max_waiting : 64;
    conf->max_connections = conf->max_connections ? conf->max_connections : 600;
    conf->max_body_bytes = 100000;
    conf->max_unread_bytes = conf->max_unread_bytes ? conf->max_unread_bytes : 100000;
    conf->receive_timeout_s = conf->receive_timeout_s ? conf->receive_timeout_s : 30;
    conf->idle_timeout_s = conf->idle_timeout_s ? conf->idle_timeout_s : 60;
    conf->check = check;
    conf->handle = handle;
    conf->arg = rig;
    conf->metrics = rig->metrics;
    if (sl_http_server_open(conf, &rig->server, &why) != SL_OK)
        fail_msg("%s", why.text);
    rig->port = sl_http_server_port(rig->server);
}

static void close_rig(struct rig *rig)
{
    sl_http_server_close(rig->server);
    sl_metrics_free(rig->metrics);
    sem_destroy(&rig->hold);
    sem_destroy(&rig->closed);
}

static bool told(struct rig *rig, const char *line)
{
    struct sl_buf text;
    sl_buf_init(&text, 1 << 20);
    sl_metrics_render(rig->metrics, &text);
    bool found = strstr(text.data, line) != NULL;
    sl_buf_fini(&text);
    return found;
}

static void requests_on_one_connection_are_answered_with_their_ids(void **state)
{
    static const char *const paths[] = {"/here", "/worker"};
    struct rig rig;
    struct http_client c;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    http_connect(&c, rig.port);
    for (int i = 0; i < 6; i++) {
        struct http_reply r;
        http_request(&c, i % 3 ? "POST" : "GET", paths[i % 2], i & 1 ? "X-Request-Id: mine\r\n" : "",
                     i % 3 ? "some bytes" : NULL);
        http_read(&c, &r);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, i % 3 ? "POST:some bytes" : "GET:");
        assert_string_equal(http_reply_header(&r, "Content-Type"), "text/plain");
        const char *id = http_reply_header(&r, "X-Request-Id");
        assert_int_equal(strncmp(id, i & 1 ? "mine" : "req-", 4), 0);
        http_reply_fini(&r);
    }
    http_close(&c);
    close_rig(&rig);
}

static void body_over_the_limit_is_413_and_the_server_goes_on(void **state)
{
    struct rig rig;
    struct http_client c;
    struct http_reply r;
    char *big = sl_xalloc(200001);
    (void)state;
    memset(big, 'x', 200000);
    big[200000] = '\0';
    open_rig(&rig, &(struct sl_http_conf){0});
    http_connect(&c, rig.port);
    http_request(&c, "POST", "/worker", "", big); /* told by Content-Length */
    http_read(&c, &r);
    assert_int_equal(r.status, 413);
    assert_non_null(strstr(r.body, "\"type\":\"RequestTooLargeError\""));
    http_reply_fini(&r);
    http_request(&c, "POST", "/worker", "Transfer-Encoding: chunked\r\n",
                 NULL); /* found out while it comes */
    http_send(&c, "30d40\r\n", 7);
    http_send(&c, big, 200000);
    http_send(&c, "\r\n0\r\n\r\n", 7);
    http_read(&c, &r);
    assert_int_equal(r.status, 413);
    http_reply_fini(&r);
    http_close(&c);
    http_connect(&c, rig.port);
    http_request(&c, "POST", "/worker", "Expect: 100-continue\r\nContent-Length: 200000\r\n",
                 NULL); /* never sent */
    http_read(&c, &r);
    assert_int_equal(r.status, 413);
    http_reply_fini(&r);
    http_close(&c);
    http_once(rig.port, "POST", "/worker", "", "ok", &r);
    assert_string_equal(r.body, "POST:ok");
    http_reply_fini(&r);
    close_rig(&rig);
    sl_free(big);
}

static void answer_known_at_the_headers_comes_after_the_body(void **state)
{
    struct rig rig;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    http_once(rig.port, "POST", "/refused", "", "a body nobody reads", &r);
    assert_int_equal(r.status, 401);
    assert_string_equal(http_reply_header(&r, "WWW-Authenticate"), "Bearer");
    http_reply_fini(&r);
    close_rig(&rig);
}

static void malformed_requests_do_not_hurt(void **state)
{
    static const char *const bad[] = {
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /worker HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST /worker HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST /worker HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET /here HTTP/1.1\r\nbroken header\r\n\r\n",
        "\x16\x03\x01\x02\x01\xfc\x03\x03 a TLS hello\r\n\r\n"};
    struct rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        http_connect(&c, rig.port);
        http_send(&c, bad[i], strlen(bad[i]));
        http_read(&c, &r);
        if (r.status != 0 && (r.status < 400 || r.status > 599))
            fail_msg("case %zu answered %d", i, r.status);
        http_reply_fini(&r);
        http_close(&c);
    }
    char *header = sl_xalloc(100001);
    memset(header, 'h', 100000);
    header[100000] = '\0';
    http_connect(&c, rig.port);
    http_send(&c, "GET /here HTTP/1.1\r\nHost: x\r\nX-Long: ", 37);
    http_send(&c, header, 100000);
    http_send(&c, "\r\n\r\n", 4);
    http_read(&c, &r);
    assert_true(r.status == 431 || r.status == 0);
    http_reply_fini(&r);
    http_close(&c);
    sl_free(header);
    http_once(rig.port, "GET", "/here", "", NULL, &r);
    assert_int_equal(r.status, 200);
    http_reply_fini(&r);
    assert_true(sl_http_server_wait_idle(rig.server, 60000));
    close_rig(&rig);
}

static void request_that_never_ends_is_408(void **state)
{
    struct rig rig;
    struct http_client c, fresh;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){.receive_timeout_s = 1});
    http_connect(&fresh, rig.port); /* says nothing at all: just closed */
    http_read(&fresh, &r);
    assert_int_equal(r.status, 0);
    http_reply_fini(&r);
    http_close(&fresh);
    for (bool answered = false; !answered;) { /* not when this thread was too slow to say a word in time */
        http_connect(&c, rig.port);
        http_send(&c, "POST /worker HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nhalf", 57);
        http_read(&c, &r);
        answered = r.status != 0;
        if (answered) {
            assert_int_equal(r.status, 408);
            assert_true(r.complete);
            assert_non_null(strstr(r.body, "RequestTimeoutError"));
        }
        http_reply_fini(&r);
        http_close(&c);
    }
    close_rig(&rig);
}

static void connection_over_the_limit_is_503(void **state)
{
    struct rig rig;
    struct http_client a, b;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){.max_connections = 1});
    http_connect(&a, rig.port);
    http_request(&a, "GET", "/here", "", NULL);
    http_read(&a, &r);
    assert_int_equal(r.status, 200);
    http_reply_fini(&r);
    http_connect(&b, rig.port);
    http_request(&b, "GET", "/here", "", NULL);
    http_read(&b, &r);
    assert_int_equal(r.status, 503);
    assert_non_null(http_reply_header(&r, "Retry-After"));
    http_reply_fini(&r);
    http_close(&a);
    http_close(&b);
    close_rig(&rig);
}

/* The server stops accepting at its limit and those that it tells about it; a place that comes free is taken. */
static void connection_past_all_limits_waits_for_room(void **state)
{
    enum { MOST = 1 + 64 };
    static struct http_client idle[MOST];
    struct http_client last;
    struct http_reply r;
    struct rig rig;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){.max_connections = 1});
    for (int i = 0; i < MOST; i++)
        http_connect(&idle[i], rig.port);
    for (uint64_t end = sl_now_ms() + LONG_MS; !told(&rig, "sluice_http_connections 65\n"); sched_yield())
        assert_true(sl_now_ms() < end);
    http_connect(&last, rig.port);
    http_request(&last, "GET", "/here", "", NULL);
    http_close(&idle[0]);
    http_read(&last, &r);
    assert_int_equal(r.status, 503);
    http_reply_fini(&r);
    http_close(&last);
    for (int i = 1; i < MOST; i++)
        http_close(&idle[i]);
    close_rig(&rig);
}

/* A thread is in /hold or /hold-here. */
static void wait_holding(struct rig *rig)
{
    for (uint64_t end = sl_now_ms() + LONG_MS; atomic_load(&rig->holding) == 0; sched_yield())
        assert_true(sl_now_ms() < end);
}

static void full_worker_queue_is_429(void **state)
{
    struct rig rig;
    struct http_client held[3];
    struct http_reply r;
    int refused = 0;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){.max_waiting = 1});
    for (int i = 0; i < 3; i++) { /* one in the worker, two wait */
        http_connect(&held[i], rig.port);
        http_request(&held[i], "GET", "/hold", "", NULL);
        if (i == 0)
            wait_holding(&rig);
    }
    for (int i = 0; i < 3; i++) {
        http_once(rig.port, "GET", "/here", "", NULL,
                  &r); /* the http thread has taken what was sent before */
        http_reply_fini(&r);
    }
    struct http_client late;
    http_connect(&late, rig.port);
    http_request(&late, "GET", "/worker", "", NULL);
    http_read(&late, &r);
    refused += r.status == 429;
    http_reply_fini(&r);
    http_close(&late);
    assert_int_equal(refused, 1);
    for (int i = 0; i < 3; i++)
        sem_post(&rig.hold);
    for (int i = 0; i < 3; i++) {
        http_read(&held[i], &r);
        assert_int_equal(r.status, 200);
        http_reply_fini(&r);
        http_close(&held[i]);
    }
    close_rig(&rig);
}

static void stream_keeps_order_and_the_connection(void **state)
{
    struct rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    http_connect(&c, rig.port);
    for (int round = 0; round < 3; round++) {
        http_request(&c, "GET", "/stream", "", NULL);
        http_read(&c, &r);
        assert_int_equal(r.status, 200);
        assert_true(r.complete);
        assert_string_equal(http_reply_header(&r, "Cache-Control"), "no-cache");
        const char *at = r.body;
        for (int i = 0; i < N_FRAMES; i++) {
            char frame[32];
            int n = snprintf(frame, sizeof frame, "data: %d\n\n", i);
            assert_int_equal(strncmp(at, frame, (size_t)n), 0);
            at += n;
        }
        assert_int_equal(*at, 0);
        http_reply_fini(&r);
        sem_wait(&rig.closed);
        assert_int_equal(atomic_load(&rig.complete), 1);
    }
    http_close(&c);
    close_rig(&rig);
}

static void stream_to_a_client_without_chunks_ends_with_the_connection(void **state)
{
    struct rig rig;
    struct http_client c;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    http_connect(&c, rig.port);
    const char request[] = "GET /stream HTTP/1.0\r\n\r\n";
    http_send(&c, request, sizeof request - 1);
    assert_false(http_wait_for(&c, "no such text")); /* reads to the end */
    assert_non_null(strstr(c.in.data, " 200 "));
    assert_null(strstr(c.in.data, "chunked"));
    const char *at = strstr(c.in.data, "\r\n\r\n") + 4;
    for (int i = 0; i < N_FRAMES; i++) {
        char frame[32];
        int n = snprintf(frame, sizeof frame, "data: %d\n\n", i);
        assert_int_equal(strncmp(at, frame, (size_t)n), 0);
        at += n;
    }
    assert_int_equal(*at, 0);
    http_close(&c);
    close_rig(&rig);
}

static void connect_slow_reader(struct http_client *c, uint16_t port)
{
    const int bytes = READER_BUFFER;
    http_connect(c, port);
    assert_int_equal(setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
}

/* The socket takes chunks in part; every byte comes once and in order, and the connection goes on. */
static void slow_reader_gets_every_byte(void **state)
{
    struct rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    connect_slow_reader(&c, rig.port);
    for (int round = 0; round < 2; round++) {
        http_request(&c, "GET", "/bulk", "", NULL);
        http_read(&c, &r);
        assert_true(r.complete);
        assert_int_equal(r.n_body, BULK_BYTES);
        for (size_t i = 0; i < BULK_BYTES; i++)
            if (r.body[i] != bulk_byte(i))
                fail_msg("byte %zu is wrong", i);
        http_reply_fini(&r);
        sem_wait(&rig.closed);
        assert_int_equal(atomic_load(&rig.complete), 1);
    }
    http_close(&c);
    close_rig(&rig);
}

static void reader_that_takes_nothing_for_the_idle_time_is_cut(void **state)
{
    struct rig rig;
    struct http_client c;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){.idle_timeout_s = 1});
    connect_slow_reader(&c, rig.port);
    http_request(&c, "GET", "/bulk", "", NULL);
    sem_wait(&rig.closed);
    assert_int_equal(atomic_load(&rig.complete), 0);
    http_close(&c);
    close_rig(&rig);
}

static void client_that_leaves_is_noticed_while_nothing_is_sent(void **state)
{
    struct rig rig;
    struct http_client c;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    http_connect(&c, rig.port);
    http_request(&c, "GET", "/silent", "", NULL);
    http_close(&c);
    sem_wait(&rig.closed);
    assert_int_equal(atomic_load(&rig.complete), 0);
    http_connect(&c, rig.port); /* the same while a worker is at it: dealt with when the worker is done */
    http_request(&c, "GET", "/hold", "", NULL);
    wait_holding(&rig);
    http_close(&c);
    sem_post(&rig.hold);
    assert_true(sl_http_server_wait_idle(rig.server, 60000));
    close_rig(&rig);
}

/* The library closes but keeps a connection whose stream ended with an error, until it looks at it again: long, when an
 * older one that does nothing stands before it. */
static void connection_of_a_client_that_left_goes_though_others_idle(void **state)
{
    static struct http_client idle[SL_HTTP_LIBRARIES];
    struct http_client leaves;
    struct rig rig;
    char all[64], one_less[64];
    (void)state;
    snprintf(all, sizeof all, "sluice_http_connections %d\n", SL_HTTP_LIBRARIES + 1);
    snprintf(one_less, sizeof one_less, "sluice_http_connections %d\n", SL_HTTP_LIBRARIES);
    open_rig(&rig, &(struct sl_http_conf){.idle_timeout_s = 3600, .receive_timeout_s = 3600});
    for (size_t i = 0; i < SL_HTTP_LIBRARIES; i++)
        http_connect(&idle[i], rig.port);
    http_connect(&leaves, rig.port); /* the same daemon of the library as the first */
    http_request(&leaves, "GET", "/begun", "", NULL);
    assert_true(http_wait_for(&leaves, "data: 0"));
    assert_true(told(&rig, all));
    http_close(&leaves);
    for (uint64_t end = sl_now_ms() + LONG_MS; !told(&rig, one_less); sched_yield())
        assert_true(sl_now_ms() < end);
    for (size_t i = 0; i < SL_HTTP_LIBRARIES; i++)
        http_close(&idle[i]);
    close_rig(&rig);
}

static void reader_that_does_not_read_is_cut(void **state)
{
    struct rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    http_connect(&c, rig.port);
    http_request(&c, "GET", "/flood", "", NULL);
    sem_wait(&rig.closed);
    assert_int_equal(atomic_load(&rig.complete), 0);
    http_read(&c, &r);
    assert_false(r.complete);
    http_reply_fini(&r);
    http_close(&c);
    close_rig(&rig);
}

static void readers_that_leave_too_much_together_are_cut_and_others_are_not(void **state)
{
    enum { TOTAL = 100000 };
    struct rig rig;
    struct http_client slow, good;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){.max_unread_bytes = 1 << 30, .max_unread_total_bytes = TOTAL});
    http_connect(&slow, rig.port);
    http_request(&slow, "GET", "/flood", "", NULL);
    sem_wait(&rig.closed);
    assert_in_range(atomic_load(&rig.flooded), TOTAL / 2, TOTAL);
    http_connect(&good, rig.port);
    http_request(&good, "GET", "/stream", "", NULL);
    http_read(&good, &r);
    assert_true(r.complete);
    http_reply_fini(&r);
    http_close(&good);
    http_close(&slow);
    close_rig(&rig);
}

/* More than sockets hold, and together more than may be unread: one goes, and then there is room. */
static void whole_answers_left_unread_together_are_cut(void **state)
{
    struct rig rig;
    struct http_client slow[2];
    struct http_reply r;
    int n_complete = 0;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){.max_unread_total_bytes = BULK_BYTES * 3 / 2});
    for (int i = 0; i < 2; i++) {
        http_connect(&slow[i], rig.port);
        http_request(&slow[i], "GET", "/large", "", NULL);
    }
    for (uint64_t end = sl_now_ms() + LONG_MS; !told(&rig, "sluice_http_slow_readers_cut_total 1\n");
         usleep(10000))
        assert_true(sl_now_ms() < end);
    for (int i = 0; i < 2; i++) {
        http_read(&slow[i], &r);
        n_complete += r.complete;
        http_reply_fini(&r);
        http_close(&slow[i]);
    }
    assert_int_equal(n_complete, 1);
    close_rig(&rig);
}

static void many_connections_at_once_are_all_answered(void **state)
{
    enum { N = 256 }; /* the library's own epoll thread stalls at 128 and at 256 */
    static struct http_client c[N];
    struct rig rig;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    for (int i = 0; i < N; i++)
        http_connect(&c[i], rig.port);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < N; i++)
            http_request(&c[i], "GET", round & 1 ? "/worker" : "/here", "", NULL);
        for (int i = 0; i < N; i++) {
            struct http_reply r;
            http_read(&c[i], &r);
            assert_true(r.status == 200 || r.status == 429);
            http_reply_fini(&r);
        }
    }
    for (int i = 0; i < N; i++)
        http_close(&c[i]);
    close_rig(&rig);
}

/* While the http thread is busy, frames for many streams and a request of another client come to wait for it. */
static void client_does_not_wait_for_a_frame_of_every_stream(void **state)
{
    static struct http_client many[N_MANY];
    struct http_client busy, other;
    struct http_reply r;
    struct rig rig;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){.max_waiting = N_MANY});
    http_connect(&other, rig.port);
    http_connect(&busy, rig.port);
    for (size_t i = 0; i < N_MANY; i++) {
        http_connect(&many[i], rig.port);
        http_request(&many[i], "GET", "/many", "", NULL);
    }
    for (uint64_t end = sl_now_ms() + LONG_MS; atomic_load(&rig.n_many) < N_MANY; sched_yield())
        assert_true(sl_now_ms() < end);
    http_request(&busy, "GET", "/hold-here", "", NULL);
    wait_holding(&rig);
    http_request(&other, "GET", "/count", "", NULL);
    atomic_store(&rig.all_at_once, true);
    for (size_t i = 0; i < N_MANY; i++)
        sl_http_wake(rig.many[i]);
    sem_post(&rig.hold);
    http_read(&other, &r);
    assert_int_equal(r.status, 200);
    http_reply_fini(&r);
    assert_in_range(atomic_load(&rig.n_given_before), 0, N_MANY / 2);
    for (size_t i = 0; i < N_MANY; i++) {
        http_read(&many[i], &r);
        assert_true(r.complete);
        assert_string_equal(r.body, "data: one\n\n");
        http_reply_fini(&r);
        http_close(&many[i]);
    }
    http_close(&busy);
    http_close(&other);
    close_rig(&rig);
}

static void close_ends_what_is_open(void **state)
{
    struct rig rig;
    struct http_client c, idle;
    struct http_reply r;
    (void)state;
    open_rig(&rig, &(struct sl_http_conf){0});
    http_connect(&idle, rig.port);
    http_connect(&c, rig.port);
    http_request(&c, "GET", "/silent", "", NULL);
    for (uint64_t end = sl_now_ms() + LONG_MS; sl_http_server_open_calls(rig.server) == 0; sched_yield())
        assert_true(sl_now_ms() < end);
    assert_false(sl_http_server_wait_idle(rig.server, 10));
    sl_http_server_close(rig.server);
    http_read(&c, &r);
    assert_false(r.complete);
    http_reply_fini(&r);
    http_close(&c);
    http_close(&idle);
    sl_metrics_free(rig.metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_on_one_connection_are_answered_with_their_ids),
        cmocka_unit_test(body_over_the_limit_is_413_and_the_server_goes_on),
        cmocka_unit_test(answer_known_at_the_headers_comes_after_the_body),
        cmocka_unit_test(malformed_requests_do_not_hurt),
        cmocka_unit_test(request_that_never_ends_is_408),
        cmocka_unit_test(connection_over_the_limit_is_503),
        cmocka_unit_test(connection_past_all_limits_waits_for_room),
        cmocka_unit_test(full_worker_queue_is_429),
        cmocka_unit_test(stream_keeps_order_and_the_connection),
        cmocka_unit_test(stream_to_a_client_without_chunks_ends_with_the_connection),
        cmocka_unit_test(slow_reader_gets_every_byte),
        cmocka_unit_test(reader_that_takes_nothing_for_the_idle_time_is_cut),
        cmocka_unit_test(client_that_leaves_is_noticed_while_nothing_is_sent),
        cmocka_unit_test(connection_of_a_client_that_left_goes_though_others_idle),
        cmocka_unit_test(reader_that_does_not_read_is_cut),
        cmocka_unit_test(readers_that_leave_too_much_together_are_cut_and_others_are_not),
        cmocka_unit_test(whole_answers_left_unread_together_are_cut),
        cmocka_unit_test(many_connections_at_once_are_all_answered),
        cmocka_unit_test(client_does_not_wait_for_a_frame_of_every_stream),
        cmocka_unit_test(close_ends_what_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
