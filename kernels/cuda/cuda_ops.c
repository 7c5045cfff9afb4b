/* kernels/cuda/cuda_ops.c - the ops of the table: each sends what it needs of the host's and queues its
 * kernels. */
#include "kernels/cuda/cuda_dev.h"

void sl_cuda_embed(struct sl_dev *d, const struct sl_weight *w, const struct sl_batch *b, float scale,
                   float *x)
{
    struct cu_embed_args a = {
        .w = w->data,
        .tokens = d->passes.on ? d->passes.tokens : sl_cuda_send(d, b->tokens, b->n_rows * sizeof *b->tokens),
        .scale = scale,
        .x = x,
        .n = w->n_cols};
    cu_embed(d->stream, b->n_rows, &a);
}

void sl_cuda_linear(struct sl_dev *d, const struct sl_linear *a)
{
    const struct sl_weight *w = a->w;
    int gated = a->prologue == SL_PRO_SWIGLU || a->prologue == SL_PRO_GEGLU;
    size_t stride = (size_t)w->n_cols * (gated ? 2 : 1);
    const uint32_t *x_rows = a->x_rows ? sl_cuda_send(d, a->x_rows, a->n_rows * sizeof *a->x_rows) : NULL;
    for (uint32_t r0 = 0; r0 < a->n_rows; r0 += d->max_rows) {
        uint32_t n = a->n_rows - r0 < d->max_rows ? a->n_rows - r0 : d->max_rows;
        struct cu_prologue_args p = {.kind = a->prologue,
                                     .x = x_rows ? a->x : a->x + r0 * stride,
                                     .rows = x_rows ? x_rows + r0 : NULL,
                                     .norm_w = a->norm_w,
                                     .norm_eps = a->norm_eps,
                                     .y = d->acts,
                                     .n = w->n_cols};
        struct cu_matmul_args m = {.x = d->acts,
                                   .w = w->data,
                                   .bias = a->bias,
                                   .y = a->y + (size_t)r0 * w->n_rows,
                                   .n_rows = n,
                                   .n = w->n_rows,
                                   .k = w->n_cols,
                                   .add = a->add};
        cu_prologue(d->stream, n, &p);
        if (!d->blaslt || !cu_blaslt_matmul(d->blaslt, &m))
            cu_matmul_plain(d->stream, &m);
    }
}

void sl_cuda_norm_add(struct sl_dev *d, const float *y, const float *norm_w, float eps, uint32_t n_rows,
                      uint32_t n, float *x)
{
    struct cu_norm_add_args a = {y, norm_w, eps, x, n};
    cu_norm_add(d->stream, n_rows, &a);
}

void sl_cuda_sum_ranks(struct sl_dev *d, const float *parts, uint32_t n_parts, size_t n, int add, float *y)
{
    struct cu_sum_args a = {.parts = parts, .n = n, .n_parts = n_parts, .add = add, .y = y};
    cu_sum_ranks(d->stream, &a);
}

/* Frequencies of the shape on the device. */
static const float *rope_frequency(struct sl_dev *d, const struct sl_attn_shape *s)
{
    for (uint32_t i = 0; i < CUDA_ROPE_BASES; i++) {
        const struct cuda_rope_base *b = &d->rope[i];
        if (b->theta == s->rope_theta && b->dim == s->rope_dim && b->factors == s->rope_factors)
            return b->frequency;
    }
    struct cuda_rope_base *b = &d->rope[d->rope_next++ % CUDA_ROPE_BASES];
    float f[SL_HEAD_DIM_MAX / 2];
    sl_rope_frequencies(s->rope_theta, s->rope_dim, f);
    for (uint32_t i = 0; s->rope_factors && i < s->rope_dim / 2; i++)
        f[i] /= s->rope_factors[i];
    b->theta = s->rope_theta;
    b->dim = s->rope_dim;
    b->factors = s->rope_factors;
    cu_upload(d->stream, b->frequency, f, s->rope_dim / 2 * sizeof *f);
    return b->frequency;
}

struct cu_pages sl_cuda_pages(const struct sl_kv *kv, uint32_t layer)
{
    const struct sl_kv_geometry *g = &kv->g;
    size_t layer_bytes = kv->page_bytes / g->n_layers;
    return (struct cu_pages){.layer = kv->base + layer * layer_bytes,
                             .page_bytes = kv->page_bytes,
                             .strip_bytes = layer_bytes / (2 * g->n_kv_heads),
                             .row_bytes = (uint32_t)sl_kv_value_bytes(g),
                             .n_kv_heads = g->n_kv_heads,
                             .page_tokens = g->page_tokens,
                             .head_dim = g->head_dim,
                             .dtype = g->dtype};
}

void sl_cuda_rope_kv(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                     const struct sl_batch *b, float *qkv)
{
    struct cuda_batch batch = sl_cuda_send_batch(d, b);
    struct cu_rope_args a = {.kv = sl_cuda_pages(kv, layer),
                             .rows = batch.rows,
                             .page_list = batch.pages,
                             .frequency = rope_frequency(d, s),
                             .q_norm = s->q_norm,
                             .k_norm = s->k_norm,
                             .norm_eps = s->qk_norm_eps,
                             .layout = s->rope_layout,
                             .n_heads = s->n_heads,
                             .rope_dim = s->rope_dim,
                             .qkv = qkv};
    cu_rope_kv(d->stream, b->n_rows, &a);
}
