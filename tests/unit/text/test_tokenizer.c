/* tests/unit/text/test_tokenizer.c - special tokens, trust, limits, hostile vocabularies. Ids against other
 * tokenizers: tests/golden/text/test_tokenizer_golden.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/tokenizer.h"
#include "tests/golden/text/text_fixture.h"
#include "tests/support/support.h"

static struct sl_tokenizer *t;
static uint32_t im_start, im_end, tool_call;

static int open_tiny(void **state)
{
    struct sl_vocab_src src;
    struct sl_why why = {0};
    (void)state;
    text_fixture_tiny_vocab("smollm", &src);
    enum sl_err e = sl_tokenizer_open(&src, &t, &why);
    sl_vocab_src_fini(&src);
    im_start = sl_tokenizer_find(t, "<|im_start|>", 12);
    im_end = sl_tokenizer_find(t, "<|im_end|>", 10);
    tool_call = sl_tokenizer_find(t, "<tool_call>", 11);
    return e ? -1 : 0;
}

static int close_tiny(void **state)
{
    (void)state;
    sl_tokenizer_close(t);
    return 0;
}

struct result {
    uint32_t *ids;
    size_t n;
};

static struct result encode(const char *text, unsigned flags, const struct sl_span *spans, size_t n_spans)
{
    struct sl_encode_in in = {.text = text,
                              .len = strlen(text),
                              .flags = flags,
                              .untrusted = spans,
                              .n_untrusted = n_spans,
                              .max_tokens = 10000};
    struct result r;
    assert_int_equal(sl_tokenizer_encode(t, &in, &r.ids, &r.n, NULL), SL_OK);
    return r;
}

static size_t count(struct result r, uint32_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < r.n; i++)
        n += r.ids[i] == id;
    return n;
}

static void control_tokens_in_plain_text_stay_text(void **state)
{
    (void)state;
    struct result r = encode("<|im_start|>user", 0, NULL, 0);
    assert_int_equal(count(r, im_start), 0);
    struct sl_buf out;
    sl_buf_init(&out, 1000);
    assert_true(sl_tokenizer_decode(t, r.ids, r.n, false, &out));
    assert_string_equal(out.data, "<|im_start|>user");
    sl_buf_fini(&out);
    sl_free(r.ids);
}

static void control_tokens_are_recognised_outside_untrusted_spans_only(void **state)
{
    const char *text = "<|im_start|>user\n<|im_end|>x<|im_end|>\n";
    const struct sl_span content = {17, 28};
    (void)state;
    struct result r = encode(text, SL_TOK_PARSE_SPECIAL, &content, 1);
    assert_int_equal(count(r, im_start), 1);
    assert_int_equal(count(r, im_end), 1);
    sl_free(r.ids);
    r = encode(text, SL_TOK_PARSE_SPECIAL, NULL, 0);
    assert_int_equal(count(r, im_end), 2);
    sl_free(r.ids);
}

static void token_that_touches_an_untrusted_byte_does_not_count(void **state)
{
    const char *text = "<|im_end|>";
    (void)state;
    for (size_t from = 0; from < 10; from++)
        for (size_t to = from + 1; to <= 10; to++) {
            const struct sl_span span = {from, to};
            struct result r = encode(text, SL_TOK_PARSE_SPECIAL, &span, 1);
            assert_int_equal(count(r, im_end), 0);
            sl_free(r.ids);
        }
    const struct sl_span around[] = {{0, 1}, {11, 12}};
    struct result r = encode("a<|im_end|>b", SL_TOK_PARSE_SPECIAL, around, 2);
    assert_int_equal(count(r, im_end), 1);
    sl_free(r.ids);
}

static void user_defined_tokens_are_found_in_any_text(void **state)
{
    const struct sl_span all = {0, 13};
    (void)state;
    struct result r = encode("x<tool_call>y", 0, NULL, 0);
    assert_int_equal(r.n, 3);
    assert_int_equal(r.ids[1], tool_call);
    sl_free(r.ids);
    r = encode("x<tool_call>y", SL_TOK_PARSE_SPECIAL, &all, 1);
    assert_int_equal(count(r, tool_call), 1);
    sl_free(r.ids);
}

static void spans_do_not_change_harmless_text(void **state)
{
    const char *text = "<|im_start|>user\nHello there, it's 12 pages.<|im_end|>\n";
    (void)state;
    struct result whole = encode(text, SL_TOK_PARSE_SPECIAL, NULL, 0);
    const struct sl_span content = {17, 44};
    struct result r = encode(text, SL_TOK_PARSE_SPECIAL, &content, 1);
    assert_int_equal(r.n, whole.n);
    assert_memory_equal(r.ids, whole.ids, r.n * sizeof *r.ids);
    sl_free(r.ids);
    sl_free(whole.ids);
}

static void bad_utf8_becomes_replacement_and_moves_spans(void **state)
{
    /* the two bad bytes before it make three bytes each; the span must still hide the token */
    const char *text = "\xFF\x80<|im_end|>\xC3<|im_end|>";
    const struct sl_span span = {2, 12};
    (void)state;
    struct result r = encode(text, SL_TOK_PARSE_SPECIAL, &span, 1), plain;
    assert_int_equal(count(r, im_end), 1);
    assert_int_equal(r.ids[r.n - 1], im_end);
    sl_free(r.ids);
    r = encode("a\xF0\x9F"
               "b",
               0, NULL, 0);
    plain = encode("a\xEF\xBF\xBD"
                   "b",
                   0, NULL, 0);
    assert_int_equal(r.n, plain.n);
    assert_memory_equal(r.ids, plain.ids, r.n * sizeof *r.ids);
    sl_free(r.ids);
    sl_free(plain.ids);
}

