/* tests/bench/simulate/sim.h - the cluster in virtual time: trace and machines in, what every request felt
 * out.
 *
 * The decisions are the daemons' own code: placement, node table, ledger and prefix index of the router; step
 * plan, slack, admission, preemption and cost learning of the nodes. What is simulated is what they decide
 * about: a step takes as long as the true cost model of its node says, pages travel at the rate of the link,
 * heartbeats are as old as in life. The cost model that the policies see starts with an error of its own and
 * learns from the steps.
 *
 * Where a trace names the blocks of its prompts, a page is such a block and the prefix cache is simulated
 * page by page; else nothing is shared. */
#ifndef SLUICE_TESTS_BENCH_SIMULATE_SIM_H
#define SLUICE_TESTS_BENCH_SIMULATE_SIM_H

#include "common/sched/cost_presets.h"
#include "common/sched/step_plan.h"
#include "router/place/place.h"
#include "tests/bench/trace.h"

/* ---- the machines: sim_cluster.c ---- */

#define SIM_MAX_GROUPS 16u

struct sim_group { /* equal nodes */
    char name[32];
    uint32_t count;
    char model[64];
    struct sl_cost_model cost; /* the truth */
    uint32_t kv_bytes_per_token;
    uint64_t kv_memory_bytes;
    bool prefers_prefill, may_prefill, may_decode;
    int32_t chunk_tokens;
    uint32_t max_batch_tokens, max_sequences;
    uint32_t ungranted_pages; /* that prompts without a grant may hold; 0 = a quarter of the pool */
    double tpot_target_ms, chunk_stretch;
};

struct sim_cluster {
    struct sim_group groups[SIM_MAX_GROUPS];
    uint32_t n_groups;
    double link_bytes_per_s, link_latency_us;
    double router_ms; /* of a request: from the client to its placement, and of its first token back */
    uint32_t heartbeat_ms, page_tokens;
};

/* An INI file: [cluster] and one [group NAME] per kind of node; README.md has an example. SL_EIO,
 * SL_ECONFIG with file, line and what was expected. */
SL_MUST_CHECK enum sl_err sim_cluster_read(const char *path, struct sim_cluster *out, struct sl_why *why);
/* Without a file: n_prefill + n_decode nodes of one preset, all permitted both duties. */
SL_MUST_CHECK enum sl_err sim_cluster_plain(const char *preset, uint32_t n_prefill, uint32_t n_decode,
                                            struct sim_cluster *out, struct sl_why *why);

/* ---- a run: sim_run.c ---- */

#define SIM_MAX_KEYS    16u
#define SIM_MAX_CLASSES 16u

struct sim_class { /* of requests */
    double share;  /* of the trace's requests, drawn */
    int32_t priority;
    double ttft_ms;    /* wished; 0 = no wish */
    uint32_t key;      /* below SIM_MAX_KEYS */
    double key_weight; /* 0 = 1 */
};

struct
    sim_limits { /* TTFT and longest gap in multiples of what a request feels alone; 0 = nothing is judged */
    double ttft_times, gap_times;
    size_t skip;   /* so many requests at the beginning are not judged */
    size_t misses; /* the run ends when more than that many missed; SIZE_MAX = never */
};

struct sim_conf {
    enum sl_place_mode mode;
    struct sim_limits limits;
    const struct sim_class *classes; /* NULL = all requests are equal and wish for nothing */
    uint32_t n_classes;              /* at most SIM_MAX_CLASSES */
    uint32_t hold_ms, max_wait_ms;   /* as of the router; 0 = never hold, never refuse */
    bool refuse;                     /* slo_miss = refuse */
    double tell; /* a request without a class wishes for its limits, the gap times this; 0 = for nothing */
    double cost_error;   /* the policies' cost model starts that far from the truth, each value by itself */
    double noise;        /* standard deviation of a step's time, relative */
    double spikes;       /* share of the steps that something else delays, by 20 % in the mean */
    uint32_t max_tokens; /* what clients ask for; how many come is the trace's */
    uint64_t seed;
    bool progress; /* tell on stderr */
};

struct sim_outcome { /* of one request, milliseconds; 0 and done = false when it was refused */
    bool done, refused;
    uint32_t class;
    uint32_t decoded_by;                       /* node, counted over the groups in order */
    uint32_t prefilled_by, split;              /* of [0, split); split = 0: decoded_by did it all */
    uint32_t n_prompt, n_output, hit_p, hit_d; /* hits: tokens found in the prefix cache there */
    uint32_t gap_token;                        /* the token behind the longest gap */
    double arrived_s, gap_s;                   /* when it came, and when that gap ended */
    float waited;                              /* at the router, for its turn */
    enum sl_place_mode mode;                   /* what its placement was */
    float ttft, second, tpot, gap_max;
    float alone_ttft, alone_gap; /* on an idle node of the kind it decoded on: what SLOs are multiples of */
    float predicted_ttft;
};

struct sim_result {
    struct sim_outcome *outcomes; /* [trace.n], owned */
    size_t n, n_refused, n_unfinished;
    size_t n_missed;      /* of those that are judged: a limit, when conf says what it is */
    bool stopped;         /* too many missed: outcomes are those until then */
    double span_s;        /* virtual: first arrival to last token */
    uint64_t over_target; /* steps planned beyond their time target though no guard asked for it */
    uint64_t steps, tokens, preemptions, moved_tokens, hit_tokens, prompt_tokens;
    uint64_t by_mode[4]; /* placements, by enum sl_place_mode */
    double busy_share;   /* of node seconds */
    double step_error;   /* median |predicted - real| / real of steps */
    double wall_s;
};

SL_MUST_CHECK enum sl_err sim_run(const struct sim_cluster *cluster, const struct sl_trace *trace,
                                  const struct sim_conf *conf, struct sim_result *out, struct sl_why *why);
bool sim_is_late(const struct sim_limits *l, const struct sim_outcome *o);
bool sim_is_paused(const struct sim_limits *l, const struct sim_outcome *o);
void sim_result_fini(struct sim_result *r);

#endif
