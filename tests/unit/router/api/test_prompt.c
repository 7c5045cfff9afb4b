/* Messages to template, text to tokens, limits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/api/chat_messages.h"
#include "router/api/prompt.h"
#include "tests/unit/router/api/tiny_vocab.h"

static struct sl_tokenizer *tok;
static struct sl_template *template;
static const char *const names[] = {"m"};

struct made {
    struct sl_arena *arena;
    struct sl_gen_req *req;
    json_t *body;
    struct sl_oai_request r;
    struct sl_fault fault;
    bool ok;
};

static const struct sl_tool_format *format; /* of the prompts that are made next; NULL = none */

static void make_by(const struct sl_template *by, bool chat, uint32_t context, const char *text,
                    struct made *m)
{
    static const uint32_t eog[] = {TINY_IM_END};
    const struct sl_oai_model model = {names, 1, TINY_N_VOCAB, context, eog, 1};
    const struct sl_prompt_conf conf = {
        .tokenizer = tok, .template = by, .tool_format = format, .context_length = context};
    memset(m, 0, sizeof *m);
    m->arena = sl_arena_new(8 << 20);
    m->req = sl_arena_alloc(m->arena, sizeof *m->req);
    m->req->arena = m->arena;
    m->body = sl_json_body(text, strlen(text), &m->fault);
    m->ok = m->body && sl_oai_parse(&model, chat, m->body, m->req, &m->r, &m->fault) &&
            sl_prompt_make(&conf, &m->r, &m->fault);
}

static void make(bool chat, uint32_t context, const char *text, struct made *m)
{
    make_by(template, chat, context, text, m);
}

static void finish(struct made *m)
{
    json_decref(m->body);
    sl_arena_free(m->arena);
}

static void chat_is_templated_and_user_text_never_becomes_a_control_token(void **state)
{
    struct made m;
    (void)state;
    make(true, 256, "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}]}", &m);
    assert_true(m.ok);
    int controls = 0;
    for (uint32_t i = 0; i < m.r.prompts[0].n_tokens; i++)
        controls += m.r.prompts[0].tokens[i] >= 256;
    assert_int_equal(controls, 3); /* start, end, start of the answer: the template's own */
    assert_int_equal(m.r.prompts[0].tokens[0], TINY_IM_START);
    /* 1 + "user\n" 5 + 10 bytes of text + 1 + "\n" 1 + 1 + "assistant\n" 10 */
    assert_int_equal(m.r.prompts[0].n_tokens, 29);
    assert_int_equal(m.r.prompts[0].max_tokens, 256 - 29);
    finish(&m);
}

static void parts_equal_the_plain_string(void **state)
{
    struct made a, b;
    (void)state;
    make(true, 256, "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}", &a);
    make(true, 256,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
         "\"text\",\"text\":\"b\"}]}]}",
         &b);
    assert_true(a.ok && b.ok);
    assert_int_equal(a.r.prompts[0].n_tokens, b.r.prompts[0].n_tokens);
    assert_memory_equal(a.r.prompts[0].tokens, b.r.prompts[0].tokens,
                        a.r.prompts[0].n_tokens * sizeof *a.r.prompts[0].tokens);
    finish(&a);
    finish(&b);
}

static void continued_message_ends_the_prompt(void **state)
{
    struct made m;
    (void)state;
    make(true, 256,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"One "
         "two\"}],\"continue_final_message\":true}",
         &m);
    assert_true(m.ok);
    assert_int_equal(m.r.prompts[0].tokens[m.r.prompts[0].n_tokens - 1], 'o');
    assert_int_equal(m.r.prompts[0].tokens[m.r.prompts[0].n_tokens - 2], 'w');
    finish(&m);
}

/* A template that shows no answers, and a last message that is nearly everywhere in the text: found to be nowhere by
 * looking at each byte some times, not as often as there are places. */
static void continued_message_that_is_nearly_everywhere_is_refused_at_once(void **state)
{
    enum { LAST = 2 << 20 };
    static const char shows_users[] =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    struct sl_template *users;
    struct sl_buf body;
    struct made m;
    (void)state;
    assert_int_equal(sl_template_compile(shows_users, sizeof shows_users - 1, &users, NULL), SL_OK);
    char *letters = sl_xalloc(2 * LAST);
    memset(letters, 'a', 2 * LAST);
    sl_buf_init(&body, 4 * LAST);
    sl_buf_printf(
        &body,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"%.*s\"},{\"role\":\"assistant\",\"content\":"
        "\"%.*sb\"}],\"continue_final_message\":true}",
        2 * LAST, letters, LAST, letters);
    make_by(users, true, 256, body.data, &m);
    assert_false(m.ok);
    assert_string_equal(m.fault.param, "continue_final_message");
    finish(&m);
    sl_buf_fini(&body);
    sl_free(letters);
    sl_template_free(users);
}

