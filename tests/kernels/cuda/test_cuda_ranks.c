/* Ranks of a model on emulated devices, each in memory that no other and no host may touch, joined by NCCL, which is the
 * fake of tests/support/fake_nccl: passes near those of one device and of CPU ranks, the same bits in any chunks, and
 * requests equal over modes, chunks and company.
 *
 * ctest sets LD_LIBRARY_PATH to the fake's folder; by hand: LD_LIBRARY_PATH=build/release/fake_nccl. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "common/transfer/nccl_group.h"
#include "kernels/cuda/cuda_dev.h"
#include "kernels/cuda/emulation/cu_emu.h"
#include "tests/kernels/op_setup.h"
#include "tests/unit/engine/engine_support.h"
#include "tests/unit/model/model_rig.h"

#define N_TOKENS    45u
#define N_VOCAB     263u /* no degree divides it */
#define PAGE_TOKENS 16u
#define N_PAGES     ((N_TOKENS + PAGE_TOKENS - 1) / PAGE_TOKENS)

/* As test_cuda_model.c has it of one device, against the reference of the same degree. */
#define MAX_ERROR 4e-2
/* Against one device of the table: partial sums are float32, what is rounded to bfloat16 on the way may fall to its
 * other neighbour. */
#define MAX_ERROR_OF_DEGREE 1e-3

static struct sl_rank_group *nccl_group(uint32_t first, uint32_t n_ranks)
{
    struct sl_rank_group *g = NULL;
    struct sl_why why = {{0}};
    if (sl_nccl_group_open(first, n_ranks, &g, &why) != SL_OK)
        fail_msg("%s", why.text);
    return g;
}

/* Logits [N_TOKENS, n_vocab] of a prompt in chunks, the last token alone; the caller's. */
static float *logits_of(const char *path, const char *backend, uint32_t degree, uint32_t chunk,
                        uint32_t *n_vocab)
{
    bool is_cuda = strncmp(backend, "cuda", 4) == 0;
    uint32_t first = CU_EMU_DEVICES - degree;
    struct sl_rank_group *group = is_cuda && degree > 1 ? nccl_group(first, degree) : NULL;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.path = path,
                                    .backend = backend,
                                    .n_threads = degree,
                                    .page_tokens = PAGE_TOKENS,
                                    .max_rows = N_TOKENS,
                                    .n_pages = N_PAGES,
                                    .kv_dtype = SL_BF16,
                                    .tensor_parallel = degree,
                                    .group = group,
                                    .device = is_cuda ? first : 0});
    *n_vocab = sl_model_conf(r.model)->n_vocab;
    float *all = rig_prompt_logits(&r, N_TOKENS, chunk);
    rig_close(&r);
    if (group)
        group->close(group);
    return all;
}

static void assert_near(const char *what, uint32_t degree, const float *got, const float *want, size_t n,
                        double most)
{
    double error = op_relative_error(got, want, n);
    print_message("degree %u against %s: relative error %.1e\n", degree, what, error);
    assert_true(error < most);
}

/* gemma3 norms heads and branches. */
static char *model_file(const char *arch)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    m.arch = arch;
    m.n_layers = 2;
    m.d_model = 64;
    m.n_heads = 8;
    m.n_kv_heads = 4;
    m.head_dim = 32;
    m.d_ff = 128;
    m.n_vocab = N_VOCAB;
    if (strcmp(arch, "gemma3") == 0) {
        m.sliding_window = 20;
        m.window_pattern = 2;
    }
    return rig_model_file(&m);
}

static void check_degree(const char *arch, uint32_t degree)
{
    char *path = model_file(arch);
    uint32_t n_vocab;
    float *cpu = logits_of(path, "reference", degree, 20, &n_vocab);
    float *one = logits_of(path, "cuda-plain", 1, 20, &n_vocab), *want = NULL;
    size_t n = (size_t)N_TOKENS * n_vocab;
    static const uint32_t chunks[] = {20, 7, N_TOKENS};
    for (size_t i = 0; i < SL_COUNTOF(chunks); i++) {
        float *got = logits_of(path, "cuda-plain", degree, chunks[i], &n_vocab);
        if (want)
            op_assert_same_bits(got, want, n, "logits of ranks on CUDA devices");
        else
            want = sl_xmemdup(got, n * sizeof *got);
        sl_free(got);
    }
    assert_near("CPU ranks", degree, want, cpu, n, MAX_ERROR);
    assert_near("one device", degree, want, one, n, MAX_ERROR_OF_DEGREE);
    assert_memory_not_equal(want, one, n * sizeof *want); /* it was cut */
    float *fast = logits_of(path, "cuda", degree, 20, &n_vocab);
    assert_near("CPU ranks, fast table", degree, fast, cpu, n, MAX_ERROR);
    sl_free(fast);
    sl_free(want);
    sl_free(one);
    sl_free(cpu);
    unlink(path);
    sl_free(path);
}

