/* tests/bench/engine_plot.c - one page: the surface of mixed steps, decode speed, and parts of the roofs.
 *
 * Times are drawn on a logarithmic ramp of one hue, with the number in each cell: the picture shows the
 * shape, the numbers are there to be read. What was disturbed has a star. */
#include "tests/bench/engine_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"

#define WIDTH     1240.0
#define MARGIN    40.0
#define HALF      560.0 /* width of a panel */
#define RIGHT     (WIDTH - MARGIN - HALF)
#define CELL_H    30.0
#define BAR_H     15.0
#define GROUP_GAP 7.0
#define CHART_H   340.0
#define MAX_AXIS  32
#define INK       "#1b1f24"
#define DIM       "#66707a"
#define GRID      "#e4e8ec"
#define BLUE      "#2563a8" /* bound by arithmetic */
#define ORANGE    "#d97a1e" /* bound by reading */

struct axis { /* distinct values in order of appearance */
    double v[MAX_AXIS];
    size_t n;
};

static double num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void axis_add(struct axis *a, double v)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->v[i] == v)
            return;
    if (a->n < MAX_AXIS)
        a->v[a->n++] = v;
}

static struct axis axis_of(const json_t *rows, const char *key)
{
    struct axis a = {.n = 0};
    size_t i;
    const json_t *o;
    json_array_foreach ((json_t *)rows, i, o)
        axis_add(&a, num(o, key));
    return a;
}

static size_t axis_find(const struct axis *a, double v)
{
    size_t i = 0;
    while (i < a->n && a->v[i] != v)
        i++;
    return i;
}

static void text(FILE *f, double x, double y, const char *anchor, double size, const char *colour,
                 const char *s)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%.0f\" fill=\"%s\">", x, y, anchor,
            size, colour);
    for (; *s; s++)
        switch (*s) {
        case '<':
            fputs("&lt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        default:
            fputc(*s, f);
        }
    fputs("</text>\n", f);
}

static void rect(FILE *f, double x, double y, double w, double h, const char *colour)
{
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, w, h,
            colour);
}

static void line(FILE *f, double x0, double y0, double x1, double y1, const char *colour)
{
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x0, y0, x1, y1,
            colour);
}

/* From pale to deep blue; part in 0..1. */
static void ramp(double part, char out[8])
{
    static const int from[3] = {0xea, 0xf2, 0xfb}, to[3] = {0x0b, 0x3c, 0x78};
    int c[3];
    for (int i = 0; i < 3; i++)
        c[i] = (int)lround(from[i] + part * (to[i] - from[i]));
    snprintf(out, 8, "#%02x%02x%02x", c[0] & 0xff, c[1] & 0xff, c[2] & 0xff);
}

static const char *star(const json_t *o)
{
    return json_is_true(json_object_get(o, "disturbed")) ? "*" : "";
}

/* ---- surface ---- */

static double heat_map(FILE *f, const json_t *doc, double history, double x, double y, double low,
                       double high)
{
    const json_t *mixed = json_object_get(doc, "mixed");
    struct axis chunks = axis_of(mixed, "chunk"), decodes = axis_of(mixed, "decodes");
    double left = x + 56, top = y + 52, cell = (HALF - 56) / (double)decodes.n;
    char s[96], colour[8];
    snprintf(s, sizeof s, "Mixed step, ms: chunk over %.0f tokens of history", history);
    text(f, x, y + 8, "start", 15, INK, s);
    snprintf(s, sizeof s, "decode rows beside it, each at context %.0f", num(doc, "mixed_context"));
    text(f, left, y + 28, "start", 12, DIM, s);
    text(f, x, top - 6, "start", 12, DIM, "chunk");
    for (size_t d = 0; d < decodes.n; d++) {
        snprintf(s, sizeof s, "%.0f", decodes.v[d]);
        text(f, left + (d + 0.5) * cell, top - 6, "middle", 12, DIM, s);
    }
    for (size_t c = 0; c < chunks.n; c++) {
        snprintf(s, sizeof s, "%.0f", chunks.v[c]);
        text(f, left - 8, top + (c + 0.65) * CELL_H, "end", 12, DIM, s);
    }
    size_t i;
    const json_t *o;
    json_array_foreach ((json_t *)mixed, i, o) {
        if (num(o, "history") != history)
            continue;
        double ms = num(o, "ms"), part = high > low ? log(ms / low) / log(high / low) : 0;
        double cx = left + axis_find(&decodes, num(o, "decodes")) * cell;
        double cy = top + axis_find(&chunks, num(o, "chunk")) * CELL_H;
        ramp(part, colour);
        rect(f, cx, cy, cell - 2, CELL_H - 2, colour);
        snprintf(s, sizeof s, ms < 10 ? "%.2f%s" : ms < 100 ? "%.1f%s" : "%.0f%s", ms, star(o));
        text(f, cx + cell / 2 - 1, cy + 0.65 * CELL_H, "middle", 12, part > 0.5 ? "#ffffff" : INK, s);
    }
    return top + chunks.n * CELL_H;
}

