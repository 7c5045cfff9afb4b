/* tests/unit/text/test_stop_match.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/text/stop_match.h"
#include "tests/support/support.h"

static struct sl_stop *make(size_t n, const char *const *strings)
{
    struct sl_stop *s = NULL;
    size_t lens[SL_STOP_MAX_STRINGS] = {0};
    for (size_t i = 0; i < n; i++)
        lens[i] = strlen(strings[i]);
    assert_int_equal(sl_stop_new(strings, lens, n, &s, NULL), SL_OK);
    return s;
}

/* Pushes text byte by byte and at once; both must give this text and index. */
static void check(size_t n, const char *const *strings, const char *text, bool include, int index,
                  const char *expected)
{
    for (size_t step = 1; step <= strlen(text); step++) {
        struct sl_stop *s = make(n, strings);
        struct sl_buf out;
        int found = -1;
        sl_buf_init(&out, 4096);
        for (size_t at = 0; at < strlen(text) && found < 0; at += step) {
            size_t len = strlen(text) - at;
            found = sl_stop_push(s, text + at, len < step ? len : step, include, &out);
        }
        assert_int_equal(found, index);
        if (found < 0)
            sl_stop_end(s, &out);
        assert_string_equal(out.data ? out.data : "", expected);
        assert_int_equal(sl_stop_push(s, "more", found < 0 ? 0 : 4, include, &out), index);
        assert_string_equal(out.data ? out.data : "", expected);
        assert_int_equal(sl_stop_held_bytes(s), 0);
        sl_buf_fini(&out);
        sl_stop_free(s);
    }
}

static void stop_across_borders_is_found(void **state)
{
    const char *const one[] = {"END"}, *const two[] = {"bcd", "c"}, *const tie[] = {"cd", "abcd"};
    (void)state;
    check(1, one, "some textEND and more", false, 0, "some text");
    check(1, one, "some textEND and more", true, 0, "some textEND");
    check(1, one, "EN EEN ENENX", false, -1, "EN EEN ENENX");
    check(1, one, "ENEND", false, 0, "EN");
    check(2, two, "abcd", false, 1, "ab"); /* "c" ends first */
    check(2, tie, "abcd", false, 1, "");   /* both end together: the longer */
    check(2, tie, "xbcd", false, 0, "xb");
}

static void overlapping_beginnings_fall_back(void **state)
{
    const char *const self[] = {"aabaac"}, *const chars[] = {"\xC3\xA9\xC3\xA9!"};
    (void)state;
    check(1, self, "aabaabaac", false, 0, "aab");
    check(1, self, "aaaabaaX", false, -1, "aaaabaaX");
    check(1, chars, "\xC3\xA9\xC3\xA9\xC3\xA9!", false, 0, "\xC3\xA9");
}

static void only_possible_beginnings_are_held_back(void **state)
{
    const char *const strings[] = {"\n\nHuman:", "###"};
    struct sl_stop *s = make(2, strings);
    struct sl_buf out;
    (void)state;
    sl_buf_init(&out, 4096);
    assert_int_equal(sl_stop_push(s, "text", 4, false, &out), -1);
    assert_int_equal(out.len, 4);
    assert_int_equal(sl_stop_push(s, "\n\nHu", 4, false, &out), -1);
    assert_int_equal(out.len, 4);
    assert_int_equal(sl_stop_held_bytes(s), 4);
    assert_int_equal(sl_stop_push(s, "ge ##", 5, false, &out), -1);
    assert_string_equal(out.data, "text\n\nHuge ");
    sl_stop_end(s, &out);
    assert_string_equal(out.data, "text\n\nHuge ##");
    sl_buf_fini(&out);
    sl_stop_free(s);
}

static void no_strings_let_everything_pass(void **state)
{
    struct sl_stop *s = make(0, NULL);
    struct sl_buf out;
    (void)state;
    sl_buf_init(&out, 4096);
    assert_int_equal(sl_stop_push(s, "abc", 3, false, &out), -1);
    assert_string_equal(out.data, "abc");
    sl_buf_fini(&out);
    sl_stop_free(s);
}

