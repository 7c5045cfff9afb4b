/* Finding a backend by name, and what the tables refuse in words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "tests/kernels/op_setup.h"

static void find_auto_gives_one_that_can_run(void **state)
{
    (void)state;
    const struct sl_backend_ops *ops = NULL;
    struct sl_why why = {""};
    assert_int_equal(sl_backend_find("auto", &ops, &why), SL_OK);
    assert_true(ops->available());
    assert_int_equal(sl_backend_find("reference", &ops, &why), SL_OK);
    assert_string_equal(ops->name, "reference");
}

static void find_unknown_name_lists_the_known(void **state)
{
    (void)state;
    const struct sl_backend_ops *ops = NULL;
    struct sl_why why = {""};
    assert_int_equal(sl_backend_find("tpu", &ops, &why), SL_ENOTFOUND);
    assert_null(ops);
    assert_non_null(strstr(why.text, "portable"));
    assert_non_null(strstr(why.text, "tpu"));
    assert_int_equal(sl_backend_find("tpu", &ops, NULL), SL_ENOTFOUND);
}

static void cuda_is_named_and_refused_where_there_is_none(void **state)
{
    (void)state;
    static const char *const names[] = {"cuda", "cuda-plain"};
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        const struct sl_backend_ops *ops = NULL;
        struct sl_why why = {""};
        enum sl_err e = sl_backend_find(names[i], &ops, &why);
        if (e == SL_OK)
            continue; /* a machine with a card */
        assert_int_equal(e, SL_EUNSUPPORTED);
        assert_null(ops);
        assert_non_null(strstr(why.text, names[i]));
        assert_non_null(strstr(why.text, "CUDA"));
    }
}

static void weight_pack_refuses_what_it_cannot_take(void **state)
{
    (void)state;
    static const char *const names[] = {"reference", "portable", "avx2", "avx512"};
    static const char data[64];
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        const struct sl_backend_ops *ops = op_backend(names[i]);
        if (!ops)
            continue;
        struct sl_dev *d = op_open(ops, 1, 4);
        struct sl_weight *w = NULL;
        struct sl_why why = {""};
        struct sl_tensor_view v[2] = {{SL_Q4_0, 1, 33, data}, {SL_F32, 1, 5, data}};
        assert_int_equal(ops->weight_pack(d, v, 1, &w, &why), SL_EUNSUPPORTED);
        assert_non_null(strstr(why.text, "33"));
        v[0] = (struct sl_tensor_view){(enum sl_dtype)22, 1, 256, data};
        assert_int_equal(ops->weight_pack(d, v, 1, &w, &why), SL_EUNSUPPORTED);
        assert_non_null(strstr(why.text, "22"));
        v[0] = (struct sl_tensor_view){SL_F16, 1, 4, data};
        assert_int_equal(ops->weight_pack(d, v, 2, &w, &why), SL_EUNSUPPORTED);
        assert_non_null(strstr(why.text, "4 and 5 columns"));
        assert_int_equal(ops->weight_pack(d, v, 0, &w, &why), SL_EINVAL);
        v[0] = (struct sl_tensor_view){SL_F16, (uint64_t)1 << 40, 4, data};
        assert_int_equal(ops->weight_pack(d, v, 1, &w, &why), SL_EUNSUPPORTED);
        assert_null(w);
        ops->weight_free(d, NULL);
        ops->close(d);
    }
}

static void kv_open_refuses_what_it_cannot_take(void **state)
{
    (void)state;
    const struct sl_backend_ops *ops = op_backend("auto");
    struct sl_dev *d = op_open(ops, 1, 4);
    struct sl_kv *kv = NULL;
    struct sl_why why = {""};
    struct sl_kv_geometry g = {1, 1, 16, 64, SL_Q8_0};
    assert_int_equal(ops->kv_open(d, &g, 4, &kv, &why), SL_EUNSUPPORTED);
    g = (struct sl_kv_geometry){1, 1, 16, 65, SL_F16};
    assert_int_equal(ops->kv_open(d, &g, 4, &kv, &why), SL_EUNSUPPORTED);
    g = (struct sl_kv_geometry){1, 1, 16, 64, SL_F16};
    assert_int_equal(ops->kv_open(d, &g, 0, &kv, &why), SL_EINVAL);
    g = (struct sl_kv_geometry){1u << 20, 1u << 10, 1u << 10, 1024, SL_F32};
    assert_int_equal(ops->kv_open(d, &g, UINT32_MAX, &kv, &why), SL_ENOMEM);
    assert_null(kv);
    ops->kv_close(d, NULL);
    ops->close(d);
}

static void kv_pages_round_trip_through_host_memory(void **state)
{
    (void)state;
    const struct sl_backend_ops *ops = op_backend("auto");
    struct sl_dev *d = op_open(ops, 1, 4);
    struct sl_kv *kv = NULL;
    struct sl_kv_geometry g = {2, 2, 16, 8, SL_BF16};
    assert_int_equal(ops->kv_open(d, &g, 4, &kv, NULL), SL_OK);
    unsigned char in[2048], out[2048];
    assert_int_equal(sl_kv_page_bytes(&g), sizeof in);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 13);
    ops->kv_write(d, kv, 2, in);
    ops->kv_read(d, kv, 2, out);
    assert_memory_equal(in, out, sizeof in);
    assert_memory_equal((char *)ops->kv_host_base(kv) + 2 * sizeof in, in, sizeof in);
    ops->kv_close(d, kv);
    ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(find_auto_gives_one_that_can_run),
        cmocka_unit_test(find_unknown_name_lists_the_known),
        cmocka_unit_test(cuda_is_named_and_refused_where_there_is_none),
        cmocka_unit_test(weight_pack_refuses_what_it_cannot_take),
        cmocka_unit_test(kv_open_refuses_what_it_cannot_take),
        cmocka_unit_test(kv_pages_round_trip_through_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
