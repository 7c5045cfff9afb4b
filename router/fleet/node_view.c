/* router/fleet/node_view.c - the table as placement sees it, and whether it can serve at all. */
#include "router/fleet/node_table.h"

#include <math.h>
#include <string.h>

#define CHUNK_ROWS 128u /* prompts are taken to run at the speed of such chunks */

/* Milliseconds of a prompt token beside what decodes there; 0 = not known. */
static double token_ms(const struct sl_node *n)
{
    const struct sl_step_load step = {.prompt_rows = CHUNK_ROWS, .decode_rows = n->load.decode_rows};
    double ms = sl_cost_predict_ms(&n->cost, &step) / CHUNK_ROWS;
    return ms > 0 && isfinite(ms) ? ms : 0;
}

/* Queued prompt tokens as reported, less what the node can have computed since, plus what was placed there
 * since. */
static double queued_now(const struct sl_node *n, uint64_t now_ms, double ms)
{
    double queued = (double)n->load.queued_prompt_tokens;
    if (queued > 0 && ms > 0)
        queued = fmax(0, queued - (double)(now_ms - n->heard_ms) / ms);
    return queued + (double)(n->sent.prompt_tokens + n->accepted.prompt_tokens);
}

/* Tokens of c that run before a prompt of own tokens that comes now. By relative slack, which falls by 1/work
 * while a prompt waits, it overtakes a longer one that has waited for t after t * own / (longer - own). */
static double before(const struct sl_charge *c, uint64_t now_ms, double ms, double own)
{
    double tokens = (double)c->prompt_tokens,
           waited = now_ms > c->placed_ms ? (double)(now_ms - c->placed_ms) : 0;
    return tokens > own && ms > 0 ? fmin(tokens, waited / ms * own / (tokens - own)) : tokens;
}

struct queue {
    double tokens;            /* that run before a prompt */
    uint32_t prompts, behind; /* of this router: those mostly before it, and the others */
};

/* Of queued tokens those that run before a prompt with own tokens to compute. Of what this router placed
 * there the less urgent prompts run behind it, and of equally urgent ones what it overtakes, unless they wait
 * to be let in: that is as they came. The part of a prompt that is computed already is taken from both sides
 * alike. */
static struct queue ahead(const struct sl_node *n, uint64_t now_ms, double ms, int32_t priority, double own,
                          double queued)
{
    struct queue q = {0};
    double all = 0, behind = 0;
    SL_LIST_FOREACH (pos, &n->prompts) {
        const struct sl_charge *c = SL_CONTAINER_OF(pos, struct sl_charge, link);
        double tokens = (double)c->prompt_tokens, first = 0;
        if (c->priority < priority || (c->priority == priority && n->load.waiting))
            first = tokens;
        else if (c->priority == priority)
            first = before(c, now_ms, ms, own);
        if (tokens > 0)
            ++*(first > tokens / 2 ? &q.prompts : &q.behind);
        all += tokens;
        behind += tokens - first;
    }
    q.tokens = all > queued ? queued * (1 - behind / all) : queued - behind;
    return q;
}

/* What this router placed on n and does not decode there yet: rows beside which a request that comes now will
 * decode. No report counts them: a prompt runs first, there or on another node, often for seconds. */
static struct sl_node_ledger coming(const struct sl_node *n)
{
    struct sl_node_ledger sum = n->sent;
    sum.rows += n->accepted.rows;
    sum.context_tokens += n->accepted.context_tokens;
    SL_LIST_FOREACH (pos, &n->prompts) {
        const struct sl_charge *c = SL_CONTAINER_OF(pos, struct sl_charge, link);
        if (c->state != SL_CHARGE_ACCEPTED || c->heartbeat == n->heartbeats)
            continue;
        sum.rows += c->amount.rows;
        sum.context_tokens += c->amount.context_tokens;
    }
    return sum;
}

