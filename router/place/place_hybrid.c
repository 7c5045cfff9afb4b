/* router/place/place_hybrid.c - any split: every D alone, the best few P's with the whole prompt, and some
 * splits between.
 *
 * A split asked for by the client is the only one looked at. P's are limited to those where the prompt would
 * be done first: the others can only lose, and the number of candidates stays linear in the nodes. */
#include "router/place/candidates.h"

#define BEST_P 4 /* prefill nodes looked at */

static const uint32_t quarters[] = {1, 2, 3}; /* of the prompt, rounded down to pages */

/* The BEST_P nodes with the least wait and work for this prompt, ascending. */
static uint32_t find_best_p(const struct sl_candidates *c, int *best)
{
    double ms[BEST_P];
    uint32_t n = 0;
    for (uint32_t p = 0; p < c->state->n_nodes; p++) {
        if (!c->can_p[p])
            continue;
        double t = sl_predict_prefill_ms(&c->state->nodes[p], c->req, c->req->n_tokens, 0);
        uint32_t at = n < BEST_P ? n++ : BEST_P;
        while (at > 0 && t < ms[at - 1]) {
            if (at < BEST_P) {
                ms[at] = ms[at - 1];
                best[at] = best[at - 1];
            }
            at--;
        }
        if (at < BEST_P) {
            ms[at] = t;
            best[at] = (int)p;
        }
    }
    return n;
}

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

void sl_place_hybrid(struct sl_candidates *c)
{
    if (c->req->split >= 0) {
        add_asked_split(c);
        return;
    }
    int best_p[BEST_P];
    uint32_t n_p = find_best_p(c, best_p), n = c->req->n_tokens;
    for (uint32_t d = 0; d < c->state->n_nodes; d++) {
        if (!c->can_d[d])
            continue;
        sl_candidates_add(c, -1, 0, (int)d);
        for (uint32_t i = 0; i < n_p; i++) {
            if (best_p[i] == (int)d)
                continue;
            uint32_t last = 0;
            for (size_t q = 0; q < SL_COUNTOF(quarters); q++) {
                uint32_t s = page_floor(&c->state->nodes[d], (uint64_t)n * quarters[q] / 4);
                if (s != last && s < n)
                    sl_candidates_add(c, best_p[i], s, (int)d);
                last = s;
            }
            sl_candidates_add(c, best_p[i], n, (int)d);
        }
    }
}
