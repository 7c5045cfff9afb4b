/* Percentiles against values numpy.percentile gives for the same lists. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/bench/stats.h"

static void percentile_of_five_interpolates(void **state)
{
    (void)state;
    struct sl_samples s = {0};
    const double v[] = {5, 1, 4, 2, 3};
    for (size_t i = 0; i < 5; i++)
        sl_samples_add(&s, v[i]);
    assert_true(fabs(sl_samples_percentile(&s, 50) - 3.0) < 1e-12);
    assert_true(fabs(sl_samples_percentile(&s, 90) - 4.6) < 1e-12);
    assert_true(fabs(sl_samples_percentile(&s, 100) - 5.0) < 1e-12);
    assert_true(fabs(sl_samples_mean(&s) - 3.0) < 1e-12);
    sl_samples_fini(&s);
}

static void percentile_of_nothing_is_nan(void **state)
{
    (void)state;
    struct sl_samples s = {0};
    assert_true(isnan(sl_samples_percentile(&s, 50)));
    assert_true(isnan(sl_samples_mean(&s)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(percentile_of_five_interpolates),
                                       cmocka_unit_test(percentile_of_nothing_is_nan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
