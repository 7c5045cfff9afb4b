/* tests/bench/engine_run.h - passes over hand-made batches: a model, a device and pages, no scheduler.
 *
 * KV before a pass is real KV of a random text, copied into all pages: attention meets values of the usual
 * spread. Sequences have pages of their own up to the memory given; beyond that they share their histories.
 */
#ifndef SLUICE_TESTS_BENCH_ENGINE_RUN_H
#define SLUICE_TESTS_BENCH_ENGINE_RUN_H

#include "common/model/model.h"
#include "common/sched/cost_model.h"

struct sl_engine_run; /* opaque */

struct sl_engine_run_conf {
    const char *model, *backend;
    uint32_t n_threads, tensor_parallel; /* threads of all ranks */
    uint32_t device;                     /* the first */
    bool no_graphs;
    const int *cpus;
    size_t n_cpus;
    enum sl_dtype kv_dtype;
    uint32_t max_rows, max_decodes, max_tokens; /* of a pass; of one sequence */
    uint64_t kv_bytes;                          /* most memory for pages */
};

SL_MUST_CHECK enum sl_err sl_engine_run_open(const struct sl_engine_run_conf *conf,
                                             struct sl_engine_run **out, struct sl_why *why);
void sl_engine_run_close(struct sl_engine_run *r); /* takes NULL */

/* One pass: a chunk of prompt rows over its history and decode rows over their contexts, one logits row for
 * each decode row and one for a chunk that ends its prompt. */
struct sl_pass {
    uint32_t chunk, history;
    uint32_t decodes, context;
    bool ends_prompt;
};
double sl_engine_run_ms(struct sl_engine_run *r, const struct sl_pass *p);
/* The same in the cost model's words, and in arithmetic. */
struct sl_step_load sl_pass_load(const struct sl_pass *p);
struct sl_pass_work {
    double ops, bytes; /* products and sums; weights and KV that must be read */
};
struct sl_pass_work sl_engine_run_work(const struct sl_engine_run *r, const struct sl_pass *p);

const struct sl_model_conf *sl_engine_run_model(const struct sl_engine_run *r);
const char *sl_engine_run_backend(const struct sl_engine_run *r);
enum sl_dtype sl_engine_run_weight_type(const struct sl_engine_run *r); /* of most layer matrices */
bool sl_engine_run_shares(const struct sl_engine_run *r); /* histories are shared: memory was short */

#endif
