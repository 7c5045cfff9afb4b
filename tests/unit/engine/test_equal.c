/* The law of exactness over the engine's choices: the same tokens and the same logit bits whatever the chunk
 * size, batch mates, threads, prefix hits, preemptions, split between two engines, loss of the prefill side.
 *
 * Each combination also checks that it really was what it says: chunks run, pages moved, hits, preemptions.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/support.h"
#include "tests/unit/engine/engine_support.h"

#define PAGE        16u
#define N_PROMPTS   10u
#define BIG_PAGES   256u
#define SMALL_PAGES 26u /* two and a half of the longest requests */
#define RANDOM_RUNS 500u

enum { CHUNK, MATES, CACHE, POOL, SPLIT, THREADS, N_FACTORS };

static const int32_t chunk_levels[] = {1, 16, 64, SL_CHUNK_WHOLE, SL_CHUNK_AUTO};
static const uint32_t mate_levels[] = {0, 3, 7};
enum { CACHE_OFF, CACHE_COLD, CACHE_WARM, N_CACHE };
enum { POOL_BIG, POOL_SMALL, N_POOL };
enum { SPLIT_NONE, SPLIT_PAGE, SPLIT_MIDDLE, SPLIT_ALL, SPLIT_LOST_EARLY, SPLIT_LOST_LATE, N_SPLIT };

static const uint32_t n_levels[N_FACTORS] = {[CHUNK] = SL_COUNTOF(chunk_levels),
                                             [MATES] = SL_COUNTOF(mate_levels),
                                             [CACHE] = N_CACHE,
                                             [POOL] = N_POOL,
                                             [SPLIT] = N_SPLIT,
                                             [THREADS] = 2};

static struct job want[N_PROMPTS];
static struct sl_engine *decode_engines[2][N_POOL], *prefill_engines[2];
static uint32_t n_runs, n_preempted, n_hits, n_moved, n_lost;

static void open_engines(const char *backend)
{
    for (uint32_t t = 0; t < 2; t++) {
        struct sl_engine_conf c = tiny_conf(backend, t + 1, PAGE, BIG_PAGES);
        decode_engines[t][POOL_BIG] = tiny_engine(&c);
        prefill_engines[t] = tiny_engine(&c);
        c = tiny_conf(backend, t + 1, PAGE, SMALL_PAGES);
        decode_engines[t][POOL_SMALL] = tiny_engine(&c);
        assert_true(sl_engine_numerics_id(decode_engines[t][POOL_SMALL]) ==
                    sl_engine_numerics_id(decode_engines[0][POOL_BIG]));
    }
}

static void close_engines(void)
{
    for (uint32_t t = 0; t < 2; t++) {
        sl_engine_close(prefill_engines[t]);
        for (uint32_t i = 0; i < N_POOL; i++)
            sl_engine_close(decode_engines[t][i]);
    }
}

/* Prompts of odd lengths around page edges; half of them sampled, some with shared beginnings. */
static void make_prompts(void)
{
    static const uint32_t lengths[N_PROMPTS] = {1, 15, 16, 17, 32, 47, 64, 100, 128, 150};
    unsigned long long rng = 20;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct job *j = &want[i];
        /* short outputs teach the engine to expect short ones, so that the long ones get preempted */
        job_init(j, &rng, lengths[i], i % 3 == 1 ? 40 : 2 + i % 3);
        j->cache = false;
        j->chunk_tokens = SL_CHUNK_WHOLE;
        if (i % 2) {
            j->sampling.temperature = 0.8F;
            j->sampling.top_p = 0.95F;
        }
        if (i > 4) /* shares its first pages with the next longer ones */
            memcpy(j->prompt, want[4].prompt, 32 * sizeof j->prompt[0]);
        jobs_run(decode_engines[0][POOL_BIG], NULL, j, 1);
        assert_int_equal(j->n_out, j->max_tokens);
    }
}

static uint32_t split_of(uint32_t level, uint32_t n_prompt)
{
    uint32_t pages = n_prompt / PAGE;
    switch (level) {
    case SPLIT_PAGE:
        return pages ? PAGE : 0;
    case SPLIT_MIDDLE:
        return pages > 1 ? pages / 2 * PAGE : 0;
    case SPLIT_ALL:
    case SPLIT_LOST_EARLY:
    case SPLIT_LOST_LATE:
        return n_prompt;
    default:
        return 0;
    }
}

