/* kernels/cpu/cpu_rope.c - norm and rotation of q and k, and K and V into the pages. */
#include "kernels/cpu/cpu_dev.h"

#define ITEM_ROWS 8u

static const float *base_frequencies(struct sl_dev *d, const struct sl_attn_shape *s)
{
    for (uint32_t i = 0; i < SL_ROPE_BASES; i++)
        if (d->rope_bases[i].theta == s->rope_theta && d->rope_bases[i].dim == s->rope_dim)
            return d->rope_bases[i].freq;
    struct sl_rope_base *b = &d->rope_bases[d->rope_base_next++ % SL_ROPE_BASES];
    sl_rope_frequencies(s->rope_theta, s->rope_dim, b->freq);
    b->theta = s->rope_theta;
    b->dim = s->rope_dim;
    return b->freq;
}

void sl_cpu_rope_frequencies(struct sl_dev *d, const struct sl_attn_shape *s)
{
    const float *base = base_frequencies(d, s);
    for (uint32_t i = 0; i < s->rope_dim / 2; i++)
        d->rope_freq[i] = s->rope_factors ? base[i] / s->rope_factors[i] : base[i];
}

struct rope_job {
    struct sl_dev *d;
    struct sl_kv *kv;
    uint32_t layer;
    const struct sl_attn_shape *s;
    const struct sl_batch *b;
    float *qkv;
};

static void store_head(const struct rope_job *j, const struct sl_batch_run *run, uint32_t which,
                       uint32_t head, uint32_t pos, const float *x)
{
    const struct sl_cpu_isa *isa = j->d->isa;
    uint8_t *to = sl_kv_at(j->kv, run, j->layer, which, head, pos);
    if (j->kv->scale_bytes)
        isa->kv_quantise(x, j->s->head_dim, j->kv->g.dtype, to,
                         sl_kv_scale_at(j->kv, run, j->layer, which, head, pos));
    else
        isa->kv_store(x, j->s->head_dim, j->kv->g.dtype, to);
}

static void rope_row(const struct rope_job *j, const struct sl_batch_run *run, uint32_t t, float *angles)
{
    const struct sl_attn_shape *s = j->s;
    const struct sl_cpu_isa *isa = j->d->isa;
    uint32_t hd = s->head_dim, n = s->rope_dim / 2, pos = run->first_pos + t;
    float *row = j->qkv + (size_t)(run->first_row + t) * (s->n_heads + 2 * s->n_kv_heads) * hd;
    float *cos_v = angles, *sin_v = angles + SL_HEAD_DIM_MAX / 2;
    isa->angles(pos, j->d->rope_freq, n, cos_v, sin_v);
    for (uint32_t h = 0; h < s->n_heads + s->n_kv_heads; h++) {
        float *head = row + (size_t)h * hd;
        if (s->q_norm)
            isa->rmsnorm_row(head, h < s->n_heads ? s->q_norm : s->k_norm, s->qk_norm_eps, hd, head);
        isa->rotate(head, n, s->rope_layout, cos_v, sin_v);
    }
    for (uint32_t h = 0; h < 2 * s->n_kv_heads; h++)
        store_head(j, run, h / s->n_kv_heads, h % s->n_kv_heads, pos, row + (size_t)(s->n_heads + h) * hd);
}

static void rope_item(void *arg, uint32_t item, unsigned worker)
{
    const struct rope_job *j = arg;
    float *angles = j->d->rope_angles + (size_t)worker * SL_HEAD_DIM_MAX;
    uint32_t r0 = item * ITEM_ROWS, r1 = j->b->n_rows - r0 < ITEM_ROWS ? j->b->n_rows : r0 + ITEM_ROWS;
    for (uint32_t u = 0; u < j->b->n_runs; u++) {
        const struct sl_batch_run *run = &j->b->runs[u];
        uint32_t end = run->first_row + run->n_rows < r1 ? run->first_row + run->n_rows : r1;
        for (uint32_t r = run->first_row > r0 ? run->first_row : r0; r < end; r++)
            rope_row(j, run, r - run->first_row, angles);
    }
}

void sl_cpu_rope_kv(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                    const struct sl_batch *b, float *qkv)
{
    struct rope_job j = {d, kv, layer, s, b, qkv};
    sl_cpu_rope_frequencies(d, s);
    sl_cpu_pool_run(d->pool, (b->n_rows + ITEM_ROWS - 1) / ITEM_ROWS, rope_item, &j);
}
