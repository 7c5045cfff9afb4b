/* Names, groups and sentences of common/base/err. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "tests/support/support.h"

static void names_all_codes_present_and_different(void **state)
{
    (void)state;
    for (int i = 0; i < SL_N_ERR; i++) {
        const char *name = sl_err_name((enum sl_err)i);
        assert_non_null(name);
        assert_string_not_equal(name, "EUNKNOWN");
        for (int j = 0; j < i; j++)
            assert_string_not_equal(name, sl_err_name((enum sl_err)j));
    }
    assert_string_equal(sl_err_name(SL_ENOPAGES), "ENOPAGES");
    assert_string_equal(sl_err_name(SL_EBUG), "EBUG");
}

static void names_unknown_number_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(sl_err_name((enum sl_err)SL_N_ERR), "EUNKNOWN");
    assert_string_equal(sl_err_name((enum sl_err) - 1), "EUNKNOWN");
}

static void class_every_code_in_its_group(void **state)
{
    (void)state;
    static const struct {
        enum sl_err e;
        enum sl_err_class c;
    } table[] = {
        {SL_OK, SL_CLASS_OK},
        {SL_EINVAL, SL_CLASS_BAD_INPUT},
        {SL_EPARSE, SL_CLASS_BAD_INPUT},
        {SL_ETOOBIG, SL_CLASS_BAD_INPUT},
        {SL_ENOTFOUND, SL_CLASS_BAD_INPUT},
        {SL_EUNSUPPORTED, SL_CLASS_BAD_INPUT},
        {SL_EDENIED, SL_CLASS_BAD_INPUT},
        {SL_ECONFIG, SL_CLASS_BAD_INPUT},
        {SL_EAGAIN, SL_CLASS_LATER},
        {SL_ENOPAGES, SL_CLASS_LATER},
        {SL_EDRAINING, SL_CLASS_LATER},
        {SL_ENOTREADY, SL_CLASS_LATER},
        {SL_ECANCELED, SL_CLASS_REQUEST},
        {SL_EDEADLINE, SL_CLASS_REQUEST},
        {SL_ELOST, SL_CLASS_REQUEST},
        {SL_EPEER, SL_CLASS_PEER},
        {SL_EMISMATCH, SL_CLASS_PEER},
        {SL_EDIGEST, SL_CLASS_PEER},
        {SL_EPROTO, SL_CLASS_PEER},
        {SL_ENOMEM, SL_CLASS_PROCESS},
        {SL_EIO, SL_CLASS_PROCESS},
        {SL_EDEVICE, SL_CLASS_PROCESS},
        {SL_EBUG, SL_CLASS_PROCESS},
    };
    assert_int_equal(SL_COUNTOF(table), SL_N_ERR);
    for (size_t i = 0; i < SL_COUNTOF(table); i++)
        assert_int_equal(sl_err_class(table[i].e), table[i].c);
    assert_int_equal(sl_err_class((enum sl_err)999), SL_CLASS_PROCESS);
}

static void why_short_text_kept_and_code_returned(void **state)
{
    (void)state;
    struct sl_why why = {0};
    assert_int_equal(sl_why_set(&why, SL_EPARSE, "found %d, expected %s", 3, "4"), SL_EPARSE);
    assert_string_equal(why.text, "found 3, expected 4");
    assert_int_equal(sl_why_set(NULL, SL_EINVAL, "%s", "nobody listens"), SL_EINVAL);
}

static void why_long_text_cut_and_terminated(void **state)
{
    (void)state;
    struct sl_why why;
    char text[2 * SL_WHY_MAX];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_int_equal(sl_why_set(&why, SL_EINVAL, "%s", text), SL_EINVAL);
    assert_int_equal(strlen(why.text), SL_WHY_MAX - 1);
}

static void fail_assert(void *arg)
{
    const int *number = arg;
    SL_ASSERT(*number == 1);
}

static void assert_false_aborts_and_names_the_place(void **state)
{
    (void)state;
    int number = 2;
    char *text;
    assert_int_equal(sl_test_dies(fail_assert, &number, &text), SIGABRT);
    assert_non_null(strstr(text, "*number == 1"));
    assert_non_null(strstr(text, "test_err.c:"));
    sl_free(text);
    number = 1;
    assert_int_equal(sl_test_dies(fail_assert, &number, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_all_codes_present_and_different),
        cmocka_unit_test(names_unknown_number_has_a_name),
        cmocka_unit_test(class_every_code_in_its_group),
        cmocka_unit_test(why_short_text_kept_and_code_returned),
        cmocka_unit_test(why_long_text_cut_and_terminated),
        cmocka_unit_test(assert_false_aborts_and_names_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
