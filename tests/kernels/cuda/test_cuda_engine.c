/* Requests through whole engines on emulated CUDA devices: passes kept as graphs, rows sampled where their logits
 * are, pages from a prefill engine to a decode engine. On the exact table tokens, digests and log-probabilities are
 * the same alone and in company, in one chunk and in many, colocated and disaggregated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "tests/unit/engine/engine_support.h"

#define PAGE_TOKENS 16u
#define N_PAGES     40u

static void check_kv(enum sl_dtype kv)
{
    struct tiny_choice choice = {TINY_GEMMA3, SL_Q4_1, kv, "cuda-plain", 0};
    struct sl_engine_conf conf = tiny_conf(&choice, 2, PAGE_TOKENS, N_PAGES);
    struct sl_engine *d = tiny_engine(&conf), *p = tiny_engine(&conf);
    jobs_equal_over_modes(d, p, "an emulated CUDA device");
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
