/* tests/bench/simulate/sim_node.c - see sim_node.h. */
#include "tests/bench/simulate/sim_node.h"

#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/philox.h"
#include "common/sched/slack.h"

#define UNGRANTED_PRIORITY 1000 /* as in the engine */
#define UNGRANTED_PART     4    /* of the pool, where the group does not say */
#define US                 1e6

struct sim_page {
    uint64_t block;
    uint32_t refs;
    struct sl_list link; /* in node->evictable while refs is 0 */
};

static struct sim_leg *leg_at(struct sl_list *pos)
{
    return SL_CONTAINER_OF(pos, struct sim_leg, link);
}

/* ---- pages ---- */

uint32_t sim_node_available_pages(const struct sim_node *n)
{
    return n->free_pages + n->n_evictable;
}

static uint32_t pages_of(const struct sim_node *n, uint32_t tokens)
{
    return (tokens + n->page_tokens - 1) / n->page_tokens;
}

static bool take_pages(struct sim_leg *l, uint32_t count)
{
    struct sim_node *n = l->node;
    if (count > sim_node_available_pages(n))
        return false;
    while (n->free_pages < count) {
        struct sim_page *p = SL_CONTAINER_OF(n->evictable.next, struct sim_page, link);
        sl_list_remove(&p->link);
        sl_hashmap_del_u64(n->cache, p->block);
        sl_free(p);
        n->n_evictable--;
        n->free_pages++;
    }
    n->free_pages -= count;
    l->n_own += count;
    return true;
}

static void ref(struct sim_node *n, struct sim_page *p)
{
    if (p->refs++ == 0) {
        sl_list_remove(&p->link);
        n->n_evictable--;
    }
}

static void unref(struct sim_node *n, struct sim_page *p)
{
    if (--p->refs == 0) {
        sl_list_add_tail(&n->evictable, &p->link);
        n->n_evictable++;
    }
}

/* Leading blocks of l that the cache holds and it wants; where a token is sampled the last position is
 * computed. */
static uint32_t match(const struct sim_leg *l)
{
    const struct sim_node *n = l->node;
    uint32_t most = (l->compute_to - l->samples) / n->page_tokens, hits = 0;
    most = l->n_blocks < most ? l->n_blocks : most;
    while (hits < most && sl_hashmap_get_u64(n->cache, l->blocks[hits]))
        hits++;
    return hits;
}

static void take_hits(struct sim_leg *l, uint32_t hits)
{
    for (; l->n_shared < hits; l->n_shared++)
        ref(l->node, sl_hashmap_get_u64(l->node->cache, l->blocks[l->n_shared]));
}

static void drop_pages(struct sim_leg *l)
{
    struct sim_node *n = l->node;
    n->free_pages += l->n_own;
    l->n_own = 0;
    while (l->n_shared > 0)
        unref(n, sl_hashmap_get_u64(n->cache, l->blocks[--l->n_shared]));
}

/* Computed full pages become the cache's; where another was faster, ours are given back. */
static void share_pages(struct sim_leg *l)
{
    struct sim_node *n = l->node;
    uint32_t full = l->computed / n->page_tokens;
    full = full < l->n_blocks ? full : l->n_blocks;
    for (; l->n_shared < full; l->n_shared++) {
        struct sim_page *p = sl_hashmap_get_u64(n->cache, l->blocks[l->n_shared]);
        l->n_own--;
        if (p) {
            ref(n, p);
            n->free_pages++;
            continue;
        }
        p = sl_xcalloc(1, sizeof *p);
        p->block = l->blocks[l->n_shared];
        p->refs = 1;
        sl_list_init(&p->link);
        sl_hashmap_put_u64(n->cache, p->block, p);
    }
}

/* ---- preemption ---- */

static void add_victims(struct sim_node *n, struct sl_list *list, uint32_t *count)
{
    SL_LIST_FOREACH (pos, list) {
        struct sim_leg *l = leg_at(pos);
        if (*count == n->victims_cap) {
            n->victims_cap = n->victims_cap ? 2 * n->victims_cap : 64;
            n->victims = sl_xrealloc_array(n->victims, n->victims_cap, sizeof *n->victims);
            n->victim_legs = sl_xrealloc_array(n->victim_legs, n->victims_cap, sizeof(struct sim_leg *));
        }
        n->victim_legs[*count] = l;
        n->victims[(*count)++] = (struct sl_preempt_seq){
            .order = l->order,
            .lost_tokens =
                l->computed > l->n_shared * n->page_tokens ? l->computed - l->n_shared * n->page_tokens : 0,
            .gain_pages = l->n_own,
            .pinned = l->in_step || l->state == SIM_REMOTE || (l->is_p && l->granted),
            .granted = l->granted};
    }
}

