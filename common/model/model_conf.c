/* common/model/model_conf.c - from a model's file to struct sl_model_conf.
 *
 * The general reading: the table of architectures, the keys all of them have. What one
 * architecture alone has is in its file (arch.h); tensors are checked in tensor_check.c. */
#include "common/model/model_conf.h"

#include "common/base/mem.h"
#include "common/model/arch.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What kernels and buffers are made for; each far above any real model of these architectures. */
#define MAX_LAYERS   1024
#define MAX_HEADS    1024
#define MAX_HEAD_DIM 1024
#define MAX_WIDTH    (1u << 18) /* d_model, d_ff */
#define MAX_CONTEXT  (1u << 24)

static const struct sl_arch *const archs[] = {&sl_arch_llama, &sl_arch_qwen2, &sl_arch_qwen3,
                                              &sl_arch_gemma3};

/* ---- keys ---- */

const char *sl_conf_key(const struct sl_conf_reader *r, const char *suffix, char buf[SL_ARCH_KEY_BYTES])
{
    snprintf(buf, SL_ARCH_KEY_BYTES, "%s.%s", r->arch->name, suffix);
    return buf;
}

enum sl_err sl_conf_count(const struct sl_conf_reader *r, const char *suffix, uint32_t max, uint32_t *out)
{
    char key[SL_ARCH_KEY_BYTES];
    uint32_t v = *out;
    enum sl_err e = sl_model_file_u32(r->f, sl_conf_key(r, suffix, key), &v);
    if (e == SL_ENOTFOUND && v == 0)
        return sl_why_set(
            r->why, SL_EPARSE,
            "%s has no key %s, which a %s model must have; convert it again with a current tool",
            sl_model_file_path(r->f), key, r->arch->name);
    if (e != SL_OK && e != SL_ENOTFOUND)
        return sl_why_set(
            r->why, SL_EPARSE,
            "%s: key %s is not one whole number from 1 to %u; a different value per layer is not "
            "supported",
            sl_model_file_path(r->f), key, max);
    if (v == 0 || v > max)
        return sl_why_set(r->why, SL_EPARSE, "%s: key %s is %u; expected 1 to %u", sl_model_file_path(r->f),
                          key, v, max);
    *out = v;
    return SL_OK;
}

enum sl_err sl_conf_positive(const struct sl_conf_reader *r, const char *suffix, float *out)
{
    char key[SL_ARCH_KEY_BYTES];
    float v = *out;
    enum sl_err e = sl_model_file_f32(r->f, sl_conf_key(r, suffix, key), &v);
    if ((e != SL_OK && e != SL_ENOTFOUND) || !(v > 0) || !isfinite(v))
        return sl_why_set(r->why, SL_EPARSE,
                          "%s: key %s is missing or not a positive number; convert the model again with a "
                          "current tool",
                          sl_model_file_path(r->f), key);
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

static enum sl_err read_arch(struct sl_conf_reader *r)
{
    struct sl_gguf_str s;
    enum sl_err e = sl_model_file_str(r->f, "general.architecture", &s);
    if (e != SL_OK)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s has no key general.architecture: it is not a language model in GGUF form",
                          sl_model_file_path(r->f));
    char known[128] = "";
    size_t len = 0;
    for (size_t i = 0; i < SL_COUNTOF(archs); i++) {
        if (strlen(archs[i]->name) == s.n && memcmp(archs[i]->name, s.p, s.n) == 0)
            r->arch = archs[i];
        len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "", archs[i]->name);
    }
    if (r->arch == NULL) {
        char shown[33];
        show(s, shown, sizeof shown);
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s has architecture \"%s\", which is not supported yet; supported: %s",
                          sl_model_file_path(r->f), shown, known);
    }
    snprintf(r->c->arch, sizeof r->c->arch, "%s", r->arch->name);
    struct sl_gguf_str name = {"unnamed", 7};
    if (sl_model_file_str(r->f, "general.name", &s) == SL_OK)
        name = s;
    show(name, r->c->name, sizeof r->c->name);
    return SL_OK;
}

