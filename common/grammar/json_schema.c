/* common/grammar/json_schema.c - each schema that stands somewhere becomes a rule, written once, from a list
 * of those still to be written: so neither recursion of schemas nor of this file needs care. */
#include "common/grammar/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/grammar/grammar_writer.h"
#include "common/grammar/matcher.h"
#include "common/grammar/regex.h"
#include "common/grammar/regex_parse.h"
#include "common/grammar/text_format.h"

#define MAX_RULES       4096 /* schemas in a schema: more than 64 KiB of text hold in practice */
#define PATH_BYTES      256  /* of a place that a message names; longer ones are cut */
#define INDENT_CHARS    20   /* behind a line feed */
#define NUMBER_DIGITS   16   /* doubles hold 15 to 17 */
#define EXPONENT_DIGITS 2    /* so that no number is infinite */

struct rule {
    const json_t *schema; /* NULL: one of the fixed ones */
    sl_label at;
    char path[PATH_BYTES];
};

/* The rules every schema may use. */
enum fixed { ANY, ANY_OBJECT, ANY_ARRAY, STRING, CHAR, NUMBER, INTEGER, BLANKS, N_FIXED };

struct writer {
    const json_t *root;
    struct sl_writer out;
    struct rule *rules;
    uint32_t n_rules;
    struct sl_hashmap *rule_of; /* schema's address -> rule's number + 1 */
    sl_label fixed[N_FIXED];
    const char *path;            /* of the rule that is written */
    uint32_t work_left;          /* for expressions */
    struct sl_hashmap *matching; /* expression, format and length -> label + 1 of its rule */
    enum sl_err err;
    struct sl_why *why;
};

static void refuse(struct writer *w, enum sl_err err, const char *word, const char *what)
{
    if (w->err == SL_OK)
        w->err = sl_why_set(w->why, err, "%s%s%s: %s", w->path, *word ? "." : "", word, what);
}

/* ---- fixed rules ---- */

static void write_blanks(struct writer *w)
{
    struct sl_write_alt a = {0};
    sl_write_alt_next(&w->out, &a, false);
    sl_write_alt_next(&w->out, &a, false);
    sl_write_byte(&w->out, ' ', ' ');
    sl_write_alt_next(&w->out, &a, true);
    sl_write_byte(&w->out, '\n', '\n');
    sl_label end = sl_write_label(&w->out);
    for (uint32_t i = 0; i < INDENT_CHARS; i++) {
        sl_write_or_at(&w->out, end);
        sl_write_one_of(&w->out, "  \t\t");
    }
    sl_write_place(&w->out, end);
    sl_write_alt_end(&w->out, &a);
    sl_write_return(&w->out);
}

static void blanks(struct writer *w)
{
    sl_write_call(&w->out, w->fixed[BLANKS]);
}

static void hex(struct writer *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sl_write_one_of(&w->out, "09afAF");
}

