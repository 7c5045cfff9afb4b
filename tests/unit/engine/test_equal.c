/* The law of exactness over the engine's choices: the same tokens, logit bits and log-probabilities whatever
 * the chunk size, batch mates, threads, prefix hits, preemptions, drafts, split between two engines, loss of
 * the prefill side - for every architecture, type of weights and type of KV.
 *
 * What is wanted is computed alone, in one chunk, on one thread, without cache and drafts. Each combination
 * also checks that it really was what it says: chunks run, pages moved, hits, preemptions, drafts to the
 * number. Models, types and KV really differ: no two give the same logits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/order.h"
#include "common/sched/draft.h"
#include "tests/support/support.h"
#include "tests/unit/engine/engine_support.h"

#define PAGE        16u
#define N_PROMPTS   10u
#define BIG_PAGES   256u
#define SMALL_PAGES 22u /* two of the longest requests and a bit */
#define MAX_COMBOS  1024u
#define TRIES       40u /* random combinations of which the one with the most new pairs is taken */

/* Random combinations come as groups of one model and KV type: opening engines takes longer than requests. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RANDOM_GROUPS  4u
#define RUNS_PER_GROUP 4u
#define RUN_SHARE      4u /* of all combinations every so many-th runs */
#else
#define RANDOM_GROUPS  25u
#define RUNS_PER_GROUP 20u
#define RUN_SHARE      1u
#endif

/* The first three choose a model: a group. */
enum { ARCH, TYPE, KV, CHUNK, MATES, CACHE, POOL, SPLIT, THREADS, DRAFTS, N_FACTORS };
#define N_GROUP_FACTORS 3u

static const enum sl_dtype type_levels[] = {SL_F32,  SL_F16,  SL_BF16, SL_Q8_0, SL_Q4_0, SL_Q4_1,
                                            SL_Q5_0, SL_Q5_1, SL_Q4_K, SL_Q5_K, SL_Q6_K};
static const enum sl_dtype kv_levels[] = {SL_F32, SL_F16, SL_BF16, SL_Q8, SL_FP8};
static const int32_t chunk_levels[] = {1, 16, 64, SL_CHUNK_WHOLE, SL_CHUNK_AUTO};
static const uint32_t mate_levels[] = {0, 3, 7};
enum { CACHE_OFF, CACHE_COLD, CACHE_WARM, N_CACHE };
enum { POOL_BIG, POOL_SMALL, N_POOL };
enum { SPLIT_NONE, SPLIT_PAGE, SPLIT_MIDDLE, SPLIT_ALL, SPLIT_LOST_EARLY, SPLIT_LOST_LATE, N_SPLIT };
static const int32_t draft_levels[] = {SL_SPEC_OFF, SL_SPEC_AUTO, 4, SL_SPEC_MAX};

#define MAX_LEVELS 11u
static const uint32_t n_levels[N_FACTORS] = {
    [ARCH] = TINY_ARCHS,
    [TYPE] = SL_COUNTOF(type_levels),
    [KV] = SL_COUNTOF(kv_levels),
    [CHUNK] = SL_COUNTOF(chunk_levels),
    [MATES] = SL_COUNTOF(mate_levels),
    [CACHE] = N_CACHE,
    [POOL] = N_POOL,
    [SPLIT] = N_SPLIT,
    [THREADS] = 2,
    [DRAFTS] = SL_COUNTOF(draft_levels),
};

struct combo {
    uint8_t level[N_FACTORS];
};

/* ---- a group: one model, type and KV ---- */

static struct {
    struct tiny_choice choice;
    struct sl_engine *decode[2][N_POOL], *prefill; /* by threads; opened when needed */
    struct job want[N_PROMPTS];
    bool known[N_PROMPTS];
} group;

static struct job asks[N_PROMPTS]; /* what the requests are; the same for every group */
static struct {
    uint64_t first_logits[MAX_COMBOS]; /* of each group that ran */
    uint32_t n_groups;
    uint32_t runs, preempted, hits, moved, lost, drafted, accepted;
} total;

