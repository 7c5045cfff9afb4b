/* kernels/cuda/cu_block.h - sums over the threads of a block, and elements of pages: what kernels share. */
#ifndef SLUICE_KERNELS_CUDA_CU_BLOCK_H
#define SLUICE_KERNELS_CUDA_CU_BLOCK_H

#include "kernels/cuda/cu_kernels.h"
#include "kernels/cuda/cu_port.h"

#define CU_MAX_WARPS 32

/* The sum of all threads' x in every thread, always in the same order. scratch: [n_threads / CU_WARP] shared;
 * free for the next use after a barrier. */
CU_FN float cu_block_sum(float x, float *scratch, uint32_t n_threads)
{
    x = cu_warp_sum(x);
    if (threadIdx.x % CU_WARP == 0)
        scratch[threadIdx.x / CU_WARP] = x;
    cu_sync_block();
    x = scratch[0];
    for (uint32_t w = 1; w < n_threads / CU_WARP; w++)
        x += scratch[w];
    return x;
}

CU_FN float cu_block_max(float x, float *scratch, uint32_t n_threads)
{
    x = cu_warp_max(x);
    if (threadIdx.x % CU_WARP == 0)
        scratch[threadIdx.x / CU_WARP] = x;
    cu_sync_block();
    x = scratch[0];
    for (uint32_t w = 1; w < n_threads / CU_WARP; w++)
        x = x > scratch[w] ? x : scratch[w];
    return x;
}

/* Where a head's K (which 0) or V (which 1) of a position lie: values, and the scale of types that have one. */
struct cu_kv_row {
    uint8_t *values, *scale;
};

/* pages: those of the sequence. */
CU_FN struct cu_kv_row cu_kv_at(const struct cu_pages *kv, const uint32_t *pages, uint32_t which,
                                uint32_t head, uint32_t pos)
{
    uint32_t slot = pos % kv->page_tokens;
    uint8_t *strip = kv->layer + pages[pos / kv->page_tokens] * kv->page_bytes +
                     (which * kv->n_kv_heads + head) * kv->strip_bytes;
    struct cu_kv_row row = {strip + slot * kv->row_bytes,
                            strip + kv->page_tokens * kv->row_bytes + slot * sizeof(float)};
    return row;
}

CU_FN float cu_kv_load(const struct cu_pages *kv, struct cu_kv_row row, uint32_t i)
{
    if (kv->dtype == SL_Q8)
        return (float)(int8_t)row.values[i];
    if (kv->dtype == SL_FP8)
        return cu_fp8_float(row.values[i]);
    if (kv->dtype == SL_F32)
        return ((const float *)row.values)[i];
    uint16_t h = ((const uint16_t *)row.values)[i];
    return kv->dtype == SL_F16 ? cu_f16_float(h) : cu_bf16_float(h);
}

/* What the row's numbers are worth. A scale may lie at any address: behind a page's odd number of values. */
CU_FN float cu_kv_scale(const struct cu_pages *kv, struct cu_kv_row row)
{
    if (kv->dtype != SL_Q8 && kv->dtype != SL_FP8)
        return 1.0f;
    const uint8_t *p = row.scale;
    if ((uintptr_t)p % sizeof(float) == 0)
        return *(const float *)p;
    return cu_bits_float(p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

#endif
