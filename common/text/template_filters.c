/* common/text/template_filters.c - the filters of Jinja's list that chat templates use or could use.
 *
 * Where Jinja gives a lazy sequence (map, select, items, reverse, batch) these give a list: the difference
 * shows only when a template prints the sequence itself. */
#include "common/text/template_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/utf8.h"

#define FILTER(name)                                                                                         \
    static struct val name(struct cx *cx, struct val self, const struct val *slots SL_UNUSED,                \
                           const struct args *raw SL_UNUSED)

static bool flag(struct val slot, bool dflt)
{
    return slot.type == VAL_MISSING ? dflt : sl_tpl_truth(slot);
}

static struct val list_of(struct list *l)
{
    return (struct val){.type = VAL_LIST, .l = l};
}

static struct list *copy_items(struct cx *cx, struct val v)
{
    const struct list *from = sl_tpl_iter(cx, v);
    struct list *l;
    sl_tpl_list(cx, VAL_LIST, &l);
    for (size_t i = 0; i < from->n; i++)
        sl_tpl_list_add(cx, l, from->items[i]);
    return l;
}

/* --- text --- */

FILTER(f_trim)
{
    size_t from, to;
    const struct str *s = sl_tpl_text(cx, self),
                     *chars = sl_tpl_str_arg(cx, slots[0], "the characters to trim");
    sl_tpl_charge(cx, s->n * (chars ? 1 + chars->n / 64 : 1));
    sl_tpl_strip(s, chars, true, true, &from, &to);
    return sl_tpl_sub(cx, s, from, to);
}

FILTER(f_upper)
{
    return sl_tpl_change_case(cx, sl_tpl_text(cx, self), CASE_UPPER);
}

FILTER(f_lower)
{
    return sl_tpl_change_case(cx, sl_tpl_text(cx, self), CASE_LOWER);
}

FILTER(f_capitalize)
{
    return sl_tpl_change_case(cx, sl_tpl_text(cx, self), CASE_CAPITALIZE);
}

/* Jinja's title starts words after white space, - ( { [ < only. */
FILTER(f_title)
{
    const struct str *s = sl_tpl_text(cx, self);
    struct sb sb;
    size_t from = 0;
    sl_tpl_sb_init(&sb, cx);
    for (size_t i = 0, used; i <= s->n; i += used) {
        uint32_t cp = i < s->n ? sl_tpl_cp(s->p, i, s->n, &used) : ' ';
        if (i == s->n)
            used = 1;
        if (!sl_tpl_is_space(cp) && !(cp < 0x80 && strchr("-({[<", (int)cp)))
            continue;
        sl_tpl_sb_all(&sb, sl_tpl_change_case(cx, sl_tpl_sub(cx, s, from, i).s, CASE_CAPITALIZE).s);
        if (i < s->n)
            sl_tpl_sb_str(&sb, s, i, i + used);
        from = i + used;
    }
    return sl_tpl_sb_done(&sb);
}

FILTER(f_string)
{
    return (struct val){.type = VAL_STR, .s = sl_tpl_text(cx, self)};
}

FILTER(f_safe)
{
    return sl_tpl_as_markup(cx, f_string(cx, self, slots, raw));
}

FILTER(f_escape)
{
    const struct str *s = sl_tpl_text(cx, self);
    return s->markup ? self : sl_tpl_escape(cx, s);
}

FILTER(f_forceescape)
{
    return sl_tpl_escape(cx, sl_tpl_text(cx, self));
}

FILTER(f_replace)
{
    return sl_tpl_replace(cx, sl_tpl_text(cx, self), sl_tpl_text(cx, slots[0]), sl_tpl_text(cx, slots[1]),
                          sl_tpl_int_arg(cx, slots[2], -1, "count"));
}

