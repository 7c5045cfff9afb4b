/* tests/unit/text/test_detok.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/detok.h"
#include "common/text/utf8.h"
#include "tests/golden/text/text_fixture.h"
#include "tests/support/support.h"

static struct sl_buf out;

static int begin(void **state)
{
    (void)state;
    sl_buf_init(&out, 1u << 20);
    return 0;
}

static int end(void **state)
{
    (void)state;
    sl_buf_fini(&out);
    return 0;
}

static void push(struct sl_detok *d, const char *bytes, const char *expected)
{
    size_t before = out.len;
    assert_true(sl_detok_push_bytes(d, bytes, strlen(bytes), &out));
    assert_int_equal(out.len - before, strlen(expected));
    if (*expected)
        assert_memory_equal(out.data + before, expected, strlen(expected));
}

static void half_character_is_held_back(void **state)
{
    struct sl_detok d;
    (void)state;
    sl_detok_init(&d, NULL, false);
    push(&d, "a\xF0", "a");
    push(&d, "\x9F", "");
    push(&d, "\x99\x82z", "\xF0\x9F\x99\x82z");
    assert_true(sl_detok_end(&d, &out));
    assert_int_equal(out.len, 6);
}

static void character_that_never_comes_is_replaced(void **state)
{
    struct sl_detok d;
    (void)state;
    sl_detok_init(&d, NULL, false);
    push(&d, "\xE2\x82", "");
    push(&d, "a", SL_UTF8_REPLACEMENT_STR "a");
    push(&d, "\xE2\x82", "");
    push(&d, "\xC3", SL_UTF8_REPLACEMENT_STR);
    push(&d, "\xA9", "\xC3\xA9");
    push(&d, "\xFF", SL_UTF8_REPLACEMENT_STR);
    push(&d, "\xF0\x9F\x99", "");
    size_t before = out.len;
    assert_true(sl_detok_end(&d, &out));
    assert_int_equal(out.len - before, 3);
    assert_true(sl_detok_end(&d, &out));
    assert_int_equal(out.len - before, 3);
}

static void any_grouping_gives_the_same_valid_text(void **state)
{
    unsigned long long seed = 9;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        char bytes[40];
        struct sl_detok whole, parts;
        struct sl_buf a, b;
        size_t n = sl_test_random(&seed) % sizeof bytes;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)"a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xED\xA0"[sl_test_random(&seed) % 13];
        sl_buf_init(&a, 4096);
        sl_buf_init(&b, 4096);
        sl_detok_init(&whole, NULL, false);
        sl_detok_init(&parts, NULL, false);
        assert_true(sl_detok_push_bytes(&whole, bytes, n, &a) && sl_detok_end(&whole, &a));
        for (size_t at = 0; at < n;) {
            size_t len = 1 + sl_test_random(&seed) % 4;
            len = len < n - at ? len : n - at;
            assert_true(sl_detok_push_bytes(&parts, bytes + at, len, &b));
            assert_int_equal(sl_utf8_valid_prefix(b.len ? b.data : "", b.len), b.len);
            at += len;
        }
        assert_true(sl_detok_end(&parts, &b));
        assert_int_equal(a.len, b.len);
        if (a.len)
            assert_memory_equal(a.data, b.data, a.len);
        sl_buf_fini(&a);
        sl_buf_fini(&b);
    }
}

static void tokens_of_a_character_join(void **state)
{
    struct sl_vocab_src src;
    struct sl_tokenizer *t = NULL;
    struct sl_detok d;
    uint32_t *ids = NULL;
    size_t n = 0;
    const char *text = "<|im_start|>\xF0\x9F\xA6\x99!";
    (void)state;
    text_fixture_tiny_vocab("smollm", &src);
    assert_int_equal(sl_tokenizer_open(&src, &t, NULL), SL_OK);
    sl_vocab_src_fini(&src);
    struct sl_encode_in in = {
        .text = text, .len = strlen(text), .flags = SL_TOK_PARSE_SPECIAL, .max_tokens = 100};
    assert_int_equal(sl_tokenizer_encode(t, &in, &ids, &n, NULL), SL_OK);
    assert_int_equal(n, 6); /* the control token, four bytes, "!" */
    sl_detok_init(&d, t, false);
    for (size_t i = 0; i < n; i++) {
        assert_true(sl_detok_push(&d, ids[i], &out));
        assert_int_equal(out.len, i < 4 ? 0 : i);
    }
    assert_string_equal(out.data, text + 12);
    sl_buf_clear(&out);
    sl_detok_init(&d, t, true);
    for (size_t i = 0; i < n; i++)
        assert_true(sl_detok_push(&d, ids[i], &out));
    assert_string_equal(out.data, text);
    sl_free(ids);
    sl_tokenizer_close(t);
}

static void full_buffer_is_reported(void **state)
{
    struct sl_detok d;
    struct sl_buf small;
    (void)state;
    sl_buf_init(&small, 2);
    sl_detok_init(&d, NULL, false);
    assert_true(sl_detok_push_bytes(&d, "ab", 2, &small));
    assert_false(sl_detok_push_bytes(&d, "c", 1, &small));
    sl_buf_fini(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(half_character_is_held_back, begin, end),
        cmocka_unit_test_setup_teardown(character_that_never_comes_is_replaced, begin, end),
        cmocka_unit_test_setup_teardown(any_grouping_gives_the_same_valid_text, begin, end),
        cmocka_unit_test_setup_teardown(tokens_of_a_character_join, begin, end),
        cmocka_unit_test_setup_teardown(full_buffer_is_reported, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
