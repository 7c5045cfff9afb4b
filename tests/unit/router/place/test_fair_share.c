/* tests/unit/router/place/test_fair_share.c - who is next among those that wait, on a server of one token a
 * millisecond that the test plays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "router/place/fair_share.h"
#include "tests/support/support.h"

#define MAX_HELD 4096u
#define US       1000u /* of a token */

struct server {
    struct sl_share share;
    struct sl_share_entry held[MAX_HELD];
    uint32_t n;
    uint64_t now_us;
    double done[3]; /* work by key */
    struct sl_account keys[3];
};

static struct server *server(double w0, double w1, double w2)
{
    static struct server s;
    memset(&s, 0, sizeof s);
    const double weights[] = {w0, w1, w2};
    for (unsigned k = 0; k < 3; k++)
        s.keys[k].weight = weights[k];
    return &s;
}

/* No two come at the same time, so it is clear which came first. */
static void ask(struct server *s, unsigned key, int32_t priority, double work)
{
    s->now_us++;
    sl_share_enter(&s->share, &s->keys[key], s->held, s->n, s->now_us);
    s->held[s->n++] = (struct sl_share_entry){.account = &s->keys[key],
                                              .priority = priority,
                                              .arrived_us = s->now_us,
                                              .since_us = s->now_us,
                                              .work = work};
}

/* Serves the next one; returns its key. */
static unsigned serve(struct server *s, struct sl_share_entry *out)
{
    uint32_t i = sl_share_next(s->held, s->n, s->now_us);
    assert_int_not_equal(i, SL_SHARE_NONE);
    sl_share_served(&s->share, s->held, s->n, i, s->now_us);
    struct sl_share_entry h = s->held[i];
    s->held[i] = s->held[--s->n];
    sl_share_charge(h.account, h.work);
    s->now_us += (uint64_t)(h.work * US);
    unsigned key = (unsigned)(h.account - s->keys);
    s->done[key] += h.work;
    if (out)
        *out = h;
    return key;
}

static void greedy_key_gets_its_share_and_no_more(void **state)
{
    (void)state;
    struct server *s = server(1, 1, 2);
    for (unsigned i = 0; i < 1000; i++)
        ask(s, 0, 0, 100);
    for (unsigned i = 0; i < 300; i++) {
        ask(s, 1, 0, 50);
        ask(s, 2, 0, 10 + i % 90);
    }
    for (unsigned i = 0; i < 200; i++)
        serve(s, NULL);
    assert_true(fabs(s->done[0] - s->done[1]) <= 100); /* shares differ by one request at most */
    assert_true(fabs(s->done[2] - 2 * s->done[1]) <= 200);
}

static void key_that_asks_for_little_waits_for_nobodys_backlog(void **state)
{
    (void)state;
    struct server *s = server(1, 1, 1);
    for (unsigned i = 0; i < 500; i++)
        ask(s, 0, 0, 100);
    for (unsigned i = 0; i < 100; i++)
        serve(s, NULL);
    ask(s, 1, 0, 100);
    serve(s, NULL);
    serve(s, NULL);
    assert_true(s->done[1] > 0); /* one of the next two, after a hundred of the other's */
}

static void idle_time_saves_up_no_share(void **state)
{
    (void)state;
    struct server *s = server(1, 1, 1);
    for (unsigned i = 0; i < 300; i++)
        ask(s, 0, 0, 10);
    for (unsigned i = 0; i < 100; i++)
        serve(s, NULL);
    for (unsigned i = 0; i < 300; i++)
        ask(s, 1, 0, 10);
    double before = s->done[0];
    for (unsigned i = 0; i < 100; i++)
        serve(s, NULL);
    assert_true(fabs(s->done[0] - before - s->done[1]) <= 20);
}

/* What a key used while there was enough for all does not count when there is not. */
static void plenty_is_not_held_against_a_key(void **state)
{
    (void)state;
    struct server *s = server(1, 1, 1);
    sl_share_charge(&s->keys[0], 1e6);
    ask(s, 1, 0, 10);
    ask(s, 0, 0, 10);
    ask(s, 0, 0, 10);
    ask(s, 1, 0, 10);
    serve(s, NULL);
    serve(s, NULL);
    assert_true(s->done[0] > 0 && s->done[1] > 0);
}

static void urgent_class_goes_first_and_the_other_is_not_starved(void **state)
{
    (void)state;
    struct server *s = server(1, 1, 1);
    unsigned late = 0, served = 0;
    ask(s, 1, 2, 10); /* two levels: twenty seconds without service */
    for (; s->now_us < 60 * UINT64_C(1000000) && s->done[1] <= 0; served++) {
        ask(s, 0, 0, 100);
        ask(s, 0, 0, 100);
        struct sl_share_entry h;
        late += serve(s, &h) == 1 && s->now_us < 20 * UINT64_C(1000000);
    }
    assert_int_equal(late, 0);
    assert_true(s->done[1] > 0);
    assert_true(s->now_us < 21 * UINT64_C(1000000));
}