FILTER(f_indent)
{
    const struct str *s = sl_tpl_text(cx, self), *by = NULL;
    bool first = flag(slots[1], false), blank = flag(slots[2], false);
    struct sb sb, pad;
    sl_tpl_sb_init(&pad, cx);
    if (slots[0].type == VAL_STR)
        by = slots[0].s;
    for (int64_t i = by ? 0 : sl_tpl_int_arg(cx, slots[0], 4, "width"); i > 0; i--)
        sl_tpl_sb_puts(&pad, " ");
    if (!by)
        by = sl_tpl_sb_done(&pad).s;
    sl_tpl_sb_init(&sb, cx);
    if (s->n == 0 && first)
        sl_tpl_sb_all(&sb, by);
    for (size_t from = 0, line = 0; from < s->n; line++) {
        const char *newline = memchr(s->p + from, '\n', s->n - from);
        size_t to = newline ? (size_t)(newline - s->p) : s->n;
        if (line == 0 ? first : (to > from || blank))
            sl_tpl_sb_all(&sb, by);
        sl_tpl_sb_str(&sb, s, from, newline ? to + 1 : to);
        from = to + 1;
        if (newline && from == s->n && blank) /* the empty line behind the last newline */
            sl_tpl_sb_all(&sb, by);
    }
    return sl_tpl_sb_done(&sb);
}

