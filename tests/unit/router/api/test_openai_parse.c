/* Request bodies: what is taken, with which value; what is refused, with which field named. Cases of vLLM's,
 * llama.cpp's and SGLang's API test suites are among them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/buf.h"
#include "router/api/openai_parse.h"

static const char *const names[] = {"m", "alias"};
static const uint32_t eog[] = {7, 9};
static const struct sl_oai_model model = {names, 2, 1000, 128, eog, 2};

struct parsed {
    struct sl_arena *arena;
    struct sl_gen_req *req;
    json_t *body;
    struct sl_oai_request r;
    struct sl_fault fault;
};

static bool parse(bool chat, const char *text, struct parsed *p)
{
    memset(p, 0, sizeof *p);
    p->arena = sl_arena_new(1 << 20);
    p->req = sl_arena_alloc(p->arena, sizeof *p->req);
    p->req->arena = p->arena;
    p->body = sl_json_body(text, strlen(text), &p->fault);
    return p->body && sl_oai_parse(&model, chat, p->body, p->req, &p->r, &p->fault);
}

static void finish(struct parsed *p)
{
    json_decref(p->body);
    sl_arena_free(p->arena);
}

#define C "{\"prompt\":\"hi\","                                     /* a completion */
#define M "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]," /* a chat */

#define STRICT "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}],"
#define T      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"

#define S(schema)                                                                                            \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\",\"schema\":" schema "}}"

