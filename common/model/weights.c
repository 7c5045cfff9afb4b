/* common/model/weights.c - from the mapped file to the device.
 *
 * q, k, v and gate, up are stacked into one matrix each: one pass over the row's activations, one task list
 * for the threads. The stack needs one type; where a file mixes types inside a stack, all of it becomes
 * float32, exact and large, and rare enough. */
#include "common/model/weights.h"

#include "common/base/mem.h"
#include <stdio.h>
#include <string.h>

#define MAX_STACK 3

struct loader {
    struct sl_weights *w;
    const struct sl_model_file *f;
    void (*progress)(void *arg, unsigned percent);
    void *progress_arg;
    struct sl_why *why;
    uint32_t n_done, n_matrices;
};

static const struct sl_model_tensor *layer_tensor(const struct loader *l, int layer, const char *part)
{
    char name[SL_GGUF_MAX_NAME_BYTES];
    if (layer < 0)
        return sl_model_file_tensor_find(l->f, part);
    snprintf(name, sizeof name, "blk.%d.%s", layer, part);
    return sl_model_file_tensor_find(l->f, name);
}

/* Replaces the views' data by float32 copies in one block, which the caller frees after packing. */
static void *views_to_f32(struct sl_tensor_view *views, size_t n)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        total += views[i].n_rows * views[i].n_cols;
    float *block = sl_try_alloc(total * sizeof *block);
    for (size_t i = 0; block != NULL && i < n; i++) {
        size_t row_bytes = sl_dtype_row_bytes(views[i].type, views[i].n_cols);
        float *to = block + at;
        for (uint64_t r = 0; r < views[i].n_rows; r++)
            sl_dequant_row(views[i].type, (const uint8_t *)views[i].data + r * row_bytes, views[i].n_cols,
                           to + r * views[i].n_cols);
        at += views[i].n_rows * views[i].n_cols;
        views[i].type = SL_F32;
        views[i].data = to;
    }
    return block;
}

static enum sl_err pack(struct loader *l, int layer, const char *const *parts, size_t n,
                        struct sl_weight **out)
{
    struct sl_tensor_view views[MAX_STACK];
    void *block = NULL;
    bool mixed = false;
    for (size_t i = 0; i < n; i++) {
        const struct sl_model_tensor *t = layer_tensor(l, layer, parts[i]);
        views[i] = t->view;
        mixed = mixed || views[i].type != views[0].type;
    }
    if (mixed && (block = views_to_f32(views, n)) == NULL)
        return sl_why_set(
            l->why, SL_ENOMEM,
            "not enough memory to unpack %s of layer %d, whose types differ from its neighbours'", parts[0],
            layer);
    enum sl_err e = l->w->ops->weight_pack(l->w->dev, views, n, out, l->why);
    sl_free(block);
    l->n_done++;
    if (e == SL_OK && l->progress != NULL)
        l->progress(l->progress_arg, l->n_done * 100 / l->n_matrices);
    return e;
}

/* Vectors of several tensors after each other; absent tensors leave out empty. */
static enum sl_err upload(struct loader *l, int layer, const char *const *parts, size_t n,
                          struct sl_vector *out)
{
    const struct sl_model_tensor *t[MAX_STACK];
    size_t total = 0, at = 0, present = 0;
    for (size_t i = 0; i < n; i++) {
        t[i] = layer_tensor(l, layer, parts[i]);
        present += t[i] != NULL;
        total += t[i] != NULL ? t[i]->view.n_cols : 0;
    }
    if (present == 0)
        return SL_OK;
    if (present < n)
        return sl_why_set(l->why, SL_EUNSUPPORTED,
                          "%s: layer %d has a bias on some of q, k, v only; expected all or none",
                          sl_model_file_path(l->f), layer);
    float *host = sl_xalloc(total * sizeof *host);
    for (size_t i = 0; i < n; i++) {
        sl_dequant_row(t[i]->view.type, t[i]->view.data, t[i]->view.n_cols, host + at);
        at += t[i]->view.n_cols;
    }
    enum sl_err e = SL_OK;
    out->bytes = total * sizeof *host;
    out->p = l->w->ops->buf_alloc(l->w->dev, out->bytes);
    if (out->p == NULL)
        e = sl_why_set(l->why, SL_ENOMEM, "no device memory for %zu bytes of %s", out->bytes, parts[0]);
    else
        l->w->ops->upload(l->w->dev, out->p, host, out->bytes);
    l->w->ops->sync(l->w->dev);
    sl_free(host);
    return e;
}

