/* router/api/prompt.c - step 2 of the request path.
 *
 * What a user wrote never becomes a control token: a completion's text is encoded without recognising any
 * (unless the request says parse_special), a chat's text with the ranges that came from the request marked
 * untrusted. */
#include "router/api/prompt.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/api/chat_messages.h"
#include "router/api/tool_force.h"

/* Only whether there are more tokens than fit matters past the context; counting a little further makes the
 * message honest. */
#define COUNT_FACTOR 4

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static char *turned_round(const char *s, size_t n)
{
    char *out = sl_xalloc(n ? n : 1);
    for (size_t i = 0; i < n; i++)
        out[i] = s[n - 1 - i];
    return out;
}

/* Where what[0, n) stands last in text; SIZE_MAX when nowhere. A client chooses both, so it is the C library's search,
 * whose time is linear, over both turned round. */
static size_t last_place(const struct sl_buf *text, const char *what, size_t n)
{
    char *in = turned_round(text->data, text->len), *wanted = turned_round(what, n);
    const char *found = memmem(in, text->len, wanted, n);
    size_t at = found ? text->len - n - (size_t)(found - in) : SIZE_MAX;
    sl_free(in);
    sl_free(wanted);
    return at;
}

/* continue_final_message: the text ends with the last message's content, as transformers cuts it. */
static bool cut_after_last(const json_t *messages, struct sl_buf *text, struct sl_spans *untrusted,
                           struct sl_fault *fault)
{
    const json_t *content =
        json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");
    const char *s = json_is_string(content) ? json_string_value(content) : "";
    size_t n = json_string_length(content);
    while (n && blank(s[0]))
        s++, n--;
    while (n && blank(s[n - 1]))
        n--;
    size_t at = n ? last_place(text, s, n) : SIZE_MAX;
    if (at != SIZE_MAX) {
        text->len = at + n;
        text->data[text->len] = '\0';
        while (untrusted->n && untrusted->items[untrusted->n - 1].start >= text->len)
            untrusted->n--;
        if (untrusted->n && untrusted->items[untrusted->n - 1].end > text->len)
            untrusted->items[untrusted->n - 1].end = text->len;
        return true;
    }
    return sl_fault_set(
        fault, SL_EINVAL, "continue_final_message",
        "The last message has no content that the model's template shows, so it cannot be continued.");
}

bool sl_prompt_render(const struct sl_prompt_conf *conf, const struct sl_oai_request *r, struct sl_buf *text,
                      struct sl_spans *untrusted, struct sl_fault *fault)
{
    struct sl_why why = {0};
    if (!conf->template)
        return sl_fault_set(fault, SL_EUNSUPPORTED, "messages",
                            "The model has no chat template; use /v1/completions with a prompt of your own.");
    if (r->tools && !conf->tool_format)
        return sl_fault_set(fault, SL_EUNSUPPORTED, "tools",
                            "The model's chat template teaches no way of calling tools that is known here.");
    json_t *messages = sl_chat_messages(r->messages, conf->knows_developer, fault);
    if (!messages)
        return false;
    json_t *args = r->template_kwargs ? json_copy((json_t *)r->template_kwargs) : json_object();
    json_object_set(args, "messages", messages);
    json_object_set_new(args, "add_generation_prompt", json_boolean(r->add_generation_prompt));
    if (r->tools)
        json_object_set(args, "tools", (json_t *)r->tools);
    const struct sl_template_args in = {.request = args, .model = conf->template_model, .now_s = conf->now_s};
    enum sl_err err = sl_template_render(conf->template, &in, text, untrusted, &why);
    if (err == SL_ETOOBIG)
        sl_fault_set(fault, SL_EINVAL, "messages", "%s", why.text);
    else if (err)
        sl_fault_set(fault, err, "messages", "%s", why.text);
    else if (r->continue_final_message)
        cut_after_last(messages, text, untrusted, fault);
    json_decref(args);
    json_decref(messages);
    return fault->err == SL_OK;
}

