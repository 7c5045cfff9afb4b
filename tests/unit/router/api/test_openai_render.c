/* Frames and bodies byte for byte: what clients parse. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/api/openai_render.h"
#include "router/api/tool_calls.h"
#include "tests/unit/router/api/tiny_vocab.h"

static struct sl_tokenizer *tok;

static struct sl_gen_event token(int32_t id, const char *text, Sluice__TokenEvent *raw)
{
    if (raw) {
        sluice__token_event__init(raw);
        raw->token = id;
    }
    return (struct sl_gen_event){.kind = SL_GEN_TOKEN,
                                 .token = id,
                                 .text = text,
                                 .text_len = strlen(text),
                                 .raw = raw,
                                 .stop_token = -1};
}

static struct sl_gen_event done(const char *reason, const char *stop, int32_t stop_token, uint32_t n)
{
    return (struct sl_gen_event){.kind = SL_GEN_DONE,
                                 .token = -1,
                                 .finish_reason = reason,
                                 .stop_reason = stop,
                                 .stop_token = stop_token,
                                 .usage = {.prompt_tokens = 3, .completion_tokens = n, .cached_tokens = 1}};
}

/* Everything the client gets for the events. */
static void check(const struct sl_oai_request *r, const struct sl_gen_event *events, size_t n,
                  const char *expected)
{
    struct sl_buf out;
    struct sl_render *render = sl_render_new(r, tok, 1750000000);
    sl_buf_init(&out, 1 << 20);
    for (size_t i = 0; i < n; i++)
        sl_render_event(render, 0, &events[i], &out);
    assert_string_equal(out.data, expected);
    sl_buf_fini(&out);
    sl_render_free(render);
}

static int32_t prompt[] = {104, 105, 33};
static struct sl_oai_prompt prompts[] = {{.tokens = prompt, .n_tokens = 3},
                                         {.tokens = prompt, .n_tokens = 2}};
#define ONE .prompts = prompts, .n_prompts = 1, .n = 1

static struct sl_gen_req request(bool chat, bool stream)
{
    return (struct sl_gen_req){
        .id = "id-1", .chat = chat, .stream = stream, .model = "m", .skip_special = true};
}

#define CHAT_HEAD                                                                                            \
    "data: "                                                                                                 \
    "{\"id\":\"id-1\",\"object\":\"chat.completion.chunk\",\"created\":1750000000,\"model\":\"m\","          \
    "\"choices\":"
#define TEXT_HEAD                                                                                            \
    "data: "                                                                                                 \
    "{\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":1750000000,\"model\":\"m\",\"choices\":"

static void chat_stream_has_role_tokens_finish_usage_done(void **state)
{
    struct sl_gen_req q = request(true, true);
    struct sl_oai_request r = {.req = &q, ONE};
    const struct sl_gen_event events[] = {token(72, "H", NULL), token(101, "", NULL),
                                          token(TINY_IM_END, "e\"\n", NULL),
                                          done("stop", NULL, TINY_IM_END, 3)};
    (void)state;
    q.include_usage = true;
    check(&r, events, 4,
          CHAT_HEAD
          "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_"
          "reason\":null}],\"usage\":null}\n\n" CHAT_HEAD
          "[{\"index\":0,\"delta\":{\"content\":\"H\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":"
          "null}\n\n" CHAT_HEAD "[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_"
          "reason\":null}],\"usage\":null}\n\n" CHAT_HEAD
          "[{\"index\":0,\"delta\":{\"content\":\"e\\\"\\n\"},\"logprobs\":null,\"finish_reason\":null}],"
          "\"usage\":null}\n\n" CHAT_HEAD "[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":"
          "\"stop\",\"stop_reason\":null}],\"usage\":null}\n\n" CHAT_HEAD
          "[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":3,\"total_tokens\":6,\"prompt_tokens_"
          "details\":{\"cached_tokens\":1}}}\n\n"
          "data: [DONE]\n\n");
}