static void bad_body_is_refused_by_field_name(void **state)
{
    static const struct {
        bool chat;
        const char *body;
        enum sl_err err;
        const char *param;
    } cases[] = {
        {0, "", SL_EPARSE, ""},
        {0, "[]", SL_EPARSE, ""},
        {0, "\"x\"", SL_EPARSE, ""},
        {0, "{\"prompt\":\"a\",\"prompt\":\"b\"}", SL_EPARSE, ""},
        {0, "{\"prompt\":\"\xff\"}", SL_EPARSE, ""},
        {0, "{\"prompt\":\"a\"} x", SL_EPARSE, ""},
        {0, "{}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":null}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":\"\"}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[[]]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[\"\"]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":5}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[-1]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[[-1]]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[1000]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[1,\"a\"]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[1.5]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[\"a\",\"\"]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[\"a\",[1]]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[[1],2]}", SL_EINVAL, "prompt"},
        {0, "{\"prompt\":[\"a\",\"b\"],\"n\":65}", SL_EINVAL, "prompt"},
        {0, C "\"model\":\"nope\"}", SL_ENOTFOUND, "model"},
        {0, C "\"model\":3}", SL_EINVAL, "model"},
        {0, C "\"temperature\":-0.1}", SL_EINVAL, "temperature"},
        {0, C "\"temperature\":\"hot\"}", SL_EINVAL, "temperature"},
        {0, C "\"temperature\":1e300}", SL_EINVAL, "temperature"},
        {0, C "\"top_p\":0}", SL_EINVAL, "top_p"},
        {0, C "\"top_p\":1.01}", SL_EINVAL, "top_p"},
        {0, C "\"top_k\":-2}", SL_EINVAL, "top_k"},
        {0, C "\"top_k\":1.5}", SL_EINVAL, "top_k"},
        {0, C "\"min_p\":2}", SL_EINVAL, "min_p"},
        {0, C "\"repetition_penalty\":0}", SL_EINVAL, "repetition_penalty"},
        {0, C "\"presence_penalty\":2.5}", SL_EINVAL, "presence_penalty"},
        {0, C "\"frequency_penalty\":-3}", SL_EINVAL, "frequency_penalty"},
        {0, C "\"seed\":\"x\"}", SL_EINVAL, "seed"},
        {0, C "\"max_tokens\":0}", SL_EINVAL, "max_tokens"},
        {0, C "\"max_tokens\":-1}", SL_EINVAL, "max_tokens"},
        {0, C "\"max_tokens\":\"5\"}", SL_EINVAL, "max_tokens"},
        {0, C "\"max_tokens\":true}", SL_EINVAL, "max_tokens"},
        {0, C "\"max_tokens\":4,\"min_tokens\":5}", SL_EINVAL, "min_tokens"},
        {0, C "\"stop\":5}", SL_EINVAL, "stop"},
        {0, C "\"stop\":[5]}", SL_EINVAL, "stop"},
        {0, C "\"stop\":\"\"}", SL_EINVAL, "stop"},
        {0,
         C "\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\","
           "\"f\",\"g\",\"h\"]}",
         SL_EINVAL, "stop"},
        {0, C "\"stop_token_ids\":[1000]}", SL_EINVAL, "stop_token_ids"},
        {0, C "\"stop_token_ids\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}", SL_EINVAL, "stop_token_ids"},
        {0, C "\"logit_bias\":{\"1000\":1}}", SL_EINVAL, "logit_bias"},
        {0, C "\"logit_bias\":{\"x\":1}}", SL_EINVAL, "logit_bias"},
        {0, C "\"logit_bias\":{\"5\":101}}", SL_EINVAL, "logit_bias"},
        {0, C "\"logit_bias\":{\"5\":\"a\"}}", SL_EINVAL, "logit_bias"},
        {0, C "\"logit_bias\":[1]}", SL_EINVAL, "logit_bias"},
        {0, C "\"logprobs\":21}", SL_EINVAL, "logprobs"},
        {0, C "\"logprobs\":21,\"stream\":true}", SL_EINVAL, "logprobs"},
        {0, C "\"logprobs\":-1}", SL_EINVAL, "logprobs"},
        {0, C "\"logprobs\":1,\"echo\":true}", SL_EUNSUPPORTED, "logprobs"},
        {0, C "\"prompt_logprobs\":-1}", SL_EUNSUPPORTED, "prompt_logprobs"},
        {0, C "\"prompt_logprobs\":0}", SL_EUNSUPPORTED, "prompt_logprobs"},
        {0, C "\"n\":129}", SL_EINVAL, "n"},
        {0, C "\"n\":2,\"best_of\":3}", SL_EUNSUPPORTED, "best_of"},
        {0, C "\"n\":0}", SL_EINVAL, "n"},
        {0, C "\"best_of\":2}", SL_EUNSUPPORTED, "best_of"},
        {0, C "\"suffix\":\"x\"}", SL_EUNSUPPORTED, "suffix"},
        {0, C "\"use_beam_search\":true}", SL_EUNSUPPORTED, "use_beam_search"},
        {0, C "\"stream\":\"yes\"}", SL_EINVAL, "stream"},
        {0, C "\"stream_options\":{}}", SL_EINVAL, "stream_options"},
        {0, C "\"stream_options\":{\"include_usage\":null}}", SL_EINVAL, "stream_options"},
        {0, C "\"stream\":false,\"stream_options\":{\"include_usage\":true}}", SL_EINVAL, "stream_options"},
        {0, C "\"stream\":true,\"stream_options\":{\"include_usage\":1}}", SL_EINVAL, "include_usage"},
        {0, C "\"cache_salt\":\"\"}", SL_EINVAL, "cache_salt"},
        {0, C "\"cache_salt\":7}", SL_EINVAL, "cache_salt"},
        {0, C "\"guided_json\":{\"a\":1}}", SL_EUNSUPPORTED, "guided_json"},
        {0, C "\"guided_json\":\"{\"}", SL_EINVAL, "guided_json"},
        {0, C "\"guided_json\":7}", SL_EINVAL, "guided_json"},
        {0, C "\"guided_choice\":\"a\"}", SL_EINVAL, "guided_choice"},
        {0, C "\"guided_choice\":[\"a\",\"\"]}", SL_EINVAL, "guided_choice"},
        {0, C "\"guided_choice\":[\"a\",1]}", SL_EINVAL, "guided_choice"},
        {0, C "\"guided_choice\":[\"a\"],\"min_tokens\":1}", SL_EINVAL, "min_tokens"},
        {0, C "\"guided_choice\":[\"a\"],\"guided_json\":{\"type\":\"null\"}}", SL_EINVAL, "guided_choice"},
        {0, C "\"structured_outputs\":{\"grammar\":\"a+\"}}", SL_EUNSUPPORTED, "structured_outputs"},
        {0, C "\"structured_outputs\":{\"regex\":\"a\\\\b\"}}", SL_EUNSUPPORTED, "structured_outputs"},
        {0, C "\"guided_regex\":\"(a\"}", SL_EINVAL, "guided_regex"},
        {0, C "\"guided_regex\":[\"a\"]}", SL_EINVAL, "guided_regex"},
        {0, C "\"guided_regex\":\"a\",\"guided_choice\":[\"a\"]}", SL_EINVAL, "guided_regex"},
        {0, C "\"structured_outputs\":[1]}", SL_EINVAL, "structured_outputs"},
        {0, C "\"structured_outputs\":{\"json\":{\"type\":\"null\"},\"choice\":[\"a\"]}}", SL_EINVAL,
         "structured_outputs"},
        {0, C "\"max_tokens\":2.5}", SL_EINVAL, "max_tokens"},
        {0, C "\"seed\":1e300}", SL_EINVAL, "seed"},
        {1, M "\"tools\":[],\"tool_choice\":\"required\"}", SL_EINVAL, "tool_choice"},
        {0, C "\"kv_transfer_params\":{\"a\":1}}", SL_EUNSUPPORTED, "kv_transfer_params"},
        {1, "{}", SL_EINVAL, "messages"},
        {1, "{\"messages\":null}", SL_EINVAL, "messages"},
        {1, "{\"messages\":\"hi\"}", SL_EINVAL, "messages"},
        {1, "{\"messages\":[]}", SL_EINVAL, "messages"},
        {1, M "\"top_logprobs\":2}", SL_EINVAL, "top_logprobs"},
        {1, M "\"logprobs\":true,\"top_logprobs\":21}", SL_EINVAL, "top_logprobs"},
        {1, M "\"logprobs\":5}", SL_EINVAL, "logprobs"},
        {1, M "\"echo\":true}", SL_EUNSUPPORTED, "echo"},
        {1, M "\"tools\":[{\"type\":\"function\"}]}", SL_EINVAL, "tools[0].function.name"},
        {1, M T "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}", SL_EINVAL,
         "tool_choice"},
        {1, M T "\"tool_choice\":{\"type\":\"function\"}}", SL_EINVAL, "tool_choice"},
        {1, M T "\"tool_choice\":{\"type\":\"allowed_tools\"}}", SL_EUNSUPPORTED, "tool_choice"},
        {1, M T "\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}}", SL_EINVAL,
         "tool_choice"},
        {1, M T "\"tool_choice\":\"required\",\"ignore_eos\":true}", SL_EINVAL, "ignore_eos"},
        {1, M T "\"parallel_tool_calls\":\"no\"}", SL_EINVAL, "parallel_tool_calls"},
        {1, M STRICT "\"response_format\":{\"type\":\"json_object\"}}", SL_EINVAL, "tools"},
        {1, M STRICT "\"ignore_eos\":true}", SL_EINVAL, "ignore_eos"},
        {1, M STRICT "\"min_tokens\":1}", SL_EINVAL, "min_tokens"},
        {1, M T "\"tool_choice\":\"perhaps\"}", SL_EINVAL, "tool_choice"},
        {0, C T "\"n\":1}", SL_EUNSUPPORTED, "tools"},
        {1, M "\"tool_choice\":\"auto\"}", SL_EINVAL, "tool_choice"},
        {1, M "\"response_format\":{\"type\":\"json_schema\"}}", SL_EINVAL, "response_format"},
        {1, M S("{\"uniqueItems\":true}") "}", SL_EUNSUPPORTED, "response_format"},
        {1, M S("3") "}", SL_EINVAL, "response_format"},
        {1, M S("{}") ",\"ignore_eos\":true}", SL_EINVAL, "ignore_eos"},
        {0, C S("{}") ",\"min_tokens\":1}", SL_EINVAL, "min_tokens"},
        {1, M "\"response_format\":{\"type\":\"sound\"}}", SL_EINVAL, "response_format"},
        {1, M "\"response_format\":{\"type\":123}}", SL_EINVAL, "response_format"},
        {1, M "\"modalities\":[\"audio\"]}", SL_EUNSUPPORTED, "modalities"},
        {1, M "\"continue_final_message\":true,\"add_generation_prompt\":true}", SL_EINVAL,
         "continue_final_message"},
        {1, M "\"max_completion_tokens\":0}", SL_EINVAL, "max_completion_tokens"},
        {1, M "\"chat_template\":\"x\"}", SL_EUNSUPPORTED, "chat_template"},
        {1, M "\"chat_template_kwargs\":[]}", SL_EINVAL, "chat_template_kwargs"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct parsed p;
        bool ok = parse(cases[i].chat, cases[i].body, &p);
        if (ok || p.fault.err != cases[i].err || strcmp(p.fault.param, cases[i].param) != 0 ||
            !p.fault.message[0])
            fail_msg("case %zu %s: ok=%d err=%s param=\"%s\" message=\"%s\"", i, cases[i].body, ok,
                     sl_err_name(p.fault.err), p.fault.param, p.fault.message);
        finish(&p);
    }
}

