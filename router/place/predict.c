/* router/place/predict.c - what a candidate would cost, in milliseconds of delay.
 *
 * The price of a candidate is the sum of the delays of all users: this request's time to the second token and
 * to its last expected one, plus what its prompt chunks and its decode row add to the tokens of the requests
 * that decode beside it. One unit for all, so no weights are needed. Only sums over the nodes' reports and
 * their measured step times enter.
 *
 * Where P and D both compute, they overlap: D's own queue runs down while P computes. Pages travel while P
 * computes; only what is left at its end (the last chunk, or all that the link could not carry meanwhile)
 * delays the second token. */
#include "router/place/candidates.h"

#include "common/sched/step_plan.h"

#include <math.h>

#define EXPECTED_OUTPUT                                                                                      \
    256u /* tokens assumed to come of a request that allows more: median of the conversation traces */
#define AUTO_CHUNK_MIN       16u
#define AUTO_CHUNK_MAX       512u
#define UNTESTED_BYTES_PER_S 1e9 /* a link that was not measured yet: loopback tcp, cautiously */
#define DOUBT                0.05 /* share of the price added for what prediction cannot see; see sl_predict() */
#define COMMAND_MS           1.0 /* submit to intake: two control messages */

static double step_ms(const struct sl_place_node *n, uint32_t prompt_rows, uint32_t decode_rows,
                      double context)
{
    const struct sl_step_load l = {
        .prompt_rows = prompt_rows, .decode_rows = decode_rows, .decode_context = context};
    double ms = sl_cost_predict_ms(&n->cost, &l);
    return ms > 0 && isfinite(ms) ? ms : 0;
}

/* A prompt chunk in the middle of new_tokens over history, beside what decodes on n now. */
static double chunk_ms(const struct sl_place_node *n, uint32_t rows, double new_tokens, double history)
{
    double before = history + new_tokens / 2;
    const struct sl_step_load l = {.prompt_rows = rows,
                                   .decode_rows = n->decode_rows,
                                   .prompt_attn = rows * before,
                                   .prompt_history = before,
                                   .decode_context = n->decode_context_tokens};
    return sl_cost_predict_ms(&n->cost, &l);
}

/* Rows of one chunk of that prompt. */
static uint32_t chunk_rows(const struct sl_place_node *n, const struct sl_place_req *req, double new_tokens,
                           double history)
{
    int32_t chunk = req->chunk != -2 ? req->chunk : n->chunk_tokens;
    uint32_t cap = n->max_batch_tokens ? n->max_batch_tokens : AUTO_CHUNK_MAX;
    if (chunk > 0)
        return (uint32_t)chunk < cap ? (uint32_t)chunk : cap;
    if (chunk == 0 || n->decode_rows == 0)
        return cap;
    double allowed = SL_PLAN_STRETCH * step_ms(n, 0, n->decode_rows, n->decode_context_tokens);
    uint32_t best = AUTO_CHUNK_MIN;
    for (uint32_t c = AUTO_CHUNK_MIN; c <= AUTO_CHUNK_MAX && c <= cap; c *= 2)
        if (chunk_ms(n, c, new_tokens, history) <= allowed)
            best = c;
    return best;
}

/* Time to run new_tokens over history in chunks; *steps = how many. */
static double prompt_ms(const struct sl_place_node *n, const struct sl_place_req *req, double new_tokens,
                        double history, double *steps)
{
    *steps = 0;
    if (new_tokens <= 0)
        return 0;
    uint32_t chunk = chunk_rows(n, req, new_tokens, history);
    double full = floor(new_tokens / chunk);
    uint32_t rest = (uint32_t)(new_tokens - full * chunk);
    double ms = full * step_ms(n, chunk, n->decode_rows, n->decode_context_tokens);
    if (rest)
        ms += step_ms(n, rest, n->decode_rows, n->decode_context_tokens);
    *steps = full + (rest ? 1 : 0);
    /* What attention computes does not depend on how the prompt is cut; its history is read once a chunk. */
    struct sl_step_load without = {.prompt_rows = 1}, with = without;
    with.prompt_attn = new_tokens * (history + new_tokens / 2);
    with.prompt_history = *steps * history + chunk * *steps * (*steps - 1) / 2;
    double attn = sl_cost_predict_ms(&n->cost, &with) - sl_cost_predict_ms(&n->cost, &without);
    return ms + (attn > 0 && isfinite(attn) ? attn : 0);
}

static double queue_ms(const struct sl_place_node *n, const struct sl_place_req *req)
{
    double steps;
    return prompt_ms(n, req, n->queued_prompt_tokens, 0, &steps);
}