static void short_ones_pass_a_long_one_but_do_not_starve_it(void **state)
{
    (void)state;
    struct server *s = server(1, 1, 1);
    ask(s, 0, -1, 500);
    double passed = 0;
    for (unsigned i = 0; i < 100; i++) {
        ask(s, 1, 0, 30);
        sl_share_anew(s->held, s->n);
        assert_int_equal(sl_share_next(s->held, s->n, s->now_us),
                         0); /* its turn, but there is no room for it */
        sl_share_skip(&s->held[0]);
        uint32_t k = sl_share_next(s->held, s->n, s->now_us);
        if (k == SL_SHARE_NONE)
            break;
        sl_share_served(&s->share, s->held, s->n, k, s->now_us);
        passed += s->held[k].work;
        s->held[k] = s->held[--s->n];
    }
    assert_true(passed > 400 && passed < 500);
    assert_true(s->n > 1);
}

/* Random keys, weights, classes and works: everything that came is served once, keys that wait all the time
 * get shares by weight, and what a newcomer was told to expect is what it had to wait when nobody came after.
 */
static void random_walks_keep_the_promises(void **state)
{
    (void)state;
    unsigned long long rng = 7;
    for (unsigned walk = 0; walk < 200; walk++) {
        struct server *s = server(1 + (double)(sl_test_random(&rng) % 4), 1, 0.5);
        unsigned asked = 0, served = 0;
        double work = 0;
        for (unsigned i = 0; i < 300; i++) {
            if (sl_test_random(&rng) % 3) {
                const double w = 1 + (double)(sl_test_random(&rng) % 20);
                const unsigned key = (unsigned)(sl_test_random(&rng) % 3);
                ask(s, key, (int32_t)(sl_test_random(&rng) % 3), w);
                work += w;
                asked++;
            } else if (s->n) {
                serve(s, NULL);
                served++;
            }
        }
        const struct sl_share_entry mine = {.account = &s->keys[walk % 3], .priority = 1, .work = 5};
        sl_share_enter(&s->share, mine.account, s->held, s->n, s->now_us);
        s->share.drain = mine.account->drain = (struct sl_drain){0}; /* nothing seen: a token a millisecond */
        double ahead = sl_share_wait_ms(&s->share, s->held, s->n, &mine, 1), total = 0, largest = 0;
        for (uint32_t i = 0; i < s->n; i++) {
            total += s->held[i].work;
            largest = fmax(largest, s->held[i].work);
        }
        assert_true(ahead >= 0 && ahead <= total + 1e-6);
        uint64_t began = s->now_us;
        ask(s, walk % 3, 1, 5);
        asked++;
        work += 5;
        struct sl_share_entry *me = &s->held[s->n - 1];
        me->who = me;
        while (s->n) {
            struct sl_share_entry h;
            uint64_t before = s->now_us;
            serve(s, &h);
            served++;
            if (h.who) { /* each other key is a request ahead or behind at most; nothing ages in seconds */
                const double waited = (double)(before - began) / US;
                assert_true(fabs(waited - ahead) <= 2 * largest + 1e-6);
            }
        }
        assert_int_equal(asked, served);
        assert_true(fabs(s->done[0] + s->done[1] + s->done[2] - work) < 1e-6);
    }
}

static void waiting_time_follows_what_was_seen(void **state)
{
    (void)state;
    struct server *s = server(1, 1, 1);
    for (unsigned i = 0; i < 10; i++)
        ask(s, 0, 0, 100);
    const struct sl_share_entry mine = {.account = &s->keys[0], .work = 100};
    assert_true(fabs(sl_share_wait_ms(&s->share, s->held, s->n, &mine, 2) - 500) < 1e-6); /* as predicted */
    for (unsigned i = 0; i < 1000; i++) {
        ask(s, 0, 0, 100);
        serve(s, NULL);
    }
    assert_true(fabs(sl_share_wait_ms(&s->share, s->held, s->n, &mine, 2) - 1000) < 100); /* as it was */
    for (unsigned i = 0; i < 400; i++) { /* now a more urgent class takes half */
        ask(s, 1, -1, 100);
        serve(s, NULL);
        ask(s, 0, 0, 100);
        serve(s, NULL);
    }
    assert_true(fabs(sl_share_wait_ms(&s->share, s->held, s->n, &mine, 2) - 2000) < 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_key_gets_its_share_and_no_more),
        cmocka_unit_test(key_that_asks_for_little_waits_for_nobodys_backlog),
        cmocka_unit_test(idle_time_saves_up_no_share),
        cmocka_unit_test(plenty_is_not_held_against_a_key),
        cmocka_unit_test(urgent_class_goes_first_and_the_other_is_not_starved),
        cmocka_unit_test(short_ones_pass_a_long_one_but_do_not_starve_it),
        cmocka_unit_test(random_walks_keep_the_promises),
        cmocka_unit_test(waiting_time_follows_what_was_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
