/* common/sched/step_plan.c - greedy by urgency, binary search for each chunk.
 *
 * Where the table has dips (tiles and waves of a GPU) a
 * larger total may be cheaper than a smaller one: the measured points above the result are tried too. Prompts
 * are picked one by one instead of sorted: most steps serve one or two.
 *
 * A chunk that ends by the time target ends the plan: a second prompt squeezed into the rest would make two
 * unfinished ones where there was one. */
#include "common/sched/step_plan.h"

#include <math.h>

#include "common/sched/slack.h"

#define MAX_LOSS   8u    /* rounding gives up at most this part of a chunk */
#define MIN_PASSES 4.0   /* over the weights: what a step of prompts alone may at least take */
#define PACE_STEPS 2000u /* with prompts all the time the pace is taken anew so often: about a minute */
#define WORK_ROWS  256u  /* slack counts a prompt's work at the speed of chunks of this size */
#define ENOUGH     1.1   /* times the least that a row can cost: longer steps of prompts alone buy little */

static void add_chunk(struct sl_step_load *l, const struct sl_plan_prompt *p, uint32_t n)
{
    l->prompt_rows += n;
    l->prompt_attn += n * (p->history + n / 2.0);
    l->prompt_history += p->history;
}

static bool fits(const struct sl_plan_state *s, const struct sl_plan *plan, const struct sl_plan_prompt *p,
                 uint32_t n)
{
    struct sl_step_load l = plan->load;
    add_chunk(&l, p, n);
    return sl_cost_predict_ms(s->cost, &l) <= plan->target_ms;
}

uint32_t sl_plan_align(uint32_t rows, uint32_t n, uint32_t align)
{
    for (; align > 1; align /= 2) {
        uint32_t over = (rows + n) % align;
        if (over <= n / MAX_LOSS)
            return n - over;
    }
    return n;
}

/* The largest n <= limit within the target, rounded; 0 when none is. */
static uint32_t search(const struct sl_plan_state *s, const struct sl_plan *plan,
                       const struct sl_plan_prompt *p, uint32_t limit)
{
    if (fits(s, plan, p, limit))
        return limit;
    uint32_t rows = plan->load.prompt_rows + plan->load.decode_rows;
    uint32_t low = 0, high = limit; /* low fits (or is nothing), high does not */
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (fits(s, plan, p, mid))
            low = mid;
        else
            high = mid;
    }
    uint32_t best = sl_plan_align(rows, low, s->align);
    for (uint32_t i = 0; i < s->cost->n_points; i++) {
        uint32_t total = s->cost->rows[i];
        if (total > rows + best && total - rows <= limit && fits(s, plan, p, total - rows))
            best = total - rows;
    }
    return best;
}

/* n up to the next aligned total, at least half a tile. */
static uint32_t one_tile(const struct sl_plan_state *s, const struct sl_plan *plan, uint32_t limit)
{
    uint32_t rows = plan->load.prompt_rows + plan->load.decode_rows;
    uint32_t n = s->align - rows % s->align;
    if (n < s->align / 2)
        n += s->align;
    return n < limit ? n : limit;
}

static struct sl_slack slack_of(const struct sl_plan_prompt *p, double ms_per_token)
{
    return (struct sl_slack){.priority = p->priority,
                             .arrived_us = p->arrived_us,
                             .first_token_us = p->first_token_us,
                             .deadline_us = p->deadline_us,

                             .work_ms = p->total * ms_per_token};
}

/* Moves the most urgent of chunks[at..n) to chunks[at]. */
static const struct sl_plan_prompt *pick(const struct sl_plan_state *s, struct sl_plan_chunk *chunks,
                                         uint32_t at, uint64_t now_us, double ms_per_token)
{
    uint32_t best = at;
    struct sl_slack best_slack = slack_of(&s->prompts[chunks[at].prompt], ms_per_token);
    for (uint32_t i = at + 1; i < s->n_prompts; i++) {
        struct sl_slack k = slack_of(&s->prompts[chunks[i].prompt], ms_per_token);
        if (sl_slack_before(&k, &best_slack, now_us)) {
            best = i;
            best_slack = k;
        }
    }
    struct sl_plan_chunk c = chunks[best];
    chunks[best] = chunks[at];
    chunks[at] = c;
    return &s->prompts[c.prompt];
}

void sl_plan_pace_init(struct sl_plan_pace *p, const struct sl_cost_model *cost)
{
    *p = (struct sl_plan_pace){.cost = *cost};
}

void sl_plan_pace_step(struct sl_plan_pace *p, const struct sl_cost_model *cost, bool has_prompts)
{
    if (!has_prompts || ++p->age > PACE_STEPS)
        sl_plan_pace_init(p, cost);
}

