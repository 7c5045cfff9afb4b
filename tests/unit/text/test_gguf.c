/* tests/unit/text/test_gguf.c - the GGUF reader of common/base: good files, and each way in which one can be
 * wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/gguf.h"
#include "common/base/mem.h"
#include "tests/support/support.h"
#include "tests/unit/text/gguf_build.h"

static struct sl_buf b;

static int begin(void **state)
{
    (void)state;
    sl_buf_init(&b, 1u << 20);
    return 0;
}

static int end(void **state)
{
    (void)state;
    sl_buf_fini(&b);
    return 0;
}

static enum sl_err open_bytes(struct sl_gguf **g, struct sl_why *why)
{
    return sl_gguf_open_memory(b.data, b.len, "test.gguf", g, why);
}

/* Opening b must fail with this code and a sentence that contains text. */
static void refused(enum sl_err code, const char *text)
{
    struct sl_gguf *g = NULL;
    struct sl_why why = {0};
    enum sl_err e = open_bytes(&g, &why);
    if (e != code || !strstr(why.text, text))
        fail_msg("%s \"%s\", expected %s and \"%s\"", sl_err_name(e), why.text, sl_err_name(code), text);
    assert_null(g);
}

/* All value types, a nested array, two tensors. */
static void put_good_file(void)
{
    const uint64_t dims[] = {64, 2}, one[] = {3};
    gguf_put_header(&b, 3, 2, 9);
    gguf_put_kv_str(&b, "general.architecture", "llama");
    gguf_put_kv_u32(&b, "count", 7);
    gguf_put_str(&b, "negative");
    gguf_put_u32(&b, SL_GGUF_I32);
    gguf_put_u32(&b, (uint32_t)-5);
    gguf_put_str(&b, "big");
    gguf_put_u32(&b, SL_GGUF_U64);
    gguf_put_u64(&b, 1ull << 40);
    gguf_put_str(&b, "ratio");
    gguf_put_u32(&b, SL_GGUF_F32);
    gguf_put_u32(&b, 0x3fc00000);
    gguf_put_str(&b, "yes");
    gguf_put_u32(&b, SL_GGUF_BOOL);
    sl_buf_putc(&b, 1);
    gguf_put_kv_strs(&b, "words", (const char *const[]){"a", "", "ccc"}, 3);
    gguf_put_kv_i32s(&b, "numbers", (const int32_t[]){1, -2, 3}, 3);
    gguf_put_str(&b, "nested");
    gguf_put_u32(&b, SL_GGUF_ARRAY);
    gguf_put_u32(&b, SL_GGUF_ARRAY);
    gguf_put_u64(&b, 1);
    gguf_put_u32(&b, SL_GGUF_U8);
    gguf_put_u64(&b, 2);
    sl_buf_append(&b, "\1\2", 2);
    gguf_put_tensor(&b, "b.weight", 2, dims, SL_GGML_Q8_0, 0);
    gguf_put_tensor(&b, "a.weight", 1, one, SL_GGML_F32, 160);
    gguf_put_padding(&b, 32);
    for (int i = 0; i < 136 + 24 + 12; i++)
        sl_buf_putc(&b, (char)i);
}

