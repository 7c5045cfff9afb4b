/* common/text/stop_match.h - stop strings in streamed text, also across token borders (step 11 of the request
 * path).
 *
 * The match that ends first wins; of those that end together, the longest. So the result does not depend on
 * how the text is cut into pieces. Text that may still become a stop string is held back. Threads: one per
 * choice of a request, one thread. */
#ifndef SLUICE_COMMON_TEXT_STOP_MATCH_H
#define SLUICE_COMMON_TEXT_STOP_MATCH_H

#include "common/base/buf.h"

#define SL_STOP_MAX_STRINGS 16
#define SL_STOP_MAX_BYTES   256 /* of one string */

struct sl_stop; /* opaque */

/* strings are copied. n may be 0: everything passes. SL_ETOOBIG over a limit above, SL_EINVAL for an empty
 * string. */
SL_MUST_CHECK enum sl_err sl_stop_new(const char *const *strings, const size_t *lens, size_t n,
                                      struct sl_stop **out, struct sl_why *why);
void sl_stop_free(struct sl_stop *s); /* takes NULL */

/* Takes the next text and appends to out what is safe to show. Returns the index of the stop string that was
 * completed, or -1. After a match out ends just before it (behind it when include is true), the rest of the
 * text is dropped, and further calls add nothing and return the same index. */
int sl_stop_push(struct sl_stop *s, const char *text, size_t n, bool include, struct sl_buf *out);
/* The generation ended without a match: appends what was held back. */
void sl_stop_end(struct sl_stop *s, struct sl_buf *out);
size_t sl_stop_held_bytes(const struct sl_stop *s);

#endif
