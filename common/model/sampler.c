/* common/model/sampler.c - one pass over the row, and a sort of only the few candidates in which a limit
 * falls.
 *
 * The order of candidates is (logit, highest first; id, lowest first). With x = (logit - max) / temperature
 * and weight e^x, a candidate goes into bin floor(-x * 64): bins are in the order of candidates, so a limit
 * (top_k: a count, top_p: a share of the weight, min_p: a smallest x) falls into one bin, and only that bin's
 * members must be sorted. The draw is the same: the bin first, then the candidate. Rejected: a full sort (5
 * ms for 49152 entries), and a heap of the k best (top_p has no k).
 *
 * Exactness: a bin's weight is the sum of its members in id order, in double; sums over bins go in bin order;
 * where a limit cuts a bin, its weight is the sum of the kept members in candidate order. There is one path,
 * so that no other choice of algorithm can give another token. exp and log are our own (exact_math.h). */
#include "common/model/sampler.h"

#include "common/base/digest.h"
#include "common/base/mem.h"
#include "common/base/philox.h"
#include "common/base/exact_math.h"
#include "common/model/logits_row.h"
#include <math.h>
#include <string.h>

#define GREEDY_BELOW 1e-5f /* temperature; the field's limit (vLLM's _SAMPLING_EPS) */

#define NO_SORTED UINT32_MAX

struct sl_sampler {
    const struct sl_row_passes *row;
    uint32_t n_vocab, n_blocks;
    float *raw;          /* [n_vocab] the row before bias and penalties, when log-probabilities are wanted */
    float *block_max;    /* [n_blocks] */
    float *weight;       /* [n_vocab] */
    uint16_t *bin;       /* [n_vocab] */
    uint32_t *counts;    /* [n_vocab] occurrences while penalties are applied; all 0 in between */
    double *bin_weight;  /* [SL_ROW_BINS + 1], the last for SL_ROW_NO_BIN */
    uint32_t *bin_count; /* the same */
    uint32_t *ids;       /* [n_vocab] members of one bin, by id */
    uint64_t *members, *members2; /* [n_vocab] those of one bin, sorted */
    uint32_t sorted_bin;          /* which, or NO_SORTED */
};

struct sl_sampler *sl_sampler_new(uint32_t n_vocab)
{
    struct sl_sampler *s = sl_xcalloc(1, sizeof *s);
    s->row = sl_row_passes_all()[0];
    s->n_vocab = n_vocab;
    s->n_blocks = sl_row_blocks(n_vocab);
    s->raw = sl_xcalloc(n_vocab, sizeof *s->raw);
    s->block_max = sl_xcalloc(s->n_blocks, sizeof *s->block_max);
    s->weight = sl_xcalloc(n_vocab, sizeof *s->weight);
    s->bin = sl_xcalloc(n_vocab, sizeof *s->bin);
    s->counts = sl_xcalloc(n_vocab, sizeof *s->counts);
    s->bin_weight = sl_xcalloc(SL_ROW_BINS + 1, sizeof *s->bin_weight);
    s->bin_count = sl_xcalloc(SL_ROW_BINS + 1, sizeof *s->bin_count);
    s->ids = sl_xcalloc(n_vocab, sizeof *s->ids);
    s->members = sl_xcalloc(n_vocab, sizeof *s->members);
    s->members2 = sl_xcalloc(n_vocab, sizeof *s->members2);
    return s;
}

void sl_sampler_free(struct sl_sampler *s)
{
    if (s == NULL)
        return;
    sl_free(s->raw);
    sl_free(s->block_max);
    sl_free(s->weight);
    sl_free(s->bin);
    sl_free(s->counts);
    sl_free(s->bin_weight);
    sl_free(s->bin_count);
    sl_free(s->ids);
    sl_free(s->members);
    sl_free(s->members2);
    sl_free(s);
}

/* ---- the row ---- */

/* Fills block_max; the largest of the row, -inf when there is none; what is not a number never wins. */
static float row_max(struct sl_sampler *s, const float *x)
{
    s->row->block_max(x, s->n_vocab, s->block_max);
    float max = -INFINITY;
    for (uint32_t b = 0; b < s->n_blocks; b++)
        max = s->block_max[b] > max ? s->block_max[b] : max;
    return max;
}

