/* common/sched/preempt: who goes and who never does. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/sched/preempt.h"

static struct sl_preempt_seq seq_of(uint64_t order, uint32_t lost)
{
    return (struct sl_preempt_seq){.order = order, .lost_tokens = lost, .gain_pages = 1, .granted = true};
}

static void least_lost_work_goes(void **state)
{
    (void)state;
    struct sl_preempt_seq s[] = {seq_of(1, 5), seq_of(2, 300), seq_of(3, 20)};
    assert_int_equal(sl_preempt_pick(s, 3, false), 2);
}

static void youngest_goes_when_work_is_equal(void **state)
{
    (void)state;
    struct sl_preempt_seq s[] = {seq_of(7, 5), seq_of(9, 5), seq_of(8, 5)};
    assert_int_equal(sl_preempt_pick(s, 3, false), 1);
}

static void oldest_and_pinned_never_go(void **state)
{
    (void)state;
    struct sl_preempt_seq s[] = {seq_of(1, 0), seq_of(2, 9)};
    assert_int_equal(sl_preempt_pick(s, 2, false), 1);
    s[1].pinned = true;
    assert_int_equal(sl_preempt_pick(s, 2, false), SL_PREEMPT_NONE);
    assert_int_equal(sl_preempt_pick(s, 1, false), SL_PREEMPT_NONE);
    assert_int_equal(sl_preempt_pick(s, 0, false), SL_PREEMPT_NONE);
}

static void ungranted_go_first_whatever_they_lose(void **state)
{
    (void)state;
    struct sl_preempt_seq s[] = {seq_of(1, 9), seq_of(2, 900), seq_of(3, 1)};
    s[1].granted = false;
    assert_int_equal(sl_preempt_pick(s, 3, false), 1);
}

static void ungranted_only_spares_all_granted(void **state)
{
    (void)state;
    struct sl_preempt_seq s[] = {seq_of(1, 9), seq_of(2, 9), seq_of(3, 1)};
    assert_int_equal(sl_preempt_pick(s, 3, true), SL_PREEMPT_NONE);
    s[0].granted = false; /* the oldest of all, but without a grant */
    assert_int_equal(sl_preempt_pick(s, 3, true), 0);
}

static void a_victim_that_brings_no_page_is_spared(void **state)
{
    (void)state;
    struct sl_preempt_seq s[] = {seq_of(1, 9), seq_of(2, 0), seq_of(3, 50)};
    s[1].gain_pages = 0;
    assert_int_equal(sl_preempt_pick(s, 3, false), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_lost_work_goes),
        cmocka_unit_test(youngest_goes_when_work_is_equal),
        cmocka_unit_test(oldest_and_pinned_never_go),
        cmocka_unit_test(ungranted_go_first_whatever_they_lose),
        cmocka_unit_test(ungranted_only_spares_all_granted),
        cmocka_unit_test(a_victim_that_brings_no_page_is_spared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
