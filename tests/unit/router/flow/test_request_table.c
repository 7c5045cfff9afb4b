/* tests/unit/router/flow/test_request_table.c - the journal: order, early tokens, gaps, exclusions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "router/flow/request_table.h"

static struct sl_request *add(struct sl_request_table *t, const char *id)
{
    struct sl_arena *a = sl_arena_new(1 << 20);
    struct sl_gen_req *q = sl_arena_alloc(a, sizeof *q);
    q->arena = a;
    snprintf(q->id, sizeof q->id, "%s", id);
    return sl_request_table_add(t, q);
}

static void table_ids_are_found_and_listed_by_age(void **s)
{
    (void)s;
    struct sl_request_table *t = sl_request_table_new();
    struct sl_request *a = add(t, "a"), *b = add(t, "b");
    assert_ptr_equal(sl_request_table_find(t, "b"), b);
    assert_null(sl_request_table_find(t, "c"));
    assert_ptr_equal(sl_request_table_next(t, NULL), a);
    assert_ptr_equal(sl_request_table_next(t, a), b);
    assert_null(sl_request_table_next(t, b));
    assert_int_equal(sl_request_table_len(t), 2);
    sl_request_table_remove(t, a);
    assert_ptr_equal(sl_request_table_next(t, NULL), b);
    sl_request_table_remove(t, b);
    sl_request_table_free(t);
}

static bool hold(struct sl_request *r, uint32_t index)
{
    int32_t top[] = {(int32_t)index, 7};
    float prob[] = {-1, -2};
    Sluice__TokenEvent ev = SLUICE__TOKEN_EVENT__INIT;
    ev.request_id = (char *)"a";
    ev.index = index;
    ev.token = (int32_t)(100 + index);
    ev.n_top_tokens = ev.n_top_logprobs = 2;
    ev.top_tokens = top;
    ev.top_logprobs = prob;
    return sl_request_hold(r, &ev);
}

static void held_tokens_come_back_in_order_with_their_arrays(void **s)
{
    (void)s;
    struct sl_request_table *t = sl_request_table_new();
    struct sl_request *r = add(t, "a");
    assert_true(hold(r, 5));
    assert_true(hold(r, 3));
    assert_true(hold(r, 4));
    assert_false(hold(r, 4)); /* a duplicate */
    assert_null(sl_request_take_held(r, 2));
    for (uint32_t i = 3; i <= 5; i++) {
        struct sl_held *h = sl_request_take_held(r, i);
        assert_non_null(h);
        const Sluice__TokenEvent *ev = sl_held_event(h);
        assert_int_equal(ev->token, 100 + i);
        assert_int_equal(ev->top_tokens[0], i);
        assert_true(ev->top_logprobs[1] == -2);
        assert_string_equal(ev->request_id, "a");
        sl_held_free(h);
    }
    assert_int_equal(r->n_held, 0);
    sl_request_table_remove(t, r);
    sl_request_table_free(t);
}

static void held_tokens_are_bounded_and_old_ones_dropped(void **s)
{
    (void)s;
    struct sl_request_table *t = sl_request_table_new();
    struct sl_request *r = add(t, "a");
    for (uint32_t i = 1; i <= SL_HELD_MAX; i++)
        assert_true(hold(r, i));
    assert_false(hold(r, SL_HELD_MAX + 1));
    struct sl_held *h = sl_request_take_held(r, SL_HELD_MAX); /* skips what is before */
    assert_int_equal(sl_held_event(h)->index, SL_HELD_MAX);
    sl_held_free(h);
    assert_int_equal(r->n_held, 0);
    sl_request_table_remove(t, r);
    sl_request_table_free(t);
}

static void gaps_leave_out_the_first_two_tokens(void **s)
{
    (void)s;
    struct sl_request_table *t = sl_request_table_new();
    struct sl_request *r = add(t, "a");
    static const uint64_t at_us[] = {1000, 501000, 511000, 531000, 541000, 841000};
    double median, max;
    for (size_t i = 0; i < SL_COUNTOF(at_us); i++) {
        if (i == 2) {
            sl_request_gaps(r, &median, &max);
            assert_true(median < 0 && max < 0);
        }
        sl_request_receive(r, (int32_t)i, at_us[i]);
    }
    sl_request_gaps(r, &median, &max); /* 10 20 10 300 */
    assert_true(fabs(median - 15) < 1e-9);
    assert_true(fabs(max - 300) < 1e-9);
    assert_int_equal(r->received[5], 5);
    sl_request_table_remove(t, r);
    sl_request_table_free(t);
}

static void excluded_is_one_life_of_a_node(void **s)
{
    (void)s;
    struct sl_request_table *t = sl_request_table_new();
    struct sl_request *r = add(t, "a");
    sl_request_exclude(r, "d0", 1);
    sl_request_exclude(r, "d0", 1);
    assert_int_equal(r->n_excluded, 1);
    assert_true(sl_request_is_excluded(r, "d0", 1));
    assert_false(sl_request_is_excluded(r, "d0", 2)); /* restarted: a new chance */
    for (uint64_t i = 0; i < 2 * SL_EXCLUDED_MAX; i++)
        sl_request_exclude(r, "x", i);
    assert_int_equal(r->n_excluded, SL_EXCLUDED_MAX);
    sl_request_table_remove(t, r);
    sl_request_table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_ids_are_found_and_listed_by_age),
        cmocka_unit_test(held_tokens_come_back_in_order_with_their_arrays),
        cmocka_unit_test(held_tokens_are_bounded_and_old_ones_dropped),
        cmocka_unit_test(gaps_leave_out_the_first_two_tokens),
        cmocka_unit_test(excluded_is_one_life_of_a_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
