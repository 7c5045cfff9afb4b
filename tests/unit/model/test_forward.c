/* The law of exactness over whole passes: the logits of a position are the same bits whatever chunks, batch
 * mates, threads and page size brought it about. For every backend of this machine and every kind of model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/mem.h"
#include "common/base/philox.h"
#include "tests/unit/model/model_rig.h"

#define N_SEQ    3
#define MAX_LEN  160
#define MAX_ROWS 320
#define N_RANDOM 4 /* schedules per model, backend and thread count */

static const char *const backends[] = {"reference", "portable", "avx2", "avx512"};
static const uint32_t lengths[N_SEQ] = {150, 97, 33}; /* over, and short of, two and one softmax blocks */

struct dice {
    uint32_t seed, n;
};

static uint32_t roll(struct dice *d, uint32_t below)
{
    uint32_t out[4];
    sl_philox4x32((const uint32_t[4]){d->n++, 0, 0, 0}, (const uint32_t[2]){d->seed, 11}, out);
    return out[0] % below;
}

static int32_t token_at(uint32_t seq, uint32_t pos, uint32_t n_vocab)
{
    struct dice d = {.seed = 77 + seq, .n = pos};
    return (int32_t)roll(&d, n_vocab);
}

/* Digests of [sequence][position]; 0 where none was asked for. */
struct result {
    uint64_t digest[N_SEQ][MAX_LEN];
};

/* How one run proceeds: every step takes a chunk of each unfinished sequence (of those it picks, when
 * random). */
struct schedule {
    uint32_t chunk; /* 0 = whole */
    bool together;  /* all sequences in one batch, or one after the other */
    bool random;    /* chunk lengths, who takes part, whose logits are wanted: by dice */
    struct dice dice;
};

struct run_state {
    uint32_t done[N_SEQ];
    uint32_t pages[N_SEQ][MAX_LEN]; /* enough for pages of one token */
    uint32_t n_pages[N_SEQ];
};

/* Page ids in an order that the schedule's dice choose, so that neighbours in a sequence are none in memory.
 */
static void pages_deal(const struct rig *r, struct run_state *s, struct dice *d)
{
    uint32_t ids[MAX_LEN * N_SEQ], n = r->conf.n_pages, at = 0;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = roll(d, i + 1), t = ids[i];
        ids[i] = ids[j];
        ids[j] = t;
    }
    for (uint32_t q = 0; q < N_SEQ; q++) {
        s->n_pages[q] = (lengths[q] + r->conf.page_tokens - 1) / r->conf.page_tokens;
        for (uint32_t i = 0; i < s->n_pages[q]; i++)
            s->pages[q][i] = ids[at++];
    }
}

