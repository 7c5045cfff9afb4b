/* common/model/model_file_hf.c - a Hugging Face folder behind the door of model_file.h.
 *
 * config.json becomes keys (hf_config.c); the tensors get GGUF's names by the tables below and lie where they
 * lie in the mapped files. Three things GGUF stores otherwise. The rows of q and k of a llama are in another
 * order there: such a tensor says so (pair_heads) and is reordered when it is packed. Gemma's norms are
 * stored plus one, and Llama 3's frequencies as factors: small vectors, made here. So the same weights give
 * the same bits from a folder and from a GGUF file.
 *
 * A tensor that is in no table keeps its name: then it is in no table of the architecture either, and is
 * refused there by name. Left out on purpose: frequencies that old checkpoints store (they are computed), a
 * head that repeats the tied embeddings, and the towers beside the language model of a nested one.
 *
 * The digest of the vocabulary is that of the bytes of tokenizer.json; how the weights are cut into files
 * does not count. */
#include "common/model/hf_config.h"
#include "common/model/hf_weights.h"
#include "common/model/model_file_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/hf_files.h"

struct rename {
    const char *hf, *gguf;
};

/* Behind "model.", and behind "model.layers.N." */
static const struct rename globals[] = {{"embed_tokens.weight", "token_embd.weight"},
                                        {"norm.weight", "output_norm.weight"}};
static const struct rename parts[] = {
    {"input_layernorm.weight", "attn_norm.weight"},    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},      {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"}, {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},          {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},     {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"}, {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},           {"mlp.down_proj.weight", "ffn_down.weight"},
};
/* The norms around the feed-forward: before it, or (sandwich) behind both halves of a layer as well. */
static const struct rename norms[] = {{"post_attention_layernorm.weight", "ffn_norm.weight"}};
static const struct rename sandwich[] = {{"post_attention_layernorm.weight", "post_attention_norm.weight"},
                                         {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
                                         {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"}};
static const char *const nested_prefixes[] = {"language_model.", "model.language_model."};
static const char *const towers[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                     "model.multi_modal_projector."};

struct folder {
    struct sl_hf_config config;
    struct sl_hf_weights *weights;
    struct sl_arena *arena; /* names and vectors made here */
};

/* ---- names ---- */

static const char *find(const struct rename *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].hf, name) == 0)
            return table[i].gguf;
    return NULL;
}

/* name behind prefix, or NULL. */
static const char *behind(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : NULL;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool left_out(const struct sl_hf_config *c, const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(towers) && c->nested; i++)
        if (behind(name, towers[i]))
            return true;
    return ends_with(name, ".rotary_emb.inv_freq") || (c->tied && ends_with(name, "lm_head.weight"));
}

/* The name in GGUF; NULL when there is none. */
static const char *gguf_name(const struct sl_hf_config *c, const char *name, char buf[64])
{
    const char *at = name, *rest, *part;
    char *end;
    for (size_t i = 0; i < SL_COUNTOF(nested_prefixes) && c->nested; i++)
        if ((rest = behind(name, nested_prefixes[i])) != NULL)
            at = rest;
    if (strcmp(at, "lm_head.weight") == 0)
        return "output.weight";
    if ((rest = behind(at, "model.")) != NULL)
        at = rest;
    else if (at == name)
        return NULL; /* a part that may be told by a prefix must have one */
    if ((rest = behind(at, "layers.")) == NULL)
        return find(globals, SL_COUNTOF(globals), at);
    unsigned long layer = strtoul(rest, &end, 10);
    if (*rest < '0' || *rest > '9' || *end != '.' || layer > UINT32_MAX)
        return NULL;
    part = find(parts, SL_COUNTOF(parts), end + 1);
    if (!part)
        part = c->sandwich ? find(sandwich, SL_COUNTOF(sandwich), end + 1)
                           : find(norms, SL_COUNTOF(norms), end + 1);
    snprintf(buf, 64, "blk.%lu.%s", layer, part ? part : "");
    return part ? buf : NULL;
}

/* ---- tensors ---- */

