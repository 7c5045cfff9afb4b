/* common/engine/engine_step.c - admit, plan, start, collect (steps 4, 5, 8 and 9 of the request path).
 *
 * One step at a time. sl_engine_step() runs while the device rests: decode rows get their pages, waiting
 * sequences are admitted, the plan is made (common/sched/step_plan.h) and the batch handed over. Everything
 * it needs was allocated before; the guard is on. sl_engine_poll() applies the results.
 *
 * Order matters in one place: pages for decode rows come before admission, and a step that had to preempt for
 * them admits nobody, or the pages would be given away and taken back. */
#include "common/engine/engine_impl.h"

#include <math.h>
#include <string.h>
#include <sys/eventfd.h>

#include "common/base/mem.h"
#include "common/sched/slack.h"

#define UNGRANTED_PRIORITY 1000 /* levels behind granted work of the same priority */
#define TWIN_PAGES         2u   /* shared by two prompts: one waits a round and takes them from the cache */

static struct sl_seq *seq_at(struct sl_list *pos)
{
    return SL_CONTAINER_OF(pos, struct sl_seq, link);
}

/* ---- pages for decode rows ---- */

/* Fills decode_seqs with the rows that have a page for their position; returns their number. Older ones
 * first: when pages are short the oldest goes on. *preempted: somebody lost pages. */
static uint32_t gather_decode(struct sl_engine *e, bool *preempted)
{
    uint32_t n = 0, kept = 0;
    SL_LIST_FOREACH (pos, &e->running) {
        struct sl_seq *s = seq_at(pos);
        if (s->state != SL_SEQ_DECODE)
            continue;
        uint32_t at = n++;
        for (; at > 0 && e->decode_seqs[at - 1]->order > s->order; at--)
            e->decode_seqs[at] = e->decode_seqs[at - 1];
        e->decode_seqs[at] = s;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct sl_seq *s = e->decode_seqs[i];
        bool has_page = s->n_pages * e->page_tokens >= s->n_tokens;
        while (s->state == SL_SEQ_DECODE && !has_page && !(has_page = sl_seq_take_pages(s, 1))) {
            if (!sl_engine_preempt_one(e, false))
                break;
            *preempted = true;
        }
        if (has_page)
            e->decode_seqs[kept++] = s;
    }
    /* a younger one that had its page may have lost it to an older one since */
    n = kept;
    kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (e->decode_seqs[i]->state == SL_SEQ_DECODE)
            e->decode_seqs[kept++] = e->decode_seqs[i];
    return kept;
}

/* ---- admission ---- */

static uint32_t expect(const struct sl_engine *e, const struct sl_seq *s)
{
    if (!s->decode)
        return 0;
    return sl_output_mean_expect(s->outputs.n ? &s->outputs : &e->outputs, s->n_tokens - s->n_prompt,
                                 s->limit_tokens - s->n_tokens, s->preemptions);
}

/* Whether the pool holds all running sequences and s, which takes `need` pages, up to their expected ends. */
static bool peak_fits(struct sl_engine *e, const struct sl_seq *s, uint32_t need)
{
    uint32_t n = 0, own = 0, total = sl_kv_pool_total_pages(e->pool);
    SL_LIST_FOREACH (pos, &e->running) {
        const struct sl_seq *r = seq_at(pos);
        uint32_t pages = r->n_pages - r->hit / e->page_tokens;
        own += pages;
        e->expected[n++] = (struct sl_admission_seq){.own_pages = pages, .remaining_tokens = expect(e, r)};
    }
    if (n == 0)
        return true; /* alone it fits: checked when it was opened */
    uint32_t used = total - sl_engine_available_pages(e);
    e->expected[n++] = (struct sl_admission_seq){.own_pages = need, .remaining_tokens = expect(e, s)};
    return sl_admission_peak_pages(e->expected, n, used > own ? used - own : 0, e->page_tokens) <=
           total - sl_admission_watermark(total);
}

