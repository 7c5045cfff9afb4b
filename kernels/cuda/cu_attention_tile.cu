/* kernels/cuda/cu_attention_tile.cu - attention on tensor cores, for K and V in bfloat16, as SL_Q8 or as SL_FP8.
 *
 * A fixed grid: each block works off its list of items, which lies in device memory. An item is a tile of
 * query rows of one K and V head over a stretch of positions. K and V come through shared memory in blocks of
 * CU_KV_BLOCK positions, the next one on its way (cp.async) while one is multiplied.
 *
 *   large tile (prompt chunks): warp w has rows 16 w .. 16 w + 15 and all positions of a block.
 *   small tile (decode rows):   all warps have the same 16 rows, warp w has positions 16 w .. 16 w + 15 of a
 *                               block; they put their sums together at the end.
 *
 * So a decode row never pays for a prompt's tile, and a group of heads shares what is read of K and V. Scores
 * and sums are float32; q and the weights go into the products as bfloat16. Positions that no row of the tile
 * sees are zeros in shared memory, whatever lies in the pages.
 *
 * Of SL_Q8 the integers go through the products, which bfloat16 holds exactly; a position's scale of K is put on its
 * column of scores, and that of V on its column of weights. SL_FP8 becomes bfloat16, scale and all, which is
 * exact: on its way into shared memory, for one conversion of each number.
 *
 * Structure: FlashAttention-2 (Dao, 2023). Fragments: PTX ISA, mma.m16n8k16. */
#include <math.h>
#include "kernels/cuda/cu_block.h"

#define THREADS      128
#define N_WARPS      (THREADS / CU_WARP)
#define MAX_HEAD_DIM 128
#define PAD          8 /* elements between rows of shared memory, so that ldmatrix meets no bank twice */
#define LOG2_E       1.4426950408889634f
#define MMA_M        16
#define MMA_N        8
#define MMA_K        16

#define TILES_K (MAX_HEAD_DIM / MMA_K) /* of q along the head */
#define TILES_O (MAX_HEAD_DIM / MMA_N) /* of a sum along the head */
#define TILES_S (CU_KV_BLOCK / MMA_N)  /* of scores along the positions of a block */
#define ROW     (MAX_HEAD_DIM + PAD)

/* What a warp keeps of its 16 rows. A thread has rows lane / 4 and lane / 4 + 8, so two of each per row. */
struct tile_state {
    uint32_t q[TILES_K][4];
    float sum[TILES_O][4];
    float most[2], weight[2]; /* the weight is of this thread's positions until the end */
    uint32_t pos[2];          /* of the row's token; only rows with valid set are looked at */
    int valid[2];
};

struct kv_stages {
    uint16_t k[2][CU_KV_BLOCK][ROW], v[2][CU_KV_BLOCK][ROW];
    float k_scale[2][CU_KV_BLOCK], v_scale[2][CU_KV_BLOCK]; /* of SL_Q8 */
};

struct warp_sums {
    float sum[N_WARPS][CU_SMALL_TILE][MAX_HEAD_DIM];
    float most[N_WARPS][CU_SMALL_TILE], weight[N_WARPS][CU_SMALL_TILE];
};

union tile_shared {
    struct kv_stages kv;
    struct warp_sums warps; /* at the end of a small tile */
};

CU_FN float scale_between(float from, float to)
{
    return from == -INFINITY ? 0.0f : cu_exp2(from - to);
}

/* Starts the copy of positions [pos0, pos0 + CU_KV_BLOCK) into a stage. */
CU_FN void load_block(const struct cu_tile_args *a, const struct cu_item *it, struct kv_stages *sh, int stage,
                      uint32_t pos0, const int head_dim)
{
    const uint32_t per_row = head_dim / 8, rows_at_once = THREADS / per_row;
    uint32_t col = threadIdx.x % per_row * 8;
    const uint32_t *pages = a->page_list + it->first_page;
    CU_UNROLL
    for (uint32_t i = 0; i < CU_KV_BLOCK / rows_at_once; i++) {
        uint32_t r = threadIdx.x / per_row + i * rows_at_once, pos = pos0 + r;
        int seen = pos >= it->kv_first && pos < it->kv_end;
        const uint16_t *k = (const uint16_t *)a->kv.layer, *v = k; /* some address that is one */
        if (seen) {
            k = (const uint16_t *)cu_kv_at(&a->kv, pages, 0, it->kv_head, pos).values + col;
            v = (const uint16_t *)cu_kv_at(&a->kv, pages, 1, it->kv_head, pos).values + col;
        }
        cu_cp_async16(&sh->k[stage][r][col], k, seen);
        cu_cp_async16(&sh->v[stage][r][col], v, seen);
    }
}

