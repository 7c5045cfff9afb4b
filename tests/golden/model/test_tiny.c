/* Random tiny models against transformers in float32 (make_tiny.py): every architecture, both rotary layouts,
 * grouped heads, biases, norms on heads, tied and untied heads, every weight type, rotary factors and linear
 * scaling, contexts longer than a sliding window. The measure is the error of a position's logits relative to
 * their size (L2), median over positions, beside the largest error of one logit and the divergence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/golden/model/logits_fixture.h"
#include "tests/unit/model/model_rig.h"

static const char *const shipped[] = {"portable", "avx2", "avx512"};

static struct logits_fixture fixture_read(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, SL_TEST_DATA "/golden/model/tiny_%s.bin", name);
    return logits_fixture_read(path);
}

static uint32_t file_crc32(const char *path)
{
    uint32_t crc = 0xffffffffu;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    int c;
    while ((c = fgetc(f)) != EOF) {
        crc ^= (uint32_t)c;
        for (int i = 0; i < 8; i++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    fclose(f);
    return ~crc;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bounds {
    double relative; /* median over positions of |got - want| / |want| */
    double error;    /* of a logit, largest */
    double kl;       /* mean over positions */
};

static void compare(const char *path, const char *backend, enum sl_dtype kv_dtype,
                    const struct logits_fixture *x, struct bounds max)
{
    if (!rig_backend_available(backend))
        return;
    struct rig r;
    struct rig_conf c = {.path = path,
                         .backend = backend,
                         .n_threads = 2,
                         .page_tokens = 16,
                         .max_rows = x->n_positions,
                         .n_pages = (x->n_positions + 15) / 16,
                         .kv_dtype = kv_dtype};
    rig_open(&r, &c);
    uint32_t pages[256];
    assert_in_range(c.n_pages, 1, 256);
    for (uint32_t i = 0; i < c.n_pages; i++)
        pages[i] = c.n_pages - 1 - i;
    struct sl_batch_run run = {0, x->n_positions, 0, pages, c.n_pages};
    struct sl_batch b = {x->n_positions, 1, x->n_kept, x->tokens, &run, x->kept};
    sl_model_forward(r.model, r.kv, &b, r.logits, &r.progress);

    double worst = 0, kl = 0, *relative = sl_xcalloc(x->n_kept, sizeof *relative);
    for (uint32_t k = 0; k < x->n_kept; k++) {
        const float *got = r.logits + (size_t)k * x->n_vocab, *want = x->logits + (size_t)k * x->n_vocab;
        double sum_got = 0, sum_want = 0, error2 = 0, want2 = 0;
        for (uint32_t i = 0; i < x->n_vocab; i++) {
            double error = (double)got[i] - (double)want[i];
            worst = fmax(worst, fabs(error));
            error2 += error * error;
            want2 += (double)want[i] * (double)want[i];
            sum_got += exp((double)got[i]);
            sum_want += exp((double)want[i]);
        }
        relative[k] = sqrt(error2 / want2);
        for (uint32_t i = 0; i < x->n_vocab; i++) {
            double p = exp((double)want[i]) / sum_want;
            kl += p * ((double)want[i] - (double)got[i] - log(sum_want) + log(sum_got)) / x->n_kept;
        }
    }
    qsort(relative, x->n_kept, sizeof *relative, by_size);
    print_message("%s, KV %s: relative error %.3g, largest error of a logit %.3g, mean divergence %.3g\n",
                  backend, sl_dtype_name(kv_dtype), relative[x->n_kept / 2], worst, kl);
    assert_true(relative[x->n_kept / 2] <= max.relative);
    assert_true(worst <= max.error);
    assert_true(kl <= max.kl);
    sl_free(relative);
    rig_close(&r);
}

/* What separates the reference from transformers is the order of sums and exp, and so it is with the shipped
 * paths where weights and KV are float32; else they quantise activations and keep K and V in 16 bits. */
static const struct bounds exact = {1e-5, 2e-4, 1e-8}, rounded = {0.2, 1.0, 0.02};

static void check(const char *name, const struct sl_make_model *m)
{
    struct logits_fixture x = fixture_read(name);
    char *path = rig_model_file(m);
    if (file_crc32(path) != x.crc)
        fail_msg("the model %s is not the one of the fixture: run make_tiny.py again", name);
    compare(path, "reference", SL_F32, &x, exact);
    for (size_t i = 0; i < SL_COUNTOF(shipped); i++) {
        compare(path, shipped[i], SL_F16, &x, rounded);
        if (m->type == SL_F32 && m->embed_type == SL_F32)
            compare(path, shipped[i], SL_F32, &x, exact);
    }
    unlink(path);
    sl_free(path);
    logits_fixture_free(&x);
}

