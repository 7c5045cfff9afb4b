/* common/text/template_eval.c - walks the tree: statements write to cx->out, expressions give values.
 *
 * Scopes are a chain of small lists, looked up at run time; a loop's iteration, a macro's call and a `with`
 * open one, an `if` does not, which gives Jinja's rule that `set` inside a loop stays inside. Scopes live as
 * long as the rendering, so a macro can keep the one it was defined in. Behind the outermost scope is the
 * context: names are taken from the request only when asked for, and kept converted. */
#include "common/text/template_internal.h"

#include <string.h>

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static const struct str word_loop = {.p = "loop", .n = 4}, word_varargs = {.p = "varargs", .n = 7},
                        word_kwargs = {.p = "kwargs", .n = 6};

static struct val eval(struct cx *cx, const struct node *n, struct scope *scope);
static enum flow run(struct cx *cx, const struct node *n, struct scope *scope);

/* --- names --- */

static struct scope *new_scope(struct cx *cx, struct scope *up)
{
    struct scope *s = sl_tpl_alloc(&cx->base, sizeof *s);
    s->up = up;
    return s;
}

static struct val *find_var(struct cx *cx, struct scope *s, const struct str *name)
{
    size_t looked_at = 0;
    struct var *v = s->vars;
    for (; v && !sl_tpl_str_eq(v->name, name); v = v->next)
        looked_at++;
    sl_tpl_charge(cx, 4 * looked_at);
    return v ? &v->val : NULL;
}

static void set_var(struct cx *cx, struct scope *s, const struct str *name, struct val val)
{
    struct val *there = find_var(cx, s, name);
    if (there) {
        *there = val;
        return;
    }
    struct var *v = sl_tpl_alloc(&cx->base, sizeof *v);
    *v = (struct var){name, val, s->vars};
    s->vars = v;
}

static struct val lookup(struct cx *cx, struct scope *scope, const struct node *n)
{
    for (struct scope *s = scope; s; s = s->up) {
        const struct val *v = find_var(cx, s, n->name);
        if (v)
            return *v;
    }
    const json_t *model = cx->args->model ? json_object_get(cx->args->model, n->c_name) : NULL;
    const json_t *request = cx->args->request ? json_object_get(cx->args->request, n->c_name) : NULL;
    struct val v = sl_tpl_undefined(n->c_name);
    const struct builtin *global = NULL;
    if (model || request) {
        v = sl_tpl_from_json(cx, model ? model : request, !model);
    } else if ((global = sl_tpl_global(n->name))) {
        struct func *fn = sl_tpl_alloc(&cx->base, sizeof *fn);
        fn->builtin = global;
        v = (struct val){.type = VAL_FUNC, .fn = fn};
    }
    set_var(cx, &cx->context, n->name, v);
    return v;
}

static void assign(struct cx *cx, const struct node *target, struct val v, struct scope *scope)
{
    if (target->type == N_NAME) {
        set_var(cx, scope, target->name, v);
    } else if (target->type == N_GETATTR) {
        struct val ns = lookup(cx, scope, target->a);
        if (ns.type != VAL_NAMESPACE)
            sl_tpl_fail(&cx->base, SL_EINVAL, "cannot assign attribute on non-namespace object '%s'",
                        target->a->c_name);
        sl_tpl_dict_set(cx, ns.d, (struct val){.type = VAL_STR, .s = target->name}, v);
    } else {
        const struct list *items = sl_tpl_iter(cx, v);
        if (items->n != target->n_args)
            sl_tpl_fail(&cx->base, SL_EINVAL, "%zu values to unpack, expected %zu", items->n, target->n_args);
        for (size_t i = 0; i < target->n_args; i++)
            assign(cx, target->args[i].value, items->items[i], scope);
    }
}

/* --- calls --- */

