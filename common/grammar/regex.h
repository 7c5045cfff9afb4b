/* common/grammar/regex.h - the texts that meet all of some conditions (expressions they match, lengths, texts they are
 * not) -> a program.
 *
 * The texts are known as an automaton over characters before the program is written: none that begins in it leads to a
 * dead end. What stands in a JSON string is written there in one way only: a character that has to be escaped in its
 * shortest escape, any other as itself. */
#ifndef SLUICE_COMMON_GRAMMAR_REGEX_H
#define SLUICE_COMMON_GRAMMAR_REGEX_H

#include "common/grammar/grammar_writer.h"

#define SL_REGEX_MAX_STATES 4096 /* of one automaton */
#define SL_REGEX_MAX_WAYS   512  /* byte texts that lead on from one state; two visits of the matcher each */
#define SL_REGEX_MAX_WORK   (1u << 20) /* terms looked at and made for one schema (regex_terms.h) */

struct sl_regex; /* opaque: conditions */

struct sl_regex *sl_regex_new(void);    /* every text */
void sl_regex_free(struct sl_regex *r); /* takes NULL */

enum sl_regex_where { SL_REGEX_PART, SL_REGEX_WHOLE, SL_REGEX_NOWHERE };

/* The expression matches a part of the text, all of it, or no part. SL_EINVAL, SL_EUNSUPPORTED, SL_ETOOBIG: *why says what was found. */
SL_MUST_CHECK enum sl_err sl_regex_match(struct sl_regex *r, const char *expression, size_t n,
                                         enum sl_regex_where where, struct sl_why *why);
/* Characters; UINT32_MAX: no end. */
void sl_regex_length(struct sl_regex *r, uint32_t min, uint32_t max);
/* It is another text than this one. */
void sl_regex_except(struct sl_regex *r, const char *text, size_t n);

/* Writes one of the texts, and behind it a return. in_string: escaped, and the quote that closes the string behind
 * it. SL_EUNSUPPORTED: one of the limits above, SL_EINVAL: there is no such text; *why says so. *work_left is lessened. */
SL_MUST_CHECK enum sl_err sl_regex_write(struct sl_regex *r, struct sl_writer *out, bool in_string,
                                         uint32_t *work_left, struct sl_why *why);

#endif
