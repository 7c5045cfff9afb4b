/* common/sched/step_plan.h - who runs in the next step (step 5 of the request path). A pure function.
 *
 * All decode rows run in every step. Prompt chunks take what is left of the time target: the most urgent
 * prompt (slack.h) as many tokens as fit, then the next. Chunk size is a result, not a setting; a prompt may
 * ask for a fixed one.
 *
 * - The time target is tpot_target_ms, or stretch times the predicted time of the decode rows alone at their
 *   pace when the prompts came (pace_context, by the cost model of then), at least SL_PLAN_MIN_STRETCH times
 *   their time now.
 * - Drafts (speculate.h) are decode rows like others: 1 + k of a sequence. Chunks get what they leave.
 * - A chunk is the largest with a predicted step within the target. The total of rows is a multiple of align
 *   where that gives up little.
 * - A wish is a limit: the target is what steps may be predicted at so that nearly all of them end within it, by
 *   how late steps of late were (cost_learn.h).
 * - Where no decode row runs the target is prompt_step_ms: a step cannot be left, and whoever comes
 *   meanwhile, a short prompt or pages for a decode row, waits for its end. Where prompts say when they want their
 *   first tokens, it is less if shorter steps compute nearly as many rows in the same time, as on a CPU.
 *
 * Guards: decode rows are never left out. A prompt that got nothing SL_PLAN_STARVE_STEPS times in a row, as
 * the decode rows alone take the target, gets one tile of align rows. */
#ifndef SLUICE_COMMON_SCHED_STEP_PLAN_H
#define SLUICE_COMMON_SCHED_STEP_PLAN_H

#include "common/sched/cost_model.h"

#include <stdbool.h>

#define SL_CHUNK_DEFAULT (-2) /* of the engine */
#define SL_CHUNK_AUTO    (-1) /* by predicted time */
#define SL_CHUNK_WHOLE   0    /* no chunking: the stall baseline */

/* 2.7: the longest gap is to stay below 3 times the median one before, with 10 % for the prediction's error.
 * A longer stretch shortens the prompt's time by less and less: chunks get about 1 - 1/stretch of it. The
 * least one keeps prompts going when contexts grew a lot meanwhile. */
#define SL_PLAN_STRETCH      2.7
#define SL_PLAN_MIN_STRETCH  1.3
#define SL_PLAN_ALIGN        8u /* rows of one kernel tile */
#define SL_PLAN_STARVE_STEPS 4u
/* Of prompts alone: long enough that processors are saturated and the weights' reading is paid for. */
#define SL_PLAN_PROMPT_STEP_MS 100.0

struct sl_plan_prompt {
    uint32_t history;     /* KV in place before it */
    uint32_t remaining;   /* tokens to compute, at least 1 */
    uint32_t total;       /* tokens it had to compute when it was admitted */
    int32_t chunk_tokens; /* SL_CHUNK_AUTO, SL_CHUNK_WHOLE, or N: fixed budget of prompt rows per step */
    int32_t priority;
    uint64_t arrived_us, first_token_us, deadline_us; /* as of sl_slack; the last two 0 = none */
};

/* The cost model as it was when the prompts came: what mixed steps teach after that is no reason for longer
 * gaps. */
struct sl_plan_pace {
    struct sl_cost_model cost;
    uint32_t age; /* steps */
};
void sl_plan_pace_init(struct sl_plan_pace *p, const struct sl_cost_model *cost);
/* Before each plan. */
void sl_plan_pace_step(struct sl_plan_pace *p, const struct sl_cost_model *cost, bool has_prompts);

struct sl_plan_state {
    const struct sl_cost_model *cost;
    const struct sl_cost_model *pace_cost; /* sl_plan_pace.cost */
    const struct sl_plan_prompt *prompts;
    uint32_t n_prompts;
    uint32_t decode_rows;
    double decode_context;
    uint32_t draft_rows; /* rows of drafts beside them (speculate.h), with their attention */
    double draft_attn;
    double pace_context; /* their contexts when the prompts came, or when they began; never above
                            decode_context */
    uint32_t max_rows;   /* more than decode_rows and draft_rows, else prompts wait */
    uint32_t align;
    double tpot_target_ms, stretch;
    /* The tightest wish of what decodes, 0 = none. It takes the stretch's place when all have one, else it
     * only shortens the target; never below SL_PLAN_MIN_STRETCH, or one client would stop all prompts. */
    double tpot_wish_ms;
    bool rows_without_wish;
    double late;            /* sl_cost_learner.late; below 1 = steps end as predicted */
    double prompt_step_ms;  /* 0 = none: chunks up to max_rows */
    uint32_t starved_steps; /* steps since a prompt row ran while one was wanted */
};

struct sl_plan_chunk {
    uint32_t prompt; /* index */
    uint32_t n_tokens;
};

struct sl_plan {
    struct sl_plan_chunk *chunks; /* the caller's array of n_prompts */
    uint32_t n_chunks;
    struct sl_step_load load;
    double target_ms; /* 0 = none */
    double predicted_ms;
};

/* The time target of the step, 0 = none: drafts do not stretch it. */
double sl_plan_target_ms(const struct sl_plan_state *s);

/* n, less what makes rows + n a multiple of align, or of a half, a quarter.. of it where that would give up more than
 * an eighth of n: late in a long prompt a row costs so much attention that a tile is too coarse. */
uint32_t sl_plan_align(uint32_t rows, uint32_t n, uint32_t align);

void sl_plan_step(const struct sl_plan_state *s, uint64_t now_us, struct sl_plan *out);

#endif
