/* tests/golden/text/test_template_golden.c - rendered templates against Jinja2 in the environment
 * transformers uses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/text/template.h"
#include "tests/golden/text/text_fixture.h"
#include "tests/support/support.h"

#define NOW_S 1735787045 /* 2025-01-02 03:04:05 UTC, as in the vectors */

static enum sl_err render(const char *src, size_t len, const json_t *context, struct sl_buf *out,
                          struct sl_why *why)
{
    struct sl_template *t = NULL;
    struct sl_template_args args = {.request = context, .now_s = NOW_S};
    struct sl_spans spans = {0};
    enum sl_err e = sl_template_compile(src, len, &t, why);
    if (!e)
        e = sl_template_render(t, &args, out, &spans, why);
    sl_template_free(t);
    sl_spans_fini(&spans);
    return e;
}

/* One case; counts it as failed instead of stopping, so that a run shows all of them. */
static int check(const char *name, const char *src, size_t len, const json_t *context, const json_t *expected)
{
    struct sl_buf out;
    struct sl_why why = {0};
    int failed = 0;
    sl_buf_init(&out, 16u << 20);
    enum sl_err e = render(src, len, context, &out, &why);
    if (!expected && !e) {
        print_message("%s: rendered \"%s\", expected an error\n", name, out.data ? out.data : "");
        failed = 1;
    } else if (expected && e) {
        print_message("%s: %s: %s\n", name, sl_err_name(e), why.text);
        failed = 1;
    } else if (expected && (out.len != json_string_length(expected) ||
                            (out.len && memcmp(out.data, json_string_value(expected), out.len) != 0))) {
        print_message("%s:\n  got      \"%s\"\n  expected \"%s\"\n", name, out.data ? out.data : "",
                      json_string_value(expected));
        failed = 1;
    } else if (e && !why.text[0]) {
        print_message("%s: an error without a sentence\n", name);
        failed = 1;
    }
    sl_buf_fini(&out);
    return failed;
}

static void micro_line(void *arg, const json_t *line, int number)
{
    const char *id = json_string_value(json_object_get(line, "id"));
    const json_t *src = json_object_get(line, "template"), *expected = json_object_get(line, "expected");
    (void)number;
    if (strcmp(id, "generation_tag_hf_only") ==
        0) { /* transformers adds this tag to Jinja2; we follow transformers */
        json_t *x = json_string("x");
        *(int *)arg += check(id, json_string_value(src), json_string_length(src), NULL, x);
        json_decref(x);
        return;
    }
    if (strcmp(id, "dict_key_shadows_method") == 0) /* Python prints an address */
        return;
    *(int *)arg += check(id, json_string_value(src), json_string_length(src),
                         json_object_get(line, "context"), expected);
}

static void micro_cases_match_jinja2(void **state)
{
    int failed = 0;
    (void)state;
    assert_int_equal(text_fixture_lines(SL_TEST_DATA "/golden/text/micro_cases.jsonl", micro_line, &failed),
                     162);
    assert_int_equal(failed, 0);
}

static void own_cases_match_jinja2(void **state)
{
    int failed = 0;
    (void)state;
    assert_true(text_fixture_lines(SL_TEST_DATA "/golden/text/template_vectors.jsonl", micro_line, &failed) >
                100);
    assert_int_equal(failed, 0);
}

struct whole {
    json_t *contexts;
    const char *folder;
    int failed;
};

static void whole_line(void *arg, const json_t *line, int number)
{
    struct whole *w = arg;
    const char *name = json_string_value(json_object_get(line, "template"));
    const char *context = json_string_value(json_object_get(line, "context"));
    char *path = sl_xasprintf("%s/%s", w->folder, name), *title = sl_xasprintf("%s %s", name, context);
    size_t len = 0;
    char *src = sl_test_read_file(path, &len);
    (void)number;
    assert_non_null(src);
    w->failed +=
        check(title, src, len, json_object_get(w->contexts, context), json_object_get(line, "expected"));
    sl_free(src);
    sl_free(title);
    sl_free(path);
}

static int whole_templates(const char *folder, const char *vectors)
{
    json_error_t err;
    struct whole w = {.contexts = json_load_file(SL_TEST_DATA "/golden/text/contexts.json", 0, &err),
                      .folder = folder};
    assert_non_null(w.contexts);
    int n = text_fixture_lines(vectors, whole_line, &w);
    json_decref(w.contexts);
    assert_int_equal(w.failed, 0);
    return n;
}

static void committed_chat_templates_match_jinja2(void **state)
{
    (void)state;
    assert_true(whole_templates(SL_TEST_DATA "/golden/text/templates",
                                SL_TEST_DATA "/golden/text/chat_template_vectors.jsonl") >= 68);
}

static void shared_chat_templates_match_jinja2(void **state)
{
    (void)state;
    if (whole_templates(SL_SHARED_DATA "/fixtures/chat_templates",
                        SL_SHARED_DATA "/fixtures/jinja_golden/chat_template_golden.jsonl") < 0)
        skip();
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_cases_match_jinja2),
        cmocka_unit_test(own_cases_match_jinja2),
        cmocka_unit_test(committed_chat_templates_match_jinja2),
        cmocka_unit_test(shared_chat_templates_match_jinja2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
