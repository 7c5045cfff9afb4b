/* common/text/hf_files.h - reads the small files of a Hugging Face model folder whole. */
#ifndef SLUICE_COMMON_TEXT_HF_FILES_H
#define SLUICE_COMMON_TEXT_HF_FILES_H

#include <jansson.h>
#include "common/base/err.h"

#define SL_HF_MAX_TOKENIZER_BYTES (128u << 20)
#define SL_HF_MAX_CONFIG_BYTES    (16u << 20) /* of config.json and the other small ones, each */

/* folder/name with a NUL behind its *n bytes, for sl_free(). *out is NULL and *n 0 when it is optional and
 * not there. Errors: SL_ENOTFOUND, SL_EIO, SL_ETOOBIG (over max), SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_hf_read_file(const char *folder, const char *name, size_t max, bool optional,
                                          char **out, size_t *n, struct sl_why *why);
/* The same, as a JSON object for json_decref(). SL_EPARSE too. */
SL_MUST_CHECK enum sl_err sl_hf_read_json(const char *folder, const char *name, bool optional, json_t **out,
                                          struct sl_why *why);

#endif