static void good_file_gives_its_values(void **state)
{
    struct sl_gguf *g = NULL;
    struct sl_why why = {0};
    uint32_t u = 0;
    uint64_t u64 = 0;
    float f = 0;
    bool yes = false;
    struct sl_gguf_str s;
    struct sl_gguf_array a;
    int64_t i = 0;
    (void)state;
    put_good_file();
    if (open_bytes(&g, &why))
        fail_msg("%s", why.text);
    assert_int_equal(sl_gguf_u32(g, "count", &u, &why), SL_OK);
    assert_int_equal(u, 7);
    assert_int_equal(sl_gguf_u64(g, "big", &u64, &why), SL_OK);
    assert_true(u64 == 1ull << 40);
    assert_int_equal(sl_gguf_u32(g, "big", &u, &why), SL_EINVAL);
    assert_int_equal(sl_gguf_u32(g, "negative", &u, &why), SL_EINVAL);
    assert_int_equal(sl_gguf_u32(g, "absent", &u, &why), SL_ENOTFOUND);
    assert_non_null(strstr(why.text, "absent"));
    assert_int_equal(u, 7);
    assert_int_equal(sl_gguf_f32(g, "ratio", &f, &why), SL_OK);
    assert_true(f == 1.5f);
    assert_int_equal(sl_gguf_f32(g, "negative", &f, &why), SL_OK);
    assert_true(f == -5.0f);
    assert_int_equal(sl_gguf_bool(g, "yes", &yes, &why), SL_OK);
    assert_true(yes);
    assert_int_equal(sl_gguf_bool(g, "count", &yes, &why), SL_EINVAL);
    assert_int_equal(sl_gguf_str(g, "general.architecture", &s, &why), SL_OK);
    assert_int_equal(s.n, 5);
    assert_memory_equal(s.p, "llama", 5);
    assert_int_equal(sl_gguf_array(g, "words", &a, &why), SL_OK);
    assert_int_equal(a.n, 3);
    assert_true(sl_gguf_array_next_str(&a, &s) && sl_gguf_array_next_str(&a, &s) &&
                sl_gguf_array_next_str(&a, &s));
    assert_memory_equal(s.p, "ccc", 3);
    assert_false(sl_gguf_array_next_str(&a, &s));
    assert_int_equal(sl_gguf_array(g, "numbers", &a, &why), SL_OK);
    assert_true(sl_gguf_array_next_i64(&a, &i) && sl_gguf_array_next_i64(&a, &i));
    assert_int_equal(i, -2);
    assert_false(sl_gguf_array_next_str(&a, &s));
    sl_gguf_close(g);
}

static void good_file_gives_its_tensors(void **state)
{
    struct sl_gguf *g = NULL;
    struct sl_why why = {0};
    (void)state;
    put_good_file();
    assert_int_equal(open_bytes(&g, &why), SL_OK);
    assert_int_equal(sl_gguf_n_tensors(g), 2);
    const struct sl_gguf_tensor *t = sl_gguf_tensor_find(g, "a.weight");
    assert_non_null(t);
    assert_ptr_equal(t, sl_gguf_tensor_at(g, 1));
    assert_int_equal(t->bytes, 12);
    assert_int_equal(((const uint8_t *)t->data)[0], 160);
    assert_int_equal(t->dims[0], 3);
    assert_int_equal(t->dims[1], 1);
    t = sl_gguf_tensor_find(g, "b.weight");
    assert_int_equal(t->bytes, 136);
    assert_int_equal(t->n_dims, 2);
    assert_null(sl_gguf_tensor_find(g, "c.weight"));
    assert_null(sl_gguf_tensor_at(g, 2));
    sl_gguf_close(g);
}

static void version_2_is_read_others_are_refused(void **state)
{
    struct sl_gguf *g = NULL;
    (void)state;
    gguf_put_header(&b, 2, 0, 0);
    assert_int_equal(open_bytes(&g, NULL), SL_OK);
    sl_gguf_close(g);
    sl_buf_clear(&b);
    gguf_put_header(&b, 1, 0, 0);
    refused(SL_EUNSUPPORTED, "version 1");
    sl_buf_clear(&b);
    gguf_put_header(&b, 3u << 24, 0, 0);
    refused(SL_EUNSUPPORTED, "big-endian");
}

static void other_files_are_refused(void **state)
{
    struct sl_gguf *g = NULL;
    struct sl_why why = {0};
    (void)state;
    sl_buf_puts(&b, "PK\3\4 this is a zip file, more or less");
    refused(SL_EPARSE, "not a GGUF file");
    assert_int_equal(sl_gguf_open("/nonexistent/model.gguf", &g, &why), SL_EIO);
    assert_non_null(strstr(why.text, "/nonexistent/model.gguf"));
    assert_int_equal(sl_gguf_open("/", &g, &why), SL_EIO);
    char *empty = sl_test_temp_file("", 0);
    assert_int_equal(sl_gguf_open(empty, &g, &why), SL_EPARSE);
    unlink(empty);
    sl_free(empty);
}

