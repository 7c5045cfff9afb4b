/* Bounds and numbers in thousandths, which whole numbers compare exactly: what the program takes is on the right side. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar/json_schema.h"
#include "common/grammar/matcher.h"
#include "tests/support/support.h"

#define BOUNDS  400
#define NUMBERS 60

static unsigned long long seed = 7;

static long long pick(long long n)
{
    return (long long)(sl_test_random(&seed) % (unsigned long long)n);
}

/* Near zero, near powers of ten and anywhere; some whole. */
static long long pick_thousandths(void)
{
    static const long long sizes[] = {3, 30, 2000, 30000, 1100000};
    long long v = pick(sizes[pick(SL_COUNTOF(sizes))]);
    v = pick(4) == 0 ? v * 1000 : pick(4) == 0 ? v / 10 * 10 : v;
    return pick(2) ? v : -v;
}

/* With as many zeros at the end as it happens. */
static void print(long long thousandths, char out[32])
{
    int digits = (int)pick(4);
    long long size = llabs(thousandths);
    while (digits < 3 && size % (digits == 0 ? 1000 : digits == 1 ? 100 : 10) != 0)
        digits++;
    int n = snprintf(out, 32, "%s%lld.%03lld", thousandths < 0 ? "-" : "", size / 1000, size % 1000);
    out[digits ? n - 3 + digits : n - 4] = '\0';
}

static bool takes(struct sl_matcher *m, const char *text)
{
    uint32_t state = SL_MATCHER_START;
    for (; *text; text++)
        state = sl_matcher_step(m, state, (uint8_t)*text);
    return state != SL_MATCHER_DEAD && sl_matcher_ends(m, state);
}

static void numbers_are_taken_on_the_right_side_of_bounds(void **state)
{
    static const char *const words[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    (void)state;
    for (unsigned i = 0; i < BOUNDS; i++) {
        unsigned side = (unsigned)pick(4);
        bool integer = pick(3) == 0;
        long long bound = pick_thousandths();
        char text[32], schema[128];
        struct sl_why why = {0};
        struct sl_grammar *p = NULL;
        print(bound, text);
        snprintf(schema, sizeof schema, "{\"type\":\"%s\",\"%s\":%s}", integer ? "integer" : "number",
                 words[side], text);
        json_t *j = json_loads(schema, 0, NULL);
        if (sl_json_schema_compile(j, NULL, &p, &why) != SL_OK)
            fail_msg("%s: %s", schema, why.text);
        json_decref(j);
        struct sl_matcher *m = sl_matcher_new(p);
        for (unsigned k = 0; k < NUMBERS; k++) {
            long long v = pick(3) ? pick_thousandths() : bound + pick(5) - 2;
            print(v, text);
            bool right = side == 0 ? v >= bound : side == 1 ? v > bound : side == 2 ? v <= bound : v < bound;
            if (takes(m, text) != (right && !(integer && strchr(text, '.'))))
                fail_msg("%s: %s should%s fit", schema, text, right ? "" : " not");
        }
        assert_false(takes(m, "1e2"));
        sl_matcher_free(m);
        sl_grammar_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_taken_on_the_right_side_of_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
