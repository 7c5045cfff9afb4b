/* tests/support/make_hf/make_hf.h - writes a GGUF model as the Hugging Face folder that it could have been
 * converted from.
 *
 * So every model of sluice-make-model, and a real one for a check by hand, is there in both forms. Matrices
 * that are F32, F16 or BF16 keep their bits, others are unpacked and rounded to a type; vectors stay F32. The
 * vocabulary must be byte-level BPE. Not: rope_freqs.weight, whose parameters cannot be told from it. */
#ifndef SLUICE_TESTS_SUPPORT_MAKE_HF_MAKE_HF_H
#define SLUICE_TESTS_SUPPORT_MAKE_HF_MAKE_HF_H

#include "kernels/tensor.h"
#include "common/base/err.h"

struct sl_make_hf {
    const char *gguf, *folder; /* the folder is there; files in it are replaced */
    enum sl_dtype type;        /* of quantised matrices: SL_F32, SL_F16, SL_BF16 */
    bool nested;               /* as the language model inside another one */
    size_t shard_bytes;        /* most bytes of a weight file; 0 = one file and no index */
};

/* SL_EUNSUPPORTED, SL_EIO and those of sl_gguf_open(), with a sentence. */
SL_MUST_CHECK enum sl_err sl_make_hf_write(const struct sl_make_hf *m, struct sl_why *why);

#endif