/* A character of a string: itself in UTF-8 (table 3-7 of the Unicode standard), or an escape. */
static void write_char(struct writer *w)
{
    static const struct {
        unsigned char lo, hi, lo2, hi2, more;
    } utf8[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1},
                {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
                {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
    struct sl_write_alt a = {0};
    sl_write_alt_next(&w->out, &a, false);
    sl_write_one_of(&w->out, " !#[]~");
    for (size_t i = 0; i < SL_COUNTOF(utf8); i++) {
        sl_write_alt_next(&w->out, &a, false);
        sl_write_byte(&w->out, utf8[i].lo, utf8[i].hi);
        sl_write_byte(&w->out, utf8[i].lo2, utf8[i].hi2);
        for (unsigned k = 0; k < utf8[i].more; k++)
            sl_write_byte(&w->out, 0x80, 0xBF);
    }
    sl_write_alt_next(&w->out, &a, false);
    sl_write_word(&w->out, "\\");
    sl_write_one_of(&w->out, "\"\"\\\\//bbffnnrrtt");
    sl_write_alt_next(&w->out, &a, false); /* \u, no surrogates */
    sl_write_word(&w->out, "\\u");
    sl_write_one_of(&w->out, "09acefACEF");
    hex(w, 3);
    sl_write_alt_next(&w->out, &a, true);
    sl_write_word(&w->out, "\\u");
    sl_write_one_of(&w->out, "ddDD");
    sl_write_byte(&w->out, '0', '7');
    hex(w, 2);
    sl_write_alt_end(&w->out, &a);
    sl_write_return(&w->out);
}

static void write_string(struct writer *w, uint32_t min, uint32_t max)
{
    sl_write_word(&w->out, "\"");
    sl_write_repeat(&w->out, w->fixed[CHAR], min, max);
    sl_write_word(&w->out, "\"");
    sl_write_return(&w->out);
}

static void write_number(struct writer *w, bool integer)
{
    sl_label skip;
    struct sl_write_alt a = {0};
    sl_write_optional(&w->out, &skip);
    sl_write_word(&w->out, "-");
    sl_write_place(&w->out, skip);
    sl_write_alt_next(&w->out, &a, false);
    sl_write_word(&w->out, "0");
    sl_write_alt_next(&w->out, &a, true);
    sl_write_byte(&w->out, '1', '9');
    sl_write_digits(&w->out, NUMBER_DIGITS - 1);
    sl_write_alt_end(&w->out, &a);
    if (!integer) {
        sl_write_optional(&w->out, &skip);
        sl_write_word(&w->out, ".");
        sl_write_byte(&w->out, '0', '9');
        sl_write_digits(&w->out, NUMBER_DIGITS - 1);
        sl_write_place(&w->out, skip);
        sl_write_optional(&w->out, &skip);
        sl_label sign;
        sl_write_one_of(&w->out, "eeEE");
        sl_write_optional(&w->out, &sign);
        sl_write_one_of(&w->out, "++--");
        sl_write_place(&w->out, sign);
        sl_write_byte(&w->out, '0', '9');
        sl_write_digits(&w->out, EXPONENT_DIGITS - 1);
        sl_write_place(&w->out, skip);
    }
    sl_write_return(&w->out);
}

/* open, min to max of item with commas between them, close. */
static void write_list(struct writer *w, const char *open, const char *close, sl_label item, uint32_t min,
                       uint32_t max)
{
    sl_label end = sl_write_label(&w->out), more = sl_write_label(&w->out);
    sl_write_word(&w->out, open);
    blanks(w);
    if (max == 0) {
        sl_write_jump(&w->out, end);
    } else if (min == 0) {
        sl_write_or_at(&w->out, end);
    }
    if (max > 0)
        sl_write_call(&w->out, item);
    for (uint32_t i = 1; i < min; i++) {
        sl_write_word(&w->out, ",");
        blanks(w);
        sl_write_call(&w->out, item);
    }
    uint32_t have = min > 1 ? min : 1;
    if (max == UINT32_MAX) {
        sl_label again = sl_write_here(&w->out);
        sl_write_split(&w->out, more, end);
        sl_write_place(&w->out, more);
        sl_write_word(&w->out, ",");
        blanks(w);
        sl_write_call(&w->out, item);
        sl_write_jump(&w->out, again);
    }
    for (uint32_t i = have; max != UINT32_MAX && i < max; i++) {
        sl_write_or_at(&w->out, end);
        sl_write_word(&w->out, ",");
        blanks(w);
        sl_write_call(&w->out, item);
    }
    sl_write_place(&w->out, end);
    blanks(w);
    sl_write_word(&w->out, close);
    sl_write_return(&w->out);
}

static void write_fixed(struct writer *w)
{
    sl_label pair = sl_write_label(&w->out);
    struct sl_write_alt a = {0};
    w->path = "schema";
    for (int i = 0; i < N_FIXED; i++)
        w->fixed[i] = sl_write_label(&w->out);
    sl_write_place(&w->out, w->fixed[ANY]);
    sl_write_alt_next(&w->out, &a, false);
    sl_write_call(&w->out, w->fixed[ANY_OBJECT]);
    sl_write_alt_next(&w->out, &a, false);
    sl_write_call(&w->out, w->fixed[ANY_ARRAY]);
    sl_write_alt_next(&w->out, &a, false);
    sl_write_call(&w->out, w->fixed[STRING]);
    sl_write_alt_next(&w->out, &a, false);
    sl_write_call(&w->out, w->fixed[NUMBER]);
    sl_write_alt_next(&w->out, &a, false);
    sl_write_word(&w->out, "true");
    sl_write_alt_next(&w->out, &a, false);
    sl_write_word(&w->out, "false");
    sl_write_alt_next(&w->out, &a, true);
    sl_write_word(&w->out, "null");
    sl_write_alt_end(&w->out, &a);
    sl_write_return(&w->out);
    sl_write_place(&w->out, pair);
    sl_write_call(&w->out, w->fixed[STRING]);
    sl_write_word(&w->out, ":");
    blanks(w);
    sl_write_call(&w->out, w->fixed[ANY]);
    sl_write_return(&w->out);
    sl_write_place(&w->out, w->fixed[ANY_OBJECT]);
    write_list(w, "{", "}", pair, 0, UINT32_MAX);
    sl_write_place(&w->out, w->fixed[ANY_ARRAY]);
    write_list(w, "[", "]", w->fixed[ANY], 0, UINT32_MAX);
    sl_write_place(&w->out, w->fixed[STRING]);
    write_string(w, 0, UINT32_MAX);
    sl_write_place(&w->out, w->fixed[CHAR]);
    write_char(w);
    sl_write_place(&w->out, w->fixed[NUMBER]);
    write_number(w, false);
    sl_write_place(&w->out, w->fixed[INTEGER]);
    write_number(w, true);
    sl_write_place(&w->out, w->fixed[BLANKS]);
    write_blanks(w);
}

/* ---- schemas ---- */

/* The rule of a schema that stands at path/word; written later. */
static sl_label rule_of(struct writer *w, const json_t *schema, const char *word, const char *member)
{
    if (json_is_true(schema))
        return w->fixed[ANY];
    if (!json_is_object(schema)) {
        refuse(w, json_is_false(schema) ? SL_EUNSUPPORTED : SL_EINVAL, word,
               json_is_false(schema) ? "false: nothing fits it" : "expected a schema, an object");
        return w->fixed[ANY];
    }
    uintptr_t key = (uintptr_t)schema;
    uintptr_t known = (uintptr_t)sl_hashmap_get_u64(w->rule_of, key);
    if (known)
        return w->rules[known - 1].at;
    if (w->n_rules == MAX_RULES) {
        refuse(w, SL_ETOOBIG, "", "the schema has too many parts");
        return w->fixed[ANY];
    }
    struct rule *r = &w->rules[w->n_rules++];
    r->schema = schema;
    r->at = sl_write_label(&w->out);
    (void)snprintf(r->path, sizeof r->path, "%s%s%s%s%s", w->path, *word ? "." : "", word, *member ? "." : "",
                   member);
    sl_hashmap_put_u64(w->rule_of, key, (void *)(uintptr_t)w->n_rules);
    return r->at;
}

static uint32_t count_of(struct writer *w, const json_t *schema, const char *word, uint32_t absent)
{
    const json_t *j = json_object_get(schema, word);
    if (!j)
        return absent;
    if (!json_is_integer(j) || json_integer_value(j) < 0)
        refuse(w, SL_EINVAL, word, "expected a whole number, not negative");
    else if (json_integer_value(j) > SL_SCHEMA_MAX_REPEAT)
        refuse(w, SL_EUNSUPPORTED, word, "at most 1024 is kept to here");
    else
        return (uint32_t)json_integer_value(j);
    return absent;
}

static void counts_of(struct writer *w, const json_t *schema, const char *min_word, const char *max_word,
                      uint32_t *min, uint32_t *max)
{
    *min = count_of(w, schema, min_word, 0);
    *max = count_of(w, schema, max_word, UINT32_MAX);
    if (*min > *max)
        refuse(w, SL_EINVAL, max_word, "is less than the minimum");
}

/* The rule of a string that matches and has that length; the same one for all that ask the same. */
static void write_matching(struct writer *w, const json_t *pattern, const char *format, uint32_t min,
                           uint32_t max)
{
    struct sl_why why = {0};
    const char *word = pattern ? "pattern" : "format", *of_format = format ? sl_text_format(format) : NULL;
    char key[SL_REGEX_MAX_BYTES + 64];
    size_t n = pattern ? json_string_length(pattern) : 0, n_key;
    if (n > SL_REGEX_MAX_BYTES) {
        refuse(w, SL_ETOOBIG, word, "has more than 4096 bytes");
        return;
    }
    n_key =
        (size_t)snprintf(key, sizeof key, "%d %s %u %u ", pattern != NULL, of_format ? format : "", min, max);
    memcpy(key + n_key, pattern ? json_string_value(pattern) : "", n);
    uintptr_t known = (uintptr_t)sl_hashmap_get(w->matching, key, n_key + n);
    if (known) {
        sl_write_jump(&w->out, (sl_label)known - 1);
        return;
    }
    sl_hashmap_put(w->matching, key, n_key + n, (void *)(uintptr_t)(sl_write_here(&w->out) + 1));
    struct sl_regex *r = sl_regex_new();
    enum sl_err err = pattern ? sl_regex_match(r, json_string_value(pattern), n, false, &why) : SL_OK;
    if (err == SL_OK && of_format)
        err = sl_regex_match(r, of_format, strlen(of_format), true, &why);
    sl_regex_length(r, min, max);
    sl_write_word(&w->out, "\"");
    if (err == SL_OK)
        err = sl_regex_write(r, &w->out, true, &w->work_left, &why);
    if (err != SL_OK)
        refuse(w, err, word, why.text);
    sl_regex_free(r);
}

static void write_text(struct writer *w, const json_t *schema)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    const char *format = json_string_value(json_object_get(schema, "format"));
    uint32_t min, max;
    counts_of(w, schema, "minLength", "maxLength", &min, &max);
    if (pattern && !json_is_string(pattern))
        refuse(w, SL_EINVAL, "pattern", "expected a regular expression, a text");
    else if (pattern || (format && sl_text_format(format)))
        write_matching(w, pattern, format, min, max);
    else
        write_string(w, min, max);
}

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required"), *one;
    size_t i;
    json_array_foreach ((json_t *)list, i, one)
        if (json_is_string(one) && strcmp(json_string_value(one), name) == 0)
            return true;
    return false;
}

