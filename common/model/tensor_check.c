/* common/model/tensor_check.c - are a model's tensors those that its numbers ask for.
 *
 * A tensor in the file that is in no table is refused, since a model that has it (a norm on q, an expert)
 * would silently compute something else without it. */
#include "common/model/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VOCAB (1u << 22) /* far above any real model */

/* What a layer of every architecture here has. */
static const struct sl_tensor_rule layer_rules[] = {
    {"attn_norm.weight", SL_D_MODEL, SL_ONE, false},     {"attn_q.weight", SL_D_MODEL, SL_Q_DIM, false},
    {"attn_k.weight", SL_D_MODEL, SL_KV_DIM, false},     {"attn_v.weight", SL_D_MODEL, SL_KV_DIM, false},
    {"attn_output.weight", SL_Q_DIM, SL_D_MODEL, false}, {"ffn_norm.weight", SL_D_MODEL, SL_ONE, false},
    {"ffn_gate.weight", SL_D_MODEL, SL_D_FF, false},     {"ffn_up.weight", SL_D_MODEL, SL_D_FF, false},
    {"ffn_down.weight", SL_D_FF, SL_D_MODEL, false},
};

static const struct sl_tensor_rule global_rules[] = {
    {"token_embd.weight", SL_D_MODEL, SL_N_VOCAB, false},
    {"output_norm.weight", SL_D_MODEL, SL_ONE, false},
    {"output.weight", SL_D_MODEL, SL_N_VOCAB, true},
    {"rope_freqs.weight", SL_ROPE_HALF, SL_ONE, true},
};

/* Rule i of a layer: the common ones, then the architecture's own; NULL past the end. */
static const struct sl_tensor_rule *layer_rule(const struct sl_arch *a, size_t i)
{
    if (i < SL_COUNTOF(layer_rules))
        return &layer_rules[i];
    i -= SL_COUNTOF(layer_rules);
    return i < a->n_layer_rules ? &a->layer_rules[i] : NULL;
}

static uint64_t side_length(const struct sl_model_conf *c, enum sl_side side)
{
    const struct sl_attn_shape *a = &c->attn;
    switch (side) {
    case SL_ONE:
        return 1;
    case SL_D_MODEL:
        return c->d_model;
    case SL_D_FF:
        return c->d_ff;
    case SL_N_VOCAB:
        return c->n_vocab;
    case SL_Q_DIM:
        return (uint64_t)a->n_heads * a->head_dim;
    case SL_KV_DIM:
        return (uint64_t)a->n_kv_heads * a->head_dim;
    case SL_HEAD_DIM:
        return a->head_dim;
    case SL_ROPE_HALF:
        return a->rope_dim / 2;
    }
    return 0;
}

static const char *type_name(enum sl_dtype type)
{
    return sl_ggml_type_info((uint32_t)type)->name;
}

static enum sl_err type_check(const struct sl_conf_reader *r, const struct sl_model_tensor *t)
{
    if (sl_dtype_block(t->view.type) != 0)
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
        sl_model_file_path(r->f), t->name, type_name(t->view.type), list);
}

static enum sl_err tensor_check(const struct sl_conf_reader *r, const char *name,
                                const struct sl_tensor_rule *rule)
{
    const struct sl_model_tensor *t = sl_model_file_tensor_find(r->f, name);
    if (t == NULL) {
        if (rule->optional)
            return SL_OK;
        return sl_why_set(
            r->why, SL_EPARSE,
            "%s has no tensor %s, which a %s model of %u layers must have; the file is incomplete",
            sl_model_file_path(r->f), name, r->arch->name, r->c->n_layers);
    }
    uint64_t cols = side_length(r->c, rule->cols), rows = side_length(r->c, rule->rows);
    if (t->view.n_cols != cols || t->view.n_rows != rows)
        return sl_why_set(
            r->why, SL_EPARSE,
            "%s: tensor %s has rows of %llu, %llu of them; expected rows of %llu, %llu of them, "
            "from the keys of the file",
            sl_model_file_path(r->f), name, (unsigned long long)t->view.n_cols,
            (unsigned long long)t->view.n_rows, (unsigned long long)cols, (unsigned long long)rows);
    enum sl_err e = type_check(r, t);
    if (e != SL_OK)
        return e;
    bool factors = rule->cols == SL_ROPE_HALF;
    if (rule->rows == SL_ONE && t->view.type != SL_F32 &&
        (factors || (t->view.type != SL_F16 && t->view.type != SL_BF16)))
        return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: tensor %s has type %s; a vector must be F32%s",
                          sl_model_file_path(r->f), name, type_name(t->view.type),
                          factors ? "" : ", F16 or BF16");
    return SL_OK;
}

