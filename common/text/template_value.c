/* common/text/template_value.c - values of templates: strings with trust marks, containers, comparison as in
 * Python.
 *
 * The trust mark goes with each byte. A string whose bytes are all alike keeps one flag instead of a mark
 * array, which is nearly all of them; a builder writes marks beside the bytes and drops the array again at
 * the end when it can. */
#include "common/text/template_internal.h"

#include <math.h>
#include <string.h>

#include "common/text/utf8.h"

/* --- building strings --- */

void sl_tpl_sb_init(struct sb *sb, struct cx *cx)
{
    *sb = (struct sb){.cx = cx};
}

/* Room for n more bytes. */
static void grow(struct sb *sb, size_t n)
{
    sl_tpl_charge(sb->cx, n);
    if (n <= sb->cap - sb->n)
        return;
    size_t cap = sb->cap ? sb->cap : 64;
    while (cap - sb->n < n)
        cap *= 2; /* n is a length in memory, so this ends */
    char *p = sl_tpl_alloc(&sb->cx->base, 2 * cap);
    uint8_t *marks = (uint8_t *)p + cap;
    if (sb->n) {
        memcpy(p, sb->p, sb->n);
        memcpy(marks, sb->marks, sb->n);
    }
    sb->p = p;
    sb->marks = marks;
    sb->cap = cap;
}

void sl_tpl_sb_bytes(struct sb *sb, const char *p, size_t n, bool untrusted)
{
    if (n == 0)
        return;
    grow(sb, n);
    memcpy(sb->p + sb->n, p, n);
    memset(sb->marks + sb->n, untrusted, n);
    sb->n += n;
}

void sl_tpl_sb_puts(struct sb *sb, const char *s)
{
    sl_tpl_sb_bytes(sb, s, strlen(s), false);
}

void sl_tpl_sb_str(struct sb *sb, const struct str *s, size_t from, size_t to)
{
    size_t at = sb->n;
    sl_tpl_sb_bytes(sb, s->p + from, to - from, s->untrusted);
    if (s->marks && to > from)
        memcpy(sb->marks + at, s->marks + from, to - from);
}

void sl_tpl_sb_all(struct sb *sb, const struct str *s)
{
    sl_tpl_sb_str(sb, s, 0, s->n);
}

void sl_tpl_sb_cp(struct sb *sb, uint32_t cp, bool untrusted)
{
    char bytes[4];
    sl_tpl_sb_bytes(sb, bytes, sl_utf8_encode(cp, bytes), untrusted);
}

struct val sl_tpl_sb_done(struct sb *sb)
{
    struct str *s = sl_tpl_alloc(&sb->cx->base, sizeof *s);
    *s = (struct str){.p = sb->n ? sb->p : "", .n = sb->n};
    if (sb->n) {
        s->untrusted = sb->marks[0];
        if (memchr(sb->marks, !s->untrusted, sb->n))
            s->marks = sb->marks;
    }
    return (struct val){.type = VAL_STR, .s = s};
}

/* --- making values --- */

struct val sl_tpl_undefined(const char *name)
{
    return (struct val){.type = VAL_UNDEFINED, .name = name};
}

struct val sl_tpl_none(void)
{
    return (struct val){.type = VAL_NONE};
}

struct val sl_tpl_bool(bool b)
{
    return (struct val){.type = VAL_BOOL, .b = b};
}

struct val sl_tpl_int(int64_t i)
{
    return (struct val){.type = VAL_INT, .i = i};
}

struct val sl_tpl_float(double f)
{
    return (struct val){.type = VAL_FLOAT, .f = f};
}

struct val sl_tpl_cstr(struct cx *cx, const char *s)
{
    return (struct val){.type = VAL_STR, .s = sl_tpl_str_new(&cx->base, s, strlen(s), false)};
}

struct val sl_tpl_sub(struct cx *cx, const struct str *s, size_t from, size_t to)
{
    struct str *sub = sl_tpl_alloc(&cx->base, sizeof *sub);
    *sub = *s;
    sub->p += from;
    sub->n = to - from;
    if (sub->marks)
        sub->marks += from;
    return (struct val){.type = VAL_STR, .s = sub};
}

struct val sl_tpl_list(struct cx *cx, enum val_type type, struct list **out)
{
    *out = sl_tpl_alloc(&cx->base, sizeof **out);
    return (struct val){.type = type, .l = *out};
}

