/* router/api/openai_render.c - step 11 of the request path. JSON is written by hand: a frame per token has to
 * be cheap, and the shapes are few. Rules that broke real clients when they were not kept (finish_reason null
 * until the end, role once, empty last delta, "choices": [] only when usage was asked for) are in
 * openai_render.h and in its golden test. */
#include "router/api/openai_render.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/tokenizer.h"
#include "common/text/utf8.h"
#include "router/http/sse.h"

#define UNLIKELY_LOGPROB (-9999.0) /* vLLM's stand-in for minus infinity, which JSON does not have */

struct sl_render {
    bool chat, stream, include_usage, continuous_usage, echo, logprobs, digests, ids, tokens_as_ids,
        skip_special;
    bool begun;
    char *head; /* {"id":...,"model":"..." */
    const struct sl_tokenizer *tok;
    int32_t *prompt;
    uint32_t n_prompt; /* prompt itself is kept only when it is shown */
    int32_t user_stop_ids[SL_MAX_STOP_TOKENS];
    uint32_t n_user_stop_ids;

    uint32_t n_tokens;
    size_t text_chars; /* of the token texts so far, for text_offset */
    /* unstreamed: the answer's parts; lists without their brackets */
    struct sl_buf text, id_list, digest_list;
    struct sl_buf content;                                       /* chat logprobs */
    struct sl_buf tokens, token_logprobs, top_logprobs, offsets; /* completion logprobs */
};

static void put_string(struct sl_buf *out, const char *s, size_t n)
{
    sl_buf_putc(out, '"');
    sl_buf_json_escape(out, s, n);
    sl_buf_putc(out, '"');
}

static void put_separator(struct sl_buf *list)
{
    if (list->len)
        sl_buf_putc(list, ',');
}

struct sl_render *sl_render_new(const struct sl_oai_request *q, const struct sl_tokenizer *tok,
                                int64_t created)
{
    const struct sl_gen_req *req = q->req;
    struct sl_render *r = sl_xcalloc(1, sizeof *r);
    struct sl_buf head;
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
    r->n_prompt = req->n_tokens;
    if (r->echo || r->ids)
        r->prompt = sl_xmemdup(req->tokens, req->n_tokens * sizeof *req->tokens);
    r->n_user_stop_ids = q->n_user_stop_ids;
    memcpy(r->user_stop_ids, q->user_stop_ids, q->n_user_stop_ids * sizeof *q->user_stop_ids);
    struct sl_buf *const parts[] = {&r->text,   &r->id_list,        &r->digest_list,  &r->content,
                                    &r->tokens, &r->token_logprobs, &r->top_logprobs, &r->offsets};
    for (size_t i = 0; i < SL_COUNTOF(parts); i++)
        sl_buf_init(parts[i], SL_RENDER_MAX_BYTES);
    sl_buf_init(&head, SIZE_MAX);
    sl_buf_puts(&head, "{\"id\":");
    put_string(&head, req->id, strlen(req->id));
    sl_buf_printf(&head, ",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
                  !r->chat    ? "text_completion"
                  : r->stream ? "chat.completion.chunk"
                              : "chat.completion",
                  created);
    put_string(&head, req->model, strlen(req->model));
    r->head = sl_buf_steal(&head);
    return r;
}

void sl_render_free(struct sl_render *r)
{
    if (!r)
        return;
    sl_buf_fini(&r->text);
    sl_buf_fini(&r->id_list);
    sl_buf_fini(&r->digest_list);
    sl_buf_fini(&r->content);
    sl_buf_fini(&r->tokens);
    sl_buf_fini(&r->token_logprobs);
    sl_buf_fini(&r->top_logprobs);
    sl_buf_fini(&r->offsets);
    sl_free(r->prompt);
    sl_free(r->head);
    sl_free(r);
}