static bool step(struct rig *r, struct schedule *sc, struct run_state *s, struct result *res)
{
    static int32_t tokens[MAX_ROWS];
    static uint32_t out_rows[MAX_ROWS], out_seq[MAX_ROWS], out_pos[MAX_ROWS];
    struct sl_batch_run runs[N_SEQ];
    uint32_t n_vocab = sl_model_conf(r->model)->n_vocab;
    struct sl_batch b = {.tokens = tokens, .runs = runs, .out_rows = out_rows};
    bool open = false;
    for (uint32_t q = 0; q < N_SEQ; q++) {
        uint32_t left = lengths[q] - s->done[q];
        if (left == 0)
            continue;
        open = true;
        if ((!sc->together && b.n_runs > 0) || (sc->random && roll(&sc->dice, 3) == 0))
            continue;
        uint32_t n = sc->chunk == 0 ? left : sc->chunk;
        if (sc->random)
            n = roll(&sc->dice, 2) ? 1 : 1 + roll(&sc->dice, left);
        n = n < left ? n : left;
        enum { ALL, NONE, LAST, SOME, N_WANTED } wanted = sc->random ? roll(&sc->dice, N_WANTED) : ALL;
        runs[b.n_runs++] = (struct sl_batch_run){b.n_rows, n, s->done[q], s->pages[q], s->n_pages[q]};
        for (uint32_t j = 0; j < n; j++) {
            uint32_t pos = s->done[q] + j;
            if (wanted == ALL || (wanted == LAST && j + 1 == n) || (wanted == SOME && roll(&sc->dice, 2))) {
                out_rows[b.n_out] = b.n_rows;
                out_seq[b.n_out] = q;
                out_pos[b.n_out++] = pos;
            }
            tokens[b.n_rows++] = token_at(q, pos, n_vocab);
        }
        s->done[q] += n;
    }
    if (b.n_rows == 0)
        return open;
    uint64_t before = atomic_load(&r->progress);
    sl_alloc_guard_on("test pass");
    sl_model_forward(r->model, r->kv, &b, b.n_out > 0 ? r->logits : NULL, &r->progress);
    sl_alloc_guard_off();
    assert_int_equal(atomic_load(&r->progress) - before, sl_model_conf(r->model)->n_layers);
    for (uint32_t i = 0; i < b.n_out; i++)
        res->digest[out_seq[i]][out_pos[i]] =
            sl_digest64(r->logits + (size_t)i * n_vocab, n_vocab * sizeof(float), 0);
    return true;
}

static void run(struct rig *r, struct schedule sc, struct result *res)
{
    struct run_state s = {0};
    memset(res, 0, sizeof *res);
    pages_deal(r, &s, &sc.dice);
    rig_pages_poison(r);
    while (step(r, &sc, &s, res))
        ;
}

static uint32_t differences(const struct result *a, const struct result *b)
{
    uint32_t n = 0;
    for (uint32_t q = 0; q < N_SEQ; q++)
        for (uint32_t i = 0; i < lengths[q]; i++)
            n += a->digest[q][i] != 0 && b->digest[q][i] != 0 && a->digest[q][i] != b->digest[q][i];
    return n;
}

static void open_as(struct rig *r, const char *path, const char *backend, uint32_t n_threads,
                    uint32_t page_tokens, enum sl_dtype kv_dtype)
{
    struct rig_conf c = {.path = path,
                         .backend = backend,
                         .n_threads = n_threads,
                         .page_tokens = page_tokens,
                         .max_rows = MAX_ROWS,
                         .n_pages = N_SEQ * (MAX_LEN / page_tokens + 1),
                         .kv_dtype = kv_dtype};
    rig_open(r, &c);
}

/* The reference is one piece of code for all types: two models are enough for it. */
static void model_is_exact(const struct sl_make_model *m, enum sl_dtype kv_dtype, bool with_reference)
{
    static struct result base, other, by_backend[SL_COUNTOF(backends)];
    char *path = rig_model_file(m);
    for (size_t i = 0; i < SL_COUNTOF(backends); i++) {
        if (!rig_backend_available(backends[i]) || (i == 0 && !with_reference))
            continue;
        struct rig r;
        open_as(&r, path, backends[i], 1, 16, kv_dtype);
        run(&r, (struct schedule){.together = true, .dice = {1, 0}}, &base);
        by_backend[i] = base;
        for (uint32_t k = 1; k < lengths[0]; k++)
            assert_true(base.digest[0][k] != base.digest[0][k - 1]);
        for (uint32_t k = 0; k < sl_model_conf(r.model)->n_vocab; k++)
            assert_true(isfinite(r.logits[k]));
        rig_close(&r);

        for (uint32_t threads = 1; threads <= 2; threads++) {
            uint32_t page = 16 * threads;
            open_as(&r, path, backends[i], threads, page, kv_dtype);
            static const uint32_t chunks[2][2] = {{1, 16}, {3, 0}};
            for (size_t c = 0; c < 2; c++) {
                struct schedule sc = {.chunk = chunks[threads - 1][c],
                                      .together = (c + threads) % 2 == 0,
                                      .dice = {threads, 0}};
                run(&r, sc, &other);
                assert_int_equal(differences(&base, &other), 0);
            }
            for (uint32_t k = 0; k < N_RANDOM; k++) {
                struct schedule sc = {.together = true, .random = true, .dice = {1000 * threads + k, 0}};
                run(&r, sc, &other);
                if (differences(&base, &other) != 0)
                    fail_msg("%s %s: %u positions differ, threads %u, seed %u", m->name, backends[i],
                             differences(&base, &other), threads, 1000 * threads + k);
            }
            rig_close(&r);
        }
    }
    /* The portable C, the first behind the reference, is the definition of the others' arithmetic. */
    for (size_t i = 2; i < SL_COUNTOF(backends); i++)
        if (rig_backend_available(backends[i]))
            assert_int_equal(differences(&by_backend[1], &by_backend[i]), 0);
    unlink(path);
    sl_free(path);
}

