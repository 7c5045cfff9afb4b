/* common/model/forward.c - step 6 of the request path: one pass of a batch through the layers.
 *
 * The same loop for every device and every mix of rows: prompt chunks over cached pages and decode rows
 * differ only in the batch's runs. What exactness needs lies in the ops (kernels/backend.h); here rows never
 * meet.
 *
 *     x      = embed(tokens)                                [n_rows, d]
 *     per layer:
 *       qkv  = rmsnorm(x) Wqkv + b                          [n_rows, (heads + 2 kv heads) * head_dim]
 *       rotate q and k, put k and v into the batch's pages
 *       x   += attention(q, pages) Wo + b                   [n_rows, d]
 *       x   += swiglu(rmsnorm(x) Wgate_up) Wdown            [n_rows, d]
 *     logits = rmsnorm(x[out_rows]) Whead                   [n_out, n_vocab]
 *
 * A pass without out rows ends when the last layer's K and V are in the pages: nobody reads what would
 * follow. */
#include "common/model/model_impl.h"

static void layer_forward(struct sl_model *m, struct sl_kv *kv, uint32_t layer, const struct sl_batch *b)
{
    const struct sl_backend_ops *ops = m->ops;
    const struct sl_layer_weights *w = &m->weights.layers[layer];
    const struct sl_attn_shape *shape = &m->conf.attn;
    struct sl_linear qkv = {.w = w->qkv,
                            .prologue = SL_PRO_RMSNORM,
                            .norm_w = w->attn_norm.p,
                            .norm_eps = m->conf.rms_eps,
                            .x = m->x.p,
                            .bias = w->qkv_bias.p,
                            .y = m->qkv.p,
                            .n_rows = b->n_rows};
    ops->linear(m->dev, &qkv);
    ops->rope_kv(m->dev, kv, layer, shape, b, m->qkv.p);
    if (b->n_out == 0 && layer + 1 == m->conf.n_layers)
        return;
    ops->attention(m->dev, kv, layer, shape, b, m->qkv.p, m->attn.p);
    struct sl_linear out = {
        .w = w->out, .x = m->attn.p, .bias = w->out_bias.p, .y = m->x.p, .add = 1, .n_rows = b->n_rows};
    ops->linear(m->dev, &out);
    struct sl_linear gate_up = {.w = w->gate_up,
                                .prologue = SL_PRO_RMSNORM,
                                .norm_w = w->ffn_norm.p,
                                .norm_eps = m->conf.rms_eps,
                                .x = m->x.p,
                                .y = m->gate_up.p,
                                .n_rows = b->n_rows};
    ops->linear(m->dev, &gate_up);
    struct sl_linear down = {.w = w->down,
                             .prologue = SL_PRO_SWIGLU,
                             .x = m->gate_up.p,
                             .y = m->x.p,
                             .add = 1,
                             .n_rows = b->n_rows};
    ops->linear(m->dev, &down);
}

static void head_forward(struct sl_model *m, const struct sl_batch *b, float *logits)
{
    size_t n_vocab = m->conf.n_vocab;
    for (uint32_t first = 0; first < b->n_out; first += SL_HEAD_ROWS) {
        uint32_t n = b->n_out - first < SL_HEAD_ROWS ? b->n_out - first : SL_HEAD_ROWS;
        struct sl_linear head = {.w = m->weights.head,
                                 .prologue = SL_PRO_RMSNORM,
                                 .norm_w = m->weights.out_norm.p,
                                 .norm_eps = m->conf.rms_eps,
                                 .x = m->x.p,
                                 .x_rows = b->out_rows + first,
                                 .y = m->logits.p,
                                 .n_rows = n};
        m->ops->linear(m->dev, &head);
        m->ops->download(m->dev, logits + first * n_vocab, m->logits.p, n * n_vocab * sizeof *logits);
    }
}

void sl_model_forward(struct sl_model *m, struct sl_kv *kv, const struct sl_batch *b, float *logits,
                      atomic_uint_fast64_t *progress)
{
    SL_ASSERT(b->n_rows > 0 && b->n_rows <= m->max_rows && b->n_out <= b->n_rows);
    m->ops->embed(m->dev, m->weights.embed, b, m->x.p);
    for (uint32_t layer = 0; layer < m->conf.n_layers; layer++) {
        layer_forward(m, kv, layer, b);
        atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    }
    head_forward(m, b, logits);
    m->ops->sync(m->dev);
}
