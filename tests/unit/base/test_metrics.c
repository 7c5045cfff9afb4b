/* Rendered text, kinds and concurrent updates of common/base/metrics. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/metrics.h"
#include "common/base/thread.h"
#include "tests/support/support.h"

static void render_whole_registry(void **state)
{
    (void)state;
    struct sl_metrics *m = sl_metrics_new();
    static const double bounds[] = {0.5, 1, 2.5};
    struct sl_metric *z = sl_gauge(m, "sl_z", NULL, "Last by name.");
    struct sl_metric *h = sl_histogram(m, "sl_h_seconds", "mode=\"pd\"", "A\nhelp \\.", bounds, 3);
    struct sl_metric *plain = sl_histogram(m, "sl_h2", NULL, "x", bounds, 1);
    struct sl_metric *a = sl_counter(m, "sl_a_total", "role=\"decode\"", "Counts.");
    struct sl_metric *b = sl_counter(m, "sl_a_total", "role=\"prefill\"", "Counts.");
    sl_metric_set(z, -0.1);
    sl_metric_add(a, 3);
    sl_metric_add(b, 9007199254740991.0);
    sl_metric_observe(h, 0.5); /* a bound belongs to its own bucket */
    sl_metric_observe(h, 0.75);
    sl_metric_observe(h, 2.6);
    sl_metric_observe(plain, 0.25);
    struct sl_buf out;
    sl_buf_init(&out, 10000);
    sl_metrics_render(m, &out);
    assert_string_equal(out.data, "# HELP sl_a_total Counts.\n"
                                  "# TYPE sl_a_total counter\n"
                                  "sl_a_total{role=\"decode\"} 3\n"
                                  "sl_a_total{role=\"prefill\"} 9007199254740991\n"
                                  "# HELP sl_h2 x\n"
                                  "# TYPE sl_h2 histogram\n"
                                  "sl_h2_bucket{le=\"0.5\"} 1\n"
                                  "sl_h2_bucket{le=\"+Inf\"} 1\n"
                                  "sl_h2_sum 0.25\n"
                                  "sl_h2_count 1\n"
                                  "# HELP sl_h_seconds A\\nhelp \\\\.\n"
                                  "# TYPE sl_h_seconds histogram\n"
                                  "sl_h_seconds_bucket{mode=\"pd\",le=\"0.5\"} 1\n"
                                  "sl_h_seconds_bucket{mode=\"pd\",le=\"1\"} 2\n"
                                  "sl_h_seconds_bucket{mode=\"pd\",le=\"2.5\"} 2\n"
                                  "sl_h_seconds_bucket{mode=\"pd\",le=\"+Inf\"} 3\n"
                                  "sl_h_seconds_sum{mode=\"pd\"} 3.85\n"
                                  "sl_h_seconds_count{mode=\"pd\"} 3\n"
                                  "# HELP sl_z Last by name.\n"
                                  "# TYPE sl_z gauge\n"
                                  "sl_z -0.1\n");
    assert_true(sl_metric_value(h) == 3);
    assert_true(sl_metric_value(z) == -0.1);
    sl_buf_fini(&out);
    sl_metrics_free(m);
    sl_metrics_free(NULL);
}

static void dropped_series_are_gone(void **state)
{
    (void)state;
    struct sl_metrics *m = sl_metrics_new();
    struct sl_buf out, label;
    sl_buf_init(&out, 1000);
    sl_buf_init(&label, 1000);
    sl_metrics_label(&label, "a", "x\"\\\n");
    sl_metrics_label(&label, "b", "");
    assert_string_equal(label.data, "a=\"x\\\"\\\\\\n\",b=\"\"");
    struct sl_metric *a = sl_gauge(m, "a", "x=\"1\"", "h"), *b = sl_gauge(m, "a", "x=\"2\"", "h");
    sl_gauge(m, "z", NULL, "h");
    sl_metrics_drop(m, a);
    sl_metrics_drop(m, NULL);
    sl_metrics_render(m, &out);
    assert_string_equal(out.data,
                        "# HELP a h\n# TYPE a gauge\na{x=\"2\"} 0\n# HELP z h\n# TYPE z gauge\nz 0\n");
    sl_metrics_drop(m, b);
    sl_buf_clear(&out);
    sl_metrics_render(m, &out);
    assert_string_equal(out.data, "# HELP z h\n# TYPE z gauge\nz 0\n");
    sl_buf_fini(&label);
    sl_buf_fini(&out);
    sl_metrics_free(m);
}

static void register_again_is_the_same_series(void **state)
{
    (void)state;
    struct sl_metrics *m = sl_metrics_new();
    struct sl_metric *a = sl_counter(m, "a_total", "x=\"1\"", "h");
    assert_ptr_equal(sl_counter(m, "a_total", "x=\"1\"", "h"), a);
    assert_ptr_not_equal(sl_counter(m, "a_total", "x=\"2\"", "h"), a);
    assert_ptr_not_equal(sl_counter(m, "a_total", NULL, "h"), a);
    assert_ptr_equal(sl_counter(m, "a_total", "", "h"), sl_counter(m, "a_total", NULL, "h"));
    sl_metrics_free(m);
}

