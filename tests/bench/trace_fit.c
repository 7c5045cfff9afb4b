/* tests/bench/trace_fit.c - draws requests from a model that tests/bench/traces/fit.py fitted to a trace.
 *
 * Arrivals: windows of window_s have a number of requests drawn from its quantiles; the normal scores of
 * neighbouring windows are correlated by `memory`, so that busy times last; gaps in a window are Weibull of
 * `gap_shape` (1 = Poisson, less = clustered). Lengths: quantiles of prompt and output, their normal scores
 * correlated by `correlation`. Prefixes, where the trace names blocks: a request is, with probability
 * `reuse`, a follower of an earlier one - `age` requests before, sharing `depth` of its own blocks with it;
 * both are likelier, or less so, for long prompts (`reuse_correlation`, `depth_correlation`). The other ones
 * share `common` leading blocks with all. Not in the model: who follows whom twice, days and nights.
 *
 *     [arrivals]
 *     window_s = 10
 *     counts = 0 3 9 ..    at the probabilities of quantile_at
 *
 * One table names the keys. */
#include "tests/bench/trace_build.h"

#include <ini.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/philox.h"

static const double quantile_at[] = {0,   0.01, 0.05, 0.1,  0.2,  0.3,  0.4,   0.5, 0.6,
                                     0.7, 0.8,  0.9,  0.95, 0.97, 0.99, 0.995, 1};
#define N_QUANTILES         SL_COUNTOF(quantile_at)
#define WINDOW_MAX_REQUESTS 1e6
#define WINDOW_MAX_S        1e6
#define MEMORY_MAX          0.999 /* of neighbouring windows: more, and an empty one may never end */
#define GAP_SHAPE_MIN       0.05  /* Weibull's: below that all requests of a window but one come at once */
#define FIND_TRIES          64 /* ages drawn to find an earlier request that has as many blocks as are to be shared */

struct quantiles {
    double v[N_QUANTILES];
};

struct fit {
    double requests;
    double window_s, memory, gap_shape;
    struct quantiles counts, prompt, output;
    double correlation;
    double block_tokens, common, reuse;          /* block_tokens 0: the trace has no blocks */
    double reuse_correlation, depth_correlation; /* with the normal score of the prompt */
    struct quantiles depth, age;
};

struct key {
    const char *section, *name;
    size_t n, at; /* numbers, and where */
};

#define F(m) offsetof(struct fit, m)
static const struct key keys[] = {{"trace", "requests", 1, F(requests)},
                                  {"arrivals", "window_s", 1, F(window_s)},
                                  {"arrivals", "memory", 1, F(memory)},
                                  {"arrivals", "gap_shape", 1, F(gap_shape)},
                                  {"arrivals", "counts", N_QUANTILES, F(counts)},
                                  {"lengths", "prompt", N_QUANTILES, F(prompt)},
                                  {"lengths", "output", N_QUANTILES, F(output)},
                                  {"lengths", "correlation", 1, F(correlation)},
                                  {"prefix", "block_tokens", 1, F(block_tokens)},
                                  {"prefix", "common", 1, F(common)},
                                  {"prefix", "reuse", 1, F(reuse)},
                                  {"prefix", "reuse_correlation", 1, F(reuse_correlation)},
                                  {"prefix", "depth_correlation", 1, F(depth_correlation)},
                                  {"prefix", "depth", N_QUANTILES, F(depth)},
                                  {"prefix", "age", N_QUANTILES, F(age)}};

/* ---- the file ---- */

static int on_key(void *user, const char *section, const char *name, const char *value)
{
    const struct key *k = NULL;
    for (size_t i = 0; i < SL_COUNTOF(keys); i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0)
            k = &keys[i];
    if (!k)
        return 0;
    double *to = (double *)(void *)((char *)user + k->at);
    for (size_t i = 0; i < k->n; i++) {
        char *end;
        to[i] = strtod(value, &end);
        if (end == value || !isfinite(to[i]) || to[i] < -1 || (i > 0 && to[i] < to[i - 1]))
            return 0; /* nothing here lies below -1, and quantiles ascend */
        value = end;
    }
    return value[strspn(value, " ")] == '\0';
}

static enum sl_err read_fit(const char *path, struct fit *f, struct sl_why *why)
{
    *f = (struct fit){0};
    int line = ini_parse(path, on_key, f);
    if (line < 0)
        return sl_why_set(why, SL_EIO, "cannot read %s", path);
    if (line > 0)
        return sl_why_set(
            why, SL_ECONFIG,
            "%s:%d: not a key of a fitted trace, or not its numbers (quantiles: %zu, ascending)", path, line,
            N_QUANTILES);
    bool ok = f->window_s > 0 && f->window_s <= WINDOW_MAX_S && f->gap_shape >= GAP_SHAPE_MIN &&
              f->counts.v[N_QUANTILES - 1] >= 1 && f->counts.v[N_QUANTILES - 1] <= WINDOW_MAX_REQUESTS &&
              f->counts.v[0] >= 0 && f->prompt.v[0] >= 1 && f->output.v[0] >= 1 &&
              f->prompt.v[N_QUANTILES - 1] <= SL_TRACE_MAX_TOKENS &&
              f->output.v[N_QUANTILES - 1] <= SL_TRACE_MAX_TOKENS && fabs(f->correlation) <= 1 &&
              fabs(f->depth_correlation) <= 1 && fabs(f->reuse_correlation) <= 1 &&
              fabs(f->memory) <= MEMORY_MAX && f->reuse <= 1 && f->requests >= 0 &&
              f->requests <= UINT32_MAX && f->common >= 0 && f->common <= SL_TRACE_MAX_TOKENS &&
              f->block_tokens >= 0 && f->block_tokens <= SL_TRACE_MAX_TOKENS && f->depth.v[0] >= 0 &&
              f->depth.v[N_QUANTILES - 1] <= 1;
    return ok ? SL_OK
              : sl_why_set(why, SL_ECONFIG, "%s: a part of the model is missing or out of range", path);
}

