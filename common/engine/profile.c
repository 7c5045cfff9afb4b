/* common/engine/profile.c - the first measurement of the cost model, at open.
 *
 * Steps of growing size until the next one would leave the budget: a fast device is measured up to its
 * largest batch, a slow one to what a second allows, and the table goes on along its last segment. Each point
 * is the median of up to REPEATS runs. The attention terms are differences between a step with and without
 * history, bounded around what the model's shape says, since small differences of noisy times can be
 * anything. Real steps refine all of it (cost_model.c). */
#include "common/engine/engine_impl.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define BUDGET_MS     1200.0
#define TABLE_SHARE   0.6 /* of the budget, the rest is for head and attention */
#define REPEATS       3
#define PROBE_ROWS    32u
#define PROBE_SPREAD  8u /* the small chunk has so many times fewer rows */
#define PROBE_DECODES 8u
#define PROBE_HISTORY 1024u
#define GUESS_ROW_MS  1.0
#define GUESS_STEP_MS 2.0
#define BOUND_FACTOR  8.0 /* measured attention terms stay within this factor of the guess */

struct shape {
    uint32_t n_runs, rows_per_run, history;
    uint32_t n_out; /* the last n_out rows */
};

struct probe {
    const struct sl_profile_target *t;
    int32_t *tokens;
    uint32_t *out_rows, *pages;
    struct sl_batch_run *runs;
    struct sl_sample_row *samples; /* [PROBE_DECODES] */
    struct sl_sampled *sampled;
    uint32_t pages_per_run;
    double spent_ms;
};

static double run_once(struct probe *p, const struct shape *s)
{
    const struct sl_profile_target *t = p->t;
    uint32_t n_rows = s->n_runs * s->rows_per_run;
    uint32_t n_pages = (s->history + s->rows_per_run + t->page_tokens - 1) / t->page_tokens;
    for (uint32_t r = 0; r < s->n_runs; r++) {
        /* Runs write into pages of their own. Pages of history may be shared when the pool is small. */
        uint32_t *pages = &p->pages[(size_t)r * p->pages_per_run];
        uint32_t own = s->history / t->page_tokens, own_pages = n_pages - own;
        uint32_t written = s->n_runs * own_pages, shared = t->n_pages - written;
        for (uint32_t i = 0; i < own; i++)
            pages[i] = written + (r * own + i) % shared;
        for (uint32_t i = own; i < n_pages; i++)
            pages[i] = r * own_pages + (i - own);
        p->runs[r] = (struct sl_batch_run){.first_row = r * s->rows_per_run,
                                           .n_rows = s->rows_per_run,
                                           .first_pos = s->history,
                                           .pages = pages,
                                           .n_pages = n_pages};
    }
    for (uint32_t i = 0; i < s->n_out; i++)
        p->out_rows[i] = n_rows - s->n_out + i;
    struct sl_batch b = {.n_rows = n_rows,
                         .n_runs = s->n_runs,
                         .n_out = s->n_out,
                         .tokens = p->tokens,
                         .runs = p->runs,
                         .out_rows = p->out_rows};
    uint64_t start = sl_now_ns();
    sl_model_forward(t->model, t->kv, &b, t->logits, t->progress);
    sl_sample_rows(t->samplers, t->logits, p->samples, s->n_out, p->sampled);
    double ms = (double)(sl_now_ns() - start) / 1e6;
    p->spent_ms += ms;
    return ms;
}

/* Fastest of up to REPEATS runs: what disturbs a run only makes it slower. Fewer runs when they do not fit
 * below limit_ms of all spent. */
static double measure(struct probe *p, const struct shape *s, double limit_ms)
{
    double best = run_once(p, s);
    for (uint32_t n = 1; n < REPEATS && p->spent_ms + best < limit_ms; n++) {
        double ms = run_once(p, s);
        best = ms < best ? ms : best;
    }
    return best;
}

/* Pages a shape needs for rows of its own, and one for history. */
static bool pool_holds(const struct sl_profile_target *t, const struct shape *s)
{
    uint64_t own = (s->rows_per_run + t->page_tokens - 1) / t->page_tokens;
    return s->n_runs * own + (s->history ? 1 : 0) <= t->n_pages;
}

