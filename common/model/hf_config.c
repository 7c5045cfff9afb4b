/* common/model/hf_config.c - config.json as GGUF metadata.
 *
 * A kind of model (model_type) is a row of a table with the defaults that transformers has for it, since
 * config.json may leave out what equals them. Numbers are carried over one by one by a second table. What has
 * no key in GGUF becomes something else there: Llama 3's stretched frequencies become factors (the tensor
 * rope_freqs.weight), as GGUF's converter does it. */
#include "common/model/hf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/exact_math.h"

#define TAU 6.28318530717958647692

struct preset {
    const char *key;
    double value;
};

/* Which layers attend to a window of positions. */
enum windows {
    NO_WINDOWS,     /* none; a model that says otherwise is refused */
    ALL_WINDOWS,    /* all, where sliding_window is set */
    PATTERN_WINDOWS /* all but every so-and-so-many-th, which rotates with a base of its own */
};

struct model_type {
    const char *name; /* model_type */
    const char *arch;
    const char *activation; /* hidden_act */
    bool pairs, plus_one, sandwich, tied;
    enum windows windows;
    const struct preset *presets; /* ends with a zero */
};

static const struct preset none[] = {{0}}, mistral[] = {{"num_key_value_heads", 8}, {0}},
                           qwen2[] = {{"num_key_value_heads", 32}, {0}},
                           qwen3[] = {{"num_key_value_heads", 32}, {"head_dim", 128}, {0}},
                           gemma3[] = {{"num_hidden_layers", 26},
                                       {"hidden_size", 2304},
                                       {"intermediate_size", 9216},
                                       {"max_position_embeddings", 131072},
                                       {"num_attention_heads", 8},
                                       {"num_key_value_heads", 4},
                                       {"head_dim", 256},
                                       {"rms_norm_eps", 1e-6},
                                       {"vocab_size", 262208},
                                       {"query_pre_attn_scalar", 256},
                                       {"sliding_window", 4096},
                                       {"sliding_window_pattern", 6},
                                       {"rope_theta", 1e6},
                                       {"rope_local_base_freq", 1e4},
                                       {0}};

static const struct model_type types[] = {
    {.name = "llama", .arch = "llama", .activation = "silu", .pairs = true, .presets = none},
    {.name = "mistral",
     .arch = "llama",
     .activation = "silu",
     .pairs = true,
     .windows = ALL_WINDOWS,
     .presets = mistral},
    {.name = "qwen2", .arch = "qwen2", .activation = "silu", .presets = qwen2},
    {.name = "qwen3", .arch = "qwen3", .activation = "silu", .presets = qwen3},
    {.name = "gemma3_text",
     .arch = "gemma3",
     .activation = "gelu_pytorch_tanh",
     .plus_one = true,
     .sandwich = true,
     .tied = true,
     .windows = PATTERN_WINDOWS,
     .presets = gemma3},
};

static const struct {
    const char *hf, *gguf; /* gguf behind the architecture's name */
    bool required;
} numbers[] = {
    {"num_hidden_layers", "block_count", true},
    {"hidden_size", "embedding_length", true},
    {"intermediate_size", "feed_forward_length", true},
    {"max_position_embeddings", "context_length", true},
    {"num_attention_heads", "attention.head_count", true},
    {"num_key_value_heads", "attention.head_count_kv", false},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", true},
};

struct reader {
    const json_t *root, *text; /* text: the part about the language model, or root */
    const struct model_type *type;
    const char *name;
    struct sl_hf_config *c;
    struct sl_why *why;
};

/* ---- small helpers ---- */

static enum sl_err unsupported(const struct reader *r, const char *what, const char *value, const char *known)
{
    char buf[SL_SHOWN_BYTES];
    return sl_why_set(r->why, SL_EUNSUPPORTED, "%s/config.json: %s is \"%s\", which is not supported; %s",
                      r->name, what, sl_shown(buf, value, strlen(value)), known);
}

/* The value of key, or its preset as *preset; NULL and *preset NAN when there is neither. */
static const json_t *lookup(const struct reader *r, const char *key, double *preset)
{
    const json_t *j = json_object_get(r->text, key);
    *preset = NAN;
    if (j && !json_is_null(j))
        return j;
    for (const struct preset *p = r->type->presets; p->key; p++)
        if (strcmp(p->key, key) == 0)
            *preset = p->value;
    return NULL;
}

