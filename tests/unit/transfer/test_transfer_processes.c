/* tests/unit/transfer/test_transfer_processes.c - the other node is another process, and is killed or stopped
 * in the middle of a transfer of large pages.
 *
 * The program starts itself as that node: "p ADDRESS BOOT_ID" prefills one request for the decode node at
 * ADDRESS, "d BOOT_ID" decodes one. What a dead node leaves behind must end here, with pages that nobody
 * writes any more. */
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/support.h"
#include "tests/unit/transfer/xfer_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PT      RIG_PAGE_TOKENS
#define N_PAGES 12u
#define TOKENS  (N_PAGES * PT)

extern char **environ;

#define HUNG_MS                                                                                              \
    2000u /* a peer that hangs is cut off after this; one that is only slow must say a word in it */

/* dead_ms 0: a peer counts as dead when its connection breaks only. */
static void open_node(struct rig_node *n, const char *name, uint64_t boot_id, uint32_t dead_ms)
{
    rig_open(n, &(struct rig_opts){.transport = "ucx",
                                   .head_dim = 23040,
                                   .n_pages = N_PAGES,
                                   .peer_dead_ms = dead_ms,
                                   .heartbeat_ms = 50,
                                   .name = name,
                                   .boot_id = boot_id});
}

/* ---- the other node ---- */

static int other_p(const char *address, uint64_t boot_id)
{
    struct rig_node n;
    struct sl_xfer_peer d = {.name = "d0", .boot_id = 1};
    struct sl_xfer_key k = rig_key("request", (uint32_t)boot_id);
    uint32_t pages[N_PAGES];
    open_node(&n, "p0", boot_id, 0);
    snprintf(d.address, sizeof d.address, "%s", address);
    rig_iota(pages, N_PAGES, 0);
    for (uint32_t i = 0; i < N_PAGES; i++)
        rig_fill(&n, i, 1, i);
    if (sl_xfer_send_open(n.x, &k, &d, TOKENS, RIG_DEADLINE_MS) != SL_OK)
        return 1;
    rig_wait(&n, SL_XFER_GRANTED, &k);
    for (uint32_t i = 1; i <= N_PAGES; i++)
        if (sl_xfer_send_ready(n.x, &k, pages, i * PT) != SL_OK)
            return 1;
    enum sl_err e = rig_wait(&n, SL_XFER_SEND_DONE, &k).err;
    rig_close(&n);
    return e == SL_OK ? 0 : 2;
}

static int other_d(uint64_t boot_id)
{
    struct rig_node n;
    struct sl_xfer_peer p = {.name = "p0", .boot_id = 1};
    struct sl_xfer_key k = rig_key("request", (uint32_t)boot_id);
    uint32_t pages[N_PAGES];
    open_node(&n, "d0", boot_id, 0);
    rig_iota(pages, N_PAGES, 0);
    if (sl_xfer_recv_open(n.x, &k, &p, pages, TOKENS, 0, RIG_DEADLINE_MS) != SL_OK)
        return 1;
    printf("%s\n", n.peer.address);
    fflush(stdout);
    enum sl_err e = rig_wait(&n, SL_XFER_RECV_DONE, &k).err;
    rig_close(&n);
    return e == SL_OK ? 0 : 2;
}

