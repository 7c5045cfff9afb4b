/* The sockets of the control plane on loopback: answers, failures, order, back-pressure. */
#include <dlfcn.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"
#include "tests/unit/wire/wire_pair.h"

static void call_answered_brings_the_reply_with_its_tag(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 16, 4, 4);
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 9);
    assert_int_equal(sl_wire_call(p.client, &e, 77, LONG_MS), SL_OK);
    struct sl_wire_in *in = take(p.requests);
    assert_int_equal(in->kind, SL_WIRE_REQUEST);
    assert_int_equal(in->tag, 5);
    assert_int_equal(in->msg->cancel->attempt, 9);
    reply_code(in, 42);
    in = take(p.answers);
    assert_int_equal(in->kind, SL_WIRE_ANSWER);
    assert_int_equal(in->err, SL_OK);
    assert_int_equal(in->tag, 77);
    assert_int_equal(in->msg->command_reply->code, 42);
    sl_wire_in_free(in);
    pair_close(&p);
}

static void calls_beyond_the_slots_wait_and_beyond_the_line_are_refused(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 64, 2, 3);
    Sluice__Cancel c;
    for (uint32_t i = 0; i < 5; i++) {
        Sluice__Envelope e = make_cancel(&c, i);
        assert_int_equal(sl_wire_call(p.client, &e, i, LONG_MS), SL_OK);
    }
    Sluice__Envelope e = make_cancel(&c, 5);
    assert_int_equal(sl_wire_call(p.client, &e, 5, LONG_MS), SL_EAGAIN);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 5; i++)
        reply_code(take(p.requests), 0);
    for (uint32_t i = 0; i < 5; i++) {
        struct sl_wire_in *in = take(p.answers);
        assert_int_equal(in->err, SL_OK);
        seen |= 1u << in->tag;
        sl_wire_in_free(in);
    }
    assert_int_equal(seen, 31);
    pair_close(&p);
}

static void calls_answered_out_of_order_find_their_tags(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 64, 8, 0);
    Sluice__Cancel c;
    struct sl_wire_in *held[8];
    for (uint32_t i = 0; i < 8; i++) {
        Sluice__Envelope e = make_cancel(&c, 100 + i);
        assert_int_equal(sl_wire_call(p.client, &e, i, LONG_MS), SL_OK);
    }
    for (uint32_t i = 0; i < 8; i++)
        held[i] = take(p.requests);
    for (uint32_t i = 8; i-- > 0;)
        reply_code(held[i], held[i]->msg->cancel->attempt);
    for (uint32_t i = 0; i < 8; i++) {
        struct sl_wire_in *in = take(p.answers);
        assert_int_equal(in->msg->command_reply->code, 100 + in->tag);
        sl_wire_in_free(in);
    }
    pair_close(&p);
}

static void call_to_nobody_ends_with_epeer(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(8);
    struct sl_wire_client *client;
    struct sl_why why = {{0}};
    assert_int_equal(sl_wire_client_open("tcp://127.0.0.1:1", NULL, 1, 2, q, &client, &why), SL_OK);
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_call(client, &e, 1, 50), SL_OK);
    assert_int_equal(sl_wire_call(client, &e, 2, 50), SL_OK); /* in line: ends too */
    for (int i = 0; i < 2; i++) {
        struct sl_wire_in *in = take(q);
        assert_int_equal(in->err, SL_EPEER);
        assert_null(in->msg);
        sl_wire_in_free(in);
    }
    sl_wire_client_close(client);
    assert_null(sl_queue_pop(q));
    sl_queue_free(q);
}

