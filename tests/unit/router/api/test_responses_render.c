/* Answers and events of /v1/responses, byte for byte. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "router/api/openai_render.h"
#include "router/api/tool_calls.h"
#include "router/http/http_error.h"
#include "tests/unit/router/api/tiny_vocab.h"

static struct sl_tokenizer *tok;
static int32_t prompt_ids[] = {104, 105};
static struct sl_oai_prompt prompt = {.tokens = prompt_ids, .n_tokens = 2};

struct rig {
    struct sl_gen_req req;
    struct sl_oai_request r;
    struct sl_render *render;
    json_t *body, *tools;
    struct sl_buf out;
};

static void open_rig(struct rig *rig, bool stream, bool logprobs)
{
    *rig = (struct rig){
        .req = {.id = "resp_1", .chat = true, .stream = stream, .model = "m", .logprobs = logprobs},
        .body = json_pack("{s:s, s:f, s:s}", "input", "hi", "temperature", 0.7, "instructions", "be"),
        .tools = json_array()};
    rig->r = (struct sl_oai_request){.req = &rig->req,
                                     .prompts = &prompt,
                                     .n_prompts = 1,
                                     .n = 1,
                                     .tools = rig->tools,
                                     .tool_format = sl_tool_format_of("<tool_call>\\n{"),
                                     .responses = rig->body};
    rig->render = sl_render_new(&rig->r, tok, 1750000000);
    sl_buf_init(&rig->out, 1 << 20);
}

static void close_rig(struct rig *rig)
{
    sl_buf_fini(&rig->out);
    sl_render_free(rig->render);
    json_decref(rig->body);
    json_decref(rig->tools);
}

static void say(struct rig *rig, const char *text)
{
    Sluice__TokenEvent raw;
    sluice__token_event__init(&raw);
    raw.token = 'a';
    raw.has_logprob = true;
    raw.logprob = -1;
    const struct sl_gen_event ev = {
        .kind = SL_GEN_TOKEN, .token = 'a', .text = text, .text_len = strlen(text), .raw = &raw};
    sl_render_event(rig->render, 0, &ev, &rig->out);
}

static void end(struct rig *rig, const char *reason)
{
    const struct sl_gen_event ev = {
        .kind = SL_GEN_DONE,
        .token = -1,
        .stop_token = -1,
        .finish_reason = reason,
        .usage = {.prompt_tokens = 2, .completion_tokens = 3, .cached_tokens = 1}};
    sl_render_event(rig->render, 0, &ev, &rig->out);
    assert_true(sl_render_done(rig->render));
}

/* CALL in the text is "CALLID" in what is expected. */
#define CALL "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>"

static void check(struct rig *rig, const char *expected)
{
    char id[SL_TOOL_CALL_ID_CHARS + 1], *at;
    sl_tool_call_id("resp_1", 0, 0, id);
    while ((at = strstr(rig->out.data, id)))
        memcpy(at, "CALL-ID-0", SL_TOOL_CALL_ID_CHARS);
    assert_string_equal(rig->out.data, expected);
}

#define HEAD                                                                                                 \
    "{\"id\":\"resp_1\",\"object\":\"response\",\"created_at\":1750000000,\"model\":\"m\","                  \
    "\"instructions\":\"be\",\"max_output_tokens\":null,\"metadata\":{},\"parallel_tool_calls\":true,"       \
    "\"temperature\":0.7,\"top_p\":1.0,\"tool_choice\":\"auto\",\"tools\":[],\"top_logprobs\":0,"            \
    "\"truncation\":\"disabled\",\"background\":false,\"store\":false,\"previous_response_id\":null,"        \
    "\"text\":{\"format\":{\"type\":\"text\"}},"
#define BEGUN                                                                                                \
    HEAD "\"status\":\"in_progress\",\"incomplete_details\":null,\"error\":null,\"output\":[],\"usage\":"    \
         "null}"
#define USAGE                                                                                                \
    "\"usage\":{\"input_tokens\":2,\"input_tokens_details\":{\"cached_tokens\":1,\"cache_write_tokens\":0}," \
    "\"output_tokens\":3,\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":5}}"
