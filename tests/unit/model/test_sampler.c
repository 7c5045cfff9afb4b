/* The sampler against a plain one written here (full sort, double), and its rules one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/philox.h"
#include "common/model/sampler.h"

#define N_BIG 49152

static const struct sl_sampling greedy = {
    .temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .seed = 7};

static float noise(uint32_t stream, uint32_t i)
{
    uint32_t out[4];
    sl_philox4x32((const uint32_t[4]){i, stream, 0, 0}, (const uint32_t[2]){99, 0}, out);
    return ((float)(out[0] >> 8) + (float)(out[1] >> 8) + (float)(out[2] >> 8)) * 0x1p-24f -
           1.5f; /* deviation 1/2 */
}

static void row_fill(float *x, uint32_t n, uint32_t stream, float spread)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = noise(stream, i) * 2 * spread;
}

static struct sl_sampled sample_at(struct sl_sampler *s, const float *row, uint32_t n,
                                   const struct sl_sampling *p, uint32_t position)
{
    static float logits[N_BIG];
    static int32_t history[4096];
    struct sl_sampled out;
    memcpy(logits, row, n * sizeof *row);
    sl_sample(s, logits, p, history, position, position, false, &out);
    return out;
}

/* ---- the plain sampler: where u must lie for a token to be drawn ---- */

struct entry {
    float logit;
    int32_t id;
};

static int entry_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The interval of the uniform number that draws `token`; empty when a limit removes it. */
static void plain_interval(const float *row, uint32_t n, const struct sl_sampling *p, int32_t token,
                           double *lo, double *hi)
{
    static struct entry e[N_BIG];
    static double w[N_BIG];
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct entry){row[i], (int32_t)i};
    qsort(e, n, sizeof *e, entry_order);
    uint32_t kept = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    double total = 0;
    for (uint32_t i = 0; i < kept; i++)
        total += w[i] = exp(((double)e[i].logit - (double)e[0].logit) / (double)p->temperature);
    if (p->top_p < 1) {
        double sum = 0;
        uint32_t i = 0;
        do
            sum += w[i++];
        while (i < kept && sum < (double)p->top_p * total);
        kept = i;
    }
    while (p->min_p > 0 && kept > 1 && w[kept - 1] < (double)p->min_p)
        kept--;
    total = 0;
    for (uint32_t i = 0; i < kept; i++)
        total += w[i];
    double sum = 0;
    *lo = *hi = -1;
    for (uint32_t i = 0; i < kept; i++) {
        if (e[i].id == token) {
            *lo = sum / total;
            *hi = (sum + w[i]) / total;
        }
        sum += w[i];
    }
}

static void draws_match_plain(uint32_t n, float spread, float temperature, uint32_t top_k, float top_p,
                              float min_p, uint32_t n_draws)
{
    static float row[N_BIG];
    struct sl_sampler *s = sl_sampler_new(n);
    for (uint32_t i = 0; i < n_draws; i++) {
        struct sl_sampling p = greedy;
        p.temperature = temperature;
        p.top_k = top_k;
        p.top_p = top_p;
        p.min_p = min_p;
        p.seed = 1000 + i;
        row_fill(row, n, i, spread);
        int32_t token = sample_at(s, row, n, &p, i).token;
        double u = (double)sl_philox_uniform(p.seed, p.choice, i), lo, hi;
        plain_interval(row, n, &p, token, &lo, &hi);
        if (!(u >= lo - 2e-6 && u < hi + 2e-6))
            fail_msg("n %u T %g k %u p %g min %g draw %u: u %.8f not in [%.8f, %.8f) of token %d", n,
                     (double)temperature, top_k, (double)top_p, (double)min_p, i, u, lo, hi, token);
    }
    sl_sampler_free(s);
}

static void draw_with_every_filter_matches_a_full_sort(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 17, 300, 5000};
    static const float temperatures[] = {0.05f, 0.7f, 1, 2.5f}, top_ps[] = {1, 0.95f, 0.5f, 0.01f},
                       min_ps[] = {0, 0.1f, 1};
    static const uint32_t top_ks[] = {0, 1, 3, 40};
    for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++)
        for (size_t b = 0; b < 4; b++)
            for (size_t c = 0; c < 4; c++)
                for (size_t d = 0; d < 3; d++)
                    for (size_t e = 0; e < 4; e++)
                        draws_match_plain(sizes[a], 3, temperatures[b], top_ks[e], top_ps[c], min_ps[d],
                                          sizes[a] > 1000 ? 2 : 10);
}