/* The lowest id that has the value max, of which block_max knows; 0 when none has (nothing but NaN). */
static int32_t row_find(const struct sl_sampler *s, const float *x, float max)
{
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        if (s->block_max[b] != max)
            continue;
        for (uint32_t i = b * SL_ROW_BLOCK; i < s->n_vocab; i++)
            if (x[i] == max)
                return (int32_t)i;
    }
    return 0;
}

static void keep_allowed(float *logits, uint32_t n_vocab, const uint64_t *allowed)
{
    for (uint32_t i = 0; allowed && i < n_vocab; i++)
        if (!(allowed[i / 64] >> i % 64 & 1))
            logits[i] = -INFINITY;
}

/* Where the changes of a request to its logits go, in the order in which they are done. */
typedef void edit_fn(void *arg, uint32_t token, enum sl_edit_kind kind, float value);

static void bias_edits(const struct sl_sampling *p, uint32_t n_vocab, edit_fn *fn, void *arg)
{
    for (uint32_t i = 0; i < p->n_bias; i++) {
        int32_t t = p->bias[i].token;
        if (t >= 0 && (uint32_t)t < n_vocab)
            fn(arg, (uint32_t)t, SL_EDIT_ADD, p->bias[i].bias);
    }
}

static void penalty_edits(struct sl_sampler *s, const struct sl_sampling *p, const int32_t *history,
                          uint32_t n_history, uint32_t n_prompt, edit_fn *fn, void *arg)
{
    bool repetition = p->repetition_penalty != 1;
    bool output_only = p->presence_penalty != 0 || p->frequency_penalty != 0;
    if (repetition) {
        for (uint32_t i = 0; i < n_history; i++) {
            uint32_t t = (uint32_t)history[i];
            if (t < s->n_vocab && s->counts[t]++ == 0)
                fn(arg, t, SL_EDIT_REPEAT, p->repetition_penalty);
        }
        for (uint32_t i = 0; i < n_history; i++) {
            if ((uint32_t)history[i] < s->n_vocab)
                s->counts[history[i]] = 0;
        }
    }
    if (!output_only)
        return;
    for (uint32_t i = n_prompt; i < n_history; i++) {
        if ((uint32_t)history[i] < s->n_vocab)
            s->counts[history[i]]++;
    }
    for (uint32_t i = n_prompt; i < n_history; i++) {
        uint32_t t = (uint32_t)history[i];
        if (t >= s->n_vocab || s->counts[t] == 0)
            continue;
        fn(arg, t, SL_EDIT_ADD, -(p->presence_penalty + p->frequency_penalty * (float)s->counts[t]));
        s->counts[t] = 0;
    }
}

static void stop_edits(const struct sl_sampling *p, uint32_t n_vocab, uint32_t n_output, edit_fn *fn,
                       void *arg)
{
    if (p->ignore_eos || n_output >= p->min_tokens)
        return;
    for (uint32_t i = 0; i < p->n_stop_ids; i++) {
        if (p->stop_ids[i] >= 0 && (uint32_t)p->stop_ids[i] < n_vocab)
            fn(arg, (uint32_t)p->stop_ids[i], SL_EDIT_BAN, 0);
    }
}

static void all_edits(struct sl_sampler *s, const struct sl_sampling *p, const int32_t *history,
                      uint32_t n_history, uint32_t n_prompt, edit_fn *fn, void *arg)
{
    bias_edits(p, s->n_vocab, fn, arg);
    penalty_edits(s, p, history, n_history, n_prompt, fn, arg);
    stop_edits(p, s->n_vocab, n_history - n_prompt, fn, arg);
}

static void edit_apply(void *arg, uint32_t token, enum sl_edit_kind kind, float value)
{
    float *x = (float *)arg + token;
    switch (kind) {
    case SL_EDIT_ADD:
        *x += value;
        return;
    case SL_EDIT_REPEAT:
        *x = *x > 0 ? *x / value : *x * value;
        return;
    case SL_EDIT_BAN:
        *x = -INFINITY;
        return;
    }
}

/* ---- candidates ---- */

/* Where the kept candidates end: all of the bins before `bin`, and n_in_bin of its members in candidate
 * order. */
struct cut {
    uint32_t bin, n_in_bin;
    double weight_in_bin;
};

