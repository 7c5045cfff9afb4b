/* kernels/cuda/cu_rows.cu - what is done row by row: embedding, the prologues of products, the norm behind a
 * sub-layer, by a block per row; and the sum of what ranks add to rows. */
#include "kernels/cuda/cu_block.h"

#define THREADS  256
#define MAX_GRID 1024u /* blocks of a sum: enough to fill a card, few enough to start quickly */

struct row_shared {
    float sums[THREADS / CU_WARP];
};

CU_KERNEL(embed_kernel, struct cu_embed_args, THREADS, 1)
{
    const uint16_t *w = a->w + (uint64_t)a->tokens[blockIdx.x] * a->n;
    float *x = a->x + (uint64_t)blockIdx.x * a->n;
    for (uint32_t i = threadIdx.x; i < a->n; i += THREADS)
        x[i] = a->scale * cu_bf16_float(w[i]);
}

/* 1 / sqrt(mean(x^2) + eps), in every thread. */
CU_FN float inverse_rms(const float *x, uint32_t n, float eps, float *sums)
{
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        sum += x[i] * x[i];
    return cu_rsqrt(cu_block_sum(sum, sums, THREADS) / (float)n + eps);
}

CU_FN float silu(float x)
{
    return x / (1.0f + cu_exp(-x));
}

/* Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", the tanh form. */
CU_FN float gelu(float x)
{
    const float sqrt_2_over_pi = 0.7978845608f;
    return 0.5f * x * (1.0f + cu_tanh(sqrt_2_over_pi * (x + 0.044715f * x * x * x)));
}

CU_KERNEL(prologue_kernel, struct cu_prologue_args, THREADS, 1)
{
    struct row_shared *sh = CU_SHARED(struct row_shared);
    uint32_t n = a->n, gated = a->kind == SL_PRO_SWIGLU || a->kind == SL_PRO_GEGLU;
    uint32_t row = a->rows ? a->rows[blockIdx.x] : blockIdx.x;
    const float *x = a->x + (uint64_t)row * (gated ? 2 * n : n);
    uint16_t *y = a->y + (uint64_t)blockIdx.x * n;
    float r = a->kind == SL_PRO_RMSNORM ? inverse_rms(x, n, a->norm_eps, sh->sums) : 1.0f;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        float v = x[i];
        if (a->kind == SL_PRO_RMSNORM)
            v = v * r * a->norm_w[i];
        else if (gated)
            v = (a->kind == SL_PRO_SWIGLU ? silu(v) : gelu(v)) * x[n + i];
        y[i] = cu_bf16_of(v);
    }
}

CU_KERNEL(norm_add_kernel, struct cu_norm_add_args, THREADS, 1)
{
    struct row_shared *sh = CU_SHARED(struct row_shared);
    const float *y = a->y + (uint64_t)blockIdx.x * a->n;
    float *x = a->x + (uint64_t)blockIdx.x * a->n;
    float r = inverse_rms(y, a->n, a->eps, sh->sums);
    for (uint32_t i = threadIdx.x; i < a->n; i += THREADS)
        x[i] += y[i] * r * a->norm_w[i];
}

/* Blocks go round by round over the elements. */
CU_KERNEL(sum_ranks_kernel, struct cu_sum_args, THREADS, 1)
{
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < a->n;
         i += (uint64_t)gridDim.x * THREADS) {
        float sum = a->parts[i];
        for (uint32_t p = 1; p < a->n_parts; p++)
            sum += a->parts[p * a->n + i];
        a->y[i] = a->add ? a->y[i] + sum : sum;
    }
}

static void launch(struct cu_stream *s, const char *name, const void *kernel, uint32_t n_rows,
                   const void *args, size_t args_bytes)
{
    struct cu_launch l = {name, kernel, n_rows, 1, THREADS, sizeof(struct row_shared), args, args_bytes};
    cu_launch(s, &l);
}

void cu_embed(struct cu_stream *s, uint32_t n_rows, const struct cu_embed_args *a)
{
    launch(s, "embed", (const void *)embed_kernel, n_rows, a, sizeof *a);
}

void cu_prologue(struct cu_stream *s, uint32_t n_rows, const struct cu_prologue_args *a)
{
    launch(s, "prologue", (const void *)prologue_kernel, n_rows, a, sizeof *a);
}

void cu_norm_add(struct cu_stream *s, uint32_t n_rows, const struct cu_norm_add_args *a)
{
    launch(s, "norm_add", (const void *)norm_add_kernel, n_rows, a, sizeof *a);
}

void cu_sum_ranks(struct cu_stream *s, const struct cu_sum_args *a)
{
    uint64_t n_blocks = (a->n + THREADS - 1) / THREADS;
    launch(s, "sum_ranks", (const void *)sum_ranks_kernel,
           n_blocks < MAX_GRID ? (uint32_t)n_blocks : MAX_GRID, a, sizeof *a);
}
