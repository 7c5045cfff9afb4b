/* common/engine/pages.c - the engine's side of common/kv: who holds which page, and who gives them up.
 *
 * Everything here runs while no step is in flight, except sl_seq_share_pages() for pages that arrived. */
#include "common/engine/engine_impl.h"

uint32_t sl_pages_of(const struct sl_engine *e, uint32_t n_tokens)
{
    return n_tokens / e->page_tokens + (n_tokens % e->page_tokens != 0);
}

static void hash_to(struct sl_seq *s, uint32_t n_pages)
{
    const struct sl_engine *e = s->e;
    for (; s->n_hashes < n_pages; s->n_hashes++) {
        uint32_t i = s->n_hashes;
        s->hashes[i] = sl_kv_chain_hash(&e->model_digest, s->salt, i ? s->hashes[i - 1] : SL_KV_CHAIN_ROOT,
                                        &s->tokens[(size_t)i * e->page_tokens], e->page_tokens);
    }
}

static struct sl_kv_chain chain_of(struct sl_seq *s, uint32_t n_pages)
{
    if (!s->use_prefix_cache)
        n_pages = 0;
    hash_to(s, n_pages);
    return (struct sl_kv_chain){
        .salt = s->salt, .hashes = s->hashes, .tokens = s->tokens, .n_pages = n_pages};
}

struct sl_kv_chain sl_seq_chain(struct sl_seq *s)
{
    uint32_t goal = sl_seq_goal(s);
    return chain_of(s, (sl_seq_samples(s) ? goal - 1 : goal) / s->e->page_tokens);
}

void sl_seq_share_pages(struct sl_seq *s)
{
    /* the page of the last token stays private until the token after it is known (kv/README.md, rule 4) */
    uint32_t final = s->computed;
    if (s->sample && final >= s->n_tokens)
        final = s->n_tokens - 1;
    struct sl_kv_chain c = chain_of(s, final / s->e->page_tokens);
    if (c.n_pages && !sl_kv_prefix_cached(s->e->prefix, s->pages[c.n_pages - 1]))
        sl_kv_prefix_insert(s->e->prefix, &c, s->pages);
}

void sl_seq_drop_pages(struct sl_seq *s)
{
    while (s->n_pages)
        sl_kv_prefix_drop(s->e->prefix, s->pages[--s->n_pages]);
}

uint32_t sl_engine_available_pages(const struct sl_engine *e)
{
    return sl_kv_pool_free_pages(e->pool) + sl_kv_prefix_evictable_pages(e->prefix);
}

bool sl_seq_take_pages(struct sl_seq *s, uint32_t n)
{
    struct sl_engine *e = s->e;
    if (n > sl_engine_available_pages(e))
        return false;
    uint32_t free = sl_kv_pool_free_pages(e->pool);
    if (n > free)
        sl_kv_prefix_evict(e->prefix, n - free);
    uint32_t after = s->n_pages ? s->pages[s->n_pages - 1] : SL_KV_NO_PAGE;
    if (sl_kv_pool_take(e->pool, n, after, &s->pages[s->n_pages]) != SL_OK)
        return false;
    s->n_pages += n;
    return true;
}

static struct sl_preempt_seq victim_of(const struct sl_seq *s)
{
    const struct sl_engine *e = s->e;
    struct sl_preempt_seq v = {.order = s->order, .pinned = s->pinned, .granted = s->granted};
    for (uint32_t i = 0; i < s->n_pages; i++) {
        uint32_t cached = sl_kv_prefix_cached(e->prefix, s->pages[i]);
        if (sl_kv_pool_refs(e->pool, s->pages[i]) - cached > 1)
            continue;
        uint32_t first = i * e->page_tokens;
        uint32_t computed = s->computed > first ? s->computed - first : 0;
        v.lost_tokens += computed < e->page_tokens ? computed : e->page_tokens;
        v.gain_pages++;
    }
    return v;
}

/* All that may give pages: running ones, and finished prompts that wait for their grant. */
static uint32_t gather_victims(struct sl_engine *e)
{
    uint32_t n = 0;
    SL_ASSERT(!e->in_flight); /* so nothing is in a step, or closes at the end of one */
    SL_LIST_FOREACH (pos, &e->running)
        e->victim_seqs[n++] = SL_CONTAINER_OF(pos, struct sl_seq, link);
    SL_LIST_FOREACH (pos, &e->done) {
        struct sl_seq *s = SL_CONTAINER_OF(pos, struct sl_seq, link);
        if (s->state == SL_SEQ_IDLE && !s->granted)
            e->victim_seqs[n++] = s;
    }
    for (uint32_t i = 0; i < n; i++)
        e->victims[i] = victim_of(e->victim_seqs[i]);
    return n;
}

static void preempt(struct sl_seq *s)
{
    struct sl_engine *e = s->e;
    sl_seq_drop_pages(s);
    s->computed = s->hit = 0;
    s->pace_tokens = 0;
    s->remote_to = 0;
    s->preemptions++;
    s->preempted_now = true;
    if (s->state != SL_SEQ_IDLE)
        e->n_running--;
    s->state = SL_SEQ_WAITING;
    sl_list_remove(&s->link);
    struct sl_list *at = e->waiting.next;
    while (at != &e->waiting && SL_CONTAINER_OF(at, struct sl_seq, link)->order < s->order)
        at = at->next;
    sl_list_add_tail(at, &s->link); /* before at */
    e->n_waiting++;
    e->total.preemptions++;
    sl_engine_event_push(e, &(struct sl_engine_event){.kind = SL_EV_PREEMPTED, .seq = s, .owner = s->owner});
}

bool sl_engine_preempt_one(struct sl_engine *e, bool ungranted_only)
{
    uint32_t i = sl_preempt_pick(e->victims, gather_victims(e), ungranted_only);
    if (i == SL_PREEMPT_NONE)
        return false;
    preempt(e->victim_seqs[i]);
    return true;
}

uint32_t sl_engine_ungranted_gain(struct sl_engine *e)
{
    uint32_t gain = 0, n = gather_victims(e);
    for (uint32_t i = 0; i < n; i++)
        if (!e->victims[i].granted && !e->victims[i].pinned)
            gain += e->victims[i].gain_pages;
    return gain;
}

static uint32_t ungranted_in(const struct sl_list *list)
{
    uint32_t n = 0;
    SL_LIST_FOREACH (pos, list) {
        const struct sl_seq *s = SL_CONTAINER_OF(pos, struct sl_seq, link);
        if (!s->granted)
            n += s->n_pages;
    }
    return n;
}

uint32_t sl_engine_ungranted_held(const struct sl_engine *e)
{
    return ungranted_in(&e->running) + ungranted_in(&e->done);
}

bool sl_seq_rematch(struct sl_seq *s)
{
    struct sl_engine *e = s->e;
    if (s->computed != s->hit || s->pinned || s->remote_to)
        return false;
    struct sl_kv_chain c = sl_seq_chain(s);
    if (sl_kv_prefix_match(e->prefix, &c) * e->page_tokens <= s->computed)
        return false;
    uint32_t n = sl_kv_prefix_take(e->prefix, &c, e->scratch_pages);
    for (uint32_t i = n; i-- > 0;) {
        uint32_t mine = s->pages[i];
        s->pages[i] = e->scratch_pages[i];
        sl_kv_prefix_drop(e->prefix, mine);
    }
    e->total.prefix_hits_tokens += n * e->page_tokens - s->hit;
    s->computed = s->hit = n * e->page_tokens;
    return true;
}
