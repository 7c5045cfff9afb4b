/* common/grammar/json_schema.c - each schema that stands somewhere becomes a rule, written once, from a list
 * of those still to be written: so neither recursion of schemas nor of this file needs care. */
#include "common/grammar/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/grammar/json_text.h"
#include "common/grammar/matcher.h"
#include "common/grammar/matching.h"
#include "common/grammar/number_bound.h"
#include "common/grammar/schema_read.h"
#include "common/grammar/text_format.h"

#define MAX_RULES  4096 /* schemas in a schema: more than 64 KiB of text hold in practice */
#define PATH_BYTES 256  /* of a place that a message names; longer ones are cut */

struct rule {
    const json_t *schema; /* NULL: one of the fixed ones */
    sl_label at;
    char path[PATH_BYTES];
};

struct writer {
    const json_t *root;
    struct sl_writer out;
    struct rule *rules;
    uint32_t n_rules;
    struct sl_hashmap *rule_of; /* schema's address -> rule's number + 1 */
    struct sl_json_rules json;
    const char *path; /* of the rule that is written */
    struct sl_matching matching;
    enum sl_err err;
    struct sl_why *why;
};

static void refuse(struct writer *w, enum sl_err err, const char *word, const char *what)
{
    if (w->err == SL_OK)
        w->err = sl_why_set(w->why, err, "%s%s%s: %s", w->path, *word ? "." : "", word, what);
}

