/* The fused multiply-add in double against the C library's, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>
#include "kernels/cpu/fma.h"
#include "kernels/cpu/half.h"
#include "tests/kernels/op_setup.h"

static void expect_exact(float x, float y, float z)
{
    float got = sl_fma_in_double(x, y, z), want = fmaf(x, y, z);
    if (sl_float_bits(got) != sl_float_bits(want) && !(isnan(got) && isnan(want)))
        fail_msg("fma(%a, %a, %a) is %a, not %a", (double)x, (double)y, (double)z, (double)got, (double)want);
}

static void fma_of_any_bits_is_exact(void **state)
{
    (void)state;
    struct op_rand r = {31};
    for (uint32_t i = 0; i < 2000000; i++)
        expect_exact(sl_bits_float(op_rand_u32(&r)), sl_bits_float(op_rand_u32(&r)),
                     sl_bits_float(op_rand_u32(&r)));
}

/* A float32 of few or all mantissa bits with an exponent of [low, high). */
static float rand_near(struct op_rand *r, int low, int high)
{
    uint32_t keep = op_rand_below(r, 3) == 0 ? 0x7fffff : 0x7fffffu & ~((1u << op_rand_below(r, 23)) - 1);
    uint32_t exponent = (uint32_t)(127 + low) + op_rand_below(r, (uint32_t)(high - low));
    return sl_bits_float((op_rand_u32(r) & (0x80000000u | keep)) | exponent << 23);
}

/* The sum of a large and a small part, so near the middle of two float32 that only the rest decides; sums
 * that cancel; results at and below the smallest normal number. */
static void fma_near_the_middle_of_two_results_is_exact(void **state)
{
    (void)state;
    struct op_rand r = {32};
    for (uint32_t i = 0; i < 2000000; i++) {
        expect_exact(rand_near(&r, -2, 2), rand_near(&r, -40, 40), rand_near(&r, -40, 40));
        expect_exact(rand_near(&r, -2, 2), rand_near(&r, -1, 1), rand_near(&r, -2, 2));
        expect_exact(rand_near(&r, -70, -56), rand_near(&r, -70, -56), rand_near(&r, -126, -110));
        /* 1.5 units behind the last place plus or minus next to nothing */
        float z = rand_near(&r, 0, 1), half = ldexpf(op_rand_below(&r, 2) ? 1.0f : 1.5f, -24);
        expect_exact(half, 1.0f + ldexpf(1.0f, -23), op_rand_below(&r, 2) ? z : -z);
        expect_exact(half, 1.0f - ldexpf(1.0f, -24), op_rand_below(&r, 2) ? z : -z);
    }
}

static void fma_of_infinities_and_zeros_is_that_of_the_library(void **state)
{
    (void)state;
    static const float values[] = {0.0f,      -0.0f, 1.0f,     -1.0f,     INFINITY,
                                   -INFINITY, NAN,   0x1p127f, 0x1p-149f, -0x1.fffffep127f};
    for (size_t i = 0; i < SL_COUNTOF(values); i++)
        for (size_t j = 0; j < SL_COUNTOF(values); j++)
            for (size_t k = 0; k < SL_COUNTOF(values); k++)
                expect_exact(values[i], values[j], values[k]);
}

/* bfloat16 results are flushed as the instruction does it: by the size before the exponent's end is met. */
static void bf16_fma_flushes_what_rounds_below_the_smallest_normal(void **state)
{
    (void)state;
    float smallest = 0x1p-126f, x = 0x1p-63f;
    assert_true(sl_bf16_fma(smallest, x, -0x1p-86f) == 0.0f);     /* 2^-126 less 2^-149 */
    assert_true(sl_bf16_fma(smallest, x, -0x1p-87f) == 0.0f);     /* 24 bits: exact and below */
    assert_true(sl_bf16_fma(smallest, x, -0x1.8p-88f) == 0.0f);   /* rounds to those */
    assert_true(sl_bf16_fma(smallest, x, -0x1p-88f) == smallest); /* the middle: to even */
    assert_true(sl_bf16_fma(smallest, x, -0x1p-89f) == smallest); /* rounds up */
    assert_true(signbit(sl_bf16_fma(-smallest, x, 0x1p-87f)));    /* signed zero */
    assert_true(sl_bf16_fma(1.0f, 0x1p-30f, 0x1p-30f) == 1.0f);
    assert_true(isinf(sl_bf16_fma(0x1.fffffep127f, 0x1p64f, 0x1p63f)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fma_of_any_bits_is_exact),
        cmocka_unit_test(fma_near_the_middle_of_two_results_is_exact),
        cmocka_unit_test(fma_of_infinities_and_zeros_is_that_of_the_library),
        cmocka_unit_test(bf16_fma_flushes_what_rounds_below_the_smallest_normal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
