/* common/sched/cost_learn: from an arbitrary wrong start, through noise, outliers and a machine that becomes
 * slower, towards a hidden truth. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/order.h"
#include "common/sched/cost_learn.h"
#include "tests/support/support.h"

#define N_PROBES  64
#define GOOD      0.15 /* median relative error that the plan can live with */
#define N_STARTS  20
#define MAX_WRONG 8.0 /* factor by which a start may be wrong */

static double uniform(unsigned long long *rng)
{
    return (double)(sl_test_random(rng) % 100000) / 100000;
}

/* A table that saturates early, as on a CPU. */
static struct sl_cost_model truth_new(void)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    struct sl_cost_model m = {.n_points = SL_COUNTOF(rows),
                              .head_ms_per_row = 0.4,
                              .prompt_attn_ms_per_mtoken = 60,
                              .prompt_read_ms_per_mtoken = 900,
                              .decode_attn_ms_per_mtoken = 700};
    for (uint32_t i = 0; i < m.n_points; i++) {
        m.rows[i] = rows[i];
        m.ms[i] = 3.5 + 0.45 * rows[i] + 1.5 * (1 - exp(-(double)rows[i] / 6));
    }
    return m;
}

static struct sl_step_load draw(unsigned long long *rng)
{
    struct sl_step_load l = {.decode_rows = (uint32_t)(uniform(rng) * 12)};
    l.decode_context = l.decode_rows * (64 + 1500 * uniform(rng));
    if (l.decode_rows == 0 || uniform(rng) < 0.7) {
        uint32_t c = (uint32_t)(4 * exp2(6 * uniform(rng)));
        double h = 4000 * uniform(rng);
        l.prompt_rows = c;
        l.prompt_attn = c * (h + c / 2.0);
        l.prompt_history = h;
    }
    return l;
}

struct world {
    struct sl_cost_model truth, m;
    struct sl_cost_learner k;
    double slower; /* factor on the truth */
    unsigned long long rng;
};

/* Noise of 5 %, and one step in 20 takes up to 5 times as long. */
static void run(struct world *w, int n)
{
    for (int i = 0; i < n; i++) {
        struct sl_step_load l = draw(&w->rng);
        double ms = w->slower * sl_cost_predict_ms(&w->truth, &l) * (0.95 + 0.1 * uniform(&w->rng));
        if (uniform(&w->rng) < 0.05)
            ms *= 1 + 4 * uniform(&w->rng);
        sl_cost_observe(&w->k, &w->m, &l, ms);
    }
}

static double median_error(struct world *w)
{
    double e[N_PROBES];
    for (int i = 0; i < N_PROBES; i++) {
        struct sl_step_load l = draw(&w->rng);
        double real = w->slower * sl_cost_predict_ms(&w->truth, &l);
        e[i] = fabs(sl_cost_predict_ms(&w->m, &l) - real) / real;
    }
    qsort(e, N_PROBES, sizeof *e, sl_order_f64);
    return e[N_PROBES / 2];
}

static struct world world_new(unsigned long long seed, double doubt)
{
    struct world w = {.truth = truth_new(), .slower = 1, .rng = seed};
    w.m = w.truth;
    sl_cost_learner_init(&w.k, &w.m, doubt);
    return w;
}

static void observe_learns_from_any_wrong_start_in_100_steps(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= N_STARTS; seed++) {
        struct world w = world_new(seed, SL_COST_DOUBT_GUESSED);
        double all = pow(MAX_WRONG, 2 * uniform(&w.rng) - 1);
        for (uint32_t i = 0; i < w.m.n_points; i++)
            w.m.ms[i] *= all;
        for (uint32_t i = 0; i < SL_COST_TERMS; i++)
            *sl_cost_value(&w.m, w.m.n_points + i) *= pow(MAX_WRONG, 2 * uniform(&w.rng) - 1);
        sl_cost_learner_init(&w.k, &w.m, SL_COST_DOUBT_GUESSED);
        run(&w, 100);
        double e = median_error(&w);
        if (e > GOOD)
            fail_msg("start %u, %.1f times the truth: median error %.0f %%", seed, all, 100 * e);
    }
}

static void observe_learns_terms_that_were_zero(void **state)
{
    (void)state;
    struct world w = world_new(1, SL_COST_DOUBT_GUESSED);
    sl_cost_init_linear(&w.m, 5, 0.5);
    sl_cost_learner_init(&w.k, &w.m, SL_COST_DOUBT_GUESSED);
    run(&w, 150);
    assert_true(median_error(&w) < GOOD);
}

static void observe_follows_a_machine_that_becomes_slower_and_faster(void **state)
{
    (void)state;
    struct world w = world_new(3, SL_COST_DOUBT_MEASURED);
    run(&w, 2000);
    assert_true(median_error(&w) < 0.05);
    w.slower = 2;
    run(&w, 30);
    assert_true(median_error(&w) < GOOD);
    w.slower = 1;
    run(&w, 30);
    assert_true(median_error(&w) < GOOD);
}

