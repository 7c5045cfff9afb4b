/* common/model/hf_weights.h - all tensors of a Hugging Face model folder: one model.safetensors, or the parts
 * that model.safetensors.index.json names.
 *
 * The tensors stand in the order of their names, so that it does not show how a model was cut into files.
 * Everything handed out is valid until close. Read-only after open: any thread. */
#ifndef SLUICE_COMMON_MODEL_HF_WEIGHTS_H
#define SLUICE_COMMON_MODEL_HF_WEIGHTS_H

#include "common/base/digest.h"
#include "common/model/safetensors.h"

#define SL_HF_MAX_WEIGHT_FILES 1024 /* each holds gigabytes */

struct sl_hf_weights; /* opaque */

/* On SL_OK *out is the caller's, closed with sl_hf_weights_close(); else *out is untouched and why says what
 * was found, what was expected and what to do. Errors: those of sl_safetensors_open() and
 * sl_hf_read_json(); SL_ENOTFOUND (a file), SL_EPARSE (index and files do not fit together), SL_EUNSUPPORTED
 * (no safetensors). */
SL_MUST_CHECK enum sl_err sl_hf_weights_open(const char *folder, struct sl_hf_weights **out,
                                             struct sl_why *why);
void sl_hf_weights_close(struct sl_hf_weights *w); /* takes NULL */

/* The files' states; *newest_ns is raised to the last change of any. */
void sl_hf_weights_id(const struct sl_hf_weights *w, struct sl_digest128 *digest, int64_t *newest_ns);
/* As sl_file_map_release(), whichever file it is. */
void sl_hf_weights_release(const struct sl_hf_weights *w, const void *p, size_t n);
size_t sl_hf_weights_n(const struct sl_hf_weights *w);
const struct sl_safetensor *sl_hf_weights_at(const struct sl_hf_weights *w, size_t i); /* i < n */

#endif
