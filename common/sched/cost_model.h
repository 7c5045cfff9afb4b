/* common/sched/cost_model.h - predicted milliseconds of a step. A value type, copied freely; no clock, no
 * I/O. Real steps refine it: cost_learn.h.
 *
 * The time of a step is the sum of
 * - table(total rows) + head * decode rows
 * - prompt attention * sum(c * (h + c / 2)) + prompt read * sum(h)
 * - decode attention * sum(context)
 *
 * for chunks of c rows behind a history of h. The table is piecewise linear over measured points and need not
 * be monotone; it is measured with one sampled row and no history. A chunk reads its history once, whatever
 * its size (prompt read): small chunks late in a long prompt pay mostly for that. */
#ifndef SLUICE_COMMON_SCHED_COST_MODEL_H
#define SLUICE_COMMON_SCHED_COST_MODEL_H

#include "common/base/err.h"
#include <stdbool.h>
#include <stdint.h>

#define SL_COST_POINTS 16

struct sl_cost_model {
    uint32_t n_points;
    uint32_t rows[SL_COST_POINTS]; /* ascending, first is 1 */
    double ms[SL_COST_POINTS];
    double head_ms_per_row;           /* logits and sampling of one more row */
    double prompt_attn_ms_per_mtoken; /* per 1e6 (row x history position) */
    double prompt_read_ms_per_mtoken; /* per 1e6 history positions of chunks */
    double decode_attn_ms_per_mtoken; /* per 1e6 history positions */
    double error;                     /* running mean of |predicted - real| / real */
};

struct sl_step_load {
    uint32_t prompt_rows, decode_rows;
    double prompt_attn;    /* sum over chunks of c * (h + c / 2) */
    double prompt_history; /* sum over chunks of h */
    double decode_context; /* sum of contexts of decode rows */
};

/* A prediction is the sum of values times units: the values are the points of the table, then the terms
 * beside it. */
#define SL_COST_TERMS      4u
#define SL_COST_SHARE_MOST 4.0
#define SL_COST_VALUES     (SL_COST_POINTS + SL_COST_TERMS)

double sl_cost_predict_ms(const struct sl_cost_model *m, const struct sl_step_load *l);
/* How many of each value the load takes; returns how many values there are, n_points + SL_COST_TERMS. */
uint32_t sl_cost_units(const struct sl_cost_model *m, const struct sl_step_load *l,
                       double units[SL_COST_VALUES]);
double *sl_cost_value(struct sl_cost_model *m, uint32_t i);
/* Times that no device has are not: nothing negative or infinite, no step that takes less than its rows' share of a
 * larger one by more than SL_COST_SHARE_MOST times, as a fit to disturbed times may say. */
bool sl_cost_is_sound(const struct sl_cost_model *m);
/* A model for tests and for routers that know nothing yet: t0 + per_row * rows. */
void sl_cost_init_linear(struct sl_cost_model *m, double t0_ms, double per_row_ms);

#endif
