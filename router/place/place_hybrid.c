/* router/place/place_hybrid.c - any split: every D alone and with the best P for as much of the prompt as P
 * may compute, then, for the best of these D's, the other good P's and some splits between.
 *
 * A split asked for by the client is the only one looked at. The number of candidates stays linear in the
 * nodes. */
#include "router/place/candidates.h"

static const uint32_t quarters[] = {1, 2, 3}; /* of the prompt, rounded down to pages */

static uint32_t page_floor(const struct sl_place_node *n, uint64_t tokens)
{
    return (uint32_t)(tokens / n->page_tokens * n->page_tokens);
}

static void add_asked_split(struct sl_candidates *c)
{
    const struct sl_place_req *r = c->req;
    for (uint32_t d = 0; d < c->state->n_nodes; d++) {
        if (!c->can_d[d])
            continue;
        uint32_t s =
            r->split == r->n_prompt ? r->n_tokens : page_floor(&c->state->nodes[d], (uint64_t)r->split);
        if (s == 0)
            sl_candidates_add(c, -1, 0, (int)d);
        for (uint32_t p = 0; s && p < c->state->n_nodes; p++)
            if (c->can_p[p] && p != d)
                sl_candidates_add(c, (int)p, s, (int)d);
    }
}

/* The most that P computes for d: all but the last page where d may be in the middle of another's prompt when
 * the pages come. The first token comes from d then, and the stream does not pause behind it. So a prompt
 * within one page stays on such a d: 0. */
static uint32_t most_split(const struct sl_candidates *c, int d)
{
    const struct sl_place_node *n = &c->state->nodes[d];
    return n->may_prefill ? page_floor(n, c->req->n_tokens - 1) : c->req->n_tokens;
}

/* Some splits between p and d, and the largest unless stage 1 has priced it. */
static void add_splits(struct sl_candidates *c, int p, int d, bool most)
{
    uint32_t last = 0, end = most_split(c, d);
    for (size_t q = 0; q < SL_COUNTOF(quarters); q++) {
        uint32_t s = page_floor(&c->state->nodes[d], (uint64_t)c->req->n_tokens * quarters[q] / 4);
        if (s != last && s < end)
            sl_candidates_add(c, p, s, d);
        last = s;
    }
    if (most && end)
        sl_candidates_add(c, p, end, d);
}

/* Stage 1: the first of the best P's that is not d and may send to it, with as much as it may compute. */
static void add_most(struct sl_candidates *c, const int *best_p, uint32_t n_p, int d)
{
    uint32_t split = most_split(c, d);
    for (uint32_t i = 0; i < n_p && split; i++)
        if (best_p[i] != d && sl_candidates_add(c, best_p[i], split, d))
            return;
}

void sl_place_hybrid(struct sl_candidates *c)
{
    if (c->req->split >= 0) {
        add_asked_split(c);
        return;
    }
    int best_p[SL_BEST_P], best_d[SL_BEST_D];
    uint32_t n_p = sl_candidates_best_p(c, c->can_p, best_p);
    for (uint32_t d = 0; d < c->state->n_nodes; d++)
        if (c->can_d[d]) {
            sl_candidates_add(c, -1, 0, (int)d);
            add_most(c, best_p, n_p, (int)d);
        }
    uint32_t n_d = sl_candidates_best_d(c, best_d);
    for (uint32_t k = 0; k < n_d; k++)
        for (uint32_t i = 0; i < n_p; i++)
            if (best_p[i] != best_d[k])
                add_splits(c, best_p[i], best_d[k], i > 0);
}
