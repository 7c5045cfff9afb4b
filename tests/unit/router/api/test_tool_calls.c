/* Calls are found wherever the text is cut, and nothing else is taken for one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "router/api/tool_calls.h"

#define HERMES  "For each call: <tool_call>\\n{\"name\": ...}\\n</tool_call>"
#define MISTRAL "{{ '[TOOL_CALLS]' }}"
#define LLAMA3  "{\"name\": function name, \"parameters\": dictionary of argument name and its value}"

static void template_tells_the_format(void **state)
{
    (void)state;
    assert_string_equal(sl_tool_format_of(HERMES)->name, "hermes");
    assert_string_equal(sl_tool_format_of(MISTRAL)->name, "mistral");
    assert_string_equal(sl_tool_format_of(LLAMA3)->name, "llama3");
    assert_null(sl_tool_format_of("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}"));
    assert_null(sl_tool_format_of("<tool_call>\n<function=f>"));
    assert_null(sl_tool_format_of("{{ messages }}"));
    assert_null(sl_tool_format_of(NULL));
}

static const struct {
    const char *taught, *text, *content, *calls; /* calls: "name arguments;" each */
} cases[] = {
    {HERMES, "Hello <b>you</b>\n", "Hello <b>you</b>\n", ""},
    {HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x\"]}}\n</tool_call>", "",
     "f {\"a\": [1, \"x\"]};"},
    {HERMES,
     "Let me "
     "see.\n\n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</"
     "tool_call>\n",
     "Let me see.", "f {};g {};"},
    {HERMES, "<tool_call>{\"name\":\"f\"}</tool_call> and more", " and more", "f {};"},
    {HERMES, "<tool_call>{\"name\": </tool_call>", "<tool_call>{\"name\": </tool_call>", ""},
    {HERMES, "<tool_call>{\"nom\":1}</tool_call><tool_call>{\"name\":\"f\"}</tool_call>",
     "<tool_call>{\"nom\":1}</tool_call>", "f {};"},
    {HERMES, "<tool_call>{\"name\":\"f\"}", "<tool_call>{\"name\":\"f\"}", ""},
    {HERMES, "1 < 2 <tool_", "1 < 2 <tool_", ""},
    {HERMES, "<tool_<tool_call>{\"name\":\"f\"}</tool_call>", "<tool_", "f {};"},
    {HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":3}</tool_call>",
     "<tool_call>{\"name\":\"f\",\"arguments\":3}</tool_call>", ""},
    {MISTRAL, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1.5}}, {\"name\": \"g\"}]", "",
     "f {\"x\": 1.5};g {};"},
    {MISTRAL, "[TOOL_CALLS] [{\"name\": \"f\"}, 7]", "[TOOL_CALLS] [{\"name\": \"f\"}, 7]", ""},
    {MISTRAL, "[1, 2]", "[1, 2]", ""},
    {LLAMA3, " {\"name\": \"f\", \"parameters\": {\"a\": null}}", "", "f {\"a\": null};"},
    {LLAMA3, "A set is {1, 2}", "A set is {1, 2}", ""},
    {LLAMA3, "{1, 2} is a set", "{1, 2} is a set", ""},
    {LLAMA3, "   ", "   ", ""},
};

/* Feeds text in pieces of `step` bytes behind a first one of `first`. */
static void check(size_t i, size_t first, size_t step)
{
    struct sl_tool_filter *f = sl_tool_filter_new(sl_tool_format_of(cases[i].taught), false);
    struct sl_buf content, calls_text;
    json_t *calls = json_array(), *call;
    size_t n = strlen(cases[i].text), at = 0, k;
    sl_buf_init(&content, 1 << 20);
    sl_buf_init(&calls_text, 1 << 20);
    for (size_t take = first; at < n; at += take, take = step) {
        if (take > n - at)
            take = n - at;
        sl_tool_filter_put(f, cases[i].text + at, take, &content, calls);
    }
    sl_tool_filter_end(f, &content, calls);
    json_array_foreach (calls, k, call)
        sl_buf_printf(&calls_text, "%s %s;", json_string_value(json_object_get(call, "name")),
                      json_string_value(json_object_get(call, "arguments")));
    const char *got = content.len ? content.data : "", *got_calls = calls_text.len ? calls_text.data : "";
    if (strcmp(got, cases[i].content) != 0 || strcmp(got_calls, cases[i].calls) != 0)
        fail_msg("case %zu cut at %zu by %zu: content '%s', calls '%s'", i, first, step, got, got_calls);
    json_decref(calls);
    sl_buf_fini(&calls_text);
    sl_buf_fini(&content);
    sl_tool_filter_free(f);
}

static void calls_are_the_same_wherever_the_text_is_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        for (size_t first = 1; first <= strlen(cases[i].text); first++) {
            check(i, first, 1);
            check(i, first, SIZE_MAX);
        }
}

static void long_call_is_shown_as_text(void **state)
{
    struct sl_tool_filter *f = sl_tool_filter_new(sl_tool_format_of(HERMES), false);
    struct sl_buf content;
    json_t *calls = json_array();
    size_t n = 11;
    (void)state;
    sl_buf_init(&content, SIZE_MAX);
    sl_tool_filter_put(f, "<tool_call>", 11, &content, calls);
    for (; n < 2 * SL_TOOL_CALL_MAX_BYTES; n += 8)
        sl_tool_filter_put(f, "xxxxxxxx", 8, &content, calls);
    sl_tool_filter_end(f, &content, calls);
    assert_int_equal(json_array_size(calls), 0);
    assert_int_equal(content.len, n);
    json_decref(calls);
    sl_buf_fini(&content);
    sl_tool_filter_free(f);
}

static void tools_are_checked(void **state)
{
    static const struct {
        const char *tools, *param;
    } bad[] = {
        {"[1]", "tools[0].type"},
        {"[{\"type\":\"code\"}]", "tools[0].type"},
        {"[{\"type\":\"function\"}]", "tools[0].function.name"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "tools[0].function.name"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
         "tools[0].function.parameters"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":1}}]", "tools[0].function.strict"},
    };
    (void)state;
    for (size_t i = 0; i <= SL_COUNTOF(bad); i++) {
        struct sl_fault fault = {0};
        bool good = i == SL_COUNTOF(bad);
        json_t *j = json_loads(good ? "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,"
                                      "\"parameters\":{\"type\":\"object\"}}}]"
                                    : bad[i].tools,
                               0, NULL);
        assert_int_equal(sl_tools_check(j, &fault), good);
        assert_string_equal(fault.param, good ? "" : bad[i].param);
        json_decref(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(template_tells_the_format),
        cmocka_unit_test(calls_are_the_same_wherever_the_text_is_cut),
        cmocka_unit_test(long_call_is_shown_as_text),
        cmocka_unit_test(tools_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
