/* common/model/arch_llama.c - Llama 1 to 3 and all that is built like it: Mistral's files say llama too, some
 * with a window.
 *
 * The converter reorders the rows of q and k so that neighbouring elements rotate. Llama 3.1's stretched
 * frequencies come as the tensor rope_freqs.weight. */
#include "common/model/arch.h"

static const struct sl_tensor_rule rules[] = {
    {"attn_q.bias", SL_Q_DIM, SL_ONE, true},
    {"attn_k.bias", SL_KV_DIM, SL_ONE, true},
    {"attn_v.bias", SL_KV_DIM, SL_ONE, true},
    {"attn_output.bias", SL_D_MODEL, SL_ONE, true},
};

const struct sl_arch sl_arch_llama = {
    .name = "llama",
    .rope_layout = SL_ROPE_PAIRS,
    .layer_rules = rules,
    .n_layer_rules = SL_COUNTOF(rules),
};
