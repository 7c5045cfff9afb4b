/* router/admin/admin_slo.c - service classes as their requests fared: of the records that are kept, those that
 * have ended. */
#include "router/admin/admin_tables.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CLASSES 64u

struct class
{
    const char *name;
    uint32_t n, wished, met, relegated, ttft_ms, tpot_ms; /* the wishes of the newest */
    double *ttft;
    uint32_t n_ttft, cap_ttft;
};

static struct class *class_of(struct class *list, uint32_t *n, const char *name)
{
    for (uint32_t i = 0; i < *n; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    if (*n == MAX_CLASSES)
        return NULL;
    list[*n] = (struct class){.name = name};
    return &list[(*n)++];
}

static void count(struct class *c, const struct sl_decision *d)
{
    if (c->n++ == 0) {
        c->ttft_ms = d->slo_ttft_ms;
        c->tpot_ms = d->slo_tpot_ms;
    }
    if (d->slo_ttft_ms || d->slo_tpot_ms) {
        c->wished++;
        c->met += sl_decision_slo_met(d);
    }
    c->relegated += d->relegated;
    if (!d->first_us)
        return;
    if (c->n_ttft == c->cap_ttft) {
        c->cap_ttft = c->cap_ttft ? 2 * c->cap_ttft : 64;
        c->ttft = sl_xrealloc_array(c->ttft, c->cap_ttft, sizeof *c->ttft);
    }
    c->ttft[c->n_ttft++] = (double)(d->first_us - d->arrived_us) / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void quantile_cell(struct sl_admin_out *o, const struct class *c, unsigned percent)
{
    if (c->n_ttft)
        sl_admin_cell(o, "%.0f", c->ttft[(size_t)(c->n_ttft - 1) * percent / 100]);
    else
        sl_admin_cell(o, "-");
}

static void wish_cell(struct sl_admin_out *o, uint32_t ms)
{
    if (ms)
        sl_admin_cell(o, "%u", ms);
    else
        sl_admin_cell(o, "-");
}

void sl_admin_slo(struct sl_admin_out *o, const struct sl_admin_state *s)
{
    struct class list[MAX_CLASSES];
    const struct sl_decision *d;
    uint32_t n = 0;
    for (uint32_t i = 0; (d = sl_decisions_nth(s->decisions, i)) != NULL; i++) {
        struct class *c =
            d->finish[0] && strcmp(d->finish, "canceled") != 0 ? class_of(list, &n, d->slo_class) : NULL;
        if (c)
            count(c, d);
    }
    sl_admin_table(
        o, "slo",
        "class,ended,wished,met,met_percent,relegated,ttft_wish_ms,ttft_p50_ms,ttft_p99_ms,tpot_wish_ms");
    for (uint32_t i = 0; i < n; i++) {
        struct class *c = &list[i];
        if (c->n_ttft)
            qsort(c->ttft, c->n_ttft, sizeof *c->ttft, by_value);
        sl_admin_row(o);
        sl_admin_cell(o, "%s", c->name);
        sl_admin_cell(o, "%u", c->n);
        sl_admin_cell(o, "%u", c->wished);
        sl_admin_cell(o, "%u", c->met);
        if (c->wished)
            sl_admin_cell(o, "%.1f", 100.0 * c->met / c->wished);
        else
            sl_admin_cell(o, "-");
        sl_admin_cell(o, "%u", c->relegated);
        wish_cell(o, c->ttft_ms);
        quantile_cell(o, c, 50);
        quantile_cell(o, c, 99);
        wish_cell(o, c->tpot_ms);
        sl_free(c->ttft);
    }
    if (n == 0)
        sl_admin_say(o, "No request has ended yet.");
}
