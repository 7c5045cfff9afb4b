/* tests/bench/serve_stats.c - see serve_stats.h. */
#include "tests/bench/serve_stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

const char *const sl_serve_details[] = {"input_lens", "output_lens",     "start_times", "ttfts",
                                        "itls",       "generated_texts", "errors",      NULL};

static const struct {
    const char *key, *name, *head;
} metrics[SL_N_METRICS] = {
    [SL_M_TTFT] = {"ttft", "TTFT", "Time to First Token"},
    [SL_M_TPOT] = {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
    [SL_M_ITL] = {"itl", "ITL", "Inter-token Latency"},
    [SL_M_E2EL] = {"e2el", "E2EL", "End-to-end Latency"},
    [SL_M_QUEUE] = {"client_queue_time", "Client Queue Time", "Client-side Queueing"},
    [SL_M_E2EL_QUEUED] = {"e2el_including_client_queue", "E2EL incl. Client Queue",
                          "Queue-inclusive End-to-end Latency"},
};

enum sl_err sl_slo_parse(const struct sl_conf_list *words, struct sl_slo *out, struct sl_why *why)
{
    *out = (struct sl_slo){0};
    const struct {
        const char *name;
        double *limit;
    } known[] = {{"ttft:", &out->ttft_ms}, {"tpot:", &out->tpot_ms}, {"e2el:", &out->e2el_ms}};
    for (size_t i = 0; i < words->n; i++) {
        bool ok = false;
        for (size_t k = 0; k < SL_COUNTOF(known); k++) {
            size_t len = strlen(known[k].name);
            char *end;
            if (strncmp(words->items[i], known[k].name, len) != 0)
                continue;
            *known[k].limit = strtod(words->items[i] + len, &end);
            ok = words->items[i][len] && !*end && *known[k].limit > 0 && isfinite(*known[k].limit);
        }
        if (!ok)
            return sl_why_set(
                why, SL_EINVAL,
                "\"%.80s\" is no objective; write ttft:MS, tpot:MS or e2el:MS, milliseconds above 0",
                words->items[i]);
    }
    return SL_OK;
}

uint32_t sl_job_output_tokens(const struct sl_job *j)
{
    return j->completion_tokens ? j->completion_tokens : (uint32_t)j->n_tokens;
}

static bool good_answer(const struct sl_job *j)
{
    return sl_job_ok(j) && j->n_tokens > 0;
}

static double latency_s(const struct sl_job *j, double from_s)
{
    return j->token_s[j->n_tokens - 1] - from_s;
}

static double tpot_s(const struct sl_job *j)
{
    uint32_t n = sl_job_output_tokens(j);
    return n > 1 ? (j->token_s[j->n_tokens - 1] - j->token_s[0]) / (n - 1) : 0;
}

bool sl_slo_met(const struct sl_slo *s, const struct sl_job *j, double from_s)
{
    return good_answer(j) && (s->ttft_ms <= 0 || (j->token_s[0] - from_s) * 1e3 <= s->ttft_ms) &&
           (s->tpot_ms <= 0 || tpot_s(j) * 1e3 <= s->tpot_ms) &&
           (s->e2el_ms <= 0 || latency_s(j, from_s) * 1e3 <= s->e2el_ms);
}

/* ---- sums ---- */

struct sums {
    struct sl_samples of[SL_N_METRICS];  /* seconds */
    struct sl_samples lag, ttft_planned; /* seconds: late by the client; TTFT from the planned time */
    size_t completed, failed, good, good_planned;
    uint64_t input, output, chunks;
    double duration_s, peak_tokens;
    size_t peak_running;
};

static int by_time(const void *a, const void *b)
{
    const double *x = a, *y = b;
    if (x[0] != y[0])
        return (x[0] > y[0]) - (x[0] < y[0]);
    return (x[1] > y[1]) - (x[1] < y[1]); /* who leaves goes before who comes */
}

/* The most requests under way at a time, and the most tokens in a second counted from the first request. */
static void find_peaks(struct sums *s, const struct sl_job *jobs, size_t n)
{
    double(*events)[2] = sl_xcalloc(2 * n + 1, sizeof *events), start_s = INFINITY, end_s = 0;
    size_t n_events = 0, running = 0;
    for (size_t i = 0; i < n; i++)
        if (good_answer(&jobs[i])) {
            double last = jobs[i].token_s[jobs[i].n_tokens - 1];
            start_s = fmin(start_s, jobs[i].sent_s);
            end_s = fmax(end_s, last);
            events[n_events][0] = jobs[i].sent_s;
            events[n_events++][1] = 1;
            events[n_events][0] = last;
            events[n_events++][1] = -1;
        }
    qsort(events, n_events, sizeof *events, by_time);
    for (size_t i = 0; i < n_events; i++) {
        running += events[i][1] > 0 ? 1 : (size_t)-1;
        s->peak_running = running > s->peak_running ? running : s->peak_running;
    }
    sl_free(events);
    if (n_events == 0)
        return;
    size_t n_seconds = (size_t)ceil(end_s - start_s) + 1;
    uint32_t *tokens = sl_xcalloc(n_seconds, sizeof *tokens);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; good_answer(&jobs[i]) && k < jobs[i].n_tokens; k++)
            tokens[(size_t)(jobs[i].token_s[k] - start_s)]++;
    for (size_t i = 0; i < n_seconds; i++)
        s->peak_tokens = fmax(s->peak_tokens, tokens[i]);
    sl_free(tokens);
}

