/* common/model/model_conf.h - the numbers of a model, read from its file and checked. */
#ifndef SLUICE_COMMON_MODEL_MODEL_CONF_H
#define SLUICE_COMMON_MODEL_MODEL_CONF_H

#include "common/base/digest.h"
#include "common/model/model_file.h"
#include "kernels/backend.h"

struct sl_model_conf {
    char arch[32]; /* as the file says it */
    char name[128];
    uint32_t n_layers, d_model, d_ff, n_vocab;
    uint32_t context_length;
    /* What attention does, without the norms on q and k, which are a layer's (weights.h). rope_factors points
     * into the open file (in an open model: its own copy), or is NULL. */
    struct sl_attn_shape attn;
    /* Some architectures let most layers see a window only: layer l uses attn where (l + 1) % global_every is
     * 0, attn_local elsewhere. 0 = attn everywhere. Both have the same heads. */
    struct sl_attn_shape attn_local;
    uint32_t global_every;
    float rope_linear; /* positions are divided by it, those of attn_local are not; 1 = off */
    float rms_eps;
    float embed_scale;          /* of a token's row on its way into the layers */
    enum sl_prologue gated;     /* SL_PRO_SWIGLU or SL_PRO_GEGLU: what joins gate and up */
    bool tied_embeddings;       /* no output.weight: the head is the embedding table */
    struct sl_digest128 digest; /* sl_model_digest(); zero until sl_model_open() took it */
};

/* Reads and checks everything forward needs: architecture known, keys present and in range, every tensor
 * present with the right shape and a supported type, no tensor that forward would not use. SL_EUNSUPPORTED
 * (unknown architecture, type, scaling or tensor), SL_EPARSE (missing key, wrong shape); why says what was
 * found, expected, and what to do. */
SL_MUST_CHECK enum sl_err sl_model_conf_read(const struct sl_model_file *f, struct sl_model_conf *out,
                                             struct sl_why *why);

/* The shape of attention in a layer. */
const struct sl_attn_shape *sl_model_conf_attn(const struct sl_model_conf *c, uint32_t layer);

#endif