/* Starts it; its first line of output goes to line when that is given. */
static pid_t start_other(const char *role, const char *address, uint64_t boot_id, char *line, size_t line_n)
{
    char id[24], exe[] = "/proc/self/exe";
    pid_t pid;
    int out[2];
    posix_spawn_file_actions_t actions;
    snprintf(id, sizeof id, "%llu", (unsigned long long)boot_id);
    char *argv[] = {exe, (char *)(uintptr_t)role, (char *)(uintptr_t)address, id, NULL};
    assert_int_equal(pipe(out), 0);
    posix_spawn_file_actions_init(&actions);
    if (line)
        posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    assert_int_equal(posix_spawn(&pid, exe, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    if (line) {
        size_t n = 0;
        while (n + 1 < line_n && read(out[0], line + n, 1) == 1 && line[n] != '\n')
            n++;
        line[n] = 0;
    }
    close(out[0]);
    return pid;
}

static void end_other(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

/* ---- this node ---- */

static uint64_t rounds(int sig)
{
    return sig == SIGSTOP ? 2 : 5; /* each hang takes HUNG_MS */
}

static void prefill_node_goes(int sig, uint64_t first_boot_id)
{
    struct rig_node d;
    unsigned long long seed = first_boot_id;
    open_node(&d, "d0", 1, sig == SIGSTOP ? HUNG_MS : 0);
    for (uint64_t boot_id = first_boot_id; boot_id < first_boot_id + rounds(sig); boot_id++) {
        struct sl_xfer_key k = rig_key("request", (uint32_t)boot_id);
        struct sl_xfer_peer p = {.name = "p0", .boot_id = boot_id};
        uint32_t pages[N_PAGES];
        rig_iota(pages, N_PAGES, 0);
        rig_clear(&d);
        assert_int_equal(sl_xfer_recv_open(d.x, &k, &p, pages, TOKENS, 0, RIG_DEADLINE_MS), SL_OK);
        pid_t pid = start_other("p", d.peer.address, boot_id, NULL, 0);
        rig_wait_ready(&d, &k, PT);
        usleep((useconds_t)(sl_test_random(&seed) % 3000));
        kill(pid, sig);
        struct sl_xfer_event r = rig_wait(&d, SL_XFER_RECV_DONE, &k);
        assert_true(r.err == SL_EPEER || r.err == SL_OK); /* OK: it was faster than the signal */
        assert_true(r.n_tokens >= PT);
        for (uint32_t i = 0; i < r.n_tokens / PT; i++)
            assert_true(rig_page_is(&d, i, 1, i));
        for (uint32_t i = 0; i < N_PAGES; i++)
            rig_fill(&d, i, 1000, i);
        if (sig == SIGSTOP) /* it wakes up and goes on sending: nobody listens */
            kill(pid, SIGCONT);
        usleep(20000);
        end_other(pid);
        for (uint32_t i = 0; i < N_PAGES; i++)
            assert_true(rig_page_is(&d, i, 1000, i));
        assert_int_equal(sl_xfer_open_sessions(d.x), 0);
    }
    rig_close(&d);
}

static void prefill_node_is_killed_what_it_committed_stays(void **state)
{
    (void)state;
    prefill_node_goes(SIGKILL, 10);
}

static void prefill_node_hangs_it_is_cut_off(void **state)
{
    (void)state;
    prefill_node_goes(SIGSTOP, 20);
}

static void decode_node_goes(int sig, uint64_t first_boot_id)
{
    struct rig_node p;
    unsigned long long seed = first_boot_id;
    uint32_t pages[N_PAGES];
    open_node(&p, "p0", 1, sig == SIGSTOP ? HUNG_MS : 0);
    rig_iota(pages, N_PAGES, 0);
    for (uint32_t i = 0; i < N_PAGES; i++)
        rig_fill(&p, i, 1, i);
    for (uint64_t boot_id = first_boot_id; boot_id < first_boot_id + rounds(sig); boot_id++) {
        struct sl_xfer_key k = rig_key("request", (uint32_t)boot_id);
        struct sl_xfer_peer d = {.name = "d0", .boot_id = boot_id};
        pid_t pid = start_other("d", "-", boot_id, d.address, sizeof d.address);
        assert_int_equal(sl_xfer_send_open(p.x, &k, &d, TOKENS, RIG_DEADLINE_MS), SL_OK);
        rig_wait(&p, SL_XFER_GRANTED, &k);
        assert_int_equal(sl_xfer_send_ready(p.x, &k, pages, TOKENS), SL_OK);
        usleep((useconds_t)(sl_test_random(&seed) % 3000));
        kill(pid, sig);
        enum sl_err e = rig_wait(&p, SL_XFER_SEND_DONE, &k).err;
        assert_true(e == SL_EPEER || e == SL_OK);
        assert_int_equal(sl_xfer_open_sessions(p.x), 0);
        end_other(pid);
    }
    rig_close(&p);
}

static void decode_node_is_killed_the_sender_hears_of_it(void **state)
{
    (void)state;
    decode_node_goes(SIGKILL, 30);
}

static void decode_node_hangs_it_is_cut_off(void **state)
{
    (void)state;
    decode_node_goes(SIGSTOP, 40);
}

/* Peers that vanish while they connect must not take this node with them (UCX 1.13 aborts when a connect it
 * waits for is refused on the second try). */
static void peers_that_vanish_while_connecting_leave_no_trace(void **state)
{
    struct rig_node d;
    (void)state;
    open_node(&d, "d0", 1, 0);
    for (uint64_t boot_id = 100; boot_id < 120; boot_id++) {
        pid_t pid = start_other("p", d.peer.address, boot_id, NULL, 0);
        usleep((useconds_t)(20000 + (boot_id - 100) * 700)); /* around the time a process needs to come up */
        end_other(pid);
    }
    struct sl_xfer_key k = rig_key("request", 200);
    struct sl_xfer_peer p = {.name = "p0", .boot_id = 200};
    uint32_t pages[N_PAGES];
    int status;
    rig_iota(pages, N_PAGES, 0);
    assert_int_equal(sl_xfer_recv_open(d.x, &k, &p, pages, TOKENS, 0, RIG_DEADLINE_MS), SL_OK);
    pid_t pid = start_other("p", d.peer.address, 200, NULL, 0);
    assert_int_equal(rig_wait(&d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    for (uint32_t i = 0; i < N_PAGES; i++)
        assert_true(rig_page_is(&d, i, 1, i));
    rig_close(&d);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "p") == 0)
        return other_p(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "d") == 0)
        return other_d(strtoull(argv[3], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_node_is_killed_what_it_committed_stays),
        cmocka_unit_test(prefill_node_hangs_it_is_cut_off),
        cmocka_unit_test(decode_node_is_killed_the_sender_hears_of_it),
        cmocka_unit_test(decode_node_hangs_it_is_cut_off),
        cmocka_unit_test(peers_that_vanish_while_connecting_leave_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