bool sl_render_failed(const struct sl_render *r)
{
    return r->text.failed || r->id_list.failed || r->digest_list.failed || r->content.failed ||
           r->tokens.failed || r->token_logprobs.failed || r->top_logprobs.failed || r->offsets.failed;
}

bool sl_render_streams(const struct sl_render *r)
{
    return r->stream;
}

uint32_t sl_render_n_tokens(const struct sl_render *r)
{
    return r->n_tokens;
}

/* ---- pieces
 * -------------------------------------------------------------------------------------------------------------------------
 */

static void put_usage(struct sl_buf *out, const struct sl_gen_usage *u, bool details)
{
    sl_buf_printf(out, "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u", u->prompt_tokens,
                  u->completion_tokens, u->prompt_tokens + u->completion_tokens);
    if (details)
        sl_buf_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%u}", u->cached_tokens);
    sl_buf_putc(out, '}');
}

static void put_id_list(struct sl_buf *out, const int32_t *ids, uint32_t n)
{
    sl_buf_putc(out, '[');
    for (uint32_t i = 0; i < n; i++)
        sl_buf_printf(out, i ? ",%d" : "%d", ids[i]);
    sl_buf_putc(out, ']');
}

static void put_prompt_ids(const struct sl_render *r, struct sl_buf *out)
{
    sl_buf_puts(out, ",\"prompt_token_ids\":");
    put_id_list(out, r->prompt, r->n_prompt);
}

static void put_echo(const struct sl_render *r, struct sl_buf *out)
{
    struct sl_buf text;
    uint32_t *ids = sl_xalloc((r->n_prompt + 1) * sizeof *ids);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        ids[i] = (uint32_t)r->prompt[i];
    sl_buf_init(&text, SL_RENDER_MAX_BYTES);
    sl_tokenizer_decode(r->tok, ids, r->n_prompt, !r->skip_special, &text);
    sl_buf_json_escape(out, text.len ? text.data : "", text.len);
    sl_buf_fini(&text);
    sl_free(ids);
}

static void put_logprob(struct sl_buf *out, double v)
{
    sl_buf_printf(out, "%.9g", isfinite(v) ? v : UNLIKELY_LOGPROB);
}

/* A token as text, inside a JSON string: bytes that are no character become U+FFFD. Returns how many
 * characters. */
static size_t put_token_text(const struct sl_render *r, struct sl_buf *out, int32_t token)
{
    if (r->tokens_as_ids) {
        size_t before = out->len;
        sl_buf_printf(out, "\"token_id:%d\"", token);
        return out->len - before - 2;
    }
    size_t n, at = 0, chars = 0, used;
    uint32_t cp;
    const char *p = sl_tokenizer_piece(r->tok, (uint32_t)token, true, &n);
    put_string(out, p, n);
    for (; at < n; at += used, chars++)
        sl_utf8_next(p + at, n - at, &cp, &used);
    return chars;
}

static double token_logprob(const Sluice__TokenEvent *t)
{
    return t->has_logprob ? (double)t->logprob : UNLIKELY_LOGPROB;
}

static size_t n_top(const Sluice__TokenEvent *t)
{
    return t->n_top_tokens < t->n_top_logprobs ? t->n_top_tokens : t->n_top_logprobs;
}

/* {"token":...,"logprob":...,"bytes":[...] and no closing brace: the sampled token has more members. */
static void put_chat_entry(const struct sl_render *r, struct sl_buf *out, int32_t token, double logprob)
{
    size_t n;
    const char *p = sl_tokenizer_piece(r->tok, (uint32_t)token, true, &n);
    sl_buf_puts(out, "{\"token\":");
    put_token_text(r, out, token);
    sl_buf_puts(out, ",\"logprob\":");
    put_logprob(out, logprob);
    sl_buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        sl_buf_printf(out, i ? ",%u" : "%u", (unsigned char)p[i]);
    sl_buf_putc(out, ']');
}

