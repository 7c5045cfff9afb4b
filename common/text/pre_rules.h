/* common/text/pre_rules.h - the rules behind the names that GGUF files give (tokenizer.ggml.pre). */
#ifndef SLUICE_COMMON_TEXT_PRE_RULES_H
#define SLUICE_COMMON_TEXT_PRE_RULES_H

#include "common/text/vocab.h"

/* NULL when the name is not known or NULL. Static storage. */
const struct sl_vocab_rules *sl_pre_rules(const char *name);

/* SL_EUNSUPPORTED with a sentence that lists the known names: an unknown one is refused, because a wrong rule
 * gives plausible and wrong tokens. */
enum sl_err sl_pre_rules_unknown(const char *name, struct sl_why *why);

#endif
