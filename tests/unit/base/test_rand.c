/* common/base/rand: bytes change, all of them, and only those asked for. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/rand.h"

static void bytes_all_are_written_and_none_behind(void **state)
{
    (void)state;
    enum { N = 1000 }; /* above 256, where the kernel may stop early */
    unsigned char any[N + 1] = {0};
    for (int round = 0; round < 8; round++) {
        unsigned char p[N + 1] = {0};
        p[N] = 0x5a;
        sl_random_bytes(p, N);
        assert_int_equal(p[N], 0x5a);
        for (int i = 0; i < N; i++)
            any[i] |= p[i];
    }
    for (int i = 0; i < N; i++) /* a byte that is 0 eight times: 2^-64 */
        assert_int_not_equal(any[i], 0);
    sl_random_bytes(any, 0);
}

static void u64_numbers_differ(void **state)
{
    (void)state;
    uint64_t seen[64];
    for (int i = 0; i < 64; i++) {
        seen[i] = sl_random_u64();
        for (int j = 0; j < i; j++)
            assert_true(seen[i] != seen[j]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_all_are_written_and_none_behind),
        cmocka_unit_test(u64_numbers_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
