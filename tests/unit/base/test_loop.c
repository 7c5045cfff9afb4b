/* fds, timers and removal inside callbacks of common/base/loop. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/loop.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "tests/support/support.h"

#define FOREVER_MS 60000u

struct fixture {
    struct sl_loop *loop;
    int pipes[4][2];
    int hits[4];
    int victim; /* the pipe whose fd a callback removes, or -1 */
};

struct watch {
    struct fixture *f;
    int index;
};

static void setup(struct fixture *f)
{
    *f = (struct fixture){.victim = -1};
    assert_int_equal(sl_loop_open(&f->loop), SL_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pipe2(f->pipes[i], O_NONBLOCK | O_CLOEXEC), 0);
}

static void teardown(struct fixture *f)
{
    sl_loop_close(f->loop);
    for (int i = 0; i < 4; i++) {
        close(f->pipes[i][0]);
        close(f->pipes[i][1]);
    }
}

static void fill(struct fixture *f, int i)
{
    assert_int_equal(write(f->pipes[i][1], "x", 1), 1);
}

static void on_read(void *arg, uint32_t events)
{
    struct watch *w = arg;
    char byte;
    assert_true(events & EPOLLIN);
    assert_int_equal(read(w->f->pipes[w->index][0], &byte, 1), 1);
    w->f->hits[w->index]++;
    if (w->f->victim >= 0 && w->f->victim != w->index)
        sl_loop_remove(w->f->loop, w->f->pipes[w->f->victim][0]);
}

static void fd_ready_calls_back_while_data_is_there(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct watch w = {&f, 0};
    assert_int_equal(sl_loop_add(f.loop, f.pipes[0][0], EPOLLIN, on_read, &w), SL_OK);
    sl_loop_once(f.loop, 0);
    assert_int_equal(f.hits[0], 0);
    fill(&f, 0);
    fill(&f, 0);
    sl_loop_once(f.loop, FOREVER_MS);
    sl_loop_once(f.loop, FOREVER_MS);
    assert_int_equal(f.hits[0], 2);
    sl_loop_once(f.loop, 0);
    assert_int_equal(f.hits[0], 2);
    fill(&f, 0);
    sl_loop_remove(f.loop, f.pipes[0][0]);
    sl_loop_remove(f.loop, f.pipes[0][0]);
    sl_loop_remove(f.loop, 100000);
    sl_loop_remove(f.loop, -1);
    sl_loop_once(f.loop, 0);
    assert_int_equal(f.hits[0], 2);
    teardown(&f);
}