static struct job job_of(const uint32_t *levels, uint32_t prompt, const char *salt)
{
    struct job j = want[prompt];
    j.n_out = 0;
    memset(j.out, 0, sizeof j.out);
    memset(j.digests, 0, sizeof j.digests);
    j.finished = false;
    j.salt = salt;
    j.cache = levels[CACHE] != CACHE_OFF;
    j.chunk_tokens = j.p_chunk_tokens = chunk_levels[levels[CHUNK]];
    j.split = split_of(levels[SPLIT], j.n_prompt);
    if (levels[SPLIT] == SPLIT_LOST_EARLY)
        j.lose_after = 0;
    if (levels[SPLIT] == SPLIT_LOST_LATE)
        j.lose_after = (int32_t)((j.n_prompt + PAGE - 1) / PAGE / 2);
    return j;
}

/* What a lone run must have done. */
static void check_really(const uint32_t *levels, const struct job *j, const char *name)
{
    int32_t chunk = chunk_levels[levels[CHUNK]];
    uint32_t expect_moved = j->split > j->hit_tokens ? (j->split - j->hit_tokens + PAGE - 1) / PAGE : 0;
    if (j->split && levels[SPLIT] <= SPLIT_ALL && !j->preemptions && j->pages_moved != expect_moved)
        fail_msg("%s: %u pages moved, expected %u", name, j->pages_moved, expect_moved);
    if (levels[SPLIT] == SPLIT_ALL && !j->first_from_p)
        fail_msg("%s: the first token did not come from the prefill side", name);
    if (!j->preemptions && levels[SPLIT] <= SPLIT_ALL) {
        uint32_t local = j->n_prompt - (j->split > j->hit_tokens ? j->split : j->hit_tokens);
        if (j->prompt_tokens_computed != local)
            fail_msg("%s: %u prompt tokens computed, expected %u", name, j->prompt_tokens_computed, local);
        if (chunk > 0 && j->chunks < (local + (uint32_t)chunk - 1) / (uint32_t)chunk)
            fail_msg("%s: %u chunks of at most %d for %u tokens", name, j->chunks, chunk, local);
        /* mates that fill a step leave room for a part of a whole prompt only */
        if (chunk == SL_CHUNK_WHOLE && levels[MATES] == 0 && j->chunks > 1)
            fail_msg("%s: %u chunks, expected one", name, j->chunks);
    }
    if (levels[CACHE] == CACHE_WARM && !j->preemptions && levels[POOL] == POOL_BIG &&
        j->hit_tokens != (j->n_prompt - 1) / PAGE * PAGE)
        fail_msg("%s: %u tokens hit of %u", name, j->hit_tokens, j->n_prompt);
    if (levels[CACHE] == CACHE_OFF && j->hit_tokens)
        fail_msg("%s: hit %u tokens with the cache off", name, j->hit_tokens);
}

static void run_combination(const uint32_t *levels, unsigned long long *rng)
{
    char name[160], salt[32];
    struct job jobs[8];
    uint32_t n = 1 + mate_levels[levels[MATES]];
    uint32_t prompts[8];
    snprintf(salt, sizeof salt, "run-%u", n_runs++); /* a cache of its own */
    for (uint32_t i = 0; i < n; i++)
        prompts[i] = (uint32_t)(sl_test_random(rng) % N_PROMPTS);
    struct sl_engine *d = decode_engines[levels[THREADS]][levels[POOL]];
    struct sl_engine *p = prefill_engines[sl_test_random(rng) % 2];
    for (uint32_t round = levels[CACHE] == CACHE_WARM ? 0 : 1; round < 2; round++) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t mate[N_FACTORS];
            memcpy(mate, levels, sizeof mate);
            if (i) { /* mates differ in mode, chunk size and cache use */
                mate[CHUNK] = (uint32_t)(sl_test_random(rng) % n_levels[CHUNK]);
                mate[SPLIT] = (uint32_t)(sl_test_random(rng) % N_SPLIT);
                mate[CACHE] = (uint32_t)(sl_test_random(rng) % N_CACHE);
            }
            jobs[i] = job_of(mate, prompts[i], salt);
        }
        jobs_run(d, p, jobs, n);
        for (uint32_t i = 0; i < n; i++) {
            snprintf(name, sizeof name,
                     "run %u round %u request %u of %u chunk %d cache %u pool %u split %u threads %u", n_runs,
                     round, i, n, jobs[i].chunk_tokens, levels[CACHE], levels[POOL], jobs[i].split,
                     levels[THREADS] + 1);
            job_equal(&want[prompts[i]], &jobs[i], name);
            n_preempted += jobs[i].preemptions;
            n_hits += jobs[i].hit_tokens > 0;
            n_moved += jobs[i].pages_moved;
            n_lost += jobs[i].lost;
        }
        if (round == 1 && (n == 1 || levels[CACHE] != CACHE_COLD))
            check_really(levels, &jobs[0], name);
    }
}

