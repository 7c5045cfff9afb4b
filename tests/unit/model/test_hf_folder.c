/* A model as a GGUF file and as a Hugging Face folder computes the same bits and reads the same tokens;
 * folders that do not fit together are refused with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/model/model_digest.h"
#include "common/text/tokenizer.h"
#include "tests/support/make_hf/make_hf.h"
#include "tests/unit/model/model_rig.h"

#define N_POSITIONS 70

static char *new_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = sl_xasprintf("%s/sluice-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void remove_folder(char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(dir);
    sl_free(dir);
}

static char *folder_of(const char *gguf, bool nested, size_t shard_bytes)
{
    struct sl_make_hf m = {gguf, new_folder(), SL_BF16, nested, shard_bytes};
    struct sl_why why = {{0}};
    if (sl_make_hf_write(&m, &why) != SL_OK)
        fail_msg("%s", why.text);
    return (char *)m.folder;
}

static struct sl_make_model tiny(const char *arch, enum sl_dtype type, enum sl_dtype embed_type)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    m.arch = arch;
    m.type = type;
    m.embed_type = embed_type;
    return m;
}

static float *logits_of(const char *path, const char *backend, size_t *n)
{
    struct rig r;
    struct rig_conf c = {.path = path,
                         .backend = backend,
                         .n_threads = 1,
                         .page_tokens = 16,
                         .max_rows = N_POSITIONS,
                         .n_pages = 5,
                         .kv_dtype = SL_F16};
    static const uint32_t pages[] = {4, 2, 0, 1, 3};
    int32_t tokens[N_POSITIONS];
    uint32_t out[N_POSITIONS];
    rig_open(&r, &c);
    for (int i = 0; i < N_POSITIONS; i++) {
        tokens[i] = (i * i * 31 + i * 7 + 5) % (int32_t)sl_model_conf(r.model)->n_vocab;
        out[i] = (uint32_t)i;
    }
    struct sl_batch_run run = {0, N_POSITIONS, 0, pages, 5};
    struct sl_batch b = {N_POSITIONS, 1, N_POSITIONS, tokens, &run, out};
    sl_model_forward(r.model, r.kv, &b, r.logits, &r.progress);
    *n = N_POSITIONS * (size_t)sl_model_conf(r.model)->n_vocab * sizeof(float);
    float *logits = sl_xmemdup(r.logits, *n);
    rig_close(&r);
    return logits;
}

static void check_equal(const struct sl_make_model *m, bool nested, size_t shard_bytes)
{
    static const char *const backends[] = {"reference", "portable", "avx2", "avx512"};
    char *gguf = rig_model_file(m), *folder = folder_of(gguf, nested, shard_bytes);
    for (size_t i = 0; i < SL_COUNTOF(backends); i++) {
        size_t n = 0, n_folder = 0;
        if (!rig_backend_available(backends[i]))
            continue;
        float *want = logits_of(gguf, backends[i], &n), *got = logits_of(folder, backends[i], &n_folder);
        assert_int_equal(n, n_folder);
        if (memcmp(want, got, n) != 0)
            fail_msg("%s on %s: file and folder differ", m->arch, backends[i]);
        sl_free(want);
        sl_free(got);
    }
    unlink(gguf);
    sl_free(gguf);
    remove_folder(folder);
}

static void file_and_folder_give_the_same_bits(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("llama", SL_BF16, SL_BF16);
    check_equal(&m, false, 0);
    m = tiny("llama", SL_F32, SL_F16);
    m.tied = false;
    m.n_kv_heads = 1;
    m.sliding_window = 24; /* the folder's says mistral */
    m.rope_scaling = "linear";
    m.rope_scaling_factor = 4;
    check_equal(&m, false, 20000);
    m = tiny("qwen2", SL_F16, SL_F16);
    m.tied = false;
    check_equal(&m, false, 60000);
    m = tiny("qwen3", SL_BF16, SL_F32);
    m.head_dim = 32;
    check_equal(&m, false, 0);
    m = tiny("gemma3", SL_BF16, SL_BF16);
    m.sliding_window = 24;
    check_equal(&m, true, 0);
}