static void write_key(struct writer *w, const char *name)
{
    struct sl_buf key;
    sl_buf_init(&key, SIZE_MAX); /* of a schema that is bounded */
    sl_buf_json_escape(&key, name, strlen(name));
    sl_write_word(&w->out, "\"");
    sl_write_text(&w->out, key.data, key.len);
    sl_write_word(&w->out, "\":");
    blanks(w);
    sl_buf_fini(&key);
}

/* Members in order. Two places in front of each: nothing was written so far, something was and a comma is
 * due. */
static void write_members(struct writer *w, const json_t *schema, const json_t *properties, sl_label extra,
                          bool has_extra)
{
    size_t n = json_object_size(properties), i = 0;
    sl_label(*at)[2] = sl_xcalloc(n + 1, sizeof *at);
    const char *name;
    json_t *value;
    for (size_t k = 0; k <= n; k++)
        for (int some = 0; some < 2; some++)
            at[k][some] = sl_write_label(&w->out);
    sl_write_jump(&w->out, at[0][0]);
    json_object_foreach ((json_t *)properties, name, value) {
        sl_label rule = rule_of(w, value, "properties", name);
        for (int some = 0; some < 2; some++) {
            sl_write_place(&w->out, at[i][some]);
            if (!is_required(schema, name)) {
                sl_write_or_at(&w->out, at[i + 1][some]);
            }
            if (some) {
                sl_write_word(&w->out, ",");
                blanks(w);
            }
            write_key(w, name);
            sl_write_call(&w->out, rule);
            sl_write_jump(&w->out, at[i + 1][1]);
        }
        i++;
    }
    sl_label end = sl_write_label(&w->out), more = sl_write_label(&w->out), first = sl_write_label(&w->out);
    sl_write_place(&w->out, at[n][0]);
    if (has_extra) {
        sl_write_split(&w->out, first, end);
        sl_write_place(&w->out, first);
        sl_write_call(&w->out, extra);
    } else {
        sl_write_jump(&w->out, end);
    }
    sl_write_place(&w->out, at[n][1]);
    if (has_extra) {
        sl_write_split(&w->out, more, end);
        sl_write_place(&w->out, more);
        sl_write_word(&w->out, ",");
        blanks(w);
        sl_write_call(&w->out, extra);
        sl_write_jump(&w->out, at[n][1]);
    }
    sl_write_place(&w->out, end);
    sl_free(at);
}