static uint32_t gather_victims(struct sim_node *n)
{
    uint32_t count = 0;
    add_victims(n, &n->running, &count);
    add_victims(n, &n->done, &count);
    return count;
}

static bool preempt_one(struct sim_node *n, bool ungranted_only)
{
    uint32_t i = sl_preempt_pick(n->victims, gather_victims(n), ungranted_only);
    if (i == SL_PREEMPT_NONE)
        return false;
    struct sim_leg *l = n->victim_legs[i];
    drop_pages(l);
    n->n_running -= l->state != SIM_COMPUTED;
    l->computed = l->hit = l->pace_tokens = l->remote_to = 0;
    if (!l->is_p)
        l->compute_to = l->n_tokens;
    l->preemptions++;
    l->state = SIM_WAITING;
    sl_list_remove(&l->link);
    struct sl_list *at = n->waiting.next;
    while (at != &n->waiting && leg_at(at)->order < l->order)
        at = at->next;
    sl_list_add_tail(at, &l->link);
    n->n_waiting++;
    n->preemptions++;
    return true;
}

/* ---- admission ---- */

static uint32_t expect(const struct sim_node *n, const struct sim_leg *l)
{
    if (l->is_p)
        return 0;
    return sl_output_mean_expect(l->outputs.n ? &l->outputs : &n->outputs, l->n_tokens - l->n_prompt,
                                 l->limit - l->n_tokens, l->preemptions);
}

static bool peak_fits(struct sim_node *n, const struct sim_leg *l, uint32_t need)
{
    uint32_t count = 0, own = 0;
    SL_LIST_FOREACH (pos, &n->running) {
        const struct sim_leg *r = leg_at(pos);
        own += r->n_own;
        n->expected[count++] =
            (struct sl_admission_seq){.own_pages = r->n_own, .remaining_tokens = expect(n, r)};
    }
    if (count == 0)
        return true;
    uint32_t used = n->total_pages - sim_node_available_pages(n);
    n->expected[count++] = (struct sl_admission_seq){.own_pages = need, .remaining_tokens = expect(n, l)};
    return sl_admission_peak_pages(n->expected, count, used > own ? used - own : 0, n->page_tokens) <=
           n->total_pages - sl_admission_watermark(n->total_pages);
}

static uint32_t ungranted(struct sim_node *n, bool pages_of_victims)
{
    uint32_t sum = 0;
    struct sl_list *const lists[] = {&n->running, &n->done};
    for (size_t i = 0; i < SL_COUNTOF(lists); i++)
        SL_LIST_FOREACH (pos, lists[i]) {
            const struct sim_leg *l = leg_at(pos);
            if (!l->granted && !(pages_of_victims && l->in_step))
                sum += l->n_own;
        }
    return sum;
}

static bool reserve(struct sim_leg *l)
{
    struct sim_node *n = l->node;
    uint32_t all = pages_of(n, l->compute_to), hits = match(l);
    uint32_t spare = sl_list_empty(&n->running) ? 0 : sl_admission_watermark(n->total_pages);
    uint32_t least = all - hits + spare, have = sim_node_available_pages(n);
    if (least > have && (!l->granted || least > have + ungranted(n, true)))
        return false;
    take_hits(l, hits);
    uint32_t need = all - hits;
    while (need + spare > sim_node_available_pages(n))
        if (!l->granted || !preempt_one(n, true))
            break;
    if (need + spare <= sim_node_available_pages(n) && peak_fits(n, l, need) && take_pages(l, need)) {
        l->computed = l->hit = hits * n->page_tokens;
        return true;
    }
    drop_pages(l);
    return false;
}

/* P has all that D wants of it. */
static void prompt_done(struct sim_leg *l)
{
    struct sim_node *n = l->node;
    sl_list_remove(&l->link);
    sl_list_add_tail(&n->done, &l->link);
    n->n_running--;
    l->state = SIM_COMPUTED;
}

static void admit(struct sim_leg *l, double now_s)
{
    struct sim_node *n = l->node;
    sl_list_remove(&l->link);
    sl_list_add_tail(&n->running, &l->link);
    n->n_waiting--;
    n->n_running++;
    n->hit_tokens += l->hit;
    l->state = l->remote_to > l->computed ? SIM_REMOTE : SIM_PREFILL;
    if (l->computed == l->compute_to)
        prompt_done(l);
    n->hooks->on_admitted(l, now_s);
    if (l->hit)
        n->hooks->on_computed(l, now_s);
}

