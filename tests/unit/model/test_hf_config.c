/* config.json as GGUF's keys: what is carried over, and what is refused with which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "common/model/hf_config.h"

#define SIZES                                                                                                \
    "\"num_hidden_layers\":2,\"hidden_size\":64,\"intermediate_size\":96,\"max_position_embeddings\":128,"   \
    "\"num_attention_heads\":4,\"vocab_size\":320,\"rms_norm_eps\":1e-05"
#define LLAMA "\"model_type\":\"llama\"," SIZES

static enum sl_err read_text(const char *json, struct sl_hf_config *c, struct sl_why *why)
{
    json_t *config = json_loads(json, 0, NULL);
    assert_non_null(config);
    enum sl_err e = sl_hf_config_read(config, "some/folder//", c, why);
    json_decref(config);
    return e;
}

static struct sl_hf_config accepted(const char *json)
{
    struct sl_hf_config c;
    struct sl_why why = {{0}};
    if (read_text(json, &c, &why) != SL_OK)
        fail_msg("%s: %s", json, why.text);
    return c;
}

static void count_is(const struct sl_hf_config *c, const char *key, uint64_t want)
{
    const struct sl_model_value *v = sl_hf_config_get(c, key);
    if (v == NULL || v->kind != SL_MODEL_VALUE_COUNT || v->count != want)
        fail_msg("%s is not %llu", key, (unsigned long long)want);
}

static void real_is(const struct sl_hf_config *c, const char *key, double want)
{
    const struct sl_model_value *v = sl_hf_config_get(c, key);
    assert_non_null(v);
    assert_true(v->real == want);
}

static void numbers_get_their_keys(void **state)
{
    (void)state;
    struct sl_hf_config c = accepted("{" LLAMA ",\"num_key_value_heads\":2,\"rope_theta\":500000.0}");
    assert_string_equal(c.arch, "llama");
    assert_string_equal(c.name, "folder");
    count_is(&c, "llama.block_count", 2);
    count_is(&c, "llama.embedding_length", 64);
    count_is(&c, "llama.feed_forward_length", 96);
    count_is(&c, "llama.context_length", 128);
    count_is(&c, "llama.attention.head_count", 4);
    count_is(&c, "llama.attention.head_count_kv", 2);
    count_is(&c, "llama.attention.key_length", 16);
    count_is(&c, "llama.rope.dimension_count", 16);
    real_is(&c, "llama.attention.layer_norm_rms_epsilon", 1e-5);
    real_is(&c, "llama.rope.freq_base", 500000);
    assert_null(sl_hf_config_get(&c, "llama.rope.scaling.type"));
    assert_null(sl_hf_config_get(&c, "llama.attention.sliding_window"));
    assert_true(c.pairs && !c.tied && !c.factors && !c.nested);
    assert_int_equal(c.n_vocab, 320);
}

static void what_is_left_out_has_the_default_of_its_kind(void **state)
{
    (void)state;
    struct sl_hf_config c = accepted("{" LLAMA ",\"head_dim\":null,\"rope_theta\":null}");
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    real_is(&c, "llama.rope.freq_base", 10000);
    c = accepted("{\"model_type\":\"qwen3\",\"num_key_value_heads\":4," SIZES "}");
    assert_int_equal(c.head_dim, 128);
    assert_false(c.pairs);
    c = accepted("{\"model_type\":\"mistral\"," SIZES "}");
    assert_string_equal(c.arch, "llama");
    count_is(&c, "llama.attention.head_count_kv", 8);
}

static void windows_are_told_where_every_layer_has_one(void **state)
{
    (void)state;
    struct sl_hf_config c = accepted("{\"model_type\":\"mistral\",\"sliding_window\":24," SIZES "}");
    count_is(&c, "llama.attention.sliding_window", 24);
    c = accepted("{\"model_type\":\"mistral\",\"sliding_window\":null," SIZES "}");
    assert_null(sl_hf_config_get(&c, "llama.attention.sliding_window"));
    c = accepted("{\"model_type\":\"qwen2\",\"sliding_window\":24,\"use_sliding_window\":false," SIZES "}");
    assert_null(sl_hf_config_get(&c, "qwen2.attention.sliding_window"));
    c = accepted("{\"model_type\":\"qwen2\",\"sliding_window\":24,\"use_sliding_window\":true,"
                 "\"layer_types\":[\"full_attention\",\"full_attention\"]," SIZES "}");
    assert_null(sl_hf_config_get(&c, "qwen2.attention.sliding_window"));
}

static void rotary_scaling_becomes_keys_or_factors(void **state)
{
    (void)state;
    struct sl_hf_config c = accepted("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}");
    assert_true(memcmp(sl_hf_config_get(&c, "llama.rope.scaling.type")->text.p, "linear", 6) == 0);
    real_is(&c, "llama.rope.scaling.factor", 4);
    c = accepted("{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":20000.0}}");
    real_is(&c, "llama.rope.freq_base", 20000);

    /* wave lengths 2 pi, 62.8, 628...: below 64 / 4, between, above 64 */
    c = accepted("{" LLAMA ",\"head_dim\":8,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
                 "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}");
    assert_true(c.factors);
    assert_true(c.rope_factors[0] == 1 && c.rope_factors[2] == 8 && c.rope_factors[3] == 8);
    double smooth = (64 / 62.83185307 - 1) / 3;
    assert_true(fabs((double)c.rope_factors[1] - 1 / ((1 - smooth) / 8 + smooth)) < 1e-5);
}

