/* common/grammar/regex_terms.h - languages over up to 256 kinds of characters, as terms that are kept once and whose rest
 * behind a character is a term again (Brzozowski's derivative). So a term is the state of an automaton, also where two
 * languages are to hold at once or one is not to. */
#ifndef SLUICE_COMMON_GRAMMAR_REGEX_TERMS_H
#define SLUICE_COMMON_GRAMMAR_REGEX_TERMS_H

#include <stdbool.h>
#include <stdint.h>

#define SL_TERM_MAX_KINDS 256 /* of characters */
#define SL_TERM_NO_END    UINT32_MAX

typedef uint32_t sl_term;
enum { SL_TERM_NONE, SL_TERM_EMPTY, SL_TERM_ALL }; /* no text; the empty one; every text */

/* Kinds of characters, a bit each. */
struct sl_kinds {
    uint64_t bits[SL_TERM_MAX_KINDS / 64];
};

struct sl_terms; /* opaque */

/* *work_left outlives it: terms that may still be looked at or made. */
struct sl_terms *sl_terms_new(uint32_t n_kinds, uint32_t *work_left);
void sl_terms_free(struct sl_terms *t); /* takes NULL */
/* No work is left: what comes since then means nothing. */
bool sl_terms_tired(const struct sl_terms *t);

sl_term sl_term_kinds(struct sl_terms *t, const struct sl_kinds *k); /* one character of them */
sl_term sl_term_cat(struct sl_terms *t, sl_term a, sl_term b);
sl_term sl_term_or(struct sl_terms *t, sl_term a, sl_term b);
sl_term sl_term_and(struct sl_terms *t, sl_term a, sl_term b);
sl_term sl_term_not(struct sl_terms *t, sl_term a);
sl_term sl_term_repeat(struct sl_terms *t, sl_term a, uint32_t min, uint32_t max);

bool sl_term_has_empty(const struct sl_terms *t, sl_term a);

/* Where a character leads from a term. */
struct sl_term_way {
    struct sl_kinds kinds;
    sl_term to; /* never SL_TERM_NONE */
};
/* All of them, each kind in at most one and each end once: [*n] in a place that the next call uses again. */
const struct sl_term_way *sl_term_ways(struct sl_terms *t, sl_term a, uint32_t *n);

#endif