static void completion_stream_has_no_role_and_says_what_stopped_it(void **state)
{
    struct sl_gen_req q = request(false, true);
    struct sl_oai_request r = {.req = &q, ONE, .user_stop_ids = {5}, .n_user_stop_ids = 1};
    const struct sl_gen_event events[] = {token(72, "H", NULL), token(-1, "rest", NULL), token(-1, "", NULL),
                                          done("stop", "END", -1, 1)};
    const struct sl_gen_event by_id[] = {token(5, "", NULL), done("stop", NULL, 5, 1)};
    (void)state;
    check(&r, events, 4,
          TEXT_HEAD
          "[{\"index\":0,\"text\":\"H\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_HEAD
          "[{\"index\":0,\"text\":\"rest\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_HEAD
          "[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":\"END\"}]"
          "}\n\n"
          "data: [DONE]\n\n");
    check(&r, by_id, 2,
          TEXT_HEAD
          "[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_HEAD
          "[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":5}]}\n\n"
          "data: [DONE]\n\n");
}

/* Two prompts with two choices each; they end in another order than they stand in. */
static void choices_have_their_index_and_usage_counts_each_prompt_once(void **state)
{
    static const uint32_t order[] = {2, 0, 3, 1};
    struct sl_buf out;
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct sl_gen_req q = request(false, stream);
        struct sl_oai_request r = {.req = &q, .prompts = prompts, .n_prompts = 2, .n = 2};
        struct sl_render *render = sl_render_new(&r, tok, 1750000000);
        q.include_usage = true;
        sl_buf_init(&out, 1 << 20);
        for (size_t i = 0; i < SL_COUNTOF(order); i++) {
            const char text[] = {(char)('a' + order[i]), 0};
            const struct sl_gen_event t = token(72, text, NULL), d = done("stop", NULL, -1, 1 + order[i]);
            assert_false(sl_render_done(render));
            sl_render_event(render, order[i], &t, &out);
            if (stream)
                assert_non_null(strstr(out.data, text));
            sl_render_event(render, order[i], &d, &out);
        }
        assert_true(sl_render_done(render) && sl_render_begun(render));
        if (stream) {
            assert_non_null(strstr(out.data, "{\"index\":2,\"text\":\"c\""));
            assert_string_equal(strstr(out.data, "data: [DONE]"), "data: [DONE]\n\n");
        } else {
            assert_string_equal(
                out.data,
                "{\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":1750000000,\"model\":\"m\","
                "\"choices\":["
                "{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
                "null},"
                "{\"index\":1,\"text\":\"b\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
                "null},"
                "{\"index\":2,\"text\":\"c\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
                "null},"
                "{\"index\":3,\"text\":\"d\",\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
                "null}"
                "],\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":10,\"total_tokens\":16,"
                "\"prompt_tokens_details\":{\"cached_tokens\":2}},"
                "\"system_fingerprint\":\"sluice-" SLUICE_VERSION "\"}");
        }
        sl_buf_fini(&out);
        sl_render_free(render);
    }
}

/* The call comes in three pieces; its id is made of the request's. */
static void tool_call_is_told_apart_from_text(void **state)
{
    struct sl_gen_req q = request(true, false);
    json_t *tools = json_array();
    struct sl_oai_request r = {
        .req = &q, ONE, .tools = tools, .tool_format = sl_tool_format_of("<tool_call>\\n{")};
    const struct sl_gen_event events[] = {
        token(72, "So: ", NULL), token(101, "<tool_call>{\"name\":\"f\"", NULL),
        token(102, "}</tool_call>", NULL), done("stop", NULL, TINY_IM_END, 3)};
    char id[SL_TOOL_CALL_ID_CHARS + 1];
    struct sl_buf expected;
    (void)state;
    sl_tool_call_id("id-1", 0, 0, id);
    sl_buf_init(&expected, 1 << 16);
    sl_buf_printf(
        &expected,
        "{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":1750000000,\"model\":\"m\",\"choices\":["
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"So:\",\"tool_calls\":["
        "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "\"logprobs\":null,\"finish_reason\":\"tool_calls\",\"stop_reason\":null}],\"usage\":{\"prompt_"
        "tokens\":3,"
        "\"completion_tokens\":3,\"total_tokens\":6,\"prompt_tokens_details\":{\"cached_tokens\":1}},"
        "\"system_fingerprint\":\"sluice-" SLUICE_VERSION "\"}",
        id);
    check(&r, events, 4, expected.data);
    sl_buf_clear(&expected);
    q.stream = true;
    sl_buf_printf(
        &expected,
        CHAT_HEAD
        "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
        "\"finish_reason\":null}]}\n\n" CHAT_HEAD "[{\"index\":0,\"delta\":{\"content\":\"So:\"},"
        "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT_HEAD
        "[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT_HEAD
        "[{\"index\":0,\"delta\":{\"content\":\"\",\"tool_calls\":[{\"index\":0,\"id\":\"%s\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},\"logprobs\":null,"
        "\"finish_reason\":null}]}\n\n" CHAT_HEAD
        "[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\","
        "\"stop_reason\":null}]}\n\ndata: [DONE]\n\n",
        id);
    check(&r, events, 4, expected.data);
    sl_buf_fini(&expected);
    json_decref(tools);
}

