/* common/text/special_match.h - finds the tokens that are literal text (control and user-defined ones),
 * longest first. */
#ifndef SLUICE_COMMON_TEXT_SPECIAL_MATCH_H
#define SLUICE_COMMON_TEXT_SPECIAL_MATCH_H

#include <stdint.h>
#include "common/base/err.h"

struct sl_special; /* opaque: a trie, immutable once filled */

struct sl_special *sl_special_new(void);
void sl_special_free(struct sl_special *s); /* takes NULL */
/* n > 0. A text that is there already keeps its first id. */
void sl_special_add(struct sl_special *s, const char *text, size_t n, uint32_t id);

/* Walks the tokens that text[0..len) begins with, short ones first: start with *node = 0; true with the next
 * token's id and length, false when there are no more. */
bool sl_special_next(const struct sl_special *s, const char *text, size_t len, uint32_t *node, size_t *n,
                     uint32_t *id);
/* The first place from at on where a token may begin; len when there is none. */
size_t sl_special_seek(const struct sl_special *s, const char *text, size_t len, size_t at);

#endif
