/* common/kv/kv_pool: counts, references, and that runs stay together. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/kv/kv_pool.h"
#include "tests/support/support.h"

static struct sl_kv_pool *pool_of(uint32_t n)
{
    struct sl_kv_pool *p = NULL;
    assert_int_equal(sl_kv_pool_open(n, &p), SL_OK);
    return p;
}

static void open_with_no_page_is_refused(void **state)
{
    (void)state;
    struct sl_kv_pool *p = NULL;
    assert_int_equal(sl_kv_pool_open(0, &p), SL_EINVAL);
    assert_int_equal(sl_kv_pool_open(SL_KV_NO_PAGE, &p), SL_EINVAL);
    assert_null(p);
    sl_kv_pool_close(NULL);
}

static void take_more_than_free_takes_nothing(void **state)
{
    (void)state;
    struct sl_kv_pool *p = pool_of(65);
    uint32_t pages[65];
    assert_int_equal(sl_kv_pool_take(p, 60, SL_KV_NO_PAGE, pages), SL_OK);
    assert_int_equal(sl_kv_pool_free_pages(p), 5);
    assert_int_equal(sl_kv_pool_take(p, 6, SL_KV_NO_PAGE, pages), SL_ENOPAGES);
    assert_int_equal(sl_kv_pool_free_pages(p), 5);
    assert_int_equal(sl_kv_pool_take(p, 0, SL_KV_NO_PAGE, pages), SL_OK);
    sl_kv_pool_close(p);
}

static void page_is_free_after_its_last_reference(void **state)
{
    (void)state;
    struct sl_kv_pool *p = pool_of(3);
    uint32_t page;
    assert_int_equal(sl_kv_pool_take(p, 1, SL_KV_NO_PAGE, &page), SL_OK);
    assert_int_equal(sl_kv_pool_refs(p, page), 1);
    sl_kv_pool_ref(p, page);
    sl_kv_pool_unref(p, page);
    assert_int_equal(sl_kv_pool_free_pages(p), 2);
    sl_kv_pool_unref(p, page);
    assert_int_equal(sl_kv_pool_refs(p, page), 0);
    assert_int_equal(sl_kv_pool_free_pages(p), 3);
    sl_kv_pool_close(p);
}

static void assert_run(const uint32_t *pages, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        assert_int_equal(pages[i], pages[0] + i);
}

static void take_in_a_holed_pool_prefers_the_smallest_run_that_fits(void **state)
{
    (void)state;
    struct sl_kv_pool *p = pool_of(256);
    uint32_t all[256], got[40];
    assert_int_equal(sl_kv_pool_take(p, 256, SL_KV_NO_PAGE, all), SL_OK);
    assert_run(all, 256);
    for (uint32_t i = 10; i < 30; i++) /* a run of 20 */
        sl_kv_pool_unref(p, i);
    for (uint32_t i = 60; i < 130; i++) /* of 70, over word edges */
        sl_kv_pool_unref(p, i);
    for (uint32_t i = 200; i < 208; i++) /* of 8 */
        sl_kv_pool_unref(p, i);
    assert_int_equal(sl_kv_pool_take(p, 8, SL_KV_NO_PAGE, got), SL_OK);
    assert_int_equal(got[0], 200);
    assert_run(got, 8);
    assert_int_equal(sl_kv_pool_take(p, 15, SL_KV_NO_PAGE, got), SL_OK);
    assert_int_equal(got[0], 10);
    assert_run(got, 15);
    assert_int_equal(sl_kv_pool_take(p, 40, SL_KV_NO_PAGE, got), SL_OK);
    assert_int_equal(got[0], 60);
    assert_run(got, 40);
    /* 5 and 30 are left: the longest first, then the rest */
    assert_int_equal(sl_kv_pool_take(p, 35, SL_KV_NO_PAGE, got), SL_OK);
    assert_int_equal(got[0], 100);
    assert_run(got, 30);
    assert_run(&got[30], 5);
    assert_int_equal(sl_kv_pool_free_pages(p), 0);
    sl_kv_pool_close(p);
}

static void take_after_a_page_continues_it_when_free(void **state)
{
    (void)state;
    struct sl_kv_pool *p = pool_of(16);
    uint32_t a[4], b[3], c[2];
    assert_int_equal(sl_kv_pool_take(p, 4, SL_KV_NO_PAGE, a), SL_OK);
    assert_int_equal(sl_kv_pool_take(p, 3, a[3], b), SL_OK);
    assert_int_equal(b[0], a[3] + 1);
    assert_run(b, 3);
    assert_int_equal(sl_kv_pool_take(p, 2, a[3], c), SL_OK); /* taken by b: anywhere */
    assert_run(c, 2);
    assert_int_equal(sl_kv_pool_take(p, 1, 15, c), SL_OK); /* nothing behind the last page */
    sl_kv_pool_close(p);
}

static void pool_under_random_use_agrees_with_an_array(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 63, 64, 65, 200};
    unsigned long long rng = 7;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint32_t n = sizes[k], refs[200] = {0}, got[200];
        struct sl_kv_pool *p = pool_of(n);
        for (int round = 0; round < 3000; round++) {
            uint32_t page = (uint32_t)(sl_test_random(&rng) % n), want = (uint32_t)(sl_test_random(&rng) % 6);
            uint32_t n_free = 0;
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(refs[i], sl_kv_pool_refs(p, i));
                n_free += refs[i] == 0;
            }
            assert_int_equal(n_free, sl_kv_pool_free_pages(p));
            if (refs[page] && sl_test_random(&rng) % 2) {
                sl_kv_pool_unref(p, page);
                refs[page]--;
            } else if (refs[page] && sl_test_random(&rng) % 3 == 0) {
                sl_kv_pool_ref(p, page);
                refs[page]++;
            } else if (sl_kv_pool_take(p, want, page, got) == SL_OK) {
                for (uint32_t i = 0; i < want; i++)
                    assert_int_equal(refs[got[i]]++, 0);
            } else {
                assert_true(want > n_free);
            }
        }
        sl_kv_pool_close(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_with_no_page_is_refused),
        cmocka_unit_test(take_more_than_free_takes_nothing),
        cmocka_unit_test(page_is_free_after_its_last_reference),
        cmocka_unit_test(take_in_a_holed_pool_prefers_the_smallest_run_that_fits),
        cmocka_unit_test(take_after_a_page_continues_it_when_free),
        cmocka_unit_test(pool_under_random_use_agrees_with_an_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