static enum sl_err layer_load(struct loader *l, int layer)
{
    static const char *const qkv[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"};
    static const char *const qkv_bias[] = {"attn_q.bias", "attn_k.bias", "attn_v.bias"};
    static const char *const gate_up[] = {"ffn_gate.weight", "ffn_up.weight"};
    static const char *const single[] = {"attn_output.weight", "ffn_down.weight",  "attn_norm.weight",
                                         "ffn_norm.weight",    "attn_output.bias", "attn_q_norm.weight",
                                         "attn_k_norm.weight"};
    struct sl_layer_weights *w = &l->w->layers[layer];
    enum sl_err e;
    if ((e = pack(l, layer, qkv, 3, &w->qkv)) != SL_OK ||
        (e = pack(l, layer, &single[0], 1, &w->out)) != SL_OK ||
        (e = pack(l, layer, gate_up, 2, &w->gate_up)) != SL_OK ||
        (e = pack(l, layer, &single[1], 1, &w->down)) != SL_OK)
        return e;
    if ((e = upload(l, layer, &single[2], 1, &w->attn_norm)) != SL_OK ||
        (e = upload(l, layer, &single[3], 1, &w->ffn_norm)) != SL_OK ||
        (e = upload(l, layer, &single[5], 1, &w->q_norm)) != SL_OK ||
        (e = upload(l, layer, &single[6], 1, &w->k_norm)) != SL_OK)
        return e;
    if ((e = upload(l, layer, qkv_bias, 3, &w->qkv_bias)) != SL_OK)
        return e;
    return upload(l, layer, &single[4], 1, &w->out_bias);
}

enum sl_err sl_weights_load(struct sl_weights *w, const struct sl_model_file *f,
                            const struct sl_model_conf *c, const struct sl_backend_ops *ops,
                            struct sl_dev *dev, void (*progress)(void *arg, unsigned percent),
                            void *progress_arg, struct sl_why *why)
{
    static const char *const embed = "token_embd.weight", *const head = "output.weight",
                             *const norm = "output_norm.weight";
    *w = (struct sl_weights){.ops = ops, .dev = dev, .n_layers = c->n_layers};
    w->layers = sl_xcalloc(c->n_layers, sizeof *w->layers);
    struct loader l = {w, f, progress, progress_arg, why, 0, c->n_layers * 4 + (c->tied_embeddings ? 1 : 2)};
    enum sl_err e;
    if ((e = pack(&l, -1, &embed, 1, &w->embed)) != SL_OK ||
        (e = upload(&l, -1, &norm, 1, &w->out_norm)) != SL_OK)
        goto fail;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if ((e = layer_load(&l, (int)i)) != SL_OK)
            goto fail;
    }
    w->head = w->embed;
    if (!c->tied_embeddings && (e = pack(&l, -1, &head, 1, &w->head)) != SL_OK) {
        w->head = NULL;
        goto fail;
    }
    return SL_OK;
fail:
    sl_weights_free(w);
    return e;
}

static void vector_free(const struct sl_weights *w, struct sl_vector *v)
{
    if (v->p != NULL)
        w->ops->buf_free(w->dev, v->p, v->bytes);
}

void sl_weights_free(struct sl_weights *w)
{
    for (uint32_t i = 0; i < w->n_layers; i++) {
        struct sl_layer_weights *l = &w->layers[i];
        w->ops->weight_free(w->dev, l->qkv);
        w->ops->weight_free(w->dev, l->out);
        w->ops->weight_free(w->dev, l->gate_up);
        w->ops->weight_free(w->dev, l->down);
        vector_free(w, &l->attn_norm);
        vector_free(w, &l->ffn_norm);
        vector_free(w, &l->qkv_bias);
        vector_free(w, &l->out_bias);
        vector_free(w, &l->q_norm);
        vector_free(w, &l->k_norm);
    }
    if (w->ops != NULL) {
        if (w->head != w->embed)
            w->ops->weight_free(w->dev, w->head);
        w->ops->weight_free(w->dev, w->embed);
        vector_free(w, &w->out_norm);
    }
    sl_free(w->layers);
    *w = (struct sl_weights){0};
}

size_t sl_weights_bytes(const struct sl_weights *w)
{
    size_t n = w->ops->weight_bytes(w->embed) + w->out_norm.bytes;
    if (w->head != w->embed)
        n += w->ops->weight_bytes(w->head);
    for (uint32_t i = 0; i < w->n_layers; i++) {
        const struct sl_layer_weights *l = &w->layers[i];
        n += w->ops->weight_bytes(l->qkv) + w->ops->weight_bytes(l->out) + w->ops->weight_bytes(l->gate_up) +
             w->ops->weight_bytes(l->down);
        n += l->attn_norm.bytes + l->ffn_norm.bytes + l->qkv_bias.bytes + l->out_bias.bytes +
             l->q_norm.bytes + l->k_norm.bytes;
    }
    return n;
}
