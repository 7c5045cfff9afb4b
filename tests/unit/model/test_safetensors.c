/* The reader of .safetensors files: what is in one, and what is refused with which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/model/safetensors.h"
#include "kernels/tensor.h"

#define MAX_FILE 4096

static const char two[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                          "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                          "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";

/* A file with that header, padded to a multiple of 8, and n bytes of data 0, 1, 2... Returns its size. */
static size_t make(uint8_t *file, const char *header, size_t n)
{
    size_t length = (strlen(header) + 7) / 8 * 8;
    assert_true(8 + length + n <= MAX_FILE);
    memset(file, 0, 8);
    file[0] = (uint8_t)length;
    file[1] = (uint8_t)(length >> 8);
    memset(file + 8, ' ', length);
    memcpy(file + 8, header, strlen(header));
    for (size_t i = 0; i < n; i++)
        file[8 + length + i] = (uint8_t)i;
    return 8 + length + n;
}

static void tensors_are_found_and_in_the_order_of_their_bytes(void **state)
{
    (void)state;
    _Alignas(8) uint8_t file[MAX_FILE];
    struct sl_safetensors *s;
    size_t n = make(file, two, 20);
    assert_int_equal(sl_safetensors_open_memory(file, n, "m", &s, NULL), SL_OK);
    assert_int_equal(sl_safetensors_n(s), 2);
    assert_string_equal(sl_safetensors_at(s, 0)->name, "a");
    assert_null(sl_safetensors_at(s, 2));
    assert_null(sl_safetensors_find(s, "__metadata__"));
    const struct sl_safetensor *b = sl_safetensors_find(s, "b");
    assert_ptr_equal(b, sl_safetensors_at(s, 1));
    assert_int_equal(b->dtype->gguf_type, SL_BF16);
    assert_int_equal(b->n_dims, 2);
    assert_true(b->dims[0] == 2 && b->dims[1] == 3);
    assert_int_equal(b->bytes, 12);
    assert_int_equal(*(const uint8_t *)b->data, 8);
    sl_safetensors_close(s);
}

static void empty_tensors_scalars_and_no_tensors_are_read(void **state)
{
    (void)state;
    _Alignas(8) uint8_t file[MAX_FILE];
    struct sl_safetensors *s;
    size_t n = make(file,
                    "{\"x\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,2]},"
                    "\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}",
                    2);
    assert_int_equal(sl_safetensors_open_memory(file, n, "m", &s, NULL), SL_OK);
    assert_int_equal(sl_safetensors_find(s, "e")->bytes, 0);
    assert_int_equal(sl_safetensors_find(s, "x")->n_dims, 0);
    sl_safetensors_close(s);
    n = make(file, "{}", 0);
    assert_int_equal(sl_safetensors_open_memory(file, n, "m", &s, NULL), SL_OK);
    assert_int_equal(sl_safetensors_n(s), 0);
    sl_safetensors_close(s);
}

static void refused(const uint8_t *file, size_t n, enum sl_err code, const char *said)
{
    struct sl_safetensors *s = NULL;
    struct sl_why why = {{0}};
    enum sl_err e = sl_safetensors_open_memory(file, n, "m.safetensors", &s, &why);
    assert_null(s);
    if (e != code || !strstr(why.text, said) || !strstr(why.text, "m.safetensors"))
        fail_msg("%s \"%s\", expected %s and \"%s\"", sl_err_name(e), why.text, sl_err_name(code), said);
}

