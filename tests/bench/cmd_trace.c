/* tests/bench/cmd_trace.c - what a trace is like, in numbers; and the trace itself in one form.
 *
 * A fitted trace and its original go through the same numbers: their difference is the goodness of the fit.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "tests/bench/bench.h"
#include "tests/bench/stats.h"
#include "tests/bench/trace.h"

struct options {
    char *trace, *csv, *json;
    uint32_t requests, max_total;
    double speed, rate, token_scale;
    uint64_t seed;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"trace", SL_CONF_STRING, AT(trace), NULL, "trace file of any known form", 0, 0, NULL},
    {"requests", SL_CONF_U32, AT(requests), "0", "cut or repeat it to that many; 0 = as it is", 0, 1e8, NULL},
    {"max_total", SL_CONF_U32, AT(max_total), "0", "cut longer requests to that many tokens; 0 = never", 0,
     1e7, NULL},
    {"speed", SL_CONF_F64, AT(speed), "1", "arrivals that much faster", 1e-3, 1e4, NULL},
    {"rate", SL_CONF_F64, AT(rate), "0", "Poisson arrivals at this rate, requests/s; 0 = the trace's", 0, 1e6,
     NULL},
    {"token_scale", SL_CONF_F64, AT(token_scale), "1", "lengths that much longer", 1e-4, 100, NULL},
    {"seed", SL_CONF_U64, AT(seed), "1", "of what is drawn", 0, 0, NULL},
    {"csv", SL_CONF_STRING, AT(csv), NULL, "write it there, normalised", 0, 0, NULL},
    {"json", SL_CONF_STRING, AT(json), NULL, "write the numbers there", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

/* ---- numbers ---- */

/* Standard deviation over mean of the gaps. */
static double gap_cv(const struct sl_trace *t)
{
    double sum = 0, squares = 0, n = (double)t->n - 1;
    for (size_t i = 1; i < t->n; i++) {
        double g = t->requests[i].at_s - t->requests[i - 1].at_s;
        sum += g;
        squares += g * g;
    }
    double mean = sum / n;
    return mean > 0 ? sqrt(fmax(squares / n - mean * mean, 0)) / mean : NAN;
}

/* Variance over mean of the requests in windows of that many seconds: 1 for Poisson at any window. */
static double dispersion(const struct sl_trace *t, double window_s)
{
    double first = t->requests[0].at_s, span = t->requests[t->n - 1].at_s - first;
    size_t n = (size_t)(span / window_s), at = 0;
    double sum = 0, squares = 0;
    for (size_t w = 0; w < n; w++) {
        double count = 0;
        for (; at < t->n && t->requests[at].at_s < first + (double)(w + 1) * window_s; at++)
            count++;
        sum += count;
        squares += count * count;
    }
    double mean = sum / (double)n;
    return n > 1 && mean > 0 ? (squares / (double)n - mean * mean) / mean : NAN;
}

struct ranked {
    double value, rank;
    size_t i;
};

static int by_value(const void *a, const void *b)
{
    double x = ((const struct ranked *)a)->value, y = ((const struct ranked *)b)->value;
    return (x > y) - (x < y);
}

static int by_number(const void *a, const void *b)
{
    size_t x = ((const struct ranked *)a)->i, y = ((const struct ranked *)b)->i;
    return (x > y) - (x < y);
}

/* Ranks from 0; equal values share the mean of theirs. */
static void rank(struct ranked *r, size_t n)
{
    qsort(r, n, sizeof *r, by_value);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && r[end].value <= r[i].value; end++)
            ;
        for (size_t k = i; k < end; k++)
            r[k].rank = (double)(i + end - 1) / 2;
    }
    qsort(r, n, sizeof *r, by_number);
}

/* Spearman's, of prompt and output. */
static double rank_correlation(const struct sl_trace *t)
{
    struct ranked *p = sl_xcalloc(t->n, sizeof *p), *o = sl_xcalloc(t->n, sizeof *o);
    for (size_t i = 0; i < t->n; i++) {
        p[i] = (struct ranked){.value = t->requests[i].n_prompt, .i = i};
        o[i] = (struct ranked){.value = t->requests[i].n_output, .i = i};
    }
    rank(p, t->n);
    rank(o, t->n);
    double mean = (double)(t->n - 1) / 2, both = 0, pp = 0, oo = 0;
    for (size_t i = 0; i < t->n; i++) {
        both += (p[i].rank - mean) * (o[i].rank - mean);
        pp += (p[i].rank - mean) * (p[i].rank - mean);
        oo += (o[i].rank - mean) * (o[i].rank - mean);
    }
    sl_free(p);
    sl_free(o);
    return pp > 0 && oo > 0 ? both / sqrt(pp * oo) : NAN;
}

