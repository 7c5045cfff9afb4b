/* router/api/responses_parse.c - part of step 1. One table says what is done with the members that a chat does not have or
 * has elsewhere. Items of input are checked here, where their places are known; what becomes of them, by the chat's parser. */
#include "router/api/responses_parse.h"

#include <stdio.h>
#include <string.h>

#include "router/api/chat_messages.h"

enum use {
    READ,    /* by a function below */
    IGNORED, /* cannot change the answer */
    REFUSED  /* would change it; what to do instead is said */
};

#define NOTHING_KEPT "is not supported: nothing is kept here; "
#define OF_CHATS     "is a member of /v1/chat/completions; "

static const struct member {
    const char *name;
    enum use use;
    const char *why;
} members[] = {
    {"input", READ, NULL},
    {"instructions", READ, NULL},
    {"max_output_tokens", READ, NULL},
    {"text", READ, NULL},
    {"tools", READ, NULL},
    {"tool_choice", READ, NULL},
    {"include", READ, NULL},
    {"truncation", READ, NULL},
    {"metadata", READ, NULL},

    {"store", IGNORED, NULL},          /* nothing is kept, and the answer says so */
    {"stream_options", IGNORED, NULL}, /* usage always comes, and padding is none */
    {"reasoning", IGNORED, NULL},      /* for models that reason; none is served */
    {"max_tool_calls", IGNORED, NULL}, /* of tools the server runs */

    {"previous_response_id", REFUSED, NOTHING_KEPT "send the items of the earlier turns in input."},
    {"conversation", REFUSED, NOTHING_KEPT "send the items of the earlier turns in input."},
    {"prompt", REFUSED, NOTHING_KEPT "send the prompt's text in instructions and input."},
    {"background", REFUSED, "is not supported: an answer goes to whoever waits for it; leave it out."},
    {"context_management", REFUSED, "is not supported: send the items that count in input."},
    {"moderation", REFUSED, "is not supported; leave it out."},
    {"messages", REFUSED, OF_CHATS "send input."},
    {"n", REFUSED, OF_CHATS "a response has one answer."},
    {"max_tokens", REFUSED, OF_CHATS "send max_output_tokens."},
    {"max_completion_tokens", REFUSED, OF_CHATS "send max_output_tokens."},
    {"response_format", REFUSED, OF_CHATS "send text.format."},
    {"logprobs", REFUSED, OF_CHATS "send include with \"message.output_text.logprobs\"."},
};

static const struct member *member_find(const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(members); i++)
        if (strcmp(members[i].name, name) == 0)
            return &members[i];
    return NULL;
}

/* What the chat has too, by the same name. */
static void copy_common(const struct sl_fields *f, json_t *chat)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)f->object, name, value) {
        const struct member *m = member_find(name);
        if (!m)
            json_object_set(chat, name, value);
        else if (m->use == REFUSED && !sl_json_says_nothing(value))
            sl_fault_set(f->fault, SL_EUNSUPPORTED, name, "%s %s", name, m->why);
    }
}

/* ---- input ---- */

/* An item being read, "input[3]". */
struct item {
    const json_t *json;
    const char *where;
    struct sl_fault *fault;
    size_t *memory; /* of the arguments of all items */
};

static bool item_fault(const struct item *in, enum sl_err err, const char *member, const char *text)
{
    char param[64];
    snprintf(param, sizeof param, "%s%s", in->where, member);
    return sl_fault_set(in->fault, err, param, "%s: %s", param, text);
}

/* The text of a message or of a call's output; owned by the caller. NULL with the fault set. */
static json_t *item_text(const struct item *in, const char *member)
{
    const json_t *value = json_object_get(in->json, member);
    char where[64];
    snprintf(where, sizeof where, "%s.%s", in->where, member);
    if (json_is_string(value))
        return json_incref((json_t *)value);
    if (json_is_array(value))
        return sl_chat_text(value, where, in->fault);
    sl_fault_set(in->fault, SL_EINVAL, where, "%s: expected a string or a list of text parts.", where);
    return NULL;
}