static struct args eval_args(struct cx *cx, const struct node *n, struct scope *scope)
{
    struct list *pos;
    struct args args = {0};
    size_t n_kw = n->n_args;
    sl_tpl_list(cx, VAL_LIST, &pos);
    args.kw = n_kw ? sl_tpl_alloc(&cx->base, n_kw * sizeof *args.kw) : NULL;
    for (size_t i = 0; i < n->n_args; i++) {
        struct val v = eval(cx, n->args[i].value, scope);
        if (n->args[i].kind == ARG_KEYWORD) {
            args.kw[args.n_kw++] = (struct kwarg){n->args[i].name, v};
        } else if (n->args[i].kind == ARG_POS) {
            sl_tpl_list_add(cx, pos, v);
        } else if (n->args[i].kind == ARG_SPREAD) {
            const struct list *items = sl_tpl_iter(cx, v);
            for (size_t k = 0; k < items->n; k++)
                sl_tpl_list_add(cx, pos, items->items[k]);
        } else {
            if (v.type != VAL_DICT)
                sl_tpl_fail(&cx->base, SL_EINVAL, "argument after ** must be a mapping, not %s",
                            sl_tpl_type_name(v));
            struct kwarg *bigger = sl_tpl_alloc(&cx->base, (n_kw + v.d->n) * sizeof *bigger);
            if (args.n_kw)
                memcpy(bigger, args.kw, args.n_kw * sizeof *bigger);
            args.kw = bigger;
            n_kw += v.d->n;
            for (size_t k = 0; k < v.d->n; k++) {
                if (v.d->items[k].key.type != VAL_STR)
                    sl_tpl_fail(&cx->base, SL_EINVAL, "keywords must be strings");
                args.kw[args.n_kw++] = (struct kwarg){v.d->items[k].key.s, v.d->items[k].val};
            }
        }
    }
    args.pos = pos->items;
    args.n_pos = pos->n;
    return args;
}

/* Index of name in "a,b,c", or -1. */
static int param_index(const char *params, const struct str *name)
{
    int i = 0;
    for (const char *p = params; *p; i++) {
        size_t n = strcspn(p, ",");
        if (n == name->n && memcmp(p, name->p, n) == 0)
            return i;
        p += n + (p[n] == ',');
    }
    return -1;
}

struct val sl_tpl_call_builtin(struct cx *cx, const struct builtin *b, struct val self,
                               const struct args *args)
{
    struct val slots[SL_TPL_MAX_PARAMS];
    size_t n_params = 0;
    for (size_t i = 0; i < SL_TPL_MAX_PARAMS; i++)
        slots[i] = (struct val){.type = VAL_MISSING};
    if (!b->params)
        return b->fn(cx, self, slots, args);
    for (const char *p = b->params; *p; n_params++)
        p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',');
    if (args->n_pos > n_params)
        sl_tpl_fail(&cx->base, SL_EINVAL, "%s takes at most %zu arguments, %zu given", b->name, n_params,
                    args->n_pos);
    for (size_t i = 0; i < args->n_pos; i++)
        slots[i] = args->pos[i];
    for (size_t i = 0; i < args->n_kw; i++) {
        int at = param_index(b->params, args->kw[i].name);
        if (at < 0 || slots[at].type != VAL_MISSING)
            sl_tpl_fail(&cx->base, SL_EINVAL, "%s got an unexpected or repeated argument '%.*s'", b->name,
                        (int)(args->kw[i].name->n & 63), args->kw[i].name->p);
        slots[at] = args->kw[i].val;
    }
    for (size_t i = 0; i < b->n_required; i++)
        if (slots[i].type == VAL_MISSING)
            sl_tpl_fail(&cx->base, SL_EINVAL, "%s needs at least %u arguments", b->name, b->n_required);
    return b->fn(cx, self, slots, args);
}

/* Runs body with its output going to a string. */
static struct val capture(struct cx *cx, const struct node *body, struct scope *scope)
{
    struct sb sb, *outer = cx->out;
    sl_tpl_sb_init(&sb, cx);
    cx->out = &sb;
    run(cx, body, scope);
    cx->out = outer;
    return sl_tpl_sb_done(&sb);
}

static struct val call_macro(struct cx *cx, const struct macro *m, const struct args *args)
{
    const struct node *n = m->node;
    struct scope *scope = new_scope(cx, m->scope);
    struct list *varargs;
    struct dict *kwargs;
    struct val rest = sl_tpl_list(cx, VAL_TUPLE, &varargs), named = sl_tpl_dict(cx, VAL_DICT, &kwargs);
    for (size_t i = 0; i < args->n_kw; i++) {
        const struct str *name = args->kw[i].name;
        bool known = sl_tpl_str_is(name, "caller");
        for (size_t k = 0; k < n->n_args && !known; k++)
            known = k >= args->n_pos && sl_tpl_str_eq(n->args[k].name, name);
        if (known && !find_var(cx, scope, name))
            set_var(cx, scope, name, args->kw[i].val);
        else
            sl_tpl_dict_set(cx, kwargs, (struct val){.type = VAL_STR, .s = name}, args->kw[i].val);
    }
    for (size_t i = n->n_args; i < args->n_pos; i++)
        sl_tpl_list_add(cx, varargs, args->pos[i]);
    for (size_t i = 0; i < n->n_args; i++) {
        const struct arg *param = &n->args[i];
        if (i < args->n_pos)
            set_var(cx, scope, param->name, args->pos[i]);
        else if (!find_var(cx, scope, param->name))
            set_var(cx, scope, param->name,
                    param->value ? eval(cx, param->value, scope) : sl_tpl_undefined("argument"));
    }
    set_var(cx, scope, &word_varargs, rest);
    set_var(cx, scope, &word_kwargs, named);
    sl_tpl_enter(cx);
    struct val text = capture(cx, n->body, scope);
    sl_tpl_leave(cx);
    return text;
}

