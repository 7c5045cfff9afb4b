/* common/grammar/json_schema.c - each schema that stands somewhere becomes a rule, written once, from a list
 * of those still to be written: so neither recursion of schemas nor of this file needs care.
 *
 * Jumps name labels while the program is written; they become places at the end. */
#include "common/grammar/json_schema.h"

#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/grammar/matcher.h"

#define MAX_RULES       4096 /* schemas in a schema: more than 64 KiB of text hold in practice */
#define PATH_BYTES      256  /* of a place that a message names; longer ones are cut */
#define INDENT_CHARS    20   /* behind a line feed */
#define NUMBER_DIGITS   16   /* doubles hold 15 to 17 */
#define EXPONENT_DIGITS 2    /* so that no number is infinite */

typedef uint32_t label;

struct rule {
    const json_t *schema; /* NULL: one of the fixed ones */
    label at;
    char path[PATH_BYTES];
};

/* The rules every schema may use. */
enum fixed { ANY, ANY_OBJECT, ANY_ARRAY, STRING, CHAR, NUMBER, INTEGER, BLANKS, N_FIXED };

struct writer {
    const json_t *root;
    struct sl_insn *insns;
    uint32_t n, cap;
    uint32_t *places; /* of labels */
    uint32_t n_labels, cap_labels;
    struct rule *rules;
    uint32_t n_rules;
    struct sl_hashmap *rule_of; /* schema's address -> rule's number + 1 */
    label fixed[N_FIXED];
    const char *path; /* of the rule that is written */
    enum sl_err err;
    struct sl_why *why;
};

static void refuse(struct writer *w, enum sl_err err, const char *word, const char *what)
{
    if (w->err == SL_OK)
        w->err = sl_why_set(w->why, err, "%s%s%s: %s", w->path, *word ? "." : "", word, what);
}

/* ---- instructions ---- */

static void put(struct writer *w, struct sl_insn i)
{
    if (w->n == SL_GRAMMAR_MAX_INSNS) {
        refuse(w, SL_ETOOBIG, "", "the schema is too large");
        return;
    }
    if (w->n == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 256;
        w->insns = sl_xrealloc(w->insns, w->cap * sizeof *w->insns);
    }
    w->insns[w->n++] = i;
}

static label new_label(struct writer *w)
{
    if (w->n_labels == w->cap_labels) {
        w->cap_labels = w->cap_labels ? 2 * w->cap_labels : 256;
        w->places = sl_xrealloc(w->places, w->cap_labels * sizeof *w->places);
    }
    return w->n_labels++;
}

static void place(struct writer *w, label l)
{
    w->places[l] = w->n;
}

static label here(struct writer *w)
{
    label l = new_label(w);
    place(w, l);
    return l;
}

static void byte(struct writer *w, unsigned lo, unsigned hi)
{
    put(w, (struct sl_insn){.op = SL_INSN_BYTE, .lo = (uint8_t)lo, .hi = (uint8_t)hi});
}

static void text(struct writer *w, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        byte(w, (unsigned char)s[i], (unsigned char)s[i]);
}

static void word(struct writer *w, const char *s)
{
    text(w, s, strlen(s));
}

static void split(struct writer *w, label x, label y)
{
    put(w, (struct sl_insn){.op = SL_INSN_SPLIT, .x = x, .y = y});
}

/* Goes on with what follows, or at `other`. */
static void or_at(struct writer *w, label other)
{
    label go_on = new_label(w);
    split(w, go_on, other);
    place(w, go_on);
}

static void jump(struct writer *w, label x)
{
    put(w, (struct sl_insn){.op = SL_INSN_JUMP, .x = x});
}

static void call(struct writer *w, label x)
{
    put(w, (struct sl_insn){.op = SL_INSN_CALL, .x = x});
}

static void give_back(struct writer *w)
{
    put(w, (struct sl_insn){.op = SL_INSN_RETURN});
}

/* Alternatives: begin each with alt_next(), end the last with alt_end(). */
struct alt {
    label next, end;
    bool open;
};

static void alt_next(struct writer *w, struct alt *a, bool last)
{
    if (!a->open)
        a->end = new_label(w);
    else
        jump(w, a->end);
    if (a->open)
        place(w, a->next);
    a->open = true;
    if (last)
        return;
    label first = new_label(w);
    a->next = new_label(w);
    split(w, first, a->next);
    place(w, first);
}

