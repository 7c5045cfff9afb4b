/* router/api/responses_render.c - part of step 11. The answer's text is one message with one part; each call is an item of its own.
 * Items stand in the order in which they began, so the message may stand behind calls, and more text for it may come behind
 * further ones. The items of a stream are those of the whole answer.
 *
 * What an event's end repeats (the text four times) is what OpenAI's clients read; logprobs, which are a hundred times longer, come
 * with the deltas of a stream only. */
#include "router/api/responses_render.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/api/responses_parse.h"
#include "router/http/http_error.h"
#include "router/http/sse.h"

#define ID_PREFIX "resp_" /* of the answer, by gen_call.c */

char *sl_responses_head(const struct sl_oai_request *q, int64_t created)
{
    struct sl_buf head;
    sl_buf_init(&head, SIZE_MAX); /* of a body that was bounded */
    json_t *echo = sl_responses_echo(q->responses);
    json_t *j = json_pack("{s:s, s:s, s:I, s:s}", "id", q->req->id, "object", "response", "created_at",
                          (json_int_t)created, "model", q->req->model);
    json_object_update(j, echo);
    json_decref(echo);
    sl_json_write(j, JSON_COMPACT | JSON_REAL_PRECISION(15), &head);
    json_decref(j);
    head.data[head.len - 1] = '\0'; /* its last brace: more members follow */
    return sl_buf_steal(&head);
}

/* ---- items ---- */

static bool has_message(const struct sl_render_choice *c)
{
    return c->message_at != SIZE_MAX;
}

/* Where call k stands in the output. */
static size_t place_of_call(const struct sl_render_choice *c, size_t k)
{
    return k < c->message_at ? k : k + 1;
}

static void put_message_id(const struct sl_render *r, struct sl_buf *out)
{
    sl_buf_printf(out, "\"msg_%s\"", r->id + (r->id[0] ? strlen(ID_PREFIX) : 0));
}

