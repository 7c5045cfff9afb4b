/* common/grammar/text_format.h - the values of JSON schema's "format" that are kept to, as expressions (regex.h). */
#ifndef SLUICE_COMMON_GRAMMAR_TEXT_FORMAT_H
#define SLUICE_COMMON_GRAMMAR_TEXT_FORMAT_H

#include <stdint.h>

struct sl_text_format {
    const char *name, *expression; /* which a whole text matches */
    uint32_t longest;              /* characters of such a text, at most */
};

/* Static; NULL: it is not kept to, and only describes. */
const struct sl_text_format *sl_text_format(const char *name);

#endif
