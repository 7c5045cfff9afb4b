/* tests/unit/router/admin/test_step_log.c - steps of several nodes on one clock, what a reader gets, and what is
 * lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <jansson.h>

#include "common/base/mem.h"
#include "router/admin/step_log.h"

#define OPENED_US 5000000u

/* n steps that end every 10 ms from ended_us of uptime on, told at uptime_us. */
static uint64_t tell(struct sl_step_log *l, const char *node, uint64_t boot_id, uint64_t first, size_t n,
                     uint64_t ended_us, uint64_t uptime_us, uint64_t now_us)
{
    Sluice__StepLog m = SLUICE__STEP_LOG__INIT;
    uint64_t *ended = sl_xcalloc(n + 1, sizeof *ended);
    uint32_t *took = sl_xcalloc(n + 1, sizeof *took);
    for (size_t i = 0; i < n; i++) {
        ended[i] = ended_us + 10000 * i;
        took[i] = 9000;
    }
    m.uptime_us = uptime_us;
    m.first_step = first;
    m.ended_us = ended;
    m.took_us = took;
    m.n_ended_us = m.n_took_us = n; /* the other columns are left short */
    uint64_t last = sl_step_log_take(l, node, boot_id, &m, first - 1, now_us);
    sl_free(took);
    sl_free(ended);
    return last;
}

static json_t *ask(struct sl_step_log *l, uint64_t after)
{
    struct sl_buf b;
    json_error_t error;
    sl_buf_init(&b, 8 << 20);
    sl_step_log_json(l, after, OPENED_US + 9000000, &b);
    assert_false(sl_buf_failed(&b));
    json_t *j = json_loadb(b.data, b.len, 0, &error);
    if (!j)
        fail_msg("%s in %.300s", error.text, b.data);
    sl_buf_fini(&b);
    return j;
}

static long long number(const json_t *j, const char *list, size_t i, size_t k)
{
    return json_integer_value(json_array_get(json_array_get(json_object_get(j, list), i), k));
}

static size_t length(const json_t *j, const char *list)
{
    return json_array_size(json_object_get(j, list));
}

static void steps_are_told_once_and_on_the_routers_clock(void **state)
{
    (void)state;
    struct sl_step_log *l = sl_step_log_new(OPENED_US);
    /* p0 started 1 s after the router; the message took no time, the next one 40 ms */
    assert_int_equal(tell(l, "p0", 1, 1, 2, 100000, 200000, OPENED_US + 1200000), 2);
    assert_int_equal(tell(l, "p0", 1, 3, 1, 300000, 400000, OPENED_US + 1440000), 3);
    assert_int_equal(tell(l, "p0", 1, 4, 0, 0, 500000, OPENED_US + 1500000), 3); /* nothing new */
    json_t *j = ask(l, 0);
    assert_int_equal(length(j, "steps"), 3);
    assert_int_equal(number(j, "steps", 0, 1), 1091000);
    assert_int_equal(number(j, "steps", 0, 2), 9000);
    assert_int_equal(number(j, "steps", 0, 4), 0);               /* a column that was left short */
    assert_in_range(number(j, "steps", 2, 1), 1291000, 1291100); /* 40 ms late and not moved by it */
    assert_false(json_is_true(json_object_get(j, "lost")));
    long long next = json_integer_value(json_object_get(j, "next"));
    json_decref(j);
    j = ask(l, (uint64_t)next);
    assert_int_equal(length(j, "steps"), 0);
    assert_int_equal(json_integer_value(json_object_get(j, "next")), next);
    json_decref(j);
    j = ask(l, (uint64_t)next + 99); /* a number of another router's life */
    assert_int_equal(length(j, "steps"), 3);
    json_decref(j);
    sl_step_log_free(l);
}