static void alt_end(struct writer *w, const struct alt *a)
{
    place(w, a->end);
}

/* From `from` to `to` bytes of a range; more than one range in ranges: pairs of lo and hi, ended by a 0. */
static void one_of(struct writer *w, const char *ranges)
{
    struct alt a = {0};
    for (const char *r = ranges; *r; r += 2) {
        alt_next(w, &a, r[2] == '\0');
        byte(w, (unsigned char)r[0], (unsigned char)r[1]);
    }
    alt_end(w, &a);
}

/* item, min to max times (UINT32_MAX: without end); item is a rule. */
static void repeat(struct writer *w, label item, uint32_t min, uint32_t max)
{
    label end = new_label(w);
    for (uint32_t i = 0; i < min; i++)
        call(w, item);
    if (max == UINT32_MAX) {
        label again = here(w), more = new_label(w);
        split(w, more, end);
        place(w, more);
        call(w, item);
        jump(w, again);
    }
    for (uint32_t i = min; max != UINT32_MAX && i < max; i++) {
        or_at(w, end);
        call(w, item);
    }
    place(w, end);
}

/* 0 to max more digits, in line: numbers are short and calls cost a stack's place. */
static void digits(struct writer *w, uint32_t max)
{
    label end = new_label(w);
    for (uint32_t i = 0; i < max; i++) {
        or_at(w, end);
        byte(w, '0', '9');
    }
    place(w, end);
}

/* ---- fixed rules ---- */

static void write_blanks(struct writer *w)
{
    struct alt a = {0};
    alt_next(w, &a, false);
    alt_next(w, &a, false);
    byte(w, ' ', ' ');
    alt_next(w, &a, true);
    byte(w, '\n', '\n');
    label end = new_label(w);
    for (uint32_t i = 0; i < INDENT_CHARS; i++) {
        or_at(w, end);
        one_of(w, "  \t\t");
    }
    place(w, end);
    alt_end(w, &a);
    give_back(w);
}

static void blanks(struct writer *w)
{
    call(w, w->fixed[BLANKS]);
}

static void hex(struct writer *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        one_of(w, "09afAF");
}

