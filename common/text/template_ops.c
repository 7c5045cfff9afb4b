/* common/text/template_ops.c - operators, attributes, subscripts and slices, with Python's meaning. */
#include "common/text/template_internal.h"

#include <math.h>
#include <string.h>

#include "common/text/utf8.h"

/* --- attributes and subscripts --- */

/* A NUL-terminated copy for later messages. */
static struct val missing(struct cx *cx, const struct str *name)
{
    char *copy = sl_tpl_alloc(&cx->base, name->n + 1);
    memcpy(copy, name->p, name->n);
    return sl_tpl_undefined(copy);
}

static SL_NORETURN void undefined(struct cx *cx, struct val v)
{
    sl_tpl_fail(&cx->base, SL_EINVAL, "'%.64s' is undefined", v.name ? v.name : "value");
}

static struct val loop_attr(struct cx *cx, const struct loop *l, const struct str *name)
{
    size_t n = l->items->n;
    if (sl_tpl_str_is(name, "index"))
        return sl_tpl_int((int64_t)l->at + 1);
    if (sl_tpl_str_is(name, "index0"))
        return sl_tpl_int((int64_t)l->at);
    if (sl_tpl_str_is(name, "first"))
        return sl_tpl_bool(l->at == 0);
    if (sl_tpl_str_is(name, "last"))
        return sl_tpl_bool(l->at + 1 == n);
    if (sl_tpl_str_is(name, "length"))
        return sl_tpl_int((int64_t)n);
    if (sl_tpl_str_is(name, "revindex"))
        return sl_tpl_int((int64_t)(n - l->at));
    if (sl_tpl_str_is(name, "revindex0"))
        return sl_tpl_int((int64_t)(n - l->at) - 1);
    if (sl_tpl_str_is(name, "depth"))
        return sl_tpl_int((int64_t)l->depth0 + 1);
    if (sl_tpl_str_is(name, "depth0"))
        return sl_tpl_int(l->depth0);
    if (sl_tpl_str_is(name, "previtem"))
        return l->at ? l->items->items[l->at - 1] : sl_tpl_undefined("there is no previous item");
    if (sl_tpl_str_is(name, "nextitem"))
        return l->at + 1 < n ? l->items->items[l->at + 1] : sl_tpl_undefined("there is no next item");
    return missing(cx, name);
}

static struct val bind(struct cx *cx, const struct builtin *b, struct val self)
{
    struct func *fn = sl_tpl_alloc(&cx->base, sizeof *fn);
    *fn = (struct func){b, self};
    return (struct val){.type = VAL_FUNC, .fn = fn};
}

struct val sl_tpl_getattr(struct cx *cx, struct val obj, const struct str *name)
{
    const struct val *v = NULL;
    if (obj.type == VAL_UNDEFINED)
        undefined(cx, obj);
    const struct builtin *method = sl_tpl_method(obj, name);
    if (method)
        return bind(cx, method, obj);
    if (obj.type == VAL_DICT || obj.type == VAL_NAMESPACE)
        v = sl_tpl_dict_get_str(cx, obj.d, name);
    else if (obj.type == VAL_LOOP)
        return loop_attr(cx, obj.loop, name);
    else if (obj.type == VAL_MACRO && sl_tpl_str_is(name, "name"))
        return (struct val){.type = VAL_STR, .s = obj.macro->node->name};
    else if (obj.type == VAL_CYCLER && sl_tpl_str_is(name, "current"))
        return obj.counter->items->items[obj.counter->at];
    return v ? *v : missing(cx, name);
}

/* The character at index i of s, by characters. */
static struct val char_at(struct cx *cx, const struct str *s, size_t i)
{
    size_t used = 0;
    sl_tpl_charge(cx, s->n);
    for (size_t at = 0; at < s->n; at += used) {
        sl_tpl_cp(s->p, at, s->n, &used);
        if (i-- == 0)
            return sl_tpl_sub(cx, s, at, at + used);
    }
    return sl_tpl_undefined("the character past the end");
}

