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

/* ---- the trace: sim_trace.c ---- */

struct sim_request {
    double at_s;
    uint32_t n_prompt, n_output;
    uint32_t first_block, n_blocks; /* of trace.blocks: the prompt's blocks in order */
};

struct sim_trace {
    struct sim_request *requests; /* by at_s */
    size_t n;
    uint64_t *blocks; /* equal number = same content behind the same prefix; NULL = the trace has none */
    size_t n_blocks;
    uint32_t block_tokens; /* 0 = none */
};

struct sim_trace_conf {
    const char *path;   /* NULL = drawn: lengths log-uniform, Poisson */
    double speed;       /* arrivals are that much faster than in the file */
    double rate;        /* Poisson arrivals at this rate instead of the file's times; 0 = the file's */
    size_t n;           /* requests: the file is cut, or repeated end to end; 0 = as many as it has */
    uint32_t max_total; /* longer requests are cut to it, prompt first */
    uint64_t seed;
};

/* Files: CSV with a header (arrival_us,prompt_tokens,output_tokens[,blocks512] or Azure's
 * TIMESTAMP,ContextTokens,GeneratedTokens or num_prefill_tokens,num_decode_tokens, which needs a rate), or
 * Mooncake's JSON lines. SL_EIO, SL_EPARSE (file and line), SL_EINVAL. */
SL_MUST_CHECK enum sl_err sim_trace_open(const struct sim_trace_conf *c, struct sim_trace *out,
                                         struct sl_why *why);
void sim_trace_close(struct sim_trace *t);

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
    double tpot_target_ms, chunk_stretch;
};

struct sim_cluster {
    struct sim_group groups[SIM_MAX_GROUPS];
    uint32_t n_groups;
    double link_bytes_per_s, link_latency_us;
    uint32_t heartbeat_ms, page_tokens;
};

/* An INI file: [cluster] and one [group NAME] per kind of node; README.md has an example. SL_EIO,
 * SL_ECONFIG with file, line and what was expected. */
SL_MUST_CHECK enum sl_err sim_cluster_read(const char *path, struct sim_cluster *out, struct sl_why *why);
/* Without a file: n_prefill + n_decode nodes of one preset, all permitted both duties. */
SL_MUST_CHECK enum sl_err sim_cluster_plain(const char *preset, uint32_t n_prefill, uint32_t n_decode,
                                            struct sim_cluster *out, struct sl_why *why);

/* ---- a run: sim_run.c ---- */

struct sim_conf {
    enum sl_place_mode mode;
    double cost_error;   /* the policies' cost model starts that far from the truth, each value by itself */
    double noise;        /* standard deviation of a step's time, relative */
    uint32_t max_tokens; /* what clients ask for; how many come is the trace's */
    uint64_t seed;
    bool progress; /* tell on stderr */
};

struct sim_outcome { /* of one request, milliseconds; 0 and done = false when it was refused */
    bool done;
    enum sl_place_mode mode; /* what its placement was */
    float ttft, second, tpot, gap_max;
    float alone_ttft, alone_gap; /* on an idle node of the kind it decoded on: what SLOs are multiples of */
    float predicted_ttft;
};

struct sim_result {
    struct sim_outcome *outcomes; /* [trace.n], owned */
    size_t n, n_refused, n_unfinished;
    double span_s; /* virtual: first arrival to last token */
    uint64_t steps, tokens, preemptions, moved_tokens, hit_tokens, prompt_tokens;
    uint64_t by_mode[4]; /* placements, by enum sl_place_mode */
    double busy_share;   /* of node seconds */
    double step_error;   /* median |predicted - real| / real of steps */
    double wall_s;
};

SL_MUST_CHECK enum sl_err sim_run(const struct sim_cluster *cluster, const struct sim_trace *trace,
                                  const struct sim_conf *conf, struct sim_result *out, struct sl_why *why);
void sim_result_fini(struct sim_result *r);

#endif