/* A number of 0 or more. SL_ENOTFOUND when there is none, *out is then untouched. */
static enum sl_err number(const struct reader *r, const char *key, struct sl_model_value *out)
{
    double v;
    const json_t *j = lookup(r, key, &v);
    if (!j && isnan(v))
        return SL_ENOTFOUND;
    if (j && json_is_integer(j) && json_integer_value(j) >= 0) {
        uint64_t count = (uint64_t)json_integer_value(j);
        *out = (struct sl_model_value){SL_MODEL_VALUE_COUNT, count, (double)count, {NULL, 0}};
        return SL_OK;
    }
    if (j)
        v = json_is_real(j) ? json_real_value(j) : -1;
    if (!(v >= 0) || !isfinite(v))
        return sl_why_set(r->why, SL_EPARSE, "%s/config.json: %s is no number of 0 or more", r->name, key);
    bool whole = v < 4294967296.0 && v == (double)(uint64_t)v;
    *out = (struct sl_model_value){
        whole ? SL_MODEL_VALUE_COUNT : SL_MODEL_VALUE_REAL, whole ? (uint64_t)v : 0, v, {NULL, 0}};
    return SL_OK;
}

/* A whole number from 1 to max; when there is none *out stays, and 0 then means that it was needed. */
static enum sl_err count(const struct reader *r, const char *key, uint32_t max, uint32_t *out)
{
    struct sl_model_value v = {.kind = SL_MODEL_VALUE_COUNT, .count = *out};
    enum sl_err e = number(r, key, &v);
    if (e != SL_OK && e != SL_ENOTFOUND)
        return e;
    if (v.kind != SL_MODEL_VALUE_COUNT || v.count == 0 || v.count > max)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s/config.json: %s is missing or not a whole number from 1 to %u", r->name, key,
                          max);
    *out = (uint32_t)v.count;
    return SL_OK;
}

static void put(const struct reader *r, const char *suffix, struct sl_model_value value)
{
    SL_ASSERT(r->c->n_entries < SL_HF_MAX_ENTRIES);
    struct sl_hf_entry *entry = &r->c->entries[r->c->n_entries++];
    snprintf(entry->key, sizeof entry->key, "%s.%s", r->c->arch, suffix);
    entry->value = value;
}

static void put_count(const struct reader *r, const char *suffix, uint32_t v)
{
    put(r, suffix, (struct sl_model_value){SL_MODEL_VALUE_COUNT, v, v, {NULL, 0}});
}

static void put_real(const struct reader *r, const char *suffix, double v)
{
    put(r, suffix, (struct sl_model_value){SL_MODEL_VALUE_REAL, 0, v, {NULL, 0}});
}

static struct sl_model_value text_value(const char *text)
{
    return (struct sl_model_value){SL_MODEL_VALUE_TEXT, 0, 0, {text, strlen(text)}};
}

/* ---- the kind of model ---- */

static enum sl_err read_type(struct reader *r)
{
    const json_t *text = json_object_get(r->root, "text_config");
    r->text = json_is_object(text) ? text : r->root;
    r->c->nested = r->text != r->root;
    const char *type = json_string_value(json_object_get(r->text, "model_type"));
    char known[160] = "supported: ";
    size_t len = strlen(known);
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        if (type && strcmp(types[i].name, type) == 0)
            r->type = &types[i];
        len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "", types[i].name);
    }
    if (r->type == NULL)
        return unsupported(r, "model_type", type ? type : "", known);
    r->c->arch = r->type->arch;
    r->c->pairs = r->type->pairs;
    r->c->norm_plus_one = r->type->plus_one;
    r->c->sandwich = r->type->sandwich;
    const json_t *tied = json_object_get(r->root, "tie_word_embeddings");
    if (!json_is_boolean(tied))
        tied = json_object_get(r->text, "tie_word_embeddings");
    r->c->tied = json_is_boolean(tied) ? json_is_true(tied) : r->type->tied;
    return SL_OK;
}

