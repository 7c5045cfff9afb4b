/* kernels/cpu/isa_portable.h - the functions behind sl_cpu_isa_portable; contracts beside struct sl_cpu_isa.
 */
#ifndef SLUICE_KERNELS_CPU_ISA_PORTABLE_H
#define SLUICE_KERNELS_CPU_ISA_PORTABLE_H

#include "kernels/cpu/cpu_dev.h"

void sl_portable_rmsnorm_row(const float *x, const float *w, float eps, uint32_t n, float *y);
void sl_portable_norm_add_row(const float *y, const float *w, float eps, uint32_t n, float *x);
void sl_portable_swiglu_row(const float *x, uint32_t n, float *y);
void sl_portable_geglu_row(const float *x, uint32_t n, float *y);
void sl_portable_quant_row(const float *x, uint32_t n, struct sl_qblock *to, size_t stride);
void sl_portable_bf16_row(const float *x, uint32_t n, uint16_t *y);
void sl_portable_panel(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                       uint32_t r1, const struct sl_store *to);
void sl_portable_angles(uint32_t pos, const float *freq, uint32_t n, float *cos_out, float *sin_out);
void sl_portable_rotate(float *head, uint32_t n_pairs, enum sl_rope_layout layout, const float *cos_in,
                        const float *sin_in);
void sl_portable_kv_store(const float *x, uint32_t n, enum sl_dtype type, void *to);
void sl_portable_kv_quantise(const float *x, uint32_t n, enum sl_dtype type, void *to, void *scale);
void sl_portable_attn_tile(const struct sl_attn_tile *t, const struct sl_attn_scratch *s);
/* attention_q8_portable.c: query row r of a tile, the n positions of a block, and one against the other. */
void sl_portable_q8_query(const float *q, uint32_t head_dim, float scale, const struct sl_attn_scratch *s,
                          uint32_t r);
void sl_portable_q8_load(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                         uint32_t n);
void sl_portable_q8_attend(const struct sl_attn_scratch *s, uint32_t r, uint32_t first, uint32_t n,
                           uint32_t head_dim);
/* The sum of the weights of a block, in the order of all instruction sets. */
float sl_portable_attn_sum(const float p[SL_ATTN_BLOCK]);
void sl_portable_attn_merge(float *total, float *total_m, float *total_l, const float *acc, float m, float l,
                            uint32_t head_dim);
void sl_portable_attn_finish(const float *total, float total_l, uint32_t head_dim, float *out);

#endif
