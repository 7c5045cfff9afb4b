/* common/grammar/text_format.h - the values of JSON schema's "format" that are kept to, as expressions (regex.h). */
#ifndef SLUICE_COMMON_GRAMMAR_TEXT_FORMAT_H
#define SLUICE_COMMON_GRAMMAR_TEXT_FORMAT_H

/* What a whole text of the format matches, static; NULL: it is not kept to, and only describes. */
const char *sl_text_format(const char *name);

#endif