static void ranks_on_devices_are_near_and_equal_in_any_chunks(void **state)
{
    (void)state;
    check_degree("llama", 2);
    check_degree("gemma3", 4);
}

/* ---- passes kept as graphs, with the all-gathers inside ---- */

#define STEPS 7u

struct runner {
    struct rig r;
    struct sl_rank_group *group;
};

static void runner_open(struct runner *x, const char *path, int no_graphs)
{
    x->group = nccl_group(0, 2);
    rig_open(&x->r, &(struct rig_conf){.path = path,
                                       .backend = "cuda-plain",
                                       .n_threads = 2,
                                       .page_tokens = PAGE_TOKENS,
                                       .max_rows = 16,
                                       .n_pages = N_PAGES,
                                       .kv_dtype = SL_BF16,
                                       .no_graphs = no_graphs,
                                       .tensor_parallel = 2,
                                       .group = x->group});
    rig_pages_poison(&x->r);
}

static void runner_close(struct runner *x)
{
    rig_close(&x->r);
    x->group->close(x->group);
}

/* A prompt of 9 rows, then a row at a time; some have no logits, and are not kept. */
static void check_kept(const char *path, unsigned captures_to_fail, bool refused, uint64_t want_launched,
                       uint64_t want_failed)
{
    struct runner kept, plain;
    const uint32_t pages[N_PAGES] = {2, 0, 1};
    static const uint32_t n_rows[STEPS] = {9, 1, 4, 1, 2, 1, 1}, n_out[STEPS] = {1, 1, 2, 1, 0, 1, 1};
    runner_open(&kept, path, 0);
    runner_open(&plain, path, 1);
    cu_emu_fail_captures(captures_to_fail, refused);
    for (uint32_t i = 0, at = 0; i < STEPS; at += n_rows[i++]) {
        int32_t tokens[16];
        uint32_t out_rows[2];
        for (uint32_t k = 0; k < n_rows[i]; k++)
            tokens[k] = (int32_t)((at + k) * 97 % N_VOCAB);
        for (uint32_t k = 0; k < n_out[i]; k++)
            out_rows[k] = n_rows[i] - n_out[i] + k;
        struct sl_batch_run run = {0, n_rows[i], at, pages, N_PAGES};
        struct sl_batch b = {n_rows[i], 1, n_out[i], tokens, &run, out_rows};
        sl_model_forward(kept.r.model, kept.r.kv, &b, kept.r.logits, &kept.r.progress);
        sl_model_forward(plain.r.model, plain.r.kv, &b, plain.r.logits, &plain.r.progress);
        op_assert_same_bits(kept.r.logits, plain.r.logits, (size_t)n_out[i] * N_VOCAB,
                            "logits of a kept pass of ranks");
    }
    assert_int_equal(kept.r.dev->passes.n_launched, want_launched);
    assert_int_equal(kept.r.dev->passes.n_failed, want_failed);
    assert_int_equal(plain.r.dev->passes.n_launched, 0);
    runner_close(&kept);
    runner_close(&plain);
}

static void kept_passes_of_ranks_have_the_all_gathers_inside(void **state)
{
    (void)state;
    char *path = model_file("llama");
    check_kept(path, 0, false, 5, 0); /* of six with logits: the first runs op by op */
    check_kept(path, 1, false, 0, 1); /* one rank's capture fails, and neither keeps the pass */
    check_kept(path, 1, true, 0, 1);
    unlink(path);
    sl_free(path);
}

/* ---- requests ---- */

#define ENGINE_PAGES 40u