static void add_up(struct sums *s, const struct sl_serve_conf *c, const struct sl_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct sl_job *j = &jobs[i];
        s->duration_s = fmax(s->duration_s, j->done_s);
        if (j->started)
            sl_samples_add(&s->lag, j->sent_s - j->ready_s);
        if (!good_answer(j)) {
            s->failed++;
            continue;
        }
        s->completed++;
        s->good += sl_slo_met(&c->slo, j, j->sent_s);
        s->good_planned += sl_slo_met(&c->slo, j, j->at_s);
        s->input += j->prompt_tokens ? j->prompt_tokens : c->n_prompt[i];
        s->output += sl_job_output_tokens(j);
        s->chunks += j->n_tokens;
        sl_samples_add(&s->of[SL_M_TTFT], j->token_s[0] - j->sent_s);
        sl_samples_add(&s->ttft_planned, j->token_s[0] - j->at_s);
        sl_samples_add(&s->of[SL_M_E2EL], latency_s(j, j->sent_s));
        sl_samples_add(&s->of[SL_M_QUEUE], j->sent_s - j->at_s);
        sl_samples_add(&s->of[SL_M_E2EL_QUEUED], latency_s(j, j->at_s));
        if (sl_job_output_tokens(j) > 1)
            sl_samples_add(&s->of[SL_M_TPOT], tpot_s(j));
        for (size_t k = 1; k < j->n_tokens; k++)
            sl_samples_add(&s->of[SL_M_ITL], j->token_s[k] - j->token_s[k - 1]);
    }
    find_peaks(s, jobs, n);
}

/* ---- the table ---- */

static void rule(const char *title, char c)
{
    size_t n = strlen(title), left = n < 50 ? (50 - n) / 2 : 0, right = n < 50 ? 50 - n - left : 0;
    for (size_t i = 0; i < left; i++)
        putchar(c);
    fputs(title, stdout);
    for (size_t i = 0; i < right; i++)
        putchar(c);
    putchar('\n');
}

static void line_n(const char *label, uint64_t v)
{
    printf("%-40s %-10" PRIu64 "\n", label, v);
}

static void line_f(const char *label, double v)
{
    printf("%-40s %-10.2f\n", label, v);
}

static double per_s(double v, double seconds)
{
    return seconds > 0 ? v / seconds : 0;
}

static double ms_of(struct sl_samples *s, double q)
{
    return s->n ? sl_samples_percentile(s, q) * 1e3 : 0;
}

static bool listed(const struct sl_conf_list *l, const char *word)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->items[i], word) == 0)
            return true;
    return false;
}