static void client_closed_with_calls_in_flight_ends_each(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 16, 1, 2);
    Sluice__Cancel c;
    for (uint32_t i = 0; i < 3; i++) {
        Sluice__Envelope e = make_cancel(&c, i);
        assert_int_equal(sl_wire_call(p.client, &e, i, LONG_MS), SL_OK);
    }
    struct sl_wire_in *held = take(p.requests);
    sl_wire_client_close(p.client);
    p.client = NULL;
    for (int i = 0; i < 3; i++) {
        struct sl_wire_in *in = sl_queue_pop(p.answers);
        assert_non_null(in);
        assert_int_equal(in->err, SL_EPEER);
        sl_wire_in_free(in);
    }
    reply_code(held, 0); /* to a peer that has left */
    pair_close(&p);
}

static void answers_with_the_queue_full_are_delivered_later(void **state)
{
    (void)state;
    struct sl_queue *requests = sl_queue_new(16), *answers = sl_queue_new(1);
    struct sl_wire_server *server;
    struct sl_wire_client *client;
    assert_int_equal(sl_wire_server_open(ANY, NULL, 8, requests, 0, &server, NULL), SL_OK);
    assert_int_equal(sl_wire_client_open(sl_wire_server_url(server), NULL, 4, 0, answers, &client, NULL),
                     SL_OK);
    Sluice__Cancel c;
    for (uint32_t i = 0; i < 4; i++) {
        Sluice__Envelope e = make_cancel(&c, i);
        assert_int_equal(sl_wire_call(client, &e, i, LONG_MS), SL_OK);
    }
    for (uint32_t i = 0; i < 4; i++)
        reply_code(take(requests), 0);
    for (uint32_t i = 0; i < 4; i++) {
        struct sl_wire_in *in = take(answers);
        assert_int_equal(in->err, SL_OK);
        sl_wire_in_free(in);
    }
    sl_wire_client_close(client);
    sl_wire_server_close(server);
    sl_queue_free(requests);
    sl_queue_free(answers);
}

static void request_with_the_queue_full_is_refused_at_once(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 1, 4, 0);
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_call(p.client, &e, 1, LONG_MS), SL_OK);
    assert_true(sl_queue_wait(p.requests, LONG_MS));
    assert_int_equal(sl_wire_call(p.client, &e, 2, LONG_MS), SL_OK);
    struct sl_wire_in *in = take(p.answers);
    assert_int_equal(in->tag, 2);
    assert_int_equal(in->msg->command_reply->code, SL_EAGAIN);
    sl_wire_in_free(in);
    pair_close(&p);
}

static void request_dropped_is_answered_with_ebug(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 4, 4, 0);
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_call(p.client, &e, 1, LONG_MS), SL_OK);
    sl_wire_in_free(take(p.requests));
    struct sl_wire_in *in = take(p.answers);
    assert_int_equal(in->msg->command_reply->code, SL_EBUG);
    sl_wire_in_free(in);
    pair_close(&p);
}

static void request_of_junk_is_answered_in_words(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(4);
    struct sl_wire_server *server;
    assert_int_equal(sl_wire_server_open(ANY, NULL, 2, q, 0, &server, NULL), SL_OK);
    nng_socket s;
    assert_int_equal(nng_req0_open(&s), 0);
    assert_int_equal(nng_dial(s, sl_wire_server_url(server), NULL, 0), 0);
    const char *junk[] = {"", "hello", "\x08\x02"};
    for (size_t i = 0; i < SL_COUNTOF(junk); i++) {
        nng_msg *m;
        assert_int_equal(nng_msg_alloc(&m, 0), 0);
        assert_int_equal(nng_msg_append(m, junk[i], strlen(junk[i])), 0);
        assert_int_equal(nng_sendmsg(s, m, 0), 0);
        assert_int_equal(nng_recvmsg(s, &m, 0), 0);
        Sluice__Envelope *e;
        assert_int_equal(sl_wire_unpack(nng_msg_body(m), nng_msg_len(m), &e, NULL), SL_OK);
        assert_int_equal(e->command_reply->code, i == 2 ? SL_EMISMATCH : SL_EPROTO);
        assert_true(strlen(e->command_reply->why) > 10);
        sl_wire_free(e);
        nng_msg_free(m);
    }
    sl_nng_close(s);
    sl_wire_server_close(server);
    sl_queue_free(q);
}

