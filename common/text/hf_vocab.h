/* common/text/hf_vocab.h - takes the vocabulary out of a Hugging Face model folder.
 *
 * Files: tokenizer.json and config.json; tokenizer_config.json, special_tokens_map.json,
 * generation_config.json and chat_template.jinja where they are there. Anything in tokenizer.json that is not
 * understood is refused by name: a tokenizer that nearly works gives plausible and wrong tokens.
 *
 * Where this differs from transformers, on purpose: control tokens are looked for before normalising, also
 * those that say "normalized" (they must be left alone by the normaliser); tokens that the model has no row
 * for (vocab_size of config.json) are left out. */
#ifndef SLUICE_COMMON_TEXT_HF_VOCAB_H
#define SLUICE_COMMON_TEXT_HF_VOCAB_H

#include "common/text/hf_files.h"
#include "common/text/vocab.h"

/* Both outputs are filled on SL_OK (src to be finished with sl_vocab_src_fini) and src is empty on error.
 * Errors: SL_ENOTFOUND (a file), SL_EIO, SL_EPARSE (no JSON, or not the kind expected), SL_EUNSUPPORTED,
 * SL_EINVAL, SL_ETOOBIG, SL_ENOMEM; *why says it in a sentence. */
SL_MUST_CHECK enum sl_err sl_hf_vocab_load(const char *folder, struct sl_vocab_src *src,
                                           struct sl_model_info *info, struct sl_why *why);

/* tokenizer.json alone, from memory; name is for messages. n_vocab: tokens that the model knows, 0 for those
 * of the file. */
SL_MUST_CHECK enum sl_err sl_hf_tokenizer_parse(const char *json, size_t n, const char *name,
                                                uint32_t n_vocab, struct sl_vocab_src *src,
                                                struct sl_why *why);

#endif
