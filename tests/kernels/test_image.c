/* kernels: images of packed matrices. They come back bit for bit, heads that make no sense are refused, and
 * a layout does not change without its version. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/digest.h"
#include "common/base/mem.h"
#include "kernels/cpu/cpu_dev.h"
#include "tests/kernels/op_setup.h"

enum { N_ROWS = 71, MAX_RUN_ROWS = 4 };

static const enum sl_dtype types[] = {SL_F32,  SL_F16,  SL_BF16, SL_Q8_0, SL_Q4_0, SL_Q4_1,
                                      SL_Q5_0, SL_Q5_1, SL_Q4_K, SL_Q5_K, SL_Q6_K};
static const char *const backends[] = {"reference", "portable", "avx2", "avx512"};

static uint32_t cols_of(enum sl_dtype type)
{
    return sl_dtype_block(type) == 256 ? 512 : 96;
}

/* Any numbers, but finite in every type: no byte has the upper bits of an exponent set. */
static uint8_t *file_bytes(enum sl_dtype type, struct sl_tensor_view *view)
{
    struct op_rand r = {1000 + (uint64_t)type};
    size_t n = N_ROWS * sl_dtype_row_bytes(type, cols_of(type));
    uint8_t *data = sl_xalloc(n);
    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)(op_rand_u32(&r) & 0x3f);
    *view = (struct sl_tensor_view){type, N_ROWS, cols_of(type), data};
    return data;
}

static struct sl_weight *packed(const struct sl_backend_ops *ops, struct sl_dev *d, enum sl_dtype type)
{
    struct sl_tensor_view view;
    struct sl_weight *w = NULL;
    struct sl_why why = {""};
    uint8_t *data = file_bytes(type, &view);
    if (ops->weight_pack(d, &view, 1, &w, &why) != SL_OK)
        fail_msg("%s", why.text);
    sl_free(data);
    return w;
}

static void products(const struct sl_backend_ops *ops, struct sl_dev *d, const struct sl_weight *w,
                     enum sl_dtype type, float *y)
{
    struct op_rand r = {7};
    float *x = sl_xalloc((size_t)MAX_RUN_ROWS * cols_of(type) * sizeof *x);
    op_rand_floats(&r, x, (size_t)MAX_RUN_ROWS * cols_of(type), 1);
    ops->linear(d, &(struct sl_linear){.w = w, .x = x, .y = y, .n_rows = MAX_RUN_ROWS});
    sl_free(x);
}

static void image_restores_every_type_bit_for_bit(void **state)
{
    (void)state;
    static float a[MAX_RUN_ROWS * N_ROWS], b[MAX_RUN_ROWS * N_ROWS];
    for (size_t i = 0; i < SL_COUNTOF(backends); i++) {
        const struct sl_backend_ops *ops = op_backend(backends[i]);
        if (!ops)
            continue;
        struct sl_dev *d = op_open(ops, 2, MAX_RUN_ROWS);
        for (size_t t = 0; t < SL_COUNTOF(types); t++) {
            struct sl_weight *w = packed(ops, d, types[t]), *again = NULL;
            struct sl_weight_image from, to;
            ops->weight_image(w, &from);
            assert_int_equal(
                ops->weight_restore(d, from.head, from.head_bytes, N_ROWS, cols_of(types[t]), &again, NULL),
                SL_OK);
            ops->weight_image(again, &to);
            assert_int_equal(from.n_parts, to.n_parts);
            size_t total = 0;
            for (uint32_t p = 0; p < from.n_parts; p++) {
                assert_int_equal(from.parts[p].bytes, to.parts[p].bytes);
                memcpy(to.parts[p].p, from.parts[p].p, from.parts[p].bytes);
                total += from.parts[p].bytes;
            }
            assert_int_equal(total, ops->weight_bytes(w));
            assert_memory_equal(from.head, to.head, from.head_bytes);
            products(ops, d, w, types[t], a);
            products(ops, d, again, types[t], b);
            op_assert_same_bits(a, b, (size_t)MAX_RUN_ROWS * N_ROWS, sl_dtype_name(types[t]));
            ops->weight_free(d, w);
            ops->weight_free(d, again);
        }
        ops->close(d);
    }
}