static void encode(const char *path, const char *text, uint32_t **ids, size_t *n)
{
    struct sl_vocab_src src;
    struct sl_model_info info;
    struct sl_tokenizer *t;
    struct sl_why why = {{0}};
    if (sl_vocab_load(path, &src, &info, &why) || sl_tokenizer_open(&src, &t, &why))
        fail_msg("%s", why.text);
    struct sl_encode_in in = {.text = text,
                              .len = strlen(text),
                              .flags = SL_TOK_ADD_SPECIAL | SL_TOK_PARSE_SPECIAL,
                              .max_tokens = 1000};
    assert_int_equal(sl_tokenizer_encode(t, &in, ids, n, &why), SL_OK);
    assert_non_null(src.chat_template);
    sl_tokenizer_close(t);
    sl_vocab_src_fini(&src);
}

static void file_and_folder_read_the_same_tokens(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("llama", SL_BF16, SL_BF16);
    char *gguf = rig_model_file(&m), *folder = folder_of(gguf, false, 0);
    uint32_t *want, *got;
    size_t n = 0, n_folder = 0;
    const char *text =
        "<|im_start|>user\nWhat will people make of  12 words?\t\xc3\xa9\xe9\xa1\xb5<|im_end|>\n";
    encode(gguf, text, &want, &n);
    encode(folder, text, &got, &n_folder);
    assert_int_equal(n, n_folder);
    assert_memory_equal(want, got, n * sizeof *want);
    sl_free(want);
    sl_free(got);
    unlink(gguf);
    sl_free(gguf);
    remove_folder(folder);
}

/* ---- a folder of one kind, changed in one place ---- */

struct change {
    const char *file; /* of the folder; its text has from replaced by to, or is removed when from is NULL */
    const char *from, *to;
    enum sl_err code;
    const char *said;
};

static void change_file(const char *folder, const struct change *c)
{
    char *path = sl_xasprintf("%s/%s", folder, c->file);
    if (!c->from) {
        assert_int_equal(unlink(path), 0);
    } else {
        json_t *j = json_load_file(path, 0, NULL);
        size_t n = json_dumpb(j, NULL, 0, JSON_COMPACT);
        char *text = sl_xcalloc(1, n + 1);
        (void)json_dumpb(j, text, n, JSON_COMPACT);
        char *at = strstr(text, c->from);
        assert_non_null(at);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "%.*s%s%s", (int)(at - text), text, c->to, at + strlen(c->from));
        fclose(f);
        json_decref(j);
        sl_free(text);
    }
    sl_free(path);
}

static void refused(const char *gguf, size_t shard_bytes, const struct change *c)
{
    char *folder = folder_of(gguf, false, shard_bytes);
    struct sl_model_file *f = NULL;
    struct sl_model_conf conf;
    struct sl_why why = {{0}};
    change_file(folder, c);
    enum sl_err e = sl_model_file_open(folder, &f, &why);
    if (e == SL_OK)
        e = sl_model_conf_read(f, &conf, &why);
    if (e != c->code || (c->said && (!strstr(why.text, c->said) || !strstr(why.text, folder))))
        fail_msg("%s \"%s\", expected %s and \"%s\"", sl_err_name(e), why.text, sl_err_name(c->code),
                 c->said ? c->said : "");
    sl_model_file_close(f);
    remove_folder(folder);
}

static void folders_that_do_not_fit_together_are_refused(void **state)
{
    (void)state;
    static const struct change changes[] = {
        {"config.json", NULL, NULL, SL_ENOTFOUND, "config.json"},
        {"tokenizer.json", NULL, NULL, SL_ENOTFOUND, "tokenizer.json"},
        {"model.safetensors.index.json", NULL, NULL, SL_EUNSUPPORTED, "neither model.safetensors nor"},
        {"model-00001-of-00003.safetensors", NULL, NULL, SL_ENOTFOUND, "model-00001-of-00003.safetensors"},
        {"model.safetensors.index.json", "weight_map", "map", SL_EPARSE, "weight_map of 0 tensors"},
        {"model.safetensors.index.json", "\"model-00001-of-00003.safetensors\"", "\"../x.safetensors\"",
         SL_EPARSE, "in no file of the folder"},
        {"model.safetensors.index.json", "\"model-00001-of-00003.safetensors\"", "7", SL_EPARSE,
         "in no file of the folder"},
        {"model.safetensors.index.json", "\"model-00001-of-00003.safetensors\"",
         "\"model-00003-of-00003.safetensors\"", SL_EPARSE,
         "which model.safetensors.index.json places there"},
        {"model.safetensors.index.json", ",\"model.norm.weight\":\"model-00003-of-00003.safetensors\"", "",
         SL_EPARSE, "names 28 tensors, its files have 29"},
        {"config.json", "\"tie_word_embeddings\":true", "\"tie_word_embeddings\":false", SL_EPARSE,
         "no tensor lm_head.weight"},
        {"config.json", "\"num_hidden_layers\":3", "\"num_hidden_layers\":2", SL_EUNSUPPORTED,
         "has the tensor blk.2."},
        {"config.json", "\"num_hidden_layers\":3", "\"num_hidden_layers\":4", SL_EPARSE,
         "has no tensor blk.3."},
        {"config.json", "\"vocab_size\":512", "\"vocab_size\":600", SL_EPARSE, "600 tokens"},
        {"config.json", "\"num_key_value_heads\":2", "\"num_key_value_heads\":4", SL_EPARSE,
         "tensor blk.0.attn_k.weight has rows"},
        {"config.json", "\"llama\"", "\"qwen3\"", SL_EPARSE, "attn_q_norm.weight"},
    };
    struct sl_make_model m = tiny("llama", SL_BF16, SL_BF16);
    char *gguf = rig_model_file(&m);
    for (size_t i = 0; i < SL_COUNTOF(changes); i++)
        refused(gguf, 150000, &changes[i]);
    unlink(gguf);
    sl_free(gguf);
}