/* Takes the pages of the whole prompt, all or none. */
static bool reserve(struct sl_engine *e, struct sl_seq *s)
{
    uint32_t all = sl_pages_of(e, sl_seq_goal(s));
    uint32_t spare = sl_list_empty(&e->running) ? 0 : sl_admission_watermark(sl_kv_pool_total_pages(e->pool));
    struct sl_kv_chain chain = sl_seq_chain(s);
    uint32_t hits = sl_kv_prefix_match(e->prefix, &chain);
    uint32_t least = all - hits + spare, have = sl_engine_available_pages(e);
    if (least > have && (!s->granted || least > have + sl_engine_ungranted_gain(e)))
        return false;
    s->n_pages = sl_kv_prefix_take(e->prefix, &chain, s->pages);
    uint32_t need = all - s->n_pages;
    while (need + spare > sl_engine_available_pages(e))
        if (!s->granted || !sl_engine_preempt_one(e, true))
            break;
    if (need + spare <= sl_engine_available_pages(e) && peak_fits(e, s, need)) {
        s->computed = s->hit = s->n_pages * e->page_tokens;
        if (sl_seq_take_pages(s, need))
            return true;
    }
    s->computed = s->hit = 0;
    sl_seq_drop_pages(s);
    return false;
}

/* A prompt chunk, or pages found in the cache. */
static void tell_computed(struct sl_seq *s, double step_ms)
{
    sl_engine_event_push(s->e, &(struct sl_engine_event){.kind = SL_EV_COMPUTED,
                                                         .seq = s,
                                                         .owner = s->owner,
                                                         .computed_tokens = s->computed,
                                                         .step_ms = step_ms});
}

static void admit(struct sl_engine *e, struct sl_seq *s)
{
    sl_list_remove(&s->link);
    sl_list_add_tail(&e->running, &s->link);
    e->n_waiting--;
    e->n_running++;
    s->admitted_us = e->clock_us();
    s->state = s->remote_to > s->computed ? SL_SEQ_REMOTE : SL_SEQ_PREFILL;
    if (s->use_prefix_cache) {
        e->total.prefix_queries_tokens += sl_seq_goal(s);
        e->total.prefix_hits_tokens += s->hit;
    }
    sl_engine_event_push(
        e, &(struct sl_engine_event){
               .kind = SL_EV_ADMITTED, .seq = s, .owner = s->owner, .computed_tokens = s->computed});
    if (s->hit)
        tell_computed(s, 0);
    if (s->computed == sl_seq_goal(s)) /* nothing is sampled, else a token would be left */
        sl_seq_prompt_done(s);
}

/* Granted before ungranted, then by aged priority, then as they came. */
static bool goes_before(const struct sl_seq *a, const struct sl_seq *b, uint64_t now_us)
{
    if (a->granted != b->granted)
        return a->granted;
    int64_t la =
        sl_slack_level(&(struct sl_slack){.priority = a->priority, .arrived_us = a->opened_us}, now_us);
    int64_t lb =
        sl_slack_level(&(struct sl_slack){.priority = b->priority, .arrived_us = b->opened_us}, now_us);
    if (la != lb)
        return la < lb;
    return a->order < b->order;
}

/* The first in line does not fit: nobody overtakes it, or it would wait for ever. Only ungranted ones that
 * would exceed ungranted_pages stand aside until their grant comes. */
static void admit_all(struct sl_engine *e, uint64_t now_us)
{
    uint32_t ungranted_left = 0, held = sl_engine_ungranted_held(e);
    if (e->ungranted_pages > held)
        ungranted_left = e->ungranted_pages - held;
    while (e->n_running < e->max_sequences) {
        struct sl_seq *first = NULL;
        SL_LIST_FOREACH (pos, &e->waiting) {
            struct sl_seq *s = seq_at(pos);
            if (s->preempted_now || (!s->granted && sl_pages_of(e, sl_seq_goal(s)) > ungranted_left))
                continue;
            if (!first || goes_before(s, first, now_us))
                first = s;
        }
        if (!first || !reserve(e, first))
            break;
        if (!first->granted)
            ungranted_left -= first->n_pages;
        admit(e, first);
    }
    SL_LIST_FOREACH (pos, &e->waiting)
        seq_at(pos)->preempted_now = false;
}

/* ---- plan ---- */

/* An older prompt is about to compute the next pages of s: s waits and takes them from the cache. */
static bool has_twin(const struct sl_engine *e, const struct sl_seq *s)
{
    if (!s->use_prefix_cache || s->computed != s->hit || s->pinned)
        return false;
    uint32_t next = s->computed / e->page_tokens + TWIN_PAGES - 1;
    if (next >= s->n_hashes)
        return false;
    SL_LIST_FOREACH (pos, &e->running) {
        const struct sl_seq *t = seq_at(pos);
        if (t != s && t->state == SL_SEQ_PREFILL && t->order < s->order && t->granted >= s->granted &&
            t->priority <= s->priority && t->use_prefix_cache && t->n_hashes > next &&
            t->hashes[next] == s->hashes[next])
            return true;
    }
    return false;
}

