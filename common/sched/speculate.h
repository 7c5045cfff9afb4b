/* common/sched/speculate.h - how many drafted tokens each sequence has verified in the next step (step 5 of
 * the request path). Pure functions.
 *
 * A sequence with k drafts has 1 + k rows in the step, ordinary ones: the token sampled at a row is the
 * sequence's next one as long as all drafts before were what was sampled. So the tokens are those of a run
 * without drafts, and only the time differs.
 *
 * Drafts are added one by one, the likeliest first, and the number is kept that brings the most expected
 * tokens per predicted millisecond: none, when none pays. Others are protected: a sequence's expected rate
 * falls at most by SL_SPEC_MAX_LOSS, the step stays within the time target, and while prompts wait drafts get
 * half of what the target leaves. */
#ifndef SLUICE_COMMON_SCHED_SPECULATE_H
#define SLUICE_COMMON_SCHED_SPECULATE_H

#include "common/sched/cost_model.h"

#define SL_SPEC_DEFAULT (-2) /* of the engine */
#define SL_SPEC_AUTO    (-1) /* as many as pay */
#define SL_SPEC_OFF     0

#define SL_SPEC_MAX      31u  /* drafts of one sequence: with its own row four tiles of 8 */
#define SL_SPEC_STEP_MAX 64u  /* of all in a step: bounds the memory for logits */
#define SL_SPEC_MAX_LOSS 0.25 /* of a sequence's expected tokens per millisecond */

/* How often drafts came true lately, by how much text agreed before them. */
#define SL_SPEC_CLASSES 3u
struct sl_spec_record {
    float hit[SL_SPEC_CLASSES]; /* running share of drafts that were sampled, when those before them were */
};
void sl_spec_record_init(struct sl_spec_record *r);
/* match as of sl_draft_lookup(). Of the drafts looked at, n_hits came true one after the other; missed: the
 * next one did not. A draft that had no row is looked at too, once its token is known: that is how a sequence
 * without drafts comes back. */
void sl_spec_record_see(struct sl_spec_record *r, uint32_t match, uint32_t n_hits, bool missed);
double sl_spec_record_hit(const struct sl_spec_record *r, uint32_t match);

struct sl_spec_seq {
    uint32_t most;    /* drafts at hand, at most SL_SPEC_MAX */
    bool fixed;       /* all of them that the target allows, whether they pay or not */
    double hit;       /* chance of a draft, given that those before came true; below 1 */
    uint32_t context; /* tokens behind its first row */
};

struct sl_spec_state {
    const struct sl_cost_model *cost;
    struct sl_step_load load; /* of the decode rows without drafts */
    const struct sl_spec_seq *seqs;
    uint32_t n_seqs;
    uint32_t max_drafts; /* of all */
    double target_ms;    /* of the step (sl_plan_target_ms()); 0 = none */
    bool prompts_wait;
};

/* Fills k[n_seqs] and returns the load with the drafts. */
struct sl_step_load sl_speculate(const struct sl_spec_state *s, uint32_t *k);

#endif
