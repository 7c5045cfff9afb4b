/* common/grammar/schema_read.c - lists are walked as they are: a schema is small, and read once. */
#include "common/grammar/schema_read.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

#define NAME_BYTES 256 /* of one step of a pointer */

static const json_t *element(const json_t *list, const char *name)
{
    char *end;
    unsigned long i = strtoul(name, &end, 10);
    return name[0] >= '0' && name[0] <= '9' && *end == '\0' ? json_array_get(list, i) : NULL;
}

const json_t *sl_schema_pointed(const json_t *root, const char *ref)
{
    const json_t *at = root;
    if (*ref++ != '#')
        return NULL;
    while (at && *ref == '/') {
        char name[NAME_BYTES];
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

bool sl_schema_lists(const json_t *list, const char *text)
{
    const json_t *one;
    size_t i;
    json_array_foreach ((json_t *)list, i, one)
        if (json_is_string(one) && strcmp(json_string_value(one), text) == 0)
            return true;
    return false;
}

static bool is_of(const json_t *value, const char *type)
{
    static const struct {
        const char *name;
        json_type type;
    } types[] = {{"object", JSON_OBJECT},   {"array", JSON_ARRAY},    {"string", JSON_STRING},
                 {"null", JSON_NULL},       {"boolean", JSON_TRUE},   {"boolean", JSON_FALSE},
                 {"integer", JSON_INTEGER}, {"number", JSON_INTEGER}, {"number", JSON_REAL}};
    for (size_t i = 0; i < SL_COUNTOF(types); i++)
        if (strcmp(type, types[i].name) == 0 && json_typeof(value) == types[i].type)
            return true;
    return false;
}

bool sl_schema_fits_type(const json_t *value, const json_t *types)
{
    const json_t *one;
    size_t i;
    if (json_is_string(types))
        return is_of(value, json_string_value(types));
    json_array_foreach ((json_t *)types, i, one)
        if (json_is_string(one) && is_of(value, json_string_value(one)))
            return true;
    return !types;
}

bool sl_schema_all_of_text(const json_t *schema)
{
    static const char *const words[] = {"type", "pattern", "format", "minLength", "maxLength"};
    const json_t *list = json_object_get(schema, "allOf"), *type = json_object_get(schema, "type"), *one;
    size_t i, k;
    const char *name;
    json_t *value;
    bool good =
        json_is_string(type) && strcmp(json_string_value(type), "string") == 0 && json_array_size(list) > 0;
    json_array_foreach ((json_t *)list, i, one) {
        good &= json_is_object(one);
        json_object_foreach ((json_t *)one, name, value) {
            for (k = 0; k < SL_COUNTOF(words) && strcmp(words[k], name) != 0; k++)
                ;
            good &= k < SL_COUNTOF(words) && (k > 0 || json_equal(value, type));
        }
    }
    return good;
}

bool sl_schema_keeps_type(const json_t *root, const json_t *schema, const json_t *types)
{
    const json_t *ref = json_object_get(schema, "$ref"), *own, *one;
    size_t i;
    if (json_is_string(ref))
        schema = sl_schema_pointed(root, json_string_value(ref));
    own = json_object_get(schema, "type");
    json_array_foreach ((json_t *)own, i, one)
        if (!sl_schema_lists(types, json_is_string(one) ? json_string_value(one) : "") &&
            !json_equal(one, types))
            return false;
    return json_is_array(own) || json_equal(own, types) ||
           (json_is_string(own) && sl_schema_lists(types, json_string_value(own)));
}
