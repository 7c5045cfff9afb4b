/* common/kv/kv_prefix: hits, references, eviction order, collisions, and a random walk against the rules. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/kv/kv_hash.h"
#include "common/kv/kv_prefix.h"
#include "tests/support/support.h"

#define PT        2u /* page_tokens */
#define MAX_PAGES 8u

struct fixture {
    struct sl_kv_pool *pool;
    struct sl_kv_prefix *cache;
};

static struct fixture open_cache(uint32_t n_pages)
{
    struct fixture f;
    assert_int_equal(sl_kv_pool_open(n_pages, &f.pool), SL_OK);
    f.cache = sl_kv_prefix_new(f.pool, PT);
    return f;
}

static void check(const struct fixture *f)
{
    struct sl_why why = {0};
    if (sl_kv_prefix_check(f->cache, &why) != SL_OK)
        fail_msg("%s", why.text);
}

static void close_cache(struct fixture *f)
{
    check(f);
    sl_kv_prefix_free(f->cache);
    assert_int_equal(sl_kv_pool_free_pages(f->pool), sl_kv_pool_total_pages(f->pool));
    sl_kv_pool_close(f->pool);
}

/* A prefix whose page i holds the tokens (text[i], text[i]). */
struct text {
    int32_t tokens[MAX_PAGES * PT];
    uint64_t hashes[MAX_PAGES];
    struct sl_kv_chain chain;
};

static void text_of(struct text *t, const char *letters, uint64_t salt)
{
    static const struct sl_digest128 model = {.lo = 5};
    uint32_t n = (uint32_t)strlen(letters);
    for (uint32_t i = 0; i < n; i++) {
        t->tokens[i * PT] = t->tokens[i * PT + 1] = letters[i];
        t->hashes[i] =
            sl_kv_chain_hash(&model, salt, i ? t->hashes[i - 1] : SL_KV_CHAIN_ROOT, &t->tokens[i * PT], PT);
    }
    t->chain = (struct sl_kv_chain){.salt = salt, .hashes = t->hashes, .tokens = t->tokens, .n_pages = n};
}

/* Takes pages for the text and offers them; the caller holds them. */
static void add(struct fixture *f, const char *letters, uint32_t *pages)
{
    struct text t;
    text_of(&t, letters, 0);
    assert_int_equal(sl_kv_pool_take(f->pool, t.chain.n_pages, SL_KV_NO_PAGE, pages), SL_OK);
    sl_kv_prefix_insert(f->cache, &t.chain, pages);
    check(f);
}

static void drop(struct fixture *f, const uint32_t *pages, uint32_t n)
{
    while (n)
        sl_kv_prefix_drop(f->cache, pages[--n]);
    check(f);
}

static uint32_t matched(struct fixture *f, const char *letters)
{
    struct text t;
    text_of(&t, letters, 0);
    return sl_kv_prefix_match(f->cache, &t.chain);
}

static void match_finds_the_longest_prefix_of_whole_pages(void **state)
{
    (void)state;
    struct fixture f = open_cache(16);
    uint32_t pages[3];
    add(&f, "abc", pages);
    assert_int_equal(matched(&f, "abc"), 3);
    assert_int_equal(matched(&f, "abcd"), 3);
    assert_int_equal(matched(&f, "abx"), 2);
    assert_int_equal(matched(&f, "xbc"), 0);
    struct text t;
    text_of(&t, "abc", 9); /* another salt */
    assert_int_equal(sl_kv_prefix_match(f.cache, &t.chain), 0);
    drop(&f, pages, 3);
    close_cache(&f);
}

static void take_references_what_it_found(void **state)
{
    (void)state;
    struct fixture f = open_cache(16);
    uint32_t pages[3], got[4];
    add(&f, "abc", pages);
    struct text t;
    text_of(&t, "abzz", 0);
    assert_int_equal(sl_kv_prefix_take(f.cache, &t.chain, got), 2);
    assert_int_equal(got[0], pages[0]);
    assert_int_equal(sl_kv_pool_refs(f.pool, pages[0]), 3);
    assert_int_equal(sl_kv_pool_refs(f.pool, pages[2]), 2);
    drop(&f, got, 2);
    drop(&f, pages, 3);
    assert_int_equal(sl_kv_prefix_evictable_pages(f.cache), 3);
    close_cache(&f);
}

