/* tests/unit/transfer/test_transfer_ucx.c - the same transfers over UCX and tcp on loopback, and what
 * only a real transport can get wrong. */
#include "tests/unit/transfer/xfer_cases.h"

#include <signal.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define EACH_CASE(X)                                                                                         \
    X(whole_prompt_arrives_with_its_first_token)                                                             \
    X(hybrid_split_arrives_without_a_token)                                                                  \
    X(chunks_are_ready_one_by_one)                                                                           \
    X(prefix_hit_is_not_sent)                                                                                \
    X(full_prefix_hit_still_brings_the_token)                                                                \
    X(full_prefix_hit_needs_no_pages_of_the_sender)                                                          \
    X(either_side_may_come_first)                                                                            \
    X(scattered_pages_land_where_the_receiver_says)                                                          \
    X(sender_aborts_at_every_stage)                                                                          \
    X(receiver_cancels_at_every_stage)                                                                       \
    X(abort_before_open_leaves_word)                                                                         \
    X(peer_closes_in_the_middle)                                                                             \
    X(deadline_ends_both_sides)                                                                              \
    X(mismatch_is_refused_in_words)                                                                          \
    X(cluster_secret_is_proven_both_ways)                                                                    \
    X(new_boot_id_fences_the_old)                                                                            \
    X(unreachable_peer_ends_the_session)                                                                     \
    X(many_sessions_share_the_link)                                                                          \
    X(link_is_measured)                                                                                      \
    X(idle_transfer_takes_no_cpu)

#define UCX_TEST(name)                                                                                       \
    static void ucx_##name(void **state)                                                                     \
    {                                                                                                        \
        (void)state;                                                                                         \
        case_##name("ucx");                                                                                  \
    }
EACH_CASE(UCX_TEST)

#define PT RIG_PAGE_TOKENS
#define BIG_PAGE                                                                                             \
    23040u /* head size that makes pages of 737,280 bytes, SmolLM2's at 32 tokens: rendezvous on tcp */
#define N_BIG 10u

/* Starts a transfer of N_BIG large pages and returns when it is under way. */
static void begin_big(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t pages[N_BIG])
{
    rig_iota(pages, N_BIG, 0);
    pair_begin(t, k, N_BIG * PT, pages, 0);
    rig_wait(&t->p, SL_XFER_GRANTED, k);
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, pages, N_BIG * PT), SL_OK);
}

static void open_big(struct xfer_pair *t)
{
    struct rig_opts o = {.head_dim = BIG_PAGE, .n_pages = N_BIG};
    uint32_t pages[N_BIG];
    pair_open(t, "ucx", &o, &o);
    rig_iota(pages, N_BIG, 0);
    pair_fill(t, 1, pages, N_BIG);
}

/* D's pages are D's alone again: nothing that was under way may still land in them. */
static void own_pages(struct rig_node *d)
{
    for (uint32_t i = 0; i < N_BIG; i++)
        rig_fill(d, i, 1000, i);
}

static void check_owned(const struct rig_node *d)
{
    for (uint32_t i = 0; i < N_BIG; i++)
        if (!rig_page_is(d, i, 1000, i))
            fail_msg("page %u was written after its transfer was over", i);
}

static void large_pages_either_side_gives_up_in_the_middle(void **state)
{
    struct xfer_pair t;
    unsigned long long seed = 5;
    (void)state;
    open_big(&t);
    for (uint32_t round = 0; round < 12; round++) {
        struct sl_xfer_key k = rig_key("gives-up", round);
        uint32_t pages[N_BIG];
        bool p_gives_up = round % 2;
        rig_clear(&t.d);
        begin_big(&t, &k, pages);
        usleep((useconds_t)(sl_test_random(&seed) % 12000));
        if (p_gives_up)
            assert_int_equal(sl_xfer_send_abort(t.p.x, &k, &t.d.peer, "enough"), SL_OK);
        else
            assert_int_equal(sl_xfer_recv_cancel(t.d.x, &k), SL_OK);
        struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k),
                             r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        assert_true(r.err == SL_OK || r.err == (p_gives_up ? SL_EPEER : SL_ECANCELED));
        assert_true(s.err == SL_OK || s.err == SL_ECANCELED);
        pair_check(&t, 1, pages, 0, r.n_tokens / PT);
        own_pages(&t.d);
        /* the link and both nodes go on */
        usleep(2000);
        check_owned(&t.d);
        assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
        assert_int_equal(sl_xfer_open_sessions(t.d.x), 0);
    }
    struct sl_xfer_key k = rig_key("after", 1);
    uint32_t pages[N_BIG];
    begin_big(&t, &k, pages);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    pair_check(&t, 1, pages, 0, N_BIG);
    pair_close(&t);
}

