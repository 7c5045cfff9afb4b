/* tests/unit/router/api/test_key_weights.c - weights are found by the key's whole name, bad ones refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "router/api/key_weights.h"

static bool is(double a, double b)
{
    return a >= b && a <= b;
}

static void weights_are_found_by_name(void **state)
{
    (void)state;
    char *items[] = {"alice=2", "alice=lab=0.5", "bob=100"};
    const struct sl_conf_list list = {items, SL_COUNTOF(items)};
    struct sl_why why;
    assert_int_equal(sl_key_weights_check(&list, &why), SL_OK);
    assert_true(is(sl_key_weight(&list, "alice"), 2));
    assert_true(is(sl_key_weight(&list, "alice=lab"), 0.5));
    assert_true(is(sl_key_weight(&list, "bob"), 100));
    assert_true(is(sl_key_weight(&list, "bo"), 1));
    assert_true(is(sl_key_weight(&list, ""), 1));
    assert_true(is(sl_key_weight(&list, NULL), 1));
}

static void bad_weights_are_refused_in_words(void **state)
{
    (void)state;
    static char *const bad[] = {"alice", "=2", "alice=", "alice=0", "alice=101", "alice=nan", "alice=2x"};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        char *items[] = {bad[i]};
        struct sl_why why = {{0}};
        assert_int_equal(sl_key_weights_check(&(struct sl_conf_list){items, 1}, &why), SL_ECONFIG);
        assert_non_null(strstr(why.text, bad[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_found_by_name),
        cmocka_unit_test(bad_weights_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
