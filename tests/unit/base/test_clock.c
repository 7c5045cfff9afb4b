/* Units and direction of common/base/clock. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "common/base/clock.h"

static void clock_never_goes_back(void **state)
{
    (void)state;
    uint64_t before = sl_now_ns();
    for (int i = 0; i < 10000; i++) {
        uint64_t now = sl_now_ns();
        assert_true(now >= before);
        before = now;
    }
}

static void clock_units_agree(void **state)
{
    (void)state;
    uint64_t ns = sl_now_ns(), us = sl_now_us(), ms = sl_now_ms(), after = sl_now_ns();
    assert_true(ns / 1000 <= us && us <= after / 1000);
    assert_true(ns / 1000000 <= ms && ms <= after / 1000000);
    assert_true(ns > 1000000);
}

static void wall_counts_from_1970(void **state)
{
    (void)state;
    int64_t before = (int64_t)time(NULL), wall = sl_wall_s(), after = (int64_t)time(NULL);
    assert_true(before <= wall && wall <= after);
}

static void silence_of_a_time_away_is_forgiven(void **state)
{
    (void)state;
    assert_int_equal(sl_heard_ms(100, 0, 900), 100);
    assert_int_equal(sl_heard_ms(100, 300, 900), 400);
    assert_int_equal(sl_heard_ms(100, 800, 900), 900);
    assert_int_equal(sl_heard_ms(100, UINT64_MAX, 900), 900);
    assert_int_equal(sl_heard_ms(900, 5, 900), 900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clock_never_goes_back),
        cmocka_unit_test(clock_units_agree),
        cmocka_unit_test(silence_of_a_time_away_is_forgiven),
        cmocka_unit_test(wall_counts_from_1970),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
