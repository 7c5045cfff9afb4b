/* sl_dequant_row() against vectors of gguf's own quants module (tests/golden/quant) and, when there, of
 * ggml's C code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "kernels/tensor.h"

static int type_of(const char *name)
{
    static const enum sl_dtype types[] = {SL_F16, SL_BF16, SL_Q4_0, SL_Q4_1, SL_Q8_0};
    static const char *const names[] = {"f16", "bf16", "q4_0", "q4_1", "q8_0"};
    for (int i = 0; i < 5; i++)
        if (strcmp(name, names[i]) == 0)
            return (int)types[i];
    return -1;
}

static size_t from_hex(const char *hex, unsigned char *out, size_t max)
{
    size_t n = strlen(hex) / 2;
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++) {
        char two[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        out[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    return n;
}

/* Lines {type, n, hex, f32}; types not ours are passed over. Returns how many were compared. */
static int check_file(const char *path, double tolerance)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return -1;
    static char line[65536];
    int checked = 0;
    while (fgets(line, sizeof line, f)) {
        json_t *j = json_loads(line, 0, NULL);
        assert_non_null(j);
        int type = type_of(json_string_value(json_object_get(j, "type")));
        if (type >= 0) {
            unsigned char bytes[4096];
            float out[1024];
            size_t n = (size_t)json_integer_value(json_object_get(j, "n"));
            size_t got = from_hex(json_string_value(json_object_get(j, "hex")), bytes, sizeof bytes);
            assert_true(n <= 1024);
            assert_int_equal(got, sl_dtype_row_bytes((enum sl_dtype)type, n));
            sl_dequant_row((enum sl_dtype)type, bytes, n, out);
            json_t *want = json_object_get(j, "f32");
            for (size_t i = 0; i < n; i++) {
                double w = json_number_value(json_array_get(want, i)), d = (double)out[i] - w;
                if ((d < 0 ? -d : d) > tolerance * (w < 0 ? -w : w))
                    fail_msg("%s: element %zu is %.9g, expected %.9g", line, i, (double)out[i], w);
            }
            checked++;
        }
        json_decref(j);
    }
    fclose(f);
    return checked;
}

static void dequant_own_vectors_are_exact(void **state)
{
    (void)state;
    assert_true(check_file(SL_TEST_DATA "/golden/quant/dequant.jsonl", 0.0) >= 20);
}

/* Printed with 9 digits: exact in float32, not in double. */
static void dequant_shared_vectors_agree(void **state)
{
    (void)state;
    int n = check_file(SL_SHARED_DATA "/fixtures/quant/dequant_vectors.jsonl", 1e-7);
    if (n < 0)
        skip();
    assert_true(n >= 12);
}

static void row_bytes_refuses_partial_blocks(void **state)
{
    (void)state;
    assert_int_equal(sl_dtype_row_bytes(SL_Q4_0, 64), 36);
    assert_int_equal(sl_dtype_row_bytes(SL_Q4_1, 64), 40);
    assert_int_equal(sl_dtype_row_bytes(SL_Q8_0, 64), 68);
    assert_int_equal(sl_dtype_row_bytes(SL_Q8_0, 65), 0);
    assert_int_equal(sl_dtype_row_bytes(SL_F32, 3), 12);
    assert_int_equal(sl_dtype_row_bytes((enum sl_dtype)99, 32), 0);
    assert_int_equal(sl_dtype_row_bytes(SL_F32, UINT64_MAX), 0);
    assert_string_equal(sl_dtype_name(SL_Q4_1), "Q4_1");
    assert_string_equal(sl_dtype_name((enum sl_dtype)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequant_own_vectors_are_exact),
        cmocka_unit_test(dequant_shared_vectors_agree),
        cmocka_unit_test(row_bytes_refuses_partial_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
