/* router/place/place_pd.c - prefill/decode separation: s = the whole prompt, P and D are different nodes.
 *
 * Every D is priced with the best P that may send to it, then the best D's with the other good P's.
 * Duties follow what the nodes prefer; where no node prefers a duty, all that are permitted stand for it. */
#include "router/place/candidates.h"

/* Who of `can` takes a duty: those that prefer it; all, where none does or preference does not count. */
static void find_takers(const struct sl_candidates *c, const bool *can, bool prefill, bool by_preference,
                        bool *takes)
{
    bool preferred = false;
    for (uint32_t i = 0; i < c->state->n_nodes; i++)
        preferred |= by_preference && can[i] && c->state->nodes[i].prefers_prefill == prefill;
    for (uint32_t i = 0; i < c->state->n_nodes; i++)
        takes[i] = can[i] && (!preferred || c->state->nodes[i].prefers_prefill == prefill);
}

static uint32_t add_pairs(struct sl_candidates *c, bool by_preference)
{
    uint32_t before = c->out->n_candidates, n = c->req->n_tokens;
    bool may_p[SL_PLACE_MAX_NODES], may_d[SL_PLACE_MAX_NODES];
    find_takers(c, c->can_p, true, by_preference, may_p);
    find_takers(c, c->can_d, false, by_preference, may_d);
    int best_p[SL_BEST_P], best_d[SL_BEST_D], first[SL_PLACE_MAX_NODES];
    uint32_t n_p = sl_candidates_best_p(c, may_p, best_p);
    for (uint32_t d = 0; d < c->state->n_nodes; d++) {
        first[d] = -1;
        for (uint32_t i = 0; may_d[d] && i < n_p && first[d] < 0; i++)
            if (best_p[i] != (int)d && sl_candidates_add(c, best_p[i], n, (int)d))
                first[d] = best_p[i];
    }
    uint32_t n_d = sl_candidates_best_d(c, best_d);
    for (uint32_t k = 0; k < n_d; k++)
        for (uint32_t i = 0; i < n_p; i++)
            if (best_p[i] != best_d[k] && best_p[i] != first[best_d[k]])
                sl_candidates_add(c, best_p[i], n, best_d[k]);
    return c->out->n_candidates - before;
}

void sl_place_pd(struct sl_candidates *c)
{
    if (!add_pairs(c, true))
        add_pairs(c, false); /* one node of each duty is not there: any two that are permitted */
}