static void nested_models_are_read_from_their_part(void **state)
{
    (void)state;
    struct sl_hf_config c = accepted("{\"model_type\":\"other\",\"tie_word_embeddings\":true,"
                                     "\"text_config\":{" LLAMA "}}");
    assert_true(c.nested && c.tied);
}

static void what_is_not_computed_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum sl_err code;
        const char *said;
    } cases[] = {
        {"{}", SL_EUNSUPPORTED, "model_type is \"\""},
        {"{\"model_type\":\"mamba\\u0007\"}", SL_EUNSUPPORTED, "\"mamba?\", which is not supported"},
        {"{" LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", SL_EUNSUPPORTED, "\"gptq\""},
        {"{" LLAMA ",\"hidden_act\":\"relu\"}", SL_EUNSUPPORTED, "hidden_act is \"relu\""},
        {"{" LLAMA ",\"partial_rotary_factor\":0.5}", SL_EUNSUPPORTED, "partial_rotary_factor"},
        {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}", SL_EUNSUPPORTED,
         "rope scaling is \"yarn\""},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", SL_EPARSE, "factor of the rope scaling"},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
         SL_EPARSE, "more than low_freq_factor"},
        {"{" LLAMA ",\"rope_theta\":-1}", SL_EPARSE, "rope_theta"},
        {"{" LLAMA ",\"rope_theta\":0}", SL_EPARSE, "rope_theta is 0"},
        {"{" LLAMA ",\"head_dim\":4096}", SL_EPARSE,
         "head_dim is missing or not a whole number from 1 to 1024"},
        {"{" LLAMA ",\"num_key_value_heads\":\"4\"}", SL_EPARSE, "num_key_value_heads is no number"},
        {"{\"model_type\":\"llama\"}", SL_EPARSE, "no num_hidden_layers"},
        {"{\"model_type\":\"qwen2\",\"sliding_window\":24,\"use_sliding_window\":true," SIZES "}",
         SL_EUNSUPPORTED, "the same attention in all layers"},
        {"{\"model_type\":\"mistral\",\"sliding_window\":24,\"layer_types\":[\"full_attention\","
         "\"sliding_attention\"]," SIZES "}",
         SL_EUNSUPPORTED, "the same attention in all layers"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_hf_config c;
        struct sl_why why = {{0}};
        enum sl_err e = read_text(cases[i].json, &c, &why);
        if (e != cases[i].code || !strstr(why.text, cases[i].said) || !strstr(why.text, "some/folder"))
            fail_msg("%s: %s \"%s\", expected \"%s\"", cases[i].json, sl_err_name(e), why.text,
                     cases[i].said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_get_their_keys),
        cmocka_unit_test(what_is_left_out_has_the_default_of_its_kind),
        cmocka_unit_test(windows_are_told_where_every_layer_has_one),
        cmocka_unit_test(rotary_scaling_becomes_keys_or_factors),
        cmocka_unit_test(nested_models_are_read_from_their_part),
        cmocka_unit_test(what_is_not_computed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
