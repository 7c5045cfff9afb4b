/* Reading the configuration: a made model reads back, and each way in which a file can be wrong gets its own
 * sentence. Wrong files are made by changing a few bytes of a good one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/model/model_digest.h"
#include "tests/unit/model/model_rig.h"

struct file {
    uint8_t *bytes;
    size_t n;
};

static struct sl_make_model tiny(void)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    return m;
}

static struct file file_of(const struct sl_make_model *m)
{
    char *path = rig_model_file(m);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    struct file out = {.n = (size_t)ftell(f)};
    out.bytes = sl_xalloc(out.n);
    rewind(f);
    assert_int_equal(fread(out.bytes, 1, out.n, f), out.n);
    fclose(f);
    unlink(path);
    sl_free(path);
    return out;
}

/* The first place where the text stands with its length before it, as keys and names do. */
static uint8_t *find(struct file f, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 8; i + n < f.n; i++) {
        if (memcmp(f.bytes + i, text, n) == 0 && f.bytes[i - 8] == (uint8_t)n)
            return f.bytes + i;
    }
    fail_msg("no %s in the file", text);
    return NULL;
}

static void rename_to(struct file f, const char *from, const char *to)
{
    assert_int_equal(strlen(from), strlen(to));
    memcpy(find(f, from), to, strlen(to));
}

static void set_u32(struct file f, const char *key, uint32_t value)
{
    memcpy(find(f, key) + strlen(key) + 4, &value, sizeof value);
}

static enum sl_err read_conf(struct file f, struct sl_model_conf *c, struct sl_why *why)
{
    struct sl_gguf *g;
    *why = (struct sl_why){{0}};
    enum sl_err e = sl_gguf_open_memory(f.bytes, f.n, "test.gguf", &g, why);
    if (e != SL_OK)
        return e;
    struct sl_model_file *file = sl_model_file_of_gguf(g);
    e = sl_model_conf_read(file, c, why);
    if (e == SL_OK)
        c->digest = sl_model_digest(file, c, 2, NULL);
    sl_model_file_close(file);
    return e;
}

static void expect(struct file f, enum sl_err want, const char *said)
{
    struct sl_model_conf c;
    struct sl_why why;
    enum sl_err e = read_conf(f, &c, &why);
    if (e != want || strstr(why.text, said) == NULL)
        fail_msg("got %s \"%s\", expected %s with \"%s\"", sl_err_name(e), why.text, sl_err_name(want), said);
    sl_free(f.bytes);
}

static void conf_of_a_made_model_reads_back(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.rope_factors = true;
    struct file f = file_of(&m);
    struct sl_model_conf c;
    struct sl_why why;
    struct sl_gguf *g;
    assert_int_equal(sl_gguf_open_memory(f.bytes, f.n, "test.gguf", &g, &why), SL_OK);
    struct sl_model_file *file = sl_model_file_of_gguf(g);
    assert_int_equal(sl_model_conf_read(file, &c, &why), SL_OK);
    assert_string_equal(c.arch, "llama");
    assert_string_equal(c.name, "Random tiny");
    assert_int_equal(c.n_layers, m.n_layers);
    assert_int_equal(c.d_model, m.d_model);
    assert_int_equal(c.d_ff, m.d_ff);
    assert_int_equal(c.n_vocab, m.n_vocab);
    assert_int_equal(c.context_length, m.context_length);
    assert_int_equal(c.attn.n_heads, m.n_heads);
    assert_int_equal(c.attn.n_kv_heads, m.n_kv_heads);
    assert_int_equal(c.attn.head_dim, m.head_dim);
    assert_int_equal(c.attn.rope_dim, m.head_dim);
    assert_int_equal(c.attn.rope_layout, SL_ROPE_PAIRS);
    assert_true(c.attn.rope_theta == m.rope_theta && c.rope_linear == 1);
    assert_non_null(c.attn.rope_factors);
    assert_true(c.tied_embeddings);
    sl_model_file_close(file);
    sl_free(f.bytes);

    m = tiny();
    m.arch = "qwen2";
    m.tied = false;
    f = file_of(&m);
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_int_equal(c.attn.rope_layout, SL_ROPE_HALVES);
    assert_false(c.tied_embeddings);
    assert_null(c.attn.rope_factors);
    sl_free(f.bytes);
}

