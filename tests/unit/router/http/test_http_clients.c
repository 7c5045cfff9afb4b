/* Clients that leave, wait, or never come to an end: nothing of theirs stays, and nobody else is kept out. No test waits
 * for a time; reads give up after seconds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "router/http/http_call.h"
#include "tests/unit/router/http/http_rig.h"

static void connection_over_the_limit_is_503(void **state)
{
    struct http_rig rig;
    struct http_client a, b;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.max_connections = 1});
    http_rig_hold_place(&rig, &a);
    http_connect(&b, rig.port);
    http_request(&b, "GET", "/here", "", NULL);
    http_read(&b, &r);
    assert_int_equal(r.status, 503);
    assert_non_null(http_reply_header(&r, "Retry-After"));
    http_reply_fini(&r);
    http_close(&a);
    http_close(&b);
    http_rig_close(&rig);
}

/* The server stops accepting at its limit and those that it tells about it; a place that comes free is taken. */
static void connection_past_all_limits_waits_for_room(void **state)
{
    enum { MOST = 1 + 64 };
    static struct http_client idle[MOST];
    struct http_client last;
    struct http_reply r;
    struct http_rig rig;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.max_connections = 1});
    http_rig_hold_place(&rig, &idle[0]);
    for (int i = 1; i < MOST; i++)
        http_connect(&idle[i], rig.port);
    http_rig_wait_told(&rig, "sluice_http_connections 65\n");
    http_connect(&last, rig.port);
    http_request(&last, "GET", "/here", "", NULL);
    http_close(&idle[1]);
    http_read(&last, &r);
    assert_int_equal(r.status, 503);
    http_reply_fini(&r);
    http_close(&last);
    http_close(&idle[0]);
    for (int i = 2; i < MOST; i++)
        http_close(&idle[i]);
    http_rig_close(&rig);
}

/* Asks on connections of its own until one is served. */
static void ask_until_served(struct http_rig *rig)
{
    struct http_reply r;
    for (uint64_t end = sl_now_ms() + LONG_MS;; usleep(10000)) {
        http_once(rig->port, "GET", "/here", "", NULL, &r);
        bool served = r.status == 200;
        http_reply_fini(&r);
        if (served)
            return;
        assert_true(sl_now_ms() < end);
    }
}

/* Whoever says nothing, or never ends what it says, keeps nobody out, whether it is over the limit or not. */
static void connections_that_wait_for_their_client_make_room(void **state)
{
    enum { MOST = 2 + 64 };
    static const char *const said[] = {"",
                                       "POST /worker HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nhalf"};
    static struct http_client waits[MOST];
    struct http_client working;
    struct http_reply r;
    (void)state;
    for (size_t k = 0; k < SL_COUNTOF(said); k++) {
        struct http_rig rig;
        http_rig_open(&rig, &(struct sl_http_conf){
                                .max_connections = 3, .receive_timeout_s = 3600, .idle_timeout_s = 3600});
        http_rig_hold_place(&rig, &working);
        for (int i = 0; i < MOST; i++) {
            http_connect(&waits[i], rig.port);
            http_send(&waits[i], said[k], strlen(said[k]));
        }
        ask_until_served(&rig);
        http_read(&waits[0], &r); /* the first of them had to go */
        assert_int_equal(r.status, 0);
        http_reply_fini(&r);
        assert_int_equal(sl_http_server_open_calls(rig.server) > 0, true); /* and not who is being answered */
        http_close(&working);
        for (int i = 0; i < MOST; i++)
            http_close(&waits[i]);
        ask_until_served(&rig);
        http_rig_close(&rig);
    }
}

static void readers_that_take_nothing_make_room(void **state)
{
    static const char *const asked[] = {
        "GET /large HTTP/1.1\r\nHost: x\r\n\r\n", "GET /bulk HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /bulk HTTP/1.0\r\n\r\n" /* by way of the library, as over TLS */};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(asked); i++) {
        struct http_client slow;
        struct http_reply r;
        struct http_rig rig;
        http_rig_open(&rig, &(struct sl_http_conf){
                                .max_connections = 1, .receive_timeout_s = 3600, .idle_timeout_s = 3600});
        http_connect(&slow, rig.port);
        http_send(&slow, asked[i], strlen(asked[i]));
        http_rig_wait_told(&rig, "sluice_http_connections 1\n");
        ask_until_served(&rig);
        http_read(&slow, &r);
        assert_false(r.complete);
        http_reply_fini(&r);
        http_close(&slow);
        http_rig_close(&rig);
    }
}

static void client_that_leaves_is_noticed_while_nothing_is_sent(void **state)
{
    struct http_rig rig;
    struct http_client c;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){0});
    http_connect(&c, rig.port);
    http_request(&c, "GET", "/silent", "", NULL);
    http_close(&c);
    sem_wait(&rig.closed);
    assert_int_equal(atomic_load(&rig.complete), 0);
    http_connect(&c, rig.port); /* the same while a worker is at it: dealt with when the worker is done */
    http_request(&c, "GET", "/hold", "", NULL);
    http_rig_wait_holding(&rig, 1);
    http_close(&c);
    sem_post(&rig.hold);
    assert_true(sl_http_server_wait_idle(rig.server, 60000));
    http_rig_close(&rig);
}

