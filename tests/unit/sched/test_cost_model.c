/* common/sched/cost_model: interpolation, terms, and prediction as values times units. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "common/sched/cost_model.h"

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
                                           .decode_attn_ms_per_mtoken = 20};

static void predict_between_points_is_linear(void **state)
{
    (void)state;
    assert_near(predict(&steps, 0, 0, 0, 0), 0);
    assert_near(predict(&steps, 1, 0, 0, 0), 2);
    assert_near(predict(&steps, 12, 0, 0, 0), 3.5);
    assert_near(predict(&steps, 24, 0, 0, 0), 5);
    assert_near(predict(&steps, 32, 0, 0, 0), 7);
}

static void predict_adds_head_and_attention(void **state)
{
    (void)state;
    assert_near(predict(&steps, 4, 4, 1e6, 0.5e6), 4 + 4 * 0.5 + 10 + 10);
}

static void predict_beyond_the_table_goes_on_upwards(void **state)
{
    (void)state;
    assert_near(predict(&steps, 48, 0, 0, 0), 11);
    struct sl_cost_model falling = steps;
    falling.ms[3] = 2;
    assert_near(predict(&falling, 64, 0, 0, 0), 4); /* by rows when the last segment falls */
    struct sl_cost_model one = {.n_points = 1, .rows = {1}, .ms = {3}};
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

static void units_times_values_are_the_prediction(void **state)
{
    (void)state;
    static const uint32_t rows[] = {0, 1, 5, 12, 32, 100};
    struct sl_cost_model m = steps;
    m.prompt_read_ms_per_mtoken = 7;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_step_load l = {.prompt_rows = rows[i],
                                 .decode_rows = rows[i] / 2,
                                 .prompt_attn = 3e5,
                                 .prompt_history = 2e5,
                                 .decode_context = 1e5};
        double units[SL_COST_VALUES], sum = 0;
        uint32_t n = sl_cost_units(&m, &l, units);
        assert_int_equal(n, m.n_points + SL_COST_TERMS);
        for (uint32_t k = 0; k < n; k++)
            sum += units[k] * *sl_cost_value(&m, k);
        assert_near(sum, sl_cost_predict_ms(&m, &l));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predict_between_points_is_linear),
        cmocka_unit_test(predict_adds_head_and_attention),
        cmocka_unit_test(predict_beyond_the_table_goes_on_upwards),
        cmocka_unit_test(linear_model_is_linear),
        cmocka_unit_test(units_times_values_are_the_prediction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
