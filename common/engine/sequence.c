/* common/engine/sequence.c - a sequence's life, as its owner sees it.
 *
 *     open --> WAITING --admitted, remote_to > hit--> REMOTE --first_token: P sampled it--.
 *               ^   |                                   |                                 |
 *               |   |                     ready to remote_to < n_tokens, go_local         |
 *               |   |                                   v                                 v
 *               |   '------admitted----------------> PREFILL --sampled, decode duty--> DECODE
 *               |                                       |                                 |
 *           preempted (from the three on the right,     | computed, prefill duty          | end
 *           and from IDLE without a grant)              v                                 v
 *                                                     IDLE                              ENDED
 *
 * Arrows out of PREFILL and DECODE are drawn by engine_step.c when a step was collected. After a preemption
 * the whole of it is computed here: remote_to is forgotten. */
#include "common/engine/engine_impl.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/grammar/constraint.h"

const char *sl_seq_state_name(enum sl_seq_state s)
{
    static const char *const names[] = {
        [SL_SEQ_WAITING] = "waiting", [SL_SEQ_REMOTE] = "remote", [SL_SEQ_PREFILL] = "prefill",
        [SL_SEQ_DECODE] = "decode",   [SL_SEQ_IDLE] = "idle",     [SL_SEQ_ENDED] = "ended"};
    return (unsigned)s < SL_COUNTOF(names) ? names[s] : "unknown";
}

static enum sl_err check_spec(const struct sl_engine *e, const struct sl_seq_spec *spec, uint32_t limit,
                              struct sl_why *why)
{
    if (spec->n_tokens == 0 || spec->n_prompt == 0 || spec->n_prompt > spec->n_tokens)
        return sl_why_set(why, SL_EINVAL, "a sequence of %u tokens with a prompt of %u: expected 1..n_tokens",
                          spec->n_tokens, spec->n_prompt);
    if (spec->n_tokens > e->context_length)
        return sl_why_set(why, SL_EINVAL,
                          "%u tokens are more than the model's context of %u; shorten the prompt",
                          spec->n_tokens, e->context_length);
    for (uint32_t i = 0; i < spec->n_tokens; i++)
        if (spec->tokens[i] < 0 || (uint32_t)spec->tokens[i] >= e->n_vocab)
            return sl_why_set(why, SL_EINVAL, "token %d at position %u is out of the vocabulary of %u",
                              spec->tokens[i], i, e->n_vocab);
    if (spec->compute_to == 0 || spec->compute_to > spec->n_tokens ||
        (spec->decode && spec->compute_to != spec->n_tokens))
        return sl_why_set(why, SL_EINVAL,
                          "compute_to %u of %u tokens: expected 1..n_tokens, and n_tokens to decode",
                          spec->compute_to, spec->n_tokens);
    if (spec->remote_to > spec->n_tokens ||
        (spec->remote_to % e->page_tokens != 0 && spec->remote_to != spec->n_tokens))
        return sl_why_set(why, SL_EINVAL, "split %u of %u tokens: expected a multiple of %u, or all",
                          spec->remote_to, spec->n_tokens, e->page_tokens);
    if ((spec->sample || spec->decode) && (!spec->sampling || limit <= spec->n_tokens))
        return sl_why_set(why, SL_EINVAL,
                          "%u tokens with %u of them the prompt and max_tokens %u leave nothing to "
                          "generate in a context of %u",
                          spec->n_tokens, spec->n_prompt, spec->max_tokens, e->context_length);
    if (spec->sampling &&
        (spec->sampling->n_bias > SL_MAX_LOGIT_BIAS || spec->sampling->n_stop_ids > SL_MAX_STOP_IDS ||
         spec->sampling->n_logprobs > SL_MAX_LOGPROBS))
        return sl_why_set(why, SL_EINVAL, "%u bias entries, %u stop ids, %d logprobs: at most %d, %d, %d",
                          spec->sampling->n_bias, spec->sampling->n_stop_ids, spec->sampling->n_logprobs,
                          SL_MAX_LOGIT_BIAS, SL_MAX_STOP_IDS, SL_MAX_LOGPROBS);
    if (spec->chunk_tokens < SL_CHUNK_DEFAULT)
        return sl_why_set(why, SL_EINVAL, "chunk_tokens %d: expected a number of tokens, 0 or SL_CHUNK_*",
                          spec->chunk_tokens);
    if (spec->speculation < SL_SPEC_DEFAULT || spec->speculation > (int32_t)SL_SPEC_MAX)
        return sl_why_set(why, SL_EINVAL, "speculation %d: expected 0 to %u drafts or SL_SPEC_*",
                          spec->speculation, SL_SPEC_MAX);
    /* the last token generated needs no KV of its own */
    uint32_t need = sl_pages_of(e, spec->decode ? limit - 1 : spec->compute_to);
    uint32_t total = sl_kv_pool_total_pages(e->pool);
    if (need > total)
        return sl_why_set(why, SL_ETOOBIG,
                          "%u tokens need %u KV pages, the node has %u; shorten the prompt or max_tokens, or "
                          "raise kv_memory",
                          spec->decode ? limit - 1 : spec->compute_to, need, total);
    return SL_OK;
}