static double surface(FILE *f, const json_t *doc, double y)
{
    const json_t *mixed = json_object_get(doc, "mixed");
    struct axis histories = axis_of(mixed, "history");
    double low = INFINITY, high = 0, bottom = y;
    size_t i;
    const json_t *o;
    json_array_foreach ((json_t *)mixed, i, o) {
        low = fmin(low, num(o, "ms"));
        high = fmax(high, num(o, "ms"));
    }
    for (size_t h = 0; h < histories.n; h++) {
        double x = h % 2 ? RIGHT : MARGIN;
        double end = heat_map(f, doc, histories.v[h], x, y, low, high);
        bottom = fmax(bottom, end);
        if (h % 2 || h + 1 == histories.n)
            y = bottom + 44;
    }
    return y;
}

/* ---- decode over batch and depth ---- */

/* A round number of at least x: 1, 2, 5 times a power of ten. */
static double round_up(double x)
{
    double p = pow(10, floor(log10(x)));
    return x <= p ? p : x <= 2 * p ? 2 * p : x <= 5 * p ? 5 * p : 10 * p;
}

static void decode_grid(FILE *f, const struct axis *batches, double x, double y, double w, double step, int n)
{
    char s[32];
    for (int i = 0; i <= n; i++) {
        double gy = y + CHART_H * (1 - (double)i / n);
        line(f, x, gy, x + w, gy, GRID);
        snprintf(s, sizeof s, "%.0f", i * step);
        text(f, x - 6, gy + 4, "end", 12, DIM, s);
    }
    for (size_t i = 0; i < batches->n; i++) {
        snprintf(s, sizeof s, "%.0f", batches->v[i]);
        double at = batches->n > 1 ? w * (double)i / (double)(batches->n - 1) : w / 2;
        text(f, x + at, y + CHART_H + 18, "middle", 12, DIM, s);
    }
}

static void decode_chart(FILE *f, const json_t *rows, double x0, double y0)
{
    struct axis batches = axis_of(rows, "batch"), depths = axis_of(rows, "depth");
    double x = x0 + 56, y = y0 + 36, w = HALF - 56 - 84, high = 1, label_y = INFINITY;
    size_t i;
    const json_t *o;
    text(f, x0, y0 + 8, "start", 15, INK, "Decode, tokens/s over rows of the batch");
    json_array_foreach ((json_t *)rows, i, o)
        high = fmax(high, num(o, "max"));
    double step = round_up(high / 5);
    int n = (int)ceil(high / step);
    decode_grid(f, &batches, x, y, w, step, n);
    for (size_t d = 0; d < depths.n; d++) {
        char colour[8], s[48];
        double px = 0, py = 0;
        ramp(depths.n > 1 ? 1 - 0.72 * (double)d / (double)(depths.n - 1) : 1, colour);
        bool first = true;
        json_array_foreach ((json_t *)rows, i, o) {
            if (num(o, "depth") != depths.v[d])
                continue;
            double at = axis_find(&batches, num(o, "batch"));
            double cx = batches.n > 1 ? x + w * at / (double)(batches.n - 1) : x + w / 2;
            double cy = y + CHART_H * (1 - num(o, "tokens_per_s") / (n * step));
            if (!first)
                fprintf(f,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                        "stroke-width=\"2\"/>\n",
                        px, py, cx, cy, colour);
            line(f, cx, y + CHART_H * (1 - num(o, "min") / (n * step)), cx,
                 y + CHART_H * (1 - num(o, "max") / (n * step)), colour);
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", cx, cy, colour);
            if (*star(o))
                text(f, cx, cy - 6, "middle", 12, colour, "*");
            px = cx;
            py = cy;
            first = false;
        }
        snprintf(s, sizeof s, "depth %.0f", depths.v[d]);
        /* deeper is slower: labels go down, and never over each other */
        double ly = fmin(py + 4, INFINITY);
        ly = label_y != INFINITY && ly < label_y + 15 ? label_y + 15 : ly;
        text(f, px + 9, ly, "start", 12, INK, s);
        label_y = ly;
    }
}

/* ---- parts of the roofs ---- */

static double bar(FILE *f, const json_t *o, const char *label, double x, double y, double w)
{
    double peak = num(o, "percent_of_peak"), read = num(o, "percent_of_read"), part = fmax(peak, read);
    char s[64];
    text(f, x + 118, y + BAR_H - 4, "end", 11, INK, label);
    rect(f, x + 126, y + 1, w * fmin(part, 100) / 100, BAR_H - 3, peak >= read ? BLUE : ORANGE);
    snprintf(s, sizeof s, "%.0f %%%s", part, star(o));
    text(f, x + 130 + w * fmin(part, 100) / 100, y + BAR_H - 4, "start", 11, INK, s);
    return y + BAR_H;
}