static void numbers_special_and_exact(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *text;
    } table[] = {
        {INFINITY, "+Inf"}, {-INFINITY, "-Inf"},      {NAN, "NaN"}, {0, "0"}, {0.1, "0.1"},
        {1e21, "1e+21"},    {123456789, "123456789"},
    };
    for (size_t i = 0; i < SL_COUNTOF(table); i++) {
        struct sl_metrics *m = sl_metrics_new();
        sl_metric_set(sl_gauge(m, "g", NULL, "h"), table[i].v);
        struct sl_buf out;
        sl_buf_init(&out, 1000);
        sl_metrics_render(m, &out);
        char *end = strstr(out.data, "\ng ");
        assert_non_null(end);
        char *expected = sl_xasprintf("\ng %s\n", table[i].text);
        assert_string_equal(end, expected);
        sl_free(expected);
        sl_buf_fini(&out);
        sl_metrics_free(m);
    }
    const double awkward = 0.1 + 0.2;
    struct sl_metrics *m = sl_metrics_new();
    sl_metric_set(sl_gauge(m, "g", NULL, "h"), awkward);
    struct sl_buf out;
    sl_buf_init(&out, 1000);
    sl_metrics_render(m, &out);
    assert_true(strtod(strstr(out.data, "\ng ") + 3, NULL) == awkward);
    sl_buf_fini(&out);
    sl_metrics_free(m);
}

static void latency_bounds_ascend_from_half_a_millisecond(void **state)
{
    (void)state;
    assert_true(SL_LATENCY_BOUNDS_S[0] == 0.0005);
    assert_true(SL_LATENCY_BOUNDS_S[SL_N_LATENCY_BOUNDS - 1] == 2560);
    for (size_t i = 1; i < SL_N_LATENCY_BOUNDS; i++)
        assert_true(SL_LATENCY_BOUNDS_S[i - 1] < SL_LATENCY_BOUNDS_S[i]);
}

struct shared {
    struct sl_metrics *m;
    struct sl_metric *counter, *histogram;
};

enum { N_UPDATES = 20000, N_THREADS = 4 };

static void update(void *arg)
{
    struct shared *s = arg;
    for (int i = 0; i < N_UPDATES; i++) {
        sl_metric_add(s->counter, 0.5);
        sl_metric_observe(s->histogram, i % 2 ? 0.25 : 2);
        if (i % 1000 == 0)
            sl_metric_add(sl_counter(s->m, "late_total", NULL, "h"), 1);
    }
}

static void updates_from_many_threads_are_all_counted(void **state)
{
    (void)state;
    static const double bounds[] = {1};
    struct shared s = {.m = sl_metrics_new()};
    s.counter = sl_counter(s.m, "c_total", NULL, "h");
    s.histogram = sl_histogram(s.m, "h", NULL, "h", bounds, 1);
    struct sl_thread threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(sl_thread_start(&threads[i], "update", update, &s), SL_OK);
    struct sl_buf out;
    sl_buf_init(&out, 10000);
    sl_metrics_render(s.m, &out); /* while they run */
    for (int i = 0; i < N_THREADS; i++)
        sl_thread_join(&threads[i]);
    assert_true(sl_metric_value(s.counter) == N_THREADS * N_UPDATES * 0.5);
    assert_true(sl_metric_value(s.histogram) == N_THREADS * N_UPDATES);
    assert_true(sl_metric_value(sl_counter(s.m, "late_total", NULL, "h")) == N_THREADS * N_UPDATES / 1000.0);
    sl_buf_clear(&out);
    sl_metrics_render(s.m, &out);
    assert_non_null(strstr(out.data, "h_bucket{le=\"1\"} 40000\n"));
    assert_non_null(strstr(out.data, "h_sum 90000\n"));
    sl_buf_fini(&out);
    sl_metrics_free(s.m);
}

static void register_other_kind(void *arg)
{
    sl_gauge(arg, "name", NULL, "h");
}

static void register_bad_name(void *arg)
{
    sl_gauge(arg, "1name", NULL, "h");
}

static void count_down(void *arg)
{
    sl_metric_add(sl_counter(arg, "name", NULL, "h"), -1);
}

static void misuse_asserts(void **state)
{
    (void)state;
    struct sl_metrics *m = sl_metrics_new();
    sl_counter(m, "name", NULL, "h");
    assert_int_equal(sl_test_dies(register_other_kind, m, NULL), SIGABRT);
    assert_int_equal(sl_test_dies(register_bad_name, m, NULL), SIGABRT);
    assert_int_equal(sl_test_dies(count_down, m, NULL), SIGABRT);
    sl_metrics_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misuse_asserts), /* forks, so it comes before the threads */
        cmocka_unit_test(render_whole_registry),
        cmocka_unit_test(dropped_series_are_gone),
        cmocka_unit_test(register_again_is_the_same_series),
        cmocka_unit_test(numbers_special_and_exact),
        cmocka_unit_test(latency_bounds_ascend_from_half_a_millisecond),
        cmocka_unit_test(updates_from_many_threads_are_all_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