static void put_part(const struct sl_buf *text, const struct sl_buf *logprobs, struct sl_buf *out)
{
    sl_buf_puts(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
    sl_buf_append(out, logprobs->data, logprobs->len);
    sl_buf_puts(out, "],\"text\":");
    sl_render_put_string(out, text->len ? text->data : "", text->len);
    sl_buf_putc(out, '}');
}

/* Without its part while it has only begun. */
static void put_message(const struct sl_render *r, const struct sl_render_choice *c, const char *status,
                        bool begun, struct sl_buf *out)
{
    sl_buf_puts(out, "{\"type\":\"message\",\"id\":");
    put_message_id(r, out);
    sl_buf_printf(out, ",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[", status);
    if (!begun)
        put_part(&c->text, &c->content, out);
    sl_buf_puts(out, "]}");
}

/* The id of a call is the chat's, which chat templates take back. */
static void put_call(const struct sl_render *r, const struct sl_render_choice *c, size_t k, bool begun,
                     struct sl_buf *out)
{
    const json_t *call = json_array_get(c->calls, k);
    const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
    char id[SL_TOOL_CALL_ID_CHARS + 1];
    sl_tool_call_id(r->id, c->index, (uint32_t)k, id);
    sl_buf_printf(
        out,
        "{\"type\":\"function_call\",\"id\":\"fc_%s\",\"call_id\":\"%s\",\"status\":\"%s\",\"name\":", id, id,
        begun ? "in_progress" : "completed");
    sl_render_put_string(out, json_string_value(name), json_string_length(name));
    sl_buf_puts(out, ",\"arguments\":");
    sl_render_put_string(out, begun ? "" : json_string_value(arguments),
                         begun ? 0 : json_string_length(arguments));
    sl_buf_putc(out, '}');
}

static void put_items(const struct sl_render *r, const struct sl_render_choice *c, const char *status,
                      struct sl_buf *out)
{
    size_t n = c->n_calls_shown + has_message(c);
    for (size_t i = 0; i < n; i++) {
        if (i)
            sl_buf_putc(out, ',');
        if (i == c->message_at)
            put_message(r, c, status, false, out);
        else
            put_call(r, c, i > c->message_at ? i - 1 : i, false, out);
    }
}

/* ---- the answer ---- */

static void put_usage(struct sl_buf *out, const struct sl_gen_usage *u)
{
    sl_buf_printf(
        out,
        "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,\"cache_write_tokens\":0},"
        "\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%u}",
        u->prompt_tokens, u->cached_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens);
}

/* Our extensions: token ids, digests. */
static void put_extras(const struct sl_render *r, const struct sl_render_choice *c, struct sl_buf *out)
{
    if (r->ids) {
        sl_render_put_prompt_ids(c->prompt, out);
        sl_buf_puts(out, ",\"token_ids\":[");
        sl_buf_append(out, c->id_list.data, c->id_list.len);
        sl_buf_putc(out, ']');
    }
    if (r->digests) {
        sl_buf_puts(out, ",\"sluice\":{\"digests\":[");
        sl_buf_append(out, c->digest_list.data, c->digest_list.len);
        sl_buf_puts(out, "]}");
    }
}

enum state { IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED };
static const char *const state_words[] = {"in_progress", "completed", "incomplete", "failed"};

/* failure: why it is FAILED. */
static void put_response(const struct sl_render *r, const struct sl_render_choice *c, enum state state,
                         const char *failure, struct sl_buf *out)
{
    sl_buf_puts(out, r->head);
    sl_buf_printf(out, ",\"status\":\"%s\",\"incomplete_details\":%s,\"error\":", state_words[state],
                  state == INCOMPLETE ? "{\"reason\":\"max_output_tokens\"}" : "null");
    if (state == FAILED) {
        sl_buf_puts(out, "{\"code\":\"server_error\",\"message\":");
        sl_render_put_string(out, failure, strlen(failure));
        sl_buf_putc(out, '}');
    } else {
        sl_buf_puts(out, "null");
    }
    sl_buf_puts(out, ",\"output\":[");
    put_items(r, c, state == COMPLETED ? "completed" : "incomplete", out);
    sl_buf_puts(out, "],\"usage\":");
    if (state == COMPLETED || state == INCOMPLETE) {
        put_usage(out, &r->usage);
        put_extras(r, c, out);
    } else {
        sl_buf_puts(out, "null");
    }
    sl_buf_putc(out, '}');
}

/* ---- events ---- */

static void begin_event(struct sl_render *r, const char *type, struct sl_buf *out)
{
    sl_sse_begin_event(out, type);
    sl_buf_printf(out, "{\"type\":\"%s\",\"sequence_number\":%" PRIu64, type, r->n_events++);
}

static void end_event(struct sl_buf *out)
{
    sl_buf_putc(out, '}');
    sl_sse_end(out);
}

static void send_response(struct sl_render *r, const struct sl_render_choice *c, const char *type,
                          enum state state, const char *failure, struct sl_buf *out)
{
    begin_event(r, type, out);
    sl_buf_puts(out, ",\"response\":");
    put_response(r, c, state, failure, out);
    end_event(out);
}

static void begin_item_event(struct sl_render *r, const char *type, size_t place, struct sl_buf *out)
{
    begin_event(r, type, out);
    sl_buf_printf(out, ",\"output_index\":%zu", place);
}

/* An event of the message's part. */
static void begin_part_event(struct sl_render *r, const struct sl_render_choice *c, const char *type,
                             struct sl_buf *out)
{
    begin_item_event(r, type, c->message_at, out);
    sl_buf_puts(out, ",\"content_index\":0,\"item_id\":");
    put_message_id(r, out);
}

static void send_message(struct sl_render *r, const struct sl_render_choice *c, const char *type,
                         const char *status, struct sl_buf *out)
{
    begin_item_event(r, type, c->message_at, out);
    sl_buf_puts(out, ",\"item\":");
    put_message(r, c, status, strcmp(status, "in_progress") == 0, out);
    end_event(out);
}

static void send_part(struct sl_render *r, const struct sl_render_choice *c, const char *type,
                      const struct sl_buf *text, struct sl_buf *out)
{
    begin_part_event(r, c, type, out);
    sl_buf_puts(out, ",\"part\":");
    put_part(text, &(struct sl_buf){0}, out);
    end_event(out);
}

/* The logprobs that came since the last one go with it. */
static void send_delta(struct sl_render *r, struct sl_render_choice *c, const char *text, size_t n,
                       struct sl_buf *out)
{
    begin_part_event(r, c, "response.output_text.delta", out);
    sl_buf_puts(out, ",\"logprobs\":[");
    sl_buf_append(out, c->content.data, c->content.len);
    sl_buf_puts(out, "],\"delta\":");
    sl_render_put_string(out, n ? text : "", n);
    end_event(out);
    sl_render_clear_logprobs(c);
}

static void send_call(struct sl_render *r, const struct sl_render_choice *c, size_t k, struct sl_buf *out)
{
    const json_t *call = json_array_get(c->calls, k);
    const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
    static const struct {
        const char *type, *text;
    } of_arguments[] = {{"response.function_call_arguments.delta", "delta"},
                        {"response.function_call_arguments.done", "arguments"}};
    size_t place = place_of_call(c, k);
    char id[SL_TOOL_CALL_ID_CHARS + 1];
    sl_tool_call_id(r->id, c->index, (uint32_t)k, id);
    begin_item_event(r, "response.output_item.added", place, out);
    sl_buf_puts(out, ",\"item\":");
    put_call(r, c, k, true, out);
    end_event(out);
    for (size_t i = 0; i < SL_COUNTOF(of_arguments); i++) {
        begin_item_event(r, of_arguments[i].type, place, out);
        sl_buf_printf(out, ",\"item_id\":\"fc_%s\",\"%s\":", id, of_arguments[i].text);
        sl_render_put_string(out, json_string_value(arguments), json_string_length(arguments));
        if (i) {
            sl_buf_puts(out, ",\"name\":");
            sl_render_put_string(out, json_string_value(name), json_string_length(name));
        }
        end_event(out);
    }
    begin_item_event(r, "response.output_item.done", place, out);
    sl_buf_puts(out, ",\"item\":");
    put_call(r, c, k, false, out);
    end_event(out);
}

/* ---- what comes ---- */

static void begin_message(struct sl_render *r, struct sl_render_choice *c, struct sl_buf *out)
{
    c->message_at = c->n_calls_shown;
    if (!r->stream)
        return;
    send_message(r, c, "response.output_item.added", "in_progress", out);
    send_part(r, c, "response.content_part.added", &(struct sl_buf){0}, out);
}

static void end_message(struct sl_render *r, struct sl_render_choice *c, const char *status,
                        struct sl_buf *out)
{
    if (c->content.len)
        send_delta(r, c, "", 0, out);
    begin_part_event(r, c, "response.output_text.done", out);
    sl_buf_puts(out, ",\"logprobs\":[],\"text\":");
    sl_render_put_string(out, c->text.len ? c->text.data : "", c->text.len);
    end_event(out);
    send_part(r, c, "response.content_part.done", &c->text, out);
    send_message(r, c, "response.output_item.done", status, out);
}

static void take_token(struct sl_render *r, struct sl_render_choice *c, const struct sl_gen_event *ev,
                       struct sl_buf *out)
{
    if (ev->text_len && !has_message(c))
        begin_message(r, c, out);
    sl_render_collect_token(r, c, ev);
    if (r->stream && has_message(c) && (ev->text_len || c->content.len))
        send_delta(r, c, ev->text, ev->text_len, out);
    for (; c->n_calls_shown < json_array_size(c->calls); c->n_calls_shown++)
        if (r->stream)
            send_call(r, c, c->n_calls_shown, out);
}

static void take_end(struct sl_render *r, struct sl_render_choice *c, const struct sl_gen_event *ev,
                     struct sl_buf *out)
{
    bool whole = strcmp(ev->finish_reason, "length") != 0;
    enum state state = whole ? COMPLETED : INCOMPLETE;
    if (!has_message(c) && !c->n_calls_shown) /* an answer without a word */
        begin_message(r, c, out);
    if (r->stream && has_message(c))
        end_message(r, c, state_words[state], out);
    if (r->stream)
        send_response(r, c, whole ? "response.completed" : "response.incomplete", state, NULL, out);
    else
        put_response(r, c, state, NULL, out);
}

static void begin_stream(struct sl_render *r, struct sl_render_choice *c, struct sl_buf *out)
{
    c->begun = true;
    send_response(r, c, "response.created", IN_PROGRESS, NULL, out);
    send_response(r, c, "response.in_progress", IN_PROGRESS, NULL, out);
}

void sl_responses_event(struct sl_render *r, struct sl_render_choice *c, const struct sl_gen_event *ev,
                        struct sl_buf *out)
{
    if (r->stream && !c->begun)
        begin_stream(r, c, out);
    if (ev->kind == SL_GEN_TOKEN)
        take_token(r, c, ev, out);
    else
        take_end(r, c, ev, out);
}

void sl_responses_error(struct sl_render *r, const struct sl_http_error *e, struct sl_buf *out)
{
    const char *message = sl_http_error_message(e);
    begin_event(r, "error", out);
    sl_buf_puts(out, ",\"code\":\"server_error\",\"param\":null,\"message\":");
    sl_render_put_string(out, message, strlen(message));
    end_event(out);
    send_response(r, &r->choices[0], "response.failed", FAILED, message, out);
}
