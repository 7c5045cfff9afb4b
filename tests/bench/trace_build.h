/* tests/bench/trace_build.h - for those who make traces: trace.c (files) and trace_fit.c (fitted ones). */
#ifndef SLUICE_TESTS_BENCH_TRACE_BUILD_H
#define SLUICE_TESTS_BENCH_TRACE_BUILD_H

#include "tests/bench/trace.h"

struct sl_trace_build {
    struct sl_trace *t;
    size_t cap, cap_blocks;
};

void sl_trace_add(struct sl_trace_build *b, double at_s, uint64_t n_prompt, uint64_t n_output);
/* Behind the blocks of the request added last. */
void sl_trace_add_block(struct sl_trace_build *b, uint64_t id);

/* Draws n requests (0 = as many as the original has) of the model in the file; see trace_fit.c for the form.
 * SL_EIO, SL_ECONFIG (file, line, what was expected). */
SL_MUST_CHECK enum sl_err sl_trace_fit_draw(struct sl_trace_build *b, const char *path, size_t n,
                                            uint64_t seed, struct sl_why *why);

#endif
