/* common/model/model_conf.c - from a GGUF file to struct sl_model_conf.
 *
 * An architecture is a row of a table: how it rotates, which biases it must have, whether it norms the heads
 * of q and k (qk_norm.c). Mistral's files say llama. The tensors are a table as well; a tensor in the file
 * that is in no table is refused, since a model that has it (a norm on q, an expert) would silently compute
 * something else without it. */
#include "common/model/model_conf.h"

#include "common/base/mem.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What kernels and buffers are made for; each far above any real model of these architectures. */
#define MAX_LAYERS   1024
#define MAX_HEADS    1024
#define MAX_HEAD_DIM 1024
#define MAX_WIDTH    (1u << 18) /* d_model, d_ff */
#define MAX_VOCAB    (1u << 22)
#define MAX_CONTEXT  (1u << 24)

struct arch {
    const char *name;
    enum sl_rope_layout rope_layout;
    bool qkv_bias; /* must be there; elsewhere they may */
    bool qk_norm;  /* must be there, and only here */
};

static const struct arch archs[] = {
    {"llama", SL_ROPE_PAIRS, false, false},
    {"qwen2", SL_ROPE_HALVES, true, false},
    {"qwen3", SL_ROPE_HALVES, false, true},
};

enum side { ONE, D_MODEL, D_FF, N_VOCAB, Q_DIM, KV_DIM, HEAD_DIM, ROPE_HALF };

enum need { REQUIRED, OPTIONAL, QKV_BIAS, QK_NORM };

struct tensor_rule {
    const char *name; /* after "blk.N." for those of a layer */
    enum side cols, rows;
    enum need need;
};

static const struct tensor_rule layer_rules[] = {
    {"attn_norm.weight", D_MODEL, ONE, REQUIRED},   {"attn_q.weight", D_MODEL, Q_DIM, REQUIRED},
    {"attn_k.weight", D_MODEL, KV_DIM, REQUIRED},   {"attn_v.weight", D_MODEL, KV_DIM, REQUIRED},
    {"attn_q.bias", Q_DIM, ONE, QKV_BIAS},          {"attn_k.bias", KV_DIM, ONE, QKV_BIAS},
    {"attn_v.bias", KV_DIM, ONE, QKV_BIAS},         {"attn_output.weight", Q_DIM, D_MODEL, REQUIRED},
    {"attn_output.bias", D_MODEL, ONE, OPTIONAL},   {"ffn_norm.weight", D_MODEL, ONE, REQUIRED},
    {"ffn_gate.weight", D_MODEL, D_FF, REQUIRED},   {"ffn_up.weight", D_MODEL, D_FF, REQUIRED},
    {"ffn_down.weight", D_FF, D_MODEL, REQUIRED},   {"attn_q_norm.weight", HEAD_DIM, ONE, QK_NORM},
    {"attn_k_norm.weight", HEAD_DIM, ONE, QK_NORM},
};

static const struct tensor_rule global_rules[] = {
    {"token_embd.weight", D_MODEL, N_VOCAB, REQUIRED},
    {"output_norm.weight", D_MODEL, ONE, REQUIRED},
    {"output.weight", D_MODEL, N_VOCAB, OPTIONAL},
    {"rope_freqs.weight", ROPE_HALF, ONE, OPTIONAL},
};

struct reader {
    const struct sl_gguf *g;
    const struct arch *arch;
    struct sl_model_conf *c;
    struct sl_why *why;
};

/* ---- keys ---- */

static const char *arch_key(const struct reader *r, const char *suffix, char buf[96])
{
    snprintf(buf, 96, "%s.%s", r->arch->name, suffix);
    return buf;
}

/* A count in [1, max]. When the key is absent *out stays; 0 then means that it was needed. */
static enum sl_err read_count(const struct reader *r, const char *suffix, uint32_t max, uint32_t *out)
{
    char key[96];
    uint32_t v = *out;
    enum sl_err e = sl_gguf_u32(r->g, arch_key(r, suffix, key), &v, r->why);
    if (e == SL_ENOTFOUND && v == 0)
        return sl_why_set(
            r->why, SL_EPARSE,
            "%s has no key %s, which a %s model must have; convert it again with a current tool",
            sl_gguf_path(r->g), key, r->arch->name);
    if (e != SL_OK && e != SL_ENOTFOUND)
        return sl_why_set(
            r->why, SL_EPARSE,
            "%s: key %s is not one whole number from 1 to %u; a different value per layer is not "
            "supported",
            sl_gguf_path(r->g), key, max);
    if (v == 0 || v > max)
        return sl_why_set(r->why, SL_EPARSE, "%s: key %s is %u; expected 1 to %u", sl_gguf_path(r->g), key, v,
                          max);
    *out = v;
    return SL_OK;
}

