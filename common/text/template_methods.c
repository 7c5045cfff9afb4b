/* common/text/template_methods.c - methods of strings, lists and dicts, and the string work filters share
 * with them.
 *
 * Only what does not change its object is here: the sandbox transformers uses hides list.append and the like,
 * so to a template they are undefined. */
#include "common/text/template_internal.h"

#include <string.h>
#include <wctype.h>

#include "common/text/utf8.h"

/* --- strings --- */

#define METHOD(name)                                                                                         \
    static struct val name(struct cx *cx, struct val self, const struct val *slots SL_UNUSED,                \
                           const struct args *raw SL_UNUSED)

static struct val strip(struct cx *cx, struct val self, struct val set, bool left, bool right)
{
    size_t from, to;
    const struct str *chars = sl_tpl_str_arg(cx, set, "the characters to strip");
    sl_tpl_charge(cx, self.s->n * (chars ? 1 + chars->n / 64 : 1));
    sl_tpl_strip(self.s, chars, left, right, &from, &to);
    return sl_tpl_sub(cx, self.s, from, to);
}

METHOD(s_strip)
{
    return strip(cx, self, slots[0], true, true);
}

METHOD(s_lstrip)
{
    return strip(cx, self, slots[0], true, false);
}

METHOD(s_rstrip)
{
    return strip(cx, self, slots[0], false, true);
}

METHOD(s_upper)
{
    return sl_tpl_change_case(cx, self.s, CASE_UPPER);
}

METHOD(s_lower)
{
    return sl_tpl_change_case(cx, self.s, CASE_LOWER);
}

METHOD(s_title)
{
    return sl_tpl_change_case(cx, self.s, CASE_TITLE);
}

METHOD(s_capitalize)
{
    return sl_tpl_change_case(cx, self.s, CASE_CAPITALIZE);
}

METHOD(s_swapcase)
{
    return sl_tpl_change_case(cx, self.s, CASE_SWAP);
}

/* Splits at white space; the last piece is the untouched rest. */
static void split_space(struct cx *cx, const struct str *s, int64_t max, struct list *out)
{
    for (size_t at = 0, used; at < s->n;) {
        while (at < s->n && sl_tpl_is_space(sl_tpl_cp(s->p, at, s->n, &used)))
            at += used;
        if (at >= s->n)
            return;
        size_t from = at;
        if (max >= 0 && out->n == (size_t)max) {
            sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, from, s->n));
            return;
        }
        while (at < s->n && !sl_tpl_is_space(sl_tpl_cp(s->p, at, s->n, &used)))
            at += used;
        sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, from, at));
    }
}

METHOD(s_split)
{
    struct list *out;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    const struct str *s = self.s, *sep = sl_tpl_str_arg(cx, slots[0], "the separator");
    int64_t max = sl_tpl_int_arg(cx, slots[1], -1, "maxsplit");
    sl_tpl_charge(cx, s->n);
    if (!sep) {
        split_space(cx, s, max, out);
        return v;
    }
    if (sep->n == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "empty separator");
    size_t at = 0;
    while (max < 0 || (int64_t)out->n < max) {
        size_t hit = sl_tpl_find(s, at, s->n, sep);
        if (hit == SIZE_MAX)
            break;
        sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, at, hit));
        at = hit + sep->n;
    }
    sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, at, s->n));
    return v;
}

static void reverse(struct list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct val v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

METHOD(s_rsplit)
{
    struct list *out;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    const struct str *s = self.s, *sep = sl_tpl_str_arg(cx, slots[0], "the separator");
    int64_t max = sl_tpl_int_arg(cx, slots[1], -1, "maxsplit");
    size_t to = s->n;
    sl_tpl_charge(cx, s->n);
    if (!sep && max < 0) {
        split_space(cx, s, -1, out);
        return v;
    }
    if (!sep) {
        for (;;) {
            struct str rest = {.p = s->p, .n = to};
            size_t start, end;
            sl_tpl_strip(&rest, NULL, false, true, &start, &end);
            if (end == 0)
                break;
            size_t from = end;
            bool last = (int64_t)out->n == max;
            while (from > 0 && !last) {
                size_t at = from - 1, used;
                while (at > 0 && ((uint8_t)s->p[at] & 0xC0) == 0x80)
                    at--;
                if (sl_tpl_is_space(sl_tpl_cp(s->p, at, s->n, &used)))
                    break;
                from = at;
            }
            sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, last ? 0 : from, end));
            if (last)
                break;
            to = from;
            sl_tpl_charge(cx, 0);
        }
        reverse(out);
        return v;
    }
    if (sep->n == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "empty separator");
    while (max < 0 || (int64_t)out->n < max) {
        size_t hit = sl_tpl_find_last(cx, s, to, sep);
        if (hit == SIZE_MAX)
            break;
        sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, hit + sep->n, to));
        to = hit;
    }
    sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, 0, to));
    reverse(out);
    return v;
}

