/* common/text/pattern.c - one pass over the expression, with a list of what is known.
 *
 * \s is written out: with PCRE2_UCP it matches U+180E, which Unicode no longer counts as white space, and so
 * does no engine the models' own tokenizers were built with. */
#include "common/text/pattern.h"

#include <ctype.h>
#include <string.h>

/* inside a character class, without the brackets */
#define WS   "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"

struct reader {
    const char *at, *end;
    const char *start;
    struct sl_buf *out;
    struct sl_why *why;
    bool in_class;
};

static enum sl_err refuse(const struct reader *r, const char *from, size_t n, const char *what)
{
    return sl_why_set(r->why, SL_EUNSUPPORTED,
                      "the pre-tokeniser's pattern has \"%.*s\" at byte %zu (%s), which is not supported",
                      (int)(n < 40 ? n : 40), from, (size_t)(from - r->start), what);
}

static enum sl_err put(struct reader *r, const char *from, size_t n)
{
    sl_buf_append(r->out, from, n);
    return SL_OK;
}

/* Behind "\p" or "\P". Categories have one or two letters and mean the same; other names are scripts, which
 * PCRE2 widens to script extensions unless told. */
static enum sl_err property(struct reader *r, const char *from)
{
    if (r->at == r->end || *r->at != '{')
        return refuse(r, from, (size_t)(r->at - from), "a property without braces");
    const char *name = ++r->at;
    while (r->at < r->end && (isalpha((unsigned char)*r->at) || *r->at == '_'))
        r->at++;
    size_t n = (size_t)(r->at - name);
    if (n == 0 || r->at == r->end || *r->at != '}')
        return refuse(r, from, (size_t)(r->at - from), "a property");
    r->at++;
    sl_buf_printf(r->out, "\\%c{%s%.*s}", from[1], n > 2 ? "sc:" : "", (int)n, name);
    return SL_OK;
}

/* Behind "\x" or "\u". */
static enum sl_err code_point(struct reader *r, const char *from)
{
    bool braces = from[1] == 'x' && r->at < r->end && *r->at == '{';
    size_t want = braces ? 6 : from[1] == 'x' ? 2 : 4, n = 0;
    const char *digits = r->at + braces;
    while (n < want && digits + n < r->end && isxdigit((unsigned char)digits[n]))
        n++;
    r->at = digits + n + (braces && digits + n < r->end && digits[n] == '}');
    if (n == 0 || (!braces && n < want) || (braces && r->at[-1] != '}'))
        return refuse(r, from, (size_t)(r->at - from), "a code point");
    sl_buf_printf(r->out, "\\x{%.*s}", (int)n, digits);
    return SL_OK;
}

static enum sl_err escape(struct reader *r)
{
    const char *from = r->at++;
    if (r->at == r->end)
        return refuse(r, from, 1, "nothing behind it");
    char c = *r->at++;
    switch (c) {
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'd':
        return put(r, from, 2);
    case 's':
        return sl_buf_printf(r->out, r->in_class ? "%s" : "[%s]", WS) ? SL_OK : SL_ETOOBIG;
    case 'w':
        return sl_buf_printf(r->out, r->in_class ? "%s" : "[%s]", WORD) ? SL_OK : SL_ETOOBIG;
    case 'S':
    case 'W':
    case 'D':
        if (r->in_class)
            return refuse(r, from, 2, "a negated class inside a class");
        return sl_buf_printf(r->out, "[^%s]", c == 'S' ? WS : c == 'W' ? WORD : "\\d") ? SL_OK : SL_ETOOBIG;
    case 'p':
    case 'P':
        return property(r, from);
    case 'x':
    case 'u':
        return code_point(r, from);
    default:
        if (isalnum((unsigned char)c) || (unsigned char)c >= 0x80)
            return refuse(r, from, 2, "an escape");
        return put(r, from, 2);
    }
}

