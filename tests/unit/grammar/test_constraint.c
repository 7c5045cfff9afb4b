/* Random tokens out of the allowed ones make texts that fit; the set is what trying each token alone gives. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/grammar/constraint.h"
#include "common/grammar/json_schema.h"
#include "common/grammar/matcher.h"
#include "tests/support/support.h"

/* Tokens 0-255 are bytes, then some words, then control tokens: two that end a text, a mark and another. */
static const char *const words[] = {
    "{\"",  "\":",   "\", \"", "\"}", "name",  "true",  "false",    "null", "  ",
    "\n  ", "ab",    "abc",    "abd", "123",   "\xc3",  "\xa9\"",   "[[",   "]]",
    "]]]",  "\"a\"", "\"a\":", "<c",  "<call", "call>", "<call>\n", ">\n",  "\n</call>"};

enum { N_WORDS = SL_COUNTOF(words), END = 256 + N_WORDS, OTHER_END, MARK, CONTROL, N_VOCAB };

static const char *bytes_of(const void *arg, uint32_t id, size_t *n)
{
    static char byte[256];
    (void)arg;
    *n = id >= END ? 0 : id < 256 ? 1 : strlen(words[id - 256]);
    if (id < 256)
        byte[id] = (char)id;
    return id >= END ? "" : id < 256 ? &byte[id] : words[id - 256];
}

static bool has(const uint64_t *set, uint32_t t)
{
    return set[t / 64] >> t % 64 & 1;
}

static struct sl_constraint *open_framed(const struct sl_token_bytes *tokens, const char *schema,
                                         const struct sl_schema_frame *frame)
{
    static const int32_t ends[] = {END, OTHER_END};
    struct sl_why why = {0};
    struct sl_grammar *p;
    json_t *j = json_loads(schema, JSON_DECODE_ANY, NULL);
    assert_int_equal(sl_json_schema_compile(j, frame, &p, &why), SL_OK);
    json_decref(j);
    return sl_constraint_new(tokens, p, ends, 2, MARK);
}

static struct sl_constraint *open_constraint(const struct sl_token_bytes *tokens, const char *schema)
{
    return open_framed(tokens, schema, NULL);
}

static const char *const schemas[] = {
    "{}",
    "{\"type\":\"object\"}",
    "{\"type\":\"string\",\"maxLength\":4}",
    "{\"properties\":{\"name\":{\"type\":\"string\"},\"ok\":{\"type\":\"boolean\"},\"n\":{\"type\":"
    "\"number\"}},\"required\":[\"ok\"]}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"ab\",\"abc\",null]},\"minItems\":2}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":123}],\"items\":{"
    "\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^a\"},\"additionalProperties\":{\"type\":"
    "\"boolean\"}},\"maxItems\":3}",
    "{\"type\":\"string\",\"pattern\":\"^(?!abd)[^x]{2,4}(\\u00e9|true|\\\\d{3})+$\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^ab[^\\\\]]?$\"},\"maxItems\":3}",
};

/* What the set should be, without anything shared. */
static bool fits_alone(struct sl_matcher *m, uint32_t state, uint32_t token)
{
    size_t n;
    const char *b = bytes_of(NULL, token, &n);
    for (size_t i = 0; i < n; i++)
        state = sl_matcher_step(m, state, (uint8_t)b[i]);
    return n && state != SL_MATCHER_DEAD;
}

