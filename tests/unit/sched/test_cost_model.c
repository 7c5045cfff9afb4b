/* common/sched/cost_model: interpolation, and refinement towards a hidden truth with noise and outliers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "common/sched/cost_model.h"
#include "tests/support/support.h"

static double predict(const struct sl_cost_model *m, uint32_t prompt, uint32_t decode, double attn,
                      double context)
{
    struct sl_step_load l = {
        .prompt_rows = prompt, .decode_rows = decode, .prompt_attn = attn, .decode_context = context};
    return sl_cost_predict_ms(m, &l);
}

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * (1 + fabs(b)))
        fail_msg("%g is not %g", a, b);
}

static const struct sl_cost_model steps = {.n_points = 4,
                                           .rows = {1, 8, 16, 32},
                                           .ms = {2, 4, 3, 7}, /* with a dip, as on a GPU */
                                           .head_ms_per_row = 0.5,
                                           .prompt_attn_ms_per_mtoken = 10,
                                           .decode_attn_ms_per_mtoken = 20,
                                           .scale = 2};

static void predict_between_points_is_linear(void **state)
{
    (void)state;
    assert_near(predict(&steps, 0, 0, 0, 0), 0);
    assert_near(predict(&steps, 1, 0, 0, 0), 4);
    assert_near(predict(&steps, 12, 0, 0, 0), 7);
    assert_near(predict(&steps, 24, 0, 0, 0), 10);
    assert_near(predict(&steps, 32, 0, 0, 0), 14);
}

static void predict_adds_head_and_attention(void **state)
{
    (void)state;
    assert_near(predict(&steps, 4, 4, 1e6, 0.5e6), 2 * (4 + 4 * 0.5 + 10 + 10));
}

static void predict_beyond_the_table_goes_on_upwards(void **state)
{
    (void)state;
    assert_near(predict(&steps, 48, 0, 0, 0), 2 * 11);
    struct sl_cost_model falling = steps;
    falling.ms[3] = 2;
    assert_near(predict(&falling, 64, 0, 0, 0), 2 * 4); /* by rows when the last segment falls */
    struct sl_cost_model one = {.n_points = 1, .rows = {1}, .ms = {3}, .scale = 1};
    assert_near(predict(&one, 4, 0, 0, 0), 12);
}

static void linear_model_is_linear(void **state)
{
    (void)state;
    struct sl_cost_model m;
    sl_cost_init_linear(&m, 5, 0.25);
    assert_near(predict(&m, 1, 0, 0, 0), 5.25);
    assert_near(predict(&m, 100, 28, 0, 0), 37);
    assert_near(predict(&m, 4000, 0, 0, 0), 1005);
}

static double noise(unsigned long long *rng)
{
    return (double)(sl_test_random(rng) % 1000) / 1000 - 0.5;
}

/* The truth has twice the attention and 1.5 times the rows' time; 5 % noise, every 20th step five times as
 * long. */
static void observe_learns_each_term_through_noise_and_outliers(void **state)
{
    (void)state;
    struct sl_cost_model truth, m;
    sl_cost_init_linear(&truth, 6, 0.75);
    truth.prompt_attn_ms_per_mtoken = 300;
    truth.decode_attn_ms_per_mtoken = 400;
    sl_cost_init_linear(&m, 4, 0.5);
    m.prompt_attn_ms_per_mtoken = 150;
    m.decode_attn_ms_per_mtoken = 200;
    unsigned long long rng = 1;
    for (int i = 0; i < 6000; i++) {
        uint32_t c = 8 + (uint32_t)(sl_test_random(&rng) % 120), h = (uint32_t)(sl_test_random(&rng) % 4000);
        uint32_t d = (uint32_t)(sl_test_random(&rng) % 9);
        struct sl_step_load l = {.prompt_rows = i % 3 ? c : 0,
                                 .decode_rows = d,
                                 .prompt_attn = i % 3 ? c * (h + c / 2.0) : 0,
                                 .decode_context = d * 500.0};
        double real = sl_cost_predict_ms(&truth, &l) * (1 + 0.1 * noise(&rng));
        sl_cost_observe(&m, &l, i % 20 == 0 ? 5 * real : real);
    }
    const struct sl_step_load probes[] = {
        {.decode_rows = 7, .decode_context = 3500},
        {.prompt_rows = 64, .decode_rows = 7, .prompt_attn = 64 * 32, .decode_context = 3500},
        {.prompt_rows = 64, .decode_rows = 7, .prompt_attn = 64 * 4032, .decode_context = 3500},
        {.prompt_rows = 128, .prompt_attn = 128 * 2000},
    };
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        double want = sl_cost_predict_ms(&truth, &probes[i]), got = sl_cost_predict_ms(&m, &probes[i]);
        if (fabs(got - want) > 0.15 * want)
            fail_msg("probe %zu: %.2f ms, the truth is %.2f", i, got, want);
    }
    assert_true(m.error < 0.5);
}

static void observe_one_outlier_moves_little(void **state)
{
    (void)state;
    struct sl_cost_model m;
    sl_cost_init_linear(&m, 5, 0.25);
    struct sl_step_load l = {.prompt_rows = 64};
    double before = sl_cost_predict_ms(&m, &l);
    sl_cost_observe(&m, &l, before * 1000);
    assert_true(sl_cost_predict_ms(&m, &l) < before * 1.05);
    sl_cost_observe(&m, &l, before / 1000);
    assert_true(sl_cost_predict_ms(&m, &l) > before * 0.95);
}

static void observe_of_nonsense_changes_nothing(void **state)
{
    (void)state;
    struct sl_cost_model m;
    sl_cost_init_linear(&m, 5, 0.25);
    struct sl_step_load l = {.prompt_rows = 64}, nothing = {0};
    double before = sl_cost_predict_ms(&m, &l);
    sl_cost_observe(&m, &l, 0);
    sl_cost_observe(&m, &l, -1);
    sl_cost_observe(&m, &l, (double)NAN);
    sl_cost_observe(&m, &l, (double)INFINITY);
    sl_cost_observe(&m, &nothing, 3);
    assert_near(sl_cost_predict_ms(&m, &l), before);
}

static void observe_for_ever_stays_finite(void **state)
{
    (void)state;
    struct sl_cost_model m = steps;
    unsigned long long rng = 5;
    for (int i = 0; i < 100000; i++) {
        struct sl_step_load l = {.prompt_rows = (uint32_t)(sl_test_random(&rng) % 100),
                                 .decode_rows = (uint32_t)(sl_test_random(&rng) % 9),
                                 .prompt_attn = (double)(sl_test_random(&rng) % 1000000)};
        sl_cost_observe(&m, &l, i % 2 ? 1e6 : 1e-6);
        double ms = predict(&m, 50, 0, 0, 0);
        assert_true(isfinite(ms) && ms > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predict_between_points_is_linear),
        cmocka_unit_test(predict_adds_head_and_attention),
        cmocka_unit_test(predict_beyond_the_table_goes_on_upwards),
        cmocka_unit_test(linear_model_is_linear),
        cmocka_unit_test(observe_learns_each_term_through_noise_and_outliers),
        cmocka_unit_test(observe_one_outlier_moves_little),
        cmocka_unit_test(observe_of_nonsense_changes_nothing),
        cmocka_unit_test(observe_for_ever_stays_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