static bool add_message(const struct item *in, json_t *messages)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const json_t *role = json_object_get(in->json, "role");
    for (size_t i = 0; i < SL_COUNTOF(roles); i++) {
        if (!json_is_string(role) || strcmp(json_string_value(role), roles[i]) != 0)
            continue;
        json_t *content = item_text(in, "content");
        if (content)
            json_array_append_new(messages, json_pack("{s:O, s:o}", "role", role, "content", content));
        return content != NULL;
    }
    return item_fault(in, SL_EINVAL, ".role", "expected user, assistant, system or developer.");
}

/* The assistant's turn that a call belongs to: the one before it, or a new one without a text. */
static json_t *turn_of_call(json_t *messages)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0) {
        last = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
        json_array_append_new(messages, last);
    }
    if (!json_object_get(last, "tool_calls"))
        json_object_set_new(last, "tool_calls", json_array());
    return json_object_get(last, "tool_calls");
}

static bool add_call(const struct item *in, json_t *messages)
{
    const json_t *id = json_object_get(in->json, "call_id"), *name = json_object_get(in->json, "name");
    const json_t *text = json_object_get(in->json, "arguments");
    if (!json_is_string(id))
        return item_fault(in, SL_EINVAL, ".call_id", "expected a string.");
    if (!json_is_string(name))
        return item_fault(in, SL_EINVAL, ".name", "expected a string.");
    json_t *arguments = json_is_string(text) ? sl_chat_arguments(text, in->memory) : NULL;
    if (!arguments)
        return item_fault(in, SL_EINVAL, ".arguments", SL_CHAT_ARGUMENTS);
    json_array_append_new(turn_of_call(messages),
                          json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function",
                                    "name", name, "arguments", arguments));
    return true;
}

static bool add_output(const struct item *in, json_t *messages)
{
    const json_t *id = json_object_get(in->json, "call_id");
    if (!json_is_string(id))
        return item_fault(in, SL_EINVAL, ".call_id", "expected a string.");
    json_t *output = item_text(in, "output");
    if (output)
        json_array_append_new(
            messages, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", output));
    return output != NULL;
}

static bool add_item(const struct item *in, json_t *messages)
{
    static const struct {
        const char *type;
        bool (*add)(const struct item *in, json_t *messages);
    } kinds[] = {{"message", add_message}, {"function_call", add_call}, {"function_call_output", add_output}};
    const json_t *type = json_object_get(in->json, "type");
    if (!json_is_object(in->json))
        return item_fault(in, SL_EINVAL, "", "expected an object.");
    if (!type || json_is_null(type)) /* a message may leave its type out */
        return add_message(in, messages);
    for (size_t i = 0; json_is_string(type) && i < SL_COUNTOF(kinds); i++)
        if (strcmp(json_string_value(type), kinds[i].type) == 0)
            return kinds[i].add(in, messages);
    char why[160];
    snprintf(why, sizeof why,
             "\"%.40s\" is not supported; send message, function_call or function_call_output.",
             json_is_string(type) ? json_string_value(type) : sl_json_kind(type));
    return item_fault(in, SL_EUNSUPPORTED, ".type", why);
}

static void read_input(const struct sl_fields *f, json_t *chat)
{
    json_t *messages = json_array(), *one;
    const char *instructions = sl_field_string(f, "instructions", NULL);
    const json_t *input = sl_field(f, "input");
    size_t i, memory = 0;
    json_object_set_new(chat, "messages", messages);
    if (instructions && *instructions)
        json_array_append_new(
            messages, json_pack("{s:s, s:O}", "role", "system", "content", sl_field(f, "instructions")));
    if (json_is_string(input))
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", input));
    else if (!json_is_array(input) || json_array_size(input) == 0)
        sl_fault_set(f->fault, SL_EINVAL, "input",
                     "input is %s; expected a string or a list of items with at least one.",
                     !input                 ? "missing"
                     : json_is_array(input) ? "empty"
                                            : sl_json_kind(input));
    if (!sl_chat_few_enough(input, "input", f->fault))
        return;
    json_array_foreach ((json_t *)input, i, one) {
        char where[32];
        snprintf(where, sizeof where, "input[%zu]", i);
        if (!add_item(&(struct item){one, where, f->fault, &memory}, messages))
            return;
    }
}

/* ---- tools ---- */

/* {"type": "function", "name": ...} -> {"type": "function", "function": {"name": ...}} */
static json_t *function_within(const json_t *flat)
{
    json_t *function = json_copy((json_t *)flat);
    json_object_del(function, "type");
    return json_pack("{s:s, s:o}", "type", "function", "function", function);
}

static bool is_function(const json_t *j)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    return type && strcmp(type, "function") == 0;
}

