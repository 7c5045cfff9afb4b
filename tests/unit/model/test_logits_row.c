/* Passes over a row of logits: every instruction set gives the bits of the plain one, and those are what the
 * header says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "common/base/philox.h"
#include "common/base/exact_math.h"
#include "common/model/logits_row.h"

#define N_MAX 5000

static float row[N_MAX];

/* Logits of some nats, with banned ones, ties, zeros of both signs and what is not a number. */
static void fill(uint32_t seed)
{
    for (uint32_t i = 0; i < N_MAX; i++) {
        float u = sl_philox_uniform(seed, 0, i);
        row[i] = u < 0.01F   ? -INFINITY
                 : u < 0.02F ? NAN
                 : u < 0.03F ? -0.0F
                 : u < 0.04F ? 7.5F
                             : (sl_philox_uniform(seed, 1, i) - 0.8F) * (seed % 2 ? 9.0F : 120.0F);
    }
}

static float plain_max(uint32_t from, uint32_t to)
{
    float m = -INFINITY;
    for (uint32_t i = from; i < to; i++)
        m = row[i] > m ? row[i] : m;
    return m;
}

static const uint32_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 1023, 1024, 1025, 1040, N_MAX};

static void check_block_max(const struct sl_row_passes *p, uint32_t n)
{
    float got[N_MAX / SL_ROW_BLOCK + 1];
    p->block_max(row, n, got);
    for (uint32_t b = 0; b < sl_row_blocks(n); b++) {
        uint32_t end = (b + 1) * SL_ROW_BLOCK < n ? (b + 1) * SL_ROW_BLOCK : n;
        float want = plain_max(b * SL_ROW_BLOCK, end);
        if (!(got[b] == want))
            fail_msg("%s: block %u of %u is %f, expected %f", p->name, b, n, (double)got[b], (double)want);
    }
}

static void check_weigh(const struct sl_row_passes *p, uint32_t n)
{
    static float weight[N_MAX];
    static uint16_t bin[N_MAX];
    float max = plain_max(0, n), inv_temperature = 1 / 0.7F;
    if (max <= -INFINITY)
        return;
    p->weigh(row, n, max, inv_temperature, weight, bin);
    for (uint32_t i = 0; i < n; i++) {
        float d = (row[i] - max) * inv_temperature;
        uint32_t want = SL_ROW_NO_BIN;
        if (row[i] > -INFINITY) {
            float depth = d * -(float)SL_BINS_PER_NAT;
            want = depth < (float)(SL_ROW_BINS - 1) ? (uint32_t)depth : SL_ROW_BINS - 1;
            float w = sl_exact_exp(d);
            assert_memory_equal(&weight[i], &w, sizeof w);
        }
        if (bin[i] != want)
            fail_msg("%s: entry %u of %u is in bin %u, expected %u", p->name, i, n, bin[i], want);
    }
}

static void check_members(const struct sl_row_passes *p, uint32_t n)
{
    static uint16_t bin[N_MAX];
    static uint32_t got[N_MAX];
    for (uint32_t i = 0; i < n; i++)
        bin[i] = (uint16_t)((i * 7919U) % 97U / 9U);
    for (uint16_t which = 0; which < 11; which++) {
        uint32_t count = 0, k = 0;
        for (uint32_t i = 0; i < n; i++)
            count += bin[i] == which;
        p->members(bin, n, which, count, got);
        for (uint32_t i = 0; i < n; i++)
            if (bin[i] == which)
                assert_int_equal(got[k++], i);
    }
}

static void passes_of_all_widths_do_what_the_header_says(void **state)
{
    (void)state;
    for (const struct sl_row_passes *const *p = sl_row_passes_all(); *p; p++)
        for (uint32_t seed = 0; seed < 4; seed++)
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                fill(seed);
                check_block_max(*p, sizes[i]);
                check_weigh(*p, sizes[i]);
                check_members(*p, sizes[i]);
            }
}

static void sums_of_all_widths_have_the_same_bits(void **state)
{
    (void)state;
    static float x[N_MAX];
    const struct sl_row_passes *const *all = sl_row_passes_all(), *plain = NULL;
    for (const struct sl_row_passes *const *p = all; *p; p++)
        plain = *p;
    for (uint32_t i = 0; i < N_MAX; i++)
        x[i] = sl_philox_uniform(5, 0, i) * -30;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double want = plain->sum_exp(x, sizes[i], 0), sum = 0;
        for (uint32_t k = 0; k < sizes[i]; k++)
            sum += exp((double)x[k]);
        assert_true(fabs(want - sum) <= 1e-6 * sum);
        for (const struct sl_row_passes *const *p = all; *p; p++) {
            double got = (*p)->sum_exp(x, sizes[i], 0);
            if (memcmp(&got, &want, sizeof got) != 0)
                fail_msg("%s: sum of %u entries differs", (*p)->name, sizes[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_of_all_widths_do_what_the_header_says),
        cmocka_unit_test(sums_of_all_widths_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