static void run_loop(struct cx *cx, const struct node *n, struct list *items, struct scope *scope,
                     unsigned depth0)
{
    struct loop *loop = sl_tpl_alloc(&cx->base, sizeof *loop);
    bool finished = false;
    *loop = (struct loop){n, scope, items, 0, depth0, {.type = VAL_MISSING}};
    for (; loop->at < items->n; loop->at++) {
        struct scope *inner = new_scope(cx, scope);
        set_var(cx, inner, &word_loop, (struct val){.type = VAL_LOOP, .loop = loop});
        assign(cx, n->a, items->items[loop->at], inner);
        enum flow flow = run(cx, n->body, inner);
        if (flow == FLOW_BREAK)
            break;
        finished = finished || flow == FLOW_ON;
    }
    if (!finished) /* as Jinja has it: also when every round was cut short */
        run(cx, n->orelse, scope);
}

/* The items of a loop, filtered; the filter sees the target but no `loop`. */
static struct list *loop_items(struct cx *cx, const struct node *n, struct val iterable, struct scope *scope)
{
    struct list *items = sl_tpl_iter(cx, iterable), *kept;
    if (!n->c)
        return items;
    sl_tpl_list(cx, VAL_LIST, &kept);
    for (size_t i = 0; i < items->n; i++) {
        struct scope *inner = new_scope(cx, scope);
        assign(cx, n->a, items->items[i], inner);
        if (sl_tpl_truth(eval(cx, n->c, inner)))
            sl_tpl_list_add(cx, kept, items->items[i]);
    }
    return kept;
}

static struct val call_loop(struct cx *cx, const struct loop *loop, const struct args *args)
{
    if (!loop->node->recursive || args->n_pos != 1)
        sl_tpl_fail(&cx->base, SL_EINVAL,
                    "loop can be called with one argument, in a for with 'recursive' only");
    struct sb sb, *outer = cx->out;
    sl_tpl_enter(cx);
    sl_tpl_sb_init(&sb, cx);
    cx->out = &sb;
    run_loop(cx, loop->node, loop_items(cx, loop->node, args->pos[0], loop->scope), loop->scope,
             loop->depth0 + 1);
    cx->out = outer;
    sl_tpl_leave(cx);
    return sl_tpl_sb_done(&sb);
}

struct val sl_tpl_call(struct cx *cx, struct val callee, const struct args *args)
{
    switch (callee.type) {
    case VAL_FUNC:
        return sl_tpl_call_builtin(cx, callee.fn->builtin, callee.fn->self, args);
    case VAL_MACRO:
        return call_macro(cx, callee.macro, args);
    case VAL_LOOP:
        return call_loop(cx, callee.loop, args);
    case VAL_JOINER:
        return callee.counter->at++ ? (struct val){.type = VAL_STR, .s = callee.counter->sep}
                                    : sl_tpl_cstr(cx, "");
    case VAL_UNDEFINED:
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%.64s' is undefined", callee.name ? callee.name : "value");
    default:
        sl_tpl_fail(&cx->base, SL_EINVAL, "'%s' object is not callable", sl_tpl_type_name(callee));
    }
}

static struct val make_macro(struct cx *cx, const struct node *n, struct scope *scope)
{
    struct macro *m = sl_tpl_alloc(&cx->base, sizeof *m);
    *m = (struct macro){n, scope};
    return (struct val){.type = VAL_MACRO, .macro = m};
}

/* --- expressions --- */