static void large_pages_a_node_closes_in_the_middle_and_comes_back(void **state)
{
    struct xfer_pair t;
    unsigned long long seed = 6;
    (void)state;
    open_big(&t);
    for (uint32_t round = 0; round < 8; round++) {
        struct sl_xfer_key k = rig_key("closes", round);
        uint32_t pages[N_BIG];
        struct rig_node *goes = round % 2 ? &t.p : &t.d;
        struct rig_opts again = {.transport = "ucx",
                                 .head_dim = BIG_PAGE,
                                 .n_pages = N_BIG,
                                 .name = round % 2 ? "p0" : "d0",
                                 .boot_id = round + 2};
        begin_big(&t, &k, pages);
        usleep((useconds_t)(sl_test_random(&seed) % 8000));
        sl_xfer_close(goes->x);
        goes->x = NULL;
        if (goes == &t.p) {
            struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
            assert_true(r.err == SL_OK || r.err == SL_EPEER);
            pair_check(&t, 1, pages, 0, r.n_tokens / PT);
            own_pages(&t.d);
        } else {
            enum sl_err e = rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err;
            assert_true(e == SL_OK || e == SL_EPEER);
        }
        rig_close(goes);
        rig_open(goes, &again);
        if (goes == &t.p) {
            rig_iota(pages, N_BIG, 0);
            pair_fill(&t, 1, pages, N_BIG);
            check_owned(&t.d);
        }
        struct sl_xfer_key next = rig_key("comes-back", round);
        begin_big(&t, &next, pages);
        assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &next).err, SL_OK);
        assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &next).err, SL_OK);
        pair_check(&t, 1, pages, 0, N_BIG);
    }
    pair_close(&t);
}

static void thousands_of_pages_arrive_as_sent(void **state)
{
    enum { SESSIONS = 24, EACH = 200 }; /* 4800 pages of 8 KiB, 6 sessions at a time */
    struct xfer_pair t;
    struct rig_opts o = {.head_dim = 256, .n_pages = 6 * EACH};
    (void)state;
    pair_open(&t, "ucx", &o, &o);
    uint32_t *p = sl_xalloc(6 * EACH * sizeof *p), *d = sl_xalloc(6 * EACH * sizeof *d);
    unsigned long long seed = 7;
    rig_iota(p, 6 * EACH, 0);
    rig_iota(d, 6 * EACH, 0);
    for (uint32_t i = 6 * EACH - 1; i > 0; i--) { /* D's pages lie anywhere, P's in runs with holes */
        uint32_t j = (uint32_t)(sl_test_random(&seed) % (i + 1)), v = d[i];
        d[i] = d[j];
        d[j] = v;
        if (i % 17 == 0) {
            v = p[i];
            p[i] = p[i - 1];
            p[i - 1] = v;
        }
    }
    for (uint32_t first = 0; first < SESSIONS; first += 6) {
        for (uint32_t i = 0; i < 6; i++) {
            struct sl_xfer_key k = rig_key("thousands", first + i);
            pair_fill(&t, first + i, p + i * EACH, EACH);
            pair_begin(&t, &k, EACH * PT - 1, d + i * EACH, 0);
            assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p + i * EACH, EACH * PT - 1), SL_OK);
        }
        for (uint32_t i = 0; i < 6; i++) {
            struct sl_xfer_key k = rig_key("thousands", first + i);
            assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
            assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
            pair_check(&t, first + i, d + i * EACH, 0, EACH);
        }
    }
    sl_free(p);
    sl_free(d);
    pair_close(&t);
}

