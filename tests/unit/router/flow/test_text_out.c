/* tests/unit/router/flow/test_text_out.c - tokens to text: characters whole, stop strings found, last tokens
 * not shown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "router/flow/text_out.h"
#include "tests/unit/router/flow/flow_rig.h"

static struct sl_tokenizer *tok;

static struct sl_gen_req request(void)
{
    struct sl_gen_req q = {.skip_special = true};
    sluice__sampling__init(&q.sampling);
    q.sampling.max_tokens = 100;
    return q;
}

/* Runs letters through; '.' is <eos>, '<' and '>' the halves of U+00E9. Returns the stop string or NULL; text
 * gets what was shown. */
static const char *run(const struct sl_gen_req *q, const char *letters, char *text)
{
    struct sl_text_out *t;
    assert_int_equal(sl_text_out_new(tok, q, &t, NULL), SL_OK);
    struct sl_text_piece piece;
    const char *stopped = NULL;
    uint32_t i = 0;
    *text = '\0';
    for (const char *p = letters; *p && !stopped; p++, i++) {
        int32_t id = *p == ' '   ? RIG_SPACE
                     : *p == '.' ? RIG_EOS
                     : *p == '<' ? RIG_E1
                     : *p == '>' ? RIG_E2
                                 : *p - 'a';
        sl_text_out_push(t, id, i, &piece);
        strncat(text, piece.text, piece.len);
        stopped = piece.stopped_by;
    }
    if (!stopped) {
        sl_text_out_end(t, &piece);
        strncat(text, piece.text, piece.len);
        stopped = piece.stopped_by;
    }
    sl_text_out_free(t);
    return stopped;
}

static void text_character_in_halves_is_shown_whole(void **s)
{
    (void)s;
    char text[64];
    struct sl_gen_req q = request();
    assert_null(run(&q, "a<>b", text));
    assert_string_equal(text, "a\xc3\xa9"
                              "b");
    assert_null(run(&q, "a<", text)); /* the rest never came */
    assert_string_equal(text, "a\xef\xbf\xbd");
}

static void text_stop_string_across_tokens_is_cut(void **s)
{
    (void)s;
    char text[64];
    struct sl_gen_req q = request();
    q.stop[0] = "cde";
    q.n_stop = 1;
    assert_string_equal(run(&q, "abcdefg", text), "cde");
    assert_string_equal(text, "ab");
    q.include_stop = true;
    assert_string_equal(run(&q, "abcdefg", text), "cde");
    assert_string_equal(text, "abcde");
    q.include_stop = false;
    assert_null(run(&q, "abcd", text)); /* held back, then shown */
    assert_string_equal(text, "abcd");
}

static void text_stop_string_before_min_tokens_does_not_count(void **s)
{
    (void)s;
    char text[64];
    struct sl_gen_req q = request();
    q.stop[0] = "b";
    q.n_stop = 1;
    q.sampling.min_tokens = 3;
    assert_string_equal(run(&q, "abcabc", text), "b");
    assert_string_equal(text, "abca");
}

static void text_last_token_is_not_shown(void **s)
{
    (void)s;
    char text[64];
    int32_t ids[] = {25, 29}; /* the model's end ids stand among the stop ids */
    struct sl_gen_req q = request();
    q.sampling.stop_ids = ids;
    q.sampling.n_stop_ids = 2;
    run(&q, "abz", text);
    assert_string_equal(text, "ab");
    q.sampling.ignore_eos = true;
    run(&q, "abz", text);
    assert_string_equal(text, "abz");
    q.sampling.ignore_eos = false;
    q.skip_special = false;
    run(&q, "ab.", text);
    assert_string_equal(text, "ab");
    q.include_stop = true;
    run(&q, "ab.", text);
    assert_string_equal(text, "ab<eos>");
    /* a client that took the end ids out goes on over them */
    q.sampling.n_stop_ids = 1;
    run(&q, "ab.c", text);
    assert_string_equal(text, "ab<eos>c");
}

static void text_bad_stop_string_is_refused(void **s)
{
    (void)s;
    struct sl_gen_req q = request();
    q.stop[0] = "";
    q.n_stop = 1;
    struct sl_text_out *t = NULL;
    struct sl_why why = {{0}};
    assert_int_equal(sl_text_out_new(tok, &q, &t, &why), SL_EINVAL);
    assert_null(t);
    assert_true(why.text[0]);
}

static int setup(void **s)
{
    (void)s;
    tok = rig_tokenizer();
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    sl_tokenizer_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_character_in_halves_is_shown_whole),
        cmocka_unit_test(text_stop_string_across_tokens_is_cut),
        cmocka_unit_test(text_stop_string_before_min_tokens_does_not_count),
        cmocka_unit_test(text_last_token_is_not_shown),
        cmocka_unit_test(text_bad_stop_string_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