/* A positive, finite number; absent: *out stays, and 0 then means that it was needed. */
static enum sl_err read_positive(const struct reader *r, const char *suffix, float *out)
{
    char key[96];
    float v = *out;
    enum sl_err e = sl_gguf_f32(r->g, arch_key(r, suffix, key), &v, r->why);
    if ((e != SL_OK && e != SL_ENOTFOUND) || !(v > 0) || !isfinite(v))
        return sl_why_set(r->why, SL_EPARSE,
                          "%s: key %s is missing or not a positive number; convert the model again with a "
                          "current tool",
                          sl_gguf_path(r->g), key);
    *out = v;
    return SL_OK;
}

/* Bytes of the file for a person's eyes: cut to the buffer, control characters replaced. */
static void show(struct sl_gguf_str s, char *buf, size_t size)
{
    size_t n = s.n < size - 1 ? s.n : size - 1;
    for (size_t i = 0; i < n; i++)
        buf[i] = iscntrl((unsigned char)s.p[i]) ? '?' : s.p[i];
    buf[n] = 0;
}

static enum sl_err read_arch(struct reader *r)
{
    struct sl_gguf_str s;
    enum sl_err e = sl_gguf_str(r->g, "general.architecture", &s, r->why);
    if (e != SL_OK)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s has no key general.architecture: it is not a language model in GGUF form",
                          sl_gguf_path(r->g));
    char known[128] = "";
    size_t len = 0;
    for (size_t i = 0; i < SL_COUNTOF(archs); i++) {
        if (strlen(archs[i].name) == s.n && memcmp(archs[i].name, s.p, s.n) == 0)
            r->arch = &archs[i];
        len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "", archs[i].name);
    }
    if (r->arch == NULL) {
        char shown[33];
        show(s, shown, sizeof shown);
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s has architecture \"%s\", which is not supported yet; supported: %s",
                          sl_gguf_path(r->g), shown, known);
    }
    snprintf(r->c->arch, sizeof r->c->arch, "%s", r->arch->name);
    r->c->qk_norm = r->arch->qk_norm;
    struct sl_gguf_str name = {"unnamed", 7};
    if (sl_gguf_str(r->g, "general.name", &s, NULL) == SL_OK)
        name = s;
    show(name, r->c->name, sizeof r->c->name);
    return SL_OK;
}

static enum sl_err read_heads(const struct reader *r)
{
    struct sl_model_conf *c = r->c;
    struct sl_attn_shape *a = &c->attn;
    enum sl_err e;
    if ((e = read_count(r, "attention.head_count", MAX_HEADS, &a->n_heads)) != SL_OK)
        return e;
    a->n_kv_heads = a->n_heads;
    if ((e = read_count(r, "attention.head_count_kv", MAX_HEADS, &a->n_kv_heads)) != SL_OK)
        return e;
    if (a->n_heads % a->n_kv_heads != 0)
        return sl_why_set(r->why, SL_EPARSE, "%s has %u heads over %u KV heads; expected a multiple",
                          sl_gguf_path(r->g), a->n_heads, a->n_kv_heads);
    a->head_dim = c->d_model / a->n_heads;
    if ((e = read_count(r, "attention.key_length", MAX_HEAD_DIM, &a->head_dim)) != SL_OK)
        return e;
    uint32_t value_length = a->head_dim;
    if ((e = read_count(r, "attention.value_length", MAX_HEAD_DIM, &value_length)) != SL_OK)
        return e;
    if (value_length != a->head_dim)
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s has keys of %u and values of %u elements; only equal ones are supported",
                          sl_gguf_path(r->g), a->head_dim, value_length);
    a->rope_dim = a->head_dim;
    if ((e = read_count(r, "rope.dimension_count", MAX_HEAD_DIM, &a->rope_dim)) != SL_OK)
        return e;
    if (a->rope_dim > a->head_dim || a->rope_dim % 2 != 0 || a->head_dim % 2 != 0)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s rotates %u of %u elements of a head; expected an even number, at most the head",
                          sl_gguf_path(r->g), a->rope_dim, a->head_dim);
    a->rope_layout = r->arch->rope_layout;
    a->rope_theta = 10000;
    return read_positive(r, "rope.freq_base", &a->rope_theta);
}

