/* router/api/key_limits: the words of a key's limits, and its account by a clock of our own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "router/api/key_limits.h"

#define S 1000000ull

static struct sl_key_limits parsed(const char *text)
{
    struct sl_key_limits l;
    struct sl_why why = {{0}};
    if (sl_key_limits_parse(text, strlen(text), &l, &why) != SL_OK)
        fail_msg("%s", why.text);
    return l;
}

static void words_are_read_or_refused_by_name(void **state)
{
    (void)state;
    struct sl_key_limits l = parsed(
        "  max_requests=3 requests_per_minute=60\ttokens_per_minute=5000 min_priority=-2 classes=a|b ");
    assert_int_equal(l.max_requests, 3);
    assert_int_equal(l.requests_per_minute, 60);
    assert_int_equal(l.tokens_per_minute, 5000);
    assert_true(l.has_min_priority && l.min_priority == -2);
    assert_string_equal(l.classes, "|a|b|");
    assert_false(l.admin);
    sl_key_limits_fini(&l);
    l = parsed("admin=yes");
    assert_true(l.admin);
    l = parsed("");
    assert_true(!l.max_requests && !l.requests_per_minute && !l.tokens_per_minute && !l.has_min_priority &&
                !l.classes);
    static const char *const bad[][2] = {
        {"max_request=3", "max_request=3"},
        {"max_requests=0", "no value that fits"},
        {"max_requests", "max_requests"},
        {"max_requests=1x", "max_requests=1x"},
        {"classes=", "classes="},
        {"classes=a tokens_per_minute=-1", "tokens_per_minute=-1"},
        {"min_priority=99999999999", "min_priority"},
        {"admin", "admin"},
        {"admin=maybe", "admin=maybe"},
    };
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        struct sl_why why = {{0}};
        assert_int_equal(sl_key_limits_parse(bad[i][0], strlen(bad[i][0]), &l, &why), SL_ECONFIG);
        if (!strstr(why.text, bad[i][1]))
            fail_msg("%s: %s", bad[i][0], why.text);
    }
}

static void classes_and_priorities_beyond_the_key_are_forbidden(void **state)
{
    (void)state;
    static const struct {
        const char *limits, *asked;
        int32_t priority;
        bool allowed;
    } cases[] = {
        {"", "gold", -5, true},
        {"classes=gold|batch", "gold", 0, true},
        {"classes=gold|batch", "batch", 0, true},
        {"classes=gold|batch", NULL, 0, true},
        {"classes=gold|batch", "gol", 0, false},
        {"classes=gold|batch", "gold|batch", 0, false},
        {"classes=gold|batch", "", 0, false},
        {"min_priority=0", NULL, 0, true},
        {"min_priority=0", NULL, 7, true},
        {"min_priority=0", NULL, -1, false},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_key_limits l = parsed(cases[i].limits);
        struct sl_gen_req req = {.priority = cases[i].priority};
        struct sl_fault fault = {0};
        assert_int_equal(sl_key_limits_allow(&l, "alice", cases[i].asked, &req, &fault), cases[i].allowed);
        assert_int_equal(fault.status, cases[i].allowed ? 0 : 403);
        sl_key_limits_fini(&l);
    }
}

static enum sl_err take(struct sl_key_account *a, const struct sl_key_limits *l, uint64_t at_us,
                        uint64_t tokens, uint32_t *retry_s)
{
    struct sl_why why = {{0}};
    enum sl_err e = sl_key_account_take(a, l, at_us, tokens, retry_s, &why);
    assert_int_equal(e == SL_OK, !why.text[0]);
    return e;
}

/* Retry-After is kept: a second before it is too early, then it is not. */
static void limits_per_minute_say_when_they_let_through(void **state)
{
    (void)state;
    static const struct {
        const char *limits;
        uint64_t tokens; /* of each request */
        uint64_t answer; /* ... and its answer */
        unsigned n;      /* requests that go at once */
        uint32_t retry_s;
    } cases[] = {
        {"requests_per_minute=6", 1000000, 0, 6, 10},
        {"requests_per_minute=1", 1, 0, 1, 60},
        {"tokens_per_minute=600", 200, 0, 3, 20},
        {"tokens_per_minute=600", 200, 900, 1, 70}, /* 600 - 200 - 900 is a debt of 500 */
        {"tokens_per_minute=600", 5000, 0, 1, 500}, /* larger than the bucket: goes when it is full */
        {"requests_per_minute=3 tokens_per_minute=6000", 1, 0, 3, 20},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_key_limits l = parsed(cases[i].limits);
        struct sl_key_account a;
        uint32_t retry_s = 0;
        uint64_t now = 5 * S;
        sl_key_account_init(&a);
        for (unsigned k = 0; k < cases[i].n; k++) {
            assert_int_equal(take(&a, &l, now, cases[i].tokens, &retry_s), SL_OK);
            sl_key_account_give(&a, now, now, cases[i].answer);
        }
        assert_int_equal(take(&a, &l, now, cases[i].tokens, &retry_s), SL_EAGAIN);
        assert_int_equal(retry_s, cases[i].retry_s);
        assert_int_equal(take(&a, &l, now + (retry_s - 1) * S, cases[i].tokens, &retry_s), SL_EAGAIN);
        assert_int_equal(retry_s, 1);
        assert_int_equal(take(&a, &l, now + cases[i].retry_s * S, cases[i].tokens, &retry_s), SL_OK);
        sl_key_account_fini(&a);
        sl_key_limits_fini(&l);
    }
}