static void file_on_disk_is_mapped(void **state)
{
    struct sl_gguf *g = NULL;
    struct sl_why why = {0};
    (void)state;
    put_good_file();
    char *path = sl_test_temp_file(b.data, b.len);
    assert_int_equal(sl_gguf_open(path, &g, &why), SL_OK);
    assert_string_equal(sl_gguf_path(g), path);
    assert_int_equal(sl_gguf_file_bytes(g), b.len);
    assert_int_equal(((const uint8_t *)sl_gguf_tensor_find(g, "a.weight")->data)[1], 161);
    sl_gguf_close(g);
    unlink(path);
    sl_free(path);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    put_good_file();
    for (size_t n = 0; n < b.len; n++) {
        struct sl_gguf *g = NULL;
        struct sl_why why = {0};
        char *copy = sl_xmemdup(b.data, n + !n); /* so that a sanitizer sees a read past the end */
        enum sl_err e = sl_gguf_open_memory(copy, n, "cut.gguf", &g, &why);
        if (e == SL_OK || !why.text[0])
            fail_msg("cut at %zu of %zu: %s", n, b.len, sl_err_name(e));
        sl_free(copy);
    }
}

static void huge_counts_and_lengths_are_refused(void **state)
{
    const uint64_t huge[] = {UINT64_MAX, 1ull << 63, 1ull << 32, 1u << 20};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(huge); i++) {
        struct sl_gguf *g = NULL;
        sl_buf_clear(&b);
        gguf_put_header(&b, 3, 0, huge[i]);
        gguf_put_kv_u32(&b, "a", 1);
        assert_int_not_equal(open_bytes(&g, NULL), SL_OK);
        sl_buf_clear(&b);
        gguf_put_header(&b, 3, huge[i], 0);
        gguf_put_kv_u32(&b, "a", 1);
        assert_int_not_equal(open_bytes(&g, NULL), SL_OK);
        sl_buf_clear(&b);
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_u64(&b, huge[i]);
        sl_buf_puts(&b, "key");
        refused(SL_EPARSE, "needs");
        sl_buf_clear(&b);
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_str(&b, "list");
        gguf_put_u32(&b, SL_GGUF_ARRAY);
        gguf_put_u32(&b, SL_GGUF_F64);
        gguf_put_u64(&b, huge[i]);
        gguf_put_u64(&b, 0);
        refused(SL_EPARSE, "an array");
    }
}

static void bad_metadata_is_refused(void **state)
{
    (void)state;
    gguf_put_header(&b, 3, 0, 2);
    gguf_put_kv_u32(&b, "same", 1);
    gguf_put_kv_u32(&b, "same", 2);
    refused(SL_EPARSE, "twice");
    sl_buf_clear(&b);
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_str(&b, "key");
    gguf_put_u32(&b, 13);
    gguf_put_u64(&b, 0);
    refused(SL_EPARSE, "value type 13");
    sl_buf_clear(&b);
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_str(&b, "key");
    gguf_put_u32(&b, SL_GGUF_BOOL);
    sl_buf_putc(&b, 2);
    refused(SL_EPARSE, "bool");
    sl_buf_clear(&b);
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_str(&b, "key");
    gguf_put_u32(&b, SL_GGUF_ARRAY);
    for (int i = 0; i < 10; i++) {
        gguf_put_u32(&b, SL_GGUF_ARRAY);
        gguf_put_u64(&b, 1);
    }
    refused(SL_ETOOBIG, "nested");
    sl_buf_clear(&b);
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_str(&b, "key");
    gguf_put_u32(&b, SL_GGUF_ARRAY);
    gguf_put_u32(&b, 99);
    gguf_put_u64(&b, 0);
    refused(SL_EPARSE, "value type 99");
}

static void one_tensor(uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset, size_t data)
{
    sl_buf_clear(&b);
    gguf_put_header(&b, 3, 1, 0);
    gguf_put_tensor(&b, "t", n_dims, dims, type, offset);
    gguf_put_padding(&b, 32);
    for (size_t i = 0; i < data; i++)
        sl_buf_putc(&b, 0);
}

