/* common/model/arch_qwen3.c - Qwen 3: each head of q and k is normed before it is rotated. */
#include "common/model/arch.h"

static const struct sl_tensor_rule rules[] = {
    {"attn_q_norm.weight", SL_HEAD_DIM, SL_ONE, false},
    {"attn_k_norm.weight", SL_HEAD_DIM, SL_ONE, false},
    {"attn_q.bias", SL_Q_DIM, SL_ONE, true},
    {"attn_k.bias", SL_KV_DIM, SL_ONE, true},
    {"attn_v.bias", SL_KV_DIM, SL_ONE, true},
    {"attn_output.bias", SL_D_MODEL, SL_ONE, true},
};

const struct sl_arch sl_arch_qwen3 = {
    .name = "qwen3",
    .rope_layout = SL_ROPE_HALVES,
    .layer_rules = rules,
    .n_layer_rules = SL_COUNTOF(rules),
};
