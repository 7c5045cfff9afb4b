/* common/text/template_tests.c - the tests (`x is ...`) and the global functions of templates. */
#include "common/text/template_internal.h"

#include <string.h>
#include <time.h>

#define TEST(name)                                                                                           \
    static struct val name(struct cx *cx SL_UNUSED, struct val self SL_UNUSED,                               \
                           const struct val *slots SL_UNUSED, const struct args *raw SL_UNUSED)

TEST(t_defined)
{
    return sl_tpl_bool(self.type != VAL_UNDEFINED);
}

TEST(t_undefined)
{
    return sl_tpl_bool(self.type == VAL_UNDEFINED);
}

TEST(t_none)
{
    return sl_tpl_bool(self.type == VAL_NONE);
}

TEST(t_string)
{
    return sl_tpl_bool(self.type == VAL_STR);
}

TEST(t_number)
{
    return sl_tpl_bool(sl_tpl_is_number(self));
}

TEST(t_integer)
{
    return sl_tpl_bool(self.type == VAL_INT);
}

TEST(t_float)
{
    return sl_tpl_bool(self.type == VAL_FLOAT);
}

TEST(t_boolean)
{
    return sl_tpl_bool(self.type == VAL_BOOL);
}

TEST(t_true)
{
    return sl_tpl_bool(self.type == VAL_BOOL && self.b);
}

TEST(t_false)
{
    return sl_tpl_bool(self.type == VAL_BOOL && !self.b);
}

TEST(t_mapping)
{
    return sl_tpl_bool(self.type == VAL_DICT);
}

TEST(t_sequence)
{
    return sl_tpl_bool(self.type == VAL_LIST || self.type == VAL_TUPLE || self.type == VAL_STR ||
                       self.type == VAL_DICT || self.type == VAL_UNDEFINED);
}

TEST(t_iterable)
{
    return sl_tpl_bool(t_sequence(cx, self, slots, raw).b || self.type == VAL_LOOP);
}

TEST(t_callable)
{
    return sl_tpl_bool(self.type == VAL_FUNC || self.type == VAL_MACRO || self.type == VAL_JOINER ||
                       self.type == VAL_LOOP || self.type == VAL_UNDEFINED);
}

TEST(t_escaped)
{
    return sl_tpl_bool(self.type == VAL_STR && self.s->markup);
}

static int64_t need_int(struct cx *cx, struct val v)
{
    if (v.type != VAL_INT && v.type != VAL_BOOL)
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%s' is not an integer", sl_tpl_type_name(v));
    return v.type == VAL_BOOL ? v.b : v.i;
}

static struct val rest_is(struct cx *cx, struct val v, struct val by, int rest)
{
    return sl_tpl_bool(sl_tpl_eq(cx, sl_tpl_binary(cx, OP_MOD, v, by), sl_tpl_int(rest)));
}

TEST(t_odd)
{
    return rest_is(cx, self, sl_tpl_int(2), 1);
}

TEST(t_even)
{
    return rest_is(cx, self, sl_tpl_int(2), 0);
}

TEST(t_divisibleby)
{
    return rest_is(cx, self, slots[0], 0);
}

TEST(t_eq)
{
    return sl_tpl_bool(sl_tpl_compare(cx, OP_EQ, self, slots[0]));
}

TEST(t_ne)
{
    return sl_tpl_bool(sl_tpl_compare(cx, OP_NE, self, slots[0]));
}

TEST(t_lt)
{
    return sl_tpl_bool(sl_tpl_compare(cx, OP_LT, self, slots[0]));
}

TEST(t_le)
{
    return sl_tpl_bool(sl_tpl_compare(cx, OP_LE, self, slots[0]));
}

TEST(t_gt)
{
    return sl_tpl_bool(sl_tpl_compare(cx, OP_GT, self, slots[0]));
}

TEST(t_ge)
{
    return sl_tpl_bool(sl_tpl_compare(cx, OP_GE, self, slots[0]));
}

TEST(t_in)
{
    return sl_tpl_bool(sl_tpl_contains(cx, slots[0], self));
}

