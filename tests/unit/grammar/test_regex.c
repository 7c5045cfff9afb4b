/* Expressions in the part of the dialect that POSIX has too, made at random: the C library's own regcomp() is the judge of
 * which texts match, of those that the program takes and of those that are made by following it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/grammar/matcher.h"
#include "common/grammar/regex.h"
#include "tests/support/support.h"

#define EXPRESSIONS 500
#define TEXTS       40
#define WALKS       4

static unsigned long long seed = 11;

static unsigned pick(unsigned n)
{
    return (unsigned)(sl_test_random(&seed) % n);
}

static void add_alternatives(struct sl_buf *out, unsigned depth);

static void add_atom(struct sl_buf *out, unsigned depth)
{
    static const char *const atoms[] = {"a", "b", "c", "a", "b", "[ab]", "[^a]", "[b-d]", ".", "[^b-d]"};
    if (depth && pick(3) == 0) {
        sl_buf_puts(out, "(");
        add_alternatives(out, depth - 1);
        sl_buf_puts(out, ")");
    } else {
        sl_buf_puts(out, atoms[pick(SL_COUNTOF(atoms))]);
    }
}

static void add_alternatives(struct sl_buf *out, unsigned depth)
{
    static const char *const repeats[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,1}", "{2,}"};
    do {
        for (unsigned n = 1 + pick(3); n; n--) {
            add_atom(out, depth);
            sl_buf_puts(out, repeats[pick(SL_COUNTOF(repeats))]);
        }
        if (pick(4))
            return;
        sl_buf_puts(out, "|");
    } while (true);
}

static bool matches(const regex_t *judge, const char *text)
{
    return regexec(judge, text, 0, NULL, 0) == 0;
}

static uint32_t read_text(struct sl_matcher *m, const char *text)
{
    uint32_t state = SL_MATCHER_START;
    for (; *text; text++)
        state = sl_matcher_step(m, state, (uint8_t)*text);
    return state;
}

/* Follows bytes at random, without a dead end: NULL when it got too long. */
static const char *walk(struct sl_matcher *m, char *text, size_t size)
{
    static const char bytes[] = "abcdx";
    uint32_t state = SL_MATCHER_START;
    size_t n = 0;
    while (n + 1 < size && !(sl_matcher_ends(m, state) && pick(3) == 0)) {
        unsigned from = pick(SL_COUNTOF(bytes) - 1), tried = 0;
        uint32_t to = SL_MATCHER_DEAD;
        for (; tried < SL_COUNTOF(bytes) - 1 && to == SL_MATCHER_DEAD; tried++) {
            text[n] = bytes[(from + tried) % (SL_COUNTOF(bytes) - 1)];
            to = sl_matcher_step(m, state, (uint8_t)text[n]);
        }
        if (to == SL_MATCHER_DEAD) {
            text[n] = '\0';
            if (!sl_matcher_ends(m, state))
                fail_msg("'%s' leads nowhere", text);
            return text;
        }
        state = to;
        n++;
    }
    text[n] = '\0';
    return sl_matcher_ends(m, state) ? text : NULL;
}

/* NULL: it needs too many states. */
static struct sl_grammar *compile(const char *expression, bool whole)
{
    struct sl_regex *r = sl_regex_new();
    struct sl_writer w = {0};
    struct sl_why why = {0};
    uint32_t work_left = SL_REGEX_MAX_WORK;
    sl_label text = sl_write_label(&w);
    sl_write_call(&w, text);
    sl_write_insn(&w, (struct sl_insn){.op = SL_INSN_END});
    sl_write_place(&w, text);
    enum sl_err err = sl_regex_match(r, expression, strlen(expression), whole, &why);
    if (err == SL_OK)
        err = sl_regex_write(r, &w, false, &work_left, &why);
    if (err != SL_OK && !strstr(why.text, "too much"))
        fail_msg("%s: %s", expression, why.text);
    sl_regex_free(r);
    if (err == SL_OK)
        return sl_writer_finish(&w);
    sl_writer_fini(&w);
    return NULL;
}

static bool check(const char *expression, bool whole)
{
    char posix[4096], text[80];
    regex_t judge;
    struct sl_grammar *p = compile(expression, whole);
    if (!p)
        return false;
    snprintf(posix, sizeof posix, whole ? "^(%s)$" : "%s", expression);
    assert_int_equal(regcomp(&judge, posix, REG_EXTENDED | REG_NOSUB), 0);
    struct sl_matcher *m = sl_matcher_new(p);
    for (unsigned i = 0; i < TEXTS; i++) {
        size_t n = pick(8);
        for (size_t k = 0; k < n; k++)
            text[k] = "abcdx"[pick(5)];
        text[n] = '\0';
        if (sl_matcher_ends(m, read_text(m, text)) != matches(&judge, text))
            fail_msg("%s: '%s' is taken otherwise than POSIX does", posix, text);
    }
    for (unsigned i = 0; i < WALKS; i++)
        if (walk(m, text, sizeof text) && !matches(&judge, text))
            fail_msg("%s: '%s' was made and does not match", posix, text);
    sl_matcher_free(m);
    sl_grammar_free(p);
    regfree(&judge);
    return true;
}

static void random_expressions_take_and_make_what_posix_matches(void **state)
{
    struct sl_buf expression;
    unsigned checked = 0;
    (void)state;
    sl_buf_init(&expression, 4096);
    for (unsigned i = 0; i < EXPRESSIONS; i++) {
        sl_buf_clear(&expression);
        if (i % 4 == 1)
            sl_buf_puts(&expression, "^");
        add_alternatives(&expression, 2);
        if (i % 4 == 2)
            sl_buf_puts(&expression, "$");
        assert_false(sl_buf_failed(&expression));
        checked += check(expression.data, i % 4 == 0);
    }
    assert_true(checked > EXPRESSIONS * 9 / 10);
    sl_buf_fini(&expression);
}

/* What an outsider asks for ends, whatever it is: the work for one expression is counted. */
static void work_has_an_end(void **state)
{
    static const char *const pieces[] = {"a?", "(a|b)?", "[a-c]?[b-d]?"};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(pieces); i++) {
        char expression[SL_REGEX_MAX_WAYS * 8] = "";
        size_t n = 0, len = strlen(pieces[i]);
        while (n + len + 2 < sizeof expression - 100)
            memcpy(expression + n, pieces[i], len + 1), n += len;
        struct sl_regex *r = sl_regex_new();
        struct sl_writer w = {0};
        struct sl_why why = {0};
        uint32_t work_left = SL_REGEX_MAX_WORK;
        assert_int_equal(sl_regex_match(r, expression, n, true, &why), SL_OK);
        assert_int_equal(sl_regex_write(r, &w, false, &work_left, &why), SL_EUNSUPPORTED);
        assert_non_null(strstr(why.text, "too much"));
        sl_regex_free(r);
        sl_writer_fini(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_expressions_take_and_make_what_posix_matches),
        cmocka_unit_test(work_has_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