static void read_tools(const struct sl_fields *f, json_t *chat)
{
    const json_t *tools = sl_field_array(f, "tools"), *choice = sl_field(f, "tool_choice");
    json_t *within = json_array(), *tool;
    size_t i;
    json_array_foreach ((json_t *)tools, i, tool) {
        char param[64];
        const char *type = json_string_value(json_object_get(tool, "type"));
        snprintf(param, sizeof param, "tools[%zu].type", i);
        if (!is_function(tool))
            sl_fault_set(
                f->fault, SL_EUNSUPPORTED, param,
                "%s is \"%.40s\"; expected \"function\": no tools are run here, the client runs its own.",
                param, type ? type : "");
        else
            json_array_append_new(within, function_within(tool));
    }
    if (tools)
        json_object_set(chat, "tools", within);
    json_decref(within);
    if (json_is_object(choice) && (!is_function(choice) || !json_is_string(json_object_get(choice, "name"))))
        sl_fault_set(f->fault, SL_EUNSUPPORTED, "tool_choice",
                     "tool_choice as an object is {\"type\": \"function\", \"name\": ...} here.");
    else if (choice)
        json_object_set_new(chat, "tool_choice",
                            json_is_object(choice) ? function_within(choice) : json_incref((json_t *)choice));
}

/* ---- the rest ---- */