void sl_tpl_list_add(struct cx *cx, struct list *l, struct val v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        struct val *bigger = sl_tpl_alloc(&cx->base, cap * sizeof *bigger);
        if (l->n)
            memcpy(bigger, l->items, l->n * sizeof *bigger);
        l->items = bigger;
        l->cap = cap;
    }
    sl_tpl_charge(cx, sizeof v);
    l->items[l->n++] = v;
}

struct val sl_tpl_dict(struct cx *cx, enum val_type type, struct dict **out)
{
    *out = sl_tpl_alloc(&cx->base, sizeof **out);
    return (struct val){.type = type, .d = *out};
}

static void dict_add(struct cx *cx, struct dict *d, struct val key, struct val v)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 8;
        struct entry *bigger = sl_tpl_alloc(&cx->base, cap * sizeof *bigger);
        if (d->n)
            memcpy(bigger, d->items, d->n * sizeof *bigger);
        d->items = bigger;
        d->cap = cap;
    }
    sl_tpl_charge(cx, sizeof *d->items);
    d->items[d->n++] = (struct entry){key, v};
}

void sl_tpl_need_hashable(struct cx *cx, struct val key)
{
    if (key.type == VAL_LIST || key.type == VAL_DICT)
        sl_tpl_fail(&cx->base, SL_EINVAL, "unhashable type: '%s'", sl_tpl_type_name(key));
}

const struct val *sl_tpl_dict_get(struct cx *cx, const struct dict *d, struct val key)
{
    sl_tpl_need_hashable(cx, key);
    sl_tpl_charge(cx, d->n);
    for (size_t i = 0; i < d->n; i++)
        if (sl_tpl_eq(cx, d->items[i].key, key))
            return &d->items[i].val;
    return NULL;
}

const struct val *sl_tpl_dict_get_str(struct cx *cx, const struct dict *d, const struct str *key)
{
    return sl_tpl_dict_get(cx, d, (struct val){.type = VAL_STR, .s = key});
}

void sl_tpl_dict_set(struct cx *cx, struct dict *d, struct val key, struct val v)
{
    const struct val *there = sl_tpl_dict_get(cx, d, key);
    if (there)
        d->items[(const struct entry *)((const char *)there - offsetof(struct entry, val)) - d->items].val =
            v;
    else
        dict_add(cx, d, key, v);
}

static struct val from_json(struct cx *cx, const json_t *j, bool untrusted, unsigned depth)
{
    struct val v = sl_tpl_none();
    if (depth > SL_TEMPLATE_MAX_DATA_DEPTH)
        sl_tpl_fail(&cx->base, SL_ETOOBIG, "the request nests lists or objects more than %d deep",
                    SL_TEMPLATE_MAX_DATA_DEPTH);
    sl_tpl_charge(cx, 0);
    switch (json_typeof(j)) {
    case JSON_OBJECT: {
        struct dict *d;
        v = sl_tpl_dict(cx, VAL_DICT, &d);
        if ((d->cap = json_object_size(j)) > 0) /* mostly it stays so */
            d->items = sl_tpl_alloc(&cx->base, d->cap * sizeof *d->items);
        /* jansson's iterator takes no const and changes nothing */
        json_t *object = (json_t *)(uintptr_t)j;
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
            const char *key = json_object_iter_key(it);
            struct val k = {.type = VAL_STR,
                            .s = sl_tpl_str_new(&cx->base, key, json_object_iter_key_len(it), untrusted)};
            dict_add(cx, d, k, from_json(cx, json_object_iter_value(it), untrusted, depth + 1));
        }
        return v;
    }
    case JSON_ARRAY: {
        struct list *l;
        v = sl_tpl_list(cx, VAL_LIST, &l);
        if ((l->cap = json_array_size(j)) > 0)
            l->items = sl_tpl_alloc(&cx->base, l->cap * sizeof *l->items);
        for (size_t i = 0; i < json_array_size(j); i++)
            sl_tpl_list_add(cx, l, from_json(cx, json_array_get(j, i), untrusted, depth + 1));
        return v;
    }
    case JSON_STRING:
        v.type = VAL_STR;
        v.s = sl_tpl_str_new(&cx->base, json_string_value(j), json_string_length(j), untrusted);
        return v;
    case JSON_INTEGER:
        return sl_tpl_int(json_integer_value(j));
    case JSON_REAL:
        return sl_tpl_float(json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return sl_tpl_bool(json_is_true(j));
    default:
        return v;
    }
}

struct val sl_tpl_from_json(struct cx *cx, const json_t *j, bool untrusted)
{
    return from_json(cx, j, untrusted, 0);
}

