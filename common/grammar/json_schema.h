/* common/grammar/json_schema.h - a JSON schema -> the program of the texts that fit it.
 *
 * Every text of the program is JSON and fits the schema; not every fitting text is in it:
 *   - members of an object come in the order of "properties", optional ones may be left out; where properties
 *     are listed and additionalProperties is absent there are no others (as XGrammar and OpenAI's strict mode
 *     have it);
 *   - blanks: at most one space, or a line feed with up to 20 spaces or tabs, behind { [ , : and in front of
 *     } ];
 *   - numbers have at most 16 digits in front of the point and behind it, and exponents of two;
 *   - escapes \uXXXX stand for no surrogates: characters beyond U+FFFF come as themselves;
 *   - in strings with a pattern or a format, and in names of members that may not be listed ones, characters are
 *     written in one way only (regex.h);
 *   - numbers within bounds have no exponent and, when they are not whole, at most 15 digits;
 *   - lists with prefixItems have all of them, and none behind them where items is absent.
 * Taken: type (also a list), properties, required, additionalProperties; patternProperties without properties;
 * propertyNames (pattern, format, lengths, enum) without properties; minProperties of 1 and maxProperties without
 * properties; items, prefixItems, minItems, maxItems; minLength, maxLength, pattern (regex_parse.h), format
 * (text_format.c; others describe); minimum, maximum, exclusiveMinimum, exclusiveMaximum; enum, const, anyOf, oneOf (as
 * anyOf), allOf of one, and of any number where it says no more of a string; $ref within the schema, also recursive;
 * nullable; booleans as schemas. Without type, words that say something of one type make the value one of it. Words that
 * only describe (title, description, default, discriminator, x-..., ...) are passed over. Anything else is refused by
 * name: it would be promised and not kept.
 *
 * Two words of our own, at the top and alone, ask for an answer that stands as it is and not as JSON:
 * SL_SCHEMA_TEXTS, a list of texts of which it is one, and SL_SCHEMA_REGEX, an expression that all of it matches. */
#ifndef SLUICE_COMMON_GRAMMAR_JSON_SCHEMA_H
#define SLUICE_COMMON_GRAMMAR_JSON_SCHEMA_H

#include <jansson.h>

#include "common/grammar/schema_frame.h"

#define SL_SCHEMA_MAX_BYTES   (64u << 10) /* of its text */
#define SL_SCHEMA_MAX_VALUES  1024        /* of an enum */
#define SL_SCHEMA_TEXTS       "x-sluice-texts"
#define SL_SCHEMA_REGEX       "x-sluice-regex"
#define SL_SCHEMA_MAX_CHOICES 32   /* of anyOf, oneOf and patternProperties */
#define SL_SCHEMA_MAX_REPEAT  1024 /* of minLength, maxLength, minItems, maxItems */

/* frame NULL: one value and nothing around it. *out is the caller's. SL_EUNSUPPORTED, SL_EINVAL, SL_ETOOBIG; *why
 * names the place in the schema. */
SL_MUST_CHECK enum sl_err sl_json_schema_compile(const json_t *schema, const struct sl_schema_frame *frame,
                                                 struct sl_grammar **out, struct sl_why *why);

#endif
