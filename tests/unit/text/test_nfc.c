/* tests/unit/text/test_nfc.c - NFC against Hugging Face's tokenizers, and texts made to be slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/nfc.h"
#include "tests/golden/text/text_fixture.h"

static void nfc_is(const char *text, size_t n, const char *expected, size_t n_expected, int number)
{
    struct sl_buf out;
    sl_buf_init(&out, SIZE_MAX);
    assert_int_equal(sl_nfc_append(text, n, &out), SL_OK);
    if (out.len != n_expected || (n_expected && memcmp(out.data, expected, n_expected) != 0))
        fail_msg("line %d: \"%s\" became \"%s\", expected \"%s\"", number, text, out.data, expected);
    sl_buf_fini(&out);
}

static void vector_line(void *arg, const json_t *line, int number)
{
    const json_t *text = json_object_get(line, "text"), *nfc = json_object_get(line, "nfc");
    (void)arg;
    nfc_is(json_string_value(text), json_string_length(text), json_string_value(nfc), json_string_length(nfc),
           number);
    /* normal text stays as it is */
    nfc_is(json_string_value(nfc), json_string_length(nfc), json_string_value(nfc), json_string_length(nfc),
           number);
}

static void vectors_match_reference(void **state)
{
    (void)state;
    assert_int_equal(text_fixture_lines(SL_TEST_DATA "/golden/text/nfc_vectors.jsonl", vector_line, NULL),
                     300);
    nfc_is("", 0, "", 0, 0);
}

/* A sort that is quadratic would not end within the test's time limit. */
static void million_marks_on_one_letter_are_ordered_quickly(void **state)
{
    const size_t n = 1u << 20;
    struct sl_buf text, out;
    (void)state;
    sl_buf_init(&text, SIZE_MAX);
    sl_buf_init(&out, SIZE_MAX);
    sl_buf_putc(&text, 'q');
    for (size_t i = 0; i < n / 2; i++)
        sl_buf_puts(&text, "\u0307\u0323"); /* above, below: 230, 220 */
    assert_int_equal(sl_nfc_append(text.data, text.len, &out), SL_OK);
    assert_int_equal(out.len, text.len);
    for (size_t i = 0; i < n; i++)
        assert_memory_equal(out.data + 1 + 2 * i, i < n / 2 ? "\u0323" : "\u0307", 2);
    sl_buf_fini(&text);
    sl_buf_fini(&out);
}

static void full_buffer_is_too_big(void **state)
{
    struct sl_buf out;
    (void)state;
    sl_buf_init(&out, 3);
    assert_int_equal(sl_nfc_append("abcd", 4, &out), SL_ETOOBIG);
    sl_buf_clear(&out);
    assert_int_equal(sl_nfc_append("ab\u0301\u0301", 6, &out), SL_ETOOBIG);
    sl_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_match_reference),
        cmocka_unit_test(million_marks_on_one_letter_are_ordered_quickly),
        cmocka_unit_test(full_buffer_is_too_big),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