static void request_held_over_the_close_of_its_server_can_be_answered(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 4, 4, 0);
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_call(p.client, &e, 1, LONG_MS), SL_OK);
    assert_int_equal(sl_wire_call(p.client, &e, 2, LONG_MS), SL_OK);
    struct sl_wire_in *a = take(p.requests), *b = take(p.requests);
    sl_wire_server_close(p.server);
    p.server = NULL;
    reply_code(a, 0);
    sl_wire_in_free(b);
    pair_close(&p);
}

/* What the program calls of nng, looked at on the way. */
static atomic_bool hold_receiving, inside, closed_inside;
static sem_t is_inside;

void nng_ctx_recv(nng_ctx ctx, nng_aio *aio)
{
    void (*next)(nng_ctx, nng_aio *) = (void (*)(nng_ctx, nng_aio *))dlsym(RTLD_NEXT, "nng_ctx_recv");
    if (atomic_exchange(&hold_receiving, false)) {
        atomic_store(&inside, true);
        sem_post(&is_inside);
        for (int i = 0; i < 50 && !atomic_load(&closed_inside); i++)
            usleep(1000);
        atomic_store(&inside, false);
    }
    next(ctx, aio);
}

int nng_close(nng_socket s)
{
    int (*next)(nng_socket) = (int (*)(nng_socket))dlsym(RTLD_NEXT, "nng_close");
    if (atomic_load(&inside))
        atomic_store(&closed_inside, true);
    return next(s);
}

/* nng 1.5.2 would free what that call still uses. */
static void server_is_not_closed_while_a_context_is_handed_to_nng(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 4, 4, 0);
    sem_init(&is_inside, 0, 0);
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_call(p.client, &e, 1, LONG_MS), SL_OK);
    struct sl_wire_in *in = take(p.requests);
    sl_wire_client_close(p.client); /* so that only the server receives */
    p.client = NULL;
    atomic_store(&hold_receiving, true);
    reply_code(in, 0);
    assert_int_equal(sem_wait(&is_inside), 0);
    sl_wire_server_close(p.server);
    p.server = NULL;
    assert_false(atomic_load(&closed_inside));
    sem_destroy(&is_inside);
    pair_close(&p);
}

static void call_wait_returns_the_answer_or_says_who_is_missing(void **state)
{
    (void)state;
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1), *answer = NULL;
    struct sl_why why = {{0}};
    uint64_t start = sl_now_ms();
    assert_int_equal(sl_wire_call_wait("tcp://127.0.0.1:1", NULL, &e, LONG_MS, &answer, &why), SL_EPEER);
    assert_true(sl_now_ms() - start < LONG_MS); /* refused connections do not wait for the end of the time */
    assert_non_null(strstr(why.text, "127.0.0.1:1"));
    struct sl_queue *q = sl_queue_new(1);
    struct sl_wire_server *server;
    assert_int_equal(sl_wire_server_open(ANY, NULL, 2, q, 0, &server, NULL), SL_OK);
    assert_int_equal(sl_wire_call_wait(sl_wire_server_url(server), NULL, &e, 50, &answer, &why), SL_EPEER);
    drain(q);
    sl_wire_server_close(server);
    sl_queue_free(q);
    assert_int_equal(sl_wire_call_wait("nonsense", NULL, &e, 50, &answer, &why), SL_ECONFIG);
}