/* Two integers, or two of e4m3 times the scale, as bfloat16. */
CU_FN uint32_t widen_pair(uint32_t two, float scale, const enum sl_dtype type)
{
    if (type == SL_Q8)
        return cu_bf16_pair((float)(int8_t)(uint8_t)two, (float)(int8_t)(uint8_t)(two >> 8));
    float factor = scale * 0x1p120f;
    return cu_bf16_mul_pair(cu_fp8_to_bf16(two), cu_bf16_pair(factor, factor));
}

CU_FN void widen(uint16_t *to, const uint8_t *from, float scale, int seen, const enum sl_dtype type)
{
    uint32_t *pairs = (uint32_t *)to;
    CU_UNROLL
    for (int i = 0; i < 4; i++)
        pairs[i] = seen ? widen_pair(((const uint32_t *)from)[i / 2] >> i % 2 * 16, scale, type) : 0;
}

/* The same as load_block, of types of a byte; the stage is there after a barrier. */
CU_FN void load_bytes(const struct cu_tile_args *a, const struct cu_item *it, struct kv_stages *sh, int stage,
                      uint32_t pos0, const enum sl_dtype type, const int head_dim)
{
    const uint32_t per_row = head_dim / 8, rows_at_once = THREADS / per_row;
    uint32_t col = threadIdx.x % per_row * 8;
    const uint32_t *pages = a->page_list + it->first_page;
    for (uint32_t r = threadIdx.x / per_row; r < CU_KV_BLOCK; r += rows_at_once) {
        uint32_t pos = pos0 + r;
        int seen = pos >= it->kv_first && pos < it->kv_end;
        struct cu_kv_row k = cu_kv_at(&a->kv, pages, 0, it->kv_head, seen ? pos : it->kv_first);
        struct cu_kv_row v = cu_kv_at(&a->kv, pages, 1, it->kv_head, seen ? pos : it->kv_first);
        float k_scale = seen ? cu_kv_scale(&a->kv, k) : 0.0f, v_scale = seen ? cu_kv_scale(&a->kv, v) : 0.0f;
        widen(&sh->k[stage][r][col], k.values + col, k_scale, seen, type);
        widen(&sh->v[stage][r][col], v.values + col, v_scale, seen, type);
        if (type == SL_Q8 && col == 0) {
            sh->k_scale[stage][r] = k_scale;
            sh->v_scale[stage][r] = v_scale;
        }
    }
}

/* Puts the scales of positions r0 .. on the columns of s. */
CU_FN void scale_columns(float s[TILES_S][4], const float *scales, uint32_t r0, const int n_tiles)
{
    uint32_t lane = threadIdx.x % CU_WARP;
    CU_UNROLL
    for (int n = 0; n < n_tiles; n++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++)
            s[n][i] *= scales[r0 + n * MMA_N + 2 * (lane % 4) + i % 2];
    }
}

CU_FN void load_stage(const struct cu_tile_args *a, const struct cu_item *it, struct kv_stages *sh, int stage,
                      uint32_t pos0, const enum sl_dtype type, const int head_dim)
{
    if (type == SL_BF16)
        load_block(a, it, sh, stage, pos0, head_dim);
    else
        load_bytes(a, it, sh, stage, pos0, type, head_dim);
    cu_cp_async_commit();
}

CU_FN uint32_t pair_of(const float *x)
{
    return cu_bf16_pair(x[0], x[1]);
}

