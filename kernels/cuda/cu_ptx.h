/* kernels/cuda/cu_ptx.h - the words of cu_port.h under nvcc. The only file with PTX. Its twin is
 * emulation/cu_emu.h. */
#ifndef SLUICE_KERNELS_CUDA_CU_PTX_H
#define SLUICE_KERNELS_CUDA_CU_PTX_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define CU_FN     static __device__ __forceinline__
#define CU_UNROLL _Pragma("unroll")
#define CU_CONST  static __device__ const

#define CU_KERNEL(name, type, threads, blocks)                                                               \
    static __device__ __forceinline__ void name##_body(const type *a);                                       \
    static __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ type arg)         \
    {                                                                                                        \
        name##_body(&arg);                                                                                   \
    }                                                                                                        \
    static __device__ __forceinline__ void name##_body(const type *a)

extern __shared__ __align__(128) unsigned char cu_shared_memory[];
#define CU_SHARED(type) ((type *)cu_shared_memory)

CU_FN void cu_sync_block(void)
{
    __syncthreads();
}

CU_FN void cu_sync_warp(void)
{
    __syncwarp();
}

CU_FN float cu_shfl_xor(float x, int mask)
{
    return __shfl_xor_sync(0xffffffffu, x, mask);
}

CU_FN uint64_t cu_shfl_xor64(uint64_t x, int mask)
{
    return __shfl_xor_sync(0xffffffffu, (unsigned long long)x, mask);
}

CU_FN uint32_t cu_atomic_add32(uint32_t *p, uint32_t x)
{
    return atomicAdd(p, x);
}

CU_FN void cu_atomic_add_double(double *p, double x)
{
    atomicAdd(p, x);
}

CU_FN void cu_atomic_min64(uint64_t *p, uint64_t x)
{
    atomicMin((unsigned long long *)p, (unsigned long long)x);
}

CU_FN uint64_t cu_mul_high64(uint64_t x, uint64_t y)
{
    return __umul64hi(x, y);
}

CU_FN uint32_t cu_float_bits(float x)
{
    return __float_as_uint(x);
}

CU_FN float cu_bits_float(uint32_t u)
{
    return __uint_as_float(u);
}

CU_FN uint32_t cu_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

CU_FN void cu_cp_async16(void *dst, const void *src, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(cu_shared_address(dst)), "l"(src),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

CU_FN void cu_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

#define cu_cp_async_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

CU_FN void cu_ldmatrix_x4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cu_shared_address(row))
                 : "memory");
}

CU_FN void cu_ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cu_shared_address(row))
                 : "memory");
}

CU_FN void cu_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

CU_FN uint16_t cu_bf16_of(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

CU_FN float cu_bf16_float(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

CU_FN uint32_t cu_bf16_pair(float low, float high)
{
    __nv_bfloat162 p = __floats2bfloat162_rn(low, high);
    return (uint32_t)__bfloat16_as_ushort(p.y) << 16 | __bfloat16_as_ushort(p.x);
}

CU_FN uint32_t cu_bf16_mul_pair(uint32_t x, uint32_t y)
{
    uint32_t product, minus_zero = 0x80008000;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(x), "r"(y), "r"(minus_zero));
    return product;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define CU_HAS_FP8
CU_FN uint32_t cu_fp8_pair(float low, float high)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif

CU_FN uint16_t cu_f16_of(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

CU_FN float cu_f16_float(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

CU_FN float cu_rint(float x)
{
    return rintf(x);
}

CU_FN float cu_exp(float x)
{
    return expf(x);
}

CU_FN float cu_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

CU_FN float cu_rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}

CU_FN float cu_tanh(float x)
{
    return tanhf(x);
}

CU_FN void cu_sincos(float x, float *sin_out, float *cos_out)
{
    /* of turns, taken off in double: sincosf's own way for large x needs memory */
    double turns = (double)x * 0.15915494309189535;
    sincospif(2.0f * (float)(turns - rint(turns)), sin_out, cos_out);
}

#endif