static void url_that_is_taken_or_wrong_is_refused_in_words(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(1);
    struct sl_wire_server *a, *b = NULL;
    struct sl_why why = {{0}};
    assert_int_equal(sl_wire_server_open(ANY, NULL, 1, q, 0, &a, &why), SL_OK);
    assert_int_equal(sl_wire_server_open(sl_wire_server_url(a), NULL, 1, q, 0, &b, &why), SL_EIO);
    assert_non_null(strstr(why.text, sl_wire_server_url(a)));
    assert_int_equal(sl_wire_server_open("http//x", NULL, 1, q, 0, &b, &why), SL_ECONFIG);
    assert_null(b);
    sl_wire_server_close(a);
    sl_queue_free(q);
}

static Sluice__Envelope make_batch(Sluice__EventBatch *b, uint64_t seq)
{
    sluice__event_batch__init(b);
    b->node = (char *)"d0";
    b->seq = seq;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_EVENTS;
    e.events = b;
    return e;
}

/* A client that asks and reads no answer, until the server takes no more from it or it has asked for far more than any
 * kernel keeps. */
static int ask_and_never_read(const char *url)
{
    enum { REQUESTS = 1 << 20, WAIT_MS = 300, SMALL = 4096 };
    static const unsigned char hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    const unsigned char request[] = {0, 0, 0, 0, 0, 0, 0, 8, 0x80, 0, 0, 1, 'j', 'u', 'n', 'k'};
    const int small = SMALL;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    for (size_t n = 0, at = 0; n < REQUESTS && poll(&p, 1, WAIT_MS) == 1;) {
        ssize_t sent = send(fd, request + at, sizeof request - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        assert_true(sent > 0);
        at = (at + (size_t)sent) % sizeof request;
        n += at == 0;
    }
    return fd;
}

static void client_that_reads_no_answers_keeps_nobody_else_waiting(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 1, 1, 1);
    int fd = ask_and_never_read(sl_wire_server_url(p.server));
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_call(p.client, &e, 7, LONG_MS), SL_OK);
    reply_code(take(p.requests), 42);
    struct sl_wire_in *in = take(p.answers);
    assert_int_equal(in->err, SL_OK);
    assert_int_equal(in->msg->command_reply->code, 42);
    sl_wire_in_free(in);
    close(fd);
    pair_close(&p);
}

static void events_arrive_in_order_through_a_small_queue(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(2);
    struct sl_wire_pull *pull;
    struct sl_wire_push *push;
    assert_int_equal(sl_wire_pull_open(ANY, NULL, q, 3, &pull, NULL), SL_OK);
    assert_int_equal(sl_wire_push_open(sl_wire_pull_url(pull), NULL, 256, &push, NULL), SL_OK);
    Sluice__EventBatch b;
    for (uint64_t i = 0; i < 200; i++) {
        Sluice__Envelope e = make_batch(&b, i);
        assert_int_equal(sl_wire_push_send(push, &e), SL_OK);
    }
    for (uint64_t i = 0; i < 200; i++) {
        struct sl_wire_in *in = take(q);
        assert_int_equal(in->kind, SL_WIRE_EVENT);
        assert_int_equal(in->tag, 3);
        assert_int_equal(in->msg->events->seq, i);
        sl_wire_in_free(in);
    }
    sl_wire_push_close(push);
    sl_wire_pull_close(pull);
    sl_queue_free(q);
}

static void push_without_a_peer_is_bounded_and_closes(void **state)
{
    (void)state;
    struct sl_wire_push *push;
    assert_int_equal(sl_wire_push_open("tcp://127.0.0.1:1", NULL, 4, &push, NULL), SL_OK);
    Sluice__EventBatch b;
    enum sl_err err = SL_OK;
    unsigned n = 0;
    for (; n < 100 && err == SL_OK; n++) {
        Sluice__Envelope e = make_batch(&b, n);
        err = sl_wire_push_send(push, &e);
    }
    assert_int_equal(err, SL_EAGAIN);
    assert_true(n <= 8);
    sl_wire_push_close(push);
}