static enum sl_err read_rope_scaling(const struct reader *r)
{
    char key[96];
    struct sl_gguf_str type = {"none", 4};
    enum sl_err e = sl_gguf_str(r->g, arch_key(r, "rope.scaling.type", key), &type, NULL);
    bool none = type.n == 4 && memcmp(type.p, "none", 4) == 0,
         linear = type.n == 6 && memcmp(type.p, "linear", 6) == 0;
    if ((e != SL_OK && e != SL_ENOTFOUND) || (!none && !linear)) {
        char shown[33];
        show(type, shown, sizeof shown);
        return sl_why_set(
            r->why, SL_EUNSUPPORTED,
            "%s scales its rotary positions by \"%s\"; supported: none, linear, and factors in the tensor "
            "rope_freqs.weight",
            sl_gguf_path(r->g), shown);
    }
    r->c->rope_linear = 1;
    if (sl_gguf_has(r->g, arch_key(r, "rope.scale_linear", key)))
        return read_positive(r, "rope.scale_linear", &r->c->rope_linear); /* the key of old files */
    return linear ? read_positive(r, "rope.scaling.factor", &r->c->rope_linear) : SL_OK;
}

/* No op attends to a window of positions. Within the window all is as without one, so the window is how long
 * a sequence may be. */
static enum sl_err read_window(const struct reader *r)
{
    char key[96];
    if (!sl_gguf_has(r->g, arch_key(r, "attention.sliding_window", key)))
        return SL_OK;
    uint32_t window = 0;
    enum sl_err e = sl_gguf_u32(r->g, key, &window, r->why);
    if (e != SL_OK)
        return sl_why_set(r->why, SL_EPARSE, "%s: key %s is not one whole number", sl_gguf_path(r->g), key);
    if (window > 0 && window < r->c->context_length)
        r->c->context_length = window;
    return SL_OK;
}

static enum sl_err read_numbers(const struct reader *r)
{
    struct sl_model_conf *c = r->c;
    const struct {
        const char *suffix;
        uint32_t max, *out;
    } counts[] = {{"block_count", MAX_LAYERS, &c->n_layers},
                  {"embedding_length", MAX_WIDTH, &c->d_model},
                  {"feed_forward_length", MAX_WIDTH, &c->d_ff},
                  {"context_length", MAX_CONTEXT, &c->context_length}};
    enum sl_err e;
    for (size_t i = 0; i < SL_COUNTOF(counts); i++) {
        if ((e = read_count(r, counts[i].suffix, counts[i].max, counts[i].out)) != SL_OK)
            return e;
    }
    if ((e = read_positive(r, "attention.layer_norm_rms_epsilon", &c->rms_eps)) != SL_OK)
        return e;
    if ((e = read_heads(r)) != SL_OK || (e = read_window(r)) != SL_OK)
        return e;
    char key[96];
    uint32_t n_experts = 0;
    e = sl_gguf_u32(r->g, arch_key(r, "expert_count", key), &n_experts, NULL);
    if ((e != SL_OK && e != SL_ENOTFOUND) || n_experts > 0)
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s is a mixture of %u experts, which is not supported yet; take a dense model",
                          sl_gguf_path(r->g), n_experts);
    return read_rope_scaling(r);
}

/* ---- tensors ---- */

static uint64_t side_length(const struct sl_model_conf *c, enum side side)
{
    const struct sl_attn_shape *a = &c->attn;
    switch (side) {
    case ONE:
        return 1;
    case D_MODEL:
        return c->d_model;
    case D_FF:
        return c->d_ff;
    case N_VOCAB:
        return c->n_vocab;
    case Q_DIM:
        return (uint64_t)a->n_heads * a->head_dim;
    case KV_DIM:
        return (uint64_t)a->n_kv_heads * a->head_dim;
    case HEAD_DIM:
        return a->head_dim;
    case ROPE_HALF:
        return a->rope_dim / 2;
    }
    return 0;
}

