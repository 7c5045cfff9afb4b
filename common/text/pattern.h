/* common/text/pattern.h - regular expressions of model files, translated for PCRE2.
 *
 * tokenizer.json holds expressions for Oniguruma (Ruby syntax). The common part of both syntaxes passes
 * through; what means something else to PCRE2 is written out (white space, word characters, scripts);
 * anything that may mean something else is refused by name, because a pattern read wrongly gives plausible
 * and wrong tokens. */
#ifndef SLUICE_COMMON_TEXT_PATTERN_H
#define SLUICE_COMMON_TEXT_PATTERN_H

#include "common/base/buf.h"

#define SL_PATTERN_MAX_BYTES 8192

/* Appends the translation of src[0..n) to out. SL_EUNSUPPORTED names what is not understood; SL_ETOOBIG. */
SL_MUST_CHECK enum sl_err sl_pattern_translate(const char *src, size_t n, struct sl_buf *out,
                                               struct sl_why *why);
/* Appends an expression that matches exactly src[0..n). */
void sl_pattern_quote(const char *src, size_t n, struct sl_buf *out);

#endif
