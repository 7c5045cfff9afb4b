/* kernels/cpu/isa_avx512.c - the table of inner loops with AVX-512 (F, BW, VL, DQ, VNNI, BF16). */
#include "kernels/cpu/isa_avx512.h"

const struct sl_cpu_isa sl_cpu_isa_avx512 = {
    .rmsnorm_row = sl_avx512_rmsnorm_row,
    .norm_add_row = sl_avx512_norm_add_row,
    .swiglu_row = sl_avx512_swiglu_row,
    .geglu_row = sl_avx512_geglu_row,
    .quant_row = sl_avx512_quant_row,
    .bf16_row = sl_avx512_bf16_row,
    .panel = sl_avx512_panel,
    .angles = sl_avx512_angles,
    .rotate = sl_avx512_rotate,
    .kv_store = sl_avx512_kv_store,
    .kv_quantise = sl_avx512_kv_quantise,
    .attn_tile = sl_avx512_attn_tile,
    .attn_merge = sl_avx512_attn_merge,
    .attn_finish = sl_avx512_attn_finish,
};
