/* kernels/cuda/cu_rope.cu - norm and rotation of the heads of q and k, in place, and K and V into the pages.
 * A block per row; a warp takes one head at a time. */
#include "kernels/cuda/cu_block.h"

#define THREADS 128

CU_FN void norm_head(float *head, uint32_t n, const float *w, float eps)
{
    uint32_t lane = threadIdx.x % CU_WARP;
    float sum = 0.0f;
    for (uint32_t i = lane; i < n; i += CU_WARP)
        sum += head[i] * head[i];
    float r = cu_rsqrt(cu_warp_sum(sum) / (float)n + eps);
    for (uint32_t i = lane; i < n; i += CU_WARP)
        head[i] = head[i] * r * w[i];
}

CU_FN void rotate_head(float *head, const struct cu_rope_args *a, uint32_t pos)
{
    uint32_t half = a->rope_dim / 2;
    int pairs = a->layout == SL_ROPE_PAIRS;
    for (uint32_t i = threadIdx.x % CU_WARP; i < half; i += CU_WARP) {
        float *low = &head[pairs ? 2 * i : i], *high = pairs ? low + 1 : low + half;
        float sin_v, cos_v, x = *low, y = *high;
        cu_sincos((float)pos * a->frequency[i], &sin_v, &cos_v);
        *low = x * cos_v - y * sin_v;
        *high = x * sin_v + y * cos_v;
    }
}

/* The greatest size in a head; NaN is passed over. */
CU_FN float most_of(const float *head, uint32_t n)
{
    float most = 0.0f;
    for (uint32_t i = threadIdx.x % CU_WARP; i < n; i += CU_WARP) {
        float x = head[i] < 0.0f ? -head[i] : head[i];
        most = x > most ? x : most;
    }
    return cu_warp_max(most);
}

/* A scale, of any alignment. */
CU_FN void store_scale(struct cu_kv_row to, float scale)
{
    uint32_t lane = threadIdx.x % CU_WARP;
    if (lane < sizeof scale)
        to.scale[lane] = (uint8_t)(cu_float_bits(scale) >> 8 * lane);
}

CU_FN float clamp(float x, float top)
{
    x = x < top ? x : top; /* so NaN becomes top */
    return x > -top ? x : -top;
}

/* As kernels/cpu/q8.h has it, to the bit. */
CU_FN void store_q8(struct cu_kv_row to, const float *head, uint32_t n)
{
    const float top = 127.0f;
    float most = most_of(head, n);
    int none = most < 0x1p-100f;
    float up = none ? 0.0f : top / most, scale = none ? 0.0f : most * (1.0f / top);
    for (uint32_t i = threadIdx.x % CU_WARP; i < n; i += CU_WARP)
        to.values[i] = (uint8_t)(int8_t)clamp(cu_rint(head[i] * up), top);
    store_scale(to, scale);
}

/* As kernels/cpu/fp8.h has it, to the bit. */
CU_FN void store_fp8(struct cu_kv_row to, const float *head, uint32_t n)
{
    const float top = 448.0f;
    const uint32_t highest = 134;
    uint32_t most = cu_float_bits(most_of(head, n)), e = ((most + 0x1fffff) >> 23) - 8;
    e = most < 0x0d800000 ? 0 : e < highest ? e : highest;
    float up = e ? cu_bits_float((254 - e) << 23) : 0.0f;
    for (uint32_t i = threadIdx.x % CU_WARP * 2; i < n; i += CU_WARP * 2) { /* n is even */
        uint32_t pair = cu_fp8_pair(clamp(head[i] * up, top), clamp(head[i + 1] * up, top));
        to.values[i] = (uint8_t)pair;
        to.values[i + 1] = (uint8_t)(pair >> 8);
    }
    store_scale(to, cu_bits_float(e << 23));
}

CU_FN void store_head(const struct cu_pages *kv, struct cu_kv_row to, const float *head)
{
    if (kv->dtype == SL_Q8) {
        store_q8(to, head, kv->head_dim);
        return;
    }
    if (kv->dtype == SL_FP8) {
        store_fp8(to, head, kv->head_dim);
        return;
    }
    for (uint32_t i = threadIdx.x % CU_WARP; i < kv->head_dim; i += CU_WARP) {
        if (kv->dtype == SL_F32)
            ((float *)to.values)[i] = head[i];
        else
            ((uint16_t *)to.values)[i] = kv->dtype == SL_F16 ? cu_f16_of(head[i]) : cu_bf16_of(head[i]);
    }
}

CU_KERNEL(rope_kernel, struct cu_rope_args, THREADS, 1)
{
    struct cu_row row = a->rows[blockIdx.x];
    if (row.pos == CU_NO_ROW)
        return;
    uint32_t hd = a->kv.head_dim, n_kv = a->kv.n_kv_heads, n_all = a->n_heads + 2 * n_kv;
    float *qkv = a->qkv + (uint64_t)blockIdx.x * n_all * hd;
    for (uint32_t h = threadIdx.x / CU_WARP; h < a->n_heads + n_kv; h += THREADS / CU_WARP) {
        float *head = qkv + (uint64_t)h * hd;
        if (a->q_norm)
            norm_head(head, hd, h < a->n_heads ? a->q_norm : a->k_norm, a->norm_eps);
        cu_sync_warp();
        rotate_head(head, a, row.pos);
    }
    cu_sync_block();
    for (uint32_t h = threadIdx.x / CU_WARP; h < 2 * n_kv; h += THREADS / CU_WARP)
        store_head(&a->kv, cu_kv_at(&a->kv, a->page_list + row.first_page, h / n_kv, h % n_kv, row.pos),
                   qkv + (uint64_t)(a->n_heads + h) * hd);
}

void cu_rope_kv(struct cu_stream *s, uint32_t n_rows, const struct cu_rope_args *a)
{
    struct cu_launch l = {"rope_kv", (const void *)rope_kernel, n_rows, 1, THREADS, 0, a, sizeof *a};
    cu_launch(s, &l);
}