/* Every pair of levels of two factors occurs; the other factors are random. */
static void all_pairs(unsigned long long *rng)
{
    bool seen[N_FACTORS][8][N_FACTORS][8] = {0};
    for (uint32_t a = 0; a < N_FACTORS; a++)
        for (uint32_t b = a + 1; b < N_FACTORS; b++)
            for (uint32_t x = 0; x < n_levels[a]; x++)
                for (uint32_t y = 0; y < n_levels[b]; y++) {
                    if (seen[a][x][b][y])
                        continue;
                    uint32_t levels[N_FACTORS];
                    for (uint32_t f = 0; f < N_FACTORS; f++)
                        levels[f] = (uint32_t)(sl_test_random(rng) % n_levels[f]);
                    levels[a] = x;
                    levels[b] = y;
                    for (uint32_t f = 0; f < N_FACTORS; f++)
                        for (uint32_t g = f + 1; g < N_FACTORS; g++)
                            seen[f][levels[f]][g][levels[g]] = true;
                    run_combination(levels, rng);
                }
}

static void equal_on(const char *backend, uint32_t random_runs)
{
    unsigned long long rng = 1;
    n_runs = n_preempted = n_hits = n_moved = n_lost = 0;
    open_engines(backend);
    make_prompts();
    all_pairs(&rng);
    for (uint32_t i = 0; i < random_runs; i++) {
        uint32_t levels[N_FACTORS];
        for (uint32_t f = 0; f < N_FACTORS; f++)
            levels[f] = (uint32_t)(sl_test_random(&rng) % n_levels[f]);
        run_combination(levels, &rng);
    }
    print_message(
        "backend %s: %u runs, %u preemptions, %u with hits, %u pages moved, %u prefill sides lost\n",
        sl_engine_backend(prefill_engines[0]), n_runs, n_preempted, n_hits, n_moved, n_lost);
    assert_true(n_preempted > 0 && n_hits > 0 && n_moved > 0 && n_lost > 0);
    close_engines();
}

static void engine_page_size_does_not_show(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 5, 24, 64};
    open_engines("portable");
    make_prompts();
    close_engines();
    for (uint32_t i = 0; i < SL_COUNTOF(sizes); i++) {
        struct sl_engine_conf c = tiny_conf("portable", 1, sizes[i], 2048 / sizes[i]);
        struct sl_engine *e = tiny_engine(&c);
        for (uint32_t k = 0; k < N_PROMPTS; k++) {
            struct job j = job_of((uint32_t[N_FACTORS]){[CHUNK] = 1, [CACHE] = CACHE_COLD}, k, NULL);
            jobs_run(e, NULL, &j, 1);
            job_equal(&want[k], &j, "page size");
        }
        sl_engine_close(e);
    }
}

static void engine_fastest_backend_equals_over_all_choices(void **state)
{
    (void)state;
    equal_on("auto", RANDOM_RUNS);
}

static void engine_portable_backend_equals_over_all_pairs(void **state)
{
    (void)state;
    equal_on("portable", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_page_size_does_not_show),
        cmocka_unit_test(engine_fastest_backend_equals_over_all_choices),
        cmocka_unit_test(engine_portable_backend_equals_over_all_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
