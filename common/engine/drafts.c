/* common/engine/drafts.c - drafted tokens in a step: planned, and verified (steps 5 and 9 of the request
 * path).
 *
 *     tokens   .. t[n-1] | d1   d2   d3          drafts lie behind the sequence's tokens while a step runs
 *     rows        n-1      n    n+1  n+2         positions; ordinary rows, all of them sampled
 *     sampled     s0       s1   s2   s3          s0 is the next token; s1 too when s0 = d1; ..
 *
 * Row j is sampled with the history [0, n + j): penalties, min_tokens and the counter of the random generator
 * are those of its position. So what is appended is what a run without drafts appends. KV of rows behind the
 * last token is stale: it lies at positions >= computed, is overwritten by the next step and never shared,
 * because only pages within [0, computed) are (pages.c).
 *
 * Pages for drafts come last and from what is left: they preempt nobody. */
#include "common/engine/engine_impl.h"

#include "common/sched/draft.h"

/* Drafts that s may have: up to its limit (the last token needs no row) and its wish. */
static uint32_t most_drafts(const struct sl_seq *s)
{
    uint32_t left = s->limit_tokens - s->n_tokens - 1;
    uint32_t wish = s->speculation > 0 ? (uint32_t)s->speculation : SL_SPEC_MAX;
    return left < wish ? left : wish;
}

/* Fills spec_seqs; false when nobody has a draft. */
static bool guess(struct sl_engine *e, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct sl_seq *s = e->decode_seqs[i];
        /* what is allowed is known one token ahead only */
        uint32_t most = s->speculation == SL_SPEC_OFF || s->constraint ? 0 : most_drafts(s);
        s->n_drafts = 0;
        s->draft_match = most ? sl_draft_lookup(s->tokens, s->n_tokens, most) : 0;
        e->spec_seqs[i] = (struct sl_spec_seq){.most = s->draft_match ? most : 0,
                                               .fixed = s->speculation > 0,
                                               .hit = sl_spec_record_hit(&s->record, s->draft_match),
                                               .context = s->n_tokens};
        any |= s->draft_match > 0;
    }
    return any;
}

/* Pages for n drafts of s, as long as others have some left; returns for how many there are. */
static uint32_t take_pages(struct sl_seq *s, uint32_t n)
{
    struct sl_engine *e = s->e;
    uint32_t spare = sl_admission_watermark(sl_kv_pool_total_pages(e->pool));
    uint32_t want = sl_pages_of(e, s->n_tokens + n), need = want > s->n_pages ? want - s->n_pages : 0;
    if (need && (need + spare > sl_engine_available_pages(e) || !sl_seq_take_pages(s, need)))
        return s->n_pages * e->page_tokens - s->n_tokens;
    return n;
}

/* Rows that may be drafts: of the step's, leaving a tile to a prompt that waits, and of those sampled. */
static uint32_t rows_left(const struct sl_engine *e, uint32_t n_decode, bool prompts_wait)
{
    uint32_t used = n_decode + (prompts_wait ? SL_PLAN_ALIGN : 0);
    uint32_t rows = e->max_rows > used ? e->max_rows - used : 0;
    return rows < SL_SPEC_STEP_MAX ? rows : SL_SPEC_STEP_MAX;
}

void sl_drafts_plan(struct sl_engine *e, uint32_t n, struct sl_plan_state *state)
{
    if (!guess(e, n))
        return;
    bool prompts_wait = state->n_prompts > 0;
    struct sl_spec_state spec = {
        .cost = &e->cost,
        .load = {.decode_rows = state->decode_rows, .decode_context = state->decode_context},
        .seqs = e->spec_seqs,
        .n_seqs = n,
        .max_drafts = rows_left(e, n, prompts_wait),
        .target_ms = state->tpot_target_ms > 0 || state->tpot_wish_ms > 0 || prompts_wait
                         ? sl_plan_target_ms(state)
                         : 0,
        .prompts_wait = prompts_wait,
    };
    sl_speculate(&spec, e->n_drafts);
    for (uint32_t i = 0; i < n; i++) {
        struct sl_seq *s = e->decode_seqs[i];
        s->n_drafts = e->n_drafts[i] ? take_pages(s, e->n_drafts[i]) : 0;
        state->draft_rows += s->n_drafts;
        state->draft_attn += s->n_drafts * (s->n_tokens + (s->n_drafts + 1) / 2.0);
    }
}

/* What came true of the drafts, for the sequence's record and the counts. */
static void count(struct sl_seq *s, uint32_t n_hits, bool missed)
{
    struct sl_engine *e = s->e;
    if (s->draft_match)
        sl_spec_record_see(&s->record, s->draft_match, n_hits, missed);
    if (!s->n_drafts)
        return;
    s->drafted += s->n_drafts;
    s->accepted += n_hits;
    e->total.drafted_tokens += s->n_drafts;
    e->total.accepted_tokens += n_hits;
}

void sl_drafts_collect(struct sl_seq *s, const struct sl_sampled *sampled)
{
    uint32_t n_drafts = s->n_drafts, n_looked_at = n_drafts ? n_drafts : s->draft_match > 0, n_hits = 0;
    for (uint32_t i = 0;; i++) {
        /* the draft lies where the token goes */
        bool hit = i < n_looked_at && sampled[i].token == s->tokens[s->n_tokens];
        n_hits += hit;
        s->computed++;
        s->e->total.decode_tokens++;
        s->e->total.sampled_tokens++;
        sl_seq_append(s, &sampled[i], true);
        if (hit && i < n_drafts && s->state == SL_SEQ_DECODE)
            continue;
        count(s, n_hits, i < n_looked_at && !hit);
        break;
    }
    s->n_drafts = s->draft_match = 0;
}
