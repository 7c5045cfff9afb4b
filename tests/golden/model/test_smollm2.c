/* SmolLM2 against transformers in float32, teacher-forced on 20 texts x 64 positions (make_teacher.py), and
 * the shipped path against llama.cpp's distance from the same teacher (make_llama_kl.py); its perplexity on a
 * text of this repository (make_perplexity.py); both for the file itself, whose matrices are Q4_1, and for
 * the same in bf16. Skipped (77) where the model file is not.
 *
 * Divergence: KL(teacher || ours) over the teacher's 64 most likely tokens and one bucket for the rest
 * (teacher_file.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/mem.h"
#include "tests/golden/model/requantise.h"
#include "tests/unit/model/model_rig.h"

#define TOP_SLACK     1e-2 /* a token this close to the teacher's best may be ours */
#define MAX_KL_Q4_1   5e-3
#define MAX_KL_BF16   1e-3
#define MAX_KL_Q8_KV  4e-3  /* int8 K and V, from float32 ones */
#define MAX_KL_FP8_KV 1e-2  /* of e4m3: from float32 ones, and from the teacher */
#define N_KV_TEXTS    5     /* of the teacher's, for it */
#define MAX_LOSS      0.005 /* of perplexity, relative to float32 */
#define N_PORTABLE    1     /* texts for the portable path; a faster one, bit for bit the same, does all */

struct record {
    uint32_t *id;
    float *logprob;
    float log_tail;
};

static struct {
    uint32_t n_texts, n_positions, n_top, n_vocab;
    int32_t *tokens; /* [n_texts, n_positions] */
    uint8_t *records;
} teacher;

static char *model_path;

static struct record record_at(uint32_t text, uint32_t position)
{
    size_t bytes = 8 * (size_t)teacher.n_top + 4;
    uint8_t *p = teacher.records + ((size_t)text * teacher.n_positions + position) * bytes;
    struct record r = {(uint32_t *)(void *)p, (float *)(void *)(p + 4 * (size_t)teacher.n_top), 0};
    memcpy(&r.log_tail, p + 8 * (size_t)teacher.n_top, 4);
    return r;
}

static void teacher_read(void)
{
    char magic[8];
    FILE *f = fopen(SL_TEST_DATA "/golden/model/smollm2_teacher.bin", "rb");
    SL_ASSERT(f != NULL && fread(magic, 1, 8, f) == 8 && memcmp(magic, "SLTEACH1", 8) == 0);
    SL_ASSERT(fread(&teacher, 4, 4, f) == 4);
    size_t n = (size_t)teacher.n_texts * teacher.n_positions, bytes = n * (8 * (size_t)teacher.n_top + 4);
    teacher.tokens = sl_xcalloc(n, sizeof *teacher.tokens);
    teacher.records = sl_xalloc(bytes);
    SL_ASSERT(fread(teacher.tokens, 4, n, f) == n && fread(teacher.records, 1, bytes, f) == bytes);
    fclose(f);
}

static double llama_kl_read(void)
{
    double kl = 0;
    FILE *f = fopen(SL_TEST_DATA "/golden/model/smollm2_llama_kl.txt", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "mean_kl %lf", &kl), 1);
    fclose(f);
    return kl;
}

struct score {
    double kl;           /* mean over positions */
    uint32_t n, n_agree; /* positions; with the teacher's top token */
    double worst_slack;  /* how far below the teacher's best our choice is at worst, in the teacher's
                            log-probability */
    uint64_t digest[64]; /* of each text's logits */
};