static void large_message_passes(void **state)
{
    (void)state;
    struct pair p;
    pair_open(&p, 4, 1, 0);
    Sluice__Submit submit = SLUICE__SUBMIT__INIT;
    Sluice__Sampling sampling = SLUICE__SAMPLING__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    submit.request_id = (char *)"r";
    submit.sampling = &sampling;
    submit.n_tokens = SL_WIRE_MAX_TOKENS;
    submit.tokens = sl_xalloc(submit.n_tokens * sizeof *submit.tokens);
    for (size_t i = 0; i < submit.n_tokens; i++)
        submit.tokens[i] = (int32_t)i; /* three bytes each: more than nng's default limit of 1 MiB */
    e.body_case = SLUICE__ENVELOPE__BODY_SUBMIT;
    e.submit = &submit;
    assert_int_equal(sl_wire_call(p.client, &e, 1, LONG_MS), SL_OK);
    struct sl_wire_in *in = take(p.requests);
    assert_int_equal(in->msg->submit->n_tokens, SL_WIRE_MAX_TOKENS);
    assert_int_equal(in->msg->submit->tokens[SL_WIRE_MAX_TOKENS - 1], SL_WIRE_MAX_TOKENS - 1);
    reply_code(in, 0);
    sl_wire_in_free(take(p.answers));
    sl_free(submit.tokens);
    pair_close(&p);
}

static void ipc_address_works(void **state)
{
    (void)state;
    char url[64];
    own_url(url);
    struct sl_queue *q = sl_queue_new(4), *answers = sl_queue_new(4);
    struct sl_wire_server *server;
    struct sl_wire_client *client;
    assert_int_equal(sl_wire_server_open(url, NULL, 1, q, 0, &server, NULL), SL_OK);
    assert_int_equal(sl_wire_client_open(url, NULL, 1, 0, answers, &client, NULL), SL_OK);
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_call(client, &e, 1, LONG_MS), SL_OK);
    reply_code(take(q), 3);
    struct sl_wire_in *in = take(answers);
    assert_int_equal(in->msg->command_reply->code, 3);
    sl_wire_in_free(in);
    sl_wire_client_close(client);
    sl_wire_server_close(server);
    sl_queue_free(q);
    sl_queue_free(answers);
}

static const struct sl_secret secret_a = {{1}}, secret_b = {{2}};
static const struct sl_wire_guard guard_none, guard_a = {.secret = &secret_a},
                                              guard_b = {.secret = &secret_b};

/* Whoever does not know the secret is told so, is heard by nobody, and believes no answer. */
static void cluster_secret_is_proven_both_ways(void **state)
{
    (void)state;
    static const struct {
        const struct sl_wire_guard *server, *client;
        enum sl_err client_says;
        const char *server_says; /* NULL = the request is heard */
    } cases[] = {
        {&guard_a, &guard_a, SL_OK, NULL},
        {&guard_none, &guard_none, SL_OK, NULL},
        {&guard_a, &guard_none, SL_OK,
         "proves no cluster secret"}, /* whoever has none can read the refusal */
        {&guard_a, &guard_b, SL_EMISMATCH, NULL},
        {&guard_none, &guard_a, SL_EMISMATCH, NULL},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_queue *requests = sl_queue_new(16), *answers = sl_queue_new(16);
        struct sl_wire_server *server;
        struct sl_wire_client *client;
        Sluice__Cancel c;
        Sluice__Envelope e = make_cancel(&c, 3);
        bool heard = i < 2;
        assert_int_equal(sl_wire_server_open(ANY, cases[i].server, 2, requests, 0, &server, NULL), SL_OK);
        assert_int_equal(
            sl_wire_client_open(sl_wire_server_url(server), cases[i].client, 2, 0, answers, &client, NULL),
            SL_OK);
        assert_int_equal(sl_wire_call(client, &e, 1, LONG_MS), SL_OK);
        if (heard) {
            struct sl_wire_in *in = take(requests);
            assert_int_equal(in->msg->cancel->attempt, 3);
            reply_code(in, 42);
        }
        struct sl_wire_in *in = take(answers);
        assert_int_equal(in->err, cases[i].client_says);
        if (in->err == SL_OK)
            assert_int_equal(in->msg->command_reply->code, heard ? 42 : SL_EMISMATCH);
        if (cases[i].server_says)
            assert_non_null(strstr(in->msg->command_reply->why, cases[i].server_says));
        sl_wire_in_free(in);
        assert_null(sl_queue_pop(requests));
        sl_wire_client_close(client);
        sl_wire_server_close(server);
        sl_queue_free(requests);
        sl_queue_free(answers);
    }
}

