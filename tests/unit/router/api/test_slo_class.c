/* router/api/slo_class: classes of the config, and which one a request is of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "router/api/slo_class.h"

static enum sl_err parse(char **items, size_t n, struct sl_slo_classes *c, struct sl_why *why)
{
    struct sl_conf_list list = {items, n};
    memset(why, 0, sizeof *why);
    return sl_slo_classes_parse(&list, c, why);
}

static void classes_are_read_and_chosen(void **state)
{
    (void)state;
    char *items[] = {"chat ttft_ms=1000 tpot_ms=50 priority=-1", "batch priority=5", "default ttft_ms=9000"};
    static const struct {
        const char *asked, *key, *class;
        uint32_t own_ttft, ttft, tpot;
        int32_t own_priority, priority;
    } rows[] = {{"chat", NULL, "chat", 0, 1000, 50, 0, -1},
                {"chat", "batch", "chat", 70, 70, 50, 3, 3},
                {NULL, "batch", "batch", 0, 0, 0, 0, 5},
                {NULL, "someone", "default", 0, 9000, 0, 0, 0},
                {NULL, NULL, "default", 0, 9000, 0, 0, 0}};
    struct sl_slo_classes c;
    struct sl_why why;
    assert_int_equal(parse(items, 3, &c, &why), SL_OK);
    assert_int_equal(c.n, 3);
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        struct sl_gen_req q = {
            .key_name = rows[i].key, .ttft_ms = rows[i].own_ttft, .priority = rows[i].own_priority};
        struct sl_fault fault = {0};
        assert_true(sl_slo_apply(&c, rows[i].asked, &q, &fault));
        assert_string_equal(q.slo_class, rows[i].class);
        assert_int_equal(q.ttft_ms, rows[i].ttft);
        assert_int_equal(q.tpot_ms, rows[i].tpot);
        assert_int_equal(q.priority, rows[i].priority);
    }
}

static void unknown_class_is_refused_with_those_there_are(void **state)
{
    (void)state;
    char *items[] = {"chat", "batch"};
    struct sl_slo_classes c;
    struct sl_why why;
    struct sl_gen_req q = {0};
    struct sl_fault fault = {0};
    assert_int_equal(parse(items, 2, &c, &why), SL_OK);
    assert_false(sl_slo_apply(&c, "fast", &q, &fault));
    assert_non_null(strstr(fault.message, "chat, batch"));
    assert_string_equal(fault.param, "X-Sluice-Class");
    fault = (struct sl_fault){0};
    assert_int_equal(parse(items, 0, &c, &why), SL_OK);
    assert_true(sl_slo_apply(&c, NULL, &q, &fault));
    assert_null(q.slo_class);
    assert_false(sl_slo_apply(&c, "chat", &q, &fault));
}

static void bad_classes_are_refused_in_words(void **state)
{
    (void)state;
    static const struct {
        char *item, *says;
    } rows[] = {{"", "expected a name"},
                {"ttft_ms=5", "expected a name"},
                {"a\"b", "expected a name"},
                {"chat ttft_ms=0", "ttft_ms=0"},
                {"chat ttft=5", "ttft=5"},
                {"chat tpot_ms=5x", "tpot_ms=5x"},
                {"chat priority=1001", "priority=1001"},
                {"a-name-that-is-longer-than-thirty-two-letters", "at most 32"}};
    struct sl_slo_classes c;
    struct sl_why why;
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        char *items[] = {rows[i].item};
        assert_int_equal(parse(items, 1, &c, &why), SL_ECONFIG);
        if (!strstr(why.text, rows[i].says))
            fail_msg("'%s' does not say '%s'", why.text, rows[i].says);
    }
    char *twice[] = {"chat", "chat"};
    assert_int_equal(parse(twice, 2, &c, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, "twice"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_read_and_chosen),
        cmocka_unit_test(unknown_class_is_refused_with_those_there_are),
        cmocka_unit_test(bad_classes_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