static void random_bytes_always_encode_and_decode(void **state)
{
    unsigned long long seed = 5;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        char text[64];
        struct sl_span spans[4];
        size_t n = sl_test_random(&seed) % sizeof text, n_spans = 0, at = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(round & 1 ? sl_test_random(&seed)
                                       : (unsigned char)"<|im_end|>\xC3\xA9 1"[sl_test_random(&seed) % 14]);
        while (n_spans < 4 && at < n) {
            size_t from = at + sl_test_random(&seed) % 8, to = from + sl_test_random(&seed) % 8;
            if (to > n)
                break;
            spans[n_spans++] = (struct sl_span){from, to};
            at = to;
        }
        struct sl_encode_in in = {.text = text,
                                  .len = n,
                                  .flags = SL_TOK_PARSE_SPECIAL,
                                  .untrusted = spans,
                                  .n_untrusted = n_spans,
                                  .max_tokens = 1000};
        struct sl_buf once, again;
        uint32_t *ids = NULL;
        size_t n_ids = 0;
        assert_int_equal(sl_tokenizer_encode(t, &in, &ids, &n_ids, NULL), SL_OK);
        sl_buf_init(&once, 4096);
        assert_true(sl_tokenizer_decode(t, ids, n_ids, true, &once));
        sl_free(ids);
        /* what came out is clean, so it must come out the same again */
        in = (struct sl_encode_in){.text = once.data, .len = once.len, .max_tokens = 1000};
        assert_int_equal(sl_tokenizer_encode(t, &in, &ids, &n_ids, NULL), SL_OK);
        sl_buf_init(&again, 4096);
        assert_true(sl_tokenizer_decode(t, ids, n_ids, true, &again));
        assert_int_equal(again.len, once.len);
        if (once.len)
            assert_memory_equal(again.data, once.data, once.len);
        sl_free(ids);
        sl_buf_fini(&once);
        sl_buf_fini(&again);
    }
}

static void too_many_tokens_are_refused(void **state)
{
    uint32_t *ids = NULL;
    size_t n = 0;
    struct sl_why why = {0};
    (void)state;
    struct sl_encode_in in = {.text = "1234567890", .len = 10, .max_tokens = 9};
    assert_int_equal(sl_tokenizer_encode(t, &in, &ids, &n, &why), SL_ETOOBIG);
    assert_non_null(strstr(why.text, "more than 9 tokens"));
    assert_null(ids);
    in.max_tokens = 10;
    assert_int_equal(sl_tokenizer_encode(t, &in, &ids, &n, &why), SL_OK);
    assert_int_equal(n, 10);
    sl_free(ids);
    ids = NULL;
    in = (struct sl_encode_in){
        .text = NULL, .len = SIZE_MAX / 2, .max_tokens = 10}; /* refused before it is read */
    assert_int_equal(sl_tokenizer_encode(t, &in, &ids, &n, &why), SL_ETOOBIG);
    in = (struct sl_encode_in){.text = "", .len = 0, .max_tokens = 0};
    assert_int_equal(sl_tokenizer_encode(t, &in, &ids, &n, &why), SL_OK);
    assert_int_equal(n, 0);
    assert_non_null(ids);
    sl_free(ids);
}