FILTER(f_wordcount)
{
    const struct str *s = sl_tpl_text(cx, self);
    int64_t n = 0;
    bool in_word = false;
    sl_tpl_charge(cx, s->n);
    for (size_t i = 0, used; i < s->n; i += used) {
        uint32_t cp = sl_tpl_cp(s->p, i, s->n, &used);
        bool word =
            cp == '_' || cp >= 0x80 || (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z');
        n += word && !in_word;
        in_word = word;
    }
    return sl_tpl_int(n);
}

FILTER(f_truncate)
{
    const struct str *s = sl_tpl_text(cx, self), *end = sl_tpl_str_arg(cx, slots[2], "end");
    int64_t length = sl_tpl_int_arg(cx, slots[0], 255, "length"),
            leeway = sl_tpl_int_arg(cx, slots[3], 5, "leeway");
    struct val tail = end ? (struct val){.type = VAL_STR, .s = end} : sl_tpl_cstr(cx, "...");
    int64_t tail_n = (int64_t)sl_tpl_length(cx, tail.s);
    if (length < tail_n || leeway < 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "truncate: length must not be below that of end");
    if ((int64_t)sl_tpl_length(cx, s) - leeway <= length)
        return (struct val){.type = VAL_STR, .s = s};
    struct val parts[3] = {sl_tpl_none(), sl_tpl_int(length - tail_n), sl_tpl_none()};
    struct val cut = sl_tpl_slice(cx, (struct val){.type = VAL_STR, .s = s}, parts);
    if (!flag(slots[1], false)) { /* not inside a word */
        const char *space = cut.s->n ? memrchr(cut.s->p, ' ', cut.s->n) : NULL;
        if (space)
            cut = sl_tpl_sub(cx, cut.s, 0, (size_t)(space - cut.s->p));
    }
    struct sb sb;
    sl_tpl_sb_init(&sb, cx);
    sl_tpl_sb_all(&sb, cut.s);
    sl_tpl_sb_all(&sb, tail.s);
    return sl_tpl_sb_done(&sb);
}

FILTER(f_center)
{
    static const struct str name = {.p = "center", .n = 6};
    struct args args = {.pos = &(struct val){.type = VAL_INT, .i = sl_tpl_int_arg(cx, slots[0], 80, "width")},
                        .n_pos = 1};
    struct val text = {.type = VAL_STR, .s = sl_tpl_text(cx, self)};
    return sl_tpl_call_builtin(cx, sl_tpl_method(text, &name), text, &args);
}

FILTER(f_format)
{
    const struct str *s = sl_tpl_text(cx, self);
    struct list *l;
    struct dict *d;
    struct val args = sl_tpl_list(cx, VAL_TUPLE, &l), named = sl_tpl_dict(cx, VAL_DICT, &d);
    if (raw->n_pos && raw->n_kw)
        sl_tpl_fail(&cx->base, SL_EINVAL, "format takes positional or keyword arguments, not both");
    for (size_t i = 0; i < raw->n_pos; i++)
        sl_tpl_list_add(cx, l, raw->pos[i]);
    for (size_t i = 0; i < raw->n_kw; i++)
        sl_tpl_dict_set(cx, d, (struct val){.type = VAL_STR, .s = raw->kw[i].name}, raw->kw[i].val);
    return sl_tpl_percent(cx, s, raw->n_kw ? named : args);
}

FILTER(f_tojson)
{
    return sl_tpl_tojson(cx, self, slots);
}

/* --- numbers --- */

/* A number out of text, as Python's int() and float() read it; false when it is none. */
static bool parse_number(const struct str *s, int64_t base, struct val *out, bool want_int)
{
    char text[128], *end = text;
    size_t from, to, n = 0;
    sl_tpl_strip(s, NULL, true, true, &from, &to);
    if (to - from >= sizeof text || to == from)
        return false;
    for (size_t i = from; i < to; i++) {
        if (s->p[i] == 0 || (s->p[i] == '_' && (i == from || i + 1 == to || s->p[i - 1] == '_')))
            return false;
        if (s->p[i] != '_')
            text[n++] = s->p[i];
    }
    text[n] = 0;
    errno = 0;
    if (want_int)
        *out = sl_tpl_int(strtoll(text, &end, (int)base));
    else if (strpbrk(text, "xX(")) /* C reads hexadecimal floats and nan(...), Python does not */
        return false;
    else
        *out = sl_tpl_float(strtod(text, &end));
    return *end == 0 && end != text && (errno == 0 || !want_int);
}

FILTER(f_int)
{
    struct val dflt = slots[0].type == VAL_MISSING ? sl_tpl_int(0) : slots[0], v;
    int64_t base = sl_tpl_int_arg(cx, slots[1], 10, "base");
    if (self.type == VAL_UNDEFINED)
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%.64s' is undefined", self.name ? self.name : "value");
    if (self.type == VAL_INT || self.type == VAL_BOOL)
        return sl_tpl_int(self.type == VAL_INT ? self.i : self.b);
    if (self.type == VAL_STR && base >= 2 && base <= 36 && parse_number(self.s, base, &v, true))
        return v;
    if (self.type == VAL_STR && !parse_number(self.s, 10, &self, false))
        return dflt;
    if (self.type != VAL_FLOAT || !(self.f > -9.2e18 && self.f < 9.2e18))
        return dflt;
    return sl_tpl_int((int64_t)self.f);
}

FILTER(f_float)
{
    struct val dflt = slots[0].type == VAL_MISSING ? sl_tpl_float(0) : slots[0], v;
    if (self.type == VAL_UNDEFINED)
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%.64s' is undefined", self.name ? self.name : "value");
    if (sl_tpl_is_number(self))
        return sl_tpl_float(sl_tpl_as_float(self));
    return self.type == VAL_STR && parse_number(self.s, 10, &v, false) ? v : dflt;
}

static double need_number(struct cx *cx, struct val v)
{
    if (!sl_tpl_is_number(v))
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%s' is not a number", sl_tpl_type_name(v));
    return sl_tpl_as_float(v);
}

FILTER(f_abs)
{
    double f = need_number(cx, self);
    if (self.type == VAL_FLOAT)
        return sl_tpl_float(fabs(f));
    int64_t i = self.type == VAL_BOOL ? self.b : self.i;
    return i < 0 ? sl_tpl_binary(cx, OP_SUB, sl_tpl_int(0), self) : sl_tpl_int(i);
}

FILTER(f_round)
{
    double f = need_number(cx, self);
    int64_t precision = sl_tpl_int_arg(cx, slots[0], 0, "precision");
    const struct str *how = sl_tpl_str_arg(cx, slots[1], "method");
    if (precision < -300 || precision > 300)
        sl_tpl_fail(&cx->base, SL_EINVAL, "round: precision out of range");
    double scale = pow(10, (double)precision);
    if ((!how || sl_tpl_str_is(how, "common")) && self.type != VAL_FLOAT && precision >= 0)
        return sl_tpl_int(self.type == VAL_INT ? self.i : self.b);
    if (!how || sl_tpl_str_is(how, "common")) { /* to even, on the decimal form, as Python's round() */
        char text[700];
        if (precision < 0)
            return sl_tpl_float(nearbyint(f * scale) / scale);
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        return sl_tpl_float(strtod(text, NULL));
    }
    if (sl_tpl_str_is(how, "ceil"))
        return sl_tpl_float(ceil(f * scale) / scale);
    if (sl_tpl_str_is(how, "floor"))
        return sl_tpl_float(floor(f * scale) / scale);
    sl_tpl_fail(&cx->base, SL_EINVAL, "round: method must be common, ceil or floor");
}

/* --- sequences --- */

FILTER(f_default)
{
    if (self.type == VAL_UNDEFINED || (flag(slots[1], false) && !sl_tpl_truth(self)))
        return slots[0].type == VAL_MISSING ? sl_tpl_cstr(cx, "") : slots[0];
    return self;
}

FILTER(f_length)
{
    if (self.type == VAL_STR)
        return sl_tpl_int((int64_t)sl_tpl_length(cx, self.s));
    if (self.type == VAL_LOOP)
        return sl_tpl_int((int64_t)self.loop->items->n);
    if (self.type == VAL_DICT)
        return sl_tpl_int((int64_t)self.d->n);
    if (self.type != VAL_LIST && self.type != VAL_TUPLE && self.type != VAL_UNDEFINED)
        sl_tpl_fail(&cx->base, SL_EINVAL, "object of type '%s' has no length", sl_tpl_type_name(self));
    return sl_tpl_int((int64_t)sl_tpl_iter(cx, self)->n);
}

FILTER(f_list)
{
    return list_of(copy_items(cx, self));
}

FILTER(f_first)
{
    const struct list *l = sl_tpl_iter(cx, self);
    return l->n ? l->items[0] : sl_tpl_undefined("the first item of an empty sequence");
}

FILTER(f_last)
{
    const struct list *l = sl_tpl_iter(cx, self);
    return l->n ? l->items[l->n - 1] : sl_tpl_undefined("the last item of an empty sequence");
}

FILTER(f_reverse)
{
    struct list *l = copy_items(cx, self);
    for (size_t i = 0; i < l->n / 2; i++) {
        struct val v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
    return self.type == VAL_STR ? sl_tpl_join(cx, NULL, l) : list_of(l);
}

FILTER(f_items)
{
    static const struct str name = {.p = "items", .n = 5};
    struct list *empty;
    if (self.type == VAL_UNDEFINED)
        return sl_tpl_list(cx, VAL_LIST, &empty);
    if (self.type != VAL_DICT)
        sl_tpl_fail(&cx->base, SL_EINVAL, "can only get item pairs from a mapping, not '%s'",
                    sl_tpl_type_name(self));
    return sl_tpl_call_builtin(cx, sl_tpl_method(self, &name), self, &(struct args){0});
}

/* The attribute of each item that a filter asks for, or the item. */
static struct val attribute_of(struct cx *cx, struct val item, struct val attribute)
{
    return attribute.type == VAL_MISSING || attribute.type == VAL_NONE
               ? item
               : sl_tpl_get_path(cx, item, attribute, NULL);
}

FILTER(f_join)
{
    struct list *l = copy_items(cx, self);
    for (size_t i = 0; i < l->n; i++)
        l->items[i] = attribute_of(cx, l->items[i], slots[1]);
    return sl_tpl_join(cx, slots[0].type == VAL_MISSING ? NULL : sl_tpl_text(cx, slots[0]), l);
}

FILTER(f_sum)
{
    const struct list *l = sl_tpl_iter(cx, self);
    struct val sum = slots[1].type == VAL_MISSING ? sl_tpl_int(0) : slots[1];
    for (size_t i = 0; i < l->n; i++)
        sum = sl_tpl_binary(cx, OP_ADD, sum, attribute_of(cx, l->items[i], slots[0]));
    return sum;
}

/* What sort, unique, min, max and groupby compare: strings without regard to case unless asked. */
static struct val sort_key(struct cx *cx, struct val item, struct val attribute, bool case_sensitive)
{
    struct val v = attribute_of(cx, item, attribute);
    return v.type == VAL_STR && !case_sensitive ? sl_tpl_change_case(cx, v.s, CASE_LOWER) : v;
}

struct keyed {
    struct val key, item;
};

/* Stable merge sort; qsort() would not be left well by a comparison that fails. */
static void merge_sort(struct cx *cx, struct keyed *a, struct keyed *tmp, size_t n, bool down)
{
    if (n < 2)
        return;
    size_t half = n / 2, i = 0, k = half, at = 0;
    merge_sort(cx, a, tmp, half, down);
    merge_sort(cx, a + half, tmp, n - half, down);
    while (i < half || k < n) {
        int d = i == half ? 1 : k == n ? -1 : sl_tpl_cmp(cx, a[i].key, a[k].key);
        if (down && i < half && k < n)
            d = -d;
        tmp[at++] = d <= 0 ? a[i++] : a[k++];
    }
    memcpy(a, tmp, n * sizeof *a);
}

static struct keyed *keyed_items(struct cx *cx, struct val v, struct val attribute, bool case_sensitive,
                                 size_t *n)
{
    const struct list *l = sl_tpl_iter(cx, v);
    struct keyed *k = sl_tpl_alloc(&cx->base, (l->n + 1) * sizeof *k);
    for (size_t i = 0; i < l->n; i++)
        k[i] = (struct keyed){sort_key(cx, l->items[i], attribute, case_sensitive), l->items[i]};
    *n = l->n;
    return k;
}

static struct keyed *sorted(struct cx *cx, struct val v, struct val attribute, bool case_sensitive, bool down,
                            size_t *n)
{
    struct keyed *k = keyed_items(cx, v, attribute, case_sensitive, n);
    merge_sort(cx, k, sl_tpl_alloc(&cx->base, (*n + 1) * sizeof *k), *n, down);
    return k;
}

FILTER(f_sort)
{
    struct list *out;
    size_t n = 0;
    const struct keyed *k = sorted(cx, self, slots[2], flag(slots[1], false), flag(slots[0], false), &n);
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    for (size_t i = 0; i < n; i++)
        sl_tpl_list_add(cx, out, k[i].item);
    return v;
}

FILTER(f_dictsort)
{
    const struct str *by = sl_tpl_str_arg(cx, slots[1], "by");
    if (self.type == VAL_UNDEFINED)
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%.64s' is undefined", self.name ? self.name : "value");
    struct val pairs = f_items(cx, self, slots, raw);
    struct val args[3] = {slots[2], slots[0], sl_tpl_int(by && sl_tpl_str_is(by, "value"))};
    return f_sort(cx, pairs, args, raw);
}

FILTER(f_unique)
{
    struct list *out;
    size_t n = 0, kept = 0;
    struct keyed *k = keyed_items(cx, self, slots[1], flag(slots[0], false), &n);
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        sl_tpl_need_hashable(cx, k[i].key);
        for (size_t j = 0; j < kept && !seen; j++)
            seen = sl_tpl_eq(cx, k[j].key, k[i].key);
        if (seen)
            continue;
        sl_tpl_list_add(cx, out, k[i].item);
        k[kept++] = k[i];
    }
    return v;
}

static struct val extreme(struct cx *cx, struct val self, const struct val *slots, int sign)
{
    size_t n = 0, best = 0;
    const struct keyed *k = keyed_items(cx, self, slots[1], flag(slots[0], false), &n);
    for (size_t i = 1; i < n; i++)
        if (sl_tpl_cmp(cx, k[i].key, k[best].key) * sign > 0)
            best = i;
    return n ? k[best].item : sl_tpl_undefined("the extreme of an empty sequence");
}

FILTER(f_max)
{
    return extreme(cx, self, slots, 1);
}

FILTER(f_min)
{
    return extreme(cx, self, slots, -1);
}

FILTER(f_groupby)
{
    struct list *out, *group = NULL, *pair;
    size_t n = 0;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    const struct keyed *k = sorted(cx, self, slots[0], flag(slots[2], false), false, &n);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || !sl_tpl_eq(cx, k[i].key, k[i - 1].key)) {
            struct val items = sl_tpl_list(cx, VAL_LIST, &group), both = sl_tpl_list(cx, VAL_TUPLE, &pair);
            sl_tpl_list_add(cx, pair, attribute_of(cx, k[i].item, slots[0]));
            sl_tpl_list_add(cx, pair, items);
            sl_tpl_list_add(cx, out, both);
        }
        sl_tpl_list_add(cx, group, k[i].item);
    }
    return v;
}