static void check_required(struct writer *w, const json_t *schema, const json_t *properties)
{
    const json_t *list = json_object_get(schema, "required"), *one;
    size_t i;
    if (list && !json_is_array(list))
        refuse(w, SL_EINVAL, "required", "expected a list of names");
    json_array_foreach ((json_t *)list, i, one) {
        if (!json_is_string(one))
            refuse(w, SL_EINVAL, "required", "expected a list of names");
        else if (!json_object_get(properties, json_string_value(one)))
            refuse(w, SL_EUNSUPPORTED, "required", "names a member that properties does not have");
    }
}

static void write_object(struct writer *w, const json_t *schema)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *additional = json_object_get(schema, "additionalProperties");
    bool listed = json_object_size(properties) > 0;
    bool has_extra = additional ? !json_is_false(additional) : !listed;
    sl_label extra = sl_write_label(&w->out), body = sl_write_label(&w->out);
    if (properties && !json_is_object(properties))
        refuse(w, SL_EINVAL, "properties", "expected an object");
    check_required(w, schema, properties);
    sl_write_jump(&w->out, body);
    if (has_extra) {
        sl_write_place(&w->out, extra);
        sl_write_call(&w->out, w->fixed[STRING]);
        sl_write_word(&w->out, ":");
        blanks(w);
        sl_write_call(&w->out,
                      additional ? rule_of(w, additional, "additionalProperties", "") : w->fixed[ANY]);
        sl_write_return(&w->out);
    }
    sl_write_place(&w->out, body);
    sl_write_word(&w->out, "{");
    blanks(w);
    write_members(w, schema, properties, extra, has_extra);
    blanks(w);
    sl_write_word(&w->out, "}");
    sl_write_return(&w->out);
}

