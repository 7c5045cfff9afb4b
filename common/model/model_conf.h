/* common/model/model_conf.h - the numbers of a model, read from its file and checked. */
#ifndef SLUICE_COMMON_MODEL_MODEL_CONF_H
#define SLUICE_COMMON_MODEL_MODEL_CONF_H

#include "common/base/digest.h"
#include "common/base/gguf.h"
#include "kernels/backend.h"

struct sl_model_conf {
    char arch[32]; /* "llama" */
    char name[128];
    uint32_t n_layers, d_model, d_ff, n_vocab, context_length;
    struct sl_attn_shape attn; /* rope_factors points into the open file, or NULL */
    float rms_eps;
    bool tied_embeddings;       /* no output.weight: the head is the embedding table */
    struct sl_digest128 digest; /* of the file's metadata and tensor bytes */
};

/* Reads and checks everything forward needs: architecture known, keys present and in range, every tensor
 * present with the right shape and a supported type. SL_EUNSUPPORTED (unknown architecture or type),
 * SL_EPARSE (missing key, wrong shape); why says what was found, expected, and what to do. */
SL_MUST_CHECK enum sl_err sl_model_conf_read(const struct sl_gguf *g, struct sl_model_conf *out,
                                             struct sl_why *why);

#endif
