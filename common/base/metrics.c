/* common/base/metrics.c - families sorted by name, each with its series in the order they were registered.
 *
 * Registering and rendering take a mutex; updating a series is one compare-and-swap loop on a double's bits.
 * A histogram's _count is the sum of its buckets at the moment of rendering, so that the two always agree;
 * its _sum may be a few observations apart. Wrong names or mixed types are bugs of ours and assert. */
#include "common/base/metrics.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

enum kind { COUNTER, GAUGE, HISTOGRAM };

static const char *const kind_words[] = {"counter", "gauge", "histogram"};

struct sl_metric {
    struct family *family;
    char *labels;                /* "" when there are none */
    _Atomic uint64_t value_bits; /* counter, gauge: the value; histogram: the sum */
    _Atomic uint64_t *buckets;   /* histogram: n_bounds + 1, not cumulative */
};

struct family {
    enum kind kind;
    char *name, *help;
    double *bounds;
    size_t n_bounds;
    struct sl_metric **series;
    size_t n_series;
};

struct sl_metrics {
    pthread_mutex_t lock;
    struct family **families;
    size_t n_families;
};

/* Steps of 1, 2, 5 from 0.5 ms to 2 s, then doubling. */
const double SL_LATENCY_BOUNDS_S[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,  1.0,
                                      2.5,    5.0,   10.0,  20.0,  40.0, 80.0, 160,  320, 640, 1280, 2560};
const size_t SL_N_LATENCY_BOUNDS = SL_COUNTOF(SL_LATENCY_BOUNDS_S);