/* input: what a filter without left side (of a filter or set block) works on. */
static struct val eval_filter(struct cx *cx, const struct node *n, struct scope *scope,
                              const struct val *input)
{
    struct val v = sl_tpl_none();
    if (n->a)
        v = n->a->type == N_FILTER ? eval_filter(cx, n->a, scope, input) : eval(cx, n->a, scope);
    else if (input)
        v = *input;
    if (!n->builtin)
        sl_tpl_fail(&cx->base, SL_EINVAL, "no filter named '%.64s'", n->c_name);
    struct args args = eval_args(cx, n, scope);
    return sl_tpl_call_builtin(cx, n->builtin, v, &args);
}

static bool eval_compare(struct cx *cx, const struct node *n, struct scope *scope)
{
    struct val left = eval(cx, n->a, scope);
    for (size_t i = 0; i < n->n_args; i++) {
        struct val right = eval(cx, n->args[i].value, scope);
        if (!sl_tpl_compare(cx, n->args[i].op, left, right))
            return false;
        left = right;
    }
    return true;
}

/* a ~ b ~ c into one string. */
static void eval_concat(struct cx *cx, const struct node *n, struct scope *scope, struct sb *sb)
{
    sl_tpl_enter(cx);
    if (n->type == N_CONCAT) {
        eval_concat(cx, n->a, scope, sb);
        eval_concat(cx, n->b, scope, sb);
    } else {
        sl_tpl_print(sb, eval(cx, n, scope));
    }
    sl_tpl_leave(cx);
}

static struct val eval_items(struct cx *cx, const struct node *n, struct scope *scope)
{
    struct list *l;
    struct dict *d;
    struct val v;
    if (n->type == N_DICT) {
        v = sl_tpl_dict(cx, VAL_DICT, &d);
        for (size_t i = 0; i + 1 < n->n_args; i += 2) {
            struct val key = eval(cx, n->args[i].value, scope);
            sl_tpl_dict_set(cx, d, key, eval(cx, n->args[i + 1].value, scope));
        }
        return v;
    }
    v = sl_tpl_list(cx, n->type == N_LIST ? VAL_LIST : VAL_TUPLE, &l);
    for (size_t i = 0; i < n->n_args; i++)
        sl_tpl_list_add(cx, l, eval(cx, n->args[i].value, scope));
    return v;
}

static struct val eval_slice(struct cx *cx, const struct node *n, struct scope *scope)
{
    struct val object = eval(cx, n->a, scope), parts[3];
    for (size_t i = 0; i < 3; i++)
        parts[i] = n->args[i].value ? eval(cx, n->args[i].value, scope) : sl_tpl_none();
    return sl_tpl_slice(cx, object, parts);
}

static struct val eval_node(struct cx *cx, const struct node *n, struct scope *scope)
{
    struct val v;
    struct sb sb;
    struct args args;
    switch (n->type) {
    case N_CONST:
        return n->value;
    case N_NAME:
        return lookup(cx, scope, n);
    case N_LIST:
    case N_TUPLE:
    case N_DICT:
        return eval_items(cx, n, scope);
    case N_GETATTR:
        return sl_tpl_getattr(cx, eval(cx, n->a, scope), n->name);
    case N_GETITEM:
        v = eval(cx, n->a, scope);
        return sl_tpl_getitem(cx, v, eval(cx, n->b, scope));
    case N_SLICE:
        return eval_slice(cx, n, scope);
    case N_CALL:
        v = eval(cx, n->a, scope);
        args = eval_args(cx, n, scope);
        cx->base.line = n->line;
        return sl_tpl_call(cx, v, &args);
    case N_FILTER:
        return eval_filter(cx, n, scope, NULL);
    case N_TEST:
        v = eval(cx, n->a, scope);
        if (!n->builtin)
            sl_tpl_fail(&cx->base, SL_EINVAL, "no test named '%.64s'", n->c_name);
        args = eval_args(cx, n, scope);
        return sl_tpl_bool(sl_tpl_run_test(cx, n->builtin, v, &args) != n->negated);
    case N_NOT:
        return sl_tpl_bool(!sl_tpl_truth(eval(cx, n->a, scope)));
    case N_AND:
        v = eval(cx, n->a, scope);
        return sl_tpl_truth(v) ? eval(cx, n->b, scope) : v;
    case N_OR:
        v = eval(cx, n->a, scope);
        return sl_tpl_truth(v) ? v : eval(cx, n->b, scope);
    case N_NEG:
    case N_POS:
        v = eval(cx, n->a, scope);
        return sl_tpl_binary(cx, n->type == N_NEG ? OP_SUB : OP_ADD, sl_tpl_int(0), v);
    case N_BINARY:
        v = eval(cx, n->a, scope);
        return sl_tpl_binary(cx, n->op, v, eval(cx, n->b, scope));
    case N_CONCAT:
        sl_tpl_sb_init(&sb, cx);
        eval_concat(cx, n, scope, &sb);
        return sl_tpl_sb_done(&sb);
    case N_COMPARE:
        return sl_tpl_bool(eval_compare(cx, n, scope));
    case N_COND:
        if (sl_tpl_truth(eval(cx, n->b, scope)))
            return eval(cx, n->a, scope);
        return n->c ? eval(cx, n->c, scope) : sl_tpl_undefined("the missing else");
    default:
        sl_tpl_fail(&cx->base, SL_EBUG, "a statement where an expression belongs");
    }
}