static nng_msg *seal_request(Sluice__Envelope *e, uint64_t number, struct sl_seal *seal)
{
    struct sl_stamp stamp = {.from = 1, .to = 2, .number = number};
    nng_msg *m;
    assert_int_equal(sl_nng_pack(e, &m), SL_OK);
    sl_nng_seal(m, &secret_a, SL_SEAL_REQUEST, NULL, &stamp, seal);
    return m;
}

/* Bytes as they stand on the wire: a sealed request, and what a stranger makes of it. */
static void sealed_message_changed_or_of_another_kind_is_refused(void **state)
{
    (void)state;
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 3), *out;
    struct sl_seal seal, got;
    struct sl_why why;
    nng_msg *m = seal_request(&e, 9, &seal);
    assert_int_equal(sl_nng_unpack(m, &secret_a, SL_SEAL_REQUEST, NULL, &got, &out, &why), SL_OK);
    assert_int_equal(out->cancel->attempt, 3);
    assert_memory_equal(&got, &seal, sizeof seal);
    assert_int_equal(sl_seal_stamp(&got).number, 9);
    sl_wire_free(out);
    for (size_t i = 0; i < nng_msg_len(m); i++) {
        ((unsigned char *)nng_msg_body(m))[i] ^= 1;
        assert_int_equal(sl_nng_unpack(m, &secret_a, SL_SEAL_REQUEST, NULL, &got, &out, &why), SL_EMISMATCH);
        ((unsigned char *)nng_msg_body(m))[i] ^= 1;
    }
    assert_int_equal(sl_nng_unpack(m, &secret_a, SL_SEAL_ANSWER, NULL, &got, &out, &why), SL_EMISMATCH);
    assert_int_equal(sl_nng_unpack(m, &secret_a, SL_SEAL_EVENT, NULL, &got, &out, &why), SL_EMISMATCH);
    /* an older release passes over the seal: a field it does not know */
    assert_int_equal(sl_wire_unpack(nng_msg_body(m), nng_msg_len(m), &out, &why), SL_OK);
    assert_int_equal(out->cancel->attempt, 3);
    sl_wire_free(out);
    nng_msg_free(m);
}

/* The answer to one request is none to the same request sent again. */
static void answer_counts_for_its_request_only(void **state)
{
    (void)state;
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 3), *out;
    struct sl_seal first, second, got;
    struct sl_why why;
    struct sl_stamp stamp = {.from = 2, .to = 1, .number = 1};
    nng_msg *m = seal_request(&e, 1, &first), *again = seal_request(&e, 2, &second);
    nng_msg *answer = sl_nng_refusal(SL_EAGAIN, "later");
    sl_nng_seal(answer, &secret_a, SL_SEAL_ANSWER, &first, &stamp, &got);
    assert_int_equal(sl_nng_unpack(answer, &secret_a, SL_SEAL_ANSWER, &second, &got, &out, &why),
                     SL_EMISMATCH);
    assert_int_equal(sl_nng_unpack(answer, &secret_a, SL_SEAL_ANSWER, &first, &got, &out, &why), SL_OK);
    sl_wire_free(out);
    nng_msg_free(m);
    nng_msg_free(again);
    nng_msg_free(answer);
}