static void put_chat_logprob(const struct sl_render *r, struct sl_buf *out, const Sluice__TokenEvent *t)
{
    put_chat_entry(r, out, t->token, token_logprob(t));
    sl_buf_puts(out, ",\"top_logprobs\":[");
    for (size_t i = 0; i < n_top(t); i++) {
        if (i)
            sl_buf_putc(out, ',');
        put_chat_entry(r, out, t->top_tokens[i], (double)t->top_logprobs[i]);
        sl_buf_putc(out, '}');
    }
    sl_buf_puts(out, "]}");
}

static bool same_text(const struct sl_render *r, int32_t a, int32_t b)
{
    size_t na, nb;
    const char *pa = sl_tokenizer_piece(r->tok, (uint32_t)a, true, &na);
    const char *pb = sl_tokenizer_piece(r->tok, (uint32_t)b, true, &nb);
    if (r->tokens_as_ids)
        return a == b;
    /* pieces that are no text all show as U+FFFD: one of them is enough for an object's keys to stay
     * different */
    bool bad_a = sl_utf8_valid_prefix(pa, na) != na, bad_b = sl_utf8_valid_prefix(pb, nb) != nb;
    return (bad_a && bad_b) || (na == nb && memcmp(pa, pb, na) == 0);
}

/* {"text": logprob}: the sampled token and the top ones, no key twice. */
static void put_top_object(const struct sl_render *r, struct sl_buf *out, const Sluice__TokenEvent *t)
{
    sl_buf_putc(out, '{');
    put_token_text(r, out, t->token);
    sl_buf_putc(out, ':');
    put_logprob(out, token_logprob(t));
    for (size_t i = 0; i < n_top(t); i++) {
        bool seen = same_text(r, t->top_tokens[i], t->token);
        for (size_t j = 0; j < i && !seen; j++)
            seen = same_text(r, t->top_tokens[i], t->top_tokens[j]);
        if (seen)
            continue;
        sl_buf_putc(out, ',');
        put_token_text(r, out, t->top_tokens[i]);
        sl_buf_putc(out, ':');
        put_logprob(out, (double)t->top_logprobs[i]);
    }
    sl_buf_putc(out, '}');
}

static void add_completion_logprob(struct sl_render *r, const Sluice__TokenEvent *t)
{
    put_separator(&r->tokens);
    put_separator(&r->token_logprobs);
    put_separator(&r->top_logprobs);
    put_separator(&r->offsets);
    sl_buf_printf(&r->offsets, "%zu", r->text_chars);
    r->text_chars += put_token_text(r, &r->tokens, t->token);
    put_logprob(&r->token_logprobs, token_logprob(t));
    put_top_object(r, &r->top_logprobs, t);
}

static void put_collected_logprobs(struct sl_render *r, struct sl_buf *out)
{
    if (!r->logprobs) {
        sl_buf_puts(out, "null");
    } else if (r->chat) {
        sl_buf_puts(out, "{\"content\":[");
        sl_buf_append(out, r->content.data, r->content.len);
        sl_buf_puts(out, "]}");
    } else {
        sl_buf_puts(out, "{\"tokens\":[");
        sl_buf_append(out, r->tokens.data, r->tokens.len);
        sl_buf_puts(out, "],\"token_logprobs\":[");
        sl_buf_append(out, r->token_logprobs.data, r->token_logprobs.len);
        sl_buf_puts(out, "],\"top_logprobs\":[");
        sl_buf_append(out, r->top_logprobs.data, r->top_logprobs.len);
        sl_buf_puts(out, "],\"text_offset\":[");
        sl_buf_append(out, r->offsets.data, r->offsets.len);
        sl_buf_puts(out, "]}");
    }
}

static void collect_logprobs(struct sl_render *r, const Sluice__TokenEvent *t)
{
    if (!r->logprobs || !t)
        return;
    if (r->chat) {
        put_separator(&r->content);
        put_chat_logprob(r, &r->content, t);
    } else {
        add_completion_logprob(r, t);
    }
}

