/* The duty of prefilling: nothing leaves before the grant, the first token goes with the last commit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "prefill_node/prefill_node.h"
#include "tests/unit/node/fake_engine.h"

static struct sl_leg *place(uint32_t split)
{
    struct sl_leg *l = fake_place(&sl_duty_prefill, "r1", split, SL_OK);
    fake_calls();
    return l;
}

static void order_opens_a_sequence_without_a_grant_and_a_session(void **state)
{
    (void)state;
    fake_place(&sl_duty_prefill, "r1", 32, SL_OK);
    fake_expect_calls("open remote=0 compute=32 sample=0 decode=0 granted=0; send_open 32; ");
    fake_place(&sl_duty_prefill, "r2", 100, SL_OK);
    fake_expect_calls("open remote=0 compute=100 sample=1 decode=0 granted=0; send_open 100; ");
}

static void pages_computed_before_the_grant_wait_for_it(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_engine_says(l, SL_EV_COMPUTED, 32);
    fake_expect_calls("");
    fake_xfer_says(l, SL_XFER_GRANTED, SL_OK, 0, false);
    fake_expect_calls("pin 1; grant; send_ready 32; ");
    fake_engine_says(l, SL_EV_COMPUTED, 64);
    fake_expect_calls("send_ready 64; ");
    fake_xfer_says(l, SL_XFER_SEND_DONE, SL_OK, 64, false);
    fake_expect_calls("pin 0; close; ");
    assert_true(l->ended);
    assert_int_equal(l->reason, SLUICE__DONE_REASON__DONE_PREFILLED);
}

static void pages_taken_back_before_the_grant_are_not_sent(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_COMPUTED, 32);
    fake_engine_says(l, SL_EV_PREEMPTED, 0);
    fake_xfer_says(l, SL_XFER_GRANTED, SL_OK, 0, false);
    fake_expect_calls("pin 1; grant; ");
    fake_engine_says(l, SL_EV_COMPUTED, 16);
    fake_expect_calls("send_ready 16; ");
}

static void grant_of_what_the_decode_node_has_all_of_ends_the_leg(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_engine_says(l, SL_EV_ADMITTED, 0);
    fake_engine_says(l, SL_EV_COMPUTED, 16);
    fake.have_pages = 4;
    fake_xfer_says(l, SL_XFER_GRANTED, SL_OK, 0, false);
    fake_expect_calls("pin 1; grant; send_ready 64 without pages; ");
    fake_xfer_says(l, SL_XFER_SEND_DONE, SL_OK, 64, false);
    fake_expect_calls("pin 0; close; "); /* with 48 tokens not computed */
    assert_int_equal(l->reason, SLUICE__DONE_REASON__DONE_PREFILLED);
    l = fake_place(&sl_duty_prefill, "r2", 100, SL_OK); /* the first token is wanted all the same */
    fake_calls();
    fake.have_pages = 7;
    fake_xfer_says(l, SL_XFER_GRANTED, SL_OK, 0, false);
    fake_expect_calls("pin 1; grant; ");
}

static void whole_prompt_is_completed_with_its_first_token(void **state)
{
    (void)state;
    struct sl_leg *l = place(100);
    fake_xfer_says(l, SL_XFER_GRANTED, SL_OK, 0, false);
    fake_calls();
    fake_engine_says(l, SL_EV_COMPUTED, 96);
    fake_expect_calls("send_ready 96; ");
    fake_engine_says(l, SL_EV_COMPUTED, 100);
    fake_expect_calls(""); /* the token of the same step comes next */
    fake_engine_says(l, SL_EV_TOKEN, 42);
    fake_expect_calls("send_first 42 ended=0; send_ready 100; ");
    fake_engine_says(l, SL_EV_FINISHED, SL_FINISH_COMPUTED);
    assert_false(l->ended);
    assert_int_equal(l->n_token_log, 1);
    assert_int_equal(l->tokens[0].token, 42);
}

static void first_token_without_a_grant_waits_only_with_its_pages(void **state)
{
    (void)state;
    struct sl_leg *l = place(100);
    fake_engine_says(l, SL_EV_COMPUTED, 100);
    fake_engine_says(l, SL_EV_TOKEN, 42);
    fake_expect_calls("send_first 42 ended=0; ");
    assert_int_equal(l->n_token_log, 1); /* the router has it */
    fake_xfer_says(l, SL_XFER_GRANTED, SL_OK, 0, false);
    fake_expect_calls("pin 1; grant; send_ready 100; ");
}

static void first_token_that_is_a_stop_id_says_so(void **state)
{
    (void)state;
    struct sl_leg *l = place(100);
    fake_engine_says(l, SL_EV_TOKEN, 77);
    fake_expect_calls("send_first 77 ended=1; ");
}

static void failed_transfer_ends_the_leg_with_its_reason(void **state)
{
    (void)state;
    struct sl_leg *l = place(64);
    fake_xfer_says(l, SL_XFER_SEND_DONE, SL_EPEER, 0, false);
    assert_true(l->ended);
    assert_int_equal(l->reason, SLUICE__DONE_REASON__DONE_ERROR);
    assert_int_equal(l->code, SL_EPEER);
    fake_expect_calls("pin 0; close; ");
}

static void session_that_cannot_be_opened_refuses_the_order(void **state)
{
    (void)state;
    fake.send_open_err = SL_EAGAIN;
    assert_null(fake_place(&sl_duty_prefill, "r1", 32, SL_EAGAIN));
    fake_expect_calls("open remote=0 compute=32 sample=0 decode=0 granted=0; send_open 32; close; abort; ");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fake_open, fake_close)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(order_opens_a_sequence_without_a_grant_and_a_session),
        TEST(pages_computed_before_the_grant_wait_for_it),
        TEST(pages_taken_back_before_the_grant_are_not_sent),
        TEST(grant_of_what_the_decode_node_has_all_of_ends_the_leg),
        TEST(whole_prompt_is_completed_with_its_first_token),
        TEST(first_token_without_a_grant_waits_only_with_its_pages),
        TEST(first_token_that_is_a_stop_id_says_so),
        TEST(failed_transfer_ends_the_leg_with_its_reason),
        TEST(session_that_cannot_be_opened_refuses_the_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
