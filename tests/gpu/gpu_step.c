/* tests/gpu/gpu_step.c - a step of a model's layers: what common/model/forward.c does with the table. Its layers
 * share one set of matrices, which at 8B is larger than any cache, so that each reads as much as one of its own
 * would. */
#include "tests/gpu/gpu_check.h"

#include "common/base/mem.h"

#define STEP_PAGES 1024u /* of the pool of steps, 8.6 GB at 8B; longer batches use them again */

struct sl_attn_shape gpu_attn_shape(const struct gpu_sizes *s)
{
    return (struct sl_attn_shape){.n_heads = s->n_heads,
                                  .n_kv_heads = s->n_kv_heads,
                                  .head_dim = s->head_dim,
                                  .rope_dim = s->head_dim,
                                  .rope_theta = 500000.0f,
                                  .rope_layout = SL_ROPE_PAIRS};
}

struct gpu_stepper gpu_stepper_open(const char *table, const struct gpu_sizes *s, uint32_t n_layers,
                                    uint32_t max_rows, uint32_t max_out, int no_graphs)
{
    const struct sl_dev_conf conf = {.n_threads = 4, .max_rows = max_rows, .no_graphs = no_graphs};
    uint32_t q_dim = s->n_heads * s->head_dim, width = q_dim + 2 * s->n_kv_heads * s->head_dim;
    struct gpu_stepper t = {.s = s, .n_layers = n_layers, .max_rows = max_rows};
    t.g = gpu_rig_open_conf(table, s, n_layers, STEP_PAGES, &conf);
    t.embed = gpu_matrix(&t.g, s->n_vocab, s->d_model);
    t.qkv = gpu_matrix(&t.g, width, s->d_model);
    t.out = gpu_matrix(&t.g, s->d_model, q_dim);
    t.gate_up = gpu_matrix(&t.g, 2 * s->d_ff, s->d_model);
    t.down = gpu_matrix(&t.g, s->d_model, s->d_ff);
    t.norm = gpu_buffer(&t.g, s->d_model, 1, 1);
    t.x = gpu_buffer(&t.g, (size_t)max_rows * s->d_model, 2, 1);
    t.qkv_y = gpu_buffer(&t.g, (size_t)max_rows * width, 3, 1);
    t.attn = gpu_buffer(&t.g, (size_t)max_rows * q_dim, 4, 1);
    t.gate_up_y = gpu_buffer(&t.g, (size_t)max_rows * 2 * s->d_ff, 5, 1);
    t.logits = gpu_buffer(&t.g, (size_t)max_out * s->n_vocab, 6, 1);
    return t;
}

void gpu_stepper_close(struct gpu_stepper *t)
{
    struct sl_weight *weights[] = {t->embed, t->qkv, t->out, t->gate_up, t->down};
    float *buffers[] = {t->norm, t->x, t->qkv_y, t->attn, t->gate_up_y, t->logits};
    for (size_t i = 0; i < SL_COUNTOF(weights); i++)
        t->g.ops->weight_free(t->g.d, weights[i]);
    for (size_t i = 0; i < SL_COUNTOF(buffers); i++)
        t->g.ops->buf_free(t->g.d, buffers[i], 0); /* a device keeps no sizes */
    gpu_rig_close(&t->g);
}

static void linear(const struct gpu_stepper *t, const struct sl_weight *w, enum sl_prologue prologue,
                   const float *x, const uint32_t *x_rows, uint32_t n_rows, float *y, int add)
{
    struct sl_linear a = {.w = w,
                          .prologue = prologue,
                          .norm_w = t->norm,
                          .norm_eps = 1e-5f,
                          .x = x,
                          .x_rows = x_rows,
                          .y = y,
                          .add = add,
                          .n_rows = n_rows};
    t->g.ops->linear(t->g.d, &a);
}

static void layers(const struct gpu_stepper *t, const struct sl_batch *b)
{
    const struct sl_backend_ops *ops = t->g.ops;
    struct sl_attn_shape shape = gpu_attn_shape(t->s);
    uint32_t n = b->n_rows;
    ops->embed(t->g.d, t->embed, b, 1, t->x);
    for (uint32_t l = 0; l < t->n_layers; l++) {
        linear(t, t->qkv, SL_PRO_RMSNORM, t->x, NULL, n, t->qkv_y, 0);
        ops->rope_kv(t->g.d, t->g.kv, l, &shape, b, t->qkv_y);
        ops->attention(t->g.d, t->g.kv, l, &shape, b, t->qkv_y, t->attn);
        linear(t, t->out, SL_PRO_NONE, t->attn, NULL, n, t->x, 1);
        linear(t, t->gate_up, SL_PRO_RMSNORM, t->x, NULL, n, t->gate_up_y, 0);
        linear(t, t->down, SL_PRO_SWIGLU, t->gate_up_y, NULL, n, t->x, 1);
    }
}

void gpu_step(void *arg)
{
    const struct gpu_stepper *t = arg;
    const struct sl_backend_ops *ops = t->g.ops;
    struct sl_batch filled = *t->b;
    switch (ops->pass_begin(t->g.d, t->embed, t->g.kv, t->max_rows, NULL, &filled)) {
    case SL_PASS_NONE:
        layers(t, t->b);
        break;
    case SL_PASS_RUN:
        do
            layers(t, &filled);
        while (!ops->pass_end(t->g.d));
        break;
    case SL_PASS_QUEUED:
        break;
    }
    linear(t, t->embed, SL_PRO_RMSNORM, t->x, t->b->out_rows, t->b->n_out, t->logits, 0);
    ops->sync(t->g.d);
}
