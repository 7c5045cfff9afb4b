/* tests/unit/bench/test_duties.c - a cluster cut wrongly: nodes that prefer one duty take the other's work
 * where they would idle, give it back when they need not, and do not swing between the two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/bench/simulate/sim.h"

#define REQUESTS 2000u
#define WINDOW   50u /* requests; the share of them that the other duty's nodes decode is looked at */

struct outcome {
    double others;   /* share of requests decoded where prefill is preferred */
    uint32_t swings; /* windows that turned from nearly all to nearly none or back */
    double tokens_per_s;
};

/* Short prompts and long outputs, or the other way round. */
static void run(uint32_t n_prefill, uint32_t n_decode, bool may_both, uint32_t prompt, uint32_t output,
                double rate, enum sl_place_mode mode, struct outcome *out)
{
    struct sim_cluster c;
    struct sl_why why = {{0}};
    struct sim_result r;
    struct sl_trace t;
    struct sim_conf conf = {.mode = mode, .cost_error = 0.1, .noise = 0.05, .max_tokens = 1024, .seed = 3};
    if (sim_cluster_plain("a100-llama3-8b", n_prefill, n_decode, &c, &why) ||
        sl_trace_open(&(struct sl_trace_conf){.rate = rate, .n = REQUESTS, .seed = 8}, &t, &why))
        fail_msg("%s", why.text);
    for (size_t i = 0; i < t.n; i++) {
        t.requests[i].n_prompt = prompt / 2 + (uint32_t)(i * 7919 % prompt);
        t.requests[i].n_output = output / 2 + (uint32_t)(i * 104729 % output);
    }
    for (uint32_t g = 0; g < c.n_groups && !may_both; g++) {
        c.groups[g].may_decode = !c.groups[g].prefers_prefill;
        c.groups[g].may_prefill = true;
    }
    if (sim_run(&c, &t, &conf, &r, &why))
        fail_msg("%s", why.text);
    assert_int_equal(r.n_refused + r.n_unfinished, 0);
    *out = (struct outcome){.tokens_per_s = (double)r.tokens / r.span_s};
    double last = -1;
    for (size_t i = 0; i < r.n;) {
        double here = 0;
        size_t end = i + WINDOW < r.n ? i + WINDOW : r.n, n = end - i;
        for (; i < end; i++)
            here += r.outcomes[i].decoded_by < n_prefill;
        double share = here / (double)n;
        out->others += here / (double)r.n;
        out->swings += last >= 0 && fabs(share - last) > 0.7;
        last = share;
    }
    sim_result_fini(&r);
    sl_trace_close(&t);
}

static void too_few_decode_nodes_are_helped_by_the_others(void **state)
{
    (void)state;
    struct outcome strict, both;
    run(3, 1, false, 200, 600, 20, SL_PLACE_HYBRID, &strict);
    run(3, 1, true, 200, 600, 20, SL_PLACE_HYBRID, &both);
    print_message(
        "decode-bound, 3 to 1: %.0f tokens/s by preference alone, %.0f with help; %.0f %% decoded by the "
        "others, %u swings\n",
        strict.tokens_per_s, both.tokens_per_s, 100 * both.others, both.swings);
    assert_true(both.others > 0.3);
    assert_true(both.tokens_per_s > strict.tokens_per_s);
    assert_int_equal(both.swings, 0);
}

static void idle_cluster_keeps_duties_apart(void **state)
{
    (void)state;
    struct outcome o;
    run(2, 2, true, 1000, 100, 0.2, SL_PLACE_HYBRID, &o);
    print_message("nearly idle, 2 to 2: %.1f %% decoded by the others, %u swings\n", 100 * o.others,
                  o.swings);
    assert_true(o.others < 0.2); /* only when the others decode already */
    assert_int_equal(o.swings, 0);
}

static void too_many_decode_nodes_prefill_for_themselves(void **state)
{
    (void)state;
    struct outcome pd, hybrid;
    run(1, 3, true, 3000, 20, 12, SL_PLACE_PD, &pd);
    run(1, 3, true, 3000, 20, 12, SL_PLACE_HYBRID, &hybrid);
    print_message("prefill-bound, 1 to 3: pd %.0f tokens/s, hybrid %.0f; %u swings\n", pd.tokens_per_s,
                  hybrid.tokens_per_s, hybrid.swings);
    assert_true(hybrid.tokens_per_s > 1.2 * pd.tokens_per_s);
    assert_int_equal(hybrid.swings, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_few_decode_nodes_are_helped_by_the_others),
        cmocka_unit_test(idle_cluster_keeps_duties_apart),
        cmocka_unit_test(too_many_decode_nodes_prefill_for_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
