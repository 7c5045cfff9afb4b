/* common/model/weights.c - from the mapped file, or the cache of packed weights, to the device.
 *
 * From the file matrices are packed one after the other, each by all threads, and the pages of the mapping
 * are given back as it goes, so that the peak of memory is the packed weights. From the cache they are made
 * first and then all read at once.
 *
 * q, k, v and gate, up are stacked into one matrix each: one pass over the row's activations, one task list
 * for the threads. Their types may differ (Q4_K_M files have q, k in Q4_K and v in Q6_K): a packed matrix has
 * a segment for each. */
#include "common/model/weights.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MAX_STACK 3
/* Raise when what is packed together, or as which type, changes: see pack_cache.h. */
#define STACK_VERSION    1u
#define PROGRESS_LINE_MS 2000

/* What a rank takes of each tensor: of vectors, elements count as rows. */
enum cut { WHOLE, ROWS, COLUMNS, OF_RANK_0 };

/* What a layer's weights come from; vectors that the file lacks stay empty. */
struct part {
    size_t field; /* of struct sl_layer_weights */
    enum cut cut;
    size_t n;
    const char *names[MAX_STACK]; /* after "blk.N.", stacked in this order */
};

#define FIELD(name) offsetof(struct sl_layer_weights, name)

static const struct part matrices[] = {
    {FIELD(qkv), ROWS, 3, {"attn_q.weight", "attn_k.weight", "attn_v.weight"}},
    {FIELD(out), COLUMNS, 1, {"attn_output.weight"}},
    {FIELD(gate_up), ROWS, 2, {"ffn_gate.weight", "ffn_up.weight"}},
    {FIELD(down), COLUMNS, 1, {"ffn_down.weight"}},
};

static const struct part vectors[] = {
    {FIELD(attn_norm), WHOLE, 1, {"attn_norm.weight"}},
    {FIELD(ffn_norm), WHOLE, 1, {"ffn_norm.weight"}},
    {FIELD(qkv_bias), ROWS, 3, {"attn_q.bias", "attn_k.bias", "attn_v.bias"}},
    {FIELD(out_bias), OF_RANK_0, 1, {"attn_output.bias"}},
    {FIELD(q_norm), WHOLE, 1, {"attn_q_norm.weight"}},
    {FIELD(k_norm), WHOLE, 1, {"attn_k_norm.weight"}},
    {FIELD(post_attn_norm), WHOLE, 1, {"post_attention_norm.weight"}},
    {FIELD(post_ffn_norm), WHOLE, 1, {"post_ffw_norm.weight"}},
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
    const struct sl_weights_source *from;
    struct sl_pack_cache *cache; /* NULL = pack */
    struct sl_why *why;
    uint64_t bytes_done, bytes; /* of the file's matrices */
    uint64_t start_ms, line_ms;
};