/* What mixed steps teach must not spoil what decode rows alone take: the plan's target hangs on it. */
static void observe_of_slow_chunks_leaves_decode_rows_alone(void **state)
{
    (void)state;
    struct world w = world_new(4, SL_COST_DOUBT_MEASURED);
    run(&w, 500);
    w.truth.prompt_attn_ms_per_mtoken *= 3;
    w.truth.prompt_read_ms_per_mtoken *= 2;
    run(&w, 100);
    struct sl_step_load decode = {.decode_rows = 7, .decode_context = 7 * 500};
    double real = sl_cost_predict_ms(&w.truth, &decode), got = sl_cost_predict_ms(&w.m, &decode);
    assert_true(fabs(got - real) < 0.1 * real);
    assert_true(median_error(&w) < GOOD);
}

static void observe_one_outlier_moves_little(void **state)
{
    (void)state;
    struct world w = world_new(5, SL_COST_DOUBT_MEASURED);
    run(&w, 50);
    struct sl_step_load l = {.prompt_rows = 64};
    double before = sl_cost_predict_ms(&w.m, &l);
    sl_cost_observe(&w.k, &w.m, &l, before * 1000);
    assert_true(sl_cost_predict_ms(&w.m, &l) < before * 1.05);
    sl_cost_observe(&w.k, &w.m, &l, before / 1000);
    assert_true(sl_cost_predict_ms(&w.m, &l) > before * 0.85);
}

/* How much shorter than a limit steps must be planned: by what delays a few of them, and back when nothing does. */
static void observe_knows_how_late_steps_are(void **state)
{
    (void)state;
    struct world w = {.truth = truth_new(), .m = truth_new(), .slower = 1, .rng = 5};
    sl_cost_learner_init(&w.k, &w.m, SL_COST_DOUBT_MEASURED);
    assert_true(w.k.late >= 1 && w.k.late < 1.01);
    static const double part[] = {0.05, 0, 1}; /* of the steps that are delayed, 20 % in the mean */
    for (size_t i = 0; i < SL_COUNTOF(part); i++) {
        int beyond = 0;
        for (int n = 0; n < 40000; n++) {
            struct sl_step_load l = draw(&w.rng);
            double ms = sl_cost_predict_ms(&w.truth, &l);
            if (uniform(&w.rng) < part[i])
                ms *= i == 2 ? 20 * uniform(&w.rng) : 1 - 0.2 * log(1 - uniform(&w.rng));
            beyond += n >= 20000 && ms > w.k.late * sl_cost_predict_ms(&w.m, &l);
            sl_cost_observe(&w.k, &w.m, &l, ms);
        }
        if (i == 0)
            assert_true(w.k.late > 1.3 && w.k.late < 1.9 && beyond < 120);
        else if (i == 1)
            assert_true(w.k.late < 1.2);
        else
            assert_true(w.k.late > 0.99 * SL_COST_LATE_MOST && w.k.late <= SL_COST_LATE_MOST);
    }
}

static void observe_of_nonsense_changes_nothing(void **state)
{
    (void)state;
    struct world w = world_new(6, SL_COST_DOUBT_GUESSED);
    struct sl_step_load l = {.prompt_rows = 64}, nothing = {0};
    double before = sl_cost_predict_ms(&w.m, &l);
    sl_cost_observe(&w.k, &w.m, &l, 0);
    sl_cost_observe(&w.k, &w.m, &l, -1);
    sl_cost_observe(&w.k, &w.m, &l, (double)NAN);
    sl_cost_observe(&w.k, &w.m, &l, (double)INFINITY);
    sl_cost_observe(&w.k, &w.m, &nothing, 3);
    assert_true(sl_cost_predict_ms(&w.m, &l) == before);
}

static void assert_sound(const struct world *w)
{
    uint32_t n = w->m.n_points + SL_COST_TERMS;
    struct sl_cost_model m = w->m;
    for (uint32_t i = 0; i < n; i++) {
        double v = *sl_cost_value(&m, i);
        assert_true(isfinite(v) && v >= 0);
        assert_true(isfinite(w->k.cov[i][i]) && w->k.cov[i][i] >= 0);
    }
    assert_true(m.ms[0] > 0 && m.error >= 0 && m.error <= 1);
}

static void observe_for_ever_stays_sound(void **state)
{
    (void)state;
    struct world w = world_new(7, SL_COST_DOUBT_MEASURED);
    struct sl_step_load same = {.decode_rows = 8, .decode_context = 4000};
    double ms = sl_cost_predict_ms(&w.truth, &same);
    for (int i = 0; i < 100000; i++) /* equal steps: no direction to learn in but one */
        sl_cost_observe(&w.k, &w.m, &same, ms * (0.95 + 0.1 * uniform(&w.rng)));
    assert_sound(&w);
    run(&w, 100);
    assert_true(median_error(&w) < GOOD);
    for (int i = 0; i < 20000; i++) {
        struct sl_step_load l = draw(&w.rng);
        sl_cost_observe(&w.k, &w.m, &l, i / 50 % 2 ? 1e6 : 1e-6);
        assert_sound(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(observe_learns_from_any_wrong_start_in_100_steps),
        cmocka_unit_test(observe_learns_terms_that_were_zero),
        cmocka_unit_test(observe_follows_a_machine_that_becomes_slower_and_faster),
        cmocka_unit_test(observe_of_slow_chunks_leaves_decode_rows_alone),
        cmocka_unit_test(observe_one_outlier_moves_little),
        cmocka_unit_test(observe_knows_how_late_steps_are),
        cmocka_unit_test(observe_of_nonsense_changes_nothing),
        cmocka_unit_test(observe_for_ever_stays_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
