/* kernels/cuda/emulation/cu_emu.h - the words of cu_port.h on a CPU, for tests. Its twin is ../cu_ptx.h.
 *
 * A thread of a block is a fiber. One runs as far as it can - to a barrier, a shuffle, its end - before the
 * next begins, so threads drift as far apart as the kernel's barriers allow; forward or in reverse order of
 * warps and lanes. A warp operation is done for all lanes by the last one that comes.
 * Shared memory begins as NaN. A copy of cp.async happens at the wait for its group, and its destination is
 * NaN until then: who reads too early reads NaN in at least one of the two schedules.
 *
 * Launches of several threads wait for each other, and devices for each other. */
#ifndef SLUICE_KERNELS_CUDA_EMULATION_CU_EMU_H
#define SLUICE_KERNELS_CUDA_EMULATION_CU_EMU_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "kernels/cpu/half.h"

#define CU_FN SL_CU_EMU_UNUSED static inline
#define CU_UNROLL
#define CU_CONST         static const
#define SL_CU_EMU_UNUSED __attribute__((unused))

#define CU_KERNEL(name, type, threads, blocks)                                                               \
    static void name##_body(const type *a);                                                                  \
    static void name(const void *arg)                                                                        \
    {                                                                                                        \
        name##_body((const type *)arg);                                                                      \
    }                                                                                                        \
    static void name##_body(const type *a)

struct cu_emu_dim {
    unsigned x, y;
};

extern struct cu_emu_dim cu_emu_thread, cu_emu_block, cu_emu_grid;
#define threadIdx cu_emu_thread
#define blockIdx  cu_emu_block
#define gridDim   cu_emu_grid

#define CU_SHARED(type) ((type *)cu_emu_shared(sizeof(type)))
void *cu_emu_shared(size_t bytes);

void cu_sync_block(void);
void cu_sync_warp(void);
float cu_shfl_xor(float x, int mask);
uint64_t cu_shfl_xor64(uint64_t x, int mask);
void cu_cp_async16(void *dst, const void *src, bool valid);
void cu_cp_async_commit(void);
void cu_cp_async_wait(unsigned n);
void cu_ldmatrix_x4(uint32_t r[4], const void *row);
void cu_ldmatrix_x4_trans(uint32_t r[4], const void *row);
void cu_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);

/* A fiber is never interrupted. */
CU_FN uint32_t cu_atomic_add32(uint32_t *p, uint32_t x)
{
    uint32_t was = *p;
    *p = was + x;
    return was;
}

CU_FN void cu_atomic_add_double(double *p, double x)
{
    *p += x;
}

CU_FN void cu_atomic_min64(uint64_t *p, uint64_t x)
{
    *p = x < *p ? x : *p;
}

CU_FN uint64_t cu_mul_high64(uint64_t x, uint64_t y)
{
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)x * y >> 64);
}

CU_FN uint32_t cu_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

CU_FN float cu_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

CU_FN uint16_t cu_bf16_of(float x)
{
    return sl_f32_to_bf16(x);
}

CU_FN float cu_bf16_float(uint16_t h)
{
    return sl_bf16_to_f32(h);
}

CU_FN uint32_t cu_bf16_pair(float low, float high)
{
    return (uint32_t)sl_f32_to_bf16(high) << 16 | sl_f32_to_bf16(low);
}

CU_FN uint32_t cu_bf16_mul_pair(uint32_t x, uint32_t y)
{
    return cu_bf16_pair(cu_bf16_float((uint16_t)x) * cu_bf16_float((uint16_t)y),
                        cu_bf16_float((uint16_t)(x >> 16)) * cu_bf16_float((uint16_t)(y >> 16)));
}

CU_FN uint16_t cu_f16_of(float x)
{
    return sl_f32_to_f16(x);
}

CU_FN float cu_f16_float(uint16_t h)
{
    return sl_f16_to_f32(h);
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
    return exp2f(x);
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
    *sin_out = sinf(x);
    *cos_out = cosf(x);
}

/* ---- running it ---- */

enum cu_emu_schedule { CU_EMU_FORWARD, CU_EMU_REVERSE };
void cu_emu_set_schedule(enum cu_emu_schedule s);
enum cu_emu_schedule cu_emu_schedule(void);

/* Runs a kernel over all blocks, n_threads of each (a multiple of 32, at most 1024). NULL, or a sentence
 * about what the kernel did wrong: a barrier that not all threads reach, lanes of a warp in different
 * operations, a copy nobody waited for, an address outside of shared memory. */
const char *cu_emu_run(void (*kernel)(const void *arg), const void *arg, struct cu_emu_dim grid,
                       unsigned n_threads, size_t shared_bytes);

/* The next n captures of a graph come to nothing, at their end or, refused, at their begin. */
void cu_emu_fail_captures(unsigned n, bool refused);

/* ---- cu_emu_memory.c: the devices' memory ---- */

#define CU_EMU_DEVICES 4u

/* Guarded, memory that is allocated from here on can be reached while its device runs kernels or copies, and by
 * nobody else: the host or another device that reads or writes it dies of SIGSEGV. At first: whether CU_EMU_GUARD is
 * in the environment. */
void cu_emu_guard(bool on);
/* Of guarded memory; -1 of any other. */
int cu_emu_device_of(const void *p);
/* Around what a device does, by any number of threads; waits while another device has something to do. Not within
 * itself. */
void cu_emu_memory_open(unsigned device);
void cu_emu_memory_close(void);
/* Memory of the emulation itself, zeroed, for sl_free(): as CUDA's own, no concern of the guard of a step. NULL when there
 * is none. */
void *cu_emu_own(size_t bytes);
void *cu_emu_alloc(unsigned device, size_t bytes); /* zeroed; NULL when there is none */
void cu_emu_free(void *p);                         /* takes NULL */
/* n runs of bytes from anywhere to anywhere, as hardware between the devices does; no device may be open here. */
void cu_emu_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t bytes,
                      size_t n);

/* ---- cu_runtime_emulated.c ---- */

/* For a library that is given a cu_native_stream(): queues fn(arg), which is not the device's; the bytes of arg are
 * taken at the call. In a graph it is called at every launch. */
void cu_emu_call(void *stream, void (*fn)(const void *arg), const void *arg, size_t bytes);
unsigned cu_emu_stream_device(const void *stream);
bool cu_emu_is_capturing(const void *stream);

#endif
