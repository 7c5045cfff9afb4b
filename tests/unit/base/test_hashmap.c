/* common/base/hashmap against a plain array, with tombstones, rebuilds and walks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hashmap.h"
#include "tests/support/support.h"

static void put_get_del_one_key(void **state)
{
    (void)state;
    struct sl_hashmap *m = sl_hashmap_new();
    int a, b;
    assert_null(sl_hashmap_get(m, "k", 1));
    assert_null(sl_hashmap_del(m, "k", 1));
    assert_null(sl_hashmap_put(m, "k", 1, &a));
    assert_ptr_equal(sl_hashmap_get(m, "k", 1), &a);
    assert_ptr_equal(sl_hashmap_put(m, "k", 1, &b), &a);
    assert_int_equal(sl_hashmap_len(m), 1);
    assert_ptr_equal(sl_hashmap_del(m, "k", 1), &b);
    assert_null(sl_hashmap_get(m, "k", 1));
    assert_int_equal(sl_hashmap_len(m), 0);
    sl_hashmap_free(m);
    sl_hashmap_free(NULL);
}

static void keys_of_any_length_are_copied_and_told_apart(void **state)
{
    (void)state;
    struct sl_hashmap *m = sl_hashmap_new();
    static char values[64];
    char key[64];
    for (size_t n = 0; n < sizeof key; n++) {
        memset(key, 0, sizeof key); /* keys of zeros differ in length only */
        assert_null(sl_hashmap_put(m, key, n, &values[n]));
        memset(key, 1, sizeof key);
    }
    memset(key, 0, sizeof key);
    for (size_t n = 0; n < sizeof key; n++)
        assert_ptr_equal(sl_hashmap_get(m, key, n), &values[n]);
    assert_null(sl_hashmap_get(m, "\1", 1));
    for (size_t n = 0; n < sizeof key; n += 2)
        assert_ptr_equal(sl_hashmap_del(m, key, n), &values[n]);
    for (size_t n = 0; n < sizeof key; n++)
        assert_ptr_equal(sl_hashmap_get(m, key, n), n % 2 ? &values[n] : NULL);
    sl_hashmap_free(m);
}

static void u64_extremes_are_ordinary_keys(void **state)
{
    (void)state;
    struct sl_hashmap *m = sl_hashmap_new();
    const uint64_t keys[] = {0, 1, UINT64_MAX, (uint64_t)1 << 32, (uint64_t)1 << 63};
    int values[SL_COUNTOF(keys)];
    for (size_t i = 0; i < SL_COUNTOF(keys); i++)
        assert_null(sl_hashmap_put_u64(m, keys[i], &values[i]));
    for (size_t i = 0; i < SL_COUNTOF(keys); i++)
        assert_ptr_equal(sl_hashmap_get_u64(m, keys[i]), &values[i]);
    assert_ptr_equal(sl_hashmap_del_u64(m, 0), &values[0]);
    assert_null(sl_hashmap_get_u64(m, 0));
    assert_ptr_equal(sl_hashmap_get_u64(m, 1), &values[1]);
    sl_hashmap_free(m);
}

enum { N_KEYS = 3000 };

static void random_operations_match_an_array(void **state)
{
    (void)state;
    static char *shadow[N_KEYS];
    static char values[N_KEYS];
    unsigned long long seed = 7;
    struct sl_hashmap *m = sl_hashmap_new();
    size_t len = 0;
    for (int step = 0; step < 200000; step++) {
        /* the range of keys in use grows and shrinks, so that rebuilds meet many tombstones */
        size_t range = 1 + (size_t)(step / 20) % N_KEYS;
        size_t k = sl_test_random(&seed) % range;
        char key[40];
        int key_len = snprintf(key, sizeof key, k % 3 ? "%zu" : "a-key-that-does-not-fit-inline-%zu", k);
        char *value = &values[sl_test_random(&seed) % N_KEYS];
        switch (sl_test_random(&seed) % 3) {
        case 0:
            assert_ptr_equal(sl_hashmap_put(m, key, (size_t)key_len, value), shadow[k]);
            len += shadow[k] == NULL;
            shadow[k] = value;
            break;
        case 1:
            assert_ptr_equal(sl_hashmap_del(m, key, (size_t)key_len), shadow[k]);
            len -= shadow[k] != NULL;
            shadow[k] = NULL;
            break;
        default:
            assert_ptr_equal(sl_hashmap_get(m, key, (size_t)key_len), shadow[k]);
        }
        assert_int_equal(sl_hashmap_len(m), len);
    }
    sl_hashmap_free(m);
}