static int64_t level(const struct sim_leg *l, double now_s)
{
    return sl_slack_level(
        &(struct sl_slack){.priority = l->priority, .arrived_us = (uint64_t)(l->opened_s * US)},
        (uint64_t)(now_s * US));
}

static bool goes_before(const struct sim_leg *a, const struct sim_leg *b, double now_s)
{
    int64_t la = level(a, now_s), lb = level(b, now_s);
    if (a->granted != b->granted)
        return a->granted;
    return la != lb ? la < lb : a->order < b->order;
}

static void admit_all(struct sim_node *n, double now_s)
{
    while (n->n_running < n->group->max_sequences && n->n_waiting > 0) {
        uint32_t held = ungranted(n, false), left = n->ungranted_pages > held ? n->ungranted_pages - held : 0;
        struct sim_leg *first = NULL;
        SL_LIST_FOREACH (pos, &n->waiting) {
            struct sim_leg *l = leg_at(pos);
            if (!l->granted && pages_of(n, l->compute_to) > left)
                continue;
            if (!first || goes_before(l, first, now_s))
                first = l;
        }
        if (!first || !reserve(first))
            return;
        admit(first, now_s);
    }
}

/* ---- the step ---- */

static uint32_t gather_decode(struct sim_node *n, bool *preempted)
{
    uint32_t count = 0, kept = 0;
    SL_LIST_FOREACH (pos, &n->running)
        if (leg_at(pos)->state == SIM_DECODE)
            n->decode[count++] = leg_at(pos);
    for (uint32_t i = 0; i < count; i++) {
        struct sim_leg *l = n->decode[i];
        bool has = (l->n_own + l->n_shared) * n->page_tokens >= l->n_tokens;
        while (l->state == SIM_DECODE && !has && !(has = take_pages(l, 1))) {
            if (!preempt_one(n, false))
                break;
            *preempted = true;
        }
        if (has)
            n->decode[kept++] = l;
    }
    count = kept;
    kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (n->decode[i]->state == SIM_DECODE)
            n->decode[kept++] = n->decode[i];
    return kept;
}

static uint32_t gather_prompts(struct sim_node *n)
{
    uint32_t count = 0;
    SL_LIST_FOREACH (pos, &n->running) {
        struct sim_leg *l = leg_at(pos);
        if (l->state != SIM_PREFILL)
            continue;
        n->prompt_legs[count] = l;
        n->prompts[count++] =
            (struct sl_plan_prompt){.history = l->computed,
                                    .remaining = l->compute_to - l->computed,
                                    .total = l->compute_to - l->hit,
                                    .chunk_tokens = n->group->chunk_tokens,
                                    .priority = l->priority + (l->granted ? 0 : UNGRANTED_PRIORITY),
                                    .first_token_us = (uint64_t)(l->first_s * US),
                                    .arrived_us = (uint64_t)(l->opened_s * US)};
    }
    return count;
}

static void see_wish(const struct sim_leg *l, double *tightest_ms, bool *without)
{
    *without |= l->tpot_ms <= 0;
    if (l->tpot_ms > 0 && (*tightest_ms <= 0 || l->tpot_ms < *tightest_ms))
        *tightest_ms = l->tpot_ms;
}

/* Every page is free, cached or held by one leg. */
static void check_pages(const struct sim_node *n)
{
    uint64_t held = 0;
    struct sl_list *const lists[] = {(struct sl_list *)&n->running, (struct sl_list *)&n->done};
    for (size_t i = 0; i < SL_COUNTOF(lists); i++)
        SL_LIST_FOREACH (pos, lists[i])
            held += leg_at(pos)->n_own;
    SL_ASSERT(n->free_pages + held + sl_hashmap_len(n->cache) == n->total_pages);
}

