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

/* Tokens 0..3 are the letters a..d; the rest are made by merges. */
struct model {
    uint32_t byte_ids[256];
    struct sl_bpe_merge merges[MAX_MERGES];
    uint32_t n_merges, n_tokens;
    struct sl_bpe *bpe;
};

static void random_model(struct model *m, unsigned long long *seed)
{
    for (int i = 0; i < 256; i++)
        m->byte_ids[i] = SL_BPE_NO_ID;
    for (uint32_t i = 0; i < 4; i++)
        m->byte_ids['a' + i] = i;
    m->n_tokens = 4;
    m->n_merges = (uint32_t)(sl_test_random(seed) % MAX_MERGES);
    for (uint32_t i = 0; i < m->n_merges; i++)
        m->merges[i] = (struct sl_bpe_merge){(uint32_t)(sl_test_random(seed) % m->n_tokens),
                                             (uint32_t)(sl_test_random(seed) % m->n_tokens), m->n_tokens++};
    m->bpe = sl_bpe_new(m->byte_ids, m->merges, m->n_merges);
}

/* Again and again the best pair, the leftmost first. */
static size_t by_the_book(const struct model *m, const char *text, size_t n, uint32_t *ids)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (m->byte_ids[(uint8_t)text[i]] != SL_BPE_NO_ID)
            ids[count++] = m->byte_ids[(uint8_t)text[i]];
    for (;;) {
        uint32_t best = m->n_merges;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++)
            for (uint32_t r = 0; r < best; r++)
                if (m->merges[r].left == ids[i] && m->merges[r].right == ids[i + 1]) {
                    best = r;
                    at = i;
                }
        if (best == m->n_merges)
            return count;
        ids[at] = m->merges[best].merged;
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
    }
}

static void random_vocabularies_merge_as_by_the_book(void **state)
{
    unsigned long long seed = 3;
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct model m;
        struct sl_bpe_work work = {0};
        random_model(&m, &seed);
        for (int k = 0; k < 20; k++) {
            char text[80];
            uint32_t expected[80];
            struct sl_id_list got = {.max = 100};
            size_t n = sl_test_random(&seed) % sizeof text;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)("abcdx"[sl_test_random(&seed) % 5]);
            size_t count = by_the_book(&m, text, n, expected);
            assert_int_equal(sl_bpe_encode(m.bpe, &work, text, n, &got), SL_OK);
            assert_int_equal(got.n, count);
            if (count)
                assert_memory_equal(got.ids, expected, count * sizeof *expected);
            sl_free(got.ids);
        }
        sl_bpe_work_fini(&work);
        sl_bpe_free(m.bpe);
    }
}

static void long_pieces_are_not_quadratic(void **state)
{
    struct model m;
    struct sl_bpe_work work = {0};
    struct sl_id_list out = {.max = SIZE_MAX};
    const size_t n = 1u << 20; /* quadratic work would not end within the test's time limit */
    (void)state;
    m = (struct model){.n_merges = 10, .n_tokens = 14};
    for (uint32_t i = 0; i < m.n_merges; i++) /* doubles: a, aa, aaaa, ... */
        m.merges[i] = (struct sl_bpe_merge){i ? i + 3 : 0, i ? i + 3 : 0, i + 4};
    m.bpe = sl_bpe_new(m.byte_ids, m.merges, m.n_merges);
    char *text = sl_xalloc(n);
    memset(text, 'a', n);
    assert_int_equal(sl_bpe_encode(m.bpe, &work, text, n, &out), SL_OK);
    assert_int_equal(out.n, n >> 10);
    sl_free(text);
    sl_free(out.ids);
    sl_bpe_work_fini(&work);
    sl_bpe_free(m.bpe);
}

static void full_list_is_too_big(void **state)
{
    struct model m = {.n_tokens = 1};
    struct sl_bpe_work work = {0};
    struct sl_id_list out = {.max = 3};
    (void)state;
    m.bpe = sl_bpe_new(m.byte_ids, m.merges, 0);
    assert_int_equal(sl_bpe_encode(m.bpe, &work, "aaaa", 4, &out), SL_ETOOBIG);
    out.n = 0;
    assert_int_equal(sl_bpe_encode(m.bpe, &work, "aaa", 3, &out), SL_OK);
    sl_free(out.ids);
    sl_bpe_work_fini(&work);
    sl_bpe_free(m.bpe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_vocabularies_merge_as_by_the_book),
        cmocka_unit_test(long_pieces_are_not_quadratic),
        cmocka_unit_test(full_list_is_too_big),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