/* Arrays by open sequence, so that planning never allocates. */
static void grow_scratch(struct sl_engine *e)
{
    if (e->n_open < e->open_cap)
        return;
    e->open_cap = e->open_cap ? 2 * e->open_cap : 64;
    e->victims = sl_xrealloc_array(e->victims, e->open_cap, sizeof *e->victims);
    e->victim_seqs = sl_xrealloc_array(e->victim_seqs, e->open_cap, sizeof(struct sl_seq *));
}

enum sl_err sl_engine_seq_open(struct sl_engine *e, const struct sl_seq_spec *spec, struct sl_seq **out,
                               struct sl_why *why)
{
    uint64_t limit = (uint64_t)spec->n_prompt + spec->max_tokens;
    if (limit > e->context_length)
        limit = e->context_length;
    if (limit < spec->n_tokens)
        limit = spec->n_tokens;
    enum sl_err err = check_spec(e, spec, (uint32_t)limit, why);
    if (err != SL_OK)
        return err;
    if (e->n_waiting >= e->max_waiting)
        return sl_why_set(why, SL_EAGAIN, "%u sequences wait for admission, the limit is %u", e->n_waiting,
                          e->max_waiting);
    size_t n_pages = sl_pages_of(e, (uint32_t)limit);
    const struct sl_sampling *sp = spec->sampling;
    size_t n_bias = sp ? sp->n_bias : 0;
    struct sl_seq *s = sl_try_alloc(sizeof *s);
    int32_t *tokens = sl_try_alloc(limit * sizeof *tokens);
    uint32_t *pages = sl_try_alloc(n_pages * sizeof *pages);
    uint64_t *hashes = sl_try_alloc(n_pages * sizeof *hashes);
    struct sl_logit_bias *bias = n_bias ? sl_try_alloc(n_bias * sizeof *bias) : NULL;
    if (!s || !tokens || !pages || !hashes || (n_bias && !bias)) {
        sl_free(bias);
        sl_free(hashes);
        sl_free(pages);
        sl_free(tokens);
        sl_free(s);
        return sl_why_set(why, SL_ENOMEM, "no memory for a sequence of %u tokens", (uint32_t)limit);
    }
    grow_scratch(e);
    memcpy(tokens, spec->tokens, spec->n_tokens * sizeof *tokens);
    *s = (struct sl_seq){
        .e = e,
        .owner = spec->owner,
        .order = e->next_order++,
        .state = SL_SEQ_WAITING,
        .tokens = tokens,
        .n_tokens = spec->n_tokens,
        .n_prompt = spec->n_prompt,
        .limit_tokens = (uint32_t)limit,
        .salt = sl_kv_salt_hash(spec->cache_salt),
        .use_prefix_cache = spec->use_prefix_cache,
        .sample = spec->decode || (spec->sample && spec->compute_to == spec->n_tokens),
        .decode = spec->decode,
        .granted = spec->granted,
        .want_digest = spec->want_digest,
        .remote_to = spec->remote_to,
        .compute_to = spec->compute_to,
        .chunk_tokens = spec->chunk_tokens == SL_CHUNK_DEFAULT ? e->chunk_tokens : spec->chunk_tokens,
        .speculation = spec->speculation == SL_SPEC_DEFAULT ? e->speculation : spec->speculation,
        .priority = spec->priority,
        .deadline_us = spec->deadline_us,
        .first_token_us = spec->first_token_us,
        .tpot_ms = spec->tpot_ms,
        .outputs = {.n = spec->expected_tokens > 0, .tokens = spec->expected_tokens},
        .pages = pages,
        .hashes = hashes,
        .opened_us = e->clock_us(),
    };
    s->ready_us = s->opened_us;
    sl_spec_record_init(&s->record);
    if (sp) {
        s->sampling = *sp;
        s->sampling.bias = bias;
        if (bias)
            memcpy(bias, sp->bias, n_bias * sizeof *bias);
    }
    if (spec->constraint) {
        s->constraint = spec->constraint;
        for (uint32_t i = s->n_prompt; i < s->n_tokens; i++)
            sl_constraint_take(s->constraint, s->tokens[i]);
        s->sampling.allowed = sl_constraint_allowed(s->constraint);
    }
    sl_list_add_tail(&e->waiting, &s->link);
    e->n_waiting++;
    e->n_open++;
    *out = s;
    return SL_OK;
}

