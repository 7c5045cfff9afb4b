/* tests/unit/text/test_utf8.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/span.h"
#include "common/text/utf8.h"

static void every_character_survives_a_round_trip(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char s[4];
        uint32_t back = 0;
        size_t used = 0, n = sl_utf8_encode(cp, s);
        bool surrogate = cp >= 0xD800 && cp <= 0xDFFF;
        assert_int_equal(sl_utf8_next(s, n, &back, &used), SL_UTF8_VALID);
        assert_int_equal(used, n);
        assert_int_equal(back, surrogate ? SL_UTF8_REPLACEMENT : cp);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(sl_utf8_next(s, cut, &back, &used), SL_UTF8_INCOMPLETE);
            assert_int_equal(used, cut);
        }
    }
}

static void malformed_bytes_count_as_maximal_subparts(void **state)
{
    static const struct {
        const char *s;
        size_t n, used;
        enum sl_utf8_state expected;
    } cases[] = {
        {"\x80", 1, 1, SL_UTF8_INVALID},
        {"\xC0\x80", 2, 1, SL_UTF8_INVALID},
        {"\xC1\xBF", 2, 1, SL_UTF8_INVALID},
        {"\xE0\x80\x80", 3, 1, SL_UTF8_INVALID},
        {"\xED\xA0\x80", 3, 1, SL_UTF8_INVALID},
        {"\xF0\x80\x80\x80", 4, 1, SL_UTF8_INVALID},
        {"\xF4\x90\x80\x80", 4, 1, SL_UTF8_INVALID},
        {"\xF5\x80\x80\x80", 4, 1, SL_UTF8_INVALID},
        {"\xFF", 1, 1, SL_UTF8_INVALID},
        {"\xE2\x82"
         "a",
         3, 2, SL_UTF8_INVALID},
        {"\xF0\x9F\x98"
         "a",
         4, 3, SL_UTF8_INVALID},
        {"\xC3"
         "a",
         2, 1, SL_UTF8_INVALID},
        {"\xE2\x82", 2, 2, SL_UTF8_INCOMPLETE},
        {"\xF0\x9F\x98", 3, 3, SL_UTF8_INCOMPLETE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t cp = 0;
        size_t used = 0;
        assert_int_equal(sl_utf8_next(cases[i].s, cases[i].n, &cp, &used), cases[i].expected);
        assert_int_equal(used, cases[i].used);
    }
}

static void repair_marks_what_is_no_character(void **state)
{
    static const struct {
        const char *text, *repaired;
    } rows[] = {{"", ""}, {"a\xC3\xA9z", "a\xC3\xA9z"}, {"ab\xFFz\xC3", "ab?z?"}, {"\xE2\x82", "??"}};
    char text[16];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, "%s", rows[i].text);
        sl_utf8_repair(text);
        assert_string_equal(text, rows[i].repaired);
    }
}

static void valid_prefix_stops_at_the_first_bad_byte(void **state)
{
    (void)state;
    assert_int_equal(sl_utf8_valid_prefix("", 0), 0);
    assert_int_equal(sl_utf8_valid_prefix("a\xC3\xA9z", 4), 4);
    assert_int_equal(sl_utf8_valid_prefix("a\xC3\xA9\xC3", 4), 3);
    assert_int_equal(sl_utf8_valid_prefix("ab\xFFz", 4), 2);
    assert_int_equal(sl_utf8_count("a\xC3\xA9\xE2\x82\xAC", 6), 3);
}

static void spans_that_touch_become_one(void **state)
{
    struct sl_spans s = {0};
    (void)state;
    sl_spans_add(&s, 1, 1);
    assert_int_equal(s.n, 0);
    sl_spans_add(&s, 1, 3);
    sl_spans_add(&s, 3, 5);
    sl_spans_add(&s, 6, 7);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.items[0].end, 5);
    sl_spans_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_survives_a_round_trip),
        cmocka_unit_test(malformed_bytes_count_as_maximal_subparts),
        cmocka_unit_test(repair_marks_what_is_no_character),
        cmocka_unit_test(valid_prefix_stops_at_the_first_bad_byte),
        cmocka_unit_test(spans_that_touch_become_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
