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

/* A string with that pattern; \\\\ is a backslash in it. */
#define P(expression) "{\"type\":\"string\",\"pattern\":\"" expression "\"}"
#define F(format)     "{\"type\":\"string\",\"format\":\"" format "\"}"
/* As zod writes it. */
#define MAIL                                                                                                 \
    P("^(?!\\\\.)(?!.*\\\\.\\\\.)([A-Za-z0-9_'+\\\\-\\\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\\\-]*"    \
      "\\\\.)+"                                                                                              \
      "[A-Za-z]{2,}$")

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
        {"{\"x-sluice-regex\":\"(\\\\+|\\\"){2}\\\\d*\"}", "+\"12", true}, /* as it is, and all of it */
        {"{\"x-sluice-regex\":\"(\\\\+|\\\"){2}\\\\d*\"}", "+\"12 ", false},
        {"{\"x-sluice-regex\":\"(\\\\+|\\\"){2}\\\\d*\"}", "\"+\"1\"", false},
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
        {"{\"minLength\":2}", "\"a\"", false}, /* a string is meant */
        {"{\"minLength\":2}", "7", false},
        {"{\"minItems\":1}", "[]", false},
        {"{\"pattern\":\"^a$\"}", "\"b\"", false},
        {"{\"allOf\":[{\"type\":\"null\"}],\"title\":\"x\"}", "null", true},
        {"{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"integer\"}]}", "5", true},
        {P("b"), "\"abc\"", true},
        {P("b"), "\"ac\"", false},
        {P("^b"), "\"abc\"", false},
        {P("b$"), "\"abc\"", false},
        {P("b$"), "\"ab\"", true},
        {P("^a|b$"), "\"ax\"", true},
        {P("^a|b$"), "\"xb\"", true},
        {P("^a|b$"), "\"xa\"", false},
        {P("^(?:a|bc)+?$"), "\"abca\"", true},
        {P("^(?:a|bc)+?$"), "\"ab\"", false},
        {P("^(?<x>a{2,3})$"), "\"aaa\"", true},
        {P("^(a{2,3})$"), "\"aaaa\"", false},
        {P("^a{2,}$"), "\"aaaa\"", true},
        {P("^a{2}$"), "\"aaa\"", false},
        {P("^\\\"\\\\\\\\\\n\\u0001$"), "\"\\\"\\\\\\n\\u0001\"", true},
        {P("^\\\"\\\\\\\\\\n\\u0001$"), "\"\\u0022\\\\\\n\\u0001\"", false},
        {P("^.$"), "\"\\n\"", false},
        {P("^[^a]$"), "\"\\n\"", true},
        {P("^[^a]$"), "\"\\u000a\"", false},
        {P("^\\\\x2f$"), "\"/\"", true},
        {P("^\\\\x2f$"), "\"\\/\"", false},
        {P("^\\\\d+\\\\.\\\\d\\\\d$"), "\"12.50\"", true},
        {P("^\\\\w\\\\W\\\\s\\\\S\\\\D$"), "\"a- bx\"", true},
        {P("^\\\\w\\\\W\\\\s\\\\S\\\\D$"), "\"a- b7\"", false},
        {P("^[\\\\w.-]+$"), "\"a.b-c_9\"", true},
        {P("^[a-c\\\\]^]+$"), "\"ab]^\"", true},
        {P("^(?=.*\\\\d)(?!.*x)[a-z0-9]{3}$"), "\"a1b\"", true},
        {P("^(?=.*\\\\d)(?!.*x)[a-z0-9]{3}$"), "\"abc\"", false},
        {P("^(?=.*\\\\d)(?!.*x)[a-z0-9]{3}$"), "\"1bx\"", false},
        {P("^a(?!b)"), "\"ac\"", true},
        {P("^a(?!b)"), "\"ab\"", false},
        {P("^a(?!b)"), "\"a\"", true},
        {MAIL, "\"a.b@c-d.org\"", true},
        {MAIL, "\"a..b@c.org\"", false},
        {MAIL, "\".a@c.org\"", false},
        {MAIL, "\"a@c\"", false},
        {P("^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$"), "\"-1.5\"", true},
        {P("^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$"), "\"-.\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^[ab]*$\",\"minLength\":2,\"maxLength\":3}", "\"ab\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^[ab]*$\",\"minLength\":2,\"maxLength\":3}", "\"a\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^[ab]*$\",\"minLength\":2,\"maxLength\":3}", "\"abab\"", false},
        {"{\"type\":[\"string\",\"null\"],\"pattern\":\"^a$\"}", "null", true},
        {F("date"), "\"2024-02-29\"", true},
        {F("date"), "\"2023-02-29\"", false},
        {F("date"), "\"1900-02-29\"", false},
        {F("date"), "\"0000-01-01\"", false},
        {F("time"), "\"23:59:59.5Z\"", true},
        {F("time"), "\"24:00:00Z\"", false},
        {F("date-time"), "\"2024-12-31T00:00:00+01:00\"", true},
        {F("date-time"), "\"2024-12-31\"", false},
        {F("duration"), "\"P1Y2MT3H\"", true},
        {F("duration"), "\"P\"", false},
        {F("uuid"), "\"01234567-89ab-cdef-0123-456789abcdef\"", true},
        {F("uuid"), "\"0123\"", false},
        {F("ipv4"), "\"255.0.10.1\"", true},
        {F("ipv4"), "\"256.0.0.1\"", false},
        {F("ipv4"), "\"01.0.0.1\"", false},
        {F("ipv6"), "\"fe80::1\"", true},
        {F("ipv6"), "\"1::2::3\"", false},
        {F("hostname"), "\"a-b.example\"", true},
        {F("hostname"), "\"-a\"", false},
        {F("email"), "\"a.b@example.org\"", true},
        {F("email"), "\"a@b\"", false},
        {F("uri"), "\"https://example.org/a?b=c#d\"", true},
        {F("uri"), "\"example\"", false},
        {"{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}", "\"http://a.b\"",
         true},
        {"{\"type\":\"string\",\"format\":\"ipv4\",\"maxLength\":8}", "\"10.0.0.1\"", true},
        {"{\"type\":\"string\",\"format\":\"ipv4\",\"maxLength\":8}", "\"10.0.0.10\"", false},
        {F("binary"), "\"anything\"", true},
        {P("^[\xc3\xa9-\xe2\x82\xac]{2}$"), "\"\xc3\xa9\xe2\x82\xac\"", true},
        {P("^[\xc3\xa9-\xe2\x82\xac]{2}$"), "\"\xc3\xa9z\"", false},
        {P("^\\\\ud83d\\\\ude00|\\\\u{1F601}$"), "\"\xf0\x9f\x98\x80\"", true},
        {P("^.$"), "\"\xf0\x9f\x98\x80\"", true},
        {P("^.$"), "\"\xf0\x9f\x98\"", false},
        {P("^.$"), "\"\xed\xa0\x80\"", false},
        {P("^[^a]$"), "\"\xc1\xa1\"", false},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}", "0", true},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}", "100", true},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}", "101", false},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}", "-1", false},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}", "-0", true},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}", "007", false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "0.001", true},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "0.0", false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "1.0", true},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "1.01", false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "1e-1", false},
        {"{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
         "9007199254740991", true},
        {"{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
         "9007199254740992", false},
        {"{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}", "-5", true},
        {"{\"type\":\"number\",\"minimum\":-1e+18}", "12345", true},
        {"{\"minimum\":3}", "3", true},
        {"{\"minimum\":3}", "2", false},
        {"{\"minimum\":3}", "\"a\"", false},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}]}", "[null,true]",
         true},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}]}", "[null]",
         false},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}]}", "[null,true,1]",
         false},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"boolean\"},"
         "\"maxItems\":3}",
         "[null]", true},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"boolean\"},"
         "\"maxItems\":3}",
         "[null, true, false]", true},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"boolean\"},"
         "\"maxItems\":3}",
         "[null,null]", false},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"boolean\"},"
         "\"maxItems\":3}",
         "[null,true,true,true]", false},
        {"{\"type\":\"array\",\"items\":false}", "[]", true},
        {"{\"type\":\"array\",\"items\":false}", "[1]", false},
        {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"},\"b$\":{\"type\":"
         "\"boolean\"}}}",
         "{\"a\":null,\"b\":true}", true},
        {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"},\"b$\":{\"type\":"
         "\"boolean\"}}}",
         "{\"a\":true}", false},
        {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"},\"b$\":{\"type\":"
         "\"boolean\"}}}",
         "{\"ab\":null}", false},
        {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"},\"b$\":{\"type\":"
         "\"boolean\"}}}",
         "{\"c\":null}", false},
        {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"},\"b$\":{\"type\":"
         "\"boolean\"}}}",
         "{}", true},
        {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"}},\"additionalProperties\":{"
         "\"type\":\"boolean\"}}",
         "{\"a\":null,\"b\":true}", true},
        {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"}},\"additionalProperties\":{"
         "\"type\":\"boolean\"}}",
         "{\"a\":true}", false},
        {"{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"null\"}},\"additionalProperties\":{"
         "\"type\":\"boolean\"}}",
         "{\"b\":null}", false},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]{2}$\"},\"additionalProperties\":{"
         "\"type\":\"null\"}}",
         "{\"ab\":null}", true},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]{2}$\"},\"additionalProperties\":{"
         "\"type\":\"null\"}}",
         "{\"abc\":null}", false},
        {"{\"type\":\"object\",\"propertyNames\":{\"$ref\":\"#/$defs/"
         "n\"},\"required\":[\"b.c\"],\"$defs\":{\"n\":{\"enum\":[\"a\",\"b.c\"]}}}",
         "{\"b.c\":1,\"a\":2}", true},
        {"{\"type\":\"object\",\"propertyNames\":{\"$ref\":\"#/$defs/"
         "n\"},\"required\":[\"b.c\"],\"$defs\":{\"n\":{\"enum\":[\"a\",\"b.c\"]}}}",
         "{\"a\":2}", false},
        {"{\"type\":\"object\",\"propertyNames\":{\"$ref\":\"#/$defs/"
         "n\"},\"required\":[\"b.c\"],\"$defs\":{\"n\":{\"enum\":[\"a\",\"b.c\"]}}}",
         "{\"b.c\":1,\"bxc\":2}", false},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"a\":1,\"a\":null}", false},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"a\":1,\"\\u0061\":null}", false},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"a\":1,\"ab\":null}", true},
        {"{\"type\":\"object\",\"required\":[\"x\"]}", "{\"x\":1}", true},
        {"{\"type\":\"object\",\"required\":[\"x\"]}", "{}", false},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", "{}", false},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", "{\"a\":1}", true},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", "{\"a\":1,\"b\":2}", true},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", "{\"a\":1,\"b\":2,\"c\":3}", false},
        {"{\"type\":\"string\",\"maxLength\":1,\"nullable\":true}", "null", true},
        {"{\"type\":\"string\",\"maxLength\":1,\"nullable\":true}", "\"a\"", true},
        {"{\"type\":\"string\",\"maxLength\":1,\"nullable\":true}", "1", false},
        {"{\"type\":\"string\",\"enum\":[\"a\",1,null]}", "\"a\"", true},
        {"{\"type\":\"string\",\"enum\":[\"a\",1,null]}", "1", false},
        {"{\"type\":\"string\",\"enum\":[\"a\",1,null]}", "null", false},
        {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"z$\"}],\"maxLength\":3}",
         "\"abz\"", true},
        {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"z$\"}],\"maxLength\":3}",
         "\"ab\"", false},
        {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"z$\"}],\"maxLength\":3}",
         "\"z\"", false},
        {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"z$\"}],\"maxLength\":3}",
         "\"abbz\"", false},
        {"{\"type\":[\"integer\",\"null\"],\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", "1",
         true},
        {"{\"type\":[\"integer\",\"null\"],\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", "null",
         true},
        {"{\"type\":\"null\",\"x-own\":1,\"discriminator\":{\"propertyName\":\"k\"},\"uniqueItems\":false,"
         "\"contentEncoding\":\"base64\"}",
         "null", true},
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
        {"{\"type\":\"string\",\"pattern\":3}", SL_EINVAL, "schema.pattern"},
        {P("a\\\\bb"), SL_EUNSUPPORTED, "schema.pattern: at byte 2"},
        {P("(a)\\\\1"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("(?<=a)b"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("(?i)b"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("\\\\p{L}"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("\\\\Z"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("a{,3}"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("a{1025}"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("(^a)*"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("b?^a"), SL_EUNSUPPORTED, "schema.pattern"},
        {P("^.*a.{20}$"), SL_EUNSUPPORTED, "more than 4096 states"},
        {P("(a"), SL_EINVAL, "schema.pattern"},
        {P("a)"), SL_EINVAL, "schema.pattern"},
        {P("[a"), SL_EINVAL, "schema.pattern"},
        {P("[b-a]"), SL_EINVAL, "schema.pattern"},
        {P("a**"), SL_EINVAL, "schema.pattern"},
        {P("a{3,2}"), SL_EINVAL, "schema.pattern"},
        {P("\\\\"), SL_EINVAL, "schema.pattern"},
        {P("\\\\u12"), SL_EINVAL, "schema.pattern"},
        {P("^[]$"), SL_EINVAL, "no text meets it"},
        {P("a^"), SL_EINVAL, "no text meets it"},
        {"{\"type\":\"string\",\"pattern\":\"^a{3}$\",\"maxLength\":2}", SL_EINVAL, "no text meets it"},
        {"{\"properties\":{\"a\":{\"type\":\"integer\",\"multipleOf\":3}}}", SL_EUNSUPPORTED,
         "schema.properties.a.multipleOf"},
        {"{\"properties\":3}", SL_EINVAL, "schema.properties"},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":false,\"required\":[\"b\"]}", SL_EINVAL,
         "schema.required"},
        {"{\"type\":\"object\",\"required\":3}", SL_EINVAL, "schema.required"},
        {"{\"type\":\"string\",\"maxLength\":-1}", SL_EINVAL, "schema.maxLength"},
        {"{\"type\":\"string\",\"maxLength\":1e9}", SL_EINVAL, "schema.maxLength"},
        {"{\"type\":\"string\",\"maxLength\":100000}", SL_EUNSUPPORTED, "schema.maxLength"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", SL_EINVAL, "schema.maxLength"},
        {"{\"x-sluice-regex\":3}", SL_EINVAL, "schema.x-sluice-regex"},
        {"{\"x-sluice-regex\":\"a\\\\b\"}", SL_EUNSUPPORTED, "schema.x-sluice-regex: at byte 2"},
        {"{\"anyOf\":[{\"x-sluice-regex\":\"a\"}]}", SL_EINVAL, "schema.anyOf.0.x-sluice-regex"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", SL_EUNSUPPORTED, "schema.uniqueItems"},
        {"{\"type\":\"integer\",\"multipleOf\":3}", SL_EUNSUPPORTED, "schema.multipleOf"},
        {"{\"type\":\"integer\",\"minimum\":\"3\"}", SL_EINVAL, "schema.minimum"},
        {"{\"type\":\"integer\",\"minimum\":100000000000000000}", SL_EINVAL, "schema.minimum"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", SL_EINVAL, "no text meets it"},
        {"{\"type\":\"number\",\"minimum\":1e-20}", SL_EUNSUPPORTED, "schema.minimum"},
        {"{\"type\":\"array\",\"prefixItems\":[]}", SL_EINVAL, "schema.prefixItems"},
        {"{\"type\":\"array\",\"prefixItems\":[{}],\"minItems\":2}", SL_EINVAL, "schema.minItems"},
        {"{\"properties\":{\"a\":{}},\"patternProperties\":{\"a\":{}}}", SL_EUNSUPPORTED,
         "schema.patternProperties"},
        {"{\"patternProperties\":{\"(\":{}}}", SL_EINVAL, "schema.patternProperties"},
        {"{\"type\":\"object\",\"propertyNames\":{\"not\":{}}}", SL_EUNSUPPORTED, "schema.propertyNames"},
        {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"integer\"}}", SL_EINVAL, "schema.propertyNames"},
        {"{\"type\":\"object\",\"propertyNames\":{\"$ref\":\"#/$defs/"
         "k\",\"pattern\":\"^x\"},\"$defs\":{\"k\":{}}}",
         SL_EUNSUPPORTED, "schema.propertyNames"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"format\":\"date\"}", SL_EUNSUPPORTED,
         "schema.format"},
        {"{\"$ref\":\"#/$defs/k\",\"format\":\"uuid\",\"$defs\":{\"k\":{\"type\":\"string\"}}}",
         SL_EUNSUPPORTED, "schema.format"},
        {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[1]}}", SL_EINVAL, "schema.propertyNames"},
        {"{\"type\":\"object\",\"minProperties\":2}", SL_EUNSUPPORTED, "schema.minProperties"},
        {"{\"properties\":{\"a\":{}},\"maxProperties\":2}", SL_EUNSUPPORTED, "schema.maxProperties"},
        {"{\"type\":\"string\",\"enum\":[1]}", SL_EINVAL, "schema.type"},
        {"{\"type\":\"integer\",\"anyOf\":[{\"type\":\"string\"}]}", SL_EUNSUPPORTED, "schema.anyOf"},
        {"{\"type\":\"integer\",\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":\"string\"}}}",
         SL_EUNSUPPORTED, "schema.$ref"},
        {"{\"propertyNames\":{\"$ref\":\"#/x\"}}", SL_EINVAL, "schema.propertyNames"},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"propertyNames\":{\"pattern\":\"b\"}}",
         SL_EUNSUPPORTED, "schema.propertyNames"},
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
static void patterns_of_names_have_a_number(void **state)
{
    (void)state;
    for (int n = SL_SCHEMA_MAX_CHOICES; n <= SL_SCHEMA_MAX_CHOICES + 1; n++) {
        struct sl_why why = {0};
        struct sl_grammar *p = NULL;
        json_t *patterns = json_object();
        for (int i = 0; i < n; i++) {
            char name[16];
            snprintf(name, sizeof name, "^%d$", i);
            json_object_set_new(patterns, name, json_true());
        }
        json_t *j = json_pack("{s:s, s:o}", "type", "object", "patternProperties", patterns);
        bool fits = n <= SL_SCHEMA_MAX_CHOICES;
        assert_int_equal(sl_json_schema_compile(j, NULL, &p, &why), fits ? SL_OK : SL_EUNSUPPORTED);
        assert_true(fits || strstr(why.text, "more than 32 patterns"));
        sl_grammar_free(p);
        json_decref(j);
    }
}

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
        cmocka_unit_test(patterns_of_names_have_a_number),
        cmocka_unit_test(depth_has_an_end),
        cmocka_unit_test(values_stand_in_their_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
