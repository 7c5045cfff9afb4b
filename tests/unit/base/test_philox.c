/* Philox4x32-10 against the known answers published with Random123 (kat_vectors), and the uniform numbers
 * made of it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/err.h"
#include "common/base/philox.h"

static void block_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } table[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < SL_COUNTOF(table); i++) {
        uint32_t out[4];
        sl_philox4x32(table[i].counter, table[i].key, out);
        for (int w = 0; w < 4; w++)
            assert_int_equal(out[w], table[i].out[w]);
    }
}

/* The words go where philox.h says: seeds of other releases must give the same tokens. */
static void uniform_words_of_counter_and_key(void **state)
{
    (void)state;
    assert_true(sl_philox_uniform(0, 0, 0) == (float)(0x6627e8d5 >> 8) / 16777216.0f);
    const uint64_t seed = 0x0123456789abcdef, position = 77;
    const uint32_t counter[4] = {77, 5, 0, 0}, key[2] = {0x89abcdef, 0x01234567};
    uint32_t out[4];
    sl_philox4x32(counter, key, out);
    assert_true(sl_philox_uniform(seed, 5, position) == (float)(out[0] >> 8) / 16777216.0f);
}

static void uniform_every_argument_matters(void **state)
{
    (void)state;
    const float base = sl_philox_uniform(1, 0, 1);
    assert_true(sl_philox_uniform(2, 0, 1) != base);
    assert_true(sl_philox_uniform(1 + ((uint64_t)1 << 32), 0, 1) != base);
    assert_true(sl_philox_uniform(1, 1, 1) != base);
    assert_true(sl_philox_uniform(1, 0, 2) != base);
    assert_true(sl_philox_uniform(1, 0, 1 + ((uint64_t)1 << 32)) != base);
}

static void uniform_stays_in_range_and_fills_it_evenly(void **state)
{
    (void)state;
    enum { N = 100000, BINS = 16 };
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        float u = sl_philox_uniform(42, 0, i);
        assert_true(u >= 0.0f && u < 1.0f);
        bins[(int)(u * BINS)]++;
    }
    for (int b = 0; b < BINS; b++) /* six standard deviations of a bin are about 460 */
        assert_in_range(bins[b], N / BINS - 460, N / BINS + 460);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_known_answers),
        cmocka_unit_test(uniform_words_of_counter_and_key),
        cmocka_unit_test(uniform_every_argument_matters),
        cmocka_unit_test(uniform_stays_in_range_and_fills_it_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
