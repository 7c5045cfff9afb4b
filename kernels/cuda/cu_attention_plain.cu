/* kernels/cuda/cu_attention_plain.cu - attention as one writes it down: a block per row and head walks the
 * positions the row sees in segments of THREADS, aligned to absolute positions, with an online softmax. In a
 * segment a thread is first a position, for its score, then some elements of the head, for their sums.
 *
 * It judges cu_attention_tile.cu, does what that cannot, and is exact: a row's bits depend on its own query
 * and the pages only. */
#include <math.h>
#include "kernels/cuda/cu_block.h"

#define THREADS      128
#define MAX_HEAD_DIM 1024
#define PER_THREAD   (MAX_HEAD_DIM / THREADS)

struct plain_shared {
    float q[MAX_HEAD_DIM];
    float p[THREADS];
    float maxima[THREADS / CU_WARP], sums[THREADS / CU_WARP];
};

CU_FN float score_at(const struct cu_attention_args *a, const uint32_t *pages, uint32_t kv_head,
                     const float *q, uint32_t pos)
{
    struct cu_kv_row k = cu_kv_at(&a->kv, pages, 0, kv_head, pos);
    float dot = 0.0f;
    for (uint32_t i = 0; i < a->kv.head_dim; i++)
        dot += q[i] * cu_kv_load(&a->kv, k, i);
    return dot * cu_kv_scale(&a->kv, k) * a->score_scale;
}

CU_KERNEL(attention_plain_kernel, struct cu_attention_args, THREADS, 1)
{
    struct plain_shared *sh = CU_SHARED(struct plain_shared);
    struct cu_row row = a->rows[blockIdx.x];
    if (row.pos == CU_NO_ROW)
        return;
    uint32_t hd = a->kv.head_dim, head = blockIdx.y, n_kv = a->kv.n_kv_heads;
    uint32_t kv_head = head / (a->n_heads / n_kv), end = row.pos + 1;
    uint32_t first = a->window && end > a->window ? end - a->window : 0;
    const uint32_t *pages = a->page_list + row.first_page;
    const float *q = a->qkv + ((uint64_t)blockIdx.x * (a->n_heads + 2 * n_kv) + head) * hd;
    for (uint32_t i = threadIdx.x; i < hd; i += THREADS)
        sh->q[i] = q[i];
    cu_sync_block();

    float acc[PER_THREAD] = {0}, most = -INFINITY, sum = 0.0f;
    for (uint32_t seg = first / THREADS * THREADS; seg < end; seg += THREADS) {
        uint32_t pos = seg + threadIdx.x;
        float s = pos >= first && pos < end ? score_at(a, pages, kv_head, sh->q, pos) : -INFINITY;
        float new_most = cu_block_max(s, sh->maxima, THREADS);
        new_most = new_most > most ? new_most : most;
        float keep = cu_exp(most - new_most), p = cu_exp(s - new_most);
        sh->p[threadIdx.x] = p;
        sum = sum * keep + cu_block_sum(p, sh->sums, THREADS); /* its barrier also shows p to all */
        most = new_most;
        uint32_t from = seg > first ? seg : first, to = seg + THREADS < end ? seg + THREADS : end;
        CU_UNROLL
        for (uint32_t e = 0; e < PER_THREAD; e++)
            acc[e] *= keep;
        for (uint32_t j = from; j < to; j++) {
            struct cu_kv_row v = cu_kv_at(&a->kv, pages, 1, kv_head, j);
            float weight = sh->p[j - seg] * cu_kv_scale(&a->kv, v);
            CU_UNROLL
            for (uint32_t e = 0; e < PER_THREAD; e++)
                if (threadIdx.x + e * THREADS < hd)
                    acc[e] += weight * cu_kv_load(&a->kv, v, threadIdx.x + e * THREADS);
        }
        cu_sync_block(); /* p, maxima and sums are written again */
    }
    float *out = a->out + ((uint64_t)blockIdx.x * a->n_heads + head) * hd;
    CU_UNROLL
    for (uint32_t e = 0; e < PER_THREAD; e++)
        if (threadIdx.x + e * THREADS < hd)
            out[threadIdx.x + e * THREADS] = acc[e] / sum;
}

void cu_attention_plain(struct cu_stream *s, uint32_t n_rows, const struct cu_attention_args *a)
{
    struct cu_launch l = {"attention_plain", (const void *)attention_plain_kernel, n_rows, a->n_heads,
                          THREADS,           sizeof(struct plain_shared),          a,      sizeof *a};
    cu_launch(s, &l);
}