static struct sl_make_model tiny(const char *name, enum sl_dtype type, enum sl_dtype embed_type)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    m.name = name;
    m.type = type;
    m.embed_type = embed_type;
    return m;
}

static void logits_of_q4_1_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("q4_1", SL_Q4_1, SL_Q8_0);
    model_is_exact(&m, SL_F16, true);
}

static void logits_of_q4_0_untied_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("q4_0", SL_Q4_0, SL_Q4_0);
    m.tied = false;
    model_is_exact(&m, SL_F16, false);
}

static void logits_of_q8_0_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("q8_0", SL_Q8_0, SL_F16);
    model_is_exact(&m, SL_BF16, false);
}

static void logits_of_bf16_qwen2_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("qwen2", SL_BF16, SL_BF16);
    m.arch = "qwen2";
    m.head_dim = 32; /* heads wider than the model */
    model_is_exact(&m, SL_F16, false);
}

static void logits_of_q5_0_qwen3_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("qwen3", SL_Q5_0, SL_Q5_1);
    m.arch = "qwen3";
    m.head_dim = 40; /* no multiple of a vector */
    model_is_exact(&m, SL_F16, true);
}

static void logits_behind_a_window_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("window", SL_Q8_0, SL_Q8_0);
    m.sliding_window = 50; /* shorter than a block of attention and than the sequences */
    model_is_exact(&m, SL_F16, false);
}

static void logits_of_gemma3_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("gemma3", SL_Q4_1, SL_Q8_0);
    m.arch = "gemma3";
    m.sliding_window = 70;
    m.window_pattern = 2;
    model_is_exact(&m, SL_BF16, true);
}

static void logits_of_f32_with_odd_sizes_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("f32", SL_F32, SL_F32);
    m.rope_factors = true;
    m.n_heads = 6;
    m.n_kv_heads = 2;
    m.d_model = 96;
    m.d_ff = 160;
    m.n_vocab = 431;
    model_is_exact(&m, SL_F32, true);
}

static void logits_of_mixed_types_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("mixed", SL_F16, SL_Q4_1);
    m.overrides[0] = (struct sl_make_override){"attn_v.weight", SL_Q8_0};
    m.overrides[1] = (struct sl_make_override){"1.ffn_up.weight", SL_BF16};
    m.n_overrides = 2;
    model_is_exact(&m, SL_F16, false);
}

/* Digests of the logits of every 97th row, of two sequences that cross the slices of a pass, in batches of at
 * most n rows of each. */