static void optional_keys_when_absent_have_their_defaults(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.n_kv_heads = m.n_heads;
    struct file f = file_of(&m);
    rename_to(f, "llama.attention.head_count_kv", "llama.attention.head_count_xx");
    rename_to(f, "llama.attention.key_length", "llama.attention.key_xxxxxx");
    rename_to(f, "llama.attention.value_length", "llama.attention.value_xxxxxx");
    rename_to(f, "llama.rope.dimension_count", "llama.rope.dimension_xxxxx");
    rename_to(f, "llama.rope.freq_base", "llama.rope.freq_xxxx");
    struct sl_model_conf c;
    struct sl_why why;
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_int_equal(c.attn.n_kv_heads, m.n_heads);
    assert_int_equal(c.attn.head_dim, 16);
    assert_int_equal(c.attn.rope_dim, 16);
    assert_true(c.attn.rope_theta == 10000);
    sl_free(f.bytes);
}

static void file_of_another_kind_is_refused(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    struct file f = file_of(&m);
    memcpy(find(f, "general.architecture") + 20 + 4 + 8, "gl\nma", 5);
    expect(f, SL_EUNSUPPORTED,
           "architecture \"gl?ma\", which is not supported yet; supported: llama, qwen2, qwen3, gemma3");
    f = file_of(&m);
    rename_to(f, "general.architecture", "general.architectura");
    expect(f, SL_EPARSE, "general.architecture");
}

static void keys_missing_or_out_of_range_are_refused(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    struct file f = file_of(&m);
    rename_to(f, "llama.block_count", "llama.block_cxxxx");
    expect(f, SL_EPARSE, "no key llama.block_count");
    f = file_of(&m);
    rename_to(f, "llama.attention.layer_norm_rms_epsilon", "llama.attention.layer_norm_rms_xxxxxxx");
    expect(f, SL_EPARSE, "layer_norm_rms_epsilon is missing or not a positive number");
    f = file_of(&m);
    set_u32(f, "llama.block_count", 0);
    expect(f, SL_EPARSE, "llama.block_count is 0; expected 1 to 1024");
    f = file_of(&m);
    set_u32(f, "llama.feed_forward_length", 0x7fffffff);
    expect(f, SL_EPARSE, "llama.feed_forward_length is 2147483647");
    f = file_of(&m);
    set_u32(f, "llama.attention.head_count_kv", 3);
    expect(f, SL_EPARSE, "4 heads over 3 KV heads");
    f = file_of(&m);
    set_u32(f, "llama.attention.value_length", 8);
    expect(f, SL_EUNSUPPORTED, "keys of 16 and values of 8");
    f = file_of(&m);
    set_u32(f, "llama.rope.dimension_count", 18);
    expect(f, SL_EPARSE, "rotates 18 of 16");
    f = file_of(&m);
    set_u32(f, "llama.rope.freq_base", 0x7f800000); /* infinity */
    expect(f, SL_EPARSE, "llama.rope.freq_base");
}

static void scaling_is_read_or_refused(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.rope_scaling = "linear";
    m.rope_scaling_factor = 4;
    struct file f = file_of(&m);
    struct sl_model_conf c;
    struct sl_why why;
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_true(c.rope_linear == 4);
    rename_to(f, "llama.rope.scaling.factor", "llama.rope.scaling.xxxxxx");
    assert_int_equal(read_conf(f, &c, &why), SL_OK); /* no factor: 1 */
    assert_true(c.rope_linear == 1);
    sl_free(f.bytes);
    m.rope_scaling = "yarn";
    expect(file_of(&m), SL_EUNSUPPORTED, "rotary positions by \"yarn\"; supported: none, linear");
    m.rope_scaling = "linear";
    m.rope_scaling_factor = -1;
    expect(file_of(&m), SL_EPARSE, "llama.rope.scaling.factor");
}

