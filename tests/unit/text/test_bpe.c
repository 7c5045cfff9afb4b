/* tests/unit/text/test_bpe.c - the heap against merging by the book, and long pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/text/bpe.h"
#include "tests/support/support.h"

#define MAX_MERGES 64

/* Tokens 0..3 are given, the rest are made by merges. */
struct model {
    struct sl_bpe_merge merges[MAX_MERGES];
    uint32_t n_merges, n_tokens;
    struct sl_bpe *bpe;
};

/* With shared ranks, as SentencePiece has them, and pairs that come twice. */
static void random_model(struct model *m, unsigned long long *seed)
{
    m->n_tokens = 4;
    m->n_merges = (uint32_t)(sl_test_random(seed) % MAX_MERGES);
    for (uint32_t i = 0, rank = 0; i < m->n_merges; i++) {
        rank += sl_test_random(seed) % 3 > 0;
        m->merges[i] =
            (struct sl_bpe_merge){(uint32_t)(sl_test_random(seed) % m->n_tokens),
                                  (uint32_t)(sl_test_random(seed) % m->n_tokens), m->n_tokens, rank};
        m->n_tokens++;
    }
    m->bpe = sl_bpe_new(m->merges, m->n_merges);
}

static const struct sl_bpe_merge *merge_of(const struct model *m, uint32_t left, uint32_t right)
{
    for (uint32_t k = 0; k < m->n_merges; k++)
        if (m->merges[k].left == left && m->merges[k].right == right)
            return &m->merges[k];
    return NULL;
}

/* Again and again the best pair, the leftmost first. */
static size_t by_the_book(const struct model *m, uint32_t *ids, size_t n)
{
    for (;;) {
        const struct sl_bpe_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const struct sl_bpe_merge *k = merge_of(m, ids[i], ids[i + 1]);
            if (k && (!best || k->rank < best->rank)) {
                best = k;
                at = i;
            }
        }
        if (!best)
            return n;
        ids[at] = best->merged;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* Short pieces and long ones are merged by different code. */
static void random_vocabularies_merge_as_by_the_book(void **state)
{
    unsigned long long seed = 3;
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct model m;
        struct sl_bpe_work work = {0};
        random_model(&m, &seed);
        for (int k = 0; k < 20; k++) {
            uint32_t got[80], expected[80];
            size_t n = sl_test_random(&seed) % SL_COUNTOF(got);
            for (size_t i = 0; i < n; i++)
                got[i] = expected[i] = (uint32_t)(sl_test_random(&seed) % 5); /* 4 has few merges or none */
            size_t count = by_the_book(&m, expected, n);
            assert_int_equal(sl_bpe_merge(m.bpe, &work, got, &n), SL_OK);
            assert_int_equal(n, count);
            if (count)
                assert_memory_equal(got, expected, count * sizeof *expected);
        }
        sl_bpe_work_fini(&work);
        sl_bpe_free(m.bpe);
    }
}

static void long_pieces_are_not_quadratic(void **state)
{
    struct model m = {.n_merges = 10};
    struct sl_bpe_work work = {0};
    size_t n = 1u << 20; /* quadratic work would not end within the test's time limit */
    (void)state;
    for (uint32_t i = 0; i < m.n_merges; i++) /* doubles: a, aa, aaaa, ... */
        m.merges[i] = (struct sl_bpe_merge){i, i, i + 1, i};
    m.bpe = sl_bpe_new(m.merges, m.n_merges);
    uint32_t *ids = sl_bpe_ids(&work, n);
    assert_non_null(ids);
    memset(ids, 0, n * sizeof *ids);
    assert_int_equal(sl_bpe_merge(m.bpe, &work, ids, &n), SL_OK);
    assert_int_equal(n, 1u << 10);
    sl_bpe_work_fini(&work);
    sl_bpe_free(m.bpe);
}

static void pair_that_comes_twice_keeps_its_first_entry(void **state)
{
    const struct sl_bpe_merge merges[] = {{0, 1, 7, 0}, {0, 1, 8, 1}};
    struct sl_bpe_work work = {0};
    uint32_t ids[] = {0, 1};
    size_t n = 2;
    (void)state;
    struct sl_bpe *b = sl_bpe_new(merges, 2);
    assert_int_equal(sl_bpe_merge(b, &work, ids, &n), SL_OK);
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 7);
    sl_bpe_work_fini(&work);
    sl_bpe_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_vocabularies_merge_as_by_the_book),
        cmocka_unit_test(long_pieces_are_not_quadratic),
        cmocka_unit_test(pair_that_comes_twice_keeps_its_first_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