static void draw_from_a_real_vocabulary_matches_a_full_sort(void **state)
{
    (void)state;
    draws_match_plain(N_BIG, 3, 1, 0, 1, 0, 20);
    draws_match_plain(N_BIG, 3, 0.8f, 0, 0.9f, 0, 20);
    draws_match_plain(N_BIG, 3, 0.8f, 50, 0.9f, 0.02f, 20);
    draws_match_plain(N_BIG, 0.001f, 1, 0, 0.5f, 0, 3); /* one flat bin: the long sort */
    draws_match_plain(N_BIG, 1000, 1, 0, 1, 0, 3);      /* all but the best in the last bin */
}

static void draw_among_ties_goes_by_id(void **state)
{
    (void)state;
    static float row[1000];
    struct sl_sampler *s = sl_sampler_new(1000);
    struct sl_sampling p = greedy;
    for (uint32_t i = 0; i < 1000; i++)
        row[i] = i % 2 ? 0.0f : -0.0f; /* equal as numbers */
    p.temperature = 1;
    for (uint32_t pos = 0; pos < 50; pos++) {
        int32_t want = (int32_t)(sl_philox_uniform(p.seed, 0, pos) * 1000);
        assert_in_range(sample_at(s, row, 1000, &p, pos).token, want > 0 ? want - 1 : 0, want + 1);
    }
    p.top_k = 10;
    for (uint32_t pos = 0; pos < 50; pos++)
        assert_in_range(sample_at(s, row, 1000, &p, pos).token, 0, 9);
    sl_sampler_free(s);
}

