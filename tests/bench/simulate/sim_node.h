/* tests/bench/simulate/sim_node.h - one node in virtual time: what common/engine decides, without the bytes.
 *
 * The same policies in the same order as common/engine/engine_step.c: pages for decode rows, admission by
 * predicted peak, step plan; the truth of a step is node.truth, what is believed is node.belief. */
#ifndef SLUICE_TESTS_BENCH_SIMULATE_SIM_NODE_H
#define SLUICE_TESTS_BENCH_SIMULATE_SIM_NODE_H

#include "common/base/hashmap.h"
#include "common/base/list.h"
#include "common/sched/admission.h"
#include "common/sched/cost_learn.h"
#include "common/sched/preempt.h"
#include "tests/bench/simulate/sim.h"

struct sim_node;
struct sim_job; /* sim_run.c: a request under way */

enum sim_leg_state { SIM_CLOSED, SIM_WAITING, SIM_REMOTE, SIM_PREFILL, SIM_DECODE, SIM_COMPUTED };

/* A sequence of a node, as struct sl_seq. Set by the opener down to `blocks`. */
struct sim_leg {
    struct sim_job *job;
    bool is_p, samples; /* a token follows the last position computed */
    bool granted;       /* P: D has taken it in; D: always */
    uint32_t n_tokens, n_prompt,
        limit; /* with what was generated; what the client sent; the most there may be */
    int32_t priority;
    struct sl_output_mean outputs; /* of its class, when it came */
    double first_s, tpot_ms;       /* when its first token is wanted, and the others after it; 0 = no wish */
    uint32_t remote_to;            /* KV of [hit, remote_to) arrives */
    uint32_t compute_to;           /* of the prompt */
    const uint64_t *blocks;        /* of full pages of the prompt; NULL = not cached */
    uint32_t n_blocks;

    struct sim_node *node;
    struct sl_list link; /* in node->waiting or node->running; P's computed ones in node->done */
    enum sim_leg_state state;
    uint64_t order;
    double opened_s;
    uint32_t computed, hit;
    uint32_t n_own, n_shared; /* pages; shared: the first ones, which the cache holds too */
    uint32_t pace_tokens, preemptions;
    bool in_step, closing, told; /* told: its first token went out, from P */
};

struct sim_hooks {
    void (*on_admitted)(struct sim_leg *l, double now_s); /* also after a preemption */
    void (*on_computed)(struct sim_leg *l, double now_s); /* computed grew */
    void (*on_token)(struct sim_leg *l, double now_s);    /* n_tokens grew by one */
};

struct sim_node {
    const struct sim_group *group;
    char name[48];
    uint32_t page_tokens, total_pages, free_pages, ungranted_pages;
    struct sl_cost_model belief;
    struct sl_cost_learner learner;
    struct sl_plan_pace pace;
    const struct sim_hooks *hooks;

    struct sl_list waiting, running, done;
    uint32_t n_waiting, n_running;
    uint64_t next_order;
    struct sl_output_mean outputs;
    uint32_t starved_steps;

    struct sl_hashmap *cache; /* block -> struct sim_page */
    struct sl_list evictable; /* least recently used first */
    uint32_t n_evictable;

    struct sim_leg *blocking; /* what sim_node_blocking() said last; only compared */
    bool in_step;
    double step_began_s, predicted_ms;
    struct sl_step_load load;
    uint32_t n_decode, n_chunks;
    struct sim_leg **decode, **prompt_legs; /* [max_sequences] */
    struct sl_plan_prompt *prompts;         /* [max_sequences] */
    struct sl_plan_chunk *chunks;           /* [max_sequences] */
    struct sl_admission_seq *expected;      /* [max_sequences + 1] */
    struct sl_preempt_seq *victims;         /* [victims_cap] */
    struct sim_leg **victim_legs;
    uint32_t victims_cap;

    double busy_s, egress_free_s, ingress_free_s;
    uint64_t steps, preemptions, hit_tokens, over_target;
};

/* cost_error and seed: how far and in which way belief starts from the truth. */
void sim_node_init(struct sim_node *n, const struct sim_group *g, const char *name, uint32_t page_tokens,
                   const struct sim_hooks *hooks, double cost_error, uint64_t seed);
void sim_node_fini(struct sim_node *n);

/* False: it can never fit the pool. */
bool sim_node_open(struct sim_node *n, struct sim_leg *l, double now_s);
void sim_node_grant(struct sim_leg *l);
void sim_node_close(struct sim_leg *l);
/* KV of [0, tokens) is in place; with the last of it P's first token when it sampled one. */
void sim_node_arrived(struct sim_leg *l, uint32_t tokens, bool with_first_token);

/* As sl_engine_blocking(): nodes that wait for each other's pages; the leg here that may stop waiting, or
 * NULL. */
struct sim_leg *sim_node_blocking(const struct sim_node *n);
/* What has arrived stays, the rest is computed here. */
void sim_node_go_local(struct sim_leg *l);

/* Plans and starts a step at now_s; returns how long it really takes, or 0 when there is nothing to do. */
double sim_node_begin(struct sim_node *n, double now_s);
void sim_node_end(struct sim_node *n, double now_s, double real_ms);

uint32_t sim_node_available_pages(const struct sim_node *n);
struct sim_load {
    uint64_t queued_tokens; /* of prompts, still to compute */
    uint32_t rows, rows_without_wish;
    uint64_t context_tokens; /* of the rows */
    double tpot_wish_ms;     /* the tightest of the rows; 0 = none */
};
void sim_node_load(const struct sim_node *n, struct sim_load *out);
/* Up to max cached blocks; returns how many. */
size_t sim_node_blocks(const struct sim_node *n, uint64_t *out, size_t max);

#endif
