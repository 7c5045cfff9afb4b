/* common/base/digest: published XXH3 values, seeds, single bits, pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/digest.h"

static void digest_known_values(void **state)
{
    (void)state;
    assert_true(sl_digest64("", 0, 0) == 0x2d06800538d394c2u);
    assert_true(sl_digest64(NULL, 0, 0) == 0x2d06800538d394c2u);
    struct sl_digest128 d = sl_digest128("", 0, 0);
    assert_true(d.hi == 0x99aa06d3014798d8u && d.lo == 0x6001c324468d497fu);
}

static void digest_every_bit_and_the_seed_matter(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 8, 16, 17, 128, 129, 240, 241, 1024, 1500};
    unsigned char data[1500];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        uint64_t d64 = sl_digest64(data, n, 1);
        struct sl_digest128 d128 = sl_digest128(data, n, 1);
        assert_true(sl_digest64(data, n, 2) != d64);
        assert_true(sl_digest64(data, n - 1, 1) != d64);
        assert_true(sl_digest128(data, n, 2).hi != d128.hi);
        for (size_t bit = 0; bit < n * 8; bit++) {
            data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            assert_true(sl_digest64(data, n, 1) != d64);
            struct sl_digest128 other = sl_digest128(data, n, 1);
            assert_true(other.lo != d128.lo || other.hi != d128.hi);
            data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
    }
}

static void stream_any_pieces_give_the_digest_of_the_whole(void **state)
{
    (void)state;
    unsigned char data[3000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31 >> 3);
    static const size_t pieces[] = {1, 7, 64, 255, 256, 257, 1000, 3000};
    for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++)
        for (uint64_t seed = 0; seed < 2; seed++) {
            struct sl_digest64_stream *s = sl_digest64_new(seed);
            for (size_t at = 0; at < sizeof data; at += pieces[p]) {
                size_t left = sizeof data - at;
                sl_digest64_update(s, data + at, left < pieces[p] ? left : pieces[p]);
                sl_digest64_update(s, NULL, 0);
            }
            assert_true(sl_digest64_end(s) == sl_digest64(data, sizeof data, seed));
        }
    assert_true(sl_digest64_end(sl_digest64_new(9)) == sl_digest64("", 0, 9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest_known_values),
        cmocka_unit_test(digest_every_bit_and_the_seed_matter),
        cmocka_unit_test(stream_any_pieces_give_the_digest_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
