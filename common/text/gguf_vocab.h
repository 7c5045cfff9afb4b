/* common/text/gguf_vocab.h - takes vocabulary and general facts out of a GGUF file; the tensors stay unread.
 */
#ifndef SLUICE_COMMON_TEXT_GGUF_VOCAB_H
#define SLUICE_COMMON_TEXT_GGUF_VOCAB_H

#include "common/base/gguf.h"
#include "common/text/vocab.h"

/* Both outputs are filled on SL_OK (src to be finished with sl_vocab_src_fini; nothing points into the file)
 * and src is empty on error. Errors: those of sl_gguf_open(); SL_ENOTFOUND (no vocabulary in the file),
 * SL_EINVAL, SL_ETOOBIG. */
SL_MUST_CHECK enum sl_err sl_gguf_vocab_load(const char *path, struct sl_vocab_src *src,
                                             struct sl_model_info *info, struct sl_why *why);
/* The same from a file that is already open. */
SL_MUST_CHECK enum sl_err sl_gguf_vocab_read(const struct sl_gguf *g, struct sl_vocab_src *src,
                                             struct sl_model_info *info, struct sl_why *why);

#endif