/* Fills weight, bin, bin_weight, bin_count. */
static void bins_fill(struct sl_sampler *s, const float *logits, float max, float inv_temperature)
{
    s->row->weigh(logits, s->n_vocab, max, inv_temperature, s->weight, s->bin);
    memset(s->bin_weight, 0, (SL_ROW_BINS + 1) * sizeof *s->bin_weight);
    memset(s->bin_count, 0, (SL_ROW_BINS + 1) * sizeof *s->bin_count);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        s->bin_weight[s->bin[i]] += (double)s->weight[i];
        s->bin_count[s->bin[i]]++;
    }
    s->sorted_bin = NO_SORTED;
}

/* A key in candidate order: logit, highest first (-0 and 0 are one value), then id. */
static uint64_t sort_item(float logit, uint32_t id)
{
    float f = logit + 0.0f;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u = u & 0x80000000u ? u : ~(u | 0x80000000u);
    return (uint64_t)u << 32 | id;
}

static uint32_t member(const struct sl_sampler *s, uint32_t i)
{
    return (uint32_t)s->members[i];
}

/* The members of a bin in candidate order, into s->members. Insertion for the usual few; for many a radix
 * sort over the logit's four bytes (stable, and they are gathered in id order), without a bad case. */
static void bin_sort(struct sl_sampler *s, const float *logits, uint32_t bin)
{
    uint32_t n = s->bin_count[bin];
    if (s->sorted_bin == bin)
        return;
    s->sorted_bin = bin;
    s->row->members(s->bin, s->n_vocab, (uint16_t)bin, n, s->ids);
    for (uint32_t i = 0; i < n; i++)
        s->members[i] = sort_item(logits[s->ids[i]], s->ids[i]);
    if (n <= 64) {
        for (uint32_t i = 1; i < n; i++) {
            uint64_t item = s->members[i];
            uint32_t j = i;
            for (; j > 0 && s->members[j - 1] > item; j--)
                s->members[j] = s->members[j - 1];
            s->members[j] = item;
        }
        return;
    }
    uint64_t *from = s->members, *to = s->members2;
    for (unsigned shift = 32; shift < 64; shift += 8) {
        uint32_t start[257] = {0};
        for (uint32_t i = 0; i < n; i++)
            start[(from[i] >> shift & 255) + 1]++;
        for (int d = 0; d < 255; d++)
            start[d + 1] += start[d];
        for (uint32_t i = 0; i < n; i++)
            to[start[from[i] >> shift & 255]++] = from[i];
        uint64_t *t = from;
        from = to;
        to = t;
    } /* four passes: the result is back in members */
}

static void cut_to(struct sl_sampler *s, const float *logits, struct cut *c, uint32_t bin, uint32_t n_in_bin)
{
    c->bin = bin;
    c->n_in_bin = n_in_bin;
    c->weight_in_bin = s->bin_weight[bin];
    if (n_in_bin == s->bin_count[bin])
        return;
    bin_sort(s, logits, bin);
    c->weight_in_bin = 0;
    for (uint32_t i = 0; i < n_in_bin; i++)
        c->weight_in_bin += (double)s->weight[member(s, i)];
}

static uint32_t bin_kept(const struct sl_sampler *s, const struct cut *c, uint32_t bin)
{
    return bin == c->bin ? c->n_in_bin : s->bin_count[bin];
}

static double bin_kept_weight(const struct sl_sampler *s, const struct cut *c, uint32_t bin)
{
    return bin == c->bin ? c->weight_in_bin : s->bin_weight[bin];
}

static double kept_weight(const struct sl_sampler *s, const struct cut *c)
{
    double sum = 0;
    for (uint32_t b = 0; b <= c->bin; b++)
        sum += bin_kept_weight(s, c, b);
    return sum;
}

static void top_k_cut(struct sl_sampler *s, const float *logits, struct cut *c, uint32_t k)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b <= c->bin; b++) {
        if (n + s->bin_count[b] >= k) {
            cut_to(s, logits, c, b, k - n);
            return;
        }
        n += s->bin_count[b];
    }
}