static void walked_set_equals_token_by_token(void **unused)
{
    struct sl_token_bytes *tokens = sl_token_bytes_new(N_VOCAB, bytes_of, NULL);
    unsigned long long random = 3;
    (void)unused;
    for (size_t k = 0; k < SL_COUNTOF(schemas); k++) {
        struct sl_why why = {0};
        struct sl_grammar *p;
        json_t *j = json_loads(schemas[k], JSON_DECODE_ANY, NULL);
        assert_int_equal(sl_json_schema_compile(j, NULL, &p, &why), SL_OK);
        json_decref(j);
        struct sl_matcher *m = sl_matcher_new(p);
        struct sl_constraint *c = open_constraint(tokens, schemas[k]);
        uint32_t state = SL_MATCHER_START;
        for (int step = 0; step < 40 && state != SL_MATCHER_DEAD; step++) {
            const uint64_t *set = sl_constraint_allowed(c);
            uint32_t allowed[N_VOCAB], n = 0;
            for (uint32_t t = 0; t < END; t++) {
                assert_int_equal(has(set, t), fits_alone(m, state, t));
                if (has(set, t))
                    allowed[n++] = t;
            }
            assert_int_equal(has(set, END), n == 0 || sl_matcher_ends(m, state));
            if (n == 0)
                break;
            uint32_t t = allowed[sl_test_random(&random) % n];
            size_t len;
            const char *b = bytes_of(NULL, t, &len);
            for (size_t i = 0; i < len; i++)
                state = sl_matcher_step(m, state, (uint8_t)b[i]);
            sl_constraint_take(c, (int32_t)t);
        }
        sl_constraint_free(c);
        sl_matcher_free(m);
        sl_grammar_free(p);
    }
    sl_token_bytes_free(tokens);
}

/* Ends as soon as it may, so that texts do end; jansson is the judge of what came. */
static void random_texts_are_json(void **unused)
{
    struct sl_token_bytes *tokens = sl_token_bytes_new(N_VOCAB, bytes_of, NULL);
    unsigned long long random = 5;
    unsigned ended = 0;
    (void)unused;
    for (unsigned round = 0; round < 300; round++) {
        struct sl_constraint *c = open_constraint(tokens, schemas[round % SL_COUNTOF(schemas)]);
        char text[4096];
        size_t n_text = 0;
        for (int step = 0; step < 200; step++) {
            const uint64_t *set = sl_constraint_allowed(c);
            uint32_t allowed[N_VOCAB], n = 0;
            for (uint32_t t = 0; t < END; t++)
                if (has(set, t))
                    allowed[n++] = t;
            if (has(set, END)) {
                json_t *j = json_loadb(text, n_text, JSON_DECODE_ANY, NULL);
                if (!j)
                    fail_msg("round %u: '%.*s'", round, (int)n_text, text);
                json_decref(j);
                ended++;
                break;
            }
            assert_true(n > 0);
            uint32_t t = allowed[sl_test_random(&random) % n];
            size_t len;
            const char *b = bytes_of(NULL, t, &len);
            memcpy(text + n_text, b, len);
            n_text += len;
            sl_constraint_take(c, (int32_t)t);
        }
        sl_constraint_free(c);
    }
    assert_true(ended > 100);
    sl_token_bytes_free(tokens);
}

/* 1: free text. 0: in a call that fits so far. -1: no such text. */
static int judge_calls(const char *text, size_t n, size_t *n_calls)
{
    const char *at = text, *end = text + n, *found;
    *n_calls = 0;
    while ((found = memmem(at, (size_t)(end - at), "<call>", 6))) {
        at = found + 6;
        if (at == end)
            return 0;
        if (*at++ != '\n')
            return -1;
        json_error_t where;
        json_t *call = json_loadb(at, (size_t)(end - at), JSON_DISABLE_EOF_CHECK, &where);
        if (!call)
            return json_error_code(&where) == json_error_premature_end_of_input || memchr(at, '\0', 1) ? 0
                                                                                                       : 0;
        at += where.position;
        const json_t *arguments = json_object_get(call, "arguments");
        const char *name = json_string_value(json_object_get(call, "name"));
        bool fits = name && (strcmp(name, "ab") == 0 ? json_is_boolean(json_object_get(arguments, "a")) &&
                                                           json_object_size(arguments) == 1
                                                     : strcmp(name, "abc") == 0 && json_is_object(arguments));
        json_decref(call);
        size_t have = (size_t)(end - at) < 8 ? (size_t)(end - at) : 8;
        if (!fits || memcmp(at, "\n</call>", have) != 0)
            return -1;
        if (have < 8)
            return 0;
        at += 8;
        ++*n_calls;
    }
    return 1;
}

static bool breaks(const char *text, size_t n_text, uint32_t token)
{
    char all[8192 + SL_TOKEN_MAX_BYTES];
    size_t n, n_calls;
    const char *b = bytes_of(NULL, token, &n);
    memcpy(all, text, n_text);
    memcpy(all + n_text, b, n);
    return judge_calls(all, n_text + n, &n_calls) < 0;
}