/* The rule of a schema that stands at path/word; written later. */
static sl_label rule_of(struct writer *w, const json_t *schema, const char *word, const char *member)
{
    if (json_is_true(schema))
        return w->json.rule[SL_JSON_ANY];
    if (!json_is_object(schema)) {
        refuse(w, json_is_false(schema) ? SL_EUNSUPPORTED : SL_EINVAL, word,
               json_is_false(schema) ? "false: nothing fits it" : "expected a schema, an object");
        return w->json.rule[SL_JSON_ANY];
    }
    uintptr_t key = (uintptr_t)schema;
    uintptr_t known = (uintptr_t)sl_hashmap_get_u64(w->rule_of, key);
    if (known)
        return w->rules[known - 1].at;
    if (w->n_rules == MAX_RULES) {
        refuse(w, SL_ETOOBIG, "", "the schema has too many parts");
        return w->json.rule[SL_JSON_ANY];
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

static void write_asked(struct writer *w, const struct sl_asked *a, const char *word)
{
    struct sl_why why = {0};
    enum sl_err err = w->err == SL_OK ? sl_matching_write(&w->matching, a, &w->out, &why) : SL_OK;
    if (err != SL_OK)
        refuse(w, err, word, why.text);
}

/* What a schema says of a string: its own words, and those of the schemas in its allOf. Returns the word that an error is
 * about, NULL when it says no more than a length. */
static const char *ask_string(struct writer *w, const json_t *schema, struct sl_asked *a)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *also;
    const char *format = json_string_value(json_object_get(schema, "format")), *word = NULL;
    const struct sl_text_format *f = format ? sl_text_format(format) : NULL;
    uint32_t min, max;
    size_t i;
    const json_t *most = json_object_get(schema, "maxLength");
    if (f && json_is_integer(most) &&
        json_integer_value(most) >= f->longest) { /* no text of the format is longer */
        min = count_of(w, schema, "minLength", 0);
        max = UINT32_MAX;
    } else {
        counts_of(w, schema, "minLength", "maxLength", &min, &max);
    }
    a->min = min > a->min ? min : a->min;
    a->max = max < a->max ? max : a->max;
    if (f) {
        sl_asked_add(a, SL_MATCH_WHOLE, f->expression, strlen(f->expression));
        word = "format";
    }
    if (pattern && !json_is_string(pattern))
        refuse(w, SL_EINVAL, "pattern", "expected a regular expression, a text");
    if (json_is_string(pattern)) {
        sl_asked_add(a, SL_MATCH_PART, json_string_value(pattern), json_string_length(pattern));
        word = "pattern";
    }
    json_array_foreach ((json_t *)json_object_get(schema, "allOf"), i, also)
        word = ask_string(w, also, a) ? "allOf" : word;
    return word;
}

static void write_text(struct writer *w, const json_t *schema)
{
    struct sl_asked a;
    sl_asked_init(&a, true);
    const char *word = ask_string(w, schema, &a);
    if (word)
        write_asked(w, &a, word);
    else if (a.min > a.max)
        refuse(w, SL_EINVAL, "allOf", "no text has these lengths");
    else
        sl_json_string(&w->out, &w->json, a.min, a.max);
    sl_asked_fini(&a);
}

static void write_number(struct writer *w, const json_t *schema, bool integer)
{
    static const struct {
        const char *word;
        enum sl_bound side;
    } bounds[] = {{"minimum", SL_AT_LEAST},
                  {"exclusiveMinimum", SL_MORE_THAN},
                  {"maximum", SL_AT_MOST},
                  {"exclusiveMaximum", SL_LESS_THAN}};
    static const char whole[] = "-?(?:0|[1-9]\\d{0,15})"; /* digits: SL_NUMBER_WHOLE_DIGITS */
    static const char real[] = "-?(?:0|[1-9]\\d{0,14})(?:\\.\\d{1,14})?",
                      short_ones[] = "-?[\\d.]{1,16}"; /* ..._BOUND_DIGITS */
    const char *word = NULL;
    struct sl_asked a;
    struct sl_buf expression;
    struct sl_why why = {0};
    sl_asked_init(&a, false);
    sl_buf_init(&expression, SIZE_MAX); /* a few lines for each bound */
    for (size_t i = 0; i < SL_COUNTOF(bounds); i++) {
        const json_t *bound = json_object_get(schema, bounds[i].word);
        enum sl_err err = bound ? sl_number_bound(bound, bounds[i].side, &expression, &why) : SL_OK;
        if (err != SL_OK)
            refuse(w, err, bounds[i].word, why.text);
        if (bound)
            word = bounds[i].word;
        if (expression.len)
            sl_asked_add(&a, SL_MATCH_WHOLE, expression.data, expression.len);
        sl_buf_clear(&expression);
    }
    if (integer) {
        sl_asked_add(&a, SL_MATCH_WHOLE, whole, sizeof whole - 1);
    } else {
        sl_asked_add(&a, SL_MATCH_WHOLE, real, sizeof real - 1);
        sl_asked_add(&a, SL_MATCH_WHOLE, short_ones, sizeof short_ones - 1);
    }
    if (word)
        write_asked(w, &a, word);
    else
        sl_write_jump(&w->out, w->json.rule[integer ? SL_JSON_INTEGER : SL_JSON_NUMBER]);
    sl_buf_fini(&expression);
    sl_asked_fini(&a);
}

static void write_key(struct writer *w, const char *name)
{
    struct sl_buf key;
    sl_buf_init(&key, SIZE_MAX); /* of a schema that is bounded */
    sl_buf_json_escape(&key, name, strlen(name));
    sl_write_word(&w->out, "\"");
    sl_write_text(&w->out, key.data, key.len);
    sl_write_word(&w->out, "\":");
    sl_json_blanks(&w->out, &w->json);
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
            if (!sl_schema_lists(json_object_get(schema, "required"), name)) {
                sl_write_or_at(&w->out, at[i + 1][some]);
            }
            if (some) {
                sl_write_word(&w->out, ",");
                sl_json_blanks(&w->out, &w->json);
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
        sl_json_blanks(&w->out, &w->json);
        sl_write_call(&w->out, extra);
        sl_write_jump(&w->out, at[n][1]);
    }
    sl_write_place(&w->out, end);
    sl_free(at);
}

/* The members that have a place: those of properties, and behind them those that are only required. The caller's. */
static json_t *listed_members(struct writer *w, const json_t *schema)
{
    const json_t *properties = json_object_get(schema, "properties"),
                 *list = json_object_get(schema, "required"), *one;
    const json_t *additional = json_object_get(schema, "additionalProperties");
    json_t *out = json_object();
    size_t i;
    if (properties && !json_is_object(properties))
        refuse(w, SL_EINVAL, "properties", "expected an object");
    if (list && !json_is_array(list))
        refuse(w, SL_EINVAL, "required", "expected a list of names");
    json_object_update(out, (json_t *)properties);
    json_array_foreach ((json_t *)list, i, one) {
        const char *name = json_string_value(one);
        if (!name)
            refuse(w, SL_EINVAL, "required", "expected a list of names");
        else if (!json_object_get(out, name) && json_is_false(additional))
            refuse(w, SL_EINVAL, "required",
                   "names a member that properties does not have, and others may not be");
        else if (!json_object_get(out, name))
            json_object_set(out, name, additional ? (json_t *)additional : json_true());
    }
    return out;
}

/* One of the texts of a list, as an expression. */
static void add_one_of(struct sl_asked *a, const json_t *texts)
{
    struct sl_buf expression;
    const json_t *text;
    size_t i;
    sl_buf_init(&expression, SIZE_MAX); /* of a schema that is bounded */
    json_array_foreach ((json_t *)texts, i, text) {
        sl_buf_puts(&expression, i ? "|" : "");
        for (const char *c = json_string_value(text); c && *c; c++) {
            if (strchr("^$\\.*+?()[]{}|/", *c))
                sl_buf_putc(&expression, '\\');
            sl_buf_putc(&expression, *c);
        }
    }
    sl_asked_add(a, SL_MATCH_WHOLE, expression.data, expression.len);
    sl_buf_fini(&expression);
}

/* propertyNames. False: any name is one. */
static bool ask_names(struct writer *w, const json_t *schema, struct sl_asked *a)
{
    static const char *const words[] = {"type",      "pattern", "format", "minLength",
                                        "maxLength", "title",   "enum",   "description"};
    const json_t *names = json_object_get(schema, "propertyNames"), *value, *list, *one;
    const char *word;
    size_t i;
    if (!names)
        return false;
    bool points = json_is_string(json_object_get(names, "$ref"));
    if (points && json_object_size(names) > 1)
        refuse(w, SL_EUNSUPPORTED, "propertyNames", "$ref has to stand alone there");
    if (points)
        names = sl_schema_pointed(w->root, json_string_value(json_object_get(names, "$ref")));
    if (!json_is_object(names))
        refuse(w, SL_EINVAL, "propertyNames", "expected a schema, an object");
    if (json_object_size(json_object_get(schema, "properties")))
        refuse(w, SL_EUNSUPPORTED, "propertyNames", "beside properties is not kept to here");
    json_object_foreach ((json_t *)names, word, value) {
        for (i = 0; i < SL_COUNTOF(words) && strcmp(words[i], word) != 0; i++)
            ;
        if (i == SL_COUNTOF(words))
            refuse(w, SL_EUNSUPPORTED, "propertyNames",
                   "only pattern, format, lengths and enum are kept to there");
    }
    value = json_object_get(names, "type");
    if (value && (!json_is_string(value) || strcmp(json_string_value(value), "string") != 0))
        refuse(w, SL_EINVAL, "propertyNames", "expected the type \"string\", as all names are");
    (void)ask_string(w, names, a);
    list = json_object_get(names, "enum");
    json_array_foreach ((json_t *)list, i, one)
        if (!json_is_string(one))
            refuse(w, SL_EINVAL, "propertyNames", "expected texts in its enum");
    if (list)
        add_one_of(a, list);
    return true;
}

/* A member without a place: a name that matches the pattern `matches` (NULL: none of them) and is not listed. */
static void write_extra(struct writer *w, const json_t *schema, const json_t *listed, const char *matches,
                        sl_label value)
{
    const json_t *patterns = json_object_get(schema, "patternProperties");
    struct sl_asked a;
    const char *name;
    json_t *ignored;
    sl_label key = sl_write_label(&w->out);
    sl_asked_init(&a, true);
    bool asked = ask_names(w, schema, &a);
    json_object_foreach ((json_t *)patterns, name, ignored)
        sl_asked_add(&a, matches && strcmp(matches, name) == 0 ? SL_MATCH_PART : SL_MATCH_NOWHERE, name,
                     strlen(name));
    json_object_foreach ((json_t *)listed, name, ignored)
        sl_asked_add(&a, SL_MATCH_EXCEPT, name, strlen(name));
    asked |= a.conditions.len > 0;
    sl_write_call(&w->out, asked ? key : w->json.rule[SL_JSON_STRING]);
    sl_write_word(&w->out, ":");
    sl_json_blanks(&w->out, &w->json);
    sl_write_call(&w->out, value);
    sl_write_return(&w->out);
    sl_write_place(&w->out, key);
    if (asked)
        write_asked(w, &a, matches ? "patternProperties" : "propertyNames");
    sl_asked_fini(&a);
}

/* Writes what members without a place may be, as the rule *out; false: there are none. */
static bool write_extras(struct writer *w, const json_t *schema, const json_t *listed, sl_label *out)
{
    const json_t *patterns = json_object_get(schema, "patternProperties");
    const json_t *additional = json_object_get(schema, "additionalProperties");
    bool others = additional ? !json_is_false(additional)
                             : !patterns && !json_object_size(json_object_get(schema, "properties"));
    const char *name;
    json_t *value;
    size_t n = json_object_size(patterns) + others;
    if (patterns && (!json_is_object(patterns) || json_object_size(listed)))
        refuse(w, SL_EUNSUPPORTED, "patternProperties", "beside properties or required is not kept to here");
    if (json_object_size(patterns) > SL_SCHEMA_MAX_CHOICES) {
        refuse(w, SL_EUNSUPPORTED, "patternProperties", "more than 32 patterns are not kept to here");
        return false;
    }
    if (n == 0)
        return false;
    sl_label *one = sl_xcalloc(n, sizeof *one);
    struct sl_write_alt a = {0};
    *out = sl_write_here(&w->out);
    for (size_t i = 0; i < n; i++) {
        one[i] = sl_write_label(&w->out);
        sl_write_alt_next(&w->out, &a, i + 1 == n);
        sl_write_call(&w->out, one[i]);
    }
    sl_write_alt_end(&w->out, &a);
    sl_write_return(&w->out);
    size_t i = 0;
    json_object_foreach ((json_t *)patterns, name, value) {
        sl_write_place(&w->out, one[i++]);
        write_extra(w, schema, listed, name, rule_of(w, value, "patternProperties", name));
    }
    if (others) {
        sl_write_place(&w->out, one[i]);
        write_extra(w, schema, listed, NULL,
                    additional ? rule_of(w, additional, "additionalProperties", "")
                               : w->json.rule[SL_JSON_ANY]);
    }
    sl_free(one);
    return true;
}

static void write_object(struct writer *w, const json_t *schema)
{
    json_t *listed = listed_members(w, schema);
    sl_label extra = 0, body = sl_write_label(&w->out);
    uint32_t min, max;
    counts_of(w, schema, "minProperties", "maxProperties", &min, &max);
    bool counts = min > 0 || max != UINT32_MAX;
    if (counts && json_object_size(listed))
        refuse(w, SL_EUNSUPPORTED, min ? "minProperties" : "maxProperties",
               "beside properties is not kept to here");
    if (min > 1) /* names may repeat */
        refuse(w, SL_EUNSUPPORTED, "minProperties", "more than 1 is not kept to here");
    sl_write_jump(&w->out, body);
    bool has_extra = write_extras(w, schema, listed, &extra);
    if (min && !has_extra)
        refuse(w, SL_EINVAL, "minProperties", "there are no members");
    sl_write_place(&w->out, body);
    if (json_object_size(listed)) {
        sl_write_word(&w->out, "{");
        sl_json_blanks(&w->out, &w->json);
        write_members(w, schema, listed, extra, has_extra);
        sl_json_blanks(&w->out, &w->json);
        sl_write_word(&w->out, "}");
        sl_write_return(&w->out);
    } else {
        sl_json_list(&w->out, &w->json,
                     &(struct sl_json_list){
                         .open = '{', .close = '}', .item = extra, .min = min, .max = has_extra ? max : 0});
    }
    json_decref(listed);
}

static void write_array(struct writer *w, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems"),
                 *one;
    uint32_t min, max, n = (uint32_t)json_array_size(prefix);
    size_t i;
    counts_of(w, schema, "minItems", "maxItems", &min, &max);
    if (prefix && (!json_is_array(prefix) || n == 0 || n > SL_SCHEMA_MAX_REPEAT))
        refuse(w, SL_EINVAL, "prefixItems", "expected a list of 1 to 1024 schemas");
    sl_label *first = sl_xcalloc((size_t)n + 1, sizeof *first);
    json_array_foreach ((json_t *)prefix, i, one) {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        first[i] = rule_of(w, one, "prefixItems", number);
    }
    if (json_is_false(items) || (n && !items)) { /* none behind the first ones */
        if (min > n)
            refuse(w, SL_EINVAL, "minItems", "is more than there are items");
        max = max < n ? max : n;
        items = NULL;
    }
    const struct sl_json_list list = {.open = '[',
                                      .close = ']',
                                      .first = first,
                                      .n_first = n,
                                      .item =
                                          items ? rule_of(w, items, "items", "") : w->json.rule[SL_JSON_ANY],
                                      .min = min,
                                      .max = max};
    sl_json_list(&w->out, &w->json, &list);
    sl_free(first);
}

static void write_values(struct writer *w, const json_t *schema, const json_t *list)
{
    struct sl_write_alt a = {0};
    const json_t *type = json_object_get(schema, "type");
    size_t i, left = 0;
    json_t *value;
    json_array_foreach ((json_t *)list, i, value)
        left += sl_schema_fits_type(value, type);
    if (left == 0)
        refuse(w, SL_EINVAL, "type", "none of the values is of that type");
    json_array_foreach ((json_t *)list, i, value) {
        if (!sl_schema_fits_type(value, type))
            continue;
        size_t n = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
        char *s = sl_xalloc(n + 1);
        (void)json_dumpb(value, s, n, JSON_COMPACT | JSON_ENCODE_ANY);
        sl_write_alt_next(&w->out, &a, --left == 0);
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
    struct sl_asked a;
    sl_asked_init(&a, false);
    if (schema != w->root || !json_is_string(expression))
        refuse(w, SL_EINVAL, SL_SCHEMA_REGEX, "expected at the top, with a regular expression");
    else
        sl_asked_add(&a, SL_MATCH_WHOLE, json_string_value(expression), json_string_length(expression));
    write_asked(w, &a, SL_SCHEMA_REGEX);
    sl_asked_fini(&a);
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
        write_number(w, schema, false);
    } else if (strcmp(type, "integer") == 0) {
        write_number(w, schema, true);
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
    } means[] = {
        {"properties", "object"},
        {"required", "object"},
        {"additionalProperties", "object"},
        {"patternProperties", "object"},
        {"propertyNames", "object"},
        {"minProperties", "object"},
        {"maxProperties", "object"},
        {"items", "array"},
        {"prefixItems", "array"},
        {"minItems", "array"},
        {"maxItems", "array"},
        {"pattern", "string"},
        {"minLength", "string"},
        {"maxLength", "string"},
        {"minimum", "number"},
        {"maximum", "number"},
        {"exclusiveMinimum", "number"},
        {"exclusiveMaximum", "number"},
    };
    for (size_t i = 0; i < SL_COUNTOF(means); i++)
        if (json_object_get(schema, means[i].word)) {
            write_one_type(w, schema, means[i].type);
            return;
        }
    const char *format = json_string_value(json_object_get(schema, "format"));
    if (format && sl_text_format(format))
        write_one_type(w, schema, "string");
    else
        sl_write_jump(&w->out, w->json.rule[SL_JSON_ANY]);
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

static void write_ref(struct writer *w, const json_t *ref)
{
    const json_t *to = json_is_string(ref) ? sl_schema_pointed(w->root, json_string_value(ref)) : NULL;
    if (!to)
        refuse(w, SL_EINVAL, "$ref", "expected a place in this schema that there is, as \"#/$defs/name\"");
    else
        sl_write_jump(&w->out, rule_of(w, to, "$ref", ""));
}

/* What a word means here; the first of a schema's that shapes it is followed, the others belong to it. format and
 * nullable are kept to where the value is written; names that begin with x- are anyone's. */
enum sense { DESCRIBES, SHAPES, BELONGS };

static const struct keyword {
    const char *name;
    enum sense sense;
} keywords[] = {
    {"$ref", SHAPES},
    {"const", SHAPES},
    {"enum", SHAPES},
    {"anyOf", SHAPES},
    {"oneOf", SHAPES},
    {"allOf", SHAPES},
    {SL_SCHEMA_TEXTS, SHAPES},
    {SL_SCHEMA_REGEX, SHAPES},
    {"type", BELONGS},
    {"properties", BELONGS},
    {"required", BELONGS},
    {"additionalProperties", BELONGS},
    {"patternProperties", BELONGS},
    {"propertyNames", BELONGS},
    {"minProperties", BELONGS},
    {"maxProperties", BELONGS},
    {"items", BELONGS},
    {"prefixItems", BELONGS},
    {"minItems", BELONGS},
    {"maxItems", BELONGS},
    {"minLength", BELONGS},
    {"maxLength", BELONGS},
    {"pattern", BELONGS},
    {"minimum", BELONGS},
    {"maximum", BELONGS},
    {"exclusiveMinimum", BELONGS},
    {"exclusiveMaximum", BELONGS},
    {"format", DESCRIBES},
    {"nullable", DESCRIBES},
    {"title", DESCRIBES},
    {"description", DESCRIBES},
    {"default", DESCRIBES},
    {"examples", DESCRIBES},
    {"example", DESCRIBES},
    {"$schema", DESCRIBES},
    {"$id", DESCRIBES},
    {"$anchor", DESCRIBES},
    {"$defs", DESCRIBES},
    {"definitions", DESCRIBES},
    {"$comment", DESCRIBES},
    {"deprecated", DESCRIBES},
    {"readOnly", DESCRIBES},
    {"writeOnly", DESCRIBES},
    {"discriminator", DESCRIBES},
    {"contentEncoding", DESCRIBES},
    {"contentMediaType", DESCRIBES},
    {"contentSchema", DESCRIBES},
};

/* A type beside schemas to choose from: each of them has to name it as well, since only they are followed. */
static void check_type_beside(struct writer *w, const json_t *schema, const char *shape)
{
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, shape), *one;
    size_t i;
    bool good = strcmp(shape, "$ref") != 0 || sl_schema_keeps_type(w->root, schema, type);
    if (strstr("anyOf oneOf allOf", shape))
        json_array_foreach ((json_t *)list, i, one)
            good &= sl_schema_keeps_type(w->root, one, type);
    if (type && !good)
        refuse(w, SL_EUNSUPPORTED, shape, "beside type: each of its schemas has to name that type itself");
}

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
        if (!k && strncmp(name, "x-", 2) != 0 && !(json_is_false(value) && strcmp(name, "uniqueItems") == 0))
            refuse(w, SL_EUNSUPPORTED, name, "is not kept to here; leave it out");
        else if (k && k->sense == SHAPES && sl_schema_all_of_text(schema) && strcmp(name, "allOf") == 0)
            continue;
        else if (k && k->sense == SHAPES && shape)
            refuse(w, SL_EUNSUPPORTED, name, "cannot stand beside another word that shapes the value");
        else if (k && k->sense == SHAPES)
            shape = k->name;
        belongs |= k && k->sense == BELONGS && strcmp(k->name, "type") != 0;
    }
    if (shape && belongs)
        refuse(w, SL_EUNSUPPORTED, shape, "cannot stand beside words for members or lengths");
    const char *format = json_string_value(json_object_get(schema, "format"));
    bool listed = shape && (strcmp(shape, "enum") == 0 || strcmp(shape, "const") == 0);
    if (shape && !listed && format && sl_text_format(format))
        refuse(w, SL_EUNSUPPORTED, "format", "cannot stand beside a word that shapes the value");
    return shape;
}