METHOD(s_splitlines)
{
    struct list *out;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    const struct str *s = self.s;
    bool keep = slots[0].type != VAL_MISSING && sl_tpl_truth(slots[0]);
    size_t from = 0;
    for (size_t i = 0, used; i < s->n; i += used) {
        uint32_t cp = sl_tpl_cp(s->p, i, s->n, &used);
        bool end = (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
                   cp == 0x2029;
        if (!end)
            continue;
        size_t after = i + used + (cp == '\r' && i + 1 < s->n && s->p[i + 1] == '\n');
        sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, from, keep ? after : i));
        from = after;
        used = after - i;
    }
    if (from < s->n)
        sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, from, s->n));
    return v;
}

static struct val partition(struct cx *cx, const struct str *s, struct val sep, bool last)
{
    struct list *out;
    struct val v = sl_tpl_list(cx, VAL_TUPLE, &out);
    const struct str *needle = sl_tpl_need_str(cx, sep, "the separator");
    if (needle->n == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "empty separator");
    size_t hit = last ? sl_tpl_find_last(cx, s, s->n, needle) : sl_tpl_find(s, 0, s->n, needle);
    bool found = hit != SIZE_MAX;
    size_t a = found ? hit : last ? 0 : s->n, b = found ? hit + needle->n : a;
    sl_tpl_charge(cx, s->n);
    sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, 0, a));
    sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, a, b));
    sl_tpl_list_add(cx, out, sl_tpl_sub(cx, s, b, s->n));
    return v;
}

METHOD(s_partition)
{
    return partition(cx, self.s, slots[0], false);
}

METHOD(s_rpartition)
{
    return partition(cx, self.s, slots[0], true);
}

static bool has_affix(struct cx *cx, const struct str *s, struct val affix, bool at_end)
{
    if (affix.type == VAL_TUPLE) {
        for (size_t i = 0; i < affix.l->n; i++) {
            const struct str *one = sl_tpl_need_str(cx, affix.l->items[i], "what it starts or ends with");
            if (one->n <= s->n && memcmp(at_end ? s->p + s->n - one->n : s->p, one->p, one->n) == 0)
                return true;
        }
        return false;
    }
    const struct str *one = sl_tpl_need_str(cx, affix, "what it starts or ends with");
    return one->n <= s->n && memcmp(at_end ? s->p + s->n - one->n : s->p, one->p, one->n) == 0;
}

METHOD(s_startswith)
{
    return sl_tpl_bool(has_affix(cx, self.s, slots[0], false));
}

METHOD(s_endswith)
{
    return sl_tpl_bool(has_affix(cx, self.s, slots[0], true));
}

METHOD(s_removeprefix)
{
    const struct str *affix = sl_tpl_need_str(cx, slots[0], "the prefix");
    return has_affix(cx, self.s, slots[0], false) ? sl_tpl_sub(cx, self.s, affix->n, self.s->n) : self;
}

METHOD(s_removesuffix)
{
    const struct str *affix = sl_tpl_need_str(cx, slots[0], "the suffix");
    return has_affix(cx, self.s, slots[0], true) ? sl_tpl_sub(cx, self.s, 0, self.s->n - affix->n) : self;
}

METHOD(s_replace)
{
    return sl_tpl_replace(cx, self.s, sl_tpl_need_str(cx, slots[0], "what to replace"),
                          sl_tpl_need_str(cx, slots[1], "the replacement"),
                          sl_tpl_int_arg(cx, slots[2], -1, "count"));
}

