/* kernels/cpu/attention_portable.c - attention over pages in C without intrinsics; arithmetic:
 * cpu_attention.c. */
#include "kernels/cpu/isa_portable.h"

#include <math.h>
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/vmath.h"

#define BLK SL_ATTN_BLOCK

static void load_row(const struct sl_attn_tile *t, uint32_t which, uint32_t pos, uint32_t step, float *to)
{
    const uint8_t *from = sl_kv_at(t->kv, t->run, t->layer, which, t->kv_head, pos);
    enum sl_dtype type = t->kv->g.dtype;
    float scale = 1.0f;
    if (type == SL_FP8)
        scale = sl_fp8_scale(sl_kv_scale_at(t->kv, t->run, t->layer, which, t->kv_head, pos));
    for (uint32_t i = 0; i < t->shape->head_dim; i++)
        to[(size_t)i * step] = type == SL_F16    ? sl_f16_load(from + 2 * (size_t)i)
                               : type == SL_BF16 ? sl_bf16_load(from + 2 * (size_t)i)
                               : type == SL_FP8  ? sl_fp8_to_f32(from[i]) * scale
                                                 : ((const float *)(const void *)from)[i];
}

/* K of the n positions from pos on to s->k [head_dim][BLK], V to s->v [BLK][head_dim]. */
static void load_block(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                       uint32_t n)
{
    uint32_t hd = t->shape->head_dim;
    if (t->kv->g.dtype == SL_Q8) {
        sl_portable_q8_load(t, s, pos, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        load_row(t, 0, pos + i, BLK, s->k + i);
        load_row(t, 1, pos + i, 1, s->v + (size_t)i * hd);
    }
}

static float round_bf16(float x)
{
    return sl_bf16_to_f32(sl_f32_to_bf16(x));
}

static void load_queries(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim;
    float scale = SL_LOG2E * sl_attn_score_scale(t->shape);
    for (uint32_t j = t->j0; j < t->j1; j++) {
        const float *q = t->qkv + (t->run->first_row + j / t->group) * t->qkv_stride +
                         (size_t)(t->kv_head * t->group + j % t->group) * hd;
        if (t->kv->g.dtype == SL_Q8) {
            sl_portable_q8_query(q, hd, scale, s, j - t->j0);
            continue;
        }
        for (uint32_t i = 0; i < hd; i++)
            s->q[(size_t)(j - t->j0) * hd + i] =
                sl_attn_type(t->kv) == SL_BF16 ? round_bf16(q[i] * scale) : q[i] * scale;
    }
}

float sl_portable_attn_sum(const float p[BLK])
{
    float a[16];
    for (int i = 0; i < 16; i++)
        a[i] = (p[i] + p[i + 16]) + (p[i + 32] + p[i + 48]);
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            a[i] += a[i + step];
    return a[0];
}

static void score_f32(const float *q, const float *k, uint32_t hd, float *p)
{
    for (uint32_t d = 0; d < hd; d++)
        for (uint32_t i = 0; i < BLK; i++)
            p[i] = sl_fma(q[d], k[(size_t)d * BLK + i], p[i]);
}

static void score_bf16(const float *q, const float *k, uint32_t hd, float *p)
{
    for (uint32_t d = 0; d < hd; d += 2)
        for (uint32_t i = 0; i < BLK; i++)
            p[i] = sl_bf16_dot2(p[i], q[d], k[(size_t)d * BLK + i], q[d + 1], k[(size_t)(d + 1) * BLK + i]);
}

static void add_values_f32(const float *p, const float *v, uint32_t first, uint32_t n, uint32_t hd,
                           float *acc)
{
    for (uint32_t i = first; i < n; i++)
        for (uint32_t d = 0; d < hd; d++)
            acc[d] = sl_fma(p[i], v[(size_t)i * hd + d], acc[d]);
}

static void add_values_bf16(const float *p, const float *v, uint32_t first, uint32_t n, uint32_t hd,
                            float *acc)
{
    for (uint32_t i = first / 2 * 2; i < n; i += 2) {
        const float *v0 = v + (size_t)i * hd, *v1 = v0 + hd;
        for (uint32_t d = 0; d < hd; d++)
            acc[d] =
                sl_bf16_dot2(acc[d], p[i], i >= first ? v0[d] : 0.0f, p[i + 1], i + 1 < n ? v1[d] : 0.0f);
    }
}

/* Row r of the tile against positions [first, n) of the loaded block. */
static void attend_block(const struct sl_attn_scratch *s, uint32_t r, uint32_t first, uint32_t n, uint32_t hd,
                         enum sl_dtype type)
{
    if (type == SL_Q8) {
        sl_portable_q8_attend(s, r, first, n, hd);
        return;
    }
    const int bf16 = type == SL_BF16;
    const float *q = s->q + (size_t)r * hd;
    float *acc = s->acc + (size_t)r * hd, p[BLK] = {0}, most = -INFINITY;
    (bf16 ? score_bf16 : score_f32)(q, s->k, hd, p);
    for (uint32_t i = first; i < n; i++)
        most = p[i] > most ? p[i] : most;
    float m = most > s->m[r] ? most : s->m[r], keep = sl_exp2(s->m[r] - m);
    for (uint32_t i = 0; i < BLK; i++) {
        float t = i >= first && i < n ? p[i] - m : -INFINITY;
        p[i] = bf16 ? round_bf16(sl_exp2_coarse(t)) : sl_exp2(t);
    }
    s->l[r] = sl_fma(s->l[r], keep, sl_portable_attn_sum(p));
    s->m[r] = m;
    for (uint32_t d = 0; d < hd; d++)
        acc[d] = bf16 ? sl_bf16_flush(acc[d] * keep) : acc[d] * keep;
    (bf16 ? add_values_bf16 : add_values_f32)(p, s->v, first, n, hd, acc);
}

void sl_portable_attn_merge(float *total, float *total_m, float *total_l, const float *acc, float m, float l,
                            uint32_t head_dim)
{
    float most = m > *total_m ? m : *total_m, keep = sl_exp2(*total_m - most), add = sl_exp2(m - most);
    for (uint32_t i = 0; i < head_dim; i++)
        total[i] = sl_fma(acc[i], add, total[i] * keep);
    *total_l = sl_fma(l, add, *total_l * keep);
    *total_m = most;
}

void sl_portable_attn_finish(const float *total, float total_l, uint32_t head_dim, float *out)
{
    float scale = 1.0f / total_l;
    for (uint32_t i = 0; i < head_dim; i++)
        out[i] = total[i] * scale;
}

static void attend_head(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, n = t->j1 - t->j0, first_pos = t->run->first_pos;
    uint32_t last = first_pos + (t->j1 - 1) / t->group;
    load_queries(t, s);
    for (uint32_t r = 0; r < n; r++) {
        s->total_m[r] = -INFINITY;
        s->total_l[r] = 0.0f;
        memset(s->total + (size_t)r * hd, 0, hd * sizeof *s->total);
    }
    for (uint32_t seg = t->seg0; seg < t->seg1; seg++) {
        uint32_t start = seg * SL_ATTN_SEG,
                 end = start + SL_ATTN_SEG < last + 1 ? start + SL_ATTN_SEG : last + 1;
        for (uint32_t r = 0; r < n; r++) {
            s->m[r] = -INFINITY;
            s->l[r] = 0.0f;
            memset(s->acc + (size_t)r * hd, 0, hd * sizeof *s->acc);
        }
        uint32_t seen = sl_attn_first_seen(t->shape, first_pos + t->j0 / t->group) / BLK * BLK;
        for (uint32_t pos = seen > start ? seen : start; pos < end; pos += BLK) {
            load_block(t, s, pos, end - pos < BLK ? end - pos : BLK);
            for (uint32_t r = 0; r < n; r++) {
                uint32_t own = first_pos + (t->j0 + r) / t->group; /* the row's own position, its last */
                uint32_t first = sl_attn_first_seen(t->shape, own);
                if (own >= pos && first < pos + BLK)
                    attend_block(s, r, first > pos ? first - pos : 0,
                                 own - pos + 1 < BLK ? own - pos + 1 : BLK, hd, sl_attn_type(t->kv));
            }
        }
        for (uint32_t r = 0; r < n; r++) {
            float *acc = s->acc + (size_t)r * hd;
            uint32_t own = first_pos + (t->j0 + r) / t->group;
            if (own < start || sl_attn_first_seen(t->shape, own) >= start + SL_ATTN_SEG)
                continue;
            if (t->partial) {
                float *to = t->partial + (size_t)r * (hd + 2);
                memcpy(to, acc, hd * sizeof *to);
                to[hd] = s->m[r];
                to[hd + 1] = s->l[r];
            } else {
                sl_portable_attn_merge(s->total + (size_t)r * hd, &s->total_m[r], &s->total_l[r], acc,
                                       s->m[r], s->l[r], hd);
            }
        }
    }
    if (t->partial)
        return;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t j = t->j0 + r;
        sl_portable_attn_finish(s->total + (size_t)r * hd, s->total_l[r], hd,
                                t->out + (t->run->first_row + j / t->group) * t->out_stride +
                                    (size_t)(t->kv_head * t->group + j % t->group) * hd);
    }
}

void sl_portable_attn_tile(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    for (uint32_t i = 0; i < t->n_heads; i++) {
        struct sl_attn_tile one = sl_attn_tile_of_head(t, i);
        attend_head(&one, s);
    }
}
