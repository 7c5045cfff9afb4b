/* tests/bench/bench.h - the subcommands of sluice-bench. Each returns the exit status: 0 good, 1 the measured
 * thing failed its check, 2 bad options, 3 the router cannot be reached. */
#ifndef SLUICE_TESTS_BENCH_BENCH_H
#define SLUICE_TESTS_BENCH_BENCH_H

#define SL_BENCH_OK          0
#define SL_BENCH_FAILED      1
#define SL_BENCH_USAGE       2
#define SL_BENCH_UNREACHABLE 3

int sl_bench_engine(int argc, char **argv);
int sl_bench_speculation(int argc, char **argv);
int sl_bench_replay(int argc, char **argv);
int sl_bench_compare(int argc, char **argv);
int sl_bench_equal(int argc, char **argv);
int sl_bench_stall(int argc, char **argv);
int sl_bench_simulate(int argc, char **argv);

#endif
