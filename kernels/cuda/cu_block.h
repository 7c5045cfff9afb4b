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

/* Index of the first element of a head's K (which 0) or V (which 1) at a position, counted in elements from
 * kv->layer. pages: those of the sequence. */
CU_FN uint64_t cu_kv_at(const struct cu_pages *kv, const uint32_t *pages, uint32_t which, uint32_t head,
                        uint32_t pos)
{
    uint32_t page = pages[pos / kv->page_tokens];
    uint64_t token = page * kv->page_stride + (uint64_t)(which * kv->n_kv_heads + head) * kv->page_tokens +
                     pos % kv->page_tokens;
    return token * kv->head_dim;
}

CU_FN float cu_kv_load(const struct cu_pages *kv, uint64_t i)
{
    if (kv->dtype == SL_F32)
        return ((const float *)kv->layer)[i];
    uint16_t h = ((const uint16_t *)kv->layer)[i];
    return kv->dtype == SL_F16 ? cu_f16_float(h) : cu_bf16_float(h);
}

CU_FN void cu_kv_store(const struct cu_pages *kv, uint64_t i, float x)
{
    if (kv->dtype == SL_F32)
        ((float *)kv->layer)[i] = x;
    else
        ((uint16_t *)kv->layer)[i] = kv->dtype == SL_F16 ? cu_f16_of(x) : cu_bf16_of(x);
}

#endif
