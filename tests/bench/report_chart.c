/* tests/bench/report_chart.c - see report_chart.h. */
#include "tests/bench/report_chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/order.h"

#define WIDTH      640.0
#define WIDE       1280.0 /* of a time line, which has the page's width */
#define HEIGHT     340.0
#define LEFT       62.0
#define RIGHT      16.0
#define TOP        12.0
#define BOTTOM     46.0
#define TICKS      6
#define CDF_POINTS 200u
#define TABLE_ROWS 400u /* of one series: more is not read in a table */
#define ROWS       120u /* of a time line */
#define ROW_H      7.0

struct scale {
    double low, high, from, to; /* values and pixels */
    bool log;
};

/* ---- series ---- */

/* The one of the mode that the name speaks of, else the first free one behind those. */
static unsigned choose_look(const struct sl_chart *c, const char *name)
{
    static const char *const modes[] = {"pd", "colocated", "hybrid"};
    bool taken[SL_CHART_SERIES] = {false};
    for (size_t i = 0; i < c->n; i++)
        taken[c->series[i].look] = true;
    for (unsigned m = SL_COUNTOF(modes); m-- > 0;)
        if (strstr(name, modes[m]) && !taken[m])
            return m;
    for (unsigned i = SL_COUNTOF(modes); i < SL_CHART_SERIES; i++)
        if (!taken[i])
            return i;
    unsigned look = 0;
    while (taken[look])
        look++;
    return look;
}

struct sl_chart_series *sl_chart_series(struct sl_chart *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->series[i].name, name) == 0)
            return &c->series[i];
    if (c->n == SL_CHART_SERIES) {
        c->more = true;
        return NULL;
    }
    struct sl_chart_series *s = &c->series[c->n];
    s->look = choose_look(c, name);
    c->n++;
    snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

void sl_chart_add_interval(struct sl_chart_series *s, double x, double y, double low, double high)
{
    if (!s || !isfinite(x) || !isfinite(y))
        return;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 32;
        s->points = sl_xrealloc_array(s->points, s->cap, sizeof *s->points);
    }
    s->points[s->n++] = (struct sl_chart_point){x, y, low, high};
}

void sl_chart_add(struct sl_chart_series *s, double x, double y)
{
    sl_chart_add_interval(s, x, y, NAN, NAN);
}

void sl_chart_add_cdf(struct sl_chart_series *s, double *values, size_t n)
{
    qsort(values, n, sizeof *values, sl_order_f64);
    size_t step = n / CDF_POINTS + 1;
    for (size_t i = 0; i < n; i += step)
        sl_chart_add(s, values[i], (double)(i + 1) / (double)n);
    if (n && (n - 1) % step)
        sl_chart_add(s, values[n - 1], 1);
}

/* ---- drawing ---- */

void sl_html_escape(struct sl_buf *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '<':
            sl_buf_puts(out, "&lt;");
            break;
        case '>':
            sl_buf_puts(out, "&gt;");
            break;
        case '&':
            sl_buf_puts(out, "&amp;");
            break;
        case '"':
            sl_buf_puts(out, "&quot;");
            break;
        default:
            sl_buf_putc(out, *text);
        }
}

static double at(const struct scale *s, double v)
{
    double low = s->log ? log10(s->low) : s->low, high = s->log ? log10(s->high) : s->high;
    v = s->log ? log10(fmax(v, s->low)) : v;
    return s->from + (high > low ? (v - low) / (high - low) : 0.5) * (s->to - s->from);
}

