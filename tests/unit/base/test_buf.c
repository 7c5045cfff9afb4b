/* Growth, maximum and JSON escapes of common/base/buf. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "tests/support/support.h"

static void append_grows_and_stays_terminated(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    for (int i = 0; i < 10000; i++) {
        assert_true(sl_buf_putc(&b, (char)('a' + i % 26)));
        assert_int_equal(b.len, i + 1);
        assert_int_equal(b.data[b.len], 0);
    }
    for (int i = 0; i < 10000; i++)
        assert_int_equal(b.data[i], 'a' + i % 26);
    sl_buf_fini(&b);
    sl_buf_fini(&b);
}

static void append_binary_bytes_are_kept(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 100);
    assert_true(sl_buf_append(&b, "a\0b", 3));
    assert_true(sl_buf_append(&b, NULL, 0));
    assert_int_equal(b.len, 3);
    assert_memory_equal(b.data, "a\0b", 4);
    sl_buf_fini(&b);
}

static void maximum_is_reached_exactly_and_not_passed(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 100);
    for (int i = 0; i < 100; i++)
        assert_true(sl_buf_putc(&b, 'x'));
    assert_false(sl_buf_failed(&b));
    assert_true(b.cap <= 101);
    assert_false(sl_buf_putc(&b, 'x'));
    assert_int_equal(b.len, 100);
    assert_true(sl_buf_failed(&b));
    sl_buf_fini(&b);
}

static void maximum_passed_is_remembered_until_clear(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 10);
    assert_true(sl_buf_puts(&b, "12345"));
    assert_false(sl_buf_puts(&b, "678901"));
    assert_false(sl_buf_puts(&b, "6"));
    assert_string_equal(b.data, "12345");
    assert_true(sl_buf_failed(&b));
    sl_buf_clear(&b);
    assert_false(sl_buf_failed(&b));
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    assert_true(sl_buf_puts(&b, "1234567890"));
    sl_buf_fini(&b);
}

static void maximum_zero_takes_nothing(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    assert_true(sl_buf_puts(&b, ""));
    assert_false(sl_buf_putc(&b, 'x'));
    sl_buf_fini(&b);
}

static void maximum_unlimited_refuses_an_impossible_length(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, SIZE_MAX);
    assert_true(sl_buf_puts(&b, "x"));
    const size_t impossible[] = {SIZE_MAX, SIZE_MAX - 1};
    for (size_t i = 0; i < SL_COUNTOF(impossible); i++) {
        b.failed = false;
        assert_false(sl_buf_append(&b, b.data, impossible[i]));
    }
    assert_string_equal(b.data, "x");
    sl_buf_fini(&b);
}

static void printf_any_length_lands_whole(void **state)
{
    (void)state;
    for (int width = 1; width < 300; width++) {
        struct sl_buf b;
        sl_buf_init(&b, 1000);
        assert_true(sl_buf_puts(&b, "ab"));
        assert_true(sl_buf_printf(&b, "%0*d", width, 7));
        assert_true(sl_buf_printf(&b, "|"));
        assert_int_equal(b.len, width + 3);
        assert_int_equal(b.data[width + 1], '7');
        assert_string_equal(b.data + width + 2, "|");
        sl_buf_fini(&b);
    }
}

static void printf_past_the_maximum_leaves_the_text(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 20);
    assert_true(sl_buf_puts(&b, "0123456789"));
    assert_false(sl_buf_printf(&b, "%s", "abcdefghijk"));
    assert_string_equal(b.data, "0123456789");
    assert_int_equal(b.len, 10);
    sl_buf_clear(&b);
    assert_true(sl_buf_printf(&b, "%s%s", "0123456789", "abcdefghij"));
    assert_string_equal(b.data, "0123456789abcdefghij");
    sl_buf_fini(&b);
}

#define FFFD "\xef\xbf\xbd"

static void json_escape_table(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } table[] = {
        {"", 0, ""},
        {"plain", 5, "plain"},
        {"a\"b\\c/d", 7, "a\\\"b\\\\c/d"},
        {"\n\r\t\b\f\x01\x1f\x7f", 8, "\\n\\r\\t\\u0008\\u000c\\u0001\\u001f\x7f"},
        {"\0x", 2, "\\u0000x"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\x80", 1, FFFD},                                           /* a lone continuation byte */
        {"\xc3", 1, FFFD},                                           /* cut at the end */
        {"\xe2\x82", 2, FFFD},                                       /* cut at the end: one replacement */
        {"\xe2\x82x", 3, FFFD "x"},                                  /* cut in the middle */
        {"\xc0\xaf", 2, FFFD FFFD},                                  /* a longer form than needed */
        {"\xe0\x9f\x80", 3, FFFD FFFD FFFD},                         /* the same with three bytes */
        {"\xed\xa0\x80", 3, FFFD FFFD FFFD},                         /* a surrogate */
        {"\xed\x9f\xbf\xee\x80\x80", 6, "\xed\x9f\xbf\xee\x80\x80"}, /* its neighbours */
        {"\xf4\x90\x80\x80", 4, FFFD FFFD FFFD FFFD},                /* past U+10FFFF */
        {"\xf4\x8f\xbf\xbf", 4, "\xf4\x8f\xbf\xbf"},                 /* U+10FFFF itself */
        {"\xf0\x8f\xbf\xbf", 4, FFFD FFFD FFFD FFFD},
        {"\xf0\x90\x80\x80", 4, "\xf0\x90\x80\x80"},
        {"\xf0\x9f\x98", 3, FFFD},
        {"\xff\xfe", 2, FFFD FFFD},
        {"\xc1\xbf\xc2\x80\xdf\xbf", 6, FFFD FFFD "\xc2\x80\xdf\xbf"},
        {"\xe2\x82\"", 3, FFFD "\\\""}, /* the quote behind a cut character is still escaped */
    };
    for (size_t i = 0; i < SL_COUNTOF(table); i++) {
        struct sl_buf b;
        sl_buf_init(&b, 1000);
        assert_true(sl_buf_puts(&b, "<"));
        assert_true(sl_buf_json_escape(&b, table[i].in, table[i].n));
        assert_true(sl_buf_puts(&b, ">"));
        char *expected = sl_xasprintf("<%s>", table[i].out);
        assert_string_equal(b.data, expected);
        assert_int_equal(b.len, strlen(expected));
        sl_free(expected);
        sl_buf_fini(&b);
    }
}

