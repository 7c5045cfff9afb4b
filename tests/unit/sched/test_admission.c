/* common/sched/admission: the peak against a simulation of sequences that grow and end; the estimate. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/sched/admission.h"
#include "tests/support/support.h"

static void peak_of_one_is_its_end(void **state)
{
    (void)state;
    struct sl_admission_seq s[] = {{.own_pages = 3, .remaining_tokens = 33}};
    assert_int_equal(sl_admission_peak_pages(s, 1, 2, 16), 2 + 3 + 3);
    assert_int_equal(sl_admission_peak_pages(s, 0, 2, 16), 2);
}

static void peak_of_staggered_ends_is_below_the_sum(void **state)
{
    (void)state;
    struct sl_admission_seq s[] = {{.own_pages = 10, .remaining_tokens = 16},
                                   {.own_pages = 10, .remaining_tokens = 320}};
    /* when the first ends: 20 + 2; when the second ends: 10 + 20 */
    assert_int_equal(sl_admission_peak_pages(s, 2, 0, 16), 30);
}

/* Page by page: every sequence grows one page a round until it ends and gives all back. */
static uint64_t simulate(const struct sl_admission_seq *in, uint32_t n)
{
    uint64_t peak = 0;
    for (uint32_t round = 0; round < 64; round++) {
        uint64_t used = 0;
        for (uint32_t i = 0; i < n; i++)
            if (in[i].remaining_tokens >= round)
                used += in[i].own_pages + round;
        peak = used > peak ? used : peak;
    }
    return peak;
}

static void peak_of_random_sets_equals_a_simulation(void **state)
{
    (void)state;
    unsigned long long rng = 4;
    for (int round = 0; round < 5000; round++) {
        struct sl_admission_seq s[20];
        uint32_t n = 1 + (uint32_t)(sl_test_random(&rng) % 20);
        for (uint32_t i = 0; i < n; i++)
            s[i] = (struct sl_admission_seq){.own_pages = (uint32_t)(sl_test_random(&rng) % 30),
                                             .remaining_tokens = (uint32_t)(sl_test_random(&rng) % 60)};
        uint64_t want = simulate(s, n);
        assert_int_equal(sl_admission_peak_pages(s, n, 0, 1), want); /* pages of one token: no rounding */
    }
}

static void expectation_is_the_mean_within_what_may_come(void **state)
{
    (void)state;
    struct sl_output_mean m = {0};
    assert_int_equal(sl_output_mean_expect(&m, 0, 1000, 0), 256); /* nothing seen */
    for (int i = 0; i < 50; i++)
        sl_output_mean_add(&m, 100);
    assert_int_equal(sl_output_mean_expect(&m, 0, 1000, 0), 100);
    assert_int_equal(sl_output_mean_expect(&m, 40, 1000, 0), 60);
    assert_int_equal(sl_output_mean_expect(&m, 500, 1000, 0), 50); /* goes on by half of it */
    assert_int_equal(sl_output_mean_expect(&m, 0, 20, 0), 20);
    assert_int_equal(sl_output_mean_expect(&m, 0, 0, 0), 0);
}

static void expectation_doubles_with_each_preemption(void **state)
{
    (void)state;
    struct sl_output_mean m = {.n = 10, .tokens = 100};
    assert_int_equal(sl_output_mean_expect(&m, 0, 100000, 1), 200);
    assert_int_equal(sl_output_mean_expect(&m, 0, 100000, 3), 800);
    assert_int_equal(sl_output_mean_expect(&m, 0, 100000, 4000), 100000);
}

static void mean_follows_a_change(void **state)
{
    (void)state;
    struct sl_output_mean m = {0};
    for (int i = 0; i < 100; i++)
        sl_output_mean_add(&m, 10);
    for (int i = 0; i < 300; i++)
        sl_output_mean_add(&m, 500);
    assert_true(m.tokens > 450 && m.tokens <= 500);
}

static void watermark_is_one_percent(void **state)
{
    (void)state;
    assert_int_equal(sl_admission_watermark(1000), 10);
    assert_int_equal(sl_admission_watermark(99), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peak_of_one_is_its_end),
        cmocka_unit_test(peak_of_staggered_ends_is_below_the_sum),
        cmocka_unit_test(peak_of_random_sets_equals_a_simulation),
        cmocka_unit_test(expectation_is_the_mean_within_what_may_come),
        cmocka_unit_test(expectation_doubles_with_each_preemption),
        cmocka_unit_test(mean_follows_a_change),
        cmocka_unit_test(watermark_is_one_percent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