static void a_restarted_node_is_placed_anew(void **state)
{
    (void)state;
    struct sl_step_log *l = sl_step_log_new(OPENED_US);
    tell(l, "d0", 1, 1, 1, 100000, 100000, OPENED_US + 1000000);
    tell(l, "d0", 2, 1, 1, 50000, 60000, OPENED_US + 7000000);     /* started 6.94 s after the router */
    tell(l, "d0", 2, 2, 1, 999999999, 60001, OPENED_US + 7000001); /* ended after it was told: a lie */
    json_t *j = ask(l, 0);
    assert_int_equal(length(j, "steps"), 2);
    assert_int_equal(length(j, "lanes"), 1);
    assert_int_equal(number(j, "steps", 1, 1), 6990000 - 9000);
    json_decref(j);
    sl_step_log_free(l);
}

static void old_steps_are_lost_and_long_answers_come_in_parts(void **state)
{
    (void)state;
    struct sl_step_log *l = sl_step_log_new(OPENED_US);
    uint64_t n = SL_STEP_LOG + 100;
    for (uint64_t i = 0; i < n; i += 100)
        tell(l, "d0", 1, i + 1, n - i < 100 ? n - i : 100, i, 1000000000, OPENED_US + 1000000000);
    json_t *j = ask(l, 1);
    assert_true(json_is_true(json_object_get(j, "lost")));
    size_t total = 0, parts = 0;
    for (;; parts++) {
        assert_true(length(j, "steps") <= SL_STEP_READ_MAX);
        total += length(j, "steps");
        if (!json_is_true(json_object_get(j, "more")))
            break;
        uint64_t next = (uint64_t)json_integer_value(json_object_get(j, "next"));
        json_decref(j);
        j = ask(l, next);
        assert_false(json_is_true(json_object_get(j, "lost")));
    }
    json_decref(j);
    assert_int_equal(total, SL_STEP_LOG);
    assert_int_equal(parts, SL_STEP_LOG / SL_STEP_READ_MAX - 1);
    sl_step_log_free(l);
}

static void transfers_and_hostile_names_are_text(void **state)
{
    (void)state;
    struct sl_step_log *l = sl_step_log_new(OPENED_US);
    static const char evil[] = "</script><img src=x onerror=alert(1)>\"\\\n\x01";
    tell(l, evil, 1, 1, 1, 10000, 10000, OPENED_US + 20000);
    sl_step_log_transfer(l, &(struct sl_step_transfer){.from = evil,
                                                       .to = "d0",
                                                       .request = "r\"1",
                                                       .start_us = OPENED_US + 5,
                                                       .end_us = OPENED_US + 25,
                                                       .pages = 7});
    json_t *j = ask(l, 0);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(j, "lanes"), 0), "node")), evil);
    assert_int_equal(length(j, "transfers"), 1);
    assert_int_equal(number(j, "transfers", 0, 0), 0);
    assert_int_equal(number(j, "transfers", 0, 1), 1);
    assert_int_equal(number(j, "transfers", 0, 2), 5);
    assert_int_equal(number(j, "transfers", 0, 3), 25);
    assert_int_equal(number(j, "transfers", 0, 4), 7);
    uint64_t next = (uint64_t)json_integer_value(json_object_get(j, "next"));
    json_decref(j);
    j = ask(l, next);
    assert_int_equal(length(j, "transfers"), 0);
    json_decref(j);
    sl_step_log_free(l);
}

static void too_many_names_begin_anew(void **state)
{
    (void)state;
    struct sl_step_log *l = sl_step_log_new(OPENED_US);
    for (unsigned i = 0; i < SL_STEP_LANES + 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "n%u", i);
        tell(l, name, 1, 1, 1, 10000, 10000, OPENED_US + 20000);
    }
    json_t *j = ask(l, 5);
    assert_int_equal(length(j, "lanes"), 3);
    assert_int_equal(length(j, "steps"), 3);
    assert_true(json_is_true(json_object_get(j, "lost")));
    json_decref(j);
    sl_step_log_free(l);
    sl_step_log_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_told_once_and_on_the_routers_clock),
        cmocka_unit_test(a_restarted_node_is_placed_anew),
        cmocka_unit_test(old_steps_are_lost_and_long_answers_come_in_parts),
        cmocka_unit_test(transfers_and_hostile_names_are_text),
        cmocka_unit_test(too_many_names_begin_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