static void mixture_of_experts_is_refused(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    struct file f = file_of(&m);
    rename_to(f, "tokenizer.ggml.pre", "llama.expert_count");
    expect(f, SL_EUNSUPPORTED, "experts, which is not supported yet");
}

static void tensors_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    struct file f = file_of(&m);
    rename_to(f, "blk.1.ffn_up.weight", "blk.1.ffn_xx.weight");
    expect(f, SL_EPARSE, "no tensor blk.1.ffn_up.weight");
    f = file_of(&m);
    set_u32(f, "llama.block_count", 2);
    expect(f, SL_EUNSUPPORTED, "has the tensor blk.2.attn_norm.weight");
    f = file_of(&m);
    set_u32(f, "llama.block_count", 4);
    expect(f, SL_EPARSE, "no tensor blk.3.attn_norm.weight");
    f = file_of(&m);
    set_u32(f, "llama.feed_forward_length", 160);
    expect(f, SL_EPARSE,
           "blk.0.ffn_gate.weight has rows of 64, 192 of them; expected rows of 64, 160 of them");

    m.overrides[0] = (struct sl_make_override){"0.attn_v.weight", SL_F32};
    m.overrides[1] = (struct sl_make_override){"0.attn_norm.weight", SL_Q8_0};
    m.n_overrides = 1;
    f = file_of(&m);
    uint32_t q8_1 = 9; /* smaller than F32, so that the tensor still fits its place */
    memcpy(find(f, "blk.0.attn_v.weight") + 19 + 4 + 16, &q8_1, sizeof q8_1);
    expect(
        f, SL_EUNSUPPORTED,
        "attn_v.weight has type Q8_1, which is not supported; supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, "
        "Q8_0, Q4_K, Q5_K, Q6_K, BF16");
    m.n_overrides = 2;
    f = file_of(&m);
    expect(f, SL_EUNSUPPORTED, "blk.0.attn_norm.weight has type Q8_0; a vector must be F32, F16 or BF16");

    m = tiny();
    m.rope_factors = true;
    f = file_of(&m);
    struct sl_gguf *g;
    assert_int_equal(sl_gguf_open_memory(f.bytes, f.n, "test.gguf", &g, NULL), SL_OK);
    size_t at = (size_t)((const uint8_t *)sl_gguf_tensor_find(g, "rope_freqs.weight")->data - f.bytes);
    sl_gguf_close(g);
    memset(f.bytes + at + 4, 0, 4);
    expect(f, SL_EPARSE, "rope_freqs.weight[1] is 0");
}

static void qwen2_without_biases_is_refused(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.arch = "qwen2";
    struct file f = file_of(&m);
    rename_to(f, "blk.0.attn_k.bias", "blk.0.attn_x.bias");
    expect(f, SL_EPARSE, "no tensor blk.0.attn_k.bias");
}

static void norms_on_heads_are_for_qwen3_only(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.arch = "qwen3";
    struct file f = file_of(&m);
    struct sl_model_conf c;
    struct sl_why why;
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_int_equal(c.attn.rope_layout, SL_ROPE_HALVES);
    rename_to(f, "blk.2.attn_k_norm.weight", "blk.2.attn_x_norm.weight");
    expect(f, SL_EPARSE, "no tensor blk.2.attn_k_norm.weight");

    f = file_of(&m);
    for (size_t i = 0; i + 5 <= f.n; i++) {
        if (memcmp(f.bytes + i, "qwen3", 5) == 0)
            memcpy(f.bytes + i, "llama", 5);
    }
    expect(f, SL_EUNSUPPORTED, "has the tensor blk.0.attn_q_norm.weight, which the architecture llama");
}

