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

static json_t *part_fault(struct sl_fault *fault, enum sl_err err, const char *where, const char *text)
{
    sl_fault_set(fault, err, where, "%s: %s", where, text);
    return NULL;
}

/* The text of one part; NULL with the fault set. */
static const json_t *part_text(const json_t *part, const char *where, struct sl_fault *fault)
{
    static const char *const types[] = {"text", "input_text", "output_text"};
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    char why[128];
    if (!type)
        return part_fault(fault, SL_EINVAL, where, "each part must be an object with a type.");
    for (size_t i = 0; i < SL_COUNTOF(types); i++)
        if (strcmp(type, types[i]) == 0)
            return json_is_string(text)
                       ? text
                       : part_fault(fault, SL_EINVAL, where, "a text part needs a string \"text\".");
    snprintf(why, sizeof why, "parts of type \"%.40s\" are not supported; only text is.", type);
    return part_fault(fault, SL_EUNSUPPORTED, where, why);
}

json_t *sl_chat_text(const json_t *parts, const char *where, struct sl_fault *fault)
{
    struct sl_buf all;
    json_t *part, *out = NULL;
    size_t i;
    sl_buf_init(&all, SIZE_MAX); /* bounded by the body */
    json_array_foreach (parts, i, part) {
        const json_t *text = part_text(part, where, fault);
        if (!text)
            goto out;
        sl_buf_append(&all, json_string_value(text), json_string_length(text));
    }
    out = json_stringn(all.len ? all.data : "", all.len);
out:
    sl_buf_fini(&all);
    return out;
}

json_t *sl_chat_arguments(const json_t *text, size_t *memory)
{
    /* empty: a function that takes none, as in vLLM */
    return json_string_length(text) ? sl_json_within(text, memory) : json_object();
}

/* A message of the body, which stays as it is: copied, and that flatly, when something in it changes. Most need no
 * change, and a copy of all would take as much memory as the body's whole tree. */
struct message {
    json_t *m;
    bool is_copy;
    size_t *memory; /* of the arguments of all messages */
};

/* Takes value. */
static void change(struct message *x, const char *key, json_t *value)
{
    if (!x->is_copy) {
        json_t *copy = json_copy(x->m);
        json_decref(x->m);
        x->m = copy;
        x->is_copy = true;
    }
    json_object_set_new(x->m, key, value);
}

/* The calls of an assistant message, their arguments parsed. */
static bool parse_tool_calls(struct message *x, size_t at, struct sl_fault *fault)
{
    const json_t *as_sent = json_object_get(x->m, "tool_calls");
    json_t *calls, *call;
    size_t i;
    if (!as_sent || json_is_null(as_sent))
        return true;
    if (!json_is_array(as_sent))
        return fault_at(fault, SL_EINVAL, at, "tool_calls", "expected a list.");
    calls = json_deep_copy(as_sent);
    change(x, "tool_calls", calls);
    json_array_foreach (calls, i, call) {
        json_t *function = json_object_get(call, "function");
        json_t *arguments = json_object_get(function, "arguments");
        if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
            return fault_at(fault, SL_EINVAL, at, "tool_calls", "each call needs a function with a name.");
        if (!json_is_string(arguments))
            continue;
        json_t *parsed = sl_chat_arguments(arguments, x->memory);
        if (!parsed)
            return fault_at(fault, SL_EINVAL, at, "tool_calls", "function.arguments: " SL_CHAT_ARGUMENTS);
        json_object_set_new(function, "arguments", parsed);
    }
    return true;
}

static bool fix_message(struct message *x, size_t at, bool knows_developer, struct sl_fault *fault)
{
    const json_t *role = json_object_get(x->m, "role");
    if (!json_is_string(role) || !role_ok(json_string_value(role)))
        return fault_at(fault, SL_EINVAL, at, "role", "expected system, developer, user, assistant or tool.");
    bool assistant = strcmp(json_string_value(role), "assistant") == 0;
    if (!knows_developer && strcmp(json_string_value(role), "developer") == 0)
        change(x, "role", json_string("system"));
    const json_t *content = json_object_get(x->m, "content");
    if (json_is_array(content)) {
        char where[64];
        snprintf(where, sizeof where, "messages[%zu].content", at);
        json_t *text = sl_chat_text(content, where, fault);
        if (!text)
            return false;
        change(x, "content", text);
    } else if (!json_is_string(content)) {
        const json_t *calls = json_object_get(x->m, "tool_calls");
        if (!assistant || (content && !json_is_null(content)) || json_array_size(calls) == 0)
            return fault_at(fault, SL_EINVAL, at, "content", "expected a string or a list of text parts.");
        change(x, "content", json_string("")); /* as in vLLM: templates concatenate it */
    }
    return parse_tool_calls(x, at, fault);
}

bool sl_chat_few_enough(const json_t *list, const char *name, struct sl_fault *fault)
{
    return json_array_size(list) <= SL_CHAT_MAX_MESSAGES ||
           sl_fault_set(fault, SL_EINVAL, name, "%s has %zu entries; at most %u are taken.", name,
                        json_array_size(list), SL_CHAT_MAX_MESSAGES);
}

json_t *sl_chat_messages(const json_t *messages, bool knows_developer, struct sl_fault *fault)
{
    if (!sl_chat_few_enough(messages, "messages", fault))
        return NULL;
    json_t *out = json_array(), *m;
    size_t i, memory = 0;
    json_array_foreach (messages, i, m) {
        struct message x = {json_incref(m), false, &memory};
        bool ok = json_is_object(m) ? fix_message(&x, i, knows_developer, fault)
                                    : fault_at(fault, SL_EINVAL, i, "", "expected an object.");
        json_array_append_new(out, x.m);
        if (!ok) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
