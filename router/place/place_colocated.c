/* router/place/place_colocated.c - one node does all: s = 0. Every node permitted to decode is a candidate,
 * prefill nodes too, so that a comparison of modes uses the same machines. */
#include "router/place/candidates.h"

void sl_place_colocated(struct sl_candidates *c)
{
    for (uint32_t d = 0; d < c->state->n_nodes; d++)
        if (c->can_d[d])
            sl_candidates_add(c, -1, 0, (int)d);
}