static void body_with_nothing_but_a_prompt_gets_the_defaults(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(false, "{\"prompt\":\"hi\"}", &p));
    const Sluice__Sampling *s = &p.req->sampling;
    assert_string_equal(p.req->model, "m");
    assert_int_equal(p.r.prompt_kind, SL_PROMPT_TEXT);
    assert_int_equal(p.r.prompts[0].text_len, 2);
    assert_true(s->temperature == 1 && s->top_p == 1 && s->top_k == 0 && s->min_p == 0 &&
                s->repetition_penalty == 1);
    assert_int_equal(s->max_tokens, 16);
    assert_int_equal(s->n_logprobs, -1);
    assert_int_equal(s->n_stop_ids, 2);
    assert_int_equal(s->stop_ids[0], 7);
    assert_false(s->ignore_eos);
    assert_true(p.req->skip_special && !p.req->stream && !p.req->echo && !p.req->include_stop);
    assert_true(p.r.add_special && !p.r.parse_special);
    finish(&p);
    assert_true(parse(true, M "\"n\":null}", &p));
    assert_int_equal(p.req->sampling.max_tokens, 128);
    assert_false(p.r.max_tokens_given);
    assert_true(p.r.add_generation_prompt && !p.r.add_special);
    finish(&p);
}

static void null_counts_as_absent(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(false,
                      C "\"model\":null,\"max_tokens\":null,\"temperature\":null,\"stop\":null,\"logprobs\":"
                        "null,\"seed\":null,\"n\":null,"
                        "\"stream_options\":null,\"logit_bias\":null,\"best_of\":null,\"suffix\":null,"
                        "\"prompt_logprobs\":null,"
                        "\"functions\":null,\"tools\":null}",
                      &p));
    assert_int_equal(p.req->sampling.max_tokens, 16);
    finish(&p);
}