struct val sl_tpl_getitem(struct cx *cx, struct val obj, struct val key)
{
    if (obj.type == VAL_UNDEFINED)
        undefined(cx, obj);
    if (obj.type == VAL_DICT) {
        const struct val *v = sl_tpl_dict_get(cx, obj.d, key);
        if (v)
            return *v;
    }
    bool sequence = obj.type == VAL_LIST || obj.type == VAL_TUPLE || obj.type == VAL_STR;
    if (sequence && (key.type == VAL_INT || key.type == VAL_BOOL)) {
        int64_t n = (int64_t)(obj.type == VAL_STR ? sl_tpl_length(cx, obj.s) : obj.l->n);
        int64_t i = key.type == VAL_BOOL ? key.b : key.i;
        if (i < 0)
            i += n;
        if (i < 0 || i >= n)
            return sl_tpl_undefined("the element past the end");
        return obj.type == VAL_STR ? char_at(cx, obj.s, (size_t)i) : obj.l->items[i];
    }
    return key.type == VAL_STR ? sl_tpl_getattr(cx, obj, key.s) : sl_tpl_undefined("the element");
}

struct val sl_tpl_get_path(struct cx *cx, struct val obj, struct val path, const struct val *dflt)
{
    if (path.type != VAL_STR) {
        obj = sl_tpl_getitem(cx, obj, path);
        return dflt && obj.type == VAL_UNDEFINED ? *dflt : obj;
    }
    static const struct str dot = {.p = ".", .n = 1};
    for (size_t from = 0; from <= path.s->n;) {
        size_t to = sl_tpl_find(path.s, from, path.s->n, &dot);
        if (to == SIZE_MAX)
            to = path.s->n;
        struct val part = sl_tpl_sub(cx, path.s, from, to);
        int64_t index = 0;
        bool digits = to > from && to - from < 10;
        for (size_t i = from; i < to && digits; i++) {
            digits = path.s->p[i] >= '0' && path.s->p[i] <= '9';
            index = index * 10 + (path.s->p[i] - '0');
        }
        obj = sl_tpl_getitem(cx, obj, digits ? sl_tpl_int(index) : part);
        if (dflt && obj.type == VAL_UNDEFINED)
            obj = *dflt;
        from = to + 1;
    }
    return obj;
}

/* --- slices --- */

