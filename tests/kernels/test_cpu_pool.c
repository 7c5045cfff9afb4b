/* The pool of items: each once, in any number of threads, asleep or awake, with threads that come late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <unistd.h>
#include <cmocka.h>
#include "kernels/cpu/cpu_pool.h"

#define MAX_ITEMS 300

struct job {
    atomic_uint done[MAX_ITEMS];
    unsigned plain[MAX_ITEMS]; /* written by items, read after the run */
    unsigned input, n_threads;
    atomic_bool wrong;
    useconds_t slow_us; /* workers but the caller sleep in an item */
};

static void item(void *arg, uint32_t i, unsigned worker)
{
    struct job *j = arg;
    if (worker >= j->n_threads || i >= MAX_ITEMS)
        atomic_store(&j->wrong, 1);
    if (worker > 0 && j->slow_us)
        usleep(j->slow_us);
    atomic_fetch_add(&j->done[i], 1);
    j->plain[i] = j->input + i;
}

static void run_checked(struct sl_cpu_pool *p, struct job *j, unsigned run, uint32_t n_items)
{
    j->input = run * 1000;
    for (uint32_t i = 0; i < MAX_ITEMS; i++)
        atomic_store(&j->done[i], 0);
    sl_cpu_pool_run(p, n_items, item, j);
    assert_false(atomic_load(&j->wrong));
    for (uint32_t i = 0; i < MAX_ITEMS; i++) {
        assert_int_equal(atomic_load(&j->done[i]), i < n_items);
        if (i < n_items)
            assert_int_equal(j->plain[i], j->input + i);
    }
}

static void run_any_number_of_items_does_each_once(void **state)
{
    (void)state;
    static struct job j;
    for (unsigned threads = 1; threads <= 5; threads++) {
        struct sl_cpu_pool *p = NULL;
        assert_int_equal(sl_cpu_pool_open(threads, NULL, 0, &p), SL_OK);
        j.n_threads = threads;
        for (unsigned run = 0; run < 400; run++)
            run_checked(p, &j, run, run % 7 == 0 ? run % MAX_ITEMS : run % 9);
        sl_cpu_pool_close(p);
    }
    sl_cpu_pool_close(NULL);
}

static void run_after_a_pause_wakes_the_workers(void **state)
{
    (void)state;
    static struct job j;
    struct sl_cpu_pool *p = NULL;
    assert_int_equal(sl_cpu_pool_open(3, NULL, 0, &p), SL_OK);
    j.n_threads = 3;
    for (unsigned run = 0; run < 30; run++) {
        run_checked(p, &j, run, 40);
        usleep(2000); /* far beyond the spin */
    }
    sl_cpu_pool_close(p);
}

static void run_waits_for_a_worker_inside_an_item(void **state)
{
    (void)state;
    static struct job j;
    struct sl_cpu_pool *p = NULL;
    assert_int_equal(sl_cpu_pool_open(3, NULL, 0, &p), SL_OK);
    j.n_threads = 3;
    j.slow_us = 500;
    for (unsigned run = 0; run < 50; run++)
        run_checked(p, &j, run, 200);
    sl_cpu_pool_close(p);
}

static void open_with_bad_values_is_refused(void **state)
{
    (void)state;
    struct sl_cpu_pool *p = NULL;
    static const int none[] = {-1};
    assert_int_equal(sl_cpu_pool_open(0, NULL, 0, &p), SL_EINVAL);
    assert_int_equal(sl_cpu_pool_open(2, none, 1, &p), SL_EINVAL);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_any_number_of_items_does_each_once),
        cmocka_unit_test(run_after_a_pause_wakes_the_workers),
        cmocka_unit_test(run_waits_for_a_worker_inside_an_item),
        cmocka_unit_test(open_with_bad_values_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
