/* common/node/node_order.c - reads and checks what a router asks for. The router has checked the same; a node
 * trusts its own eyes. */
#include "common/node/node_order.h"

#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/grammar/constraint.h"
#include "common/grammar/json_schema.h"
#include "common/wire/wire_msg.h"

bool sl_order_read(const Sluice__Envelope *e, struct sl_order *out)
{
    if (e->body_case == SLUICE__ENVELOPE__BODY_SUBMIT) {
        const Sluice__Submit *m = e->submit;
        *out = (struct sl_order){
            .request_id = m->request_id,
            .attempt = m->attempt,
            .router_boot_id = m->router_boot_id,
            .tokens = m->tokens,
            .n_tokens = m->n_tokens,
            .n_prompt = m->n_prompt,
            .sampling = m->sampling,
            .deadline_ms = m->deadline_ms,
            .split_tokens = m->split_tokens,
            .peer = m->prefill_peer,
            .cache_salt = m->cache_salt,
            .chunk_tokens = m->has_chunk_tokens ? m->chunk_tokens : SL_CHUNK_DEFAULT,
            .speculation = m->has_speculation ? m->speculation : SL_SPEC_DEFAULT,
            .priority = m->has_priority ? m->priority : 0,
            .ttft_ms = m->has_ttft_ms ? m->ttft_ms : 0,
            .tpot_ms = m->has_tpot_ms ? m->tpot_ms : 0,
            .expected_tokens = m->has_expected_tokens ? m->expected_tokens : 0,
            .want_digest = m->has_want_digest && m->want_digest,
            .no_prefix_cache = m->has_no_prefix_cache && m->no_prefix_cache,
        };
        return true;
    }
    if (e->body_case == SLUICE__ENVELOPE__BODY_PREFILL) {
        const Sluice__Prefill *m = e->prefill;
        *out = (struct sl_order){
            .request_id = m->request_id,
            .attempt = m->attempt,
            .router_boot_id = m->router_boot_id,
            .tokens = m->tokens,
            .n_tokens = m->n_tokens,
            .n_prompt = m->n_prompt,
            .sampling = m->sampling,
            .deadline_ms = m->deadline_ms,
            .split_tokens = m->split_tokens,
            .peer = m->decode_peer,
            .cache_salt = m->cache_salt,
            .chunk_tokens = m->has_chunk_tokens ? m->chunk_tokens : SL_CHUNK_DEFAULT,
            .priority = m->has_priority ? m->priority : 0,
            .ttft_ms = m->has_ttft_ms ? m->ttft_ms : 0,
            .want_digest = m->has_want_digest && m->want_digest,
            .no_prefix_cache = m->has_no_prefix_cache && m->no_prefix_cache,
        };
        return true;
    }
    return false;
}

static enum sl_err check_range(const char *what, double v, double min, double max, struct sl_why *why)
{
    if (!(v >= min && v <= max)) /* NaN is out of every range */
        return sl_why_set(why, SL_EINVAL, "%s is %g; expected %g to %g", what, v, min, max);
    return SL_OK;
}

static enum sl_err check_sampling(const struct sl_order *o, struct sl_why *why)
{
    const Sluice__Sampling *s = o->sampling;
    const struct {
        const char *what;
        double v, min, max;
    } ranges[] = {
        {"temperature", s->temperature, 0, 100},
        {"top_p", s->top_p, 0, 1},
        {"min_p", s->min_p, 0, 1},
        {"repetition_penalty", s->repetition_penalty, 1e-3, 1e3},
        {"presence_penalty", s->presence_penalty, -100, 100},
        {"frequency_penalty", s->frequency_penalty, -100, 100},
        {"n_logprobs", s->n_logprobs, -1, SL_MAX_LOGPROBS},
        {"the number of stop ids", (double)s->n_stop_ids, 0, SL_MAX_STOP_IDS},
        {"the number of logit biases", (double)s->n_bias, 0, SL_MAX_LOGIT_BIAS},
        {"max_tokens", s->max_tokens, 1, SL_WIRE_MAX_TOKENS},
    };
    for (size_t i = 0; i < SL_COUNTOF(ranges); i++) {
        enum sl_err err = check_range(ranges[i].what, ranges[i].v, ranges[i].min, ranges[i].max, why);
        if (err != SL_OK)
            return err;
    }
    if (s->json_schema && strlen(s->json_schema) > SL_SCHEMA_MAX_BYTES)
        return sl_why_set(why, SL_ETOOBIG, "the schema has %zu bytes; at most %u are taken",
                          strlen(s->json_schema), SL_SCHEMA_MAX_BYTES);
    const char *const frame[] = {s->schema_before, s->schema_between, s->schema_after, s->schema_mark};
    for (size_t i = 0; i < SL_COUNTOF(frame); i++)
        if (frame[i] && strlen(frame[i]) > SL_SCHEMA_FRAME_BYTES)
            return sl_why_set(why, SL_ETOOBIG, "a text around the schema has %zu bytes; at most %u are taken",
                              strlen(frame[i]), SL_SCHEMA_FRAME_BYTES);
    if (s->schema_max > SL_SCHEMA_MAX_FRAMED)
        return sl_why_set(why, SL_EINVAL, "schema_max is %u; at most %u is taken", s->schema_max,
                          SL_SCHEMA_MAX_FRAMED);
    for (size_t i = 0; i < s->n_bias; i++) {
        enum sl_err err = check_range("a logit bias", s->bias[i]->bias, -1e6, 1e6, why);
        if (err != SL_OK)
            return err;
    }
    return SL_OK;
}

