/* common/model/model_digest.h - what makes two model files the same model. */
#ifndef SLUICE_COMMON_MODEL_MODEL_DIGEST_H
#define SLUICE_COMMON_MODEL_MODEL_DIGEST_H

#include "common/model/model_conf.h"

/* Of the numbers of c, the vocabulary (tokens, types, merges) and every tensor's name, shape, type and bytes:
 * equal files compute and mean the same. Descriptions and the chat template do not count.
 *
 * Reads every tensor, on n_threads threads, unless cache_dir (NULL = none) remembers the files by their id.
 */
struct sl_digest128 sl_model_digest(const struct sl_model_file *f, const struct sl_model_conf *c,
                                    unsigned n_threads, const char *cache_dir);

/* Files whose last change is younger may change again within the same tick of the clock: not remembered. */
#define SL_DIGEST_SETTLED_NS INT64_C(2000000000)

#endif