static enum sl_err read_heads(const struct sl_conf_reader *r)
{
    struct sl_model_conf *c = r->c;
    struct sl_attn_shape *a = &c->attn;
    enum sl_err e;
    if ((e = sl_conf_count(r, "attention.head_count", MAX_HEADS, &a->n_heads)) != SL_OK)
        return e;
    a->n_kv_heads = a->n_heads;
    if ((e = sl_conf_count(r, "attention.head_count_kv", MAX_HEADS, &a->n_kv_heads)) != SL_OK)
        return e;
    if (a->n_heads % a->n_kv_heads != 0)
        return sl_why_set(r->why, SL_EPARSE, "%s has %u heads over %u KV heads; expected a multiple",
                          sl_model_file_path(r->f), a->n_heads, a->n_kv_heads);
    a->head_dim = c->d_model / a->n_heads;
    if ((e = sl_conf_count(r, "attention.key_length", MAX_HEAD_DIM, &a->head_dim)) != SL_OK)
        return e;
    uint32_t value_length = a->head_dim;
    if ((e = sl_conf_count(r, "attention.value_length", MAX_HEAD_DIM, &value_length)) != SL_OK)
        return e;
    if (value_length != a->head_dim)
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s has keys of %u and values of %u elements; only equal ones are supported",
                          sl_model_file_path(r->f), a->head_dim, value_length);
    a->rope_dim = a->head_dim;
    if ((e = sl_conf_count(r, "rope.dimension_count", MAX_HEAD_DIM, &a->rope_dim)) != SL_OK)
        return e;
    if (a->rope_dim > a->head_dim || a->rope_dim % 2 != 0 || a->head_dim % 2 != 0)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s rotates %u of %u elements of a head; expected an even number, at most the head",
                          sl_model_file_path(r->f), a->rope_dim, a->head_dim);
    a->rope_layout = r->arch->rope_layout;
    a->rope_theta = 10000;
    return sl_conf_positive(r, "rope.freq_base", &a->rope_theta);
}

static enum sl_err read_rope_scaling(const struct sl_conf_reader *r)
{
    char key[SL_ARCH_KEY_BYTES];
    struct sl_gguf_str type = {"none", 4};
    enum sl_err e = sl_model_file_str(r->f, sl_conf_key(r, "rope.scaling.type", key), &type);
    bool none = type.n == 4 && memcmp(type.p, "none", 4) == 0,
         linear = type.n == 6 && memcmp(type.p, "linear", 6) == 0;
    if ((e != SL_OK && e != SL_ENOTFOUND) || (!none && !linear)) {
        char shown[33];
        show(type, shown, sizeof shown);
        return sl_why_set(
            r->why, SL_EUNSUPPORTED,
            "%s scales its rotary positions by \"%s\"; supported: none, linear, and factors in the tensor "
            "rope_freqs.weight",
            sl_model_file_path(r->f), shown);
    }
    r->c->rope_linear = 1;
    if (sl_model_file_has(r->f, sl_conf_key(r, "rope.scale_linear", key)))
        return sl_conf_positive(r, "rope.scale_linear", &r->c->rope_linear); /* the key of old files */
    return linear ? sl_conf_positive(r, "rope.scaling.factor", &r->c->rope_linear) : SL_OK;
}

static enum sl_err read_window(const struct sl_conf_reader *r)
{
    char key[SL_ARCH_KEY_BYTES];
    if (!sl_model_file_has(r->f, sl_conf_key(r, "attention.sliding_window", key)))
        return SL_OK;
    uint32_t window = 0; /* which means none */
    if (sl_model_file_u32(r->f, key, &window) != SL_OK)
        return sl_why_set(r->why, SL_EPARSE, "%s: key %s is not one whole number", sl_model_file_path(r->f),
                          key);
    r->c->attn.window = window;
    return SL_OK;
}

static enum sl_err read_numbers(const struct sl_conf_reader *r)
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
        if ((e = sl_conf_count(r, counts[i].suffix, counts[i].max, counts[i].out)) != SL_OK)
            return e;
    }
    if ((e = sl_conf_positive(r, "attention.layer_norm_rms_epsilon", &c->rms_eps)) != SL_OK)
        return e;
    if ((e = read_heads(r)) != SL_OK || (e = read_window(r)) != SL_OK)
        return e;
    char key[SL_ARCH_KEY_BYTES];
    uint32_t n_experts = 0;
    e = sl_model_file_u32(r->f, sl_conf_key(r, "expert_count", key), &n_experts);
    if ((e != SL_OK && e != SL_ENOTFOUND) || n_experts > 0)
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s is a mixture of %u experts, which is not supported yet; take a dense model",
                          sl_model_file_path(r->f), n_experts);
    if ((e = read_rope_scaling(r)) != SL_OK)
        return e;
    return r->arch->quirks != NULL ? r->arch->quirks(r) : SL_OK;
}

enum sl_err sl_model_conf_read(const struct sl_model_file *f, struct sl_model_conf *out, struct sl_why *why)
{
    struct sl_model_conf c = {.embed_scale = 1, .gated = SL_PRO_SWIGLU};
    struct sl_conf_reader r = {.f = f, .c = &c, .why = why};
    enum sl_err e;
    if ((e = read_arch(&r)) != SL_OK || (e = read_numbers(&r)) != SL_OK ||
        (e = sl_conf_check_tensors(&r)) != SL_OK)
        return e;
    *out = c;
    return SL_OK;
}

const struct sl_attn_shape *sl_model_conf_attn(const struct sl_model_conf *c, uint32_t layer)
{
    return c->global_every == 0 || (layer + 1) % c->global_every == 0 ? &c->attn : &c->attn_local;
}
