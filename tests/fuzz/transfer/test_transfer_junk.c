/* tests/fuzz/transfer/test_transfer_junk.c - the fuzz target with random bytes from fixed seeds, so that
 * every test run tries what no corpus holds. */
#include <stddef.h>
#include <stdint.h>

#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define N_INPUTS 600

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void random_messages_hurt_nothing(void **state)
{
    unsigned long long seed = 20;
    uint8_t data[400];
    (void)state;
    for (int i = 0; i < N_INPUTS; i++) {
        size_t size = sl_test_random(&seed) % sizeof data;
        for (size_t j = 0; j < size; j++)
            data[j] = (uint8_t)sl_test_random(&seed);
        if (i % 2) /* shaped headers only, most of them of the page protocol */
            for (size_t j = 0; j < size; j += 10)
                data[j] = (uint8_t)((data[j] & 0x40) |
                                    (sl_test_random(&seed) % 8 ? 3 + data[j] % 6 : data[j] % 16));
        LLVMFuzzerTestOneInput(data, size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_messages_hurt_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
