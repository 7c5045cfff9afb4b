/* common/model/arch.h - one architecture: what its files hold and how it differs.
 *
 * Each is one constant in a file of its own (arch_NAME.c) and one row of the table in model_conf.c. An entry
 * answers what a layer has and how it rotates; whatever else is special is set by its quirks() as fields of
 * struct sl_model_conf. Nothing after model_conf.c asks which architecture it is. */
#ifndef SLUICE_COMMON_MODEL_ARCH_H
#define SLUICE_COMMON_MODEL_ARCH_H

#include "common/model/model_conf.h"

/* Lengths that a tensor's sides have; their numbers come from the file's keys. */
enum sl_side { SL_ONE, SL_D_MODEL, SL_D_FF, SL_N_VOCAB, SL_Q_DIM, SL_KV_DIM, SL_HEAD_DIM, SL_ROPE_HALF };

struct sl_tensor_rule {
    const char *name;        /* after "blk.N." for those of a layer */
    enum sl_side cols, rows; /* a vector has rows SL_ONE */
    bool optional;
};

/* What is being read: an entry's quirks() get it. */
struct sl_conf_reader {
    const struct sl_model_file *f;
    const struct sl_arch *arch;
    struct sl_model_conf *c;
    struct sl_why *why;
};

struct sl_arch {
    const char *name; /* general.architecture, and what its keys begin with */
    enum sl_rope_layout rope_layout;
    /* Of a layer, beside those every architecture here has (tensor_check.c). */
    const struct sl_tensor_rule *layer_rules;
    size_t n_layer_rules;
    /* (optional) Called once the common numbers are read: sets fields of r->c. */
    enum sl_err (*quirks)(const struct sl_conf_reader *r);
};

extern const struct sl_arch sl_arch_llama, sl_arch_qwen2, sl_arch_qwen3, sl_arch_gemma3;

#define SL_ARCH_KEY_BYTES 96

/* "llama.block_count" from "block_count". */
const char *sl_conf_key(const struct sl_conf_reader *r, const char *suffix, char buf[SL_ARCH_KEY_BYTES]);
/* A count in [1, max]. When the key is absent *out stays, and 0 then means that it was needed. */
SL_MUST_CHECK enum sl_err sl_conf_count(const struct sl_conf_reader *r, const char *suffix, uint32_t max,
                                        uint32_t *out);
/* A positive, finite number; absent as above. */
SL_MUST_CHECK enum sl_err sl_conf_positive(const struct sl_conf_reader *r, const char *suffix, float *out);

/* tensor_check.c: every tensor is there, has the right shape and a type that can be computed with, and none
 * is there that would be left out. Sets what only tensors tell: n_vocab, tied_embeddings, rope_factors. */
SL_MUST_CHECK enum sl_err sl_conf_check_tensors(const struct sl_conf_reader *r);

#endif
