/* common/grammar/schema_read.h - questions about a JSON schema that write nothing. */
#ifndef SLUICE_COMMON_GRAMMAR_SCHEMA_READ_H
#define SLUICE_COMMON_GRAMMAR_SCHEMA_READ_H

#include <jansson.h>
#include <stdbool.h>

/* What a $ref points to: "#", "#/a/b" with ~0 and ~1 as RFC 6901 has it. NULL: nothing. */
const json_t *sl_schema_pointed(const json_t *root, const char *ref);
/* Whether a list, as of "required", has the text. */
bool sl_schema_lists(const json_t *list, const char *text);
/* Whether a value is of a type, or of one of a list of types; any is when there is none. */
bool sl_schema_fits_type(const json_t *value, const json_t *types);
/* Whether what a schema names is of these types, by its own word. */
bool sl_schema_keeps_type(const json_t *root, const json_t *schema, const json_t *types);
/* Whether it is a string's, and its allOf says no more than what a string has to be. */
bool sl_schema_all_of_text(const json_t *schema);

#endif