static void draw_frequencies_follow_the_probabilities(void **state)
{
    (void)state;
    enum { N = 8, DRAWS = 40000 };
    float row[N];
    double prob[N], total = 0, chi2 = 0;
    int count[N] = {0};
    struct sl_sampler *s = sl_sampler_new(N);
    struct sl_sampling p = greedy;
    p.temperature = 0.8f;
    row_fill(row, N, 3, 1);
    for (int i = 0; i < N; i++)
        total += prob[i] = exp((double)row[i] / 0.8);
    for (uint32_t i = 0; i < DRAWS; i++) {
        p.seed = i / 200;
        p.choice = i / 50 % 4;
        count[sample_at(s, row, N, &p, i % 50).token]++;
    }
    for (int i = 0; i < N; i++) {
        double want = prob[i] / total * DRAWS;
        chi2 += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(chi2 < 24.3); /* 7 degrees of freedom, one in a thousand */
    sl_sampler_free(s);
}

static void draw_depends_on_seed_choice_and_position_only(void **state)
{
    (void)state;
    static float row[N_BIG], other[N_BIG];
    struct sl_sampler *s = sl_sampler_new(N_BIG), *fresh = sl_sampler_new(N_BIG);
    struct sl_sampling p = greedy;
    p.temperature = 1;
    row_fill(row, N_BIG, 1, 3);
    row_fill(other, N_BIG, 2, 9);
    int32_t first = sample_at(s, row, N_BIG, &p, 100).token;
    (void)sample_at(s, other, N_BIG, &p, 5); /* what the scratch held before does not matter */
    assert_int_equal(sample_at(s, row, N_BIG, &p, 100).token, first);
    assert_int_equal(sample_at(fresh, row, N_BIG, &p, 100).token, first);
    int differ = 0;
    for (uint32_t i = 1; i <= 4; i++) {
        struct sl_sampling q = p;
        q.seed = p.seed + i;
        differ += sample_at(s, row, N_BIG, &q, 100).token != first;
        q = p;
        q.choice = i;
        differ += sample_at(s, row, N_BIG, &q, 100).token != first;
        differ += sample_at(s, row, N_BIG, &p, 100 + i).token != first;
    }
    assert_true(differ >= 10);
    sl_sampler_free(s);
    sl_sampler_free(fresh);
}

/* ---- rules ---- */

static void greedy_with_ties_takes_the_lowest_id(void **state)
{
    (void)state;
    float row[40] = {0};
    struct sl_sampler *s = sl_sampler_new(40);
    row[7] = row[21] = row[39] = 2.5f;
    assert_int_equal(sample_at(s, row, 40, &greedy, 0).token, 7);
    struct sl_sampling p = greedy;
    p.temperature = 1;
    p.top_k = 1;
    assert_int_equal(sample_at(s, row, 40, &p, 0).token, 7);
    p.top_k = 0;
    p.top_p = 0;
    assert_int_equal(sample_at(s, row, 40, &p, 0).token, 7);
    sl_sampler_free(s);
}

static void row_with_strange_values_gives_a_token(void **state)
{
    (void)state;
    float row[5] = {NAN, -INFINITY, 1, NAN, 0.5f};
    float nothing[5] = {NAN, -INFINITY, -INFINITY, NAN, NAN}, inf[5] = {0, 1, INFINITY, INFINITY, NAN};
    struct sl_sampler *s = sl_sampler_new(5);
    struct sl_sampling p = greedy;
    assert_int_equal(sample_at(s, row, 5, &p, 0).token, 2);
    p.n_logprobs = 3;
    struct sl_sampled out = sample_at(s, row, 5, &p, 0);
    assert_int_equal(out.n_top, 2);
    assert_int_equal(out.top_token[1], 4);
    p.temperature = 1;
    for (uint32_t i = 0; i < 20; i++) {
        int32_t t = sample_at(s, row, 5, &p, i).token;
        assert_true(t == 2 || t == 4);
    }
    assert_int_equal(sample_at(s, nothing, 5, &p, 0).token, 1); /* any will do, always the same one */
    assert_int_equal(sample_at(s, inf, 5, &p, 0).token, 2);
    sl_sampler_free(s);
}

static void bias_moves_its_tokens(void **state)
{
    (void)state;
    float row[10] = {0, 1, 2, 3};
    struct sl_sampler *s = sl_sampler_new(10);
    struct sl_logit_bias bias[] = {{3, -100}, {1, 5}, {-4, 100}, {10, 100}}; /* ids outside are ignored */
    struct sl_sampling p = greedy;
    p.bias = bias;
    p.n_bias = 4;
    assert_int_equal(sample_at(s, row, 10, &p, 0).token, 1);
    p.n_bias = 1;
    assert_int_equal(sample_at(s, row, 10, &p, 0).token, 2);
    sl_sampler_free(s);
}

static void penalties_count_what_they_should(void **state)
{
    (void)state;
    struct sl_sampler *s = sl_sampler_new(6);
    const int32_t history[] = {0, 1, 1, 2,
                               2, 2, 3, 77}; /* prompt 0 1 1, then output; 77 is not in the vocabulary */
    const float row[6] = {4, -4, 4, 4, 4, 4};
    struct sl_sampled out;
    float x[6];
    struct sl_sampling p = greedy;

    p.repetition_penalty = 2;
    memcpy(x, row, sizeof x);
    sl_sample(s, x, &p, history, 8, 3, false, &out);
    const float repetition[6] = {2, -8, 2, 2, 4, 4};
    assert_memory_equal(x, repetition, sizeof x);
    assert_int_equal(out.token, 4);

    p.repetition_penalty = 1;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.25f;
    memcpy(x, row, sizeof x);
    sl_sample(s, x, &p, history, 8, 3, false, &out);
    const float output[6] = {4, -4, 4 - 0.5f - 0.75f, 4 - 0.5f - 0.25f, 4, 4};
    assert_memory_equal(x, output, sizeof x);

    p.presence_penalty = p.frequency_penalty = 0; /* no trace of earlier calls */
    memcpy(x, row, sizeof x);
    sl_sample(s, x, &p, history, 8, 3, false, &out);
    assert_memory_equal(x, row, sizeof x);
    sl_sampler_free(s);
}

static void stop_ids_before_min_tokens_are_banned(void **state)
{
    (void)state;
    struct sl_sampler *s = sl_sampler_new(6);
    const int32_t history[] = {1, 2, 3, 4};
    const float row[6] = {0, 0, 9, 8, 7, 0};
    struct sl_sampling p = greedy;
    p.stop_ids[0] = 2;
    p.stop_ids[1] = 3;
    p.stop_ids[2] = 600; /* outside */
    p.n_stop_ids = 3;
    p.min_tokens = 2;
    struct sl_sampled out;
    float x[6];
    memcpy(x, row, sizeof x);
    sl_sample(s, x, &p, history, 3, 2, false, &out); /* one generated */
    assert_int_equal(out.token, 4);
    memcpy(x, row, sizeof x);
    sl_sample(s, x, &p, history, 4, 2, false, &out); /* two */
    assert_int_equal(out.token, 2);
    p.ignore_eos = true;
    memcpy(x, row, sizeof x);
    sl_sample(s, x, &p, history, 3, 2, false, &out);
    assert_int_equal(out.token, 2);
    sl_sampler_free(s);
}

static void logprobs_are_of_the_raw_row(void **state)
{
    (void)state;
    static float row[N_BIG];
    struct sl_sampler *s = sl_sampler_new(N_BIG);
    struct sl_logit_bias bias = {17, 100};
    struct sl_sampling p = greedy;
    p.temperature = 0.3f;
    p.bias = &bias;
    p.n_bias = 1;
    p.n_logprobs = SL_MAX_LOGPROBS;
    row_fill(row, N_BIG, 5, 3);
    row[40000] = row[50] = 12;
    double total = 0;
    for (int i = 0; i < N_BIG; i++)
        total += exp((double)row[i]);
    struct sl_sampled out = sample_at(s, row, N_BIG, &p, 0);
    assert_int_equal(out.token, 17);
    assert_true(fabs((double)out.logprob - ((double)row[17] - log(total))) < 2e-6);
    assert_int_equal(out.n_top, SL_MAX_LOGPROBS);
    assert_int_equal(out.top_token[0], 50);
    assert_int_equal(out.top_token[1], 40000);
    for (int i = 0; i < SL_MAX_LOGPROBS; i++) {
        assert_true(fabs((double)out.top_logprob[i] - ((double)row[out.top_token[i]] - log(total))) < 2e-6);
        assert_true(i == 0 || out.top_logprob[i] <= out.top_logprob[i - 1]);
    }
    p.n_logprobs = 0;
    out = sample_at(s, row, N_BIG, &p, 0);
    assert_int_equal(out.n_top, 0);
    assert_true(out.logprob < 0);
    sl_sampler_free(s);
}

static void digest_is_of_the_raw_row(void **state)
{
    (void)state;
    float row[16], x[16];
    struct sl_sampler *s = sl_sampler_new(16);
    struct sl_logit_bias bias = {3, 1};
    struct sl_sampling p = greedy;
    struct sl_sampled out;
    row_fill(row, 16, 1, 1);
    memcpy(x, row, sizeof x);
    p.bias = &bias;
    p.n_bias = 1;
    sl_sample(s, x, &p, NULL, 0, 0, true, &out);
    assert_true(out.logits_digest == sl_digest64(row, sizeof row, 0));
    sl_sample(s, x, &p, NULL, 0, 0, false, &out);
    assert_true(out.logits_digest == 0);
    sl_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draw_with_every_filter_matches_a_full_sort),
        cmocka_unit_test(draw_from_a_real_vocabulary_matches_a_full_sort),
        cmocka_unit_test(draw_among_ties_goes_by_id),
        cmocka_unit_test(draw_frequencies_follow_the_probabilities),
        cmocka_unit_test(draw_depends_on_seed_choice_and_position_only),
        cmocka_unit_test(greedy_with_ties_takes_the_lowest_id),
        cmocka_unit_test(row_with_strange_values_gives_a_token),
        cmocka_unit_test(bias_moves_its_tokens),
        cmocka_unit_test(penalties_count_what_they_should),
        cmocka_unit_test(stop_ids_before_min_tokens_are_banned),
        cmocka_unit_test(logprobs_are_of_the_raw_row),
        cmocka_unit_test(digest_is_of_the_raw_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
