/* tests/unit/transfer/test_transfer_ucx.c - the same transfers over UCX and tcp on loopback, and what
 * only a real transport can get wrong. */
#include "tests/unit/transfer/xfer_cases.h"

#include <signal.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define UCX_TEST(name)                                                                                       \
    static void ucx_##name(void **state)                                                                     \
    {                                                                                                        \
        (void)state;                                                                                         \
        case_##name("ucx");                                                                                  \
    }
XFER_EACH_CASE(UCX_TEST)
XFER_EACH_LARGE_CASE(UCX_TEST)

#define PT RIG_PAGE_TOKENS

/* Shared memory for the pages, tcp for connecting and for noticing that a peer is gone. */
static void shared_memory_carries_pages_and_sees_a_peer_go(void **state)
{
    struct rig_opts o = {.ucx_tls = "tcp,shm", .head_dim = XFER_BIG_PAGE, .n_pages = XFER_N_BIG};
    struct sl_xfer_key k = rig_key("shm", 1);
    struct xfer_pair t;
    uint32_t pages[XFER_N_BIG];
    (void)state;
    pair_open(&t, "ucx", &o, &o);
    rig_iota(pages, XFER_N_BIG, 0);
    pair_fill(&t, 1, pages, XFER_N_BIG);
    case_large_begin(&t, &k, pages);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
    pair_check(&t, 1, pages, 0, XFER_N_BIG);
    k.epoch++;
    rig_clear(&t.d);
    case_large_begin(&t, &k, pages);
    sl_xfer_close(t.p.x);
    t.p.x = NULL;
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_true(r.err == SL_EPEER || r.err == SL_OK);
    pair_check(&t, 1, pages, 0, r.n_tokens / PT);
    pair_close(&t);
}

/* ---- a name server that does not answer ---- */

#define STUCK_NAME "stuck.example"
#define KNOWN_NAME "known.example"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_asked;
    bool answers;
} name_server = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false};

/* In front of the C library's. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **res)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &symbol, sizeof real);
    bool asks = host && !(hints->ai_flags & AI_NUMERICHOST);
    if (asks && strcmp(host, KNOWN_NAME) == 0)
        host = "127.0.0.1";
    if (!asks || strcmp(host, STUCK_NAME) != 0)
        return real(host, port, hints, res);
    pthread_mutex_lock(&name_server.lock);
    name_server.n_asked++;
    pthread_cond_broadcast(&name_server.changed);
    while (!name_server.answers)
        pthread_cond_wait(&name_server.changed, &name_server.lock);
    pthread_mutex_unlock(&name_server.lock);
    return EAI_FAIL;
}

static void name_server_that_hangs_holds_up_one_peer_only(void **state)
{
    struct rig_opts p = {.name = "p0"}, d = {.name = "d0"};
    struct sl_xfer_peer lost = {.name = "d9", .boot_id = 9, .address = STUCK_NAME ":1"};
    struct sl_xfer_key k = rig_key("stuck", 1);
    struct xfer_pair t;
    (void)state;
    pair_open(&t, "ucx", &p, &d);
    assert_int_equal(sl_xfer_send_open(t.p.x, &k, &lost, PT, RIG_DEADLINE_MS), SL_OK);
    pthread_mutex_lock(&name_server.lock);
    while (name_server.n_asked == 0)
        pthread_cond_wait(&name_server.changed, &name_server.lock);
    pthread_mutex_unlock(&name_server.lock);
    pair_transfer(&t, "good", 3);
    assert_false(rig_has(&t.p, SL_XFER_SEND_DONE, &k));
    pthread_mutex_lock(&name_server.lock);
    name_server.answers = true;
    pthread_cond_broadcast(&name_server.changed);
    pthread_mutex_unlock(&name_server.lock);
    struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(s.err, SL_EPEER);
    assert_non_null(strstr(s.why, "cannot resolve \"" STUCK_NAME ":1\""));
    pair_close(&t);
}

static void a_peer_is_reached_by_name(void **state)
{
    struct rig_opts p = {.name = "p0"}, d = {.name = "d0", .listen = "127.0.0.1:0"};
    struct xfer_pair t;
    (void)state;
    pair_open(&t, "ucx", &p, &d);
    snprintf(t.d.peer.address, sizeof t.d.peer.address, KNOWN_NAME "%s",
             strrchr(sl_xfer_address(t.d.x), ':'));
    pair_transfer(&t, "named", 3);
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

/* Is this inode one of this process's sockets? */
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
    if (d)
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

/* Nodes that play several machines on one, each with an address of its own and all with one port. */
static void loopback_addresses_that_no_device_has_take_pages(void **state)
{
    (void)state;
    struct xfer_pair t;
    pair_open(&t, "ucx", &(struct rig_opts){.listen = "127.0.0.2:7399"},
              &(struct rig_opts){.listen = "127.0.0.3:7399"});
    pair_transfer(&t, "loopback", 1);
    pair_close(&t);
}

/* What knocks at a port by mistake: UCX closes it and serves its peers. (Bytes made for it are another thing: see
 * docs/faults.md, 55.) */
static void other_protocols_at_the_port_do_not_hurt(void **state)
{
    (void)state;
#define STRAY(text)                                                                                          \
    {                                                                                                        \
        text, sizeof(text) - 1                                                                               \
    }
    static const struct {
        const char *bytes;
        size_t n;
    } strays[] = {STRAY(""), STRAY("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                  STRAY("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on"),
                  STRAY("SSH-2.0-OpenSSH_9.2\r\n")};
#undef STRAY
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
        XFER_EACH_CASE(ENTRY) XFER_EACH_LARGE_CASE(ENTRY)
            cmocka_unit_test(shared_memory_carries_pages_and_sees_a_peer_go),
        cmocka_unit_test(all_ports_are_on_the_network_of_the_listener),
        cmocka_unit_test(loopback_addresses_that_no_device_has_take_pages),
        cmocka_unit_test(other_protocols_at_the_port_do_not_hurt),
        cmocka_unit_test(name_server_that_hangs_holds_up_one_peer_only),
        cmocka_unit_test(a_peer_is_reached_by_name),
        cmocka_unit_test(public_listen_address_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