static void a_head_beside_tied_embeddings_is_left_out(void **state)
{
    (void)state;
    static const struct change tied = {"config.json", "\"tie_word_embeddings\":false",
                                       "\"tie_word_embeddings\":true", SL_OK, NULL};
    struct sl_make_model m = tiny("qwen2", SL_BF16, SL_BF16);
    m.tied = false;
    char *gguf = rig_model_file(&m);
    refused(gguf, 0, &tied);
    unlink(gguf);
    sl_free(gguf);
}

static struct sl_digest128 digest_of(const char *path)
{
    struct sl_model_file *f;
    struct sl_model_conf c;
    assert_int_equal(sl_model_file_open(path, &f, NULL), SL_OK);
    assert_int_equal(sl_model_conf_read(f, &c, NULL), SL_OK);
    struct sl_digest128 d = sl_model_digest(f, &c, 1, NULL);
    sl_model_file_close(f);
    return d;
}

static void digest_is_of_the_model_and_not_of_its_files(void **state)
{
    (void)state;
    static const struct change epsilon = {"config.json", "\"rope_theta\":", "\"rope_theta\":1", SL_OK, NULL},
                               token = {"tokenizer.json", "the", "thE", SL_OK, NULL};
    struct sl_make_model m = tiny("llama", SL_BF16, SL_BF16);
    char *gguf = rig_model_file(&m), *whole = folder_of(gguf, false, 0),
         *parts = folder_of(gguf, false, 30000);
    struct sl_digest128 want = digest_of(whole), got = digest_of(parts);
    assert_memory_equal(&want, &got, sizeof want);
    change_file(parts, &epsilon);
    got = digest_of(parts);
    assert_memory_not_equal(&want, &got, sizeof want);
    change_file(whole, &token);
    got = digest_of(whole);
    assert_memory_not_equal(&want, &got, sizeof want);
    unlink(gguf);
    sl_free(gguf);
    remove_folder(whole);
    remove_folder(parts);
}

static void released_tensors_can_still_be_read(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("gemma3", SL_BF16, SL_BF16);
    char *gguf = rig_model_file(&m), *folder = folder_of(gguf, false, 0);
    struct sl_model_file *f;
    struct sl_model_file_id id;
    assert_int_equal(sl_model_file_open(folder, &f, NULL), SL_OK);
    assert_true(sl_model_file_id(f, &id));
    for (size_t i = 0; i < sl_model_file_n_tensors(f); i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(f, i);
        void *before = sl_xmemdup(t->view.data, t->bytes);
        sl_model_file_release(f, t->view.data, t->bytes);
        assert_memory_equal(before, t->view.data, t->bytes);
        sl_free(before);
    }
    sl_model_file_close(f);
    unlink(gguf);
    sl_free(gguf);
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_and_folder_give_the_same_bits),
        cmocka_unit_test(file_and_folder_read_the_same_tokens),
        cmocka_unit_test(folders_that_do_not_fit_together_are_refused),
        cmocka_unit_test(a_head_beside_tied_embeddings_is_left_out),
        cmocka_unit_test(digest_is_of_the_model_and_not_of_its_files),
        cmocka_unit_test(released_tensors_can_still_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