static const struct sl_model_tensor *layer_tensor(const struct loader *l, int layer, const char *part)
{
    char name[SL_GGUF_MAX_NAME_BYTES];
    if (layer < 0)
        return sl_model_file_tensor_find(l->from->file, part);
    snprintf(name, sizeof name, "blk.%d.%s", layer, part);
    return sl_model_file_tensor_find(l->from->file, name);
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

/* This rank's share of a tensor. Columns are copied, as rows in another order are. */
static enum sl_err own_view(const struct loader *l, const struct sl_model_tensor *t, enum cut cut,
                            struct sl_tensor_view *view, void **copy)
{
    const struct sl_share *share = &l->from->share;
    enum sl_err e = in_gguf_order(l, t, view, copy);
    if (e != SL_OK || share->n_ranks == 1 || cut == WHOLE)
        return e;
    const struct sl_tensor_view all = *view;
    size_t row_bytes = sl_dtype_row_bytes(all.type, all.n_cols);
    if (cut == ROWS) {
        view->n_rows = sl_share_size(share, all.n_rows);
        view->data = (const char *)all.data + sl_share_first(share, all.n_rows) * row_bytes;
        return SL_OK;
    }
    view->n_cols = sl_share_size(share, all.n_cols);
    size_t first = sl_dtype_row_bytes(all.type, sl_share_first(share, all.n_cols));
    size_t bytes = sl_dtype_row_bytes(all.type, view->n_cols);
    char *columns = sl_try_alloc(all.n_rows * bytes);
    if (columns == NULL)
        return sl_why_set(l->why, SL_ENOMEM, "no memory for %zu bytes of %s", (size_t)all.n_rows * bytes,
                          t->name);
    for (uint64_t r = 0; r < all.n_rows; r++)
        memcpy(columns + r * bytes, (const char *)all.data + r * row_bytes + first, bytes);
    sl_free(*copy);
    view->data = *copy = columns;
    return SL_OK;
}

static uint64_t mb_per_s(uint64_t bytes, uint64_t ms)
{
    return bytes / 1000 / (ms > 0 ? ms : 1);
}

static void tell_progress(struct loader *l)
{
    unsigned percent = (unsigned)(l->bytes_done * 100 / l->bytes);
    uint64_t now = sl_now_ms();
    if (l->from->share.rank != 0)
        return;                              /* all go about as fast */
    percent = percent < 100 ? percent : 100; /* a tied head that is shared is packed beside the table */
    if (l->from->progress != NULL)
        l->from->progress(l->from->progress_arg, percent);
    if (now - l->line_ms < PROGRESS_LINE_MS)
        return;
    l->line_ms = now;
    SL_INFO("packing the weights percent=%u mb=%llu mb_per_s=%llu", percent,
            (unsigned long long)(l->bytes_done / 1000000),
            (unsigned long long)mb_per_s(l->bytes_done, now - l->start_ms));
}

/* "blk.0.attn_q.weight+attn_k.weight+attn_v.weight"; of a rank's share "... shared" */
static void name_of(const struct loader *l, int layer, const struct part *p, char name[SL_PACK_NAME_MAX])
{
    size_t at = 0;
    memset(name, 0, SL_PACK_NAME_MAX);
    if (layer >= 0)
        at += (size_t)snprintf(name, SL_PACK_NAME_MAX, "blk.%d.", layer);
    for (size_t i = 0; i < p->n; i++)
        at += (size_t)snprintf(name + at, SL_PACK_NAME_MAX - at, "%s%s", i > 0 ? "+" : "", p->names[i]);
    if (p->cut != WHOLE && l->from->share.n_ranks > 1)
        at += (size_t)snprintf(name + at, SL_PACK_NAME_MAX - at, " shared");
    SL_ASSERT(at < SL_PACK_NAME_MAX);
}

static enum sl_err pack_parts(struct loader *l, int layer, const struct part *p, struct sl_weight **out)
{
    const struct sl_model_tensor *t[MAX_STACK];
    struct sl_tensor_view views[MAX_STACK] = {{0}};
    void *copies[MAX_STACK] = {NULL};
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < p->n; i++) {
        t[i] = layer_tensor(l, layer, p->names[i]);
        if (e == SL_OK)
            e = own_view(l, t[i], p->cut, &views[i], &copies[i]);
    }
    if (e == SL_OK)
        e = l->w->ops->weight_pack(l->w->dev, views, p->n, out, l->why);
    for (size_t i = 0; i < p->n; i++) {
        sl_free(copies[i]);
        sl_model_file_release(l->from->file, t[i]->view.data, t[i]->bytes);
        l->bytes_done += t[i]->bytes;
    }
    if (e == SL_OK)
        tell_progress(l);
    return e;
}

static enum sl_err take_cached(struct loader *l, int layer, const struct part *p, const char *name,
                               struct sl_weight **out)
{
    const struct sl_share *share = &l->from->share;
    uint64_t n_rows = 0, n_cols = layer_tensor(l, layer, p->names[0])->view.n_cols;
    for (size_t i = 0; i < p->n; i++) {
        uint64_t n = layer_tensor(l, layer, p->names[i])->view.n_rows;
        n_rows += p->cut == ROWS ? sl_share_size(share, n) : n;
    }
    if (p->cut == COLUMNS)
        n_cols = sl_share_size(share, n_cols);
    return sl_pack_cache_take(l->cache, name, n_rows, n_cols, l->w->ops, l->w->dev, out, l->why);
}

