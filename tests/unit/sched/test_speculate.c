/* How many drafts: by expected tokens per predicted millisecond, within the target, and nobody robbed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/sched/speculate.h"
#include "common/sched/step_plan.h"
#include "tests/support/support.h"

#define MAX_SEQS 40u

struct rig {
    struct sl_cost_model cost;
    struct sl_spec_seq seqs[MAX_SEQS];
    struct sl_spec_state s;
    uint32_t k[MAX_SEQS], drafts;
    struct sl_step_load load;
    double alone_ms, ms;
};

/* A step of 10 ms, and ms_per_row for each row. */
static void rig_init(struct rig *r, double ms_per_row, uint32_t n_seqs, double hit)
{
    *r = (struct rig){0};
    sl_cost_init_linear(&r->cost, 10, ms_per_row);
    for (uint32_t i = 0; i < n_seqs; i++)
        r->seqs[i] = (struct sl_spec_seq){.most = SL_SPEC_MAX, .hit = hit, .context = 100};
    r->s = (struct sl_spec_state){.cost = &r->cost,
                                  .load = {.decode_rows = n_seqs, .decode_context = 100.0 * n_seqs},
                                  .seqs = r->seqs,
                                  .n_seqs = n_seqs,
                                  .max_drafts = SL_SPEC_STEP_MAX};
}

static void decide(struct rig *r)
{
    r->load = sl_speculate(&r->s, r->k);
    r->drafts = 0;
    for (uint32_t i = 0; i < r->s.n_seqs; i++) {
        assert_true(r->k[i] <= r->seqs[i].most);
        r->drafts += r->k[i];
    }
    assert_int_equal(r->load.decode_rows, r->s.n_seqs + r->drafts);
    assert_true(r->drafts <= r->s.max_drafts);
    r->alone_ms = sl_cost_predict_ms(&r->cost, &r->s.load);
    r->ms = sl_cost_predict_ms(&r->cost, &r->load);
}

static double expected(const struct rig *r, uint32_t i, uint32_t k)
{
    double sum = 0, p = 1;
    for (uint32_t n = 0; n <= k; n++, p *= r->seqs[i].hit)
        sum += p;
    return sum;
}

static void lone_sequence_gets_the_best_number(void **state)
{
    (void)state;
    static const double hits[] = {0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98}, costs[] = {0.01, 0.3, 1, 3, 8, 20};
    for (size_t h = 0; h < SL_COUNTOF(hits); h++)
        for (size_t c = 0; c < SL_COUNTOF(costs); c++) {
            struct rig r;
            rig_init(&r, costs[c], 1, hits[h]);
            decide(&r);
            double best = 0, got = expected(&r, 0, r.k[0]) / r.ms;
            for (uint32_t k = 0; k <= SL_SPEC_MAX; k++) {
                double rate = expected(&r, 0, k) / (10 + costs[c] * (k + 1));
                best = rate > best ? rate : best;
            }
            /* drafts of less than 0.02 expected tokens are left out */
            if (got < 0.98 * best)
                fail_msg("hit %.2f cost %.2f: %u drafts bring %f a ms, %f is possible", hits[h], costs[c],
                         r.k[0], got, best);
        }
}

static void drafts_that_do_not_pay_are_none(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, 30, 1, 0.7); /* a row more costs three quarters of a step */
    decide(&r);
    assert_int_equal(r.k[0], 0);
    rig_init(&r, 0.01, 1, 0.01);
    decide(&r);
    assert_int_equal(r.k[0], 0);
}

static void rows_go_to_who_is_likeliest(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, 0.05, 3, 0.4);
    r.seqs[1].hit = 0.95;
    r.seqs[2].most = 0;
    decide(&r);
    assert_true(r.k[1] > r.k[0] && r.k[0] >= 1);
    assert_int_equal(r.k[2], 0);
}

static void step_stays_within_its_target(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, 0.5, 1, 0.95);
    decide(&r);
    assert_true(r.ms > 14);
    r.s.target_ms = 14;
    decide(&r);
    assert_true(r.k[0] > 0 && r.ms <= 14);
    uint32_t alone = r.k[0];
    r.s.prompts_wait = true;
    decide(&r);
    assert_true(r.k[0] > 0 && r.k[0] < alone && r.ms <= r.alone_ms + (14 - r.alone_ms) / 2);
    r.s.target_ms = 10; /* the rows alone take more */
    decide(&r);
    assert_int_equal(r.k[0], 0);
}

