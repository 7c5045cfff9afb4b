/* common/base/metrics.h - counters, gauges and histograms, rendered as Prometheus text.
 *
 * A registry owns its series; a series pointer lives until it is dropped, else as long as the registry, and
 * may be updated from any thread (atomics). Labels are given once, rendered text
 * ("role=\"decode\",node=\"d0\"") or NULL. Registering the same name and labels twice returns the same series.
 * Nothing is exported that is not wired. */
#ifndef SLUICE_COMMON_BASE_METRICS_H
#define SLUICE_COMMON_BASE_METRICS_H

#include <stdint.h>
#include "common/base/buf.h"

struct sl_metrics; /* opaque */
struct sl_metric;  /* opaque: one series */

struct sl_metrics *sl_metrics_new(void);
void sl_metrics_free(struct sl_metrics *m);

struct sl_metric *sl_counter(struct sl_metrics *m, const char *name, const char *labels, const char *help);
struct sl_metric *sl_gauge(struct sl_metrics *m, const char *name, const char *labels, const char *help);
/* bounds ascending, n of them; +Inf is added. */
struct sl_metric *sl_histogram(struct sl_metrics *m, const char *name, const char *labels, const char *help,
                               const double *bounds, size_t n);

/* Takes a series out of the registry and frees it: what it stood for is gone for good. Takes NULL. */
void sl_metrics_drop(struct sl_metrics *m, struct sl_metric *s);
/* Appends name="value", escaped as a label; value is UTF-8. A comma goes before it when out is not empty. */
void sl_metrics_label(struct sl_buf *out, const char *name, const char *value);

void sl_metric_add(struct sl_metric *s, double v);     /* counter (v >= 0) or gauge */
void sl_metric_set(struct sl_metric *s, double v);     /* gauge */
void sl_metric_observe(struct sl_metric *s, double v); /* histogram */
/* Counter and gauge: the value; histogram: the number of observations. */
double sl_metric_value(const struct sl_metric *s);
/* Appends the whole registry: families sorted by name, one HELP and TYPE each. */
void sl_metrics_render(struct sl_metrics *m, struct sl_buf *out);

/* Latency bounds in seconds, 0.5 ms .. 2560 s: fine at the low end for small CPU models. */
extern const double SL_LATENCY_BOUNDS_S[];
extern const size_t SL_N_LATENCY_BOUNDS;

#endif
