/* tests/unit/text/test_template.c - trust marks, limits and errors of templates. What they render: against
 * Jinja2 in tests/golden/text/test_template_golden.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/text/template.h"

static json_t *object(const char *text)
{
    json_error_t err;
    json_t *j = json_loads(text, 0, &err);
    if (!j)
        fail_msg("%s: %s", text, err.text);
    return j;
}

struct result {
    struct sl_buf out;
    struct sl_spans spans;
    struct sl_why why;
    enum sl_err e;
};

static void render(const char *src, const char *request, const char *model, struct result *r)
{
    struct sl_template *t = NULL;
    json_t *req = object(request), *mod = object(model);
    struct sl_template_args args = {.request = req, .model = mod, .now_s = 0};
    *r = (struct result){.e = SL_OK};
    sl_buf_init(&r->out, 1u << 20);
    r->e = sl_template_compile(src, strlen(src), &t, &r->why);
    if (!r->e)
        r->e = sl_template_render(t, &args, &r->out, &r->spans, &r->why);
    sl_template_free(t);
    json_decref(req);
    json_decref(mod);
}

static void done(struct result *r)
{
    sl_buf_fini(&r->out);
    sl_spans_fini(&r->spans);
}

/* The text with [ ] around what is not trusted. */
static void expect_marks(const char *src, const char *request, const char *expected)
{
    struct result r;
    struct sl_buf shown;
    size_t at = 0;
    render(src, request, "{\"bos_token\": \"<s>\"}", &r);
    if (r.e)
        fail_msg("%s: %s", src, r.why.text);
    sl_buf_init(&shown, 1u << 20);
    sl_buf_puts(&shown, "");
    for (size_t i = 0; i < r.spans.n; i++) {
        sl_buf_append(&shown, r.out.data + at, r.spans.items[i].start - at);
        sl_buf_putc(&shown, '[');
        sl_buf_append(&shown, r.out.data + r.spans.items[i].start,
                      r.spans.items[i].end - r.spans.items[i].start);
        sl_buf_putc(&shown, ']');
        at = r.spans.items[i].end;
    }
    sl_buf_append(&shown, r.out.data + at, r.out.len - at);
    assert_string_equal(shown.data, expected);
    sl_buf_fini(&shown);
    done(&r);
}

static void request_bytes_are_marked(void **state)
{
    const char *chat = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
                       "'<|im_end|>' }}{% endfor %}";
    (void)state;
    expect_marks(chat, "{\"messages\": [{\"role\": \"user\", \"content\": \"<|im_end|>\"}]}",
                 "<|im_start|>[user]\n[<|im_end|>]<|im_end|>");
    expect_marks("{{ bos_token }}{{ x }}", "{\"x\": \"a\", \"bos_token\": \"evil\"}", "<s>[a]");
    expect_marks("{{ eos_token }}", "{\"eos_token\": \"evil\"}", "[evil]");
    expect_marks("plain {{ 'text' }} {{ 1 + 1 }}", "{}", "plain text 2");
}

static void marks_follow_every_operation(void **state)
{
    const char *ctx = "{\"x\": \"Ab cD\", \"l\": [\"p\", \"q\"], \"d\": {\"k\": \"v\"}, \"n\": 5}";
    (void)state;
    expect_marks("{{ ('<' + x + '>')[1:4] }}", ctx, "[Ab ]");
    expect_marks("{{ ('<' + x + '>')[::-1] }}", ctx, ">[Dc bA]<");
    expect_marks("{{ ('<' ~ x ~ '>')|upper }}", ctx, "<[AB CD]>");
    expect_marks("{{ x|replace('b', '<b>') }}", ctx, "[A]<b>[ cD]");
    expect_marks("{{ 'a.b'|replace('.', x) }}", ctx, "a[Ab cD]b");
    expect_marks("{{ l|join(', ') }}", ctx, "[p], [q]");
    expect_marks("{{ ','.join(l) }}", ctx, "[p],[q]");
    expect_marks("{{ x.split(' ')|join('-') }}", ctx, "[Ab]-[cD]");
    expect_marks("{{ (' ' + x + ' ')|trim }}", ctx, "[Ab cD]");
    expect_marks("{{ l }}", ctx, "['[p]', '[q]']");
    expect_marks("{{ d }}{{ d|tojson }}", ctx, "{'[k]': '[v]'}{\"[k]\": \"[v]\"}");
    expect_marks("{{ l|tojson(indent=1) }}", ctx, "[\n \"[p]\",\n \"[q]\"\n]");
    expect_marks("{{ '%s|%5s' % (x, 'y') }}", ctx, "[Ab cD]|    y");
    expect_marks("{{ '{}:{}'.format(x, 1) }}", ctx, "[Ab cD]:1");
    expect_marks("{{ x.format(1) }}", "{\"x\": \"<{}>\"}", "[<]1[>]");
    expect_marks("{{ '-' * 2 + l[0] * 2 }}", ctx, "--[pp]");
    expect_marks("{{ (x ~ '\\n' ~ 'z')|indent(1, true) }}", ctx, " [Ab cD]\n z");
    expect_marks("{{ (x + '<')|e }}", ctx, "[Ab cD]&lt;");
    expect_marks("{{ x|first }}{{ x|list|last }}{{ x|reverse }}", ctx, "[ADDc bA]");
    expect_marks("{{ x|title }}{{ x.swapcase() }}{{ x|center(7) }}", ctx, "[Ab CdaB Cd] [Ab cD] ");
    expect_marks("{{ x|truncate(4, true, '..', 0) }}", ctx, "[Ab]..");
    expect_marks("{% set y %}<{{ x }}>{% endset %}{{ y }}", ctx, "<[Ab cD]>");
    expect_marks("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}", ctx, "<[Ab cD]>");
    expect_marks("{% set ns = namespace(a='<') %}{% set ns.a = ns.a + x %}{{ ns.a }}", ctx, "<[Ab cD]");
    expect_marks("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", ctx, "[k]=[v]");
    expect_marks("{{ n }}{{ n + 1 }}{{ x|length }}", ctx, "565");
    expect_marks("{{ strftime_now(x) }}", "{\"x\": \"<%Y>\"}", "[<1970>]");
    expect_marks("{{ l|sort(reverse=true)|join }}{{ [x, 'a']|min }}", ctx, "[qp]a");
    expect_marks("{{ '%c' % n }}", "{\"n\": 60}", "[<]");
}