static void sliding_window_is_read(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.sliding_window = 4096;
    struct file f = file_of(&m);
    struct sl_model_conf c;
    struct sl_why why;
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_int_equal(sl_model_conf_attn(&c, 0)->window, 4096);
    assert_int_equal(c.context_length, m.context_length);
    set_u32(f, "llama.attention.sliding_window", 0); /* none */
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_int_equal(sl_model_conf_attn(&c, 0)->window, 0);
    sl_free(f.bytes);
}

static void gemma3_has_local_and_global_layers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.arch = "gemma3";
    m.n_layers = 12;
    m.sliding_window = 512;
    m.rope_theta = 1000000;
    struct file f = file_of(&m);
    struct sl_model_conf c;
    struct sl_why why;
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    for (uint32_t layer = 0; layer < m.n_layers; layer++) {
        const struct sl_attn_shape *a = sl_model_conf_attn(&c, layer);
        bool global = layer == 5 || layer == 11;
        assert_int_equal(a->window, global ? 0 : 512);
        assert_true(a->rope_theta == (global ? 1000000.0f : 10000.0f));
        assert_true(a->score_scale == 0.25f && a->rope_layout == SL_ROPE_HALVES);
    }
    assert_true(c.embed_scale == 8 && c.gated == SL_PRO_GEGLU);

    set_u32(f, "gemma3.attention.sliding_window", 0); /* all global */
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_int_equal(sl_model_conf_attn(&c, 0)->window, 0);
    assert_true(sl_model_conf_attn(&c, 0)->rope_theta == 1000000.0f);
    rename_to(f, "blk.3.post_ffw_norm.weight", "blk.3.post_xxx_norm.weight");
    expect(f, SL_EPARSE, "no tensor blk.3.post_ffw_norm.weight");

    m.window_pattern = 3;
    f = file_of(&m);
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_int_equal(sl_model_conf_attn(&c, 1)->window, 512);
    assert_int_equal(sl_model_conf_attn(&c, 2)->window, 0);
    sl_free(f.bytes);
}

static void gemma3_with_62_layers_scales_scores_by_its_width(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.arch = "gemma3";
    m.n_layers = 62;
    m.d_model = 128;
    struct file f = file_of(&m);
    struct sl_model_conf c;
    struct sl_why why;
    assert_int_equal(read_conf(f, &c, &why), SL_OK);
    assert_true(c.attn.score_scale == 1 / sqrtf(32) && c.attn.head_dim == 16);
    sl_free(f.bytes);
}

/* A key that is as long is made into the cap's. */
static void gemma3_with_capped_logits_is_refused(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    m.arch = "gemma3";
    struct file f = file_of(&m);
    rename_to(f, "gemma3.attention.head_count_kv", "gemma3.final_logit_softcapping");
    expect(f, SL_EUNSUPPORTED, "caps its logits at 2");
}

static void digest_follows_weights_and_vocabulary_only(void **state)
{
    (void)state;
    struct sl_make_model m = tiny();
    struct file f = file_of(&m);
    struct sl_model_conf a, b;
    struct sl_why why;
    assert_int_equal(read_conf(f, &a, &why), SL_OK);
    memcpy(find(f, "general.name") + 12 + 4 + 8, "Other", 5); /* a description */
    assert_int_equal(read_conf(f, &b, &why), SL_OK);
    assert_true(a.digest.lo == b.digest.lo && a.digest.hi == b.digest.hi);
    f.bytes[f.n - 64] ^= 1; /* a weight */
    assert_int_equal(read_conf(f, &b, &why), SL_OK);
    assert_true(a.digest.lo != b.digest.lo);
    f.bytes[f.n - 64] ^= 1;
    memcpy(find(f, "th e"), "th o", 4); /* a merge */
    assert_int_equal(read_conf(f, &b, &why), SL_OK);
    assert_true(a.digest.lo != b.digest.lo);
    memcpy(find(f, "th o"), "th e", 4);
    uint32_t theta;
    memcpy(&theta, find(f, "llama.rope.freq_base") + 20 + 4, 4);
    set_u32(f, "llama.rope.freq_base", theta + 1);
    assert_int_equal(read_conf(f, &b, &why), SL_OK);
    assert_true(a.digest.lo != b.digest.lo);
    sl_free(f.bytes);
}