double sl_predict_prefill_ms(const struct sl_place_node *n, const struct sl_place_req *req,
                             uint32_t new_tokens, uint32_t history)
{
    double steps;
    return queue_ms(n, req) + prompt_ms(n, req, new_tokens, history, &steps);
}

double sl_place_wait_ms(const struct sl_place_state *state)
{
    const struct sl_place_req any = {.chunk = -2};
    double least = -1;
    for (uint32_t i = 0; i < state->n_nodes; i++) {
        const struct sl_place_node *n = &state->nodes[i];
        double ms = n->may_decode && !n->unusable ? queue_ms(n, &any) : -1;
        if (ms >= 0 && (least < 0 || ms < least))
            least = ms;
    }
    return least > 0 ? least : 0;
}

const struct sl_place_link *sl_place_find_link(const struct sl_place_state *state, int p, int d)
{
    for (uint32_t i = 0; i < state->n_links; i++)
        if ((int)state->links[i].p == p && (int)state->links[i].d == d)
            return &state->links[i];
    return NULL;
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

/* What the prompt work on n costs those who decode there: each of their steps becomes longer. */
static double prompt_damage_ms(const struct sl_place_node *n, double work_ms, double steps)
{
    if (n->decode_rows == 0 || steps == 0)
        return 0;
    double alone = steps * step_ms(n, 0, n->decode_rows, n->decode_context_tokens);
    return work_ms > alone ? n->decode_rows * (work_ms - alone) : 0;
}

/* Measured step times of equal nodes differ by some percent. Where the rule is free to choose, a prompt shall
 * not travel, nor duties be swapped, for a gain of that size. In mode colocated every node is as good as
 * another. */
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

void sl_predict(const struct sl_place_state *state, const struct sl_place_req *req,
                struct sl_place_candidate *c)
{
    const struct sl_place_node *d = &state->nodes[c->d];
    const uint32_t n = req->n_tokens, s = c->split;
    struct sl_place_prediction *out = &c->predicted;
    double ready_ms = 0, first_at_p_ms = 0, damage = 0, steps;

    if (c->p >= 0) {
        const struct sl_place_node *p = &state->nodes[c->p];
        const struct sl_place_link *link = sl_place_find_link(state, c->p, c->d);
        uint32_t work = to_compute(p, req, 0, s);
        double wait = queue_ms(p, req);
        double run = prompt_ms(p, req, work, s - work, &steps);
        damage += prompt_damage_ms(p, run, steps);
        first_at_p_ms = COMMAND_MS + wait + run;

        double rate_ms = (link && link->bytes_per_s > 0 ? link->bytes_per_s : UNTESTED_BYTES_PER_S) / 1e3;
        double page_ms = (double)d->page_bytes / rate_ms;
        uint32_t have = min_u32(d->hit_tokens, s);
        double pages = ceil((double)(s - have) / d->page_tokens);
        double last = ceil((double)min_u32(chunk_rows(p, req, work, s - work), s - have) / d->page_tokens);
        double behind = pages * page_ms - run; /* what the link could not carry while P computed */
        ready_ms = first_at_p_ms + fmax(behind, last * page_ms) + (link ? link->latency_us / 1e3 : 0);
    }

    uint32_t rest = to_compute(d, req, s, n);
    double rest_ms = prompt_ms(d, req, rest, n - rest, &steps);
    damage += prompt_damage_ms(d, rest_ms, steps);

    uint32_t expected = min_u32(req->max_new ? req->max_new : 1, EXPECTED_OUTPUT);
    double context = d->decode_context_tokens + n;
    double decode_ms = step_ms(d, 0, d->decode_rows + 1, context);
    double more_ms = decode_ms - step_ms(d, 0, d->decode_rows, d->decode_context_tokens);
    if (d->decode_rows && more_ms > 0)
        damage += d->decode_rows * more_ms * expected;

    double wait_pages_ms = c->tight ? expected * decode_ms : 0; /* until about one of the others has ended */
    if (c->p >= 0 && s == n) {
        out->ttft_ms = first_at_p_ms;
        out->second_ms = ready_ms + wait_pages_ms + decode_ms;
    } else {
        double start = fmax(ready_ms, COMMAND_MS + queue_ms(d, req)) + wait_pages_ms;
        out->ttft_ms = start + rest_ms;
        out->second_ms = out->ttft_ms + decode_ms;
    }
    out->damage_ms = damage;
    out->cost_ms = (out->ttft_ms + out->second_ms + expected * decode_ms + damage) * doubt(state, req, c);
}