/* One matrix: from the cache, or packed. */
static enum sl_err pack(struct loader *l, int layer, const struct part *p, struct sl_weight **out)
{
    struct sl_pack_item *item = &l->w->items[l->w->n_items];
    name_of(l, layer, p, item->name);
    enum sl_err e =
        l->cache != NULL ? take_cached(l, layer, p, item->name, out) : pack_parts(l, layer, p, out);
    if (e == SL_OK) {
        item->weight = *out;
        l->w->n_items++;
    }
    return e;
}

/* Appends this rank's elements of a vector to host[*at]. */
static enum sl_err append(const struct loader *l, const struct sl_model_tensor *t, enum cut cut, float *host,
                          size_t *at)
{
    const struct sl_share *share = &l->from->share;
    struct sl_tensor_view view;
    void *copy;
    enum sl_err e = in_gguf_order(l, t, &view, &copy);
    if (e != SL_OK)
        return e;
    float *all = sl_xalloc(view.n_cols * sizeof *all);
    size_t first = cut == ROWS ? sl_share_first(share, view.n_cols) : 0;
    size_t n = cut == ROWS ? sl_share_size(share, view.n_cols) : view.n_cols;
    sl_dequant_row(view.type, view.data, view.n_cols, all);
    memcpy(host + *at, all + first, n * sizeof *host);
    *at += n;
    sl_free(all);
    sl_free(copy);
    return SL_OK;
}

/* Vectors of several tensors after each other; absent tensors leave out empty. */
static enum sl_err upload(struct loader *l, int layer, const struct part *p, struct sl_vector *out)
{
    const struct sl_model_tensor *t[MAX_STACK];
    size_t total = 0, n = 0, present = 0;
    for (size_t i = 0; i < p->n; i++) {
        t[i] = layer_tensor(l, layer, p->names[i]);
        present += t[i] != NULL;
        total += t[i] != NULL ? t[i]->view.n_cols : 0;
    }
    if (present == 0 || (p->cut == OF_RANK_0 && l->from->share.rank != 0))
        return SL_OK;
    if (present < p->n)
        return sl_why_set(l->why, SL_EUNSUPPORTED,
                          "%s: layer %d has a bias on some of q, k, v only; expected all or none",
                          sl_model_file_path(l->from->file), layer);
    float *host = sl_xalloc(total * sizeof *host);
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < p->n && e == SL_OK; i++)
        e = append(l, t[i], p->cut, host, &n);
    if (e != SL_OK) {
        sl_free(host);
        return e;
    }
    out->bytes = n * sizeof *host;
    out->p = l->w->ops->buf_alloc(l->w->dev, out->bytes);
    if (out->p == NULL)
        e = sl_why_set(l->why, SL_ENOMEM, "no device memory for %zu bytes of %s", out->bytes, p->names[0]);
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
        e = pack(l, layer, &matrices[i], matrix_of(w, i));
    for (size_t i = 0; e == SL_OK && i < SL_COUNTOF(vectors); i++)
        e = upload(l, layer, &vectors[i], vector_of(w, i));
    return e;
}

static enum sl_err load_all(struct loader *l)
{
    static const struct part embed = {0, WHOLE, 1, {"token_embd.weight"}},
                             tied_head = {0, ROWS, 1, {"token_embd.weight"}},
                             head = {0, ROWS, 1, {"output.weight"}},
                             norm = {0, WHOLE, 1, {"output_norm.weight"}};
    struct sl_weights *w = l->w;
    enum sl_err e;
    if ((e = pack(l, -1, &embed, &w->embed)) != SL_OK || (e = upload(l, -1, &norm, &w->out_norm)) != SL_OK)
        return e;
    for (uint32_t i = 0; i < w->n_layers; i++) {
        if ((e = layer_load(l, (int)i)) != SL_OK)
            return e;
    }
    if (l->from->conf->tied_embeddings && l->from->share.n_ranks == 1)
        w->head = w->embed;
    else
        e = pack(l, -1, l->from->conf->tied_embeddings ? &tied_head : &head, &w->head);
    return e;
}

