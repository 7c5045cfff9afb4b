/* tests/golden/text/test_hf_golden.c - model folders in the shapes of known models against Hugging Face's
 * tokenizers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/hf_vocab.h"
#include "common/text/tokenizer.h"
#include "tests/golden/text/text_fixture.h"
#include "tests/support/support.h"

#define HF SL_TEST_DATA "/golden/text/hf/"

static struct sl_vocab_src src;
static struct sl_model_info info;
static struct sl_tokenizer *t;

static void open_folder(const char *name)
{
    struct sl_why why = {0};
    char *path = sl_xasprintf(HF "%s", name);
    if (sl_vocab_load(path, &src, &info, &why) || sl_tokenizer_open(&src, &t, &why))
        fail_msg("%s", why.text);
    sl_free(path);
    assert_int_equal(info.n_vocab, sl_tokenizer_n_vocab(t));
}

static int close_folder(void **state)
{
    (void)state;
    sl_tokenizer_close(t);
    sl_vocab_src_fini(&src);
    t = NULL;
    return 0;
}

struct golden {
    const char *folder;
    int n_used;
};

static void vector_line(void *arg, const json_t *line, int number)
{
    struct golden *g = arg;
    if (strcmp(json_string_value(json_object_get(line, "folder")), g->folder) != 0)
        return;
    unsigned add = json_is_true(json_object_get(line, "add")) ? SL_TOK_ADD_SPECIAL : 0;
    const json_t *text = json_object_get(line, "text");
    struct text_fixture_vector v = {json_string_value(text), json_string_length(text),
                                    SL_TOK_PARSE_SPECIAL | add, line};
    text_fixture_check(t, &v, g->folder, number);
    g->n_used++;
}

static void all_folders_match_reference(void **state)
{
    static const char *const folders[] = {
        "smollm", "llama3", "qwen2",   "gpt2_spaced",       "llama2", "mistral", "gemma",
        "qwen3",  "tekken", "unknown", "unknown_one_by_one"};
    for (size_t i = 0; i < SL_COUNTOF(folders); i++) {
        struct golden g = {folders[i], 0};
        open_folder(folders[i]);
        assert_true(text_fixture_lines(SL_TEST_DATA "/golden/text/hf_vectors.jsonl", vector_line, &g) > 0);
        assert_true(g.n_used > 50);
        close_folder(state);
    }
}

static void is_token(uint32_t id, const char *text)
{
    size_t n = 0;
    const char *p = sl_tokenizer_piece(t, id, true, &n);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(p, text, n);
}

static void special_tokens_and_templates_are_found_in_all_files(void **state)
{
    size_t n = 0;
    (void)state;
    open_folder("smollm");
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.name, "smollm");
    assert_int_equal(info.context_length, 2048);
    assert_int_equal(info.n_vocab, 416); /* more rows than tokens */
    is_token(sl_tokenizer_bos(t), "<|im_start|>");
    is_token(sl_tokenizer_eos(t), "<|im_end|>");
    is_token(415, "");
    const uint32_t *eog = sl_tokenizer_eog(t, &n);
    assert_int_equal(n, 2); /* generation_config.json, config.json and the name say the same two */
    is_token(eog[0], "<|end|>");
    is_token(eog[1], "<|im_end|>");
    assert_string_equal(src.chat_template, "{{ messages[0].content }}");
    close_folder(state);

    open_folder("llama3");
    assert_true(sl_tokenizer_adds_bos(t));
    is_token(sl_tokenizer_bos(t), "<|begin|>");
    is_token(sl_tokenizer_eos(t), "<|end|>");
    assert_string_equal(src.chat_template, "{{ bos_token }}{{ messages[0].content }}");
    close_folder(state);

    open_folder("qwen2");
    assert_false(sl_tokenizer_adds_bos(t));
    assert_int_equal(sl_tokenizer_bos(t), SL_VOCAB_NO_ID);
    assert_string_equal(src.chat_template, "yes");
    close_folder(state);

    open_folder("llama2");
    is_token(sl_tokenizer_eos(t), "</s>");
    assert_true(sl_tokenizer_adds_bos(t));
    assert_null(src.chat_template);
    close_folder(state);

    open_folder("gemma");
    assert_int_equal(info.context_length, 1024);
    assert_true(info.n_vocab > 600);
}

/* The model files of Llama 3 and Qwen 2 may not be given away here; with SLUICE_TEST_FOLDERS in the
 * environment their tokenizers are held against llama.cpp's vectors. */
static void folders_of_known_models_match_llama_cpp(void **state)
{
    static const char *const names[] = {"llama-bpe", "qwen2"};
    const char *folders = getenv("SLUICE_TEST_FOLDERS");
    struct sl_why why = {0};
    (void)state;
    if (!folders || !*folders)
        skip();
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        char *path = sl_xasprintf("%s/%s", folders, names[i]);
        if (sl_vocab_load(path, &src, &info, &why) || sl_tokenizer_open(&src, &t, &why))
            fail_msg("%s", why.text);
        if (text_fixture_llama_vectors(t, names[i]) == 0)
            skip();
        sl_free(path);
        close_folder(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(all_folders_match_reference, close_folder),
        cmocka_unit_test_teardown(special_tokens_and_templates_are_found_in_all_files, close_folder),
        cmocka_unit_test_teardown(folders_of_known_models_match_llama_cpp, close_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
