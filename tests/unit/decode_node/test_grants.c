/* The duty of decoding: pages are granted at admission, and losing the prefill node costs time, never the
 * request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "decode_node/decode_node.h"
#include "tests/unit/node/fake_engine.h"

static struct sl_leg *place(uint32_t split)
{
    struct sl_leg *l = fake_place(&sl_duty_decode, "r1", split, SL_OK);
    fake_calls();
    return l;
}

static void order_without_a_split_asks_nobody(void **state)
{
    (void)state;
    struct sl_leg *l = place(0);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_engine_says(l, SL_EV_COMPUTED, 100);
    fake_engine_says(l, SL_EV_TOKEN, 5);
    fake_engine_says(l, SL_EV_TOKEN, 6);
    fake_expect_calls("");
    fake_engine_says(l, SL_EV_FINISHED, SL_FINISH_LENGTH);
    fake_expect_calls("close; ");
    assert_int_equal(l->reason, SLUICE__DONE_REASON__DONE_LENGTH);
    assert_int_equal(l->n_token_log, 2);
}

static void admission_grants_the_pages_that_are_not_there(void **state)
{
    (void)state;
    fake.hit_tokens = 32;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_expect_calls("recv_open 64 have=2; pin 1; ");
    assert_int_equal(l->report.cached_tokens, 32);
    fake_engine_says(l, SL_EV_ADMITTED, 0); /* after a preemption: not granted again */
    fake_expect_calls("");
}

static void hit_beyond_the_split_has_all_pages(void **state)
{
    (void)state;
    fake.hit_tokens = 96;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_expect_calls("recv_open 64 have=4; pin 1; ");
    (void)l;
}

static void commits_go_to_the_engine_as_they_come(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_calls();
    fake_xfer_says(l, SL_XFER_RECV_READY, SL_OK, 32, false);
    fake_xfer_says(l, SL_XFER_RECV_READY, SL_OK, 32, false);
    fake_expect_calls("ready 32; ");
    fake_xfer_says(l, SL_XFER_RECV_DONE, SL_OK, 64, false);
    fake_expect_calls("pin 0; ready 64; "); /* the engine goes on from there */
}

static void whole_prompt_arrives_with_its_first_token(void **state)
{
    (void)state;
    struct sl_leg *l = place(100);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_calls();
    l->n_logprobs = 1;
    fake_xfer_says(l, SL_XFER_RECV_DONE, SL_OK, 100, true);
    fake_expect_calls("pin 0; ready 100; first 5; ");
    assert_int_equal(l->n_token_log, 1);
    /* what a Resync is answered from has what the prefill node saw */
    assert_true(l->tokens[0].logprob == -0.25f);
    assert_int_equal(l->tokens[0].n_top, 1);
    assert_int_equal(l->top_tokens[0], 7);
    assert_true(l->top_logprobs[0] == -0.125f);
    fake_engine_says(l, SL_EV_TOKEN, 6);
    assert_int_equal(l->n_token_log, 2);
}

static void whole_prompt_without_a_first_token_is_sampled_here(void **state)
{
    (void)state;
    struct sl_leg *l = place(100);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_calls();
    fake_xfer_says(l, SL_XFER_RECV_DONE, SL_OK, 100, false);
    fake_expect_calls("pin 0; ready 100; go_local; ");
}

static void lost_prefill_node_leaves_the_rest_to_this_one(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_calls();
    fake_xfer_says(l, SL_XFER_RECV_DONE, SL_EPEER, 48, false);
    fake_expect_calls("pin 0; ready 48; go_local; ");
    assert_false(l->ended);
    assert_int_equal(l->report.recovered_tokens, 16);
    assert_string_equal(l->state, "peer_lost");
}

static void deadline_seen_by_the_transfer_ends_the_request(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_calls();
    fake_xfer_says(l, SL_XFER_RECV_DONE, SL_EDEADLINE, 0, false);
    fake_expect_calls("pin 0; close; ");
    assert_int_equal(l->code, SL_EDEADLINE);
}

static void loss_of_a_node_that_was_not_waited_for_changes_nothing(void **state)
{
    (void)state;
    fake.hit_tokens = 96;
    fake.seq_state = SL_SEQ_PREFILL;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_calls();
    fake_xfer_says(l, SL_XFER_RECV_DONE, SL_EPEER, 0, false);
    fake_expect_calls("pin 0; ");
    assert_int_equal(l->report.has_recovered_tokens, 0);
}

static void session_that_cannot_be_opened_leaves_all_to_this_node(void **state)
{
    (void)state;
    fake.recv_open_err = SL_EAGAIN;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_expect_calls("recv_open 64 have=0; go_local; ");
    fake_engine_says(l, SL_EV_TOKEN, 5);
    fake_engine_says(l, SL_EV_FINISHED, SL_FINISH_STOP);
    assert_int_equal(l->reason, SLUICE__DONE_REASON__DONE_STOP);
}

static void pages_of_an_open_transfer_are_kept_over_a_cancel(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_calls();
    sl_leg_cancel(fake.node, "r1", 1, 0, "test");
    fake_expect_calls("recv_cancel; ");
    fake_xfer_says(l, SL_XFER_RECV_READY, SL_OK, 32, false); /* was on its way */
    fake_expect_calls("");
    fake_xfer_says(l, SL_XFER_RECV_DONE, SL_ECANCELED, 32, false);
    fake_expect_calls("pin 0; close; ");
}

static void pages_that_two_nodes_wait_for_are_given_up(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_calls();
    fake.blocks = l;
    fake_looks(2);
    fake_expect_calls("recv_cancel; ");
    fake.blocks = NULL;
    fake_xfer_says(l, SL_XFER_RECV_DONE, SL_ECANCELED, 16, false);
    fake_expect_calls("pin 0; ready 16; go_local; ");
}

static void request_that_ends_while_waiting_for_admission_is_closed_at_once(void **state)
{
    (void)state;
    place(64);
    sl_leg_cancel(fake.node, "r1", 1, 0, "test");
    fake_expect_calls("close; ");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fake_open, fake_close)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(order_without_a_split_asks_nobody),
        TEST(admission_grants_the_pages_that_are_not_there),
        TEST(hit_beyond_the_split_has_all_pages),
        TEST(commits_go_to_the_engine_as_they_come),
        TEST(whole_prompt_arrives_with_its_first_token),
        TEST(whole_prompt_without_a_first_token_is_sampled_here),
        TEST(lost_prefill_node_leaves_the_rest_to_this_one),
        TEST(deadline_seen_by_the_transfer_ends_the_request),
        TEST(loss_of_a_node_that_was_not_waited_for_changes_nothing),
        TEST(session_that_cannot_be_opened_leaves_all_to_this_node),
        TEST(pages_of_an_open_transfer_are_kept_over_a_cancel),
        TEST(pages_that_two_nodes_wait_for_are_given_up),
        TEST(request_that_ends_while_waiting_for_admission_is_closed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
