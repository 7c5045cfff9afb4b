/* common/text/hf_impl.h - shared by the readers of tokenizer.json: hf_tokenizer.c (tokens and merges) and
 * hf_pipeline.c (what happens to a text before and after). */
#ifndef SLUICE_COMMON_TEXT_HF_IMPL_H
#define SLUICE_COMMON_TEXT_HF_IMPL_H

#include <jansson.h>
#include "common/text/normalise.h"
#include "common/text/pretoken.h"
#include "common/text/vocab.h"

struct hf_reader {
    const char *name; /* of the file, for messages */
    struct sl_why *why;
    struct sl_vocab_src *v;
    struct sl_vocab_norm norms[SL_NORMAL_MAX_STEPS];
    size_t n_norms;
    struct sl_vocab_cut cuts[SL_PRETOKEN_MAX_CUTS];
    size_t n_cuts;
    bool byte_level; /* the pre-tokeniser ends in bytes */
};

enum sl_err sl_hf_no_memory(const struct hf_reader *r);
/* SL_EUNSUPPORTED: "FILE: where of type \"...\" is not supported". */
enum sl_err sl_hf_refuse_type(const struct hf_reader *r, const char *where, const json_t *object);
/* Every key must be one of known, a list of words. */
SL_MUST_CHECK enum sl_err sl_hf_only_keys(const struct hf_reader *r, const char *where, const json_t *object,
                                          const char *known);
/* object's type, "" when there is none. */
const char *sl_hf_type(const json_t *object);
/* An optional true or false. SL_EPARSE when it is something else. */
SL_MUST_CHECK enum sl_err sl_hf_bool(const struct hf_reader *r, const json_t *object, const char *key,
                                     bool *out);
/* A string as bytes; valid as long as the JSON. */
struct sl_vocab_str sl_hf_str(const json_t *string);

/* hf_pipeline.c */
SL_MUST_CHECK enum sl_err sl_hf_normalizer(struct hf_reader *r, const json_t *normalizer);
SL_MUST_CHECK enum sl_err sl_hf_pre_tokenizer(struct hf_reader *r, const json_t *pre);
/* Sets bos and eos as the template has them. */
SL_MUST_CHECK enum sl_err sl_hf_post_processor(struct hf_reader *r, const json_t *post);
SL_MUST_CHECK enum sl_err sl_hf_decoder(const struct hf_reader *r, const json_t *decoder);

#endif
