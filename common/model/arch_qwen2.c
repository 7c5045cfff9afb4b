/* common/model/arch_qwen2.c - Qwen 2 and 2.5: q, k and v have biases. */
#include "common/model/arch.h"

static const struct sl_tensor_rule rules[] = {
    {"attn_q.bias", SL_Q_DIM, SL_ONE, false},
    {"attn_k.bias", SL_KV_DIM, SL_ONE, false},
    {"attn_v.bias", SL_KV_DIM, SL_ONE, false},
    {"attn_output.bias", SL_D_MODEL, SL_ONE, true},
};

const struct sl_arch sl_arch_qwen2 = {
    .name = "qwen2",
    .rope_layout = SL_ROPE_HALVES,
    .layer_rules = rules,
    .n_layer_rules = SL_COUNTOF(rules),
};
