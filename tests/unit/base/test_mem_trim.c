/* tests/unit/base/test_mem_trim.c - when memory is given back, and that it is. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/mem.h"
#include "common/base/mem_trim.h"
#include "common/base/memory_info.h"

#define MIB (1ull << 20)

static void trim_waits_until_little_is_open_for_long(void **state)
{
    (void)state;
    struct sl_mem_trim t = {0};
    assert_false(sl_mem_trim_due(&t, 800, 500 * MIB, 1000));
    assert_false(sl_mem_trim_due(&t, 101, 600 * MIB, 30000)); /* more than an eighth */
    assert_false(sl_mem_trim_due(&t, 100, 600 * MIB, 40000));
    assert_false(sl_mem_trim_due(&t, 100, 600 * MIB, 40000 + SL_TRIM_QUIET_MS - 1));
    assert_true(sl_mem_trim_due(&t, 0, 600 * MIB, 40000 + SL_TRIM_QUIET_MS));
}

static void trim_of_a_pause_between_bursts_is_not_due(void **state)
{
    (void)state;
    struct sl_mem_trim t = {0};
    assert_false(sl_mem_trim_due(&t, 800, 500 * MIB, 0));
    for (uint64_t now = 0; now < 10 * SL_TRIM_QUIET_MS; now += SL_TRIM_QUIET_MS) {
        assert_false(sl_mem_trim_due(&t, 0, 500 * MIB, now + 1000));
        assert_false(sl_mem_trim_due(&t, 0, 500 * MIB, now + SL_TRIM_QUIET_MS - 1000));
        assert_false(sl_mem_trim_due(&t, 800, 500 * MIB, now + SL_TRIM_QUIET_MS - 500));
    }
}

static void trim_needs_growth_since_the_last_one(void **state)
{
    (void)state;
    struct sl_mem_trim t = {0};
    sl_mem_trim_done(&t, 3, 50 * MIB);
    uint64_t now = 0;
    assert_false(sl_mem_trim_due(&t, 0, 50 * MIB + SL_TRIM_GROWN_BYTES - 1, now));
    assert_false(sl_mem_trim_due(&t, 0, 50 * MIB + SL_TRIM_GROWN_BYTES - 1, now += SL_TRIM_QUIET_MS));
    assert_false(sl_mem_trim_due(&t, 0, 10 * MIB, now));
    assert_true(sl_mem_trim_due(&t, 0, 50 * MIB + SL_TRIM_GROWN_BYTES, now));
    /* what is still in use is not walked for again and again */
    sl_mem_trim_done(&t, 0, 82 * MIB);
    assert_false(sl_mem_trim_due(&t, 0, 82 * MIB, now));
    assert_false(sl_mem_trim_due(&t, 0, 82 * MIB, now + 10 * SL_TRIM_QUIET_MS));
}

/* Steady work, however little it is, is not quiet: after one time the most open is what is open then. */
static void trim_of_steady_work_is_not_due(void **state)
{
    (void)state;
    struct sl_mem_trim t = {0};
    sl_mem_trim_done(&t, 16, 50 * MIB);
    assert_false(sl_mem_trim_due(&t, 16, 500 * MIB, 0));
    assert_false(sl_mem_trim_due(&t, 16, 500 * MIB, 10 * SL_TRIM_QUIET_MS));
}

static void free_memory_under_a_block_that_lives_is_given_back(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* not glibc's heaps */
#endif
    enum { N = 16384, BYTES = 4080 };
    static void *blocks[N];
    for (int i = 0; i < N; i++)
        blocks[i] = memset(sl_xalloc(BYTES), 1, BYTES);
    for (int i = 0; i < N - 1; i++)
        sl_free(blocks[i]);
    uint64_t before = sl_memory_resident();
    assert_true(before > (uint64_t)N * BYTES); /* else this tests nothing */
    sl_mem_give_back();
    assert_true(sl_memory_resident() < before - N / 2 * BYTES);
    sl_free(blocks[N - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trim_waits_until_little_is_open_for_long),
        cmocka_unit_test(trim_of_a_pause_between_bursts_is_not_due),
        cmocka_unit_test(trim_needs_growth_since_the_last_one),
        cmocka_unit_test(trim_of_steady_work_is_not_due),
        cmocka_unit_test(free_memory_under_a_block_that_lives_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