/* Takes the warp's rows of q, 16 from row m0 of the tile on. */
CU_FN void state_init(struct tile_state *t, const struct cu_tile_args *a, const struct cu_item *it,
                      uint32_t m0, const int head_dim)
{
    uint32_t lane = threadIdx.x % CU_WARP, group = a->n_heads / a->kv.n_kv_heads;
    uint32_t width = (a->n_heads + 2 * a->kv.n_kv_heads) * head_dim;
    const float *q[2];
    CU_UNROLL
    for (int h = 0; h < 2; h++) {
        uint32_t m = m0 + lane / 4 + 8 * h, p = it->p0 + m;
        t->valid[h] = m < it->n_p;
        t->pos[h] = it->first_pos + p / group;
        q[h] = a->qkv + (uint64_t)(it->first_row + (t->valid[h] ? p / group : 0)) * width +
               (it->kv_head * group + p % group) * head_dim + 2 * (lane % 4);
        t->most[h] = -INFINITY;
        t->weight[h] = 0.0f;
    }
    CU_UNROLL
    for (int k = 0; k < head_dim / MMA_K; k++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++)
            t->q[k][i] = t->valid[i % 2] ? pair_of(q[i % 2] + k * MMA_K + i / 2 * 8) : 0;
    }
    CU_UNROLL
    for (int n = 0; n < head_dim / MMA_N; n++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++)
            t->sum[n][i] = 0.0f;
    }
}

/* s [16, n_tiles * 8] = q k^T over the positions from row r0 of the stage on. */
CU_FN void scores(const struct tile_state *t, const uint16_t (*k)[ROW], uint32_t r0, float s[TILES_S][4],
                  const int n_tiles, const int head_dim)
{
    uint32_t lane = threadIdx.x % CU_WARP;
    CU_UNROLL
    for (int n = 0; n < n_tiles; n++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++)
            s[n][i] = 0.0f;
    }
    CU_UNROLL
    for (int n = 0; n < n_tiles; n += 2) {
        CU_UNROLL
        for (int j = 0; j < head_dim / MMA_K; j++) {
            uint32_t b[4];
            cu_ldmatrix_x4(b, &k[r0 + n * MMA_N + lane % 8 + lane / 16 * 8][j * MMA_K + lane / 8 % 2 * 8]);
            cu_mma_bf16(s[n], t->q[j], b[0], b[1]);
            cu_mma_bf16(s[n + 1], t->q[j], b[2], b[3]);
        }
    }
}

/* Scores become weights, to the power of 2 and relative to the greatest so far; the sums follow. pos0:
 * position of column 0. */
CU_FN void soften(struct tile_state *t, const struct cu_tile_args *a, const struct cu_item *it, uint32_t pos0,
                  float s[TILES_S][4], const int n_tiles, const int head_dim)
{
    uint32_t lane = threadIdx.x % CU_WARP;
    float scale = a->score_scale * LOG2_E;
    CU_UNROLL
    for (int h = 0; h < 2; h++) {
        float most = t->most[h];
        CU_UNROLL
        for (int n = 0; n < n_tiles; n++) {
            CU_UNROLL
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                uint32_t pos = pos0 + n * MMA_N + 2 * (lane % 4) + i % 2;
                int seen = t->valid[h] && pos <= t->pos[h] && pos < it->kv_end &&
                           (a->window == 0 || pos + a->window > t->pos[h]);
                s[n][i] = seen ? s[n][i] * scale : -INFINITY;
                most = s[n][i] > most ? s[n][i] : most;
            }
        }
        CU_UNROLL
        for (int mask = 1; mask < 4; mask *= 2) { /* the four threads of a row */
            float other = cu_shfl_xor(most, mask);
            most = other > most ? other : most;
        }
        float keep = scale_between(t->most[h], most), weight = 0.0f;
        t->most[h] = most;
        CU_UNROLL
        for (int n = 0; n < n_tiles; n++) {
            CU_UNROLL
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                s[n][i] = scale_between(s[n][i], most);
                weight += s[n][i];
            }
        }
        t->weight[h] = t->weight[h] * keep + weight;
        CU_UNROLL
        for (int n = 0; n < head_dim / MMA_N; n++) {
            t->sum[n][2 * h] *= keep;
            t->sum[n][2 * h + 1] *= keep;
        }
    }
}