static struct sl_make_model tiny(enum sl_dtype type, enum sl_dtype embed_type, uint64_t seed)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    m.type = type;
    m.embed_type = embed_type;
    m.seed = seed;
    return m;
}

static void llama_in_f32_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_F32, SL_F32, 1);
    check("llama_f32", &m);
}

static void llama_in_q4_1_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_Q4_1, SL_Q8_0, 1);
    check("llama_q4_1", &m);
}

static void llama_untied_with_one_kv_head_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_Q4_0, SL_F16, 2);
    m.tied = false;
    m.n_kv_heads = 1;
    check("llama_untied_q4_0", &m);
}

static void qwen2_in_bf16_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_BF16, SL_Q4_1, 3);
    m.arch = "qwen2";
    check("qwen2_bf16", &m);
}

static void qwen2_untied_in_q8_0_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_Q8_0, SL_BF16, 4);
    m.arch = "qwen2";
    m.tied = false;
    m.n_kv_heads = 4;
    check("qwen2_untied_q8_0", &m);
}

static void rotary_factors_match_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_F16, SL_Q4_0, 5);
    m.rope_factors = true;
    check("llama_factors", &m);
}

static void linear_rotary_scaling_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_F32, SL_F32, 6);
    m.rope_scaling = "linear";
    m.rope_scaling_factor = 4;
    check("llama_linear", &m);
}

/* Every weight type of the files that is packed as another, and a stack of q, k, v that mixes types. */
static void llama_with_wide_heads_in_q5_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_Q5_0, SL_Q5_1, 8);
    m.head_dim = 32;
    check("llama_q5", &m);
}

static void llama_in_k_types_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_Q4_K, SL_Q6_K, 9);
    m.overrides[0] = (struct sl_make_override){"ffn_down.weight", SL_Q5_K};
    m.overrides[1] = (struct sl_make_override){"1.attn_v.weight", SL_Q6_K};
    m.n_overrides = 2;
    m.n_layers = 2;
    m.d_model = 256;
    m.head_dim = 64;
    m.d_ff = 512;
    check("llama_k", &m);
}

static void qwen3_in_f32_with_wide_heads_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_F32, SL_F32, 10);
    m.arch = "qwen3";
    m.head_dim = 32;
    check("qwen3_f32", &m);
}

static void qwen3_untied_in_q8_0_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_Q8_0, SL_Q8_0, 11);
    m.arch = "qwen3";
    m.tied = false;
    check("qwen3_q8_0", &m);
}

static void mistral_with_a_window_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_F32, SL_F32, 12);
    m.tied = false;
    m.sliding_window = 70;
    check("mistral_f32", &m);
}

static void gemma3_in_f32_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_F32, SL_F32, 13);
    m.arch = "gemma3";
    m.n_layers = 5;
    m.head_dim = 32;
    m.n_kv_heads = 1;
    m.rope_theta = 1000000;
    m.sliding_window = 32;
    m.window_pattern = 3;
    check("gemma3_f32", &m);
}

/* As the larger ones are: positions of the global layers are divided, those of the local ones are not. */
static void gemma3_with_linear_scaling_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_Q8_0, SL_Q8_0, 14);
    m.arch = "gemma3";
    m.n_layers = 4;
    m.rope_theta = 1000000;
    m.rope_scaling = "linear";
    m.rope_scaling_factor = 8;
    m.sliding_window = 70;
    m.window_pattern = 2;
    check("gemma3_linear", &m);
}

/* Thousands of positions: many softmax blocks, large rotary angles. */
static void long_context_matches_transformers(void **state)
{
    (void)state;
    struct sl_make_model m = tiny(SL_Q4_1, SL_Q8_0, 7);
    m.rope_theta = 100000;
    check("llama_long", &m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_in_f32_matches_transformers),
        cmocka_unit_test(llama_in_q4_1_matches_transformers),
        cmocka_unit_test(llama_untied_with_one_kv_head_matches_transformers),
        cmocka_unit_test(qwen2_in_bf16_matches_transformers),
        cmocka_unit_test(qwen2_untied_in_q8_0_matches_transformers),
        cmocka_unit_test(rotary_factors_match_transformers),
        cmocka_unit_test(linear_rotary_scaling_matches_transformers),
        cmocka_unit_test(llama_with_wide_heads_in_q5_matches_transformers),
        cmocka_unit_test(llama_in_k_types_matches_transformers),
        cmocka_unit_test(qwen3_in_f32_with_wide_heads_matches_transformers),
        cmocka_unit_test(qwen3_untied_in_q8_0_matches_transformers),
        cmocka_unit_test(mistral_with_a_window_matches_transformers),
        cmocka_unit_test(gemma3_in_f32_matches_transformers),
        cmocka_unit_test(gemma3_with_linear_scaling_matches_transformers),
        cmocka_unit_test(long_context_matches_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
