/* common/text/template_json.c - the filter tojson: Python's json.dumps(), as transformers calls it.
 *
 * Trust marks go through: the text inside a JSON string keeps the marks of the string. */
#include "common/text/template_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_INDENT 10000

struct writer {
    struct sb sb;
    bool ascii, sort, pretty;
    const struct str *indent, *item_sep, *key_sep;
};

static void put_string(struct writer *j, const struct str *s)
{
    char esc[16];
    sl_tpl_sb_puts(&j->sb, "\"");
    for (size_t i = 0, used, from = 0; i <= s->n; i += used) {
        uint32_t cp = i < s->n ? sl_tpl_cp(s->p, i, s->n, &used) : '"';
        if (cp != '"' && cp != '\\' && cp >= 0x20 && !(j->ascii && cp > 0x7E))
            continue;
        sl_tpl_sb_str(&j->sb, s, from, i);
        if (i == s->n)
            break;
        from = i + used;
        static const char special[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";
        const char *known = cp < 0x80 ? memchr(special, (int)cp, sizeof special - 1) : NULL;
        if (known)
            snprintf(esc, sizeof esc, "\\%c", names[known - special]);
        else if (cp < 0x10000)
            snprintf(esc, sizeof esc, "\\u%04" PRIx32, cp);
        else
            snprintf(esc, sizeof esc, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xD7C0 + (cp >> 10),
                     0xDC00 + (cp & 0x3FF));
        sl_tpl_sb_bytes(&j->sb, esc, strlen(esc), s->marks ? s->marks[i] : s->untrusted);
    }
    sl_tpl_sb_puts(&j->sb, "\"");
}

static void put_newline(struct writer *j, unsigned depth)
{
    if (!j->pretty)
        return;
    sl_tpl_sb_puts(&j->sb, "\n");
    for (unsigned i = 0; i < depth; i++)
        sl_tpl_sb_all(&j->sb, j->indent);
}

static void put_value(struct writer *j, struct val v, unsigned depth);

static void put_dict(struct writer *j, const struct dict *d, unsigned depth)
{
    struct cx *cx = j->sb.cx;
    const struct entry **order = sl_tpl_alloc(&cx->base, (d->n + 1) * sizeof *order);
    for (size_t i = 0; i < d->n; i++) {
        size_t at = i; /* insertion sort: objects are small, and the work is counted */
        for (; j->sort && at > 0 && sl_tpl_cmp(cx, order[at - 1]->key, d->items[i].key) > 0; at--)
            order[at] = order[at - 1];
        order[at] = &d->items[i];
    }
    sl_tpl_sb_puts(&j->sb, "{");
    for (size_t i = 0; i < d->n; i++) {
        struct val key = order[i]->key;
        if (i)
            sl_tpl_sb_all(&j->sb, j->item_sep);
        put_newline(j, depth + 1);
        if (key.type == VAL_STR) {
            put_string(j, key.s);
        } else if (key.type == VAL_NONE || sl_tpl_is_number(key)) {
            sl_tpl_sb_puts(&j->sb, "\"");
            put_value(j, key, 0);
            sl_tpl_sb_puts(&j->sb, "\"");
        } else {
            sl_tpl_fail(&cx->base, SL_EINVAL, "tojson: keys must be str, int, float, bool or None, not %s",
                        sl_tpl_type_name(key));
        }
        sl_tpl_sb_all(&j->sb, j->key_sep);
        put_value(j, order[i]->val, depth + 1);
    }
    if (d->n)
        put_newline(j, depth);
    sl_tpl_sb_puts(&j->sb, "}");
}

static void put_list(struct writer *j, const struct list *l, unsigned depth)
{
    sl_tpl_sb_puts(&j->sb, "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            sl_tpl_sb_all(&j->sb, j->item_sep);
        put_newline(j, depth + 1);
        put_value(j, l->items[i], depth + 1);
    }
    if (l->n)
        put_newline(j, depth);
    sl_tpl_sb_puts(&j->sb, "]");
}

static void put_value(struct writer *j, struct val v, unsigned depth)
{
    struct cx *cx = j->sb.cx;
    sl_tpl_enter(cx);
    switch (v.type) {
    case VAL_NONE:
        sl_tpl_sb_puts(&j->sb, "null");
        break;
    case VAL_BOOL:
        sl_tpl_sb_puts(&j->sb, v.b ? "true" : "false");
        break;
    case VAL_INT:
        sl_tpl_repr(&j->sb, v);
        break;
    case VAL_FLOAT:
        if (!isfinite(v.f))
            sl_tpl_sb_puts(&j->sb, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
        else
            sl_tpl_repr(&j->sb, v);
        break;
    case VAL_STR:
        put_string(j, v.s);
        break;
    case VAL_LIST:
    case VAL_TUPLE:
        put_list(j, v.l, depth);
        break;
    case VAL_DICT:
        put_dict(j, v.d, depth);
        break;
    default:
        sl_tpl_fail(&cx->base, SL_EINVAL, "object of type %s is not JSON serializable", sl_tpl_type_name(v));
    }
    sl_tpl_leave(cx);
}

struct val sl_tpl_tojson(struct cx *cx, struct val v, const struct val *slots)
{
    struct writer j = {.ascii = slots[0].type != VAL_MISSING && sl_tpl_truth(slots[0]),
                       .sort = slots[3].type != VAL_MISSING && sl_tpl_truth(slots[3]),
                       .pretty = slots[1].type != VAL_MISSING && slots[1].type != VAL_NONE};
    sl_tpl_sb_init(&j.sb, cx);
    j.item_sep = sl_tpl_cstr(cx, j.pretty ? "," : ", ").s;
    j.key_sep = sl_tpl_cstr(cx, ": ").s;
    if (j.pretty && slots[1].type == VAL_STR) {
        j.indent = slots[1].s;
    } else if (j.pretty) {
        struct sb pad;
        int64_t width = sl_tpl_int_arg(cx, slots[1], 0, "indent");
        sl_tpl_sb_init(&pad, cx);
        for (int64_t i = 0; i < width && i < MAX_INDENT; i++)
            sl_tpl_sb_puts(&pad, " ");
        j.indent = sl_tpl_sb_done(&pad).s;
    }
    if (slots[2].type != VAL_MISSING && slots[2].type != VAL_NONE) {
        const struct list *both = sl_tpl_iter(cx, slots[2]);
        if (both->n != 2 || both->items[0].type != VAL_STR || both->items[1].type != VAL_STR)
            sl_tpl_fail(&cx->base, SL_EINVAL, "tojson: separators must be two strings");
        j.item_sep = both->items[0].s;
        j.key_sep = both->items[1].s;
    }
    put_value(&j, v, 0);
    return sl_tpl_sb_done(&j.sb);
}
