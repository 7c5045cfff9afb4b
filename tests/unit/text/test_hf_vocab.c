/* tests/unit/text/test_hf_vocab.c - what is refused in a model folder, and with which words. Right ones:
 * tests/golden/text/test_hf_golden.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/text/hf_vocab.h"
#include "common/text/tokenizer.h"

#define VOCAB  "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<unk>\":3}"
#define MODEL  "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\",\"b\"]]}"
#define NORMAL "\"normalizer\":"
#define PRE    "\"pre_tokenizer\":"
#define POST   "\"post_processor\":"
#define ADDED  "\"added_tokens\":"

static enum sl_err parse(const char *json, uint32_t n_vocab, struct sl_why *why)
{
    struct sl_vocab_src src;
    struct sl_tokenizer *t = NULL;
    enum sl_err e = sl_hf_tokenizer_parse(json, strlen(json), "t.json", n_vocab, &src, why);
    if (!e)
        e = sl_tokenizer_open(&src, &t, why);
    else
        assert_null(src.arena);
    sl_tokenizer_close(t);
    sl_vocab_src_fini(&src);
    return e;
}

static void refused(const char *json, enum sl_err code, const char *said)
{
    struct sl_why why = {0};
    enum sl_err e = parse(json, 0, &why);
    if (e != code || !strstr(why.text, said))
        fail_msg("%s:\n%s \"%s\", expected %s and \"%s\"", json, sl_err_name(e), why.text, sl_err_name(code),
                 said);
}

static void smallest_file_is_read(void **state)
{
    struct sl_why why = {0};
    (void)state;
    if (parse("{" MODEL "}", 0, &why))
        fail_msg("%s", why.text);
    if (parse("{\"version\":\"1.0\",\"normalizer\":null,\"decoder\":null," MODEL "}", 10, &why))
        fail_msg("%s", why.text);
}

static void no_tokenizer_is_refused(void **state)
{
    (void)state;
    refused("", SL_EPARSE, "t.json: ");
    refused("[]", SL_EPARSE, "no JSON object");
    refused("{}", SL_EUNSUPPORTED, "model of type \"\"");
    refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", SL_EUNSUPPORTED, "model of type \"Unigram\"");
    refused("{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", SL_EPARSE, "no vocab");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", SL_EINVAL, "empty");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", SL_EINVAL,
            "token \"a\" has no id");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1048576},\"merges\":[]}}", SL_EINVAL,
            "from 0 to 1048575");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", SL_EINVAL,
            "token 1 is both");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", SL_EPARSE, "no merges");
    refused("{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a c\"]}}", SL_EINVAL, "merge 0 is not");
    refused("{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"b a\"]}}", SL_EINVAL, "merge 0 is not");
    refused("{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[7]}}", SL_EINVAL, "merge 0 is not");
    refused("{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[]}}", SL_EINVAL, "no merges");
}

static void what_is_not_understood_is_named(void **state)
{
    (void)state;
    refused("{\"\":1," MODEL "}", SL_EUNSUPPORTED, "the file has \"\"");
    refused("{\"version truncation\":1," MODEL "}", SL_EUNSUPPORTED, "version truncation");
    refused("{\"extra\":1," MODEL "}", SL_EUNSUPPORTED, "the file has \"extra\"");
    refused("{\"model\":{\"type\":\"BPE\",\"magic\":1," VOCAB ",\"merges\":[]}}", SL_EUNSUPPORTED,
            "\"magic\"");
    refused("{\"model\":{\"type\":\"BPE\",\"dropout\":0.1," VOCAB ",\"merges\":[]}}", SL_EUNSUPPORTED,
            "dropout");
    refused("{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"," VOCAB ",\"merges\":[]}}",
            SL_EUNSUPPORTED, "end_of_word_suffix");
    refused("{\"model\":{\"type\":\"BPE\",\"unk_token\":\"[UNK]\"," VOCAB ",\"merges\":[]}}", SL_EINVAL,
            "[UNK]");
    refused("{" NORMAL "{\"type\":\"NFKC\"}," MODEL "}", SL_EUNSUPPORTED, "normalizer of type \"NFKC\"");
    refused("{" NORMAL "{\"type\":\"NFC\",\"x\":1}," MODEL "}", SL_EUNSUPPORTED, "normalizer NFC has \"x\"");
    refused("{" NORMAL "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\"\"}," MODEL "}",
            SL_EUNSUPPORTED, "Replace of anything but a String");
    refused("{" NORMAL "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}," MODEL "}",
            SL_EUNSUPPORTED, "\"Lowercase\"");
    refused("{" PRE "{\"type\":\"Whitespace\"}," MODEL "}", SL_EUNSUPPORTED,
            "pre_tokenizer of type \"Whitespace\"");
    refused("{" PRE "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}," MODEL "}",
            SL_EUNSUPPORTED, "behavior \"Odd\"");
    refused("{" PRE "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\G\"},\"behavior\":\"Isolated\"}," MODEL
            "}",
            SL_EUNSUPPORTED, "\"\\G\"");
    refused("{" PRE
            "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
            "{\"type\":\"Digits\"}]}," MODEL "}",
            SL_EUNSUPPORTED, "Digits behind ByteLevel");
    refused(
        "{" PRE
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"ByteLevel\"}]}," MODEL
        "}",
        SL_EUNSUPPORTED, "add_prefix_space behind another one");
    refused("{" PRE "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"odd\"}," MODEL "}",
            SL_EUNSUPPORTED, "prepend_scheme \"odd\"");
    refused("{" POST "{\"type\":\"BertProcessing\"}," MODEL "}", SL_EUNSUPPORTED, "\"BertProcessing\"");
    refused("{\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}", SL_EUNSUPPORTED,
            "decoder of type \"WordPiece\"");
}

static void added_tokens_that_cannot_be_honoured_are_refused(void **state)
{
    (void)state;
    refused("{" ADDED "[{\"id\":4,\"content\":\"w\",\"single_word\":true}]," MODEL "}", SL_EUNSUPPORTED,
            "\"w\" is a single_word");
    refused("{" ADDED "[{\"id\":4,\"content\":\"ab\"}]," MODEL "}", SL_EINVAL,
            "has id 4, in the vocabulary it has 2");
    refused("{" ADDED "[{\"id\":1,\"content\":\"c\"}]," MODEL "}", SL_EINVAL, "token 1 is both");
    refused("{" ADDED "[{\"id\":4}]," MODEL "}", SL_EPARSE, "no content");
    refused("{" ADDED "[{\"id\":4,\"content\":\"x\",\"odd\":1}]," MODEL "}", SL_EUNSUPPORTED, "\"odd\"");
    refused("{" NORMAL "{\"type\":\"Prepend\",\"prepend\":\"_\"}," ADDED
            "[{\"id\":4,\"content\":\"x\",\"normalized\":true}]," MODEL "}",
            SL_EUNSUPPORTED, "changed by the normalizer");
}

static void templates_beyond_bos_and_eos_are_refused(void **state)
{
    (void)state;
#define TEMPLATE(single, id)                                                                                 \
    "{" POST "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"pair\":[],\"special_tokens\":"      \
    "{\"a\":{\"id\":\"a\",\"ids\":[" id "],\"tokens\":[\"a\"]}}}," MODEL "}"
#define SPECIAL "{\"SpecialToken\":{\"id\":\"a\",\"type_id\":0}}"
#define TEXT    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
    struct sl_why why = {0};
    assert_int_equal(parse(TEMPLATE(SPECIAL "," TEXT "," SPECIAL, "0"), 0, &why), SL_OK);
    refused(TEMPLATE(SPECIAL "," SPECIAL "," TEXT, "0"), SL_EUNSUPPORTED, "more than one token on a side");
    refused(TEMPLATE(TEXT "," TEXT, "0"), SL_EPARSE, "the text twice");
    refused(TEMPLATE(SPECIAL, "0"), SL_EPARSE, "leaves the text out");
    refused(TEMPLATE(SPECIAL "," TEXT, "0,1"), SL_EINVAL, "not one token");
    refused(TEMPLATE(SPECIAL "," TEXT, "99"), SL_EINVAL, "not one token");
}

static void tokens_without_a_row_in_the_model_are_left_out(void **state)
{
    const char *json = "{" ADDED "[{\"id\":4,\"content\":\"<x>\"},{\"id\":5,\"content\":\"<y>\"}]," MODEL "}";
    struct sl_vocab_src src;
    (void)state;
    assert_int_equal(sl_hf_tokenizer_parse(json, strlen(json), "t", 5, &src, NULL), SL_OK);
    assert_int_equal(src.n_tokens, 5);
    assert_int_equal(src.types[4], SL_TOKEN_USER_DEFINED);
    sl_vocab_src_fini(&src);
    struct sl_why why = {0};
    assert_int_equal(parse(json, 2, &why), SL_EINVAL); /* a merge needs more */
}

