/* tests/fuzz/router/fuzz_openai_body.c - any bytes as the body of a completion, a chat or a response: refused with a sentence, or a
 * prompt within the context. Input: a byte that chooses the API and what the model's template teaches, then the body. */
#include <stdint.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/utf8.h"
#include "router/api/openai_render.h"
#include "router/api/prompt.h"
#include "router/api/responses_parse.h"
#include "router/http/http_error.h"
#include "tests/unit/router/api/tiny_vocab.h"

#define CONTEXT     128
#define ARENA_BYTES (4u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The API's bit, two for the template, and one that makes a chat of a response. */
enum { IS_CHAT = 1, TEMPLATE_SHIFT = 1, IS_RESPONSE = 16 };

#define LOOP                                                                                                 \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}{{ "         \
    "c.function.name }}"                                                                                     \
    "{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools | "       \
    "tojson }}{% endif %}"

static const char *const sources[] = {
    tiny_template,
    LOOP "<tool_call>\\n{ developer",
    LOOP "[TOOL_CALLS]",
    LOOP "\"parameters\": dictionary{{ raise_exception('no') if messages | length > 3 }}",
};

static void open_model(struct sl_prompt_conf confs[SL_COUNTOF(sources)])
{
    struct sl_tokenizer *tokenizer = tiny_tokenizer();
    for (size_t i = 0; i < SL_COUNTOF(sources); i++) {
        struct sl_template *t;
        SL_ASSERT(sl_template_compile(sources[i], strlen(sources[i]), &t, NULL) == SL_OK);
        confs[i] = (struct sl_prompt_conf){.tokenizer = tokenizer,
                                           .template = t,
                                           .knows_developer = strstr(sources[i], "developer") != NULL,
                                           .tool_format = sl_tool_format_of(sources[i]),
                                           .context_length = CONTEXT};
    }
}

static void check_taken(const struct sl_oai_request *r)
{
    SL_ASSERT(r->n_prompts * r->n > 0 && r->n_prompts * r->n <= SL_MAX_CHOICES);
    SL_ASSERT(r->req->n_stop <= SL_MAX_STOP_STRINGS && r->req->sampling.n_stop_ids <= SL_MAX_STOP_TOKENS);
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        const struct sl_oai_prompt *p = &r->prompts[i];
        SL_ASSERT(p->n_tokens > 0 && p->n_tokens + p->max_tokens <= CONTEXT);
        for (uint32_t k = 0; k < p->n_tokens; k++)
            SL_ASSERT(p->tokens[k] >= 0 && p->tokens[k] < TINY_N_VOCAB);
    }
}

/* What is wrong can be told as JSON. */
static void check_fault(const struct sl_fault *fault)
{
    struct sl_buf out;
    SL_ASSERT(fault->message[0]);
    sl_buf_init(&out, SIZE_MAX);
    sl_http_error_json(&(struct sl_http_error){.err = fault->err,
                                               .status = fault->status,
                                               .message = fault->message,
                                               .param = fault->param[0] ? fault->param : NULL,
                                               .extra = fault->extra[0] ? fault->extra : NULL},
                       &out);
    json_t *told = json_loadb(out.data, out.len, 0, NULL);
    SL_ASSERT(told);
    json_decref(told);
    sl_buf_fini(&out);
}

/* A response's answer repeats what it was asked with; it and each event are JSON all the same. */
static void check_answer(const struct sl_tokenizer *tokenizer, const json_t *body, struct sl_oai_request *r)
{
    const struct sl_gen_event token = {.kind = SL_GEN_TOKEN, .token = 'a', .text = "a", .text_len = 1},
                              end = {.kind = SL_GEN_DONE,
                                     .token = -1,
                                     .stop_token = -1,
                                     .finish_reason = "stop"};
    struct sl_buf out;
    r->responses = body;
    struct sl_render *render = sl_render_new(r, tokenizer, 0);
    sl_buf_init(&out, SIZE_MAX);
    sl_render_event(render, 0, &token, &out);
    sl_render_event(render, 0, &end, &out);
    SL_ASSERT(sl_render_done(render) && !sl_render_failed(render));
    for (char *at = out.data, *line; (line = strsep(&at, "\n"));) {
        bool data = strncmp(line, "data: ", 6) == 0;
        json_t *told = data || line[0] == '{' ? json_loads(data ? line + 6 : line, 0, NULL) : NULL;
        SL_ASSERT(told || !line[0] || strncmp(line, "event: ", 7) == 0);
        json_decref(told);
    }
    sl_buf_fini(&out);
    sl_render_free(render);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"m"};
    static const uint32_t eog[] = {TINY_IM_END};
    static struct sl_prompt_conf confs[SL_COUNTOF(sources)];
    const struct sl_oai_model model = {names, 1, TINY_N_VOCAB, CONTEXT, eog, 1};
    if (!confs[0].tokenizer)
        open_model(confs);
    if (size == 0)
        return 0;
    struct sl_fault fault = {0};
    struct sl_oai_request r;
    struct sl_arena *arena = sl_arena_new(ARENA_BYTES);
    struct sl_gen_req *req = sl_arena_alloc(arena, sizeof *req);
    req->arena = arena;
    const struct sl_prompt_conf *conf = &confs[data[0] >> TEMPLATE_SHIFT & 3];
    bool response = data[0] & IS_RESPONSE;
    json_t *body = sl_json_body((const char *)data + 1, size - 1, &fault);
    json_t *asked = body && response ? sl_responses_to_chat(body, &fault) : json_incref(body);
    bool ok = asked && sl_oai_parse(&model, response || data[0] & IS_CHAT, asked, req, &r, &fault) &&
              sl_prompt_make(conf, &r, &fault);
    SL_ASSERT(ok == (fault.err == SL_OK));
    if (asked && response)
        sl_responses_name_fault(&fault);
    if (ok)
        check_taken(&r);
    else
        check_fault(&fault);
    if (ok && response)
        check_answer(conf->tokenizer, body, &r);
    json_decref(asked);
    json_decref(body);
    sl_arena_free(arena);
    return 0;
}