/* The same object; for values without identity here, the same type and value. */
TEST(t_sameas)
{
    bool same = self.type == slots[0].type;
    if (same && (self.type == VAL_LIST || self.type == VAL_TUPLE || self.type == VAL_DICT))
        same = self.l == slots[0].l;
    else if (same)
        same = sl_tpl_eq(cx, self, slots[0]);
    return sl_tpl_bool(same);
}

static struct val has_case(struct cx *cx, struct val self, const char *method)
{
    struct val text = {.type = VAL_STR, .s = sl_tpl_text(cx, self)};
    struct str name = {.p = method, .n = strlen(method)};
    return sl_tpl_call_builtin(cx, sl_tpl_method(text, &name), text, &(struct args){0});
}

TEST(t_lower)
{
    return has_case(cx, self, "islower");
}

TEST(t_upper)
{
    return has_case(cx, self, "isupper");
}

TEST(t_filter)
{
    return sl_tpl_bool(self.type == VAL_STR && sl_tpl_filter(self.s));
}

TEST(t_test)
{
    return sl_tpl_bool(self.type == VAL_STR && sl_tpl_test(self.s));
}

static const struct builtin tests[] = {
    {"!=", t_ne, "other", 1},
    {"<", t_lt, "other", 1},
    {"<=", t_le, "other", 1},
    {"==", t_eq, "other", 1},
    {">", t_gt, "other", 1},
    {">=", t_ge, "other", 1},
    {"boolean", t_boolean, "", 0},
    {"callable", t_callable, "", 0},
    {"defined", t_defined, "", 0},
    {"divisibleby", t_divisibleby, "num", 1},
    {"eq", t_eq, "other", 1},
    {"equalto", t_eq, "other", 1},
    {"escaped", t_escaped, "", 0},
    {"even", t_even, "", 0},
    {"false", t_false, "", 0},
    {"filter", t_filter, "", 0},
    {"float", t_float, "", 0},
    {"ge", t_ge, "other", 1},
    {"greaterthan", t_gt, "other", 1},
    {"gt", t_gt, "other", 1},
    {"in", t_in, "seq", 1},
    {"integer", t_integer, "", 0},
    {"iterable", t_iterable, "", 0},
    {"le", t_le, "other", 1},
    {"lessthan", t_lt, "other", 1},
    {"lower", t_lower, "", 0},
    {"lt", t_lt, "other", 1},
    {"mapping", t_mapping, "", 0},
    {"ne", t_ne, "other", 1},
    {"none", t_none, "", 0},
    {"number", t_number, "", 0},
    {"odd", t_odd, "", 0},
    {"sameas", t_sameas, "other", 1},
    {"sequence", t_sequence, "", 0},
    {"string", t_string, "", 0},
    {"test", t_test, "", 0},
    {"true", t_true, "", 0},
    {"undefined", t_undefined, "", 0},
    {"upper", t_upper, "", 0},
};

const struct builtin *sl_tpl_test(const struct str *name)
{
    return sl_tpl_lookup(tests, SL_COUNTOF(tests), name);
}

bool sl_tpl_run_test(struct cx *cx, const struct builtin *test, struct val v, const struct args *args)
{
    return sl_tpl_call_builtin(cx, test, v, args).b;
}

/* --- global functions: self is not used --- */