/* Loads a folder with these files: names and texts in turn. */
static enum sl_err load_files(const char *const *files, size_t n, struct sl_model_info *info,
                              struct sl_why *why)
{
    struct sl_vocab_src src;
    const char *tmp = getenv("TMPDIR");
    char *dir = sl_xasprintf("%s/sluice-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i + 1 < n; i += 2) {
        char *path = sl_xasprintf("%s/%s", dir, files[i]);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(files[i + 1], f);
        fclose(f);
        sl_free(path);
    }
    enum sl_err e = sl_vocab_load(dir, &src, info, why);
    for (size_t i = 0; i + 1 < n; i += 2) {
        char *path = sl_xasprintf("%s/%s", dir, files[i]);
        unlink(path);
        sl_free(path);
    }
    rmdir(dir);
    sl_free(dir);
    sl_vocab_src_fini(&src);
    return e;
}

static void folder_is_refused(const char *const *files, size_t n, enum sl_err code, const char *said)
{
    struct sl_model_info info;
    struct sl_why why = {0};
    enum sl_err e = load_files(files, n, &info, &why);
    if (e != code || !strstr(why.text, said))
        fail_msg("%s \"%s\", expected %s and \"%s\"", sl_err_name(e), why.text, sl_err_name(code), said);
}

static void context_of_gemma_is_known_where_its_folder_does_not_say_it(void **state)
{
    const char *const nested[] = {"config.json", "{\"model_type\":\"gemma3\",\"text_config\":{}}",
                                  "tokenizer.json", "{" MODEL "}"};
    const char *const other[] = {"config.json", "{\"model_type\":\"llama\"}", "tokenizer.json",
                                 "{" MODEL "}"};
    struct sl_model_info info;
    (void)state;
    assert_int_equal(load_files(nested, 4, &info, NULL), SL_OK);
    assert_int_equal(info.context_length, 131072);
    assert_int_equal(load_files(other, 4, &info, NULL), SL_OK);
    assert_int_equal(info.context_length, 0);
}

