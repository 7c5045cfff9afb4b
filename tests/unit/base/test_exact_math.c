/* exp and log against the C library's, over their whole range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>

#include "common/base/exact_math.h"

static void exp_over_its_range_is_close(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = 0; x > -87.0f; x -= 0.000731f) {
        double want = exp((double)x), error = fabs((double)sl_exact_exp(x) - want) / want;
        worst = error > worst ? error : worst;
    }
    assert_true(worst < 2e-7);
}

static void exp_at_the_edges_is_exact(void **state)
{
    (void)state;
    assert_true(sl_exact_exp(0.0f) == 1.0f);
    assert_true(sl_exact_exp(-0.0f) == 1.0f);
    assert_true(sl_exact_exp(-87.0f) > 0.0f && sl_exact_exp(-87.0f) < 2e-38f);
    assert_true(sl_exact_exp(-88.0f) == sl_exact_exp(-87.0f));
    assert_true(sl_exact_exp(-INFINITY) == sl_exact_exp(-87.0f));
}

static void log_over_its_range_is_close(void **state)
{
    (void)state;
    for (double x = 1e-300; x < 1e300; x *= 1.37) {
        double want = log(x);
        assert_true(fabs(sl_exact_log(x) - want) <= 1e-15 * fmax(1, fabs(want)));
    }
    assert_true(sl_exact_log(1.0) == 0.0);
}

static void exp_of_a_double_is_close(void **state)
{
    (void)state;
    for (double x = -700; x < 700; x += 0.0731) {
        double want = exp(x);
        assert_true(fabs(sl_exact_exp_double(x) - want) <= 1e-14 * want);
    }
    assert_true(sl_exact_exp_double(0) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_over_its_range_is_close),
        cmocka_unit_test(exp_at_the_edges_is_exact),
        cmocka_unit_test(log_over_its_range_is_close),
        cmocka_unit_test(exp_of_a_double_is_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
