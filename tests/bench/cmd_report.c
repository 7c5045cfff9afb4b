/* tests/bench/cmd_report.c - what the other commands wrote as JSON, as one HTML page: no script, nothing loaded from
 * elsewhere, so it can be sent and kept.
 *
 * Files are told apart by their members. What can be compared shares a chart: distributions of all files that have
 * them, objectives of all loads over the rate. The page has a table of numbers below every chart. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "tests/bench/bench.h"
#include "tests/bench/report_chart.h"
#include "tests/bench/stats.h"

#define MAX_PAGE_BYTES (256u << 20)
#define MAX_FILES      64
#define SLOW_TIMES     3.0 /* a gap of more than so many medians is marked in a time line */
#define LENGTH_BINS    24  /* prompt lengths: two for each doubling */

struct options {
    struct sl_conf_list files;
    char *out, *title;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"files", SL_CONF_LIST, AT(files), NULL, "results of serve, sweep, compare, replay, simulate or engine",
     0, 0, NULL},
    {"out", SL_CONF_STRING, AT(out), "report.html", "the page; -o for short", 0, 0, NULL},
    {"title", SL_CONF_STRING, AT(title), "Sluice benchmark", "heading of the page", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

enum kind { SERVE, SWEEP, COMPARE, REPLAY, SIMULATE, ENGINE, N_KINDS };
static const char *const kind_name[N_KINDS] = {"serve", "sweep", "compare", "replay", "simulate", "engine"};

struct file {
    const char *path;
    char name[64]; /* of the path, without folder and .json */
    json_t *doc;
    enum kind kind;
};

struct page {
    struct file files[MAX_FILES];
    size_t n;
    struct sl_buf html;
};

static const char style[] =
    ":root{--ink:#1b1f24;--dim:#59636e;--back:#fff;--card:#f6f8fa;--line:#d8dee4;--c0:#0b62c4;--c1:#b35900;--"
    "c2:#137a3f;"
    "--c3:#9b2fae;--c4:#a8322d;--c5:#0a7d8c;--c6:#6a5d00;--c7:#555}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--dim:#a3adb8;--back:#14171b;--card:#1c2127;--"
    "line:#39414b;"
    "--c0:#6cb0ff;--c1:#f2a35a;--c2:#63cf8f;--c3:#d992e6;--c4:#ff8f88;--c5:#5fd2e2;--c6:#d8c84c;--c7:#b5b5b5}"
    "}"
    "body{margin:0 auto;max-width:1340px;padding:24px;background:var(--back);color:var(--ink);font:15px/1.5 "
    "system-ui,"
    "sans-serif}h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:34px 0 8px;border-bottom:1px solid "
    "var(--line);"
    "padding-bottom:4px}.dim,.about{color:var(--dim);margin:4px 0}.about{font-size:13px}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:18px}"
    "figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px "
    "14px;min-width:0}"
    "figure.wide{grid-column:1/-1}figcaption{font-weight:600}svg.chart{width:100%;height:auto;display:block}"
    "svg "
    "text{fill:var(--dim);font-size:12px}.grid{stroke:var(--line)}.mark{stroke:var(--dim);stroke-dasharray:5 "
    "4}"
    "path{fill:none;stroke-width:2}.thin{stroke-width:1.3}.legend{list-style:none;display:flex;flex-wrap:"
    "wrap;gap:4px "
    "16px;margin:6px 0 0;padding:0;font-size:13px}.legend li{display:flex;align-items:center;gap:6px}"
    ".key{display:inline-block;width:22px;height:9px;border-radius:2px}"
    ".s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)"
    "}"
    ".s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}"
    ".f0{fill:var(--c0);background:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{"
    "fill:var(--c4)}"
    ".f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}.o{opacity:.55}"
    ".wait{fill:var(--c1);background:var(--c1);opacity:.45}.slow{fill:var(--c4);background:var(--c4)}"
    ".failed{stroke:var(--c4);stroke-width:1.6}"
    "table{border-collapse:collapse;font-size:13px;margin:8px 0}th,td{text-align:right;padding:3px 10px;"
    "border-bottom:1px solid "
    "var(--line);font-variant-numeric:tabular-nums}th:first-child,td:first-child,.scroll "
    "td:nth-child(2),.scroll th:nth-child(2){text-align:left}"
    "thead th{color:var(--dim);font-weight:600}.scroll{overflow-x:auto}details{margin-top:6px;font-size:13px}"
    "summary{cursor:pointer;color:var(--dim)}";

/* ---- reading ---- */

static json_t *get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

/* NaN when it is no number. */
static double num(const json_t *o, const char *key)
{
    json_t *v = get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static double item(const json_t *list, size_t i)
{
    json_t *v = json_array_get(list, i);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static const char *text_or(const json_t *o, const char *key, const char *other)
{
    const char *s = json_string_value(get(o, key));
    return s ? s : other;
}

static bool find_kind(const json_t *doc, enum kind *out)
{
    const struct {
        const char *a, *b;
        enum kind kind;
    } known[] = {{"points", "capacities", SWEEP}, {"modes", "differences", COMPARE},
                 {"felt", "requests", REPLAY},    {"arms", "slo_ttft", SIMULATE},
                 {"roofs", "decode", ENGINE},     {"output_throughput", "completed", SERVE}};
    for (size_t i = 0; i < SL_COUNTOF(known); i++)
        if (get(doc, known[i].a) && get(doc, known[i].b)) {
            *out = known[i].kind;
            return true;
        }
    return false;
}

static enum sl_err open_files(struct page *p, const struct options *o, struct sl_why *why)
{
    if (o->files.n == 0 || o->files.n > MAX_FILES)
        return sl_why_set(why, SL_EINVAL,
                          "%zu files given; expected 1 to %d results: sluice-bench report FILES... -o "
                          "report.html",
                          o->files.n, MAX_FILES);
    for (size_t i = 0; i < o->files.n; i++) {
        struct file *f = &p->files[p->n];
        json_error_t error;
        f->path = o->files.items[i];
        f->doc = json_load_file(f->path, 0, &error);
        if (!f->doc)
            return error.line > 0 ? sl_why_set(why, SL_EPARSE, "%s:%d: %s", f->path, error.line, error.text)
                                  : sl_why_set(why, SL_EPARSE, "%s", error.text);
        p->n++;
        if (!find_kind(f->doc, &f->kind))
            return sl_why_set(why, SL_EPARSE,
                              "%s is no result of serve, sweep, compare, replay, simulate or engine",
                              f->path);
        const char *base = strrchr(f->path, '/');
        snprintf(f->name, sizeof f->name, "%s", base ? base + 1 : f->path);
        char *end = strstr(f->name, ".json");
        if (end && !end[5])
            *end = 0;
    }
    return SL_OK;
}

/* ---- pieces of the page ---- */

static void heading(struct page *p, const char *text)
{
    sl_buf_printf(&p->html, "<h2>%s</h2>\n", text);
}

/* A cell of text, or of a number ("-" for NaN). */
static void cell(struct page *p, const char *text)
{
    sl_buf_puts(&p->html, "<td>");
    sl_html_escape(&p->html, text);
    sl_buf_puts(&p->html, "</td>");
}

static void cell_n(struct page *p, double v)
{
    if (isnan(v))
        sl_buf_puts(&p->html, "<td>-</td>");
    else
        sl_buf_printf(&p->html, fabs(v) >= 100 ? "<td>%.0f</td>" : "<td>%.3g</td>", v);
}

static void table_begin(struct page *p, const char *const *heads)
{
    sl_buf_puts(&p->html, "<div class=\"scroll\"><table><thead><tr>");
    for (; *heads; heads++)
        sl_buf_printf(&p->html, "<th scope=\"col\">%s</th>", *heads);
    sl_buf_puts(&p->html, "</tr></thead><tbody>");
}

static void table_end(struct page *p)
{
    sl_buf_puts(&p->html, "</tbody></table></div>\n");
}

static bool has(const struct page *p, unsigned kinds)
{
    for (size_t i = 0; i < p->n; i++)
        if (kinds >> p->files[i].kind & 1)
            return true;
    return false;
}

static struct sl_chart chart(const char *title, const char *x, const char *y)
{
    return (struct sl_chart){.title = title, .x_label = x, .y_label = y, .mark_y = NAN};
}

/* The name of a load in legends: short where one file of its kind is there. */
static void series_name(const struct page *p, const struct file *f, const char *inner, char *name,
                        size_t size)
{
    size_t same = 0;
    for (size_t i = 0; i < p->n; i++)
        same += p->files[i].kind == f->kind;
    if (!inner)
        snprintf(name, size, "%s", f->name);
    else if (same > 1)
        snprintf(name, size, "%s: %.30s", f->name, inner);
    else
        snprintf(name, size, "%s", inner);
}

/* ---- summaries ---- */

static void felt_row(struct page *p, const char *name, const json_t *felt, const char *file, double within)
{
    static const char *const keys[] = {"ttft_ms", "tpot_ms", "gap_max_ms"};
    sl_buf_puts(&p->html, "<tr>");
    cell(p, name);
    cell(p, file);
    for (size_t k = 0; k < SL_COUNTOF(keys); k++) {
        cell_n(p, num(get(felt, keys[k]), "p50"));
        cell_n(p, num(get(felt, keys[k]), "p99"));
    }
    cell_n(p, num(felt, "tokens_per_s"));
    cell_n(p, within * 100);
    cell_n(p, num(felt, "requests"));
    cell_n(p, num(felt, "errors"));
    sl_buf_puts(&p->html, "</tr>");
}

static void loads_table(struct page *p)
{
    static const char *const heads[] = {"load",
                                        "file",
                                        "TTFT P50, ms",
                                        "P99",
                                        "TPOT P50, ms",
                                        "P99",
                                        "longest gap P50, ms",
                                        "P99",
                                        "output tokens/s",
                                        "within limits, %",
                                        "requests",
                                        "failed",
                                        NULL};
    if (!has(p, 1u << SERVE | 1u << COMPARE | 1u << REPLAY | 1u << SIMULATE))
        return;
    heading(p, "Loads");
    table_begin(p, heads);
    for (size_t i = 0; i < p->n; i++) {
        const struct file *f = &p->files[i];
        const char *mode;
        json_t *felt, *arm;
        size_t k;
        if (f->kind == COMPARE)
            json_object_foreach (get(f->doc, "modes"), mode, felt)
                felt_row(p, mode, felt, f->name, NAN);
        if (f->kind == REPLAY)
            felt_row(p, text_or(f->doc, "mode", "?"), get(f->doc, "felt"), f->name,
                     num(f->doc, "within_slo"));
        if (f->kind == SIMULATE)
            json_array_foreach (get(f->doc, "arms"), k, arm)
                felt_row(p, text_or(arm, "arm", "?"), arm, f->name, num(arm, "within_slo"));
        if (f->kind == SERVE) {
            const char *const keys[] = {"median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms"};
            sl_buf_puts(&p->html, "<tr>");
            cell(p, text_or(f->doc, "label", text_or(f->doc, "backend", "serve")));
            cell(p, f->name);
            for (size_t c = 0; c < SL_COUNTOF(keys); c++)
                cell_n(p, num(f->doc, keys[c]));
            cell_n(p, NAN);
            cell_n(p, NAN);
            cell_n(p, num(f->doc, "output_throughput"));
            cell_n(p, num(get(f->doc, "sluice"), "slo_attainment") * 100);
            cell_n(p, num(f->doc, "completed") + num(f->doc, "failed"));
            cell_n(p, num(f->doc, "failed"));
            sl_buf_puts(&p->html, "</tr>");
        }
    }
    table_end(p);
}

static void capacities_table(struct page *p)
{
    static const char *const heads[] = {
        "arm",           "file", "highest rate, requests/s", "95 % interval", "over the first arm",
        "95 % interval", NULL};
    bool any = false;
    for (size_t i = 0; i < p->n; i++) {
        const struct file *f = &p->files[i];
        json_t *c;
        size_t k;
        if (f->kind != SWEEP || json_array_size(get(f->doc, "capacities")) == 0)
            continue;
        if (!any)
            heading(p, "Capacity");
        any = true;
        const json_t *slo = get(f->doc, "slo");
        sl_buf_printf(&p->html,
                      "<p class=\"dim\">The highest rate at which %.4g %% of the requests meet all "
                      "objectives (TTFT %.4g "
                      "ms, TPOT %.4g ms; 0 = none), to %.3g %%; Student's t over %.0f seeds. The arm that "
                      "ends in +again "
                      "is the first one once more: it differs by noise alone.</p>",
                      num(f->doc, "attainment") * 100, num(slo, "ttft_ms"), num(slo, "tpot_ms"),
                      num(f->doc, "tolerance") * 100, num(f->doc, "seeds"));
        table_begin(p, heads);
        json_array_foreach (get(f->doc, "capacities"), k, c) {
            const char *const keys[] = {"rate", "over_first"};
            sl_buf_puts(&p->html, "<tr>");
            cell(p, text_or(c, "arm", "?"));
            cell(p, f->name);
            for (size_t m = 0; m < 2; m++) {
                const json_t *v = get(c, keys[m]);
                char text[64] = "-";
                cell_n(p, num(v, "mean"));
                if (!isnan(num(v, "low")))
                    snprintf(text, sizeof text, "%.4g to %.4g", num(v, "low"), num(v, "high"));
                cell(p, text);
            }
            sl_buf_puts(&p->html, "</tr>");
        }
        table_end(p);
    }
}

/* ---- distributions ---- */

static void add_quantiles(struct sl_chart_series *s, const json_t *cdf)
{
    size_t n = json_array_size(cdf);
    for (size_t i = 0; i < n && n > 1; i++)
        sl_chart_add(s, item(cdf, i), (double)i / (double)(n - 1));
}

/* which: 0 TTFT, 1 between tokens (a serve file's single gaps; TPOT of the others). */
static void add_distribution(struct page *p, struct sl_chart *c, const struct file *f, int which)
{
    static const char *const serve_key[] = {"ttfts", "itls"}, *const felt_key[] = {"ttft_ms", "tpot_ms"};
    static const size_t replay_column[] = {3, 5};
    struct sl_samples v = {0};
    char name[100];
    json_t *x, *felt;
    const char *mode;
    size_t i, k;
    series_name(p, f, f->kind == REPLAY ? text_or(f->doc, "mode", NULL) : NULL, name, sizeof name);
    if (f->kind == SERVE)
        json_array_foreach (get(f->doc, serve_key[which]), i, x) {
            if (json_is_number(x) && json_number_value(x) > 0)
                sl_samples_add(&v, json_number_value(x) * 1e3);
            for (k = 0; k < json_array_size(x); k++)
                sl_samples_add(&v, item(x, k) * 1e3);
        }
    if (f->kind == REPLAY)
        json_array_foreach (get(f->doc, "requests"), i, x)
            if (json_array_size(x) > replay_column[which])
                sl_samples_add(&v, item(x, replay_column[which]));
    if (f->kind == COMPARE)
        json_object_foreach (get(f->doc, "modes"), mode, felt) {
            series_name(p, f, mode, name, sizeof name);
            add_quantiles(sl_chart_series(c, name), get(get(felt, felt_key[which]), "cdf"));
        }
    if (v.n)
        sl_chart_add_cdf(sl_chart_series(c, name), v.v, v.n);
    sl_samples_fini(&v);
}

static void distributions(struct page *p)
{
    if (!has(p, 1u << SERVE | 1u << COMPARE | 1u << REPLAY))
        return;
    heading(p, "Latency");
    sl_buf_puts(&p->html, "<div class=\"charts\">");
    struct sl_chart first = chart("Time to first token", "milliseconds", "requests up to that"),
                    gap = chart("Time between tokens", "milliseconds", "share up to that");
    snprintf(first.about, sizeof first.about,
             "Share of the requests whose first token came within that time. Further left is better.");
    snprintf(gap.about, sizeof gap.about,
             "Single gaps of serve files; mean gaps of requests (TPOT) of the others.");
    first.log_x = first.steps = first.y_percent = gap.log_x = gap.steps = gap.y_percent = true;
    for (size_t i = 0; i < p->n; i++) {
        add_distribution(p, &first, &p->files[i], 0);
        add_distribution(p, &gap, &p->files[i], 1);
    }
    sl_chart_write(&first, &p->html);
    sl_chart_write(&gap, &p->html);
    sl_buf_puts(&p->html, "</div>\n");
}

/* ---- load ---- */

static void over_rate(struct page *p)
{
    if (!has(p, 1u << SWEEP | 1u << SERVE | 1u << SIMULATE))
        return;
    struct sl_chart good =
                        chart("Goodput against rate", "requests/s sent", "requests/s within all objectives"),
                    share = chart("Within all objectives", "requests/s sent", "share of requests"),
                    tokens = chart("Output against rate", "requests/s sent", "output tokens/s"),
                    speed = chart("Simulated: within both limits", "times the trace's speed",
                                  "share of requests");
    snprintf(good.about, sizeof good.about, "Failed requests count as misses. Bars: 95 %% over seeds.");
    snprintf(share.about, sizeof share.about, "The dashed line is the share that a capacity needs.");
    share.y_percent = speed.y_percent = true;
    for (size_t i = 0; i < p->n; i++) {
        const struct file *f = &p->files[i];
        char name[100];
        json_t *x;
        size_t k;
        if (f->kind == SWEEP) {
            struct {
                struct sl_chart *c;
                const char *key;
            } of[] = {{&good, "goodput"}, {&share, "attainment"}, {&tokens, "output_tokens_per_s"}};
            share.mark_y = num(f->doc, "attainment");
            json_array_foreach (get(f->doc, "points"), k, x) {
                series_name(p, f, text_or(x, "arm", "?"), name, sizeof name);
                for (size_t m = 0; m < SL_COUNTOF(of); m++) {
                    const json_t *v = get(x, of[m].key);
                    sl_chart_add_interval(sl_chart_series(of[m].c, name), num(x, "rate"), num(v, "mean"),
                                          num(v, "low"), num(v, "high"));
                }
            }
        }
        if (f->kind == SERVE && !isnan(num(f->doc, "request_rate"))) {
            char label[100];
            snprintf(label, sizeof label, "serve %.60s",
                     text_or(f->doc, "label", text_or(f->doc, "backend", "")));
            double rate = num(f->doc, "request_rate");
            sl_chart_add(sl_chart_series(&good, label), rate, num(f->doc, "request_goodput"));
            sl_chart_add(sl_chart_series(&share, label), rate, num(get(f->doc, "sluice"), "slo_attainment"));
            sl_chart_add(sl_chart_series(&tokens, label), rate, num(f->doc, "output_throughput"));
        }
        if (f->kind == SIMULATE)
            json_array_foreach (get(f->doc, "arms"), k, x)
                sl_chart_add(sl_chart_series(&speed, text_or(x, "arm", "?")), num(x, "speed"),
                             num(x, "within_slo"));
    }
    heading(p, "Load");
    sl_buf_puts(&p->html, "<div class=\"charts\">");
    struct sl_chart *all[] = {&good, &share, &tokens, &speed};
    for (size_t i = 0; i < SL_COUNTOF(all); i++)
        sl_chart_write(all[i], &p->html);
    sl_buf_puts(&p->html, "</div>\n");
}

/* ---- prompt length ---- */

/* Adds medians of TTFT over prompt length: two bins for each doubling. */
static void add_lengths(struct sl_chart_series *s, struct sl_samples bins[LENGTH_BINS * 2])
{
    for (size_t b = 0; b < LENGTH_BINS * 2; b++) {
        if (bins[b].n && s)
            sl_chart_add(s, pow(2, ((double)b + 0.5) / 2), sl_samples_percentile(&bins[b], 50));
        sl_samples_fini(&bins[b]); /* empty again, for the next */
    }
}

static void add_length(struct sl_samples *bins, double tokens, double ms)
{
    if (tokens >= 1 && ms > 0 && 2 * log2(tokens) < LENGTH_BINS * 2)
        sl_samples_add(&bins[(size_t)(2 * log2(tokens))], ms);
}

static void prompt_lengths(struct page *p)
{
    struct sl_chart c =
        chart("Time to first token by prompt length", "prompt tokens", "median TTFT, milliseconds");
    snprintf(c.about, sizeof c.about, "Medians within half a doubling of the length; each mode is a line.");
    c.log_x = true;
    for (size_t i = 0; i < p->n; i++) {
        const struct file *f = &p->files[i];
        struct sl_samples bins[LENGTH_BINS * 2] = {0};
        char name[100];
        json_t *x;
        size_t k;
        if (f->kind == REPLAY) {
            series_name(p, f, text_or(f->doc, "mode", "?"), name, sizeof name);
            json_array_foreach (get(f->doc, "requests"), k, x)
                if (json_array_size(x) > 3)
                    add_length(bins, item(x, 1), item(x, 3));
            add_lengths(sl_chart_series(&c, name), bins);
        }
        const char *mode;
        json_t *felt;
        if (f->kind == COMPARE)
            json_object_foreach (get(f->doc, "modes"), mode, felt) {
                series_name(p, f, mode, name, sizeof name);
                json_array_foreach (get(felt, "by_request"), k, x)
                    add_length(bins, item(x, 0), item(x, 1));
                add_lengths(sl_chart_series(&c, name), bins);
            }
        if (f->kind == SERVE && get(f->doc, "ttfts")) {
            series_name(p, f, NULL, name, sizeof name);
            json_array_foreach (get(f->doc, "input_lens"), k, x)
                add_length(bins, json_number_value(x), item(get(f->doc, "ttfts"), k) * 1e3);
            add_lengths(sl_chart_series(&c, name), bins);
        }
    }
    if (c.n) {
        heading(p, "Mode against prompt length");
        sl_buf_puts(&p->html, "<div class=\"charts\">");
        sl_chart_write(&c, &p->html);
        sl_buf_puts(&p->html, "</div>\n");
    }
}

/* ---- time lines ---- */

static void time_line(struct page *p, const struct file *f)
{
    bool serve = f->kind == SERVE;
    const json_t *list = get(f->doc, serve ? "start_times" : "requests"), *ttfts = get(f->doc, "ttfts"),
                 *itls = get(f->doc, "itls");
    size_t n = json_array_size(list), n_gaps = 0;
    if (n == 0)
        return;
    struct sl_timeline_row *rows = sl_xcalloc(n, sizeof *rows);
    struct sl_samples gaps = {0}, all = {0};
    char title[120];
    for (size_t i = 0; serve && i < n; i++)
        for (size_t k = 0; k < json_array_size(json_array_get(itls, i)); k++) {
            sl_samples_add(&gaps, item(json_array_get(itls, i), k));
            sl_samples_add(&all, item(json_array_get(itls, i), k));
        }
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        double start = serve ? json_number_value(x) : item(x, 0),
               ttft = serve ? item(ttfts, i) : item(x, 3) / 1e3;
        rows[i] = (struct sl_timeline_row){.start_s = start, .first_s = -1, .end_s = start};
        if (!(ttft > 0))
            continue;
        rows[i].first_s = rows[i].end_s = start + ttft;
        if (!serve) {
            rows[i].end_s += fmax(item(x, 2) - 1, 0) * item(x, 5) / 1e3;
            continue;
        }
        rows[i].n_gaps = json_array_size(json_array_get(itls, i));
        rows[i].gaps_s = gaps.v + n_gaps;
        for (size_t k = 0; k < rows[i].n_gaps; k++)
            rows[i].end_s += rows[i].gaps_s[k];
        n_gaps += rows[i].n_gaps;
    }
    double slow = all.n ? SLOW_TIMES * sl_samples_percentile(&all, 50) : INFINITY;
    snprintf(title, sizeof title, "%s: requests over time", f->name);
    sl_timeline_write(title, rows, n, slow, &p->html);
    sl_samples_fini(&gaps);
    sl_samples_fini(&all);
    sl_free(rows);
}

static void time_lines(struct page *p)
{
    bool any = false;
    for (size_t i = 0; i < p->n; i++) {
        const struct file *f = &p->files[i];
        if ((f->kind != SERVE || !get(f->doc, "start_times")) && f->kind != REPLAY)
            continue;
        if (!any)
            heading(p, "Time lines");
        any = true;
        sl_buf_puts(&p->html, "<div class=\"charts\">");
        time_line(p, f);
        sl_buf_puts(&p->html, "</div>\n");
    }
}

/* ---- the engine ---- */

static void engine_part(struct page *p, const char *part, const char *x_key, const char *by_key,
                        const char *y_key, const char *by_words, struct sl_chart c)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct file *f = &p->files[i];
        json_t *x;
        size_t k;
        if (f->kind != ENGINE)
            continue;
        json_array_foreach (get(f->doc, part), k, x) {
            char inner[60], name[100];
            if (by_key)
                snprintf(inner, sizeof inner, "%s %g", by_words, num(x, by_key));
            series_name(p, f, by_key ? inner : NULL, name, sizeof name);
            sl_chart_add_interval(sl_chart_series(&c, name), num(x, x_key), num(x, y_key),
                                  strcmp(y_key, "ms") ? num(x, "min") : num(x, "min_ms"),
                                  strcmp(y_key, "ms") ? num(x, "max") : num(x, "max_ms"));
        }
    }
    sl_chart_write(&c, &p->html);
}

