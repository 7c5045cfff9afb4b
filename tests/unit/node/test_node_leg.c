/* Legs: begun once, ended once, remembered for a while, bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "decode_node/decode_node.h"
#include "prefill_node/prefill_node.h"
#include "tests/unit/node/fake_engine.h"

static struct fake_leg *told(const char *id, bool p)
{
    struct fake_request *q = fake_router_request(&fake.router, id, 1);
    struct fake_leg *l = p ? &q->p : &q->d;
    uint64_t end = sl_now_ms() + FAKE_WAIT_MS;
    while (!l->done && sl_now_ms() < end)
        fake_round();
    assert_true(l->done);
    return l;
}

static void leg_placed_twice_is_one_leg(void **state)
{
    (void)state;
    struct sl_leg *l = fake_place(&sl_duty_decode, "r1", 0, SL_OK);
    fake_expect_calls("open remote=0 compute=100 sample=1 decode=1 granted=1; ");
    assert_ptr_equal(fake_place(&sl_duty_decode, "r1", 0, SL_OK), l);
    fake_expect_calls("");
    assert_int_equal(fake.node->legs.n_active, 1);
}

static void leg_ended_twice_tells_its_router_once(void **state)
{
    (void)state;
    struct sl_leg *l = fake_place(&sl_duty_decode, "r1", 0, SL_OK);
    sl_leg_end(l, SLUICE__DONE_REASON__DONE_LENGTH, SL_OK, NULL);
    sl_leg_end(l, SLUICE__DONE_REASON__DONE_ERROR, SL_EPEER, "too late");
    struct fake_leg *t = told("r1", false);
    assert_int_equal(t->n_done, 1);
    assert_int_equal(t->reason, SLUICE__DONE_REASON__DONE_LENGTH);
    assert_int_equal(fake.node->legs.n_active, 0);
    assert_int_equal(fake.node->legs.n_finished, 1);
}

/* No transfer whose own deadline would end it. */
static void leg_whose_deadline_passes_ends_by_itself(void **state)
{
    (void)state;
    fake.deadline_ms = 1;
    fake_place(&sl_duty_decode, "r1", 0, SL_OK);
    fake_calls();
    struct fake_leg *t = told("r1", false);
    assert_int_equal(t->reason, SLUICE__DONE_REASON__DONE_ERROR);
    assert_int_equal(t->code, SL_EDEADLINE);
    fake_expect_calls("close; ");
    assert_int_equal(fake.node->legs.n_active, 0);
}

static void transfer_is_told_of_what_is_computed_only(void **state)
{
    (void)state;
    fake.stands_still = true;
    fake_looks(1);
    uint32_t before = fake.n_progress;
    fake_looks(1);
    assert_int_equal(fake.n_progress, before);
    fake.stands_still = false;
    fake_looks(1);
    assert_int_equal(fake.n_progress, before + 1);
}

/* A node that is told to stop waits for it. */
static void node_is_busy_until_its_transfers_have_ended(void **state)
{
    (void)state;
    assert_true(sl_node_idle(fake.node));
    struct sl_leg *l = fake_place(&sl_duty_prefill, "r1", 64, SL_OK);
    assert_false(sl_node_idle(fake.node));
    sl_leg_cancel(fake.node, "r1", 1, 0, "test");
    assert_true(l->ended);
    assert_false(sl_node_idle(fake.node));
    fake_xfer_says(l, SL_XFER_SEND_DONE, SL_ECANCELED, 0, false);
    assert_true(sl_node_idle(fake.node));
}

static void leg_refused_by_the_engine_leaves_nothing(void **state)
{
    (void)state;
    fake.seq_open_err = SL_ETOOBIG;
    assert_null(fake_place(&sl_duty_decode, "r1", 0, SL_ETOOBIG));
    assert_null(fake_place(&sl_duty_prefill, "r1", 32, SL_ETOOBIG));
    fake_expect_calls("abort; "); /* the decode node hears it from the prefill node at once */
    assert_int_equal(fake.node->legs.n_active, 0);
}