/* The library closes but keeps a connection whose stream it ended by itself, until it looks at it again: long, when an
 * older one that does nothing stands before it. And it does not see the end behind what it read in part. */
static void connection_of_a_client_that_left_goes_though_others_idle(void **state)
{
    static const struct {
        const char *says, *until; /* leaves once it has read that; NULL: at once, "": once the server ends */
    } cases[] = {
        {"GET /begun HTTP/1.1\r\nHost: x\r\n\r\n", "data: 0"},
        {"GET /stream HTTP/1.0\r\n\r\n", ""},
        {"GET /begun HTTP/1.0\r\n\r\n", "data: 0"},
        {"POST /worker HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nhalf", NULL},
        {"GET /here HTTP/1.1\r\nHost", NULL},
        {"", NULL},
        {"GET /here HTTP/1.1\r\nHost: x\r\n\r\nGET /here HTTP/1.1\r\nHost", NULL},
        {"GET /here HTTP/1.1\r\nHost: x\r\n\r\n", NULL},
    };
    static struct http_client idle[SL_HTTP_LIBRARIES];
    static char flood[100000];
    struct http_rig rig;
    struct http_reply r;
    char none[64];
    (void)state;
    memset(flood, 'x', sizeof flood);
    http_rig_open(&rig, &(struct sl_http_conf){.idle_timeout_s = 3600, .receive_timeout_s = 3600});
    for (size_t i = 0; i < SL_HTTP_LIBRARIES; i++)
        http_connect(&idle[i], rig.port);
    snprintf(none, sizeof none, "sluice_http_connections %d\n", SL_HTTP_LIBRARIES);
    http_rig_wait_told(&rig, none);
    for (size_t i = 0; i <= SL_COUNTOF(cases); i++) {
        struct http_client leaves;
        http_connect(&leaves, rig.port);
        if (i < SL_COUNTOF(cases)) {
            http_send(&leaves, cases[i].says, strlen(cases[i].says));
            if (cases[i].until)
                assert_int_equal(http_wait_for(&leaves, *cases[i].until ? cases[i].until : "\1"),
                                 !!*cases[i].until);
        } else { /* a chunk's size that is longer than the library's buffer, which reads no more then */
            static const char head[] =
                "POST /worker HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;";
            http_send(&leaves, head, sizeof head - 1);
            http_send(&leaves, flood, sizeof flood);
        }
        http_close(&leaves);
        http_once(rig.port, "GET", "/here", "", NULL, &r); /* accepted after it */
        http_reply_fini(&r);
        http_rig_wait_told(&rig, none);
    }
    for (size_t i = 0; i < SL_HTTP_LIBRARIES; i++)
        http_close(&idle[i]);
    http_rig_close(&rig);
}

/* A client that ends its side at once has the answer that is there at once. */
static void half_closed_client_has_what_is_known(void **state)
{
    struct http_rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    http_rig_open(&rig, &(struct sl_http_conf){.idle_timeout_s = 3600, .receive_timeout_s = 3600});
    http_connect(&c, rig.port);
    http_request(&c, "GET", "/here", "", NULL);
    assert_int_equal(shutdown(c.fd, SHUT_WR), 0);
    http_read(&c, &r);
    assert_int_equal(r.status, 200);
    assert_true(r.complete);
    http_reply_fini(&r);
    http_rig_wait_told(&rig, "sluice_http_connections 0\n");
    http_close(&c);
    http_rig_close(&rig);
}

static uint64_t process_cpu_ms(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* The library wants to be run again at once for it, and never comes further. */
static void request_the_library_cannot_go_on_with_costs_no_processor(void **state)
{
    static const char head[] = "POST /worker HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;";
    static char flood[40000];
    enum { WATCHED_MS = 1000 };
    struct http_rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    memset(flood, 'x', sizeof flood);
    http_rig_open(&rig, &(struct sl_http_conf){.idle_timeout_s = 3600, .receive_timeout_s = 3600});
    http_connect(&c, rig.port);
    http_send(&c, head, sizeof head - 1);
    http_send(&c, flood, sizeof flood);
    http_once(rig.port, "GET", "/here", "", NULL, &r);
    assert_int_equal(r.status, 200);
    http_reply_fini(&r);
    uint64_t before = process_cpu_ms();
    usleep(WATCHED_MS * 1000);
    assert_in_range(process_cpu_ms() - before, 0, WATCHED_MS / 4);
    http_close(&c);
    http_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connection_over_the_limit_is_503),
        cmocka_unit_test(connection_past_all_limits_waits_for_room),
        cmocka_unit_test(connections_that_wait_for_their_client_make_room),
        cmocka_unit_test(readers_that_take_nothing_make_room),
        cmocka_unit_test(client_that_leaves_is_noticed_while_nothing_is_sent),
        cmocka_unit_test(connection_of_a_client_that_left_goes_though_others_idle),
        cmocka_unit_test(half_closed_client_has_what_is_known),
        cmocka_unit_test(request_the_library_cannot_go_on_with_costs_no_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