static void requests_open_at_once_are_counted_by_their_end(void **state)
{
    (void)state;
    struct sl_key_limits l = parsed("max_requests=2"), none = parsed("");
    struct sl_key_account a;
    uint32_t retry_s = 0;
    sl_key_account_init(&a);
    assert_int_equal(take(&a, &l, 0, 1, &retry_s), SL_OK);
    assert_int_equal(take(&a, &l, 0, 1, &retry_s), SL_OK);
    assert_int_equal(take(&a, &l, 0, 1, &retry_s), SL_EAGAIN);
    assert_int_equal(retry_s, 1); /* nothing is known yet */
    sl_key_account_give(&a, 0, 12 * S, 100);
    assert_int_equal(take(&a, &l, 12 * S, 1, &retry_s), SL_OK);
    assert_int_equal(take(&a, &l, 12 * S, 1, &retry_s), SL_EAGAIN);
    assert_int_equal(retry_s, 6); /* two that take 12 s each: one ends every 6 s */
    /* a reload may take the limit away, or bring another: what was used without a limit is no debt */
    assert_int_equal(take(&a, &none, 12 * S, 1, &retry_s), SL_OK);
    struct sl_key_limits late = parsed("tokens_per_minute=10");
    assert_int_equal(take(&a, &late, 12 * S, 5, &retry_s), SL_OK);
    sl_key_account_fini(&a);
    sl_key_limits_fini(&l);
}

static void a_clock_read_before_another_thread_took_refills_nothing(void **state)
{
    (void)state;
    struct sl_key_limits l = parsed("requests_per_minute=2 tokens_per_minute=100");
    struct sl_key_account a;
    uint32_t retry_s = 0;
    sl_key_account_init(&a);
    assert_int_equal(take(&a, &l, 10 * S, 10, &retry_s), SL_OK);
    assert_int_equal(take(&a, &l, 10 * S - 1, 10, &retry_s), SL_OK);
    assert_int_equal(take(&a, &l, 10 * S - 2, 10, &retry_s), SL_EAGAIN);
    assert_int_equal(retry_s, 30);
    sl_key_account_fini(&a);
}

static void what_is_undone_was_never_taken(void **state)
{
    (void)state;
    struct sl_key_limits l = parsed("max_requests=1 requests_per_minute=1 tokens_per_minute=100");
    struct sl_key_account a;
    uint32_t retry_s = 0;
    sl_key_account_init(&a);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(take(&a, &l, 10 * S, 100, &retry_s), SL_OK);
        sl_key_account_undo(&a, 100);
    }
    assert_true(a.mean_us == 0);
    assert_int_equal(take(&a, &l, 10 * S, 100, &retry_s), SL_OK);
    assert_int_equal(take(&a, &l, 10 * S, 100, &retry_s), SL_EAGAIN);
    sl_key_account_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_read_or_refused_by_name),
        cmocka_unit_test(classes_and_priorities_beyond_the_key_are_forbidden),
        cmocka_unit_test(limits_per_minute_say_when_they_let_through),
        cmocka_unit_test(requests_open_at_once_are_counted_by_their_end),
        cmocka_unit_test(a_clock_read_before_another_thread_took_refills_nothing),
        cmocka_unit_test(what_is_undone_was_never_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