/* Random walks through free text, near misses of the mark and calls; ends are where no call is open. */
static void text_is_free_and_calls_in_it_fit(void **unused)
{
    static const char schema[] = "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"name\":{\"const\":"
                                 "\"ab\"},\"arguments\":{\"type\":\"object\","
                                 "\"properties\":{\"a\":{\"type\":\"boolean\"}},\"required\":[\"a\"]}},"
                                 "\"required\":[\"name\",\"arguments\"]},"
                                 "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"abc\"},"
                                 "\"arguments\":{\"type\":\"object\"}},"
                                 "\"required\":[\"name\",\"arguments\"]}]}";
    static const struct sl_schema_frame frame = {
        .before = "\n", .between = "", .after = "\n</call>", .max = 1, .mark = "<call>", .again = true};
    struct sl_token_bytes *tokens = sl_token_bytes_new(N_VOCAB, bytes_of, NULL);
    unsigned long long random = 7;
    size_t all_calls = 0, near_misses = 0;
    (void)unused;
    for (unsigned round = 0; round < 300; round++) {
        struct sl_constraint *c = open_framed(tokens, schema, &frame);
        char text[8192];
        size_t n_text = 0, calls = 0;
        for (int step = 0; step < 200; step++) {
            const uint64_t *set = sl_constraint_allowed(c);
            uint32_t likely[N_VOCAB], allowed[N_VOCAB], n_likely = 0, n = 0;
            int is_free = judge_calls(text, n_text, &calls);
            if (is_free < 0)
                fail_msg("round %u: %.*s", round, (int)n_text, text);
            for (uint32_t t = 0; t < N_VOCAB; t++) {
                if (t >= END)
                    assert_int_equal(has(set, t), is_free);
                else if (is_free && !has(set, t))
                    assert_true(breaks(text, n_text, t));
                if (has(set, t) && t != END && t != OTHER_END)
                    allowed[n++] = t;
                if (has(set, t) &&
                    ((t >= 256 && t < END) || t == MARK || (t < 256 && strchr("\"{}]<>", (int)t) && t)))
                    likely[n_likely++] = t;
            }
            assert_true(n > 0);
            uint32_t t = n_likely && sl_test_random(&random) % 4 ? likely[sl_test_random(&random) % n_likely]
                                                                 : allowed[sl_test_random(&random) % n];
            size_t len;
            const char *b = t == MARK ? "<call>" : bytes_of(NULL, t, &len);
            len = t == MARK ? 6 : len;
            near_misses += is_free && t < END && memchr(b, '<', len) != NULL;
            memcpy(text + n_text, b, len);
            n_text += len;
            sl_constraint_take(c, (int32_t)t);
        }
        all_calls += calls;
        sl_constraint_free(c);
    }
    assert_true(all_calls > 100 && near_misses > 100);
    sl_token_bytes_free(tokens);
}

static void token_that_was_not_allowed_leaves_ends_only(void **unused)
{
    struct sl_token_bytes *tokens = sl_token_bytes_new(N_VOCAB, bytes_of, NULL);
    const int32_t takes[] = {'x', END, -1, N_VOCAB};
    (void)unused;
    for (size_t i = 0; i < SL_COUNTOF(takes); i++) {
        struct sl_constraint *c = open_constraint(tokens, "{\"type\":\"object\"}");
        sl_constraint_take(c, takes[i]);
        const uint64_t *set = sl_constraint_allowed(c);
        for (uint32_t t = 0; t < N_VOCAB; t++)
            assert_int_equal(has(set, t), t == END || t == OTHER_END);
        sl_constraint_free(c);
    }
    sl_token_bytes_free(tokens);
}