/* The shortest run of candidates whose weight reaches the share, at least one. */
static void top_p_cut(struct sl_sampler *s, const float *logits, struct cut *c, float share)
{
    double goal = (double)share * kept_weight(s, c), sum = 0;
    for (uint32_t b = 0; b <= c->bin; b++) {
        double w = bin_kept_weight(s, c, b);
        if (sum + w < goal || bin_kept(s, c, b) == 0) {
            sum += w;
            continue;
        }
        bin_sort(s, logits, b);
        uint32_t n = 0, kept = bin_kept(s, c, b);
        do {
            sum += (double)s->weight[member(s, n++)];
        } while (sum < goal && n < kept);
        cut_to(s, logits, c, b, n);
        return;
    }
}

/* Keeps what is at least min_p times as likely as the best. */
static void min_p_cut(struct sl_sampler *s, const float *logits, struct cut *c, float max,
                      float inv_temperature, float lowest)
{
    float depth = lowest * -(float)SL_BINS_PER_NAT;
    if (depth >= (float)(SL_ROW_BINS - 1))
        return;
    uint32_t bin = (uint32_t)depth;
    if (bin > c->bin)
        return;
    bin_sort(s, logits, bin);
    uint32_t n = 0, kept = bin_kept(s, c, bin);
    while (n < kept && (logits[member(s, n)] - max) * inv_temperature >= lowest)
        n++;
    cut_to(s, logits, c, bin, n);
}

static int32_t draw(struct sl_sampler *s, const float *logits, const struct cut *c, float uniform)
{
    double goal = (double)uniform * kept_weight(s, c), sum = 0;
    uint32_t bin = 0;
    for (uint32_t b = 0; b <= c->bin; b++) {
        if (bin_kept(s, c, b) == 0)
            continue;
        bin = b; /* the last bin with members, when rounding lets the sum stay below the goal */
        double w = bin_kept_weight(s, c, b);
        if (sum + w > goal)
            break;
        sum += w;
    }
    bin_sort(s, logits, bin);
    uint32_t n = bin_kept(s, c, bin), i = 0;
    for (; i + 1 < n; i++) {
        sum += (double)s->weight[member(s, i)];
        if (sum > goal)
            break;
    }
    return (int32_t)member(s, i);
}

static bool is_greedy(const struct sl_sampling *p)
{
    return p->temperature < GREEDY_BELOW || p->top_k == 1;
}

/* The smallest x = log(weight) that min_p keeps; -inf: it is off. */
static float lowest_x(float min_p)
{
    if (!(min_p > 0))
        return -INFINITY;
    return min_p >= 1 ? 0.0f : (float)sl_exact_log((double)min_p);
}

/* max: of the row, from row_max(). */
static int32_t choose(struct sl_sampler *s, const float *logits, float max, const struct sl_sampling *p,
                      uint32_t position)
{
    if (is_greedy(p) || !(max > -INFINITY && max < INFINITY))
        return row_find(s, logits, max);
    float inv_temperature = 1 / p->temperature;
    bins_fill(s, logits, max, inv_temperature);
    struct cut c = {.bin = SL_ROW_BINS - 1,
                    .n_in_bin = s->bin_count[SL_ROW_BINS - 1],
                    .weight_in_bin = s->bin_weight[SL_ROW_BINS - 1]};
    if (p->top_k > 0 && p->top_k < s->n_vocab)
        top_k_cut(s, logits, &c, p->top_k);
    if (p->top_p < 1)
        top_p_cut(s, logits, &c, p->top_p);
    if (p->min_p > 0)
        min_p_cut(s, logits, &c, max, inv_temperature, lowest_x(p->min_p));
    return draw(s, logits, &c, sl_philox_uniform(p->seed, p->choice, position));
}

/* ---- log-probabilities of the raw row ---- */

static float logprob_of(float logit, double lse)
{
    return (float)((double)logit - lse);
}

/* Blocks without an entry above the lowest of the best so far are passed over. */
static void top_find(const struct sl_sampler *s, const float *x, uint32_t n_top, double lse,
                     struct sl_sampled *out)
{
    uint32_t have = 0;
    for (uint32_t b = 0; b < s->n_blocks && n_top > 0; b++) {
        if (have == n_top && !(s->block_max[b] > out->top_logprob[have - 1]))
            continue;
        uint32_t first = b * SL_ROW_BLOCK,
                 end = s->n_vocab - first < SL_ROW_BLOCK ? s->n_vocab : first + SL_ROW_BLOCK;
        for (uint32_t i = first; i < end; i++) {
            if (!(x[i] > -INFINITY) || (have == n_top && !(x[i] > out->top_logprob[have - 1])))
                continue;
            uint32_t j = have < n_top ? have++ : n_top - 1;
            for (; j > 0 && out->top_logprob[j - 1] < x[i]; j--) {
                out->top_logprob[j] = out->top_logprob[j - 1];
                out->top_token[j] = out->top_token[j - 1];
            }
            out->top_logprob[j] = x[i];
            out->top_token[j] = (int32_t)i;
        }
    }
    out->n_top = have;
    for (uint32_t j = 0; j < have; j++)
        out->top_logprob[j] = logprob_of(out->top_logprob[j], lse);
}

