/* router/api/tool_calls.c - one table of formats, one filter for all of them.
 *
 * The filter holds back what may still become a call: a tail that begins like the mark in front of one, and
 * blanks, which are only shown when text follows them. In a call it collects to the mark behind it; then the
 * JSON decides. So cutting the text elsewhere never changes what comes out. */
#include "router/api/tool_calls.h"

#include <stdio.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/mem.h"

static const struct sl_tool_format formats[] = {
    {.name = "hermes", /* Hermes, Qwen2.5, Qwen3, Granite 4 */
     .taught = "<tool_call>\\n{",
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .arguments = "arguments",
     .forced = {"<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"}},
    {.name = "mistral", /* with a list of calls, up to 2024 */
     .taught = "[TOOL_CALLS]",
     .untaught = "[ARGS]",
     .begin = "[TOOL_CALLS]",
     .arguments = "arguments",
     .begin_is_control = true,
     .forced = {"[", ", ", "]"}},
    {.name = "llama3",
     .taught = "\"parameters\": dictionary",
     .arguments = "parameters",
     .forced = {"", NULL, ""}},
};

const struct sl_tool_format *sl_tool_format_of(const char *source)
{
    for (size_t i = 0; source && i < SL_COUNTOF(formats); i++)
        if (strstr(source, formats[i].taught) &&
            !(formats[i].untaught && strstr(source, formats[i].untaught)))
            return &formats[i];
    return NULL;
}

/* ---- the request ---- */

static bool name_ok(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && n <= SL_TOOL_NAME_MAX_BYTES && s[n] == '\0';
}

static bool fault_at(struct sl_fault *fault, enum sl_err err, size_t i, const char *member, const char *text)
{
    char param[64];
    snprintf(param, sizeof param, "tools[%zu].%s", i, member);
    return sl_fault_set(fault, err, param, "%s: %s", param, text);
}

bool sl_tool_is_strict(const json_t *tool)
{
    return json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
}

bool sl_tools_check(const json_t *tools, struct sl_fault *fault)
{
    size_t i;
    json_t *tool;
    if (json_array_size(tools) > SL_MAX_TOOLS)
        return sl_fault_set(fault, SL_EINVAL, "tools", "tools has %zu entries; at most %d are taken.",
                            json_array_size(tools), SL_MAX_TOOLS);
    json_array_foreach (tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const json_t *parameters = json_object_get(function, "parameters");
        const json_t *strict = json_object_get(function, "strict");
        if (!type || strcmp(type, "function") != 0)
            return fault_at(fault, SL_EINVAL, i, "type", "expected \"function\".");
        if (!name || !name_ok(name))
            return fault_at(fault, SL_EINVAL, i, "function.name",
                            "expected 1 to 64 letters, digits, underscores or dashes.");
        if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
            return fault_at(fault, SL_EINVAL, i, "function.parameters", "expected a JSON schema, an object.");
        if (strict && !json_is_boolean(strict) && !json_is_null(strict))
            return fault_at(fault, SL_EINVAL, i, "function.strict", "expected true or false.");
    }
    return true;
}

/* ---- the answer ---- */

struct sl_tool_filter {
    const struct sl_tool_format *format;
    bool in_call, called, spoke, one_call;
    struct sl_buf held; /* outside: blanks and what may be a mark; inside: the call */
    size_t seen;        /* of held: nothing that is looked for begins in front of it */
};

struct sl_tool_filter *sl_tool_filter_new(const struct sl_tool_format *format, bool one_call)
{
    struct sl_tool_filter *f = sl_xcalloc(1, sizeof *f);
    f->format = format;
    f->one_call = one_call;
    sl_buf_init(
        &f->held,
        SIZE_MAX); /* one call is bounded below, the rest by a mark's length and blanks that were said */
    return f;
}

void sl_tool_filter_free(struct sl_tool_filter *f)
{
    if (!f)
        return;
    sl_buf_fini(&f->held);
    sl_free(f);
}

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool all_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!blank(s[i]))
            return false;
    return true;
}

static void drop(struct sl_tool_filter *f, size_t n)
{
    sl_buf_consume(&f->held, n);
    f->seen = 0;
}

/* held[0, n) is said; the rest stays. */
static void say(struct sl_tool_filter *f, size_t n, struct sl_buf *content)
{
    if (!n)
        return;
    f->spoke = true;
    sl_buf_append(content, f->held.data, n);
    drop(f, n);
}

