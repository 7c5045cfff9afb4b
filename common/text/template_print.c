/* common/text/template_print.c - values as text, in Python's forms: str() and repr(). */
#include "common/text/template_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sl_tpl_repr_float(char out[40], double f)
{
    if (isnan(f) || isinf(f)) {
        snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    /* the fewest digits that read back as the same number */
    int digits = 1;
    char e[40];
    do
        snprintf(e, sizeof e, "%.*e", digits - 1, f);
    while (strtod(e, NULL) != f && ++digits <= 17);
    int exponent = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        /* "%e" has at least two exponent digits, as Python */
        snprintf(out, 40, "%s", e);
        return;
    }
    int decimals = digits - 1 - exponent;
    snprintf(out, 40, decimals > 0 ? "%.*f" : "%.*f.0", decimals > 0 ? decimals : 0, f);
}

static bool printable(uint32_t cp)
{
    return !(cp < 0x20 || (cp >= 0x7F && cp < 0xA1) || cp == 0xAD || (sl_tpl_is_space(cp) && cp != ' ') ||
             (cp >= 0x200B && cp <= 0x200F) || (cp >= 0x2028 && cp <= 0x202E) ||
             (cp >= 0x2060 && cp <= 0x206F) || (cp >= 0xE000 && cp <= 0xF8FF) || cp == 0xFEFF ||
             (cp >= 0xFFF0 && cp <= 0xFFFB) || (cp & 0xFFFE) == 0xFFFE || cp >= 0xE0000);
}

static void repr_str(struct sb *sb, const struct str *s)
{
    char quote = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'', esc[16];
    sl_tpl_sb_bytes(sb, &quote, 1, false);
    for (size_t i = 0, used; i < s->n; i += used) {
        uint32_t cp = sl_tpl_cp(s->p, i, s->n, &used);
        if (cp == (uint8_t)quote || cp == '\\') {
            sl_tpl_sb_puts(sb, "\\");
            sl_tpl_sb_str(sb, s, i, i + used);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            sl_tpl_sb_puts(sb, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        } else if (printable(cp)) {
            sl_tpl_sb_str(sb, s, i, i + used);
        } else {
            snprintf(esc, sizeof esc,
                     cp < 0x100     ? "\\x%02" PRIx32
                     : cp < 0x10000 ? "\\u%04" PRIx32
                                    : "\\U%08" PRIx32,
                     cp);
            sl_tpl_sb_puts(sb, esc);
        }
    }
    sl_tpl_sb_bytes(sb, &quote, 1, false);
}

static void repr_items(struct sb *sb, struct val v)
{
    sl_tpl_sb_puts(sb, v.type == VAL_LIST ? "[" : "(");
    for (size_t i = 0; i < v.l->n; i++) {
        if (i)
            sl_tpl_sb_puts(sb, ", ");
        sl_tpl_repr(sb, v.l->items[i]);
    }
    sl_tpl_sb_puts(sb, v.type == VAL_LIST ? "]" : v.l->n == 1 ? ",)" : ")");
}

static void repr_dict(struct sb *sb, const struct dict *d)
{
    sl_tpl_sb_puts(sb, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            sl_tpl_sb_puts(sb, ", ");
        sl_tpl_repr(sb, d->items[i].key);
        sl_tpl_sb_puts(sb, ": ");
        sl_tpl_repr(sb, d->items[i].val);
    }
    sl_tpl_sb_puts(sb, "}");
}

void sl_tpl_repr(struct sb *sb, struct val v)
{
    char text[64];
    sl_tpl_enter(sb->cx);
    switch (v.type) {
    case VAL_UNDEFINED:
        sl_tpl_sb_puts(sb, "Undefined");
        break;
    case VAL_NONE:
        sl_tpl_sb_puts(sb, "None");
        break;
    case VAL_BOOL:
        sl_tpl_sb_puts(sb, v.b ? "True" : "False");
        break;
    case VAL_INT:
        snprintf(text, sizeof text, "%" PRId64, v.i);
        sl_tpl_sb_puts(sb, text);
        break;
    case VAL_FLOAT:
        sl_tpl_repr_float(text, v.f);
        sl_tpl_sb_puts(sb, text);
        break;
    case VAL_STR:
        repr_str(sb, v.s);
        break;
    case VAL_LIST:
    case VAL_TUPLE:
        repr_items(sb, v);
        break;
    case VAL_DICT:
        repr_dict(sb, v.d);
        break;
    case VAL_NAMESPACE:
        sl_tpl_sb_puts(sb, "<Namespace ");
        repr_dict(sb, v.d);
        sl_tpl_sb_puts(sb, ">");
        break;
    case VAL_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.loop->at + 1, v.loop->items->n);
        sl_tpl_sb_puts(sb, text);
        break;
    default: /* Python would print an address */
        sl_tpl_sb_puts(sb, "<");
        sl_tpl_sb_puts(sb, sl_tpl_type_name(v));
        sl_tpl_sb_puts(sb, ">");
        break;
    }
    sl_tpl_leave(sb->cx);
}

void sl_tpl_print(struct sb *sb, struct val v)
{
    if (v.type == VAL_STR)
        sl_tpl_sb_all(sb, v.s);
    else if (v.type != VAL_UNDEFINED)
        sl_tpl_repr(sb, v);
}

const struct str *sl_tpl_text(struct cx *cx, struct val v)
{
    if (v.type == VAL_STR)
        return v.s;
    struct sb sb;
    sl_tpl_sb_init(&sb, cx);
    sl_tpl_print(&sb, v);
    return sl_tpl_sb_done(&sb).s;
}
