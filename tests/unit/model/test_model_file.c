/* The door to a model's file: typed values and tensors of a made GGUF file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/model/model_file.h"
#include "tests/unit/model/model_rig.h"

static struct sl_model_file *open_tiny(struct sl_make_model *m)
{
    struct sl_model_file *f;
    assert_true(sl_make_model_preset("tiny", m));
    char *path = rig_model_file(m);
    assert_int_equal(sl_model_file_open(path, &f, NULL), SL_OK);
    assert_string_equal(sl_model_file_path(f), path);
    unlink(path);
    sl_free(path);
    return f;
}

static void values_have_their_types(void **state)
{
    (void)state;
    struct sl_make_model m;
    struct sl_model_file *f = open_tiny(&m);
    uint32_t u = 7;
    float real = 7;
    struct sl_gguf_str s = {"x", 1};
    assert_int_equal(sl_model_file_u32(f, "llama.block_count", &u), SL_OK);
    assert_int_equal(u, m.n_layers);
    assert_int_equal(sl_model_file_f32(f, "llama.block_count", &real), SL_OK);
    assert_true(real == (float)m.n_layers);
    assert_int_equal(sl_model_file_f32(f, "llama.rope.freq_base", &real), SL_OK);
    assert_true(real == m.rope_theta);
    assert_int_equal(sl_model_file_str(f, "general.architecture", &s), SL_OK);
    assert_true(s.n == 5 && memcmp(s.p, "llama", 5) == 0);

    assert_int_equal(sl_model_file_u32(f, "llama.rope.freq_base", &u), SL_EINVAL);
    assert_int_equal(sl_model_file_u32(f, "tokenizer.ggml.tokens", &u), SL_EINVAL);
    assert_int_equal(sl_model_file_str(f, "llama.block_count", &s), SL_EINVAL);
    assert_int_equal(sl_model_file_f32(f, "general.architecture", &real), SL_EINVAL);
    assert_int_equal(sl_model_file_u32(f, "no.such.key", &u), SL_ENOTFOUND);
    assert_int_equal(u, m.n_layers); /* untouched */
    assert_true(sl_model_file_has(f, "tokenizer.ggml.tokens"));
    assert_false(sl_model_file_has(f, "no.such.key"));
    sl_model_file_close(f);
}

static void tensors_are_found_by_name_and_in_order(void **state)
{
    (void)state;
    struct sl_make_model m;
    struct sl_model_file *f = open_tiny(&m);
    const struct sl_model_tensor *up = sl_model_file_tensor_find(f, "blk.2.ffn_up.weight");
    assert_non_null(up);
    assert_int_equal(up->view.type, SL_Q4_1);
    assert_int_equal(up->view.n_rows, m.d_ff);
    assert_int_equal(up->view.n_cols, m.d_model);
    assert_int_equal(up->bytes, m.d_ff * sl_dtype_row_bytes(SL_Q4_1, m.d_model));
    const struct sl_model_tensor *norm = sl_model_file_tensor_find(f, "output_norm.weight");
    assert_int_equal(norm->view.n_rows, 1);
    assert_int_equal(norm->view.n_cols, m.d_model);
    assert_null(sl_model_file_tensor_find(f, "output.weight"));
    size_t n = sl_model_file_n_tensors(f);
    for (size_t i = 0; i < n; i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(f, i);
        assert_ptr_equal(sl_model_file_tensor_find(f, t->name), t);
    }
    assert_null(sl_model_file_tensor_at(f, n));
    sl_model_file_close(f);
}

static void vocabulary_and_row_order_are_told(void **state)
{
    (void)state;
    struct sl_make_model m;
    struct sl_model_file *f = open_tiny(&m);
    uint64_t n_tokens;
    struct sl_digest128 digest;
    sl_model_file_vocab(f, &n_tokens, &digest);
    assert_int_equal(n_tokens, m.n_vocab);
    assert_true(digest.lo != 0 || digest.hi != 0);
    assert_int_equal(sl_model_file_tensor_find(f, "blk.0.attn_q.weight")->pair_heads, 0);
    sl_model_file_close(f);
}

static void absent_file_is_refused(void **state)
{
    (void)state;
    struct sl_model_file *f = NULL;
    struct sl_why why = {{0}};
    assert_int_equal(sl_model_file_open("/nonexistent/model.gguf", &f, &why), SL_EIO);
    assert_null(f);
    assert_non_null(strstr(why.text, "/nonexistent/model.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_their_types),
        cmocka_unit_test(tensors_are_found_by_name_and_in_order),
        cmocka_unit_test(vocabulary_and_row_order_are_told),
        cmocka_unit_test(absent_file_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
