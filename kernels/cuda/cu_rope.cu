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

CU_KERNEL(rope_kernel, struct cu_rope_args, THREADS, 1)
{
    struct cu_row row = a->rows[blockIdx.x];
    if (row.pos == CU_NO_ROW)
        return;
    uint32_t hd = a->kv.head_dim, n_kv = a->kv.n_kv_heads, n_all = a->n_heads + 2 * n_kv;
    float *qkv = a->qkv + (uint64_t)blockIdx.x * n_all * hd;
    for (uint32_t h = threadIdx.x / CU_WARP; h < n_all; h += THREADS / CU_WARP) {
        float *head = qkv + (uint64_t)h * hd;
        if (h < a->n_heads + n_kv) {
            if (a->q_norm)
                norm_head(head, hd, h < a->n_heads ? a->q_norm : a->k_norm, a->norm_eps);
            cu_sync_warp();
            rotate_head(head, a, row.pos);
            cu_sync_warp();
        }
        if (h < a->n_heads)
            continue;
        uint32_t kv_head = h - a->n_heads;
        uint64_t at =
            cu_kv_at(&a->kv, a->page_list + row.first_page, kv_head / n_kv, kv_head % n_kv, row.pos);
        for (uint32_t i = threadIdx.x % CU_WARP; i < hd; i += CU_WARP)
            cu_kv_store(&a->kv, at + i, head[i]);
    }
}

void cu_rope_kv(struct cu_stream *s, uint32_t n_rows, const struct cu_rope_args *a)
{
    struct cu_launch l = {"rope_kv", (const void *)rope_kernel, n_rows, 1, THREADS, 0, a, sizeof *a};
    cu_launch(s, &l);
}
