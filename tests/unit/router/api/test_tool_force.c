/* tests/unit/router/api/test_tool_force.c - what a call that has to come, or may come and has a strict tool, may look
 * like, text by text, in each family's syntax; and that the call comes out of the filter again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/grammar/matcher.h"
#include "router/api/tool_force.h"

#define TOOLS                                                                                                \
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"strict\":true,\"parameters\":{\"type\":"       \
    "\"object\","                                                                                            \
    "\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"},\"const\":{\"$ref\":\"#/$defs/"                          \
    "n\"}},\"required\":[\"a\"],"                                                                            \
    "\"$defs\":{\"n\":{\"type\":\"integer\",\"default\":{\"$ref\":\"#/x\"}}}}}},"                            \
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]"

static const char *const taught[] = {"<tool_call>\\n{", "[TOOL_CALLS]", "\"parameters\": dictionary"};
enum { HERMES, MISTRAL, LLAMA3 };

struct forced {
    struct sl_gen_req *req;
    json_t *tools;
    struct sl_oai_request r;
    struct sl_fault fault;
    bool ok;
};

#define AUTO "auto" /* as a name: no call has to come */
#define MARK "\x01" /* in a text: the control token */

static void force(struct forced *f, int family, const char *name, bool one_call)
{
    bool must = strcmp(name, AUTO) != 0;
    memset(f, 0, sizeof *f);
    struct sl_arena *arena = sl_arena_new(SL_GEN_ARENA_BYTES);
    f->req = sl_arena_alloc(arena, sizeof *f->req);
    memset(f->req, 0, sizeof *f->req);
    f->req->arena = arena;
    sluice__sampling__init(&f->req->sampling);
    f->tools = json_loads(TOOLS, 0, NULL);
    f->r = (struct sl_oai_request){.req = f->req,
                                   .tools = f->tools,
                                   .must_call = must,
                                   .strict = true,
                                   .one_call = one_call,
                                   .tool_format = sl_tool_format_of(taught[family])};
    snprintf(f->r.forced_tool, sizeof f->r.forced_tool, "%s", must ? name : "");
    f->ok = sl_tool_force(&f->r, f->r.tool_format->begin_is_control ? 7 : -1, &f->fault);
}

static void let_go(struct forced *f)
{
    json_decref(f->tools);
    sl_arena_free(f->req->arena);
}

/* As a node has it: from the text of the schema. */
static bool takes(const Sluice__Sampling *s, const char *text)
{
    const struct sl_schema_frame frame = {s->schema_before, s->schema_between, s->schema_after,
                                          s->schema_max,    s->schema_mark,    s->schema_again};
    struct sl_grammar *p = NULL;
    struct sl_why why = {{0}};
    json_t *j = json_loads(s->json_schema, 0, NULL);
    assert_int_equal(sl_json_schema_compile(j, &frame, &p, &why), SL_OK);
    json_decref(j);
    struct sl_matcher *m = sl_matcher_new(p);
    uint32_t state = SL_MATCHER_START;
    for (const char *t = text; *t; t++)
        state = sl_matcher_step(m, state, *t == MARK[0] ? SL_MATCHER_MARK : (uint8_t)*t);
    bool ends = state != SL_MATCHER_DEAD && sl_matcher_ends(m, state);
    sl_matcher_free(m);
    sl_grammar_free(p);
    return ends;
}