static void write_array(struct writer *w, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");
    uint32_t min, max;
    counts_of(w, schema, "minItems", "maxItems", &min, &max);
    write_list(w, "[", "]", items ? rule_of(w, items, "items", "") : w->fixed[ANY], min, max);
}

static void write_values(struct writer *w, const json_t *list)
{
    struct sl_write_alt a = {0};
    size_t i;
    json_t *value;
    json_array_foreach ((json_t *)list, i, value) {
        size_t n = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
        char *s = sl_xalloc(n + 1);
        (void)json_dumpb(value, s, n, JSON_COMPACT | JSON_ENCODE_ANY);
        sl_write_alt_next(&w->out, &a, i + 1 == json_array_size(list));
        sl_write_text(&w->out, s, n);
        sl_free(s);
    }
    sl_write_alt_end(&w->out, &a);
    sl_write_return(&w->out);
}

static void write_texts(struct writer *w, const json_t *schema, const json_t *list)
{
    struct sl_write_alt a = {0};
    size_t i, n = json_array_size(list);
    json_t *text;
    if (schema != w->root || n == 0 || n > SL_SCHEMA_MAX_VALUES)
        refuse(w, SL_EINVAL, SL_SCHEMA_TEXTS, "expected at the top, with a list of 1 to 1024 texts");
    json_array_foreach ((json_t *)list, i, text) {
        if (json_string_length(text) == 0)
            refuse(w, SL_EINVAL, SL_SCHEMA_TEXTS, "expected texts, none of them empty");
        sl_write_alt_next(&w->out, &a, i + 1 == n);
        sl_write_text(&w->out, json_string_value(text), json_string_length(text));
    }
    sl_write_alt_end(&w->out, &a);
    sl_write_return(&w->out);
}

