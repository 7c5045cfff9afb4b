/* common/model/arch_gemma3.c - Gemma 3 (text): most layers see a window only.
 *
 *   - Layers alternate: five attend to a window of positions and rotate with a base of their own, the sixth
 *     attends to all (and alone has the file's rotary scaling).
 *   - Each head of q and k is normed before it is rotated.
 *   - What attention and the feed-forward part add is normed first. Norms count from one; files hold the sum.
 *   - The gate is a GELU, and a token's row is multiplied by sqrt(d_model) on its way in, not in the head.
 *   - Scores are scaled by 1 / sqrt(head_dim), but in the 27B by 1 / sqrt(d_model / n_heads). GGUF has no key
 *     for that: the 27B is known by its number of layers, and a container that knows says attention.scale. */
#include "common/model/arch.h"

#include <math.h>

#define LAYERS_27B          62
#define DEFAULT_PATTERN     6 /* the released models' */
#define DEFAULT_LOCAL_THETA 10000
#define MAX_PATTERN         1024

static const struct sl_tensor_rule rules[] = {
    {"attn_q_norm.weight", SL_HEAD_DIM, SL_ONE, false},
    {"attn_k_norm.weight", SL_HEAD_DIM, SL_ONE, false},
    {"post_attention_norm.weight", SL_D_MODEL, SL_ONE, false},
    {"post_ffw_norm.weight", SL_D_MODEL, SL_ONE, false},
};

static enum sl_err read_score_scale(const struct sl_conf_reader *r)
{
    struct sl_model_conf *c = r->c;
    c->attn.score_scale = 1 / sqrtf((float)c->attn.head_dim);
    if (c->n_layers == LAYERS_27B)
        c->attn.score_scale = 1 / sqrtf((float)(c->d_model / c->attn.n_heads));
    return sl_conf_positive(r, "attention.scale", &c->attn.score_scale);
}

/* Without a window all layers are global. */
static enum sl_err read_local_layers(const struct sl_conf_reader *r)
{
    struct sl_model_conf *c = r->c;
    uint32_t pattern = DEFAULT_PATTERN;
    enum sl_err e;
    c->attn_local = c->attn;
    c->attn_local.rope_theta = DEFAULT_LOCAL_THETA;
    c->attn.window = 0;
    if (c->attn_local.window == 0)
        return SL_OK;
    if ((e = sl_conf_positive(r, "rope.freq_base_swa", &c->attn_local.rope_theta)) != SL_OK ||
        (e = sl_conf_count(r, "attention.sliding_window_pattern", MAX_PATTERN, &pattern)) != SL_OK)
        return e;
    c->global_every = pattern;
    return SL_OK;
}

static enum sl_err quirks(const struct sl_conf_reader *r)
{
    char key[SL_ARCH_KEY_BYTES];
    float softcap = 0;
    r->c->embed_scale = sqrtf((float)r->c->d_model);
    r->c->gated = SL_PRO_GEGLU;
    enum sl_err e = sl_model_file_f32(r->f, sl_conf_key(r, "final_logit_softcapping", key), &softcap);
    if ((e != SL_OK && e != SL_ENOTFOUND) || softcap != 0)
        return sl_why_set(
            r->why, SL_EUNSUPPORTED,
            "%s caps its logits at %g (key %s), which is not supported; Gemma 3 itself does not",
            sl_model_file_path(r->f), (double)softcap, key);
    if ((e = read_score_scale(r)) != SL_OK)
        return e;
    return read_local_layers(r);
}

const struct sl_arch sl_arch_gemma3 = {
    .name = "gemma3",
    .rope_layout = SL_ROPE_HALVES,
    .layer_rules = rules,
    .n_layer_rules = SL_COUNTOF(rules),
    .quirks = quirks,
};