/* What rounding to bfloat16 takes off. */
CU_FN uint32_t rest_of(const float *x)
{
    return cu_bf16_pair(x[0] - cu_bf16_float(cu_bf16_of(x[0])), x[1] - cu_bf16_float(cu_bf16_of(x[1])));
}

/* sum [16, head_dim] += weights v; twice: by the weights' roundings too, as scales make them numbers that no
 * rounding spares, not even that of a single position. */
CU_FN void add_values(struct tile_state *t, const uint16_t (*v)[ROW], uint32_t r0, float s[TILES_S][4],
                      const int twice, const int n_tiles, const int head_dim)
{
    uint32_t lane = threadIdx.x % CU_WARP;
    CU_UNROLL
    for (int n = 0; n < n_tiles; n += 2) {
        uint32_t p[4] = {pair_of(&s[n][0]), pair_of(&s[n][2]), pair_of(&s[n + 1][0]), pair_of(&s[n + 1][2])};
        uint32_t rest[4] = {rest_of(&s[n][0]), rest_of(&s[n][2]), rest_of(&s[n + 1][0]),
                            rest_of(&s[n + 1][2])};
        CU_UNROLL
        for (int o = 0; o < head_dim / MMA_N; o += 2) {
            uint32_t b[4];
            cu_ldmatrix_x4_trans(b, &v[r0 + n * MMA_N + lane % 16][o * MMA_N + lane / 16 * 8]);
            cu_mma_bf16(t->sum[o], p, b[0], b[1]);
            cu_mma_bf16(t->sum[o + 1], p, b[2], b[3]);
            if (twice) {
                cu_mma_bf16(t->sum[o], rest, b[0], b[1]);
                cu_mma_bf16(t->sum[o + 1], rest, b[2], b[3]);
            }
        }
    }
}

/* Row p of the run's matrix is done: out, or its place among the partial results. */
CU_FN void put_scales(const struct cu_tile_args *a, const struct cu_item *it, uint32_t m, float most,
                      float weight)
{
    float *to = a->partial_scales + 2 * (uint64_t)(it->partial + m);
    to[0] = most;
    to[1] = weight;
}

CU_FN float *sums_of(const struct cu_tile_args *a, const struct cu_item *it, uint32_t m, const int head_dim)
{
    uint32_t group = a->n_heads / a->kv.n_kv_heads, p = it->p0 + m;
    if (it->partial != CU_NO_PARTIAL)
        return a->partial_sums + (uint64_t)(it->partial + m) * head_dim;
    return a->out +
           ((uint64_t)(it->first_row + p / group) * a->n_heads + it->kv_head * group + p % group) * head_dim;
}

/* The weight of a row is of all its threads from here on. */
CU_FN void finish_weights(struct tile_state *t)
{
    CU_UNROLL
    for (int h = 0; h < 2; h++) {
        CU_UNROLL
        for (int mask = 1; mask < 4; mask *= 2)
            t->weight[h] += cu_shfl_xor(t->weight[h], mask);
    }
}

CU_FN void store_large(const struct tile_state *t, const struct cu_tile_args *a, const struct cu_item *it,
                       uint32_t m0, const int head_dim)
{
    uint32_t lane = threadIdx.x % CU_WARP;
    CU_UNROLL
    for (int h = 0; h < 2; h++) {
        uint32_t m = m0 + lane / 4 + 8 * h;
        if (!t->valid[h])
            continue;
        float *to = sums_of(a, it, m, head_dim) + 2 * (lane % 4);
        float divide = it->partial == CU_NO_PARTIAL ? 1.0f / t->weight[h] : 1.0f;
        CU_UNROLL
        for (int n = 0; n < head_dim / MMA_N; n++) {
            to[n * MMA_N] = t->sum[n][2 * h] * divide;
            to[n * MMA_N + 1] = t->sum[n][2 * h + 1] * divide;
        }
        if (it->partial != CU_NO_PARTIAL && lane % 4 == 0)
            put_scales(a, it, m, t->most[h], t->weight[h]);
    }
}