static void score_position(const float *logits, const struct record *t, struct score *s)
{
    uint32_t best = 0;
    double total = 0, top = 0, kl = 0;
    for (uint32_t i = 0; i < teacher.n_vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    for (uint32_t i = 0; i < teacher.n_vocab; i++)
        total += exp((double)logits[i] - (double)logits[best]);
    double lse = (double)logits[best] + log(total), slack = INFINITY;
    for (uint32_t k = 0; k < teacher.n_top; k++) {
        double p = (double)t->logprob[k], q = (double)logits[t->id[k]] - lse;
        kl += exp(p) * (p - q);
        top += exp(q);
        if (t->id[k] == best)
            slack = (double)t->logprob[0] - p;
    }
    double tail = 1 - top > 1e-30 ? 1 - top : 1e-30;
    kl += exp((double)t->log_tail) * ((double)t->log_tail - log(tail));
    s->kl += kl;
    s->n++;
    s->n_agree += t->id[0] == best;
    s->worst_slack = slack > s->worst_slack ? slack : s->worst_slack;
}

static struct score score_of(const char *path, const char *backend, enum sl_dtype kv_dtype, uint32_t n_texts)
{
    struct rig r;
    struct rig_conf c = {.path = path,
                         .backend = backend,
                         .n_threads = 2,
                         .page_tokens = 16,
                         .max_rows = teacher.n_positions,
                         .n_pages = teacher.n_positions / 16,
                         .kv_dtype = kv_dtype};
    struct score s = {0};
    rig_open(&r, &c);
    SL_ASSERT(sl_model_conf(r.model)->n_vocab == teacher.n_vocab && n_texts <= 64);
    uint32_t pages[64], rows[1024];
    for (uint32_t i = 0; i < c.n_pages; i++)
        pages[i] = i;
    for (uint32_t i = 0; i < teacher.n_positions; i++)
        rows[i] = i;
    for (uint32_t t = 0; t < n_texts; t++) {
        struct sl_batch_run run = {0, teacher.n_positions, 0, pages, c.n_pages};
        struct sl_batch b = {teacher.n_positions,
                             1,
                             teacher.n_positions,
                             teacher.tokens + (size_t)t * teacher.n_positions,
                             &run,
                             rows};
        sl_model_forward(r.model, r.kv, &b, r.logits, &r.progress);
        for (uint32_t p = 0; p < teacher.n_positions; p++) {
            struct record rec = record_at(t, p);
            score_position(r.logits + (size_t)p * teacher.n_vocab, &rec, &s);
        }
        s.digest[t] = sl_digest64(r.logits, (size_t)teacher.n_positions * teacher.n_vocab * sizeof(float), 0);
    }
    s.kl /= s.n;
    print_message("%s, KV %s: %u of %u top tokens, worst choice %.4f below the best, mean divergence %.4g\n",
                  backend, sl_dtype_name(kv_dtype), s.n_agree, s.n, s.worst_slack, s.kl);
    rig_close(&r);
    return s;
}

static void reference_in_float32_picks_transformers_tokens(void **state)
{
    (void)state;
    struct score s = score_of(model_path, "reference", SL_F32, teacher.n_texts);
    assert_int_equal(s.n, teacher.n_texts * teacher.n_positions);
    assert_true(s.worst_slack <= TOP_SLACK);
    assert_true(s.kl < 1e-6);
}

static void shipped_path_is_as_near_as_llama_cpp(void **state)
{
    (void)state;
    double limit = fmin(MAX_KL_Q4_1, llama_kl_read());
    struct score fast = score_of(model_path, "auto", SL_BF16, teacher.n_texts);
    struct score portable = score_of(model_path, "portable", SL_BF16, N_PORTABLE);
    print_message("limit %.4g\n", limit);
    assert_true(fast.kl <= limit);
    assert_memory_equal(fast.digest, portable.digest, N_PORTABLE * sizeof *fast.digest);
}

/* ---- perplexity ---- */

struct text {
    uint32_t window, n_tokens;
    double mean_loss; /* of float32 */
    int32_t *tokens;
};

static struct text text_read(void)
{
    struct text t = {0};
    FILE *f = fopen(SL_TEST_DATA "/golden/model/smollm2_perplexity.txt", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "window %u mean_loss %lf tokens %u", &t.window, &t.mean_loss, &t.n_tokens), 3);
    t.tokens = sl_xcalloc(t.n_tokens, sizeof *t.tokens);
    for (uint32_t i = 0; i < t.n_tokens; i++)
        assert_int_equal(fscanf(f, "%d", &t.tokens[i]), 1);
    fclose(f);
    return t;
}

static double loss_of(const float *logits, uint32_t n_vocab, int32_t token)
{
    float best = logits[0];
    double total = 0;
    for (uint32_t i = 1; i < n_vocab; i++)
        best = logits[i] > best ? logits[i] : best;
    for (uint32_t i = 0; i < n_vocab; i++)
        total += (double)expf(logits[i] - best); /* 1e-7 off; most of the test's time in double */
    return (double)best + log(total) - (double)logits[token];
}

/* The perplexity of the machine's fastest backend over that of float32. */
static double perplexity_ratio(const char *path, enum sl_dtype kv_dtype)
{
    struct text t = text_read();
    struct rig r;
    struct rig_conf c = {.path = path,
                         .backend = "auto",
                         .n_threads = 2,
                         .page_tokens = 16,
                         .max_rows = t.window,
                         .n_pages = (t.window + 15) / 16,
                         .kv_dtype = kv_dtype};
    rig_open(&r, &c);
    uint32_t n_vocab = sl_model_conf(r.model)->n_vocab, n = 0, *pages = sl_xcalloc(c.n_pages, sizeof *pages),
             *rows = sl_xcalloc(t.window, sizeof *rows);
    for (uint32_t i = 0; i < c.n_pages; i++)
        pages[i] = i;
    for (uint32_t i = 0; i < t.window; i++)
        rows[i] = i;
    double loss = 0;
    for (uint32_t first = 0; first < t.n_tokens; first += t.window) {
        struct sl_batch_run run = {0, t.window, 0, pages, c.n_pages};
        struct sl_batch b = {t.window, 1, t.window - 1, t.tokens + first, &run, rows};
        sl_model_forward(r.model, r.kv, &b, r.logits, &r.progress);
        for (uint32_t i = 0; i + 1 < t.window; i++, n++)
            loss += loss_of(r.logits + (size_t)i * n_vocab, n_vocab, t.tokens[first + i + 1]);
    }
    double ratio = exp(loss / n - t.mean_loss);
    print_message("KV %s: perplexity %.3f, of float32's %.3f: %+.3f %%\n", sl_dtype_name(kv_dtype),
                  exp(loss / n), exp(t.mean_loss), 100 * (ratio - 1));
    rig_close(&r);
    sl_free(pages);
    sl_free(rows);
    sl_free(t.tokens);
    return ratio;
}

