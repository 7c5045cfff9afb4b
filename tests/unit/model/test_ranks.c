/* Tensor parallelism in whole passes: ranks compute what one device does but for the order of sums, the same bits in
 * any batch, and end the process when what joins them breaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "kernels/rank_group.h"
#include "tests/unit/model/model_rig.h"

#define TOKENS   60u
#define N_VOCAB  431u /* no degree divides it */
#define MAX_ROWS 64u

/* Logits of all positions, chunk rows at a time. */
static void run(struct rig *r, uint32_t chunk, float *logits)
{
    int32_t tokens[TOKENS];
    uint32_t pages[] = {3, 0, 2, 1}, out_rows[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)(i * 37 % N_VOCAB);
        out_rows[i] = i;
    }
    rig_pages_poison(r);
    for (uint32_t done = 0, n; done < TOKENS; done += n) {
        n = TOKENS - done < chunk ? TOKENS - done : chunk;
        struct sl_batch_run one = {0, n, done, pages, SL_COUNTOF(pages)};
        struct sl_batch b = {n, 1, n, tokens + done, &one, out_rows};
        sl_model_forward(r->model, r->kv, &b, logits + (size_t)done * N_VOCAB, &r->progress);
    }
}

static struct rig_conf conf_of(const char *path, const char *backend, uint32_t degree, enum sl_dtype kv)
{
    return (struct rig_conf){.path = path,
                             .backend = backend,
                             .n_threads = 1,
                             .page_tokens = 16,
                             .max_rows = MAX_ROWS,
                             .n_pages = 4,
                             .kv_dtype = kv,
                             .tensor_parallel = degree};
}

static double relative_error(const float *a, const float *b, size_t n)
{
    double diff = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)b[i] * b[i];
    }
    return sqrt(diff / all);
}

static struct sl_make_model shape(const char *arch, enum sl_dtype type, bool tied)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    m.arch = arch;
    m.n_heads = 8;
    m.n_kv_heads = 4;
    m.d_ff = 256;
    m.n_vocab = N_VOCAB;
    m.type = m.embed_type = type;
    m.tied = tied;
    if (strcmp(arch, "gemma3") == 0) {
        m.sliding_window = 40;
        m.window_pattern = 2;
    }
    return m;
}

/* Positions whose logits have other bits. */
static uint32_t other_rows(const float *a, const float *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < TOKENS; i++)
        n += memcmp(a + (size_t)i * N_VOCAB, b + (size_t)i * N_VOCAB, N_VOCAB * sizeof(float)) != 0;
    return n;
}

/* most: of the error. In float32 throughout only the order of sums differs. Where values are rounded on the way,
 * activations to 8 bits and K and V to the pages' type, the few that then round to their other neighbour are most of
 * it. */
static void ranks_are_near(const struct sl_make_model *m, const char *backend, enum sl_dtype kv, double most)
{
    const size_t n = (size_t)TOKENS * N_VOCAB, bytes = n * sizeof(float);
    float *one = sl_xalloc(bytes), *whole = sl_xalloc(bytes), *cut = sl_xalloc(bytes);
    char *path = rig_model_file(m);
    struct rig r;
    struct rig_conf c = conf_of(path, backend, 1, kv);
    rig_open(&r, &c);
    run(&r, TOKENS, one);
    uint64_t id = sl_model_numerics_id(r.model);
    size_t weights = sl_model_weight_bytes(r.model);
    rig_close(&r);
    for (uint32_t degree = 2; degree <= 4; degree += 2) {
        c = conf_of(path, backend, degree, kv);
        rig_open(&r, &c);
        assert_true(sl_model_numerics_id(r.model) != id);
        assert_true(sl_model_weight_bytes(r.model) > weights); /* a table of tokens for each */
        run(&r, TOKENS, whole);
        double error = relative_error(whole, one, n);
        print_message("%s %s KV %s degree %u: relative error %.1e, %u of %u positions with other bits\n",
                      m->arch, sl_dtype_name(m->type), sl_dtype_name(kv), degree, error,
                      other_rows(whole, one), TOKENS);
        assert_true(error < most);
        assert_true(other_rows(whole, one) > 0);
        for (uint32_t chunk = 1; chunk < TOKENS; chunk += 22) {
            run(&r, chunk, cut);
            assert_memory_equal(whole, cut, bytes);
        }
        rig_close(&r);
    }
    unlink(path);
    sl_free(path);
    sl_free(one);
    sl_free(whole);
    sl_free(cut);
}