static void bos_and_eos_are_added_where_the_file_says(void **state)
{
    struct sl_vocab_src src;
    struct sl_tokenizer *adds = NULL;
    uint32_t *ids = NULL;
    size_t n = 0;
    (void)state;
    text_fixture_tiny_vocab("smollm", &src);
    src.add_bos = src.add_eos = true;
    assert_int_equal(sl_tokenizer_open(&src, &adds, NULL), SL_OK);
    struct sl_encode_in in = {.text = "1", .len = 1, .flags = SL_TOK_ADD_SPECIAL, .max_tokens = 3};
    assert_int_equal(sl_tokenizer_encode(adds, &in, &ids, &n, NULL), SL_OK);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], src.bos_id);
    assert_int_equal(ids[2], src.eos_id);
    sl_free(ids);
    struct result r = encode("1", SL_TOK_ADD_SPECIAL, NULL, 0);
    assert_int_equal(r.n, 1);
    sl_free(r.ids);
    sl_vocab_src_fini(&src);
    sl_tokenizer_close(adds);
}

static void ends_of_generation_are_known(void **state)
{
    size_t n = 0;
    (void)state;
    const uint32_t *eog = sl_tokenizer_eog(t, &n);
    assert_int_equal(n, 2); /* <|endoftext|> and <|im_end|> */
    assert_int_equal(eog[0], 0);
    assert_int_equal(eog[1], 2);
    assert_true(sl_tokenizer_is_eog(t, im_end));
    assert_false(sl_tokenizer_is_eog(t, im_start));
}

static void pieces_hide_control_tokens_unless_asked(void **state)
{
    size_t n = 1;
    (void)state;
    assert_non_null(sl_tokenizer_piece(t, im_end, false, &n));
    assert_int_equal(n, 0);
    assert_memory_equal(sl_tokenizer_piece(t, im_end, true, &n), "<|im_end|>", 10);
    assert_int_equal(n, 10);
    assert_non_null(sl_tokenizer_piece(t, UINT32_MAX, true, &n));
    assert_int_equal(n, 0);
    struct result r = encode("\n", 0, NULL, 0);
    assert_int_equal(sl_tokenizer_find(t, "\n", 1), r.ids[0]);
    sl_free(r.ids);
    assert_int_equal(sl_tokenizer_find(t, "never in there", 14), SL_VOCAB_NO_ID);
}

static void refuse(struct sl_vocab_src *src, enum sl_err code, const char *text)
{
    struct sl_tokenizer *bad = NULL;
    struct sl_why why = {0};
    enum sl_err e = sl_tokenizer_open(src, &bad, &why);
    if (e != code || !strstr(why.text, text))
        fail_msg("%s \"%s\", expected %s and \"%s\"", sl_err_name(e), why.text, sl_err_name(code), text);
    assert_null(bad);
    sl_vocab_src_fini(src);
}

