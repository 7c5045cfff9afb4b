/* tests/unit/transfer/test_transfer_nccl.c - the same transfers over NCCL, which is the fake of
 * tests/support/fake_nccl on host memory, and what happens when a communicator fails.
 *
 * ctest sets LD_LIBRARY_PATH to the fake's folder; by hand: LD_LIBRARY_PATH=build/release/fake_nccl. */
#include "tests/unit/transfer/xfer_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/transfer/raw_peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define NCCL_TEST(name)                                                                                      \
    static void nccl_##name(void **state)                                                                    \
    {                                                                                                        \
        (void)state;                                                                                         \
        case_##name("nccl");                                                                                 \
    }
/* A thread sanitizer looks at every word of every page, and large pages take no other ways than small ones. */
#ifdef __SANITIZE_THREAD__
#define EACH_LARGE_CASE(X)
#else
#define EACH_LARGE_CASE(X) XFER_EACH_LARGE_CASE(X)
#endif
XFER_EACH_CASE(NCCL_TEST)
EACH_LARGE_CASE(NCCL_TEST)

#define PT      RIG_PAGE_TOKENS
#define N_PAGES 30u /* of XFER_BIG_PAGE: 22 MB, more than the slots hold: at least two groups */

static void slow_transfers_arrive_and_are_given_up(void **state)
{
    (void)state;
    setenv("FAKE_NCCL_FAULT", "delay:0:2", 1);
    case_many_sessions_share_the_link("nccl");
    setenv("FAKE_NCCL_FAULT", "delay:1:2", 1);
    case_sender_aborts_at_every_stage("nccl");
    case_receiver_cancels_at_every_stage("nccl");
    unsetenv("FAKE_NCCL_FAULT");
}

/* A page of 6 MiB, more than a slot has, and odd pages behind it. */
static void a_page_larger_than_a_slot_arrives(void **state)
{
    struct rig_opts o = {.head_dim = 196608, .n_pages = 5};
    struct sl_xfer_key k = rig_key("slot", 1);
    struct xfer_pair t;
    uint32_t p[5], d[5] = {3, 1, 4, 0, 2};
    (void)state;
    pair_open(&t, "nccl", &o, &o);
    rig_iota(p, 5, 0);
    pair_fill(&t, 1, p, 5);
    pair_begin(&t, &k, 5 * PT, d, 0);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, 5 * PT), SL_OK);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
    pair_check(&t, 1, d, 0, 5);
    pair_close(&t);
}

static void begin(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t n)
{
    uint32_t pages[N_PAGES];
    rig_iota(pages, n, 0);
    pair_fill(t, 1, pages, n);
    pair_begin(t, k, n * PT, pages, 0);
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, pages, n * PT), SL_OK);
}

/* Whatever breaks at either rank: both sessions end, what D keeps is right, nothing lands afterwards, and the
 * pair meets again. */
static void a_communicator_that_fails_ends_the_sessions(void **state)
{
    static const struct {
        const char *fault;
        uint32_t n_pages;
        uint32_t wait_ms; /* also how long NCCL may move nothing */
        const char *why;  /* of the rank that breaks; NULL: a slow machine may see another first */
    } cases[] = {
        {"error:0:1", 4, 0, "NCCL said: unhandled system error (run with NCCL_DEBUG=INFO for details)"},
        {"error:1:1", 4, 0, "NCCL said: unhandled system error (run with NCCL_DEBUG=INFO for details)"},
        {"error:0:2", N_PAGES, 0, "NCCL said: unhandled system error (run with NCCL_DEBUG=INFO for details)"},
        {"lost:0:1", 4, 0, NULL},
        {"lost:1:2", N_PAGES, 0, NULL},
        {"stall:0:1", 4, 1000, NULL},
        {"stall:1:1", 4, 1000, NULL},
        {"start_hang:0:0", 4, 1000, NULL},
        {"start_hang:1:0", 4, 1000, NULL},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct rig_opts o = {
            .head_dim = XFER_BIG_PAGE, .n_pages = cases[i].n_pages, .wait_ms = cases[i].wait_ms};
        struct sl_xfer_key k = rig_key("breaks", 1), again = rig_key("again", 1);
        struct xfer_pair t;
        uint32_t pages[N_PAGES];
        rig_iota(pages, N_PAGES, 0);
        setenv("FAKE_NCCL_FAULT", cases[i].fault, 1);
        pair_open(&t, "nccl", &o, &o);
        begin(&t, &k, cases[i].n_pages);
        struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k),
                             r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        bool late = cases[i].wait_ms && s.err == SL_ECANCELED; /* D did not wait long enough for a slow P */
        if ((s.err != SL_EPEER && !late) || r.err != SL_EPEER)
            fail_msg("%s: P ended with %s \"%s\", D with %s \"%s\"", cases[i].fault, sl_err_name(s.err),
                     s.why, sl_err_name(r.err), r.why);
        if (cases[i].why)
            assert_string_equal(cases[i].fault[6] == '0' ? s.why : r.why, cases[i].why);
        pair_check(&t, 1, pages, 0, r.n_tokens / PT);
        rig_clear(&t.d); /* they are D's again */
        unsetenv("FAKE_NCCL_FAULT");
        if (cases[i].wait_ms) { /* too impatient for a slow machine */
            pair_close(&t);
            o.wait_ms = 0;
            pair_open(&t, "nccl", &o, &o);
        }
        begin(&t, &again, 2);
        assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &again).err, SL_OK);
        assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &again).err, SL_OK);
        pair_check(&t, 1, pages, 0, 2);
        pair_close(&t);
    }
}

