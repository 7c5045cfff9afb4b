/* The writer of random models: its quantisers undo to what went in, its vocabularies are sound, its models do
 * not just repeat. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/base/philox.h"
#include "common/model/sampler.h"
#include "tests/unit/model/model_rig.h"

static void quantised_rows_come_back_within_half_a_step(void **state)
{
    (void)state;
    static const struct {
        enum sl_dtype type;
        float steps; /* of the range of a block */
        float slack; /* steps that an element may miss by */
    } types[] = {
        /* Codes around zero have one step less on one side: the far end may miss by a whole one. In the K
         * types scales and minima are of 6 bits, rounded up, or of 8. */
        {SL_Q8_0, 254, 0.51f}, {SL_Q4_0, 15, 1.1f},  {SL_Q4_1, 15, 0.51f}, {SL_Q5_0, 31, 1.1f},
        {SL_Q5_1, 31, 0.51f},  {SL_Q4_K, 15, 0.55f}, {SL_Q5_K, 31, 0.55f}, {SL_Q6_K, 63, 1.3f},
    };
    for (size_t t = 0; t < SL_COUNTOF(types); t++) {
        for (uint32_t round = 0; round < 200; round++) {
            float x[256], y[256];
            uint8_t packed[272];
            /* The K types divide a scale once more: smaller ones than these become 0. */
            float least = sl_dtype_block(types[t].type) == 32 ? 1e-4f : 1e-2f;
            float scale = round % 3 == 0 ? least : round % 3 == 1 ? 1 : 300;
            for (uint32_t i = 0; i < 256; i++)
                x[i] = (sl_philox_uniform(t, round, i) * 2 - 1) * scale;
            assert_int_equal(sl_quantise_row_bytes(types[t].type, 256),
                             sl_dtype_row_bytes(types[t].type, 256));
            sl_quantise_row(types[t].type, x, 256, packed);
            sl_dequant_row(types[t].type, packed, 256, y);
            /* A scale in F16 adds 2^-11 and, when subnormal, half of 2^-24 times the largest code, a sum of
             * which a 6-bit factor makes more. */
            float slack = 2 * scale / types[t].steps * types[t].slack + scale * 1e-3f;
            slack += sl_dtype_block(types[t].type) == 32 ? 4e-6f : 3e-5f;
            for (uint32_t i = 0; i < 256; i++) {
                if (!(fabsf(x[i] - y[i]) <= slack))
                    fail_msg("%s: %g became %g", sl_dtype_name(types[t].type), (double)x[i], (double)y[i]);
            }
        }
    }
}

static void sixteen_bit_rows_round_to_nearest(void **state)
{
    (void)state;
    const float in[] = {0,     -0.0f, 1,        1 + 0x1p-11f, 1 + 0x1.8p-10f, 65504,
                        65520, -1e9f, 0x1p-24f, 0x1p-25f,     0x1.8p-25f,     0x1p-14f};
    const float f16[] = {0,        -0.0f,     1,        1, 1 + 0x1p-9f, 65504,
                         INFINITY, -INFINITY, 0x1p-24f, 0, 0x1p-24f,    0x1p-14f};
    uint16_t packed[12];
    float out[12];
    sl_quantise_row(SL_F16, in, 12, packed);
    sl_dequant_row(SL_F16, packed, 12, out);
    assert_memory_equal(out, f16, sizeof out);
    const float wide[] = {1, 1 + 0x1p-8f, 1 + 0x1.8p-7f, -3.5f};
    const float bf16[] = {1, 1, 1 + 0x1p-6f, -3.5f};
    sl_quantise_row(SL_BF16, wide, 4, packed);
    sl_dequant_row(SL_BF16, packed, 4, out);
    assert_memory_equal(out, bf16, sizeof bf16);
}