/* What would be computed without, silently and wrongly. */
static enum sl_err refuse_others(const struct reader *r)
{
    static const char *const must_be_off[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                              "use_bidirectional_attention"};
    const json_t *quantised = json_object_get(r->root, "quantization_config"),
                 *partial = json_object_get(r->text, "partial_rotary_factor");
    if (json_is_object(quantised)) {
        const char *method = json_string_value(json_object_get(quantised, "quant_method"));
        return unsupported(r, "quantization_config.quant_method", method ? method : "",
                           "take the model in BF16, F16 or F32, or a GGUF file of it");
    }
    if (json_is_number(partial) && json_number_value(partial) != 1)
        return unsupported(r, "partial_rotary_factor", "other than 1", "whole heads are rotated");
    for (size_t i = 0; i < SL_COUNTOF(must_be_off); i++) {
        const json_t *j = json_object_get(r->text, must_be_off[i]);
        if (json_is_true(j) || (json_is_number(j) && json_number_value(j) != 0))
            return unsupported(r, must_be_off[i], "on", "only off is");
    }
    const char *act = json_string_value(json_object_get(r->text, "hidden_act"));
    if (!act)
        act = json_string_value(json_object_get(r->text, "hidden_activation"));
    if (act && strcmp(act, r->type->activation) != 0) {
        char known[64];
        snprintf(known, sizeof known, "supported: %s", r->type->activation);
        return unsupported(r, "hidden_act", act, known);
    }
    return SL_OK;
}

/* ---- numbers ---- */

static enum sl_err read_heads(const struct reader *r)
{
    struct sl_hf_config *c = r->c;
    uint32_t width = 0;
    enum sl_err e;
    if ((e = count(r, "num_attention_heads", UINT32_MAX, &c->n_heads)) != SL_OK ||
        (e = count(r, "hidden_size", UINT32_MAX, &width)) != SL_OK)
        return e;
    c->n_kv_heads = c->n_heads;
    c->head_dim = width / c->n_heads;
    if ((e = count(r, "num_key_value_heads", UINT32_MAX, &c->n_kv_heads)) != SL_OK ||
        (e = count(r, "head_dim", SL_HF_MAX_HEAD_DIM, &c->head_dim)) != SL_OK ||
        (e = count(r, "vocab_size", UINT32_MAX, &c->n_vocab)) != SL_OK)
        return e;
    put_count(r, "attention.key_length", c->head_dim);
    put_count(r, "attention.value_length", c->head_dim);
    put_count(r, "rope.dimension_count", c->head_dim);
    return SL_OK;
}

static enum sl_err read_numbers(const struct reader *r)
{
    for (size_t i = 0; i < SL_COUNTOF(numbers); i++) {
        struct sl_model_value v;
        enum sl_err e = number(r, numbers[i].hf, &v);
        if (e == SL_ENOTFOUND && numbers[i].required)
            e = sl_why_set(r->why, SL_EPARSE, "%s/config.json has no %s", r->name, numbers[i].hf);
        if (e != SL_OK && e != SL_ENOTFOUND)
            return e;
        if (e == SL_OK)
            put(r, numbers[i].gguf, v);
    }
    return read_heads(r);
}

/* layer_types[i] says full_attention. */
static bool is_full(const json_t *layers, size_t i)
{
    const char *kind = json_string_value(json_array_get(layers, i));
    return kind != NULL && strcmp(kind, "full_attention") == 0;
}

static enum sl_err mixed_layers(const struct reader *r)
{
    return unsupported(r, "layer_types", "sliding_attention in some layers",
                       r->type->windows == PATTERN_WINDOWS ? "supported: full_attention at equal distances"
                                                           : "supported: the same attention in all layers");
}

/* Every how many layers one is global, from layer_types or, before there were those, as a number. */
static enum sl_err read_pattern(const struct reader *r, const json_t *layers)
{
    size_t n = json_array_size(layers);
    uint32_t pattern = 0;
    if (n == 0) {
        enum sl_err e = count(r, "sliding_window_pattern", UINT32_MAX, &pattern);
        if (e != SL_OK)
            return e;
    } else {
        while (pattern < n && !is_full(layers, pattern))
            pattern++;
        pattern++;
        for (size_t i = 0; i < n; i++)
            if (is_full(layers, i) != ((i + 1) % pattern == 0))
                return mixed_layers(r);
    }
    put_count(r, "attention.sliding_window_pattern", pattern);
    return SL_OK;
}

