/* Order, bound, waking and many senders of common/base/queue. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <sched.h>

#include "common/base/queue.h"
#include "common/base/thread.h"

#define FOREVER_MS 60000u

static bool readable(struct sl_queue *q)
{
    struct pollfd pfd = {.fd = sl_queue_fd(q), .events = POLLIN};
    return poll(&pfd, 1, 0) == 1;
}

static void order_first_in_first_out_over_the_wrap(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(3);
    static char items[100];
    int in = 0, out = 0;
    while (out < 100) {
        while (in < 100 && sl_queue_push(q, &items[in]) == SL_OK)
            in++;
        assert_int_equal(sl_queue_len(q), in - out);
        for (int i = 0; i < 2 && out < in; i++)
            assert_ptr_equal(sl_queue_pop(q), &items[out++]);
    }
    assert_null(sl_queue_pop(q));
    sl_queue_free(q);
    sl_queue_free(NULL);
}

static void full_push_is_eagain_and_loses_nothing(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(2);
    int a, b, c;
    assert_int_equal(sl_queue_push(q, &a), SL_OK);
    assert_int_equal(sl_queue_push(q, &b), SL_OK);
    assert_int_equal(sl_queue_push(q, &c), SL_EAGAIN);
    assert_int_equal(sl_queue_len(q), 2);
    assert_ptr_equal(sl_queue_pop(q), &a);
    assert_int_equal(sl_queue_push(q, &c), SL_OK);
    assert_ptr_equal(sl_queue_pop(q), &b);
    assert_ptr_equal(sl_queue_pop(q), &c);
    assert_null(sl_queue_pop(q));
    sl_queue_free(q);
}

static void fd_readable_while_something_is_there(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(4);
    int item;
    assert_false(readable(q));
    for (int round = 0; round < 3; round++) {
        assert_int_equal(sl_queue_push(q, &item), SL_OK);
        assert_int_equal(sl_queue_push(q, &item), SL_OK);
        assert_true(readable(q));
        assert_non_null(sl_queue_pop(q));
        assert_true(readable(q));
        assert_non_null(sl_queue_pop(q));
        /* a push before the look in vain must still be seen */
        assert_int_equal(sl_queue_push(q, &item), SL_OK);
        assert_true(readable(q));
        assert_non_null(sl_queue_pop(q));
        assert_null(sl_queue_pop(q));
        assert_false(readable(q));
    }
    sl_queue_free(q);
}

static void wake_makes_the_fd_readable_once(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(1);
    sl_queue_wake(q);
    sl_queue_wake(q);
    assert_true(readable(q));
    assert_null(sl_queue_pop(q));
    assert_false(readable(q));
    /* waits that would last a minute end at once */
    sl_queue_wake(q);
    assert_false(sl_queue_wait(q, FOREVER_MS));
    assert_false(readable(q));
    sl_queue_free(q);
}

static void wait_looks_only_when_the_time_is_zero(void **state)
{
    (void)state;
    struct sl_queue *q = sl_queue_new(1);
    int item;
    assert_false(sl_queue_wait(q, 0));
    assert_int_equal(sl_queue_push(q, &item), SL_OK);
    assert_true(sl_queue_wait(q, 0));
    assert_true(sl_queue_wait(q, FOREVER_MS));
    assert_non_null(sl_queue_pop(q));
    assert_false(sl_queue_wait(q, 0));
    assert_false(sl_queue_wait(q, 1));
    sl_queue_free(q);
}

enum { N_SENDERS = 3, N_EACH = 20000 };

struct message {
    int sender, number;
};

struct sender {
    struct sl_queue *q;
    struct message *messages;
    int n_full;
};

static void send_all(void *arg)
{
    struct sender *s = arg;
    for (int i = 0; i < N_EACH; i++)
        while (sl_queue_push(s->q, &s->messages[i]) == SL_EAGAIN) {
            s->n_full++;
            sched_yield();
        }
}

static void many_senders_every_item_once_in_the_order_of_its_sender(void **state)
{
    (void)state;
    static struct message messages[N_SENDERS][N_EACH];
    struct sl_queue *q = sl_queue_new(16);
    struct sender senders[N_SENDERS];
    struct sl_thread threads[N_SENDERS];
    for (int s = 0; s < N_SENDERS; s++) {
        for (int i = 0; i < N_EACH; i++)
            messages[s][i] = (struct message){.sender = s, .number = i};
        senders[s] = (struct sender){.q = q, .messages = messages[s]};
        assert_int_equal(sl_thread_start(&threads[s], "sender", send_all, &senders[s]), SL_OK);
    }
    int next[N_SENDERS] = {0};
    for (int got = 0; got < N_SENDERS * N_EACH;) {
        assert_true(sl_queue_wait(q, FOREVER_MS));
        struct message *m;
        while ((m = sl_queue_pop(q)) != NULL) {
            assert_int_equal(m->number, next[m->sender]);
            next[m->sender]++;
            got++;
        }
    }
    for (int s = 0; s < N_SENDERS; s++)
        sl_thread_join(&threads[s]);
    assert_int_equal(sl_queue_len(q), 0);
    sl_queue_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_first_in_first_out_over_the_wrap),
        cmocka_unit_test(full_push_is_eagain_and_loses_nothing),
        cmocka_unit_test(fd_readable_while_something_is_there),
        cmocka_unit_test(wake_makes_the_fd_readable_once),
        cmocka_unit_test(wait_looks_only_when_the_time_is_zero),
        cmocka_unit_test(many_senders_every_item_once_in_the_order_of_its_sender),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