/* Put and delete of ever new keys with few alive: without reuse of tombstones a probe would never end. */
static void churn_of_new_keys_ends_and_keeps_the_living(void **state)
{
    (void)state;
    struct sl_hashmap *m = sl_hashmap_new();
    int value;
    for (uint64_t k = 0; k < 100000; k++) {
        assert_null(sl_hashmap_put_u64(m, k, &value));
        if (k >= 5)
            assert_ptr_equal(sl_hashmap_del_u64(m, k - 5), &value);
        assert_null(sl_hashmap_get_u64(m, k + 1));
    }
    assert_int_equal(sl_hashmap_len(m), 5);
    sl_hashmap_free(m);
}

static void walk_every_entry_once(void **state)
{
    (void)state;
    struct sl_hashmap *m = sl_hashmap_new();
    static int seen[N_KEYS];
    memset(seen, 0, sizeof seen);
    size_t it = 0;
    void *value;
    assert_false(sl_hashmap_next(m, &it, &value));
    for (uint64_t k = 0; k < N_KEYS; k++)
        assert_null(sl_hashmap_put_u64(m, k, &seen[k]));
    it = 0;
    size_t n = 0;
    while (sl_hashmap_next(m, &it, &value)) {
        ++*(int *)value;
        n++;
    }
    assert_int_equal(n, N_KEYS);
    for (int k = 0; k < N_KEYS; k++)
        assert_int_equal(seen[k], 1);
    sl_hashmap_free(m);
}

static void walk_deleting_what_it_returns_visits_all(void **state)
{
    (void)state;
    struct sl_hashmap *m = sl_hashmap_new();
    static int seen[N_KEYS];
    memset(seen, 0, sizeof seen);
    for (uint64_t k = 0; k < N_KEYS; k++)
        assert_null(sl_hashmap_put_u64(m, k, &seen[k]));
    size_t it = 0;
    void *value;
    while (sl_hashmap_next(m, &it, &value)) {
        size_t k = (size_t)((int *)value - seen);
        seen[k]++;
        if (k % 4)
            assert_ptr_equal(sl_hashmap_del_u64(m, k), value);
    }
    for (uint64_t k = 0; k < N_KEYS; k++) {
        assert_int_equal(seen[k], 1);
        assert_ptr_equal(sl_hashmap_get_u64(m, k), k % 4 ? NULL : &seen[k]);
    }
    assert_int_equal(sl_hashmap_len(m), N_KEYS / 4);
    sl_hashmap_free(m);
}

static void reserved_map_holds_as_many_without_growing(void **state)
{
    (void)state;
    enum { N = 5000, CHURN = 5 * N };
    static char value;
    struct sl_hashmap *m = sl_hashmap_new();
    sl_hashmap_reserve(m, N);
    for (uint64_t i = 0; i < N; i++)
        assert_null(sl_hashmap_put_u64(m, i, &value));
    struct mallinfo2 before = mallinfo2();
    for (uint64_t i = N; i < CHURN; i++) { /* tombstones and rebuilds */
        assert_non_null(sl_hashmap_del_u64(m, i - N));
        assert_null(sl_hashmap_put_u64(m, i, &value));
    }
    struct mallinfo2 after = mallinfo2();
    assert_int_equal(sl_hashmap_len(m), N);
    assert_true(after.uordblks + after.hblkhd <= before.uordblks + before.hblkhd);
    sl_hashmap_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_get_del_one_key),
        cmocka_unit_test(reserved_map_holds_as_many_without_growing),
        cmocka_unit_test(keys_of_any_length_are_copied_and_told_apart),
        cmocka_unit_test(u64_extremes_are_ordinary_keys),
        cmocka_unit_test(random_operations_match_an_array),
        cmocka_unit_test(churn_of_new_keys_ends_and_keeps_the_living),
        cmocka_unit_test(walk_every_entry_once),
        cmocka_unit_test(walk_deleting_what_it_returns_visits_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
