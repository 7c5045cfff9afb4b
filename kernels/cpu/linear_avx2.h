/* kernels/cpu/linear_avx2.h - what linear_*avx2.c share. Included by *_avx2.c only. */
#ifndef SLUICE_KERNELS_CPU_LINEAR_AVX2_H
#define SLUICE_KERNELS_CPU_LINEAR_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/isa_avx2.h"

#define VECTORS 4u /* of 8 columns in a panel */
#define INLINE  static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The compiler is to make a sum step by step, in this register: moved about or as trees sums would spill. */
#define IN_TURN(sum) __asm__("" : "+x"(sum))

/* The sums of rows [r0, r0 + rows) times panel p, before bias; sums is 32-byte aligned. Quantised types. */
void sl_avx2_sum_quantised(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                           uint32_t rows, float (*sums)[SL_PANEL]);
/* BF16. */
void sl_avx2_sum_bf16(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                      uint32_t rows, float (*sums)[SL_PANEL]);

#endif
