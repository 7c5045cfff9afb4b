/* kernels/cpu/isa_avx512.h - the functions behind sl_cpu_isa_avx512; contracts beside struct sl_cpu_isa.
 * Included by
 * *_avx512.c only. */
#ifndef SLUICE_KERNELS_CPU_ISA_AVX512_H
#define SLUICE_KERNELS_CPU_ISA_AVX512_H

#include <string.h>
#include "kernels/cpu/cpu_dev.h"

void sl_avx512_rmsnorm_row(const float *x, const float *w, float eps, uint32_t n, float *y);
void sl_avx512_norm_add_row(const float *y, const float *w, float eps, uint32_t n, float *x);
void sl_avx512_swiglu_row(const float *x, uint32_t n, float *y);
void sl_avx512_geglu_row(const float *x, uint32_t n, float *y);
void sl_avx512_quant_row(const float *x, uint32_t n, struct sl_qblock *to, size_t stride);
void sl_avx512_bf16_row(const float *x, uint32_t n, uint16_t *y);
void sl_avx512_angles(uint32_t pos, const float *freq, uint32_t n, float *cos_out, float *sin_out);
void sl_avx512_rotate(float *head, uint32_t n_pairs, enum sl_rope_layout layout, const float *cos_in,
                      const float *sin_in);
void sl_avx512_kv_store(const float *x, uint32_t n, enum sl_dtype type, void *to);
void sl_avx512_kv_quantise(const float *x, uint32_t n, enum sl_dtype type, void *to, void *scale);
void sl_avx512_panel(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                     uint32_t r1, const struct sl_store *to);
void sl_avx512_attn_tile(const struct sl_attn_tile *t, const struct sl_attn_scratch *s);
void sl_avx512_attn_merge(float *total, float *total_m, float *total_l, const float *acc, float m, float l,
                          uint32_t head_dim);
void sl_avx512_attn_finish(const float *total, float total_l, uint32_t head_dim, float *out);

#endif
