/* tests/support/make_hf/make_hf.c - config.json and the order of things. */
#include "tests/support/make_hf/make_hf_impl.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

/* hf's number is gguf's key behind the architecture's name. */
static const struct {
    const char *hf, *gguf;
} numbers[] = {{"num_hidden_layers", "block_count"},
               {"hidden_size", "embedding_length"},
               {"intermediate_size", "feed_forward_length"},
               {"max_position_embeddings", "context_length"},
               {"num_attention_heads", "attention.head_count"},
               {"num_key_value_heads", "attention.head_count_kv"},
               {"head_dim", "attention.key_length"},
               {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
               {"rope_theta", "rope.freq_base"},
               {"rope_local_base_freq", "rope.freq_base_swa"},
               {"sliding_window", "attention.sliding_window"},
               {"sliding_window_pattern", "attention.sliding_window_pattern"}};

enum sl_err sl_make_hf_put(const struct sl_make_hf_run *r, const char *name, json_t *json)
{
    char *path = sl_xasprintf("%s/%s", r->m->folder, name);
    enum sl_err e = SL_OK;
    if (json_dump_file(json, path, JSON_INDENT(1)) != 0)
        e = sl_why_set(r->why, SL_EIO, "%s: cannot be written", path);
    json_decref(json);
    sl_free(path);
    return e;
}

static json_t *number(const struct sl_make_hf_run *r, const char *suffix)
{
    char key[96];
    uint64_t u;
    float f;
    snprintf(key, sizeof key, "%s.%s", r->arch, suffix);
    if (sl_gguf_u64(r->g, key, &u, NULL) == SL_OK)
        return json_integer((json_int_t)u);
    return sl_gguf_f32(r->g, key, &f, NULL) == SL_OK ? json_real((double)f) : NULL;
}

static const char *model_type(const struct sl_make_hf_run *r, bool windowed)
{
    if (strcmp(r->arch, "gemma3") == 0)
        return "gemma3_text";
    return strcmp(r->arch, "llama") == 0 && windowed ? "mistral" : r->arch;
}

enum sl_err sl_make_hf_config(const struct sl_make_hf_run *r)
{
    json_t *c = json_object(), *factor = number(r, "rope.scaling.factor");
    for (size_t i = 0; i < SL_COUNTOF(numbers); i++) {
        json_t *v = number(r, numbers[i].gguf);
        if (v)
            json_object_set_new(c, numbers[i].hf, v);
    }
    json_object_set_new(c, "model_type",
                        json_string(model_type(r, json_object_get(c, "sliding_window") != NULL)));
    json_object_set_new(c, "vocab_size",
                        json_integer((json_int_t)sl_gguf_tensor_find(r->g, "token_embd.weight")->dims[1]));
    json_object_set_new(c, "tie_word_embeddings",
                        json_boolean(sl_gguf_tensor_find(r->g, "output.weight") == NULL));
    if (strcmp(r->arch, "gemma3") == 0) /* GGUF has no key for it */
        json_object_set(c, "query_pre_attn_scalar", json_object_get(c, "head_dim"));
    if (factor)
        json_object_set_new(c, "rope_scaling",
                            json_pack("{s:s, s:o}", "rope_type", "linear", "factor", factor));
    if (r->m->nested)
        c = json_pack("{s:s, s:o}", "model_type", "outer", "text_config", c);
    return sl_make_hf_put(r, "config.json", c);
}

enum sl_err sl_make_hf_write(const struct sl_make_hf *m, struct sl_why *why)
{
    struct sl_gguf *g;
    struct sl_gguf_str arch;
    enum sl_err e = sl_gguf_open(m->gguf, &g, why);
    if (e)
        return e;
    struct sl_make_hf_run r = {.m = m, .g = g, .why = why};
    e = sl_gguf_str(g, "general.architecture", &arch, why);
    if (!e)
        snprintf(r.arch, sizeof r.arch, "%.*s", (int)arch.n, arch.p);
    if (!e && !sl_gguf_tensor_find(g, "token_embd.weight"))
        e = sl_why_set(why, SL_EUNSUPPORTED, "%s has no embeddings", m->gguf);
    if (!e && sl_gguf_tensor_find(g, "rope_freqs.weight"))
        e = sl_why_set(why, SL_EUNSUPPORTED, "%s has rotary factors, which no config.json has", m->gguf);
    if (!e)
        e = sl_make_hf_config(&r);
    if (!e)
        e = sl_make_hf_tokenizer(&r);
    if (!e)
        e = sl_make_hf_weights(&r);
    sl_gguf_close(g);
    return e;
}