static void logits_of_ranks_are_near_those_of_one_and_equal_in_any_batch(void **state)
{
    (void)state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};
    struct sl_make_model m = shape("llama", SL_F32, false);
    ranks_are_near(&m, "reference", SL_F32, 1e-5);
    for (size_t i = 0; i < SL_COUNTOF(archs); i++) {
        m = shape(archs[i], SL_F32, i % 2);
        ranks_are_near(&m, "auto", SL_F32, 1e-5);
    }
    m = shape("llama", SL_Q4_1, true);
    ranks_are_near(&m, "auto", SL_BF16, 1e-3);
    m = shape("qwen2", SL_F16, true);
    ranks_are_near(&m, "portable", SL_Q8, 1e-3);
}

/* ---- groups ---- */

#define RANKS  4u
#define ROUNDS 2000u

struct member {
    struct sl_rank_group *group;
    uint32_t rank, wrong;
    struct sl_thread thread;
};

static void gather_rounds(void *arg)
{
    struct member *m = arg;
    uint32_t parts[RANKS * 5];
    struct sl_why why = {{0}};
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t n = 1 + i % 5;
        for (uint32_t k = 0; k < n; k++)
            parts[m->rank * n + k] = i * 100 + m->rank * 10 + k;
        if (m->group->all_gather(m->group, m->rank, NULL, parts, n * sizeof parts[0], &why) != SL_OK)
            m->wrong++;
        for (uint32_t r = 0; r < RANKS; r++)
            for (uint32_t k = 0; k < n; k++)
                m->wrong += parts[r * n + k] != i * 100 + r * 10 + k;
    }
}

static void group_of_memory_gathers_everybodys_parts(void **state)
{
    (void)state;
    struct member members[RANKS];
    struct sl_rank_group *g = sl_rank_group_memory(RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        members[r] = (struct member){.group = g, .rank = r};
        assert_int_equal(sl_thread_start(&members[r].thread, "rank", gather_rounds, &members[r]), SL_OK);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        sl_thread_join(&members[r].thread);
        assert_int_equal(members[r].wrong, 0);
    }
    g->close(g);
}

static enum sl_err broken_gather(struct sl_rank_group *g, uint32_t rank, void *stream, void *parts,
                                 size_t bytes, struct sl_why *why)
{
    (void)g, (void)rank, (void)stream, (void)parts, (void)bytes;
    return sl_why_set(why, SL_EPEER, "it broke");
}

static void group_that_breaks_ends_the_process(void **state)
{
    (void)state;
    struct sl_make_model m = shape("llama", SL_F32, true);
    char *path = rig_model_file(&m);
    pid_t child = fork();
    if (child == 0) {
        static float logits[TOKENS * N_VOCAB];
        struct sl_rank_group broken = {.n_ranks = 2, .all_gather = broken_gather};
        struct rig_conf c = conf_of(path, "portable", 2, SL_F32);
        struct rig r;
        c.group = &broken;
        signal(SIGABRT, SIG_DFL);
        rig_open(&r, &c);
        run(&r, TOKENS, logits);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    unlink(path);
    sl_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_ranks_are_near_those_of_one_and_equal_in_any_batch),
        cmocka_unit_test(group_of_memory_gathers_everybodys_parts),
        cmocka_unit_test(group_that_breaks_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
