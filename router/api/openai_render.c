/* router/api/openai_render.c - step 11 of the request path. JSON is written by hand: a frame per token has to
 * be cheap, and the shapes are few. Rules that broke real clients when they were not kept (finish_reason null
 * until the end, role once, empty last delta, "choices": [] only when usage was asked for) are in
 * openai_render.h and in its golden test. */
#include "router/api/openai_render.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/tokenizer.h"
#include "router/api/render_parts.h"
#include "router/api/responses_render.h"
#include "router/http/http_error.h"
#include "router/http/sse.h"

#define PARTS(c)                                                                                             \
    {                                                                                                        \
        &(c)->text, &(c)->id_list, &(c)->digest_list, &(c)->content, &(c)->tokens, &(c)->token_logprobs,     \
            &(c)->top_logprobs, &(c)->offsets, &(c)->done, &(c)->said                                        \
    }

/* {"id":...,"model":"..." */
static char *head_of(const struct sl_gen_req *req, int64_t created)
{
    struct sl_buf head;
    sl_buf_init(&head, SIZE_MAX);
    sl_buf_puts(&head, "{\"id\":");
    sl_render_put_string(&head, req->id, strlen(req->id));
    sl_buf_printf(&head, ",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
                  !req->chat    ? "text_completion"
                  : req->stream ? "chat.completion.chunk"
                                : "chat.completion",
                  created);
    sl_render_put_string(&head, req->model, strlen(req->model));
    return sl_buf_steal(&head);
}

struct sl_render *sl_render_new(const struct sl_oai_request *q, const struct sl_tokenizer *tok,
                                int64_t created)
{
    const struct sl_gen_req *req = q->req;
    struct sl_render *r = sl_xcalloc(1, sizeof *r);
    memcpy(r->id, req->id, sizeof r->id);
    r->responses = q->responses != NULL;
    r->chat = req->chat;
    r->stream = req->stream;
    r->include_usage = req->include_usage;
    r->continuous_usage = q->continuous_usage;
    r->echo = req->echo;
    r->logprobs = req->logprobs;
    r->digests = req->want_digest;
    r->ids = req->return_token_ids;
    r->tokens_as_ids = q->tokens_as_ids;
    r->skip_special = req->skip_special;
    r->tok = tok;
    r->n_prompts = q->n_prompts;
    r->n = q->n;
    r->n_open = r->n_prompts * r->n;
    r->prompts = sl_xcalloc(r->n_prompts, sizeof *r->prompts);
    r->choices = sl_xcalloc(r->n_open, sizeof *r->choices);
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        const struct sl_oai_prompt *p = &q->prompts[i];
        r->prompts[i].n = p->n_tokens;
        if (r->echo || r->ids)
            r->prompts[i].tokens = sl_xmemdup(p->tokens, p->n_tokens * sizeof *p->tokens);
    }
    for (uint32_t i = 0; i < r->n_open; i++) {
        struct sl_render_choice *c = &r->choices[i];
        struct sl_buf *const parts[] = PARTS(c);
        c->index = i;
        c->message_at = SIZE_MAX;
        c->prompt = &r->prompts[i / r->n];
        if (q->tools) {
            c->tools = sl_tool_filter_new(q->tool_format, q->one_call);
            c->calls = json_array();
        }
        for (size_t k = 0; k < SL_COUNTOF(parts); k++)
            sl_buf_init(parts[k], SL_RENDER_MAX_BYTES);
        if (q->must_call && q->tool_format->begin_is_control) /* it stands in the prompt */
            sl_tool_filter_put(c->tools, q->tool_format->begin, strlen(q->tool_format->begin), &c->said,
                               c->calls);
    }
    r->n_user_stop_ids = q->n_user_stop_ids;
    memcpy(r->user_stop_ids, q->user_stop_ids, q->n_user_stop_ids * sizeof *q->user_stop_ids);
    r->head = q->responses ? sl_responses_head(q, created) : head_of(req, created);
    return r;
}

void sl_render_free(struct sl_render *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_prompts * r->n; i++) {
        struct sl_buf *const parts[] = PARTS(&r->choices[i]);
        for (size_t k = 0; k < SL_COUNTOF(parts); k++)
            sl_buf_fini(parts[k]);
        sl_tool_filter_free(r->choices[i].tools);
        json_decref(r->choices[i].calls);
    }
    for (uint32_t i = 0; i < r->n_prompts; i++)
        sl_free(r->prompts[i].tokens);
    sl_free(r->choices);
    sl_free(r->prompts);
    sl_free(r->head);
    sl_free(r);
}