static struct sl_engine *engine(uint32_t device, bool no_graphs)
{
    const struct tiny_choice choice = {TINY_QWEN3, SL_Q4_1, SL_Q8, "cuda-plain", 2};
    struct sl_engine_conf conf = tiny_conf(&choice, 2, PAGE_TOKENS, ENGINE_PAGES);
    conf.device = device;
    conf.no_graphs = no_graphs;
    conf.open_group = sl_nccl_group_open;
    return tiny_engine(&conf);
}

static void requests_are_equal_over_modes_chunks_and_company(void **state)
{
    (void)state;
    struct sl_engine *d = engine(0, false), *p = engine(2, true);
    jobs_equal_over_modes(d, p, "two emulated CUDA devices");
    sl_engine_close(d);
    sl_engine_close(p);
}

static void devices_that_are_not_there_are_refused_in_words(void **state)
{
    (void)state;
    const struct tiny_choice choice = {TINY_QWEN3, SL_Q4_1, SL_Q8, "cuda-plain", 2};
    struct sl_engine_conf conf = tiny_conf(&choice, 2, PAGE_TOKENS, ENGINE_PAGES);
    struct sl_engine *e = NULL;
    struct sl_why why = {{0}};
    conf.device = 3;
    conf.open_group = sl_nccl_group_open;
    assert_int_equal(sl_engine_open(&conf, &e, &why), SL_ECONFIG);
    assert_non_null(
        strstr(why.text, "take devices up to number 4 of backend \"cuda-plain\", and this machine shows 4,"));
    conf.device = 0;
    conf.open_group = NULL;
    assert_int_equal(sl_engine_open(&conf, &e, &why), SL_EUNSUPPORTED);
    assert_non_null(strstr(why.text, "nothing that joins devices of backend \"cuda-plain\""));
}

/* ---- memory ---- */

/* Whether a process of its own survives. */
static bool survives(void (*fn)(struct cu_stream *a, struct cu_stream *b, float *of_a, float *of_b))
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        struct cu_stream *a, *b;
        signal(SIGSEGV, SIG_DFL);
        if (cu_stream_open(0, &a, NULL) != SL_OK || cu_stream_open(1, &b, NULL) != SL_OK)
            _exit(2);
        float *of_a = cu_alloc(a, 256), *of_b = cu_alloc(b, 256);
        fn(a, b, of_a, of_b);
        cu_sync(a);
        cu_sync(b);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void sums(struct cu_stream *s, float *parts, float *y)
{
    struct cu_sum_args a = {.parts = parts, .n = 32, .n_parts = 2, .y = y};
    cu_sum_ranks(s, &a);
}

static void own_memory(struct cu_stream *a, struct cu_stream *b, float *of_a, float *of_b)
{
    sums(a, of_a, of_a);
    sums(b, of_b, of_b);
}

static void another_device_is_read(struct cu_stream *a, struct cu_stream *b, float *of_a, float *of_b)
{
    (void)b;
    sums(a, of_b, of_a);
}

static void another_device_is_written(struct cu_stream *a, struct cu_stream *b, float *of_a, float *of_b)
{
    (void)a;
    sums(b, of_b, of_a);
}

static void host_reads(struct cu_stream *a, struct cu_stream *b, float *of_a, float *of_b)
{
    (void)a, (void)b, (void)of_a;
    volatile float x = of_b[0];
    (void)x;
}

static void memory_goes_across(struct cu_stream *a, struct cu_stream *b, float *of_a, float *of_b)
{
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    cu_upload(a, of_a, x, sizeof x);
    cu_sync(a);
    cu_copy_rows(b, of_b, 8, of_a + 1, 4, 4, 2); /* 2, 3 two apart */
    cu_download(b, y, of_b, sizeof y);
    cu_sync(b);
    if (y[0] != 2 || y[1] != 0 || y[2] != 3)
        _exit(1);
}

static void devices_have_memory_of_their_own(void **state)
{
    (void)state;
    assert_true(survives(own_memory));
    assert_true(survives(memory_goes_across));
    assert_false(survives(another_device_is_read));
    assert_false(survives(another_device_is_written));
    assert_false(survives(host_reads));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_have_memory_of_their_own),
        cmocka_unit_test(ranks_on_devices_are_near_and_equal_in_any_chunks),
        cmocka_unit_test(kept_passes_of_ranks_have_the_all_gathers_inside),
        cmocka_unit_test(requests_are_equal_over_modes_chunks_and_company),
        cmocka_unit_test(devices_that_are_not_there_are_refused_in_words),
    };
    cu_emu_guard(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