static void others_keep_their_share(void **state)
{
    (void)state;
    unsigned long long rng = 3;
    for (uint32_t run = 0; run < 500; run++) {
        struct rig r;
        rig_init(&r, 0.02 * (double)(1 + sl_test_random(&rng) % 200),
                 1 + (uint32_t)(sl_test_random(&rng) % MAX_SEQS), 0);
        for (uint32_t i = 0; i < r.s.n_seqs; i++) {
            r.seqs[i].hit = (double)(sl_test_random(&rng) % 99) / 100;
            r.seqs[i].most = (uint32_t)(sl_test_random(&rng) % (SL_SPEC_MAX + 1));
        }
        decide(&r);
        double before = r.s.n_seqs / r.alone_ms, after = 0;
        for (uint32_t i = 0; i < r.s.n_seqs; i++) {
            double rate = expected(&r, i, r.k[i]) / r.ms;
            after += rate;
            if (rate < (1 - SL_SPEC_MAX_LOSS) / r.alone_ms * 0.999)
                fail_msg("run %u: sequence %u falls from %f to %f tokens a ms", run, i, 1 / r.alone_ms, rate);
        }
        assert_true(after >= before * 0.999);
    }
}

static void fixed_number_is_taken_whether_it_pays_or_not(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, 50, 2, 0.01);
    r.seqs[1].fixed = true;
    r.seqs[1].most = 5;
    decide(&r);
    assert_int_equal(r.k[0], 0);
    assert_int_equal(r.k[1], 5);
    r.s.max_drafts = 3;
    decide(&r);
    assert_int_equal(r.k[1], 3);
    r.s.target_ms = r.alone_ms + 110;
    decide(&r);
    assert_int_equal(r.k[1], 2);
}

static void record_follows_what_came_true(void **state)
{
    (void)state;
    struct sl_spec_record r;
    sl_spec_record_init(&r);
    assert_true(sl_spec_record_hit(&r, 2) < sl_spec_record_hit(&r, 16));
    double other = sl_spec_record_hit(&r, 2);
    for (int i = 0; i < 10; i++)
        sl_spec_record_see(&r, 16, 8, false);
    assert_true(sl_spec_record_hit(&r, 16) > 0.95 && sl_spec_record_hit(&r, 16) < 1);
    for (int i = 0; i < 30; i++)
        sl_spec_record_see(&r, 16, 0, true);
    assert_true(sl_spec_record_hit(&r, 16) < 0.05);
    assert_true(sl_spec_record_hit(&r, 2) == other); /* classes do not meet */
    for (int i = 0; i < 30; i++)
        sl_spec_record_see(&r, 5, 1, true); /* every other one */
    assert_true(sl_spec_record_hit(&r, 4) > 0.3 && sl_spec_record_hit(&r, 7) < 0.7);
}

static void plan_counts_drafts_and_keeps_its_target(void **state)
{
    (void)state;
    struct sl_cost_model cost;
    sl_cost_init_linear(&cost, 10, 0.5);
    struct sl_plan_prompt prompt = {.remaining = 1000, .total = 1000, .chunk_tokens = SL_CHUNK_AUTO};
    struct sl_plan_state s = {.cost = &cost,
                              .pace_cost = &cost,
                              .prompts = &prompt,
                              .n_prompts = 1,
                              .decode_rows = 4,
                              .max_rows = 512,
                              .align = 1,
                              .stretch = 2.5};
    struct sl_plan_chunk chunk;
    struct sl_plan without = {.chunks = &chunk}, with = {.chunks = &chunk};
    sl_plan_step(&s, 0, &without);
    uint32_t n = chunk.n_tokens;
    s.draft_rows = 10;
    sl_plan_step(&s, 0, &with);
    assert_true(with.target_ms == without.target_ms);
    assert_int_equal(with.load.decode_rows, 14);
    assert_int_equal(chunk.n_tokens, n - 10);
    assert_true(with.predicted_ms <= with.target_ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lone_sequence_gets_the_best_number),
        cmocka_unit_test(drafts_that_do_not_pay_are_none),
        cmocka_unit_test(rows_go_to_who_is_likeliest),
        cmocka_unit_test(step_stays_within_its_target),
        cmocka_unit_test(others_keep_their_share),
        cmocka_unit_test(fixed_number_is_taken_whether_it_pays_or_not),
        cmocka_unit_test(record_follows_what_came_true),
        cmocka_unit_test(plan_counts_drafts_and_keeps_its_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