static void every_parameter_arrives(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(
        false,
        C "\"model\":\"alias\",\"max_tokens\":20,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":40,\"min_p\":0."
          "1,\"seed\":-3,"
          "\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[5],\"min_tokens\":2,\"presence_penalty\":1,"
          "\"frequency_penalty\":-1,"
          "\"repetition_penalty\":1.1,\"logit_bias\":{\"5\":-100,\"6\":2.5},\"logprobs\":0,\"stream\":true,"
          "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},\"cache_salt\":\"s\","
          "\"priority\":-2,"
          "\"return_token_ids\":true,\"skip_special_tokens\":false,\"include_stop_str_in_output\":true,"
          "\"best_of\":1,"
          "\"truncate_prompt_tokens\":5,\"add_special_tokens\":false,\"request_id\":\"mine\","
          "\"return_tokens_as_token_ids\":true}",
        &p));
    const struct sl_gen_req *q = p.req;
    const Sluice__Sampling *s = &q->sampling;
    assert_string_equal(q->model, "alias");
    assert_true(s->max_tokens == 20 && s->top_k == 40 && s->min_tokens == 2 && s->seed == (uint64_t)-3);
    assert_true(s->temperature == 0.5f && s->top_p == 0.9f && s->min_p == 0.1f);
    assert_true(s->presence_penalty == 1 && s->frequency_penalty == -1 && s->repetition_penalty == 1.1f);
    assert_int_equal(q->n_stop, 2);
    assert_string_equal(q->stop[1], "bc");
    assert_int_equal(s->n_stop_ids, 3);
    assert_int_equal(s->stop_ids[2], 5);
    assert_int_equal(p.r.n_user_stop_ids, 1);
    assert_int_equal(s->n_bias, 2);
    assert_true(s->bias[0]->token == 5 && s->bias[0]->bias == -100 && s->bias[1]->token == 6 &&
                s->bias[1]->bias == 2.5f);
    assert_true(q->logprobs && s->n_logprobs == 0);
    assert_true(q->stream && q->include_usage && p.r.continuous_usage);
    assert_string_equal(q->cache_salt, "s");
    assert_int_equal(q->priority, -2);
    assert_true(q->return_token_ids && !q->skip_special && q->include_stop && p.r.tokens_as_ids &&
                !p.r.add_special);
    assert_int_equal(p.r.truncate, 5);
    assert_string_equal(p.r.request_id, "mine");
    assert_int_equal(p.r.n_unknown, 0);
    finish(&p);
}

