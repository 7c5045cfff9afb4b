/* sluice-bench - judges a cluster and an engine. Each command is a table of options and a function; this file
 * reads the options, prints help, and tells what was wrong. See docs/benchmarks.md for how to read the
 * figures. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/bench/bench.h"

static const struct sl_bench_command *const commands[] = {
    &sl_bench_engine,
    &sl_bench_steps,
    &sl_bench_speculation,
#ifdef SL_BENCH_CLUSTER
    &sl_bench_serve,
    &sl_bench_sweep,
    &sl_bench_compare,
    &sl_bench_replay,
    &sl_bench_report,
    &sl_bench_equal,
    &sl_bench_stall,
    &sl_bench_link,
    &sl_bench_agent,
    &sl_bench_simulate,
    &sl_bench_policies,
    &sl_bench_router,
    &sl_bench_snapshot,
    &sl_bench_trace,
#endif
    NULL,
};

static void help(FILE *out)
{
    fputs("usage: sluice-bench COMMAND [options]\n\n", out);
    for (const struct sl_bench_command *const *c = commands; *c; c++)
        fprintf(out, "  %-11s %s\n", (*c)->name, (*c)->help);
    fputs("\nsluice-bench COMMAND --help lists a command's options; manual prints the manual page, "
          "completion a script\n"
          "for bash.\n"
          "exit status: 0 good, 1 a check failed, 2 bad options, 3 the router cannot be reached\n",
          out);
}

/* The words of a command that takes some, as items of its list option; the array is the caller's. */
static char **with_words(const struct sl_bench_command *c, int *argc, char **argv)
{
    char **out = sl_xcalloc((size_t)*argc * 2 + 1, sizeof *out);
    int n = 0;
    bool value = false; /* of the option before it */
    for (int i = 0; i < *argc; i++) {
        bool option = argv[i][0] == '-';
        if (c->words && i > 0 && !option && !value)
            out[n++] = (char *)c->words;
        out[n++] = c->words && strcmp(argv[i], "-o") == 0 ? (char *)"--out" : argv[i];
        value = option && !strchr(argv[i], '=');
    }
    *argc = n;
    return out;
}

static int run(const struct sl_bench_command *c, int argc, char **argv)
{
    bool asks = false;
    for (int i = 1; i < argc; i++)
        asks |= strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    if (asks) {
        printf("usage: sluice-bench %s %s\n\n%s\n\n", c->name, c->usage, c->help);
        sl_conf_help(c->options, stdout);
        if (c->more_help)
            c->more_help(stdout);
        return SL_BENCH_OK;
    }
    void *options = sl_xcalloc(1, c->options_bytes);
    struct sl_why why = {0};
    int rc = SL_BENCH_USAGE;
    char **words = with_words(c, &argc, argv);
    if (sl_conf_load(c->options, NULL, argc, words, options, &why) == SL_OK)
        rc = c->run(options, &why);
    sl_free(words);
    if (rc == SL_BENCH_UNREACHABLE && !why.text[0])
        sl_why_set(&why, SL_EPEER, "the server does not answer");
    if (rc != SL_BENCH_OK && why.text[0])
        fprintf(stderr, "sluice-bench %s: %s\n", c->name, why.text);
    sl_conf_fini(c->options, options);
    sl_free(options);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return SL_BENCH_USAGE;
    }
    if (argc > 2 && strcmp(argv[1], "help") == 0) { /* as COMMAND --help */
        static char option[] = "--help";
        argv[1] = argv[2];
        argv[2] = option;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return SL_BENCH_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("sluice-bench " SLUICE_VERSION);
        return SL_BENCH_OK;
    }
    if (strcmp(argv[1], "manual") == 0) {
        sl_bench_manual(commands, stdout);
        return SL_BENCH_OK;
    }
    if (strcmp(argv[1], "completion") == 0) {
        sl_bench_completion(commands, stdout);
        return SL_BENCH_OK;
    }
    for (const struct sl_bench_command *const *c = commands; *c; c++)
        if (strcmp(argv[1], (*c)->name) == 0)
            return run(*c, argc - 1, argv + 1);
    fprintf(stderr, "sluice-bench: there is no command \"%s\"; sluice-bench help lists them\n", argv[1]);
    return SL_BENCH_USAGE;
}