static void vocabulary_of_any_size_is_sound(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {259, 260, 300, 512, 5000, 49152};
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++) {
        struct sl_make_model m;
        assert_true(sl_make_model_preset("tiny", &m));
        m.n_vocab = sizes[i];
        char *path = rig_model_file(&m);
        struct sl_gguf *g;
        struct sl_gguf_array tokens, merges;
        struct sl_gguf_str s;
        assert_int_equal(sl_gguf_open(path, &g, NULL), SL_OK);
        assert_int_equal(sl_gguf_array(g, "tokenizer.ggml.tokens", &tokens, NULL), SL_OK);
        assert_int_equal(sl_gguf_array(g, "tokenizer.ggml.merges", &merges, NULL), SL_OK);
        assert_int_equal(tokens.n, sizes[i]);
        assert_int_equal(merges.n, sizes[i] - 259);
        struct sl_hashmap *seen = sl_hashmap_new();
        while (sl_gguf_array_next_str(&tokens, &s))
            assert_null(sl_hashmap_put(seen, s.p, s.n, seen)); /* no token twice */
        while (sl_gguf_array_next_str(&merges, &s)) {
            const char *space = memchr(s.p, ' ', s.n);
            assert_non_null(space);
            char joined[64];
            size_t left = (size_t)(space - s.p);
            memcpy(joined, s.p, left);
            memcpy(joined + left, space + 1, s.n - left - 1);
            assert_non_null(sl_hashmap_get(seen, joined, s.n - 1));
        }
        sl_hashmap_free(seen);
        sl_gguf_close(g);
        unlink(path);
        sl_free(path);
    }
    assert_false(sl_make_vocab_ok(258, false));
    assert_false(sl_make_vocab_ok(259, true));
}

static void greedy_text_of_a_random_model_is_lively(void **state)
{
    (void)state;
    enum { PROMPT = 20, N = 120, MIN_DISTINCT = 40 };
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    char *path = rig_model_file(&m);
    struct rig r;
    struct rig_conf c = {.path = path,
                         .backend = "auto",
                         .n_threads = 1,
                         .page_tokens = 16,
                         .max_rows = 32,
                         .n_pages = 8,
                         .kv_dtype = SL_F16};
    rig_open(&r, &c);
    struct sl_sampler *s = sl_sampler_new(m.n_vocab);
    struct sl_sampling p = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    uint32_t pages[8], distinct = 0, done = 0;
    int32_t tokens[N];
    bool seen[512] = {false};
    for (uint32_t i = 0; i < 8; i++)
        pages[i] = i;
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = (int32_t)(i * i * 31 % m.n_vocab);
    for (uint32_t n = PROMPT; n < N; n++) {
        struct sl_batch_run run = {0, n - done, done, pages, 8};
        uint32_t out = n - done - 1;
        struct sl_batch b = {n - done, 1, 1, tokens + done, &run, &out};
        sl_model_forward(r.model, r.kv, &b, r.logits, &r.progress);
        done = n;
        struct sl_sampled sampled;
        sl_sample(s, r.logits, &p, tokens, n, PROMPT, false, &sampled);
        tokens[n] = sampled.token;
        assert_true(sampled.token >= 3); /* never one of the special tokens */
        distinct += !seen[sampled.token];
        seen[sampled.token] = true;
    }
    assert_true(distinct >= MIN_DISTINCT);
    sl_sampler_free(s);
    rig_close(&r);
    unlink(path);
    sl_free(path);
}

static void shapes_that_cannot_be_written_are_refused(void **state)
{
    (void)state;
    struct sl_make_model m;
    struct sl_why why = {{0}};
    assert_false(sl_make_model_preset("huge", &m));
    assert_true(sl_make_model_preset("tiny", &m));
    m.n_kv_heads = 3;
    assert_int_equal(sl_make_model_write(&m, "/tmp/never-written", &why), SL_EINVAL);
    assert_true(sl_make_model_preset("tiny", &m));
    m.d_ff = 100;
    assert_int_equal(sl_make_model_write(&m, "/tmp/never-written", &why), SL_EINVAL);
    assert_true(sl_make_model_preset("tiny", &m));
    assert_int_equal(sl_make_model_write(&m, "/nonexistent/model.gguf", &why), SL_EIO);
    assert_non_null(strstr(why.text, "/nonexistent/model.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantised_rows_come_back_within_half_a_step),
        cmocka_unit_test(sixteen_bit_rows_round_to_nearest),
        cmocka_unit_test(vocabulary_of_any_size_is_sound),
        cmocka_unit_test(greedy_text_of_a_random_model_is_lively),
        cmocka_unit_test(shapes_that_cannot_be_written_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