void sl_seq_free(struct sl_seq *s)
{
    struct sl_engine *e = s->e;
    sl_seq_drop_pages(s);
    sl_list_remove(&s->link);
    if (s->state == SL_SEQ_WAITING)
        e->n_waiting--;
    else if (s->state != SL_SEQ_IDLE && s->state != SL_SEQ_ENDED)
        e->n_running--;
    e->n_open--;
    sl_free((void *)(uintptr_t)s->sampling.bias);
    sl_constraint_free(s->constraint);
    sl_free(s->hashes);
    sl_free(s->pages);
    sl_free(s->tokens);
    sl_free(s);
}

void sl_engine_seq_close(struct sl_engine *e, struct sl_seq *s)
{
    SL_ASSERT(s->e == e && !s->closing);
    sl_engine_events_drop(e, s);
    s->closing = true;
    if (!s->in_step)
        sl_seq_free(s);
}

uint32_t sl_seq_goal(const struct sl_seq *s)
{
    return s->decode ? s->n_tokens : s->compute_to;
}

bool sl_seq_samples(const struct sl_seq *s)
{
    return s->decode || (s->sample && !s->sampled);
}

static void move_to_done(struct sl_seq *s, enum sl_seq_state state)
{
    if (s->state == SL_SEQ_WAITING)
        s->e->n_waiting--;
    else
        s->e->n_running--;
    s->state = state;
    sl_list_remove(&s->link);
    sl_list_add_tail(&s->e->done, &s->link);
}

void sl_seq_finish(struct sl_seq *s, enum sl_finish reason)
{
    move_to_done(s, s->decode ? SL_SEQ_ENDED : SL_SEQ_IDLE);
    if (s->decode)
        sl_output_mean_add(&s->e->outputs, s->n_tokens - s->n_prompt);
    sl_engine_event_push(s->e, &(struct sl_engine_event){.kind = SL_EV_FINISHED,
                                                         .seq = s,
                                                         .owner = s->owner,
                                                         .computed_tokens = s->computed,
                                                         .reason = reason});
}

void sl_seq_prompt_done(struct sl_seq *s)
{
    if (!s->prefilled_us)
        s->prefilled_us = s->e->clock_us();
    if (!s->decode)
        sl_seq_finish(s, SL_FINISH_COMPUTED);
}

static bool is_stop(const struct sl_sampling *p, int32_t token)
{
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == token)
            return true;
    return false;
}