static int64_t char_index(struct cx *cx, const struct str *s, size_t hit)
{
    sl_tpl_charge(cx, s->n);
    return hit == SIZE_MAX ? -1 : (int64_t)sl_utf8_count(s->p, hit);
}

METHOD(s_find)
{
    const struct str *needle = sl_tpl_need_str(cx, slots[0], "what to find");
    return sl_tpl_int(char_index(cx, self.s, sl_tpl_find(self.s, 0, self.s->n, needle)));
}

METHOD(s_rfind)
{
    return sl_tpl_int(char_index(
        cx, self.s, sl_tpl_find_last(cx, self.s, self.s->n, sl_tpl_need_str(cx, slots[0], "what to find"))));
}

METHOD(s_index)
{
    struct val at = s_find(cx, self, slots, raw);
    if (at.i < 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "substring not found");
    return at;
}

METHOD(s_count)
{
    const struct str *needle = sl_tpl_need_str(cx, slots[0], "what to count");
    int64_t n = 0;
    sl_tpl_charge(cx, self.s->n);
    if (needle->n == 0)
        return sl_tpl_int((int64_t)sl_tpl_length(cx, self.s) + 1);
    for (size_t at = 0; (at = sl_tpl_find(self.s, at, self.s->n, needle)) != SIZE_MAX; at += needle->n)
        n++;
    return sl_tpl_int(n);
}

METHOD(s_join)
{
    const struct list *items = sl_tpl_iter(cx, slots[0]);
    for (size_t i = 0; i < items->n; i++)
        sl_tpl_need_str(cx, items->items[i], "an item to join");
    return sl_tpl_join(cx, self.s, items);
}

METHOD(s_format)
{
    return sl_tpl_format(cx, self.s, raw);
}

static struct val pad(struct cx *cx, struct val self, const struct val *slots, bool left, bool right)
{
    struct sb sb;
    const struct str *fill = sl_tpl_str_arg(cx, slots[1], "the fill character");
    int64_t width = sl_tpl_int_arg(cx, slots[0], 0, "width"), n = (int64_t)sl_tpl_length(cx, self.s);
    int64_t space = width > n ? width - n : 0;
    int64_t before = left && right ? space / 2 + (space & width & 1) : left ? space : 0;
    sl_tpl_sb_init(&sb, cx);
    for (int64_t i = 0; i < space; i++) {
        if (i == before)
            sl_tpl_sb_all(&sb, self.s);
        if (fill)
            sl_tpl_sb_all(&sb, fill);
        else
            sl_tpl_sb_puts(&sb, " ");
    }
    if (before == space)
        sl_tpl_sb_all(&sb, self.s);
    return sl_tpl_sb_done(&sb);
}

METHOD(s_center)
{
    return pad(cx, self, slots, true, true);
}

METHOD(s_ljust)
{
    return pad(cx, self, slots, false, true);
}

METHOD(s_rjust)
{
    return pad(cx, self, slots, true, false);
}

METHOD(s_zfill)
{
    struct sb sb;
    const struct str *s = self.s;
    int64_t width = sl_tpl_int_arg(cx, slots[0], 0, "width"), n = (int64_t)sl_tpl_length(cx, s);
    size_t sign = s->n && (s->p[0] == '-' || s->p[0] == '+');
    sl_tpl_sb_init(&sb, cx);
    sl_tpl_sb_str(&sb, s, 0, sign);
    for (int64_t i = n; i < width; i++)
        sl_tpl_sb_puts(&sb, "0");
    sl_tpl_sb_str(&sb, s, sign, s->n);
    return sl_tpl_sb_done(&sb);
}

enum char_class { CLASS_DIGIT, CLASS_ALPHA, CLASS_ALNUM, CLASS_SPACE, CLASS_ASCII };

static bool in_class(struct cx *cx, uint32_t cp, enum char_class c)
{
    bool digit = cp >= '0' && cp <= '9';
    if (cp >= 0x80 && !cx->locale)
        cx->locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    bool alpha =
        cp < 0x80 ? (cp | 32) >= 'a' && (cp | 32) <= 'z' : cx->locale && iswalpha_l((wint_t)cp, cx->locale);
    switch (c) {
    case CLASS_DIGIT:
        return digit;
    case CLASS_ALPHA:
        return alpha;
    case CLASS_ALNUM:
        return digit || alpha;
    case CLASS_SPACE:
        return sl_tpl_is_space(cp);
    default:
        return cp < 0x80;
    }
}