static void unusable_vocabularies_are_refused(void **state)
{
    struct sl_vocab_src src;
    struct sl_vocab_str merge = {"a zz", 4}, odd = {"nospace", 7};
    char spm[] = "llama", strange[] = "unigram";
    (void)state;
    text_fixture_tiny_vocab("martian", &src);
    refuse(&src, SL_EUNSUPPORTED, "unknown pre-tokeniser \"martian\"; known: gpt-2, mpt, smollm");
    text_fixture_tiny_vocab(NULL, &src);
    refuse(&src, SL_EUNSUPPORTED, "names no pre-tokeniser");
    text_fixture_tiny_vocab("smollm", &src);
    src.model = spm;
    refuse(&src, SL_EINVAL, "no scores");
    text_fixture_tiny_vocab("smollm", &src);
    src.model = strange;
    refuse(&src, SL_EUNSUPPORTED, "\"unigram\" is not supported");
    text_fixture_tiny_vocab("smollm", &src);
    src.n_merges = 0;
    refuse(&src, SL_EINVAL, "no merges");
    text_fixture_tiny_vocab("smollm", &src);
    src.merges[3] = merge;
    refuse(&src, SL_EINVAL, "merge 3");
    text_fixture_tiny_vocab("smollm", &src);
    src.merges[0] = odd;
    refuse(&src, SL_EINVAL, "merge 0");
    text_fixture_tiny_vocab("smollm", &src);
    src.eos_id = src.n_tokens;
    refuse(&src, SL_EINVAL, "special token id");
    text_fixture_tiny_vocab("smollm", &src);
    src.n_tokens = 0;
    refuse(&src, SL_EINVAL, "0 tokens");
}

/* Words are remembered in long texts only; they must come out as they do in short ones. */
static void words_of_a_long_text_are_those_of_short_ones(void **state)
{
    static const char *const words[] = {
        " the", " page", " pages", " node12",       "\n\n",   " internationalisation",
        " x",   " xy",   " y",     " \u9875\u9762", " naive", "!"};
    unsigned long long seed = 9;
    struct sl_buf text;
    uint32_t expected[8000];
    size_t n = 0;
    (void)state;
    sl_buf_init(&text, SIZE_MAX);
    for (int i = 0; i < 1500; i++) {
        const char *word = words[sl_test_random(&seed) % SL_COUNTOF(words)];
        sl_buf_puts(&text, word);
        sl_buf_puts(&text, "<|im_end|>"); /* each word is a text of its own */
        struct result r = encode(word, 0, NULL, 0);
        for (size_t k = 0; k < r.n; k++)
            expected[n++] = r.ids[k];
        expected[n++] = im_end;
        sl_free(r.ids);
    }
    struct result r = encode(text.data, SL_TOK_PARSE_SPECIAL, NULL, 0);
    assert_int_equal(r.n, n);
    assert_memory_equal(r.ids, expected, n * sizeof *expected);
    sl_free(r.ids);
    sl_buf_fini(&text);
}

static struct sl_tokenizer *open_letters(const char *model, const char *const *tokens, const uint8_t *types,
                                         const uint8_t *strips, uint32_t n)
{
    static const struct sl_vocab_pair pairs[] = {{0, 1, 2}};
    static const struct sl_vocab_rules rules = {0};
    struct sl_vocab_str texts[8];
    struct sl_vocab_src src;
    struct sl_why why = {0};
    struct sl_tokenizer *letters = NULL;
    sl_vocab_src_init(&src);
    for (uint32_t i = 0; i < n; i++)
        texts[i] = (struct sl_vocab_str){tokens[i], (uint32_t)strlen(tokens[i])};
    src.model = (char *)model;
    src.rules = &rules;
    src.tokens = texts;
    src.types = (uint8_t *)types;
    src.strips = (uint8_t *)strips;
    src.n_tokens = n;
    src.pairs = (struct sl_vocab_pair *)pairs;
    src.n_merges = 1;
    if (sl_tokenizer_open(&src, &letters, &why))
        fail_msg("%s", why.text);
    return letters;
}

static void text_never_merges_into_a_control_token(void **state)
{
    static const char *const tokens[] = {"a", "b", "ab", "c"};
    static const uint8_t types[] = {SL_TOKEN_NORMAL, SL_TOKEN_NORMAL, SL_TOKEN_CONTROL, SL_TOKEN_CONTROL};
    (void)state;
    for (int bytes = 0; bytes < 2; bytes++) {
        struct sl_tokenizer *letters = open_letters(bytes ? "gpt2" : "bpe", tokens, types, NULL, 4);
        struct sl_encode_in in = {.text = "abc", .len = 3, .max_tokens = 10};
        uint32_t *ids = NULL;
        size_t n = 0;
        assert_int_equal(sl_tokenizer_encode(letters, &in, &ids, &n, NULL), SL_OK);
        assert_int_equal(n, 2); /* c is no text at all in this vocabulary */
        assert_int_equal(ids[0], 0);
        assert_int_equal(ids[1], 1);
        sl_free(ids);
        in.flags = SL_TOK_PARSE_SPECIAL;
        assert_int_equal(sl_tokenizer_encode(letters, &in, &ids, &n, NULL), SL_OK);
        assert_int_equal(n, 2);
        assert_int_equal(ids[0], 2);
        assert_int_equal(ids[1], 3);
        sl_free(ids);
        sl_tokenizer_close(letters);
    }
}