static void incomplete_folders_are_refused(void **state)
{
    const char *const no_tokenizer[] = {"config.json", "{}"};
    const char *const bad_config[] = {"config.json", "{", "tokenizer.json", "{" MODEL "}"};
    const char *const other_added[] = {
        "config.json",           "{}",
        "tokenizer.json",        "{" MODEL "}",
        "tokenizer_config.json", "{\"added_tokens_decoder\":{\"1\":{\"content\":\"<x>\"}}}"};
    (void)state;
    folder_is_refused(NULL, 0, SL_ENOTFOUND, "config.json");
    folder_is_refused(no_tokenizer, 2, SL_ENOTFOUND, "tokenizer.json");
    folder_is_refused(bad_config, 4, SL_EPARSE, "config.json");
    folder_is_refused(other_added, 6, SL_EINVAL, "token 1 of tokenizer_config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smallest_file_is_read),
        cmocka_unit_test(no_tokenizer_is_refused),
        cmocka_unit_test(what_is_not_understood_is_named),
        cmocka_unit_test(added_tokens_that_cannot_be_honoured_are_refused),
        cmocka_unit_test(templates_beyond_bos_and_eos_are_refused),
        cmocka_unit_test(tokens_without_a_row_in_the_model_are_left_out),
        cmocka_unit_test(context_of_gemma_is_known_where_its_folder_does_not_say_it),
        cmocka_unit_test(incomplete_folders_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
