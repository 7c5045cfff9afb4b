/* common/text/pretoken.h - cuts a text into the pieces inside which BPE may merge.
 *
 * Threads: immutable after open; any thread. */
#ifndef SLUICE_COMMON_TEXT_PRETOKEN_H
#define SLUICE_COMMON_TEXT_PRETOKEN_H

#include "common/text/vocab.h"

#define SL_PRETOKEN_MAX_CUTS 8

struct sl_pretoken; /* opaque */

/* The patterns are translated (pattern.h) and compiled. SL_EUNSUPPORTED, SL_ETOOBIG with a sentence. */
SL_MUST_CHECK enum sl_err sl_pretoken_open(const struct sl_vocab_cut *cuts, size_t n_cuts,
                                           struct sl_pretoken **out, struct sl_why *why);
void sl_pretoken_close(struct sl_pretoken *p); /* takes NULL */

/* A piece, n > 0; whatever but SL_OK ends the walk. */
typedef enum sl_err sl_piece_fn(void *arg, const char *piece, size_t n);

/* text must be valid UTF-8. Calls fn for all pieces in order; together they are the text, less what
 * SL_CUT_REMOVED drops. Returns fn's error, SL_ETOOBIG (the regular expression engine ran into its limits) or
 * SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_pretoken_split(const struct sl_pretoken *p, const char *text, size_t len,
                                            sl_piece_fn *fn, void *arg);

#endif