static void ignore_eos_takes_back_the_models_ends_only(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(false, C "\"ignore_eos\":true}", &p));
    assert_true(p.req->sampling.ignore_eos && p.req->sampling.n_stop_ids == 0);
    finish(&p);
    assert_true(parse(false, C "\"ignore_eos\":true,\"stop_token_ids\":[5]}", &p));
    assert_false(p.req->sampling.ignore_eos);
    assert_int_equal(p.req->sampling.n_stop_ids, 1);
    assert_int_equal(p.req->sampling.stop_ids[0], 5);
    finish(&p);
}

static void prompt_takes_its_four_forms(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(false, "{\"prompt\":[\"hey\"]}", &p));
    assert_int_equal(p.r.prompts[0].text_len, 3);
    finish(&p);
    assert_true(parse(false, "{\"prompt\":[1,2,999]}", &p));
    assert_int_equal(p.r.prompt_kind, SL_PROMPT_TOKENS);
    assert_int_equal(p.r.prompts[0].n_tokens, 3);
    assert_int_equal(p.r.prompts[0].tokens[2], 999);
    finish(&p);
    assert_true(parse(false, "{\"prompt\":[[4,5]]}", &p));
    assert_int_equal(p.r.prompts[0].n_tokens, 2);
    finish(&p);
}

static void several_prompts_and_choices_are_counted(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(false, "{\"prompt\":[\"hey\",\"you\"],\"n\":64}", &p));
    assert_int_equal(p.r.n_prompts, 2);
    assert_int_equal(p.r.n, 64);
    assert_string_equal(p.r.prompts[1].text, "you");
    finish(&p);
    assert_true(parse(false, "{\"prompt\":[[1],[2,3]]}", &p));
    assert_int_equal(p.r.n_prompts, 2);
    assert_int_equal(p.r.prompts[1].n_tokens, 2);
    finish(&p);
    assert_true(parse(true, M "\"n\":3,\"best_of\":3}", &p));
    assert_int_equal(p.r.n_prompts, 1);
    assert_int_equal(p.r.n, 3);
    finish(&p);
}