static void model_with_a_bad_file_does_not_open(void **state)
{
    (void)state;
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    struct sl_model *model = NULL;
    struct sl_why why = {{0}};
    assert_int_equal(sl_backend_find("reference", &ops, &why), SL_OK);
    assert_int_equal(ops->open(&(struct sl_dev_conf){.n_threads = 1, .max_rows = 4}, &dev, &why), SL_OK);
    struct sl_model_open o = {.path = "/nonexistent/model.gguf",
                              .ops = ops,
                              .dev = dev,
                              .kv_dtype = SL_F16,
                              .page_tokens = 16,
                              .max_rows = 4};
    assert_int_equal(sl_model_open(&o, &model, &why), SL_EIO);
    assert_non_null(strstr(why.text, "/nonexistent/model.gguf"));
    struct sl_make_model m = tiny();
    m.arch = "qwen2";
    m.overrides[0] = (struct sl_make_override){"attn_q.bias", SL_Q8_0};
    m.n_overrides = 1;
    char *path = rig_model_file(&m);
    o.path = path;
    assert_int_equal(sl_model_open(&o, &model, &why), SL_EUNSUPPORTED);
    assert_null(model);
    unlink(path);
    sl_free(path);
    ops->close(dev);
}

static void model_that_cannot_fit_is_refused_with_numbers(void **state)
{
    (void)state;
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    struct sl_model *model = NULL;
    struct sl_why why = {{0}};
    struct sl_make_model m = tiny();
    char *path = rig_model_file(&m);
    assert_int_equal(sl_backend_find("reference", &ops, &why), SL_OK);
    assert_int_equal(ops->open(&(struct sl_dev_conf){.n_threads = 1, .max_rows = 4}, &dev, &why), SL_OK);
    struct sl_model_open o = {.path = path,
                              .ops = ops,
                              .dev = dev,
                              .kv_dtype = SL_F16,
                              .page_tokens = 16,
                              .max_rows = 4,
                              .other_bytes = (uint64_t)5000 << 20,
                              .available_bytes = (uint64_t)5001 << 20};
    assert_int_equal(sl_model_open(&o, &model, &why), SL_ETOOBIG);
    assert_non_null(strstr(why.text, "kv_memory 5000"));
    assert_non_null(strstr(why.text, "5001 MiB"));
    assert_non_null(strstr(why.text, "lower kv_memory"));
    o.available_bytes = (uint64_t)6000 << 20;
    assert_int_equal(sl_model_open(&o, &model, &why), SL_OK);
    sl_model_close(model);
    unlink(path);
    sl_free(path);
    ops->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conf_of_a_made_model_reads_back),
        cmocka_unit_test(optional_keys_when_absent_have_their_defaults),
        cmocka_unit_test(file_of_another_kind_is_refused),
        cmocka_unit_test(keys_missing_or_out_of_range_are_refused),
        cmocka_unit_test(scaling_is_read_or_refused),
        cmocka_unit_test(mixture_of_experts_is_refused),
        cmocka_unit_test(tensors_that_do_not_fit_are_refused),
        cmocka_unit_test(qwen2_without_biases_is_refused),
        cmocka_unit_test(norms_on_heads_are_for_qwen3_only),
        cmocka_unit_test(sliding_window_is_read),
        cmocka_unit_test(gemma3_has_local_and_global_layers),
        cmocka_unit_test(gemma3_with_62_layers_scales_scores_by_its_width),
        cmocka_unit_test(gemma3_with_capped_logits_is_refused),
        cmocka_unit_test(digest_follows_weights_and_vocabulary_only),
        cmocka_unit_test(model_with_a_bad_file_does_not_open),
        cmocka_unit_test(model_that_cannot_fit_is_refused_with_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
