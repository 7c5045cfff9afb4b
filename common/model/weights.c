/* common/model/weights.c - from the mapped file to the device.
 *
 * q, k, v and gate, up are stacked into one matrix each: one pass over the row's activations, one task list
 * for the threads. The stack needs one type; where a file mixes types inside a stack, all of it becomes
 * float32, exact and large, and rare enough. */
#include "common/model/weights.h"

#include "common/base/mem.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MAX_STACK 3

/* What a layer's weights come from; vectors that the file lacks stay empty. */
struct part {
    size_t field; /* of struct sl_layer_weights */
    size_t n;
    const char *names[MAX_STACK]; /* after "blk.N.", stacked in this order */
};

#define FIELD(name) offsetof(struct sl_layer_weights, name)

static const struct part matrices[] = {
    {FIELD(qkv), 3, {"attn_q.weight", "attn_k.weight", "attn_v.weight"}},
    {FIELD(out), 1, {"attn_output.weight"}},
    {FIELD(gate_up), 2, {"ffn_gate.weight", "ffn_up.weight"}},
    {FIELD(down), 1, {"ffn_down.weight"}},
};

static const struct part vectors[] = {
    {FIELD(attn_norm), 1, {"attn_norm.weight"}},
    {FIELD(ffn_norm), 1, {"ffn_norm.weight"}},
    {FIELD(qkv_bias), 3, {"attn_q.bias", "attn_k.bias", "attn_v.bias"}},
    {FIELD(out_bias), 1, {"attn_output.bias"}},
    {FIELD(q_norm), 1, {"attn_q_norm.weight"}},
    {FIELD(k_norm), 1, {"attn_k_norm.weight"}},
    {FIELD(post_attn_norm), 1, {"post_attention_norm.weight"}},
    {FIELD(post_ffn_norm), 1, {"post_ffw_norm.weight"}},
};

static struct sl_weight **matrix_of(struct sl_layer_weights *w, size_t i)
{
    return (struct sl_weight **)(void *)((char *)w + matrices[i].field);
}

static struct sl_vector *vector_of(struct sl_layer_weights *w, size_t i)
{
    return (struct sl_vector *)(void *)((char *)w + vectors[i].field);
}

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

/* Where GGUF orders the rows in another way, a copy takes the place of the view's data; the caller frees it.
 */
static enum sl_err in_gguf_order(const struct loader *l, const struct sl_model_tensor *t,
                                 struct sl_tensor_view *view, void **copy)
{
    *view = t->view;
    *copy = NULL;
    if (t->pair_heads == 0)
        return SL_OK;
    if ((*copy = sl_try_alloc(t->bytes)) == NULL)
        return sl_why_set(l->why, SL_ENOMEM, "no memory for the %zu bytes of %s", t->bytes, t->name);
    sl_model_tensor_to_pairs(t, *copy);
    view->data = *copy;
    return SL_OK;
}

static enum sl_err pack_views(const struct loader *l, int layer, const char *part,
                              struct sl_tensor_view *views, size_t n, struct sl_weight **out)
{
    void *block = NULL;
    bool mixed = false;
    for (size_t i = 1; i < n; i++)
        mixed = mixed || views[i].type != views[0].type;
    if (mixed && (block = views_to_f32(views, n)) == NULL)
        return sl_why_set(
            l->why, SL_ENOMEM,
            "not enough memory to unpack %s of layer %d, whose types differ from its neighbours'", part,
            layer);
    enum sl_err e = l->w->ops->weight_pack(l->w->dev, views, n, out, l->why);
    sl_free(block);
    return e;
}

static enum sl_err pack(struct loader *l, int layer, const char *const *parts, size_t n,
                        struct sl_weight **out)
{
    const struct sl_model_tensor *t[MAX_STACK];
    struct sl_tensor_view views[MAX_STACK];
    void *copies[MAX_STACK] = {NULL};
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < n; i++) {
        t[i] = layer_tensor(l, layer, parts[i]);
        if (e == SL_OK)
            e = in_gguf_order(l, t[i], &views[i], &copies[i]);
    }
    if (e == SL_OK)
        e = pack_views(l, layer, parts[0], views, n, out);
    for (size_t i = 0; i < n; i++) {
        sl_free(copies[i]);
        sl_model_file_release(l->f, t[i]->view.data, t[i]->bytes);
    }
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
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < n && e == SL_OK; i++) {
        struct sl_tensor_view view;
        void *copy;
        e = in_gguf_order(l, t[i], &view, &copy);
        if (e == SL_OK)
            sl_dequant_row(view.type, view.data, view.n_cols, host + at);
        sl_free(copy);
        at += view.n_cols;
    }
    if (e != SL_OK) {
        sl_free(host);
        return e;
    }
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
    struct sl_layer_weights *w = &l->w->layers[layer];
    enum sl_err e = SL_OK;
    for (size_t i = 0; e == SL_OK && i < SL_COUNTOF(matrices); i++)
        e = pack(l, layer, matrices[i].names, matrices[i].n, matrix_of(w, i));
    for (size_t i = 0; e == SL_OK && i < SL_COUNTOF(vectors); i++)
        e = upload(l, layer, vectors[i].names, vectors[i].n, vector_of(w, i));
    return e;
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
    struct loader l = {w,
                       f,
                       progress,
                       progress_arg,
                       why,
                       0,
                       c->n_layers * SL_COUNTOF(matrices) + (c->tied_embeddings ? 1 : 2)};
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
        for (size_t k = 0; k < SL_COUNTOF(matrices); k++)
            w->ops->weight_free(w->dev, *matrix_of(&w->layers[i], k));
        for (size_t k = 0; k < SL_COUNTOF(vectors); k++)
            vector_free(w, vector_of(&w->layers[i], k));
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
        for (size_t k = 0; k < SL_COUNTOF(matrices); k++)
            n += w->ops->weight_bytes(*matrix_of(&w->layers[i], k));
        for (size_t k = 0; k < SL_COUNTOF(vectors); k++)
            n += vector_of(&w->layers[i], k)->bytes;
    }
    return n;
}