static enum sl_err type_check(const struct reader *r, const struct sl_gguf_tensor *t)
{
    if (sl_dtype_block((enum sl_dtype)t->type) != 0)
        return SL_OK;
    char list[160] = "";
    size_t len = 0;
    for (uint32_t id = 0; id <= SL_BF16; id++) {
        if (sl_dtype_block((enum sl_dtype)id) != 0)
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", len > 0 ? ", " : "",
                                    sl_dtype_name((enum sl_dtype)id));
    }
    return sl_why_set(
        r->why, SL_EUNSUPPORTED,
        "%s: tensor %s has type %s, which is not supported; supported: %s; convert the model to "
        "one of these",
        sl_gguf_path(r->g), t->name, sl_ggml_type_info(t->type)->name, list);
}

static enum sl_err tensor_check(const struct reader *r, const char *name, const struct tensor_rule *rule)
{
    const struct sl_gguf_tensor *t = sl_gguf_tensor_find(r->g, name);
    if (t == NULL) {
        if (rule->need == OPTIONAL || (rule->need == QKV_BIAS && !r->arch->qkv_bias) ||
            (rule->need == QK_NORM && !r->arch->qk_norm))
            return SL_OK;
        return sl_why_set(
            r->why, SL_EPARSE,
            "%s has no tensor %s, which a %s model of %u layers must have; the file is incomplete",
            sl_gguf_path(r->g), name, r->arch->name, r->c->n_layers);
    }
    uint64_t cols = side_length(r->c, rule->cols), rows = side_length(r->c, rule->rows);
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return sl_why_set(
            r->why, SL_EPARSE,
            "%s: tensor %s has the shape [%llu, %llu, %llu, %llu]; expected [%llu, %llu, 1, 1] from "
            "the keys of the file",
            sl_gguf_path(r->g), name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
            (unsigned long long)t->dims[2], (unsigned long long)t->dims[3], (unsigned long long)cols,
            (unsigned long long)rows);
    enum sl_err e = type_check(r, t);
    if (e != SL_OK)
        return e;
    bool vector = rule->rows == ONE;
    if (vector && t->type != SL_GGML_F32 &&
        (rule->cols == ROPE_HALF || (t->type != SL_GGML_F16 && t->type != SL_GGML_BF16)))
        return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: tensor %s has type %s; a vector must be F32%s",
                          sl_gguf_path(r->g), name, sl_ggml_type_info(t->type)->name,
                          rule->cols == ROPE_HALF ? "" : ", F16 or BF16");
    return SL_OK;
}

static bool tensor_known(const struct reader *r, const char *name)
{
    const struct tensor_rule *rules = global_rules;
    size_t n = SL_COUNTOF(global_rules);
    if (strncmp(name, "blk.", 4) == 0) {
        char *end;
        unsigned long layer = strtoul(name + 4, &end, 10);
        if (end == name + 4 || *end != '.' || layer >= r->c->n_layers)
            return false;
        name = end + 1;
        rules = layer_rules;
        n = SL_COUNTOF(layer_rules);
    }
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rules[i].name, name) == 0)
            return rules[i].need != QK_NORM || r->arch->qk_norm;
    }
    return false;
}

static enum sl_err check_rope_factors(const struct reader *r)
{
    const struct sl_gguf_tensor *t = sl_gguf_tensor_find(r->g, "rope_freqs.weight");
    if (t == NULL)
        return SL_OK;
    const float *f = t->data;
    for (uint32_t i = 0; i < r->c->attn.rope_dim / 2; i++) {
        if (!(f[i] > 0) || !isfinite(f[i]))
            return sl_why_set(r->why, SL_EPARSE,
                              "%s: rope_freqs.weight[%u] is %g; expected a positive number",
                              sl_gguf_path(r->g), i, (double)f[i]);
    }
    r->c->attn.rope_factors = f;
    return SL_OK;
}

