/* tests/unit/text/test_gguf_vocab.c - vocabulary and facts out of GGUF metadata. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/gguf_vocab.h"
#include "common/text/tokenizer.h"
#include "tests/unit/text/gguf_build.h"

static const char *const tokens[] = {"<|end|>", "a", "b", "ab"};
static const int32_t types[] = {3, 1, 1, 1};
static const char *const merges[] = {"a b"};

static struct sl_buf b;

static int begin(void **state)
{
    (void)state;
    sl_buf_init(&b, 1u << 20);
    return 0;
}

static int end(void **state)
{
    (void)state;
    sl_buf_fini(&b);
    return 0;
}

static enum sl_err read_bytes(struct sl_vocab_src *src, struct sl_model_info *info, struct sl_why *why)
{
    struct sl_gguf *g = NULL;
    enum sl_err e = sl_gguf_open_memory(b.data, b.len, "folder/tiny.gguf", &g, why);
    if (e)
        return e;
    e = sl_gguf_vocab_read(g, src, info, why);
    sl_gguf_close(g);
    return e;
}

static void whole_vocabulary_is_read(void **state)
{
    struct sl_vocab_src src;
    struct sl_model_info info;
    struct sl_why why = {0};
    struct sl_tokenizer *t = NULL;
    (void)state;
    gguf_put_header(&b, 3, 0, 10);
    gguf_put_kv_str(&b, "general.architecture", "llama");
    gguf_put_kv_u32(&b, "llama.context_length", 2048);
    gguf_put_kv_str(&b, "tokenizer.ggml.model", "gpt2");
    gguf_put_kv_str(&b, "tokenizer.ggml.pre", "smollm");
    gguf_put_kv_strs(&b, "tokenizer.ggml.tokens", tokens, 4);
    gguf_put_kv_i32s(&b, "tokenizer.ggml.token_type", types, 4);
    gguf_put_kv_strs(&b, "tokenizer.ggml.merges", merges, 1);
    gguf_put_kv_u32(&b, "tokenizer.ggml.eos_token_id", 0);
    gguf_put_kv_u32(&b, "tokenizer.ggml.bos_token_id", UINT32_MAX);
    gguf_put_kv_str(&b, "tokenizer.chat_template", "{{ x }}");
    enum sl_err e = read_bytes(&src, &info, &why);
    if (e)
        fail_msg("%s", why.text);
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.name, "tiny");
    assert_int_equal(info.context_length, 2048);
    assert_int_equal(info.n_vocab, 4);
    assert_int_equal(src.n_tokens, 4);
    assert_int_equal(src.types[0], SL_TOKEN_CONTROL);
    assert_int_equal(src.tokens[3].n, 2);
    assert_int_equal(src.n_merges, 1);
    assert_int_equal(src.eos_id, 0);
    assert_int_equal(src.bos_id, SL_VOCAB_NO_ID);
    assert_string_equal(src.chat_template, "{{ x }}");
    assert_int_equal(src.chat_template_bytes, 7);
    assert_int_equal(sl_tokenizer_open(&src, &t, &why), SL_OK);
    sl_vocab_src_fini(&src);
    assert_int_equal(sl_tokenizer_find(t, "ab", 2), 3);
    sl_tokenizer_close(t);
}

static const float scores[] = {0, -1, -2, -1.5f};

static void put_spm(uint64_t n_kv)
{
    gguf_put_header(&b, 3, 0, n_kv);
    gguf_put_kv_str(&b, "general.architecture", "llama");
    gguf_put_kv_str(&b, "tokenizer.ggml.model", "llama");
    gguf_put_kv_strs(&b, "tokenizer.ggml.tokens", tokens, 4);
    gguf_put_kv_i32s(&b, "tokenizer.ggml.token_type", types, 4);
}

static void sentencepiece_vocabulary_is_read(void **state)
{
    struct sl_vocab_src src;
    struct sl_model_info info;
    struct sl_why why = {0};
    struct sl_tokenizer *t = NULL;
    (void)state;
    put_spm(5);
    gguf_put_kv_f32s(&b, "tokenizer.ggml.scores", scores, 4);
    if (read_bytes(&src, &info, &why) || sl_tokenizer_open(&src, &t, &why))
        fail_msg("%s", why.text);
    assert_true(src.scores[3] == -1.5f);
    assert_true(src.add_bos); /* where the file does not say */
    assert_true(src.add_space_prefix);
    sl_tokenizer_close(t);
    sl_vocab_src_fini(&src);
    sl_buf_clear(&b);
    put_spm(6);
    gguf_put_kv_bool(&b, "tokenizer.ggml.add_bos_token", false);
    gguf_put_kv_bool(&b, "tokenizer.ggml.add_space_prefix", false);
    assert_int_equal(read_bytes(&src, &info, &why), SL_OK);
    assert_false(src.add_bos);
    assert_false(src.add_space_prefix);
    assert_int_equal(sl_tokenizer_open(&src, &t, &why), SL_EINVAL); /* no scores */
    sl_vocab_src_fini(&src);
}

