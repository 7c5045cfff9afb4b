/* router/place/predict.c - what a candidate would cost, in milliseconds of delay.
 *
 * The price of a candidate is the sum of the delays of all users: this request's time to the second token and
 * to its last expected one, a pause behind the first token more than that, plus what its prompt chunks and
 * its decode row add to the tokens of the requests that decode beside it. A queue that it overtakes counts as
 * one that it waits for: somebody does. Only sums over the nodes' reports and their measured step times
 * enter. What the weights do to traces: sluice-bench simulate, docs/benchmarks.md.
 *
 * Where P and D both compute, they overlap: D's own queue runs down while P computes. Pages travel while P
 * computes; only what is left at its end (the last chunk, or all that the link could not carry meanwhile)
 * delays the second token.
 *
 * What depends on a node alone is worked out once per request (struct sl_node_facts): a candidate then costs
 * little, and a fleet of a thousand nodes can be looked over for every request. */
#include "router/place/candidates.h"

#include "common/sched/step_plan.h"

#include <math.h>

/* Tokens that are priced at most, and assumed where a class has shown none: median of the conversation
 * traces. With all of longer outputs in the price, the first token counts for too little (ServeGen R1, in the
 * simulator: 28 % of requests within both limits instead of 34 %). */
#define EXPECTED_OUTPUT 256u
#define AUTO_CHUNK_MIN                                                                                       \
    16u /* rows of the smallest automatic chunk looked at; the others are twice the one before */
#define CAP_UNTOLD 512u /* rows of a step of a node that does not say its limit */
#define DOUBT      0.15 /* share of the price added for what prediction cannot see; see doubt() */
#define PAUSE_WEIGHT                                                                                         \
    4.0 /* of a pause behind the first token: a stream that stops is worse than one that starts later */
#define LATER_STEP_MS (SL_PLAN_PROMPT_STEP_MS / 4) /* half of a step of prompts alone, half of the time */
#define COMMAND_MS    1.0                          /* submit to intake: two control messages */
#define SPEED_TOKENS  1024.0                       /* of a prompt: how fast a node is */

static double step_ms(const struct sl_place_node *n, const struct sl_step_load *l)
{
    double ms = sl_cost_predict_ms(n->cost, l);
    return ms > 0 && isfinite(ms) ? ms : 0;
}

/* A step of n with prompt rows (no history) beside what decodes there now and `more` decode rows of `context`
 * tokens together. */
static double mixed_ms(const struct sl_place_node *n, uint32_t prompt_rows, uint32_t more, double context)
{
    return step_ms(n, &(struct sl_step_load){.prompt_rows = prompt_rows,
                                             .decode_rows = n->decode_rows + more,
                                             .decode_context = n->decode_context_tokens + context});
}

/* What a million units more of a load cost: the terms beside the table are linear. */
static double per_mtoken_ms(const struct sl_place_node *n, double attn, double history)
{
    struct sl_step_load one = {.prompt_rows = 1}, with = one;
    with.prompt_attn = attn;
    with.prompt_history = history;
    double ms = step_ms(n, &with) - step_ms(n, &one);
    return ms > 0 ? ms : 0;
}

static void add_chunk_size(struct sl_node_facts *f, const struct sl_place_node *n, uint32_t rows)
{
    f->chunk[f->n_chunks] = rows;
    f->chunk_ms[f->n_chunks++] = mixed_ms(n, rows, 0, 0);
}

/* The chunks that may come, smallest first: one where the size is fixed or nothing decodes. */
static void find_chunk_sizes(struct sl_node_facts *f, const struct sl_place_node *n,
                             const struct sl_place_req *req)
{
    int32_t chunk = req->chunk != -2 ? req->chunk : n->chunk_tokens;
    uint32_t cap = n->max_batch_tokens ? n->max_batch_tokens : CAP_UNTOLD, c = AUTO_CHUNK_MIN;
    if (chunk > 0 && (uint32_t)chunk < cap)
        cap = (uint32_t)chunk;
    if (chunk < 0)
        for (; f->n_chunks < SL_CHUNK_SIZES && c <= cap; c *= 2)
            add_chunk_size(f, n, c);
    if (f->n_chunks == 0)
        add_chunk_size(f, n, cap);
}

/* The time target of the steps that n plans for prompts, as the plan itself finds it; wish_ms: of a row more.
 */