static void same_hash_with_other_tokens_or_salt_is_no_hit(void **state)
{
    (void)state;
    struct fixture f = open_cache(16);
    uint32_t pages[2], other[2];
    struct text t;
    add(&f, "ab", pages);
    text_of(&t, "xy", 0);
    uint64_t forged[2] = {
        sl_kv_chain_hash(&(struct sl_digest128){.lo = 5}, 0, SL_KV_CHAIN_ROOT, (int32_t[]){'a', 'a'}, PT),
        t.hashes[1]};
    t.chain.hashes = forged;
    assert_int_equal(sl_kv_prefix_match(f.cache, &t.chain), 0);
    assert_int_equal(sl_kv_pool_take(f.pool, 2, SL_KV_NO_PAGE, other), SL_OK);
    sl_kv_prefix_insert(f.cache, &t.chain, other); /* taken: not cached, the first stays */
    check(&f);
    assert_int_equal(sl_kv_prefix_cached_pages(f.cache), 2);
    assert_int_equal(matched(&f, "ab"), 2);
    text_of(&t, "ab", 0);
    t.chain.salt = 9; /* the same hashes and tokens in another salt */
    assert_int_equal(sl_kv_prefix_match(f.cache, &t.chain), 0);
    drop(&f, other, 2);
    drop(&f, pages, 2);
    close_cache(&f);
}

static void same_last_page_under_another_parent_is_no_hit(void **state)
{
    (void)state;
    struct fixture f = open_cache(16);
    uint32_t pages[2], other[2];
    add(&f, "ab", pages);
    struct text t;
    text_of(&t, "xb", 0);
    uint64_t forged[2] = {t.hashes[0], 0};
    struct text ab;
    text_of(&ab, "ab", 0);
    forged[1] = ab.hashes[1]; /* collides with page b of "ab" */
    t.chain.hashes = forged;
    assert_int_equal(sl_kv_pool_take(f.pool, 2, SL_KV_NO_PAGE, other), SL_OK);
    sl_kv_prefix_insert(f.cache, &t.chain, other);
    assert_int_equal(sl_kv_prefix_match(f.cache, &t.chain), 1);
    assert_int_equal(matched(&f, "ab"), 2);
    drop(&f, other, 2);
    drop(&f, pages, 2);
    close_cache(&f);
}

static void equal_pages_of_two_sequences_stay_apart(void **state)
{
    (void)state;
    struct fixture f = open_cache(16);
    uint32_t a[2], b[3];
    add(&f, "ab", a);
    add(&f, "abc", b); /* computed at the same time */
    assert_int_equal(sl_kv_prefix_cached_pages(f.cache), 3);
    assert_false(sl_kv_prefix_cached(f.cache, b[0]));
    assert_true(sl_kv_prefix_cached(f.cache, b[2]));
    drop(&f, a, 2); /* b's page c is in use and hangs under them */
    assert_int_equal(sl_kv_prefix_evictable_pages(f.cache), 0);
    assert_int_equal(sl_kv_prefix_evict(f.cache, 16), 0);
    drop(&f, b, 3);
    assert_int_equal(sl_kv_prefix_evictable_pages(f.cache), 3);
    close_cache(&f);
}

static void evict_takes_the_oldest_leaf_first(void **state)
{
    (void)state;
    struct fixture f = open_cache(16);
    uint32_t a[3], b[2], c[1], got[3];
    add(&f, "abc", a);
    drop(&f, a, 3);
    add(&f, "xy", b);
    drop(&f, b, 2);
    add(&f, "q", c);
    drop(&f, c, 1);
    struct text t; /* abc is used again: xy is the oldest now */
    text_of(&t, "abc", 0);
    assert_int_equal(sl_kv_prefix_take(f.cache, &t.chain, got), 3);
    drop(&f, got, 3);
    assert_int_equal(sl_kv_prefix_evict(f.cache, 1), 1);
    assert_int_equal(matched(&f, "xy"), 1);
    assert_int_equal(sl_kv_prefix_evict(f.cache, 1), 1); /* x, as old as its child */
    assert_int_equal(matched(&f, "xy"), 0);
    assert_int_equal(sl_kv_prefix_evict(f.cache, 1), 1);
    assert_int_equal(matched(&f, "q"), 0);
    assert_int_equal(matched(&f, "abc"), 3);
    assert_int_equal(sl_kv_prefix_evict(f.cache, 2), 2);
    assert_int_equal(matched(&f, "abc"), 1);
    close_cache(&f);
}