static void bad_tensors_are_refused(void **state)
{
    const uint64_t four[] = {4, 1, 1, 1, 1}, zero[] = {4, 0}, odd[] = {33}, big[] = {1ull << 40, 1ull << 40};
    (void)state;
    one_tensor(0, four, SL_GGML_F32, 0, 64);
    refused(SL_EPARSE, "0 dims");
    one_tensor(5, four, SL_GGML_F32, 0, 64);
    refused(SL_EPARSE, "5 dims");
    one_tensor(2, zero, SL_GGML_F32, 0, 64);
    refused(SL_EPARSE, "dim 1");
    one_tensor(2, big, SL_GGML_F32, 0, 64);
    refused(SL_EPARSE, "far too big");
    one_tensor(1, big, SL_GGML_F32, 0, 64);
    refused(SL_EPARSE, "bigger than the whole file");
    one_tensor(1, odd, SL_GGML_Q8_0, 0, 64);
    refused(SL_EPARSE, "multiple of 32");
    one_tensor(1, four, 4, 0, 64);
    refused(SL_EUNSUPPORTED, "type id 4");
    one_tensor(1, four, SL_GGML_F32, 8, 64);
    refused(SL_EPARSE, "multiple of 32");
    one_tensor(1, four, SL_GGML_F32, 64, 64);
    refused(SL_EPARSE, "past the end");
    one_tensor(1, four, SL_GGML_F32, UINT64_MAX - 31, 64);
    refused(SL_EPARSE, "past the end");
    one_tensor(1, four, SL_GGML_F32, 0, 15);
    refused(SL_EPARSE, "past the end");
    sl_buf_clear(&b);
    gguf_put_header(&b, 3, 2, 0);
    gguf_put_tensor(&b, "t", 1, four, SL_GGML_F32, 0);
    gguf_put_tensor(&b, "t", 1, four, SL_GGML_F32, 0);
    gguf_put_padding(&b, 32);
    gguf_put_u64(&b, 0);
    gguf_put_u64(&b, 0);
    refused(SL_EPARSE, "twice");
}

static void bad_alignment_is_refused(void **state)
{
    const uint32_t bad[] = {0, 1, 24, 1u << 31};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        sl_buf_clear(&b);
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_kv_u32(&b, "general.alignment", bad[i]);
        refused(SL_EPARSE, "power of two");
    }
}

static void flipped_bytes_never_read_outside(void **state)
{
    unsigned long long seed = 11;
    (void)state;
    put_good_file();
    for (int round = 0; round < 20000; round++) {
        struct sl_gguf *g = NULL;
        char *copy = sl_xmemdup(b.data, b.len);
        for (int k = 0; k < 1 + (round & 3); k++)
            copy[sl_test_random(&seed) % b.len] = (char)sl_test_random(&seed);
        if (sl_gguf_open_memory(copy, b.len, "flipped.gguf", &g, NULL) == SL_OK) {
            volatile uint8_t sum = 0;
            for (size_t i = 0; i < sl_gguf_n_tensors(g); i++) {
                const struct sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
                sum =
                    (uint8_t)(sum + ((const uint8_t *)t->data)[0] + ((const uint8_t *)t->data)[t->bytes - 1]);
            }
            struct sl_gguf_array a;
            struct sl_gguf_str s;
            if (sl_gguf_array(g, "words", &a, NULL) == SL_OK)
                while (sl_gguf_array_next_str(&a, &s))
                    sum = (uint8_t)(sum + (s.n ? (uint8_t)s.p[s.n - 1] : 0));
            sl_gguf_close(g);
        }
        sl_free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(good_file_gives_its_values, begin, end),
        cmocka_unit_test_setup_teardown(good_file_gives_its_tensors, begin, end),
        cmocka_unit_test_setup_teardown(version_2_is_read_others_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(other_files_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(file_on_disk_is_mapped, begin, end),
        cmocka_unit_test_setup_teardown(every_truncation_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(huge_counts_and_lengths_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(bad_metadata_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(bad_tensors_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(bad_alignment_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(flipped_bytes_never_read_outside, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