static enum sl_err no_memory(const char *path, struct sl_why *why)
{
    return sl_why_set(why, SL_ENOMEM, "%s: no memory for the list of tensors", path);
}

/* 1 + weight in float32, as GGUF has it. */
static bool plus_one(struct folder *f, struct sl_model_tensor *t)
{
    size_t n = t->view.n_cols;
    float *sum = sl_arena_alloc(f->arena, n * sizeof *sum);
    if (!sum)
        return false;
    sl_dequant_row(t->view.type, t->view.data, n, sum);
    for (size_t i = 0; i < n; i++)
        sum[i] += 1.0f;
    t->view.type = SL_F32;
    t->view.data = sum;
    t->bytes = n * sizeof *sum;
    return true;
}

static uint32_t pair_heads(const struct sl_hf_config *c, const char *name)
{
    if (!c->pairs)
        return 0;
    if (ends_with(name, ".attn_q.weight") || ends_with(name, ".attn_q.bias"))
        return c->n_heads;
    return ends_with(name, ".attn_k.weight") || ends_with(name, ".attn_k.bias") ? c->n_kv_heads : 0;
}

static enum sl_err add_tensor(struct folder *f, const char *path, const struct sl_safetensor *s,
                              struct sl_model_tensor *t, struct sl_why *why)
{
    char buf[64], shown[SL_SHOWN_BYTES];
    const char *name = gguf_name(&f->config, s->name, buf);
    uint64_t rows = 1;
    if (s->bytes == 0 || s->n_dims == 0 || s->dtype->gguf_type < 0)
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "%s: tensor %s has the type %s%s; take the model in BF16, F16 or F32", path,
                          sl_shown(shown, s->name, strlen(s->name)), s->dtype->name,
                          s->bytes == 0 ? " and no elements" : "");
    for (uint32_t i = 0; i + 1 < s->n_dims; i++)
        rows *= s->dims[i];
    name = sl_arena_strndup(f->arena, name ? name : s->name, strlen(name ? name : s->name));
    if (!name)
        return no_memory(path, why);
    *t = (struct sl_model_tensor){
        .name = name,
        .view = {(enum sl_dtype)s->dtype->gguf_type, rows, s->dims[s->n_dims - 1], s->data},
        .bytes = s->bytes,
        .pair_heads = pair_heads(&f->config, name)};
    if (f->config.norm_plus_one && s->n_dims == 1 && ends_with(name, "norm.weight") && !plus_one(f, t))
        return no_memory(path, why);
    return SL_OK;
}

static enum sl_err add_tensors(struct folder *f, const char *path, struct sl_model_tensor *tensors, size_t *n,
                               struct sl_why *why)
{
    const struct sl_hf_config *c = &f->config;
    bool has_head = false;
    *n = 0;
    for (size_t i = 0; i < sl_hf_weights_n(f->weights); i++) {
        const struct sl_safetensor *s = sl_hf_weights_at(f->weights, i);
        if (left_out(c, s->name))
            continue;
        enum sl_err e = add_tensor(f, path, s, &tensors[*n], why);
        if (e)
            return e;
        has_head = has_head || strcmp(tensors[*n].name, "output.weight") == 0;
        ++*n;
    }
    if (!c->tied && !has_head)
        return sl_why_set(
            why, SL_EPARSE,
            "%s has no tensor lm_head.weight, and config.json does not say that the head is tied "
            "to the embeddings (tie_word_embeddings); the folder is incomplete",
            path);
    if (c->factors)
        tensors[(*n)++] = (struct sl_model_tensor){.name = "rope_freqs.weight",
                                                   .view = {SL_F32, 1, c->head_dim / 2, c->rope_factors},
                                                   .bytes = c->head_dim / 2 * sizeof(float)};
    return SL_OK;
}

/* Two names of the folder may be one in GGUF where the model is nested. */
static enum sl_err check_unique(const char *path, const struct sl_model_tensor *tensors, size_t n,
                                struct sl_why *why)
{
    struct sl_hashmap *seen = sl_hashmap_new();
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < n && !e; i++)
        if (sl_hashmap_put(seen, tensors[i].name, strlen(tensors[i].name), (void *)&tensors[i]) != NULL)
            e = sl_why_set(why, SL_EPARSE, "%s has two tensors that are %s of GGUF", path, tensors[i].name);
    sl_hashmap_free(seen);
    return e;
}

