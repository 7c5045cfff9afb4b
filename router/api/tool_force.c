/* router/api/tool_force.c - tools into one schema: any of the calls. References in a tool's parameters are
 * from the parameters' own root, which stands deeper here: they are led there. */
#include "router/api/tool_force.h"

#include <stdio.h>
#include <string.h>

#include "router/api/tool_calls.h"

#define CALLS_MAX 16 /* of one answer: an end that no model can miss */
#define REF_BYTES                                                                                            \
    512 /* of a $ref that leads to its own tool; pointers into schemas have some dozen characters */

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(name, *list) == 0)
            return true;
    return false;
}

/* Every "$ref" below j gets the prefix; values that are data stay as they are. named: j's members are schemas,
 * whatever they are called. */
static void lead_refs(json_t *j, const char *prefix, bool named)
{
    static const char *const data[] = {"const", "enum", "default", "examples", NULL};
    static const char *const maps[] = {"properties", "patternProperties", "$defs", "definitions", NULL};
    const char *name;
    json_t *value;
    size_t i;
    json_array_foreach (j, i, value)
        lead_refs(value, prefix, false);
    if (!json_is_object(j))
        return;
    const char *ref = named ? NULL : json_string_value(json_object_get(j, "$ref"));
    if (ref && ref[0] == '#') {
        char text[REF_BYTES];
        if ((size_t)snprintf(text, sizeof text, "%s%s", prefix, ref + 1) < sizeof text)
            json_object_set_new(j, "$ref", json_string(text)); /* a longer one is refused as it stands */
    }
    json_object_foreach (j, name, value) {
        if (named || !is_one_of(name, data))
            lead_refs(value, prefix, !named && is_one_of(name, maps));
    }
}

/* {"name": "f", "arguments": {...}}, number i of a list in group g; held: the arguments fit the parameters. */
static json_t *call_schema(const struct sl_tool_format *format, const json_t *function, bool held, size_t g,
                           size_t i)
{
    const json_t *parameters = held ? json_object_get(function, "parameters") : NULL;
    json_t *arguments =
        json_object_size(parameters) ? json_deep_copy(parameters) : json_pack("{s:s}", "type", "object");
    char prefix[96];
    snprintf(prefix, sizeof prefix, "#/anyOf/%zu/anyOf/%zu/properties/%s", g, i, format->arguments);
    lead_refs(arguments, prefix, false);
    return json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s, s]}", "type", "object", "properties", "name", "const",
                     json_object_get(function, "name"), format->arguments, arguments, "required", "name",
                     format->arguments);
}

/* In groups: there may be more tools than one anyOf takes. */
static json_t *any_call(const struct sl_oai_request *r)
{
    json_t *groups = json_array(), *list = NULL, *tool;
    size_t i;
    json_array_foreach ((json_t *)r->tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        bool held = r->must_call || sl_tool_is_strict(tool);
        if (r->forced_tool[0] && strcmp(name, r->forced_tool) != 0)
            continue;
        if (!list || json_array_size(list) == SL_SCHEMA_MAX_CHOICES) {
            list = json_array();
            json_array_append_new(groups, json_pack("{s:o}", "anyOf", list));
        }
        json_array_append_new(list, call_schema(r->tool_format, function, held, json_array_size(groups) - 1,
                                                json_array_size(list)));
    }
    return json_pack("{s:o}", "anyOf", groups);
}

bool sl_tool_force(const struct sl_oai_request *r, int32_t begin_token, struct sl_fault *fault)
{
    const struct sl_tool_format *f = r->tool_format;
    Sluice__Sampling *s = &r->req->sampling;
    struct sl_schema_frame frame = {.before = f->forced.before,
                                    .between = f->forced.between ? f->forced.between : "",
                                    .after = f->forced.after,
                                    .max = r->one_call || !f->forced.between ? 1 : CALLS_MAX};
    if (!r->must_call) {
        frame.mark = f->begin ? f->begin : "";
        if (strncmp(frame.before, frame.mark, strlen(frame.mark)) == 0)
            frame.before += strlen(frame.mark); /* no control token: it stands in the text */
        frame.again = f->end && !r->one_call;
        frame.max = frame.again ? 1 : frame.max; /* the next one has a mark of its own */
    }
    json_t *schema = any_call(r);
    bool ok = sl_oai_keep_schema(schema, &frame, "tools", r->req, fault);
    json_decref(schema);
    if (!ok)
        return false;
    s->schema_before = (char *)(uintptr_t)frame.before;
    s->schema_between = (char *)(uintptr_t)frame.between;
    s->schema_after = (char *)(uintptr_t)frame.after;
    s->has_schema_max = true;
    s->schema_max = frame.max;
    s->schema_mark = (char *)(uintptr_t)frame.mark;
    s->has_schema_mark_token = frame.mark && begin_token >= 0;
    s->schema_mark_token = begin_token;
    s->has_schema_again = true;
    s->schema_again = frame.again;
    return true;
}
