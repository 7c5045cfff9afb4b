/* tests/bench/job_stats.h - what the requests of a load felt, as samples: one table and one JSON form for
 * every command that drives a cluster.
 *
 * Times count from the intended arrival, so a slow server cannot slow the load down and hide it. A request
 * without an answer is an error and in no sample. */
#ifndef SLUICE_TESTS_BENCH_JOB_STATS_H
#define SLUICE_TESTS_BENCH_JOB_STATS_H

#include <jansson.h>

#include "tests/bench/client.h"
#include "tests/bench/stats.h"

/* SL_HANDOVER is of requests that moved pages, by the router's clock: first to second token, less one decode
 * step, less the bytes unsent when the first token came over the measured link rate. SL_SEND_LAG is how late
 * the load itself was. */
enum sl_felt { SL_TTFT, SL_SECOND, SL_TPOT, SL_ITL, SL_GAP_MAX, SL_SEND_LAG, SL_HANDOVER, SL_N_FELT };

struct sl_job_stats {
    struct sl_samples felt[SL_N_FELT]; /* milliseconds */
    uint64_t tokens, errors, requests, cached_tokens;
    double busy_s; /* first intended arrival to last token, summed over the loads added */
    char first_error[256];
};

/* Milliseconds: (last - first token) / (n - 1), and the longest time between two; 0 below two tokens. */
double sl_job_tpot_ms(const struct sl_job *j);
double sl_job_gap_max_ms(const struct sl_job *j);

void sl_job_stats_add(struct sl_job_stats *s, const struct sl_job *jobs, size_t n);
void sl_job_stats_fini(struct sl_job_stats *s);

void sl_job_stats_print_head(void);
void sl_job_stats_print(struct sl_job_stats *s, const char *arm);
/* {"ttft_ms": {"p50", "p90", "p99", "max", "cdf": quantiles at 0, 5, .. 100 %}, .., "tokens_per_s", ..} */
json_t *sl_job_stats_report(struct sl_job_stats *s);

#endif
