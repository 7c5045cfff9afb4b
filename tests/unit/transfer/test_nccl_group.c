/* tests/unit/transfer/test_nccl_group.c - the all-gather of ranks over NCCL, which is the fake of
 * tests/support/fake_nccl on host memory, against the one through memory: part by part, and as what joins the ranks of
 * a model.
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
#include "tests/unit/model/model_rig.h"

#define RANKS      4u
#define MOST_BYTES 300000u
#define ROUNDS     30u
#define TOKENS     40u
#define N_VOCAB    512u

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
    if (sl_nccl_group_open(n_ranks, &g, &why) != SL_OK)
        fail_msg("%s", why.text);
    return g;
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
    for (uint32_t i = 0; i < ROUNDS; i++) {
        size_t bytes = i % 2 ? 4 * (i + 1) : MOST_BYTES - i;
        for (size_t k = 0; k < bytes; k++)
            here[m->rank * bytes + k] = there[m->rank * bytes + k] = (uint8_t)sl_test_random(&rng);
        m->wrong += m->nccl->all_gather(m->nccl, m->rank, there, bytes, &why) != SL_OK;
        m->wrong += m->memory->all_gather(m->memory, m->rank, here, bytes, &why) != SL_OK;
        m->wrong += memcmp(there, here, RANKS * bytes) != 0;
    }
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

/* ---- a model ---- */

/* CPU devices' buffers are no memory that NCCL takes: each rank's parts go through its device. */
struct bounce {
    struct sl_rank_group group;
    struct sl_rank_group *nccl;
    uint8_t *there[RANKS];
    size_t bytes[RANKS];
    atomic_uint gathers;
};

static enum sl_err bounce_gather(struct sl_rank_group *group, uint32_t rank, void *parts, size_t bytes,
                                 struct sl_why *why)
{
    struct bounce *b = (struct bounce *)group;
    if (bytes > b->bytes[rank]) {
        if (b->there[rank])
            device_memory_free(b->there[rank]);
        b->there[rank] = device_memory(group->n_ranks * bytes);
        b->bytes[rank] = bytes;
    }
    memcpy(b->there[rank] + rank * bytes, (const uint8_t *)parts + rank * bytes, bytes);
    enum sl_err e = b->nccl->all_gather(b->nccl, rank, b->there[rank], bytes, why);
    memcpy(parts, b->there[rank], group->n_ranks * bytes);
    atomic_fetch_add(&b->gathers, 1);
    return e;
}

static void run_model(const char *path, uint32_t degree, struct sl_rank_group *group, float *logits)
{
    struct rig r;
    struct rig_conf c = {path, "auto", 1, 16, 64, 4, SL_BF16, 0, degree, group};
    int32_t tokens[TOKENS];
    uint32_t pages[] = {3, 0, 2, 1}, out_rows[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)(i * 37 % N_VOCAB);
        out_rows[i] = i;
    }
    rig_open(&r, &c);
    struct sl_batch_run run = {0, TOKENS, 0, pages, SL_COUNTOF(pages)};
    struct sl_batch b = {TOKENS, 1, TOKENS, tokens, &run, out_rows};
    sl_model_forward(r.model, r.kv, &b, logits, &r.progress);
    rig_close(&r);
}

static void model_over_nccl_has_the_bits_of_memory(void **state)
{
    (void)state;
    static float over_memory[TOKENS * N_VOCAB], over_nccl[TOKENS * N_VOCAB];
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    m.n_heads = 8;
    m.n_kv_heads = 4;
    m.d_ff = 256;
    char *path = rig_model_file(&m);
    for (uint32_t degree = 2; degree <= RANKS; degree += 2) {
        struct bounce b = {.group = {degree, bounce_gather, NULL}, .nccl = nccl_group(degree)};
        run_model(path, degree, NULL, over_memory);
        run_model(path, degree, &b.group, over_nccl);
        assert_memory_equal(over_memory, over_nccl, sizeof over_memory);
        assert_int_equal(b.gathers, degree * (2 * m.n_layers + 1));
        for (uint32_t r = 0; r < degree; r++)
            device_memory_free(b.there[r]);
        b.nccl->close(b.nccl);
    }
    unlink(path);
    sl_free(path);
}

/* ---- faults ---- */

static void gather_for_ever(void *arg)
{
    struct member *m = arg;
    struct sl_why why = {{0}};
    void *parts = device_memory(2 * sizeof(int));
    while (m->nccl->all_gather(m->nccl, m->rank, parts, sizeof(int), &why) == SL_OK)
        ;
}

/* In a process of its own: a rank whose peer is gone hangs, as over the real NCCL, until the process ends. */
static void asynchronous_error_of_nccl_is_told(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* which finds that the rank that hangs is never joined */
#endif
    pid_t child = fork();
    if (child == 0) {
        setenv("FAKE_NCCL_FAULT", "error:1:3", 1);
        struct sl_why why = {{0}};
        struct member other = {.nccl = nccl_group(2), .rank = 0};
        int *parts = device_memory(2 * sizeof *parts);
        if (sl_thread_start(&other.thread, "rank", gather_for_ever, &other) != SL_OK)
            _exit(10);
        for (int i = 1; i < 3; i++)
            if (other.nccl->all_gather(other.nccl, 1, parts, sizeof *parts, &why) != SL_OK)
                _exit(11);
        enum sl_err e = other.nccl->all_gather(other.nccl, 1, parts, sizeof *parts, &why);
        _exit(e == SL_EPEER && strstr(why.text, "NCCL said: unhandled system error") ? 0 : 12);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asynchronous_error_of_nccl_is_told),
        cmocka_unit_test(group_of_nccl_gathers_what_memory_does),
        cmocka_unit_test(model_over_nccl_has_the_bits_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