/* A character of a string: itself in UTF-8 (table 3-7 of the Unicode standard), or an escape. */
static void write_char(struct writer *w)
{
    static const struct {
        unsigned char lo, hi, lo2, hi2, more;
    } utf8[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1},
                {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
                {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
    struct alt a = {0};
    alt_next(w, &a, false);
    one_of(w, " !#[]~");
    for (size_t i = 0; i < SL_COUNTOF(utf8); i++) {
        alt_next(w, &a, false);
        byte(w, utf8[i].lo, utf8[i].hi);
        byte(w, utf8[i].lo2, utf8[i].hi2);
        for (unsigned k = 0; k < utf8[i].more; k++)
            byte(w, 0x80, 0xBF);
    }
    alt_next(w, &a, false);
    word(w, "\\");
    one_of(w, "\"\"\\\\//bbffnnrrtt");
    alt_next(w, &a, false); /* \u, no surrogates */
    word(w, "\\u");
    one_of(w, "09acefACEF");
    hex(w, 3);
    alt_next(w, &a, true);
    word(w, "\\u");
    one_of(w, "ddDD");
    byte(w, '0', '7');
    hex(w, 2);
    alt_end(w, &a);
    give_back(w);
}

static void write_string(struct writer *w, uint32_t min, uint32_t max)
{
    word(w, "\"");
    repeat(w, w->fixed[CHAR], min, max);
    word(w, "\"");
    give_back(w);
}

static void optional(struct writer *w, label *skip)
{
    *skip = new_label(w);
    or_at(w, *skip);
}

static void write_number(struct writer *w, bool integer)
{
    label skip;
    struct alt a = {0};
    optional(w, &skip);
    word(w, "-");
    place(w, skip);
    alt_next(w, &a, false);
    word(w, "0");
    alt_next(w, &a, true);
    byte(w, '1', '9');
    digits(w, NUMBER_DIGITS - 1);
    alt_end(w, &a);
    if (!integer) {
        optional(w, &skip);
        word(w, ".");
        byte(w, '0', '9');
        digits(w, NUMBER_DIGITS - 1);
        place(w, skip);
        optional(w, &skip);
        label sign;
        one_of(w, "eeEE");
        optional(w, &sign);
        one_of(w, "++--");
        place(w, sign);
        byte(w, '0', '9');
        digits(w, EXPONENT_DIGITS - 1);
        place(w, skip);
    }
    give_back(w);
}

/* open, min to max of item with commas between them, close. */
static void write_list(struct writer *w, const char *open, const char *close, label item, uint32_t min,
                       uint32_t max)
{
    label end = new_label(w), more = new_label(w);
    word(w, open);
    blanks(w);
    if (max == 0) {
        jump(w, end);
    } else if (min == 0) {
        or_at(w, end);
    }
    if (max > 0)
        call(w, item);
    for (uint32_t i = 1; i < min; i++) {
        word(w, ",");
        blanks(w);
        call(w, item);
    }
    uint32_t have = min > 1 ? min : 1;
    if (max == UINT32_MAX) {
        label again = here(w);
        split(w, more, end);
        place(w, more);
        word(w, ",");
        blanks(w);
        call(w, item);
        jump(w, again);
    }
    for (uint32_t i = have; max != UINT32_MAX && i < max; i++) {
        or_at(w, end);
        word(w, ",");
        blanks(w);
        call(w, item);
    }
    place(w, end);
    blanks(w);
    word(w, close);
    give_back(w);
}

static void write_fixed(struct writer *w)
{
    label pair = new_label(w);
    struct alt a = {0};
    w->path = "schema";
    for (int i = 0; i < N_FIXED; i++)
        w->fixed[i] = new_label(w);
    place(w, w->fixed[ANY]);
    alt_next(w, &a, false);
    call(w, w->fixed[ANY_OBJECT]);
    alt_next(w, &a, false);
    call(w, w->fixed[ANY_ARRAY]);
    alt_next(w, &a, false);
    call(w, w->fixed[STRING]);
    alt_next(w, &a, false);
    call(w, w->fixed[NUMBER]);
    alt_next(w, &a, false);
    word(w, "true");
    alt_next(w, &a, false);
    word(w, "false");
    alt_next(w, &a, true);
    word(w, "null");
    alt_end(w, &a);
    give_back(w);
    place(w, pair);
    call(w, w->fixed[STRING]);
    word(w, ":");
    blanks(w);
    call(w, w->fixed[ANY]);
    give_back(w);
    place(w, w->fixed[ANY_OBJECT]);
    write_list(w, "{", "}", pair, 0, UINT32_MAX);
    place(w, w->fixed[ANY_ARRAY]);
    write_list(w, "[", "]", w->fixed[ANY], 0, UINT32_MAX);
    place(w, w->fixed[STRING]);
    write_string(w, 0, UINT32_MAX);
    place(w, w->fixed[CHAR]);
    write_char(w);
    place(w, w->fixed[NUMBER]);
    write_number(w, false);
    place(w, w->fixed[INTEGER]);
    write_number(w, true);
    place(w, w->fixed[BLANKS]);
    write_blanks(w);
}

/* ---- schemas ---- */

/* The rule of a schema that stands at path/word; written later. */
static label rule_of(struct writer *w, const json_t *schema, const char *word, const char *member)
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
    r->at = new_label(w);
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

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required"), *one;
    size_t i;
    json_array_foreach((json_t *)list, i,
                       one) if (json_is_string(one) && strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

static void write_key(struct writer *w, const char *name)
{
    struct sl_buf key;
    sl_buf_init(&key, SIZE_MAX); /* of a schema that is bounded */
    sl_buf_json_escape(&key, name, strlen(name));
    word(w, "\"");
    text(w, key.data, key.len);
    word(w, "\":");
    blanks(w);
    sl_buf_fini(&key);
}

/* Members in order. Two places in front of each: nothing was written so far, something was and a comma is
 * due. */
static void write_members(struct writer *w, const json_t *schema, const json_t *properties, label extra,
                          bool has_extra)
{
    size_t n = json_object_size(properties), i = 0;
    label(*at)[2] = sl_xcalloc(n + 1, sizeof *at);
    const char *name;
    json_t *value;
    for (size_t k = 0; k <= n; k++)
        for (int some = 0; some < 2; some++)
            at[k][some] = new_label(w);
    jump(w, at[0][0]);
    json_object_foreach((json_t *)properties, name, value)
    {
        label rule = rule_of(w, value, "properties", name);
        for (int some = 0; some < 2; some++) {
            place(w, at[i][some]);
            if (!is_required(schema, name)) {
                or_at(w, at[i + 1][some]);
            }
            if (some) {
                word(w, ",");
                blanks(w);
            }
            write_key(w, name);
            call(w, rule);
            jump(w, at[i + 1][1]);
        }
        i++;
    }
    label end = new_label(w), more = new_label(w), first = new_label(w);
    place(w, at[n][0]);
    if (has_extra) {
        split(w, first, end);
        place(w, first);
        call(w, extra);
    } else {
        jump(w, end);
    }
    place(w, at[n][1]);
    if (has_extra) {
        split(w, more, end);
        place(w, more);
        word(w, ",");
        blanks(w);
        call(w, extra);
        jump(w, at[n][1]);
    }
    place(w, end);
    sl_free(at);
}

static void check_required(struct writer *w, const json_t *schema, const json_t *properties)
{
    const json_t *list = json_object_get(schema, "required"), *one;
    size_t i;
    if (list && !json_is_array(list))
        refuse(w, SL_EINVAL, "required", "expected a list of names");
    json_array_foreach((json_t *)list, i, one)
    {
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
    label extra = new_label(w), body = new_label(w);
    if (properties && !json_is_object(properties))
        refuse(w, SL_EINVAL, "properties", "expected an object");
    check_required(w, schema, properties);
    jump(w, body);
    if (has_extra) {
        place(w, extra);
        call(w, w->fixed[STRING]);
        word(w, ":");
        blanks(w);
        call(w, additional ? rule_of(w, additional, "additionalProperties", "") : w->fixed[ANY]);
        give_back(w);
    }
    place(w, body);
    word(w, "{");
    blanks(w);
    write_members(w, schema, properties, extra, has_extra);
    blanks(w);
    word(w, "}");
    give_back(w);
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
    struct alt a = {0};
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)list, i, value)
    {
        size_t n = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
        char *s = sl_xalloc(n + 1);
        (void)json_dumpb(value, s, n, JSON_COMPACT | JSON_ENCODE_ANY);
        alt_next(w, &a, i + 1 == json_array_size(list));
        text(w, s, n);
        sl_free(s);
    }
    alt_end(w, &a);
    give_back(w);
}

static void write_one_type(struct writer *w, const json_t *schema, const char *type)
{
    uint32_t min, max;
    if (strcmp(type, "object") == 0) {
        write_object(w, schema);
    } else if (strcmp(type, "array") == 0) {
        write_array(w, schema);
    } else if (strcmp(type, "string") == 0) {
        counts_of(w, schema, "minLength", "maxLength", &min, &max);
        write_string(w, min, max);
    } else if (strcmp(type, "number") == 0) {
        jump(w, w->fixed[NUMBER]);
    } else if (strcmp(type, "integer") == 0) {
        jump(w, w->fixed[INTEGER]);
    } else if (strcmp(type, "null") == 0) {
        word(w, "null");
        give_back(w);
    } else if (strcmp(type, "boolean") == 0) {
        struct alt a = {0};
        alt_next(w, &a, false);
        word(w, "true");
        alt_next(w, &a, true);
        word(w, "false");
        alt_end(w, &a);
        give_back(w);
    } else {
        refuse(w, SL_EINVAL, "type", "expected object, array, string, number, integer, boolean or null");
    }
}

/* Each alternative ends with its own return. */
static void write_types(struct writer *w, const json_t *schema, const json_t *types)
{
    size_t i;
    json_t *type;
    json_array_foreach((json_t *)types, i, type)
    {
        label next = new_label(w), first = new_label(w);
        if (i + 1 < json_array_size(types))
            split(w, first, next);
        place(w, first);
        write_one_type(w, schema, json_is_string(type) ? json_string_value(type) : "");
        place(w, next);
    }
    if (json_array_size(types) == 0)
        refuse(w, SL_EINVAL, "type", "is an empty list");
}

static void write_any_of(struct writer *w, const json_t *list, const char *name)
{
    struct alt a = {0};
    size_t i;
    json_t *one;
    if (json_array_size(list) == 0) {
        refuse(w, SL_EINVAL, name, "expected a list of schemas, not empty");
        return;
    }
    if (json_array_size(list) > SL_SCHEMA_MAX_CHOICES)
        refuse(w, SL_EUNSUPPORTED, name, "more than 32 schemas are not kept to here");
    json_array_foreach((json_t *)list, i, one)
    {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        alt_next(w, &a, i + 1 == json_array_size(list));
        call(w, rule_of(w, one, name, number));
    }
    alt_end(w, &a);
    give_back(w);
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
        at = json_object_get(at, name);
    }
    return *ref ? NULL : at;
}

static void write_ref(struct writer *w, const json_t *ref)
{
    const json_t *to = json_is_string(ref) ? pointed(w->root, json_string_value(ref)) : NULL;
    if (!to)
        refuse(w, SL_EINVAL, "$ref", "expected a place in this schema that there is, as \"#/$defs/name\"");
    else
        jump(w, rule_of(w, to, "$ref", ""));
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
    {"title", DESCRIBES},      {"description", DESCRIBES}, {"default", DESCRIBES},
    {"examples", DESCRIBES},   {"$schema", DESCRIBES},     {"$id", DESCRIBES},
    {"$defs", DESCRIBES},      {"definitions", DESCRIBES}, {"$comment", DESCRIBES},
    {"deprecated", DESCRIBES}, {"readOnly", DESCRIBES},    {"writeOnly", DESCRIBES},
};

/* Refuses words that are not kept to; returns the one that shapes the schema, NULL when its type does. */
static const char *check_words(struct writer *w, const json_t *schema)
{
    const char *name, *shape = NULL;
    json_t *value;
    bool belongs = false;
    json_object_foreach((json_t *)schema, name, value)
    {
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
    if (json_is_string(type))
        write_one_type(w, schema, json_string_value(type));
    else if (json_is_array(type))
        write_types(w, schema, type);
    else if (type)
        refuse(w, SL_EINVAL, "type", "expected a name or a list of names");
    else if (json_object_get(schema, "properties") || json_object_get(schema, "additionalProperties"))
        write_object(w, schema);
    else if (json_object_get(schema, "items"))
        write_array(w, schema);
    else
        jump(w, w->fixed[ANY]);
}

void sl_grammar_free(struct sl_grammar *p)
{
    if (!p)
        return;
    sl_free(p->insns);
    sl_free(p);
}

static void resolve(struct writer *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        struct sl_insn *n = &w->insns[i];
        if (n->op == SL_INSN_SPLIT || n->op == SL_INSN_JUMP || n->op == SL_INSN_CALL)
            n->x = w->places[n->x];
        if (n->op == SL_INSN_SPLIT)
            n->y = w->places[n->y];
    }
}

enum sl_err sl_json_schema_compile(const json_t *schema, struct sl_grammar **out, struct sl_why *why)
{
    struct writer w = {.root = schema, .why = why, .path = "schema"};
    w.rules = sl_xcalloc(MAX_RULES, sizeof *w.rules);
    w.rule_of = sl_hashmap_new();
    label start = new_label(&w);
    call(&w, start);
    put(&w, (struct sl_insn){.op = SL_INSN_END});
    write_fixed(&w);
    place(&w, start);
    jump(&w, rule_of(&w, schema, "", ""));
    for (uint32_t i = 0; i < w.n_rules && w.err == SL_OK; i++) {
        w.path = w.rules[i].path;
        place(&w, w.rules[i].at);
        write_schema(&w, w.rules[i].schema);
    }
    struct sl_grammar *p = sl_xalloc(sizeof *p);
    *p = (struct sl_grammar){.insns = w.insns, .n = w.n};
    if (w.err == SL_OK) {
        resolve(&w);
        struct sl_matcher *m = sl_matcher_new(p);
        if (!m)
            w.err = sl_why_set(why, SL_EINVAL, "schema: no value fits it");
        sl_matcher_free(m);
    }
    if (w.err == SL_OK)
        *out = p;
    else
        sl_grammar_free(p);
    sl_hashmap_free(w.rule_of);
    sl_free(w.places);
    sl_free(w.rules);
    return w.err;
}
