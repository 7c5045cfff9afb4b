/* common/sched/cost_learn.h - refines a cost model by real steps. Pure arithmetic; no clock, no I/O.
 *
 * The learner knows how sure it is of each value and of what they have in common, so a step corrects what it
 * can be blamed for: a slower machine moves all values together, a long history the terms that read it. */
#ifndef SLUICE_COMMON_SCHED_COST_LEARN_H
#define SLUICE_COMMON_SCHED_COST_LEARN_H

#include "common/sched/cost_model.h"

/* Relative doubt in the values of a model at the start. */
#define SL_COST_DOUBT_GUESSED  1.0  /* made up */
#define SL_COST_DOUBT_MEASURED 0.25 /* by a short profile, or kept from a former run */

#define SL_COST_LATE_SHARE 0.002 /* a stream beside prompts for 50 steps keeps its wish nine times in ten */
#define SL_COST_LATE_MOST  2.0

struct sl_cost_learner {
    double cov[SL_COST_VALUES][SL_COST_VALUES];   /* of the values' errors, ms^2 per unit^2 */
    double alike[SL_COST_VALUES][SL_COST_VALUES]; /* correlation of relative errors before any step */
    double late;   /* real over predicted time that all but SL_COST_LATE_SHARE of the steps stay within, 1 to
                      SL_COST_LATE_MOST */
    int surprises; /* steps in a row far beside their prediction: > 0 slower, < 0 faster */
};

void sl_cost_learner_init(struct sl_cost_learner *k, const struct sl_cost_model *m, double doubt);
void sl_cost_observe(struct sl_cost_learner *k, struct sl_cost_model *m, const struct sl_step_load *l,
                     double real_ms);

#endif
