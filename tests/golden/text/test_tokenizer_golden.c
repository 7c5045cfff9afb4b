/* tests/golden/text/test_tokenizer_golden.c - token ids against Hugging Face tokenizers and llama.cpp's
 * vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/gguf_vocab.h"
#include "common/text/tokenizer.h"
#include "tests/golden/text/text_fixture.h"
#include "tests/support/support.h"

struct golden {
    const char *pre;
    const struct sl_tokenizer *t;
    int n_used;
};

/* decoded: what the ids stand for, if not the text; JSON null when that is not to be looked at. */
static void check(const struct sl_tokenizer *t, const char *text, size_t len, bool special,
                  const json_t *want, const json_t *decoded, const char *where, int number)
{
    struct sl_encode_in in = {
        .text = text, .len = len, .flags = special ? SL_TOK_PARSE_SPECIAL : 0, .max_tokens = 100000};
    struct sl_why why = {0};
    uint32_t *ids = NULL;
    size_t n = 0;
    enum sl_err e = sl_tokenizer_encode(t, &in, &ids, &n, &why);
    if (e)
        fail_msg("%s line %d: %s", where, number, why.text);
    for (size_t i = 0; i < n || i < json_array_size(want); i++) {
        json_int_t expected = i < json_array_size(want) ? json_integer_value(json_array_get(want, i)) : -1;
        long long got = i < n ? (long long)ids[i] : -1;
        if (got != expected)
            fail_msg("%s line %d: \"%s\": token %zu is %lld, expected %lld", where, number, text, i, got,
                     (long long)expected);
    }
    struct sl_buf out;
    sl_buf_init(&out, SIZE_MAX);
    assert_true(sl_tokenizer_decode(t, ids, n, special, &out));
    if (json_is_string(decoded)) {
        text = json_string_value(decoded);
        len = json_string_length(decoded);
    }
    if (!json_is_null(decoded) && (out.len != len || (len && memcmp(out.data, text, len) != 0)))
        fail_msg("%s line %d: decoded to \"%s\", expected \"%s\"", where, number, out.data ? out.data : "",
                 text);
    sl_buf_fini(&out);
    sl_free(ids);
}

static void vector_line(void *arg, const json_t *line, int number)
{
    struct golden *g = arg;
    const char *pre = json_string_value(json_object_get(line, "pre"));
    if (pre && strcmp(pre, g->pre) != 0)
        return;
    const json_t *text = json_object_get(line, "text");
    g->n_used++;
    check(g->t, json_string_value(text), json_string_length(text),
          json_is_true(json_object_get(line, "special")), json_object_get(line, "ids"),
          json_object_get(line, "decoded"), g->pre, number);
}

static void tiny_vectors(const char *const *pres, size_t n, const char *file)
{
    for (size_t i = 0; i < n; i++) {
        struct sl_vocab_src src;
        struct sl_tokenizer *t = NULL;
        struct sl_why why = {0};
        text_fixture_tiny_vocab(pres[i], &src);
        enum sl_err e = sl_tokenizer_open(&src, &t, &why);
        sl_vocab_src_fini(&src);
        if (e)
            fail_msg("%s", why.text);
        struct golden g = {pres[i], t, 0};
        assert_true(text_fixture_lines(file, vector_line, &g) > 0);
        assert_true(g.n_used > 50);
        sl_tokenizer_close(t);
    }
}

static void tiny_vocab_all_pre_tokenisers_match_reference(void **state)
{
    static const char *const pres[] = {"smollm", "gpt-2", "qwen2", "qwen35", "llama-bpe", "tekken"};
    (void)state;
    tiny_vectors(pres, SL_COUNTOF(pres), SL_TEST_DATA "/golden/text/tiny_vectors.jsonl");
}

static void tiny_spm_all_kinds_match_reference(void **state)
{
    static const char *const pres[] = {"spm", "spm-plain", "spm-odd", "spm-unk"};
    (void)state;
    tiny_vectors(pres, SL_COUNTOF(pres), SL_TEST_DATA "/golden/text/spm_vectors.jsonl");
}

static struct sl_tokenizer *open_gguf(const char *path)
{
    struct sl_vocab_src src;
    struct sl_model_info info;
    struct sl_tokenizer *t = NULL;
    struct sl_why why = {0};
    if (sl_gguf_vocab_load(path, &src, &info, &why) || sl_tokenizer_open(&src, &t, &why))
        fail_msg("%s", why.text);
    assert_int_equal(info.n_vocab, sl_tokenizer_n_vocab(t));
    sl_vocab_src_fini(&src);
    return t;
}

static void smollm2_vectors_match_reference(void **state)
{
    (void)state;
    char *path = text_fixture_smollm2_path();
    if (!path)
        skip();
    struct sl_tokenizer *t = open_gguf(path);
    struct golden g = {"smollm", t, 0};
    assert_true(text_fixture_lines(SL_TEST_DATA "/golden/text/smollm2_vectors.jsonl", vector_line, &g) > 100);
    text_fixture_lines(SL_SHARED_DATA "/fixtures/tokenizer/smollm2_vectors.jsonl", vector_line, &g);
    sl_tokenizer_close(t);
    sl_free(path);
}

/* llama.cpp's format: texts separated by a line, one line of ids for each. */
static void llama_vectors(const char *name)
{
    char *base = sl_xasprintf(SL_SHARED_DATA "/fixtures/tokenizer/ggml-vocab-%s.gguf", name);
    char *inp_path = sl_xasprintf("%s.inp", base), *out_path = sl_xasprintf("%s.out", base);
    char *inp = sl_test_read_file(inp_path, NULL), *out = sl_test_read_file(out_path, NULL);
    if (!inp || !out)
        skip();
    struct sl_tokenizer *t = open_gguf(base);
    const char *const mark = "\n__ggml_vocab_test__\n";
    char *line = out;
    int number = 0;
    for (char *text = inp, *end; text; text = end) {
        end = strstr(text, mark);
        size_t len = end ? (size_t)(end - text) : strlen(text);
        if (end)
            end += strlen(mark);
        char *stop = strchr(line, '\n');
        if (!stop)
            break;
        json_t *want = json_array();
        for (char *at = line; at < stop;) {
            char *after = at;
            long v = strtol(at, &after, 10);
            if (after == at || after > stop)
                break;
            json_array_append_new(want, json_integer(v));
            at = after;
        }
        char *copy = sl_xstrndup(text, len);
        check(t, copy, len, false, want, NULL, name, ++number);
        sl_free(copy);
        json_decref(want);
        line = stop + 1;
    }
    assert_true(number > 40);
    sl_tokenizer_close(t);
    sl_free(inp);
    sl_free(out);
    sl_free(inp_path);
    sl_free(out_path);
    sl_free(base);
}

static void gpt2_vocab_matches_llama_cpp(void **state)
{
    (void)state;
    llama_vectors("gpt-2");
}

static void mpt_vocab_matches_llama_cpp(void **state)
{
    (void)state;
    llama_vectors("mpt");
}

static void phi3_vocab_matches_llama_cpp(void **state)
{
    (void)state;
    llama_vectors("phi-3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_vocab_all_pre_tokenisers_match_reference),
        cmocka_unit_test(tiny_spm_all_kinds_match_reference),
        cmocka_unit_test(smollm2_vectors_match_reference),
        cmocka_unit_test(gpt2_vocab_matches_llama_cpp),
        cmocka_unit_test(mpt_vocab_matches_llama_cpp),
        cmocka_unit_test(phi3_vocab_matches_llama_cpp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
