/* tests/golden/text/test_tokenizer_golden.c - token ids against Hugging Face tokenizers and llama.cpp's
 * vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void vector_line(void *arg, const json_t *line, int number)
{
    struct golden *g = arg;
    const char *pre = json_string_value(json_object_get(line, "pre"));
    if (pre && strcmp(pre, g->pre) != 0)
        return;
    const json_t *text = json_object_get(line, "text");
    g->n_used++;
    unsigned flags = json_is_true(json_object_get(line, "special")) ? SL_TOK_PARSE_SPECIAL : 0;
    struct text_fixture_vector v = {json_string_value(text), json_string_length(text), flags, line};
    text_fixture_check(g->t, &v, g->pre, number);
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

static void llama_vectors(const char *name)
{
    char *path = sl_xasprintf(SL_SHARED_DATA "/fixtures/tokenizer/ggml-vocab-%s.gguf", name);
    if (access(path, R_OK) != 0)
        skip();
    struct sl_tokenizer *t = open_gguf(path);
    assert_true(text_fixture_llama_vectors(t, name) > 40);
    sl_tokenizer_close(t);
    sl_free(path);
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
