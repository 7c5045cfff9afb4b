/* common/model/model_conf.h - the numbers of a model, read from its file and checked. */
#ifndef SLUICE_COMMON_MODEL_MODEL_CONF_H
#define SLUICE_COMMON_MODEL_MODEL_CONF_H

#include "common/base/digest.h"
#include "common/model/model_file.h"
#include "kernels/backend.h"

struct sl_model_conf {
    char arch[32]; /* "llama", "qwen2", "qwen3" */
    char name[128];
    uint32_t n_layers, d_model, d_ff, n_vocab;
    uint32_t context_length; /* at most the sliding window, where the file names one */
    struct sl_attn_shape
        attn;          /* rope_factors points into the open file (in an open model: its own copy), or NULL */
    float rope_linear; /* positions are divided by it; 1 = off */
    float rms_eps;
    bool qk_norm;               /* each head of q and k is normed before it is rotated */
    bool tied_embeddings;       /* no output.weight: the head is the embedding table */
    struct sl_digest128 digest; /* sl_model_digest(); zero until sl_model_open() took it */
};

/* Reads and checks everything forward needs: architecture known, keys present and in range, every tensor
 * present with the right shape and a supported type, no tensor that forward would not use. SL_EUNSUPPORTED
 * (unknown architecture, type, scaling or tensor), SL_EPARSE (missing key, wrong shape); why says what was
 * found, expected, and what to do. */
SL_MUST_CHECK enum sl_err sl_model_conf_read(const struct sl_model_file *f, struct sl_model_conf *out,
                                             struct sl_why *why);

#endif