double sim_node_begin(struct sim_node *n, double now_s)
{
    check_pages(n);
    bool preempted = false;
    n->n_decode = gather_decode(n, &preempted);
    if (!preempted)
        admit_all(n, now_s);
    uint32_t n_prompts = gather_prompts(n);
    sl_plan_pace_step(&n->pace, &n->belief, n_prompts > 0);
    double context = 0, pace = 0, wish_ms = 0;
    bool without_wish = false;
    for (uint32_t i = 0; i < n->n_decode; i++) {
        struct sim_leg *l = n->decode[i];
        see_wish(l, &wish_ms, &without_wish);
        if (n_prompts == 0 || l->pace_tokens == 0)
            l->pace_tokens = l->n_tokens;
        context += l->n_tokens;
        pace += l->pace_tokens;
    }
    uint32_t max_rows = n->group->max_batch_tokens;
    if (max_rows < n->group->max_sequences + SL_PLAN_ALIGN)
        max_rows = n->group->max_sequences + SL_PLAN_ALIGN;
    struct sl_plan_state state = {.cost = &n->belief,
                                  .pace_cost = &n->pace.cost,
                                  .prompts = n->prompts,
                                  .n_prompts = n_prompts,
                                  .decode_rows = n->n_decode,
                                  .decode_context = context,
                                  .pace_context = pace,
                                  .max_rows = max_rows,
                                  .align = SL_PLAN_ALIGN,
                                  .tpot_target_ms = n->group->tpot_target_ms,
                                  .tpot_wish_ms = wish_ms,
                                  .rows_without_wish = without_wish,
                                  .late = n->learner.late,
                                  .stretch = n->group->chunk_stretch,
                                  .prompt_step_ms = SL_PLAN_PROMPT_STEP_MS,
                                  .starved_steps = n->starved_steps};
    struct sl_plan plan = {.chunks = n->chunks};
    sl_plan_step(&state, (uint64_t)(now_s * US), &plan);
    if (n->group->chunk_tokens == SL_CHUNK_AUTO && plan.load.prompt_rows >= 2 * SL_PLAN_ALIGN)
        n->over_target += plan.predicted_ms > plan.target_ms * (1 + 1e-9);
    n->starved_steps = n_prompts && !plan.n_chunks ? n->starved_steps + 1 : 0;
    n->n_chunks = plan.n_chunks;
    n->load = plan.load;
    n->predicted_ms = plan.predicted_ms;
    if (n->n_decode + n->n_chunks == 0)
        return 0;
    for (uint32_t i = 0; i < n->n_decode; i++)
        n->decode[i]->in_step = true;
    for (uint32_t i = 0; i < n->n_chunks; i++)
        n->prompt_legs[n->chunks[i].prompt]->in_step = true;
    n->in_step = true;
    n->step_began_s = now_s;
    return sl_cost_predict_ms(&n->group->cost, &n->load);
}

static void release(struct sim_leg *l)
{
    drop_pages(l);
    l->state = SIM_CLOSED;
}

static bool closed_meanwhile(struct sim_leg *l)
{
    l->in_step = false;
    if (l->closing)
        release(l);
    return l->closing;
}

static void token(struct sim_leg *l, double now_s)
{
    l->n_tokens++;
    l->state = SIM_DECODE;
    l->node->hooks->on_token(l, now_s);
}

static void end_chunk(struct sim_leg *l, uint32_t tokens, double now_s)
{
    struct sim_node *n = l->node;
    if (closed_meanwhile(l))
        return;
    l->computed += tokens;
    share_pages(l);
    n->hooks->on_computed(l, now_s);
    if (l->computed < l->compute_to)
        return;
    if (!l->is_p) {
        token(l, now_s);
        return;
    }
    prompt_done(l);
    if (l->samples && !l->told) {
        l->told = true;
        n->hooks->on_token(l, now_s);
    }
}

void sim_node_end(struct sim_node *n, double now_s, double real_ms)
{
    n->in_step = false;
    n->steps++;
    n->busy_s += now_s - n->step_began_s;
    sl_cost_observe(&n->learner, &n->belief, &n->load, real_ms);
    for (uint32_t i = 0; i < n->n_decode; i++)
        if (!closed_meanwhile(n->decode[i])) {
            n->decode[i]->computed = n->decode[i]->n_tokens;
            token(n->decode[i], now_s);
        }
    for (uint32_t i = 0; i < n->n_chunks; i++)
        end_chunk(n->prompt_legs[n->chunks[i].prompt], n->chunks[i].n_tokens, now_s);
}

/* ---- legs ---- */

bool sim_node_open(struct sim_node *n, struct sim_leg *l, double now_s)
{
    if (pages_of(n, l->is_p ? l->compute_to : l->limit) > n->total_pages)
        return false;
    l->node = n;
    l->order = n->next_order++;
    l->opened_s = now_s;
    l->state = SIM_WAITING;
    sl_list_init(&l->link);
    sl_list_add_tail(&n->waiting, &l->link);
    n->n_waiting++;
    return true;
}

void sim_node_grant(struct sim_leg *l)
{
    l->granted = true;
}

void sim_node_close(struct sim_leg *l)
{
    struct sim_node *n = l->node;
    if (l->state == SIM_CLOSED || l->closing)
        return;
    if (!l->is_p && l->n_tokens > l->n_prompt)
        sl_output_mean_add(&n->outputs, l->n_tokens - l->n_prompt);
    n->n_waiting -= l->state == SIM_WAITING;
    n->n_running -= l->state == SIM_REMOTE || l->state == SIM_PREFILL || l->state == SIM_DECODE;
    sl_list_remove(&l->link);
    l->closing = true;
    if (!l->in_step)
        release(l);
}