static void tell_metric(const struct sl_serve_conf *c, size_t m, struct sl_samples *s, json_t *doc)
{
    char label[96], key[96];
    double mean = s->n ? sl_samples_mean(s) * 1e3 : 0, median = ms_of(s, 50), std = sl_samples_std(s) * 1e3;
    rule(metrics[m].head, '-');
    snprintf(label, sizeof label, "Mean %s (ms):", metrics[m].name);
    line_f(label, mean);
    snprintf(label, sizeof label, "Median %s (ms):", metrics[m].name);
    line_f(label, median);
    const struct {
        const char *name;
        double v;
    } three[] = {{"mean", mean}, {"median", median}, {"std", std}};
    for (size_t i = 0; i < SL_COUNTOF(three); i++) {
        snprintf(key, sizeof key, "%s_%s_ms", three[i].name, metrics[m].key);
        json_object_set_new(doc, key, json_real(three[i].v));
    }
    for (size_t i = 0; i < c->percentiles.n; i++) {
        double q = strtod(c->percentiles.items[i], NULL);
        snprintf(label, sizeof label, "P%g %s (ms):", q, metrics[m].name);
        line_f(label, ms_of(s, q));
        snprintf(key, sizeof key, "p%g_%s_ms", q, metrics[m].key);
        json_object_set_new(doc, key, json_real(ms_of(s, q)));
    }
}

static void print_errors(const struct sl_job *jobs, size_t n)
{
    size_t shown = 0;
    for (size_t i = 0; i < n && shown < 10; i++)
        if (!good_answer(&jobs[i])) {
            if (shown == 0)
                printf("Failed requests during benchmark run detected (capping to 10):\n");
            printf("Error %zu: %s\n", shown++, jobs[i].error[0] ? jobs[i].error : "an answer without tokens");
        }
}

/* ---- the file ---- */

static json_t *json_or_null(bool is, double v)
{
    return is ? json_real(v) : json_null();
}

static void add_details(json_t *doc, const struct sl_serve_conf *c, const struct sl_job *jobs, size_t n)
{
    static const char *const names[] = {"input_lens",  "output_lens", "ttfts",           "itls",  "latencies",
                                        "start_times", "queue_times", "generated_texts", "errors"};
    json_t *list[SL_COUNTOF(names)];
    for (size_t k = 0; k < SL_COUNTOF(names); k++)
        list[k] = json_array();
    for (size_t i = 0; i < n; i++) {
        const struct sl_job *j = &jobs[i];
        bool ok = good_answer(j);
        json_t *gaps = json_array(),
               *text = ok && j->text.data ? json_stringn(j->text.data, j->text.len) : NULL;
        for (size_t k = 1; ok && k < j->n_tokens; k++)
            json_array_append_new(gaps, json_real(j->token_s[k] - j->token_s[k - 1]));
        json_array_append_new(list[0], json_integer(j->prompt_tokens ? j->prompt_tokens : c->n_prompt[i]));
        json_array_append_new(list[1], json_integer(ok ? sl_job_output_tokens(j) : 0));
        json_array_append_new(list[2], json_real(ok ? j->token_s[0] - j->sent_s : 0));
        json_array_append_new(list[3], gaps);
        json_array_append_new(list[4], json_real(ok ? latency_s(j, j->sent_s) : 0));
        json_array_append_new(list[5], json_real(j->sent_s));
        json_array_append_new(list[6], json_real(j->started ? j->sent_s - j->at_s : 0));
        json_array_append_new(list[7], text ? text : json_string(""));
        json_t *error = json_string(ok ? "" : j->error[0] ? j->error : "an answer without tokens");
        json_array_append_new(list[8], error ? error : json_string("(text that is no UTF-8)"));
    }
    for (size_t k = 0; k < SL_COUNTOF(names); k++)
        json_object_set_new(doc, names[k], list[k]);
}

static json_t *three(struct sl_samples *s)
{
    return json_pack("{s:f, s:f, s:f}", "p50", ms_of(s, 50), "p99", ms_of(s, 99), "max", ms_of(s, 100));
}

/* A client that is late by more than a hundredth of the median TTFT has measured itself. */
static bool client_was_late(struct sums *s)
{
    return ms_of(&s->lag, 99) > fmax(1, 0.01 * ms_of(&s->of[SL_M_TTFT], 50));
}