/* {"name", arguments}; false: it is none. */
static bool add_call(const struct sl_tool_format *format, const json_t *call, json_t *calls)
{
    const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, format->arguments);
    if (!json_is_string(name) || (arguments && !json_is_object(arguments)))
        return false;
    struct sl_buf text;
    sl_buf_init(&text, SIZE_MAX); /* of a text that was bounded */
    if (!arguments || !sl_json_write(arguments, JSON_REAL_PRECISION(17), &text))
        sl_buf_puts(&text, "{}");
    json_t *out = json_object();
    json_object_set(out, "name", (json_t *)name);
    json_object_set_new(out, "arguments", json_stringn(text.data, text.len));
    json_array_append_new(calls, out);
    sl_buf_fini(&text);
    return true;
}

/* One call, or a list of them, or nothing at all: then calls is as it was. */
static bool add_calls(const struct sl_tool_format *format, const char *text, size_t n, json_t *calls)
{
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL), *one;
    size_t before = json_array_size(calls), i;
    bool ok = json_is_object(j) ? add_call(format, j, calls) : json_array_size(j) > 0;
    if (json_is_array(j))
        json_array_foreach (j, i, one)
            ok = ok && add_call(format, one, calls);
    while (!ok && json_array_size(calls) > before)
        json_array_remove(calls, json_array_size(calls) - 1);
    json_decref(j);
    return ok;
}

/* The call in held ends at `at`; its mark behind it has n_end bytes. What is no call is said as it came. */
static void end_call(struct sl_tool_filter *f, size_t at, size_t n_end, struct sl_buf *content, json_t *calls)
{
    size_t n_begin = f->format->begin ? strlen(f->format->begin) : 0;
    f->in_call = false;
    if (!add_calls(f->format, f->held.data + n_begin, at - n_begin, calls)) {
        say(f, at + n_end, content);
        return;
    }
    f->called = true;
    while (f->one_call && json_array_size(calls) > 1)
        json_array_remove(calls, json_array_size(calls) - 1);
    drop(f, at + n_end);
}

/* Where in held a call begins, or may begin once more text is there; its length when nowhere. */
static size_t next_call(const struct sl_tool_filter *f)
{
    const struct sl_buf *h = &f->held;
    const char *begin = f->format->begin;
    size_t n = begin ? strlen(begin) : 0, at = f->seen;
    if (begin) {
        while (at < h->len && memcmp(h->data + at, begin, h->len - at < n ? h->len - at : n) != 0)
            at++;
        return at;
    }
    while (at < h->len && blank(h->data[at]))
        at++;
    return at < h->len && h->data[at] == '{' && !f->spoke && !f->called ? at : h->len;
}

/* Outside a call: says what cannot belong to one; true when one begins at held[0]. */
static bool find_call(struct sl_tool_filter *f, struct sl_buf *content)
{
    const char *begin = f->format->begin;
    size_t blanks = f->seen, at = next_call(f), text = at; /* what was seen is held for its blanks alone */
    bool found = f->held.len - at >= (begin ? strlen(begin) : 1);
    while (text > blanks && blank(f->held.data[text - 1]))
        text--;
    if (text == blanks)
        text = 0;
    say(f, text, content);
    f->seen = at - text;
    if (found)
        drop(f, f->seen);
    return found;
}

void sl_tool_filter_put(struct sl_tool_filter *f, const char *text, size_t n, struct sl_buf *content,
                        json_t *calls)
{
    const char *end = f->format->end;
    size_t n_end = end ? strlen(end) : 0;
    sl_buf_append(&f->held, text, n);
    while (f->held.len) {
        if (!f->in_call && !find_call(f, content))
            return;
        f->in_call = true;
        /* the text may have zero bytes in it */
        const char *at = end ? memmem(f->held.data + f->seen, f->held.len - f->seen, end, n_end) : NULL;
        if (at) {
            end_call(f, (size_t)(at - f->held.data), n_end, content, calls);
        } else if (f->held.len > SL_TOOL_CALL_MAX_BYTES) {
            f->in_call = false;
            say(f, f->held.len, content);
        } else {
            f->seen = f->held.len >= n_end ? f->held.len - n_end + 1 : 0;
            return;
        }
    }
}

void sl_tool_filter_end(struct sl_tool_filter *f, struct sl_buf *content, json_t *calls)
{
    if (f->in_call && !f->format->end)
        end_call(f, f->held.len, 0, content, calls);
    if (!f->called || !all_blank(f->held.data, f->held.len))
        say(f, f->held.len, content);
}

void sl_tool_call_id(const char *request_id, uint32_t choice, uint32_t k, char id[SL_TOOL_CALL_ID_CHARS + 1])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    char key[128];
    int n = snprintf(key, sizeof key, "%s/%u/%u", request_id, choice, k);
    uint64_t h = sl_digest64(key, (size_t)n, 0);
    for (size_t i = 0; i < SL_TOOL_CALL_ID_CHARS; i++, h /= sizeof letters - 1)
        id[i] = letters[h % (sizeof letters - 1)];
    id[SL_TOOL_CALL_ID_CHARS] = '\0';
}