static void refused(enum sl_err code, const char *text)
{
    struct sl_vocab_src src;
    struct sl_model_info info;
    struct sl_why why = {0};
    enum sl_err e = read_bytes(&src, &info, &why);
    if (e != code || !strstr(why.text, text))
        fail_msg("%s \"%s\", expected %s and \"%s\"", sl_err_name(e), why.text, sl_err_name(code), text);
    assert_null(src.arena);
}

static void incomplete_vocabulary_is_refused(void **state)
{
    (void)state;
    gguf_put_header(&b, 3, 0, 0);
    refused(SL_ENOTFOUND, "general.architecture");
    sl_buf_clear(&b);
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_kv_str(&b, "general.architecture", "llama");
    refused(SL_ENOTFOUND, "no vocabulary");
    sl_buf_clear(&b);
    gguf_put_header(&b, 3, 0, 2);
    gguf_put_kv_str(&b, "general.architecture", "llama");
    gguf_put_kv_str(&b, "tokenizer.ggml.model", "gpt2");
    refused(SL_ENOTFOUND, "tokenizer.ggml.tokens");
}

static void inconsistent_vocabulary_is_refused(void **state)
{
    const int32_t bad_types[] = {3, 1, 7, 1};
    (void)state;
    gguf_put_header(&b, 3, 0, 4);
    gguf_put_kv_str(&b, "general.architecture", "llama");
    gguf_put_kv_str(&b, "tokenizer.ggml.model", "gpt2");
    gguf_put_kv_strs(&b, "tokenizer.ggml.tokens", tokens, 4);
    size_t common = b.len;
    gguf_put_kv_i32s(&b, "tokenizer.ggml.token_type", types, 3);
    refused(SL_EINVAL, "3 entries for 4 tokens");
    b.len = common;
    gguf_put_kv_i32s(&b, "tokenizer.ggml.token_type", bad_types, 4);
    refused(SL_EINVAL, "type 7");
    b.len = common;
    gguf_put_kv_u32(&b, "tokenizer.ggml.eos_token_id", 4);
    refused(SL_EINVAL, "only 4 tokens");
    b.len = common;
    gguf_put_kv_f32s(&b, "tokenizer.ggml.scores", scores, 3);
    refused(SL_EINVAL, "scores has 3 entries for 4 tokens");
    b.len = common;
    gguf_put_kv_strs(&b, "tokenizer.ggml.scores", tokens, 4);
    refused(SL_EINVAL, "not a list of floats");
    b.len = common;
    gguf_put_kv_u32(&b, "tokenizer.ggml.merges", 4);
    refused(SL_EINVAL, "a list");
    b.len = common;
    gguf_put_kv_i32s(&b, "tokenizer.ggml.merges", types, 4);
    refused(SL_EINVAL, "list of strings");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_vocabulary_is_read, begin, end),
        cmocka_unit_test_setup_teardown(sentencepiece_vocabulary_is_read, begin, end),
        cmocka_unit_test_setup_teardown(incomplete_vocabulary_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(inconsistent_vocabulary_is_refused, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
