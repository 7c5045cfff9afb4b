/* kernels/cpu/isa_avx2.c - the table of inner loops with AVX2, FMA and F16C: what x86 CPUs have since 2013.
 */
#include "kernels/cpu/isa_avx2.h"

const struct sl_cpu_isa sl_cpu_isa_avx2 = {
    .rmsnorm_row = sl_avx2_rmsnorm_row,
    .norm_add_row = sl_avx2_norm_add_row,
    .swiglu_row = sl_avx2_swiglu_row,
    .geglu_row = sl_avx2_geglu_row,
    .quant_row = sl_avx2_quant_row,
    .bf16_row = sl_avx2_bf16_row,
    .panel = sl_avx2_panel,
    .angles = sl_avx2_angles,
    .rotate = sl_avx2_rotate,
    .kv_store = sl_avx2_kv_store,
    .kv_quantise = sl_avx2_kv_quantise,
    .attn_tile = sl_avx2_attn_tile,
    .attn_merge = sl_avx2_attn_merge,
    .attn_finish = sl_avx2_attn_finish,
};