/* 1, 2 or 5 times a power of ten, for about n steps over span. */
static double nice_step(double span, int n)
{
    double raw = span / n, power = pow(10, floor(log10(raw))), m = raw / power;
    return power * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

static void label(struct sl_buf *out, double x, double y, const char *anchor, const char *text)
{
    sl_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    sl_html_escape(out, text);
    sl_buf_puts(out, "</text>");
}

static void number_text(double v, bool percent, char *text, size_t size)
{
    if (percent)
        snprintf(text, size, "%.4g %%", v * 100);
    else if (fabs(v) >= 10000 && fabs(v) < 1e7)
        snprintf(text, size, "%.0f", v);
    else
        snprintf(text, size, "%.4g", v);
}

static void grid_line(struct sl_buf *out, double x0, double y0, double x1, double y1)
{
    sl_buf_printf(out, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", x0, y0, x1,
                  y1);
}

static void x_tick(struct sl_buf *out, const struct scale *x, double v)
{
    char text[32];
    number_text(v, false, text, sizeof text);
    grid_line(out, at(x, v), TOP, at(x, v), HEIGHT - BOTTOM);
    label(out, at(x, v), HEIGHT - BOTTOM + 16, "middle", text);
}

static void axes(struct sl_buf *out, const struct sl_chart *c, const struct scale *x, const struct scale *y)
{
    char text[32];
    double step = nice_step(y->high - y->low, TICKS);
    for (double v = ceil(y->low / step - 1e-9) * step; v <= y->high + step * 1e-6; v += step) {
        number_text(fabs(v) < step * 1e-9 ? 0 : v, c->y_percent, text, sizeof text);
        grid_line(out, LEFT, at(y, v), WIDTH - RIGHT, at(y, v));
        label(out, LEFT - 6, at(y, v) + 4, "end", text);
    }
    if (x->log) {
        static const double steps[] = {1, 2, 5};
        double decades = log10(x->high / x->low);
        for (double power = pow(10, floor(log10(x->low))); power <= x->high; power *= 10)
            for (size_t i = 0; i < (decades > 3 ? 1 : SL_COUNTOF(steps)); i++)
                if (power * steps[i] >= x->low * 0.999 && power * steps[i] <= x->high * 1.001)
                    x_tick(out, x, power * steps[i]);
    } else {
        step = nice_step(x->high - x->low, TICKS);
        for (double v = ceil(x->low / step - 1e-9) * step; v <= x->high + step * 1e-6; v += step)
            x_tick(out, x, fabs(v) < step * 1e-9 ? 0 : v);
    }
    label(out, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle", c->x_label);
    sl_buf_printf(out, "<text x=\"14\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 14 %.1f)\">",
                  (TOP + HEIGHT - BOTTOM) / 2, (TOP + HEIGHT - BOTTOM) / 2);
    sl_html_escape(out, c->y_label);
    sl_buf_puts(out, "</text>");
}

/* Another shape for each series: colour is not all that tells them apart. */
static void marker(struct sl_buf *out, size_t series, double x, double y, bool hollow)
{
    const char *how = hollow ? " o" : "";
    switch (series % 4) {
    case 0:
        sl_buf_printf(out, "<circle class=\"f%zu%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\"/>", series, how, x, y);
        break;
    case 1:
        sl_buf_printf(out, "<rect class=\"f%zu%s\" x=\"%.1f\" y=\"%.1f\" width=\"6\" height=\"6\"/>", series,
                      how, x - 3, y - 3);
        break;
    case 2:
        sl_buf_printf(out, "<path class=\"f%zu%s\" d=\"M%.1f %.1fl4 7h-8z\"/>", series, how, x, y - 4.2);
        break;
    default:
        sl_buf_printf(out, "<path class=\"f%zu%s\" d=\"M%.1f %.1fl4 4l-4 4l-4 -4z\"/>", series, how, x,
                      y - 4);
    }
}

static void draw(struct sl_buf *out, const struct sl_chart *c, size_t k, const struct scale *x,
                 const struct scale *y)
{
    const struct sl_chart_series *s = &c->series[k];
    unsigned look = s->look;
    if (s->n == 0)
        return;
    for (size_t i = 0; i < s->n; i++) {
        const struct sl_chart_point *p = &s->points[i];
        if (isfinite(p->low) && isfinite(p->high)) {
            double px = at(x, p->x), lo = at(y, fmax(p->low, y->low)), hi = at(y, fmin(p->high, y->high));
            sl_buf_printf(out, "<path class=\"s%u thin\" d=\"M%.1f %.1fV%.1fm-4 0h8M%.1f %.1fh8\"/>", look,
                          px, lo, hi, px - 4, lo);
        }
    }
    if (!s->dotted) {
        sl_buf_printf(out, "<path class=\"s%u\" d=\"", look);
        for (size_t i = 0; i < s->n; i++) {
            double px = at(x, s->points[i].x), py = at(y, s->points[i].y);
            if (c->steps && i)
                sl_buf_printf(out, "H%.1fV%.1f", px, py);
            else
                sl_buf_printf(out, "%s%.1f %.1f", i ? "L" : "M", px, py);
        }
        sl_buf_puts(out, "\"/>");
    }
    for (size_t i = 0; i < s->n && !c->steps; i++)
        marker(out, look, at(x, s->points[i].x), at(y, s->points[i].y), s->dotted);
}

static void legend(struct sl_buf *out, const struct sl_chart *c)
{
    sl_buf_puts(out, "<ul class=\"legend\">");
    for (size_t k = 0; k < c->n; k++) {
        if (c->series[k].n == 0)
            continue;
        sl_buf_printf(out, "<li><svg width=\"26\" height=\"12\" aria-hidden=\"true\">");
        if (!c->series[k].dotted)
            sl_buf_printf(out, "<path class=\"s%u\" d=\"M1 6H25\"/>", c->series[k].look);
        marker(out, c->series[k].look, 13, 6, c->series[k].dotted);
        sl_buf_puts(out, "</svg>");
        sl_html_escape(out, c->series[k].name);
        sl_buf_puts(out, "</li>");
    }
    sl_buf_puts(out, "</ul>");
}

static void table(struct sl_buf *out, const struct sl_chart *c)
{
    char x[32], y[32], low[32], high[32];
    sl_buf_puts(out, "<details><summary>Numbers</summary><table><thead><tr><th>series</th><th>");
    sl_html_escape(out, c->x_label);
    sl_buf_puts(out, "</th><th>");
    sl_html_escape(out, c->y_label);
    sl_buf_puts(out, "</th></tr></thead><tbody>");
    for (size_t k = 0; k < c->n; k++) {
        const struct sl_chart_series *s = &c->series[k];
        size_t step = s->n / TABLE_ROWS + 1;
        for (size_t i = 0; i < s->n; i += step) {
            const struct sl_chart_point *p = &s->points[i];
            number_text(p->x, false, x, sizeof x);
            number_text(p->y, c->y_percent, y, sizeof y);
            sl_buf_puts(out, "<tr><th scope=\"row\">");
            sl_html_escape(out, s->name);
            sl_buf_printf(out, "</th><td>%s</td><td>%s", x, y);
            if (isfinite(p->low)) {
                number_text(p->low, c->y_percent, low, sizeof low);
                number_text(p->high, c->y_percent, high, sizeof high);
                sl_buf_printf(out, " (%s to %s)", low, high);
            }
            sl_buf_puts(out, "</td></tr>");
        }
    }
    sl_buf_puts(out, "</tbody></table></details>");
}

static void find_scales(const struct sl_chart *c, struct scale *x, struct scale *y)
{
    *x = (struct scale){INFINITY, -INFINITY, LEFT, WIDTH - RIGHT, c->log_x};
    *y = (struct scale){0, 0, HEIGHT - BOTTOM, TOP, false};
    for (size_t k = 0; k < c->n; k++)
        for (size_t i = 0; i < c->series[k].n; i++) {
            const struct sl_chart_point *p = &c->series[k].points[i];
            if (!c->log_x || p->x > 0) {
                x->low = fmin(x->low, p->x);
                x->high = fmax(x->high, p->x);
            }
            y->high = fmax(y->high, isfinite(p->high) && !c->y_percent ? p->high : p->y);
        }
    if (isfinite(c->mark_y))
        y->high = fmax(y->high, c->mark_y);
    if (!(x->low <= x->high)) /* no point is above 0 on a logarithmic axis */
        *x = (struct scale){1, 10, LEFT, WIDTH - RIGHT, c->log_x};
    if (!c->log_x && x->low > 0 && x->low < 0.5 * x->high)
        x->low = 0;
    if (x->low == x->high) {
        x->low = c->log_x ? x->low / 2 : x->low - 1;
        x->high = c->log_x ? x->high * 2 : x->high + 1;
    }
    if (c->y_percent && y->high >= 0.5)
        y->high = 1;
    else
        y->high = y->high > 0 ? y->high * 1.06 : 1;
}

void sl_chart_write(struct sl_chart *c, struct sl_buf *out)
{
    struct scale x, y;
    size_t n = 0;
    for (size_t k = 0; k < c->n; k++)
        n += c->series[k].n;
    if (n) {
        find_scales(c, &x, &y);
        sl_buf_puts(out, "<figure><figcaption>");
        sl_html_escape(out, c->title);
        sl_buf_printf(out, "</figcaption><svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>",
                      WIDTH, HEIGHT);
        sl_html_escape(out, c->title);
        sl_buf_puts(out, "</title><desc>");
        sl_html_escape(out, c->about);
        sl_buf_puts(out, "</desc>");
        axes(out, c, &x, &y);
        if (isfinite(c->mark_y))
            sl_buf_printf(out, "<line class=\"mark\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", LEFT,
                          at(&y, c->mark_y), WIDTH - RIGHT, at(&y, c->mark_y));
        for (size_t k = 0; k < c->n; k++)
            draw(out, c, k, &x, &y);
        sl_buf_puts(out, "</svg>");
        legend(out, c);
        if (*c->about) {
            sl_buf_puts(out, "<p class=\"about\">");
            sl_html_escape(out, c->about);
            sl_buf_puts(out, "</p>");
        }
        if (c->more)
            sl_buf_printf(out,
                          "<p class=\"about\">The first %d series; those of later files are left out.</p>",
                          SL_CHART_SERIES);
        table(out, c);
        sl_buf_puts(out, "</figure>\n");
    }
    for (size_t k = 0; k < c->n; k++)
        sl_free(c->series[k].points);
    c->n = 0;
}

/* ---- time lines ---- */

void sl_timeline_write(const char *title, const struct sl_timeline_row *rows, size_t n, double slow_s,
                       struct sl_buf *out)
{
    size_t shown = n < ROWS ? n : ROWS;
    struct scale x = {INFINITY, 0, 8, WIDE - RIGHT, false};
    for (size_t i = 0; i < shown; i++) {
        x.low = fmin(x.low, rows[i].start_s);
        x.high = fmax(x.high, fmax(rows[i].end_s, rows[i].start_s));
    }
    if (shown == 0)
        return;
    double base = TOP + (double)shown * ROW_H + 4, step = nice_step(fmax(x.high - x.low, 1e-3), 8);
    sl_buf_puts(out, "<figure class=\"wide\"><figcaption>");
    sl_html_escape(out, title);
    sl_buf_printf(out, "</figcaption><svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>",
                  WIDE, base + 34);
    sl_html_escape(out, title);
    char marks[80] = "";
    if (isfinite(slow_s))
        snprintf(marks, sizeof marks, ", with a dark mark where the next token took more than %.3g ms",
                 slow_s * 1e3);
    sl_buf_printf(
        out,
        "</title><desc>One bar for each of %zu requests in order of sending: pale while it waits for its "
        "first token, strong while tokens come%s.</desc>",
        shown, marks);
    for (double v = ceil(x.low / step) * step; v <= x.high; v += step) {
        char text[32];
        snprintf(text, sizeof text, "%.4g", v);
        grid_line(out, at(&x, v), TOP, at(&x, v), base);
        label(out, at(&x, v), base + 14, "middle", text);
    }
    label(out, WIDE / 2, base + 30, "middle", "seconds");
    for (size_t i = 0; i < shown; i++) {
        const struct sl_timeline_row *r = &rows[i];
        double top = TOP + (double)i * ROW_H, t = r->first_s;
        if (r->first_s < r->start_s) {
            sl_buf_printf(out, "<path class=\"failed\" d=\"M%.1f %.1fl4 4m0 -4l-4 4\"/>", at(&x, r->start_s),
                          top + 1);
            continue;
        }
        sl_buf_printf(out, "<rect class=\"wait\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                      at(&x, r->start_s), top, at(&x, r->first_s) - at(&x, r->start_s), ROW_H - 2);
        sl_buf_printf(out, "<rect class=\"f0\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                      at(&x, r->first_s), top, fmax(at(&x, r->end_s) - at(&x, r->first_s), 0.8), ROW_H - 2);
        for (size_t k = 0; k < r->n_gaps; k++) {
            if (r->gaps_s[k] > slow_s)
                sl_buf_printf(out,
                              "<rect class=\"slow\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                              at(&x, t), top, fmax(at(&x, t + r->gaps_s[k]) - at(&x, t), 0.8), ROW_H - 2);
            t += r->gaps_s[k];
        }
    }
    sl_buf_puts(
        out, "</svg><ul class=\"legend\"><li><i class=\"key wait\"></i>waits for its first token</li><li><i "
             "class=\"key f0\"></i>tokens come</li>");
    if (isfinite(slow_s))
        sl_buf_printf(out, "<li><i class=\"key slow\"></i>next token after more than %.3g ms</li>",
                      slow_s * 1e3);
    sl_buf_puts(out, "</ul>");
    if (shown < n)
        sl_buf_printf(out, "<p class=\"about\">The first %zu of %zu requests.</p>", shown, n);
    sl_buf_puts(out, "</figure>\n");
}
