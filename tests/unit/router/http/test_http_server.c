/* The server over loopback: answers, streams, limits, clients that leave. No test waits for a time; reads
 * give up after seconds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "router/http/http_call.h"
#include "router/http/http_error.h"
#include "tests/unit/router/http/http_rig.h"

#define READER_BUFFER 16384

static void requests_on_one_connection_are_answered_with_their_ids(void **state)
{
    static const char *const paths[] = {"/here", "/worker"};
    struct http_rig rig;
    struct http_client c;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
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
    http_rig_close(&rig);
}

static void body_over_the_limit_is_413_and_the_server_goes_on(void **state)
{
    struct http_rig rig;
    struct http_client c;
    struct http_reply r;
    char *big = sl_xalloc(200001);
    (void)state;
    memset(big, 'x', 200000);
    big[200000] = '\0';
    http_rig_open(&rig, &(struct sl_http_conf){0});
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
    http_rig_close(&rig);
    sl_free(big);
}

static void answer_known_at_the_headers_comes_after_the_body(void **state)
{
    struct http_rig rig;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
    http_once(rig.port, "POST", "/refused", "", "a body nobody reads", &r);
    assert_int_equal(r.status, 401);
    assert_string_equal(http_reply_header(&r, "WWW-Authenticate"), "Bearer");
    http_reply_fini(&r);
    http_rig_close(&rig);
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
    struct http_rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
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
    http_rig_close(&rig);
}

static void request_that_never_ends_is_408(void **state)
{
    struct http_rig rig;
    struct http_client c, fresh;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.receive_timeout_s = 1});
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
    http_rig_close(&rig);
}

static void full_worker_queue_is_429(void **state)
{
    struct http_rig rig;
    struct http_client held[4];
    struct http_reply r;
    int refused = 0;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.max_waiting = 1});
    for (int i = 0; i < 4; i++) { /* two in workers, two wait */
        http_connect(&held[i], rig.port);
        http_request(&held[i], "GET", "/hold", "", NULL);
        if (i % 2 == 0)
            http_rig_wait_holding(&rig, 1 + i / 2);
    }
    for (int i = 0; i < 4; i++) {
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
    for (int i = 0; i < 4; i++)
        sem_post(&rig.hold);
    for (int i = 0; i < 4; i++) {
        http_read(&held[i], &r);
        assert_int_equal(r.status, 200);
        http_reply_fini(&r);
        http_close(&held[i]);
    }
    http_rig_close(&rig);
}

static void large_body_holds_up_no_small_one(void **state)
{
    enum { N_LARGE = 3 };
    struct http_client held[N_LARGE];
    struct http_reply r;
    struct http_rig rig;
    char *large = sl_xalloc(80001);
    (void)state;
    memset(large, 'x', 80000);
    large[80000] = '\0';
    http_rig_open(&rig, &(struct sl_http_conf){0});
    for (int i = 0; i < N_LARGE; i++) {
        http_connect(&held[i], rig.port);
        http_request(&held[i], "POST", "/hold", "", large);
    }
    http_rig_wait_holding(&rig, 1);
    for (int i = 0; i < 20; i++) {
        http_once(rig.port, "POST", "/worker", "", "small", &r);
        assert_string_equal(r.body, "POST:small");
        http_reply_fini(&r);
    }
    assert_int_equal(atomic_load(&rig.holding), 1); /* the others wait behind it */
    for (int i = 0; i < N_LARGE; i++)
        sem_post(&rig.hold);
    for (int i = 0; i < N_LARGE; i++) {
        http_read(&held[i], &r);
        assert_int_equal(r.status, 200);
        http_reply_fini(&r);
        http_close(&held[i]);
    }
    http_rig_close(&rig);
    sl_free(large);
}

static void stream_keeps_order_and_the_connection(void **state)
{
    struct http_rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
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
    http_rig_close(&rig);
}

static void stream_to_a_client_without_chunks_ends_with_the_connection(void **state)
{
    struct http_rig rig;
    struct http_client c;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
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
    http_rig_close(&rig);
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
    struct http_rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
    connect_slow_reader(&c, rig.port);
    for (int round = 0; round < 2; round++) {
        http_request(&c, "GET", "/bulk", "", NULL);
        http_read(&c, &r);
        assert_true(r.complete);
        assert_int_equal(r.n_body, BULK_BYTES);
        for (size_t i = 0; i < BULK_BYTES; i++)
            if (r.body[i] != http_rig_bulk_byte(i))
                fail_msg("byte %zu is wrong", i);
        http_reply_fini(&r);
        sem_wait(&rig.closed);
        assert_int_equal(atomic_load(&rig.complete), 1);
    }
    http_close(&c);
    http_rig_close(&rig);
}

