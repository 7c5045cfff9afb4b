/* tests/unit/transfer/test_transfer_ucx.c - the same transfers over UCX and tcp on loopback, and what
 * only a real transport can get wrong. */
#include "tests/unit/transfer/xfer_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define EACH_CASE(X)                                                                                         \
    X(whole_prompt_arrives_with_its_first_token)                                                             \
    X(hybrid_split_arrives_without_a_token)                                                                  \
    X(chunks_are_ready_one_by_one)                                                                           \
    X(prefix_hit_is_not_sent)                                                                                \
    X(full_prefix_hit_still_brings_the_token)                                                                \
    X(either_side_may_come_first)                                                                            \
    X(scattered_pages_land_where_the_receiver_says)                                                          \
    X(sender_aborts_at_every_stage)                                                                          \
    X(receiver_cancels_at_every_stage)                                                                       \
    X(abort_before_open_leaves_word)                                                                         \
    X(peer_closes_in_the_middle)                                                                             \
    X(deadline_ends_both_sides)                                                                              \
    X(mismatch_is_refused_in_words)                                                                          \
    X(new_boot_id_fences_the_old)                                                                            \
    X(unreachable_peer_ends_the_session)                                                                     \
    X(many_sessions_share_the_link)                                                                          \
    X(link_is_measured)                                                                                      \
    X(idle_transfer_takes_no_cpu)

#define UCX_TEST(name)                                                                                       \
    static void ucx_##name(void **state)                                                                     \
    {                                                                                                        \
        (void)state;                                                                                         \
        case_##name("ucx");                                                                                  \
    }
EACH_CASE(UCX_TEST)

int main(void)
{
#define ENTRY(name) cmocka_unit_test(ucx_##name),
    const struct CMUnitTest tests[] = {EACH_CASE(ENTRY)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
