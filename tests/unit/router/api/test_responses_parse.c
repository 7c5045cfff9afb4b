/* Bodies of /v1/responses: which chat each becomes; what is refused, with which member named. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "router/api/openai_parse.h"
#include "router/api/responses_parse.h"

#define I "{\"input\":\"hi\","
#define L "\"logprobs\":false"
#define U "{\"role\":\"user\",\"content\":\"hi\"}"

static void body_becomes_the_chat_that_asks_for_the_same(void **state)
{
    static const struct {
        const char *body, *chat;
    } cases[] = {
        {"{\"input\":\"hi\"}", "{\"messages\":[" U "]," L "}"},
        {I "\"instructions\":\"be\",\"max_output_tokens\":5,\"temperature\":0,\"seed\":7,\"stream\":true}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"}," U "],\"max_completion_tokens\":5,"
         "\"temperature\":0,\"seed\":7,\"stream\":true," L "}"},
        /* what says nothing, and what cannot change the answer */
        {I
         "\"instructions\":null,\"store\":true,\"reasoning\":{\"effort\":\"low\"},\"truncation\":"
         "\"disabled\","
         "\"background\":false,\"previous_response_id\":null,\"metadata\":{\"a\":\"b\"},\"max_tool_calls\":1,"
         "\"include\":[\"reasoning.encrypted_content\"],\"stream_options\":{\"include_obfuscation\":false}}",
         "{\"messages\":[" U "]," L "}"},
        {"{\"input\":[{\"role\":\"developer\",\"content\":\"be\"},{\"type\":\"message\",\"role\":\"user\","
         "\"content\":["
         "{\"type\":\"input_text\",\"text\":\"h\"},{\"type\":\"input_text\",\"text\":\"i\"}]},"
         "{\"type\":\"message\",\"id\":\"msg_1\",\"status\":\"completed\",\"role\":\"assistant\",\"content\":"
         "["
         "{\"type\":\"output_text\",\"text\":\"yes\",\"annotations\":[],\"logprobs\":[]}]}]}",
         "{\"messages\":[{\"role\":\"developer\",\"content\":\"be\"}," U
         ",{\"role\":\"assistant\",\"content\":\"yes\"}]," L "}"},
        /* calls belong to the assistant's turn before them; later ones to a new one */
        {"{\"input\":[" U ",{\"role\":\"assistant\",\"content\":\"So:\"},"
         "{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"},"
         "{\"type\":\"function_call\",\"call_id\":\"b\",\"name\":\"g\",\"arguments\":\"\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":\"1\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"b\",\"output\":[{\"type\":\"input_text\",\"text\":"
         "\"2\"}]},"
         "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}]}",
         "{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":\"So:\",\"tool_calls\":["
         "{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}},"
         "{\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
         "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"1\"},"
         "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"2\"},"
         "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
         "{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]," L "}"},
        {I "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{}}],"
           "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"parallel_tool_calls\":false}",
         "{\"messages\":[" U
         "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
         "\"parameters\":{}}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
         "\"parallel_tool_calls\":false," L "}"},
        {I "\"tools\":[],\"tool_choice\":\"auto\"}",
         "{\"messages\":[" U "],\"tools\":[],\"tool_choice\":\"auto\"," L "}"},
        {I "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{},\"strict\":true}}}",
         "{\"messages\":[" U "],\"response_format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{},"
         "\"strict\":true}," L "}"},
        {I "\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2}",
         "{\"messages\":[" U "],\"top_logprobs\":2,\"logprobs\":true}"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_fault fault = {0};
        json_t *body = sl_json_body(cases[i].body, strlen(cases[i].body), &fault);
        json_t *chat = sl_responses_to_chat(body, &fault), *want = json_loads(cases[i].chat, 0, NULL);
        assert_non_null(want);
        if (!json_equal(chat, want))
            fail_msg("case %zu is another chat: %s", i, fault.message);
        json_decref(want);
        json_decref(chat);
        json_decref(body);
    }
}