/* NCCL only knows staging: D has its pages back although ncclCommAbort does not come back. */
static void an_abort_that_hangs_holds_no_page(void **state)
{
    struct rig_opts o = {.head_dim = XFER_BIG_PAGE, .n_pages = N_PAGES};
    struct sl_xfer_key k = rig_key("hangs", 1);
    struct xfer_pair t;
    (void)state;
    setenv("FAKE_NCCL_FAULT", "abort_hang:1:1000000", 1);
    pair_open(&t, "nccl", &o, &o);
    begin(&t, &k, N_PAGES);
    rig_wait_ready(&t.d, &k, PT); /* the communicator is there */
    sl_xfer_close(t.p.x);
    t.p.x = NULL;
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_true(r.err == SL_EPEER || r.err == SL_OK);
    assert_int_equal(sl_xfer_open_sessions(t.d.x), 0);
    unsetenv("FAKE_NCCL_FAULT");
    pair_close(&t);
}

/* Both ways round: who dials is P. */
static void another_transport_is_refused_in_words(void **state)
{
    static const char *const transports[2] = {"nccl", "ucx"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rig_node p, d;
        struct sl_xfer_key k = rig_key("other", 1);
        char why[128];
        rig_open(&p, &(struct rig_opts){.transport = transports[i], .name = "p0"});
        rig_open(&d, &(struct rig_opts){.transport = transports[1 - i], .name = "d0"});
        assert_int_equal(sl_xfer_send_open(p.x, &k, &d.peer, PT, RIG_DEADLINE_MS), SL_OK);
        struct sl_xfer_event s = rig_wait(&p, SL_XFER_SEND_DONE, &k);
        snprintf(why, sizeof why, "transfer_transport differs: %s at d0, %s at p0", transports[1 - i],
                 transports[i]);
        assert_int_equal(s.err, SL_EMISMATCH);
        assert_string_equal(s.why, why);
        rig_close(&p);
        rig_close(&d);
    }
}

/* What a peer may not say of communicators ends its connection, before a handshake and after. */
static void wild_words_of_communicators_end_the_connection(void **state)
{
    enum { HEADER = 24, ID = 0xe1, PAYLOAD, GROUP };
    struct rig_node d;
    (void)state;
    rig_open(&d, &(struct rig_opts){.transport = "nccl", .name = "d0"});
    for (int kind = ID; kind <= GROUP; kind++) {
        for (int greeted = 0; greeted < 2; greeted++) {
            struct raw_peer r;
            unsigned char header[HEADER] = {(unsigned char)kind, 0, 0, 0, 99, 0, 0, 0, 7}, id[127] = {0};
            raw_open(&r, "ucx", "p0", 7);
            snprintf(r.hello.id.transport, sizeof r.hello.id.transport, "nccl");
            if (greeted)
                raw_join(&r, &d);
            else
                raw_connect(&r, &d);
            raw_send_bytes(&r, header, sizeof header, id, sizeof id, true);
            raw_wait_closed(&r);
            raw_close(&r);
        }
    }
    struct rig_node p;
    struct xfer_pair t;
    rig_open(&p, &(struct rig_opts){.transport = "nccl", .name = "p1"});
    t = (struct xfer_pair){p, d};
    pair_transfer(&t, "good", 3);
    pair_close(&t);
}

/* Libraries are loaded once a process, so this one is asked again. */
static int open_one(void)
{
    struct sl_why why = {0};
    struct sl_xfer *x = NULL;
    char page[256] = {0};
    struct sl_xfer_conf c = {.transport = "nccl",
                             .listen = "127.0.0.1:0",
                             .self = {.name = "n", .geometry = {1, 1, 4, 8, SL_BF16}},
                             .pool = page,
                             .page_bytes = sizeof page,
                             .n_pages = 1,
                             .max_sessions = 1,
                             .cpu = -1};
    enum sl_err e = sl_xfer_open(&c, &x, &why);
    printf("%s: %s\n", sl_err_name(e), why.text);
    return 0;
}

static void said_by(const char *environment, const char *words)
{
    char command[256], line[512] = "";
    snprintf(command, sizeof command, "%s /proc/%d/exe open", environment, (int)getpid());
    FILE *f = popen(command, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) && !strstr(line, words))
        ;
    pclose(f);
    if (!strstr(line, words))
        fail_msg("expected \"%s\", was told \"%s\"", words, line);
}

static void an_old_or_missing_library_is_refused_in_words(void **state)
{
    (void)state;
    said_by("FAKE_NCCL_VERSION=2804", "says that it is version 2804; expected NCCL 2, from 2.14");
    said_by("FAKE_NCCL_VERSION=30000", "says that it is version 30000");
}

int main(int argc, char **argv)
{
#define ENTRY(name) cmocka_unit_test(nccl_##name),
    const struct CMUnitTest tests[] = {
        XFER_EACH_CASE(ENTRY) EACH_LARGE_CASE(ENTRY) cmocka_unit_test(slow_transfers_arrive_and_are_given_up),
        cmocka_unit_test(a_page_larger_than_a_slot_arrives),
        cmocka_unit_test(a_communicator_that_fails_ends_the_sessions),
        cmocka_unit_test(another_transport_is_refused_in_words),
        cmocka_unit_test(wild_words_of_communicators_end_the_connection),
        cmocka_unit_test(an_old_or_missing_library_is_refused_in_words),
        cmocka_unit_test(an_abort_that_hangs_holds_no_page), /* last: its thread stays */
    };
    if (argc > 1 && strcmp(argv[1], "open") == 0)
        return open_one();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