void sl_sample(struct sl_sampler *s, float *logits, const struct sl_sampling *p, const int32_t *history,
               uint32_t n_history, uint32_t n_prompt, bool want_digest, struct sl_sampled *out)
{
    uint32_t n = s->n_vocab;
    bool want_logprobs = p->n_logprobs >= 0;
    *out = (struct sl_sampled){0};
    if (want_digest)
        out->logits_digest = sl_digest64(logits, n * sizeof *logits, 0);
    double lse = 0;
    if (want_logprobs) {
        memcpy(s->raw, logits, n * sizeof *logits);
        float max = row_max(s, logits);
        if (max > -INFINITY && max < INFINITY)
            lse = (double)max + sl_exact_log(s->row->sum_exp(logits, n, max));
        uint32_t n_top =
            (uint32_t)p->n_logprobs < SL_MAX_LOGPROBS ? (uint32_t)p->n_logprobs : SL_MAX_LOGPROBS;
        top_find(s, logits, n_top, lse, out);
    }
    keep_allowed(logits, n, p->allowed);
    all_edits(s, p, history, n_history, n_prompt, edit_apply, logits);
    out->token = choose(s, logits, row_max(s, logits), p, n_history);
    if (want_logprobs)
        out->logprob = logprob_of(s->raw[out->token], lse);
}

/* ---- for a device that samples itself ---- */

struct edit_list {
    struct sl_logit_edit *edits;
    uint32_t n, max; /* n goes on counting beyond max */
};

static void edit_list_add(void *arg, uint32_t token, enum sl_edit_kind kind, float value)
{
    struct edit_list *l = arg;
    if (l->n++ < l->max)
        l->edits[l->n - 1] = (struct sl_logit_edit){token, kind, value};
}

bool sl_sampler_pick(struct sl_sampler *s, const struct sl_sampling *p, const int32_t *history,
                     uint32_t n_history, uint32_t n_prompt, bool want_digest, struct sl_logit_edit *edits,
                     uint32_t max_edits, struct sl_pick *out)
{
    struct edit_list list = {.edits = edits, .max = max_edits};
    all_edits(s, p, history, n_history, n_prompt, edit_list_add, &list);
    *out = (struct sl_pick){
        .allowed = p->allowed,
        .edits = edits,
        .n_edits = list.n,
        .inv_temperature = is_greedy(p) ? 0 : 1 / p->temperature,
        .top_k = p->top_k < s->n_vocab ? p->top_k : 0,
        .top_p = p->top_p,
        .lowest_x = lowest_x(p->min_p),
        .uniform = sl_philox_uniform(p->seed, p->choice, n_history),
        .want_sum = p->n_logprobs >= 0,
        .want_digest = want_digest,
    };
    if (p->n_logprobs > 0)
        out->n_top = p->n_logprobs < SL_MAX_LOGPROBS ? (uint32_t)p->n_logprobs : SL_MAX_LOGPROBS;
    return list.n <= max_edits && s->n_vocab <= SL_PICK_MAX_VOCAB;
}

void sl_sampled_from_pick(const struct sl_pick *pick, const struct sl_picked *got, struct sl_sampled *out)
{
    *out = (struct sl_sampled){.token = got->token};
    if (pick->want_digest)
        out->logits_digest = got->digest;
    if (!pick->want_sum)
        return;
    double lse = 0;
    if (got->max > -INFINITY && got->max < INFINITY)
        lse = (double)got->max + sl_exact_log(got->sum_exp);
    out->logprob = logprob_of(got->logit, lse);
    out->n_top = got->n_top;
    for (uint32_t i = 0; i < got->n_top; i++) {
        out->top_token[i] = got->top_token[i];
        out->top_logprob[i] = logprob_of(got->top_logit[i], lse);
    }
}