bool sl_render_failed(const struct sl_render *r)
{
    for (uint32_t i = 0; i < r->n_prompts * r->n; i++) {
        const struct sl_render_choice *c = &r->choices[i];
        const struct sl_buf *const parts[] = PARTS(c);
        for (size_t k = 0; k < SL_COUNTOF(parts); k++)
            if (parts[k]->failed)
                return true;
    }
    return false;
}

bool sl_render_streams(const struct sl_render *r)
{
    return r->stream;
}

bool sl_render_begun(const struct sl_render *r)
{
    for (uint32_t i = 0; i < r->n_prompts * r->n; i++)
        if (r->choices[i].n_tokens)
            return true;
    return false;
}

bool sl_render_done(const struct sl_render *r)
{
    return r->n_open == 0;
}

/* ---- pieces ---- */

static void put_usage(struct sl_buf *out, const struct sl_gen_usage *u, bool details)
{
    sl_buf_printf(out, "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u", u->prompt_tokens,
                  u->completion_tokens, u->prompt_tokens + u->completion_tokens);
    if (details)
        sl_buf_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%u}", u->cached_tokens);
    sl_buf_putc(out, '}');
}

static void put_echo(const struct sl_render *r, const struct sl_render_prompt *p, struct sl_buf *out)
{
    struct sl_buf text;
    uint32_t *ids = sl_xalloc((p->n + 1) * sizeof *ids);
    for (uint32_t i = 0; i < p->n; i++)
        ids[i] = (uint32_t)p->tokens[i];
    sl_buf_init(&text, SL_RENDER_MAX_BYTES);
    sl_tokenizer_decode(r->tok, ids, p->n, !r->skip_special, &text);
    sl_buf_json_escape(out, text.len ? text.data : "", text.len);
    sl_buf_fini(&text);
    sl_free(ids);
}

/* The stop string, or a stop token the client named; the model's own end is null. */
static void put_stop_reason(const struct sl_render *r, struct sl_buf *out, const struct sl_gen_event *ev)
{
    sl_buf_puts(out, ",\"stop_reason\":");
    if (ev->stop_reason) {
        sl_render_put_string(out, ev->stop_reason, strlen(ev->stop_reason));
        return;
    }
    for (uint32_t i = 0; i < r->n_user_stop_ids; i++)
        if (r->user_stop_ids[i] == ev->stop_token && ev->stop_token >= 0) {
            sl_buf_printf(out, "%d", ev->stop_token);
            return;
        }
    sl_buf_puts(out, "null");
}

static void put_calls(const struct sl_render *r, const struct sl_render_choice *c, size_t from,
                      bool with_index, struct sl_buf *out)
{
    sl_buf_puts(out, "\"tool_calls\":[");
    for (size_t k = from; k < json_array_size(c->calls); k++) {
        const json_t *call = json_array_get(c->calls, k);
        const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
        char id[SL_TOOL_CALL_ID_CHARS + 1];
        sl_tool_call_id(r->id, c->index, (uint32_t)k, id);
        sl_buf_puts(out, k > from ? ",{" : "{");
        if (with_index)
            sl_buf_printf(out, "\"index\":%zu,", k);
        sl_buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
        sl_render_put_string(out, json_string_value(name), json_string_length(name));
        sl_buf_puts(out, ",\"arguments\":");
        sl_render_put_string(out, json_string_value(arguments), json_string_length(arguments));
        sl_buf_puts(out, "}}");
    }
    sl_buf_putc(out, ']');
}

static bool has_new_calls(const struct sl_render_choice *c)
{
    return json_array_size(c->calls) > c->n_calls_shown;
}

static const char *finish_reason(const struct sl_render_choice *c, const struct sl_gen_event *ev)
{
    return json_array_size(c->calls) && strcmp(ev->finish_reason, "stop") == 0 ? "tool_calls"
                                                                               : ev->finish_reason;
}

/* ---- streams ---- */

static void begin_frame(const struct sl_render *r, struct sl_buf *out)
{
    sl_sse_begin(out);
    sl_buf_puts(out, r->head);
}

static void end_frame(const struct sl_render *r, const struct sl_render_choice *c, struct sl_buf *out)
{
    if (r->continuous_usage) {
        sl_buf_puts(out, ",\"usage\":");
        put_usage(out,
                  &(struct sl_gen_usage){.prompt_tokens = c->prompt->n, .completion_tokens = c->n_tokens},
                  false);
    } else if (r->include_usage) {
        sl_buf_puts(out, ",\"usage\":null");
    }
    sl_buf_putc(out, '}');
    sl_sse_end(out);
}