static void measure_table(struct probe *p, struct sl_cost_model *out)
{
    static const uint32_t sizes[] = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048};
    _Static_assert(SL_COUNTOF(sizes) <= SL_COST_POINTS, "the table holds all sizes");
    double limit = BUDGET_MS * TABLE_SHARE;
    uint32_t n = 0;
    run_once(p, &(struct shape){.n_runs = 1, .rows_per_run = 1, .n_out = 1}); /* warms caches and threads */
    for (uint32_t i = 0; i < SL_COUNTOF(sizes); i++) {
        struct shape s = {.n_runs = 1, .rows_per_run = sizes[i], .n_out = 1};
        double next = n ? out->ms[n - 1] * sizes[i] / sizes[i - 1] : 0;
        if (sizes[i] > p->t->max_rows || sizes[i] > p->pages_per_run * p->t->page_tokens ||
            !pool_holds(p->t, &s) || (n >= 2 && p->spent_ms + next > limit))
            break;
        out->rows[n] = sizes[i];
        out->ms[n] = measure(p, &s, limit);
        n++;
    }
    out->n_points = n;
}

static double bounded(double x, double guess)
{
    if (guess <= 0)
        return x > 0 ? x : 0;
    return x < guess / BOUND_FACTOR   ? guess / BOUND_FACTOR
           : x > guess * BOUND_FACTOR ? guess * BOUND_FACTOR
                                      : x;
}

/* A history that pool, context and max_rows rows behind it allow; 0 = none. */
static uint32_t probe_history(const struct probe *p, uint32_t max_rows)
{
    const struct sl_profile_target *t = p->t;
    uint32_t most = (p->pages_per_run - 1) * t->page_tokens;
    if (most < max_rows + t->page_tokens)
        return 0;
    uint32_t history = most - max_rows < PROBE_HISTORY ? most - max_rows : PROBE_HISTORY;
    return history - history % t->page_tokens;
}

static void measure_decode_terms(struct probe *p, struct sl_cost_model *out)
{
    uint32_t n = PROBE_DECODES < p->t->max_out ? PROBE_DECODES : p->t->max_out;
    uint32_t history = probe_history(p, 1);
    struct shape few = {.n_runs = n, .rows_per_run = 1, .n_out = 1}, heads = few, deep = few;
    heads.n_out = n;
    deep.history = history;
    if (n < 2 || n > p->t->max_rows || !history || !pool_holds(p->t, &deep) || p->spent_ms >= BUDGET_MS)
        return;
    double base = measure(p, &few, BUDGET_MS);
    double per_head = (measure(p, &heads, BUDGET_MS) - base) / (n - 1);
    double attn = (measure(p, &deep, BUDGET_MS) - base) / ((double)n * history) * 1e6;
    out->head_ms_per_row = bounded(per_head, out->head_ms_per_row);
    out->decode_attn_ms_per_mtoken = bounded(attn, out->decode_attn_ms_per_mtoken);
}

/* History costs h * (read + attn * rows): two chunk sizes tell the two apart. */
static void measure_prompt_terms(struct probe *p, struct sl_cost_model *out)
{
    uint32_t rows = PROBE_ROWS < p->t->max_rows ? PROBE_ROWS : p->t->max_rows;
    uint32_t few = rows / PROBE_SPREAD, history = probe_history(p, rows);
    struct shape small = {.n_runs = 1, .rows_per_run = few, .n_out = 1}, large = small;
    large.rows_per_run = rows;
    struct shape small_late = small, large_late = large;
    small_late.history = large_late.history = history;
    if (!few || !history || !pool_holds(p->t, &large_late) || p->spent_ms >= BUDGET_MS)
        return;
    double a = (measure(p, &small_late, BUDGET_MS) - measure(p, &small, BUDGET_MS)) / history * 1e6;
    double b = (measure(p, &large_late, BUDGET_MS) - measure(p, &large, BUDGET_MS)) / history * 1e6;
    out->prompt_attn_ms_per_mtoken = bounded((b - a) / (rows - few), out->prompt_attn_ms_per_mtoken);
    /* a decode row reads its context too, and computes a little besides */
    double read = a - out->prompt_attn_ms_per_mtoken * few, most = out->decode_attn_ms_per_mtoken;
    out->prompt_read_ms_per_mtoken = read < 0 ? 0 : read > most ? most : read;
}