static double from_bits(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint64_t to_bits(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static void add_atomic(_Atomic uint64_t *at, double v)
{
    uint64_t old = atomic_load_explicit(at, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(at, &old, to_bits(from_bits(old) + v), memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

struct sl_metrics *sl_metrics_new(void)
{
    struct sl_metrics *m = sl_xcalloc(1, sizeof *m);
    SL_ASSERT(pthread_mutex_init(&m->lock, NULL) == 0);
    return m;
}

static void series_free(struct sl_metric *s)
{
    sl_free(s->labels);
    sl_free((void *)s->buckets);
    sl_free(s);
}

void sl_metrics_free(struct sl_metrics *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_families; i++) {
        struct family *f = m->families[i];
        for (size_t j = 0; j < f->n_series; j++)
            series_free(f->series[j]);
        sl_free(f->series);
        sl_free(f->bounds);
        sl_free(f->name);
        sl_free(f->help);
        sl_free(f);
    }
    sl_free(m->families);
    pthread_mutex_destroy(&m->lock);
    sl_free(m);
}

static bool name_ok(const char *name)
{
    if (!isalpha((unsigned char)name[0]) && name[0] != '_')
        return false;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != ':')
            return false;
    return true;
}

static struct family *family_get(struct sl_metrics *m, enum kind kind, const char *name, const char *help,
                                 const double *bounds, size_t n_bounds)
{
    size_t at = 0;
    int cmp = 1;
    while (at < m->n_families && (cmp = strcmp(m->families[at]->name, name)) < 0)
        at++;
    if (at < m->n_families && cmp == 0) {
        struct family *f = m->families[at];
        SL_ASSERT(f->kind == kind && f->n_bounds == n_bounds &&
                  (n_bounds == 0 || memcmp(f->bounds, bounds, n_bounds * sizeof *bounds) == 0));
        return f;
    }
    SL_ASSERT(name_ok(name));
    for (size_t i = 1; i < n_bounds; i++)
        SL_ASSERT(bounds[i - 1] < bounds[i]);
    struct family *f = sl_xcalloc(1, sizeof *f);
    f->kind = kind;
    f->name = sl_xstrdup(name);
    f->help = sl_xstrdup(help);
    f->n_bounds = n_bounds;
    if (n_bounds)
        f->bounds = sl_xmemdup(bounds, n_bounds * sizeof *bounds);
    m->families = sl_xrealloc_array(m->families, m->n_families + 1, sizeof *m->families);
    memmove(m->families + at + 1, m->families + at, (m->n_families - at) * sizeof *m->families);
    m->families[at] = f;
    m->n_families++;
    return f;
}

static struct sl_metric *series_get(struct sl_metrics *m, enum kind kind, const char *name,
                                    const char *labels, const char *help, const double *bounds,
                                    size_t n_bounds)
{
    if (!labels)
        labels = "";
    pthread_mutex_lock(&m->lock);
    struct family *f = family_get(m, kind, name, help, bounds, n_bounds);
    struct sl_metric *s = NULL;
    for (size_t i = 0; i < f->n_series && !s; i++)
        if (strcmp(f->series[i]->labels, labels) == 0)
            s = f->series[i];
    if (!s) {
        s = sl_xcalloc(1, sizeof *s);
        s->family = f;
        s->labels = sl_xstrdup(labels);
        if (kind == HISTOGRAM)
            s->buckets = sl_xcalloc(n_bounds + 1, sizeof *s->buckets);
        f->series = sl_xrealloc_array(f->series, f->n_series + 1, sizeof *f->series);
        f->series[f->n_series++] = s;
    }
    pthread_mutex_unlock(&m->lock);
    return s;
}

struct sl_metric *sl_counter(struct sl_metrics *m, const char *name, const char *labels, const char *help)
{
    return series_get(m, COUNTER, name, labels, help, NULL, 0);
}

struct sl_metric *sl_gauge(struct sl_metrics *m, const char *name, const char *labels, const char *help)
{
    return series_get(m, GAUGE, name, labels, help, NULL, 0);
}

struct sl_metric *sl_histogram(struct sl_metrics *m, const char *name, const char *labels, const char *help,
                               const double *bounds, size_t n)
{
    return series_get(m, HISTOGRAM, name, labels, help, bounds, n);
}

void sl_metrics_drop(struct sl_metrics *m, struct sl_metric *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&m->lock);
    struct family *f = s->family;
    size_t at = 0;
    while (f->series[at] != s)
        at++;
    f->n_series--;
    memmove(f->series + at, f->series + at + 1, (f->n_series - at) * sizeof *f->series);
    pthread_mutex_unlock(&m->lock);
    series_free(s);
}

void sl_metrics_label(struct sl_buf *out, const char *name, const char *value)
{
    sl_buf_printf(out, "%s%s=\"", out->len ? "," : "", name);
    for (; *value; value++) {
        if (*value == '\n')
            sl_buf_puts(out, "\\n");
        else if (*value == '\\' || *value == '"')
            sl_buf_printf(out, "\\%c", *value);
        else
            sl_buf_putc(out, *value);
    }
    sl_buf_putc(out, '"');
}

void sl_metric_add(struct sl_metric *s, double v)
{
    SL_ASSERT(s->family->kind == GAUGE || (s->family->kind == COUNTER && v >= 0));
    add_atomic(&s->value_bits, v);
}

void sl_metric_set(struct sl_metric *s, double v)
{
    SL_ASSERT(s->family->kind == GAUGE);
    atomic_store_explicit(&s->value_bits, to_bits(v), memory_order_relaxed);
}

void sl_metric_observe(struct sl_metric *s, double v)
{
    const struct family *f = s->family;
    SL_ASSERT(f->kind == HISTOGRAM);
    size_t lo = 0, hi = f->n_bounds; /* the first bound that is not below v */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (f->bounds[mid] < v)
            lo = mid + 1;
        else
            hi = mid;
    }
    atomic_fetch_add_explicit(&s->buckets[lo], 1, memory_order_relaxed);
    add_atomic(&s->value_bits, v);
}

double sl_metric_value(const struct sl_metric *s)
{
    if (s->family->kind != HISTOGRAM)
        return from_bits(atomic_load_explicit(&s->value_bits, memory_order_relaxed));
    uint64_t count = 0;
    for (size_t i = 0; i <= s->family->n_bounds; i++)
        count += atomic_load_explicit(&s->buckets[i], memory_order_relaxed);
    return (double)count;
}

/* The shortest of the two forms that reads back as v. */
static void put_number(struct sl_buf *out, double v)
{
    if (isnan(v)) {
        sl_buf_puts(out, "NaN");
    } else if (isinf(v)) {
        sl_buf_puts(out, v > 0 ? "+Inf" : "-Inf");
    } else {
        char text[40];
        snprintf(text, sizeof text, "%.15g", v);
        if (strtod(text, NULL) != v)
            snprintf(text, sizeof text, "%.17g", v);
        sl_buf_puts(out, text);
    }
}

/* "name suffix{labels,le="..."} " ; le NULL = none */
static void put_series_name(struct sl_buf *out, const struct sl_metric *s, const char *suffix,
                            const double *le)
{
    sl_buf_printf(out, "%s%s", s->family->name, suffix);
    if (s->labels[0] || le) {
        sl_buf_printf(out, "{%s", s->labels);
        if (le) {
            sl_buf_puts(out, s->labels[0] ? ",le=\"" : "le=\"");
            put_number(out, *le);
            sl_buf_putc(out, '"');
        }
        sl_buf_putc(out, '}');
    }
    sl_buf_putc(out, ' ');
}

static void render_histogram(struct sl_buf *out, const struct sl_metric *s)
{
    const struct family *f = s->family;
    const double inf = INFINITY;
    uint64_t below = 0;
    for (size_t i = 0; i <= f->n_bounds; i++) {
        below += atomic_load_explicit(&s->buckets[i], memory_order_relaxed);
        put_series_name(out, s, "_bucket", i < f->n_bounds ? &f->bounds[i] : &inf);
        sl_buf_printf(out, "%" PRIu64 "\n", below);
    }
    put_series_name(out, s, "_sum", NULL);
    put_number(out, from_bits(atomic_load_explicit(&s->value_bits, memory_order_relaxed)));
    sl_buf_putc(out, '\n');
    put_series_name(out, s, "_count", NULL);
    sl_buf_printf(out, "%" PRIu64 "\n", below);
}

static void put_help(struct sl_buf *out, const char *help)
{
    for (; *help; help++) {
        if (*help == '\n')
            sl_buf_puts(out, "\\n");
        else if (*help == '\\')
            sl_buf_puts(out, "\\\\");
        else
            sl_buf_putc(out, *help);
    }
}

void sl_metrics_render(struct sl_metrics *m, struct sl_buf *out)
{
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n_families; i++) {
        const struct family *f = m->families[i];
        if (f->n_series == 0) /* all dropped */
            continue;
        sl_buf_printf(out, "# HELP %s ", f->name);
        put_help(out, f->help);
        sl_buf_printf(out, "\n# TYPE %s %s\n", f->name, kind_words[f->kind]);
        for (size_t j = 0; j < f->n_series; j++) {
            const struct sl_metric *s = f->series[j];
            if (f->kind == HISTOGRAM) {
                render_histogram(out, s);
                continue;
            }
            put_series_name(out, s, "", NULL);
            put_number(out, sl_metric_value(s));
            sl_buf_putc(out, '\n');
        }
    }
    pthread_mutex_unlock(&m->lock);
}