/* --- asking strings --- */

bool sl_tpl_str_eq(const struct str *a, const struct str *b)
{
    return a->n == b->n && memcmp(a->p, b->p, a->n) == 0;
}

bool sl_tpl_str_is(const struct str *a, const char *b)
{
    return strlen(b) == a->n && memcmp(a->p, b, a->n) == 0;
}

bool sl_tpl_untrusted(const struct str *s)
{
    return s->marks || (s->untrusted && s->n);
}

uint32_t sl_tpl_cp(const char *s, size_t at, size_t n, size_t *used)
{
    uint32_t cp = SL_UTF8_REPLACEMENT;
    sl_utf8_next(s + at, n - at, &cp, used);
    return cp;
}

bool sl_tpl_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

size_t sl_tpl_length(struct cx *cx, const struct str *s)
{
    sl_tpl_charge(cx, s->n);
    return sl_utf8_count(s->p, s->n);
}

size_t sl_tpl_find(const struct str *s, size_t from, size_t to, const struct str *needle)
{
    if (needle->n == 0)
        return from <= to ? from : SIZE_MAX;
    const char *hit = from < to ? memmem(s->p + from, to - from, needle->p, needle->n) : NULL;
    return hit ? (size_t)(hit - s->p) : SIZE_MAX;
}

static bool in_set(const struct str *s, size_t at, size_t used, const struct str *set)
{
    if (!set)
        return sl_tpl_is_space(sl_tpl_cp(s->p, at, s->n, &used));
    struct str one = {.p = s->p + at, .n = used};
    return sl_tpl_find(set, 0, set->n, &one) != SIZE_MAX;
}

void sl_tpl_strip(const struct str *s, const struct str *set, bool left, bool right, size_t *from, size_t *to)
{
    size_t a = 0, b = s->n, used;
    while (left && a < b) {
        sl_tpl_cp(s->p, a, b, &used);
        if (!in_set(s, a, used, set))
            break;
        a += used;
    }
    while (right && b > a) {
        size_t at = b - 1;
        while (at > a && ((uint8_t)s->p[at] & 0xC0) == 0x80)
            at--;
        if (!in_set(s, at, b - at, set))
            break;
        b = at;
    }
    *from = a;
    *to = b;
}

/* --- comparing --- */

bool sl_tpl_truth(struct val v)
{
    switch (v.type) {
    case VAL_UNDEFINED:
    case VAL_NONE:
    case VAL_MISSING:
        return false;
    case VAL_BOOL:
        return v.b;
    case VAL_INT:
        return v.i != 0;
    case VAL_FLOAT:
        return v.f != 0;
    case VAL_STR:
        return v.s->n != 0;
    case VAL_LIST:
    case VAL_TUPLE:
        return v.l->n != 0;
    case VAL_DICT:
        return v.d->n != 0;
    default:
        return true;
    }
}

bool sl_tpl_is_number(struct val v)
{
    return v.type == VAL_INT || v.type == VAL_FLOAT || v.type == VAL_BOOL;
}

double sl_tpl_as_float(struct val v)
{
    return v.type == VAL_FLOAT ? v.f : v.type == VAL_BOOL ? (double)v.b : (double)v.i;
}

static int64_t as_int(struct val v)
{
    return v.type == VAL_BOOL ? v.b : v.i;
}

const char *sl_tpl_type_name(struct val v)
{
    static const char *const names[] = {
        [VAL_UNDEFINED] = "Undefined", [VAL_NONE] = "NoneType",
        [VAL_BOOL] = "bool",           [VAL_INT] = "int",
        [VAL_FLOAT] = "float",         [VAL_STR] = "str",
        [VAL_LIST] = "list",           [VAL_TUPLE] = "tuple",
        [VAL_DICT] = "dict",           [VAL_NAMESPACE] = "Namespace",
        [VAL_LOOP] = "LoopContext",    [VAL_MACRO] = "Macro",
        [VAL_FUNC] = "function",       [VAL_CYCLER] = "Cycler",
        [VAL_JOINER] = "Joiner",       [VAL_MISSING] = "missing",
    };
    return names[v.type];
}