/* Work of the head per row, and of attention per (row, position), beside the linear work per row: from the
 * shapes. */
static void guess_terms(const struct sl_model_conf *m, double row_ms, struct sl_cost_model *out)
{
    double q = m->attn.n_heads, kv = m->attn.n_kv_heads, d = m->attn.head_dim;
    double linear = m->d_model * (q + 2 * kv) * d + q * d * m->d_model + 3.0 * m->d_model * m->d_ff;
    double share = linear > 0 ? 2 * q * d / linear : 0;
    out->prompt_attn_ms_per_mtoken = out->decode_attn_ms_per_mtoken = row_ms * share * 1e6;
    out->prompt_read_ms_per_mtoken = out->prompt_attn_ms_per_mtoken;
    out->head_ms_per_row = linear > 0 ? row_ms * m->d_model * m->n_vocab / (linear * m->n_layers) : 0;
}

void sl_profile_guess(const struct sl_model_conf *m, struct sl_cost_model *out)
{
    sl_cost_init_linear(out, GUESS_STEP_MS, GUESS_ROW_MS);
    guess_terms(m, GUESS_ROW_MS, out);
}

void sl_profile_run(const struct sl_profile_target *t, struct sl_cost_model *out)
{
    const struct sl_model_conf *m = sl_model_conf(t->model);
    struct probe p = {.t = t};
    uint32_t max_runs = PROBE_DECODES, longest = m->context_length;
    p.pages_per_run = longest / t->page_tokens;
    if (p.pages_per_run > t->n_pages)
        p.pages_per_run = t->n_pages;
    if (p.pages_per_run == 0)
        return;
    p.tokens = sl_xcalloc(t->max_rows, sizeof *p.tokens);
    p.out_rows = sl_xcalloc(max_runs, sizeof *p.out_rows);
    p.pages = sl_xcalloc((size_t)max_runs * p.pages_per_run, sizeof *p.pages);
    p.runs = sl_xcalloc(max_runs, sizeof *p.runs);
    p.samples = sl_xcalloc(max_runs, sizeof *p.samples);
    p.sampled = sl_xcalloc(max_runs, sizeof *p.sampled);
    struct sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .ignore_eos = true};
    for (uint32_t i = 0; i < max_runs; i++)
        p.samples[i] = (struct sl_sample_row){&greedy, p.tokens, 1, 1, false};
    for (uint32_t i = 0; i < t->max_rows; i++)
        p.tokens[i] = (int32_t)((uint64_t)i * 7919 % m->n_vocab);

    struct sl_cost_model c = {0};
    measure_table(&p, &c);
    uint32_t last = c.n_points - 1;
    guess_terms(m, last ? (c.ms[last] - c.ms[0]) / (c.rows[last] - c.rows[0]) : GUESS_ROW_MS, &c);
    measure_decode_terms(&p, &c);
    measure_prompt_terms(&p, &c);
    /* what attention within the chunk itself took is the attention term's, not the table's */
    for (uint32_t i = 0; i < c.n_points; i++) {
        double own = c.prompt_attn_ms_per_mtoken * 1e-6 * c.rows[i] * (c.rows[i] / 2.0);
        if (own < c.ms[i] / 2)
            c.ms[i] -= own;
    }
    *out = c;
    SL_INFO("cost model measured points=%u ms_1=%.3f rows_last=%u ms_last=%.3f head_ms=%.4f "
            "prompt_attn=%.1f prompt_read=%.1f decode_attn=%.1f spent_ms=%.0f",
            c.n_points, c.ms[0], c.rows[last], c.ms[last], c.head_ms_per_row, c.prompt_attn_ms_per_mtoken,
            c.prompt_read_ms_per_mtoken, c.decode_attn_ms_per_mtoken, p.spent_ms);
    sl_free(p.sampled);
    sl_free(p.samples);
    sl_free(p.runs);
    sl_free(p.pages);
    sl_free(p.out_rows);
    sl_free(p.tokens);
}