static struct val eval(struct cx *cx, const struct node *n, struct scope *scope)
{
    sl_tpl_enter(cx);
    cx->base.line = n->line;
    struct val v = eval_node(cx, n, scope);
    sl_tpl_leave(cx);
    return v;
}

/* --- statements --- */

static void run_call_block(struct cx *cx, const struct node *n, struct scope *scope)
{
    const struct node *call = n->a;
    struct val callee = eval(cx, call->a, scope);
    struct args args = eval_args(cx, call, scope);
    struct kwarg *kw = sl_tpl_alloc(&cx->base, (args.n_kw + 1) * sizeof *kw);
    if (args.n_kw)
        memcpy(kw, args.kw, args.n_kw * sizeof *kw);
    kw[args.n_kw++] = (struct kwarg){n->name, make_macro(cx, n, scope)};
    args.kw = kw;
    sl_tpl_print(cx->out, sl_tpl_call(cx, callee, &args));
}

static enum flow run_with(struct cx *cx, const struct node *n, struct scope *scope)
{
    struct scope *inner = new_scope(cx, scope);
    for (size_t i = 0; i + 1 < n->n_args; i += 2) /* the values see the outer names only */
        assign(cx, n->args[i].value, eval(cx, n->args[i + 1].value, scope), inner);
    return run(cx, n->body, inner);
}

static enum flow run_node(struct cx *cx, const struct node *n, struct scope *scope)
{
    struct val v;
    switch (n->type) {
    case N_TEXT:
        sl_tpl_print(cx->out, n->value);
        return FLOW_ON;
    case N_PRINT:
        v = eval(cx, n->a, scope);
        sl_tpl_print(cx->out, v);
        return FLOW_ON;
    case N_IF:
        return run(cx, sl_tpl_truth(eval(cx, n->a, scope)) ? n->body : n->orelse, scope);
    case N_FOR:
        v = eval(cx, n->b, scope);
        run_loop(cx, n, loop_items(cx, n, v, scope), scope, 0);
        return FLOW_ON;
    case N_SET:
        assign(cx, n->a, eval(cx, n->b, scope), scope);
        return FLOW_ON;
    case N_SET_BLOCK:
        v = capture(cx, n->body, new_scope(cx, scope));
        assign(cx, n->a, n->b ? eval_filter(cx, n->b, scope, &v) : v, scope);
        return FLOW_ON;
    case N_MACRO:
        set_var(cx, scope, n->name, make_macro(cx, n, scope));
        return FLOW_ON;
    case N_CALL_BLOCK:
        run_call_block(cx, n, scope);
        return FLOW_ON;
    case N_FILTER_BLOCK:
        v = capture(cx, n->body, new_scope(cx, scope));
        sl_tpl_print(cx->out, eval_filter(cx, n->b, scope, &v));
        return FLOW_ON;
    case N_WITH:
        return run_with(cx, n, scope);
    case N_SCOPE:
        return run(cx, n->body, new_scope(cx, scope));
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        sl_tpl_fail(&cx->base, SL_EBUG, "an expression where a statement belongs");
    }
}

static enum flow run(struct cx *cx, const struct node *n, struct scope *scope)
{
    enum flow flow = FLOW_ON;
    sl_tpl_enter(cx);
    for (; n && flow == FLOW_ON; n = n->next) {
        cx->base.line = n->line;
        flow = run_node(cx, n, scope);
    }
    sl_tpl_leave(cx);
    return flow;
}

void sl_tpl_run(struct cx *cx, const struct node *body)
{
    run(cx, body, new_scope(cx, &cx->context));
}