static void reader_that_takes_nothing_for_the_idle_time_is_cut(void **state)
{
    struct http_rig rig;
    struct http_client c;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.idle_timeout_s = 1});
    connect_slow_reader(&c, rig.port);
    http_request(&c, "GET", "/bulk", "", NULL);
    sem_wait(&rig.closed);
    assert_int_equal(atomic_load(&rig.complete), 0);
    http_close(&c);
    http_rig_close(&rig);
}

static void reader_that_does_not_read_is_cut(void **state)
{
    struct http_rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
    http_connect(&c, rig.port);
    http_request(&c, "GET", "/flood", "", NULL);
    sem_wait(&rig.closed);
    assert_int_equal(atomic_load(&rig.complete), 0);
    http_read(&c, &r);
    assert_false(r.complete);
    http_reply_fini(&r);
    http_close(&c);
    http_rig_close(&rig);
}

static void readers_that_leave_too_much_together_are_cut_and_others_are_not(void **state)
{
    enum { TOTAL = 100000 };
    struct http_rig rig;
    struct http_client slow, good;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.max_unread_bytes = 1 << 30, .max_unread_total_bytes = TOTAL});
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
    http_rig_close(&rig);
}

/* More than sockets hold, and together more than may be unread: one goes, and then there is room. */
static void whole_answers_left_unread_together_are_cut(void **state)
{
    struct http_rig rig;
    struct http_client slow[2];
    struct http_reply r;
    int n_complete = 0;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.max_unread_total_bytes = BULK_BYTES * 3 / 2});
    for (int i = 0; i < 2; i++) {
        http_connect(&slow[i], rig.port);
        http_request(&slow[i], "GET", "/large", "", NULL);
    }
    for (uint64_t end = sl_now_ms() + LONG_MS; !http_rig_told(&rig, "sluice_http_slow_readers_cut_total 1\n");
         usleep(10000))
        assert_true(sl_now_ms() < end);
    for (int i = 0; i < 2; i++) {
        http_read(&slow[i], &r);
        n_complete += r.complete;
        http_reply_fini(&r);
        http_close(&slow[i]);
    }
    assert_int_equal(n_complete, 1);
    http_rig_close(&rig);
}

static void many_connections_at_once_are_all_answered(void **state)
{
    enum { N = 256 }; /* the library's own epoll thread stalls at 128 and at 256 */
    static struct http_client c[N];
    struct http_rig rig;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
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
    http_rig_close(&rig);
}

/* While the http thread is busy, frames for many streams and a request of another client come to wait for it. */
static void client_does_not_wait_for_a_frame_of_every_stream(void **state)
{
    static struct http_client many[N_MANY];
    struct http_client busy, other;
    struct http_reply r;
    struct http_rig rig;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.max_waiting = N_MANY});
    http_connect(&other, rig.port);
    http_connect(&busy, rig.port);
    for (size_t i = 0; i < N_MANY; i++) {
        http_connect(&many[i], rig.port);
        http_request(&many[i], "GET", "/many", "", NULL);
    }
    for (uint64_t end = sl_now_ms() + LONG_MS; atomic_load(&rig.n_many) < N_MANY; sched_yield())
        assert_true(sl_now_ms() < end);
    http_request(&busy, "GET", "/hold-here", "", NULL);
    http_rig_wait_holding(&rig, 1);
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
    http_rig_close(&rig);
}

static void close_ends_what_is_open(void **state)
{
    struct http_rig rig;
    struct http_client c, idle;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
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
        cmocka_unit_test(full_worker_queue_is_429),
        cmocka_unit_test(large_body_holds_up_no_small_one),
        cmocka_unit_test(stream_keeps_order_and_the_connection),
        cmocka_unit_test(stream_to_a_client_without_chunks_ends_with_the_connection),
        cmocka_unit_test(slow_reader_gets_every_byte),
        cmocka_unit_test(reader_that_takes_nothing_for_the_idle_time_is_cut),
        cmocka_unit_test(reader_that_does_not_read_is_cut),
        cmocka_unit_test(readers_that_leave_too_much_together_are_cut_and_others_are_not),
        cmocka_unit_test(whole_answers_left_unread_together_are_cut),
        cmocka_unit_test(many_connections_at_once_are_all_answered),
        cmocka_unit_test(client_does_not_wait_for_a_frame_of_every_stream),
        cmocka_unit_test(close_ends_what_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