FILTER(f_batch)
{
    const struct list *l = sl_tpl_iter(cx, self);
    int64_t size = sl_tpl_int_arg(cx, slots[0], 0, "linecount");
    struct list *out, *row = NULL;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    if (size < 1)
        sl_tpl_fail(&cx->base, SL_EINVAL, "batch: linecount must be 1 or more");
    for (size_t i = 0; i < l->n; i++) {
        if (i % (size_t)size == 0)
            sl_tpl_list_add(cx, out, sl_tpl_list(cx, VAL_LIST, &row));
        sl_tpl_list_add(cx, row, l->items[i]);
    }
    while (row && slots[1].type != VAL_MISSING && slots[1].type != VAL_NONE && row->n < (size_t)size)
        sl_tpl_list_add(cx, row, slots[1]);
    return v;
}

FILTER(f_slice)
{
    const struct list *l = sl_tpl_iter(cx, self);
    int64_t n = sl_tpl_int_arg(cx, slots[0], 0, "slices");
    struct list *out, *column;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    if (n < 1 || n > SL_TEMPLATE_MAX_RANGE)
        sl_tpl_fail(&cx->base, SL_EINVAL, "slice: the number of slices must be 1 to %d",
                    SL_TEMPLATE_MAX_RANGE);
    size_t each = l->n / (size_t)n, longer = l->n % (size_t)n, at = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        sl_tpl_list_add(cx, out, sl_tpl_list(cx, VAL_LIST, &column));
        for (size_t k = 0; k < each + (i < longer); k++)
            sl_tpl_list_add(cx, column, l->items[at++]);
        if (slots[1].type != VAL_MISSING && slots[1].type != VAL_NONE && i >= longer && longer)
            sl_tpl_list_add(cx, column, slots[1]);
    }
    return v;
}

