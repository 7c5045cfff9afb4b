/* router/api/chat_messages.c - part of step 1. Members nobody here knows (name, reasoning_content, ...) are
 * handed to the template. */
#include "router/api/chat_messages.h"

#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};

static bool role_ok(const char *role)
{
    for (size_t i = 0; i < SL_COUNTOF(roles); i++)
        if (strcmp(role, roles[i]) == 0)
            return true;
    return false;
}

static bool fault_at(struct sl_fault *fault, enum sl_err err, size_t i, const char *member, const char *text)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%zu]%s%s", i, member[0] ? "." : "", member);
    return sl_fault_set(fault, err, param, "%s: %s", param, text);
}

/* A list of parts to one string; NULL with the fault set. */
static json_t *flatten(const json_t *parts, size_t at, struct sl_fault *fault)
{
    struct sl_buf text;
    json_t *part, *out = NULL;
    size_t i;
    sl_buf_init(&text, SIZE_MAX); /* bounded by the body */
    json_array_foreach (parts, i, part) {
        const json_t *type = json_object_get(part, "type"), *piece = json_object_get(part, "text");
        if (!json_is_object(part) || !json_is_string(type)) {
            fault_at(fault, SL_EINVAL, at, "content", "each part must be an object with a type.");
            goto out;
        }
        if (strcmp(json_string_value(type), "text") != 0 &&
            strcmp(json_string_value(type), "input_text") != 0) {
            char why[128];
            snprintf(why, sizeof why, "parts of type \"%.40s\" are not supported; only text is.",
                     json_string_value(type));
            fault_at(fault, SL_EUNSUPPORTED, at, "content", why);
            goto out;
        }
        if (!json_is_string(piece)) {
            fault_at(fault, SL_EINVAL, at, "content", "a text part needs a string \"text\".");
            goto out;
        }
        sl_buf_append(&text, json_string_value(piece), json_string_length(piece));
    }
    out = json_stringn(text.len ? text.data : "", text.len);
out:
    sl_buf_fini(&text);
    return out;
}

/* The calls of an assistant message, their arguments parsed. */
static bool parse_tool_calls(json_t *message, size_t at, struct sl_fault *fault)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!calls || json_is_null(calls))
        return true;
    if (!json_is_array(calls))
        return fault_at(fault, SL_EINVAL, at, "tool_calls", "expected a list.");
    json_array_foreach (calls, i, call) {
        json_t *function = json_object_get(call, "function");
        json_t *arguments = json_object_get(function, "arguments");
        if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
            return fault_at(fault, SL_EINVAL, at, "tool_calls", "each call needs a function with a name.");
        if (!json_is_string(arguments))
            continue;
        size_t n = json_string_length(arguments); /* empty: a function that takes none, as in vLLM */
        json_t *parsed =
            n ? json_loadb(json_string_value(arguments), n, JSON_REJECT_DUPLICATES, NULL) : json_object();
        if (!json_is_object(parsed)) {
            json_decref(parsed);
            return fault_at(fault, SL_EINVAL, at, "tool_calls",
                            "function.arguments must hold a JSON object.");
        }
        json_object_set_new(function, "arguments", parsed);
    }
    return true;
}

static bool fix_message(json_t *m, size_t at, bool knows_developer, struct sl_fault *fault)
{
    const json_t *role = json_object_get(m, "role");
    if (!json_is_string(role) || !role_ok(json_string_value(role)))
        return fault_at(fault, SL_EINVAL, at, "role", "expected system, developer, user, assistant or tool.");
    bool assistant = strcmp(json_string_value(role), "assistant") == 0;
    if (!knows_developer && strcmp(json_string_value(role), "developer") == 0)
        json_object_set_new(m, "role", json_string("system"));
    const json_t *content = json_object_get(m, "content");
    if (json_is_array(content)) {
        json_t *text = flatten(content, at, fault);
        if (!text)
            return false;
        json_object_set_new(m, "content", text);
    } else if (!json_is_string(content)) {
        const json_t *calls = json_object_get(m, "tool_calls");
        if (!assistant || (content && !json_is_null(content)) || json_array_size(calls) == 0)
            return fault_at(fault, SL_EINVAL, at, "content", "expected a string or a list of text parts.");
        json_object_set_new(m, "content", json_string("")); /* as in vLLM: templates concatenate it */
    }
    return parse_tool_calls(m, at, fault);
}

json_t *sl_chat_messages(const json_t *messages, bool knows_developer, struct sl_fault *fault)
{
    json_t *out = json_array(), *m;
    size_t i;
    json_array_foreach (messages, i, m) {
        json_t *copy = json_is_object(m) ? json_deep_copy(m) : NULL;
        bool ok = copy ? fix_message(copy, i, knows_developer, fault)
                       : fault_at(fault, SL_EINVAL, i, "", "expected an object.");
        if (copy)
            json_array_append_new(out, copy);
        if (!ok) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
