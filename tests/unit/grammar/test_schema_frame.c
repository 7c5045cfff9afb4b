/* tests/unit/grammar/test_schema_frame.c - free text up to a mark: every short text over few letters against a plain
 * search for the mark. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/mem.h"
#include "common/grammar/json_schema.h"
#include "common/grammar/matcher.h"
#include "tests/support/support.h"

static struct sl_matcher *open_matcher(const char *schema, const struct sl_schema_frame *f,
                                       struct sl_grammar **p)
{
    struct sl_why why = {0};
    json_t *j = json_loads(schema, JSON_DECODE_ANY, NULL);
    assert_int_equal(sl_json_schema_compile(j, f, p, &why), SL_OK);
    json_decref(j);
    return sl_matcher_new(*p);
}

static uint32_t state_of(struct sl_matcher *m, const char *text, size_t n)
{
    uint32_t state = SL_MATCHER_START;
    for (size_t i = 0; i < n; i++)
        state = sl_matcher_step(m, state, (uint8_t)text[i]);
    return state;
}

enum verdict { DEAD, CALL, ENDS_HERE, FREE };

/* What a text is by search: `call` stands behind each mark. */
static enum verdict judge(const char *text, size_t n, const char *mark, const char *call, bool again)
{
    const char *at = text, *end = text + n;
    for (;;) {
        const char *found = memmem(at, (size_t)(end - at), mark, strlen(mark));
        if (!found)
            return FREE;
        at = found + strlen(mark);
        size_t have = (size_t)(end - at) < strlen(call) ? (size_t)(end - at) : strlen(call);
        if (memcmp(at, call, have) != 0)
            return DEAD;
        at += have;
        if (have < strlen(call))
            return CALL;
        if (!again)
            return at == end ? ENDS_HERE : DEAD;
    }
}

static void text_is_free_up_to_the_mark_and_held_behind_it(void **unused)
{
    static const char *const marks[] = {"a", "ab", "aa", "aab", "abab", "aabaa"};
    static const char letters[] = "ab1)";
    (void)unused;
    for (size_t k = 0; k < 2 * SL_COUNTOF(marks); k++) {
        const struct sl_schema_frame f = {
            .before = "", .between = "", .after = ")", .max = 1, .mark = marks[k / 2], .again = k % 2};
        struct sl_grammar *p;
        struct sl_matcher *m = open_matcher("{\"const\":1}", &f, &p);
        for (uint32_t i = 0; i < 1u << 18; i++) { /* nine letters, or less: two bits each */
            char text[9];
            size_t n = i % 10 < 9 ? 9 : i % 9;
            for (size_t at = 0; at < n; at++)
                text[at] = letters[i >> 2 * at & 3];
            enum verdict want = judge(text, n, f.mark, "1)", f.again);
            uint32_t state = state_of(m, text, n);
            if ((state == SL_MATCHER_DEAD) != (want == DEAD) ||
                sl_matcher_ends(m, state) != (want == FREE || want == ENDS_HERE) ||
                (sl_matcher_step(m, state, SL_MATCHER_MARK) != SL_MATCHER_DEAD) != (want == FREE))
                fail_msg("mark %s again %d: %.*s is no %d", f.mark, f.again, (int)n, text, want);
        }
        sl_matcher_free(m);
        sl_grammar_free(p);
    }
}

/* Any bytes, cut characters too, with near misses of the mark; then the token that stands for it. */
static void any_bytes_are_free_text_and_the_token_is_the_mark(void **unused)
{
    static const char mark[] = "<tool_call>";
    const struct sl_schema_frame f = {.before = "\n", .between = "", .after = "\n", .max = 1, .mark = mark};
    struct sl_grammar *p;
    struct sl_matcher *m = open_matcher("{\"const\":1}", &f, &p);
    unsigned long long random = 11;
    (void)unused;
    for (int round = 0; round < 2000; round++) {
        char text[64];
        for (size_t i = 0; i < sizeof text;) {
            size_t n = sl_test_random(&random) % sizeof mark;
            if (sl_test_random(&random) % 2)
                text[i++] = (char)sl_test_random(&random);
            else if (n <= sizeof text - i)
                memcpy(text + i, mark, n), i += n;
        }
        bool is_free = judge(text, sizeof text, mark, "\n1\n", false) == FREE;
        uint32_t state = state_of(m, text, sizeof text);
        assert_int_equal(sl_matcher_ends(m, state), is_free);
        state = sl_matcher_step(m, state, SL_MATCHER_MARK);
        assert_int_equal(state != SL_MATCHER_DEAD, is_free);
        assert_false(sl_matcher_ends(m, state));
        for (const char *t = "\n1\n"; *t; t++)
            state = sl_matcher_step(m, state, (uint8_t)*t);
        assert_int_equal(sl_matcher_ends(m, state), is_free);
    }
    sl_matcher_free(m);
    sl_grammar_free(p);
}

static void without_a_mark_the_first_byte_decides(void **unused)
{
    static const struct {
        const char *text;
        enum verdict is;
    } cases[] = {{"", FREE},          {" \n\t\r", FREE},  {"{", CALL},  {"\n {", CALL}, {"{}", ENDS_HERE},
                 {" {}", ENDS_HERE},  {"{} ", DEAD},      {"{x", DEAD}, {"x{x", FREE},  {" x\n{", FREE},
                 {"\xc3{\xff", FREE}, {"\x01{}{}", FREE}, {"}{x", FREE}};
    const struct sl_schema_frame f = {.before = "", .between = "", .after = "", .max = 1, .mark = ""};
    struct sl_grammar *p;
    struct sl_matcher *m = open_matcher("{\"type\":\"object\",\"additionalProperties\":false}", &f, &p);
    (void)unused;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        uint32_t state = state_of(m, cases[i].text, strlen(cases[i].text));
        if ((state == SL_MATCHER_DEAD) != (cases[i].is == DEAD) ||
            sl_matcher_ends(m, state) != (cases[i].is == FREE || cases[i].is == ENDS_HERE))
            fail_msg("%s is no %d", cases[i].text, cases[i].is);
    }
    sl_matcher_free(m);
    sl_grammar_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_free_up_to_the_mark_and_held_behind_it),
        cmocka_unit_test(any_bytes_are_free_text_and_the_token_is_the_mark),
        cmocka_unit_test(without_a_mark_the_first_byte_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
