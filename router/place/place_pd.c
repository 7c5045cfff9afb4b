/* router/place/place_pd.c - prefill/decode separation: s = the whole prompt, P and D are different nodes.
 *
 * Duties follow what the nodes prefer; where no node prefers a duty, all that are permitted stand for it. */
#include "router/place/candidates.h"

static bool takes_duty(const struct sl_candidates *c, const bool *can, uint32_t i, bool prefill)
{
    bool preferred = false;
    for (uint32_t k = 0; k < c->state->n_nodes; k++)
        preferred |= can[k] && c->state->nodes[k].prefers_prefill == prefill;
    return can[i] && (!preferred || c->state->nodes[i].prefers_prefill == prefill);
}

static uint32_t add_pairs(struct sl_candidates *c, bool by_preference)
{
    uint32_t before = c->out->n_candidates;
    for (uint32_t p = 0; p < c->state->n_nodes; p++)
        for (uint32_t d = 0; d < c->state->n_nodes; d++)
            if (p != d &&
                (by_preference ? takes_duty(c, c->can_p, p, true) && takes_duty(c, c->can_d, d, false)
                               : c->can_p[p] && c->can_d[d]))
                sl_candidates_add(c, (int)p, c->req->n_tokens, (int)d);
    return c->out->n_candidates - before;
}

void sl_place_pd(struct sl_candidates *c)
{
    if (!add_pairs(c, true))
        add_pairs(c, false); /* one node of each duty is not there: any two that are permitted */
}