static enum sl_err check_split(const struct sl_order *o, uint32_t page_tokens, struct sl_why *why)
{
    if (o->split_tokens == 0)
        return SL_OK;
    if (o->split_tokens > o->n_tokens || (o->split_tokens % page_tokens && o->split_tokens != o->n_tokens))
        return sl_why_set(
            why, SL_EINVAL,
            "the split is at token %u of %zu; expected a multiple of the page size, %u, or the end",
            o->split_tokens, o->n_tokens, page_tokens);
    if (!o->peer)
        return sl_why_set(why, SL_EINVAL, "the split is at token %u and no peer is named", o->split_tokens);
    if (strlen(o->peer->transfer_address) >= sizeof(((struct sl_xfer_peer *)0)->address) ||
        !strchr(o->peer->transfer_address, ':'))
        return sl_why_set(why, SL_EINVAL, "the peer's address is \"%.80s\"; expected host:port",
                          o->peer->transfer_address);
    return SL_OK;
}

enum sl_err sl_order_check(const struct sl_order *o, uint32_t page_tokens, struct sl_why *why)
{
    if (o->n_tokens == 0)
        return sl_why_set(why, SL_EINVAL, "the request has no tokens");
    if (o->n_tokens > SL_WIRE_MAX_TOKENS)
        return sl_why_set(why, SL_ETOOBIG, "the request has %zu tokens; at most %u are taken", o->n_tokens,
                          SL_WIRE_MAX_TOKENS);
    if (o->n_prompt == 0 || o->n_prompt > o->n_tokens)
        return sl_why_set(why, SL_EINVAL, "%u of the %zu tokens are the prompt; expected 1 to all",
                          o->n_prompt, o->n_tokens);
    if (o->deadline_ms == 0 || o->deadline_ms > SL_WIRE_MAX_DEADLINE_MS)
        return sl_why_set(why, SL_EINVAL, "the deadline is in %u ms; expected 1 to %u", o->deadline_ms,
                          SL_WIRE_MAX_DEADLINE_MS);
    if (o->chunk_tokens < SL_CHUNK_DEFAULT)
        return sl_why_set(why, SL_EINVAL, "chunk_tokens is %d; expected -1, 0 or a number of tokens",
                          o->chunk_tokens);
    if (o->speculation < SL_SPEC_DEFAULT || o->speculation > (int32_t)SL_SPEC_MAX)
        return sl_why_set(why, SL_EINVAL, "speculation is %d; expected -1, or 0 to %u drafts", o->speculation,
                          SL_SPEC_MAX);
    enum sl_err err = check_sampling(o, why);
    if (err == SL_OK && o->n_tokens - o->n_prompt >= o->sampling->max_tokens)
        err = sl_why_set(why, SL_EINVAL,
                         "%zu tokens were generated before and max_tokens is %u: nothing is left to do",
                         o->n_tokens - o->n_prompt, o->sampling->max_tokens);
    return err == SL_OK ? check_split(o, page_tokens, why) : err;
}