static void engine(struct page *p)
{
    if (!has(p, 1u << ENGINE))
        return;
    heading(p, "Engine");
    for (size_t i = 0; i < p->n; i++)
        if (p->files[i].kind == ENGINE) {
            sl_buf_puts(&p->html, "<p class=\"dim\">");
            sl_html_escape(&p->html, p->files[i].name);
            sl_buf_puts(&p->html, ": ");
            sl_html_escape(&p->html, text_or(p->files[i].doc, "model", "?"));
            sl_buf_printf(&p->html, ", %s, KV %s, %lld threads</p>\n",
                          text_or(p->files[i].doc, "backend", "?"), text_or(p->files[i].doc, "kv", "?"),
                          (long long)json_integer_value(get(p->files[i].doc, "threads")));
        }
    sl_buf_puts(&p->html, "<div class=\"charts\">");
    struct sl_chart c = chart("Decode", "sequences in the batch", "tokens/s");
    snprintf(c.about, sizeof c.about, "Bars: smallest and largest sample.");
    engine_part(p, "decode", "batch", "depth", "tokens_per_s", "context", c);
    c = chart("Prompt", "prompt tokens", "tokens/s");
    engine_part(p, "prompt", "tokens", NULL, "tokens_per_s", NULL, c);
    c = chart("Mixed steps", "prompt tokens in the step", "milliseconds");
    snprintf(c.about, sizeof c.about,
             "What a chunk of a prompt costs beside decode rows; the points of a rate are its "
             "histories.");
    engine_part(p, "mixed", "chunk", "decodes", "ms", "decode rows", c);
    sl_buf_puts(&p->html, "</div>\n");
}

