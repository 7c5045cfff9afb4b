/* common/sched/speculate.c - greedy by expected gain.
 *
 * The gain of a sequence's next draft is the chance that all up to it come true, so it falls with every one,
 * and the cost of a row is nearly the same for all: adding in order of gain finds the best set for each
 * number of rows. Step time is not convex (tiles), so all numbers are tried and the best kept.
 *
 * Rejected: one k for all (a sequence that copies would pay for one that does not), and k from acceptance
 * alone (how many rows are free depends on the model, the machine and the batch: the cost model knows). */
#include "common/sched/speculate.h"

#define HIT_RATE     0.125 /* running mean over about 8 drafts: text changes from copied to new quickly */
#define MAX_HIT      0.98  /* nothing is certain */
#define MIN_GAIN     0.02  /* expected tokens of a draft below which none is added */
#define PROMPT_SHARE 0.5   /* of the time between the step's and its target, while prompts wait */

/* Agreeing tokens at which a class begins, and what is believed before anything was seen. */
static const struct {
    uint32_t from;
    float hit;
} classes[SL_SPEC_CLASSES] = {{0, 0.3F}, {4, 0.5F}, {8, 0.7F}};

static uint32_t class_of(uint32_t match)
{
    uint32_t c = SL_SPEC_CLASSES - 1;
    while (c > 0 && match < classes[c].from)
        c--;
    return c;
}

void sl_spec_record_init(struct sl_spec_record *r)
{
    for (uint32_t c = 0; c < SL_SPEC_CLASSES; c++)
        r->hit[c] = classes[c].hit;
}

void sl_spec_record_see(struct sl_spec_record *r, uint32_t match, uint32_t n_hits, bool missed)
{
    float *hit = &r->hit[class_of(match)];
    for (uint32_t i = 0; i < n_hits; i++)
        *hit += (float)HIT_RATE * (1 - *hit);
    if (missed)
        *hit -= (float)HIT_RATE * *hit;
}

double sl_spec_record_hit(const struct sl_spec_record *r, uint32_t match)
{
    double hit = (double)r->hit[class_of(match)];
    return hit < MAX_HIT ? hit : MAX_HIT;
}

/* What has been added so far. */
struct sum {
    struct sl_step_load load;
    double tokens; /* expected, of all sequences */
    uint32_t drafts;
};

/* One more draft behind n of them. Its row reads the K and V that the sequence's first row reads, so it costs
 * what a row of a prompt costs. */
static void add(struct sum *a, const struct sl_spec_seq *q, uint32_t n, double gain)
{
    a->load.decode_rows++;
    a->load.prompt_attn += q->context + n + 1.0;
    a->tokens += gain;
    a->drafts++;
}

static double power(double x, uint32_t n)
{
    double p = 1;
    for (; n > 0; n /= 2, x *= x)
        p *= n % 2 ? x : 1;
    return p;
}

/* Expected tokens of a sequence with n drafts. */
static double expected(const struct sl_spec_seq *q, uint32_t n)
{
    return (1 - power(q->hit, n + 1)) / (1 - q->hit);
}

/* The sequence whose next draft gains the most; n_seqs when none gains enough. */
static uint32_t best_next(const struct sl_spec_state *s, const uint32_t *k, double *gain)
{
    uint32_t best = s->n_seqs;
    *gain = MIN_GAIN;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct sl_spec_seq *q = &s->seqs[i];
        if (q->fixed || k[i] >= q->most)
            continue;
        double g = power(q->hit, k[i] + 1);
        if (g > *gain) {
            best = i;
            *gain = g;
        }
    }
    return best;
}

/* Of a sequence with the fewest expected tokens. */
static double least_expected(const struct sl_spec_state *s, const uint32_t *k)
{
    double least = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        double e = k[i] ? expected(&s->seqs[i], k[i]) : 1;
        least = i == 0 || e < least ? e : least;
    }
    return least;
}

static double limit_ms(const struct sl_spec_state *s, double alone_ms)
{
    if (s->target_ms <= 0)
        return 0;
    return s->prompts_wait ? alone_ms + PROMPT_SHARE * (s->target_ms - alone_ms) : s->target_ms;
}

struct sl_step_load sl_speculate(const struct sl_spec_state *s, uint32_t *k)
{
    struct sum sum = {.load = s->load, .tokens = s->n_seqs};
    double alone_ms = sl_cost_predict_ms(s->cost, &s->load), limit = limit_ms(s, alone_ms);
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        k[i] = 0;
        while (s->seqs[i].fixed && k[i] < s->seqs[i].most && sum.drafts < s->max_drafts) {
            struct sum more = sum;
            add(&more, &s->seqs[i], k[i], power(s->seqs[i].hit, k[i] + 1));
            if (limit > 0 && sl_cost_predict_ms(s->cost, &more.load) > limit)
                break;
            sum = more;
            k[i]++;
        }
    }
    uint32_t added[SL_SPEC_STEP_MAX], n_added = 0, n_best = 0;
    struct sum best = sum;
    double best_rate = sum.tokens / sl_cost_predict_ms(s->cost, &sum.load);
    while (sum.drafts < s->max_drafts && n_added < SL_SPEC_STEP_MAX) {
        double gain;
        uint32_t i = best_next(s, k, &gain);
        if (i == s->n_seqs)
            break;
        add(&sum, &s->seqs[i], k[i], gain);
        k[i]++;
        added[n_added++] = i;
        double ms = sl_cost_predict_ms(s->cost, &sum.load);
        if (limit > 0 && ms > limit)
            break;
        if (sum.tokens / ms > best_rate && alone_ms >= (1 - SL_SPEC_MAX_LOSS) * ms / least_expected(s, k)) {
            best = sum;
            best_rate = sum.tokens / ms;
            n_best = n_added;
        }
    }
    while (n_added > n_best)
        k[added[--n_added]]--;
    return best.load;
}
