/* common/grammar/regex_parse.c - a parser by descent, one function for each level of binding. Lists are nested to the
 * left, so that who walks a tree recurses by groups only. */
#include "common/grammar/regex_parse.h"

#include <string.h>

#include "common/base/mem.h"

struct parser {
    struct sl_re_tree *t;
    const char *text;
    size_t n, at;
    uint32_t depth;
    enum sl_err err;
    struct sl_why *why;
};

static void refuse(struct parser *p, enum sl_err err, const char *what)
{
    if (p->err == SL_OK)
        p->err = sl_why_set(p->why, err, "at byte %zu: %s", p->at, what);
}

/* ---- nodes ---- */

static uint32_t add_node(struct sl_re_tree *t, struct sl_re_node n)
{
    if (t->n_nodes == t->cap_nodes) {
        t->cap_nodes = t->cap_nodes ? 2 * t->cap_nodes : 64;
        t->nodes = sl_xrealloc_array(t->nodes, t->cap_nodes, sizeof *t->nodes);
    }
    t->nodes[t->n_nodes] = n;
    return t->n_nodes++;
}

static uint32_t empty(struct sl_re_tree *t)
{
    return add_node(t, (struct sl_re_node){.op = SL_RE_EMPTY, .plain = true});
}

uint32_t sl_re_set(struct sl_re_tree *t, struct sl_char_set *s)
{
    uint32_t i = 0;
    while (i < t->n_sets && !sl_char_set_equal(&t->sets[i], s))
        i++;
    if (i < t->n_sets) {
        sl_char_set_fini(s);
    } else {
        if (t->n_sets == t->cap_sets) {
            t->cap_sets = t->cap_sets ? 2 * t->cap_sets : 16;
            t->sets = sl_xrealloc_array(t->sets, t->cap_sets, sizeof *t->sets);
        }
        t->sets[t->n_sets++] = *s;
    }
    return add_node(t, (struct sl_re_node){.op = SL_RE_SET, .takes = SL_RE_SOMETHING, .plain = true, .a = i});
}

static uint32_t one_char(struct sl_re_tree *t, uint32_t c)
{
    struct sl_char_set s = {0};
    sl_char_set_add(&s, c, c);
    sl_char_set_settle(&s);
    return sl_re_set(t, &s);
}

static uint32_t cat(struct sl_re_tree *t, uint32_t a, uint32_t b)
{
    const struct sl_re_node *x = &t->nodes[a], *y = &t->nodes[b];
    if (x->op == SL_RE_EMPTY)
        return b;
    enum sl_re_takes takes = x->takes > y->takes ? x->takes : y->takes;
    return add_node(t, (struct sl_re_node){
                           .op = SL_RE_CAT, .takes = takes, .plain = x->plain && y->plain, .a = a, .b = b});
}

uint32_t sl_re_or(struct sl_re_tree *t, uint32_t a, uint32_t b)
{
    const struct sl_re_node *x = &t->nodes[a], *y = &t->nodes[b];
    enum sl_re_takes takes = x->takes == y->takes ? x->takes : SL_RE_MAYBE;
    return add_node(t, (struct sl_re_node){
                           .op = SL_RE_OR, .takes = takes, .plain = x->plain && y->plain, .a = a, .b = b});
}

uint32_t sl_re_literal(struct sl_re_tree *t, const char *text, size_t n)
{
    uint32_t out = empty(t), used;
    for (size_t i = 0; i < n; i += used)
        out = cat(t, out, one_char(t, sl_char_next(text + i, &used)));
    return out;
}

void sl_re_tree_fini(struct sl_re_tree *t)
{
    for (uint32_t i = 0; i < t->n_sets; i++)
        sl_char_set_fini(&t->sets[i]);
    sl_free(t->sets);
    sl_free(t->nodes);
    *t = (struct sl_re_tree){0};
}

/* ---- characters ---- */

static int peek(const struct parser *p)
{
    return p->at < p->n && p->err == SL_OK ? (unsigned char)p->text[p->at] : -1;
}