static void clear_logprobs(struct sl_render *r)
{
    sl_buf_clear(&r->content);
    sl_buf_clear(&r->tokens);
    sl_buf_clear(&r->token_logprobs);
    sl_buf_clear(&r->top_logprobs);
    sl_buf_clear(&r->offsets);
}

/* The stop string, or a stop token the client named; the model's own end is null. */
static void put_stop_reason(const struct sl_render *r, struct sl_buf *out, const struct sl_gen_event *ev)
{
    sl_buf_puts(out, ",\"stop_reason\":");
    if (ev->stop_reason) {
        put_string(out, ev->stop_reason, strlen(ev->stop_reason));
        return;
    }
    for (uint32_t i = 0; i < r->n_user_stop_ids; i++)
        if (r->user_stop_ids[i] == ev->stop_token && ev->stop_token >= 0) {
            sl_buf_printf(out, "%d", ev->stop_token);
            return;
        }
    sl_buf_puts(out, "null");
}

/* ---- streams
 * -------------------------------------------------------------------------------------------------------------------------
 */

static void end_frame(struct sl_render *r, struct sl_buf *out)
{
    if (r->continuous_usage) {
        sl_buf_puts(out, ",\"usage\":");
        put_usage(out, &(struct sl_gen_usage){.prompt_tokens = r->n_prompt, .completion_tokens = r->n_tokens},
                  false);
    } else if (r->include_usage) {
        sl_buf_puts(out, ",\"usage\":null");
    }
    sl_buf_putc(out, '}');
    sl_sse_end(out);
}

static void begin_frame(struct sl_render *r, struct sl_buf *out)
{
    sl_sse_begin(out);
    sl_buf_puts(out, r->head);
}

