/* Percentiles against values numpy.percentile gives for the same lists. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/bench/search.h"
#include "tests/bench/seeds.h"
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

static void std_is_over_n(void **state)
{
    (void)state;
    struct sl_samples s = {0};
    assert_true(sl_samples_std(&s) == 0);
    for (double v = 1; v <= 5; v++)
        sl_samples_add(&s, v);
    assert_true(fabs(sl_samples_std(&s) - sqrt(2)) < 1e-12); /* numpy.std([1, 2, 3, 4, 5]) */
    sl_samples_fini(&s);
}

/* scipy.stats.t.interval(0.95, 3, mean, sem) of the same values */
static void seeds_mean_has_students_interval(void **state)
{
    (void)state;
    const double v[] = {1, 2, NAN, 3, 4};
    struct sl_interval i = sl_seeds_mean(v, 5);
    assert_true(fabs(i.mean - 2.5) < 1e-12);
    assert_true(fabs(i.low - 0.4457) < 1e-3 && fabs(i.high - 4.5543) < 1e-3);
    i = sl_seeds_mean(v, 1);
    assert_true(i.mean == 1 && isnan(i.low) && isnan(i.high));
    assert_true(isnan(sl_seeds_mean(v, 0).mean));
}

static void seeds_ratio_is_paired(void **state)
{
    (void)state;
    const double a[] = {2, 20, 200, 5}, b[] = {1, 10, 100, 0};
    struct sl_interval i = sl_seeds_ratio(a, b, 4); /* all pairs have ratio 2; the last one has none */
    assert_true(fabs(i.mean - 2) < 1e-12 && fabs(i.low - 2) < 1e-9 && fabs(i.high - 2) < 1e-9);
}

/* From any first rate to within the tolerance below the limit. */
static void search_finds_the_limit(void **state)
{
    (void)state;
    const double firsts[] = {0.1, 7.2, 7.3, 400};
    for (size_t i = 0; i < 4; i++) {
        struct sl_search h;
        double rate;
        int runs = 0;
        sl_search_init(&h);
        while ((rate = sl_search_next(&h, firsts[i], 0.025)) > 0 && ++runs < 40)
            sl_search_learn(&h, rate, rate <= 7.25);
        assert_true(h.passes <= 7.25 && h.passes * 1.025 >= 7.25);
        assert_true(runs <= 20);
    }
}

static void search_ends_where_nothing_passes_or_all_does(void **state)
{
    (void)state;
    for (int passes = 0; passes < 2; passes++) {
        struct sl_search h;
        double rate;
        int runs = 0;
        sl_search_init(&h);
        while ((rate = sl_search_next(&h, 1, 0.025)) > 0 && ++runs < 40)
            sl_search_learn(&h, rate, passes);
        assert_true(runs < 40);
        assert_true(passes ? h.passes > 1000 : h.passes == 0);
    }
}

static void search_does_not_believe_a_pass_behind_a_failure(void **state)
{
    (void)state;
    struct sl_search h;
    sl_search_init(&h);
    sl_search_learn(&h, 1, true);
    sl_search_learn(&h, 2, false);
    sl_search_learn(&h, 4, true);
    assert_true(h.passes == 1 && h.fails == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(percentile_of_five_interpolates),
                                       cmocka_unit_test(percentile_of_nothing_is_nan),
                                       cmocka_unit_test(std_is_over_n),
                                       cmocka_unit_test(seeds_mean_has_students_interval),
                                       cmocka_unit_test(seeds_ratio_is_paired),
                                       cmocka_unit_test(search_finds_the_limit),
                                       cmocka_unit_test(search_ends_where_nothing_passes_or_all_does),
                                       cmocka_unit_test(search_does_not_believe_a_pass_behind_a_failure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
