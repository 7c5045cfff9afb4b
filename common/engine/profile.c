/* common/engine/profile.c - the first measurement of the cost model, at open.
 *
 * Steps of growing size until the next one would leave the budget, then decode rows and late chunks. Rounds
 * over all of them take turns, and the fastest run of each counts: what disturbs a run only makes it slower,
 * and a disturbance that lasts a while does not hit all runs of one shape. The values are fitted to these
 * times as they are to real steps later (cost_learn.c), from what the model's shape says: small differences
 * of noisy times cannot become wild terms. Last, the table is made plausible.
 *
 * A model kept from a former start (cost_cache.c) is only looked at: one shape, a few runs. */
#include "common/engine/engine_impl.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define BUDGET_MS     1000.0
#define TABLE_SHARE   0.3 /* of the budget, for the first round of the table */
#define ROUNDS        5u
#define PROBE_ROWS    32u
#define PROBE_SPREAD  8u /* the small chunk has so many times fewer rows */
#define PROBE_DECODES 8u
#define PROBE_HISTORY 1024u
#define GUESS_ROW_MS  1.0
#define GUESS_STEP_MS 2.0
#define FIT_ROUNDS    20
#define FIT_WITHIN    3.0 /* times the measured time, either way; else the table stays as it was measured */
#define MAX_SAMPLES   (SL_COST_POINTS + 5u)
#define LOOK_ROWS     16u /* the shape that tells whether a kept model still fits */
#define LOOK_RUNS     3u
#define FITS_FACTOR   1.3 /* faster than kept by this: the program or the machine is another */

struct shape {
    uint32_t n_runs, rows_per_run, history;
    uint32_t n_out; /* the last n_out rows */
};

struct sample {
    struct shape s;
    double ms;
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
    struct sample taken[MAX_SAMPLES];
    uint32_t n_taken, n_table; /* the table's come first */
};

/* Sizes the table may have. */
static const uint32_t sizes[] = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048};
_Static_assert(SL_COUNTOF(sizes) <= SL_COST_POINTS, "the table holds all sizes");

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
    sl_model_forward(t->model, t->kv, &b, NULL, t->progress);
    if (s->n_out > 0)
        sl_sample_pass(t->samplers, t->model, &b, 0, t->logits, p->samples, s->n_out, p->sampled);
    double ms = (double)(sl_now_ns() - start) / 1e6;
    p->spent_ms += ms;
    return ms;
}

/* Pages a shape needs for rows of its own, and one for history. */
static bool pool_holds(const struct sl_profile_target *t, const struct shape *s)
{
    uint64_t own = (s->rows_per_run + t->page_tokens - 1) / t->page_tokens;
    return s->n_runs * own + (s->history ? 1 : 0) <= t->n_pages;
}

static bool can_run(const struct probe *p, const struct shape *s)
{
    const struct sl_profile_target *t = p->t;
    return s->n_runs && s->rows_per_run && s->n_runs * s->rows_per_run <= t->max_rows &&
           s->n_out <= t->max_out && s->history + s->rows_per_run <= p->pages_per_run * t->page_tokens &&
           pool_holds(t, s);
}

static void take(struct probe *p, const struct shape *s)
{
    p->taken[p->n_taken++] = (struct sample){*s, run_once(p, s)};
}

