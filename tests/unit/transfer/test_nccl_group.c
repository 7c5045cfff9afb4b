/* tests/unit/transfer/test_nccl_group.c - the all-gather of ranks over NCCL, which is the fake of
 * tests/support/fake_nccl on host memory, part by part against the one through memory. As what joins the ranks of a
 * model: tests/kernels/cuda/test_cuda_ranks.c.
 *
 * ctest sets LD_LIBRARY_PATH to the fake's folder; by hand: LD_LIBRARY_PATH=build/release/fake_nccl. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/transfer/nccl_group.h"
#include "common/transfer/nccl_load.h"
#include "tests/support/support.h"

#define RANKS      4u
#define MOST_BYTES 300000u
#define ROUNDS     30u
#define GIVE_UP_S  120 /* a child that nothing ends */
#define LONG_MS    (GIVE_UP_S * 1000u)

/* A rank's memory on its device, as the caller has it: the fake's devices are host memory. */
static void *device_memory(size_t bytes)
{
    sl_cuda_ptr p = 0;
    assert_int_equal(sl_nccl.cuMemAlloc(&p, bytes), SL_CUDA_SUCCESS);
    return (void *)(uintptr_t)p;
}

static void device_memory_free(void *p)
{
    sl_nccl.cuMemFree((sl_cuda_ptr)(uintptr_t)p);
}

static struct sl_rank_group *nccl_group(uint32_t n_ranks)
{
    struct sl_rank_group *g = NULL;
    struct sl_why why = {{0}};
    if (sl_nccl_group_open(0, n_ranks, &g, &why) != SL_OK)
        fail_msg("%s", why.text);
    return g;
}

/* Of the rank's device, which is the thread's from here on. */
static void *stream_of(uint32_t rank)
{
    void *context = NULL, *stream = NULL;
    int device = 0;
    assert_int_equal(sl_nccl.cuDeviceGet(&device, (int)rank), SL_CUDA_SUCCESS);
    assert_int_equal(sl_nccl.cuDevicePrimaryCtxRetain(&context, device), SL_CUDA_SUCCESS);
    assert_int_equal(sl_nccl.cuCtxSetCurrent(context), SL_CUDA_SUCCESS);
    assert_int_equal(sl_nccl.cuStreamCreate(&stream, SL_CUDA_NON_BLOCKING), SL_CUDA_SUCCESS);
    return stream;
}

struct member {
    struct sl_rank_group *nccl, *memory;
    uint32_t rank, wrong;
    struct sl_thread thread;
};

static void gather_both_ways(void *arg)
{
    struct member *m = arg;
    struct sl_why why = {{0}};
    unsigned long long rng = m->rank + 1;
    uint8_t *there = device_memory(RANKS * MOST_BYTES), *here = sl_xcalloc(RANKS, MOST_BYTES);
    void *stream = stream_of(m->rank);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        size_t bytes = i % 2 ? 4 * (i + 1) : MOST_BYTES - i;
        for (size_t k = 0; k < bytes; k++)
            here[m->rank * bytes + k] = there[m->rank * bytes + k] = (uint8_t)sl_test_random(&rng);
        m->wrong += m->nccl->all_gather(m->nccl, m->rank, stream, there, bytes, &why) != SL_OK;
        m->wrong += m->memory->all_gather(m->memory, m->rank, NULL, here, bytes, &why) != SL_OK;
        m->wrong += sl_nccl.cuStreamSynchronize(stream) != SL_CUDA_SUCCESS;
        m->wrong += memcmp(there, here, RANKS * bytes) != 0;
    }
    sl_nccl.cuStreamDestroy(stream);
    sl_free(here);
    device_memory_free(there);
}

static void group_of_nccl_gathers_what_memory_does(void **state)
{
    (void)state;
    struct member members[RANKS];
    struct sl_rank_group *nccl = nccl_group(RANKS), *memory = sl_rank_group_memory(RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        members[r] = (struct member){.nccl = nccl, .memory = memory, .rank = r};
        assert_int_equal(sl_thread_start(&members[r].thread, "rank", gather_both_ways, &members[r]), SL_OK);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        sl_thread_join(&members[r].thread);
        assert_int_equal(members[r].wrong, 0);
    }
    nccl->close(nccl);
    memory->close(memory);
}

