/* tests/bench/engine_plot.h - draws the result of `sluice-bench engine` as one SVG that needs nothing else.
 */
#ifndef SLUICE_TESTS_BENCH_ENGINE_PLOT_H
#define SLUICE_TESTS_BENCH_ENGINE_PLOT_H

#include <jansson.h>
#include "common/base/err.h"

SL_MUST_CHECK enum sl_err sl_engine_plot(const json_t *doc, const char *path, struct sl_why *why);

#endif