static void long_sequences_run(struct rig *r, uint32_t n, uint64_t digest[2][16])
{
    enum { LEN = SL_MODEL_SLICE_ROWS + 300, EVERY = 97 };
    static int32_t tokens[2 * LEN];
    static uint32_t pages[2][LEN / 16 + 1], out_rows[2 * LEN];
    uint32_t n_vocab = sl_model_conf(r->model)->n_vocab;
    for (uint32_t i = 0; i <= LEN / 16; i++) {
        pages[0][i] = 2 * i + 1;
        pages[1][i] = 2 * i;
    }
    for (uint32_t done = 0, rows; done < LEN; done += rows) {
        rows = LEN - done < n ? LEN - done : n;
        struct sl_batch_run runs[2] = {{0, rows, done, pages[0], LEN / 16 + 1},
                                       {rows, rows, done, pages[1], LEN / 16 + 1}};
        struct sl_batch b = {2 * rows, 2, 0, tokens, runs, out_rows};
        for (uint32_t i = 0; i < 2 * rows; i++) {
            tokens[i] = token_at(i / rows, done + i % rows, n_vocab);
            if ((done + i % rows) % EVERY == 0)
                out_rows[b.n_out++] = i;
        }
        sl_model_forward(r->model, r->kv, &b, NULL, &r->progress);
        for (uint32_t k = 0; k < b.n_out; k++) {
            sl_model_logits(r->model, &b, k, 1, r->logits);
            digest[out_rows[k] / rows][(done + out_rows[k] % rows) / EVERY] =
                sl_digest64(r->logits, n_vocab * sizeof(float), 0);
        }
    }
}

static void logits_of_batches_longer_than_a_slice_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    static uint64_t whole[2][16], cut[2][16];
    struct sl_make_model m = tiny("slices", SL_Q4_1, SL_Q8_0);
    m.sliding_window = 600; /* over the border of slices */
    char *path = rig_model_file(&m);
    for (size_t i = 1; i < SL_COUNTOF(backends); i++) {
        if (!rig_backend_available(backends[i]))
            continue;
        struct rig r;
        struct rig_conf c = {.path = path,
                             .backend = backends[i],
                             .n_threads = 2,
                             .page_tokens = 16,
                             .max_rows = 4 * SL_MODEL_SLICE_ROWS,
                             .n_pages = 4 * SL_MODEL_SLICE_ROWS / 16,
                             .kv_dtype = SL_F16};
        rig_open(&r, &c);
        long_sequences_run(&r, UINT32_MAX, whole);
        rig_pages_poison(&r);
        long_sequences_run(&r, 100, cut);
        assert_memory_equal(whole, cut, sizeof whole);
        assert_true(whole[0][8] != 0 && whole[1][8] != 0 && whole[0][8] != whole[1][8]);
        rig_close(&r);
    }
    unlink(path);
    sl_free(path);
}

static void logits_with_other_tokens_before_differ(void **state)
{
    (void)state;
    struct sl_make_model m = tiny("context", SL_Q4_1, SL_Q8_0);
    char *path = rig_model_file(&m);
    struct rig r;
    open_as(&r, path, "auto", 1, 16, SL_F16);
    uint32_t n_vocab = sl_model_conf(r.model)->n_vocab, pages[4] = {3, 0, 2, 1}, out = 39;
    uint64_t seen[2];
    for (int32_t first = 0; first < 2; first++) {
        int32_t tokens[40];
        for (uint32_t i = 0; i < 40; i++)
            tokens[i] = token_at(0, i, n_vocab);
        tokens[0] = 100 + first;
        struct sl_batch_run one = {0, 40, 0, pages, 4};
        struct sl_batch b = {40, 1, 1, tokens, &one, &out};
        sl_model_forward(r.model, r.kv, &b, r.logits, &r.progress);
        seen[first] = sl_digest64(r.logits, n_vocab * sizeof(float), 0);
    }
    assert_true(seen[0] != seen[1]);
    rig_close(&r);
    unlink(path);
    sl_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_q4_1_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_of_q4_0_untied_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_of_q8_0_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_of_bf16_qwen2_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_of_q5_0_qwen3_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_behind_a_window_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_of_gemma3_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_of_f32_with_odd_sizes_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_of_mixed_types_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_of_batches_longer_than_a_slice_do_not_depend_on_the_schedule),
        cmocka_unit_test(logits_with_other_tokens_before_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