/* --- filters that apply others --- */

static const struct val *keyword(const struct args *raw, const char *name)
{
    for (size_t i = 0; i < raw->n_kw; i++)
        if (sl_tpl_str_is(raw->kw[i].name, name))
            return &raw->kw[i].val;
    return NULL;
}

/* map, select and their like take anything that is false, such as none, for an empty sequence. */
static const struct list *lenient_items(struct cx *cx, struct val v)
{
    static const struct list empty;
    return sl_tpl_truth(v) ? sl_tpl_iter(cx, v) : &empty;
}

FILTER(f_map)
{
    const struct list *l = lenient_items(cx, self);
    const struct val *attribute = raw->n_pos == 0 ? keyword(raw, "attribute") : NULL,
                     *dflt = keyword(raw, "default");
    const struct builtin *filter = NULL;
    struct args rest = *raw;
    struct list *out;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    if (!attribute) {
        if (raw->n_pos == 0 || raw->pos[0].type != VAL_STR || !(filter = sl_tpl_filter(raw->pos[0].s)))
            sl_tpl_fail(&cx->base, SL_EINVAL, "map needs the name of a filter, or attribute=");
        rest.pos++;
        rest.n_pos--;
    }
    for (size_t i = 0; i < l->n; i++) {
        sl_tpl_list_add(cx, out,
                        attribute ? sl_tpl_get_path(cx, l->items[i], *attribute, dflt)
                                  : sl_tpl_call_builtin(cx, filter, l->items[i], &rest));
    }
    return v;
}

