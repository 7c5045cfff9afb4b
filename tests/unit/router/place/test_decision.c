/* tests/unit/router/place/test_decision.c - the ring of decision records and the handover it computes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "router/place/decision.h"

static struct sl_decision *add(struct sl_decisions *r, int i)
{
    char id[32];
    snprintf(id, sizeof id, "r-%d", i);
    return sl_decisions_add(r, id);
}

static void ring_full_forgets_the_oldest_finished(void **s)
{
    (void)s;
    struct sl_decisions *r = sl_decisions_new(4);
    for (int i = 0; i < 10; i++)
        snprintf(add(r, i)->finish, 16, "stop");
    assert_null(sl_decisions_find(r, "r-5"));
    for (int i = 6; i < 10; i++) {
        char id[32];
        snprintf(id, sizeof id, "r-%d", i);
        assert_non_null(sl_decisions_find(r, id));
    }
    assert_string_equal(sl_decisions_nth(r, 0)->id, "r-9");
    assert_string_equal(sl_decisions_nth(r, 3)->id, "r-6");
    assert_null(sl_decisions_nth(r, 4));
    sl_decisions_free(r);
}

static void ring_open_record_is_never_reused(void **s)
{
    (void)s;
    struct sl_decisions *r = sl_decisions_new(4);
    struct sl_decision *open = add(r, 0);
    for (int i = 1; i < 50; i++)
        snprintf(add(r, i)->finish, 16, "stop");
    assert_ptr_equal(sl_decisions_find(r, "r-0"), open);
    assert_string_equal(open->id, "r-0");
    sl_decisions_free(r);
}

static struct sl_decision pd_record(void)
{
    struct sl_decision d = {.n_attempts = 1, .first_us = 1000000, .second_us = 1045000, .itl_median_ms = 30};
    d.attempts[0] = (struct sl_decision_attempt){
        .mode = SL_PLACE_PD, .split = 100, .n_tokens = 100, .p = "p0", .d = "d0"};
    d.p.reported = true;
    return d;
}

static void handover_subtracts_one_step_and_the_unsent_bytes(void **s)
{
    (void)s;
    struct sl_decision d = pd_record();
    double ms;
    assert_true(sl_decision_handover_ms(&d, &ms));
    assert_true(fabs(ms - 15) < 1e-9);
    d.p.report.has_bytes_after_first = true;
    d.p.report.bytes_after_first = 5000000;
    assert_false(sl_decision_handover_ms(&d, &ms)); /* the link was not measured */
    d.link_bytes_per_s = 1e9;
    assert_true(sl_decision_handover_ms(&d, &ms));
    assert_true(fabs(ms - 10) < 1e-9);
}

static void handover_is_unknown_without_its_parts(void **s)
{
    (void)s;
    double ms;
    struct sl_decision d = pd_record();
    d.itl_median_ms = -1;
    assert_false(sl_decision_handover_ms(&d, &ms));
    d = pd_record();
    d.second_us = 0;
    assert_false(sl_decision_handover_ms(&d, &ms));
    d = pd_record();
    d.attempts[0].mode = SL_PLACE_COLOCATED;
    assert_false(sl_decision_handover_ms(&d, &ms));
}

static void placed_many_times_keeps_the_first_and_the_last(void **s)
{
    (void)s;
    struct sl_place_node nodes[2] = {{.name = "p0"}, {.name = "d0"}};
    struct sl_place_state state = {.nodes = nodes, .n_nodes = 2};
    struct sl_place_choice c = {
        .best = {.p = 0, .split = 10, .d = 1}, .mode = SL_PLACE_PD, .reason = "pd", .n_kept = 1};
    c.kept[0] = c.best;
    struct sl_decision d = {0};
    for (uint32_t a = 1; a <= 20; a++)
        sl_decision_placed(&d, &state, &c, a, 10 + a, a > 1 ? "d0: died" : NULL, a);
    assert_int_equal(d.n_attempts, 20);
    assert_int_equal(d.attempts[0].attempt, 1);
    assert_int_equal(sl_decision_last(&d)->attempt, 20);
    assert_string_equal(sl_decision_last(&d)->why, "d0: died; pd");
    assert_string_equal(d.candidates[0].p, "p0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_full_forgets_the_oldest_finished),
        cmocka_unit_test(ring_open_record_is_never_reused),
        cmocka_unit_test(handover_subtracts_one_step_and_the_unsent_bytes),
        cmocka_unit_test(handover_is_unknown_without_its_parts),
        cmocka_unit_test(placed_many_times_keeps_the_first_and_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
