/* tests/bench/bench.h - the subcommands of sluice-bench; main.c reads their options, prints their help and
 * their one sentence when something is wrong. */
#ifndef SLUICE_TESTS_BENCH_BENCH_H
#define SLUICE_TESTS_BENCH_BENCH_H

#include "common/base/conf.h"

/* Exit status. */
#define SL_BENCH_OK          0
#define SL_BENCH_FAILED      1 /* the measured thing failed its check */
#define SL_BENCH_USAGE       2 /* bad options */
#define SL_BENCH_UNREACHABLE 3 /* the router cannot be reached */

struct sl_bench_command {
    const char *name, *usage, *help; /* usage: what follows the name */
    const struct sl_conf_opt *options;
    size_t options_bytes; /* of the struct that they fill */
    const char
        *words; /* (optional) the list option that words without an option belong to; -o is --out then */
    /* Returns the exit status; why says what was wrong when it is not SL_BENCH_OK. */
    int (*run)(const void *options, struct sl_why *why);
    void (*more_help)(FILE *out); /* (optional) behind the options */
};

/* commands ends with NULL */
void sl_bench_manual(const struct sl_bench_command *const *commands, FILE *out);
void sl_bench_completion(const struct sl_bench_command *const *commands, FILE *out);

extern const struct sl_bench_command sl_bench_agent, sl_bench_compare, sl_bench_engine, sl_bench_equal,
    sl_bench_link, sl_bench_policies, sl_bench_replay, sl_bench_report, sl_bench_router, sl_bench_serve,
    sl_bench_simulate, sl_bench_snapshot, sl_bench_speculation, sl_bench_stall, sl_bench_steps,
    sl_bench_sweep, sl_bench_trace;

#endif