static void take_table(struct probe *p)
{
    for (uint32_t i = 0; i < SL_COUNTOF(sizes); i++) {
        struct shape s = {.n_runs = 1, .rows_per_run = sizes[i], .n_out = 1};
        double next = i ? p->taken[i - 1].ms * sizes[i] / sizes[i - 1] : 0;
        if (!can_run(p, &s) || (i >= 2 && p->spent_ms + next > BUDGET_MS * TABLE_SHARE))
            break;
        take(p, &s);
    }
    p->n_table = p->n_taken;
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

static void take_terms(struct probe *p)
{
    const struct sl_profile_target *t = p->t;
    uint32_t n = PROBE_DECODES < t->max_out ? PROBE_DECODES : t->max_out;
    uint32_t rows = PROBE_ROWS < t->max_rows ? PROBE_ROWS : t->max_rows;
    uint32_t late = probe_history(p, rows);
    const struct shape shapes[] = {
        {.n_runs = n, .rows_per_run = 1, .n_out = n},
        {.n_runs = n, .rows_per_run = 1, .n_out = n, .history = probe_history(p, 1)},
        {.n_runs = 1, .rows_per_run = rows / PROBE_SPREAD, .n_out = 1, .history = late},
        {.n_runs = 1, .rows_per_run = rows, .n_out = 1, .history = late},
    };
    for (uint32_t i = 0; i < SL_COUNTOF(shapes); i++)
        if (can_run(p, &shapes[i]) && (shapes[i].history || shapes[i].n_runs > 1))
            take(p, &shapes[i]);
}

static void take_again(struct probe *p)
{
    for (uint32_t round = 1; round < ROUNDS; round++)
        for (uint32_t i = 0; i < p->n_taken; i++) {
            struct sample *k = &p->taken[i];
            if (p->spent_ms + k->ms > BUDGET_MS)
                continue;
            double ms = run_once(p, &k->s);
            k->ms = ms < k->ms ? ms : k->ms;
        }
}

/* As the engine would call it: rows with logits each are decode rows. */
static struct sl_step_load load_of(const struct shape *s)
{
    double c = s->rows_per_run;
    if (s->n_runs > 1)
        return (struct sl_step_load){.decode_rows = s->n_runs,
                                     .decode_context = (double)s->n_runs * (s->history + 1)};
    return (struct sl_step_load){.prompt_rows = s->rows_per_run,
                                 .prompt_attn = c * (s->history + c / 2),
                                 .prompt_history = s->history};
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

/* A step takes no longer than a larger one, nor than its rows in smaller steps: one that did was disturbed
 * in all its runs. (Where a device has a dip at full tiles, the first rule hides it until real steps show
 * it.) */
static void make_plausible(struct sl_cost_model *m)
{
    for (uint32_t i = m->n_points - 1; i-- > 0;)
        m->ms[i] = m->ms[i] < m->ms[i + 1] ? m->ms[i] : m->ms[i + 1];
    for (uint32_t i = 1; i < m->n_points; i++) {
        double most = m->ms[i - 1] * m->rows[i] / m->rows[i - 1];
        m->ms[i] = m->ms[i] < most ? m->ms[i] : most;
    }
}

/* The table goes on along its last segment up to the largest step there can be. */
static void extend_table(struct sl_cost_model *m, uint32_t max_rows)
{
    uint32_t last = m->n_points - 1;
    double slope = last ? (m->ms[last] - m->ms[last - 1]) / (m->rows[last] - m->rows[last - 1]) : m->ms[0];
    double ms = m->ms[last], rows = m->rows[last];
    for (uint32_t i = m->n_points; i < SL_COUNTOF(sizes) && m->rows[m->n_points - 1] < max_rows; i++) {
        m->rows[m->n_points] = sizes[i];
        m->ms[m->n_points++] = ms + (slope > 0 ? slope : 0) * (sizes[i] - rows);
    }
}

/* The fit is close to every time it was made of. Where all runs of some shapes were disturbed no terms explain
 * all of them, and those that come nearest may say that a step takes no time. */
static bool explains(const struct probe *p, const struct sl_cost_model *m)
{
    for (uint32_t i = 0; i < p->n_taken; i++) {
        struct sl_step_load l = load_of(&p->taken[i].s);
        double ms = sl_cost_predict_ms(m, &l);
        if (ms * FIT_WITHIN < p->taken[i].ms || ms > FIT_WITHIN * p->taken[i].ms)
            return false;
    }
    return true;
}

static void fit(const struct probe *p, struct sl_cost_model *out)
{
    struct sl_cost_model c = {.n_points = p->n_table};
    for (uint32_t i = 0; i < p->n_table; i++) {
        c.rows[i] = p->taken[i].s.rows_per_run;
        c.ms[i] = p->taken[i].ms;
    }
    make_plausible(&c);
    extend_table(&c, p->t->max_rows);
    uint32_t last = c.n_points - 1;
    guess_terms(sl_model_conf(p->t->model),
                last ? (c.ms[last] - c.ms[0]) / (c.rows[last] - c.rows[0]) : GUESS_ROW_MS, &c);
    const struct sl_cost_model measured = c;
    struct sl_cost_learner k;
    sl_cost_learner_init(&k, &c, SL_COST_DOUBT_GUESSED);
    for (int round = 0; round < FIT_ROUNDS; round++)
        for (uint32_t i = 0; i < p->n_taken; i++) {
            struct sl_step_load l = load_of(&p->taken[i].s);
            sl_cost_observe(&k, &c, &l, p->taken[i].ms);
        }
    make_plausible(&c);
    c.error = 0;
    *out = sl_cost_is_sound(&c) && explains(p, &c) ? c : measured;
}

static const struct sl_sampling greedy = {
    .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .ignore_eos = true};

static bool probe_open(struct probe *p, const struct sl_profile_target *t)
{
    uint32_t n_vocab = sl_model_conf(t->model)->n_vocab;
    *p = (struct probe){.t = t, .pages_per_run = sl_model_conf(t->model)->context_length / t->page_tokens};
    if (p->pages_per_run > t->n_pages)
        p->pages_per_run = t->n_pages;
    if (p->pages_per_run == 0)
        return false;
    p->tokens = sl_xcalloc(t->max_rows, sizeof *p->tokens);
    p->out_rows = sl_xcalloc(PROBE_DECODES, sizeof *p->out_rows);
    p->pages = sl_xcalloc((size_t)PROBE_DECODES * p->pages_per_run, sizeof *p->pages);
    p->runs = sl_xcalloc(PROBE_DECODES, sizeof *p->runs);
    p->samples = sl_xcalloc(PROBE_DECODES, sizeof *p->samples);
    p->sampled = sl_xcalloc(PROBE_DECODES, sizeof *p->sampled);
    for (uint32_t i = 0; i < PROBE_DECODES; i++)
        p->samples[i] = (struct sl_sample_row){&greedy, p->tokens, 1, 1, false};
    for (uint32_t i = 0; i < t->max_rows; i++)
        p->tokens[i] = (int32_t)((uint64_t)i * 7919 % n_vocab);
    run_once(p, &(struct shape){.n_runs = 1, .rows_per_run = 1, .n_out = 1}); /* warms caches and threads */
    return true;
}

static void probe_close(struct probe *p)
{
    sl_free(p->sampled);
    sl_free(p->samples);
    sl_free(p->runs);
    sl_free(p->pages);
    sl_free(p->out_rows);
    sl_free(p->tokens);
}

void sl_profile_run(const struct sl_profile_target *t, struct sl_cost_model *out)
{
    struct probe p;
    if (!probe_open(&p, t))
        return;
    take_table(&p);
    take_terms(&p);
    take_again(&p);
    fit(&p, out);
    probe_close(&p);
    SL_INFO("cost model measured shapes=%u ms_1=%.3f rows=%u ms=%.3f head_ms=%.4f prompt_attn=%.1f "
            "prompt_read=%.1f decode_attn=%.1f spent_ms=%.0f",
            p.n_taken, out->ms[0], out->rows[p.n_table - 1], out->ms[p.n_table - 1], out->head_ms_per_row,
            out->prompt_attn_ms_per_mtoken, out->prompt_read_ms_per_mtoken, out->decode_attn_ms_per_mtoken,
            p.spent_ms);
}

bool sl_profile_fits(const struct sl_profile_target *t, const struct sl_cost_model *kept)
{
    struct probe p;
    struct shape s = {.n_runs = 1, .rows_per_run = LOOK_ROWS, .n_out = 1};
    bool fits = false;
    if (!probe_open(&p, t))
        return false;
    if (can_run(&p, &s)) {
        struct sl_step_load l = load_of(&s);
        double best = run_once(&p, &s);
        for (uint32_t i = 1; i < LOOK_RUNS; i++) {
            double ms = run_once(&p, &s);
            best = ms < best ? ms : best;
        }
        fits = best * FITS_FACTOR > sl_cost_predict_ms(kept, &l);
    }
    probe_close(&p);
    return fits;
}