static void calls_fit_the_tools_and_come_out_again(void **state)
{
    static const struct {
        int family;
        const char *name;
        bool one_call;
        const char *text;
        size_t calls; /* 0: it may not be said */
    } cases[] = {
        {HERMES, "", false,
         "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"const\": 2}}\n</tool_call>", 1},
        {HERMES, "", false, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>",
         0},
        {HERMES, "", false, "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>", 0},
        {HERMES, "", false, "<tool_call>\n{\"name\": \"sub\", \"arguments\": {}}\n</tool_call>", 0},
        {HERMES, "", false, "well, <tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>", 0},
        {HERMES, "", false,
         "<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</"
         "tool_call>\n<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":3}}\n"
         "</tool_call>",
         2},
        {HERMES, "", true,
         "<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</"
         "tool_call>\n<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_"
         "call>",
         0},
        {HERMES, "now", false, "<tool_call>\n{\"name\":\"now\",\"arguments\":{\"any\": [1]}}\n</tool_call>",
         1},
        {HERMES, "now", false, "<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1}}\n</tool_call>", 0},
        {MISTRAL, "", false,
         "[{\"name\":\"add\",\"arguments\":{\"a\":1}}, {\"name\":\"now\",\"arguments\":{}}]", 2},
        {MISTRAL, "", true, "[{\"name\":\"add\",\"arguments\":{\"a\":1}}]", 1},
        {MISTRAL, "", false, "[]", 0},
        {LLAMA3, "", false, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", 1},
        {LLAMA3, "", false, "{\"name\": \"add\", \"arguments\": {\"a\": 1}}", 0},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct forced f;
        force(&f, cases[i].family, cases[i].name, cases[i].one_call);
        if (!f.ok)
            fail_msg("%s: %s", cases[i].text, f.fault.message);
        if (takes(&f.req->sampling, cases[i].text) != (cases[i].calls > 0))
            fail_msg("%s", cases[i].text);
        struct sl_tool_filter *filter = sl_tool_filter_new(f.r.tool_format, false);
        struct sl_buf said;
        json_t *calls = json_array();
        sl_buf_init(&said, 4096);
        if (f.r.tool_format->begin_is_control)
            sl_tool_filter_put(filter, f.r.tool_format->begin, strlen(f.r.tool_format->begin), &said, calls);
        sl_tool_filter_put(filter, cases[i].text, strlen(cases[i].text), &said, calls);
        sl_tool_filter_end(filter, &said, calls);
        if (cases[i].calls) {
            assert_int_equal(json_array_size(calls), cases[i].calls);
            assert_int_equal(said.len, 0);
        }
        json_decref(calls);
        sl_buf_fini(&said);
        sl_tool_filter_free(filter);
        let_go(&f);
    }
}

/* The model decides: text, then calls that fit. */
static void calls_of_its_own_will_fit_strict_tools_and_come_out_again(void **state)
{
    static const struct {
        int family;
        bool one_call;
        const char *text;
        bool fits;
        size_t calls;
        const char *said;
    } cases[] = {
        {HERMES, false, "", true, 0, ""},
        {HERMES, false, "No <tool_cal> is due {\"name\": 1} </tool_call>", true, 0,
         "No <tool_cal> is due {\"name\": 1} </tool_call>"},
        {HERMES, false, "Well, <<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1}}\n</tool_call>", true,
         1, "Well, <"},
        {HERMES, false, "Well, <tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1.5}}\n</tool_call>",
         false, 0, NULL},
        {HERMES, false, "<tool_call>\n{\"name\":\"sub\",\"arguments\":{}}\n</tool_call>", false, 0, NULL},
        {HERMES, false, "<tool_call>\n{\"name\":\"now\",\"arguments\":3}\n</tool_call>", false, 0, NULL},
        {HERMES, false, "<tool_call>\n{\"name\":\"now\",\"arguments\":{\"any\":[1.5]}}\n", false, 0, NULL},
        {HERMES, false,
         "<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>\n"
         "<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":2}}\n</tool_call> Done.",
         true, 2, " Done."},
        {HERMES, false,
         "<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>\n"
         "<tool_call>\n{\"name\":\"add\",\"arguments\":{}}\n</tool_call>",
         false, 0, NULL},
        {HERMES, true, "So: <tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>", true, 1, "So:"},
        {HERMES, true, "<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>.", false, 0, NULL},
        {MISTRAL, false, "[TOOL CALLS][{}]", true, 0, "[TOOL CALLS][{}]"},
        {MISTRAL, false,
         "So: " MARK
         "[{\"name\":\"add\",\"arguments\":{\"a\":1}}, {\"name\":\"now\",\"arguments\":{\"b\":2}}]",
         true, 2, "So:"},
        {MISTRAL, false, "[TOOL_CALLS][{\"name\":\"add\",\"arguments\":{\"a\":1}}]", true, 1, ""},
        {MISTRAL, false, MARK "[{\"name\":\"add\",\"arguments\":{\"b\":1}}]", false, 0, NULL},
        {MISTRAL, false, MARK "[{\"name\":\"add\",\"arguments\":{\"a\":1}}] ", false, 0, NULL},
        {MISTRAL, true, MARK "[{\"name\":\"now\",\"arguments\":{}}, {\"name\":\"now\",\"arguments\":{}}]",
         false, 0, NULL},
        {LLAMA3, false, "It is {\"name\"", true, 0, "It is {\"name\""},
        {LLAMA3, false, " \n", true, 0, " \n"},
        {LLAMA3, false, "\r\n{\"name\":\"add\",\"parameters\":{\"a\":1}}", true, 1, ""},
        {LLAMA3, false, "{\"name\":\"add\",\"parameters\":{\"a\":\"1\"}}", false, 0, NULL},
        {LLAMA3, false, "{\"answer\":1}", false, 0, NULL},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct forced f;
        force(&f, cases[i].family, AUTO, cases[i].one_call);
        if (!f.ok)
            fail_msg("%s: %s", cases[i].text, f.fault.message);
        if (takes(&f.req->sampling, cases[i].text) != cases[i].fits)
            fail_msg("%zu: %s", i, cases[i].text);
        assert_int_equal(f.req->sampling.has_schema_mark_token, cases[i].family == MISTRAL);
        struct sl_tool_filter *filter = sl_tool_filter_new(f.r.tool_format, false);
        struct sl_buf said;
        json_t *calls = json_array();
        sl_buf_init(&said, 4096);
        for (const char *t = cases[i].text; *t; t++) {
            const char *shown = *t == MARK[0] ? f.r.tool_format->begin : t;
            sl_tool_filter_put(filter, shown, shown == t ? 1 : strlen(shown), &said, calls);
        }
        sl_tool_filter_end(filter, &said, calls);
        if (cases[i].fits) {
            assert_int_equal(json_array_size(calls), cases[i].calls);
            assert_int_equal(said.len, strlen(cases[i].said));
            assert_memory_equal(said.len ? said.data : "", cases[i].said, said.len);
        }
        json_decref(calls);
        sl_buf_fini(&said);
        sl_tool_filter_free(filter);
        let_go(&f);
    }
}