static struct val all_in_class(struct cx *cx, const struct str *s, enum char_class c)
{
    sl_tpl_charge(cx, s->n);
    for (size_t i = 0, used; i < s->n; i += used)
        if (!in_class(cx, sl_tpl_cp(s->p, i, s->n, &used), c))
            return sl_tpl_bool(false);
    return sl_tpl_bool(s->n > 0 || c == CLASS_ASCII);
}

METHOD(s_isdigit)
{
    return all_in_class(cx, self.s, CLASS_DIGIT);
}

METHOD(s_isalpha)
{
    return all_in_class(cx, self.s, CLASS_ALPHA);
}

METHOD(s_isalnum)
{
    return all_in_class(cx, self.s, CLASS_ALNUM);
}

METHOD(s_isspace)
{
    return all_in_class(cx, self.s, CLASS_SPACE);
}

METHOD(s_isascii)
{
    return all_in_class(cx, self.s, CLASS_ASCII);
}

/* All letters that have case are in this one, and there is one. */
static struct val has_case(struct cx *cx, const struct str *s, bool upper)
{
    bool cased = false;
    sl_tpl_charge(cx, s->n);
    for (size_t i = 0, used; i < s->n; i += used) {
        uint32_t cp = sl_tpl_cp(s->p, i, s->n, &used);
        if (sl_tpl_map_case(cx, cp, upper) != cp)
            return sl_tpl_bool(false);
        cased = cased || sl_tpl_map_case(cx, cp, !upper) != cp;
    }
    return sl_tpl_bool(cased);
}

METHOD(s_isupper)
{
    return has_case(cx, self.s, true);
}

METHOD(s_islower)
{
    return has_case(cx, self.s, false);
}

/* --- lists and dicts --- */

METHOD(l_count)
{
    int64_t n = 0;
    for (size_t i = 0; i < self.l->n; i++)
        n += sl_tpl_eq(cx, self.l->items[i], slots[0]);
    return sl_tpl_int(n);
}

METHOD(l_index)
{
    for (size_t i = 0; i < self.l->n; i++)
        if (sl_tpl_eq(cx, self.l->items[i], slots[0]))
            return sl_tpl_int((int64_t)i);
    sl_tpl_fail(&cx->base, SL_EINVAL, "the value is not in the list");
}

METHOD(same)
{
    sl_tpl_charge(cx, 0);
    return self;
}

METHOD(d_get)
{
    const struct val *v = sl_tpl_dict_get(cx, self.d, slots[0]);
    return v ? *v : slots[1].type == VAL_MISSING ? sl_tpl_none() : slots[1];
}

METHOD(d_keys)
{
    return (struct val){.type = VAL_LIST, .l = sl_tpl_iter(cx, self)};
}

METHOD(d_values)
{
    struct list *out;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    for (size_t i = 0; i < self.d->n; i++)
        sl_tpl_list_add(cx, out, self.d->items[i].val);
    return v;
}

METHOD(d_items)
{
    struct list *out, *pair;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    for (size_t i = 0; i < self.d->n; i++) {
        struct val item = sl_tpl_list(cx, VAL_TUPLE, &pair);
        sl_tpl_list_add(cx, pair, self.d->items[i].key);
        sl_tpl_list_add(cx, pair, self.d->items[i].val);
        sl_tpl_list_add(cx, out, item);
    }
    return v;
}

/* --- loops and cyclers --- */

METHOD(loop_cycle)
{
    if (raw->n_pos == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "loop.cycle needs at least one value");
    return raw->pos[self.loop->at % raw->n_pos];
}

METHOD(loop_changed)
{
    struct list *now;
    struct val v = sl_tpl_list(cx, VAL_TUPLE, &now);
    for (size_t i = 0; i < raw->n_pos; i++)
        sl_tpl_list_add(cx, now, raw->pos[i]);
    bool changed = self.loop->changed.type == VAL_MISSING || !sl_tpl_eq(cx, self.loop->changed, v);
    self.loop->changed = v;
    return sl_tpl_bool(changed);
}