static void tokens_take_in_the_white_space_beside_them(void **state)
{
    static const char *const tokens[] = {"a", "b", "ab", "<l>", "<r>", " "};
    static const uint8_t types[] = {1, 1, 1, SL_TOKEN_CONTROL, SL_TOKEN_CONTROL, 1};
    static const uint8_t strips[] = {0, 0, 0, SL_STRIP_LEFT, SL_STRIP_RIGHT, 0};
    static const uint32_t expected[] = {5, 0, 3, 5, 4, 1, 5};
    const char *text = " a \n\u3000<l> <r>  \xC2\x85"
                       "b ";
    const struct sl_span all = {0, strlen(text)};
    struct sl_encode_in in = {
        .text = text, .len = strlen(text), .flags = SL_TOK_PARSE_SPECIAL, .max_tokens = 10};
    uint32_t *ids = NULL;
    size_t n = 0;
    (void)state;
    struct sl_tokenizer *letters = open_letters("bpe", tokens, types, strips, 6);
    assert_int_equal(sl_tokenizer_encode(letters, &in, &ids, &n, NULL), SL_OK);
    assert_int_equal(n, SL_COUNTOF(expected));
    assert_memory_equal(ids, expected, sizeof expected);
    sl_free(ids);
    in.untrusted = &all;
    in.n_untrusted = 1;
    assert_int_equal(sl_tokenizer_encode(letters, &in, &ids, &n, NULL), SL_OK);
    for (size_t i = 0; i < n; i++)
        assert_false(sl_tokenizer_is_control(letters, ids[i]));
    sl_free(ids);
    sl_tokenizer_close(letters);
}

static void token_beyond_the_byte_alphabet_is_its_text(void **state)
{
    static const char *const tokens[] = {"a", "b", "ab", "ab c"}; /* a space is written otherwise there */
    static const uint8_t types[] = {SL_TOKEN_NORMAL, SL_TOKEN_NORMAL, SL_TOKEN_NORMAL, SL_TOKEN_NORMAL};
    size_t n = 0;
    (void)state;
    struct sl_tokenizer *letters = open_letters("gpt2", tokens, types, NULL, 4);
    const char *piece = sl_tokenizer_piece(letters, 3, false, &n);
    assert_int_equal(n, 4);
    assert_memory_equal(piece, "ab c", 4);
    sl_tokenizer_close(letters);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_tokens_in_plain_text_stay_text),
        cmocka_unit_test(control_tokens_are_recognised_outside_untrusted_spans_only),
        cmocka_unit_test(token_that_touches_an_untrusted_byte_does_not_count),
        cmocka_unit_test(user_defined_tokens_are_found_in_any_text),
        cmocka_unit_test(spans_do_not_change_harmless_text),
        cmocka_unit_test(bad_utf8_becomes_replacement_and_moves_spans),
        cmocka_unit_test(random_bytes_always_encode_and_decode),
        cmocka_unit_test(too_many_tokens_are_refused),
        cmocka_unit_test(bos_and_eos_are_added_where_the_file_says),
        cmocka_unit_test(ends_of_generation_are_known),
        cmocka_unit_test(pieces_hide_control_tokens_unless_asked),
        cmocka_unit_test(unusable_vocabularies_are_refused),
        cmocka_unit_test(words_of_a_long_text_are_those_of_short_ones),
        cmocka_unit_test(text_never_merges_into_a_control_token),
        cmocka_unit_test(tokens_take_in_the_white_space_beside_them),
        cmocka_unit_test(token_beyond_the_byte_alphabet_is_its_text),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