static double roof_bars(FILE *f, const json_t *doc, double x, double y0)
{
    const json_t *decode = json_object_get(doc, "decode");
    double y = y0 + 40, w = HALF - 126 - 40;
    size_t i;
    const json_t *o;
    char s[64];
    text(f, x, y0 + 8, "start", 15, INK, "Part of the nearer roof");
    rect(f, x + 190, y0 - 2, 11, 11, BLUE);
    text(f, x + 206, y0 + 8, "start", 12, DIM, "arithmetic");
    rect(f, x + 290, y0 - 2, 11, 11, ORANGE);
    text(f, x + 306, y0 + 8, "start", 12, DIM, "memory reads");
    size_t n = json_array_size(json_object_get(doc, "prompt")) + json_array_size(decode);
    double height = n * BAR_H + axis_of(decode, "depth").n * GROUP_GAP;
    for (int p = 0; p <= 100; p += 25) {
        double gx = x + 126 + w * p / 100;
        line(f, gx, y - 4, gx, y + height, GRID);
        snprintf(s, sizeof s, "%d %%", p);
        text(f, gx, y - 8, "middle", 11, DIM, s);
    }
    json_array_foreach (json_object_get(doc, "prompt"), i, o) {
        snprintf(s, sizeof s, "prompt %.0f", num(o, "tokens"));
        y = bar(f, o, s, x, y, w);
    }
    y += GROUP_GAP;
    double before = 0;
    json_array_foreach ((json_t *)decode, i, o) {
        double depth = num(o, "depth");
        y += i && depth != before ? GROUP_GAP : 0;
        before = depth;
        snprintf(s, sizeof s, "%.0f %s at %.0f", num(o, "batch"), num(o, "batch") > 1 ? "rows" : "row",
                 depth);
        y = bar(f, o, s, x, y, w);
    }
    return y;
}

static double header(FILE *f, const json_t *doc)
{
    char s[512];
    size_t i;
    const json_t *o;
    double y = 66;
    snprintf(s, sizeof s, "%s, %s", json_string_value(json_object_get(doc, "name")),
             json_string_value(json_object_get(doc, "type")));
    text(f, MARGIN, 40, "start", 22, INK, s);
    snprintf(s, sizeof s, "backend %s, %.0f threads, KV %s%s. Medians; thin lines: smallest and largest.",
             json_string_value(json_object_get(doc, "backend")), num(doc, "threads"),
             json_string_value(json_object_get(doc, "kv")),
             json_is_true(json_object_get(doc, "shared_pages")) ? ", contexts share pages" : "");
    text(f, MARGIN, y, "start", 13, DIM, s);
    json_array_foreach (json_object_get(doc, "roofs"), i, o) {
        y += 18;
        snprintf(s, sizeof s,
                 "Roofs, %.0f %s: reading %.1f GB/s, int8 %.0f Gop/s, bf16 %.0f GFLOP/s, f32 %.0f GFLOP/s",
                 num(o, "threads"), num(o, "threads") > 1 ? "threads" : "thread",
                 num(json_object_get(o, "read_gb_s"), "max"), num(json_object_get(o, "int8_gop_s"), "max"),
                 num(json_object_get(o, "bf16_gflop_s"), "max"),
                 num(json_object_get(o, "f32_gflop_s"), "max"));
        text(f, MARGIN, y, "start", 13, DIM, s);
    }
    if (num(doc, "disturbed") > 0) {
        y += 18;
        snprintf(s, sizeof s, "* %.0f figures were taken while other work ran on these cores",
                 num(doc, "disturbed"));
        text(f, MARGIN, y, "start", 13, "#b3261e", s);
    }
    return y + 40;
}

/* Draws into f; returns the height of it all. */
static double draw(FILE *f, const json_t *doc)
{
    const json_t *decode = json_object_get(doc, "decode");
    double y = header(f, doc), bottom;
    if (json_array_size(json_object_get(doc, "mixed")))
        y = surface(f, doc, y);
    bottom = y;
    if (json_array_size(decode)) {
        decode_chart(f, decode, MARGIN, y);
        bottom = y + 36 + CHART_H + 24;
    }
    bottom = fmax(bottom, roof_bars(f, doc, json_array_size(decode) ? RIGHT : MARGIN, y));
    return bottom + 24;
}

/* The height stands before what decides it: written twice, in the same room. */
static void head(FILE *f, double height)
{
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" font-family=\"Helvetica, Arial, 'DejaVu Sans', "
            "sans-serif\" width=\"%.0f\" height=\"%6.0f\">\n",
            WIDTH, height);
}

enum sl_err sl_engine_plot(const json_t *doc, const char *path, struct sl_why *why)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return sl_why_set(why, SL_EIO, "cannot write %s", path);
    head(f, 0);
    rect(f, 0, 0, WIDTH, 1e5, "#ffffff");
    double height = draw(f, doc);
    fputs("</svg>\n", f);
    rewind(f);
    head(f, height);
    bool bad = ferror(f);
    if (fclose(f) || bad)
        return sl_why_set(why, SL_EIO, "cannot write %s", path);
    return SL_OK;
}
