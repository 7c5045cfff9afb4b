/* What a schema takes and what it does not, text by text; and that what is not kept to is refused by name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/grammar/json_schema.h"
#include "common/grammar/matcher.h"

static struct sl_grammar *compile(const char *schema)
{
    struct sl_why why = {0};
    struct sl_grammar *p = NULL;
    json_t *j = json_loads(schema, JSON_DECODE_ANY, NULL);
    if (sl_json_schema_compile(j, NULL, &p, &why) != SL_OK)
        fail_msg("%s: %s", schema, why.text);
    json_decref(j);
    return p;
}

static bool takes(const struct sl_grammar *p, const char *text)
{
    struct sl_matcher *m = sl_matcher_new(p);
    uint32_t state = SL_MATCHER_START;
    for (const char *t = text; *t; t++)
        state = sl_matcher_step(m, state, (uint8_t)*t);
    bool ends = state != SL_MATCHER_DEAD && sl_matcher_ends(m, state);
    sl_matcher_free(m);
    return ends;
}

#define PERSON                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},"    \
    "\"tags\":"                                                                                              \
    "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\\\"c\",3]}}},\"required\":[\"name\"]}"
#define TREE                                                                                                 \
    "{\"$ref\":\"#/$defs/"                                                                                   \
    "node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":["                  \
    "{\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}},\"required\":[\"next\"]}}}"

static void texts_fit_or_do_not(void **state)
{
    static const struct {
        const char *schema, *text;
        bool fits;
    } cases[] = {
        {"{}", "null", true},
        {"{\"x-sluice-texts\":[\"yes\",\"yes, but\",\"n\\u00e9\"]}", "yes", true},
        {"{\"x-sluice-texts\":[\"yes\",\"yes, but\",\"n\\u00e9\"]}", "yes, but", true},
        {"{\"x-sluice-texts\":[\"yes\",\"yes, but\",\"n\\u00e9\"]}", "n\xc3\xa9", true},
        {"{\"x-sluice-texts\":[\"yes\",\"yes, but\",\"n\\u00e9\"]}", "yes, ", false},
        {"{\"x-sluice-texts\":[\"yes\",\"yes, but\",\"n\\u00e9\"]}", "\"yes\"", false},
        {"true", "[1, {\"a\": \"\\u00e9\\n\"}, -0.5e-7, true]", true},
        {"{}", "", false},
        {"{}", "nul", false},
        {"{}", "nulls", false},
        {"{}", " 1", false},
        {"{}", "01", false},
        {"{}", "1.", false},
        {"{}", "1e999", false},
        {"{}", "{\"a\":1,}", false},
        {"{}", "{a:1}", false},
        {"{}", "[1,2", false},
        {"{}", "[\n  1,\n  2\n]", true},
        {"{}", "[  1]", false},
        {"{}", "[\n\n1]", false},
        {"{\"type\":\"object\"}", "{}", true},
        {"{\"type\":\"object\"}", "[]", false},
        {"{\"type\":\"object\"}", "{\"a\": {\"b\": []}}", true},
        {"{\"type\":\"string\"}", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", true},
        {"{\"type\":\"string\"}", "\"\xc3\"", false},
        {"{\"type\":\"string\"}", "\"\xed\xa0\x80\"", false}, /* a surrogate */
        {"{\"type\":\"string\"}", "\"\xc0\x80\"", false},     /* overlong */
        {"{\"type\":\"string\"}", "\"\\ud83d\\ude00\"", false},
        {"{\"type\":\"string\"}", "\"\\uD7ff\\ub000\"", true},
        {"{\"type\":\"string\"}", "\"\n\"", false},
        {"{\"type\":\"string\"}", "\"\\x\"", false},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"a\"", false},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"\xc3\xa9\\n\"", true},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"abcd\"", false},
        {"{\"type\":\"integer\"}", "-12", true},
        {"{\"type\":\"integer\"}", "1.5", false},
        {"{\"type\":\"integer\"}", "-", false},
        {"{\"type\":\"number\"}", "-0.25E+10", true},
        {"{\"type\":\"boolean\"}", "true", true},
        {"{\"type\":\"boolean\"}", "null", false},
        {"{\"type\":[\"string\",\"null\"]}", "null", true},
        {"{\"type\":[\"string\",\"null\"]}", "\"\"", true},
        {"{\"type\":[\"string\",\"null\"]}", "1", false},
        {"{\"const\":{\"a\":[1]}}", "{\"a\":[1]}", true},
        {"{\"const\":{\"a\":[1]}}", "{\"a\":[2]}", false},
        {PERSON, "{\"name\":\"x\"}", true},
        {PERSON, "{\"name\": \"x\", \"age\": 7, \"tags\": [\"a\", \"b\\\"c\", 3]}", true},
        {PERSON, "{\"name\":\"x\",\"tags\":[]}", true},
        {PERSON, "{\"age\":7}", false},
        {PERSON, "{\"age\":7,\"name\":\"x\"}", false}, /* another order */
        {PERSON, "{\"name\":\"x\",\"more\":1}", false},
        {PERSON, "{\"name\":\"x\",\"tags\":[\"d\"]}", false},
        {PERSON, "{,\"name\":\"x\"}", false},
        {"{\"properties\":{\"a\":{},\"b\":{}}}", "{\"b\":1}", true},
        {"{\"properties\":{\"a\":{},\"b\":{}}}", "{}", true},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"a\":1,\"z\":null,\"y\":null}", true},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"null\"}}", "{\"z\":null}", true},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"null\"}}", "{\"z\":1}", false},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}", "[null]", false},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}", "[null, null]",
         true},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}",
         "[null,null,null]", true},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}",
         "[null,null,null,null]", false},
        {"{\"type\":\"array\",\"maxItems\":0}", "[]", true},
        {"{\"type\":\"array\",\"maxItems\":0}", "[1]", false},
        {"{\"type\":\"array\",\"minItems\":1}", "[]", false},
        {TREE, "{\"next\":{\"next\":{\"next\":null}}}", true},
        {TREE, "{\"next\":{\"next\":{}}}", false},
        {"{\"allOf\":[{\"type\":\"null\"}],\"title\":\"x\"}", "null", true},
        {"{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"integer\"}]}", "5", true},
        {"{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"null\"}}}", "null", true},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_grammar *p = compile(cases[i].schema);
        if (takes(p, cases[i].text) != cases[i].fits)
            fail_msg("%s: '%s' should%s fit", cases[i].schema, cases[i].text, cases[i].fits ? "" : " not");
        sl_grammar_free(p);
    }
}

