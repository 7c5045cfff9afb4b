/* router/place/place.h - who computes a request (step 3 of the request path): state of the cluster and
 * request in, choice out.
 *
 * A placement is (prefill node P, split s, decode node D): P computes the KV of tokens [0, s), D the rest and
 * decodes. s = 0 has no P. s is a multiple of page_tokens, or all n_tokens. A mode is a rule that lists
 * candidates; among them the cheapest by prediction is taken, in every mode by the same prices, so that modes
 * differ in nothing but where they may look.
 *
 * Everything here is a pure function of its arguments: no clock, no lock, no I/O, no memory taken. */
#ifndef SLUICE_ROUTER_PLACE_PLACE_H
#define SLUICE_ROUTER_PLACE_PLACE_H

#include <stdint.h>
#include "common/sched/cost_model.h"

#define SL_PLACE_MAX_NODES 1024
#define SL_PLACE_MAX_LINKS 512 /* reported prefill -> decode pairs */
#define SL_PLACE_KEEP      16  /* candidates kept for the decision record, cheapest first */
/* Where no link was measured at all: loopback tcp, cautiously. */
#define SL_PLACE_UNTESTED_BYTES_PER_S 1e9

enum sl_place_mode {
    SL_PLACE_PD = 1,
    SL_PLACE_COLOCATED = 2,
    SL_PLACE_HYBRID = 3
};                                                    /* numbers of the wire's Mode */
const char *sl_place_mode_name(enum sl_place_mode m); /* "pd", "colocated", "hybrid"; "?" otherwise */
/* False when the word is none of the three. */
bool sl_place_mode_parse(const char *word, enum sl_place_mode *out);

/* A node as placement sees it now: last report plus what this router placed there since. */
struct sl_place_node {
    const char *name;
    const char *unusable; /* why nothing may be placed here ("dead", "draining"), NULL when it may */
    const char *excluded; /* why this request does not go here ("refused it before"), NULL when it may */
    bool may_prefill, may_decode;
    bool prefers_prefill; /* else decode */
    uint32_t page_tokens;
    uint64_t page_bytes;
    uint32_t free_pages, total_pages;
    double queued_prompt_tokens;             /* that run before this request's */
    double behind_prompt_tokens;             /* that run behind it */
    uint32_t queued_prompts, behind_prompts; /* how many prompts these are of, at least; 0 = not known */
    uint32_t waiting; /* sequences that are not let in yet: whoever comes now stands behind them */
    uint32_t decode_rows;
    double decode_context_tokens;
    uint32_t hit_tokens;                  /* leading tokens of this request in its prefix cache */
    int32_t chunk_tokens;                 /* -1 automatic, 0 whole prompts, N fixed */
    uint32_t max_batch_tokens;            /* 0 = not told */
    double tpot_target_ms, chunk_stretch; /* what bounds its mixed steps; 0 = none, the plan's default */
    double tpot_wish_ms;                  /* the tightest of what decodes there; 0 = none */
    uint32_t rows_without_wish;
    const struct sl_cost_model *cost;
};

struct sl_place_link {
    uint32_t p, d;        /* indexes of nodes */
    const char *unusable; /* "refused", "down"; NULL when pages may travel */
    bool degraded;        /* taken only when nothing else is there */
    double bytes_per_s;   /* 0 = not measured */
    double latency_us;
};

struct sl_place_state {
    const struct sl_place_node *nodes;
    uint32_t n_nodes;
    const struct sl_place_link *links; /* by p; a pair that is not listed has not met yet and may be tried */
    uint32_t n_links;
    double
        untested_bytes_per_s; /* of a pair whose link was not measured; 0 = SL_PLACE_UNTESTED_BYTES_PER_S */
};

struct sl_place_req {
    uint32_t n_tokens; /* prompt and, after a fault, tokens received */
    uint32_t n_prompt; /* what the client sent; split == n_prompt means the whole of it */
    uint32_t max_new;  /* tokens still to be generated at most */
    enum sl_place_mode mode;
    bool demanded;         /* the mode was asked for by the client: impossible is refused, not replaced */
    bool strict;           /* node names, split and demanded mode bind. After a fault they are wishes only */
    int64_t split;         /* asked for, -1 = by rule */
    int32_t chunk;         /* -2 = the node's setting */
    uint32_t expected_new; /* of max_new those that will come, by its class; 0 = not known */
    double ttft_ms, tpot_ms;     /* wished: until the first token, from now; between tokens. 0 = no wish */
    const char *want_p, *want_d; /* names or NULL */
};

struct sl_place_prediction {
    double ttft_ms;   /* arrival to first token */
    double wait_ms;   /* of it: behind other prompts, and for pages */
    double second_ms; /* arrival to second token */
    double damage_ms; /* delay of others' tokens, summed over them */
    double miss;      /* by how much wishes are missed: 0.5 = one and a half times what was wished; 0 = met */
    double
        cost_ms; /* what is compared: the delays of all users together, a little more for what is less sure */
};

struct sl_place_candidate {
    int p; /* index of nodes, -1 = none */
    uint32_t split;
    int d;
    bool degraded; /* the link is */
    bool
        tight; /* D has too few free pages, now or at the expected peak, or others wait for some: so will it */
    struct sl_place_prediction predicted;
};

struct sl_place_choice {
    struct sl_place_candidate best;
    enum sl_place_mode mode; /* what it is in the end: s = 0 colocated, s = n_tokens pd, else hybrid */
    char reason[192];        /* one sentence */
    struct sl_place_candidate kept[SL_PLACE_KEEP]; /* cheapest first, best is among them */
    uint32_t n_kept, n_candidates;
};

/* SL_ENOTREADY: nothing can serve it, or what was demanded is impossible; SL_EINVAL: the wishes contradict
 * each other or the prompt; SL_ETOOBIG: it fits no decode node's pool. why says it in words; *out is
 * undefined then. */
SL_MUST_CHECK enum sl_err sl_place(const struct sl_place_state *state, const struct sl_place_req *req,
                                   struct sl_place_choice *out, struct sl_why *why);

/* Milliseconds until the least busy node that may decode has worked off what is queued there; 0 when none is
 * usable. What a client that is turned away is told to wait. */
double sl_place_wait_ms(const struct sl_place_state *state);

/* Prompt tokens a millisecond that all usable nodes together compute beside what decodes there; in mode pd
 * those that prefer to. */
double sl_place_tokens_per_ms(const struct sl_place_state *state, enum sl_place_mode mode);

/* The reported link of a pair, or NULL. */
const struct sl_place_link *sl_place_find_link(const struct sl_place_state *state, int p, int d);

#endif
