/* Heap, huge pages, arena and guard of common/base/mem. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "tests/support/support.h"

static void alloc_zero_bytes_is_a_pointer(void **state)
{
    (void)state;
    void *p[] = {sl_xalloc(0), sl_xcalloc(0, 8), sl_xrealloc(NULL, 0), sl_try_alloc(0), sl_xmemdup(NULL, 0)};
    for (size_t i = 0; i < SL_COUNTOF(p); i++) {
        assert_non_null(p[i]);
        sl_free(p[i]);
    }
    sl_free(NULL);
}

static void calloc_memory_is_zero(void **state)
{
    (void)state;
    unsigned char *p = sl_xcalloc(100, 10), zero[1000] = {0};
    assert_memory_equal(p, zero, sizeof zero);
    sl_free(p);
}

static void realloc_content_is_kept(void **state)
{
    (void)state;
    char *p = sl_xstrdup("content");
    p = sl_xrealloc_array(p, 1000, 1000);
    assert_string_equal(p, "content");
    sl_free(p);
}

static void strings_are_copied_and_cut(void **state)
{
    (void)state;
    char *a = sl_xstrdup(""), *b = sl_xstrndup("abcdef", 3), *c = sl_xstrndup("ab", 30);
    char *d = sl_xasprintf("%s-%05d", "x", 42);
    assert_string_equal(a, "");
    assert_string_equal(b, "abc");
    assert_string_equal(c, "ab");
    assert_string_equal(d, "x-00042");
    sl_free(a);
    sl_free(b);
    sl_free(c);
    sl_free(d);
}

static void overflow_calloc(void *arg)
{
    *(void **)arg = sl_xcalloc(SIZE_MAX / 2, 3);
}

static void overflow_realloc(void *arg)
{
    *(void **)arg = sl_xrealloc_array(NULL, SIZE_MAX / 8 + 1, 8);
}

static void product_overflow_dies_with_a_line(void **state)
{
    (void)state;
    void *p = NULL;
    char *text;
    assert_int_equal(sl_test_dies(overflow_calloc, &p, &text), SIGABRT);
    assert_non_null(strstr(text, "overflow"));
    sl_free(text);
    assert_int_equal(sl_test_dies(overflow_realloc, &p, &text), SIGABRT);
    assert_non_null(strstr(text, "overflow"));
    sl_free(text);
}

static void huge_memory_is_aligned_zero_and_writable(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, 100000, 2 << 20, (2 << 20) + 1, 5 << 20};
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++)
        for (int prefault = 0; prefault < 2; prefault++) {
            unsigned char *p = sl_huge_alloc(sizes[i], prefault);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 4096, 0);
            assert_int_equal(p[0], 0);
            assert_int_equal(p[sizes[i] - 1], 0);
            memset(p, 0xa5, sizes[i]);
            sl_huge_free(p, sizes[i]);
        }
    sl_huge_free(NULL, 4096);
}

/* As a model allocates: hundreds of pieces of all sizes, freed in another order. */
static void huge_pieces_are_apart_zero_and_counted(void **state)
{
    (void)state;
    enum { N = 300 };
    static unsigned char *p[N];
    static size_t bytes[N];
    size_t before = sl_huge_total(), sum = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < N; i++) {
            bytes[i] = (i * i * 7919 + (size_t)round * 4099) % (i % 50 ? 300000 : 9 << 20) + 1;
            sum += bytes[i];
            p[i] = sl_huge_alloc(bytes[i], i % 2);
            assert_non_null(p[i]);
            for (size_t k = 0; k < bytes[i]; k += 4093)
                assert_int_equal(p[i][k], 0);
            memset(p[i], (int)i, bytes[i]);
        }
        assert_true(sl_huge_total() - before >= sum && sl_huge_total() - before < sum + N * 8192);
        for (size_t i = 0; i < N; i++) {
            size_t at = i * 7 % N; /* 7 and N have no common factor */
            assert_int_equal(p[at][0], at & 255);
            assert_int_equal(p[at][bytes[at] - 1], at & 255);
            assert_true(sl_huge_touch(p[at], bytes[at]));
            assert_int_equal(p[at][bytes[at] - 1], at & 255);
            sl_huge_free(p[at], bytes[at]);
            sum -= bytes[at];
        }
        assert_int_equal(sl_huge_total(), before);
    }
}

static void huge_impossible_size_is_null(void **state)
{
    (void)state;
    assert_null(sl_huge_alloc(SIZE_MAX, false));
    assert_null(sl_huge_alloc(SIZE_MAX / 2, false));
}

static void arena_pieces_are_zero_aligned_and_apart(void **state)
{
    (void)state;
    struct sl_arena *a = sl_arena_new(8 << 20);
    enum { N = 2000 };
    static unsigned char *pieces[N];
    static size_t sizes[N];
    unsigned long long seed = 1;
    for (int i = 0; i < N; i++) {
        sizes[i] = i % 100 == 99 ? 20000 : sl_test_random(&seed) % 300;
        pieces[i] = sl_arena_alloc(a, sizes[i]);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t b = 0; b < sizes[i]; b++)
            assert_int_equal(pieces[i][b], 0);
        memset(pieces[i], i & 0xff, sizes[i]);
    }
    for (int i = 0; i < N; i++)
        for (size_t b = 0; b < sizes[i]; b++)
            assert_int_equal(pieces[i][b], i & 0xff);
    sl_arena_free(a);
    sl_arena_free(NULL);
}

