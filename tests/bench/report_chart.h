/* tests/bench/report_chart.h - charts of a report as inline SVG: lines or points over two axes, and time lines of
 * requests.
 *
 * Every chart has a title and a sentence for those who cannot see it, and its numbers stand in a table below that can
 * be opened. Series differ by colour and by marker; both themes come from the page's style sheet, so colours are
 * classes (s0 to s7), not values. */
#ifndef SLUICE_TESTS_BENCH_REPORT_CHART_H
#define SLUICE_TESTS_BENCH_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"

#define SL_CHART_SERIES 8

struct sl_chart_point {
    double x, y, low, high; /* low to high: an interval of y; NaN = none */
};

struct sl_chart_series {
    char name[80];
    struct sl_chart_point *points; /* owned */
    size_t n, cap;
    unsigned look; /* its colour and marker: a mode has the same ones in all charts */
    bool dotted;   /* points without a line */
};

struct sl_chart {
    const char *title, *x_label, *y_label;
    char about[200]; /* one sentence: what is to be seen */
    bool log_x, y_percent, steps;
    double mark_y; /* a horizontal line there; NaN = none */
    struct sl_chart_series series[SL_CHART_SERIES];
    size_t n;
    bool more; /* series that did not fit */
};

/* NULL when there are SL_CHART_SERIES of other names: what does not fit is left out, and the chart says so. */
struct sl_chart_series *sl_chart_series(struct sl_chart *c, const char *name);
void sl_chart_add(struct sl_chart_series *s, double x, double y); /* takes NULL */
void sl_chart_add_interval(struct sl_chart_series *s, double x, double y, double low, double high);
/* The distribution of n values, which are sorted: share of them up to each. At most some hundred points. */
void sl_chart_add_cdf(struct sl_chart_series *s, double *values, size_t n);
/* Appends the figure; nothing when no series has a point. Frees the points. */
void sl_chart_write(struct sl_chart *c, struct sl_buf *out);

struct sl_timeline_row {
    double start_s, first_s, end_s; /* sent, first token, last token; first_s below start_s: failed */
    const double *gaps_s;           /* [n_gaps] between its tokens */
    size_t n_gaps;
};
/* A bar for each request: waiting, then decoding, with marks where a gap is above slow_s. */
void sl_timeline_write(const char *title, const struct sl_timeline_row *rows, size_t n, double slow_s,
                       struct sl_buf *out);

void sl_html_escape(struct sl_buf *out, const char *text);

#endif
