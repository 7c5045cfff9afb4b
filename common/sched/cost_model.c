/* common/sched/cost_model.c - interpolation in the table, and the terms beside it. */
#include "common/sched/cost_model.h"

#include <math.h>

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

static void term_units(const struct sl_step_load *l, double units[SL_COST_TERMS])
{
    units[0] = l->decode_rows;
    units[1] = l->prompt_attn * PER_MTOKEN;
    units[2] = l->prompt_history * PER_MTOKEN;
    units[3] = l->decode_context * PER_MTOKEN;
}

double *sl_cost_value(struct sl_cost_model *m, uint32_t i)
{
    double *const terms[SL_COST_TERMS] = {&m->head_ms_per_row, &m->prompt_attn_ms_per_mtoken,
                                          &m->prompt_read_ms_per_mtoken, &m->decode_attn_ms_per_mtoken};
    return i < m->n_points ? &m->ms[i] : terms[i - m->n_points];
}

uint32_t sl_cost_units(const struct sl_cost_model *m, const struct sl_step_load *l,
                       double units[SL_COST_VALUES])
{
    uint32_t rows = l->prompt_rows + l->decode_rows;
    for (uint32_t i = 0; i < m->n_points; i++)
        units[i] = 0;
    if (rows && m->n_points) {
        struct place p = find(m, rows);
        units[p.i] = p.a;
        if (p.b != 0)
            units[p.i + 1] = p.b;
    }
    term_units(l, &units[m->n_points]);
    return m->n_points + SL_COST_TERMS;
}

double sl_cost_predict_ms(const struct sl_cost_model *m, const struct sl_step_load *l)
{
    double units[SL_COST_TERMS];
    term_units(l, units);
    return table_ms(m, l->prompt_rows + l->decode_rows) + m->head_ms_per_row * units[0] +
           m->prompt_attn_ms_per_mtoken * units[1] + m->prompt_read_ms_per_mtoken * units[2] +
           m->decode_attn_ms_per_mtoken * units[3];
}

static bool is_time(double ms)
{
    return isfinite(ms) && ms >= 0;
}

bool sl_cost_is_sound(const struct sl_cost_model *m)
{
    if (m->n_points == 0 || m->n_points > SL_COST_POINTS || m->rows[0] != 1 || !isfinite(m->error) ||
        !is_time(m->head_ms_per_row) || !is_time(m->prompt_attn_ms_per_mtoken) ||
        !is_time(m->prompt_read_ms_per_mtoken) || !is_time(m->decode_attn_ms_per_mtoken))
        return false;
    for (uint32_t i = 0; i < m->n_points; i++) {
        if (!is_time(m->ms[i]) || !(m->ms[i] > 0))
            return false;
        if (i && (m->rows[i] <= m->rows[i - 1] ||
                  m->ms[i] > SL_COST_SHARE_MOST * m->ms[i - 1] * m->rows[i] / m->rows[i - 1]))
            return false;
    }
    return true;
}

void sl_cost_init_linear(struct sl_cost_model *m, double t0_ms, double per_row_ms)
{
    *m = (struct sl_cost_model){.n_points = 2};
    m->rows[0] = 1;
    m->rows[1] = 1024;
    for (uint32_t i = 0; i < 2; i++)
        m->ms[i] = t0_ms + per_row_ms * m->rows[i];
}
