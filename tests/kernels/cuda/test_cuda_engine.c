/* Requests through whole engines on emulated CUDA devices: passes kept as graphs, rows sampled where their logits
 * are, pages from a prefill engine to a decode engine. On the exact table tokens, digests and log-probabilities are
 * the same alone and in company, in one chunk and in many, colocated and disaggregated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "tests/unit/engine/engine_support.h"

#define PAGE_TOKENS 16u
#define N_PAGES     40u
#define N_JOBS      3u

static void jobs_init(struct job *jobs)
{
    unsigned long long rng = 5;
    static const uint32_t n_prompt[N_JOBS] = {50, 23, 33};
    for (uint32_t i = 0; i < N_JOBS; i++) {
        job_init(&jobs[i], &rng, n_prompt[i], 6);
        jobs[i].cache = false;
    }
    jobs[0].sampling.temperature = 0.8f;
    jobs[0].sampling.top_p = 0.9f;
    jobs[0].sampling.n_logprobs = 3;
    jobs[1].sampling.temperature = 1.2f;
    jobs[1].sampling.top_k = 30;
    jobs[1].sampling.repetition_penalty = 1.3f;
    jobs[1].sampling.frequency_penalty = 0.5f;
    jobs[2].sampling.n_logprobs = 0; /* greedy */
}

static void check_kv(enum sl_dtype kv)
{
    struct tiny_choice choice = {TINY_GEMMA3, SL_Q4_1, kv, "cuda-plain", 0};
    struct sl_engine_conf conf = tiny_conf(&choice, 2, PAGE_TOKENS, N_PAGES);
    struct sl_engine *d = tiny_engine(&conf), *p = tiny_engine(&conf);
    static struct job want[N_JOBS], got[N_JOBS];
    jobs_init(want);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        want[i].chunk_tokens = SL_CHUNK_WHOLE;
        jobs_run(d, NULL, &want[i], 1);
    }
    jobs_init(got);
    for (uint32_t i = 0; i < N_JOBS; i++)
        got[i].chunk_tokens = got[i].p_chunk_tokens = 16;
    got[0].split = 32;              /* the rest of the prompt is computed where it decodes */
    got[2].split = got[2].n_prompt; /* all of it, and the first token, come from the other */
    jobs_run(d, p, got, N_JOBS);
    for (uint32_t i = 0; i < N_JOBS; i++)
        job_equal(&want[i], &got[i], "an emulated CUDA device");
    assert_true(got[0].pages_moved > 0);
    assert_true(got[2].first_from_p);
    sl_engine_close(d);
    sl_engine_close(p);
}

static void requests_are_equal_over_modes_with_bfloat16_kv(void **state)
{
    (void)state;
    check_kv(SL_BF16);
}

static void requests_are_equal_over_modes_with_int8_kv(void **state)
{
    (void)state;
    check_kv(SL_Q8);
}

static void requests_are_equal_over_modes_with_fp8_kv(void **state)
{
    (void)state;
    check_kv(SL_FP8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_equal_over_modes_with_bfloat16_kv),
        cmocka_unit_test(requests_are_equal_over_modes_with_int8_kv),
        cmocka_unit_test(requests_are_equal_over_modes_with_fp8_kv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