static int64_t bound(struct val v, int64_t n, int64_t dflt, int64_t low, int64_t high)
{
    if (v.type == VAL_NONE)
        return dflt;
    int64_t i = v.type == VAL_BOOL ? v.b : v.i;
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

/* Byte offset of the i-th character. */
static size_t char_offset(const struct str *s, int64_t i)
{
    size_t at = 0, used = 0;
    for (; i > 0 && at < s->n; i--, at += used)
        sl_tpl_cp(s->p, at, s->n, &used);
    return at;
}

struct val sl_tpl_slice(struct cx *cx, struct val obj, const struct val parts[3])
{
    struct list *out;
    struct sb sb;
    if (obj.type == VAL_UNDEFINED)
        undefined(cx, obj);
    if (obj.type != VAL_LIST && obj.type != VAL_TUPLE && obj.type != VAL_STR)
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%s' object cannot be sliced", sl_tpl_type_name(obj));
    for (size_t k = 0; k < 3; k++)
        if (parts[k].type != VAL_NONE && parts[k].type != VAL_INT && parts[k].type != VAL_BOOL)
            sl_tpl_fail(&cx->base, SL_EINVAL, "slice indices must be integers or None");
    int64_t step = parts[2].type == VAL_NONE ? 1 : parts[2].type == VAL_BOOL ? parts[2].b : parts[2].i;
    if (step == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "slice step cannot be zero");
    int64_t n = (int64_t)(obj.type == VAL_STR ? sl_tpl_length(cx, obj.s) : obj.l->n);
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t i = bound(parts[0], n, step > 0 ? 0 : n - 1, low, high);
    int64_t stop = bound(parts[1], n, step > 0 ? n : -1, low, high);
    if (obj.type == VAL_STR && step == 1) {
        sl_tpl_charge(cx, 2 * obj.s->n);
        size_t from = char_offset(obj.s, i), to = char_offset(obj.s, stop);
        return sl_tpl_sub(cx, obj.s, from, to > from ? to : from);
    }
    const struct list *items = sl_tpl_iter(cx, obj); /* of a string: its characters */
    struct val result = sl_tpl_list(cx, obj.type, &out);
    sl_tpl_sb_init(&sb, cx);
    while (step > 0 ? i < stop : i > stop) {
        if (obj.type == VAL_STR)
            sl_tpl_sb_all(&sb, items->items[i].s);
        else
            sl_tpl_list_add(cx, out, items->items[i]);
        if (step > 0 ? step >= stop - i : step <= stop - i) /* the next one would be past it, or overflow */
            break;
        i += step;
    }
    return obj.type == VAL_STR ? sl_tpl_sb_done(&sb) : result;
}

/* --- operators --- */

static SL_NORETURN void unsupported(struct cx *cx, const char *op, struct val a, struct val b)
{
    if (a.type == VAL_UNDEFINED)
        undefined(cx, a);
    if (b.type == VAL_UNDEFINED)
        undefined(cx, b);
    sl_tpl_fail(&cx->base, SL_EINVAL, "unsupported operand types for %s: '%s' and '%s'", op,
                sl_tpl_type_name(a), sl_tpl_type_name(b));
}

static SL_NORETURN void too_big(struct cx *cx)
{
    sl_tpl_fail(&cx->base, SL_EINVAL, "the result of a calculation is too big");
}

static struct val int_pow(struct cx *cx, int64_t base, int64_t exponent)
{
    int64_t r = 1;
    if (exponent < 0 && base == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "0 cannot be raised to a negative power");
    if (exponent < 0)
        return sl_tpl_float(pow((double)base, (double)exponent));
    if (base == 0 || base == 1)
        return sl_tpl_int(exponent == 0 ? 1 : base);
    if (base == -1)
        return sl_tpl_int(exponent % 2 ? -1 : 1);
    for (; exponent > 0; exponent--) /* at most 63 rounds before it overflows */
        if (__builtin_mul_overflow(r, base, &r))
            too_big(cx);
    return sl_tpl_int(r);
}

static struct val int_op(struct cx *cx, enum op op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool overflow = false;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "division by zero");
    switch (op) {
    case OP_ADD:
        overflow = __builtin_add_overflow(a, b, &r);
        break;
    case OP_SUB:
        overflow = __builtin_sub_overflow(a, b, &r);
        break;
    case OP_MUL:
        overflow = __builtin_mul_overflow(a, b, &r);
        break;
    case OP_DIV:
        return sl_tpl_float((double)a / (double)b);
    case OP_POW:
        return int_pow(cx, a, b);
    default: /* Python rounds down, C towards zero */
        if (b == -1) {
            overflow = op == OP_FLOORDIV && a == INT64_MIN;
            r = op == OP_MOD || overflow ? 0 : -a;
            break;
        }
        r = op == OP_MOD ? a % b : a / b;
        if (a % b != 0 && (a < 0) != (b < 0))
            r += op == OP_MOD ? b : -1;
        break;
    }
    if (overflow)
        too_big(cx);
    return sl_tpl_int(r);
}

static struct val float_op(struct cx *cx, enum op op, double a, double b)
{
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "division by zero");
    switch (op) {
    case OP_ADD:
        return sl_tpl_float(a + b);
    case OP_SUB:
        return sl_tpl_float(a - b);
    case OP_MUL:
        return sl_tpl_float(a * b);
    case OP_DIV:
        return sl_tpl_float(a / b);
    case OP_POW:
        return sl_tpl_float(pow(a, b));
    default:
        return sl_tpl_float(op == OP_FLOORDIV ? floor(a / b) : a - floor(a / b) * b);
    }
}