static struct val select_items(struct cx *cx, struct val self, const struct args *raw, bool by_attribute,
                               bool keep)
{
    const struct list *l = lenient_items(cx, self);
    const struct builtin *test = NULL;
    struct args rest = *raw;
    struct val attribute = {.type = VAL_MISSING};
    struct list *out;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    if (by_attribute) {
        if (rest.n_pos == 0)
            sl_tpl_fail(&cx->base, SL_EINVAL, "selectattr and rejectattr need the name of an attribute");
        attribute = *rest.pos++;
        rest.n_pos--;
    }
    if (rest.n_pos) {
        if (rest.pos[0].type != VAL_STR || !(test = sl_tpl_test(rest.pos[0].s)))
            sl_tpl_fail(&cx->base, SL_EINVAL, "select and reject need the name of a test");
        rest.pos++;
        rest.n_pos--;
    }
    for (size_t i = 0; i < l->n; i++) {
        struct val item = attribute_of(cx, l->items[i], attribute);
        bool yes = test ? sl_tpl_run_test(cx, test, item, &rest) : sl_tpl_truth(item);
        if (yes == keep)
            sl_tpl_list_add(cx, out, l->items[i]);
    }
    return v;
}

FILTER(f_select)
{
    return select_items(cx, self, raw, false, true);
}