METHOD(cycler_next)
{
    struct counter *c = self.counter;
    struct val v = c->items->items[c->at];
    sl_tpl_charge(cx, 0);
    c->at = (c->at + 1) % c->items->n;
    return v;
}

METHOD(cycler_reset)
{
    self.counter->at = 0;
    sl_tpl_charge(cx, 0);
    return sl_tpl_none();
}

static const struct builtin str_methods[] = {
    {"capitalize", s_capitalize, "", 0},
    {"center", s_center, "width,fillchar", 1},
    {"count", s_count, "sub", 1},
    {"endswith", s_endswith, "suffix", 1},
    {"find", s_find, "sub", 1},
    {"format", s_format, NULL, 0},
    {"index", s_index, "sub", 1},
    {"isalnum", s_isalnum, "", 0},
    {"isalpha", s_isalpha, "", 0},
    {"isascii", s_isascii, "", 0},
    {"isdecimal", s_isdigit, "", 0},
    {"isdigit", s_isdigit, "", 0},
    {"islower", s_islower, "", 0},
    {"isnumeric", s_isdigit, "", 0},
    {"isspace", s_isspace, "", 0},
    {"isupper", s_isupper, "", 0},
    {"join", s_join, "iterable", 1},
    {"ljust", s_ljust, "width,fillchar", 1},
    {"lower", s_lower, "", 0},
    {"lstrip", s_lstrip, "chars", 0},
    {"partition", s_partition, "sep", 1},
    {"removeprefix", s_removeprefix, "prefix", 1},
    {"removesuffix", s_removesuffix, "suffix", 1},
    {"replace", s_replace, "old,new,count", 2},
    {"rfind", s_rfind, "sub", 1},
    {"rjust", s_rjust, "width,fillchar", 1},
    {"rpartition", s_rpartition, "sep", 1},
    {"rsplit", s_rsplit, "sep,maxsplit", 0},
    {"rstrip", s_rstrip, "chars", 0},
    {"split", s_split, "sep,maxsplit", 0},
    {"splitlines", s_splitlines, "keepends", 0},
    {"startswith", s_startswith, "prefix", 1},
    {"strip", s_strip, "chars", 0},
    {"swapcase", s_swapcase, "", 0},
    {"title", s_title, "", 0},
    {"upper", s_upper, "", 0},
    {"zfill", s_zfill, "width", 1},
};

static const struct builtin list_methods[] = {
    {"copy", same, "", 0},
    {"count", l_count, "value", 1},
    {"index", l_index, "value", 1},
};

static const struct builtin dict_methods[] = {
    {"copy", same, "", 0},   {"get", d_get, "key,default", 1}, {"items", d_items, "", 0},
    {"keys", d_keys, "", 0}, {"values", d_values, "", 0},
};

static const struct builtin loop_methods[] = {
    {"changed", loop_changed, NULL, 0},
    {"cycle", loop_cycle, NULL, 0},
};

static const struct builtin cycler_methods[] = {
    {"next", cycler_next, "", 0},
    {"reset", cycler_reset, "", 0},
};

const struct builtin *sl_tpl_lookup(const struct builtin *table, size_t n, const struct str *name)
{
    for (size_t i = 0; i < n; i++)
        if (sl_tpl_str_is(name, table[i].name))
            return &table[i];
    return NULL;
}

const struct builtin *sl_tpl_method(struct val self, const struct str *name)
{
    switch (self.type) {
    case VAL_STR:
        return sl_tpl_lookup(str_methods, SL_COUNTOF(str_methods), name);
    case VAL_LIST:
    case VAL_TUPLE:
        return sl_tpl_lookup(list_methods, SL_COUNTOF(list_methods), name);
    case VAL_DICT:
        return sl_tpl_lookup(dict_methods, SL_COUNTOF(dict_methods), name);
    case VAL_LOOP:
        return sl_tpl_lookup(loop_methods, SL_COUNTOF(loop_methods), name);
    case VAL_CYCLER:
        return sl_tpl_lookup(cycler_methods, SL_COUNTOF(cycler_methods), name);
    default:
        return NULL;
    }
}
