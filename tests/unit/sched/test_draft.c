/* Prompt lookup: what it finds, against a plain search. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/err.h"
#include "common/sched/draft.h"
#include "tests/support/support.h"

#define MAX 256u

struct text {
    int32_t t[MAX];
    uint32_t n;
};

static struct text text_of(const char *letters)
{
    struct text x = {.n = (uint32_t)strlen(letters)};
    for (uint32_t i = 0; i < x.n; i++)
        x.t[i] = letters[i];
    return x;
}

static void draft_is_what_followed_the_longest_agreement(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t match;
        const char *draft;
    } cases[] = {
        {"", 0, ""},
        {"a", 0, ""},
        {"aa", 0, ""}, /* one token alone says nothing */
        {"abcXa", 0, ""},
        {"abcXab", 2, "cXab"},
        {"abcYzabcXYzab", 4, "cXYz"}, /* "Yzab" beats "ab" */
        {"abQabPab", 2, "Pab"},       /* equally long: the latest */
        {"xyxyxy", 4, "xyxyxyxyxy"},  /* a loop goes on beyond the text */
        {"aaa", 2, "aaaaaa"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct text x = text_of(cases[i].text);
        uint32_t n_draft = (uint32_t)strlen(cases[i].draft);
        uint32_t match = sl_draft_lookup(x.t, x.n, n_draft);
        if (match != cases[i].match)
            fail_msg("\"%s\": %u agree, expected %u", cases[i].text, match, cases[i].match);
        for (uint32_t k = 0; match && k < n_draft; k++)
            if (x.t[x.n + k] != cases[i].draft[k])
                fail_msg("\"%s\": draft %u is %c, expected %c", cases[i].text, k, x.t[x.n + k],
                         cases[i].draft[k]);
    }
}

/* Every earlier place, counted plainly; of equal ones the latest. */
static uint32_t plain(const struct text *x, uint32_t *from)
{
    uint32_t best = 0;
    for (uint32_t at = 1; at < x->n; at++) {
        uint32_t k = 0;
        while (k < at && k < SL_DRAFT_MAX_MATCH && x->t[at - 1 - k] == x->t[x->n - 1 - k])
            k++;
        if (k >= SL_DRAFT_MIN_MATCH && k >= best) {
            best = k;
            *from = at;
        }
    }
    return best;
}

static void draft_of_random_texts_is_the_plain_one(void **state)
{
    (void)state;
    unsigned long long rng = 5;
    uint32_t found = 0;
    for (uint32_t run = 0; run < 3000; run++) {
        struct text x = {.n = (uint32_t)(sl_test_random(&rng) % 200)};
        uint32_t alphabet = 2 + (uint32_t)(sl_test_random(&rng) % 12), from = 0;
        for (uint32_t i = 0; i < x.n; i++)
            x.t[i] = (int32_t)(sl_test_random(&rng) % alphabet);
        uint32_t want = plain(&x, &from), n_draft = (uint32_t)(sl_test_random(&rng) % 40);
        struct text before = x;
        uint32_t got = sl_draft_lookup(x.t, x.n, n_draft);
        assert_int_equal(got, want);
        assert_memory_equal(x.t, before.t, x.n * sizeof x.t[0]);
        for (uint32_t i = 0; got && i < n_draft; i++)
            assert_int_equal(x.t[x.n + i], x.t[from + i]);
        found += got > 0;
    }
    assert_true(found > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draft_is_what_followed_the_longest_agreement),
        cmocka_unit_test(draft_of_random_texts_is_the_plain_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
