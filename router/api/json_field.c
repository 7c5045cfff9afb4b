/* router/api/json_field.c - the messages name the field, what was found and what was expected.
 *
 * jansson is strict where it counts (UTF-8, 64-bit integers, no NUL, no trailing text); its recursion is
 * bounded, but at 2048 levels, and our own walks over the value should not go that deep; and a list of empty objects
 * takes seventy times its bytes. So depth and memory are counted over the bytes first. */
#include "router/api/json_field.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_EXACT 9007199254740992.0 /* 2^53: below, a double is the integer that was written */

/* What jansson 2.14 takes from malloc, about: a list or object with its first table, a member's name, a value. */
#define CONTAINER_BYTES 200u
#define NAME_BYTES      80u
#define VALUE_BYTES     48u

bool sl_fault_set(struct sl_fault *f, enum sl_err err, const char *param, const char *fmt, ...)
{
    if (f->err)
        return false;
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->message, sizeof f->message, fmt, args);
    va_end(args);
    f->err = err;
    if (param)
        snprintf(f->param, sizeof f->param, "%s", param);
    return false;
}

bool sl_json_says_nothing(const json_t *j)
{
    return json_is_null(j) || json_is_false(j) || (json_is_string(j) && json_string_length(j) == 0) ||
           (json_is_array(j) && json_array_size(j) == 0) || (json_is_object(j) && json_object_size(j) == 0);
}

const char *sl_json_kind(const json_t *j)
{
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

const json_t *sl_field(const struct sl_fields *f, const char *name)
{
    if (f->fault->err)
        return NULL;
    const json_t *j = json_object_get(f->object, name);
    return j && !json_is_null(j) ? j : NULL;
}

static void wrong_kind(const struct sl_fields *f, const char *name, const json_t *j, const char *expected)
{
    sl_fault_set(f->fault, SL_EINVAL, name, "%s is %s; expected %s.", name, sl_json_kind(j), expected);
}

bool sl_field_bool(const struct sl_fields *f, const char *name, bool dflt)
{
    const json_t *j = sl_field(f, name);
    if (!j)
        return dflt;
    if (!json_is_boolean(j)) {
        wrong_kind(f, name, j, "true or false");
        return dflt;
    }
    return json_is_true(j);
}

int64_t sl_field_int(const struct sl_fields *f, const char *name, int64_t min, int64_t max, int64_t dflt)
{
    const json_t *j = sl_field(f, name);
    if (!j)
        return dflt;
    /* 40.0 is an integer too: languages with one kind of number write it so */
    double real = json_is_real(j) ? json_real_value(j) : 0;
    if (!json_is_integer(j) && !(json_is_real(j) && fabs(real) < MAX_EXACT && real == trunc(real))) {
        wrong_kind(f, name, j, "an integer");
        return dflt;
    }
    int64_t v = json_is_integer(j) ? json_integer_value(j) : (int64_t)real;
    if (v < min || v > max) {
        sl_fault_set(f->fault, SL_EINVAL, name, "%s is %lld; expected %lld to %lld.", name, (long long)v,
                     (long long)min, (long long)max);
        return dflt;
    }
    return v;
}

double sl_field_number(const struct sl_fields *f, const char *name, double min, double max, double dflt)
{
    const json_t *j = sl_field(f, name);
    if (!j)
        return dflt;
    if (!json_is_number(j)) {
        wrong_kind(f, name, j, "a number");
        return dflt;
    }
    double v = json_number_value(j);
    if (v < min || v > max) {
        if (isinf(max))
            sl_fault_set(f->fault, SL_EINVAL, name, "%s is %g; expected at least %g.", name, v, min);
        else
            sl_fault_set(f->fault, SL_EINVAL, name, "%s is %g; expected %g to %g.", name, v, min, max);
        return dflt;
    }
    return v;
}

const char *sl_field_string(const struct sl_fields *f, const char *name, const char *dflt)
{
    const json_t *j = sl_field(f, name);
    if (!j)
        return dflt;
    if (!json_is_string(j)) {
        wrong_kind(f, name, j, "a string");
        return dflt;
    }
    return json_string_value(j);
}

const json_t *sl_field_array(const struct sl_fields *f, const char *name)
{
    const json_t *j = sl_field(f, name);
    if (j && !json_is_array(j)) {
        wrong_kind(f, name, j, "a list");
        return NULL;
    }
    return j;
}

const json_t *sl_field_object(const struct sl_fields *f, const char *name)
{
    const json_t *j = sl_field(f, name);
    if (j && !json_is_object(j)) {
        wrong_kind(f, name, j, "an object");
        return NULL;
    }
    return j;
}

static bool too_deep_or_large(const char *p, size_t n, size_t *memory, struct sl_fault *fault)
{
    unsigned depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (p[i] == '\\')
                i++;
            else if (p[i] == '"')
                in_string = false;
        } else if (p[i] == '"') {
            in_string = true;
        } else if (p[i] == '{' || p[i] == '[') {
            *memory += CONTAINER_BYTES;
            if (++depth > SL_JSON_MAX_DEPTH)
                return !sl_fault_set(fault, SL_EPARSE, NULL,
                                     "The body has more than %d lists and objects inside each other.",
                                     SL_JSON_MAX_DEPTH);
        } else if (p[i] == ':' || p[i] == ',') {
            *memory += p[i] == ':' ? NAME_BYTES : VALUE_BYTES;
        } else if ((p[i] == '}' || p[i] == ']') && depth) {
            depth--;
        }
    }
    return *memory > SL_JSON_MAX_MEMORY &&
           !sl_fault_set(
               fault, SL_ETOOBIG, NULL,
               "The body has so many lists, objects and values that they would take more than %zu MiB of "
               "memory.",
               SL_JSON_MAX_MEMORY >> 20);
}

json_t *sl_json_body(const char *bytes, size_t n, struct sl_fault *fault)
{
    json_error_t at;
    size_t memory = 0;
    if (too_deep_or_large(bytes, n, &memory, fault))
        return NULL;
    json_t *j = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &at);
    if (!j) {
        bool nul = strstr(at.text, "JSON_ALLOW_NUL");
        sl_fault_set(fault, SL_EPARSE, NULL, "The body is not valid JSON: %s (line %d, column %d).",
                     nul ? "\\u0000 is not taken in a string" : at.text, at.line, at.column);
        return NULL;
    }
    if (!json_is_object(j)) {
        sl_fault_set(fault, SL_EPARSE, NULL, "The body is %s; expected a JSON object.", sl_json_kind(j));
        json_decref(j);
        return NULL;
    }
    return j;
}

json_t *sl_json_within(const json_t *text, size_t *memory)
{
    struct sl_fault why = {0};
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text);
    if (too_deep_or_large(bytes, n, memory, &why))
        return NULL;
    json_t *parsed = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return NULL;
}

static int append(const char *bytes, size_t n, void *out)
{
    return sl_buf_append(out, bytes, n) ? 0 : -1;
}

bool sl_json_write(const json_t *j, size_t flags, struct sl_buf *out)
{
    return json_dump_callback(j, append, out, flags) == 0;
}
