/* sluice-bench - judges a cluster and an engine: engine, speculation, compare, equal, stall, simulate. See
 * docs/benchmarks.md for how to read the figures. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct command commands[] = {
    {"engine", sl_bench_engine,
     "prompt, decode and mixed steps of the backend alone, and parts of the roofs"},
    {"replay", sl_bench_replay,
     "a long prompt into decoding streams, in one process: what each step was meant to take"},
    {"speculation", sl_bench_speculation,
     "what guessed tokens bring, on text that repeats itself and on text that does not"},
#ifdef SL_BENCH_CLUSTER
    {"compare", sl_bench_compare,
     "the same open-loop load in every mode, arms interleaved: TTFT, TPOT, gaps, throughput"},
    {"equal", sl_bench_equal,
     "the same prompts in every mode, split, chunk size and batch: tokens and logits must not differ"},
    {"stall", sl_bench_stall, "what running streams feel when a long prompt arrives"},
    {"simulate", sl_bench_simulate,
     "the cluster in virtual time with the daemons' policies: modes against a trace, capacity within SLOs"},
#endif
};

static void help(FILE *out)
{
    fputs("usage: sluice-bench COMMAND [options]\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].help);
    fputs("\nsluice-bench COMMAND --help lists a command's options.\n"
          "exit status: 0 good, 1 a check failed, 2 bad options, 3 the router cannot be reached\n",
          out);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return SL_BENCH_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return SL_BENCH_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "sluice-bench: there is no command \"%s\"; sluice-bench help lists them\n", argv[1]);
    return SL_BENCH_USAGE;
}