/* ---- numbers ---- */

enum stream {
    WINDOW,
    WINDOW2,
    ROUND,
    GAP,
    PROMPT,
    PROMPT2,
    OUTPUT,
    OUTPUT2,
    REUSE,
    REUSE2,
    DEPTH,
    DEPTH2,
    AGE
};

static double uniform(uint64_t seed, enum stream s, uint64_t i)
{
    return sl_philox_uniform(seed, s, i);
}

/* Box-Muller; the two streams are s and the one behind it. */
static double normal(uint64_t seed, enum stream s, uint64_t i)
{
    return sqrt(-2 * log1p(-uniform(seed, s, i))) * cos(2 * acos(-1) * uniform(seed, s + 1, i));
}

/* A normal score with that correlation to z; fresh is one of its own. */
static double correlated(double r, double z, double fresh)
{
    return r * z + sqrt(1 - r * r) * fresh;
}

static double score_to_part(double z)
{
    return erfc(-z / sqrt(2)) / 2;
}

/* Between two quantiles on a straight line; of lengths, which span decades, on one of their logarithms. */
static double at_part(const struct quantiles *q, double part, bool logarithmic)
{
    size_t i = 1;
    while (i + 1 < N_QUANTILES && quantile_at[i] < part)
        i++;
    double x = (part - quantile_at[i - 1]) / (quantile_at[i] - quantile_at[i - 1]);
    double a = q->v[i - 1], b = q->v[i];
    return logarithmic && a > 0 ? a * pow(b / a, x) : a + x * (b - a);
}

/* ---- prefixes ---- */

/* prompt_score: of the request added last. */
static void add_prefix(struct sl_trace_build *b, const struct fit *f, uint64_t seed, double prompt_score,
                       uint64_t *next_id)
{
    struct sl_trace *t = b->t;
    size_t i = t->n - 1;
    uint32_t n = (uint32_t)(t->requests[i].n_prompt / f->block_tokens), shared = 0;
    double follow = score_to_part(correlated(f->reuse_correlation, prompt_score, normal(seed, REUSE, i)));
    if (follow > 1 - f->reuse) {
        double score = correlated(f->depth_correlation, prompt_score, normal(seed, DEPTH, i));
        uint32_t want = (uint32_t)lround(n * at_part(&f->depth, score_to_part(score), false));
        size_t from = i;
        for (uint64_t k = 0; k < FIND_TRIES; k++) {
            double age = at_part(&f->age, uniform(seed, AGE, i * FIND_TRIES + k), true);
            size_t other = age < (double)i ? i - (size_t)fmax(age, 1) : 0;
            if (other < i && (from == i || t->requests[other].n_blocks > t->requests[from].n_blocks))
                from = other;
            if (from < i && t->requests[from].n_blocks >= want)
                break;
        }
        if (from < i)
            for (; shared < want && shared < t->requests[from].n_blocks; shared++)
                sl_trace_add_block(b, t->blocks[t->requests[from].first_block + shared]);
    }
    for (; shared < n && shared < f->common; shared++)
        sl_trace_add_block(b, shared);
    for (; shared < n; shared++)
        sl_trace_add_block(b, (*next_id)++);
}

/* ---- the draw ---- */

static void add_request(struct sl_trace_build *b, const struct fit *f, uint64_t seed, double at_s,
                        uint64_t *next_id)
{
    size_t i = b->t->n;
    double z = normal(seed, PROMPT, i), w = correlated(f->correlation, z, normal(seed, OUTPUT, i));
    sl_trace_add(b, at_s, (uint64_t)at_part(&f->prompt, score_to_part(z), true),
                 (uint64_t)at_part(&f->output, score_to_part(w), true));
    if (f->block_tokens >= 1)
        add_prefix(b, f, seed, z, next_id);
}

enum sl_err sl_trace_fit_draw(struct sl_trace_build *b, const char *path, size_t n, uint64_t seed,
                              struct sl_why *why)
{
    struct fit f;
    enum sl_err e = read_fit(path, &f, why);
    if (e)
        return e;
    n = n ? n : (size_t)f.requests;
    b->t->block_tokens = (uint32_t)f.block_tokens;
    uint64_t next_id = (uint64_t)f.common, n_gaps = 0;
    double z = normal(seed, WINDOW, 0);
    for (uint64_t window = 0; b->t->n < n; window++) {
        double mean = at_part(&f.counts, score_to_part(z), false), sum = 0, at = 0;
        uint64_t count = (uint64_t)(mean + uniform(seed, ROUND, window)), first_gap = n_gaps;
        n_gaps += count + 1;
        for (uint64_t k = first_gap; k < n_gaps; k++)
            sum += pow(-log1p(-uniform(seed, GAP, k)), 1 / f.gap_shape);
        for (uint64_t k = first_gap; k + 1 < n_gaps && b->t->n < n; k++) {
            at += pow(-log1p(-uniform(seed, GAP, k)), 1 / f.gap_shape);
            add_request(b, &f, seed, f.window_s * ((double)window + (sum > 0 ? at / sum : 0)), &next_id);
        }
        z = correlated(f.memory, z, normal(seed, WINDOW, window + 1));
    }
    return SL_OK;
}