static void write_regex(struct writer *w, const json_t *schema, const json_t *expression)
{
    struct sl_why why = {0};
    struct sl_regex *r = sl_regex_new();
    enum sl_err err;
    if (schema != w->root || !json_is_string(expression))
        err = sl_why_set(&why, SL_EINVAL, "expected at the top, with a regular expression");
    else
        err = sl_regex_match(r, json_string_value(expression), json_string_length(expression), true, &why);
    if (err == SL_OK)
        err = sl_regex_write(r, &w->out, false, &w->work_left, &why);
    if (err != SL_OK)
        refuse(w, err, SL_SCHEMA_REGEX, why.text);
    sl_regex_free(r);
}

static void write_one_type(struct writer *w, const json_t *schema, const char *type)
{
    if (strcmp(type, "object") == 0) {
        write_object(w, schema);
    } else if (strcmp(type, "array") == 0) {
        write_array(w, schema);
    } else if (strcmp(type, "string") == 0) {
        write_text(w, schema);
    } else if (strcmp(type, "number") == 0) {
        sl_write_jump(&w->out, w->fixed[NUMBER]);
    } else if (strcmp(type, "integer") == 0) {
        sl_write_jump(&w->out, w->fixed[INTEGER]);
    } else if (strcmp(type, "null") == 0) {
        sl_write_word(&w->out, "null");
        sl_write_return(&w->out);
    } else if (strcmp(type, "boolean") == 0) {
        struct sl_write_alt a = {0};
        sl_write_alt_next(&w->out, &a, false);
        sl_write_word(&w->out, "true");
        sl_write_alt_next(&w->out, &a, true);
        sl_write_word(&w->out, "false");
        sl_write_alt_end(&w->out, &a);
        sl_write_return(&w->out);
    } else {
        refuse(w, SL_EINVAL, "type", "expected object, array, string, number, integer, boolean or null");
    }
}

/* Each alternative ends with its own return. */
static void write_types(struct writer *w, const json_t *schema, const json_t *types)
{
    size_t i;
    json_t *type;
    json_array_foreach ((json_t *)types, i, type) {
        sl_label next = sl_write_label(&w->out), first = sl_write_label(&w->out);
        if (i + 1 < json_array_size(types))
            sl_write_split(&w->out, first, next);
        sl_write_place(&w->out, first);
        write_one_type(w, schema, json_is_string(type) ? json_string_value(type) : "");
        sl_write_place(&w->out, next);
    }
    if (json_array_size(types) == 0)
        refuse(w, SL_EINVAL, "type", "is an empty list");
}

/* Words that say something of one type only make the value one of it: whoever writes them means it. */
static void write_untyped(struct writer *w, const json_t *schema)
{
    static const struct {
        const char *word, *type;
    } means[] = {{"properties", "object"}, {"additionalProperties", "object"},
                 {"required", "object"},   {"items", "array"},
                 {"minItems", "array"},    {"maxItems", "array"},
                 {"pattern", "string"},    {"minLength", "string"},
                 {"maxLength", "string"}};
    for (size_t i = 0; i < SL_COUNTOF(means); i++)
        if (json_object_get(schema, means[i].word)) {
            write_one_type(w, schema, means[i].type);
            return;
        }
    const char *format = json_string_value(json_object_get(schema, "format"));
    if (format && sl_text_format(format))
        write_one_type(w, schema, "string");
    else
        sl_write_jump(&w->out, w->fixed[ANY]);
}

static void write_any_of(struct writer *w, const json_t *list, const char *name)
{
    struct sl_write_alt a = {0};
    size_t i;
    json_t *one;
    if (json_array_size(list) == 0) {
        refuse(w, SL_EINVAL, name, "expected a list of schemas, not empty");
        return;
    }
    if (json_array_size(list) > SL_SCHEMA_MAX_CHOICES)
        refuse(w, SL_EUNSUPPORTED, name, "more than 32 schemas are not kept to here");
    json_array_foreach ((json_t *)list, i, one) {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        sl_write_alt_next(&w->out, &a, i + 1 == json_array_size(list));
        sl_write_call(&w->out, rule_of(w, one, name, number));
    }
    sl_write_alt_end(&w->out, &a);
    sl_write_return(&w->out);
}