/* ---- faults ---- */

static void gather_for_ever(void *arg)
{
    struct member *m = arg;
    struct sl_why why = {{0}};
    void *parts = device_memory(2 * sizeof(int)), *stream = stream_of(m->rank);
    while (m->nccl->all_gather(m->nccl, m->rank, stream, parts, sizeof(int), &why) == SL_OK)
        ;
}

/* In a process of its own: a rank whose peer is gone hangs, as over the real NCCL, until the process ends. The n-th
 * all-gather of rank 1 ends with this error. */
static void fault_in_a_pass_is_told(const char *fault, int n, uint32_t queue_ms, enum sl_err want,
                                    const char *words)
{
#ifdef __SANITIZE_THREAD__
    skip(); /* which finds that the rank that hangs is never joined */
#endif
    pid_t child = fork();
    if (child == 0) {
        setenv("FAKE_NCCL_FAULT", fault, 1);
        alarm(GIVE_UP_S);
        struct sl_why why = {{0}};
        struct member other = {.rank = 0};
        if (sl_nccl_group_open_within(&(struct sl_nccl_limits){LONG_MS, queue_ms, LONG_MS}, 0, 2, &other.nccl,
                                      &why) != SL_OK)
            _exit(9);
        int *parts = device_memory(2 * sizeof *parts);
        void *stream = stream_of(1);
        if (sl_thread_start(&other.thread, "rank", gather_for_ever, &other) != SL_OK)
            _exit(10);
        for (int i = 1; i < n; i++)
            if (other.nccl->all_gather(other.nccl, 1, stream, parts, sizeof *parts, &why) != SL_OK)
                _exit(11);
        enum sl_err e = other.nccl->all_gather(other.nccl, 1, stream, parts, sizeof *parts, &why);
        _exit(e == want && strstr(why.text, words) ? 0 : 12);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void asynchronous_error_of_nccl_is_told(void **state)
{
    (void)state;
    fault_in_a_pass_is_told("error:1:3", 3, LONG_MS, SL_EPEER, "NCCL said: unhandled system error");
}

static void all_gather_that_is_never_queued_is_told(void **state)
{
    (void)state;
    fault_in_a_pass_is_told("launch_hang:1:1", 1, 20, SL_EDEVICE,
                            "has not queued an all-gather of rank 1 with the others of 2");
}

/* In a process of its own, which what never joined stays with. */
static void ranks_that_never_join_are_told(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        setenv("FAKE_NCCL_FAULT", "start_hang:1:0", 1);
        alarm(GIVE_UP_S);
        struct sl_rank_group *g = NULL;
        struct sl_why why = {{0}};
        enum sl_err e =
            sl_nccl_group_open_within(&(struct sl_nccl_limits){20, LONG_MS, LONG_MS}, 0, RANKS, &g, &why);
        _exit(e == SL_EDEVICE && !g && strstr(why.text, "has not joined rank 0 with the others of 4") ? 0
                                                                                                      : 13);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* In a process of its own, which the abort that hangs stays with. */
static void close_does_not_wait_for_an_abort_that_hangs(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* which finds the threads that are left behind */
#endif
    pid_t child = fork();
    if (child == 0) {
        setenv("FAKE_NCCL_FAULT", "abort_hang:0:1000000", 1);
        alarm(GIVE_UP_S);
        struct sl_rank_group *g = NULL;
        struct sl_why why = {{0}};
        if (sl_nccl_group_open_within(&(struct sl_nccl_limits){LONG_MS, LONG_MS, 20}, 0, RANKS, &g, &why) !=
            SL_OK)
            _exit(14);
        g->close(g);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_never_join_are_told),
        cmocka_unit_test(close_does_not_wait_for_an_abort_that_hangs),
        cmocka_unit_test(asynchronous_error_of_nccl_is_told),
        cmocka_unit_test(all_gather_that_is_never_queued_is_told),
        cmocka_unit_test(group_of_nccl_gathers_what_memory_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