static bool too_long(const struct sl_prompt_conf *conf, size_t n_tokens, bool more, uint32_t want,
                     struct sl_fault *fault)
{
    if (fault->err)
        return false;
    snprintf(fault->extra, sizeof fault->extra, "\"n_prompt_tokens\":%zu,\"n_ctx\":%u", n_tokens,
             conf->context_length);
    if (want)
        return sl_fault_set(
            fault, SL_EINVAL, "max_tokens",
            "The prompt has %zu tokens and %u are asked for in answer; the model's context is %u tokens.",
            n_tokens, want, conf->context_length);
    return sl_fault_set(fault, SL_EINVAL, "prompt",
                        "The prompt has %s%zu tokens; the model's context is %u tokens, the answer included.",
                        more ? "more than " : "", n_tokens, conf->context_length);
}

bool sl_prompt_encode(const struct sl_prompt_conf *conf, const struct sl_encode_in *in,
                      struct sl_arena *arena, int32_t **tokens, uint32_t *n, struct sl_fault *fault)
{
    struct sl_why why = {0};
    uint32_t *ids;
    size_t n_ids;
    enum sl_err err = sl_tokenizer_encode(conf->tokenizer, in, &ids, &n_ids, &why);
    if (err == SL_ETOOBIG)
        return too_long(conf, in->max_tokens, true, 0, fault);
    if (err)
        return sl_fault_set(fault, err, NULL, "%s", why.text);
    *tokens = sl_arena_alloc(arena, (n_ids ? n_ids : 1) * sizeof **tokens);
    if (!*tokens) {
        sl_free(ids);
        return sl_fault_set(fault, SL_ENOMEM, NULL, "No memory for the request.");
    }
    for (size_t i = 0; i < n_ids; i++)
        (*tokens)[i] = (int32_t)ids[i];
    *n = (uint32_t)n_ids;
    sl_free(ids);
    return true;
}

static bool make_tokens(const struct sl_prompt_conf *conf, const struct sl_oai_request *r,
                        struct sl_oai_prompt *p, struct sl_fault *fault)
{
    struct sl_arena *arena = r->req->arena;
    struct sl_encode_in in = {.max_tokens = r->truncate ? SL_VOCAB_MAX_TOKENS
                                                        : (size_t)conf->context_length * COUNT_FACTOR};
    unsigned special = r->add_special ? SL_TOK_ADD_SPECIAL : 0;
    if (r->prompt_kind == SL_PROMPT_TOKENS)
        return true;
    if (r->prompt_kind == SL_PROMPT_TEXT) {
        in.text = p->text;
        in.len = p->text_len;
        in.flags = special | (r->parse_special ? SL_TOK_PARSE_SPECIAL : 0);
        return sl_prompt_encode(conf, &in, arena, &p->tokens, &p->n_tokens, fault);
    }
    struct sl_buf text;
    struct sl_spans untrusted = {0};
    sl_buf_init(&text, SL_PROMPT_MAX_TEXT_BYTES);
    bool ok = sl_prompt_render(conf, r, &text, &untrusted, fault);
    if (ok) {
        in.text = text.len ? text.data : "";
        in.len = text.len;
        in.flags = special | SL_TOK_PARSE_SPECIAL;
        in.untrusted = untrusted.items;
        in.n_untrusted = untrusted.n;
        ok = sl_prompt_encode(conf, &in, arena, &p->tokens, &p->n_tokens, fault);
    }
    sl_spans_fini(&untrusted);
    sl_buf_fini(&text);
    return ok;
}