#define EVENT(type, number, rest)                                                                            \
    "event: " type "\ndata: {\"type\":\"" type "\",\"sequence_number\":" number "," rest "}\n\n"
#define PART(logprobs, text)                                                                                 \
    "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[" logprobs "],\"text\":\"" text "\"}"
#define MESSAGE(status, content)                                                                             \
    "{\"type\":\"message\",\"id\":\"msg_1\",\"status\":\"" status                                            \
    "\",\"role\":\"assistant\",\"content\":[" content "]}"
#define CALLED(status, arguments)                                                                            \
    "{\"type\":\"function_call\",\"id\":\"fc_CALL-ID-0\",\"call_id\":\"CALL-ID-0\",\"status\":\"" status     \
    "\",\"name\":\"f\",\"arguments\":\"" arguments "\"}"
#define ARGUMENTS  "{\\\"x\\\": 1}"
#define OF_MESSAGE "\"content_index\":0,\"item_id\":\"msg_1\","

/* The call comes first, so the text's message is the second item. */
static void stream_tells_each_item_and_then_the_whole(void **state)
{
    struct rig rig;
    (void)state;
    open_rig(&rig, true, false);
    say(&rig, CALL);
    say(&rig, "H");
    say(&rig, "\"");
    end(&rig, "stop");
    check(
        &rig,
        EVENT("response.created", "0", "\"response\":" BEGUN) EVENT("response.in_progress", "1",
                                                                    "\"response\":" BEGUN)
            EVENT("response.output_item.added", "2", "\"output_index\":0,\"item\":" CALLED("in_progress", ""))
                EVENT("response.function_call_arguments.delta", "3",
                      "\"output_index\":0,\"item_id\":\"fc_CALL-ID-0\",\"delta\":\"" ARGUMENTS
                      "\"") EVENT("response.function_call_arguments.done", "4",
                                  "\"output_index\":0,\"item_id\":\"fc_CALL-ID-0\",\"arguments\":\"" ARGUMENTS
                                  "\",\"name\":\"f\"") EVENT("response.output_item.done", "5",
                                                             "\"output_index\":0,\"item\":" CALLED(
                                                                 "completed", ARGUMENTS))
                    EVENT("response.output_item.added", "6",
                          "\"output_index\":1,\"item\":" MESSAGE("in_progress", ""))
                        EVENT("response.content_part.added", "7",
                              "\"output_index\":1," OF_MESSAGE
                              "\"part\":" PART("", "")) EVENT("response.output_text.delta", "8",
                                                              "\"output_index\":1," OF_MESSAGE
                                                              "\"logprobs\":[],\"delta\":\"H\"")
                            EVENT("response.output_text.delta", "9",
                                  "\"output_index\":1," OF_MESSAGE "\"logprobs\":[],\"delta\":\"\\\"\"")
                                EVENT("response.output_text.done", "10",
                                      "\"output_index\":1," OF_MESSAGE "\"logprobs\":[],\"text\":\"H\\\"\"")
                                    EVENT("response.content_part.done", "11",
                                          "\"output_index\":1," OF_MESSAGE "\"part\":" PART("", "H\\\""))
                                        EVENT("response.output_item.done", "12",
                                              "\"output_index\":1,\"item\":" MESSAGE("completed",
                                                                                     PART("", "H\\\"")))
                                            EVENT("response.completed", "13",
                                                  "\"response\":" HEAD
                                                  "\"status\":\"completed\",\"incomplete_details\":null,"
                                                  "\"error\":null,\"output\":[" CALLED(
                                                      "completed",
                                                      ARGUMENTS) "," MESSAGE("completed",
                                                                             PART("", "H\\\"")) "]," USAGE));
    close_rig(&rig);
}

static void call_behind_text_has_the_next_place(void **state)
{
    struct rig rig;
    (void)state;
    open_rig(&rig, true, false);
    say(&rig, "H");
    say(&rig, CALL);
    end(&rig, "stop");
    const char *call = strstr(rig.out.data, "\"output_index\":1,\"item\":{\"type\":\"function_call\"");
    assert_non_null(call);
    assert_non_null(strstr(call, "\"output_index\":1,\"item_id\":\"fc_"));
    assert_non_null(strstr(call, "\"output_index\":0,\"item\":" MESSAGE("completed", PART("", "H"))));
    close_rig(&rig);
}