/* The warps' sums of a small tile become one; all warps call it, after a barrier. */
CU_FN void store_small(const struct tile_state *t, const struct cu_tile_args *a, const struct cu_item *it,
                       struct warp_sums *sh, const int head_dim)
{
    uint32_t lane = threadIdx.x % CU_WARP, warp = threadIdx.x / CU_WARP;
    CU_UNROLL
    for (int h = 0; h < 2; h++) {
        uint32_t m = lane / 4 + 8 * h;
        sh->most[warp][m] = t->most[h]; /* four threads write the same */
        sh->weight[warp][m] = t->weight[h];
        CU_UNROLL
        for (int n = 0; n < head_dim / MMA_N; n++) {
            sh->sum[warp][m][n * MMA_N + 2 * (lane % 4)] = t->sum[n][2 * h];
            sh->sum[warp][m][n * MMA_N + 2 * (lane % 4) + 1] = t->sum[n][2 * h + 1];
        }
    }
    cu_sync_block();
    for (uint32_t m = warp; m < it->n_p; m += N_WARPS) {
        float most = -INFINITY, weight = 0.0f, scale[N_WARPS];
        CU_UNROLL
        for (int w = 0; w < N_WARPS; w++)
            most = sh->most[w][m] > most ? sh->most[w][m] : most;
        CU_UNROLL
        for (int w = 0; w < N_WARPS; w++) {
            scale[w] = scale_between(sh->most[w][m], most);
            weight += sh->weight[w][m] * scale[w];
        }
        float divide = it->partial == CU_NO_PARTIAL ? 1.0f / weight : 1.0f, *to = sums_of(a, it, m, head_dim);
        for (uint32_t i = lane; i < (uint32_t)head_dim; i += CU_WARP) {
            float sum = 0.0f;
            CU_UNROLL
            for (int w = 0; w < N_WARPS; w++)
                sum += sh->sum[w][m][i] * scale[w];
            to[i] = sum * divide;
        }
        if (it->partial != CU_NO_PARTIAL && lane == 0)
            put_scales(a, it, m, most, weight);
    }
}

CU_FN void run_item(const struct cu_tile_args *a, const struct cu_item *it, union tile_shared *sh,
                    const int small, const enum sl_dtype type, const int head_dim)
{
    uint32_t warp = threadIdx.x / CU_WARP, m0 = small ? 0 : warp * MMA_M, r0 = small ? warp * MMA_M : 0;
    const int n_tiles = small ? MMA_M / MMA_N : TILES_S, q8 = type == SL_Q8;
    struct tile_state t;
    load_stage(a, it, &sh->kv, 0, it->kv_begin, type, head_dim);
    state_init(&t, a, it, m0, head_dim);
    int stage = 0;
    for (uint32_t pos0 = it->kv_begin; pos0 < it->kv_end; pos0 += CU_KV_BLOCK, stage ^= 1) {
        if (pos0 + CU_KV_BLOCK < it->kv_end)
            load_stage(a, it, &sh->kv, stage ^ 1, pos0 + CU_KV_BLOCK, type, head_dim);
        else
            cu_cp_async_commit();
        cu_cp_async_wait(1);
        cu_sync_block();
        float s[TILES_S][4];
        scores(&t, sh->kv.k[stage], r0, s, n_tiles, head_dim);
        if (q8)
            scale_columns(s, sh->kv.k_scale[stage], r0, n_tiles);
        soften(&t, a, it, pos0 + r0, s, n_tiles, head_dim);
        if (q8)
            scale_columns(s, sh->kv.v_scale[stage], r0, n_tiles);
        add_values(&t, sh->kv.v[stage], r0, s, q8, n_tiles, head_dim);
        cu_sync_block(); /* the stage is free */
    }
    finish_weights(&t);
    if (small)
        store_small(&t, a, it, &sh->warps, head_dim);
    else
        store_large(&t, a, it, m0, head_dim);
    cu_sync_block(); /* shared memory is free for the next item */
}

CU_FN void run_items(const struct cu_tile_args *a, union tile_shared *sh, const enum sl_dtype type,
                     const int head_dim)
{
    for (uint32_t i = a->block_items[blockIdx.x]; i < a->block_items[blockIdx.x + 1]; i++) {
        const struct cu_item it = a->items[i];
        if (it.tile == CU_SMALL_TILE)
            run_item(a, &it, sh, 1, type, head_dim);
        else
            run_item(a, &it, sh, 0, type, head_dim);
    }
}

