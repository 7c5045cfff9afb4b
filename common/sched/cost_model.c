/* common/sched/cost_model.c - prediction and its refinement.
 *
 * Refinement is a normalised multiplicative LMS: the relative error of a step, clipped, corrects each term by
 * its share of the prediction. Attention over history is then learnt from the late chunks of long prompts and
 * the table from steps without history. A common factor (scale) follows a machine that became faster or
 * slower as a whole, slowly: were it quick, an error of mixed steps would move the prediction of decode rows
 * alone with it, and so the target that chunks are measured by. Steps disturbed by others (a core taken away)
 * are clipped to MAX_ERROR, so one of them moves a term by 2 % at most.
 *
 * Rejected: least squares with forgetting: an unlucky run of equal steps makes it singular, and one outlier
 * poisons it. */
#include "common/sched/cost_model.h"

#include <math.h>

#define MAX_ERROR  0.3   /* clip of one step's relative error */
#define TERM_RATE  0.05  /* of the clipped error into the terms */
#define SCALE_RATE 0.003 /* and into the common factor: what stays after the terms moved */
#define ERROR_RATE 0.05  /* running mean over about 20 steps */
#define MAX_SCALE  8.0
#define PER_MTOKEN 1e-6

/* Where rows lies in the table: ms = a * ms[i] + b * ms[i + 1]; b is 0 at the ends. */
struct place {
    uint32_t i;
    double a, b;
};

static struct place find(const struct sl_cost_model *m, uint32_t rows)
{
    uint32_t last = m->n_points - 1, i = 0;
    if (rows <= m->rows[0])
        return (struct place){0, 1, 0};
    if (rows >= m->rows[last]) {
        /* beyond the table: along its last segment, never downwards */
        double beyond = rows - m->rows[last];
        if (last == 0)
            return (struct place){0, rows / (double)m->rows[0], 0};
        double step = m->rows[last] - m->rows[last - 1];
        if (m->ms[last] <= m->ms[last - 1])
            return (struct place){last, 1 + beyond / m->rows[last], 0};
        return (struct place){last - 1, -beyond / step, 1 + beyond / step};
    }
    while (rows >= m->rows[i + 1])
        i++;
    double b = (rows - m->rows[i]) / (double)(m->rows[i + 1] - m->rows[i]);
    return (struct place){i, 1 - b, b};
}

static double table_ms(const struct sl_cost_model *m, uint32_t rows)
{
    if (rows == 0 || m->n_points == 0)
        return 0;
    struct place p = find(m, rows);
    return p.a * m->ms[p.i] + (p.b != 0 ? p.b * m->ms[p.i + 1] : 0);
}

/* The terms beside the table: coefficient and load. */
struct term {
    double *per_unit;
    double units;
};
#define N_TERMS 4u

static void terms(struct sl_cost_model *m, const struct sl_step_load *l, struct term t[N_TERMS])
{
    t[0] = (struct term){&m->head_ms_per_row, l->decode_rows};
    t[1] = (struct term){&m->prompt_attn_ms_per_mtoken, l->prompt_attn * PER_MTOKEN};
    t[2] = (struct term){&m->prompt_read_ms_per_mtoken, l->prompt_history * PER_MTOKEN};
    t[3] = (struct term){&m->decode_attn_ms_per_mtoken, l->decode_context * PER_MTOKEN};
}

double sl_cost_predict_ms(const struct sl_cost_model *m, const struct sl_step_load *l)
{
    struct sl_cost_model copy = *m;
    struct term t[N_TERMS];
    terms(&copy, l, t);
    double ms = table_ms(m, l->prompt_rows + l->decode_rows);
    for (uint32_t i = 0; i < N_TERMS; i++)
        ms += *t[i].per_unit * t[i].units;
    return m->scale * ms;
}

static double clip(double x, double limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

void sl_cost_observe(struct sl_cost_model *m, const struct sl_step_load *l, double real_ms)
{
    double predicted = sl_cost_predict_ms(m, l);
    if (!(predicted > 0) || !(real_ms > 0) || !isfinite(real_ms))
        return;
    double miss = fabs(predicted - real_ms) / real_ms;
    m->error += ERROR_RATE * (miss - m->error);
    double e = clip(real_ms / predicted - 1, MAX_ERROR);

    /* shares of the prediction */
    uint32_t rows = l->prompt_rows + l->decode_rows;
    struct term t[N_TERMS];
    terms(m, l, t);
    double table = m->scale * table_ms(m, rows) / predicted, share[N_TERMS], norm = table * table;
    for (uint32_t i = 0; i < N_TERMS; i++) {
        share[i] = m->scale * *t[i].per_unit * t[i].units / predicted;
        norm += share[i] * share[i];
    }
    double step = TERM_RATE * e / norm;
    for (uint32_t i = 0; i < N_TERMS; i++)
        *t[i].per_unit *= 1 + clip(step * share[i], MAX_ERROR * TERM_RATE);
    if (rows) {
        struct place p = find(m, rows);
        double change = clip(step * table, MAX_ERROR * TERM_RATE);
        if (p.a > 0)
            m->ms[p.i] *= 1 + change * (p.a < 1 ? p.a : 1);
        if (p.b > 0)
            m->ms[p.i + 1] *= 1 + change * (p.b < 1 ? p.b : 1);
    }

    m->scale *= 1 + SCALE_RATE * e;
    m->scale = m->scale > MAX_SCALE ? MAX_SCALE : m->scale < 1 / MAX_SCALE ? 1 / MAX_SCALE : m->scale;
}

void sl_cost_init_linear(struct sl_cost_model *m, double t0_ms, double per_row_ms)
{
    *m = (struct sl_cost_model){.n_points = 2, .scale = 1};
    m->rows[0] = 1;
    m->rows[1] = 1024;
    for (uint32_t i = 0; i < 2; i++)
        m->ms[i] = t0_ms + per_row_ms * m->rows[i];
}
