/* common/sched/cost_learn.c - a Kalman filter over the model's values.
 *
 * The prediction is linear in the values (sl_cost_units), so recursive least squares fits. What usually makes
 * it unfit for this is dealt with by its prior, the covariance before any step: values err together (the
 * machine is slower than thought) and each for itself, neighbours in the table alike.
 * - Forgetting is a drift of the covariance back to the prior, not a division by a factor: a run of equal
 *   steps cannot make it singular or blow it up, and a value not seen for long is learnt quickly again.
 * - An outlier counts as a surprise of at most MAX_SIGMAS and weighs by its own size: late steps are those of
 *   a core that was taken away, and say little.
 * - SURPRISES steps in a row far off on the same side are no outliers: the machine or the load changed. The
 *   covariance takes a long stride to the prior, and the next few steps settle the new values.
 *
 * Rejected: one common factor beside slow corrections of the terms. It took hundreds of steps, and what it
 * learnt from mixed steps spoilt the prediction of decode rows alone. */
#include "common/sched/cost_learn.h"

#include <math.h>

#define ERROR_RATE  0.05 /* running mean of the error over about 20 steps */
#define NOISE       0.1  /* of a step's time, relative */
#define NOISE_MS    0.02 /* and absolute: the clock and waking up */
#define COMMON      0.6  /* share of the prior's variance that all values have in common */
#define NEAR_OCTAVE 2.0  /* factor between rows over which the table's own errors are still alike */
#define PRIOR       1.0  /* relative deviation the covariance drifts back to */
#define DRIFT       2e-5 /* of the way, each step: 0.4 % of a value */
#define LEAP        0.2  /* of the way, after a run of surprises */
#define MAX_SIGMAS  3.0
#define SURPRISES   4
#define LATE_RATE   0.05 /* of the quantile, a late step; the others take it back in 500 */
#define MOST_FALL   0.2  /* a value keeps at least this part in one step: it stays positive */
#define FLOOR_ROW   0.05 /* a value of 0 is doubted as if it were this part of a row's time.. */
#define FLOOR_ATTN  1e3  /* ..or so many rows' time per 1e6 positions */

/* What a relative doubt of 1 is worth in units of value i. */
static double size_of(struct sl_cost_model *m, uint32_t i)
{
    uint32_t last = m->n_points - 1;
    double row = m->ms[last] / m->rows[last];
    double least = i < m->n_points ? 0 : i == m->n_points ? FLOOR_ROW * row : FLOOR_ATTN * row;
    double v = *sl_cost_value(m, i);
    return v > least ? v : least;
}

/* cov = (1 - part) cov + part * doubt^2 * prior, scaled by the values as they are now. */
static void move_to_prior(struct sl_cost_learner *k, struct sl_cost_model *m, double part, double doubt)
{
    uint32_t n = m->n_points + SL_COST_TERMS;
    double size[SL_COST_VALUES];
    for (uint32_t i = 0; i < n; i++)
        size[i] = size_of(m, i) * doubt;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            k->cov[i][j] += part * (size[i] * size[j] * k->alike[i][j] - k->cov[i][j]);
}

void sl_cost_learner_init(struct sl_cost_learner *k, const struct sl_cost_model *m, double doubt)
{
    *k = (struct sl_cost_learner){.late = 1};
    uint32_t n = m->n_points + SL_COST_TERMS;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++) {
            double own = i == j ? 1 : 0;
            if (i < m->n_points && j < m->n_points)
                own = exp2(-fabs(log2(m->rows[i]) - log2(m->rows[j])) / NEAR_OCTAVE);
            k->alike[i][j] = COMMON + (1 - COMMON) * own;
        }
    struct sl_cost_model copy = *m;
    if (m->n_points)
        move_to_prior(k, &copy, 1, doubt);
}

/* Counts steps far off on one side; true when they are no accident any more. */
static bool changed(struct sl_cost_learner *k, double sigmas)
{
    int side = sigmas > MAX_SIGMAS ? 1 : sigmas < -MAX_SIGMAS ? -1 : 0;
    k->surprises = side == 0 || side * k->surprises < 0 ? side : k->surprises + side;
    if (k->surprises < SURPRISES && k->surprises > -SURPRISES)
        return false;
    k->surprises = 0;
    return true;
}

static double square(double x)
{
    return x * x;
}

/* What a load says about each value's error, and its variance. Most units are 0, and cov is symmetric. */
static double blame(const struct sl_cost_learner *k, const double *units, uint32_t n, double *out)
{
    double variance = 0;
    for (uint32_t i = 0; i < n; i++)
        out[i] = 0;
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t i = 0; i < n && units[j] != 0; i++)
            out[i] += k->cov[j][i] * units[j];
    for (uint32_t i = 0; i < n; i++)
        variance += units[i] * out[i];
    return variance;
}

/* A quantile as it is found by single steps: up by much for the few above it, down by little for the others. */
static void see_late(struct sl_cost_learner *k, double ratio)
{
    k->late += LATE_RATE * ((ratio > k->late ? 1 : 0) - SL_COST_LATE_SHARE);
    k->late = fmin(fmax(k->late, 1), SL_COST_LATE_MOST);
}

void sl_cost_observe(struct sl_cost_learner *k, struct sl_cost_model *m, const struct sl_step_load *l,
                     double real_ms)
{
    double predicted = sl_cost_predict_ms(m, l);
    if (!(predicted > 0) || !(real_ms > 0) || !isfinite(real_ms) || m->n_points == 0)
        return;
    double miss = real_ms - predicted;
    see_late(k, real_ms / predicted);
    m->error += ERROR_RATE * (fmin(fabs(miss) / real_ms, 1) - m->error);

    double units[SL_COST_VALUES], share[SL_COST_VALUES];
    uint32_t n = sl_cost_units(m, l, units);
    move_to_prior(k, m, DRIFT, PRIOR);
    double variance = blame(k, units, n, share);
    double expected = sqrt(variance + square(NOISE * predicted) + square(NOISE_MS));
    if (changed(k, miss / expected)) {
        move_to_prior(k, m, LEAP, PRIOR);
        variance = blame(k, units, n, share);
        expected = sqrt(variance + square(NOISE * predicted) + square(NOISE_MS));
    }
    double total = variance + square(NOISE * fmax(predicted, real_ms)) + square(NOISE_MS);
    double certainty = 1 / total;
    double gain = fmin(fmax(miss, -MAX_SIGMAS * expected), MAX_SIGMAS * expected) * certainty;
    for (uint32_t i = 0; i < n; i++) {
        double *v = sl_cost_value(m, i);
        *v = fmax(*v + share[i] * gain, *v * MOST_FALL);
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            k->cov[i][j] -= share[i] * share[j] * certainty;
}
