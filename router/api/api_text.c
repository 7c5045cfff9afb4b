/* router/api/api_text.c - /tokenize, /detokenize, /apply-template: text in, text out, no node involved.
 *
 * Two dialects exist, vLLM's and llama.cpp's; both spellings of a request are taken, and the answer has the
 * members of both: tokenize    {"prompt","add_special_tokens":true,"return_token_strs"} or {"messages",...} |
 * {"content","add_special":false, "with_pieces"}                    ->
 * {"count","max_model_len","tokens","token_strs"} detokenize  {"tokens"}                        ->
 * {"prompt","content"} with_pieces replaces the ids by {"id","piece"}, the piece a list of bytes when it is
 * not text. */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/text/utf8.h"
#include "router/api/api_internal.h"
#include "router/api/tool_calls.h"

static json_t *text_json(const char *s, size_t n)
{
    struct sl_buf repaired;
    if (sl_utf8_valid_prefix(s, n) == n)
        return json_stringn_nocheck(s, n);
    sl_buf_init(&repaired, SIZE_MAX);
    for (size_t at = 0, used; at < n; at += used) {
        uint32_t cp;
        if (sl_utf8_next(s + at, n - at, &cp, &used) == SL_UTF8_VALID)
            sl_buf_append(&repaired, s + at, used);
        else
            sl_buf_puts(&repaired, SL_UTF8_REPLACEMENT_STR);
    }
    json_t *j = json_stringn_nocheck(repaired.data, repaired.len);
    sl_buf_fini(&repaired);
    return j;
}

/* {"id","piece"} as llama.cpp gives it. */
static json_t *piece_json(const struct sl_api *a, int32_t token)
{
    size_t n;
    const char *p = sl_tokenizer_piece(a->conf.tokenizer, (uint32_t)token, true, &n);
    json_t *piece;
    if (sl_utf8_valid_prefix(p, n) == n) {
        piece = json_stringn_nocheck(p, n);
    } else {
        piece = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(piece, json_integer((unsigned char)p[i]));
    }
    json_t *o = json_object();
    json_object_set_new(o, "id", json_integer(token));
    json_object_set_new(o, "piece", piece);
    return o;
}

static void answer_tokens(struct sl_api *a, struct sl_http_call *c, const struct sl_fields *f,
                          const int32_t *tokens, uint32_t n)
{
    bool pieces = sl_field_bool(f, "with_pieces", false),
         strings = sl_field_bool(f, "return_token_strs", false);
    json_t *answer = json_object(), *list = json_array(), *texts = strings ? json_array() : json_null();
    for (uint32_t i = 0; i < n; i++) {
        size_t len;
        const char *p = sl_tokenizer_piece(a->conf.tokenizer, (uint32_t)tokens[i], true, &len);
        json_array_append_new(list, pieces ? piece_json(a, tokens[i]) : json_integer(tokens[i]));
        if (strings)
            json_array_append_new(texts, text_json(p, len));
    }
    json_object_set_new(answer, "count", json_integer(n));
    json_object_set_new(answer, "max_model_len", json_integer(a->conf.context_length));
    json_object_set_new(answer, "tokens", list);
    json_object_set_new(answer, "token_strs", texts);
    sl_api_answer_json(c, answer);
}

static void read_chat(const struct sl_fields *f, struct sl_oai_request *r)
{
    memset(r, 0, sizeof *r);
    r->prompt_kind = SL_PROMPT_MESSAGES;
    r->messages = sl_field_array(f, "messages");
    r->template_kwargs = sl_field_object(f, "chat_template_kwargs");
    r->tools = sl_field_array(f, "tools");
    if (r->tools)
        sl_tools_check(r->tools, f->fault);
    r->continue_final_message = sl_field_bool(f, "continue_final_message", false);
    r->add_generation_prompt = sl_field_bool(f, "add_generation_prompt", !r->continue_final_message);
}

static bool render(struct sl_api *a, const struct sl_fields *f, struct sl_buf *text,
                   struct sl_spans *untrusted)
{
    struct sl_oai_request r;
    struct sl_prompt_conf prompt = a->prompt;
    prompt.now_s = sl_wall_s();
    read_chat(f, &r);
    if (!f->fault->err && json_array_size(r.messages) == 0)
        sl_fault_set(f->fault, SL_EINVAL, "messages", "messages is missing or empty.");
    return !f->fault->err && sl_prompt_render(&prompt, &r, text, untrusted, f->fault);
}

