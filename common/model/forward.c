/* common/model/forward.c - step 6 of the request path: one pass of a batch through the layers.
 *
 * The same loop for every device and every mix of rows: prompt chunks over cached pages and decode rows
 * differ only in the batch's runs. What exactness needs lies in the ops (kernels/backend.h); here rows never
 * meet.
 *
 *     x      = embed(tokens) * scale                        [n_rows, d]
 *     per layer:
 *       qkv  = rmsnorm(x) Wqkv + b                          [n_rows, (heads + 2 kv heads) * head_dim]
 *       norm, where the layer says so, and rotate the heads of q and k, put k and v into the batch's pages
 *       x   += attention(q, pages) Wo + b                   [n_rows, d]
 *       x   += gated(rmsnorm(x) Wgate_up) Wdown             [n_rows, d]
 *     logits = rmsnorm(x[out_rows]) Whead                   [n_out, n_vocab]
 *
 * In the last layer only the rows whose logits are wanted go on once K and V are in the pages; a pass without
 * such rows ends there. */
#include "common/model/model_impl.h"

/* A run of rows to be carried through the last layer costs about as much as this many rows more: its matrices
 * are read once more. */
#define ROWS_PER_RANGE 16

/* The shape of attention in a layer. */
static struct sl_attn_shape attn_shape(const struct sl_model *m, uint32_t layer)
{
    struct sl_attn_shape s = *sl_model_conf_attn(&m->conf, layer);
    s.q_norm = m->weights.layers[layer].q_norm.p;
    s.k_norm = m->weights.layers[layer].k_norm.p;
    s.qk_norm_eps = m->conf.rms_eps;
    return s;
}

static void qkv_forward(struct sl_model *m, struct sl_kv *kv, uint32_t layer, const struct sl_batch *b,
                        const struct sl_attn_shape *shape)
{
    const struct sl_layer_weights *w = &m->weights.layers[layer];
    struct sl_linear qkv = {.w = w->qkv,
                            .prologue = SL_PRO_RMSNORM,
                            .norm_w = w->attn_norm.p,
                            .norm_eps = m->conf.rms_eps,
                            .x = m->x.p,
                            .bias = w->qkv_bias.p,
                            .y = m->qkv.p,
                            .n_rows = b->n_rows};
    m->ops->linear(m->dev, &qkv);
    m->ops->rope_kv(m->dev, kv, layer, shape, b, m->qkv.p);
}

/* x += y, the product of a; where the architecture norms what it adds, y is normed first. */
static void branch_add(struct sl_model *m, struct sl_linear a, const struct sl_vector *post_norm, float *x)
{
    a.y = post_norm->p != NULL ? m->branch.p : x;
    a.add = post_norm->p == NULL;
    m->ops->linear(m->dev, &a);
    if (post_norm->p != NULL)
        m->ops->norm_add(m->dev, a.y, post_norm->p, m->conf.rms_eps, a.n_rows, m->conf.d_model, x);
}

/* What follows attention, for rows [first, first + n). */
static void rows_forward(struct sl_model *m, uint32_t layer, uint32_t first, uint32_t n)
{
    const struct sl_layer_weights *w = &m->weights.layers[layer];
    size_t q_dim = (size_t)m->conf.attn.n_heads * m->conf.attn.head_dim;
    float *x = m->x.p + (size_t)first * m->conf.d_model;
    struct sl_linear out = {.w = w->out, .x = m->attn.p + first * q_dim, .bias = w->out_bias.p, .n_rows = n};
    branch_add(m, out, &w->post_attn_norm, x);
    struct sl_linear gate_up = {.w = w->gate_up,
                                .prologue = SL_PRO_RMSNORM,
                                .norm_w = w->ffn_norm.p,
                                .norm_eps = m->conf.rms_eps,
                                .x = x,
                                .y = m->gate_up.p,
                                .n_rows = n};
    m->ops->linear(m->dev, &gate_up);
    struct sl_linear down = {.w = w->down, .prologue = m->conf.gated, .x = m->gate_up.p, .n_rows = n};
    branch_add(m, down, &w->post_ffn_norm, x);
}