static void what_is_not_kept_to_is_refused_by_name(void **state)
{
    static const struct {
        const char *schema;
        enum sl_err err;
        const char *words;
    } cases[] = {
        {"3", SL_EINVAL, "schema"},
        {"false", SL_EUNSUPPORTED, "schema"},
        {"{\"type\":\"strange\"}", SL_EINVAL, "schema.type"},
        {"{\"type\":[]}", SL_EINVAL, "schema.type"},
        {"{\"type\":\"string\",\"pattern\":\"a\"}", SL_EUNSUPPORTED, "schema.pattern"},
        {"{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}}}", SL_EUNSUPPORTED,
         "schema.properties.a.minimum"},
        {"{\"properties\":3}", SL_EINVAL, "schema.properties"},
        {"{\"properties\":{\"a\":{}},\"required\":[\"b\"]}", SL_EUNSUPPORTED, "schema.required"},
        {"{\"type\":\"object\",\"required\":3}", SL_EINVAL, "schema.required"},
        {"{\"type\":\"string\",\"maxLength\":-1}", SL_EINVAL, "schema.maxLength"},
        {"{\"type\":\"string\",\"maxLength\":1e9}", SL_EINVAL, "schema.maxLength"},
        {"{\"type\":\"string\",\"maxLength\":100000}", SL_EUNSUPPORTED, "schema.maxLength"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", SL_EINVAL, "schema.maxLength"},
        {"{\"enum\":[]}", SL_EINVAL, "schema.enum"},
        {"{\"anyOf\":[]}", SL_EINVAL, "schema.anyOf"},
        {"{\"anyOf\":[3]}", SL_EINVAL, "schema.anyOf"},
        {"{\"allOf\":[{},{}]}", SL_EUNSUPPORTED, "schema.allOf"},
        {"{\"enum\":[1],\"anyOf\":[{}]}", SL_EUNSUPPORTED, "schema.anyOf"},
        {"{\"anyOf\":[{}],\"properties\":{}}", SL_EUNSUPPORTED, "schema.anyOf"},
        {"{\"$ref\":\"#/nowhere\"}", SL_EINVAL, "schema.$ref"},
        {"{\"$ref\":\"http://x\"}", SL_EINVAL, "schema.$ref"},
        {"{\"$ref\":\"#\"}", SL_EINVAL, "no value fits"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_why why = {0};
        struct sl_grammar *p;
        json_t *j = json_loads(cases[i].schema, JSON_DECODE_ANY, NULL);
        enum sl_err err = sl_json_schema_compile(j, NULL, &p, &why);
        if (err != cases[i].err || !strstr(why.text, cases[i].words))
            fail_msg("%s: %s, %s", cases[i].schema, sl_err_name(err), why.text);
        json_decref(j);
    }
}

/* 100 brackets are read, 200 are not; neither costs more than its length. */
static void depth_has_an_end(void **state)
{
    struct sl_grammar *p = compile("{}");
    char text[401];
    (void)state;
    for (size_t n = 100; n <= 200; n += 100) {
        memset(text, '[', n);
        memset(text + n, ']', n);
        text[2 * n] = '\0';
        assert_int_equal(takes(p, text), n == 100);
    }
    sl_grammar_free(p);
}

static void values_stand_in_their_frame(void **state)
{
    static const struct sl_schema_frame frame = {
        .before = "<a>\n", .between = "</a><a>", .after = "</a>", .max = 3};
    static const struct {
        const char *text;
        bool fits;
    } cases[] = {{"<a>\n1</a>", true},
                 {"<a>\n1</a><a>2</a>", true},
                 {"<a>\n1</a><a>2</a><a>3</a>", true},
                 {"1", false},
                 {"<a>\n1", false},
                 {"<a>\n1</a><a>", false},
                 {"<a>\n1</a><a>2</a><a>3</a><a>4</a>", false}};
    struct sl_why why = {0};
    struct sl_grammar *p = NULL;
    (void)state;
    json_t *j = json_loads("{\"type\":\"integer\"}", 0, NULL);
    assert_int_equal(sl_json_schema_compile(j, &frame, &p, &why), SL_OK);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        if (takes(p, cases[i].text) != cases[i].fits)
            fail_msg("%s", cases[i].text);
    sl_grammar_free(p);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_fit_or_do_not),
        cmocka_unit_test(what_is_not_kept_to_is_refused_by_name),
        cmocka_unit_test(depth_has_an_end),
        cmocka_unit_test(values_stand_in_their_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