/* 22 MB are ready at once: more than may be on the way. */
static void a_prompt_larger_than_the_window_arrives(void **state)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("window", 1);
    struct rig_opts po = {.head_dim = BIG_PAGE, .n_pages = 30, .link_test = true};
    struct rig_opts dopts = {.head_dim = BIG_PAGE, .n_pages = 30};
    uint32_t p[30], d[30];
    (void)state;
    pair_open(&t, "ucx", &po, &dopts);
    rig_iota(p, 30, 0);
    for (uint32_t i = 0; i < 30; i++)
        d[i] = (i * 7) % 30;
    pair_fill(&t, 1, p, 30);
    pair_begin(&t, &k, 30 * PT, d, 0);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, 30 * PT), SL_OK);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(s.err, SL_OK);
    assert_int_equal(s.bytes_after_ready, 30 * t.p.page_bytes);
    assert_true(s.transfer_ms > 0);
    pair_check(&t, 1, d, 0, 30);
    pair_close(&t);
}

/* Shared memory for the pages, tcp for connecting and for noticing that a peer is gone. */
static void shared_memory_carries_pages_and_sees_a_peer_go(void **state)
{
    struct rig_opts o = {.ucx_tls = "tcp,shm", .head_dim = BIG_PAGE, .n_pages = N_BIG};
    struct sl_xfer_key k = rig_key("shm", 1);
    struct xfer_pair t;
    uint32_t pages[N_BIG];
    (void)state;
    pair_open(&t, "ucx", &o, &o);
    rig_iota(pages, N_BIG, 0);
    pair_fill(&t, 1, pages, N_BIG);
    begin_big(&t, &k, pages);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
    pair_check(&t, 1, pages, 0, N_BIG);
    k.epoch++;
    rig_clear(&t.d);
    begin_big(&t, &k, pages);
    sl_xfer_close(t.p.x);
    t.p.x = NULL;
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_true(r.err == SL_EPEER || r.err == SL_OK);
    pair_check(&t, 1, pages, 0, r.n_tokens / PT);
    pair_close(&t);
}

static void public_listen_address_is_refused(void **state)
{
    static const struct {
        const char *listen;
        enum sl_err e;
    } cases[] = {{"8.8.8.8:0", SL_ECONFIG}, {"0.0.0.0:0", SL_ECONFIG}, {"[2001:db8::1]:0", SL_ECONFIG},
                 {"nonsense", SL_ECONFIG},  {"", SL_ECONFIG},          {"::1:0", SL_ECONFIG}};
    struct sl_queue *events = sl_queue_new(16);
    char page[256] = {0};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_xfer *x = NULL;
        struct sl_why why = {0};
        struct sl_xfer_conf c = {.transport = "ucx",
                                 .listen = cases[i].listen,
                                 .self = {.name = "n", .geometry = {1, 1, 4, 8, SL_BF16}},
                                 .pool = page,
                                 .page_bytes = sizeof page,
                                 .n_pages = 1,
                                 .max_sessions = 1,
                                 .cpu = -1,
                                 .events = events};
        assert_int_equal(sl_xfer_open(&c, &x, &why), cases[i].e);
        assert_null(x);
        assert_true(strlen(why.text) > 20);
        if (i < 3)
            assert_non_null(strstr(why.text, "trust_network"));
    }
    /* all interfaces, when told so */
    struct sl_xfer *x = NULL;
    struct sl_why why = {0};
    struct sl_xfer_conf c = {.transport = "ucx",
                             .listen = "0.0.0.0:0",
                             .trust_network = true,
                             .self = {.name = "n", .geometry = {1, 1, 4, 8, SL_BF16}},
                             .pool = page,
                             .page_bytes = sizeof page,
                             .n_pages = 1,
                             .max_sessions = 1,
                             .cpu = -1,
                             .events = events};
    assert_int_equal(sl_xfer_open(&c, &x, &why), SL_OK);
    sl_xfer_close(x);
    c.ucx_tls = "no_such_transport";
    assert_int_equal(sl_xfer_open(&c, &x, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, "no_such_transport"));
    sl_queue_free(events);
}