static void newest_names_come_first(void **state)
{
    (void)state;
    struct fixture f = open_cache(16);
    uint32_t a[2], b[1];
    uint64_t got[8];
    add(&f, "ab", a);
    add(&f, "x", b);
    struct text ab, x;
    text_of(&ab, "ab", 0);
    text_of(&x, "x", 0);
    assert_int_equal(sl_kv_prefix_newest(f.cache, got, 8), 3);
    assert_true(got[0] == x.hashes[0] && got[1] == ab.hashes[1] && got[2] == ab.hashes[0]);
    assert_int_equal(sl_kv_prefix_newest(f.cache, got, 1), 1);
    drop(&f, a, 2);
    drop(&f, b, 1);
    close_cache(&f);
}

/* Random texts over a tiny alphabet come, share, grow, go and get evicted; the counts always agree. */
static void random_walk_keeps_the_rules(void **state)
{
    (void)state;
    enum { HOLDERS = 12, POOL = 40 };
    struct holder {
        char letters[MAX_PAGES + 1];
        uint32_t pages[MAX_PAGES], n;
    } h[HOLDERS] = {0};
    struct fixture f = open_cache(POOL);
    unsigned long long rng = 3;
    for (int round = 0; round < 20000; round++) {
        struct holder *x = &h[sl_test_random(&rng) % HOLDERS];
        if (x->n) {
            drop(&f, x->pages, x->n);
            x->n = 0;
            continue;
        }
        uint32_t n = 1 + (uint32_t)(sl_test_random(&rng) % MAX_PAGES);
        for (uint32_t i = 0; i < n; i++)
            x->letters[i] = (char)('a' + sl_test_random(&rng) % 2);
        x->letters[n] = 0;
        struct text t;
        text_of(&t, x->letters, 0);
        uint32_t hits = sl_test_random(&rng) % 4 ? sl_kv_prefix_take(f.cache, &t.chain, x->pages) : 0;
        uint32_t need = n - hits, n_free = sl_kv_pool_free_pages(f.pool);
        uint32_t evictable = sl_kv_prefix_evictable_pages(f.cache);
        if (need > n_free + evictable) {
            drop(&f, x->pages, hits);
            continue;
        }
        if (need > n_free)
            assert_int_equal(sl_kv_prefix_evict(f.cache, need - n_free), need - n_free);
        assert_int_equal(sl_kv_pool_take(f.pool, need, SL_KV_NO_PAGE, &x->pages[hits]), SL_OK);
        x->n = n;
        sl_kv_prefix_insert(f.cache, &t.chain, x->pages);
        check(&f);
        assert_int_equal(matched(&f, x->letters), n);
    }
    for (int i = 0; i < HOLDERS; i++)
        drop(&f, h[i].pages, h[i].n);
    assert_int_equal(sl_kv_prefix_evictable_pages(f.cache), sl_kv_prefix_cached_pages(f.cache));
    sl_kv_prefix_evict(f.cache, POOL);
    assert_int_equal(sl_kv_pool_free_pages(f.pool), POOL);
    close_cache(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(match_finds_the_longest_prefix_of_whole_pages),
        cmocka_unit_test(take_references_what_it_found),
        cmocka_unit_test(same_hash_with_other_tokens_or_salt_is_no_hit),
        cmocka_unit_test(same_last_page_under_another_parent_is_no_hit),
        cmocka_unit_test(equal_pages_of_two_sequences_stay_apart),
        cmocka_unit_test(evict_takes_the_oldest_leaf_first),
        cmocka_unit_test(newest_names_come_first),
        cmocka_unit_test(random_walk_keeps_the_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
