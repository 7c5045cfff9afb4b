/* router/place/candidates.h - shared by the policies: which nodes may take part, what a candidate costs, the
 * cheapest so far. */
#ifndef SLUICE_ROUTER_PLACE_CANDIDATES_H
#define SLUICE_ROUTER_PLACE_CANDIDATES_H

#include "router/place/place.h"

struct sl_candidates {
    const struct sl_place_state *state;
    const struct sl_place_req *req;
    bool can_p[SL_PLACE_MAX_NODES], can_d[SL_PLACE_MAX_NODES];
    struct sl_place_choice *out;
};

/* Policies: each lists its candidates with sl_candidates_add(). One file each. */
void sl_place_pd(struct sl_candidates *c);
void sl_place_colocated(struct sl_candidates *c);
void sl_place_hybrid(struct sl_candidates *c);

/* Prices (p, split, d) and keeps it when it is among the cheapest. p = -1 or p == d is s = 0 at d. Pairs
 * whose link refuses are left out. */
void sl_candidates_add(struct sl_candidates *c, int p, uint32_t split, int d);

/* The prediction of one candidate; predict.c. */
void sl_predict(const struct sl_place_state *state, const struct sl_place_req *req,
                struct sl_place_candidate *c);
/* Milliseconds until a prompt of new_tokens over history tokens has run on n, behind what is queued there. */
double sl_predict_prefill_ms(const struct sl_place_node *n, const struct sl_place_req *req,
                             uint32_t new_tokens, uint32_t history);
#endif
