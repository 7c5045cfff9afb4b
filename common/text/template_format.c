/* common/text/template_format.c - text out of values by a pattern: `%` and str.format().
 *
 * Patterns may come from a request, so widths and precisions are bounded before anything is printed. */
#include "common/text/template_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/utf8.h"

#define MAX_WIDTH     10000
#define MAX_PRECISION 300

/* What both % and format() know about one field. */
struct spec {
    char fill[4];
    size_t fill_n;
    char align; /* < > ^ = or 0 */
    char sign;  /* + space or 0 */
    bool alternate, zero, comma;
    int64_t width, precision; /* -1: none */
    char type;                /* 0: by the value */
};

static SL_NORETURN void bad(struct cx *cx, const char *what)
{
    sl_tpl_fail(&cx->base, SL_EINVAL, "format: %s", what);
}

/* Digits at s[*at], -1 when there are none. */
static int64_t number(struct cx *cx, const struct str *s, size_t *at, int64_t max)
{
    int64_t v = -1;
    while (*at < s->n && s->p[*at] >= '0' && s->p[*at] <= '9') {
        v = (v < 0 ? 0 : v) * 10 + (s->p[(*at)++] - '0');
        if (v > max)
            bad(cx, "a width or precision is too big");
    }
    return v;
}

/* Writes text with padding. sign_n: bytes of sign and prefix that stay in front of zeros. */
static void padded(struct sb *sb, const struct str *text, const struct spec *f, char dflt_align,
                   size_t sign_n)
{
    int64_t n = (int64_t)sl_tpl_length(sb->cx, text), space = f->width > n ? f->width - n : 0;
    char align = f->align ? f->align : dflt_align;
    int64_t before = align == '>' || align == '=' ? space : align == '^' ? space / 2 : 0;
    size_t head = align == '=' ? sign_n : 0;
    sl_tpl_sb_str(sb, text, 0, head);
    for (int64_t i = 0; i < before; i++)
        sl_tpl_sb_bytes(sb, f->fill, f->fill_n, false);
    sl_tpl_sb_str(sb, text, head, text->n);
    for (int64_t i = before; i < space; i++)
        sl_tpl_sb_bytes(sb, f->fill, f->fill_n, false);
}