static struct sl_engine *engine_of(struct sl_engine **at, uint32_t threads, uint32_t n_pages)
{
    if (!*at) {
        struct sl_engine_conf c = tiny_conf(&group.choice, threads + 1, PAGE, n_pages);
        *at = tiny_engine(&c);
        assert_string_equal(sl_engine_model(*at)->arch, tiny_arch_names[group.choice.arch]);
        assert_int_equal(sl_engine_geometry(*at).dtype, group.choice.kv);
        assert_int_equal(sl_engine_n_pages(*at), n_pages);
    }
    return *at;
}

static struct sl_engine *decode_engine(uint32_t threads, uint32_t pool)
{
    return engine_of(&group.decode[threads][pool], threads, pool == POOL_BIG ? BIG_PAGES : SMALL_PAGES);
}

/* On one thread or two, by group. */
static struct sl_engine *prefill_engine(void)
{
    uint32_t threads = ((uint32_t)group.choice.type + (uint32_t)group.choice.kv) % 2;
    return engine_of(&group.prefill, threads, BIG_PAGES);
}

static void close_group(void)
{
    for (uint32_t t = 0; t < 2; t++) {
        for (uint32_t p = 0; p < N_POOL; p++) {
            struct sl_engine *d = group.decode[t][p];
            if (d && group.decode[0][POOL_BIG]) /* threads and pools do not show */
                assert_true(sl_engine_numerics_id(d) == sl_engine_numerics_id(group.decode[0][POOL_BIG]));
            if (d != group.decode[0][POOL_BIG])
                sl_engine_close(d);
        }
    }
    sl_engine_close(group.prefill);
    sl_engine_close(group.decode[0][POOL_BIG]);
    memset(&group, 0, sizeof group);
}

/* What is wanted of prompt i: computed alone, when it is first asked for. */
static const struct job *wanted(uint32_t i)
{
    struct job *j = &group.want[i];
    if (group.known[i])
        return j;
    *j = asks[i];
    jobs_run(decode_engine(0, POOL_BIG), NULL, j, 1);
    assert_int_equal(j->n_out, j->max_tokens);
    assert_int_equal(j->chunks, 1);
    assert_int_equal(j->hit_tokens + j->preemptions + j->drafted, 0);
    group.known[i] = true;
    return j;
}

static void open_group(const char *backend, const struct combo *c)
{
    group.choice = (struct tiny_choice){.arch = (enum tiny_arch)c->level[ARCH],
                                        .type = type_levels[c->level[TYPE]],
                                        .kv = kv_levels[c->level[KV]],
                                        .backend = backend};
    assert_true(total.n_groups < MAX_COMBOS);
    total.first_logits[total.n_groups++] = wanted(N_PROMPTS - 1)->digests[0];
}

/* No two groups compute the same. */
static void check_groups_differ(void)
{
    qsort(total.first_logits, total.n_groups, sizeof(uint64_t), sl_order_u64);
    for (uint32_t i = 1; i < total.n_groups; i++)
        assert_true(total.first_logits[i] != total.first_logits[i - 1]);
}

/* ---- requests ---- */

/* Favours few tokens, so that a sampled text repeats itself. */
static const struct sl_logit_bias letters[] = {{40, 40}, {41, 40}, {42, 40}};

/* Prompts of odd lengths around page edges, some with shared beginnings. Greedy, sampled, and sampled from
 * few tokens with penalties and log-probabilities. */
