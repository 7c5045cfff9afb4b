/* tests/bench/serve_stats.h - the figures of `vllm bench serve`: the same definitions, layout and JSON keys, so
 * that scripts made for it read ours. What vLLM's client does not tell stands under the key "sluice".
 *
 * As there, times count from when a request was sent; "sluice" has them from when it should have been. */
#ifndef SLUICE_TESTS_BENCH_SERVE_STATS_H
#define SLUICE_TESTS_BENCH_SERVE_STATS_H

#include <jansson.h>

#include "common/base/conf.h"
#include "tests/bench/client.h"
#include "tests/bench/stats.h"

/* Service level objectives, milliseconds; 0 = none. A request is good when it meets all; one that failed is not,
 * one of a single token has a TPOT of 0. */
struct sl_slo {
    double ttft_ms, tpot_ms, e2el_ms;
};
/* From "ttft:200", "tpot:50", "e2el:1000". */
SL_MUST_CHECK enum sl_err sl_slo_parse(const struct sl_conf_list *words, struct sl_slo *out,
                                       struct sl_why *why);
static inline bool sl_slo_any(const struct sl_slo *s)
{
    return s->ttft_ms > 0 || s->tpot_ms > 0 || s->e2el_ms > 0;
}
/* from_s: what times count from, the job's sent_s or at_s. */
bool sl_slo_met(const struct sl_slo *s, const struct sl_job *j, double from_s);

/* Tokens of the answer: as the server counts them, else as they came. */
uint32_t sl_job_output_tokens(const struct sl_job *j);

enum sl_serve_metric {
    SL_M_TTFT,
    SL_M_TPOT,
    SL_M_ITL,
    SL_M_E2EL,
    SL_M_QUEUE,
    SL_M_E2EL_QUEUED,
    SL_N_METRICS
};

struct sl_serve_conf {
    struct sl_conf_list metrics, percentiles; /* "ttft"; "99" */
    struct sl_slo slo;
    double rate;              /* INFINITY = all at once */
    uint32_t max_concurrency; /* 0 = any */
    const uint32_t *n_prompt; /* [n] tokens of prompts of which the server does not tell */
};

/* Prints the table; returns the result's members for the JSON file, those of --save-detailed too. cpu_s is
 * processor time that this client took for the run. */
json_t *sl_serve_tell(const struct sl_serve_conf *c, const struct sl_job *jobs, size_t n, double cpu_s);

/* The members that are left out unless --save-detailed. */
extern const char *const sl_serve_details[];

#endif