/* The frame before the first token's: a chat's role; a completion's echo. */
static void put_first_frame(struct sl_render *r, struct sl_buf *out)
{
    r->begun = true;
    if (!r->chat && !r->echo)
        return;
    begin_frame(r, out);
    if (r->chat && r->ids)
        put_prompt_ids(r, out);
    sl_buf_puts(out, ",\"choices\":[{\"index\":0,");
    if (r->chat) {
        sl_buf_puts(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    } else {
        sl_buf_puts(out, "\"text\":\"");
        put_echo(r, out);
        sl_buf_putc(out, '"');
    }
    sl_buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
    if (r->ids)
        sl_buf_puts(out, ",\"token_ids\":[]");
    sl_buf_puts(out, "}]");
    end_frame(r, out);
}

static void put_token_frame(struct sl_render *r, const struct sl_gen_event *ev, struct sl_buf *out)
{
    const Sluice__TokenEvent *t = ev->token >= 0 ? ev->raw : NULL;
    begin_frame(r, out);
    sl_buf_puts(out, r->chat ? ",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
                             : ",\"choices\":[{\"index\":0,\"text\":");
    put_string(out, ev->text ? ev->text : "", ev->text_len);
    sl_buf_puts(out, r->chat ? "},\"logprobs\":" : ",\"logprobs\":");
    if (t && r->logprobs) {
        clear_logprobs(r);
        collect_logprobs(r, t);
        put_collected_logprobs(r, out);
    } else {
        sl_buf_puts(out, "null");
    }
    sl_buf_puts(out, ",\"finish_reason\":null");
    if (r->ids) {
        sl_buf_puts(out, ",\"token_ids\":");
        put_id_list(out, &ev->token, ev->token >= 0 ? 1 : 0);
        if (!r->chat && r->n_tokens == 1 && ev->token >= 0)
            put_prompt_ids(r, out);
    }
    sl_buf_puts(out, "}]");
    if (r->digests && t && t->has_logits_digest)
        sl_buf_printf(out, ",\"sluice\":{\"digest\":\"%016" PRIx64 "\"}", t->logits_digest);
    end_frame(r, out);
}

static void put_last_frames(struct sl_render *r, const struct sl_gen_event *ev, struct sl_buf *out)
{
    begin_frame(r, out);
    sl_buf_printf(out, ",\"choices\":[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":\"%s\"",
                  r->chat ? "\"delta\":{}" : "\"text\":\"\"", ev->finish_reason);
    put_stop_reason(r, out, ev);
    if (r->ids)
        sl_buf_puts(out, ",\"token_ids\":[]");
    sl_buf_puts(out, "}]");
    end_frame(r, out);
    if (r->include_usage) {
        begin_frame(r, out);
        sl_buf_puts(out, ",\"choices\":[],\"usage\":");
        put_usage(out, &ev->usage, true);
        sl_buf_putc(out, '}');
        sl_sse_end(out);
    }
    sl_sse_done(out);
}

/* ---- whole answers
 * ------------------------------------------------------------------------------------------------------------------
 */

static void collect_token(struct sl_render *r, const struct sl_gen_event *ev)
{
    sl_buf_append(&r->text, ev->text, ev->text_len);
    if (ev->token < 0)
        return;
    collect_logprobs(r, ev->raw);
    if (r->ids) {
        put_separator(&r->id_list);
        sl_buf_printf(&r->id_list, "%d", ev->token);
    }
    if (r->digests && ev->raw && ev->raw->has_logits_digest) {
        put_separator(&r->digest_list);
        sl_buf_printf(&r->digest_list, "\"%016" PRIx64 "\"", ev->raw->logits_digest);
    }
}

static void put_body(struct sl_render *r, const struct sl_gen_event *ev, struct sl_buf *out)
{
    sl_buf_puts(out, r->head);
    if (r->chat && r->ids)
        put_prompt_ids(r, out);
    sl_buf_puts(out, ",\"choices\":[{\"index\":0,");
    sl_buf_puts(out, r->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
    if (r->echo)
        put_echo(r, out);
    sl_buf_json_escape(out, r->text.len ? r->text.data : "", r->text.len);
    sl_buf_puts(out, r->chat ? "\"},\"logprobs\":" : "\",\"logprobs\":");
    put_collected_logprobs(r, out);
    sl_buf_printf(out, ",\"finish_reason\":\"%s\"", ev->finish_reason);
    put_stop_reason(r, out, ev);
    if (r->ids) {
        sl_buf_puts(out, ",\"token_ids\":[");
        sl_buf_append(out, r->id_list.data, r->id_list.len);
        sl_buf_putc(out, ']');
        if (!r->chat)
            put_prompt_ids(r, out);
    }
    sl_buf_puts(out, "}],\"usage\":");
    put_usage(out, &ev->usage, true);
    sl_buf_puts(out, ",\"system_fingerprint\":\"sluice-" SLUICE_VERSION "\"");
    if (r->digests) {
        sl_buf_puts(out, ",\"sluice\":{\"digests\":[");
        sl_buf_append(out, r->digest_list.data, r->digest_list.len);
        sl_buf_puts(out, "]}");
    }
    sl_buf_putc(out, '}');
}

void sl_render_event(struct sl_render *r, const struct sl_gen_event *ev, struct sl_buf *out)
{
    if (ev->kind == SL_GEN_TOKEN && ev->token >= 0)
        r->n_tokens++;
    if (!r->stream) {
        if (ev->kind == SL_GEN_TOKEN)
            collect_token(r, ev);
        else if (ev->kind == SL_GEN_DONE)
            put_body(r, ev, out);
        return;
    }
    if (!r->begun)
        put_first_frame(r, out);
    if (ev->kind == SL_GEN_TOKEN && (ev->token >= 0 || ev->text_len))
        put_token_frame(r, ev, out);
    else if (ev->kind == SL_GEN_DONE)
        put_last_frames(r, ev, out);
}