static uint32_t gather_prompts(struct sl_engine *e)
{
    uint32_t n = 0;
    SL_LIST_FOREACH_SAFE (pos, next, &e->running) {
        struct sl_seq *s = seq_at(pos);
        if (s->state != SL_SEQ_PREFILL)
            continue;
        uint32_t goal = sl_seq_goal(s);
        if (sl_seq_rematch(s))
            tell_computed(s, 0);
        if (s->computed == goal)
            sl_seq_prompt_done(s);
        if (s->state != SL_SEQ_PREFILL || has_twin(e, s))
            continue;
        e->prompt_seqs[n] = s;
        e->prompts[n++] = (struct sl_plan_prompt){
            .history = s->computed,
            .remaining = goal - s->computed,
            .total = goal - s->hit,
            .chunk_tokens = s->chunk_tokens,
            .priority = s->priority + (s->granted ? 0 : UNGRANTED_PRIORITY),
            .arrived_us = s->opened_us,
            .first_token_us = s->sampled ? 0 : s->first_token_us,
            .deadline_us = s->deadline_us,
        };
    }
    return n;
}

/* The last n_sampled rows are sampled. */
static void add_run(struct sl_engine *e, struct sl_seq *s, uint32_t first_pos, uint32_t n_rows,
                    uint32_t n_sampled)
{
    struct sl_step *st = &e->step;
    struct sl_batch *b = &st->batch;
    memcpy(&st->tokens[b->n_rows], &s->tokens[first_pos], n_rows * sizeof *st->tokens);
    st->runs[b->n_runs] = (struct sl_batch_run){.first_row = b->n_rows,
                                                .n_rows = n_rows,
                                                .first_pos = first_pos,
                                                .pages = s->pages,
                                                .n_pages = s->n_pages};
    st->seqs[b->n_runs] = s;
    st->outs[b->n_runs] = SL_NO_OUT;
    b->n_rows += n_rows;
    if (n_sampled)
        st->outs[b->n_runs] = b->n_out;
    for (uint32_t i = n_rows - n_sampled; i < n_rows; i++) {
        st->samples[b->n_out] = (struct sl_sample_row){.sampling = &s->sampling,
                                                       .history = s->tokens,
                                                       .n_history = first_pos + i + 1,
                                                       .n_prompt = s->n_prompt,
                                                       .want_digest = s->want_digest};
        st->out_rows[b->n_out++] = b->n_rows - n_rows + i;
    }
    b->n_runs++;
    s->in_step = true;
    if (s->ready_us < st->ready_us)
        st->ready_us = s->ready_us;
}

static void build(struct sl_engine *e, uint32_t n_decode, const struct sl_plan *plan)
{
    struct sl_step *st = &e->step;
    st->batch = (struct sl_batch){.tokens = st->tokens, .runs = st->runs, .out_rows = st->out_rows};
    st->ready_us = UINT64_MAX;
    for (uint32_t i = 0; i < n_decode; i++) {
        struct sl_seq *s = e->decode_seqs[i];
        add_run(e, s, s->n_tokens - 1, 1 + s->n_drafts, 1 + s->n_drafts);
    }
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        struct sl_seq *s = e->prompt_seqs[plan->chunks[i].prompt];
        uint32_t n = plan->chunks[i].n_tokens;
        add_run(e, s, s->computed, n, s->computed + n == sl_seq_goal(s) && sl_seq_samples(s));
    }
    st->load = plan->load;
    st->n_decode = n_decode;
    st->predicted_ms = plan->predicted_ms;
}