/* Far more states than are kept: what is allowed stays what it is in a fresh one. */
static void forgetting_states_changes_nothing(void **unused)
{
    struct sl_token_bytes *tokens = sl_token_bytes_new(N_VOCAB, bytes_of, NULL);
    struct sl_constraint *c =
        open_constraint(tokens, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":1000}}");
    struct sl_constraint *fresh =
        open_constraint(tokens, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":1000}}");
    (void)unused;
    sl_constraint_take(c, '[');
    for (int item = 0; item < 5; item++) {
        sl_constraint_take(c, '"');
        for (int i = 0; i < 1000; i++) {
            assert_true(has(sl_constraint_allowed(c), 'x'));
            sl_constraint_take(c, 'x');
        }
        assert_false(has(sl_constraint_allowed(c), 'x'));
        sl_constraint_take(c, '"');
        sl_constraint_take(c, ',');
    }
    sl_constraint_take(fresh, '[');
    sl_constraint_take(fresh, '"');
    sl_constraint_take(fresh, '"');
    sl_constraint_take(fresh, ',');
    assert_memory_equal(sl_constraint_allowed(c), sl_constraint_allowed(fresh),
                        (N_VOCAB + 63) / 64 * sizeof(uint64_t));
    sl_constraint_free(c);
    sl_constraint_free(fresh);
    sl_token_bytes_free(tokens);
}

/* ---- a schema that has as many states as there are texts ---- */

enum { MANY_WORDS = 20000, MANY_END = 256 + MANY_WORDS, WORD_LETTERS = 4 };

/* Bytes, then words of letters. */
static const char *letters_of(const void *words_of, uint32_t id, size_t *n)
{
    static char byte[256];
    *n = id < 256 ? 1 : WORD_LETTERS;
    if (id >= 256)
        return (const char *)words_of + (size_t)(id - 256) * WORD_LETTERS;
    byte[id] = (char)id;
    return &byte[id];
}

/* A text that fits one of 26 expressions, each of which looks for its own letter four from the end: where a text leads
 * depends on each of its last letters. */
static char *schema_of_many_states(void)
{
    struct sl_buf b;
    sl_buf_init(&b, 1 << 16);
    sl_buf_puts(&b, "{\"anyOf\":[");
    for (int c = 'a'; c <= 'z'; c++)
        sl_buf_printf(&b, "%s{\"type\":\"string\",\"pattern\":\"%c[a-z]{4}$\"}", c > 'a' ? "," : "", c);
    sl_buf_puts(&b, "]}");
    return sl_buf_steal(&b);
}

/* What a walk over the vocabulary finds out has a limit, and what it leaves out depends on the text alone: not on what
 * was asked on the way here, which another node that takes over has not. */
static void states_of_one_token_have_a_limit(void **unused)
{
    enum { STEPS = 4, MOST_BYTES = 64 << 20 };
    (void)unused;
    unsigned long long random = 9;
    char *letters = sl_xalloc((size_t)MANY_WORDS * WORD_LETTERS), *schema = schema_of_many_states();
    for (size_t i = 0; i < (size_t)MANY_WORDS * WORD_LETTERS; i++)
        letters[i] = (char)('a' + sl_test_random(&random) % 26);
    struct sl_token_bytes *tokens = sl_token_bytes_new(MANY_END, letters_of, letters);
    struct sl_constraint *asks = open_constraint(tokens, schema);
    int32_t taken[STEPS];
    size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (int step = 0; step < STEPS; step++) {
        struct sl_constraint *fresh = open_constraint(tokens, schema);
        for (int k = 0; k < step; k++)
            sl_constraint_take(fresh, taken[k]);
        const uint64_t *a = sl_constraint_allowed(asks), *b = sl_constraint_allowed(fresh);
        assert_memory_equal(a, b, (MANY_END + 63) / 64 * sizeof *a);
        assert_true(mallinfo2().uordblks + mallinfo2().hblkhd < before + MOST_BYTES);
        taken[step] = step == 0 ? '"' : 'a' + step;
        assert_true(has(a, (uint32_t)taken[step]));
        sl_constraint_free(fresh);
        sl_constraint_take(asks, taken[step]);
    }
    sl_constraint_free(asks);
    sl_token_bytes_free(tokens);
    sl_free(schema);
    sl_free(letters);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walked_set_equals_token_by_token),
        cmocka_unit_test(random_texts_are_json),
        cmocka_unit_test(text_is_free_and_calls_in_it_fit),
        cmocka_unit_test(token_that_was_not_allowed_leaves_ends_only),
        cmocka_unit_test(forgetting_states_changes_nothing),
        cmocka_unit_test(states_of_one_token_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
