/* Control connections that are lost, that nng gives up or holds on to, and their end. */
#include <dlfcn.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <nng/protocol/reqrep0/req.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"
#include "tests/unit/wire/wire_pair.h"

static void client_reconnects_when_its_server_comes_back(void **state)
{
    (void)state;
    struct pair p;
    char url[64];
    own_url(url);
    pair_open_at(&p, url, 16, 4, 4);
    sl_wire_server_close(p.server);
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_call(p.client, &e, 1, LONG_MS), SL_OK);
    assert_int_equal(sl_wire_server_open(url, NULL, 4, p.requests, 0, &p.server, NULL), SL_OK);
    reply_code(take(p.requests), 0);
    struct sl_wire_in *in = take(p.answers);
    assert_int_equal(in->err, SL_OK);
    sl_wire_in_free(in);
    pair_close(&p);
}

static struct sl_wire_in *ask(nng_socket s, struct sl_queue *requests)
{
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    nng_msg *m;
    assert_int_equal(sl_nng_pack(&e, &m), SL_OK);
    assert_int_equal(nng_sendmsg(s, m, 0), 0);
    return take(requests);
}

/* nng 1.5.2 itself ends a dialer whose connection is reset in its first bytes; here the test does. */
static void dialer_that_gave_up_is_followed_by_another(void **state)
{
    (void)state;
    struct sl_queue *requests = sl_queue_new(4);
    struct sl_wire_server *server;
    struct sl_dial *dial;
    nng_socket s;
    nng_msg *m;
    assert_int_equal(sl_wire_server_open(ANY, NULL, 2, requests, 0, &server, NULL), SL_OK);
    assert_int_equal(nng_req0_open(&s), 0);
    assert_int_equal(sl_dial_open(s, sl_wire_server_url(server), NULL, &dial, NULL), SL_OK);
    for (int life = 0; life < 2; life++) {
        reply_code(ask(s, requests), 7);
        assert_int_equal(nng_recvmsg(s, &m, 0), 0);
        nng_dialer d = nng_pipe_dialer(nng_msg_get_pipe(m));
        nng_msg_free(m);
        if (life == 0)
            assert_int_equal(nng_dialer_close(d), 0);
    }
    sl_dial_close(dial, NULL, NULL);
    sl_wire_server_close(server);
    sl_queue_free(requests);
}

static uint32_t next_dialer_id(nng_socket s)
{
    nng_dialer d;
    assert_int_equal(nng_dialer_create(&d, s, "tcp://127.0.0.1:1"), 0);
    uint32_t id = (uint32_t)nng_dialer_id(d);
    assert_int_equal(nng_dialer_close(d), 0);
    return id;
}

/* What the program calls of nng, on its way: while `soon`, whoever would sleep long wakes soon, and is counted. */
static atomic_bool soon;
static atomic_uint n_woken_soon;

void nng_sleep_aio(nng_duration ms, nng_aio *aio)
{
    void (*next)(nng_duration, nng_aio *) =
        (void (*)(nng_duration, nng_aio *))dlsym(RTLD_NEXT, "nng_sleep_aio");
    bool woken = ms >= 1000 && atomic_load(&soon);
    atomic_fetch_add(&n_woken_soon, woken);
    next(woken ? 5 : ms, aio);
}

/* A dialer whose peer is away dials on: closing it as it does may never return. */
static void dialer_of_a_peer_that_is_away_is_left_alone(void **state)
{
    (void)state;
    enum { LOOKS = 50 }; /* two are enough */
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* has the port, but does not listen */
    assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ntohs(a.sin_port));
    struct sl_dial *dial;
    nng_socket s;
    assert_int_equal(nng_req0_open(&s), 0);
    uint32_t before = next_dialer_id(s);
    atomic_store(&soon, true);
    assert_int_equal(sl_dial_open(s, url, NULL, &dial, NULL), SL_OK);
    while (atomic_load(&n_woken_soon) < LOOKS)
        usleep(1000);
    atomic_store(&soon, false);
    assert_int_equal(next_dialer_id(s), before + 2);
    sl_dial_close(dial, NULL, NULL);
    close(fd);
}

/* Ends this process's connections to and at that address; how many. */
static int cut(const char *url)
{
    int port = (int)strtol(strrchr(url, ':') + 1, NULL, 10), n = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in here, there;
        socklen_t h = sizeof here, t = sizeof there;
        if (getsockname(fd, (struct sockaddr *)&here, &h) == 0 &&
            getpeername(fd, (struct sockaddr *)&there, &t) == 0 && here.sin_family == AF_INET &&
            (ntohs(here.sin_port) == port || ntohs(there.sin_port) == port)) {
            shutdown(fd, SHUT_RDWR);
            n++;
        }
    }
    return n;
}

static void hold_reaper(nng_pipe p, nng_pipe_ev ev, void *arg)
{
    (void)p;
    (void)ev;
    sem_t *s = arg;
    sem_post(&s[0]);
    while (sem_wait(&s[1]) != 0)
        ;
}

