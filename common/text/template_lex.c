/* common/text/template_lex.c - template source to tokens, with Jinja's rules for white space around tags.
 *
 * Outside tags there is only text; what of it is dropped depends on the tag before (trim_blocks: one newline
 * after a block or comment; "-": all white space) and the tag after (lstrip_blocks: blanks between the line's
 * beginning and a block or comment; "-": all white space; "+" switches both off). Tags end only outside
 * brackets, so that
 * {{ {'a': {}} }} is one. Everything is scanned once; the token list is at most as long as the source. */
#include "common/text/template_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/text/utf8.h"

struct lexer {
    struct base *b;
    const char *src;
    size_t n, at;
    struct token *tokens;
    size_t n_tokens, cap;
    int line;
    size_t line_at;     /* up to where lines are counted */
    bool line_starting; /* what was consumed last ended with a newline, or nothing was */
};

static struct token *push(struct lexer *lx, enum token_type type, const char *p, size_t n)
{
    if (lx->n_tokens == lx->cap) {
        size_t cap = lx->cap ? 2 * lx->cap : 64;
        struct token *bigger = sl_tpl_alloc(lx->b, cap * sizeof *bigger);
        if (lx->n_tokens)
            memcpy(bigger, lx->tokens, lx->n_tokens * sizeof *bigger);
        lx->tokens = bigger;
        lx->cap = cap;
    }
    for (; lx->line_at < lx->at; lx->line_at++)
        lx->line += lx->src[lx->line_at] == '\n';
    lx->b->line = lx->line;
    struct token *t = &lx->tokens[lx->n_tokens++];
    *t = (struct token){.type = type, .line = lx->line, .p = p, .n = n};
    return t;
}

static SL_NORETURN void fail_here(struct lexer *lx, const char *what)
{
    for (; lx->line_at < lx->at; lx->line_at++)
        lx->line += lx->src[lx->line_at] == '\n';
    lx->b->line = lx->line;
    sl_tpl_fail(lx->b, SL_EPARSE, "%s", what);
}

static size_t skip_space(const struct lexer *lx, size_t at)
{
    size_t used;
    while (at < lx->n && sl_tpl_is_space(sl_tpl_cp(lx->src, at, lx->n, &used)))
        at += used;
    return at;
}

static bool starts(const struct lexer *lx, size_t at, const char *what)
{
    size_t n = strlen(what);
    return lx->n - at >= n && memcmp(lx->src + at, what, n) == 0;
}

/* Text in front of a tag: drops what the tag's sign and lstrip_blocks ask for. */
static void push_text(struct lexer *lx, size_t from, size_t to, char sign, bool is_variable)
{
    size_t n = to - from;
    struct str s = {.p = lx->src + from, .n = n};
    if (sign == '-') {
        size_t start;
        sl_tpl_strip(&s, NULL, false, true, &start, &n);
    } else if (sign != '+' && !is_variable) {
        const char *newline = n ? memrchr(s.p, '\n', n) : NULL;
        size_t line = newline ? (size_t)(newline - s.p) + 1 : 0;
        struct str last = {.p = s.p + line, .n = n - line};
        size_t start = 0, end = 0;
        sl_tpl_strip(&last, NULL, false, true, &start, &end);
        if ((line > 0 || lx->line_starting) && end == 0)
            n = line;
    }
    if (n)
        push(lx, T_TEXT, s.p, n);
}

/* Moves behind the end of a block or comment: "%}" at lx->at, sign the character before it. */
static void end_tag(struct lexer *lx, char sign, bool trim_newline)
{
    lx->at += 2;
    if (sign == '-')
        lx->at = skip_space(lx, lx->at);
    else if (sign != '+' && trim_newline && lx->at < lx->n && lx->src[lx->at] == '\n')
        lx->at++;
    lx->line_starting = lx->src[lx->at - 1] == '\n';
}

static void lex_comment(struct lexer *lx, size_t body)
{
    const char *end = lx->n - body >= 2 ? memmem(lx->src + body, lx->n - body, "#}", 2) : NULL;
    if (!end)
        fail_here(lx, "a comment is not closed");
    size_t at = (size_t)(end - lx->src);
    char sign = at > body ? lx->src[at - 1] : 0;
    lx->at = at;
    end_tag(lx, sign, true);
}

/* If a "{% word %}" tag stands at `at` ("{%" is there), returns the offset of its "%}" and the signs on both
 * sides. */
static size_t simple_tag(const struct lexer *lx, size_t at, const char *word, char *left, char *right)
{
    at += 2;
    *left = at < lx->n && (lx->src[at] == '-' || lx->src[at] == '+') ? lx->src[at++] : 0;
    at = skip_space(lx, at);
    if (!starts(lx, at, word))
        return 0;
    at = skip_space(lx, at + strlen(word));
    *right = at < lx->n && (lx->src[at] == '-' || lx->src[at] == '+') ? lx->src[at++] : 0;
    return starts(lx, at, "%}") ? at : 0;
}

