/* common/sched/slack: who goes first, and that waiting makes everybody first in the end. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/sched/slack.h"

#define MS UINT64_C(1000)

static void short_prompt_that_came_later_overtakes_a_long_one_soon(void **state)
{
    (void)state;
    struct sl_slack big = {.arrived_us = 0, .work_ms = 5000};
    struct sl_slack small = {.arrived_us = 1000 * MS, .work_ms = 50};
    assert_true(sl_slack_before(&small, &big, 1200 * MS));
}

static void long_prompt_that_waited_goes_before_a_new_short_one(void **state)
{
    (void)state;
    struct sl_slack big = {.arrived_us = 0, .work_ms = 500};
    struct sl_slack small = {.arrived_us = 2000 * MS, .work_ms = 50};
    assert_true(sl_slack_before(&big, &small, 2000 * MS));
}

static void deadline_makes_urgent(void **state)
{
    (void)state;
    struct sl_slack calm = {.arrived_us = 0, .work_ms = 100};
    struct sl_slack late = calm;
    late.arrived_us = 10 * MS;
    assert_true(sl_slack_before(&calm, &late, 10 * MS));
    late.deadline_us = 150 * MS;
    assert_true(sl_slack_before(&late, &calm, 10 * MS));
    late.deadline_us = 1000000 * MS; /* far: no reason to wait for it */
    assert_true(sl_slack_before(&calm, &late, 10 * MS));
}

static void wish_for_the_first_token_makes_urgent_or_patient(void **state)
{
    (void)state;
    struct sl_slack calm = {.arrived_us = 0, .work_ms = 100}, wish = calm;
    wish.arrived_us = 10 * MS;
    wish.first_token_us = 150 * MS;
    assert_true(sl_slack_before(&wish, &calm, 10 * MS));
    wish = calm;
    wish.first_token_us = 60000 * MS; /* it lets whoever comes within most of a minute go first .. */
    calm.arrived_us = 45000 * MS;
    assert_true(sl_slack_before(&calm, &wish, 45000 * MS));
    assert_true(sl_slack_level(&wish, 0) == 5 && sl_slack_level(&wish, 45000 * MS) == 1);
    calm.arrived_us = 61000 * MS; /* .. and no longer */
    assert_true(sl_slack_before(&wish, &calm, 61000 * MS));
    wish.deadline_us = 200 * MS;
    assert_true(sl_slack_relative(&wish, 0) == 2);
}

/* Both may take five times as long as alone, of which the short one has more than its work: it goes first all the same. */
static void wish_does_not_make_a_short_prompt_wait_behind_a_long_one(void **state)
{
    (void)state;
    struct sl_slack small = {.first_token_us = 300 * MS, .work_ms = 10},
                    big = {.first_token_us = 5300 * MS, .work_ms = 1000};
    assert_true(sl_slack_before(&small, &big, 30 * MS));
    assert_true(sl_slack_relative(&small, 0) == SL_SLACK_STRETCH);
}

static void priority_wins_until_the_other_has_aged(void **state)
{
    (void)state;
    struct sl_slack first = {.priority = 0, .arrived_us = 0, .work_ms = 100};
    struct sl_slack second = first;
    second.priority = 2;
    assert_true(sl_slack_before(&first, &second, 0));
    first.arrived_us = 3 * SL_SLACK_AGE_US; /* a new one of the better class */
    assert_true(sl_slack_before(&second, &first, 3 * SL_SLACK_AGE_US));
    assert_true(sl_slack_level(&second, 3 * SL_SLACK_AGE_US) == -1);
    assert_true(sl_slack_level(&first, 0) == 0); /* arrived in the future: not aged */
}

static void prompt_without_work_has_a_finite_slack(void **state)
{
    (void)state;
    struct sl_slack nothing = {.arrived_us = 0}, some = {.arrived_us = 0, .work_ms = 1};
    assert_true(sl_slack_before(&nothing, &some, 10 * MS));
}

static void equal_prompts_are_finished_one_after_the_other(void **state)
{
    (void)state;
    struct sl_slack a = {.arrived_us = 0, .work_ms = 400}, b = {.arrived_us = 1, .work_ms = 400};
    for (uint64_t now = 1; now < 2000 * MS; now += 50 * MS)
        assert_true(sl_slack_before(&a, &b, now));
}

static void equal_ones_go_as_they_came(void **state)
{
    (void)state;
    struct sl_slack a = {.arrived_us = 5 * MS, .deadline_us = 9 * MS, .work_ms = 10}, b = a;
    b.arrived_us = 6 * MS;
    assert_true(sl_slack_before(&a, &b, 7 * MS));
    assert_false(sl_slack_before(&b, &a, 7 * MS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_prompt_that_came_later_overtakes_a_long_one_soon),
        cmocka_unit_test(long_prompt_that_waited_goes_before_a_new_short_one),
        cmocka_unit_test(deadline_makes_urgent),
        cmocka_unit_test(wish_for_the_first_token_makes_urgent_or_patient),
        cmocka_unit_test(wish_does_not_make_a_short_prompt_wait_behind_a_long_one),
        cmocka_unit_test(priority_wins_until_the_other_has_aged),
        cmocka_unit_test(prompt_without_work_has_a_finite_slack),
        cmocka_unit_test(equal_prompts_are_finished_one_after_the_other),
        cmocka_unit_test(equal_ones_go_as_they_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