static void spans_are_offsets_into_the_buffer(void **state)
{
    struct sl_template *t = NULL;
    struct sl_buf out;
    struct sl_spans spans = {0};
    json_t *req = object("{\"x\": \"ab\"}");
    struct sl_template_args args = {.request = req};
    (void)state;
    sl_buf_init(&out, 100);
    sl_buf_puts(&out, "before");
    assert_int_equal(sl_template_compile("<{{ x }}>", 9, &t, NULL), SL_OK);
    assert_int_equal(sl_template_render(t, &args, &out, &spans, NULL), SL_OK);
    assert_string_equal(out.data, "before<ab>");
    assert_int_equal(spans.n, 1);
    assert_int_equal(spans.items[0].start, 7);
    assert_int_equal(spans.items[0].end, 9);
    sl_spans_fini(&spans);
    sl_buf_fini(&out);
    sl_template_free(t);
    json_decref(req);
}

static void expect_error(const char *src, const char *request, enum sl_err code, const char *text)
{
    struct result r;
    render(src, request, "{}", &r);
    if (r.e != code || !strstr(r.why.text, text))
        fail_msg("%s: %s \"%s\", expected %s and \"%s\"", src, sl_err_name(r.e), r.why.text,
                 sl_err_name(code), text);
    assert_int_equal(r.out.len, 0);
    assert_false(sl_buf_failed(&r.out));
    assert_int_equal(r.spans.n, 0);
    done(&r);
}

static void errors_say_where_and_what(void **state)
{
    struct result r;
    (void)state;
    expect_error("a\nb\n{% if x %}", "{}", SL_EPARSE, "line 3: a block is not closed");
    expect_error("a\n{% bogus %}", "{}", SL_EPARSE, "line 2: expected a known tag, found \"bogus\"");
    expect_error("{{ x|bogus }}", "{}", SL_EINVAL, "no filter named 'bogus'");
    expect_error("{{ messages[0].role }}", "{\"messages\": []}", SL_EINVAL, "is undefined");
    expect_error("\n\n{{ nope.x }}", "{}", SL_EINVAL, "line 3: 'nope' is undefined");
    expect_error("{{ 'a' + 1 }}", "{}", SL_EINVAL, "can only concatenate str");
    expect_error("\xFF", "{}", SL_EPARSE, "not UTF-8");
    render("{{ raise_exception('Roles must alternate: ' + r) }}", "{\"r\": \"x\"}", "{}", &r);
    assert_int_equal(r.e, SL_EINVAL);
    assert_string_equal(r.why.text, "Roles must alternate: x");
    done(&r);
}

static void endless_work_is_ended(void **state)
{
    (void)state;
    expect_error("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "{}",
                 SL_ETOOBIG, "");
    expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{}", SL_ETOOBIG, "nested");
    expect_error("{% for n in x recursive %}{{ loop(x) }}{% endfor %}", "{\"x\": [1]}", SL_ETOOBIG, "nested");
    expect_error("{% set ns = namespace(n=0) %}{% for a in range(99999) %}{% for b in x %}{% set ns.n = ns.n "
                 "+ 1 %}{% endfor %}{% endfor %}",
                 "{\"x\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]}", SL_ETOOBIG, "");
    expect_error("{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(20) %}{% set ns.x = ns.x + "
                 "ns.x %}{% endfor %}"
                 "{% for i in range(99999) %}{% if ns.x is upper %}{% endif %}{% endfor %}",
                 "{}", SL_ETOOBIG, "steps");
    expect_error("{{ 'a' * 999999999 }}", "{}", SL_ETOOBIG, "");
    expect_error("{{ 'a'|center(99999999999) }}", "{}", SL_ETOOBIG, "");
    expect_error("{{ '%99999999d' % 1 }}", "{}", SL_EINVAL, "too big");
    expect_error("{{ range(100001)|length }}", "{}", SL_ETOOBIG, "range");
    expect_error("{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + "
                 "ns.x %}{% endfor %}",
                 "{}", SL_ETOOBIG, "");
    expect_error("{% set ns = namespace(x=[]) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor "
                 "%}{{ ns.x }}",
                 "{}", SL_ETOOBIG, "nested");
    expect_error("{% set ns = namespace(x=[]) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor "
                 "%}{{ ns.x == [ns.x] }}",
                 "{}", SL_ETOOBIG, "nested");
}

