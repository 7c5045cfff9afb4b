/* The fixed polynomials against the C library in double, and half precision conversions over all values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <cmocka.h>
#include "kernels/cpu/vmath.h"

/* Distance in units of the last place of float32. */
static double ulps(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1.0, e - 24);
}

static void exp2_is_within_two_ulp(void **state)
{
    (void)state;
    double worst = 0, worst_e = 0;
    for (float x = -120.0f; x < 120.0f; x += 0.00137f) {
        worst = fmax(worst, ulps(sl_exp2(x), exp2((double)x)));
        if (x > -80.0f && x < 80.0f)
            worst_e = fmax(worst_e, ulps(sl_exp(x), exp((double)x)));
    }
    assert_true(worst < 2.0);
    assert_true(worst_e < 2.5);
}

static void exp2_at_its_ends_is_exact(void **state)
{
    (void)state;
    assert_true(sl_exp2(0.0f) == 1.0f);
    assert_true(sl_exp2(-3.0f) == 0.125f);
    assert_true(sl_exp2(-INFINITY) == 0.0f);
    assert_true(sl_exp2(-126.0f) == 0.0f);
    assert_true(sl_exp2(300.0f) == 0x1p126f);
    assert_true(sl_exp(-1e30f) == 0.0f);
    assert_true(sl_silu(0.0f) == 0.0f);
    assert_true(sl_silu(200.0f) == 200.0f);
    assert_true(fabsf(sl_silu(-200.0f)) < 1e-30f);
    assert_true(isnan(sl_silu(NAN)));
}

static void gelu_is_that_of_tanh(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = -9.0f; x < 9.0f; x += 0.00137f) {
        double want = 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * (double)x * x * x)));
        worst = fmax(worst, fabs((double)sl_gelu(x) - want) / fmax(1, fabs((double)x)));
    }
    assert_true(worst < 2e-7);
    assert_true(sl_gelu(0.0f) == 0.0f);
    assert_true(sl_gelu(1e30f) == 1e30f);
    assert_true(fabsf(sl_gelu(-1e25f)) < 1e-10f);
    assert_true(isnan(sl_gelu(NAN)));
}

/* Near enough for what is rounded to bfloat16, 1 at its top, and 0 there once it is below bfloat16's numbers.
 */
static void coarse_exp2_is_within_8e_5(void **state)
{
    (void)state;
    double worst = 0;
    for (float t = -125.9f; t <= 0.0f; t += 0.00137f)
        worst = fmax(worst, fabs(sl_exp2_coarse(t) / exp2((double)t) - 1));
    assert_true(worst < 8e-5);
    assert_true(sl_bf16_to_f32(sl_f32_to_bf16(sl_exp2_coarse(0.0f))) == 1.0f);
    static const float least[] = {-126.75f, -127.0f, -1e30f, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof least / sizeof *least; i++)
        assert_true(sl_bf16_to_f32(sl_f32_to_bf16(sl_exp2_coarse(least[i]))) == 0.0f);
}

static void sincos_is_within_2e_7(void **state)
{
    (void)state;
    double worst = 0;
    for (double a = 0; a < 1e6; a = a * 1.00003 + 0.0007) {
        float x = (float)a, s, c;
        sl_sincos(x, &s, &c);
        worst = fmax(worst, fabs((double)s - sin((double)x)));
        worst = fmax(worst, fabs((double)c - cos((double)x)));
    }
    assert_true(worst < 2e-7);
}

static void f16_round_trip_is_exact(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = sl_f16_to_f32((uint16_t)h);
        int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
        double want = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        if (h & 0x8000)
            want = -want;
        if (isnan(want)) {
            assert_true(isnan(f));
            continue;
        }
        assert_true((double)f == want && !signbit(f) == !(h & 0x8000));
        assert_int_equal(sl_f32_to_f16(f), h);
        if (e == 31 || (h & 0x7fff) == 0x7bff)
            continue;
        /* half way to the next goes to the even one, a hair beside it to the near one */
        double next = (double)sl_f16_to_f32((uint16_t)(h + 1)), mid = (want + next) / 2;
        uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(sl_f32_to_f16((float)mid), even);
        assert_int_equal(sl_f32_to_f16(nextafterf((float)mid, (float)want)), h);
        assert_int_equal(sl_f32_to_f16(nextafterf((float)mid, (float)next)), h + 1);
    }
    assert_int_equal(sl_f32_to_f16(65519.9f), 0x7bff);
    assert_int_equal(sl_f32_to_f16(65520.0f), 0x7c00);
}

static void bf16_rounds_to_even_and_has_no_subnormals(void **state)
{
    (void)state;
    assert_int_equal(sl_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(sl_f32_to_bf16(sl_bits_float(0x3f808000)), 0x3f80);
    assert_int_equal(sl_f32_to_bf16(sl_bits_float(0x3f818000)), 0x3f82);
    assert_int_equal(sl_f32_to_bf16(sl_bits_float(0x3f808001)), 0x3f81);
    assert_int_equal(sl_f32_to_bf16(-INFINITY), 0xff80);
    assert_int_equal(sl_f32_to_bf16(sl_bits_float(0x807fffff)), 0x8000);
    assert_true(isnan(sl_bf16_to_f32(sl_f32_to_bf16(NAN))));
    for (uint32_t h = 0x80; h < 0x7f80; h++)
        assert_int_equal(sl_f32_to_bf16(sl_bf16_to_f32((uint16_t)h)), h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp2_is_within_two_ulp),
        cmocka_unit_test(exp2_at_its_ends_is_exact),
        cmocka_unit_test(gelu_is_that_of_tanh),
        cmocka_unit_test(coarse_exp2_is_within_8e_5),
        cmocka_unit_test(sincos_is_within_2e_7),
        cmocka_unit_test(f16_round_trip_is_exact),
        cmocka_unit_test(bf16_rounds_to_even_and_has_no_subnormals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
