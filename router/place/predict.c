/* router/place/predict.c - what a candidate would cost, in milliseconds of delay.
 *
 * The price of a candidate is the sum of the delays of all users: this request's time to the second token and
 * to its last expected one, a pause behind the first token more than that, plus what its prompt chunks and
 * its decode row add to the tokens of the requests that decode beside it. A queue that it overtakes counts as
 * one that it waits for: somebody does. Only sums over the nodes' reports and their measured step times
 * enter. What the weights do to traces: sluice-bench simulate, docs/benchmarks.md.
 *
 * Prompts are priced as the steps that the node's own plan would make of them: those that wait share steps, and
 * what fits into a step that comes anyway costs only what the step becomes longer by.
 *
 * Every first token has a due time, by which the nodes order prompts too (slack.h): a multiple of the prompt's own
 * work, or the wish where it is sooner. Up to there it may wait so that streams are not slowed down; beyond, it counts
 * as all of its tokens coming late, or prompts would gather where the fewest streams are.
 *
 * Where P and D both compute, they overlap: D's own queue runs down while P computes. Pages travel while P
 * computes; only what is left at its end (the last chunk, or all that the link could not carry meanwhile)
 * delays the second token.
 *
 * What depends on a node alone is worked out once per request (struct sl_node_facts): a candidate then costs
 * little, and a fleet of a thousand nodes can be looked over for every request. */
#include "router/place/candidates.h"

#include "common/sched/slack.h"
#include "common/sched/step_plan.h"

#include <math.h>

/* Tokens that are priced at most, and assumed where a class has shown none: median of the conversation
 * traces. With all of longer outputs in the price, the first token counts for too little (ServeGen R1, in the
 * simulator: 28 % of requests within both limits instead of 34 %). */
#define EXPECTED_OUTPUT 256u
#define LEAST_CHUNK     (2 * SL_PLAN_ALIGN) /* where the target leaves no chunk: tiles come, but rarely */
#define CAP_UNTOLD      512u                /* rows of a step of a node that does not say its limit */
/* Shares of the price added for what prediction cannot see; see doubt(). */
#define TRAVEL_DOUBT 0.3
#define DUTY_DOUBT   0.05
/* Of a pause behind the first token: a stream that stops is worse than one that starts later. There is one only where
 * D computes nothing of the prompt. Mode pd with 0, 4 and 16 (sluice-bench simulate, 8:8 of the H100 of
 * docs/benchmarks.md, 2 seeds of 3000 requests, share within both limits): Mooncake conversation at 0.9 times its speed
 * 97.0, 98.0, 99.2 %, ServeGen R1 at 1.2 95.9, 96.7, 96.1 %, Azure conversation at 11 99.3, 99.2, 99.1 %. */
#define PAUSE_WEIGHT  4.0
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