static bool eat(struct parser *p, const char *word)
{
    size_t n = strlen(word);
    if (p->err != SL_OK || p->n - p->at < n || memcmp(p->text + p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

static uint32_t next_char(struct parser *p)
{
    uint32_t used, c = sl_char_next(p->text + p->at, &used);
    p->at += used;
    return c;
}

/* The sets of \d, \w and \s; a capital letter is the set of all others. */
static bool add_named(struct sl_char_set *s, char name)
{
    static const struct sl_char_range digits[] = {{'0', '9'}},
                                      word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                      blanks[] = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},
                                                  {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                                  {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
                                                  {0xFEFF, 0xFEFF}};
    static const struct {
        char name;
        const struct sl_char_range *ranges;
        uint32_t n;
    } sets[] = {
        {'d', digits, SL_COUNTOF(digits)}, {'w', word, SL_COUNTOF(word)}, {'s', blanks, SL_COUNTOF(blanks)}};
    for (unsigned i = 0; i < SL_COUNTOF(sets); i++) {
        if ((name | 0x20) != sets[i].name)
            continue;
        struct sl_char_set set = {0};
        for (uint32_t k = 0; k < sets[i].n; k++)
            sl_char_set_add(&set, sets[i].ranges[k].lo, sets[i].ranges[k].hi);
        sl_char_set_settle(&set);
        if (name != sets[i].name)
            sl_char_set_negate(&set);
        for (uint32_t k = 0; k < set.n; k++)
            sl_char_set_add(s, set.ranges[k].lo, set.ranges[k].hi);
        sl_char_set_fini(&set);
        return true;
    }
    return false;
}

/* Exactly n digits. */
static uint32_t read_hex(struct parser *p, unsigned n)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < n; i++) {
        int c = peek(p), low = c | 0x20;
        if (!(c >= '0' && c <= '9') && !(low >= 'a' && low <= 'f')) {
            refuse(p, SL_EINVAL, "a hexadecimal digit is missing");
            return 0;
        }
        value = value * 16 + (uint32_t)(c <= '9' ? c - '0' : low - 'a' + 10);
        p->at++;
    }
    return value;
}

/* Behind \u: four digits, two times four for what lies beyond U+FFFF, or {digits}. */
static uint32_t read_unicode(struct parser *p)
{
    if (eat(p, "{")) {
        uint32_t value = 0;
        do
            value = value * 16 + read_hex(p, 1);
        while (p->err == SL_OK && peek(p) != '}' && value <= SL_CHAR_MAX);
        if (value > SL_CHAR_MAX || !eat(p, "}"))
            refuse(p, SL_EINVAL, "expected digits up to 10FFFF and } behind \\u{");
        return value;
    }
    uint32_t c = read_hex(p, 4);
    size_t behind = p->at;
    if (c >= 0xD800 && c <= 0xDBFF && eat(p, "\\u")) {
        uint32_t low = read_hex(p, 4);
        if (low >= 0xDC00 && low <= 0xDFFF)
            return 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        p->at = behind;
    }
    return c;
}

/* Behind a backslash: one character, which is returned, or a named set, which is added to s: *is_set. */
static uint32_t read_escape(struct parser *p, struct sl_char_set *s, bool *is_set)
{
    static const char letters[] = "t\tn\nr\rv\vf\f";
    int c = peek(p);
    *is_set = false;
    if (c < 0) {
        refuse(p, SL_EINVAL, "nothing follows the last \\");
        return 0;
    }
    *is_set = strchr("dDwWsS", c) && add_named(s, (char)c);
    if (*is_set) {
        p->at++;
        return 0;
    }
    for (const char *l = letters; *l; l += 2)
        if (c == *l) {
            p->at++;
            return (unsigned char)l[1];
        }
    if (eat(p, "x"))
        return read_hex(p, 2);
    if (eat(p, "u"))
        return read_unicode(p);
    if (c == 'c' && p->at + 1 < p->n &&
        ((p->text[p->at + 1] | 0x20) >= 'a' && (p->text[p->at + 1] | 0x20) <= 'z')) {
        p->at += 2;
        return (uint32_t)p->text[p->at - 1] & 0x1F;
    }
    if (c == '0' && !(p->at + 1 < p->n && p->text[p->at + 1] >= '0' && p->text[p->at + 1] <= '9')) {
        p->at++;
        return 0;
    }
    if (c >= '0' && c <= '9')
        refuse(p, SL_EUNSUPPORTED,
               "a group is asked for again by its number, which is not kept to here; write it out");
    else if (c == 'b' || c == 'B')
        refuse(p, SL_EUNSUPPORTED,
               "\\b and \\B are not kept to here; name the characters that may stand there");
    else if (c == 'p' || c == 'P')
        refuse(p, SL_EUNSUPPORTED, "\\p is not kept to here; name the characters, as [a-z\\u00c0-\\u024f]");
    else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
        refuse(p, SL_EUNSUPPORTED,
               "an escape that ECMA 262 does not have; expected one of \\d \\w \\s \\t \\n \\r \\u");
    return p->err == SL_OK ? next_char(p) : 0;
}

/* One member of a class; *is_set: it was a named set and is added. */
static uint32_t class_member(struct parser *p, struct sl_char_set *s, bool *is_set)
{
    *is_set = false;
    if (eat(p, "\\b"))
        return '\b';
    if (eat(p, "\\"))
        return read_escape(p, s, is_set);
    if (peek(p) < 0) {
        refuse(p, SL_EINVAL, "a class [ is not closed");
        return 0;
    }
    return next_char(p);
}

static uint32_t parse_class(struct parser *p)
{
    struct sl_char_set s = {0};
    bool negated = eat(p, "^"), is_set, to_set;
    while (p->err == SL_OK && !eat(p, "]")) {
        uint32_t lo = class_member(p, &s, &is_set), hi = lo;
        bool dash = peek(p) == '-' && p->at + 1 < p->n && p->text[p->at + 1] != ']';
        if (dash && !is_set) {
            p->at++;
            hi = class_member(p, &s, &to_set);
            if (to_set) { /* as [a-\d]: the dash stands for itself */
                sl_char_set_add(&s, '-', '-');
                hi = lo;
            } else if (hi < lo) {
                refuse(p, SL_EINVAL, "a range in a class ends before it begins");
            }
        }
        if (!is_set && p->err == SL_OK)
            sl_char_set_add(&s, lo, hi);
    }
    sl_char_set_settle(&s);
    if (negated)
        sl_char_set_negate(&s);
    return sl_re_set(p->t, &s);
}

/* ---- levels ---- */

static uint32_t parse_or(struct parser *p);

static uint32_t parse_group(struct parser *p)
{
    bool look = false, negated = false;
    if (eat(p, "?")) {
        look = peek(p) == '=' || peek(p) == '!';
        negated = peek(p) == '!';
        bool named = eat(p, "P<") || (eat(p, "<") && peek(p) != '=' && peek(p) != '!');
        if (named)
            while (peek(p) >= 0 && peek(p) != '>')
                p->at++;
        if (!eat(p, named ? ">" : look ? (negated ? "!" : "=") : ":"))
            refuse(p, SL_EUNSUPPORTED,
                   "a kind of group that is not kept to here; (...), (?:...), (?<name>...), (?=...) and "
                   "(?!...) are");
    }
    if (++p->depth > SL_REGEX_MAX_DEPTH)
        refuse(p, SL_ETOOBIG, "more than 64 groups inside each other");
    uint32_t inner = p->err == SL_OK ? parse_or(p) : empty(p->t);
    p->depth--;
    if (!eat(p, ")"))
        refuse(p, SL_EINVAL, "a group ( is not closed");
    if (!look)
        return inner;
    return add_node(p->t, (struct sl_re_node){.op = SL_RE_LOOK, .a = inner, .negated = negated});
}

static uint32_t parse_atom(struct parser *p)
{
    struct sl_char_set s = {0};
    bool is_set;
    if (eat(p, "("))
        return parse_group(p);
    if (eat(p, "["))
        return parse_class(p);
    if (eat(p, "^"))
        return add_node(p->t, (struct sl_re_node){.op = SL_RE_START});
    if (eat(p, "$"))
        return add_node(p->t, (struct sl_re_node){.op = SL_RE_END});
    if (eat(p, ".")) {
        sl_char_set_add(&s, '\n', '\n');
        sl_char_set_add(&s, '\r', '\r');
        sl_char_set_add(&s, 0x2028, 0x2029);
        sl_char_set_settle(&s);
        sl_char_set_negate(&s);
        return sl_re_set(p->t, &s);
    }
    if (eat(p, "\\")) {
        uint32_t c = read_escape(p, &s, &is_set);
        if (!is_set)
            sl_char_set_add(&s, c, c);
        sl_char_set_settle(&s);
        return sl_re_set(p->t, &s);
    }
    return p->err == SL_OK ? one_char(p->t, next_char(p)) : empty(p->t);
}

static bool read_count(struct parser *p, uint32_t *out)
{
    size_t from = p->at;
    uint32_t value = 0;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        value = value > SL_REGEX_MAX_REPEAT ? value : value * 10 + (uint32_t)(peek(p) - '0');
    *out = value;
    return p->at > from;
}

/* {n}, {n,} or {n,m}; anything else that begins with { is no repetition, and the { stands for itself. */
static bool read_braces(struct parser *p, uint32_t *min, uint32_t *max)
{
    size_t from = p->at;
    bool comma, has_max, good = eat(p, "{");
    if (good && peek(p) == ',')
        refuse(p, SL_EUNSUPPORTED, "{,n} means different things to different dialects; write {0,n} or \\{");
    good = good && read_count(p, min);
    *max = *min;
    comma = good && eat(p, ",");
    has_max = comma && read_count(p, max);
    if (comma && !has_max)
        *max = SL_REGEX_NO_END;
    if (good && eat(p, "}")) {
        if (*min > SL_REGEX_MAX_REPEAT || (*max > SL_REGEX_MAX_REPEAT && *max != SL_REGEX_NO_END))
            refuse(p, SL_EUNSUPPORTED,
                   "more than 1024 repetitions are not kept to here; ask for fewer, or for * or +");
        else if (*min > *max)
            refuse(p, SL_EINVAL, "a repetition {n,m} has more at least than at most");
        return true;
    }
    p->at = from;
    return false;
}

/* *, +, ? or braces. */
static bool read_repeat(struct parser *p, uint32_t *min, uint32_t *max)
{
    *min = peek(p) == '+' ? 1 : 0;
    *max = peek(p) == '?' ? 1 : SL_REGEX_NO_END;
    return eat(p, "*") || eat(p, "+") || eat(p, "?") || read_braces(p, min, max);
}

static uint32_t parse_repeat(struct parser *p)
{
    uint32_t min, max;
    if (read_repeat(p, &min, &max))
        refuse(p, SL_EINVAL, "nothing stands in front of a repetition");
    uint32_t a = parse_atom(p);
    if (!read_repeat(p, &min, &max))
        return a;
    (void)eat(p, "?"); /* lazy: the same texts */
    const struct sl_re_node *n = &p->t->nodes[a];
    if (!n->plain)
        refuse(p, SL_EUNSUPPORTED, "a repetition of what has ^, $, (?= or (?! in it is not kept to here");
    enum sl_re_takes takes = max == 0   ? SL_RE_NOTHING
                             : min      ? n->takes
                             : n->takes ? SL_RE_MAYBE
                                        : SL_RE_NOTHING;
    return add_node(p->t,
                    (struct sl_re_node){
                        .op = SL_RE_REPEAT, .takes = takes, .plain = true, .a = a, .min = min, .max = max});
}

static uint32_t parse_cat(struct parser *p)
{
    uint32_t a = empty(p->t);
    while (peek(p) >= 0 && peek(p) != '|' && peek(p) != ')')
        a = cat(p->t, a, parse_repeat(p));
    return a;
}

static uint32_t parse_or(struct parser *p)
{
    uint32_t a = parse_cat(p);
    while (eat(p, "|"))
        a = sl_re_or(p->t, a, parse_cat(p));
    return a;
}

enum sl_err sl_re_parse(struct sl_re_tree *t, const char *text, size_t n, uint32_t *root, struct sl_why *why)
{
    struct parser p = {.t = t, .text = text, .n = n, .why = why};
    if (n > SL_REGEX_MAX_BYTES)
        return sl_why_set(why, SL_ETOOBIG, "the expression has %zu bytes; at most %d are taken", n,
                          SL_REGEX_MAX_BYTES);
    uint32_t a = parse_or(&p);
    if (p.err == SL_OK && p.at < n)
        refuse(&p, SL_EINVAL, "a group ) is closed that was not opened");
    if (p.err == SL_OK)
        *root = a;
    return p.err;
}
