/* kernels/cuda/cu_matmul.cu - the plain product: tiles of x and w go through shared memory, each thread sums
 * COLS_PER_THREAD elements of y over k in rising order. It judges cuBLASLt, stands in for it, and is exact:
 * a row's bits are the same whatever rows are beside it. */
#include "kernels/cuda/cu_block.h"

#define TILE_ROWS       16
#define TILE_COLS       64
#define TILE_K          32
#define THREADS         256
#define COLS_PER_THREAD (TILE_ROWS * TILE_COLS / THREADS)
#define COL_STEP        (TILE_COLS / COLS_PER_THREAD)

/* A column more than needed, so that threads of a warp read from different banks. */
struct matmul_shared {
    float x[TILE_ROWS][TILE_K + 1];
    float w[TILE_COLS][TILE_K + 1];
};

/* to [tile_rows][TILE_K + 1] = from[row0 .., k0 ..], zeros beyond n_rows and n_cols. */
CU_FN void load_tile(float (*to)[TILE_K + 1], uint32_t tile_rows, const uint16_t *from, uint32_t row0,
                     uint32_t n_rows, uint32_t k0, uint32_t n_cols)
{
    for (uint32_t i = threadIdx.x; i < tile_rows * TILE_K; i += THREADS) {
        uint32_t r = i / TILE_K, k = i % TILE_K;
        int inside = row0 + r < n_rows && k0 + k < n_cols;
        to[r][k] = inside ? cu_bf16_float(from[(uint64_t)(row0 + r) * n_cols + k0 + k]) : 0.0f;
    }
}

CU_KERNEL(matmul_kernel, struct cu_matmul_args, THREADS, 1)
{
    struct matmul_shared *sh = CU_SHARED(struct matmul_shared);
    uint32_t row0 = blockIdx.y * TILE_ROWS, col0 = blockIdx.x * TILE_COLS;
    uint32_t r = threadIdx.x / COL_STEP, c = threadIdx.x % COL_STEP;
    float sum[COLS_PER_THREAD] = {0};
    for (uint32_t k0 = 0; k0 < a->k; k0 += TILE_K) {
        load_tile(sh->x, TILE_ROWS, a->x, row0, a->n_rows, k0, a->k);
        load_tile(sh->w, TILE_COLS, a->w, col0, a->n, k0, a->k);
        cu_sync_block();
        for (uint32_t k = 0; k < TILE_K; k++) {
            CU_UNROLL
            for (uint32_t i = 0; i < COLS_PER_THREAD; i++)
                sum[i] += sh->x[r][k] * sh->w[c + i * COL_STEP][k];
        }
        cu_sync_block();
    }
    CU_UNROLL
    for (uint32_t i = 0; i < COLS_PER_THREAD; i++) {
        uint32_t row = row0 + r, col = col0 + c + i * COL_STEP;
        if (row >= a->n_rows || col >= a->n)
            continue;
        float *y = a->y + (uint64_t)row * a->n + col;
        float v = a->bias ? sum[i] + a->bias[col] : sum[i];
        *y = a->add ? *y + v : v;
    }
}

void cu_matmul_plain(struct cu_stream *s, const struct cu_matmul_args *a)
{
    struct cu_launch l = {"matmul",
                          (const void *)matmul_kernel,
                          (a->n + TILE_COLS - 1) / TILE_COLS,
                          (a->n_rows + TILE_ROWS - 1) / TILE_ROWS,
                          THREADS,
                          sizeof(struct matmul_shared),
                          a,
                          sizeof *a};
    cu_launch(s, &l);
}