static void event_without_the_secret_is_dropped(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(16);
    struct sl_wire_pull *pull;
    struct sl_wire_push *stranger, *friend;
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    assert_int_equal(sl_wire_pull_open(ANY, &guard_a, q, 3, &pull, NULL), SL_OK);
    assert_int_equal(sl_wire_push_open(sl_wire_pull_url(pull), &guard_b, 8, &stranger, NULL), SL_OK);
    assert_int_equal(sl_wire_push_open(sl_wire_pull_url(pull), &guard_a, 8, &friend, NULL), SL_OK);
    assert_int_equal(sl_wire_push_send(stranger, &e), SL_OK);
    e = make_cancel(&c, 2);
    assert_int_equal(sl_wire_push_send(friend, &e), SL_OK);
    struct sl_wire_in *in = take(q);
    assert_int_equal(in->msg->cancel->attempt, 2);
    sl_wire_in_free(in);
    sl_wire_push_close(stranger);
    sl_wire_push_close(friend);
    sl_wire_pull_close(pull);
    assert_null(sl_queue_pop(q));
    sl_queue_free(q);
}

/* Who may open the file may speak: no secret is asked for over ipc. */
static void ipc_needs_no_secret(void **state)
{
    (void)state;
    char url[64];
    struct sl_queue *q = sl_queue_new(4), *answers = sl_queue_new(4);
    struct sl_wire_server *server;
    struct sl_wire_client *client;
    Sluice__Cancel c;
    Sluice__Envelope e = make_cancel(&c, 1);
    own_url(url);
    assert_int_equal(sl_wire_server_open(url, &guard_a, 2, q, 0, &server, NULL), SL_OK);
    assert_int_equal(sl_wire_client_open(url, NULL, 1, 0, answers, &client, NULL), SL_OK);
    assert_int_equal(sl_wire_call(client, &e, 1, LONG_MS), SL_OK);
    reply_code(take(q), 42);
    struct sl_wire_in *in = take(answers);
    assert_int_equal(in->msg->command_reply->code, 42);
    sl_wire_in_free(in);
    sl_wire_client_close(client);
    sl_wire_server_close(server);
    sl_queue_free(q);
    sl_queue_free(answers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_answered_brings_the_reply_with_its_tag),
        cmocka_unit_test(calls_beyond_the_slots_wait_and_beyond_the_line_are_refused),
        cmocka_unit_test(calls_answered_out_of_order_find_their_tags),
        cmocka_unit_test(call_to_nobody_ends_with_epeer),
        cmocka_unit_test(client_closed_with_calls_in_flight_ends_each),
        cmocka_unit_test(answers_with_the_queue_full_are_delivered_later),
        cmocka_unit_test(request_with_the_queue_full_is_refused_at_once),
        cmocka_unit_test(request_dropped_is_answered_with_ebug),
        cmocka_unit_test(request_of_junk_is_answered_in_words),
        cmocka_unit_test(client_that_reads_no_answers_keeps_nobody_else_waiting),
        cmocka_unit_test(request_held_over_the_close_of_its_server_can_be_answered),
        cmocka_unit_test(server_is_not_closed_while_a_context_is_handed_to_nng),
        cmocka_unit_test(call_wait_returns_the_answer_or_says_who_is_missing),
        cmocka_unit_test(url_that_is_taken_or_wrong_is_refused_in_words),
        cmocka_unit_test(events_arrive_in_order_through_a_small_queue),
        cmocka_unit_test(push_without_a_peer_is_bounded_and_closes),
        cmocka_unit_test(large_message_passes),
        cmocka_unit_test(ipc_address_works),
        cmocka_unit_test(cluster_secret_is_proven_both_ways),
        cmocka_unit_test(sealed_message_changed_or_of_another_kind_is_refused),
        cmocka_unit_test(answer_counts_for_its_request_only),
        cmocka_unit_test(event_without_the_secret_is_dropped),
        cmocka_unit_test(ipc_needs_no_secret),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
