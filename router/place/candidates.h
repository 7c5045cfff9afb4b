/* router/place/candidates.h - shared by the policies: which nodes may take part, what a candidate costs, the
 * cheapest so far. */
#ifndef SLUICE_ROUTER_PLACE_CANDIDATES_H
#define SLUICE_ROUTER_PLACE_CANDIDATES_H

#include "router/place/place.h"

/* What predictions need of a node and does not depend on the candidate. */
struct sl_node_facts {
    bool known;
    bool fixed;              /* chunks have cap rows, whatever the time */
    uint32_t cap;            /* prompt rows of a step at most */
    double cap_ms, one_ms;   /* a step with that many, with one; without attention */
    double beside_ms;        /* of each step: head and attention of what decodes there */
    double alone_ms;         /* step of what decodes there */
    double target_ms;        /* of its mixed steps */
    double wish_damage_ms;   /* the prompts that wait there come later by that if this request decodes beside
                                them: its wish makes their chunks smaller */
    double rest_of_step_ms;  /* until the step that runs there now has ended: half of one */
    double attn_ms, read_ms; /* per 1e6 (row x position), per 1e6 positions read */
    double queue_ms, behind_ms; /* the prompts queued there that run before and behind the request's */
    double work_ms; /* of all that runs before it, with the step that runs: what hold_ms is compared with */
    double tail;    /* rows of the last step of queue_ms that is not full: the request's may join it */
};

struct sl_predictor {
    const struct sl_place_state *state;
    const struct sl_place_req *req;
    double due_ms; /* of its first token, from now; 0 = no node is usable */
    struct sl_node_facts facts[SL_PLACE_MAX_NODES];
};

struct sl_candidates {
    const struct sl_place_state *state;
    const struct sl_place_req *req;
    struct sl_predictor predictor;
    bool can_p[SL_PLACE_MAX_NODES], can_d[SL_PLACE_MAX_NODES];
    struct sl_place_choice *out;
};

/* Policies: each lists its candidates with sl_candidates_add(). One file each. */
void sl_place_pd(struct sl_candidates *c);
void sl_place_colocated(struct sl_candidates *c);
void sl_place_hybrid(struct sl_candidates *c);

/* Prices (p, split, d) and keeps it when it is among the cheapest. p = -1 or p == d is s = 0 at d. False:
 * left out, the pair's link refuses or P's pool is too small. */
bool sl_candidates_add(struct sl_candidates *c, int p, uint32_t split, int d);

/* The nodes of `can` where this prompt would be done first, soonest first; returns their number. Policies
 * look at these as P only: the others can only lose. */
#define SL_BEST_P 4u
uint32_t sl_candidates_best_p(struct sl_candidates *c, const bool *can, int best[SL_BEST_P]);
/* The D's of the cheapest candidates so far, cheapest first; returns their number. What was priced once for
 * every D is refined for these. */
#define SL_BEST_D 8u
uint32_t sl_candidates_best_d(const struct sl_candidates *c, int best[SL_BEST_D]);

/* The prediction of one candidate; predict.c. */
void sl_predict(struct sl_predictor *x, struct sl_place_candidate *c);
/* When the first token of a request is due, from now: as slack.h has it, by the work of its prompt on an idle node, the
 * fastest, or by its wish. */
double sl_predict_due_ms(const struct sl_place_state *state, const struct sl_place_req *req);
/* Pages that n lacks to let the request in now, behind those that wait there; 0 = it comes in at once. */
double sl_predict_pages_missing(const struct sl_place_node *n, const struct sl_place_req *req);
/* Milliseconds until the request's prompt, less what the node's prefix cache has of it, has run there behind
 * what is queued. */
double sl_predict_prefill_ms(struct sl_predictor *x, uint32_t node);
#endif
