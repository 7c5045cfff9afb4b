/* kernels/cpu/attention_q8_portable.c - a block of int8 K and V in C without intrinsics; arithmetic:
 * cpu_attention.c. Integers of 16 bits, which compilers multiply and add in pairs. */
#include "kernels/cpu/isa_portable.h"

#include <string.h>
#include "kernels/cpu/q8.h"
#include "kernels/cpu/vmath.h"

#define BLK SL_ATTN_BLOCK

static int16_t *row_of(float *rows, uint32_t i, uint32_t hd)
{
    return (int16_t *)(void *)rows + (size_t)i * hd;
}

void sl_portable_q8_query(const float *q, uint32_t head_dim, float scale, const struct sl_attn_scratch *s,
                          uint32_t r)
{
    int16_t *to = row_of(s->q, r, head_dim);
    float x[SL_HEAD_DIM_MAX];
    for (uint32_t i = 0; i < head_dim; i++)
        x[i] = q[i] * scale;
    float most = sl_q8_most(x, head_dim), up = sl_q8_up(most, SL_Q8_QUERY);
    for (uint32_t i = 0; i < head_dim; i++)
        to[i] = (int16_t)sl_q8_round(x[i] * up, SL_Q8_QUERY);
    s->q_scale[r] = sl_q8_scale(most, SL_Q8_QUERY);
}

static void load_strip(const struct sl_attn_tile *t, uint32_t which, uint32_t pos, uint32_t n, float *rows,
                       float *scales)
{
    uint32_t hd = t->shape->head_dim;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *from = sl_kv_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i);
        int16_t *to = row_of(rows, i, hd);
        for (uint32_t d = 0; d < hd; d++)
            to[d] = (int8_t)from[d];
        memcpy(&scales[i], sl_kv_scale_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i),
               sizeof *scales);
    }
}

void sl_portable_q8_load(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                         uint32_t n)
{
    load_strip(t, 0, pos, n, s->k, s->k_scale);
    load_strip(t, 1, pos, n, s->v, s->v_scale);
}

static int32_t dot(const int16_t *a, const int16_t *b, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (int32_t)a[i] * b[i];
    return sum;
}

/* acc = keep * acc + the positions [first, n) of V with weights p. */
static void add_values(const struct sl_attn_scratch *s, const float *p, uint32_t first, uint32_t n,
                       uint32_t hd, float keep, float *acc)
{
    float pv[BLK], most = 0.0f;
    int32_t sum[SL_HEAD_DIM_MAX] = {0};
    for (uint32_t i = first; i < n; i++) {
        pv[i] = p[i] * s->v_scale[i];
        most = pv[i] > most ? pv[i] : most;
    }
    float up = sl_q8_up(most, SL_Q8_WEIGHT), scale = sl_q8_scale(most, SL_Q8_WEIGHT);
    for (uint32_t i = first; i < n; i++) {
        const int16_t w = (int16_t)sl_q8_round(pv[i] * up, SL_Q8_WEIGHT), *v = row_of(s->v, i, hd);
        for (uint32_t d = 0; d < hd; d++)
            sum[d] += (int32_t)w * v[d];
    }
    for (uint32_t d = 0; d < hd; d++)
        acc[d] = sl_fma((float)sum[d], scale, acc[d] * keep);
}

void sl_portable_q8_attend(const struct sl_attn_scratch *s, uint32_t r, uint32_t first, uint32_t n,
                           uint32_t head_dim)
{
    float p[BLK] = {0}, most = -INFINITY;
    for (uint32_t i = first; i < n; i++) {
        p[i] = (float)dot(row_of(s->q, r, head_dim), row_of(s->k, i, head_dim), head_dim) * s->q_scale[r] *
               s->k_scale[i];
        most = p[i] > most ? p[i] : most;
    }
    float m = most > s->m[r] ? most : s->m[r], keep = sl_exp2(s->m[r] - m);
    for (uint32_t i = first; i < n; i++)
        p[i] = sl_exp2_coarse(p[i] - m);
    s->l[r] = sl_fma(s->l[r], keep, sl_portable_attn_sum(p));
    s->m[r] = m;
    add_values(s, p, first, n, head_dim, keep, s->acc + (size_t)r * head_dim);
}