static enum sl_err check_layer_types(const struct reader *r, const json_t *layers)
{
    const json_t *n = json_object_get(r->text, "num_hidden_layers");
    size_t count = json_array_size(layers);
    for (size_t i = 0; i < count; i++) {
        const char *kind = json_string_value(json_array_get(layers, i));
        if (!kind || (strcmp(kind, "full_attention") != 0 && strcmp(kind, "sliding_attention") != 0))
            return unsupported(r, "layer_types", kind ? kind : "?", "full_attention or sliding_attention");
    }
    if (count > 0 && (json_int_t)count != json_integer_value(n))
        return unsupported(r, "layer_types", "a list of another length", "one for each of num_hidden_layers");
    return SL_OK;
}

static enum sl_err read_window(const struct reader *r)
{
    const json_t *use = json_object_get(r->text, "use_sliding_window"),
                 *layers = json_object_get(r->text, "layer_types");
    struct sl_model_value v = {0};
    enum sl_err e = check_layer_types(r, layers);
    if (e != SL_OK)
        return e;
    e = number(r, "sliding_window", &v);
    if (e != SL_OK)
        return e == SL_ENOTFOUND ? SL_OK : e;
    size_t n_full = 0, n_layers = json_array_size(layers);
    for (size_t i = 0; i < n_layers; i++)
        n_full += is_full(layers, i);
    bool used = r->type->windows == NO_WINDOWS ? json_is_true(use) : !json_is_false(use);
    if (!used || v.real == 0 || (n_layers > 0 && n_full == n_layers))
        return SL_OK;
    if (r->type->windows == NO_WINDOWS || (r->type->windows == ALL_WINDOWS && n_full > 0))
        return mixed_layers(r);
    put(r, "attention.sliding_window", v);
    return r->type->windows == PATTERN_WINDOWS ? read_pattern(r, layers) : SL_OK;
}

/* What scores are divided by, where it is not the root of the heads' width. */
static enum sl_err read_score_scale(const struct reader *r)
{
    struct sl_model_value v;
    enum sl_err e = number(r, "query_pre_attn_scalar", &v);
    if (e != SL_OK)
        return e == SL_ENOTFOUND ? SL_OK : e;
    if (!(v.real > 0))
        return sl_why_set(r->why, SL_EPARSE, "%s/config.json: query_pre_attn_scalar is 0", r->name);
    put_real(r, "attention.scale", (double)(1 / sqrtf((float)v.real))); /* as for a GGUF file */
    return SL_OK;
}

/* ---- rotary positions ---- */

static enum sl_err positive(const struct reader *r, const json_t *object, const char *key, double *out)
{
    const json_t *j = json_object_get(object, key);
    if (!json_is_number(j) || !(json_number_value(j) > 0) || !isfinite(json_number_value(j)))
        return sl_why_set(r->why, SL_EPARSE, "%s/config.json: %s of the rope scaling is no positive number",
                          r->name, key);
    *out = json_number_value(j);
    return SL_OK;
}

/* Llama 3.1's stretching: short waves stay, long ones become factor times as long, and a smooth passage
 * between. In float, in the order of GGUF's converter. */
static enum sl_err read_llama3(const struct reader *r, const json_t *scaling, double theta)
{
    double factor = 0, low = 0, high = 0, length = 0;
    enum sl_err e;
    if ((e = positive(r, scaling, "factor", &factor)) != SL_OK ||
        (e = positive(r, scaling, "low_freq_factor", &low)) != SL_OK ||
        (e = positive(r, scaling, "high_freq_factor", &high)) != SL_OK ||
        (e = positive(r, scaling, "original_max_position_embeddings", &length)) != SL_OK)
        return e;
    if (high <= low)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s/config.json: high_freq_factor is %g, expected more than low_freq_factor, %g",
                          r->name, high, low);
    uint32_t dim = r->c->head_dim;
    for (uint32_t i = 0; i < dim / 2; i++) {
        float freq = 1.0f / (float)sl_exact_exp_double((double)(2 * i) / dim * sl_exact_log(theta));
        float wave = (float)TAU / freq, smooth = ((float)length / wave - (float)low) / (float)(high - low);
        if (wave < (float)(length / high))
            r->c->rope_factors[i] = 1;
        else if (wave > (float)(length / low))
            r->c->rope_factors[i] = (float)factor;
        else
            r->c->rope_factors[i] = 1.0f / ((1.0f - smooth) / (float)factor + smooth);
    }
    r->c->factors = true;
    return SL_OK;
}

