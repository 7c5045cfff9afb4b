/* tests/unit/text/test_pretoken.c - kinds of cuts, patterns of model files, long runs. Tokens of whole rules
 * against other tokenizers: tests/golden/text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/pattern.h"
#include "common/text/pre_rules.h"
#include "common/text/pretoken.h"

static enum sl_err add_piece(void *arg, const char *piece, size_t n)
{
    struct sl_buf *b = arg;
    sl_buf_append(b, piece, n);
    sl_buf_putc(b, '|');
    return SL_OK;
}

/* The pieces of text with a bar behind each. */
static void pieces_are(const struct sl_vocab_cut *cuts, size_t n, const char *text, const char *expected)
{
    struct sl_pretoken *p = NULL;
    struct sl_why why = {0};
    struct sl_buf b;
    sl_buf_init(&b, 4096);
    if (sl_pretoken_open(cuts, n, &p, &why))
        fail_msg("%s", why.text);
    assert_int_equal(sl_pretoken_split(p, text, strlen(text), add_piece, &b), SL_OK);
    if (strcmp(b.data ? b.data : "", expected) != 0)
        fail_msg("\"%s\": %s, expected %s", text, b.data ? b.data : "", expected);
    sl_buf_fini(&b);
    sl_pretoken_close(p);
}

static void kind_is(enum sl_cut_kind kind, bool invert, const char *text, const char *expected)
{
    const struct sl_vocab_cut cut = {.kind = kind, .invert = invert, .pattern = "-"};
    pieces_are(&cut, 1, text, expected);
}

/* The examples are those of the documentation of Hugging Face's tokenizers. */
static void matches_go_where_the_kind_says(void **state)
{
    const char *text = "the-final--countdown";
    (void)state;
    kind_is(SL_CUT_ISOLATED, false, text, "the|-|final|-|-|countdown|");
    kind_is(SL_CUT_REMOVED, false, text, "the|final|countdown|");
    kind_is(SL_CUT_CONTIGUOUS, false, text, "the|-|final|--|countdown|");
    kind_is(SL_CUT_WITH_PREVIOUS, false, text, "the-|final-|-|countdown|");
    kind_is(SL_CUT_WITH_NEXT, false, text, "the|-final|-|-countdown|");
    kind_is(SL_CUT_REMOVED, true, text, "-|-|-|");
    kind_is(SL_CUT_ISOLATED, true, text, "the|-|final|-|-|countdown|");
    kind_is(SL_CUT_WITH_PREVIOUS, false, "--a-", "-|-|a-|");
    kind_is(SL_CUT_WITH_NEXT, false, "a--", "a|-|-|");
    kind_is(SL_CUT_CONTIGUOUS, false, "--a", "--|a|");
    kind_is(SL_CUT_REMOVED, false, "---", "");
}

static void second_cut_sees_pieces_as_texts(void **state)
{
    const struct sl_vocab_cut cuts[] = {{.kind = SL_CUT_ISOLATED, .pattern = "\\d"},
                                        {.kind = SL_CUT_ISOLATED, .pattern = "\\s+(?!\\S)|\\s+|\\w+"}};
    (void)state;
    pieces_are(cuts, 2, "a  1", "a|  |1|");
    pieces_are(cuts + 1, 1, "a  1", "a| | |1|");
}

static void translation_is(const char *pattern, const char *expected)
{
    struct sl_buf b;
    struct sl_why why = {0};
    sl_buf_init(&b, 4096);
    if (sl_pattern_translate(pattern, strlen(pattern), &b, &why))
        fail_msg("%s", why.text);
    assert_string_equal(b.data, expected);
    sl_buf_fini(&b);
}

static void refused(const char *pattern, const char *said)
{
    const struct sl_vocab_cut cut = {.kind = SL_CUT_ISOLATED, .pattern = pattern};
    struct sl_pretoken *p = NULL;
    struct sl_why why = {0};
    enum sl_err e = sl_pretoken_open(&cut, 1, &p, &why);
    if (e != SL_EUNSUPPORTED || !strstr(why.text, said))
        fail_msg("%s: %s \"%s\", expected \"%s\"", pattern, sl_err_name(e), why.text, said);
    assert_null(p);
}

static void patterns_are_translated_or_refused_by_name(void **state)
{
    (void)state;
    translation_is("\\p{L}+|\\P{Han}{1,3}", "\\p{L}+|\\P{sc:Han}{1,3}");
    translation_is("\\u4e00-[\\x41]", "\\x{4e00}-[\\x{41}]");
    translation_is("(a)(?:b)(?i:'s)(?!c)", "(?:a)(?:b)(?i:'s)(?!c)");
    translation_is("[^\\]\\[a-z]*+.", "[^\\]\\[a-z]*+[^\\n]");
    refused("a|^b", "\"^\" at byte 2 (an anchor)");
    refused("[a[bc]]", "a class inside a class");
    refused("[a&&b]", "an intersection");
    refused("[^\\S]", "a negated class inside a class");
    refused("\\h", "an escape");
    refused("\\bx", "an escape");
    refused("(a)\\1", "an escape");
    refused("(?m:a)", "a kind of group");
    refused("a{2}?", "a lazy or possessive counted repetition");
    refused("a{,2}", "a repetition");
    refused("[]", "an empty class");
    refused("[a", "a class without an end");
    refused("\\p{^L}", "a property");
    refused("\\p{Nonsense}", "does not compile");
    refused("a)", "does not compile");
    refused("\\", "nothing behind it");
    refused("a*", "may match nothing at all");
    refused("\\xZ", "a code point");
}

static void white_space_is_that_of_unicode(void **state)
{
    const struct sl_vocab_cut cut = {.kind = SL_CUT_ISOLATED, .pattern = "\\s"};
    (void)state;
    pieces_are(&cut, 1,
               "a\xC2\x85"
               "b\u3000c\u180ed\u200be",
               "a|\xC2\x85|b|\u3000|c\u180ed\u200be|");
}

static enum sl_err count_piece(void *arg, const char *piece, size_t n)
{
    (void)piece;
    (void)n;
    ++*(size_t *)arg;
    return SL_OK;
}

static void long_runs_are_one_piece_each(void **state)
{
    struct sl_pretoken *p = NULL;
    const struct sl_vocab_rules *rules = sl_pre_rules("gpt-2");
    const size_t n = 1u << 20;
    char *text = sl_xalloc(n);
    (void)state;
    assert_int_equal(sl_pretoken_open(rules->cuts, rules->n_cuts, &p, NULL), SL_OK);
    for (const char *c = "a !"; *c; c++) {
        size_t pieces = 0;
        memset(text, *c, n);
        assert_int_equal(sl_pretoken_split(p, text, n, count_piece, &pieces), SL_OK);
        assert_int_equal(pieces, 1);
    }
    sl_pretoken_close(p);
    sl_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_go_where_the_kind_says),
        cmocka_unit_test(second_cut_sees_pieces_as_texts),
        cmocka_unit_test(patterns_are_translated_or_refused_by_name),
        cmocka_unit_test(white_space_is_that_of_unicode),
        cmocka_unit_test(long_runs_are_one_piece_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