static void arena_past_its_maximum_is_null_and_stays_usable(void **state)
{
    (void)state;
    struct sl_arena *a = sl_arena_new(1000);
    assert_null(sl_arena_alloc(a, 1009));
    assert_null(sl_arena_alloc(a, SIZE_MAX));
    assert_null(sl_arena_alloc(a, SIZE_MAX - 8));
    assert_non_null(sl_arena_alloc(a, 600));
    assert_null(sl_arena_alloc(a, 600));
    assert_non_null(sl_arena_alloc(a, 300));
    assert_null(sl_arena_strndup(a,
                                 "0123456789012345678901234567890123456789012345678901234567890123456789"
                                 "0123456789012345678901234567890123456789",
                                 1000));
    sl_arena_free(a);
    a = sl_arena_new(1000);
    assert_non_null(sl_arena_alloc(a, 1000));
    assert_null(sl_arena_alloc(a, 1));
    sl_arena_free(a);
}

static void arena_tiny_pieces_count_their_alignment(void **state)
{
    (void)state;
    struct sl_arena *a = sl_arena_new(1600);
    int n = 0;
    while (n < 10000 && sl_arena_alloc(a, 1))
        n++;
    assert_int_equal(n, 100);
    sl_arena_free(a);
}

static void arena_strndup_cuts_at_n_and_at_nul(void **state)
{
    (void)state;
    struct sl_arena *a = sl_arena_new(1000);
    assert_string_equal(sl_arena_strndup(a, "abcdef", 2), "ab");
    assert_string_equal(sl_arena_strndup(a, "abc\0def", 7), "abc");
    assert_string_equal(sl_arena_strndup(a, "", 0), "");
    sl_arena_free(a);
}

static void guarded_alloc(void *arg)
{
    sl_alloc_guard_on("step");
    *(void **)arg = sl_xalloc(8);
}

static void guarded_arena(void *arg)
{
    struct sl_arena *a = sl_arena_new(1000);
    sl_alloc_guard_on("step");
    *(void **)arg = sl_arena_alloc(a, 8);
}

static void guarded_free_and_off(void *arg)
{
    void *p = sl_xalloc(8);
    sl_alloc_guard_on("step");
    sl_free(p);
    sl_alloc_guard_off();
    sl_free(sl_xalloc(8));
    (void)arg;
}

static void guard_allocation_while_on_aborts_in_debug_builds(void **state)
{
    (void)state;
#ifdef SL_ALLOC_GUARD
    const int expected = SIGABRT;
#else
    const int expected = 0;
#endif
    void *p = NULL;
    char *text;
    assert_int_equal(sl_test_dies(guarded_alloc, &p, &text), expected);
    assert_true((strstr(text, "phase=step") != NULL) == (expected == SIGABRT));
    sl_free(text);
    assert_int_equal(sl_test_dies(guarded_arena, &p, NULL), expected);
}

static void guard_free_while_on_and_alloc_after_are_allowed(void **state)
{
    (void)state;
    assert_int_equal(sl_test_dies(guarded_free_and_off, NULL, NULL), 0);
}

static void alloc_elsewhere(void *arg)
{
    *(void **)arg = sl_xalloc(8);
}

static void guard_holds_for_its_own_thread_only(void **state)
{
    (void)state;
    struct sl_thread t = {0};
    void *p = NULL;
    /* the start itself allocates, so the guard of this thread goes on while the other runs */
    assert_int_equal(sl_thread_start(&t, "other", alloc_elsewhere, &p), SL_OK);
    sl_alloc_guard_on("step");
    sl_thread_join(&t);
    sl_alloc_guard_off();
    assert_non_null(p);
    sl_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alloc_zero_bytes_is_a_pointer),
        cmocka_unit_test(calloc_memory_is_zero),
        cmocka_unit_test(realloc_content_is_kept),
        cmocka_unit_test(strings_are_copied_and_cut),
        cmocka_unit_test(product_overflow_dies_with_a_line),
        cmocka_unit_test(huge_memory_is_aligned_zero_and_writable),
        cmocka_unit_test(huge_pieces_are_apart_zero_and_counted),
        cmocka_unit_test(huge_impossible_size_is_null),
        cmocka_unit_test(arena_pieces_are_zero_aligned_and_apart),
        cmocka_unit_test(arena_past_its_maximum_is_null_and_stays_usable),
        cmocka_unit_test(arena_tiny_pieces_count_their_alignment),
        cmocka_unit_test(arena_strndup_cuts_at_n_and_at_nul),
        cmocka_unit_test(guard_allocation_while_on_aborts_in_debug_builds),
        cmocka_unit_test(guard_free_while_on_and_alloc_after_are_allowed),
        cmocka_unit_test(guard_holds_for_its_own_thread_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
