/* common/model/hf_config.h - what config.json of a Hugging Face folder says, in GGUF's words.
 *
 * Only what is understood whole is let through: a kind of model, an activation, a scaling or a quantisation
 * that is not computed here is refused by name, since a model that nearly fits gives plausible and wrong
 * answers. What the numbers must be is model_conf.c's business. */
#ifndef SLUICE_COMMON_MODEL_HF_CONFIG_H
#define SLUICE_COMMON_MODEL_HF_CONFIG_H

#include <jansson.h>
#include "common/model/model_file_impl.h"

#define SL_HF_MAX_ENTRIES  32
#define SL_HF_MAX_HEAD_DIM 1024 /* bounds what is computed from it before model_conf.c checks it */

struct sl_hf_entry {
    char key[64]; /* "llama.block_count" */
    struct sl_model_value value;
};

struct sl_hf_config {
    const char *arch; /* GGUF's */
    char name[128];   /* the folder's */
    struct sl_hf_entry entries[SL_HF_MAX_ENTRIES];
    size_t n_entries;
    uint32_t n_heads, n_kv_heads, head_dim, n_vocab;
    bool pairs;         /* GGUF has the rows of q and k in pairs, the folder in halves */
    bool norm_plus_one; /* a norm multiplies by 1 + weight: GGUF stores the sum */
    bool sandwich;      /* norms behind attention and feed-forward too */
    bool tied;          /* the head is the embedding table, also where lm_head.weight is there */
    bool nested;        /* the language model is a part of another: its tensors have a prefix */
    bool factors;       /* rope_factors is set */
    float rope_factors[SL_HF_MAX_HEAD_DIM / 2]; /* [head_dim / 2]: GGUF's rope_freqs.weight */
};

/* config: the parsed file, borrowed; name: the folder's, for messages and as the model's name. Texts of
 * entries point into *out or are static. Errors: SL_EUNSUPPORTED, SL_EPARSE, with a sentence. */
SL_MUST_CHECK enum sl_err sl_hf_config_read(const json_t *config, const char *name, struct sl_hf_config *out,
                                            struct sl_why *why);
/* NULL when there is none. */
const struct sl_model_value *sl_hf_config_get(const struct sl_hf_config *c, const char *key);

#endif