static void random_texts_match_a_plain_search(void **state)
{
    unsigned long long seed = 21;
    (void)state;
    for (int round = 0; round < 5000; round++) {
        char texts[3][6], text[41], expected[41];
        const char *strings[3];
        size_t n = 1 + sl_test_random(&seed) % 3, len = 1 + sl_test_random(&seed) % 40, cut = SIZE_MAX,
               best_end = SIZE_MAX;
        for (size_t i = 0; i < n; i++) {
            size_t m = 1 + sl_test_random(&seed) % 5;
            for (size_t k = 0; k < m; k++)
                texts[i][k] = (char)('a' + sl_test_random(&seed) % 2);
            texts[i][m] = 0;
            strings[i] = texts[i];
        }
        for (size_t k = 0; k < len; k++)
            text[k] = (char)('a' + sl_test_random(&seed) % 2);
        text[len] = 0;
        for (size_t i = 0; i < n; i++) {
            const char *hit = strstr(text, texts[i]);
            size_t from = hit ? (size_t)(hit - text) : SIZE_MAX;
            if (hit &&
                (from + strlen(texts[i]) < best_end || (from + strlen(texts[i]) == best_end && from < cut))) {
                best_end = from + strlen(texts[i]);
                cut = from;
            }
        }
        memcpy(expected, text, sizeof expected);
        if (cut != SIZE_MAX)
            expected[cut] = 0;
        struct sl_stop *s = make(n, strings);
        struct sl_buf out;
        int found = -1;
        sl_buf_init(&out, 4096);
        for (size_t at = 0, step; at < len && found < 0; at += step) {
            step = 1 + sl_test_random(&seed) % 4;
            step = step < len - at ? step : len - at;
            found = sl_stop_push(s, text + at, step, false, &out);
        }
        if (found < 0)
            sl_stop_end(s, &out);
        assert_int_equal(found >= 0, cut != SIZE_MAX);
        assert_string_equal(out.data ? out.data : "", expected);
        sl_buf_fini(&out);
        sl_stop_free(s);
    }
}

static void limits_are_enforced(void **state)
{
    const char *many[SL_STOP_MAX_STRINGS + 1];
    size_t lens[SL_STOP_MAX_STRINGS + 1];
    struct sl_stop *s = NULL;
    struct sl_why why = {0};
    char longest[SL_STOP_MAX_BYTES + 1];
    (void)state;
    for (size_t i = 0; i <= SL_STOP_MAX_STRINGS; i++) {
        many[i] = "x";
        lens[i] = 1;
    }
    assert_int_equal(sl_stop_new(many, lens, SL_STOP_MAX_STRINGS + 1, &s, &why), SL_ETOOBIG);
    lens[1] = 0;
    assert_int_equal(sl_stop_new(many, lens, 2, &s, &why), SL_EINVAL);
    memset(longest, 'y', sizeof longest);
    many[0] = longest;
    lens[0] = sizeof longest;
    assert_int_equal(sl_stop_new(many, lens, 1, &s, &why), SL_ETOOBIG);
    lens[0] = SL_STOP_MAX_BYTES;
    assert_int_equal(sl_stop_new(many, lens, 1, &s, &why), SL_OK);
    struct sl_buf out;
    sl_buf_init(&out, 4096);
    assert_int_equal(sl_stop_push(s, longest, SL_STOP_MAX_BYTES - 1, false, &out), -1);
    assert_int_equal(sl_stop_held_bytes(s), SL_STOP_MAX_BYTES - 1);
    assert_int_equal(sl_stop_push(s, "y", 1, false, &out), 0);
    assert_int_equal(out.len, 0);
    sl_buf_fini(&out);
    sl_stop_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_across_borders_is_found),
        cmocka_unit_test(overlapping_beginnings_fall_back),
        cmocka_unit_test(only_possible_beginnings_are_held_back),
        cmocka_unit_test(no_strings_let_everything_pass),
        cmocka_unit_test(random_texts_match_a_plain_search),
        cmocka_unit_test(limits_are_enforced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