static void whole_answer_has_the_same_items(void **state)
{
    struct rig rig;
    (void)state;
    open_rig(&rig, false, false);
    say(&rig, CALL);
    say(&rig, "H");
    end(&rig, "stop");
    check(&rig,
          HEAD "\"status\":\"completed\",\"incomplete_details\":null,\"error\":null,\"output\":[" CALLED(
              "completed", ARGUMENTS) "," MESSAGE("completed", PART("", "H")) "]," USAGE);
    close_rig(&rig);
    open_rig(&rig, false, false);
    say(&rig, "H");
    say(&rig, CALL);
    end(&rig, "length");
    check(&rig, HEAD "\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},"
                     "\"error\":null,\"output\":[" MESSAGE("incomplete", PART("", "H")) "," CALLED(
                         "completed", ARGUMENTS) "]," USAGE);
    close_rig(&rig);
    open_rig(&rig, false, false);
    end(&rig, "stop");
    check(&rig,
          HEAD "\"status\":\"completed\",\"incomplete_details\":null,\"error\":null,\"output\":[" MESSAGE(
              "completed", PART("", "")) "]," USAGE);
    close_rig(&rig);
}

/* What is held back, as a call may begin, has its logprobs told with the next text. */
static void stream_tells_every_logprob_once(void **state)
{
    struct rig rig;
    const char *at;
    int n = 0;
    (void)state;
    open_rig(&rig, true, true);
    say(&rig, "<tool");
    say(&rig, "s");
    say(&rig, " ");
    end(&rig, "stop");
    for (at = rig.out.data; (at = strstr(at, "\"logprob\":-1")); at++)
        n++;
    assert_int_equal(n, 3);
    assert_non_null(strstr(rig.out.data, "\"delta\":\"<tools\""));
    assert_non_null(strstr(rig.out.data, "\"text\":\"<tools \""));
    close_rig(&rig);
}

static void failure_ends_the_stream_with_what_there_is(void **state)
{
    struct rig rig;
    (void)state;
    open_rig(&rig, true, false);
    say(&rig, "H");
    sl_buf_clear(&rig.out);
    sl_render_error(rig.render, &(struct sl_http_error){.err = SL_EPEER, .message = "No \"node\"."},
                    &rig.out);
    check(
        &rig,
        EVENT("error", "5", "\"code\":\"server_error\",\"param\":null,\"message\":\"No \\\"node\\\".\"")
            EVENT(
                "response.failed", "6",
                "\"response\":" HEAD "\"status\":\"failed\",\"incomplete_details\":null,"
                "\"error\":{\"code\":\"server_error\",\"message\":\"No \\\"node\\\".\"},\"output\":[" MESSAGE(
                    "incomplete", PART("", "H")) "],\"usage\":null}"));
    close_rig(&rig);
}

static void extensions_stand_beside_the_output(void **state)
{
    struct rig rig;
    (void)state;
    open_rig(&rig, false, false);
    sl_render_free(rig.render);
    rig.req.return_token_ids = rig.req.want_digest = true;
    rig.render = sl_render_new(&rig.r, tok, 1750000000);
    say(&rig, "H");
    end(&rig, "stop");
    assert_non_null(strstr(
        rig.out.data, ",\"prompt_token_ids\":[104,105],\"token_ids\":[97],\"sluice\":{\"digests\":[]}}"));
    close_rig(&rig);
}

static int open_tok(void **state)
{
    (void)state;
    tok = tiny_tokenizer();
    return 0;
}

static int close_tok(void **state)
{
    (void)state;
    sl_tokenizer_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_tells_each_item_and_then_the_whole),
        cmocka_unit_test(call_behind_text_has_the_next_place),
        cmocka_unit_test(whole_answer_has_the_same_items),
        cmocka_unit_test(stream_tells_every_logprob_once),
        cmocka_unit_test(failure_ends_the_stream_with_what_there_is),
        cmocka_unit_test(extensions_stand_beside_the_output),
    };
    return cmocka_run_group_tests(tests, open_tok, close_tok);
}
