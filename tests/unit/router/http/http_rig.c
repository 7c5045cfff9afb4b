/* tests/unit/router/http/http_rig.c - see http_rig.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "router/http/http_error.h"
#include "tests/unit/router/http/http_rig.h"

#define BULK_PIECE 4001u

struct stream {
    struct http_rig *rig;
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

char http_rig_bulk_byte(size_t i)
{
    return (char)(i * 2654435761u >> 13);
}

static void write_bulk(struct stream *s)
{
    while (s->bulk_written < BULK_BYTES) {
        char piece[BULK_PIECE];
        size_t n = BULK_BYTES - s->bulk_written < BULK_PIECE ? BULK_BYTES - s->bulk_written : BULK_PIECE;
        for (size_t i = 0; i < n; i++)
            piece[i] = http_rig_bulk_byte(s->bulk_written + i);
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
    struct http_rig *rig = s->rig;
    atomic_store(&s->bulk_over, true);
    if (s->producer)
        pthread_join(s->producer, NULL);
    sl_http_unref(s->call);
    sl_free(s);
    atomic_store(&rig->complete, complete);
    sem_post(&rig->closed);
}

static void handle_stream(struct http_rig *rig, struct sl_http_call *c, const char *path)
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

static void handle_many(struct http_rig *rig, struct sl_http_call *c)
{
    struct stream *s = sl_xcalloc(1, sizeof *s);
    s->rig = rig;
    s->call = c;
    sl_http_ref(c);
    sl_http_attach(c, &(struct sl_http_owner){many_wake, stream_closed, s});
    rig->many[atomic_fetch_add(&rig->n_many_begun, 1)] = c;
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
    struct http_rig *rig = arg;
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

void http_rig_open(struct http_rig *rig, struct sl_http_conf *conf)
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

void http_rig_close(struct http_rig *rig)
{
    sl_http_server_close(rig->server);
    sl_metrics_free(rig->metrics);
    sem_destroy(&rig->hold);
    sem_destroy(&rig->closed);
}

bool http_rig_told(struct http_rig *rig, const char *line)
{
    struct sl_buf text;
    sl_buf_init(&text, 1 << 20);
    sl_metrics_render(rig->metrics, &text);
    bool found = strstr(text.data, line) != NULL;
    sl_buf_fini(&text);
    return found;
}

void http_rig_wait_told(struct http_rig *rig, const char *line)
{
    for (uint64_t end = sl_now_ms() + LONG_MS; !http_rig_told(rig, line); usleep(1000))
        assert_true(sl_now_ms() < end);
}

void http_rig_hold_place(struct http_rig *rig, struct http_client *c)
{
    http_connect(c, rig->port);
    http_request(c, "GET", "/begun", "", NULL);
    assert_true(http_wait_for(c, "data: 0"));
}

void http_rig_wait_holding(struct http_rig *rig, int n)
{
    for (uint64_t end = sl_now_ms() + LONG_MS; atomic_load(&rig->holding) < n; sched_yield())
        assert_true(sl_now_ms() < end);
}
