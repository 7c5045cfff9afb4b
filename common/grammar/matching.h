/* common/grammar/matching.h - rules for texts that meet conditions (regex.h), each written once however often it is asked
 * for. */
#ifndef SLUICE_COMMON_GRAMMAR_MATCHING_H
#define SLUICE_COMMON_GRAMMAR_MATCHING_H

#include <jansson.h>

#include "common/base/buf.h"
#include "common/grammar/grammar_writer.h"

struct sl_matching {
    struct sl_hashmap *rules; /* conditions, as bytes -> label + 1 */
    uint32_t work_left;       /* for all of a schema */
};

void sl_matching_init(struct sl_matching *m);
void sl_matching_fini(struct sl_matching *m);

enum sl_match_kind {
    SL_MATCH_PART = 'p',    /* an expression matches somewhere in it */
    SL_MATCH_WHOLE = 'w',   /* it matches all of it */
    SL_MATCH_NOWHERE = 'n', /* it matches nowhere */
    SL_MATCH_EXCEPT = 'e'   /* the text is another one than this */
};

/* Conditions on one text. Zero it, then init. */
struct sl_asked {
    struct sl_buf conditions; /* of each: kind, bytes, the bytes */
    uint32_t min, max;        /* characters */
    bool in_string;           /* of JSON: quotes around it */
};

void sl_asked_init(struct sl_asked *a, bool in_string);
void sl_asked_fini(struct sl_asked *a);
void sl_asked_add(struct sl_asked *a, enum sl_match_kind kind, const char *text, size_t n);

/* Writes one of the texts and a return, or goes on with the rule that was written for the same conditions. Errors as
 * sl_regex_match() and sl_regex_write(). */
SL_MUST_CHECK enum sl_err sl_matching_write(struct sl_matching *m, const struct sl_asked *a,
                                            struct sl_writer *out, struct sl_why *why);

#endif