static void image_of_a_stack_has_its_types(void **state)
{
    (void)state;
    enum { COLS = 512 };
    const struct sl_backend_ops *ops = op_backend("auto");
    struct sl_dev *d = op_open(ops, 2, MAX_RUN_ROWS);
    struct op_rand r = {3};
    struct sl_tensor_view views[2];
    void *tensors[2] = {op_random_tensor(&r, SL_Q4_K, 40, COLS, &views[0]),
                        op_random_tensor(&r, SL_Q6_K, N_ROWS - 40, COLS, &views[1])};
    struct sl_weight *w = NULL, *again = NULL;
    struct sl_weight_image from, to;
    static float a[MAX_RUN_ROWS * N_ROWS], b[MAX_RUN_ROWS * N_ROWS];
    assert_int_equal(ops->weight_pack(d, views, 2, &w, NULL), SL_OK);
    ops->weight_image(w, &from);
    assert_int_equal(ops->weight_restore(d, from.head, from.head_bytes, N_ROWS, COLS, &again, NULL), SL_OK);
    ops->weight_image(again, &to);
    assert_int_equal(from.parts[0].bytes, to.parts[0].bytes);
    memcpy(to.parts[0].p, from.parts[0].p, from.parts[0].bytes);
    products(ops, d, w, SL_Q4_K, a);
    products(ops, d, again, SL_Q4_K, b);
    op_assert_same_bits(a, b, (size_t)MAX_RUN_ROWS * N_ROWS, "stack");
    ops->weight_free(d, w);
    ops->weight_free(d, again);
    ops->close(d);
    sl_free(tensors[0]);
    sl_free(tensors[1]);
}

static void head_that_makes_no_sense_is_refused(void **state)
{
    (void)state;
    const struct sl_backend_ops *ops = op_backend("portable");
    if (!ops)
        skip();
    struct sl_dev *d = op_open(ops, 1, 1);
    struct sl_weight *w = packed(ops, d, SL_Q4_0), *other;
    struct sl_weight_image image;
    struct sl_why why;
    ops->weight_image(w, &image);
    assert_int_equal(ops->weight_restore(d, image.head, image.head_bytes - 1, N_ROWS, 96, &other, &why),
                     SL_EINVAL);
    assert_int_equal(ops->weight_restore(d, image.head, 0, N_ROWS, 96, &other, &why), SL_EINVAL);
    assert_int_equal(ops->weight_restore(d, image.head, image.head_bytes, N_ROWS + 1, 96, &other, &why),
                     SL_EINVAL);
    assert_int_equal(ops->weight_restore(d, image.head, image.head_bytes, N_ROWS, 128, &other, &why),
                     SL_EINVAL);
    assert_non_null(strstr(why.text, "expected [71, 128]"));
    const struct sl_backend_ops *plain = op_backend("reference"); /* the other form of numbers */
    struct sl_dev *pd = op_open(plain, 1, 1);
    assert_int_equal(plain->weight_restore(pd, image.head, image.head_bytes, N_ROWS, 96, &other, &why),
                     SL_EINVAL);
    plain->close(pd);
    for (int byte = 0; byte < 256; byte += 255) {
        memset(image.head, byte, image.head_bytes);
        assert_int_equal(ops->weight_restore(d, image.head, image.head_bytes, N_ROWS, 96, &other, &why),
                         SL_EINVAL);
    }
    ops->weight_free(d, w);
    ops->close(d);
}

/* Packed matrices lie on people's disks under SL_PACK_VERSION. When this fails, a layout changed: raise the
 * version in cpu_dev.h, then write it and the digest that is printed here. */
static void layout_does_not_change_without_its_version(void **state)
{
    (void)state;
    static const struct {
        const char *backend;
        uint32_t version;
        uint64_t digest;
    } known[] = {
        {"reference", 3, 0xda2e02651196883d},
        {"portable", 3, 0x2211af413aac8c54},
        {"avx2", 3, 0x2211af413aac8c54},
        {"avx512", 3, 0x2211af413aac8c54},
    };
    bool changed = false;
    for (size_t i = 0; i < SL_COUNTOF(known); i++) {
        const struct sl_backend_ops *ops = op_backend(known[i].backend);
        if (!ops)
            continue;
        struct sl_dev *d = op_open(ops, 1, MAX_RUN_ROWS);
        struct sl_digest64_stream *s = sl_digest64_new(0);
        for (size_t t = 0; t < SL_COUNTOF(types); t++) {
            struct sl_weight *w = packed(ops, d, types[t]);
            struct sl_weight_image image;
            ops->weight_image(w, &image);
            sl_digest64_update(s, image.head, image.head_bytes);
            for (uint32_t p = 0; p < image.n_parts; p++)
                sl_digest64_update(s, image.parts[p].p, image.parts[p].bytes);
            ops->weight_free(d, w);
        }
        uint64_t digest = sl_digest64_end(s);
        ops->close(d);
        if (digest != known[i].digest || ops->pack_version != known[i].version) {
            print_error("%s packs as version %u to 0x%llx; known is version %u with 0x%llx\n",
                        known[i].backend, ops->pack_version, (unsigned long long)digest, known[i].version,
                        (unsigned long long)known[i].digest);
            changed = true;
        }
    }
    assert_false(changed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(image_restores_every_type_bit_for_bit),
        cmocka_unit_test(image_of_a_stack_has_its_types),
        cmocka_unit_test(head_that_makes_no_sense_is_refused),
        cmocka_unit_test(layout_does_not_change_without_its_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