/* The parts of the batch's runs whose logits are wanted, as runs over the same rows. */
static struct sl_batch wanted_rows(struct sl_model *m, const struct sl_batch *b)
{
    struct sl_batch wanted = {.n_rows = b->n_rows, .tokens = b->tokens, .runs = m->wanted_runs};
    uint32_t i = 0;
    for (uint32_t u = 0; u < b->n_runs; u++) {
        const struct sl_batch_run *run = &b->runs[u];
        while (i < b->n_out && b->out_rows[i] < run->first_row + run->n_rows) {
            uint32_t first = b->out_rows[i], n = 1;
            while (i + n < b->n_out && b->out_rows[i + n] == first + n &&
                   first + n < run->first_row + run->n_rows)
                n++;
            m->wanted_runs[wanted.n_runs++] = (struct sl_batch_run){
                first, n, run->first_pos + (first - run->first_row), run->pages, run->n_pages};
            i += n;
        }
    }
    return wanted;
}

static void last_layer_forward(struct sl_model *m, struct sl_kv *kv, uint32_t layer, const struct sl_batch *b,
                               const struct sl_attn_shape *shape)
{
    struct sl_batch wanted = wanted_rows(m, b);
    if (b->n_out == 0)
        return;
    m->ops->attention(m->dev, kv, layer, shape, &wanted, m->qkv.p, m->attn.p);
    if (b->n_out + ROWS_PER_RANGE * wanted.n_runs >= b->n_rows) {
        rows_forward(m, layer, 0,
                     b->n_rows); /* unwanted rows compute on what attention left of the layer before */
        return;
    }
    for (uint32_t u = 0; u < wanted.n_runs;) {
        uint32_t first = wanted.runs[u].first_row, end = first;
        for (; u < wanted.n_runs && wanted.runs[u].first_row == end; u++)
            end += wanted.runs[u].n_rows;
        rows_forward(m, layer, first, end - first);
    }
}

static void head_forward(struct sl_model *m, const struct sl_batch *b, float *logits)
{
    size_t n_vocab = m->conf.n_vocab;
    for (uint32_t first = 0; first < b->n_out; first += SL_HEAD_ROWS) {
        uint32_t n = b->n_out - first < SL_HEAD_ROWS ? b->n_out - first : SL_HEAD_ROWS;
        float *to = logits + first * n_vocab;
        struct sl_linear head = {.w = m->weights.head,
                                 .prologue = SL_PRO_RMSNORM,
                                 .norm_w = m->weights.out_norm.p,
                                 .norm_eps = m->conf.rms_eps,
                                 .x = m->x.p,
                                 .x_rows = b->out_rows + first,
                                 .y = m->logits.p ? m->logits.p : to,
                                 .n_rows = n};
        m->ops->linear(m->dev, &head);
        if (m->logits.p)
            m->ops->download(m->dev, to, m->logits.p, n * n_vocab * sizeof *logits);
    }
}

void sl_model_forward(struct sl_model *m, struct sl_kv *kv, const struct sl_batch *b, float *logits,
                      atomic_uint_fast64_t *progress)
{
    SL_ASSERT(b->n_rows > 0 && b->n_rows <= m->max_rows && b->n_out <= b->n_rows);
    m->ops->embed(m->dev, m->weights.embed, b, m->conf.embed_scale, m->x.p);
    for (uint32_t layer = 0; layer < m->conf.n_layers; layer++) {
        struct sl_attn_shape shape = attn_shape(m, layer);
        qkv_forward(m, kv, layer, b, &shape);
        if (layer + 1 < m->conf.n_layers) {
            m->ops->attention(m->dev, kv, layer, &shape, b, m->qkv.p, m->attn.p);
            rows_forward(m, layer, 0, b->n_rows);
        } else {
            last_layer_forward(m, kv, layer, b, &shape);
        }
        atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    }
    head_forward(m, b, logits);
    m->ops->sync(m->dev);
}