static struct val repeat(struct cx *cx, struct val what, int64_t times)
{
    struct list *out;
    struct sb sb;
    struct val result = sl_tpl_list(cx, what.type, &out);
    sl_tpl_sb_init(&sb, cx);
    for (int64_t i = 0; i < times; i++) {
        sl_tpl_charge(cx, 0);
        if (what.type == VAL_STR) {
            sl_tpl_sb_all(&sb, what.s);
            continue;
        }
        for (size_t k = 0; k < what.l->n; k++)
            sl_tpl_list_add(cx, out, what.l->items[k]);
    }
    return what.type == VAL_STR ? sl_tpl_sb_done(&sb) : result;
}

static struct val add(struct cx *cx, struct val a, struct val b)
{
    struct list *out;
    struct sb sb;
    if (a.type == VAL_STR && b.type == VAL_STR) {
        bool markup = a.s->markup || b.s->markup;
        if (markup && !a.s->markup)
            a = sl_tpl_escape(cx, a.s);
        if (markup && !b.s->markup)
            b = sl_tpl_escape(cx, b.s);
        sl_tpl_sb_init(&sb, cx);
        sl_tpl_sb_all(&sb, a.s);
        sl_tpl_sb_all(&sb, b.s);
        struct val v = sl_tpl_sb_done(&sb);
        return markup ? sl_tpl_as_markup(cx, v) : v;
    }
    if (a.type == b.type && (a.type == VAL_LIST || a.type == VAL_TUPLE)) {
        struct val v = sl_tpl_list(cx, a.type, &out);
        for (size_t i = 0; i < a.l->n; i++)
            sl_tpl_list_add(cx, out, a.l->items[i]);
        for (size_t i = 0; i < b.l->n; i++)
            sl_tpl_list_add(cx, out, b.l->items[i]);
        return v;
    }
    if (a.type == VAL_STR && b.type != VAL_UNDEFINED)
        sl_tpl_fail(&cx->base, SL_EINVAL, "can only concatenate str (not \"%s\") to str",
                    sl_tpl_type_name(b));
    unsupported(cx, "+", a, b);
}

struct val sl_tpl_binary(struct cx *cx, enum op op, struct val a, struct val b)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (sl_tpl_is_number(a) && sl_tpl_is_number(b)) {
        if (a.type == VAL_FLOAT || b.type == VAL_FLOAT)
            return float_op(cx, op, sl_tpl_as_float(a), sl_tpl_as_float(b));
        return int_op(cx, op, a.type == VAL_BOOL ? a.b : a.i, b.type == VAL_BOOL ? b.b : b.i);
    }
    if (op == OP_ADD)
        return add(cx, a, b);
    if (op == OP_MOD && a.type == VAL_STR)
        return sl_tpl_percent(cx, a.s, b);
    if (op == OP_MUL) {
        if (b.type == VAL_STR || b.type == VAL_LIST || b.type == VAL_TUPLE) {
            struct val swap = a;
            a = b;
            b = swap;
        }
        if ((a.type == VAL_STR || a.type == VAL_LIST || a.type == VAL_TUPLE) &&
            (b.type == VAL_INT || b.type == VAL_BOOL))
            return repeat(cx, a, b.type == VAL_BOOL ? b.b : b.i);
    }
    unsupported(cx, names[op], a, b);
}

bool sl_tpl_compare(struct cx *cx, enum op op, struct val a, struct val b)
{
    if (op == OP_EQ || op == OP_NE)
        return sl_tpl_eq(cx, a, b) == (op == OP_EQ);
    if (op == OP_IN || op == OP_NOT_IN)
        return sl_tpl_contains(cx, b, a) == (op == OP_IN);
    if (a.type == VAL_UNDEFINED || b.type == VAL_UNDEFINED)
        undefined(cx, a.type == VAL_UNDEFINED ? a : b);
    if ((a.type == VAL_FLOAT && isnan(a.f)) || (b.type == VAL_FLOAT && isnan(b.f)))
        return false;
    int r = sl_tpl_cmp(cx, a, b);
    return op == OP_LT ? r < 0 : op == OP_LE ? r <= 0 : op == OP_GT ? r > 0 : r >= 0;
}