static void answers_to_schemas_are_bounded(void **state)
{
    (void)state;
    fake.conf.max_constrained = 2;
    fake.json_schema = "{}";
    fake.node->legs.n_constrained = 2;
    assert_null(fake_place(&sl_duty_decode, "r1", 0, SL_EAGAIN));
    fake_expect_calls("");
    fake.json_schema = NULL; /* others are not in the way */
    sl_leg_end(fake_place(&sl_duty_decode, "r2", 0, SL_OK), SLUICE__DONE_REASON__DONE_STOP, SL_OK, NULL);
    assert_int_equal(fake.node->legs.n_constrained, 2);
    fake_calls();
}

static void finished_legs_are_bounded(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < SL_LEGS_MAX_FINISHED + 50; i++) {
        char id[32];
        snprintf(id, sizeof id, "r%u", i);
        sl_leg_end(fake_place(&sl_duty_decode, id, 0, SL_OK), SLUICE__DONE_REASON__DONE_STOP, SL_OK, NULL);
    }
    fake_round();
    assert_int_equal(fake.node->legs.n_finished, SL_LEGS_MAX_FINISHED);
    assert_null(sl_leg_find(fake.node, SLUICE__ROLE__ROLE_DECODE, "r49", 1));
    assert_non_null(sl_leg_find(fake.node, SLUICE__ROLE__ROLE_DECODE, "r50", 1));
    fake_calls();
}

static void finished_legs_are_bounded_in_memory(void **state)
{
    (void)state;
    struct sl_leg *l = fake_place(&sl_duty_decode, "long", 0, SL_OK);
    const struct sl_sampled t = {.token = 1};
    for (uint32_t i = 0; i < SL_LEGS_MAX_BYTES / sizeof *l->tokens; i++)
        sl_leg_token(l, i, &t, false);
    sl_leg_end(fake_place(&sl_duty_decode, "short", 0, SL_OK), SLUICE__DONE_REASON__DONE_STOP, SL_OK, NULL);
    fake_round();
    sl_leg_end(l, SLUICE__DONE_REASON__DONE_STOP, SL_OK, NULL);
    fake_place(&sl_duty_decode, "next", 0, SL_OK);
    fake_round();
    assert_null(sl_leg_find(fake.node, SLUICE__ROLE__ROLE_DECODE, "short", 1));
    assert_int_equal(fake.node->legs.finished_bytes == 0, fake.node->legs.n_finished == 0);
}

static void finished_legs_are_forgotten_in_time(void **state)
{
    (void)state;
    sl_leg_end(fake_place(&sl_duty_decode, "r1", 0, SL_OK), SLUICE__DONE_REASON__DONE_STOP, SL_OK, NULL);
    fake_round();
    sl_legs_reap(fake.node, sl_now_ms() + SL_LEGS_KEEP_MS + 1000);
    assert_null(sl_leg_find(fake.node, SLUICE__ROLE__ROLE_DECODE, "r1", 1));
    assert_int_equal(fake.node->legs.n_finished, 0);
}

static void tombstones_are_bounded_and_expire(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < SL_LEGS_MAX_TOMBSTONES + 10; i++) {
        char id[32];
        snprintf(id, sizeof id, "r%u", i);
        sl_leg_cancel(fake.node, id, 1, 600000, "test");
    }
    assert_int_equal(fake.node->legs.n_tombstones, SL_LEGS_MAX_TOMBSTONES);
    assert_null(fake_place(&sl_duty_decode, "r10", 0, SL_ECANCELED));
    assert_non_null(fake_place(&sl_duty_decode, "r9", 0, SL_OK)); /* its tombstone made room */
    sl_legs_reap(fake.node, sl_now_ms() + 700000);
    assert_int_equal(fake.node->legs.n_tombstones, 0);
    assert_non_null(fake_place(&sl_duty_decode, "r10", 0, SL_OK));
}