static void schema_goes_to_the_nodes_as_text(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(true, M S("{ \"type\" : \"integer\" }") "}", &p));
    assert_string_equal(p.req->sampling.json_schema, "{\"type\":\"integer\"}");
    finish(&p);
    assert_true(parse(false, C "\"response_format\":{\"type\":\"json_object\"}}", &p));
    assert_string_equal(p.req->sampling.json_schema, "{\"type\":\"object\"}");
    finish(&p);
    assert_true(parse(true, M "\"response_format\":{\"type\":\"text\"}}", &p));
    assert_null(p.req->sampling.json_schema);
    finish(&p);
}

/* All ways of other servers to say the same. */
static void forms_of_other_servers_become_the_same_schema(void **state)
{
    static const struct {
        const char *member, *schema;
    } cases[] = {
        {"\"guided_json\":{\"type\":\"integer\"}}", "{\"type\":\"integer\"}"},
        {"\"guided_json\":\"{\\\"type\\\": \\\"integer\\\"}\"}", "{\"type\":\"integer\"}"},
        {"\"json_schema\":{\"type\":\"integer\"}}", "{\"type\":\"integer\"}"},
        {"\"structured_outputs\":{\"json\":{\"type\":\"integer\"},\"regex\":null}}",
         "{\"type\":\"integer\"}"},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"integer\"}}}",
         "{\"type\":\"integer\"}"},
        {"\"response_format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"integer\"}}}",
         "{\"type\":\"integer\"}"},
        {"\"structured_outputs\":{\"json_object\":true}}", "{\"type\":\"object\"}"},
        {"\"structured_outputs\":{\"choice\":[\"a\",\"b\"]}}", "{\"x-sluice-texts\":[\"a\",\"b\"]}"},
        {"\"structured_outputs\":{\"regex\":\"a+\"}}", "{\"x-sluice-regex\":\"a+\"}"},
        {"\"guided_regex\":\"a+\"}", "{\"x-sluice-regex\":\"a+\"}"},
        {"\"guided_choice\":[\"a\",\"b\"]}", "{\"x-sluice-texts\":[\"a\",\"b\"]}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[256];
        struct parsed p;
        snprintf(body, sizeof body, "{\"prompt\":\"hi\",%s", cases[i].member);
        if (!parse(false, body, &p))
            fail_msg("%s: %s", body, p.fault.message);
        assert_string_equal(p.req->sampling.json_schema, cases[i].schema);
        finish(&p);
    }
}

static void strict_tools_are_taken_where_they_may_be_called(void **state)
{
    static const struct {
        const char *body;
        bool tools, strict, must;
    } cases[] = {{M STRICT "\"n\":1}", true, true, false},
                 {M STRICT "\"tool_choice\":\"auto\"}", true, true, false},
                 {M STRICT "\"tool_choice\":\"required\"}", true, true, true},
                 {M STRICT "\"tool_choice\":\"none\",\"min_tokens\":1}", false, false, false},
                 {M T "\"tool_choice\":\"auto\",\"min_tokens\":1}", true, false, false}};
    struct parsed p;
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        if (!parse(true, cases[i].body, &p))
            fail_msg("%s: %s", cases[i].body, p.fault.message);
        if (!p.r.tools == cases[i].tools || p.r.strict != cases[i].strict || p.r.must_call != cases[i].must)
            fail_msg("%s", cases[i].body);
        finish(&p);
    }
}

static void max_completion_tokens_wins(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(true, M "\"max_tokens\":5,\"max_completion_tokens\":9}", &p));
    assert_int_equal(p.req->sampling.max_tokens, 9);
    assert_true(p.r.max_tokens_given);
    finish(&p);
}

static void whole_reals_and_empty_members_are_taken(void **state)
{
    (void)state;
    struct parsed p;
    assert_true(
        parse(true, M "\"model\":\"\",\"tools\":[],\"tool_choice\":\"auto\",\"max_tokens\":40.0}", &p));
    assert_int_equal(p.req->sampling.max_tokens, 40);
    assert_string_equal(p.req->model, "m");
    assert_null(p.r.tools);
    finish(&p);
}

