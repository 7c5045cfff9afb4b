/* router/api/render_parts.c - pieces of JSON, written by hand: a frame per token has to be cheap. */
#include "router/api/render_parts.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/tokenizer.h"
#include "common/text/utf8.h"

#define UNLIKELY_LOGPROB (-9999.0) /* vLLM's stand-in for minus infinity, which JSON does not have */

void sl_render_put_string(struct sl_buf *out, const char *s, size_t n)
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

/* ---- token ids ---- */

void sl_render_put_id_list(struct sl_buf *out, const int32_t *ids, uint32_t n)
{
    sl_buf_putc(out, '[');
    for (uint32_t i = 0; i < n; i++)
        sl_buf_printf(out, i ? ",%d" : "%d", ids[i]);
    sl_buf_putc(out, ']');
}

void sl_render_put_prompt_ids(const struct sl_render_prompt *p, struct sl_buf *out)
{
    sl_buf_puts(out, ",\"prompt_token_ids\":");
    sl_render_put_id_list(out, p->tokens, p->n);
}

/* ---- logprobs ---- */

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
    sl_render_put_string(out, p, n);
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

static void add_completion_logprob(const struct sl_render *r, struct sl_render_choice *c,
                                   const Sluice__TokenEvent *t)
{
    put_separator(&c->tokens);
    put_separator(&c->token_logprobs);
    put_separator(&c->top_logprobs);
    put_separator(&c->offsets);
    sl_buf_printf(&c->offsets, "%zu", c->text_chars);
    c->text_chars += put_token_text(r, &c->tokens, t->token);
    put_logprob(&c->token_logprobs, token_logprob(t));
    put_top_object(r, &c->top_logprobs, t);
}

void sl_render_put_logprobs(const struct sl_render *r, const struct sl_render_choice *c, struct sl_buf *out)
{
    if (!r->logprobs) {
        sl_buf_puts(out, "null");
    } else if (r->chat) {
        sl_buf_puts(out, "{\"content\":[");
        sl_buf_append(out, c->content.data, c->content.len);
        sl_buf_puts(out, "]}");
    } else {
        sl_buf_puts(out, "{\"tokens\":[");
        sl_buf_append(out, c->tokens.data, c->tokens.len);
        sl_buf_puts(out, "],\"token_logprobs\":[");
        sl_buf_append(out, c->token_logprobs.data, c->token_logprobs.len);
        sl_buf_puts(out, "],\"top_logprobs\":[");
        sl_buf_append(out, c->top_logprobs.data, c->top_logprobs.len);
        sl_buf_puts(out, "],\"text_offset\":[");
        sl_buf_append(out, c->offsets.data, c->offsets.len);
        sl_buf_puts(out, "]}");
    }
}

void sl_render_collect_logprobs(const struct sl_render *r, struct sl_render_choice *c,
                                const Sluice__TokenEvent *t)
{
    if (!r->logprobs || !t)
        return;
    if (r->chat) {
        put_separator(&c->content);
        put_chat_logprob(r, &c->content, t);
    } else {
        add_completion_logprob(r, c, t);
    }
}

void sl_render_clear_logprobs(struct sl_render_choice *c)
{
    sl_buf_clear(&c->content);
    sl_buf_clear(&c->tokens);
    sl_buf_clear(&c->token_logprobs);
    sl_buf_clear(&c->top_logprobs);
    sl_buf_clear(&c->offsets);
}

/* ---- what is kept ---- */

void sl_render_collect_token(const struct sl_render *r, struct sl_render_choice *c,
                             const struct sl_gen_event *ev)
{
    sl_buf_append(&c->text, ev->text, ev->text_len);
    if (ev->token < 0)
        return;
    sl_render_collect_logprobs(r, c, ev->raw);
    if (r->ids) {
        put_separator(&c->id_list);
        sl_buf_printf(&c->id_list, "%d", ev->token);
    }
    if (r->digests && ev->raw && ev->raw->has_logits_digest) {
        put_separator(&c->digest_list);
        sl_buf_printf(&c->digest_list, "\"%016" PRIx64 "\"", ev->raw->logits_digest);
    }
}