static const json_t *element(const json_t *list, const char *name)
{
    char *end;
    unsigned long i = strtoul(name, &end, 10);
    return name[0] >= '0' && name[0] <= '9' && *end == '\0' ? json_array_get(list, i) : NULL;
}

/* "#", "#/a/b" with ~0 and ~1 as RFC 6901 has it. */
static const json_t *pointed(const json_t *root, const char *ref)
{
    const json_t *at = root;
    if (*ref++ != '#')
        return NULL;
    while (at && *ref == '/') {
        char name[PATH_BYTES];
        size_t n = 0;
        for (ref++; *ref && *ref != '/'; ref++) {
            if (n + 1 == sizeof name)
                return NULL;
            name[n++] = *ref;
            if (*ref == '~' && (ref[1] == '0' || ref[1] == '1'))
                name[n - 1] = *++ref == '0' ? '~' : '/';
        }
        name[n] = '\0';
        at = json_is_array(at) ? element(at, name) : json_object_get(at, name);
    }
    return *ref ? NULL : at;
}

static void write_ref(struct writer *w, const json_t *ref)
{
    const json_t *to = json_is_string(ref) ? pointed(w->root, json_string_value(ref)) : NULL;
    if (!to)
        refuse(w, SL_EINVAL, "$ref", "expected a place in this schema that there is, as \"#/$defs/name\"");
    else
        sl_write_jump(&w->out, rule_of(w, to, "$ref", ""));
}

/* What a word means here; the first of a schema's that shapes it is followed, the others belong to it. */
enum sense { DESCRIBES, SHAPES, BELONGS };

static const struct keyword {
    const char *name;
    enum sense sense;
} keywords[] = {
    {"$ref", SHAPES},          {"const", SHAPES},          {"enum", SHAPES},
    {"anyOf", SHAPES},         {"oneOf", SHAPES},          {"allOf", SHAPES},
    {"type", BELONGS},         {"properties", BELONGS},    {"items", BELONGS},
    {"required", BELONGS},     {"minItems", BELONGS},      {"maxItems", BELONGS},
    {"minLength", BELONGS},    {"maxLength", BELONGS},     {"additionalProperties", BELONGS},
    {"pattern", BELONGS},      {"format", DESCRIBES}, /* kept to where it stands with a string */
    {"title", DESCRIBES},      {"description", DESCRIBES}, {"default", DESCRIBES},
    {"examples", DESCRIBES},   {"$schema", DESCRIBES},     {"$id", DESCRIBES},
    {"$defs", DESCRIBES},      {"definitions", DESCRIBES}, {"$comment", DESCRIBES},
    {"deprecated", DESCRIBES}, {"readOnly", DESCRIBES},    {"writeOnly", DESCRIBES},
    {SL_SCHEMA_TEXTS, SHAPES}, {SL_SCHEMA_REGEX, SHAPES},
};

/* Refuses words that are not kept to; returns the one that shapes the schema, NULL when its type does. */
static const char *check_words(struct writer *w, const json_t *schema)
{
    const char *name, *shape = NULL;
    json_t *value;
    bool belongs = false;
    json_object_foreach ((json_t *)schema, name, value) {
        const struct keyword *k = NULL;
        for (size_t i = 0; i < SL_COUNTOF(keywords); i++)
            if (strcmp(keywords[i].name, name) == 0)
                k = &keywords[i];
        if (!k)
            refuse(w, SL_EUNSUPPORTED, name, "is not kept to here; leave it out");
        else if (k->sense == SHAPES && shape)
            refuse(w, SL_EUNSUPPORTED, name, "cannot stand beside another word that shapes the value");
        else if (k->sense == SHAPES)
            shape = k->name;
        belongs |= k && k->sense == BELONGS && strcmp(k->name, "type") != 0;
    }
    if (shape && belongs)
        refuse(w, SL_EUNSUPPORTED, shape, "cannot stand beside words for members or lengths");
    return shape;
}