/* The body as a whole, by this parser and the chat's. */
static void check_refused(const char *text, enum sl_err err, const char *param, const char *begin)
{
    static const char *const names[] = {"m"};
    static const uint32_t eog[] = {7};
    const struct sl_oai_model model = {names, 1, 1000, 128, eog, 1};
    struct sl_fault fault = {0};
    struct sl_oai_request r;
    struct sl_arena *arena = sl_arena_new(1 << 20);
    struct sl_gen_req *req = sl_arena_alloc(arena, sizeof *req);
    req->arena = arena;
    json_t *body = sl_json_body(text, strlen(text), &fault), *chat = sl_responses_to_chat(body, &fault);
    if (chat) {
        sl_oai_parse(&model, true, chat, req, &r, &fault);
        sl_responses_name_fault(&fault);
    }
    if (fault.err != err || strcmp(fault.param, param) != 0 ||
        strncmp(fault.message, begin, strlen(begin)) != 0)
        fail_msg("%s: %s param=%s %s", text, sl_err_name(fault.err), fault.param, fault.message);
    json_decref(chat);
    json_decref(body);
    sl_arena_free(arena);
}

static void what_is_refused_is_named_as_it_was_sent(void **state)
{
    static const struct {
        const char *body;
        enum sl_err err;
        const char *param, *begin;
    } cases[] = {
        {"{}", SL_EINVAL, "input", "input is missing;"},
        {"{\"input\":null}", SL_EINVAL, "input", "input is missing;"},
        {"{\"input\":[]}", SL_EINVAL, "input", "input is empty;"},
        {"{\"input\":7}", SL_EINVAL, "input", "input is an integer;"},
        {"{\"input\":[7]}", SL_EINVAL, "input[0]", "input[0]: expected an object."},
        {"{\"input\":[{}]}", SL_EINVAL, "input[0].role", "input[0].role: expected user,"},
        {"{\"input\":[{\"role\":\"tool\",\"content\":\"x\"}]}", SL_EINVAL, "input[0].role", ""},
        {"{\"input\":[" U ",{\"role\":\"user\"}]}", SL_EINVAL, "input[1].content", ""},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", SL_EUNSUPPORTED,
         "input[0].content", "input[0].content: parts of type \"input_image\" are not supported"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]}", SL_EINVAL,
         "input[0].content", ""},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", SL_EUNSUPPORTED, "input[0].type",
         "input[0].type: \"item_reference\" is not supported; send message,"},
        {"{\"input\":[{\"type\":7}]}", SL_EUNSUPPORTED, "input[0].type", ""},
        {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}]}", SL_EINVAL,
         "input[0].call_id", ""},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"a\",\"arguments\":\"{}\"}]}", SL_EINVAL,
         "input[0].name", ""},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"[]\"}]}",
         SL_EINVAL, "input[0].arguments", ""},
        {"{\"input\":[{\"type\":\"function_call_output\",\"output\":\"x\"}]}", SL_EINVAL, "input[0].call_id",
         ""},
        {"{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"a\"}]}", SL_EINVAL, "input[0].output",
         ""},
        {I "\"instructions\":[]}", SL_EINVAL, "instructions", ""},
        {I "\"previous_response_id\":\"resp_1\"}", SL_EUNSUPPORTED, "previous_response_id",
         "previous_response_id is not supported: nothing is kept here; send"},
        {I "\"conversation\":\"c\"}", SL_EUNSUPPORTED, "conversation", ""},
        {I "\"background\":true}", SL_EUNSUPPORTED, "background", ""},
        {I "\"prompt\":{\"id\":\"p\"}}", SL_EUNSUPPORTED, "prompt", "prompt is not supported"},
        {I "\"truncation\":\"auto\"}", SL_EUNSUPPORTED, "truncation", "truncation is \"auto\"; expected"},
        {I "\"metadata\":\"x\"}", SL_EINVAL, "metadata", ""},
        {I "\"messages\":[" U "]}", SL_EUNSUPPORTED, "messages",
         "messages is a member of /v1/chat/completions;"},
        {I "\"max_tokens\":5}", SL_EUNSUPPORTED, "max_tokens", ""},
        {I "\"n\":2}", SL_EUNSUPPORTED, "n", ""},
        {I "\"tools\":[{\"type\":\"web_search\"}]}", SL_EUNSUPPORTED, "tools[0].type",
         "tools[0].type is \"web_search\"; expected \"function\""},
        {I "\"tools\":[5]}", SL_EUNSUPPORTED, "tools[0].type", ""},
        {I "\"tools\":5}", SL_EINVAL, "tools", ""},
        {I "\"tools\":[{\"type\":\"function\"}]}", SL_EINVAL, "tools[0].name", "tools[0].name: expected"},
        {I "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":true}],\"min_tokens\":1}", SL_EINVAL,
         "min_tokens", "min_tokens cannot stand beside a strict tool."},
        {I "\"tool_choice\":\"auto\"}", SL_EINVAL, "tool_choice", ""},
        {I "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"mcp\"}}",
         SL_EUNSUPPORTED, "tool_choice", ""},
        {I "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"function\","
           "\"name\":\"g\"}}",
         SL_EINVAL, "tool_choice", "tool_choice names 'g'"},
        {I "\"text\":5}", SL_EINVAL, "text", ""},
        {I "\"text\":{\"format\":5}}", SL_EINVAL, "text.format", "text.format is an integer;"},
        {I "\"text\":{\"format\":{\"type\":\"xml\"}}}", SL_EINVAL, "text.format", "text.format.type must be"},
        {I "\"text\":{\"format\":{\"type\":\"json_schema\"}}}", SL_EINVAL, "text.format.schema", ""},
        {I "\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"not\":{}}}}}", SL_EUNSUPPORTED,
         "text.format", "text.format: "},
        {I "\"max_output_tokens\":0}", SL_EINVAL, "max_output_tokens", "max_output_tokens is 0; expected 1"},
        {I "\"max_output_tokens\":3,\"min_tokens\":4}", SL_EINVAL, "min_tokens",
         "min_tokens is 4 and max_output_tokens is 3;"},
        {I "\"include\":\"x\"}", SL_EINVAL, "include", ""},
        {I "\"include\":[1]}", SL_EINVAL, "include", ""},
        {I "\"top_logprobs\":2}", SL_EINVAL, "top_logprobs", ""},
        {I "\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":21}", SL_EINVAL, "top_logprobs",
         ""},
        {I "\"temperature\":-1}", SL_EINVAL, "temperature", ""},
        {I "\"model\":\"x\"}", SL_ENOTFOUND, "model", ""},
        {I "\"functions\":[1]}", SL_EUNSUPPORTED, "functions", ""},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        check_refused(cases[i].body, cases[i].err, cases[i].param, cases[i].begin);
}

static void more_than_an_answer_repeats_is_refused(void **state)
{
    (void)state;
    for (unsigned more = 0; more < 2; more++) {
        struct sl_buf b;
        sl_buf_init(&b, 2 * SL_RESPONSES_ECHO_MAX_BYTES);
        sl_buf_puts(&b, I "\"instructions\":\"");
        for (unsigned i = 2; i < SL_RESPONSES_ECHO_MAX_BYTES + more; i++) /* its quotes count too */
            sl_buf_putc(&b, 'x');
        sl_buf_puts(&b, "\"}");
        check_refused(b.data, more ? SL_EINVAL : SL_OK, more ? "instructions" : "",
                      more ? "instructions, tools, text" : "");
        sl_buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(body_becomes_the_chat_that_asks_for_the_same),
        cmocka_unit_test(what_is_refused_is_named_as_it_was_sent),
        cmocka_unit_test(more_than_an_answer_repeats_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