static void json_escape_past_the_maximum_adds_nothing(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 6);
    assert_true(sl_buf_puts(&b, "ab"));
    assert_false(sl_buf_json_escape(&b, "x\ny\nz", 5));
    assert_string_equal(b.data, "ab");
    assert_true(sl_buf_failed(&b));
    sl_buf_fini(&b);
}

static void consume_drops_the_front(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 100);
    sl_buf_consume(&b, 0);
    assert_true(sl_buf_puts(&b, "abcdef"));
    sl_buf_consume(&b, 2);
    assert_string_equal(b.data, "cdef");
    sl_buf_consume(&b, 4);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    assert_true(sl_buf_puts(&b, "x"));
    assert_string_equal(b.data, "x");
    sl_buf_fini(&b);
}

static void steal_gives_the_text_and_an_empty_buffer(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 100);
    char *s = sl_buf_steal(&b);
    assert_string_equal(s, "");
    sl_free(s);
    assert_true(sl_buf_puts(&b, "abc"));
    s = sl_buf_steal(&b);
    assert_string_equal(s, "abc");
    sl_free(s);
    assert_int_equal(b.len, 0);
    assert_true(sl_buf_puts(&b, "next"));
    assert_string_equal(b.data, "next");
    sl_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append_grows_and_stays_terminated),
        cmocka_unit_test(append_binary_bytes_are_kept),
        cmocka_unit_test(maximum_is_reached_exactly_and_not_passed),
        cmocka_unit_test(maximum_passed_is_remembered_until_clear),
        cmocka_unit_test(maximum_zero_takes_nothing),
        cmocka_unit_test(maximum_unlimited_refuses_an_impossible_length),
        cmocka_unit_test(printf_any_length_lands_whole),
        cmocka_unit_test(printf_past_the_maximum_leaves_the_text),
        cmocka_unit_test(json_escape_table),
        cmocka_unit_test(json_escape_past_the_maximum_adds_nothing),
        cmocka_unit_test(consume_drops_the_front),
        cmocka_unit_test(steal_gives_the_text_and_an_empty_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