static enum sl_err check_tensors(const struct reader *r)
{
    struct sl_model_conf *c = r->c;
    const struct sl_gguf_tensor *embed = sl_gguf_tensor_find(r->g, "token_embd.weight");
    if (embed != NULL && (embed->dims[1] == 0 || embed->dims[1] > MAX_VOCAB))
        return sl_why_set(r->why, SL_EPARSE, "%s has a vocabulary of %llu tokens; expected 1 to %u",
                          sl_gguf_path(r->g), (unsigned long long)embed->dims[1], MAX_VOCAB);
    c->n_vocab = embed != NULL ? (uint32_t)embed->dims[1] : 0;
    c->tied_embeddings = sl_gguf_tensor_find(r->g, "output.weight") == NULL;
    struct sl_gguf_array tokens;
    if (embed != NULL && sl_gguf_array(r->g, "tokenizer.ggml.tokens", &tokens, NULL) == SL_OK &&
        tokens.n > c->n_vocab)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s lists %llu tokens but has embeddings for %u; the file does not fit together",
                          sl_gguf_path(r->g), (unsigned long long)tokens.n, c->n_vocab);

    enum sl_err e;
    for (size_t i = 0; i < SL_COUNTOF(global_rules); i++) {
        if ((e = tensor_check(r, global_rules[i].name, &global_rules[i])) != SL_OK)
            return e;
    }
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        for (size_t i = 0; i < SL_COUNTOF(layer_rules); i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s", layer, layer_rules[i].name);
            if ((e = tensor_check(r, name, &layer_rules[i])) != SL_OK)
                return e;
        }
    }
    for (size_t i = 0; i < sl_gguf_n_tensors(r->g); i++) {
        const struct sl_gguf_tensor *t = sl_gguf_tensor_at(r->g, i);
        if (!tensor_known(r, t->name))
            return sl_why_set(r->why, SL_EUNSUPPORTED,
                              "%s has the tensor %s, which the architecture %s is not computed with here; "
                              "this variant of the model is not supported",
                              sl_gguf_path(r->g), t->name, r->arch->name);
    }
    return check_rope_factors(r);
}

/* ---- digest ---- */

struct digest_part {
    struct sl_digest128 digest;
    uint64_t a, b;
};

/* The bytes of an array of the vocabulary, as they lie in the file. */
static struct digest_part array_part(const struct sl_gguf *g, const char *key)
{
    struct digest_part part = {{0, 0}, 0, 0};
    struct sl_gguf_array start, end;
    if (sl_gguf_array(g, key, &start, NULL) != SL_OK)
        return part;
    end = start;
    struct sl_gguf_str s;
    int64_t v;
    float f;
    while (sl_gguf_array_next_str(&end, &s) || sl_gguf_array_next_i64(&end, &v) ||
           sl_gguf_array_next_f32(&end, &f))
        ;
    part.digest = sl_digest128(start.at, (size_t)(end.at - start.at), 0);
    part.a = start.n;
    part.b = start.type;
    return part;
}

static struct digest_part tensor_part(const struct sl_gguf_tensor *t)
{
    uint64_t head[2 + SL_GGUF_MAX_DIMS] = {sl_digest64(t->name, strlen(t->name), 0), t->type};
    memcpy(head + 2, t->dims, sizeof t->dims);
    return (struct digest_part){sl_digest128(t->data, t->bytes, 0), sl_digest64(head, sizeof head, 0),
                                t->bytes};
}

static uint64_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static struct sl_digest128 digest_of(const struct sl_gguf *g, const struct sl_model_conf *c)
{
    const uint64_t numbers[] = {sl_digest64(c->arch, strlen(c->arch), 0),
                                c->n_layers,
                                c->d_model,
                                c->d_ff,
                                c->n_vocab,
                                c->context_length,
                                c->attn.n_heads,
                                c->attn.n_kv_heads,
                                c->attn.head_dim,
                                c->attn.rope_dim,
                                c->attn.rope_layout,
                                float_bits(c->attn.rope_theta),
                                float_bits(c->rope_linear),
                                float_bits(c->rms_eps)};
    size_t n = sl_gguf_n_tensors(g) + 4;
    struct digest_part *parts = sl_xcalloc(n, sizeof *parts);
    parts[0].digest = sl_digest128(numbers, sizeof numbers, 0);
    parts[1] = array_part(g, "tokenizer.ggml.tokens");
    parts[2] = array_part(g, "tokenizer.ggml.token_type");
    parts[3] = array_part(g, "tokenizer.ggml.merges");
    for (size_t i = 4; i < n; i++)
        parts[i] = tensor_part(sl_gguf_tensor_at(g, i - 4));
    struct sl_digest128 d = sl_digest128(parts, n * sizeof *parts, 0);
    sl_free(parts);
    return d;
}

enum sl_err sl_model_conf_read(const struct sl_gguf *g, struct sl_model_conf *out, struct sl_why *why)
{
    struct sl_model_conf c = {0};
    struct reader r = {.g = g, .c = &c, .why = why};
    enum sl_err e;
    if ((e = read_arch(&r)) != SL_OK || (e = read_numbers(&r)) != SL_OK || (e = check_tensors(&r)) != SL_OK)
        return e;
    c.digest = digest_of(g, &c);
    *out = c;
    return SL_OK;
}
