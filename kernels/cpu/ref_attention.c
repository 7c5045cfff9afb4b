/* kernels/cpu/ref_attention.c - the reference rotation and attention: one row and one head at a time, softmax
 * in two plain passes over all positions. K and V are stored in, and read back from, the pages' dtype: that
 * rounding belongs to the model as it is run. */
#include "kernels/cpu/cpu_dev.h"

#include <math.h>
#include "kernels/cpu/vmath.h"

static void store(float x, enum sl_dtype type, uint8_t *to)
{
    if (type == SL_F32) {
        memcpy(to, &x, 4);
        return;
    }
    uint16_t h = type == SL_F16 ? sl_f32_to_f16(x) : sl_f32_to_bf16(x);
    memcpy(to, &h, 2);
}

static float load(enum sl_dtype type, const uint8_t *from)
{
    float x;
    sl_dequant_row(type, from, 1, &x);
    return x;
}

static void rotate(const struct sl_dev *d, const struct sl_attn_shape *s, uint32_t pos, float *head)
{
    for (uint32_t i = 0; i < s->rope_dim / 2; i++) {
        float *a = s->rope_layout == SL_ROPE_PAIRS ? &head[2 * i] : &head[i];
        float *b = s->rope_layout == SL_ROPE_PAIRS ? a + 1 : a + s->rope_dim / 2;
        float sin_v, cos_v, x = *a, y = *b;
        sl_sincos((float)pos * d->rope_freq[i], &sin_v, &cos_v);
        *a = x * cos_v - y * sin_v;
        *b = x * sin_v + y * cos_v;
    }
}

static void norm_head(const float *w, float eps, uint32_t n, float *x)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    float r = 1.0f / sqrtf(sum / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] * r * w[i];
}

void sl_ref_rope_kv(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                    const struct sl_batch *b, float *qkv)
{
    sl_cpu_rope_frequencies(d, s);
    uint32_t hd = s->head_dim, n_all = s->n_heads + 2 * s->n_kv_heads,
             esize = (uint32_t)(kv->token_bytes / hd);
    for (uint32_t u = 0; u < b->n_runs; u++)
        for (uint32_t t = 0; t < b->runs[u].n_rows; t++) {
            const struct sl_batch_run *run = &b->runs[u];
            float *row = qkv + (size_t)(run->first_row + t) * n_all * hd;
            uint32_t pos = run->first_pos + t;
            for (uint32_t h = 0; h < s->n_heads + s->n_kv_heads; h++) {
                float *head = row + (size_t)h * hd;
                if (s->q_norm)
                    norm_head(h < s->n_heads ? s->q_norm : s->k_norm, s->qk_norm_eps, hd, head);
                rotate(d, s, pos, head);
            }
            for (uint32_t h = 0; h < 2 * s->n_kv_heads; h++) {
                uint8_t *to = sl_kv_at(kv, run, layer, h / s->n_kv_heads, h % s->n_kv_heads, pos);
                for (uint32_t i = 0; i < hd; i++)
                    store(row[(size_t)(s->n_heads + h) * hd + i], kv->g.dtype, to + (size_t)i * esize);
            }
        }
}

struct ref_attn {
    struct sl_kv *kv;
    uint32_t layer;
    const struct sl_attn_shape *s;
    const struct sl_batch *b;
    const float *qkv;
    float *out;
};

static float score(const struct ref_attn *a, const struct sl_batch_run *run, uint32_t kv_head, const float *q,
                   uint32_t j)
{
    const uint8_t *k = sl_kv_at(a->kv, run, a->layer, 0, kv_head, j);
    uint32_t esize = (uint32_t)(a->kv->token_bytes / a->s->head_dim);
    float dot = 0.0f;
    for (uint32_t i = 0; i < a->s->head_dim; i++)
        dot += q[i] * load(a->kv->g.dtype, k + (size_t)i * esize);
    return dot * sl_attn_score_scale(a->s);
}

static void attend(const struct ref_attn *a, const struct sl_batch_run *run, uint32_t t, uint32_t head)
{
    const struct sl_attn_shape *s = a->s;
    uint32_t hd = s->head_dim, kv_head = head / (s->n_heads / s->n_kv_heads), n = run->first_pos + t + 1;
    uint32_t first = sl_attn_first_seen(s, n - 1);
    uint32_t esize = (uint32_t)(a->kv->token_bytes / hd);
    const float *q = a->qkv + ((size_t)(run->first_row + t) * (s->n_heads + 2 * s->n_kv_heads) + head) * hd;
    float *out = a->out + ((size_t)(run->first_row + t) * s->n_heads + head) * hd;
    float most = -INFINITY, sum = 0.0f;
    for (uint32_t j = first; j < n; j++)
        most = fmaxf(most, score(a, run, kv_head, q, j));
    for (uint32_t i = 0; i < hd; i++)
        out[i] = 0.0f;
    for (uint32_t j = first; j < n; j++) {
        float p = sl_exp(score(a, run, kv_head, q, j) - most);
        const uint8_t *v = sl_kv_at(a->kv, run, a->layer, 1, kv_head, j);
        for (uint32_t i = 0; i < hd; i++)
            out[i] += p * load(a->kv->g.dtype, v + (size_t)i * esize);
        sum += p;
    }
    for (uint32_t i = 0; i < hd; i++)
        out[i] /= sum;
}

/* An item is a row of a run, all heads. The runs may leave rows of the batch out. */
static void attend_row(void *arg, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct ref_attn *a = arg;
    const struct sl_batch_run *run = a->b->runs;
    while (item >= run->n_rows)
        item -= run++->n_rows;
    for (uint32_t h = 0; h < a->s->n_heads; h++)
        attend(a, run, item, h);
}

void sl_ref_attention(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                      const struct sl_batch *b, const float *qkv, float *out)
{
    struct ref_attn a = {kv, layer, s, b, qkv, out};
    uint32_t n_rows = 0;
    for (uint32_t u = 0; u < b->n_runs; u++)
        n_rows += b->runs[u].n_rows;
    sl_cpu_pool_run(d->pool, n_rows, attend_row, &a);
}