static void make_asks(void)
{
    static const uint32_t lengths[N_PROMPTS] = {1, 15, 16, 17, 32, 47, 64, 90, 112, 128};
    unsigned long long rng = 20;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct job *j = &asks[i];
        /* short outputs teach the engine to expect short ones, so that the long ones get preempted */
        job_init(j, &rng, lengths[i], i % 3 == 1 ? 36 : 2 + i % 3);
        j->cache = false;
        j->chunk_tokens = SL_CHUNK_WHOLE;
        if (i % 2) {
            j->sampling.temperature = 0.8F;
            j->sampling.top_p = 0.95F;
        }
        if (i == 1 || i == 7) {
            j->sampling.bias = letters;
            j->sampling.n_bias = SL_COUNTOF(letters);
            j->sampling.n_logprobs = 2;
            j->sampling.presence_penalty = 0.5F;
            j->sampling.repetition_penalty = 1.1F;
        }
        if (i > 4) /* shares its first pages with the next longer ones */
            memcpy(j->prompt, asks[4].prompt, 32 * sizeof j->prompt[0]);
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

static struct job job_of(const struct combo *c, uint32_t prompt, const char *salt)
{
    struct job j = asks[prompt];
    j.salt = salt;
    j.cache = c->level[CACHE] != CACHE_OFF;
    j.chunk_tokens = j.p_chunk_tokens = chunk_levels[c->level[CHUNK]];
    j.speculation = draft_levels[c->level[DRAFTS]];
    j.split = split_of(c->level[SPLIT], j.n_prompt);
    if (c->level[SPLIT] == SPLIT_LOST_EARLY)
        j.lose_after = 0;
    if (c->level[SPLIT] == SPLIT_LOST_LATE)
        j.lose_after = (int32_t)((j.n_prompt + PAGE - 1) / PAGE / 2);
    return j;
}

/* ---- whether a combination was what it says ---- */

static void check_chunks(const struct combo *c, const struct job *j, const char *name)
{
    int32_t chunk = chunk_levels[c->level[CHUNK]];
    uint32_t local = j->n_prompt - (j->split > j->hit_tokens ? j->split : j->hit_tokens);
    if (j->prompt_tokens_computed != local)
        fail_msg("%s: %u prompt tokens computed, expected %u", name, j->prompt_tokens_computed, local);
    if (chunk > 0 && j->chunks < (local + (uint32_t)chunk - 1) / (uint32_t)chunk)
        fail_msg("%s: %u chunks of at most %d for %u tokens", name, j->chunks, chunk, local);
    /* mates that fill a step leave room for a part of a whole prompt only */
    if (chunk == SL_CHUNK_WHOLE && c->level[MATES] == 0 && j->chunks > 1)
        fail_msg("%s: %u chunks, expected one", name, j->chunks);
}

/* A fixed number of drafts on a text that is known: what the engine must have counted. */
static void check_drafts(uint32_t most, const struct job *j, const char *name)
{
    int32_t text[JOB_MAX_TEXT + JOB_MAX_OUT], guess[JOB_MAX_TEXT + JOB_MAX_OUT];
    uint32_t end = j->n_prompt + j->n_out, drafted = 0, accepted = 0;
    memcpy(text, j->prompt, j->n_prompt * sizeof *text);
    memcpy(text + j->n_prompt, j->out, j->n_out * sizeof *text);
    for (uint32_t n = j->n_prompt + 1; n < end;) {
        uint32_t k = end - n - 1 < most ? end - n - 1 : most, hits = 0;
        memcpy(guess, text, n * sizeof *text);
        if (!k || !sl_draft_lookup(guess, n, k))
            k = 0;
        while (hits < k && guess[n + hits] == text[n + hits])
            hits++;
        drafted += k;
        accepted += hits;
        n += hits + 1;
    }
    if (j->drafted != drafted || j->accepted != accepted)
        fail_msg("%s: %u of %u drafts came true, expected %u of %u", name, j->accepted, j->drafted, accepted,
                 drafted);
}

static void check_really(const struct combo *c, const struct job *j, const char *name)
{
    uint32_t split = c->level[SPLIT];
    uint32_t expect_moved = j->split > j->hit_tokens ? (j->split - j->hit_tokens + PAGE - 1) / PAGE : 0;
    if (j->split && split <= SPLIT_ALL && !j->preemptions && j->pages_moved != expect_moved)
        fail_msg("%s: %u pages moved, expected %u", name, j->pages_moved, expect_moved);
    if (split == SPLIT_ALL && !j->first_from_p)
        fail_msg("%s: the first token did not come from the prefill side", name);
    if (split >= SPLIT_LOST_EARLY && !j->preemptions && !j->hit_tokens && !j->lost)
        fail_msg("%s: the prefill side was not lost", name);
    if (!j->preemptions && split <= SPLIT_ALL)
        check_chunks(c, j, name);
    if (c->level[CACHE] == CACHE_WARM && !j->preemptions && c->level[POOL] == POOL_BIG &&
        j->hit_tokens != (j->n_prompt - 1) / PAGE * PAGE)
        fail_msg("%s: %u tokens hit of %u", name, j->hit_tokens, j->n_prompt);
    if (c->level[CACHE] == CACHE_OFF && j->hit_tokens)
        fail_msg("%s: hit %u tokens with the cache off", name, j->hit_tokens);
    if (j->speculation == SL_SPEC_OFF && j->drafted)
        fail_msg("%s: %u drafts with speculation off", name, j->drafted);
    if (j->speculation > 0 && c->level[MATES] == 0 && !j->preemptions && c->level[POOL] == POOL_BIG)
        check_drafts((uint32_t)j->speculation, j, name);
}

/* ---- running ---- */

static void name_of(const struct combo *c, const char *backend, char *name, size_t size)
{
    snprintf(name, size,
             "%s run %u arch %u %s KV %s chunk %d mates %u cache %u pool %u split %u threads %u drafts %d",
             backend, total.runs, c->level[ARCH], sl_dtype_name(group.choice.type),
             sl_dtype_name(group.choice.kv), chunk_levels[c->level[CHUNK]], mate_levels[c->level[MATES]],
             c->level[CACHE], c->level[POOL], c->level[SPLIT], c->level[THREADS] + 1,
             draft_levels[c->level[DRAFTS]]);
}

static void count(const struct job *j)
{
    total.preempted += j->preemptions;
    total.hits += j->hit_tokens > 0;
    total.moved += j->pages_moved;
    total.lost += j->lost;
    total.drafted += j->drafted;
    total.accepted += j->accepted;
}

static void run_combo(const struct combo *c, const char *backend, unsigned long long *rng)
{
    char name[200], salt[32];
    struct job jobs[8];
    uint32_t prompts[8], n = 1 + mate_levels[c->level[MATES]];
    total.runs++;
    name_of(c, backend, name, sizeof name);
    snprintf(salt, sizeof salt, "run-%u", total.runs); /* a cache of its own */
    for (uint32_t i = 0; i < n; i++)
        prompts[i] = (uint32_t)(sl_test_random(rng) % N_PROMPTS);
    struct sl_engine *d = decode_engine(c->level[THREADS], c->level[POOL]);
    struct sl_engine *p = prefill_engine();
    for (uint32_t round = c->level[CACHE] == CACHE_WARM ? 0 : 1; round < 2; round++) {
        for (uint32_t i = 0; i < n; i++) {
            struct combo mate = *c;
            for (uint32_t f = CHUNK; i && f < N_FACTORS;
                 f++) /* mates differ in all that is a request's own */
                if (f == CHUNK || f == SPLIT || f == CACHE || f == DRAFTS)
                    mate.level[f] = (uint8_t)(sl_test_random(rng) % n_levels[f]);
            jobs[i] = job_of(&mate, prompts[i], salt);
        }
        jobs_run(d, p, jobs, n);
        for (uint32_t i = 0; i < n; i++) {
            job_equal(wanted(prompts[i]), &jobs[i], name);
            count(&jobs[i]);
        }
        if (round == 1 && (n == 1 || c->level[CACHE] != CACHE_COLD))
            check_really(c, &jobs[0], name);
    }
}

/* ---- which combinations ---- */

static struct combo random_combo(unsigned long long *rng)
{
    struct combo c;
    for (uint32_t f = 0; f < N_FACTORS; f++)
        c.level[f] = (uint8_t)(sl_test_random(rng) % n_levels[f]);
    return c;
}

typedef bool pairs_seen[N_FACTORS][MAX_LEVELS][N_FACTORS][MAX_LEVELS];

static uint32_t new_pairs(pairs_seen seen, const struct combo *c, bool mark)
{
    uint32_t n = 0;
    for (uint32_t f = 0; f < N_FACTORS; f++)
        for (uint32_t g = f + 1; g < N_FACTORS; g++) {
            bool *at = &seen[f][c->level[f]][g][c->level[g]];
            n += !*at;
            *at |= mark;
        }
    return n;
}

/* Every pair of levels of two factors occurs; the other factors are random. */
static uint32_t all_pairs(struct combo *out, unsigned long long *rng)
{
    static pairs_seen seen;
    uint32_t n = 0;
    memset(seen, 0, sizeof seen);
    for (uint32_t f = 0; f < N_FACTORS; f++)
        for (uint32_t g = f + 1; g < N_FACTORS; g++)
            for (uint32_t x = 0; x < n_levels[f]; x++)
                for (uint32_t y = 0; y < n_levels[g]; y++) {
                    if (seen[f][x][g][y])
                        continue;
                    struct combo best = {{0}};
                    uint32_t most = 0;
                    for (uint32_t t = 0; t < TRIES; t++) {
                        struct combo c = random_combo(rng);
                        c.level[f] = (uint8_t)x;
                        c.level[g] = (uint8_t)y;
                        uint32_t k = new_pairs(seen, &c, false);
                        if (k > most) {
                            most = k;
                            best = c;
                        }
                    }
                    new_pairs(seen, &best, true);
                    assert_true(n < MAX_COMBOS);
                    out[n++] = best;
                }
    return n;
}

static int by_group(const void *a, const void *b)
{
    return memcmp(a, b, N_FACTORS);
}

static bool same_group(const struct combo *a, const struct combo *b)
{
    return memcmp(a->level, b->level, N_GROUP_FACTORS) == 0;
}

static void equal_on(const char *backend, bool random_too)
{
    static struct combo combos[MAX_COMBOS];
    struct sl_why why = {0};
    const struct sl_backend_ops *ops;
    unsigned long long rng = 1;
    if (sl_backend_find(backend, &ops, &why) != SL_OK) {
        print_message("%s\n", why.text);
        skip();
    }
    memset(&total, 0, sizeof total);
    make_asks();
    uint32_t n = all_pairs(combos, &rng), n_pairs = n;
    for (uint32_t i = 0; random_too && i < RANDOM_GROUPS; i++) {
        struct combo g = random_combo(&rng);
        for (uint32_t k = 0; k < RUNS_PER_GROUP; k++) {
            combos[n] = random_combo(&rng);
            memcpy(combos[n++].level, g.level, N_GROUP_FACTORS);
        }
    }
    qsort(combos, n, sizeof combos[0], by_group);
    for (uint32_t i = 0; i < n; i++) {
        if (i % RUN_SHARE)
            continue;
        if (i == 0 || !same_group(&combos[i], &combos[i - 1]) || !group.choice.backend) {
            close_group();
            open_group(backend, &combos[i]);
        }
        run_combo(&combos[i], backend, &rng);
    }
    close_group();
    check_groups_differ();
    print_message(
        "%s: %u runs (%u for all pairs) of %u models, %u preemptions, %u with hits, %u pages moved, %u "
        "prefill sides lost, %u of %u drafts came true\n",
        backend, total.runs, n_pairs, total.n_groups, total.preempted, total.hits, total.moved, total.lost,
        total.accepted, total.drafted);
    assert_true(total.hits > 0 && total.moved > 0 && total.lost > 0);
    /* of a share of the runs none may have met another in a small pool */
    assert_true(total.preempted > 0 || RUN_SHARE > 1);
    assert_true(total.accepted > 0 && total.drafted > total.accepted);
}

static void engine_page_size_does_not_show(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 5, 24, 64};
    make_asks();
    open_group("portable", &(struct combo){{TINY_GEMMA3, 5, 2}});
    for (uint32_t i = 0; i < SL_COUNTOF(sizes); i++) {
        struct sl_engine_conf c = tiny_conf(&group.choice, 1, sizes[i], 2048 / sizes[i]);
        struct sl_engine *e = tiny_engine(&c);
        for (uint32_t k = 0; k < N_PROMPTS; k++) {
            struct job j =
                job_of(&(struct combo){.level = {[CHUNK] = 1, [CACHE] = CACHE_COLD, [DRAFTS] = 2}}, k, NULL);
            jobs_run(e, NULL, &j, 1);
            job_equal(wanted(k), &j, "page size");
        }
        sl_engine_close(e);
    }
    close_group();
}

static void engine_avx512_backend_equals_over_all_choices(void **state)
{
    (void)state;
    equal_on("avx512", true);
}

static void engine_avx2_backend_equals_over_all_choices(void **state)
{
    (void)state;
    equal_on("avx2", true);
}

static void engine_portable_backend_equals_over_all_pairs(void **state)
{
    (void)state;
    equal_on("portable", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_page_size_does_not_show),
        cmocka_unit_test(engine_avx512_backend_equals_over_all_choices),
        cmocka_unit_test(engine_avx2_backend_equals_over_all_choices),
        cmocka_unit_test(engine_portable_backend_equals_over_all_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