static void headers_that_do_not_fit_are_refused(void **state)
{
    (void)state;
#define T(dtype, shape, offsets) "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header;
        enum sl_err code;
        const char *said;
    } cases[] = {
        {"{\"a\"}", SL_EPARSE, "no JSON object"},
        {"{\"a\":1} x", SL_EPARSE, "no JSON object"},
        {"{\"a\":1}", SL_EPARSE, "not described by dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", SL_EPARSE, "not described by dtype"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"a\":" T("\"F32\"", "[2]", "[0,8]") "}", SL_EPARSE,
         "duplicate"},
        {"{\"a\":" T("7", "[2]", "[0,8]") "}", SL_EPARSE, "no dtype"},
        {"{\"a\\nb\":" T("\"Q9\"", "[2]", "[0,8]") "}", SL_EUNSUPPORTED, "tensor a?b has the type Q9"},
        {"{\"a\":" T("\"F32\"", "2", "[0,8]") "}", SL_EPARSE, "no shape"},
        {"{\"a\":" T("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", SL_EPARSE, "no shape"},
        {"{\"a\":" T("\"F32\"", "[-2]", "[0,8]") "}", SL_EPARSE, "no whole number"},
        {"{\"a\":" T("\"F32\"", "[2.0]", "[0,8]") "}", SL_EPARSE, "no whole number"},
        {"{\"a\":" T("\"F32\"", "[4611686018427387904,4]", "[0,8]") "}", SL_EPARSE, "larger than any file"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0]") "}", SL_EPARSE, "data_offsets"},
        {"{\"a\":" T("\"F32\"", "[2]", "[8,0]") "}", SL_EPARSE, "data_offsets"},
        {"{\"a\":" T("\"F32\"", "[2]", "[-8,0]") "}", SL_EPARSE, "data_offsets"},
        {"{\"a\":" T("\"F32\"", "[3]", "[0,12]") "}", SL_EPARSE, "ends at byte 12 of the data, which has 8"},
        {"{\"a\":" T("\"F32\"", "[1]", "[0,8]") "}", SL_EPARSE,
         "has 8 bytes, its shape and type F32 ask for 4"},
        {"{\"a\":" T("\"F32\"", "[1]", "[0,4]") "}", SL_EPARSE, "4 bytes behind the last tensor"},
        {"{\"a\":" T("\"F32\"", "[1]", "[4,8]") "}", SL_EPARSE, "does not begin where"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"b\":" T("\"I8\"", "[4]", "[4,8]") "}", SL_EPARSE,
         "does not begin where"},
        {"{\"b\":" T("\"I8\"", "[1]", "[0,1]") ",\"a\":" T("\"BF16\"", "[1]",
                                                           "[1,3]") ",\"c\":" T("\"I8\"", "[5]", "[3,8]") "}",
         SL_EUNSUPPORTED, "no multiple of 2"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        _Alignas(8) uint8_t file[MAX_FILE];
        size_t n = make(file, cases[i].header, 8);
        refused(file, n, cases[i].code, cases[i].said);
    }
}

static void files_cut_anywhere_are_refused(void **state)
{
    (void)state;
    _Alignas(8) uint8_t file[MAX_FILE];
    struct sl_safetensors *s;
    size_t n = make(file, two, 20);
    for (size_t cut = 0; cut < n; cut++) {
        struct sl_why why = {{0}};
        if (sl_safetensors_open_memory(file, cut, "m", &s, &why) == SL_OK || why.text[0] == 0)
            fail_msg("cut to %zu of %zu bytes", cut, n);
    }
}

static void lengths_over_the_limits_are_refused(void **state)
{
    (void)state;
    _Alignas(8) uint8_t file[MAX_FILE];
    size_t n = make(file, two, 20);
    memset(file, 0xff, 8);
    refused(file, n, SL_EPARSE, "18446744073709551615 bytes");
    memset(file, 0, 8);
    refused(file, n, SL_EPARSE, "not a safetensors file");
    size_t big = (size_t)SL_SAFETENSORS_MAX_HEADER_BYTES + 16;
    uint8_t *large = sl_xcalloc(1, big);
    memset(large + 8, ' ', big - 8);
    large[8] = '{';
    uint64_t length = SL_SAFETENSORS_MAX_HEADER_BYTES + 1;
    memcpy(large, &length, sizeof length);
    refused(large, big, SL_ETOOBIG, "at most 16777216");
    sl_free(large);
    char name[400], header[600];
    memset(name, 'n', sizeof name);
    name[SL_SAFETENSORS_MAX_NAME_BYTES + 1] = 0;
    snprintf(header, sizeof header, "{\"%s\":" T("\"F32\"", "[2]", "[0,8]") "}", name);
    refused(file, make(file, header, 8), SL_ETOOBIG, "257 bytes, expected 1 to 256");
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    struct sl_safetensors *s = NULL;
    struct sl_why why = {{0}};
    assert_int_equal(sl_safetensors_open("/nonexistent/m", &s, &why), SL_EIO);
    assert_non_null(strstr(why.text, "/nonexistent/m"));
    assert_int_equal(sl_safetensors_open("/", &s, &why), SL_EIO);
    assert_int_equal(sl_safetensors_open("/dev/null", &s, &why), SL_EIO);
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_and_in_the_order_of_their_bytes),
        cmocka_unit_test(empty_tensors_scalars_and_no_tensors_are_read),
        cmocka_unit_test(headers_that_do_not_fit_are_refused),
        cmocka_unit_test(files_cut_anywhere_are_refused),
        cmocka_unit_test(lengths_over_the_limits_are_refused),
        cmocka_unit_test(what_is_no_file_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