/* ---- the page ---- */

static void files_table(struct page *p)
{
    static const char *const heads[] = {"file", "kind", "model or server", "date", NULL};
    heading(p, "Files");
    table_begin(p, heads);
    for (size_t i = 0; i < p->n; i++) {
        const struct file *f = &p->files[i];
        sl_buf_puts(&p->html, "<tr>");
        cell(p, f->path);
        cell(p, kind_name[f->kind]);
        cell(p, text_or(f->doc, "model_id", text_or(f->doc, "model", "-")));
        cell(p, text_or(f->doc, "date", "-"));
        sl_buf_puts(&p->html, "</tr>");
    }
    table_end(p);
}

static void write_page(struct page *p, const char *title)
{
    char date[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    sl_buf_puts(&p->html,
                "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                "content=\"width=device-width,initial-scale=1\"><title>");
    sl_html_escape(&p->html, title);
    sl_buf_printf(&p->html, "</title><style>%s</style></head><body><main><h1>", style);
    sl_html_escape(&p->html, title);
    sl_buf_printf(&p->html, "</h1><p class=\"dim\">%zu results, %s</p>\n", p->n, date);
    loads_table(p);
    capacities_table(p);
    over_rate(p);
    distributions(p);
    prompt_lengths(p);
    time_lines(p);
    engine(p);
    files_table(p);
    sl_buf_puts(&p->html, "</main></body></html>\n");
}

static enum sl_err save(const struct page *p, const char *path, struct sl_why *why)
{
    FILE *f = fopen(path, "we");
    bool ok = f && !sl_buf_failed(&p->html) && fwrite(p->html.data, 1, p->html.len, f) == p->html.len;
    if (f && fclose(f) != 0)
        ok = false;
    return ok ? SL_OK : sl_why_set(why, SL_EIO, "cannot write %s", path);
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct page *p = sl_xcalloc(1, sizeof *p);
    sl_buf_init(&p->html, MAX_PAGE_BYTES);
    int rc = SL_BENCH_USAGE;
    if (open_files(p, o, why) == SL_OK) {
        write_page(p, o->title);
        rc = save(p, o->out, why) ? SL_BENCH_FAILED : SL_BENCH_OK;
        if (rc == SL_BENCH_OK)
            printf("%s: %zu results\n", o->out, p->n);
    }
    for (size_t i = 0; i < p->n; i++)
        json_decref(p->files[i].doc);
    sl_buf_fini(&p->html);
    sl_free(p);
    return rc;
}

const struct sl_bench_command sl_bench_report = {
    .name = "report",
    .usage = "FILES... [-o report.html]",
    .help = "results of the other commands as one HTML page that needs nothing else",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .words = "--files",
    .run = run,
};