static void lex_raw(struct lexer *lx, size_t end_of_begin, char sign)
{
    char left, right;
    lx->at = end_of_begin;
    end_tag(lx, sign, false);
    size_t from = lx->at;
    for (size_t at = from; at + 2 <= lx->n; at++) {
        if (!starts(lx, at, "{%"))
            continue;
        size_t end = simple_tag(lx, at, "endraw", &left, &right);
        if (!end)
            continue;
        push_text(lx, from, at, left, false);
        lx->at = end;
        end_tag(lx, right, true);
        return;
    }
    fail_here(lx, "a raw block is not closed");
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* One escape at s[i] (behind the backslash) into out; returns the bytes it takes, 0 when it is none and stays
 * as it is. */
static size_t escape(struct lexer *lx, const char *s, size_t n, char *out, size_t *out_n)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *known = memchr(from, s[0], sizeof from - 1);
    uint32_t cp = 0;
    size_t used = 1;
    if (known) {
        out[(*out_n)++] = to[known - from];
        return 1;
    }
    if (s[0] == '\n')
        return 1;
    size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (digits) {
        for (; used <= digits; used++) {
            int d = used < n ? hex_digit(s[used]) : -1;
            if (d < 0)
                fail_here(lx, "a \\x, \\u or \\U escape in a string has too few digits");
            cp = cp << 4 | (uint32_t)d;
        }
        /* two escapes that are a surrogate pair make one character */
        if (cp >= 0xD800 && cp < 0xDC00 && used + 6 <= n && s[used] == '\\' && s[used + 1] == 'u') {
            uint32_t low = 0;
            for (size_t k = 2; k < 6; k++)
                low = low << 4 | (uint32_t)(hex_digit(s[used + k]) & 15);
            if (low >= 0xDC00 && low < 0xE000) {
                cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
                used += 6;
            }
        }
    } else if (s[0] >= '0' && s[0] <= '7') {
        used = 0;
        while (used < 3 && used < n && s[used] >= '0' && s[used] <= '7')
            cp = cp * 8 + (uint32_t)(s[used++] - '0');
    } else if (s[0] == 'N') {
        fail_here(lx, "\\N escapes in strings are not supported");
    } else {
        return 0;
    }
    *out_n += sl_utf8_encode(cp, out + *out_n);
    return used;
}

static void lex_string(struct lexer *lx)
{
    char quote = lx->src[lx->at];
    size_t from = lx->at + 1, to = from;
    bool escapes = false;
    while (to < lx->n && lx->src[to] != quote) {
        if (lx->src[to] == '\\') {
            escapes = true;
            to++;
        }
        to++;
    }
    if (to >= lx->n)
        fail_here(lx, "a string is not closed");
    const char *s = lx->src + from;
    size_t n = to - from, len = n;
    if (escapes) {
        char *out = sl_tpl_alloc(
            lx->b, n + 8); /* an escape is never shorter than its character, \x80 aside: 4 for 2 */
        len = 0;
        for (size_t i = 0; i < n;) {
            size_t used = s[i] == '\\' ? escape(lx, s + i + 1, n - i - 1, out, &len) : 0;
            if (s[i] == '\\' && used)
                i += 1 + used;
            else
                out[len++] = s[i++];
        }
        s = out;
    }
    push(lx, T_STRING, s, len);
    lx->at = to + 1;
}

static bool is_digit(const struct lexer *lx, size_t at)
{
    return at < lx->n && lx->src[at] >= '0' && lx->src[at] <= '9';
}

static size_t digits(const struct lexer *lx, size_t at)
{
    while (is_digit(lx, at) || (at < lx->n && lx->src[at] == '_' && is_digit(lx, at + 1)))
        at++;
    return at;
}

static void lex_number(struct lexer *lx)
{
    char text[64];
    size_t at = lx->at, end = digits(lx, at), n = 0;
    bool is_float = false;
    int base = 10;
    char x = end == at + 1 && lx->src[at] == '0' && end < lx->n ? lx->src[end] : 0;
    if (x == 'x' || x == 'X' || x == 'o' || x == 'O' || x == 'b' || x == 'B') {
        base = x == 'x' || x == 'X' ? 16 : x == 'o' || x == 'O' ? 8 : 2;
        at = ++end;
        while (end < lx->n && (hex_digit(lx->src[end]) >= 0 || lx->src[end] == '_'))
            end++;
    } else if (at == 0 || lx->src[at - 1] != '.') { /* a.0.1 is two subscripts */
        if (end < lx->n && lx->src[end] == '.' && is_digit(lx, end + 1)) {
            is_float = true;
            end = digits(lx, end + 1);
        }
        size_t e = end < lx->n && (lx->src[end] == 'e' || lx->src[end] == 'E') ? end + 1 : 0;
        if (e && e < lx->n && (lx->src[e] == '+' || lx->src[e] == '-'))
            e++;
        if (e && is_digit(lx, e)) {
            is_float = true;
            end = digits(lx, e);
        }
    }
    for (; at < end && n < sizeof text - 1; at++)
        if (lx->src[at] != '_')
            text[n++] = lx->src[at];
    text[n] = 0;
    struct token *t = push(lx, is_float ? T_FLOAT : T_INT, lx->src + lx->at, end - lx->at);
    char *rest = text;
    unsigned long long v = 0;
    if (is_float)
        t->f = strtod(text, &rest);
    else
        v = strtoull(text, &rest, base);
    if (at < end || n == 0 || *rest || v > INT64_MAX)
        fail_here(lx, "a number does not parse or is too big");
    t->i = (int64_t)v;
    lx->at = end;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (c & 0x80);
}