TEST(g_range)
{
    int64_t start = 0, stop = need_int(cx, slots[0]), step = sl_tpl_int_arg(cx, slots[2], 1, "step");
    struct list *out;
    struct val v = sl_tpl_list(cx, VAL_LIST, &out);
    if (slots[1].type != VAL_MISSING) {
        start = stop;
        stop = need_int(cx, slots[1]);
    }
    if (step == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "range: step must not be zero");
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (out->n == SL_TEMPLATE_MAX_RANGE)
            sl_tpl_fail(&cx->base, SL_ETOOBIG, "range has more than %d items", SL_TEMPLATE_MAX_RANGE);
        sl_tpl_list_add(cx, out, sl_tpl_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return v;
}

static struct val make_dict(struct cx *cx, const struct args *raw, enum val_type type)
{
    struct dict *d;
    struct val v = sl_tpl_dict(cx, type, &d);
    for (size_t i = 0; i < raw->n_pos; i++) {
        struct val from = raw->pos[i];
        const struct list *pairs = from.type == VAL_DICT ? NULL : sl_tpl_iter(cx, from);
        for (size_t k = 0; pairs && k < pairs->n; k++) {
            const struct list *pair = sl_tpl_iter(cx, pairs->items[k]);
            if (pair->n != 2)
                sl_tpl_fail(&cx->base, SL_EINVAL, "dict needs pairs of key and value");
            sl_tpl_dict_set(cx, d, pair->items[0], pair->items[1]);
        }
        for (size_t k = 0; !pairs && k < from.d->n; k++)
            sl_tpl_dict_set(cx, d, from.d->items[k].key, from.d->items[k].val);
    }
    for (size_t i = 0; i < raw->n_kw; i++)
        sl_tpl_dict_set(cx, d, (struct val){.type = VAL_STR, .s = raw->kw[i].name}, raw->kw[i].val);
    return v;
}

TEST(g_dict)
{
    return make_dict(cx, raw, VAL_DICT);
}

TEST(g_namespace)
{
    return make_dict(cx, raw, VAL_NAMESPACE);
}

TEST(g_cycler)
{
    struct counter *c = sl_tpl_alloc(&cx->base, sizeof *c);
    if (raw->n_pos == 0)
        sl_tpl_fail(&cx->base, SL_EINVAL, "cycler needs at least one value");
    sl_tpl_list(cx, VAL_LIST, &c->items);
    for (size_t i = 0; i < raw->n_pos; i++)
        sl_tpl_list_add(cx, c->items, raw->pos[i]);
    return (struct val){.type = VAL_CYCLER, .counter = c};
}

TEST(g_joiner)
{
    struct counter *c = sl_tpl_alloc(&cx->base, sizeof *c);
    c->sep = slots[0].type == VAL_MISSING ? sl_tpl_cstr(cx, ", ").s : sl_tpl_text(cx, slots[0]);
    return (struct val){.type = VAL_JOINER, .counter = c};
}

/* The message is for the client, as it stands. */
TEST(g_raise_exception)
{
    const struct str *s = sl_tpl_text(cx, slots[0]);
    cx->base.line = 0;
    sl_tpl_fail(&cx->base, SL_EINVAL, "%.*s", (int)(s->n < SL_WHY_MAX ? s->n : SL_WHY_MAX), s->p);
}

static size_t format_time(char *out, size_t max, const char *format, const struct tm *tm)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored                                                                               \
    "-Wformat-nonliteral" /* the format is the template's, and its length is bounded */
    return strftime(out, max, format, tm);
#pragma GCC diagnostic pop
}

TEST(g_strftime_now)
{
    const struct str *format = sl_tpl_text(cx, slots[0]);
    time_t now = (time_t)cx->args->now_s;
    struct tm tm;
    char in[128], out[512];
    if (format->n >= sizeof in || memchr(format->p, 0, format->n))
        sl_tpl_fail(&cx->base, SL_EINVAL, "strftime_now: the format is too long");
    memcpy(in, format->p, format->n);
    in[format->n] = 0;
    if (!localtime_r(&now, &tm))
        sl_tpl_fail(&cx->base, SL_EINVAL, "strftime_now: there is no such time");
    size_t n = format_time(out, sizeof out, in, &tm);
    if (n == 0 && format->n)
        sl_tpl_fail(&cx->base, SL_EINVAL, "strftime_now: the format cannot be used");
    char *text = sl_tpl_alloc(&cx->base, n + 1);
    memcpy(text, out, n);
    return (struct val){.type = VAL_STR, .s = sl_tpl_str_new(&cx->base, text, n, sl_tpl_untrusted(format))};
}

static const struct builtin globals[] = {
    {"cycler", g_cycler, NULL, 0},
    {"dict", g_dict, NULL, 0},
    {"joiner", g_joiner, "sep", 0},
    {"namespace", g_namespace, NULL, 0},
    {"raise_exception", g_raise_exception, "message", 1},
    {"range", g_range, "start,stop,step", 1},
    {"strftime_now", g_strftime_now, "format", 1},
};

const struct builtin *sl_tpl_global(const struct str *name)
{
    return sl_tpl_lookup(globals, SL_COUNTOF(globals), name);
}