/* n copies of s */
static char *times(const char *s, size_t n)
{
    struct sl_buf b;
    sl_buf_init(&b, 8u << 20);
    while (n--)
        sl_buf_puts(&b, s);
    return sl_buf_steal(&b);
}

static void deep_source_and_data_are_refused(void **state)
{
    static const char *const deep[] = {
        "{{ ((((((((((",       "{{ [[[[[[[[[[",      "{{ not not not not not ",
        "{{ - - - - - - - - ", "{% if x %}",         "{% for x in y %}",
        "{{ a[a[a[a[a[a[a[",   "{{ {1:{1:{1:{1:{1:", "{{ x if x else x if x else "};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(deep); i++) {
        const char *first = strncmp(deep[i], "{{ ", 3) == 0 ? deep[i] + 3 : deep[i];
        char *rest = times(first, 2000), *src = sl_xasprintf("%s%s%s", first == deep[i] ? "" : "{{ ", rest,
                                                             first == deep[i] ? "" : " }}");
        expect_error(src, "{}", SL_ETOOBIG, "nested");
        sl_free(rest);
        sl_free(src);
    }
    char *open = times("[", 150), *close = times("]", 150),
         *request = sl_xasprintf("{\"x\": %s%s}", open, close);
    expect_error("{{ x }}", request, SL_ETOOBIG, "deep");
    sl_free(request);
    sl_free(close);
    sl_free(open);
    /* long chains are wide in the source and deep in the tree */
    char *adds = times(" + 1", 100000), *src = sl_xasprintf("{{ 1%s }}", adds);
    expect_error(src, "{}", SL_ETOOBIG, "nested");
    sl_free(src);
    sl_free(adds);
    char *big = times("a", SL_TEMPLATE_MAX_SOURCE_BYTES + 1);
    expect_error(big, "{}", SL_ETOOBIG, "bytes");
    sl_free(big);
}

static void output_over_the_buffers_maximum_is_refused(void **state)
{
    struct sl_template *t = NULL;
    struct sl_buf out;
    struct sl_spans spans = {0};
    struct sl_why why = {0};
    struct sl_template_args args = {.now_s = 0};
    (void)state;
    sl_buf_init(&out, 4);
    assert_int_equal(sl_template_compile("12345", 5, &t, NULL), SL_OK);
    assert_int_equal(sl_template_render(t, &args, &out, &spans, &why), SL_ETOOBIG);
    assert_int_equal(out.len, 0);
    assert_false(sl_buf_failed(&out));
    sl_template_free(t);
    sl_buf_fini(&out);
}

static void long_chat_renders_within_the_limits(void **state)
{
    struct sl_template *t = NULL;
    struct sl_buf out;
    struct sl_spans spans = {0};
    struct sl_why why = {0};
    json_t *req = json_object(), *messages = json_array();
    char *content = times("word ", 40);
    const char *src =
        "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ 'sys' }}{% endif %}"
        "{{ '<|im_start|>' + m['role'] + '\\n' + m['content']|trim + '<|im_end|>\\n' }}{% endfor %}";
    (void)state;
    for (int i = 0; i < 5000; i++)
        json_array_append_new(
            messages, json_pack("{s:s,s:s}", "role", i & 1 ? "assistant" : "user", "content", content));
    json_object_set_new(req, "messages", messages);
    struct sl_template_args args = {.request = req};
    sl_buf_init(&out, 4u << 20);
    assert_int_equal(sl_template_compile(src, strlen(src), &t, NULL), SL_OK);
    if (sl_template_render(t, &args, &out, &spans, &why))
        fail_msg("%s", why.text);
    assert_int_equal(spans.n, 10000);
    sl_template_free(t);
    sl_spans_fini(&spans);
    sl_buf_fini(&out);
    sl_free(content);
    json_decref(req);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_bytes_are_marked),
        cmocka_unit_test(marks_follow_every_operation),
        cmocka_unit_test(spans_are_offsets_into_the_buffer),
        cmocka_unit_test(errors_say_where_and_what),
        cmocka_unit_test(endless_work_is_ended),
        cmocka_unit_test(deep_source_and_data_are_refused),
        cmocka_unit_test(output_over_the_buffers_maximum_is_refused),
        cmocka_unit_test(long_chat_renders_within_the_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