static void plan(struct sl_engine *e, uint64_t now_us)
{
    bool preempted = false;
    uint32_t n_decode = gather_decode(e, &preempted);
    if (!preempted)
        admit_all(e, now_us);
    else
        SL_LIST_FOREACH (pos, &e->waiting)
            seq_at(pos)->preempted_now = false;

    uint32_t n_prompts = gather_prompts(e);
    sl_plan_pace_step(&e->pace, &e->cost, n_prompts > 0);
    double context = 0, pace = 0, wish_ms = 0;
    bool without_wish = false;
    for (uint32_t i = 0; i < n_decode; i++) {
        struct sl_seq *s = e->decode_seqs[i];
        without_wish |= s->tpot_ms <= 0;
        if (s->tpot_ms > 0 && (wish_ms <= 0 || s->tpot_ms < wish_ms))
            wish_ms = s->tpot_ms;
        if (n_prompts == 0 || s->pace_tokens == 0)
            s->pace_tokens = s->n_tokens;
        context += s->n_tokens;
        pace += s->pace_tokens;
    }
    struct sl_plan_state state = {
        .cost = &e->cost,
        .pace_cost = &e->pace.cost,
        .prompts = e->prompts,
        .n_prompts = n_prompts,
        .decode_rows = n_decode,
        .decode_context = context,
        .pace_context = pace,
        .max_rows = e->max_rows,
        .align = SL_PLAN_ALIGN,
        .tpot_target_ms = e->tpot_target_ms,
        .tpot_wish_ms = wish_ms,
        .rows_without_wish = without_wish,
        .late = e->learner.late,
        .stretch = e->chunk_stretch,
        .prompt_step_ms = SL_PLAN_PROMPT_STEP_MS,
        .starved_steps = e->starved_steps,
    };
    struct sl_plan p = {.chunks = e->chunks};
    sl_drafts_plan(e, n_decode, &state);
    sl_plan_step(&state, now_us, &p);
    e->starved_steps = state.n_prompts && !p.n_chunks ? e->starved_steps + 1 : 0;
    build(e, n_decode, &p);
}

bool sl_engine_step(struct sl_engine *e, uint64_t now_us)
{
    if (e->in_flight)
        return true;
    /* a plan tells of each sequence at most: preempted, admitted, computed by two hits, finished */
    sl_engine_events_reserve(e, 5 * (size_t)e->n_open);
    sl_alloc_guard_on("step plan");
    plan(e, now_us);
    sl_alloc_guard_off();
    if (e->step.batch.n_rows == 0)
        return false;
    e->in_flight = true;
    sl_device_start(e->dev, &e->step);
    return true;
}

/* ---- results ---- */

static void collect_chunk(struct sl_seq *s, uint32_t n_rows)
{
    struct sl_engine *e = s->e;
    s->chunks++;
    s->prompt_tokens_computed += n_rows;
    if (n_rows > s->largest_chunk)
        s->largest_chunk = n_rows;
    e->total.prompt_tokens += n_rows;
    tell_computed(s, e->step.actual_ms);
}

static void collect_run(struct sl_engine *e, uint32_t i)
{
    struct sl_step *st = &e->step;
    struct sl_seq *s = st->seqs[i];
    s->in_step = false;
    if (s->closing) {
        sl_seq_free(s);
        return;
    }
    if (s->state == SL_SEQ_DECODE) {
        sl_drafts_collect(s, &st->sampled[st->outs[i]]);
        sl_seq_share_pages(s);
        return;
    }
    s->computed += st->runs[i].n_rows;
    collect_chunk(s, st->runs[i].n_rows);
    if (st->outs[i] != SL_NO_OUT) {
        e->total.sampled_tokens++;
        sl_seq_append(s, &st->sampled[st->outs[i]], true);
    } else if (s->computed == sl_seq_goal(s)) {
        sl_seq_prompt_done(s);
    }
    sl_seq_share_pages(s);
}

static unsigned error_percent(double predicted_ms, double actual_ms)
{
    double percent = actual_ms > 0 ? 100 * fabs(predicted_ms - actual_ms) / actual_ms : 0;
    return percent < SL_STEP_ERROR_MAX_PERCENT ? (unsigned)percent : SL_STEP_ERROR_MAX_PERCENT;
}

static void collect(struct sl_engine *e)
{
    struct sl_step *st = &e->step;
    e->in_flight = false;
    e->total.steps++;
    e->total.busy_ms += st->actual_ms;
    e->total.predicted_ms += st->predicted_ms;
    e->total.actual_ms += st->actual_ms;
    e->step_errors[error_percent(st->predicted_ms, st->actual_ms)]++;
    sl_cost_observe(&e->learner, &e->cost, &st->load, st->actual_ms);
    sl_step_record_add(e);
    for (uint32_t i = 0; i < st->batch.n_runs; i++)
        collect_run(e, i);
}

size_t sl_engine_poll(struct sl_engine *e, struct sl_engine_event *out, size_t max)
{
    eventfd_t ignored;
    (void)eventfd_read(e->fd, &ignored); /* EAGAIN: nothing ended */
    if (e->in_flight && !sl_device_busy(e->dev))
        collect(e);
    size_t n = e->n_events < max ? e->n_events : max;
    if (n)
        memcpy(out, &e->events[e->events_head], n * sizeof *out);
    e->n_events -= n;
    e->events_head = e->n_events ? e->events_head + n : 0;
    return n;
}

void sl_engine_wait(struct sl_engine *e)
{
    if (e->in_flight)
        sl_device_wait(e->dev);
}