void sim_node_arrived(struct sim_leg *l, uint32_t tokens, bool with_first_token)
{
    if (l->state != SIM_REMOTE || tokens <= l->computed)
        return;
    l->computed = tokens;
    share_pages(l);
    if (tokens < l->remote_to)
        return;
    l->state = SIM_PREFILL;
    if (with_first_token) {
        l->n_tokens++;
        l->state = SIM_DECODE;
    }
}

struct sim_leg *sim_node_blocking(const struct sim_node *n)
{
    bool work_waits = false;
    struct sim_leg *youngest = NULL;
    SL_LIST_FOREACH (pos, &n->waiting)
        work_waits |= leg_at(pos)->granted && leg_at(pos)->is_p;
    if (n->in_step || !work_waits)
        return NULL;
    SL_LIST_FOREACH (pos, &n->running) {
        struct sim_leg *l = leg_at(pos);
        if (l->state != SIM_REMOTE)
            return NULL;
        if (!youngest || l->order > youngest->order)
            youngest = l;
    }
    return youngest;
}

void sim_node_go_local(struct sim_leg *l)
{
    l->remote_to = l->computed;
    l->state = SIM_PREFILL;
}

void sim_node_load(const struct sim_node *n, struct sim_load *out)
{
    *out = (struct sim_load){0};
    SL_LIST_FOREACH (pos, &n->waiting)
        out->queued_tokens += leg_at(pos)->compute_to;
    SL_LIST_FOREACH (pos, &n->running) {
        const struct sim_leg *l = leg_at(pos);
        bool without = false;
        if (l->state == SIM_PREFILL)
            out->queued_tokens += l->compute_to - l->computed;
        if (l->state != SIM_DECODE)
            continue;
        out->context_tokens += l->n_tokens;
        out->rows++;
        see_wish(l, &out->tpot_wish_ms, &without);
        out->rows_without_wish += without;
    }
}

size_t sim_node_blocks(const struct sim_node *n, uint64_t *out, size_t max)
{
    size_t it = 0, count = 0;
    void *p;
    while (count < max && sl_hashmap_next(n->cache, &it, &p))
        out[count++] = ((struct sim_page *)p)->block;
    return count;
}

/* ---- life ---- */

void sim_node_init(struct sim_node *n, const struct sim_group *g, const char *name, uint32_t page_tokens,
                   const struct sim_hooks *hooks, double cost_error, uint64_t seed)
{
    *n = (struct sim_node){.group = g, .page_tokens = page_tokens, .hooks = hooks, .belief = g->cost};
    snprintf(n->name, sizeof n->name, "%s", name);
    uint64_t pages = g->kv_memory_bytes / ((uint64_t)g->kv_bytes_per_token * page_tokens);
    n->total_pages = n->free_pages = pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX;
    n->ungranted_pages = g->ungranted_pages ? g->ungranted_pages : n->total_pages / UNGRANTED_PART;
    for (uint32_t i = 0; i < g->cost.n_points + SL_COST_TERMS; i++)
        *sl_cost_value(&n->belief, i) *= 1 + cost_error * (2 * (double)sl_philox_uniform(seed, 3, i) - 1);
    sl_cost_learner_init(&n->learner, &n->belief, SL_COST_DOUBT_MEASURED);
    sl_plan_pace_init(&n->pace, &n->belief);
    sl_list_init(&n->waiting);
    sl_list_init(&n->running);
    sl_list_init(&n->done);
    sl_list_init(&n->evictable);
    n->cache = sl_hashmap_new();
    n->decode = sl_xcalloc(g->max_sequences, sizeof(struct sim_leg *));
    n->prompt_legs = sl_xcalloc(g->max_sequences, sizeof(struct sim_leg *));
    n->prompts = sl_xcalloc(g->max_sequences, sizeof *n->prompts);
    n->chunks = sl_xcalloc(g->max_sequences, sizeof *n->chunks);
    n->expected = sl_xcalloc(g->max_sequences + 1, sizeof *n->expected);
}

void sim_node_fini(struct sim_node *n)
{
    size_t it = 0;
    void *p;
    while (n->cache && sl_hashmap_next(n->cache, &it, &p))
        sl_free(p);
    sl_hashmap_free(n->cache);
    sl_free(n->decode);
    sl_free(n->prompt_legs);
    sl_free(n->prompts);
    sl_free(n->chunks);
    sl_free(n->expected);
    sl_free(n->victims);
    sl_free(n->victim_legs);
}