static double step_target_ms(const struct sl_place_node *n, double wish_ms)
{
    double tightest = n->tpot_wish_ms;
    if (wish_ms > 0 && (tightest <= 0 || wish_ms < tightest))
        tightest = wish_ms;
    return sl_plan_target_ms(
        &(struct sl_plan_state){.cost = n->cost,
                                .pace_cost = n->cost,
                                .decode_rows = n->decode_rows + (wish_ms > 0),
                                .decode_context = n->decode_context_tokens,
                                .pace_context = n->decode_context_tokens,
                                .tpot_target_ms = n->tpot_target_ms,
                                .stretch = n->chunk_stretch > 0 ? n->chunk_stretch : SL_PLAN_STRETCH,
                                .tpot_wish_ms = tightest,
                                .rows_without_wish = n->rows_without_wish > 0,
                                .prompt_step_ms = SL_PLAN_PROMPT_STEP_MS});
}

/* The automatic chunk of a prompt of new_tokens over history: the largest with a step, in the middle of the
 * prompt, that is within the target. */
static uint32_t pick_chunk(const struct sl_node_facts *f, double new_tokens, double history)
{
    double before = history + new_tokens / 2;
    uint32_t best = 0;
    for (uint32_t i = 1; i < f->n_chunks; i++)
        if (f->chunk_ms[i] + 1e-6 * before * (f->chunk[i] * f->attn_ms + f->read_ms) <= f->target_ms)
            best = i;
    return best;
}

/* Time to run new_tokens over history in chunks; *steps = how many. */
static double prompt_ms(const struct sl_place_node *n, const struct sl_node_facts *f, double new_tokens,
                        double history, double *steps)
{
    *steps = 0;
    if (new_tokens <= 0)
        return 0;
    uint32_t i = pick_chunk(f, new_tokens, history), chunk = f->chunk[i];
    double full = floor(new_tokens / chunk);
    uint32_t rest = (uint32_t)(new_tokens - full * chunk);
    double ms = full * f->chunk_ms[i];
    if (rest)
        ms += mixed_ms(n, rest, 0, 0);
    *steps = full + (rest ? 1 : 0);
    /* What attention computes does not depend on how the prompt is cut; its history is read once a chunk. */
    double attn = new_tokens * (history + new_tokens / 2);
    double read = *steps * history + chunk * *steps * (*steps - 1) / 2;
    return ms + 1e-6 * (attn * f->attn_ms + read * f->read_ms);
}

static void find_facts(struct sl_node_facts *f, const struct sl_place_node *n, const struct sl_place_req *req)
{
    *f = (struct sl_node_facts){.known = true};
    f->alone_ms = mixed_ms(n, 0, 0, 0);
    f->attn_ms = per_mtoken_ms(n, 1e6, 0);
    f->read_ms = per_mtoken_ms(n, 0, 1e6);
    f->target_ms = step_target_ms(n, 0);
    find_chunk_sizes(f, n, req);
    double steps_behind, steps;
    f->behind_ms = prompt_ms(n, f, n->behind_prompt_tokens, 0, &steps_behind);
    f->queue_ms = prompt_ms(n, f, n->queued_prompt_tokens, 0, &steps);
    double ms = f->queue_ms + f->behind_ms;
    steps += steps_behind;
    f->rest_of_step_ms = (steps > 0 ? ms / steps : f->alone_ms) / 2;
    if (req->tpot_ms > 0 && ms > 0) {
        struct sl_node_facts shorter = *f;
        shorter.target_ms = fmin(f->target_ms, step_target_ms(n, req->tpot_ms));
        double queued = n->queued_prompt_tokens + n->behind_prompt_tokens;
        f->wish_damage_ms =
            fmax(0, prompt_ms(n, &shorter, queued, 0, &steps) - prompt_ms(n, f, queued, 0, &steps));
    }
}

static const struct sl_node_facts *facts_of(struct sl_predictor *x, uint32_t i)
{
    struct sl_node_facts *f = &x->facts[i];
    if (!f->known)
        find_facts(f, &x->state->nodes[i], x->req);
    return f;
}

double sl_place_wait_ms(const struct sl_place_state *state)
{
    const struct sl_place_req any = {.chunk = -2};
    double least = -1;
    for (uint32_t i = 0; i < state->n_nodes; i++) {
        if (!state->nodes[i].may_decode || state->nodes[i].unusable)
            continue;
        struct sl_node_facts f = {0};
        find_facts(&f, &state->nodes[i], &any);
        if (least < 0 || f.queue_ms < least)
            least = f.queue_ms;
    }
    return least > 0 ? least : 0;
}