static void cancel_ends_both_duties_of_a_request(void **state)
{
    (void)state;
    struct sl_leg *d = fake_place(&sl_duty_decode, "r1", 0, SL_OK);
    struct sl_leg *p = fake_place(&sl_duty_prefill, "r1", 32, SL_OK);
    sl_leg_cancel(fake.node, "r1", 1, 0, "test");
    assert_true(d->ended && p->ended);
    assert_null(d->seq);
    assert_non_null(p->seq); /* its transfer is open */
    fake_xfer_says(p, SL_XFER_SEND_DONE, SL_ECANCELED, 0, false);
    assert_null(p->seq);
    assert_int_equal(told("r1", true)->reason, SLUICE__DONE_REASON__DONE_CANCELED);
    assert_int_equal(told("r1", false)->n_done, 1);
}

static void cancel_that_finds_a_full_queue_is_tried_again(void **state)
{
    (void)state;
    struct sl_leg *p = fake_place(&sl_duty_prefill, "r1", 32, SL_OK);
    fake_calls();
    fake.cancel_err = SL_EAGAIN;
    sl_leg_cancel(fake.node, "r1", 1, 0, "test");
    fake_expect_calls("abort; ");
    uint64_t end = sl_now_ms() + FAKE_WAIT_MS;
    while (!*fake_calls() && sl_now_ms() < end)
        fake_round();
    fake.cancel_err = SL_OK;
    while (p->cancel_owed && sl_now_ms() < end)
        fake_round();
    assert_false(p->cancel_owed);
    fake_calls();
    fake_xfer_says(p, SL_XFER_SEND_DONE, SL_ECANCELED, 0, false);
    fake_expect_calls("pin 0; close; ");
}

static void events_of_an_ended_leg_are_let_go(void **state)
{
    (void)state;
    struct sl_leg *p = fake_place(&sl_duty_prefill, "r1", 32, SL_OK);
    sl_leg_cancel(fake.node, "r1", 1, 0, "test");
    fake_calls();
    fake_engine_says(p, SL_EV_ADMITTED, 0);
    fake_engine_says(p, SL_EV_COMPUTED, 32);
    fake_xfer_says(p, SL_XFER_GRANTED, SL_OK, 0, false);
    fake_expect_calls("");
    fake_xfer_says(p, SL_XFER_SEND_DONE, SL_EPEER, 0, false);
    fake_expect_calls("pin 0; close; ");
    fake_xfer_says(p, SL_XFER_SEND_DONE, SL_EPEER, 0, false);
    fake_expect_calls("");
    assert_int_equal(told("r1", true)->n_done, 1);
}

static void step_that_ends_before_it_is_looked_at_is_followed_by_the_next(void **state)
{
    (void)state;
    fake.n_quick_steps = 3;
    fake_round();
    assert_int_equal(fake.n_quick_steps, 0);
    assert_false(sl_engine_in_flight(fake.node->engine));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fake_open, fake_close)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(leg_placed_twice_is_one_leg),
        TEST(leg_ended_twice_tells_its_router_once),
        TEST(leg_whose_deadline_passes_ends_by_itself),
        TEST(transfer_is_told_of_what_is_computed_only),
        TEST(node_is_busy_until_its_transfers_have_ended),
        TEST(leg_refused_by_the_engine_leaves_nothing),
        TEST(answers_to_schemas_are_bounded),
        TEST(finished_legs_are_bounded),
        TEST(finished_legs_are_bounded_in_memory),
        TEST(finished_legs_are_forgotten_in_time),
        TEST(tombstones_are_bounded_and_expire),
        TEST(cancel_ends_both_duties_of_a_request),
        TEST(cancel_that_finds_a_full_queue_is_tried_again),
        TEST(events_of_an_ended_leg_are_let_go),
        TEST(step_that_ends_before_it_is_looked_at_is_followed_by_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