/* As many as a request may have, each with a schema of its own that refers to itself. */
static void all_tools_may_be_called(void **state)
{
    static const int asked[] = {0, SL_SCHEMA_MAX_CHOICES - 1, SL_SCHEMA_MAX_CHOICES, SL_MAX_TOOLS - 1};
    struct forced f;
    (void)state;
    force(&f, HERMES, AUTO, false);
    json_array_clear(f.tools);
    for (int i = 0; i < SL_MAX_TOOLS; i++) {
        char name[16];
        snprintf(name, sizeof name, "tool_%d", i);
        json_array_append_new(f.tools,
                              json_pack("{s:s, s:{s:s, s:b, s:{s:s, s:{s:{s:s}}, s:[s], s:{s:{s:i}}}}}",
                                        "type", "function", "function", "name", name, "strict", 1,
                                        "parameters", "type", "object", "properties", "n", "$ref",
                                        "#/$defs/n", "required", "n", "$defs", "n", "const", i));
    }
    if (!sl_tool_force(&f.r, -1, &f.fault))
        fail_msg("%s", f.fault.message);
    for (size_t n = 0; n < SL_COUNTOF(asked); n++) {
        char text[128];
        int i = asked[n];
        for (int k = 0; k < 2; k++) {
            snprintf(text, sizeof text,
                     "<tool_call>\n{\n \t\"name\": \"tool_%d\",\n\"arguments\": {\"n\": %d}\n}\n</tool_call>",
                     i, k ? i : i + 1);
            if (takes(&f.req->sampling, text) != (k == 1))
                fail_msg("%s", text);
        }
    }
    let_go(&f);
}

static void parameters_that_cannot_be_kept_to_are_refused_by_name(void **state)
{
    (void)state;
    struct forced f;
    force(&f, HERMES, "", false);
    json_t *p = json_object_get(json_object_get(json_array_get(f.tools, 0), "function"), "parameters");
    json_object_set_new(p, "patternProperties", json_object());
    assert_false(sl_tool_force(&f.r, -1, &f.fault));
    assert_int_equal(f.fault.err, SL_EUNSUPPORTED);
    assert_non_null(strstr(f.fault.message, "patternProperties"));
    let_go(&f);
}

static void one_call_drops_those_after_the_first(void **state)
{
    (void)state;
    struct sl_tool_filter *filter = sl_tool_filter_new(sl_tool_format_of(taught[HERMES]), true);
    struct sl_buf said;
    json_t *calls = json_array();
    static const char text[] =
        "<tool_call>{\"name\":\"a\"}</tool_call><tool_call>{\"name\":\"b\"}</tool_call>";
    sl_buf_init(&said, 4096);
    sl_tool_filter_put(filter, text, strlen(text), &said, calls);
    sl_tool_filter_end(filter, &said, calls);
    assert_int_equal(json_array_size(calls), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(calls, 0), "name")), "a");
    assert_int_equal(said.len, 0);
    json_decref(calls);
    sl_buf_fini(&said);
    sl_tool_filter_free(filter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_fit_the_tools_and_come_out_again),
        cmocka_unit_test(calls_of_its_own_will_fit_strict_tools_and_come_out_again),
        cmocka_unit_test(all_tools_may_be_called),
        cmocka_unit_test(parameters_that_cannot_be_kept_to_are_refused_by_name),
        cmocka_unit_test(one_call_drops_those_after_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