double sl_place_tokens_per_ms(const struct sl_place_state *state, enum sl_place_mode mode)
{
    const struct sl_place_req any = {.chunk = -2};
    double all = 0, preferring = 0, steps;
    for (uint32_t i = 0; i < state->n_nodes; i++) {
        const struct sl_place_node *n = &state->nodes[i];
        if (n->unusable)
            continue;
        struct sl_node_facts f = {0};
        find_facts(&f, n, &any);
        double ms = prompt_ms(n, &f, SPEED_TOKENS, 0, &steps), speed = ms > 0 ? SPEED_TOKENS / ms : 0;
        all += speed;
        preferring += n->prefers_prefill ? speed : 0;
    }
    return mode == SL_PLACE_PD && preferring > 0 ? preferring : all;
}

const struct sl_place_link *sl_place_find_link(const struct sl_place_state *state, int p, int d)
{
    uint32_t low = 0, high = state->n_links; /* the first of p's lies in [low, high] */
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if ((int)state->links[middle].p < p)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < state->n_links && (int)state->links[low].p == p; low++)
        if ((int)state->links[low].d == d)
            return &state->links[low];
    return NULL;
}

static double link_rate(const struct sl_place_state *s, const struct sl_place_link *link)
{
    if (link && link->bytes_per_s > 0)
        return link->bytes_per_s;
    return s->untested_bytes_per_s > 0 ? s->untested_bytes_per_s : SL_PLACE_UNTESTED_BYTES_PER_S;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Tokens of [from, to) that n has to compute: the prefix hit is left out, the last token of the prompt never
 * is. */
static uint32_t to_compute(const struct sl_place_node *n, const struct sl_place_req *req, uint32_t from,
                           uint32_t to)
{
    uint32_t hit = min_u32(n->hit_tokens, req->n_tokens - 1);
    uint32_t start = hit > from ? hit : from;
    return start < to ? to - start : 0;
}

double sl_predict_prefill_ms(struct sl_predictor *x, uint32_t node)
{
    const struct sl_place_node *n = &x->state->nodes[node];
    const struct sl_node_facts *f = facts_of(x, node);
    uint32_t work = to_compute(n, x->req, 0, x->req->n_tokens);
    double steps;
    return f->queue_ms + f->behind_ms + prompt_ms(n, f, work, x->req->n_tokens - work, &steps);
}

/* What the prompt work on n costs those who decode there: each of their steps becomes longer. */
static double prompt_damage_ms(const struct sl_place_node *n, const struct sl_node_facts *f, double work_ms,
                               double steps)
{
    if (n->decode_rows == 0 || steps == 0)
        return 0;
    double alone = steps * f->alone_ms;
    return work_ms > alone ? n->decode_rows * (work_ms - alone) : 0;
}

/* Measured step times of equal nodes differ by some percent, a prompt that travels waits in two queues
 * instead of one, and its pages then fill two caches. Where the rule is free to choose, a prompt shall not
 * travel, nor duties be swapped, for a gain of that size: 0.05 lost to colocated near capacity where prefixes
 * are shared, 0.15 stays within 0.2 points of it (docs/benchmarks.md). In mode colocated every node is as good as another. */
static double doubt(const struct sl_place_state *state, const struct sl_place_req *req,
                    const struct sl_place_candidate *c)
{
    double d = 1;
    if (req->mode == SL_PLACE_COLOCATED && req->split < 0)
        return d;
    if (c->p >= 0)
        d += DOUBT + (state->nodes[c->p].prefers_prefill ? 0 : DOUBT);
    if (state->nodes[c->d].prefers_prefill)
        d += DOUBT;
    return d;
}

double sl_predict_pages_missing(const struct sl_place_node *n, const struct sl_place_req *req)
{
    uint32_t hit = min_u32(n->hit_tokens, req->n_tokens);
    double pages = (double)((req->n_tokens - hit) / n->page_tokens + 1); /* with the next token's */
    /* Of those that wait only the number is known: they count as this one. */
    double missing = pages * (1 + n->waiting) - n->free_pages;
    if (missing <= 0)
        return n->waiting ? 1 : 0;
    return missing;
}

/* Pages come back as the decoding requests end: of R that are spread evenly over their lengths one ends every
 * R-th of a request's time. */
static double page_wait_ms(const struct sl_place_node *d, const struct sl_place_req *req, double request_ms)
{
    double missing = sl_predict_pages_missing(d, req), rows = d->decode_rows ? d->decode_rows : 1;
    double pages_of_one = fmax(d->decode_context_tokens / rows / d->page_tokens, 1);
    return missing > 0 ? ceil(missing / pages_of_one) * request_ms / rows : 0;
}

static double over(double ms, double wished_ms)
{
    return wished_ms > 0 && ms > wished_ms ? ms / wished_ms - 1 : 0;
}

void sl_predict(struct sl_predictor *x, struct sl_place_candidate *c)
{
    const struct sl_place_state *state = x->state;
    const struct sl_place_req *req = x->req;
    const struct sl_place_node *d = &state->nodes[c->d];
    const struct sl_node_facts *fd = facts_of(x, (uint32_t)c->d);
    const uint32_t n = req->n_tokens, s = c->split;
    struct sl_place_prediction *out = &c->predicted;
    double ready_ms = 0, first_at_p_ms = 0, damage = 0, queue_ms = 0, behind_ms = 0, steps;

    if (c->p >= 0) {
        const struct sl_place_node *p = &state->nodes[c->p];
        const struct sl_node_facts *fp = facts_of(x, (uint32_t)c->p);
        const struct sl_place_link *link = sl_place_find_link(state, c->p, c->d);
        uint32_t work = to_compute(p, req, 0, s);
        double run = prompt_ms(p, fp, work, s - work, &steps);
        damage += prompt_damage_ms(p, fp, run, steps);
        queue_ms = fp->queue_ms;
        behind_ms = fp->behind_ms;
        first_at_p_ms = COMMAND_MS + fp->rest_of_step_ms + fp->queue_ms + run;

        double page_ms = (double)d->page_bytes * 1e3 / link_rate(state, link);
        uint32_t have = min_u32(d->hit_tokens, s);
        double pages = ceil((double)(s - have) / d->page_tokens);
        double last =
            ceil((double)min_u32(fp->chunk[pick_chunk(fp, work, s - work)], s - have) / d->page_tokens);
        double behind = pages * page_ms - run; /* what the link could not carry while P computed */
        ready_ms = first_at_p_ms + fmax(behind, last * page_ms) + (link ? link->latency_us / 1e3 : 0);
    }

    uint32_t rest = to_compute(d, req, s, n);
    double rest_ms = prompt_ms(d, fd, rest, n - rest, &steps);
    damage += prompt_damage_ms(d, fd, rest_ms, steps);

    uint32_t most = req->max_new ? req->max_new : 1;
    uint32_t output = min_u32(most, req->expected_new ? req->expected_new : EXPECTED_OUTPUT);
    uint32_t expected = min_u32(output, EXPECTED_OUTPUT);
    damage += fd->wish_damage_ms;
    double decode_ms = mixed_ms(d, 0, 1, n);
    double more_ms = decode_ms - fd->alone_ms;
    if (d->decode_rows && more_ms > 0)
        damage += d->decode_rows * more_ms * expected;

    double wait_pages_ms = page_wait_ms(d, req, output * decode_ms);
    if (c->p >= 0 && s == n) {
        out->ttft_ms = first_at_p_ms;
        /* D may be idle now and in the middle of another's prompt when the pages come */
        double busy_ms = d->may_prefill ? fmax(fd->rest_of_step_ms, LATER_STEP_MS) : fd->rest_of_step_ms;
        out->second_ms = ready_ms + wait_pages_ms + busy_ms + decode_ms;
    } else {
        queue_ms = fmax(queue_ms, fd->queue_ms);
        behind_ms = fmax(behind_ms, fd->behind_ms);
        double start = fmax(ready_ms, COMMAND_MS + fd->queue_ms) + fd->rest_of_step_ms + wait_pages_ms;
        out->ttft_ms = start + rest_ms;
        out->second_ms = out->ttft_ms + decode_ms;
    }
    out->wait_ms = queue_ms + wait_pages_ms;
    out->damage_ms = damage;
    /* as sl_decision_slo_met() judges it: the mean over all tokens behind the first */
    double tpot_ms =
        expected > 1 ? (out->second_ms - out->ttft_ms + (expected - 2.0) * decode_ms) / (expected - 1.0) : 0;
    out->miss = over(out->ttft_ms, req->ttft_ms) + over(tpot_ms, req->tpot_ms);
    double pause_ms = out->second_ms - out->ttft_ms - decode_ms;
    out->cost_ms =
        (2 * (out->second_ms + behind_ms) + PAUSE_WEIGHT * pause_ms + expected * decode_ms + damage) *
        doubt(state, req, c);
}