static void bad_messages_are_refused_with_their_place(void **state)
{
    static const struct {
        const char *messages, *param;
    } cases[] = {
        {"[123]", "messages[0]"},
        {"[{}]", "messages[0].role"},
        {"[{\"role\":123,\"content\":\"x\"}]", "messages[0].role"},
        {"[{\"role\":\"king\",\"content\":\"x\"}]", "messages[0].role"},
        {"[{\"role\":\"user\",\"content\":123}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"assistant\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{}]", "messages[1].role"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[5]}]", "messages[0].content"},
        {"[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\"}}]}]",
         "messages[0].tool_calls"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct made m;
        struct sl_buf body;
        sl_buf_init(&body, 4096);
        sl_buf_printf(&body, "{\"messages\":%s}", cases[i].messages);
        make(true, 256, body.data, &m);
        if (m.ok || strcmp(m.fault.param, cases[i].param) != 0)
            fail_msg("%s: ok=%d param=%s message=%s", cases[i].messages, m.ok, m.fault.param,
                     m.fault.message);
        finish(&m);
        sl_buf_fini(&body);
    }
}

static void calls_in_a_history_may_have_no_content_and_no_arguments(void **state)
{
    static const char *const contents[] = {"", "\"content\":null,", "\"content\":\"\","};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(contents); i++) {
        struct sl_fault fault = {0};
        struct sl_buf text;
        sl_buf_init(&text, 4096);
        sl_buf_printf(&text,
                      "[{%s\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                      "\"arguments\":\"\"}}]}]",
                      contents[i]);
        json_t *in = json_loads(text.data, 0, NULL), *out = sl_chat_messages(in, false, &fault), *content;
        json_t *calls, *arguments;
        assert_int_equal(
            json_unpack(json_array_get(out, 0), "{s:o,s:o}", "content", &content, "tool_calls", &calls), 0);
        assert_string_equal(json_string_value(content), "");
        assert_int_equal(
            json_unpack(json_array_get(calls, 0), "{s:{s:o}}", "function", "arguments", &arguments), 0);
        assert_true(json_is_object(arguments) && json_object_size(arguments) == 0);
        json_decref(out);
        json_decref(in);
        sl_buf_fini(&text);
    }
}

/* One call whose arguments hold n times what is repeated, between open and close. */
static json_t *call_with(const char *open, const char *repeated, size_t n, const char *close)
{
    struct sl_buf text;
    sl_buf_init(&text, SIZE_MAX);
    sl_buf_puts(&text, open);
    for (size_t i = 0; i < n; i++)
        sl_buf_puts(&text, repeated);
    sl_buf_puts(&text, close);
    json_t *call = json_pack("{s:{s:s, s:s%}}", "function", "name", "f", "arguments", text.data, text.len);
    sl_buf_fini(&text);
    return call;
}

static void tool_arguments_are_as_deep_and_large_as_a_body(void **state)
{
    static const struct {
        const char *open, *repeated, *close;
        size_t n, n_calls;
        bool good;
    } cases[] = {
        {"{\"a\":", "[", "", SL_JSON_MAX_DEPTH + 1, 1, false},
        {"{\"a\":[0", ",{}", "]}", 10, 3, true},
        {"{\"a\":[0", ",{}", "]}", SL_JSON_MAX_MEMORY / 100, 1, false},
        {"{\"a\":[0", ",{}", "]}", SL_JSON_MAX_MEMORY / 1000, 1, true},
        {"{\"a\":[0", ",{}", "]}", SL_JSON_MAX_MEMORY / 1000, 10, false}, /* all of them together */
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_fault fault = {0};
        json_t *calls = json_array();
        for (size_t k = 0; k < cases[i].n_calls; k++)
            json_array_append_new(calls,
                                  call_with(cases[i].open, cases[i].repeated, cases[i].n, cases[i].close));
        json_t *in = json_pack("[{s:s, s:o}]", "role", "assistant", "tool_calls", calls);
        json_t *out = sl_chat_messages(in, false, &fault);
        assert_int_equal(out != NULL, cases[i].good);
        assert_string_equal(fault.param, out ? "" : "messages[0].tool_calls");
        json_decref(out);
        json_decref(in);
    }
}

