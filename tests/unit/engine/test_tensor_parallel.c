/* The law of exactness at tensor-parallel degrees 2 and 4: the same tokens, logit bits and log-probabilities over
 * chunks, batch mates, threads of a rank, drafts, hits and a split between two engines of the degree. What is wanted
 * is computed alone, in one chunk, by ranks of one thread. Degree 1 has other bits, so that it shows which it was. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/thread.h"
#include "tests/support/support.h"
#include "tests/unit/engine/engine_support.h"

#define PAGE   16u
#define N_JOBS 4u
#define PAGES  128u

#define GIVE_UP_S 120 /* a child that nothing ends */

/* Each architecture has something of its own that is cut, or must not be: biases, norms of heads, norms behind. */
static const struct tiny_choice choices[] = {
    {TINY_LLAMA, SL_F32, SL_F32, "portable", 4}, {TINY_MISTRAL, SL_Q4_1, SL_Q8, "auto", 4},
    {TINY_QWEN2, SL_BF16, SL_BF16, "auto", 2},   {TINY_QWEN3, SL_Q6_K, SL_F16, "auto", 2},
    {TINY_GEMMA3, SL_Q8_0, SL_BF16, "auto", 4},
};

static struct sl_engine *engine(struct tiny_choice c, uint32_t degree, uint32_t threads_each)
{
    struct sl_engine_conf conf = tiny_conf(&c, degree * threads_each, PAGE, PAGES);
    conf.tensor_parallel = degree;
    return tiny_engine(&conf);
}

static void make_asks(struct job asks[N_JOBS])
{
    static const uint32_t lengths[N_JOBS] = {17, 47, 90, 128};
    unsigned long long rng = 5;
    for (uint32_t i = 0; i < N_JOBS; i++) {
        job_init(&asks[i], &rng, lengths[i], 4);
        asks[i].sampling.temperature = i % 2 ? 0.8F : 0;
        asks[i].sampling.n_logprobs = 2;
        asks[i].cache = false;
        asks[i].chunk_tokens = SL_CHUNK_WHOLE;
    }
}

/* Job i of a round: another chunk, split and number of drafts for each. */
static struct job varied(const struct job *ask, uint32_t i, uint32_t round)
{
    static const int32_t chunks[] = {7, 16, 64, SL_CHUNK_AUTO};
    struct job j = *ask;
    uint32_t pages = j.n_prompt / PAGE;
    j.chunk_tokens = j.p_chunk_tokens = chunks[(i + round) % SL_COUNTOF(chunks)];
    j.speculation = (i + round) % 2 ? 4 : SL_SPEC_OFF;
    j.cache = round > 0;
    if ((i + round) % 3 == 1)
        j.split = pages / 2 * PAGE; /* hybrid */
    if ((i + round) % 3 == 2)
        j.split = j.n_prompt; /* pd */
    return j;
}

static void degree_is_equal(const struct tiny_choice *c)
{
    struct job asks[N_JOBS], want[N_JOBS], jobs[N_JOBS], single;
    struct sl_engine *alone = engine(*c, c->tensor_parallel, 1), *one = engine(*c, 1, 1);
    struct sl_engine *d = engine(*c, c->tensor_parallel, 4 / c->tensor_parallel),
                     *p = engine(*c, c->tensor_parallel, 1);
    uint32_t moved = 0, hits = 0, other_bits = 0;
    make_asks(asks);
    assert_true(sl_engine_numerics_id(d) == sl_engine_numerics_id(alone));
    assert_true(sl_engine_numerics_id(d) != sl_engine_numerics_id(one));
    for (uint32_t i = 0; i < N_JOBS; i++) {
        want[i] = single = asks[i];
        jobs_run(alone, NULL, &want[i], 1);
        jobs_run(one, NULL, &single, 1);
        assert_int_equal(want[i].chunks, 1);
        for (uint32_t k = 0; k < want[i].n_out; k++)
            other_bits += want[i].digests[k] != single.digests[k];
    }
    assert_true(other_bits >
                0); /* of few tokens: codes of 8 bits hide most of what another order of sums changes */
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < N_JOBS; i++)
            jobs[i] = varied(&asks[i], i, round);
        jobs_run(d, p, jobs, N_JOBS);
        for (uint32_t i = 0; i < N_JOBS; i++) {
            char name[80];
            snprintf(name, sizeof name, "%s degree %u round %u job %u", tiny_arch_names[c->arch],
                     c->tensor_parallel, round, i);
            job_equal(&want[i], &jobs[i], name);
            moved += jobs[i].pages_moved;
            hits += jobs[i].hit_tokens;
        }
    }
    assert_true(moved > 0 && hits > 0);
    sl_engine_close(alone);
    sl_engine_close(one);
    sl_engine_close(d);
    sl_engine_close(p);
}

static void engine_of_several_ranks_equals_over_all_choices(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(choices); i++)
        degree_is_equal(&choices[i]);
}

static void engine_refuses_a_degree_that_does_not_divide(void **state)
{
    (void)state;
    static const struct {
        struct tiny_choice choice;
        uint32_t degree;
        const char *says;
    } bad[] = {
        {{TINY_LLAMA, SL_F32, SL_F32, "auto", 2}, 3, "tensor_parallel is 3, and the model has 4 KV heads"},
        {{TINY_LLAMA, SL_Q6_K, SL_F32, "auto", 4},
         4,
         "blk.0.attn_output.weight has 512 columns of type Q6_K, which cannot be cut into 4 equal parts of "
         "whole "
         "blocks of 256"},
        {{TINY_LLAMA, SL_F32, SL_F32, "auto", 2}, 65, "tensor_parallel is 65; expected 64 at most"},
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        struct sl_engine_conf conf = tiny_conf(&bad[i].choice, 1, PAGE, PAGES);
        struct sl_engine *e = NULL;
        struct sl_why why = {0};
        conf.tensor_parallel = bad[i].degree;
        assert_int_equal(sl_engine_open(&conf, &e, &why), SL_EUNSUPPORTED);
        if (!strstr(why.text, bad[i].says))
            fail_msg("it says: %s", why.text);
    }
}

static void run_for_ever(void *arg)
{
    struct job asks[N_JOBS];
    make_asks(asks);
    jobs_run(arg, NULL, asks, 1);
}

/* In a process of its own, since nothing ends the rank. It ends itself by a signal, past all who count its threads. */
static void rank_that_never_comes_is_not_waited_for(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct sl_engine_conf conf = tiny_conf(&choices[0], 2, PAGE, PAGES);
        struct sl_thread t = {0};
        alarm(GIVE_UP_S);
        conf.tensor_parallel = 2;
        conf.fault_wedge_step = 1;
        struct sl_engine *e = tiny_engine(&conf);
        if (!sl_engine_settles(e, 0, -1) || sl_thread_start(&t, "engine", run_for_ever, e) != SL_OK)
            _exit(1);
        while (sl_engine_settles(e, 20, -1))
            usleep(1000); /* the step has not begun */
        raise(SIGKILL);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_that_never_comes_is_not_waited_for),
        cmocka_unit_test(engine_of_several_ranks_equals_over_all_choices),
        cmocka_unit_test(engine_refuses_a_degree_that_does_not_divide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