static bool list_eq(struct cx *cx, const struct list *a, const struct list *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!sl_tpl_eq(cx, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool dict_eq(struct cx *cx, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct val *other = sl_tpl_dict_get(cx, b, a->items[i].key);
        if (!other || !sl_tpl_eq(cx, a->items[i].val, *other))
            return false;
    }
    return true;
}

bool sl_tpl_eq(struct cx *cx, struct val a, struct val b)
{
    bool same = false;
    sl_tpl_charge(cx, 0);
    if (sl_tpl_is_number(a) && sl_tpl_is_number(b))
        return a.type == VAL_FLOAT || b.type == VAL_FLOAT ? sl_tpl_as_float(a) == sl_tpl_as_float(b)
                                                          : as_int(a) == as_int(b);
    if (a.type != b.type)
        return false;
    sl_tpl_enter(cx);
    switch (a.type) {
    case VAL_UNDEFINED:
    case VAL_NONE:
        same = true;
        break;
    case VAL_STR:
        sl_tpl_charge(cx, a.s->n == b.s->n ? a.s->n : 0);
        same = sl_tpl_str_eq(a.s, b.s);
        break;
    case VAL_LIST:
    case VAL_TUPLE:
        same = list_eq(cx, a.l, b.l);
        break;
    case VAL_DICT:
        same = dict_eq(cx, a.d, b.d);
        break;
    default:
        same = a.fn == b.fn; /* the same object */
        break;
    }
    sl_tpl_leave(cx);
    return same;
}

int sl_tpl_cmp(struct cx *cx, struct val a, struct val b)
{
    int r = 0;
    sl_tpl_charge(cx, 0);
    if (sl_tpl_is_number(a) && sl_tpl_is_number(b)) {
        if (a.type != VAL_FLOAT && b.type != VAL_FLOAT)
            return (as_int(a) > as_int(b)) - (as_int(a) < as_int(b));
        double x = sl_tpl_as_float(a), y = sl_tpl_as_float(b);
        return (x > y) - (x < y);
    }
    if (a.type == VAL_STR && b.type == VAL_STR) { /* UTF-8 sorts as its code points do */
        size_t n = a.s->n < b.s->n ? a.s->n : b.s->n;
        sl_tpl_charge(cx, n);
        r = memcmp(a.s->p, b.s->p, n);
        return r ? r : (a.s->n > b.s->n) - (a.s->n < b.s->n);
    }
    if (a.type != b.type || (a.type != VAL_LIST && a.type != VAL_TUPLE))
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%s' and '%s' have no order", sl_tpl_type_name(a),
                    sl_tpl_type_name(b));
    sl_tpl_enter(cx);
    for (size_t i = 0; i < a.l->n && i < b.l->n && r == 0; i++)
        if (!sl_tpl_eq(cx, a.l->items[i], b.l->items[i]))
            r = sl_tpl_cmp(cx, a.l->items[i], b.l->items[i]);
    sl_tpl_leave(cx);
    return r ? r : (a.l->n > b.l->n) - (a.l->n < b.l->n);
}

bool sl_tpl_contains(struct cx *cx, struct val container, struct val v)
{
    if (container.type == VAL_STR) {
        if (v.type != VAL_STR)
            sl_tpl_fail(&cx->base, SL_EINVAL, "'in <string>' requires string as left operand, not %s",
                        sl_tpl_type_name(v));
        sl_tpl_charge(cx, container.s->n);
        return sl_tpl_find(container.s, 0, container.s->n, v.s) != SIZE_MAX;
    }
    if (container.type == VAL_DICT)
        return sl_tpl_dict_get(cx, container.d, v) != NULL;
    const struct list *l = sl_tpl_iter(cx, container);
    for (size_t i = 0; i < l->n; i++)
        if (sl_tpl_eq(cx, l->items[i], v))
            return true;
    return false;
}

struct list *sl_tpl_iter(struct cx *cx, struct val v)
{
    struct list *l;
    switch (v.type) {
    case VAL_LIST:
    case VAL_TUPLE:
        return v.l;
    case VAL_UNDEFINED:
        sl_tpl_list(cx, VAL_LIST, &l);
        return l;
    case VAL_DICT:
        sl_tpl_list(cx, VAL_LIST, &l);
        for (size_t i = 0; i < v.d->n; i++)
            sl_tpl_list_add(cx, l, v.d->items[i].key);
        return l;
    case VAL_STR:
        sl_tpl_list(cx, VAL_LIST, &l);
        for (size_t i = 0, used; i < v.s->n; i += used) {
            sl_tpl_cp(v.s->p, i, v.s->n, &used);
            sl_tpl_list_add(cx, l, sl_tpl_sub(cx, v.s, i, i + used));
        }
        return l;
    default:
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%s' object is not iterable", sl_tpl_type_name(v));
    }
}