void sl_order_sampling(const struct sl_order *o, struct sl_sampling *out, struct sl_logit_bias **bias)
{
    const Sluice__Sampling *s = o->sampling;
    *bias = NULL;
    *out = (struct sl_sampling){
        .temperature = s->temperature,
        .top_p = s->top_p,
        .top_k = s->top_k,
        .min_p = s->min_p,
        .repetition_penalty = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .seed = s->seed,
        .choice = s->choice,
        .min_tokens = s->min_tokens,
        .ignore_eos = s->ignore_eos,
        .n_stop_ids = (uint32_t)s->n_stop_ids,
        .n_logprobs = s->n_logprobs,
        .n_bias = (uint32_t)s->n_bias,
    };
    for (size_t i = 0; i < s->n_stop_ids; i++)
        out->stop_ids[i] = s->stop_ids[i];
    if (s->n_bias) {
        struct sl_logit_bias *b = sl_xcalloc(s->n_bias, sizeof *b);
        for (size_t i = 0; i < s->n_bias; i++)
            b[i] = (struct sl_logit_bias){.token = s->bias[i]->token, .bias = s->bias[i]->bias};
        out->bias = *bias = b;
    }
}

void sl_order_spec(const struct sl_order *o, const struct sl_sampling *sampling, uint64_t now_us,
                   struct sl_seq_spec *out)
{
    *out = (struct sl_seq_spec){
        .tokens = o->tokens,
        .n_tokens = (uint32_t)o->n_tokens,
        .n_prompt = o->n_prompt,
        .max_tokens = o->sampling->max_tokens,
        .sampling = sampling,
        .cache_salt = o->cache_salt && *o->cache_salt ? o->cache_salt : NULL,
        .use_prefix_cache = !o->no_prefix_cache,
        .want_digest = o->want_digest,
        .chunk_tokens = o->chunk_tokens,
        .speculation = o->speculation,
        .priority = o->priority,
        .deadline_us = now_us + (uint64_t)o->deadline_ms * 1000,
        .first_token_us = o->ttft_ms ? now_us + (uint64_t)o->ttft_ms * 1000 : 0,
        .tpot_ms = o->tpot_ms,
        .expected_tokens = o->expected_tokens,
    };
}

/* What is sampled has to fit a schema; the sequence takes *out. */
static enum sl_err constraint_of(const struct sl_order *o, struct sl_node_words *words,
                                 struct sl_constraint **out, struct sl_why *why)
{
    const Sluice__Sampling *s = o->sampling;
    const struct sl_token_bytes *tokens;
    struct sl_grammar *grammar;
    enum sl_err err = sl_node_words_get(words, &tokens, why);
    if (err != SL_OK)
        return err;
    json_t *schema = json_loads(s->json_schema, JSON_DECODE_ANY, NULL);
    const struct sl_schema_frame frame = {.before = s->schema_before ? s->schema_before : "",
                                          .between = s->schema_between ? s->schema_between : "",
                                          .after = s->schema_after ? s->schema_after : "",
                                          .max = s->schema_max ? s->schema_max : 1,
                                          .mark = s->schema_mark,
                                          .again = s->schema_again};
    err = sl_json_schema_compile(schema, &frame, &grammar, why);
    json_decref(schema);
    if (err == SL_OK)
        *out = sl_constraint_new(tokens, grammar, s->stop_ids, (uint32_t)s->n_stop_ids,
                                 s->has_schema_mark_token ? s->schema_mark_token : -1);
    return err;
}

enum sl_err sl_order_open(const struct sl_order *o, struct sl_engine *e, struct sl_node_words *words,
                          const struct sl_seq_spec *duty, struct sl_seq **out, struct sl_why *why)
{
    struct sl_seq_spec spec;
    struct sl_sampling sampling;
    struct sl_logit_bias *bias;
    struct sl_constraint *constraint = NULL;
    enum sl_err err = SL_OK;
    if (o->sampling->json_schema && duty->sample)
        err = constraint_of(o, words, &constraint, why);
    if (err != SL_OK)
        return err;
    sl_order_sampling(o, &sampling, &bias);
    sl_order_spec(o, &sampling, sl_now_us(), &spec);
    spec.owner = duty->owner;
    spec.remote_to = duty->remote_to;
    spec.compute_to = duty->compute_to;
    spec.sample = duty->sample;
    spec.decode = duty->decode;
    spec.granted = duty->granted;
    spec.constraint = constraint;
    err = sl_engine_seq_open(e, &spec, out, why);
    sl_free(bias);
    if (err != SL_OK)
        sl_constraint_free(constraint);
    return err;
}

void sl_order_peer(const struct sl_order *o, struct sl_xfer_peer *out)
{
    memset(out, 0, sizeof *out);
    if (!o->peer)
        return;
    memcpy(out->name, o->peer->name, strnlen(o->peer->name, sizeof out->name - 1));
    memcpy(out->address, o->peer->transfer_address,
           strnlen(o->peer->transfer_address, sizeof out->address - 1));
    out->boot_id = o->peer->boot_id;
}