static void signals_stay_the_programs(void **state)
{
    static const int signals[] = {SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV};
    struct sigaction before[SL_COUNTOF(signals)], after;
    struct xfer_pair t;
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(signals); i++)
        sigaction(signals[i], NULL, &before[i]);
    pair_open(&t, "ucx", NULL, NULL);
    for (size_t i = 0; i < SL_COUNTOF(signals); i++) {
        sigaction(signals[i], NULL, &after);
        assert_true(after.sa_handler == before[i].sa_handler);
    }
    pair_close(&t);
}

/* The inode numbers of this process's sockets, each as "[N]". */
static bool is_ours(unsigned long inode)
{
    char want[64], path[300], target[64];
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    DIR *d = opendir("/proc/self/fd");
    bool found = false;
    for (const struct dirent *e; d && !found && (e = readdir(d));) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        found = strcmp(target, want) == 0;
    }
    closedir(d);
    return found;
}

/* What UCX opens beside the listener is open to the same network, and to no other that the machine is in. */
static void all_ports_are_on_the_network_of_the_listener(void **state)
{
    (void)state;
    struct rig_node n;
    rig_open(&n, &(struct rig_opts){.transport = "ucx"});
    FILE *f = fopen("/proc/self/net/tcp", "re");
    char line[256];
    unsigned listening = 0, address, port, sock_state;
    unsigned long inode;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, " %*u: %8X:%4X %*8X:%*4X %2X %*8X:%*8X %*2X:%*8X %*8X %*u %*u %lu", &address, &port,
                   &sock_state, &inode) != 4 ||
            sock_state != 0x0a || !is_ours(inode))
            continue;
        listening++;
        if ((address & 0xff) != 127)
            fail_msg("port %u is open on %08x", port, address);
    }
    assert_true(f && listening >= 2); /* of the listener and of the data */
    fclose(f);
    rig_close(&n);
}

/* What knocks at a port by mistake: UCX closes it and serves its peers. (Bytes made for it are another thing: see
 * docs/faults.md, 55.) */
static void other_protocols_at_the_port_do_not_hurt(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
    } strays[] = {
        {"", 0},
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 29},
        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on", 21},
        {"SSH-2.0-OpenSSH_9.2\r\n", 21},
    };
    struct xfer_pair t;
    pair_open(&t, "ucx", NULL, NULL);
    unsigned port = (unsigned)strtoul(strrchr(t.d.peer.address, ':') + 1, NULL, 10);
    for (size_t i = 0; i < SL_COUNTOF(strays); i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        assert_int_equal(send(fd, strays[i].bytes, strays[i].n, MSG_NOSIGNAL), (ssize_t)strays[i].n);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    pair_transfer(&t, "after", 1);
    pair_close(&t);
}

int main(void)
{
#define ENTRY(name) cmocka_unit_test(ucx_##name),
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_stay_the_programs), /* first: UCX is not loaded yet */
        EACH_CASE(ENTRY) cmocka_unit_test(thousands_of_pages_arrive_as_sent),
        cmocka_unit_test(a_prompt_larger_than_the_window_arrives),
        cmocka_unit_test(large_pages_either_side_gives_up_in_the_middle),
        cmocka_unit_test(large_pages_a_node_closes_in_the_middle_and_comes_back),
        cmocka_unit_test(shared_memory_carries_pages_and_sees_a_peer_go),
        cmocka_unit_test(all_ports_are_on_the_network_of_the_listener),
        cmocka_unit_test(other_protocols_at_the_port_do_not_hurt),
        cmocka_unit_test(public_listen_address_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