CU_KERNEL(attention_tile_64_kernel, struct cu_tile_args, THREADS, 2)
{
    run_items(a, CU_SHARED(union tile_shared), SL_BF16, 64);
}

CU_KERNEL(attention_tile_128_kernel, struct cu_tile_args, THREADS, 2)
{
    run_items(a, CU_SHARED(union tile_shared), SL_BF16, 128);
}

CU_KERNEL(attention_tile_q8_64_kernel, struct cu_tile_args, THREADS, 2)
{
    run_items(a, CU_SHARED(union tile_shared), SL_Q8, 64);
}

CU_KERNEL(attention_tile_q8_128_kernel, struct cu_tile_args, THREADS, 2)
{
    run_items(a, CU_SHARED(union tile_shared), SL_Q8, 128);
}

CU_KERNEL(attention_tile_fp8_64_kernel, struct cu_tile_args, THREADS, 2)
{
    run_items(a, CU_SHARED(union tile_shared), SL_FP8, 64);
}

CU_KERNEL(attention_tile_fp8_128_kernel, struct cu_tile_args, THREADS, 2)
{
    run_items(a, CU_SHARED(union tile_shared), SL_FP8, 128);
}

/* A block per row and head at a time: a thread is an element. */
CU_KERNEL(attention_merge_kernel, struct cu_merge_args, THREADS, 1)
{
    for (uint32_t at = blockIdx.x; at < *a->n; at += gridDim.x) {
        const struct cu_merge m = a->merges[at];
        float most = -INFINITY, weight = 0.0f, sum = 0.0f;
        for (uint32_t i = 0; i < m.n; i++) {
            float x = a->partial_scales[2 * (uint64_t)(m.partial + i * m.stride)];
            most = x > most ? x : most;
        }
        for (uint32_t i = 0; i < m.n; i++) {
            uint64_t p = m.partial + i * m.stride;
            float scale = scale_between(a->partial_scales[2 * p], most);
            weight += a->partial_scales[2 * p + 1] * scale;
            if (threadIdx.x < a->head_dim)
                sum += a->partial_sums[p * a->head_dim + threadIdx.x] * scale;
        }
        if (threadIdx.x < a->head_dim)
            a->out[((uint64_t)m.row * a->n_heads + m.head) * a->head_dim + threadIdx.x] = sum / weight;
    }
}

/* The kernel for heads of 64, or of 128. */
static const struct tile_kernel {
    enum sl_dtype type;
    const void *of_64, *of_128;
} tile_kernels[] = {
    {SL_BF16, (const void *)attention_tile_64_kernel, (const void *)attention_tile_128_kernel},
    {SL_Q8, (const void *)attention_tile_q8_64_kernel, (const void *)attention_tile_q8_128_kernel},
    {SL_FP8, (const void *)attention_tile_fp8_64_kernel, (const void *)attention_tile_fp8_128_kernel}};

/* NULL: there is none. */
static const void *kernel_of(const struct cu_pages *kv)
{
    for (size_t i = 0; i < sizeof tile_kernels / sizeof *tile_kernels; i++)
        if (tile_kernels[i].type == kv->dtype)
            return kv->head_dim == 64    ? tile_kernels[i].of_64
                   : kv->head_dim == 128 ? tile_kernels[i].of_128
                                         : NULL;
    return NULL;
}

int cu_attention_tile_fits(const struct cu_pages *kv)
{
    return kernel_of(kv) != NULL;
}

void cu_attention_tile(struct cu_stream *s, uint32_t n_blocks, const struct cu_tile_args *a)
{
    struct cu_launch l = {"attention_tile", kernel_of(&a->kv),         n_blocks, 1,
                          THREADS,          sizeof(union tile_shared), a,        sizeof *a};
    cu_launch(s, &l);
}

void cu_attention_merge(struct cu_stream *s, uint32_t n, const struct cu_merge_args *a)
{
    struct cu_launch l = {"attention_merge", (const void *)attention_merge_kernel, n, 1, THREADS, 0, a,
                          sizeof *a};
    cu_launch(s, &l);
}