/* The frame before the first token's: a chat's role; a completion's echo. */
static void put_first_frame(const struct sl_render *r, struct sl_render_choice *c, struct sl_buf *out)
{
    c->begun = true;
    if (!r->chat && !r->echo)
        return;
    begin_frame(r, out);
    if (r->chat && r->ids)
        sl_render_put_prompt_ids(c->prompt, out);
    sl_buf_printf(out, ",\"choices\":[{\"index\":%u,", c->index);
    if (r->chat) {
        sl_buf_puts(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    } else {
        sl_buf_puts(out, "\"text\":\"");
        put_echo(r, c->prompt, out);
        sl_buf_putc(out, '"');
    }
    sl_buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
    if (r->ids)
        sl_buf_puts(out, ",\"token_ids\":[]");
    sl_buf_puts(out, "}]");
    end_frame(r, c, out);
}

static void put_token_frame(const struct sl_render *r, struct sl_render_choice *c,
                            const struct sl_gen_event *ev, struct sl_buf *out)
{
    const Sluice__TokenEvent *t = ev->token >= 0 ? ev->raw : NULL;
    begin_frame(r, out);
    sl_buf_printf(out, ",\"choices\":[{\"index\":%u,%s", c->index,
                  r->chat ? "\"delta\":{\"content\":" : "\"text\":");
    sl_render_put_string(out, ev->text ? ev->text : "", ev->text_len);
    if (has_new_calls(c)) {
        sl_buf_putc(out, ',');
        put_calls(r, c, c->n_calls_shown, true, out);
        c->n_calls_shown = json_array_size(c->calls);
    }
    sl_buf_puts(out, r->chat ? "},\"logprobs\":" : ",\"logprobs\":");
    if (t && r->logprobs) {
        sl_render_clear_logprobs(c);
        sl_render_collect_logprobs(r, c, t);
        sl_render_put_logprobs(r, c, out);
    } else {
        sl_buf_puts(out, "null");
    }
    sl_buf_puts(out, ",\"finish_reason\":null");
    if (r->ids) {
        sl_buf_puts(out, ",\"token_ids\":");
        sl_render_put_id_list(out, &ev->token, ev->token >= 0 ? 1 : 0);
        if (!r->chat && c->n_tokens == 1 && ev->token >= 0)
            sl_render_put_prompt_ids(c->prompt, out);
    }
    sl_buf_puts(out, "}]");
    if (r->digests && t && t->has_logits_digest)
        sl_buf_printf(out, ",\"sluice\":{\"digest\":\"%016" PRIx64 "\"}", t->logits_digest);
    end_frame(r, c, out);
}

static void put_finish_frame(const struct sl_render *r, const struct sl_render_choice *c,
                             const struct sl_gen_event *ev, struct sl_buf *out)
{
    begin_frame(r, out);
    sl_buf_printf(out, ",\"choices\":[{\"index\":%u,%s,\"logprobs\":null,\"finish_reason\":\"%s\"", c->index,
                  r->chat ? "\"delta\":{}" : "\"text\":\"\"", finish_reason(c, ev));
    put_stop_reason(r, out, ev);
    if (r->ids)
        sl_buf_puts(out, ",\"token_ids\":[]");
    sl_buf_puts(out, "}]");
    end_frame(r, c, out);
}

static void put_end(const struct sl_render *r, struct sl_buf *out)
{
    if (r->include_usage) {
        begin_frame(r, out);
        sl_buf_puts(out, ",\"choices\":[],\"usage\":");
        put_usage(out, &r->usage, true);
        sl_buf_putc(out, '}');
        sl_sse_end(out);
    }
    sl_sse_done(out);
}

static void stream_event(const struct sl_render *r, struct sl_render_choice *c, const struct sl_gen_event *ev,
                         struct sl_buf *out)
{
    if (!c->begun)
        put_first_frame(r, c, out);
    if (ev->kind == SL_GEN_TOKEN && (ev->token >= 0 || ev->text_len || has_new_calls(c)))
        put_token_frame(r, c, ev, out);
    if (ev->kind == SL_GEN_DONE)
        put_finish_frame(r, c, ev, out);
    if (sl_render_done(r))
        put_end(r, out);
}

/* ---- whole answers ---- */

static void put_choice(const struct sl_render *r, const struct sl_render_choice *c,
                       const struct sl_gen_event *ev, struct sl_buf *out)
{
    sl_buf_printf(out, "{\"index\":%u,", c->index);
    bool calls = json_array_size(c->calls) > 0;
    sl_buf_puts(out, r->chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    if (calls && !c->text.len) {
        sl_buf_puts(out, "null");
    } else {
        sl_buf_putc(out, '"');
        if (r->echo)
            put_echo(r, c->prompt, out);
        sl_buf_json_escape(out, c->text.len ? c->text.data : "", c->text.len);
        sl_buf_putc(out, '"');
    }
    if (calls) {
        sl_buf_putc(out, ',');
        put_calls(r, c, 0, false, out);
    }
    sl_buf_puts(out, r->chat ? "},\"logprobs\":" : ",\"logprobs\":");
    sl_render_put_logprobs(r, c, out);
    sl_buf_printf(out, ",\"finish_reason\":\"%s\"", finish_reason(c, ev));
    put_stop_reason(r, out, ev);
    if (r->ids) {
        sl_buf_puts(out, ",\"token_ids\":[");
        sl_buf_append(out, c->id_list.data, c->id_list.len);
        sl_buf_putc(out, ']');
        if (!r->chat)
            sl_render_put_prompt_ids(c->prompt, out);
    }
    sl_buf_putc(out, '}');
}

static void put_body(const struct sl_render *r, struct sl_buf *out)
{
    uint32_t n_choices = r->n_prompts * r->n;
    sl_buf_puts(out, r->head);
    if (r->chat && r->ids)
        sl_render_put_prompt_ids(r->prompts, out);
    sl_buf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < n_choices; i++) {
        if (i)
            sl_buf_putc(out, ',');
        sl_buf_append(out, r->choices[i].done.data, r->choices[i].done.len);
    }
    sl_buf_puts(out, "],\"usage\":");
    put_usage(out, &r->usage, true);
    sl_buf_puts(out, ",\"system_fingerprint\":\"sluice-" SLUICE_VERSION "\"");
    if (r->digests) {
        bool more = false;
        sl_buf_puts(out, ",\"sluice\":{\"digests\":[");
        for (uint32_t i = 0; i < n_choices; i++) {
            const struct sl_buf *list = &r->choices[i].digest_list;
            if (more && list->len)
                sl_buf_putc(out, ',');
            sl_buf_append(out, list->data, list->len);
            more |= list->len > 0;
        }
        sl_buf_puts(out, "]}");
    }
    sl_buf_putc(out, '}');
}

static void collect_event(const struct sl_render *r, struct sl_render_choice *c,
                          const struct sl_gen_event *ev, struct sl_buf *out)
{
    if (ev->kind == SL_GEN_TOKEN)
        sl_render_collect_token(r, c, ev);
    if (ev->kind == SL_GEN_DONE)
        put_choice(r, c, ev, &c->done);
    if (sl_render_done(r))
        put_body(r, out);
}

/* A prompt counts once, whatever n. */
static void add_usage(struct sl_render *r, const struct sl_render_choice *c, const struct sl_gen_usage *u)
{
    if (c->index % r->n == 0) {
        r->usage.prompt_tokens += u->prompt_tokens;
        r->usage.cached_tokens += u->cached_tokens;
    }
    r->usage.completion_tokens += u->completion_tokens;
}

static void show_event(struct sl_render *r, struct sl_render_choice *c, const struct sl_gen_event *ev,
                       struct sl_buf *out)
{
    if (r->responses)
        sl_responses_event(r, c, ev, out);
    else if (r->stream)
        stream_event(r, c, ev, out);
    else
        collect_event(r, c, ev, out);
}

/* The event's text without the calls in it, which c->calls learns. */
static void show_without_calls(struct sl_render *r, struct sl_render_choice *c, const struct sl_gen_event *ev,
                               struct sl_buf *out)
{
    struct sl_gen_event shown = *ev;
    bool ends = ev->kind == SL_GEN_DONE;
    sl_buf_clear(&c->said);
    if (ends)
        sl_tool_filter_end(c->tools, &c->said, c->calls);
    else
        sl_tool_filter_put(c->tools, ev->text, ev->text_len, &c->said, c->calls);
    if (ends)
        shown = (struct sl_gen_event){.kind = SL_GEN_TOKEN, .token = -1};
    shown.text = c->said.data;
    shown.text_len = c->said.len;
    if (!ends || c->said.len || has_new_calls(c))
        show_event(r, c, &shown, out);
}

void sl_render_event(struct sl_render *r, uint32_t choice, const struct sl_gen_event *ev, struct sl_buf *out)
{
    struct sl_render_choice *c = &r->choices[choice];
    if (ev->kind == SL_GEN_TOKEN && ev->token >= 0)
        c->n_tokens++;
    if (c->tools)
        show_without_calls(r, c, ev, out);
    if (ev->kind == SL_GEN_DONE) {
        add_usage(r, c, &ev->usage);
        r->n_open--;
    }
    if (!c->tools || ev->kind == SL_GEN_DONE)
        show_event(r, c, ev, out);
}

void sl_render_error(struct sl_render *r, const struct sl_http_error *e, struct sl_buf *out)
{
    if (r->responses) {
        sl_responses_error(r, e, out);
        return;
    }
    sl_sse_begin(out);
    sl_http_error_json(e, out);
    sl_sse_end(out);
    sl_sse_done(out);
}
