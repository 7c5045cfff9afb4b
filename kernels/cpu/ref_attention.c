/* kernels/cpu/ref_attention.c - the reference rotation and attention: one row and one head at a time, softmax
 * in two plain passes over all positions. K and V are stored in, and read back from, the pages' dtype: that
 * rounding belongs to the model as it is run. */
#include "kernels/cpu/cpu_dev.h"

#include <math.h>
#include "kernels/cpu/vmath.h"

/* Where a row of K or V lies. */
struct place {
    uint8_t *values, *scale; /* scale of SL_Q8 and SL_FP8 only */
};

static struct place place_of(const struct sl_kv *kv, const struct sl_batch_run *run, uint32_t layer,
                             uint32_t which, uint32_t head, uint32_t pos)
{
    uint8_t *scale = kv->scale_bytes ? sl_kv_scale_at(kv, run, layer, which, head, pos) : NULL;
    return (struct place){sl_kv_at(kv, run, layer, which, head, pos), scale};
}

/* The nearest of e4m3's numbers: |x| in [2^(e - 1), 2^e) has 8 steps, and so has all below 2^-6. */
static uint8_t e4m3_of(float x)
{
    int e;
    frexpf(x, &e);
    e = x == 0.0f || e < -5 ? -5 : e;
    int steps = (int)rintf(ldexpf(fabsf(x), 4 - e));
    return (uint8_t)((signbit(x) ? 0x80 : 0) | ((e + 5) * 8 + steps));
}

static float e4m3_number(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    float size = e == 0 ? ldexpf((float)m, -9) : ldexpf((float)(8 + m), e - 10);
    return b & 0x80 ? -size : size;
}

/* Scaled by a power of two so that the greatest lies in (224, 448], when 2^7 is enough for that. */
static void store_row_fp8(const float *x, uint32_t n, float most, struct place to)
{
    int e;
    float half = frexpf(most, &e); /* 448 = 0.875 * 2^9 */
    e = half > 0.875f ? e - 8 : e - 9;
    e = e > 7 ? 7 : e;
    float scale = most < 0x1p-100f ? 0.0f : ldexpf(1, e);
    memcpy(to.scale, &scale, sizeof scale);
    for (uint32_t i = 0; i < n; i++)
        to.values[i] = e4m3_of(scale > 0.0f ? fmaxf(fminf(x[i] / scale, 448), -448) : 0.0f);
}

static void store_row(const float *x, uint32_t n, enum sl_dtype type, struct place to)
{
    float most = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    if (type == SL_FP8) {
        store_row_fp8(x, n, most, to);
        return;
    }
    float scale = most * (1.0f / 127.0f), up = most > 0.0f ? 127.0f / most : 0.0f;
    if (type == SL_Q8)
        memcpy(to.scale, &scale, sizeof scale);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t h = type == SL_F16 ? sl_f32_to_f16(x[i]) : sl_f32_to_bf16(x[i]);
        if (type == SL_Q8)
            to.values[i] = (uint8_t)(int8_t)rintf(x[i] * up);
        else if (type == SL_F32)
            memcpy(to.values + 4 * (size_t)i, &x[i], 4);
        else
            memcpy(to.values + 2 * (size_t)i, &h, 2);
    }
}

static void load_row(struct place from, uint32_t n, enum sl_dtype type, float *x)
{
    float scale;
    if (!from.scale) {
        sl_dequant_row(type, from.values, n, x);
        return;
    }
    memcpy(&scale, from.scale, sizeof scale);
    for (uint32_t i = 0; i < n; i++)
        x[i] = scale * (type == SL_FP8 ? e4m3_number(from.values[i]) : (float)(int8_t)from.values[i]);
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
    uint32_t hd = s->head_dim, n_all = s->n_heads + 2 * s->n_kv_heads;
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
            for (uint32_t h = 0; h < 2 * s->n_kv_heads; h++)
                store_row(row + (size_t)(s->n_heads + h) * hd, hd, kv->g.dtype,
                          place_of(kv, run, layer, h / s->n_kv_heads, h % s->n_kv_heads, pos));
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
    float k[SL_HEAD_DIM_MAX], dot = 0.0f;
    load_row(place_of(a->kv, run, a->layer, 0, kv_head, j), a->s->head_dim, a->kv->g.dtype, k);
    for (uint32_t i = 0; i < a->s->head_dim; i++)
        dot += q[i] * k[i];
    return dot * sl_attn_score_scale(a->s);
}

static void attend(const struct ref_attn *a, const struct sl_batch_run *run, uint32_t t, uint32_t head)
{
    const struct sl_attn_shape *s = a->s;
    uint32_t hd = s->head_dim, kv_head = head / (s->n_heads / s->n_kv_heads), n = run->first_pos + t + 1;
    uint32_t first = sl_attn_first_seen(s, n - 1);
    const float *q = a->qkv + ((size_t)(run->first_row + t) * (s->n_heads + 2 * s->n_kv_heads) + head) * hd;
    float *out = a->out + ((size_t)(run->first_row + t) * s->n_heads + head) * hd;
    float v[SL_HEAD_DIM_MAX], most = -INFINITY, sum = 0.0f;
    for (uint32_t j = first; j < n; j++)
        most = fmaxf(most, score(a, run, kv_head, q, j));
    for (uint32_t i = 0; i < hd; i++)
        out[i] = 0.0f;
    for (uint32_t j = first; j < n; j++) {
        float p = sl_exp(score(a, run, kv_head, q, j) - most);
        load_row(place_of(a->kv, run, a->layer, 1, kv_head, j), hd, a->kv->g.dtype, v);
        for (uint32_t i = 0; i < hd; i++)
            out[i] += p * v[i];
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