static enum sl_err read_scaling(const struct reader *r, const json_t *scaling, double theta)
{
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    double factor = 0;
    if (!type)
        type = json_string_value(json_object_get(scaling, "type"));
    if (!type || strcmp(type, "default") == 0)
        return SL_OK;
    if (strcmp(type, "llama3") == 0)
        return read_llama3(r, scaling, theta);
    if (strcmp(type, "linear") != 0)
        return unsupported(r, "rope scaling", type, "supported: none, linear, llama3");
    enum sl_err e = positive(r, scaling, "factor", &factor);
    if (e != SL_OK)
        return e;
    put(r, "rope.scaling.type", text_value("linear"));
    put_real(r, "rope.scaling.factor", factor);
    return SL_OK;
}

/* A base: key of config.json, or rope_theta of object where that has one. */
static enum sl_err read_theta(const struct reader *r, const char *key, const json_t *object, double *theta)
{
    struct sl_model_value v;
    enum sl_err e = number(r, key, &v);
    if (e == SL_OK)
        *theta = v.real;
    else if (e != SL_ENOTFOUND)
        return e;
    if (json_object_get(object, "rope_theta") && (e = positive(r, object, "rope_theta", theta)) != SL_OK)
        return e;
    if (!(*theta > 1) || *theta > 1e12)
        return sl_why_set(r->why, SL_EPARSE, "%s/config.json: %s is %g, expected more than 1", r->name, key,
                          *theta);
    return SL_OK;
}

/* rope_theta and rope_scaling; since transformers 5 rope_parameters has both, once for each kind of layer
 * where there are two. */
static enum sl_err read_rope(const struct reader *r)
{
    const json_t *parameters = json_object_get(r->text, "rope_parameters"),
                 *global = json_object_get(parameters, "full_attention"),
                 *local = json_object_get(parameters, "sliding_attention");
    double theta = 10000, theta_local = 10000;
    enum sl_err e;
    if (!global)
        global = parameters;
    if ((e = read_theta(r, "rope_theta", global, &theta)) != SL_OK)
        return e;
    put_real(r, "rope.freq_base", theta);
    if (r->type->windows == PATTERN_WINDOWS) {
        if ((e = read_theta(r, "rope_local_base_freq", local, &theta_local)) != SL_OK)
            return e;
        put_real(r, "rope.freq_base_swa", theta_local);
    }
    return read_scaling(r, json_is_object(global) ? global : json_object_get(r->text, "rope_scaling"), theta);
}

enum sl_err sl_hf_config_read(const json_t *config, const char *name, struct sl_hf_config *out,
                              struct sl_why *why)
{
    struct reader r = {.root = config, .name = name, .c = out, .why = why};
    enum sl_err e;
    *out = (struct sl_hf_config){0};
    if ((e = read_type(&r)) != SL_OK || (e = refuse_others(&r)) != SL_OK || (e = read_numbers(&r)) != SL_OK ||
        (e = read_window(&r)) != SL_OK || (e = read_score_scale(&r)) != SL_OK)
        return e;
    const char *end = name + strlen(name), *base;
    while (end > name + 1 && end[-1] == '/')
        end--;
    for (base = end; base > name && base[-1] != '/'; base--)
        ;
    snprintf(out->name, sizeof out->name, "%.*s", (int)(end - base), base);
    return read_rope(&r);
}

const struct sl_model_value *sl_hf_config_get(const struct sl_hf_config *c, const char *key)
{
    for (size_t i = 0; i < c->n_entries; i++)
        if (strcmp(c->entries[i].key, key) == 0)
            return &c->entries[i].value;
    return NULL;
}