static bool tokenize(struct sl_api *a, const struct sl_fields *f, struct sl_arena *arena, int32_t **tokens,
                     uint32_t *n)
{
    struct sl_buf text;
    struct sl_spans untrusted = {0};
    struct sl_encode_in in = {.max_tokens = SL_VOCAB_MAX_TOKENS};
    bool ok = true, vllm = sl_field(f, "prompt") != NULL;
    sl_buf_init(&text, SL_PROMPT_MAX_TEXT_BYTES);
    if (sl_field(f, "messages")) {
        ok = render(a, f, &text, &untrusted);
        in.text = text.len ? text.data : "";
        in.len = text.len;
        in.flags =
            SL_TOK_PARSE_SPECIAL | (sl_field_bool(f, "add_special_tokens", false) ? SL_TOK_ADD_SPECIAL : 0);
        in.untrusted = untrusted.items;
        in.n_untrusted = untrusted.n;
    } else {
        const char *name = vllm ? "prompt" : "content";
        in.text = sl_field_string(f, name, NULL);
        if (!in.text)
            sl_fault_set(f->fault, SL_EINVAL, "prompt",
                         "Give the text as prompt (or content), or a chat as messages.");
        in.len = json_string_length(sl_field(f, name));
        if (vllm ? sl_field_bool(f, "add_special_tokens", true) : sl_field_bool(f, "add_special", false))
            in.flags |= SL_TOK_ADD_SPECIAL;
        if (sl_field_bool(f, "parse_special", false))
            in.flags |= SL_TOK_PARSE_SPECIAL;
    }
    ok = ok && !f->fault->err && sl_prompt_encode(&a->prompt, &in, arena, tokens, n, f->fault);
    sl_spans_fini(&untrusted);
    sl_buf_fini(&text);
    return ok;
}

void sl_api_tokenize(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    struct sl_fault fault = {0};
    json_t *body = sl_api_body(c);
    (void)arg;
    if (!body)
        return;
    const struct sl_fields f = {body, &fault};
    struct sl_arena *arena = sl_arena_new(SL_GEN_ARENA_BYTES);
    int32_t *tokens;
    uint32_t n;
    if (sl_oai_check_model(&a->model, sl_field_string(&f, "model", NULL), &fault) &&
        tokenize(a, &f, arena, &tokens, &n))
        answer_tokens(a, c, &f, tokens, n);
    if (fault.err)
        sl_api_answer_fault(c, &fault);
    sl_arena_free(arena);
    json_decref(body);
}

void sl_api_detokenize(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    struct sl_fault fault = {0};
    struct sl_buf text;
    json_t *body = sl_api_body(c);
    (void)arg;
    if (!body)
        return;
    const struct sl_fields f = {body, &fault};
    struct sl_arena *arena = sl_arena_new(SL_GEN_ARENA_BYTES);
    int32_t *tokens;
    uint32_t n;
    sl_buf_init(&text, SL_PROMPT_MAX_TEXT_BYTES);
    sl_oai_check_model(&a->model, sl_field_string(&f, "model", NULL), &fault);
    const json_t *list = sl_field_array(&f, "tokens");
    if (!list)
        sl_fault_set(&fault, SL_EINVAL, "tokens", "Give the token ids as tokens.");
    if (!fault.err && sl_oai_token_list(list, "tokens", a->model.n_vocab, arena, &tokens, &n, &fault)) {
        if (!sl_tokenizer_decode(a->conf.tokenizer, (const uint32_t *)tokens, n, true, &text))
            sl_fault_set(&fault, SL_ETOOBIG, "tokens", "The text of these tokens is too long.");
    }
    if (fault.err) {
        sl_api_answer_fault(c, &fault);
    } else {
        json_t *answer = json_object(), *s = text_json(text.len ? text.data : "", text.len);
        json_object_set(answer, "prompt", s);
        json_object_set_new(answer, "content", s);
        sl_api_answer_json(c, answer);
    }
    sl_buf_fini(&text);
    sl_arena_free(arena);
    json_decref(body);
}

void sl_api_apply_template(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    struct sl_fault fault = {0};
    struct sl_buf text;
    struct sl_spans untrusted = {0};
    json_t *body = sl_api_body(c);
    (void)arg;
    if (!body)
        return;
    const struct sl_fields f = {body, &fault};
    sl_buf_init(&text, SL_PROMPT_MAX_TEXT_BYTES);
    if (render(a, &f, &text, &untrusted)) {
        json_t *answer = json_object();
        json_object_set_new(answer, "prompt", text_json(text.len ? text.data : "", text.len));
        sl_api_answer_json(c, answer);
    } else {
        sl_api_answer_fault(c, &fault);
    }
    sl_spans_fini(&untrusted);
    sl_buf_fini(&text);
    json_decref(body);
}