static void view_node(const struct sl_node *n, uint64_t now_ms, const struct sl_node_asker *who,
                      struct sl_place_node *out)
{
    uint32_t hit = 0;
    double ms = token_ms(n), queued = queued_now(n, now_ms, ms);
    struct queue first = {.tokens = queued};
    if (who) {
        hit = sl_prefix_set_hit(&n->prefixes, who->chain, who->n_chain) * n->model.page_tokens;
        double own = fmax(1, (double)who->n_tokens - hit);
        first = ahead(n, now_ms, ms, who->priority, own, queued);
    }
    const struct sl_node_ledger more = coming(n);
    uint32_t placed_pages = n->sent.pages + n->accepted.pages;
    *out = (struct sl_place_node){
        .name = n->name,
        .unusable = n->state == SL_NODE_UP ? NULL : sl_node_state_name(n->state),
        .may_prefill = n->may_prefill,
        .may_decode = n->may_decode,
        .prefers_prefill = n->prefers_prefill,
        .page_tokens = n->model.page_tokens,
        .page_bytes = n->model.page_bytes,
        .free_pages = n->load.free_pages > placed_pages ? n->load.free_pages - placed_pages : 0,
        .total_pages = n->load.total_pages ? n->load.total_pages : n->kv_pages,
        .queued_prompt_tokens = first.tokens,
        .behind_prompt_tokens = queued - first.tokens,
        .queued_prompts = first.prompts,
        .behind_prompts = first.behind,
        .waiting = n->load.waiting,
        .decode_rows = n->load.decode_rows + more.rows,
        .decode_context_tokens = (double)(n->load.decode_context_tokens + more.context_tokens),
        .hit_tokens = hit,
        .chunk_tokens = n->chunk_tokens,
        .tpot_target_ms = n->tpot_target_ms,
        .chunk_stretch = n->chunk_stretch,
        .tpot_wish_ms = n->load.tpot_wish_ms,
        .rows_without_wish = n->load.rows_without_wish + more.rows,
        .max_batch_tokens = n->max_batch_tokens,
        .cost = &n->cost,
    };
}

/* The reasons placement may name, in static storage. */
static const char *link_unusable(const struct sl_node_peer *p)
{
    if (strcmp(p->state, "refused") == 0)
        return "refused";
    return strcmp(p->state, "down") == 0 ? "down" : NULL;
}

void sl_node_table_view(const struct sl_node_table *t, uint64_t now_ms, const struct sl_node_asker *who,
                        struct sl_node_view *out)
{
    uint32_t n_nodes = sl_node_table_len(t), n_links = 0, n_measured = 0;
    double sum_rate = 0;
    for (uint32_t i = 0; i < n_nodes; i++) {
        const struct sl_node *n = sl_node_table_at(t, i);
        view_node(n, now_ms, who, &out->nodes[i]);
        for (uint32_t k = 0; k < n->n_peers && n_links < SL_PLACE_MAX_LINKS; k++) {
            const struct sl_node_peer *p = &n->peers[k];
            if (p->bytes_per_s > 0) {
                sum_rate += p->bytes_per_s;
                n_measured++;
            }
            const struct sl_node *d = sl_node_table_find_boot(t, p->peer, p->peer_boot_id);
            if (d)
                out->links[n_links++] = (struct sl_place_link){.p = i,
                                                               .d = d->index,
                                                               .unusable = link_unusable(p),
                                                               .degraded = strcmp(p->state, "degraded") == 0,
                                                               .bytes_per_s = p->bytes_per_s,
                                                               .latency_us = p->latency_us};
        }
    }
    out->state = (struct sl_place_state){
        .nodes = out->nodes,
        .n_nodes = n_nodes,
        .links = out->links,
        .n_links = n_links,
        .untested_bytes_per_s = n_measured ? sum_rate / n_measured : 0}; /* as those measured, on average */
}

/* One node that may decode and prefill its own prompts serves alone: decoding nodes always can, since s = 0
 * is computed there. */
bool sl_node_table_ready(const struct sl_node_table *t, struct sl_why *why)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < sl_node_table_len(t); i++) {
        const struct sl_node *n = sl_node_table_at(t, i);
        alive += n->state != SL_NODE_DEAD;
        if (n->state == SL_NODE_UP && n->may_decode)
            return true;
    }
    if (sl_node_table_len(t) == 0)
        sl_why_set(why, SL_ENOTREADY, "No node has registered yet; at least one that may decode is needed.");
    else
        sl_why_set(why, SL_ENOTREADY,
                   "%u of %u nodes are alive, and none of them may decode and takes new work.", alive,
                   sl_node_table_len(t));
    return false;
}