/* A call's begin where that is a control token; a vocabulary that lacks it gives several. */
static bool begin_of(const struct sl_prompt_conf *conf, const struct sl_oai_request *r, int32_t **tokens,
                     uint32_t *n, struct sl_fault *fault)
{
    const char *begin = r->tool_format->begin;
    const struct sl_encode_in in = {.text = begin,
                                    .len = strlen(begin),
                                    .flags = SL_TOK_PARSE_SPECIAL,
                                    .max_tokens = SL_TOOL_CALL_MAX_BYTES};
    return sl_prompt_encode(conf, &in, r->req->arena, tokens, n, fault);
}

/* The control token in front of a call that has to come: it stands for no text, so no text leads to it. */
static bool add_begin(const struct sl_prompt_conf *conf, const struct sl_oai_request *r,
                      struct sl_oai_prompt *p, struct sl_fault *fault)
{
    int32_t *more, *all;
    uint32_t n;
    if (!begin_of(conf, r, &more, &n, fault))
        return false;
    all = sl_arena_alloc(r->req->arena, ((size_t)p->n_tokens + n) * sizeof *all);
    if (!all)
        return sl_fault_set(fault, SL_ENOMEM, NULL, "No memory for the request.");
    memcpy(all, p->tokens, p->n_tokens * sizeof *all);
    memcpy(all + p->n_tokens, more, n * sizeof *all);
    p->tokens = all;
    p->n_tokens += n;
    return true;
}

static bool make_one(const struct sl_prompt_conf *conf, const struct sl_oai_request *r,
                     struct sl_oai_prompt *p, struct sl_fault *fault)
{
    const Sluice__Sampling *s = &r->req->sampling;
    p->max_tokens = s->max_tokens;
    if (!make_tokens(conf, r, p, fault))
        return false;
    if (r->truncate) {
        uint32_t keep = conf->context_length > s->max_tokens && r->max_tokens_given
                            ? conf->context_length - s->max_tokens
                            : conf->context_length - 1;
        if (r->truncate > 0 && r->truncate < keep)
            keep = (uint32_t)r->truncate;
        if (p->n_tokens > keep) {
            p->tokens += p->n_tokens - keep;
            p->n_tokens = keep;
        }
    }
    if (p->n_tokens == 0)
        return sl_fault_set(fault, SL_EINVAL, "prompt", "The prompt has no tokens.");
    if (r->must_call && r->tool_format->begin_is_control && !add_begin(conf, r, p, fault))
        return false;
    bool scores_only = r->max_tokens_given && s->max_tokens == 0;
    if (p->n_tokens > conf->context_length || (p->n_tokens == conf->context_length && !scores_only))
        return too_long(conf, p->n_tokens, false, 0, fault);
    uint32_t left = conf->context_length - p->n_tokens;
    if (r->max_tokens_given && s->max_tokens > left)
        return too_long(conf, p->n_tokens, false, s->max_tokens, fault);
    if (p->max_tokens > left)
        p->max_tokens = left;
    if (s->min_tokens > p->max_tokens)
        return sl_fault_set(fault, SL_EINVAL, "min_tokens",
                            "min_tokens is %u; the answer can have at most %u tokens here.", s->min_tokens,
                            p->max_tokens);
    return true;
}

static bool hold_calls(const struct sl_prompt_conf *conf, const struct sl_oai_request *r,
                       struct sl_fault *fault)
{
    int32_t *begin;
    uint32_t n = 0;
    if (r->tool_format->begin_is_control && !begin_of(conf, r, &begin, &n, fault))
        return false;
    return sl_tool_force(r, n == 1 ? begin[0] : -1, fault);
}

bool sl_prompt_make(const struct sl_prompt_conf *conf, struct sl_oai_request *r, struct sl_fault *fault)
{
    if (r->tools && conf->tool_format) {
        r->tool_format = conf->tool_format;
        r->req->skip_special &= !r->tool_format->begin_is_control;
        if ((r->must_call || r->strict) && !hold_calls(conf, r, fault))
            return false;
    }
    for (uint32_t i = 0; i < r->n_prompts; i++)
        if (!make_one(conf, r, &r->prompts[i], fault))
            return false;
    return true;
}