/* Prompt rows that a step takes at most, whatever its time. */
static uint32_t find_cap(const struct sl_place_node *n, const struct sl_place_req *req, bool *fixed)
{
    int32_t chunk = req->chunk != -2 ? req->chunk : n->chunk_tokens;
    uint32_t rows = n->max_batch_tokens ? n->max_batch_tokens : CAP_UNTOLD;
    uint32_t cap = rows > n->decode_rows + SL_PLAN_ALIGN ? rows - n->decode_rows : SL_PLAN_ALIGN;
    *fixed = chunk >= 0;
    return chunk > 0 && (uint32_t)chunk < cap ? (uint32_t)chunk : cap;
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

/* Prompt rows of a step behind `before` positions each: the most that is within the target, as step_plan.c finds it.
 * The step's time is linear between the table's points, so pieces are looked at from the largest: an end that is
 * within the target, or the place where the target is met. */
static uint32_t pick_chunk(const struct sl_place_node *n, const struct sl_node_facts *f, double before)
{
    if (f->fixed)
        return f->cap;
    const struct sl_cost_model *m = n->cost;
    const double row_ms = 1e-6 * before * f->attn_ms, fixed_ms = 1e-6 * before * f->read_ms;
    double rows = n->decode_rows, high = f->cap,
           high_over = f->cap_ms + fixed_ms + high * row_ms - f->target_ms;
    if (high_over <= 0)
        return f->cap;
    for (uint32_t i = m->n_points; i-- > 0 && m->rows[i] > rows;) {
        double low = m->rows[i] - rows,
               over = m->ms[i] + f->beside_ms + fixed_ms + low * row_ms - f->target_ms;
        if (low >= high)
            continue;
        if (over <= 0) {
            uint32_t c = (uint32_t)(low - over * (high - low) / (high_over - over));
            uint32_t aligned = sl_plan_align(n->decode_rows, c, SL_PLAN_ALIGN);
            return aligned > low ? aligned : (uint32_t)low;
        }
        high = low;
        high_over = over;
    }
    double over = f->one_ms + fixed_ms + row_ms - f->target_ms; /* of one row */
    if (over > 0 || high <= 1)
        return LEAST_CHUNK;
    uint32_t c = (uint32_t)(1 - over * (high - 1) / (high_over - over));
    c = sl_plan_align(n->decode_rows, c, SL_PLAN_ALIGN);
    return c > LEAST_CHUNK ? c : LEAST_CHUNK;
}

struct run { /* of prompts through steps */
    double ms, steps;
    double tail; /* rows of the last step, when it is not full */
};

/* Steps that compute `tokens` of n_prompts equal prompts, each over `history`: they share steps, as the plan fills
 * each with the next prompt's rows. tail: rows that the first of these steps has anyway; it is not counted. */
static struct run run_prompts(const struct sl_place_node *n, const struct sl_node_facts *f, double tail,
                              double tokens, double history, double n_prompts)
{
    if (tokens <= 0)
        return (struct run){.tail = tail};
    double each = tokens / n_prompts, before = history + each / 2;
    uint32_t chunk = pick_chunk(n, f, before);
    double rows = tail + tokens, full = floor(rows / chunk), rest = rows - full * chunk;
    struct run r = {.ms = full * mixed_ms(n, chunk, 0, 0), .steps = full + (rest > 0), .tail = rest};
    if (rest > 0)
        r.ms += mixed_ms(n, (uint32_t)ceil(rest), 0, 0);
    if (tail > 0) {
        r.ms -= mixed_ms(n, (uint32_t)ceil(tail), 0, 0);
        r.steps -= 1;
    }
    /* What attention computes does not depend on how a prompt is cut; its history is read once a chunk. */
    double chunks = ceil(each / chunk),
           read = n_prompts * (chunks * history + chunk * chunks * (chunks - 1) / 2);
    r.ms = fmax(r.ms, 0) + 1e-6 * (tokens * before * f->attn_ms + read * f->read_ms);
    return r;
}

/* The first chunk of what is queued is in the step that runs: half of that is left, and the rest waits. */
static struct run run_queue(const struct sl_place_node *n, const struct sl_node_facts *f, double *first_ms)
{
    double queued = n->queued_prompt_tokens, prompts = fmax(n->queued_prompts, 1);
    double before = queued / prompts / 2, first = fmin(queued, pick_chunk(n, f, before));
    *first_ms = f->alone_ms;
    if (first > 0)
        *first_ms =
            mixed_ms(n, (uint32_t)ceil(first), 0, 0) + 1e-6 * before * (first * f->attn_ms + f->read_ms);
    return run_prompts(n, f, 0, queued - first, 0, prompts);
}

static void find_facts(struct sl_node_facts *f, const struct sl_place_node *n, const struct sl_place_req *req)
{
    *f = (struct sl_node_facts){.known = true};
    f->alone_ms = mixed_ms(n, 0, 0, 0);
    f->one_ms = mixed_ms(n, 1, 0, 0);
    f->beside_ms = n->cost->head_ms_per_row * n->decode_rows +
                   1e-6 * n->cost->decode_attn_ms_per_mtoken * n->decode_context_tokens;
    f->attn_ms = n->cost->prompt_attn_ms_per_mtoken;
    f->read_ms = n->cost->prompt_read_ms_per_mtoken;
    f->target_ms = step_target_ms(n, 0);
    f->cap = find_cap(n, req, &f->fixed);
    f->cap_ms = mixed_ms(n, f->cap, 0, 0);
    double first_ms;
    struct run queue = run_queue(n, f, &first_ms);
    f->queue_ms = queue.ms;
    f->work_ms = queue.ms + (n->queued_prompt_tokens > 0 ? first_ms : 0);
    f->tail = queue.tail;
    f->rest_of_step_ms = first_ms / 2;
    f->behind_ms = run_prompts(n, f, f->tail, n->behind_prompt_tokens, 0, fmax(n->behind_prompts, 1)).ms;
    double queued = n->queued_prompt_tokens + n->behind_prompt_tokens;
    if (req->tpot_ms > 0 && queued > 0) {
        struct sl_node_facts shorter = *f;
        double prompts = fmax(n->queued_prompts + n->behind_prompts, 1);
        shorter.target_ms = fmin(f->target_ms, step_target_ms(n, req->tpot_ms));
        f->wish_damage_ms = fmax(0, run_prompts(n, &shorter, 0, queued, 0, prompts).ms -
                                        run_prompts(n, f, 0, queued, 0, prompts).ms);
    }
}

static const struct sl_node_facts *facts_of(struct sl_predictor *x, uint32_t i)
{
    struct sl_node_facts *f = &x->facts[i];
    if (!f->known)
        find_facts(f, &x->state->nodes[i], x->req);
    return f;
}

double sl_predict_due_ms(const struct sl_place_state *state, const struct sl_place_req *req)
{
    const double n = req->n_tokens;
    const struct sl_step_load all = {.prompt_rows = req->n_tokens, .prompt_attn = n * n / 2};
    double least = 0;
    for (uint32_t i = 0; i < state->n_nodes; i++) {
        if (state->nodes[i].unusable)
            continue;
        double ms = step_ms(&state->nodes[i], &all);
        if (ms > 0 && (least <= 0 || ms < least))
            least = ms;
    }
    double due_ms = SL_SLACK_STRETCH * least;
    return req->ttft_ms > 0 && req->ttft_ms < due_ms ? req->ttft_ms : due_ms;
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
        if (least < 0 || f.work_ms < least)
            least = f.work_ms;
    }
    return least > 0 ? least : 0;
}