static void continuous_usage_counts_up(void **state)
{
    struct sl_gen_req q = request(false, true);
    struct sl_oai_request r = {.req = &q, ONE, .continuous_usage = true};
    const struct sl_gen_event events[] = {token(72, "H", NULL), token(73, "I", NULL)};
    (void)state;
    q.include_usage = true;
    check(&r, events, 2,
          TEXT_HEAD "[{\"index\":0,\"text\":\"H\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":{"
                    "\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}\n\n" TEXT_HEAD
                    "[{\"index\":0,\"text\":\"I\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":{"
                    "\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n");
}

static void ids_and_digests_are_in_each_token_frame(void **state)
{
    struct sl_gen_req q = request(false, true);
    struct sl_oai_request r = {.req = &q, ONE};
    Sluice__TokenEvent raw;
    struct sl_gen_event events[] = {token(72, "H", &raw), token(-1, "x", NULL)};
    (void)state;
    raw.has_logits_digest = true;
    raw.logits_digest = 0xabc;
    q.want_digest = q.return_token_ids = true;
    check(&r, events, 2,
          TEXT_HEAD
          "[{\"index\":0,\"text\":\"H\",\"logprobs\":null,\"finish_reason\":null,\"token_ids\":[72],\"prompt_"
          "token_ids\":[104,105,33]}],\"sluice\":{\"digest\":\"0000000000000abc\"}}\n\n" TEXT_HEAD
          "[{\"index\":0,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":null,\"token_ids\":[]}]}\n\n");
}

static void chat_logprobs_carry_raw_bytes(void **state)
{
    struct sl_gen_req q = request(true, false);
    struct sl_oai_request r = {.req = &q, ONE};
    Sluice__TokenEvent raw;
    int32_t top[] = {72, 0xe5};
    float probs[] = {-0.5f, -INFINITY};
    struct sl_gen_event events[] = {token(72, "H", &raw), done("length", NULL, -1, 1)};
    (void)state;
    raw.has_logprob = true;
    raw.logprob = -0.5f;
    raw.n_top_tokens = raw.n_top_logprobs = 2;
    raw.top_tokens = top;
    raw.top_logprobs = probs;
    q.logprobs = true;
    check(&r, events, 2,
          "{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":1750000000,\"model\":\"m\","
          "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"H\"},"
          "\"logprobs\":{\"content\":[{\"token\":\"H\",\"logprob\":-0.5,\"bytes\":[72],\"top_logprobs\":["
          "{\"token\":\"H\",\"logprob\":-0.5,\"bytes\":[72]},{\"token\":\"\xef\xbf\xbd\",\"logprob\":-9999,"
          "\"bytes\":[229]}]}]},"
          "\"finish_reason\":\"length\",\"stop_reason\":null}],"
          "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4,\"prompt_tokens_"
          "details\":{\"cached_tokens\":1}},"
          "\"system_fingerprint\":\"sluice-" SLUICE_VERSION "\"}");
}

static void completion_logprobs_have_four_lists_and_no_key_twice(void **state)
{
    struct sl_gen_req q = request(false, false);
    struct sl_oai_request r = {.req = &q, ONE};
    Sluice__TokenEvent raw[2];
    int32_t top[] = {73, 0xe5, 0xe6};
    float probs[] = {-1, -2, -3};
    struct sl_gen_event events[] = {token(72, "H", &raw[0]), token(73, "I", &raw[1]),
                                    done("length", NULL, -1, 2)};
    (void)state;
    raw[0].has_logprob = raw[1].has_logprob = true;
    raw[0].logprob = -0.25f;
    raw[1].logprob = -1;
    raw[1].n_top_tokens = raw[1].n_top_logprobs = 3;
    raw[1].top_tokens = top;
    raw[1].top_logprobs = probs;
    q.logprobs = q.echo = true; /* the parser refuses the pair; the text still shows how echo comes out */
    check(&r, events, 3,
          "{\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":1750000000,\"model\":\"m\","
          "\"choices\":[{\"index\":0,\"text\":\"hi!HI\","
          "\"logprobs\":{\"tokens\":[\"H\",\"I\"],\"token_logprobs\":[-0.25,-1],\"top_logprobs\":[{\"H\":-0."
          "25},{\"I\":-1,\"\xef\xbf\xbd\":-2}],\"text_offset\":[0,1]},"
          "\"finish_reason\":\"length\",\"stop_reason\":null}],"
          "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,\"prompt_tokens_"
          "details\":{\"cached_tokens\":1}},"
          "\"system_fingerprint\":\"sluice-" SLUICE_VERSION "\"}");
}

static void echo_is_a_frame_of_its_own(void **state)
{
    struct sl_gen_req q = request(false, true);
    struct sl_oai_request r = {.req = &q, ONE};
    const struct sl_gen_event events[] = {token(72, "H", NULL)};
    (void)state;
    q.echo = true;
    check(&r, events, 1,
          TEXT_HEAD "[{\"index\":0,\"text\":\"hi!\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT_HEAD
                    "[{\"index\":0,\"text\":\"H\",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
}

static void whole_answer_collects_ids_and_digests(void **state)
{
    struct sl_gen_req q = request(false, false);
    struct sl_oai_request r = {.req = &q, ONE};
    Sluice__TokenEvent raw[2];
    struct sl_gen_event events[] = {token(72, "H", &raw[0]), token(TINY_IM_END, "", &raw[1]),
                                    done("stop", NULL, TINY_IM_END, 2)};
    (void)state;
    raw[0].has_logits_digest = raw[1].has_logits_digest = true;
    raw[0].logits_digest = 1;
    raw[1].logits_digest = UINT64_MAX;
    q.want_digest = q.return_token_ids = true;
    check(&r, events, 3,
          "{\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":1750000000,\"model\":\"m\","
          "\"choices\":[{\"index\":0,\"text\":\"H\",\"logprobs\":null,"
          "\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":[72,257],\"prompt_token_ids\":[104,"
          "105,33]}],"
          "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,\"prompt_tokens_"
          "details\":{\"cached_tokens\":1}},"
          "\"system_fingerprint\":\"sluice-" SLUICE_VERSION
          "\",\"sluice\":{\"digests\":[\"0000000000000001\",\"ffffffffffffffff\"]}}");
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
        cmocka_unit_test(chat_stream_has_role_tokens_finish_usage_done),
        cmocka_unit_test(completion_stream_has_no_role_and_says_what_stopped_it),
        cmocka_unit_test(choices_have_their_index_and_usage_counts_each_prompt_once),
        cmocka_unit_test(tool_call_is_told_apart_from_text),
        cmocka_unit_test(continuous_usage_counts_up),
        cmocka_unit_test(ids_and_digests_are_in_each_token_frame),
        cmocka_unit_test(chat_logprobs_carry_raw_bytes),
        cmocka_unit_test(completion_logprobs_have_four_lists_and_no_key_twice),
        cmocka_unit_test(echo_is_a_frame_of_its_own),
        cmocka_unit_test(whole_answer_collects_ids_and_digests),
    };
    return cmocka_run_group_tests(tests, open_tok, close_tok);
}