static void lex_operator(struct lexer *lx, char *open, unsigned *depth)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    const char *p = lx->src + lx->at;
    for (size_t i = 0; i < SL_COUNTOF(two); i++)
        if (starts(lx, lx->at, two[i])) {
            push(lx, T_OP, p, 2);
            lx->at += 2;
            return;
        }
    if (!strchr("+-/*%~[](){}<>=.:|,;", *p) || *p == 0)
        fail_here(lx, "an unexpected character in a tag");
    if (strchr("([{", *p)) {
        if (*depth == SL_TEMPLATE_MAX_NESTING)
            sl_tpl_fail(lx->b, SL_ETOOBIG, "brackets are nested more than %d deep", SL_TEMPLATE_MAX_NESTING);
        open[(*depth)++] = *p == '(' ? ')' : *p == '[' ? ']' : '}';
    } else if (strchr(")]}", *p)) {
        if (*depth == 0 || open[*depth - 1] != *p)
            fail_here(lx, "a closing bracket without its opening one");
        --*depth;
    }
    push(lx, T_OP, p, 1);
    lx->at++;
}

/* The inside of {{ }} or {% %}, up to and with its end. */
static void lex_tag(struct lexer *lx, bool is_variable)
{
    const char *end = is_variable ? "}}" : "%}";
    char open[SL_TEMPLATE_MAX_NESTING];
    unsigned depth = 0;
    for (;;) {
        lx->at = skip_space(lx, lx->at);
        if (lx->at >= lx->n)
            fail_here(lx, "a tag is not closed");
        char c = lx->src[lx->at], sign = 0;
        if (c == '-' || (c == '+' && !is_variable))
            sign = c;
        if (depth == 0 && starts(lx, lx->at + (sign != 0), end)) {
            push(lx, is_variable ? T_VAR_END : T_BLOCK_END, NULL, 0);
            lx->at += sign != 0;
            end_tag(lx, sign, !is_variable);
            return;
        }
        if (c >= '0' && c <= '9') {
            lex_number(lx);
        } else if (is_name(c)) {
            size_t to = lx->at;
            while (to < lx->n && is_name(lx->src[to]))
                to++;
            push(lx, T_NAME, lx->src + lx->at, to - lx->at);
            lx->at = to;
        } else if (c == '\'' || c == '"') {
            lex_string(lx);
        } else {
            lex_operator(lx, open, &depth);
        }
    }
}

/* Offset of the next tag, n when there is none. */
static size_t next_tag(const struct lexer *lx, size_t at)
{
    while (at < lx->n) {
        const char *brace = memchr(lx->src + at, '{', lx->n - at);
        if (!brace)
            break;
        at = (size_t)(brace - lx->src);
        if (at + 1 < lx->n && (brace[1] == '{' || brace[1] == '%' || brace[1] == '#'))
            return at;
        at++;
    }
    return lx->n;
}

const struct token *sl_tpl_lex(struct base *b, const char *src, size_t n)
{
    struct lexer lx = {.b = b, .src = src, .n = n, .line = 1, .line_starting = true};
    while (lx.at < n) {
        size_t from = lx.at, tag = next_tag(&lx, from);
        if (tag == n) {
            push(&lx, T_TEXT, src + from, n - from);
            lx.at = n;
            break;
        }
        char kind = src[tag + 1], left = 0, right = 0;
        char sign = tag + 2 < n && (src[tag + 2] == '-' || src[tag + 2] == '+') ? src[tag + 2] : 0;
        lx.at = tag;
        push_text(&lx, from, tag, sign, kind == '{');
        size_t raw_end = kind == '%' ? simple_tag(&lx, tag, "raw", &left, &right) : 0;
        lx.at = tag + 2 + (sign != 0);
        if (kind == '#') {
            lex_comment(&lx, lx.at);
        } else if (raw_end) {
            lex_raw(&lx, raw_end, right);
        } else {
            push(&lx, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, NULL, 0);
            lex_tag(&lx, kind == '{');
        }
    }
    push(&lx, T_EOF, NULL, 0);
    return lx.tokens;
}