static void write_schema(struct writer *w, const json_t *schema)
{
    const char *shape = check_words(w, schema);
    const json_t *type = json_object_get(schema, "type");
    if (shape) {
        const json_t *value = json_object_get(schema, shape);
        if (strcmp(shape, "$ref") == 0) {
            write_ref(w, value);
        } else if (strcmp(shape, SL_SCHEMA_TEXTS) == 0) {
            write_texts(w, schema, value);
        } else if (strcmp(shape, SL_SCHEMA_REGEX) == 0) {
            write_regex(w, schema, value);
        } else if (strcmp(shape, "const") == 0) {
            json_t *list = json_array();
            json_array_append(list, (json_t *)value);
            write_values(w, list);
            json_decref(list);
        } else if (strcmp(shape, "enum") == 0) {
            if (json_array_size(value) == 0)
                refuse(w, SL_EINVAL, "enum", "expected a list of values, not empty");
            else if (json_array_size(value) > SL_SCHEMA_MAX_VALUES)
                refuse(w, SL_EUNSUPPORTED, "enum", "more than 1024 values are not kept to here");
            else
                write_values(w, value);
        } else if (strcmp(shape, "allOf") == 0 && json_array_size(value) != 1) {
            refuse(w, SL_EUNSUPPORTED, "allOf", "with more than one schema is not kept to here");
        } else {
            write_any_of(w, value, shape);
        }
        return;
    }
    if (!type)
        write_untyped(w, schema);
    else if (json_is_string(type))
        write_one_type(w, schema, json_string_value(type));
    else if (json_is_array(type))
        write_types(w, schema, type);
    else
        refuse(w, SL_EINVAL, "type", "expected a name or a list of names");
}

/* The text: values of the schema, of which `value` is the rule, in their frame. */
static void write_frame(struct writer *w, const struct sl_schema_frame *f, sl_label value)
{
    sl_label end = sl_write_label(&w->out);
    sl_write_word(&w->out, f->before);
    sl_write_call(&w->out, value);
    for (uint32_t i = 1; i < f->max; i++) {
        sl_write_or_at(&w->out, end);
        sl_write_word(&w->out, f->between);
        sl_write_call(&w->out, value);
    }
    sl_write_place(&w->out, end);
    sl_write_word(&w->out, f->after);
    sl_write_insn(&w->out, (struct sl_insn){.op = SL_INSN_END});
}

enum sl_err sl_json_schema_compile(const json_t *schema, const struct sl_schema_frame *frame,
                                   struct sl_grammar **out, struct sl_why *why)
{
    static const struct sl_schema_frame bare = {.before = "", .between = "", .after = "", .max = 1};
    struct writer w = {.root = schema, .why = why, .path = "schema", .work_left = SL_REGEX_MAX_WORK};
    struct sl_grammar *p = NULL;
    w.rules = sl_xcalloc(MAX_RULES, sizeof *w.rules);
    w.rule_of = sl_hashmap_new();
    w.matching = sl_hashmap_new();
    sl_label start = sl_write_label(&w.out);
    write_frame(&w, frame ? frame : &bare, start);
    write_fixed(&w);
    sl_write_place(&w.out, start);
    sl_write_jump(&w.out, rule_of(&w, schema, "", ""));
    for (uint32_t i = 0; i < w.n_rules && w.err == SL_OK; i++) {
        w.path = w.rules[i].path;
        sl_write_place(&w.out, w.rules[i].at);
        write_schema(&w, w.rules[i].schema);
        if (w.out.too_large)
            refuse(&w, SL_ETOOBIG, "", "the schema is too large");
    }
    if (w.err == SL_OK) {
        p = sl_writer_finish(&w.out);
        struct sl_matcher *m = p ? sl_matcher_new(p) : NULL;
        if (!m)
            w.err = sl_why_set(why, SL_EINVAL, "schema: no value fits it");
        sl_matcher_free(m);
    }
    if (w.err == SL_OK)
        *out = p;
    else
        sl_grammar_free(p);
    sl_writer_fini(&w.out);
    sl_hashmap_free(w.rule_of);
    sl_hashmap_free(w.matching);
    sl_free(w.rules);
    return w.err;
}
