/* common/base/parallel: every item once, on any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>

#include "common/base/parallel.h"

enum { N = 1000 };

static atomic_uint seen[N];

static void see(void *arg, size_t item)
{
    (void)arg;
    atomic_fetch_add(&seen[item], 1);
}

static void items_are_each_done_once(void **state)
{
    (void)state;
    static const unsigned threads[] = {0, 1, 2, 7};
    unsigned want = 0;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        sl_parallel_run(threads[t], 0, see, NULL);
        sl_parallel_run(threads[t], N, see, NULL);
        want++;
        for (size_t i = 0; i < N; i++)
            assert_int_equal(atomic_load(&seen[i]), want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(items_are_each_done_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