static void echo_alone_may_ask_for_no_token(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(false, C "\"echo\":true,\"max_tokens\":0}", &p));
    assert_int_equal(p.req->sampling.max_tokens, 0);
    finish(&p);
}

static void unknown_and_harmless_members_pass(void **state)
{
    struct parsed p;
    (void)state;
    assert_true(parse(true,
                      M "\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,\"parallel_tool_calls\":"
                        "true,\"tool_choice\":\"none\","
                        "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],\"frobnicate\":1,"
                        "\"guided_json\":null}",
                      &p));
    assert_int_equal(p.r.n_unknown, 1);
    assert_string_equal(p.r.unknown[0], "frobnicate");
    finish(&p);
}

static void nesting_past_the_limit_is_refused(void **state)
{
    (void)state;
    for (int levels = SL_JSON_MAX_DEPTH; levels <= SL_JSON_MAX_DEPTH + 1; levels++) {
        struct sl_fault fault = {0};
        struct sl_buf b;
        sl_buf_init(&b, 4096);
        sl_buf_puts(&b, "{\"text\":\"[[[[\\\"[[[\",\"a\":"); /* brackets in a string do not count */
        for (int i = 1; i < levels; i++)
            sl_buf_putc(&b, '[');
        for (int i = 1; i < levels; i++)
            sl_buf_putc(&b, ']');
        sl_buf_putc(&b, '}');
        json_t *j = sl_json_body(b.data, b.len, &fault);
        assert_int_equal(fault.err, levels > SL_JSON_MAX_DEPTH ? SL_EPARSE : SL_OK);
        json_decref(j);
        sl_buf_fini(&b);
    }
}

static void body_that_would_take_too_much_memory_is_refused(void **state)
{
    static const struct {
        const char *item;
        size_t n;
        bool refused;
    } cases[] = {{"1", 1000000, false},
                 {"1", 3000000, true},
                 {"{}", 300000, false},
                 {"{}", 3000000, true},
                 {"\"\"", 3000000, true}};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_fault fault = {0};
        struct sl_buf body;
        sl_buf_init(&body, 1 << 24);
        sl_buf_append(&body, "{\"a\":[", 6);
        for (size_t k = 0; k < cases[i].n; k++)
            sl_buf_printf(&body, "%s%s", k ? "," : "", cases[i].item);
        sl_buf_append(&body, "]}", 2);
        json_t *j = sl_json_body(body.data, body.len, &fault);
        assert_int_equal(fault.err, cases[i].refused ? SL_ETOOBIG : SL_OK);
        assert_int_equal(j == NULL, cases[i].refused);
        json_decref(j);
        sl_buf_fini(&body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_body_is_refused_by_field_name),
        cmocka_unit_test(body_with_nothing_but_a_prompt_gets_the_defaults),
        cmocka_unit_test(null_counts_as_absent),
        cmocka_unit_test(every_parameter_arrives),
        cmocka_unit_test(ignore_eos_takes_back_the_models_ends_only),
        cmocka_unit_test(prompt_takes_its_four_forms),
        cmocka_unit_test(several_prompts_and_choices_are_counted),
        cmocka_unit_test(schema_goes_to_the_nodes_as_text),
        cmocka_unit_test(forms_of_other_servers_become_the_same_schema),
        cmocka_unit_test(strict_tools_are_taken_where_they_may_be_called),
        cmocka_unit_test(max_completion_tokens_wins),
        cmocka_unit_test(whole_reals_and_empty_members_are_taken),
        cmocka_unit_test(echo_alone_may_ask_for_no_token),
        cmocka_unit_test(unknown_and_harmless_members_pass),
        cmocka_unit_test(nesting_past_the_limit_is_refused),
        cmocka_unit_test(body_that_would_take_too_much_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