static void tool_arguments_become_an_object_and_developer_becomes_system(void **state)
{
    struct sl_fault fault = {0};
    json_t *in = json_loads(
        "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":"
        "[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]}]",
        0, NULL);
    (void)state;
    json_t *out = sl_chat_messages(in, false, &fault);
    assert_non_null(out);
    assert_string_equal(json_string_value(json_object_get(json_array_get(out, 0), "role")), "system");
    json_t *function =
        json_object_get(json_array_get(json_object_get(json_array_get(out, 1), "tool_calls"), 0), "function");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(function, "arguments"), "a")), 1);
    assert_true(json_is_string(json_object_get(
        json_object_get(json_array_get(json_object_get(json_array_get(in, 1), "tool_calls"), 0), "function"),
        "arguments")));
    json_decref(out);
    out = sl_chat_messages(in, true, &fault);
    assert_string_equal(json_string_value(json_object_get(json_array_get(out, 0), "role")), "developer");
    json_decref(out);
    json_decref(in);
}

static void messages_that_need_no_change_are_not_copied(void **state)
{
    struct sl_fault fault = {0};
    json_t *in =
        json_loads("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":"
                   "\"text\",\"text\":\"b\"}]}]",
                   0, NULL);
    (void)state;
    json_t *out = sl_chat_messages(in, false, &fault);
    assert_ptr_equal(json_array_get(out, 0), json_array_get(in, 0));
    assert_string_equal(json_string_value(json_object_get(json_array_get(out, 1), "content")), "b");
    assert_true(
        json_is_array(json_object_get(json_array_get(in, 1), "content"))); /* the body's is as it was */
    json_decref(out);
    json_decref(in);
}

static void more_messages_than_are_taken_are_refused_with_the_number(void **state)
{
    struct sl_fault fault = {0};
    json_t *in = json_array(), *m = json_loads("{\"role\":\"user\",\"content\":\"a\"}", 0, NULL);
    (void)state;
    for (uint32_t i = 0; i < SL_CHAT_MAX_MESSAGES; i++)
        json_array_append(in, m);
    json_t *out = sl_chat_messages(in, false, &fault);
    assert_int_equal(json_array_size(out), SL_CHAT_MAX_MESSAGES);
    json_decref(out);
    json_array_append(in, m);
    assert_null(sl_chat_messages(in, false, &fault));
    assert_string_equal(fault.param, "messages");
    assert_string_equal(fault.message, "messages has 65537 entries; at most 65536 are taken.");
    struct sl_fault of_input = {0};
    assert_false(sl_chat_few_enough(in, "input", &of_input));
    assert_string_equal(of_input.param, "input");
    json_decref(m);
    json_decref(in);
}

static void tools_need_a_template_that_teaches_them(void **state)
{
    struct made m;
    (void)state;
    make(true, 256,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","
         "\"function\":{"
         "\"name\":\"f\"}}]}",
         &m);
    assert_false(m.ok);
    assert_int_equal(m.fault.err, SL_EUNSUPPORTED);
    assert_string_equal(m.fault.param, "tools");
    finish(&m);
    make(
        true, 256,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"none\",\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\"}}]}",
        &m);
    assert_true(m.ok && !m.r.tools);
    finish(&m);
}

static void token_that_begins_a_call_is_named_or_stands_in_the_prompt(void **state)
{
    static const struct {
        const char *taught, *more;
        int mark; /* 0: none, the call has to come; -1: none, its begin is text */
    } cases[] = {{"[TOOL_CALLS]", "", TINY_TOOL_CALLS},
                 {"[TOOL_CALLS]", ",\"tool_choice\":\"required\"", 0},
                 {"<tool_call>\\n{", "", -1},
                 {"\"parameters\": dictionary", "", -1}};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char body[256];
        struct made m;
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","
                 "\"function\":{\"name\":\"f\",\"strict\":true}}]%s}",
                 cases[i].more);
        format = sl_tool_format_of(cases[i].taught);
        make(true, 256, body, &m);
        format = NULL;
        if (!m.ok)
            fail_msg("%s", m.fault.message);
        const Sluice__Sampling *s = &m.req->sampling;
        assert_non_null(s->json_schema);
        assert_int_equal(s->schema_mark != NULL, cases[i].mark != 0);
        assert_int_equal(s->has_schema_mark_token, cases[i].mark > 0);
        if (cases[i].mark > 0)
            assert_int_equal(s->schema_mark_token, cases[i].mark);
        assert_int_equal(m.r.prompts[0].tokens[m.r.prompts[0].n_tokens - 1] == TINY_TOOL_CALLS,
                         cases[i].mark == 0);
        finish(&m);
    }
}