/* text.format; a schema stands in it, where a chat has it one level deeper. */
static void read_text(const struct sl_fields *f, json_t *chat)
{
    const json_t *format = json_object_get(sl_field_object(f, "text"), "format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && !json_is_object(format) && !json_is_null(format))
        sl_fault_set(f->fault, SL_EINVAL, "text.format", "text.format is %s; expected an object.",
                     sl_json_kind(format));
    else if (type && strcmp(type, "json_schema") == 0 && !json_is_object(json_object_get(format, "schema")))
        sl_fault_set(f->fault, SL_EINVAL, "text.format.schema",
                     "text.format.schema is missing or no object; expected a JSON schema.");
    else if (json_is_object(format))
        json_object_set(chat, "response_format", (json_t *)format);
}

/* The values that name items nobody makes here change nothing. */
static void read_include(const struct sl_fields *f, json_t *chat)
{
    const json_t *include = sl_field_array(f, "include"), *top = json_object_get(f->object, "top_logprobs");
    bool logprobs = false;
    json_t *one;
    size_t i;
    json_array_foreach ((json_t *)include, i, one) {
        if (!json_is_string(one))
            sl_fault_set(f->fault, SL_EINVAL, "include", "include holds %s; expected strings only.",
                         sl_json_kind(one));
        else if (strcmp(json_string_value(one), "message.output_text.logprobs") == 0)
            logprobs = true;
    }
    json_object_set_new(chat, "logprobs", json_boolean(logprobs));
    if (!logprobs && json_integer_value(top) > 0)
        sl_fault_set(f->fault, SL_EINVAL, "top_logprobs",
                     "top_logprobs needs include to have \"message.output_text.logprobs\".");
}

/* Members that an answer repeats. */
static const char *const echoed[] = {
    "instructions",      "metadata",    "text",  "tools", "tool_choice", "parallel_tool_calls",
    "max_output_tokens", "temperature", "top_p", "user",  "top_logprobs"};

static void check_echo(const struct sl_fields *f)
{
    size_t n = 0;
    for (size_t i = 0; i < SL_COUNTOF(echoed); i++)
        n += json_dumpb(json_object_get(f->object, echoed[i]), NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
    if (n > SL_RESPONSES_ECHO_MAX_BYTES)
        sl_fault_set(
            f->fault, SL_EINVAL, "instructions",
            "instructions, tools, text and what else an answer repeats have %zu bytes; at most %u are "
            "taken: send long texts in input.",
            n, SL_RESPONSES_ECHO_MAX_BYTES);
}

json_t *sl_responses_to_chat(const json_t *body, struct sl_fault *fault)
{
    const struct sl_fields f = {body, fault};
    json_t *chat = json_object();
    copy_common(&f, chat);
    read_input(&f, chat);
    read_tools(&f, chat);
    read_text(&f, chat);
    read_include(&f, chat);
    (void)sl_field_object(&f, "metadata");
    const char *truncation = sl_field_string(&f, "truncation", "disabled");
    if (strcmp(truncation, "disabled") != 0)
        sl_fault_set(
            fault, SL_EUNSUPPORTED, "truncation",
            "truncation is \"%.40s\"; expected \"disabled\": nothing is left out of an input that is too "
            "long.",
            truncation);
    if (sl_field(&f, "max_output_tokens"))
        json_object_set(chat, "max_completion_tokens", (json_t *)sl_field(&f, "max_output_tokens"));
    check_echo(&f);
    if (fault->err == SL_OK)
        return chat;
    json_decref(chat);
    return NULL;
}

/* The first `from` in text becomes `to`. */
static void swap_word(char *text, size_t size, const char *from, const char *to)
{
    char *at = strstr(text, from), rest[sizeof((struct sl_fault *)0)->message];
    if (!at)
        return;
    snprintf(rest, sizeof rest, "%s", at + strlen(from));
    snprintf(at, size - (size_t)(at - text), "%s%s", to, rest);
}

void sl_responses_name_fault(struct sl_fault *fault)
{
    static const struct {
        const char *chat, *here;
    } words[] = {{"max_completion_tokens", "max_output_tokens"}, /* wherever they stand */
                 {"response_format", "text.format"},
                 {"].function.", "]."}},
      params[] = {{"messages", "input"}, {"prompt", "input"}, {"max_tokens", "max_output_tokens"}};
    for (size_t i = 0; i < SL_COUNTOF(params); i++)
        if (strcmp(fault->param, params[i].chat) == 0)
            snprintf(fault->param, sizeof fault->param, "%s", params[i].here);
    for (size_t i = 0; i < SL_COUNTOF(words); i++) {
        swap_word(fault->param, sizeof fault->param, words[i].chat, words[i].here);
        swap_word(fault->message, sizeof fault->message, words[i].chat, words[i].here);
    }
}

json_t *sl_responses_echo(const json_t *body)
{
    json_t *echo =
        json_pack("{s:n, s:n, s:{}, s:b, s:f, s:f, s:s, s:[], s:i, s:s, s:b, s:b, s:n}", "instructions",
                  "max_output_tokens", "metadata", "parallel_tool_calls", 1, "temperature", 1.0, "top_p", 1.0,
                  "tool_choice", "auto", "tools", "top_logprobs", 0, "truncation", "disabled", "background",
                  0, "store", 0, "previous_response_id");
    for (size_t i = 0; i < SL_COUNTOF(echoed); i++) {
        json_t *value = json_object_get(body, echoed[i]);
        if (value && !json_is_null(value))
            json_object_set(echo, echoed[i], value);
    }
    json_t *text = json_copy(json_object_get(body, "text")), *format = json_object_get(text, "format");
    if (!text || json_is_null(text))
        text = json_object();
    if (!format || json_is_null(format))
        json_object_set_new(text, "format", json_pack("{s:s}", "type", "text"));
    json_object_set_new(echo, "text", text);
    return echo;
}
