/* common/grammar/matcher.h - reads a text byte by byte and knows whether it can still become one of a
 * program's.
 *
 * A state is a set of threads (grammar.h), kept once and named by a number; where a byte leads from it is
 * found out when it is first asked, so that the common path is one look into a table. Which state a text
 * leads to depends on the text only. One thread of execution. */
#ifndef SLUICE_COMMON_GRAMMAR_MATCHER_H
#define SLUICE_COMMON_GRAMMAR_MATCHER_H

#include "common/grammar/grammar.h"

#define SL_MATCHER_DEAD         0u /* no text of the program begins so */
#define SL_MATCHER_START        1u
#define SL_MATCHER_MARK         256u /* as a symbol: SL_INSN_MARK; leads somewhere exactly where a text is free */
#define SL_MATCHER_MAX_DEPTH    128  /* rules inside each other; deeper texts are not read */
#define SL_MATCHER_MAX_VISITS   4096 /* instructions looked at for one byte; what lies behind is not read */
#define SL_MATCHER_KEEP         4096 /* states kept between two tokens: about 1 KiB each, and their threads: */
#define SL_MATCHER_KEEP_NUMBERS (1u << 18) /* of 4 bytes */
/* While it is found out which tokens may come: what lies behind is left out. A schema of a kilobyte can have millions. */
#define SL_MATCHER_LOOK         (2 * SL_MATCHER_KEEP)
#define SL_MATCHER_LOOK_NUMBERS (2 * SL_MATCHER_KEEP_NUMBERS)

struct sl_matcher; /* opaque */

/* p outlives it. NULL: no text is in its language, not even an empty one. */
struct sl_matcher *sl_matcher_new(const struct sl_grammar *p);
void sl_matcher_free(struct sl_matcher *m); /* takes NULL */

/* Where a byte, or the mark, leads from a state; SL_MATCHER_DEAD leads nowhere else. Numbers hold until the next trim.
 * Allocates when it was not asked before. */
uint32_t sl_matcher_step(struct sl_matcher *m, uint32_t state, unsigned symbol);
/* The same, but SL_MATCHER_DEAD too where there would be more states than SL_MATCHER_LOOK: the matcher is full then,
 * and finds out nothing more until the next trim. */
uint32_t sl_matcher_look(struct sl_matcher *m, uint32_t state, unsigned symbol);
bool sl_matcher_is_full(const struct sl_matcher *m);
bool sl_matcher_is_new(
    const struct sl_matcher *m); /* it has one state: all else was forgotten, or never asked */
bool sl_matcher_ends(const struct sl_matcher *m, uint32_t state); /* the text may end here */
/* Forgets all states but one when there are more than are kept; returns its new number, and true in *forgot. */
uint32_t sl_matcher_trim(struct sl_matcher *m, uint32_t state, bool *forgot);
uint32_t sl_matcher_forget(struct sl_matcher *m, uint32_t state); /* the same, however many there are */

#endif
