/* common/grammar/number_bound.h - the numbers on one side of a bound, as an expression (regex.h) over their digits. */
#ifndef SLUICE_COMMON_GRAMMAR_NUMBER_BOUND_H
#define SLUICE_COMMON_GRAMMAR_NUMBER_BOUND_H

#include <jansson.h>

#include "common/base/buf.h"

#define SL_NUMBER_WHOLE_DIGITS 16 /* in front of the point; doubles hold 15 to 17 */
#define SL_NUMBER_PART_DIGITS  16 /* behind it */
/* Both together where there is a bound: two different numbers of that many digits are two different doubles, so that a
 * number on the right side of a bound stays there when it is read as one. */
#define SL_NUMBER_BOUND_DIGITS 15

enum sl_bound { SL_AT_LEAST, SL_MORE_THAN, SL_AT_MOST, SL_LESS_THAN };

/* Appends to out what a number matches that is written without an exponent and is `side` of the bound; nothing when all
 * numbers of up to 16 digits are. SL_EINVAL: none is; SL_EUNSUPPORTED: the bound has more digits behind the point than are
 * kept to. */
SL_MUST_CHECK enum sl_err sl_number_bound(const json_t *bound, enum sl_bound side, struct sl_buf *out,
                                          struct sl_why *why);

#endif