/* Appends a sampled token; ends the sequence or leaves it decoding. */
void sl_seq_append(struct sl_seq *s, const struct sl_sampled *t, bool tell)
{
    SL_ASSERT(s->n_tokens < s->limit_tokens);
    if (!s->prefilled_us)
        s->prefilled_us = s->e->clock_us();
    s->tokens[s->n_tokens++] = t->token;
    s->sampled = true;
    if (tell)
        sl_engine_event_push(s->e, &(struct sl_engine_event){.kind = SL_EV_TOKEN,
                                                             .seq = s,
                                                             .owner = s->owner,
                                                             .computed_tokens = s->computed,
                                                             .sampled = *t,
                                                             .token_index = s->n_tokens - s->n_prompt - 1});
    if (!s->sampling.ignore_eos && is_stop(&s->sampling, t->token))
        sl_seq_finish(s, SL_FINISH_STOP);
    else if (s->n_tokens == s->limit_tokens)
        sl_seq_finish(s, SL_FINISH_LENGTH);
    else if (!s->decode)
        sl_seq_finish(s, SL_FINISH_COMPUTED);
    else if (s->state != SL_SEQ_WAITING)
        s->state = SL_SEQ_DECODE;
    if (s->constraint && s->decode && s->state != SL_SEQ_ENDED) {
        sl_constraint_take(s->constraint, t->token);
        s->sampling.allowed = sl_constraint_allowed(s->constraint);
    }
}

void sl_engine_seq_ready(struct sl_engine *e, struct sl_seq *s, uint32_t n_tokens)
{
    SL_ASSERT(s->e == e && !s->closing);
    if (s->state != SL_SEQ_REMOTE || n_tokens <= s->computed)
        return;
    SL_ASSERT(n_tokens <= s->remote_to);
    s->computed = n_tokens;
    sl_seq_share_pages(s);
    if (n_tokens < s->remote_to)
        return;
    s->ready_us = e->clock_us();
    if (n_tokens < sl_seq_goal(s))
        s->state = SL_SEQ_PREFILL;
    else if (!sl_seq_samples(s))
        sl_seq_prompt_done(s);
    /* else the first token comes from where the KV came from */
}

void sl_engine_seq_first_token(struct sl_engine *e, struct sl_seq *s, const struct sl_sampled *t)
{
    SL_ASSERT(s->e == e && !s->closing);
    /* Preempted before it came: the token is as good, its KV is computed with the rest. After go_local the
     * same token is sampled here. */
    bool preempted = s->state == SL_SEQ_WAITING && s->preemptions > 0;
    bool ready = s->state == SL_SEQ_REMOTE && s->computed == s->n_tokens;
    if (s->sampled || (!ready && !preempted))
        return;
    s->ready_us = e->clock_us();
    sl_seq_append(s, t, false);
    if (!preempted)
        sl_seq_share_pages(s);
}

void sl_engine_seq_go_local(struct sl_engine *e, struct sl_seq *s)
{
    SL_ASSERT(s->e == e && !s->closing);
    s->remote_to = 0;
    if (s->state != SL_SEQ_REMOTE)
        return;
    /* the last token's row is computed here to sample; its page is private still */
    if (s->computed >= s->n_tokens && sl_seq_samples(s))
        s->computed = s->n_tokens - 1;
    s->ready_us = e->clock_us();
    s->state = SL_SEQ_PREFILL;
}

void sl_engine_seq_grant(struct sl_engine *e, struct sl_seq *s)
{
    SL_ASSERT(s->e == e && !s->closing);
    s->granted = true;
    if (s->state == SL_SEQ_WAITING) /* perhaps for the grant */
        s->ready_us = e->clock_us();
}

void sl_engine_seq_pin(struct sl_engine *e, struct sl_seq *s, bool pinned)
{
    SL_ASSERT(s->e == e && !s->closing);
    s->pinned = pinned;
}

void sl_seq_view(const struct sl_seq *s, struct sl_seq_view *out)
{
    *out = (struct sl_seq_view){
        .owner = s->owner,
        .state = s->state,
        .tokens = s->tokens,
        .n_tokens = s->n_tokens,
        .n_prompt = s->n_prompt,
        .computed_tokens = s->computed,
        .hit_tokens = s->hit,
        .pages = s->pages,
        .n_pages = s->n_pages,
        .chunks = s->chunks,
        .largest_chunk = s->largest_chunk,
        .prompt_tokens_computed = s->prompt_tokens_computed,
        .preemptions = s->preemptions,
        .drafted = s->drafted,
        .accepted = s->accepted,
        .opened_us = s->opened_us,
        .admitted_us = s->admitted_us,
        .prefilled_us = s->prefilled_us,
    };
}