static enum sl_err char_class(struct reader *r)
{
    const char *from = r->at++;
    enum sl_err e = SL_OK;
    sl_buf_putc(r->out, '[');
    if (r->at < r->end && *r->at == '^')
        sl_buf_putc(r->out, *r->at++);
    if (r->at < r->end && *r->at == ']')
        return refuse(r, from, (size_t)(r->at - from), "an empty class");
    r->in_class = true;
    while (!e && r->at < r->end && *r->at != ']') {
        if (*r->at == '\\')
            e = escape(r);
        else if (*r->at == '[')
            return refuse(r, r->at, 1, "a class inside a class");
        else if (*r->at == '&' && r->end - r->at > 1 && r->at[1] == '&')
            return refuse(r, r->at, 2, "an intersection of classes");
        else
            sl_buf_putc(r->out, *r->at++);
    }
    r->in_class = false;
    if (e)
        return e;
    if (r->at == r->end)
        return refuse(r, from, (size_t)(r->at - from), "a class without an end");
    sl_buf_putc(r->out, *r->at++);
    return SL_OK;
}

static enum sl_err group(struct reader *r)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    size_t left = (size_t)(r->end - r->at);
    if (left < 2 || r->at[1] != '?') {
        r->at++;
        return put(r, "(?:", 3); /* what groups capture is never asked for */
    }
    for (size_t i = 0; i < SL_COUNTOF(known); i++) {
        size_t n = strlen(known[i]);
        if (n <= left && memcmp(r->at, known[i], n) == 0) {
            r->at += n;
            return put(r, known[i], n);
        }
    }
    return refuse(r, r->at, left < 4 ? left : 4, "a kind of group");
}

static enum sl_err repeat(struct reader *r)
{
    const char *from = r->at++;
    unsigned n_digits[2] = {0, 0}, part = 0;
    while (r->at < r->end && (isdigit((unsigned char)*r->at) || (*r->at == ',' && part == 0))) {
        if (*r->at == ',')
            part = 1;
        else
            n_digits[part]++;
        r->at++;
    }
    if (r->at == r->end || *r->at != '}' || n_digits[0] == 0)
        return refuse(r, from, (size_t)(r->at - from), "a repetition");
    r->at++;
    if (r->at < r->end && (*r->at == '?' || *r->at == '+'))
        return refuse(r, from, (size_t)(r->at + 1 - from), "a lazy or possessive counted repetition");
    return put(r, from, (size_t)(r->at - from));
}

enum sl_err sl_pattern_translate(const char *src, size_t n, struct sl_buf *out, struct sl_why *why)
{
    struct reader r = {src, src + n, src, out, why, false};
    enum sl_err e = SL_OK;
    if (n > SL_PATTERN_MAX_BYTES)
        return sl_why_set(why, SL_ETOOBIG, "a pre-tokeniser's pattern has %zu bytes, at most %d are allowed",
                          n, SL_PATTERN_MAX_BYTES);
    while (!e && r.at < r.end) {
        switch (*r.at) {
        case '\\':
            e = escape(&r);
            break;
        case '[':
            e = char_class(&r);
            break;
        case '(':
            e = group(&r);
            break;
        case '{':
            e = repeat(&r);
            break;
        case '^':
        case '$':
            e = refuse(&r, r.at, 1, "an anchor");
            break;
        case '.':
            r.at++;
            e = put(&r, "[^\\n]", 5); /* whatever PCRE2 was built to take for a newline */
            break;
        default:
            sl_buf_putc(out, *r.at++);
        }
    }
    if (!e && sl_buf_failed(out))
        e = sl_why_set(why, SL_ETOOBIG, "a pre-tokeniser's pattern becomes too long");
    return e;
}

void sl_pattern_quote(const char *src, size_t n, struct sl_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)src[i] < 0x80 && !isalnum((unsigned char)src[i]))
            sl_buf_printf(out, "\\x{%x}", (unsigned char)src[i]);
        else
            sl_buf_putc(out, src[i]);
    }
}