static void tell_client(const struct sl_serve_conf *c, struct sums *s, size_t n, double cpu_s, json_t *doc)
{
    double attained = n ? (double)s->good_planned / (double)n : 0;
    rule(" sluice-bench: the client ", '=');
    line_f("P50 send lag (ms):", ms_of(&s->lag, 50));
    line_f("P99 send lag (ms):", ms_of(&s->lag, 99));
    line_f("Median TTFT from planned time (ms):", ms_of(&s->ttft_planned, 50));
    line_f("P99 TTFT from planned time (ms):", ms_of(&s->ttft_planned, 99));
    if (sl_slo_any(&c->slo))
        line_f("Within all objectives, of all (%):", attained * 100);
    if (s->chunks != s->output)
        line_f("Tokens per streamed chunk:", s->chunks ? (double)s->output / (double)s->chunks : 0);
    line_f("Client CPU per 1000 streams (s):", n ? cpu_s * 1e3 / (double)n : 0);
    if (client_was_late(s))
        printf("The client was late: its send lag is above 1 ms and 1 %% of the TTFT, so these figures are "
               "its own "
               "as well.\n");
    rule("", '=');
    json_object_set_new(doc, "sluice",
                        json_pack("{s:s, s:o, s:o, s:o, s:I, s:f, s:f, s:b}", "kind", "serve", "send_lag_ms",
                                  three(&s->lag), "ttft_from_planned_ms", three(&s->ttft_planned),
                                  "slo_attainment", json_or_null(sl_slo_any(&c->slo), attained), "chunks",
                                  (json_int_t)s->chunks, "client_cpu_s", cpu_s,
                                  "client_cpu_s_per_1000_streams", n ? cpu_s * 1e3 / (double)n : 0,
                                  "client_was_late", (int)client_was_late(s)));
}

json_t *sl_serve_tell(const struct sl_serve_conf *c, const struct sl_job *jobs, size_t n, double cpu_s)
{
    struct sums s = {0};
    add_up(&s, c, jobs, n);
    double d = s.duration_s, total = (double)(s.input + s.output);
    print_errors(jobs, n);
    rule(" Serving Benchmark Result ", '=');
    line_n("Successful requests:", s.completed);
    line_n("Failed requests:", s.failed);
    if (c->max_concurrency)
        line_n("Maximum request concurrency:", c->max_concurrency);
    if (isfinite(c->rate))
        line_f("Request rate configured (RPS):", c->rate);
    line_f("Benchmark duration (s):", d);
    line_n("Total input tokens:", s.input);
    line_n("Total generated tokens:", s.output);
    line_f("Request throughput (req/s):", per_s((double)s.completed, d));
    if (sl_slo_any(&c->slo))
        line_f("Request goodput (req/s):", per_s((double)s.good, d));
    line_f("Output token throughput (tok/s):", per_s((double)s.output, d));
    line_f("Peak output token throughput (tok/s):", s.peak_tokens);
    line_f("Peak concurrent requests:", (double)s.peak_running);
    line_f("Total token throughput (tok/s):", per_s(total, d));
    json_t *doc = json_pack(
        "{s:f, s:I, s:I, s:I, s:I, s:f, s:o, s:f, s:f, s:f, s:I, s:f}", "duration", d, "completed",
        (json_int_t)s.completed, "failed", (json_int_t)s.failed, "total_input_tokens", (json_int_t)s.input,
        "total_output_tokens", (json_int_t)s.output, "request_throughput", per_s((double)s.completed, d),
        "request_goodput", json_or_null(sl_slo_any(&c->slo), per_s((double)s.good, d)), "output_throughput",
        per_s((double)s.output, d), "total_token_throughput", per_s(total, d), "max_output_tokens_per_s",
        s.peak_tokens, "max_concurrent_requests", (json_int_t)s.peak_running, "rtfx", 0.0);
    add_details(doc, c, jobs, n);
    for (size_t m = 0; m < SL_N_METRICS; m++) {
        bool has = m == SL_M_QUEUE         ? c->max_concurrency > 0
                   : m == SL_M_E2EL_QUEUED ? c->max_concurrency > 0 && isfinite(c->rate)
                                           : true;
        if (has && listed(&c->metrics, metrics[m].key))
            tell_metric(c, m, &s.of[m], doc);
    }
    rule("", '=');
    tell_client(c, &s, n, cpu_s, doc);
    for (size_t m = 0; m < SL_N_METRICS; m++)
        sl_samples_fini(&s.of[m]);
    sl_samples_fini(&s.lag);
    sl_samples_fini(&s.ttft_planned);
    return doc;
}