FILTER(f_reject)
{
    return select_items(cx, self, raw, false, false);
}

FILTER(f_selectattr)
{
    return select_items(cx, self, raw, true, true);
}

FILTER(f_rejectattr)
{
    return select_items(cx, self, raw, true, false);
}

static const struct builtin filters[] = {
    {"abs", f_abs, "", 0},
    {"batch", f_batch, "linecount,fill_with", 1},
    {"capitalize", f_capitalize, "", 0},
    {"center", f_center, "width", 0},
    {"count", f_length, "", 0},
    {"d", f_default, "default_value,boolean", 0},
    {"default", f_default, "default_value,boolean", 0},
    {"dictsort", f_dictsort, "case_sensitive,by,reverse", 0},
    {"e", f_escape, "", 0},
    {"escape", f_escape, "", 0},
    {"first", f_first, "", 0},
    {"float", f_float, "default", 0},
    {"forceescape", f_forceescape, "", 0},
    {"format", f_format, NULL, 0},
    {"groupby", f_groupby, "attribute,default,case_sensitive", 1},
    {"indent", f_indent, "width,first,blank", 0},
    {"int", f_int, "default,base", 0},
    {"items", f_items, "", 0},
    {"join", f_join, "d,attribute", 0},
    {"last", f_last, "", 0},
    {"length", f_length, "", 0},
    {"list", f_list, "", 0},
    {"lower", f_lower, "", 0},
    {"map", f_map, NULL, 0},
    {"max", f_max, "case_sensitive,attribute", 0},
    {"min", f_min, "case_sensitive,attribute", 0},
    {"reject", f_reject, NULL, 0},
    {"rejectattr", f_rejectattr, NULL, 0},
    {"replace", f_replace, "old,new,count", 2},
    {"reverse", f_reverse, "", 0},
    {"round", f_round, "precision,method", 0},
    {"safe", f_safe, "", 0},
    {"select", f_select, NULL, 0},
    {"selectattr", f_selectattr, NULL, 0},
    {"slice", f_slice, "slices,fill_with", 1},
    {"sort", f_sort, "reverse,case_sensitive,attribute", 0},
    {"string", f_string, "", 0},
    {"sum", f_sum, "attribute,start", 0},
    {"title", f_title, "", 0},
    {"tojson", f_tojson, "ensure_ascii,indent,separators,sort_keys", 0},
    {"trim", f_trim, "chars", 0},
    {"truncate", f_truncate, "length,killwords,end,leeway", 0},
    {"unique", f_unique, "case_sensitive,attribute", 0},
    {"upper", f_upper, "", 0},
    {"wordcount", f_wordcount, "", 0},
};

const struct builtin *sl_tpl_filter(const struct str *name)
{
    return sl_tpl_lookup(filters, SL_COUNTOF(filters), name);
}