static void perplexity_is_that_of_float32(void **state)
{
    (void)state;
    assert_true(fabs(perplexity_ratio(model_path, SL_BF16) - 1) <= MAX_LOSS);
}

/* ---- int8 K and V, one scale for a token's row of a head ---- */

/* KL(p || q) of the distributions of two rows of logits. */
static double divergence(const float *p, const float *q, uint32_t n_vocab)
{
    double p_total = loss_of(p, n_vocab, 0) + (double)p[0], q_total = loss_of(q, n_vocab, 0) + (double)q[0];
    double kl = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        double log_p = (double)p[i] - p_total, log_q = (double)q[i] - q_total;
        kl += exp(log_p) * (log_p - log_q);
    }
    return kl;
}

/* The mean over the positions of the first texts. */
static double divergence_of_kv(enum sl_dtype from, enum sl_dtype to)
{
    struct rig r[2];
    enum sl_dtype types[] = {from, to};
    uint32_t pages[64], rows[1024];
    double kl = 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct rig_conf c = {.path = model_path,
                             .backend = "auto",
                             .n_threads = 2,
                             .page_tokens = 16,
                             .max_rows = teacher.n_positions,
                             .n_pages = teacher.n_positions / 16,
                             .kv_dtype = types[i]};
        rig_open(&r[i], &c);
    }
    for (uint32_t i = 0; i < teacher.n_positions; i++) {
        pages[i / 16] = i / 16;
        rows[i] = i;
    }
    for (uint32_t t = 0; t < N_KV_TEXTS; t++) {
        struct sl_batch_run run = {0, teacher.n_positions, 0, pages, teacher.n_positions / 16};
        struct sl_batch b = {teacher.n_positions,
                             1,
                             teacher.n_positions,
                             teacher.tokens + (size_t)t * teacher.n_positions,
                             &run,
                             rows};
        for (uint32_t i = 0; i < 2; i++)
            sl_model_forward(r[i].model, r[i].kv, &b, r[i].logits, &r[i].progress);
        for (size_t p = 0; p < teacher.n_positions; p++)
            kl += divergence(r[0].logits + p * teacher.n_vocab, r[1].logits + p * teacher.n_vocab,
                             teacher.n_vocab);
    }
    rig_close(&r[0]);
    rig_close(&r[1]);
    kl /= (double)N_KV_TEXTS * teacher.n_positions;
    print_message("KV %s: mean divergence from KV %s %.4g\n", sl_dtype_name(to), sl_dtype_name(from), kl);
    return kl;
}

static void q8_kv_is_near_float32_kv(void **state)
{
    (void)state;
    assert_true(divergence_of_kv(SL_F32, SL_Q8) <= MAX_KL_Q8_KV);
    assert_true(score_of(model_path, "auto", SL_Q8, teacher.n_texts).kl <= llama_kl_read());
    assert_true(fabs(perplexity_ratio(model_path, SL_Q8) - 1) <= MAX_LOSS);
}

static void fp8_kv_is_near_float32_kv(void **state)
{
    (void)state;
    assert_true(divergence_of_kv(SL_F32, SL_FP8) <= MAX_KL_FP8_KV);
    assert_true(score_of(model_path, "auto", SL_FP8, teacher.n_texts).kl <= MAX_KL_FP8_KV);
}

static void bf16_weights_are_near_float32(void **state)
{
    (void)state;
    char *path = requantised_file(model_path, SL_BF16);
    struct score s = score_of(path, "auto", SL_BF16, teacher.n_texts);
    assert_true(s.kl < MAX_KL_BF16);
    assert_true(fabs(perplexity_ratio(path, SL_BF16) - 1) <= MAX_LOSS);
    unlink(path);
    sl_free(path);
}

static char *find_model(void)
{
    const char *given = getenv("SLUICE_TEST_MODEL"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    const char *name = "sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (given != NULL && given[0] != 0)
        return sl_xstrdup(given);
    if (cache != NULL && cache[0] != 0)
        return sl_xasprintf("%s/%s", cache, name);
    return sl_xasprintf("%s/.cache/%s", home != NULL ? home : "", name);
}

int main(void)
{
    model_path = find_model();
    if (access(model_path, R_OK) != 0) {
        printf("skipped: %s is not there; SLUICE_TEST_MODEL names the file\n", model_path);
        sl_free(model_path);
        return 77;
    }
    teacher_read();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_in_float32_picks_transformers_tokens),
        cmocka_unit_test(shipped_path_is_as_near_as_llama_cpp),
        cmocka_unit_test(perplexity_is_that_of_float32),
        cmocka_unit_test(q8_kv_is_near_float32_kv),
        cmocka_unit_test(fp8_kv_is_near_float32_kv),
        cmocka_unit_test(bf16_weights_are_near_float32),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_free(teacher.tokens);
    sl_free(teacher.records);
    sl_free(model_path);
    return failed;
}