static void weights_init(struct sl_weights *w, const struct sl_backend_ops *ops, struct sl_dev *dev,
                         const struct sl_model_conf *c)
{
    *w = (struct sl_weights){.ops = ops, .dev = dev, .n_layers = c->n_layers};
    w->layers = sl_xcalloc(c->n_layers, sizeof *w->layers);
    w->items = sl_xcalloc(c->n_layers * SL_COUNTOF(matrices) + 2, sizeof *w->items);
}

static struct sl_pack_key key_of(const struct sl_weights_source *from, const struct sl_backend_ops *ops)
{
    struct sl_pack_key key;
    sl_pack_key_of(&from->conf->digest, ops, STACK_VERSION, &key);
    size_t n = strlen(key.text);
    if (from->share.n_ranks > 1)
        snprintf(key.text + n, sizeof key.text - n, " rank=%u/%u", from->share.rank, from->share.n_ranks);
    return key;
}

static bool may_cache(const struct sl_weights_source *from, const struct sl_backend_ops *ops)
{
    return from->cache_dir != NULL && ops->weight_image != NULL;
}

/* False when there is nothing of use in the cache; w is empty then. */
static bool load_cached(struct sl_weights *w, const struct sl_weights_source *from,
                        const struct sl_backend_ops *ops, struct sl_dev *dev)
{
    const struct sl_pack_key key = key_of(from, ops);
    struct sl_why why = {{0}};
    struct loader l = {.w = w, .from = from, .why = &why, .start_ms = sl_now_ms()};
    l.cache = sl_pack_cache_open(from->cache_dir, &key);
    if (l.cache == NULL)
        return false;
    weights_init(w, ops, dev, from->conf);
    enum sl_err e = load_all(&l);
    if (e != SL_OK)
        SL_WARN("the packed weights in %s are of no use and are packed again: %s", from->cache_dir, why.text);
    w->from_cache = e == SL_OK && sl_pack_cache_read(l.cache, from->n_threads);
    sl_pack_cache_close(l.cache);
    if (!w->from_cache) {
        sl_weights_free(w);
        return false;
    }
    uint64_t ms = sl_now_ms() - l.start_ms, bytes = sl_weights_bytes(w);
    if (from->share.rank == 0)
        SL_INFO("packed weights read from the cache dir=%s mb=%llu ms=%llu mb_per_s=%llu", from->cache_dir,
                (unsigned long long)(bytes / 1000000), (unsigned long long)ms,
                (unsigned long long)mb_per_s(bytes, ms));
    return true;
}

enum sl_err sl_weights_load(struct sl_weights *w, const struct sl_weights_source *from,
                            const struct sl_backend_ops *ops, struct sl_dev *dev, struct sl_why *why)
{
    *w = (struct sl_weights){0};
    if (may_cache(from, ops) && load_cached(w, from, ops, dev))
        return SL_OK;
    struct loader l = {.w = w, .from = from, .why = why, .start_ms = sl_now_ms()};
    l.line_ms = l.start_ms;
    for (size_t i = 0; i < sl_model_file_n_tensors(from->file); i++)
        l.bytes += sl_model_file_tensor_at(from->file, i)->bytes;
    weights_init(w, ops, dev, from->conf);
    enum sl_err e = load_all(&l);
    if (e != SL_OK) {
        sl_weights_free(w);
        return e;
    }
    uint64_t ms = sl_now_ms() - l.start_ms;
    if (from->share.rank == 0)
        SL_INFO("weights packed mb=%llu ms=%llu mb_per_s=%llu", (unsigned long long)(l.bytes_done / 1000000),
                (unsigned long long)ms, (unsigned long long)mb_per_s(l.bytes_done, ms));
    return SL_OK;
}

bool sl_weights_to_save(const struct sl_weights *w, const struct sl_weights_source *from,
                        struct sl_pack_save *out)
{
    if (!may_cache(from, w->ops) || w->from_cache)
        return false;
    *out = (struct sl_pack_save){
        .dir = from->cache_dir,
        .key = key_of(from, w->ops),
        .ops = w->ops,
        .items = w->items,
        .n_items = w->n_items,
        .max_bytes = SL_PACK_CACHE_MAX_BYTES,
        .keep_free_bytes = SL_PACK_CACHE_KEEP_FREE_BYTES,
    };
    return true;
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
    sl_free(w->items);
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