static void write_schema(struct writer *w, const json_t *schema)
{
    const char *shape = check_words(w, schema);
    const json_t *type = json_object_get(schema, "type");
    if (json_is_true(json_object_get(schema, "nullable"))) {
        sl_label other = sl_write_label(&w->out);
        sl_write_or_at(&w->out, other);
        sl_write_word(&w->out, "null");
        sl_write_return(&w->out);
        sl_write_place(&w->out, other);
    }
    if (shape) {
        check_type_beside(w, schema, shape);
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
            write_values(w, schema, list);
            json_decref(list);
        } else if (strcmp(shape, "enum") == 0) {
            if (json_array_size(value) == 0)
                refuse(w, SL_EINVAL, "enum", "expected a list of values, not empty");
            else if (json_array_size(value) > SL_SCHEMA_MAX_VALUES)
                refuse(w, SL_EUNSUPPORTED, "enum", "more than 1024 values are not kept to here");
            else
                write_values(w, schema, value);
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

enum sl_err sl_json_schema_compile(const json_t *schema, const struct sl_schema_frame *frame,
                                   struct sl_grammar **out, struct sl_why *why)
{
    static const struct sl_schema_frame bare = {.before = "", .between = "", .after = "", .max = 1};
    struct writer w = {.root = schema, .why = why, .path = "schema"};
    struct sl_grammar *p = NULL;
    w.rules = sl_xcalloc(MAX_RULES, sizeof *w.rules);
    w.rule_of = sl_hashmap_new();
    sl_matching_init(&w.matching);
    sl_label start = sl_write_label(&w.out);
    sl_write_frame(&w.out, frame ? frame : &bare, start);
    sl_json_rules(&w.out, &w.json);
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
    sl_matching_fini(&w.matching);
    sl_free(w.rules);
    return w.err;
}
