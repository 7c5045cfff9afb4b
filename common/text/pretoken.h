/* common/text/pretoken.h - cuts a text into the pieces inside which byte-level BPE may merge.
 *
 * The rule is chosen by the name in the model file (tokenizer.ggml.pre); an unknown name is refused, because
 * a wrong rule gives plausible and wrong tokens. Threads: immutable after open; any thread. */
#ifndef SLUICE_COMMON_TEXT_PRETOKEN_H
#define SLUICE_COMMON_TEXT_PRETOKEN_H

#include "common/base/err.h"

struct sl_pretoken; /* opaque */

/* SL_EUNSUPPORTED with a sentence that lists the known names. name may be NULL (refused too). */
SL_MUST_CHECK enum sl_err sl_pretoken_open(const char *name, struct sl_pretoken **out, struct sl_why *why);
void sl_pretoken_close(struct sl_pretoken *p); /* takes NULL */

/* A piece, n > 0; whatever but SL_OK ends the walk. */
typedef enum sl_err sl_piece_fn(void *arg, const char *piece, size_t n);

/* text must be valid UTF-8. Calls fn for all pieces in order; together they are the text. Returns fn's error,
 * SL_ETOOBIG (the regular expression engine ran into its limits) or SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_pretoken_split(const struct sl_pretoken *p, const char *text, size_t len,
                                            sl_piece_fn *fn, void *arg);

#endif