/* ---- the door ---- */

static bool get(const void *impl, const char *key, struct sl_model_value *out)
{
    const struct sl_hf_config *c = &((const struct folder *)impl)->config;
    const struct sl_model_value *v = sl_hf_config_get(c, key);
    const char *text = strcmp(key, "general.architecture") == 0 ? c->arch
                       : strcmp(key, "general.name") == 0       ? c->name
                                                                : NULL;
    if (text)
        *out = (struct sl_model_value){SL_MODEL_VALUE_TEXT, 0, 0, {text, strlen(text)}};
    else if (v)
        *out = *v;
    return text || v;
}

static void close_folder(void *impl)
{
    struct folder *f = impl;
    if (f == NULL)
        return;
    sl_hf_weights_close(f->weights);
    sl_arena_free(f->arena);
    sl_free(f);
}

static void release(const void *impl, const void *p, size_t n)
{
    sl_hf_weights_release(((const struct folder *)impl)->weights, p, n);
}

/* What the tensors are: the bytes of the weights, and config.json, whose numbers some are made of. */
static struct sl_model_file_id id_of(const struct folder *f, const json_t *config)
{
    struct sl_model_file_id id = {0};
    struct sl_digest128 both[2];
    size_t n = json_dumpb(config, NULL, 0, JSON_COMPACT | JSON_SORT_KEYS);
    char *text = sl_xalloc(n);
    (void)json_dumpb(config, text, n, JSON_COMPACT | JSON_SORT_KEYS);
    both[0] = sl_digest128(text, n, 0);
    sl_hf_weights_id(f->weights, &both[1], &id.newest_ns);
    id.digest = sl_digest128(both, sizeof both, 0);
    sl_free(text);
    return id;
}

static enum sl_err read_vocab_digest(const char *path, struct sl_digest128 *out, struct sl_why *why)
{
    char *text = NULL;
    size_t n = 0;
    enum sl_err e = sl_hf_read_file(path, "tokenizer.json", SL_HF_MAX_TOKENIZER_BYTES, false, &text, &n, why);
    if (!e)
        *out = sl_digest128(text, n, 0);
    sl_free(text);
    return e;
}

enum sl_err sl_model_file_open_folder(const char *path, struct sl_model_file **out, struct sl_why *why)
{
    struct folder *f = sl_xcalloc(1, sizeof *f);
    struct sl_model_tensor *tensors = NULL;
    struct sl_digest128 vocab = {0, 0};
    json_t *config = NULL;
    size_t n = 0;
    enum sl_err e;
    if ((e = sl_hf_read_json(path, "config.json", false, &config, why)) != SL_OK ||
        (e = sl_hf_config_read(config, path, &f->config, why)) != SL_OK ||
        (e = sl_hf_weights_open(path, &f->weights, why)) != SL_OK ||
        (e = read_vocab_digest(path, &vocab, why)) != SL_OK)
        goto fail;
    size_t most = sl_hf_weights_n(f->weights) + 1; /* and the factors */
    /* a name, and a vector that is not much longer than in the file */
    f->arena = sl_arena_new(most * (SL_SAFETENSORS_MAX_NAME_BYTES + 4096) + ((size_t)64 << 20));
    tensors = sl_xcalloc(most, sizeof *tensors);
    if ((e = add_tensors(f, path, tensors, &n, why)) != SL_OK ||
        (e = check_unique(path, tensors, n, why)) != SL_OK)
        goto fail;
    *out = sl_model_file_new(f, path, tensors, n);
    (*out)->get = get;
    (*out)->close = close_folder;
    (*out)->release = release;
    (*out)->id = id_of(f, config);
    (*out)->n_tokens = f->config.n_vocab;
    (*out)->vocab_digest = vocab;
    json_decref(config);
    return SL_OK;
fail:
    sl_free(tensors);
    close_folder(f);
    json_decref(config);
    return e;
}
