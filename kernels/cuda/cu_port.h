/* kernels/cuda/cu_port.h - the language kernels are written in: CUDA under nvcc, an emulation under a C
 * compiler.
 *
 * A .cu file here is C11 and C++20 at once and uses the words below only, never PTX, `<<<>>>` or a `__` name
 * of CUDA's, so that the file that a GPU runs is the file that ctest runs.
 *
 *   CU_KERNEL(name, type, threads, blocks) { body }
 *                              a kernel over one `const type *a`; of `threads` threads a block; registers are
 *                              bounded so that `blocks` of them fit a multiprocessor
 *   CU_FN                      in front of a device function: static and inlined
 *   CU_UNROLL                  in front of a loop of constant length
 *   CU_CONST                   in front of a table of constants of the file: static and const
 *   threadIdx.x, blockIdx.x/y, gridDim.x/y
 *   CU_SHARED(type)            type *: the block's shared memory, as large as the launch said
 *   cu_sync_block()            barrier of the block
 *   cu_sync_warp()             barrier of the warp's 32 lanes
 *   cu_shfl_xor(x, mask)       float of the lane whose number is this one's ^ mask
 *   cu_shfl_xor64(x, mask)     the same of a uint64_t
 *   cu_atomic_add32(p, x), cu_atomic_add_double(p, x), cu_atomic_min64(p, x)
 *                              of shared memory; the first gives what was there
 *   cu_mul_high64(x, y)        the upper half of a product of two uint64_t
 *   cu_float_bits(x), cu_bits_float(u)
 *   cu_cp_async16(dst, src, valid)
 *                              starts a copy of 16 bytes from global to shared memory; zeros where !valid
 *   cu_cp_async_commit()       makes one group of the copies this thread started since the last commit
 *   cu_cp_async_wait(n)        waits for all groups of this thread but the last n; n is a constant
 *   cu_ldmatrix_x4(r, row)     four 8x8 matrices of 16-bit elements; `row` of lane l is row l % 8 of
 *                              matrix l / 8
 *   cu_ldmatrix_x4_trans(r, row)
 *   cu_mma_bf16(d, a, b0, b1)  d[16, 8] += a[16, 16] b[16, 8], fragments as in PTX's mma.m16n8k16
 *   cu_bf16_of(x), cu_bf16_float(h), cu_bf16_pair(low, high), cu_f16_of(x), cu_f16_float(h)
 *   cu_fp8_pair(low, high), cu_fp8_float(b), cu_fp8_to_bf16(two)
 *                              two numbers of e4m3, of at most 448; one as float32; two as 2^-120 of what they
 *                              are worth in bfloat16
 *   cu_bf16_mul_pair(x, y)     products of two pairs of bfloat16
 *   cu_rint(x)                 to the nearest whole number, to even between two
 *   cu_exp(x), cu_exp2(x), cu_rsqrt(x), cu_tanh(x), cu_sincos(x, &sin, &cos)
 *                              of single precision, none of them the fast approximation but exp2
 *
 * What the emulation cannot show: weak memory order, occupancy, time, and that the PTX does what its twin in
 * the emulation does. That takes a GPU: tests/gpu/check. */
#ifndef SLUICE_KERNELS_CUDA_CU_PORT_H
#define SLUICE_KERNELS_CUDA_CU_PORT_H

#include <stdint.h>

#if defined(__CUDACC__)
#include "kernels/cuda/cu_ptx.h"
#else
#include "kernels/cuda/emulation/cu_emu.h"
#endif

#define CU_WARP 32

#if !defined(CU_HAS_FP8) /* no instruction: as kernels/cpu/fp8.h has it */
CU_FN uint32_t cu_fp8_of(float x)
{
    uint32_t u = cu_float_bits(x), a = u & 0x7fffffff,
             unit = 0x46800000; /* 2^14, a float32 in steps of 2^-9 */
    uint32_t normal = (a - 0x3c000000 + 0x7ffff + (a >> 20 & 1)) >> 20;
    uint32_t subnormal = cu_float_bits(cu_bits_float(a) + cu_bits_float(unit)) - unit;
    return (u >> 24 & 0x80) | (a < 0x3c800000 ? subnormal : normal);
}

CU_FN uint32_t cu_fp8_pair(float low, float high)
{
    return cu_fp8_of(high) << 8 | cu_fp8_of(low);
}
#endif

CU_FN float cu_fp8_float(uint8_t b)
{
    return cu_f16_float((uint16_t)((b & 0x80) << 8 | (b & 0x7f) << 7)) * 256.0f;
}

CU_FN uint32_t cu_fp8_to_bf16(uint32_t two)
{
    uint32_t high = (two & 0xff) << 8 | (two & 0xff00)
                                            << 16; /* in the upper halves: the signs are in place */
    return (high & 0x80008000) | (high >> 4 & 0x07f007f0);
}

/* Sum and maximum over the 32 lanes, in every lane; always in the same order. */
CU_FN float cu_warp_sum(float x)
{
    CU_UNROLL
    for (int mask = 16; mask > 0; mask /= 2)
        x += cu_shfl_xor(x, mask);
    return x;
}

CU_FN float cu_warp_max(float x)
{
    CU_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
        float y = cu_shfl_xor(x, mask);
        x = x > y ? x : y;
    }
    return x;
}

CU_FN uint64_t cu_warp_min64(uint64_t x)
{
    CU_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
        uint64_t y = cu_shfl_xor64(x, mask);
        x = x < y ? x : y;
    }
    return x;
}

#endif