/* nng's one thread that frees connections stands still, as it may for ever in nng 1.5.2; here the test holds it. */
struct held {
    sem_t sem[2]; /* the thread is held, it may go on */
    nng_socket a, b;
};

static void hold(struct held *h)
{
    nng_msg *m;
    sem_init(&h->sem[0], 0, 0);
    sem_init(&h->sem[1], 0, 0);
    assert_int_equal(nng_pair0_open(&h->a), 0);
    assert_int_equal(nng_pair0_open(&h->b), 0);
    assert_int_equal(nng_pipe_notify(h->a, NNG_PIPE_EV_REM_POST, hold_reaper, h->sem), 0);
    assert_int_equal(nng_listen(h->a, "inproc://held", NULL, 0), 0);
    assert_int_equal(nng_dial(h->b, "inproc://held", NULL, 0), 0);
    assert_int_equal(nng_msg_alloc(&m, 0), 0);
    assert_int_equal(nng_sendmsg(h->b, m, 0), 0);
    assert_int_equal(nng_recvmsg(h->a, &m, 0), 0);
    assert_int_equal(nng_pipe_close(nng_msg_get_pipe(m)), 0);
    nng_msg_free(m);
    assert_int_equal(sem_wait(&h->sem[0]), 0);
}

static void let_go(struct held *h)
{
    assert_int_equal(nng_pipe_notify(h->a, NNG_PIPE_EV_REM_POST, NULL, NULL), 0); /* no second time */
    sem_post(&h->sem[1]);
    sl_nng_close(h->b);
    sl_nng_close(h->a);
}

/* nng dials again once it has freed a connection. When it never does, whoever waits for an answer, or to be rid of an
 * event, gets there all the same, also when nothing else is sent. */
static void connection_that_nng_never_frees_is_replaced(void **state)
{
    (void)state;
    struct held h;
    struct pair p;
    struct sl_queue *events = sl_queue_new(64);
    struct sl_wire_pull *pull;
    struct sl_wire_push *push;
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    pair_open(&p, 16, 2, 4);
    assert_int_equal(sl_wire_pull_open(ANY, NULL, events, 0, &pull, NULL), SL_OK);
    assert_int_equal(sl_wire_push_open(sl_wire_pull_url(pull), NULL, 64, &push, NULL), SL_OK);
    for (int life = 0; life < 2; life++) {
        bool answered = false, heard = false;
        assert_int_equal(sl_wire_call(p.client, &e, 1, LONG_MS), SL_OK);
        for (int i = 0; i < 2; i++) /* the first goes to the connection that was, and with it */
            assert_int_equal(sl_wire_push_send(push, &e), SL_OK);
        while (!answered || !heard) {
            struct sl_wire_in *in;
            while ((in = sl_queue_pop(p.requests)))
                reply_code(in, 7);
            while ((in = sl_queue_pop(events))) {
                heard = true;
                sl_wire_in_free(in);
            }
            if (!sl_queue_wait(p.answers, 10))
                continue;
            in = sl_queue_pop(p.answers);
            assert_int_equal(in->err, SL_OK);
            answered = true;
            sl_wire_in_free(in);
        }
        if (life == 0) {
            hold(&h);
            assert_true(cut(sl_wire_server_url(p.server)) > 0);
            assert_true(cut(sl_wire_pull_url(pull)) > 0);
        }
    }
    let_go(&h);
    sl_wire_push_close(push);
    pair_close(&p);
    sl_wire_pull_close(pull);
    drain(events);
    sl_queue_free(events);
}

/* While nng does not free what is closed nobody waits for it each time, and nothing that it may still call into is
 * freed before. */
static void closing_waits_for_no_other(void **state)
{
    (void)state;
    enum { CLIENTS = 20 };
    struct held h;
    struct pair p;
    struct sl_wire_client *clients[CLIENTS];
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    pair_open(&p, 64, 2, 4);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(
            sl_wire_client_open(sl_wire_server_url(p.server), NULL, 2, 0, p.answers, &clients[i], NULL),
            SL_OK);
        assert_int_equal(sl_wire_call(clients[i], &e, 1, LONG_MS), SL_OK);
        reply_code(take(p.requests), 7);
        sl_wire_in_free(take(p.answers));
    }
    while (sl_nng_n_closing() > 0) /* those of other tests */
        usleep(1000);
    hold(&h);
    uint64_t start_ms = sl_now_ms();
    for (int i = 0; i < CLIENTS; i++)
        sl_wire_client_close(clients[i]);
    assert_true(sl_now_ms() - start_ms < CLIENTS * 1000); /* 2 s each, where one waits as long as it takes */
    assert_int_equal(sl_nng_n_closing(), CLIENTS);
    let_go(&h);
    while (sl_nng_n_closing() > 0)
        usleep(1000);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* first those that need nng's thread, which may stand still after the others */
        cmocka_unit_test(closing_waits_for_no_other),
        cmocka_unit_test(dialer_that_gave_up_is_followed_by_another),
        cmocka_unit_test(dialer_of_a_peer_that_is_away_is_left_alone),
        cmocka_unit_test(connection_that_nng_never_frees_is_replaced),
        cmocka_unit_test(client_reconnects_when_its_server_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