static void group_thousands(char *digits)
{
    char out[512];
    size_t n = strspn(digits, "0123456789"), at = 0, len = strlen(digits);
    for (size_t i = 0; i < len && at + 2 < sizeof out; i++) {
        if (i && i < n && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    memcpy(digits, out, at + 1);
}

static void put_integer(struct sb *sb, int64_t v, const struct spec *f)
{
    char text[128], digits[100];
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    const char *prefix = "";
    size_t n = 0;
    switch (f->type) {
    case 'x':
    case 'X':
        snprintf(digits, sizeof digits, f->type == 'x' ? "%" PRIx64 : "%" PRIX64, u);
        prefix = f->type == 'x' ? "0x" : "0X";
        break;
    case 'o':
        snprintf(digits, sizeof digits, "%" PRIo64, u);
        prefix = "0o";
        break;
    case 'b':
        for (int bit = 63; bit >= 0; bit--)
            if (n || u >> bit || bit == 0)
                digits[n++] = (char)('0' + (u >> bit & 1));
        digits[n] = 0;
        prefix = "0b";
        break;
    default:
        snprintf(digits, sizeof digits, "%" PRIu64, u);
        break;
    }
    if (f->comma)
        group_thousands(digits);
    char sign[2] = {v < 0 ? '-' : f->sign, 0};
    if (!f->alternate)
        prefix = "";
    snprintf(text, sizeof text, "%s%s%s", sign, prefix, digits);
    struct str s = {.p = text, .n = strlen(text)};
    padded(sb, &s, f, '>', strlen(sign) + strlen(prefix));
}

static void put_float(struct sb *sb, double v, const struct spec *f)
{
    char text[700], digits[680];
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    bool negative = v < 0;
    if (negative)
        v = -v;
    switch (f->type) {
    case 0:
        if (f->precision < 0)
            sl_tpl_repr_float(digits, v);
        else
            snprintf(digits, sizeof digits, "%.*g", precision ? precision : 1, v);
        break;
    case 'e':
        snprintf(digits, sizeof digits, "%.*e", precision, v);
        break;
    case 'E':
        snprintf(digits, sizeof digits, "%.*E", precision, v);
        break;
    case 'g':
    case 'G':
        snprintf(digits, sizeof digits, f->type == 'g' ? "%.*g" : "%.*G", precision, v);
        break;
    case '%':
        snprintf(digits, sizeof digits, "%.*f%%", precision, v * 100);
        break;
    default:
        snprintf(digits, sizeof digits, "%.*f", precision, v);
        break;
    }
    if (f->comma && strlen(digits) < 300)
        group_thousands(digits);
    char sign[2] = {negative ? '-' : f->sign, 0};
    snprintf(text, sizeof text, "%s%s", sign, digits);
    struct str s = {.p = text, .n = strlen(text)};
    padded(sb, &s, f, '>', strlen(sign));
}

static void put_text(struct sb *sb, const struct str *s, const struct spec *f)
{
    struct val v = {.type = VAL_STR, .s = s};
    if (f->precision >= 0) {
        struct val parts[3] = {sl_tpl_none(), sl_tpl_int(f->precision), sl_tpl_none()};
        v = sl_tpl_slice(sb->cx, v, parts);
    }
    padded(sb, v.s, f, '<', 0);
}

/* --- % --- */

struct percent {
    struct val args; /* a tuple, a dict, or the only one */
    size_t next;
    bool named; /* a %(name) was seen */
};

static struct val next_arg(struct cx *cx, struct percent *p)
{
    size_t n = p->args.type == VAL_TUPLE ? p->args.l->n : 1;
    if (p->next >= n)
        bad(cx, "not enough arguments for the format string");
    p->next++;
    return p->args.type == VAL_TUPLE ? p->args.l->items[p->next - 1] : p->args;
}

static int64_t star(struct cx *cx, struct percent *p, const struct str *s, size_t *at, int64_t max)
{
    if (*at >= s->n || s->p[*at] != '*')
        return number(cx, s, at, max);
    ++*at;
    int64_t v = sl_tpl_int_arg(cx, next_arg(cx, p), 0, "a width or precision");
    if (v < 0 || v > max)
        bad(cx, "a width or precision is out of range");
    return v;
}

static void percent_flags(struct spec *f, const struct str *s, size_t *at)
{
    for (; *at < s->n; ++*at) {
        char c = s->p[*at];
        if (c == '-')
            f->align = '<';
        else if (c == '0')
            f->zero = true;
        else if (c == '+' || (c == ' ' && !f->sign))
            f->sign = c;
        else if (c == '#')
            f->alternate = true;
        else
            break;
    }
}

static void put_percent(struct sb *sb, struct val v, struct spec *f)
{
    struct cx *cx = sb->cx;
    struct sb text;
    bool numeric = strchr("diuxXoeEfFgG", f->type) != NULL;
    if (numeric && f->zero && f->align != '<') {
        f->fill[0] = '0';
        f->align = '=';
    } else if (f->align != '<') {
        f->align = '>';
    }
    if (strchr("diuxXo", f->type)) {
        if (v.type == VAL_FLOAT && strchr("diu", f->type) && v.f > -9.2e18 && v.f < 9.2e18)
            v = sl_tpl_int((int64_t)v.f);
        if (v.type != VAL_INT && v.type != VAL_BOOL)
            bad(cx, "a number is required for %d");
        put_integer(sb, v.type == VAL_BOOL ? v.b : v.i, f);
    } else if (numeric) {
        if (!sl_tpl_is_number(v))
            bad(cx, "a number is required for %f");
        put_float(sb, sl_tpl_as_float(v), f);
    } else if (f->type == 's') {
        put_text(sb, sl_tpl_text(cx, v), f);
    } else if (f->type == 'r') {
        sl_tpl_sb_init(&text, cx);
        sl_tpl_repr(&text, v);
        put_text(sb, sl_tpl_sb_done(&text).s, f);
    } else if (f->type == 'c') {
        if (v.type == VAL_INT && v.i >= 0 && v.i < 0x110000) {
            sl_tpl_sb_init(&text, cx);
            sl_tpl_sb_cp(&text, (uint32_t)v.i, true);
            v = sl_tpl_sb_done(&text);
        }
        if (v.type != VAL_STR || sl_tpl_length(cx, v.s) != 1)
            bad(cx, "%c needs one character");
        put_text(sb, v.s, f);
    } else {
        bad(cx, "unsupported conversion after %");
    }
}

struct val sl_tpl_percent(struct cx *cx, const struct str *s, struct val args)
{
    struct percent p = {.args = args};
    struct sb sb;
    size_t from = 0;
    sl_tpl_sb_init(&sb, cx);
    for (size_t at = 0; at < s->n;) {
        if (s->p[at] != '%') {
            at++;
            continue;
        }
        sl_tpl_sb_str(&sb, s, from, at++);
        struct spec f = {.fill = " ", .fill_n = 1, .width = -1, .precision = -1};
        struct val v = {.type = VAL_MISSING};
        if (at < s->n && s->p[at] == '(') {
            static const struct str close = {.p = ")", .n = 1};
            size_t end = sl_tpl_find(s, at, s->n, &close);
            if (end == SIZE_MAX || args.type != VAL_DICT)
                bad(cx, "%(name) needs a mapping");
            v = sl_tpl_getitem(cx, args, sl_tpl_sub(cx, s, at + 1, end));
            if (v.type == VAL_UNDEFINED)
                bad(cx, "a key of %(name) is missing");
            p.named = true;
            at = end + 1;
        }
        percent_flags(&f, s, &at);
        f.width = star(cx, &p, s, &at, MAX_WIDTH);
        if (at < s->n && s->p[at] == '.') {
            at++;
            f.precision = star(cx, &p, s, &at, MAX_PRECISION);
            if (f.precision < 0)
                f.precision = 0;
        }
        while (at < s->n && strchr("hlL", s->p[at]) && s->p[at])
            at++;
        if (at >= s->n)
            bad(cx, "incomplete format");
        f.type = s->p[at++];
        from = at;
        if (f.type == '%')
            sl_tpl_sb_puts(&sb, "%");
        else
            put_percent(&sb, v.type == VAL_MISSING ? next_arg(cx, &p) : v, &f);
    }
    sl_tpl_sb_str(&sb, s, from, s->n);
    size_t given = args.type == VAL_TUPLE                                                         ? args.l->n
                   : args.type == VAL_DICT || args.type == VAL_LIST || args.type == VAL_UNDEFINED ? 0
                                                                                                  : 1;
    if (!p.named && p.next < given)
        bad(cx, "not all arguments converted during string formatting");
    return sl_tpl_sb_done(&sb);
}

/* --- str.format() --- */

static struct spec parse_spec(struct cx *cx, const struct str *s, size_t at, size_t to)
{
    struct spec f = {.fill = " ", .fill_n = 1, .width = -1, .precision = -1};
    struct str all = {.p = s->p, .n = to};
    size_t used = 0;
    if (at < to)
        sl_tpl_cp(s->p, at, to, &used);
    if (used && at + used < to && strchr("<>^=", s->p[at + used]) && s->p[at + used]) {
        memcpy(f.fill, s->p + at, used);
        f.fill_n = used;
        f.align = s->p[at + used];
        at += used + 1;
    } else if (at < to && strchr("<>^=", s->p[at]) && s->p[at]) {
        f.align = s->p[at++];
    }
    if (at < to && (s->p[at] == '+' || s->p[at] == ' ' || s->p[at] == '-')) {
        f.sign = s->p[at] == '-' ? 0 : s->p[at];
        at++;
    }
    if (at < to && s->p[at] == '#') {
        f.alternate = true;
        at++;
    }
    if (at < to && s->p[at] == '0') {
        f.zero = true;
        at++;
    }
    f.width = number(cx, &all, &at, MAX_WIDTH);
    if (at < to && s->p[at] == ',') {
        f.comma = true;
        at++;
    }
    if (at < to && s->p[at] == '.') {
        at++;
        f.precision = number(cx, &all, &at, MAX_PRECISION);
        if (f.precision < 0)
            bad(cx, "the precision is missing");
    }
    if (at < to)
        f.type = s->p[at++];
    if (at < to)
        bad(cx, "invalid format specifier");
    if (f.zero && !f.align) {
        f.fill[0] = '0';
        f.align = '=';
    }
    return f;
}

static void put_format(struct sb *sb, struct val v, const struct spec *f)
{
    if ((v.type == VAL_INT || v.type == VAL_BOOL) &&
        (f->type ? strchr("dxXob", f->type) != NULL : v.type == VAL_INT))
        put_integer(sb, v.type == VAL_BOOL ? v.b : v.i, f);
    else if (sl_tpl_is_number(v) && v.type != VAL_BOOL && (f->type == 0 || strchr("eEfFgG%", f->type)))
        put_float(sb, sl_tpl_as_float(v), f);
    else if (f->type == 0 || (f->type == 's' && v.type == VAL_STR))
        put_text(sb, sl_tpl_text(sb->cx, v), f);
    else
        bad(sb->cx, "this conversion does not fit the value");
}

/* name or index, then .attribute and [key] parts: the value a field names. */
static struct val field_value(struct cx *cx, const struct str *s, size_t at, size_t to,
                              const struct args *args, size_t *next)
{
    size_t end = at;
    struct val v = {.type = VAL_MISSING};
    while (end < to && s->p[end] != '.' && s->p[end] != '[')
        end++;
    const struct str *name = sl_tpl_sub(cx, s, at, end).s;
    struct str digits = {.p = s->p, .n = end};
    size_t after = at;
    int64_t index = number(cx, &digits, &after, INT32_MAX);
    if (name->n == 0)
        index = (int64_t)(*next)++;
    else if (after != end)
        index = -1;
    if (index >= 0 && (size_t)index < args->n_pos)
        v = args->pos[index];
    for (size_t i = 0; i < args->n_kw && index < 0; i++)
        if (sl_tpl_str_eq(args->kw[i].name, name))
            v = args->kw[i].val;
    if (v.type == VAL_MISSING)
        bad(cx, "a field names no argument");
    while (end < to) {
        bool item = s->p[end] == '[';
        size_t from = ++end;
        while (end < to && (item ? s->p[end] != ']' : s->p[end] != '.' && s->p[end] != '['))
            end++;
        struct val key = sl_tpl_sub(cx, s, from, end);
        digits.n = end;
        after = from;
        index = item ? number(cx, &digits, &after, INT32_MAX) : -1;
        v = !item                        ? sl_tpl_getattr(cx, v, key.s)
            : index >= 0 && after == end ? sl_tpl_getitem(cx, v, sl_tpl_int(index))
                                         : sl_tpl_getitem(cx, v, key);
        end += item;
    }
    return v;
}

struct val sl_tpl_format(struct cx *cx, const struct str *s, const struct args *args)
{
    struct sb sb;
    size_t next = 0;
    sl_tpl_sb_init(&sb, cx);
    for (size_t at = 0; at < s->n;) {
        char c = s->p[at];
        if (c != '{' && c != '}') {
            size_t from = at;
            while (at < s->n && s->p[at] != '{' && s->p[at] != '}')
                at++;
            sl_tpl_sb_str(&sb, s, from, at);
            continue;
        }
        if (at + 1 < s->n && s->p[at + 1] == c) {
            sl_tpl_sb_str(&sb, s, at, at + 1);
            at += 2;
            continue;
        }
        static const struct str close = {.p = "}", .n = 1};
        size_t end = c == '{' ? sl_tpl_find(s, at, s->n, &close) : SIZE_MAX, from = at + 1, name_end = from;
        if (end == SIZE_MAX)
            bad(cx, "a brace without its partner");
        while (name_end < end && s->p[name_end] != ':' && s->p[name_end] != '!')
            name_end++;
        struct val v = field_value(cx, s, from, name_end, args, &next);
        if (name_end < end && s->p[name_end] == '!') {
            struct sb text;
            sl_tpl_sb_init(&text, cx);
            if (name_end + 1 < end && s->p[name_end + 1] == 'r')
                sl_tpl_repr(&text, v);
            else
                sl_tpl_print(&text, v);
            v = sl_tpl_sb_done(&text);
            while (name_end < end && s->p[name_end] != ':')
                name_end++;
        }
        struct spec f = parse_spec(cx, s, name_end < end ? name_end + 1 : end, end);
        put_format(&sb, v, &f);
        at = end + 1;
    }
    return sl_tpl_sb_done(&sb);
}