/* Share of the prompt tokens that a cache that forgets nothing would have. */
static double hit_share(const struct sl_trace *t)
{
    struct sl_hashmap *seen = sl_hashmap_new();
    double hits = 0, all = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct sl_trace_request *q = &t->requests[i];
        const uint64_t *blocks = t->blocks ? &t->blocks[q->first_block] : NULL;
        uint32_t n = 0;
        while (n < q->n_blocks && sl_hashmap_get_u64(seen, blocks[n]))
            n++;
        hits += (double)n * t->block_tokens;
        all += q->n_prompt;
        for (; n < q->n_blocks; n++)
            sl_hashmap_put_u64(seen, blocks[n], seen);
    }
    sl_hashmap_free(seen);
    return hits / all;
}

struct number {
    const char *key;
    double value;
};

static void add_lengths(struct number *to, const char *const keys[5], const struct sl_trace *t, bool prompt)
{
    static const double at[] = {50, 90, 99, 100};
    struct sl_samples s = {0};
    for (size_t i = 0; i < t->n; i++)
        sl_samples_add(&s, prompt ? t->requests[i].n_prompt : t->requests[i].n_output);
    to[0] = (struct number){keys[0], sl_samples_mean(&s)};
    for (size_t k = 0; k < SL_COUNTOF(at); k++)
        to[k + 1] = (struct number){keys[k + 1], sl_samples_percentile(&s, at[k])};
    sl_samples_fini(&s);
}

#define N_NUMBERS 19
static void measure(const struct sl_trace *t, struct number n[N_NUMBERS])
{
    static const char *const prompt[] = {"prompt_mean", "prompt_p50", "prompt_p90", "prompt_p99",
                                         "prompt_max"},
                             *const output[] = {"output_mean", "output_p50", "output_p90", "output_p99",
                                                "output_max"};
    double span = t->requests[t->n - 1].at_s - t->requests[0].at_s;
    const struct number head[] = {{"requests", (double)t->n},
                                  {"span_s", span},
                                  {"rate_per_s", span > 0 ? (double)(t->n - 1) / span : NAN},
                                  {"gap_cv", gap_cv(t)},
                                  {"dispersion_1s", dispersion(t, 1)},
                                  {"dispersion_10s", dispersion(t, 10)},
                                  {"dispersion_60s", dispersion(t, 60)},
                                  {"rank_correlation", rank_correlation(t)},
                                  {"hit_share", hit_share(t)}};
    memcpy(n, head, sizeof head);
    add_lengths(n + SL_COUNTOF(head), prompt, t, true);
    add_lengths(n + SL_COUNTOF(head) + SL_COUNTOF(prompt), output, t, false);
}

/* ---- the trace, normalised ---- */

static enum sl_err write_csv(const struct sl_trace *t, const char *path, struct sl_why *why)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return sl_why_set(why, SL_EIO, "cannot write %s", path);
    fputs("arrival_us,prompt_tokens,output_tokens", f);
    if (t->blocks)
        fprintf(f, ",blocks%u", t->block_tokens);
    fputc('\n', f);
    for (size_t i = 0; i < t->n; i++) {
        const struct sl_trace_request *q = &t->requests[i];
        fprintf(f, "%.0f,%u,%u%s", q->at_s * 1e6, q->n_prompt, q->n_output, t->blocks ? "," : "");
        for (uint32_t k = 0; k < q->n_blocks; k++)
            fprintf(f, "%s%" PRIu64, k ? " " : "", t->blocks[q->first_block + k]);
        fputc('\n', f);
    }
    bool ok = !ferror(f);
    return (fclose(f) == 0 && ok) ? SL_OK : sl_why_set(why, SL_EIO, "cannot write all of %s", path);
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct sl_trace t;
    struct sl_trace_conf c = {.path = o->trace,
                              .speed = o->speed,
                              .rate = o->rate,
                              .token_scale = o->token_scale,
                              .n = o->requests,
                              .max_total = o->max_total,
                              .seed = o->seed};
    if (!o->trace) {
        sl_why_set(why, SL_EINVAL, "no trace; give --trace FILE");
        return SL_BENCH_USAGE;
    }
    if (sl_trace_open(&c, &t, why))
        return SL_BENCH_USAGE;
    struct number n[N_NUMBERS];
    measure(&t, n);
    json_t *doc = json_object();
    for (size_t i = 0; i < N_NUMBERS; i++) {
        printf("%-18s %.6g\n", n[i].key, n[i].value);
        json_object_set_new(doc, n[i].key, isnan(n[i].value) ? json_null() : json_real(n[i].value));
    }
    enum sl_err e = o->csv ? write_csv(&t, o->csv, why) : SL_OK;
    if (e == SL_OK && o->json && json_dump_file(doc, o->json, JSON_INDENT(1)) != 0)
        e = sl_why_set(why, SL_EIO, "cannot write %s", o->json);
    json_decref(doc);
    sl_trace_close(&t);
    return e ? SL_BENCH_FAILED : SL_BENCH_OK;
}

const struct sl_bench_command sl_bench_trace = {
    .name = "trace",
    .usage = "--trace FILE [options]",
    .help = "what a trace is like: burstiness, lengths, shared prefixes; writes it normalised",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