static void prompt_that_does_not_fit_is_refused_with_both_numbers(void **state)
{
    static const struct {
        uint32_t context;
        const char *body, *extra, *param;
    } cases[] = {
        {8, "{\"prompt\":\"12345678\"}", "\"n_prompt_tokens\":8,\"n_ctx\":8", "prompt"},
        {8, "{\"prompt\":\"123456789\"}", "\"n_prompt_tokens\":9,\"n_ctx\":8", "prompt"},
        {8, "{\"prompt\":\"1234567\",\"max_tokens\":2}", "\"n_prompt_tokens\":7,\"n_ctx\":8", "max_tokens"},
        {8, "{\"prompt\":[1,2,3,4,5,6,7,8]}", "\"n_prompt_tokens\":8,\"n_ctx\":8", "prompt"},
    };
    struct made m;
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        make(false, cases[i].context, cases[i].body, &m);
        assert_false(m.ok);
        assert_int_equal(m.fault.err, SL_EINVAL);
        assert_string_equal(m.fault.extra, cases[i].extra);
        assert_string_equal(m.fault.param, cases[i].param);
        finish(&m);
    }
    make(false, 8, "{\"prompt\":\"1234567\"}", &m); /* the default of 16 is cut to what is left */
    assert_true(m.ok);
    assert_int_equal(m.r.prompts[0].max_tokens, 1);
    finish(&m);
    make(false, 8, "{\"prompt\":\"12345678\",\"echo\":true,\"max_tokens\":0}", &m);
    assert_true(m.ok);
    finish(&m);
}

static void truncation_keeps_the_end(void **state)
{
    struct made m;
    (void)state;
    make(false, 64, "{\"prompt\":\"abcdef\",\"truncate_prompt_tokens\":2}", &m);
    assert_true(m.ok);
    assert_int_equal(m.r.prompts[0].n_tokens, 2);
    assert_int_equal(m.r.prompts[0].tokens[0], 'e');
    finish(&m);
    make(false, 8, "{\"prompt\":\"abcdefghijklmnop\",\"truncate_prompt_tokens\":-1,\"max_tokens\":3}", &m);
    assert_true(m.ok);
    assert_int_equal(m.r.prompts[0].n_tokens, 5);
    assert_int_equal(m.r.prompts[0].tokens[4], 'p');
    finish(&m);
}

static void special_tokens_in_a_completion_need_to_be_asked_for(void **state)
{
    struct made m;
    (void)state;
    make(false, 64, "{\"prompt\":\"<|im_end|>\"}", &m);
    assert_int_equal(m.r.prompts[0].n_tokens, 10);
    finish(&m);
    make(false, 64, "{\"prompt\":\"<|im_end|>\",\"parse_special\":true}", &m);
    assert_int_equal(m.r.prompts[0].n_tokens, 1);
    assert_int_equal(m.r.prompts[0].tokens[0], TINY_IM_END);
    finish(&m);
}

static int open_all(void **state)
{
    struct sl_why why = {0};
    (void)state;
    tok = tiny_tokenizer();
    return sl_template_compile(tiny_template, strlen(tiny_template), &template, &why) == SL_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    sl_template_free(template);
    sl_tokenizer_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_is_templated_and_user_text_never_becomes_a_control_token),
        cmocka_unit_test(parts_equal_the_plain_string),
        cmocka_unit_test(continued_message_ends_the_prompt),
        cmocka_unit_test(continued_message_that_is_nearly_everywhere_is_refused_at_once),
        cmocka_unit_test(bad_messages_are_refused_with_their_place),
        cmocka_unit_test(calls_in_a_history_may_have_no_content_and_no_arguments),
        cmocka_unit_test(tool_arguments_are_as_deep_and_large_as_a_body),
        cmocka_unit_test(tool_arguments_become_an_object_and_developer_becomes_system),
        cmocka_unit_test(messages_that_need_no_change_are_not_copied),
        cmocka_unit_test(more_messages_than_are_taken_are_refused_with_the_number),
        cmocka_unit_test(tools_need_a_template_that_teaches_them),
        cmocka_unit_test(token_that_begins_a_call_is_named_or_stands_in_the_prompt),
        cmocka_unit_test(prompt_that_does_not_fit_is_refused_with_both_numbers),
        cmocka_unit_test(truncation_keeps_the_end),
        cmocka_unit_test(special_tokens_in_a_completion_need_to_be_asked_for),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