static bool tensor_known(const struct sl_conf_reader *r, const char *name)
{
    if (strncmp(name, "blk.", 4) != 0) {
        for (size_t i = 0; i < SL_COUNTOF(global_rules); i++) {
            if (strcmp(global_rules[i].name, name) == 0)
                return true;
        }
        return false;
    }
    char *end;
    unsigned long layer = strtoul(name + 4, &end, 10);
    if (end == name + 4 || *end != '.' || layer >= r->c->n_layers)
        return false;
    const struct sl_tensor_rule *rule;
    for (size_t i = 0; (rule = layer_rule(r->arch, i)) != NULL; i++) {
        if (strcmp(rule->name, end + 1) == 0)
            return true;
    }
    return false;
}

static enum sl_err check_rope_factors(const struct sl_conf_reader *r)
{
    const struct sl_model_tensor *t = sl_model_file_tensor_find(r->f, "rope_freqs.weight");
    if (t == NULL)
        return SL_OK;
    const float *f = t->view.data;
    for (uint32_t i = 0; i < r->c->attn.rope_dim / 2; i++) {
        if (!(f[i] > 0) || !isfinite(f[i]))
            return sl_why_set(r->why, SL_EPARSE,
                              "%s: rope_freqs.weight[%u] is %g; expected a positive number",
                              sl_model_file_path(r->f), i, (double)f[i]);
    }
    r->c->attn.rope_factors = f;
    return SL_OK;
}

static enum sl_err check_vocab(const struct sl_conf_reader *r)
{
    const struct sl_model_tensor *embed = sl_model_file_tensor_find(r->f, "token_embd.weight");
    uint64_t n_tokens;
    struct sl_digest128 digest;
    if (embed == NULL)
        return SL_OK; /* its rule says so */
    if (embed->view.n_rows > MAX_VOCAB)
        return sl_why_set(r->why, SL_EPARSE, "%s has a vocabulary of %llu tokens; expected 1 to %u",
                          sl_model_file_path(r->f), (unsigned long long)embed->view.n_rows, MAX_VOCAB);
    r->c->n_vocab = (uint32_t)embed->view.n_rows;
    sl_model_file_vocab(r->f, &n_tokens, &digest);
    if (n_tokens > r->c->n_vocab)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s lists %llu tokens but has embeddings for %u; the file does not fit together",
                          sl_model_file_path(r->f), (unsigned long long)n_tokens, r->c->n_vocab);
    return SL_OK;
}

enum sl_err sl_conf_check_tensors(const struct sl_conf_reader *r)
{
    enum sl_err e;
    if ((e = check_vocab(r)) != SL_OK)
        return e;
    r->c->tied_embeddings = sl_model_file_tensor_find(r->f, "output.weight") == NULL;
    for (size_t i = 0; i < SL_COUNTOF(global_rules); i++) {
        if ((e = tensor_check(r, global_rules[i].name, &global_rules[i])) != SL_OK)
            return e;
    }
    for (uint32_t layer = 0; layer < r->c->n_layers; layer++) {
        const struct sl_tensor_rule *rule;
        for (size_t i = 0; (rule = layer_rule(r->arch, i)) != NULL; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s", layer, rule->name);
            if ((e = tensor_check(r, name, rule)) != SL_OK)
                return e;
        }
    }
    for (size_t i = 0; i < sl_model_file_n_tensors(r->f); i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(r->f, i);
        if (!tensor_known(r, t->name))
            return sl_why_set(r->why, SL_EUNSUPPORTED,
                              "%s has the tensor %s, which the architecture %s is not computed with here; "
                              "this variant of the model is not supported",
                              sl_model_file_path(r->f), t->name, r->arch->name);
    }
    return check_rope_factors(r);
}