/* Of prompts alone: at least a few times what one pass over the weights takes. */
static double prompts_alone_ms(const struct sl_plan_state *s)
{
    const struct sl_step_load row = {.prompt_rows = 1};
    double least = MIN_PASSES * sl_cost_predict_ms(s->cost, &row);
    return s->prompt_step_ms > 0 && s->prompt_step_ms < least ? least : s->prompt_step_ms;
}

double sl_plan_target_ms(const struct sl_plan_state *s)
{
    if (!s->decode_rows)
        return prompts_alone_ms(s);
    struct sl_step_load decode = {.decode_rows = s->decode_rows, .decode_context = s->decode_context},
                        pace = {.decode_rows = s->decode_rows, .decode_context = s->pace_context};
    double least = SL_PLAN_MIN_STRETCH * sl_cost_predict_ms(s->cost, &decode), target = s->tpot_target_ms;
    if (target <= 0 && (s->tpot_wish_ms <= 0 || s->rows_without_wish)) {
        double promised = s->stretch * sl_cost_predict_ms(s->pace_cost, &pace);
        target = promised > least ? promised : least;
    }
    if (s->tpot_wish_ms <= 0)
        return target;
    double wish = s->tpot_wish_ms / (s->late > 1 ? s->late : 1);
    wish = wish > least ? wish : least;
    return target <= 0 || wish < target ? wish : target;
}

static double alone_ms(const struct sl_plan_state *s, const struct sl_plan_prompt *p, uint32_t n)
{
    struct sl_step_load l = {0};
    add_chunk(&l, p, n);
    return sl_cost_predict_ms(s->cost, &l);
}

/* The shortest step of prompts alone in which a row costs at most ENOUGH times what it does in the best one within the
 * limit. Sizes that are looked at are half a size apart. */
static double enough_ms(const struct sl_plan_state *s, const struct sl_plan_prompt *p, double limit_ms)
{
    double best = HUGE_VAL, ms = 0;
    uint32_t n, last = 0;
    for (n = s->align; n <= s->max_rows && (ms = alone_ms(s, p, n)) <= limit_ms; n += 1 + n / 2, last = n)
        best = fmin(best, ms / n);
    for (n = s->align; n < last; n += 1 + n / 2)
        if ((ms = alone_ms(s, p, n)) <= ENOUGH * best * n)
            return ms;
    return limit_ms;
}

void sl_plan_step(const struct sl_plan_state *s, uint64_t now_us, struct sl_plan *out)
{
    SL_ASSERT(s->align > 0);
    out->n_chunks = 0;
    out->load = (struct sl_step_load){.decode_rows = s->decode_rows + s->draft_rows,
                                      .decode_context = s->decode_context,
                                      .prompt_attn = s->draft_attn};
    out->target_ms = sl_plan_target_ms(s);
    struct sl_step_load work = {.prompt_rows = WORK_ROWS};
    double ms_per_token = sl_cost_predict_ms(s->cost, &work) / WORK_ROWS;
    for (uint32_t i = 0; i < s->n_prompts; i++) {
        SL_ASSERT(s->prompts[i].remaining > 0);
        out->chunks[i] = (struct sl_plan_chunk){.prompt = i};
    }

    while (out->n_chunks < s->n_prompts) {
        uint32_t rows = out->load.prompt_rows + out->load.decode_rows;
        if (rows >= s->max_rows)
            break;
        const struct sl_plan_prompt *p = pick(s, out->chunks, out->n_chunks, now_us, ms_per_token);
        if (out->n_chunks == 0 && !s->decode_rows && s->prompt_step_ms > 0 && p->first_token_us)
            out->target_ms = enough_ms(s, p, out->target_ms);
        uint32_t room = s->max_rows - rows, limit = p->remaining < room ? p->remaining : room, n = limit;
        if (p->chunk_tokens > 0) {
            uint32_t budget = (uint32_t)p->chunk_tokens;
            budget -= budget < out->load.prompt_rows ? budget : out->load.prompt_rows;
            n = limit < budget ? limit : budget;
        } else if (p->chunk_tokens != SL_CHUNK_WHOLE && out->target_ms > 0) {
            n = search(s, out, p, limit);
            bool least = s->decode_rows ? n == 0 && s->starved_steps + 1 >= SL_PLAN_STARVE_STEPS
                                        : n < s->align; /* a tile costs what a row does */
            if (least && n < limit && out->n_chunks == 0)
                n = one_tile(s, out, limit);
        }
        if (n == 0)
            break;
        add_chunk(&out->load, p, n);
        out->chunks[out->n_chunks++].n_tokens = n;
        if (n < limit)
            break;
    }
    out->predicted_ms = sl_cost_predict_ms(s->cost, &out->load);
}