static void fd_that_epoll_refuses_is_an_error(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct watch w = {&f, 0};
    char *path = sl_test_temp_file("", 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(sl_loop_add(f.loop, -1, EPOLLIN, on_read, &w), SL_EINVAL);
    assert_int_equal(sl_loop_add(f.loop, fd, EPOLLIN, on_read, &w), SL_EIO); /* a regular file */
    sl_loop_remove(f.loop, fd);
    close(fd);
    assert_int_equal(sl_loop_add(f.loop, fd, EPOLLIN, on_read, &w), SL_EIO); /* closed */
    unlink(path);
    sl_free(path);
    teardown(&f);
}

static void add_again_changes_events_and_argument(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct watch w0 = {&f, 0}, w1 = {&f, 1};
    assert_int_equal(sl_loop_add(f.loop, f.pipes[0][0], EPOLLIN, on_read, &w1), SL_OK);
    assert_int_equal(sl_loop_add(f.loop, f.pipes[0][0], EPOLLIN, on_read, &w0), SL_OK);
    fill(&f, 0);
    sl_loop_once(f.loop, FOREVER_MS);
    assert_int_equal(f.hits[0], 1);
    assert_int_equal(f.hits[1], 0);
    assert_int_equal(sl_loop_add(f.loop, f.pipes[0][0], 0, on_read, &w0), SL_OK);
    fill(&f, 0);
    sl_loop_once(f.loop, 0);
    assert_int_equal(f.hits[0], 1);
    assert_int_equal(sl_loop_add(f.loop, f.pipes[0][0], EPOLLIN, on_read, &w0), SL_OK);
    sl_loop_once(f.loop, 0);
    assert_int_equal(f.hits[0], 2);
    teardown(&f);
}

/* Both are ready in the same round; whichever is called first removes the other. */
static void remove_of_another_ready_fd_drops_its_event(void **state)
{
    (void)state;
    for (int victim = 0; victim < 2; victim++) {
        struct fixture f;
        setup(&f);
        struct watch w[2] = {{&f, 0}, {&f, 1}};
        for (int i = 0; i < 2; i++) {
            assert_int_equal(sl_loop_add(f.loop, f.pipes[i][0], EPOLLIN, on_read, &w[i]), SL_OK);
            fill(&f, i);
        }
        f.victim = victim;
        /* epoll gives the events in the order they came; pipe 0 is first */
        sl_loop_once(f.loop, FOREVER_MS);
        assert_int_equal(f.hits[0], 1);
        assert_int_equal(f.hits[1], victim == 1 ? 0 : 1);
        sl_loop_once(f.loop, 0);
        assert_int_equal(f.hits[1], victim == 1 ? 0 : 1);
        teardown(&f);
    }
}

static void on_reuse(void *arg, uint32_t events)
{
    struct watch *w = arg;
    (void)events;
    w->f->hits[w->index]++;
}

/* Closes pipe 1, whose event waits in the same round, and puts pipe 2 under the same fd number. */
static void on_read_replace(void *arg, uint32_t events)
{
    struct watch *w = arg;
    struct fixture *f = w[0].f;
    on_read(&w[0], events);
    sl_loop_remove(f->loop, f->pipes[1][0]);
    assert_true(dup2(f->pipes[2][0], f->pipes[1][0]) >= 0);
    assert_int_equal(sl_loop_add(f->loop, f->pipes[1][0], EPOLLIN, on_reuse, &w[2]), SL_OK);
}

static void fd_number_reused_in_a_callback_gets_no_old_event(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct watch w[3] = {{&f, 0}, {&f, 1}, {&f, 2}};
    assert_int_equal(sl_loop_add(f.loop, f.pipes[0][0], EPOLLIN, on_read_replace, w), SL_OK);
    assert_int_equal(sl_loop_add(f.loop, f.pipes[1][0], EPOLLIN, on_read, &w[1]), SL_OK);
    fill(&f, 0);
    fill(&f, 1);
    sl_loop_once(f.loop, FOREVER_MS);
    assert_int_equal(f.hits[0], 1);
    assert_int_equal(f.hits[1], 0);
    assert_int_equal(f.hits[2], 0); /* pipe 2 is empty */
    fill(&f, 2);
    sl_loop_once(f.loop, FOREVER_MS);
    assert_int_equal(f.hits[2], 1);
    teardown(&f);
}

static void fd_closed_without_remove_can_be_added_again(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct watch w = {&f, 0};
    assert_int_equal(sl_loop_add(f.loop, f.pipes[0][0], EPOLLIN, on_read, &w), SL_OK);
    int fd = f.pipes[0][0];
    close(fd);
    assert_true(dup2(f.pipes[1][0], fd) == fd);
    assert_int_equal(sl_loop_add(f.loop, fd, EPOLLIN, on_read, &w), SL_OK);
    fill(&f, 1);
    sl_loop_once(f.loop, FOREVER_MS);
    assert_int_equal(f.hits[0], 1);
    teardown(&f);
}

struct order {
    int fired[64];
    int n;
};

struct tick {
    struct order *order;
    int number;
    struct sl_timer *timer, *other;
    int again; /* times it arms itself with 0 */
};

static void on_tick(void *arg)
{
    struct tick *t = arg;
    t->order->fired[t->order->n++] = t->number;
    if (t->again-- > 0)
        sl_timer_set(t->timer, 0);
}

static void timers_fire_by_due_time_then_by_arming(void **state)
{
    (void)state;
    struct sl_loop *l;
    assert_int_equal(sl_loop_open(&l), SL_OK);
    struct order order = {.n = 0};
    static const uint64_t after[] = {30, 0, 20, 0, 10, 10, UINT64_MAX, 30};
    struct tick t[8];
    for (int i = 0; i < 8; i++) {
        t[i] = (struct tick){.order = &order, .number = i};
        t[i].timer = sl_timer_new(l, on_tick, &t[i]);
    }
    uint64_t start;
    do { /* anew when this thread lost its CPU meanwhile: the times are 10 ms apart */
        start = sl_now_ns();
        for (int i = 0; i < 8; i++)
            sl_timer_set(t[i].timer, after[i]);
    } while (sl_now_ns() - start >= 10 * 1000000u);
    while (order.n < 7)
        sl_loop_once(l, FOREVER_MS);
    assert_true(sl_now_ns() - start >= 30 * 1000000u);
    static const int expected[] = {1, 3, 4, 5, 2, 0, 7};
    assert_memory_equal(order.fired, expected, sizeof expected);
    for (int i = 0; i < 8; i++)
        sl_timer_free(t[i].timer);
    sl_timer_free(NULL);
    sl_loop_close(l);
}

static void timer_wait_ends_when_it_is_due_and_not_before(void **state)
{
    (void)state;
    struct sl_loop *l;
    assert_int_equal(sl_loop_open(&l), SL_OK);
    struct order order = {.n = 0};
    struct tick t = {.order = &order};
    t.timer = sl_timer_new(l, on_tick, &t);
    for (int i = 1; i <= 5; i++) {
        sl_timer_set(t.timer, 2);
        sl_loop_once(l, FOREVER_MS); /* no second round for the last part of a millisecond */
        assert_int_equal(order.n, i);
    }
    sl_timer_free(t.timer);
    sl_loop_close(l);
}

static void on_tick_note_late(void *arg)
{
    struct tick *t = arg;
    t->order->fired[t->order->n++] = (int)sl_timer_late_ms(t->timer);
}

static void timer_called_late_knows_it(void **state)
{
    (void)state;
    struct sl_loop *l;
    assert_int_equal(sl_loop_open(&l), SL_OK);
    struct order order = {.n = 0};
    struct tick t = {.order = &order};
    t.timer = sl_timer_new(l, on_tick_note_late, &t);
    sl_timer_set(t.timer, 1);
    const uint64_t set_ns = sl_now_ns();
    while (sl_now_ns() - set_ns < 6 * 1000000u) {
    }
    sl_loop_once(l, FOREVER_MS);
    assert_true(order.fired[0] >= 5);
    sl_timer_free(t.timer);
    sl_loop_close(l);
}

static void timer_that_rearms_with_zero_fires_once_a_round(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct order order = {.n = 0};
    struct tick t = {.order = &order, .again = 3};
    t.timer = sl_timer_new(f.loop, on_tick, &t);
    sl_timer_set(t.timer, 0);
    for (int round = 1; round <= 4; round++) {
        sl_loop_once(f.loop, FOREVER_MS);
        assert_int_equal(order.n, round);
    }
    sl_loop_once(f.loop, 0);
    assert_int_equal(order.n, 4);
    sl_timer_free(t.timer);
    teardown(&f);
}

static void on_tick_free_self_and_other(void *arg)
{
    struct tick *t = arg;
    t->order->fired[t->order->n++] = t->number;
    sl_timer_free(t->other);
    sl_timer_free(t->timer);
}

static void timer_freed_in_its_own_callback_with_another_due(void **state)
{
    (void)state;
    struct sl_loop *l;
    assert_int_equal(sl_loop_open(&l), SL_OK);
    struct order order = {.n = 0};
    struct tick victim = {.order = &order, .number = 2}, last = {.order = &order, .number = 3};
    struct tick killer = {.order = &order, .number = 1};
    killer.timer = sl_timer_new(l, on_tick_free_self_and_other, &killer);
    killer.other = victim.timer = sl_timer_new(l, on_tick, &victim);
    last.timer = sl_timer_new(l, on_tick, &last);
    sl_timer_set(killer.timer, 0);
    sl_timer_set(victim.timer, 0);
    sl_timer_set(last.timer, 0);
    while (order.n < 2)
        sl_loop_once(l, FOREVER_MS);
    sl_loop_once(l, 0);
    assert_int_equal(order.n, 2);
    assert_int_equal(order.fired[0], 1);
    assert_int_equal(order.fired[1], 3);
    sl_timer_free(last.timer);
    sl_loop_close(l);
}

static void timer_cleared_or_set_later_does_not_fire(void **state)
{
    (void)state;
    struct sl_loop *l;
    assert_int_equal(sl_loop_open(&l), SL_OK);
    struct order order = {.n = 0};
    struct tick a = {.order = &order, .number = 1}, b = {.order = &order, .number = 2};
    a.timer = sl_timer_new(l, on_tick, &a);
    b.timer = sl_timer_new(l, on_tick, &b);
    sl_timer_set(a.timer, 0);
    sl_timer_clear(a.timer);
    sl_timer_clear(a.timer);
    sl_timer_set(b.timer, 0);
    sl_timer_set(b.timer, 1000000); /* replaces the first */
    sl_loop_once(l, 0);
    assert_int_equal(order.n, 0);
    sl_timer_free(a.timer);
    sl_loop_close(l);
    sl_timer_free(b.timer); /* armed, and the loop is gone */
}

/* The heap under arming, moving and clearing in random order: what fires is sorted, and is exactly what was
 * armed. */
static void timers_random_arming_fires_in_order(void **state)
{
    (void)state;
    enum { N = 60 };
    unsigned long long seed = 3;
    for (int round = 0; round < 20; round++) {
        struct sl_loop *l;
        assert_int_equal(sl_loop_open(&l), SL_OK);
        struct order order = {.n = 0};
        struct tick t[N];
        uint64_t step[N];
        bool armed[N] = {false};
        for (int i = 0; i < N; i++) {
            t[i] = (struct tick){.order = &order, .number = i};
            t[i].timer = sl_timer_new(l, on_tick, &t[i]);
        }
        /* delays 10 s apart, so that the order does not depend on when the calls are made */
        for (int i = 0; i < 500; i++) {
            size_t k = sl_test_random(&seed) % N;
            armed[k] = sl_test_random(&seed) % 4 != 0;
            step[k] = sl_test_random(&seed) % 50;
            if (armed[k])
                sl_timer_set(t[k].timer, 10000 * (step[k] + 1));
            else
                sl_timer_clear(t[k].timer);
        }
        /* then all of them come due by being set again in the order of their delays */
        int n_armed = 0;
        for (uint64_t s = 0; s < 50; s++)
            for (int k = 0; k < N; k++)
                if (armed[k] && step[k] == s) {
                    sl_timer_set(t[k].timer, 0);
                    n_armed++;
                }
        while (order.n < n_armed)
            sl_loop_once(l, FOREVER_MS);
        sl_loop_once(l, 0);
        assert_int_equal(order.n, n_armed);
        for (int i = 1; i < order.n; i++) {
            uint64_t before = step[order.fired[i - 1]], now = step[order.fired[i]];
            assert_true(before < now || (before == now && order.fired[i - 1] < order.fired[i]));
        }
        for (int i = 0; i < N; i++)
            sl_timer_free(t[i].timer);
        sl_loop_close(l);
    }
}

static void stop_from_outside(void *arg)
{
    sl_loop_stop(arg);
}

static void stop_from_another_thread_ends_the_run(void **state)
{
    (void)state;
    struct sl_loop *l;
    assert_int_equal(sl_loop_open(&l), SL_OK);
    for (int round = 0; round < 3; round++) { /* a loop that was stopped can run again */
        struct sl_thread t = {0};
        assert_int_equal(sl_thread_start(&t, "stopper", stop_from_outside, l), SL_OK);
        sl_loop_run(l);
        sl_thread_join(&t);
    }
    sl_loop_stop(l);
    sl_loop_run(l); /* asked before it began: returns at once */
    struct sl_timer *t = sl_timer_new(l, stop_from_outside, l);
    sl_timer_set(t, 5);
    const uint64_t start = sl_now_ns();
    sl_loop_run(l); /* and the asking is used up */
    assert_true(sl_now_ns() - start >= 5 * 1000000u);
    sl_timer_free(t);
    sl_loop_close(l);
    sl_loop_close(NULL);
}

static void wake_ends_one_wait(void **state)
{
    (void)state;
    struct sl_loop *l;
    assert_int_equal(sl_loop_open(&l), SL_OK);
    sl_loop_wake(l);
    sl_loop_wake(l);
    uint64_t start = sl_now_ms();
    sl_loop_once(l, FOREVER_MS);
    assert_true(sl_now_ms() - start < FOREVER_MS);
    start = sl_now_ns();
    sl_loop_once(l, 5); /* waits its whole time again */
    assert_true(sl_now_ns() - start >= 5 * 1000000u);
    sl_loop_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fd_ready_calls_back_while_data_is_there),
        cmocka_unit_test(fd_that_epoll_refuses_is_an_error),
        cmocka_unit_test(add_again_changes_events_and_argument),
        cmocka_unit_test(remove_of_another_ready_fd_drops_its_event),
        cmocka_unit_test(fd_number_reused_in_a_callback_gets_no_old_event),
        cmocka_unit_test(fd_closed_without_remove_can_be_added_again),
        cmocka_unit_test(timers_fire_by_due_time_then_by_arming),
        cmocka_unit_test(timer_wait_ends_when_it_is_due_and_not_before),
        cmocka_unit_test(timer_called_late_knows_it),
        cmocka_unit_test(timer_that_rearms_with_zero_fires_once_a_round),
        cmocka_unit_test(timer_freed_in_its_own_callback_with_another_due),
        cmocka_unit_test(timer_cleared_or_set_later_does_not_fire),
        cmocka_unit_test(timers_random_arming_fires_in_order),
        cmocka_unit_test(stop_from_another_thread_ends_the_run),
        cmocka_unit_test(wake_ends_one_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