double sl_place_tokens_per_ms(const struct sl_place_state *state, enum sl_place_mode mode)
{
    const struct sl_place_req any = {.chunk = -2};
    double all = 0, preferring = 0;
    for (uint32_t i = 0; i < state->n_nodes; i++) {
        const struct sl_place_node *n = &state->nodes[i];
        if (n->unusable)
            continue;
        struct sl_node_facts f = {0};
        find_facts(&f, n, &any);
        double ms = run_prompts(n, &f, 0, SPEED_TOKENS, 0, 1).ms, speed = ms > 0 ? SPEED_TOKENS / ms : 0;
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
    return f->queue_ms + f->behind_ms + run_prompts(n, f, f->tail, work, x->req->n_tokens - work, 1).ms;
}

/* What a prompt's run on n costs those who decode there: each of their steps becomes longer. */
static double damage_of(const struct sl_place_node *n, const struct sl_node_facts *f, struct run run)
{
    return n->decode_rows * fmax(0, run.ms - run.steps * f->alone_ms);
}

/* A prompt that travels waits in two queues instead of one, its last rows are a step more, and its pages then fill two
 * caches: with 0.15, 6 to 18 % of prompts of 256 to 512 tokens travelled near capacity, and hybrid carried less than
 * colocated. Duties are preferences: measured step times of equal nodes differ by some percent, and for a gain of
 * that size they shall not be swapped; with 0.15 decode rows gathered on half of the nodes (docs/benchmarks.md). In
 * mode colocated every node is as good as another. */
static double doubt(const struct sl_place_state *state, const struct sl_place_req *req,
                    const struct sl_place_candidate *c)
{
    double d = 1;
    if (req->mode == SL_PLACE_COLOCATED && req->split < 0)
        return d;
    if (c->p >= 0)
        d += TRAVEL_DOUBT + (state->nodes[c->p].prefers_prefill ? 0 : DUTY_DOUBT);
    if (state->nodes[c->d].prefers_prefill)
        d += DUTY_DOUBT;
    return d;
}

static uint32_t expected_output(const struct sl_place_req *req)
{
    return min_u32(req->max_new ? req->max_new : 1, req->expected_new ? req->expected_new : EXPECTED_OUTPUT);
}

/* Pages count at the peak that is to come, as a node's admission has it (admission.c): of each that decodes there half
 * an output at least is still expected. Else nodes where long outputs gather look roomy until they overflow. An
 * empty node lets in whatever fits. */
double sl_predict_pages_missing(const struct sl_place_node *n, const struct sl_place_req *req)
{
    uint32_t hit = min_u32(n->hit_tokens, req->n_tokens);
    double pages = (double)((req->n_tokens - hit) / n->page_tokens + 1); /* with the next token's */
    double outputs = n->decode_rows ? 1 + n->decode_rows / 2.0 : 0;
    double growth = expected_output(req) * outputs / n->page_tokens;
    /* Of those that wait only the number is known: they count as this one. */
    double missing = pages * (1 + n->waiting) + growth - n->free_pages;
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
    double ready_ms = 0, first_at_p_ms = 0, damage = 0, work_ms = 0, behind_ms = 0;

    if (c->p >= 0) {
        const struct sl_place_node *p = &state->nodes[c->p];
        const struct sl_node_facts *fp = facts_of(x, (uint32_t)c->p);
        const struct sl_place_link *link = sl_place_find_link(state, c->p, c->d);
        uint32_t work = to_compute(p, req, 0, s);
        struct run run = run_prompts(p, fp, fp->tail, work, s - work, 1);
        damage += damage_of(p, fp, run);
        work_ms = fp->work_ms;
        behind_ms = fp->behind_ms;
        first_at_p_ms = COMMAND_MS + fp->rest_of_step_ms + fp->queue_ms + run.ms;

        double page_ms = (double)d->page_bytes * 1e3 / link_rate(state, link);
        uint32_t have = min_u32(d->hit_tokens, s);
        double pages = ceil((double)(s - have) / d->page_tokens);
        double last = ceil((double)min_u32(pick_chunk(p, fp, s - work / 2.0), s - have) / d->page_tokens);
        double behind = pages * page_ms - run.ms; /* what the link could not carry while P computed */
        ready_ms = first_at_p_ms + fmax(behind, last * page_ms) + (link ? link->latency_us / 1e3 : 0);
    }

    uint32_t rest = to_compute(d, req, s, n);
    /* what P computes first comes too late for the step that ends D's queue now */
    struct run last = run_prompts(d, fd, c->p >= 0 ? 0 : fd->tail, rest, n - rest, 1);
    damage += damage_of(d, fd, last);

    uint32_t output = expected_output(req), expected = min_u32(output, EXPECTED_OUTPUT);
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
        work_ms = fmax(work_ms, fd->work_ms);
        behind_ms = fmax(behind_ms, fd->behind_ms);
        double start = fmax(ready_ms, COMMAND_MS + fd->queue_ms) + fd->rest_of_step_ms + wait_pages_ms;
        out->ttft_ms = start + last.ms;
        out->second_ms = out->ttft_ms + decode_ms;
    }
    out->wait_ms = work_ms + wait_pages_ms;
    out->damage_ms = damage;
    /* as sl_decision_slo_met() judges it: the mean over all tokens behind the first */
    double tpot_ms =
        expected > 1 ? (out->second_ms - out->ttft_ms + (expected - 2.0) * decode_ms) / (expected - 1.0) : 0;
    out->miss = over(out->ttft_ms, req->ttft_ms) + over(tpot_ms, req->tpot_ms);
    double pause_ms = out->second_ms - out->ttft_ms - decode_ms;
    double late_ms = x->due_ms > 0 ? fmax(0, out->ttft_ms - x->due_ms) : 0;
    out->cost_ms = (2 * (out->second_ms + behind_ms) + PAUSE_WEIGHT * pause_ms +
                    expected * (decode_ms + late_ms) + damage) *
                   doubt(state, req, c);
}
