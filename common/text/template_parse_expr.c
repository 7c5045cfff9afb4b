/* common/text/template_parse_expr.c - expressions: one function per precedence level of Jinja, and the
 * parser's tools.
 *
 * Names of filters and tests are looked up here, but an unknown one is an error only when it is evaluated, as
 * in Jinja inside conditions. */
#include "common/text/template_parser.h"

#include <stdio.h>
#include <string.h>

static struct node *unary(struct parser *ps, bool with_filter);

SL_NORETURN void sl_tpl_parse_fail(struct parser *ps, const char *what)
{
    char found[48];
    const struct token *t = ps->t;
    ps->b->line = t->line;
    if (t->type == T_EOF)
        sl_tpl_fail(ps->b, SL_EPARSE, "%s, found the end of the template", what);
    size_t n = t->p ? (t->n < 40 ? t->n : 40) : 0;
    for (size_t i = 0; i < n; i++)
        found[i] = (unsigned char)t->p[i] < 0x20 ? ' ' : t->p[i];
    found[n] = 0;
    sl_tpl_fail(ps->b, SL_EPARSE, "%s, found \"%s\"", what, n ? found : "the end of the tag");
}

void sl_tpl_parse_deeper(struct parser *ps)
{
    ps->b->line = ps->t->line;
    if (++ps->depth > SL_TEMPLATE_MAX_NESTING)
        sl_tpl_fail(ps->b, SL_ETOOBIG, "blocks or expressions are nested more than %d deep",
                    SL_TEMPLATE_MAX_NESTING);
}

bool sl_tpl_token_is(const struct token *t, enum token_type type, const char *text)
{
    return t->type == type && strlen(text) == t->n && memcmp(t->p, text, t->n) == 0;
}

bool sl_tpl_is_op(struct parser *ps, const char *op)
{
    return sl_tpl_token_is(ps->t, T_OP, op);
}

bool sl_tpl_is_word(struct parser *ps, const char *word)
{
    return sl_tpl_token_is(ps->t, T_NAME, word);
}

bool sl_tpl_skip_op(struct parser *ps, const char *op)
{
    if (!sl_tpl_is_op(ps, op))
        return false;
    ps->t++;
    return true;
}

bool sl_tpl_skip_word(struct parser *ps, const char *word)
{
    if (!sl_tpl_is_word(ps, word))
        return false;
    ps->t++;
    return true;
}

void sl_tpl_expect_op(struct parser *ps, const char *op)
{
    char what[32];
    if (sl_tpl_skip_op(ps, op))
        return;
    snprintf(what, sizeof what, "expected \"%s\"", op);
    sl_tpl_parse_fail(ps, what);
}

struct node *sl_tpl_new_node(struct parser *ps, enum node_type type)
{
    struct node *n = sl_tpl_alloc(ps->b, sizeof *n);
    n->type = type;
    n->line = ps->t->line;
    return n;
}

static struct node *constant(struct parser *ps, struct val v)
{
    struct node *n = sl_tpl_new_node(ps, N_CONST);
    n->value = v;
    return n;
}

struct arg *sl_tpl_add_arg(struct parser *ps, struct node *n, struct node *value)
{
    /* grows at powers of two: lists in templates are short */
    if ((n->n_args & (n->n_args - 1)) == 0) {
        struct arg *bigger = sl_tpl_alloc(ps->b, (n->n_args ? 2 * n->n_args : 1) * sizeof *bigger);
        if (n->n_args)
            memcpy(bigger, n->args, n->n_args * sizeof *bigger);
        n->args = bigger;
    }
    n->args[n->n_args] = (struct arg){.value = value};
    return &n->args[n->n_args++];
}

/* Takes a name; strings of the tree are copies, so that the token list can be thought away. */
const struct str *sl_tpl_take_name(struct parser *ps, const char *what)
{
    if (ps->t->type != T_NAME)
        sl_tpl_parse_fail(ps, what);
    const struct str *s = sl_tpl_str_new(ps->b, ps->t->p, ps->t->n, false);
    ps->t++;
    return s;
}

void sl_tpl_set_name(struct parser *ps, struct node *n, const struct str *name)
{
    char *c = sl_tpl_alloc(ps->b, name->n + 1);
    memcpy(c, name->p, name->n);
    n->name = name;
    n->c_name = c;
}

/* --- expressions --- */

static void call_args(struct parser *ps, struct node *n)
{
    while (!sl_tpl_skip_op(ps, ")")) {
        if (n->n_args) {
            sl_tpl_expect_op(ps, ",");
            if (sl_tpl_skip_op(ps, ")"))
                return;
        }
        enum arg_kind kind = ARG_POS;
        const struct str *name = NULL;
        if (sl_tpl_skip_op(ps, "*")) {
            kind = ARG_SPREAD;
        } else if (sl_tpl_skip_op(ps, "**")) {
            kind = ARG_SPREAD_DICT;
        } else if (ps->t->type == T_NAME && sl_tpl_token_is(ps->t + 1, T_OP, "=")) {
            kind = ARG_KEYWORD;
            name = sl_tpl_take_name(ps, "expected a name");
            ps->t++;
        }
        struct arg *arg = sl_tpl_add_arg(ps, n, NULL);
        size_t at = n->n_args - 1;
        arg->kind = kind;
        arg->name = name;
        struct node *value = sl_tpl_expression(ps, true);
        n->args[at].value = value;
    }
}

bool sl_tpl_ends_tuple(struct parser *ps)
{
    return ps->t->type == T_VAR_END || ps->t->type == T_BLOCK_END || sl_tpl_is_op(ps, ")") ||
           sl_tpl_is_op(ps, "=") || sl_tpl_is_word(ps, "in") || sl_tpl_is_word(ps, "recursive");
}

/* expression [, expression]*; one alone is itself, a comma makes a tuple. */
struct node *sl_tpl_tuple(struct parser *ps, bool with_condition, bool parenthesised)
{
    struct node *n = sl_tpl_new_node(ps, N_TUPLE);
    if (parenthesised && sl_tpl_is_op(ps, ")"))
        return n;
    do {
        struct node *item = sl_tpl_expression(ps, with_condition);
        if (n->n_args == 0 && !sl_tpl_is_op(ps, ","))
            return item;
        sl_tpl_add_arg(ps, n, item);
    } while (sl_tpl_skip_op(ps, ",") && !sl_tpl_ends_tuple(ps));
    return n;
}

static struct node *strings(struct parser *ps)
{
    size_t n = 0, at = 0;
    const struct token *t = ps->t;
    for (; t->type == T_STRING; t++)
        n += t->n;
    char *p = sl_tpl_alloc(ps->b, n + 1);
    for (t = ps->t; t->type == T_STRING; t++) {
        memcpy(p + at, t->p, t->n);
        at += t->n;
    }
    struct node *c = constant(ps, (struct val){.type = VAL_STR, .s = sl_tpl_str_new(ps->b, p, n, false)});
    ps->t = t;
    return c;
}

static struct node *list_or_dict(struct parser *ps, enum node_type type, const char *end)
{
    struct node *n = sl_tpl_new_node(ps, type);
    ps->t++;
    while (!sl_tpl_skip_op(ps, end)) {
        if (n->n_args) {
            sl_tpl_expect_op(ps, ",");
            if (sl_tpl_skip_op(ps, end))
                break;
        }
        sl_tpl_add_arg(ps, n, sl_tpl_expression(ps, true));
        if (type == N_DICT) {
            sl_tpl_expect_op(ps, ":");
            sl_tpl_add_arg(ps, n, sl_tpl_expression(ps, true));
        }
    }
    return n;
}

static struct node *primary(struct parser *ps)
{
    const struct token *t = ps->t;
    struct node *n;
    if (t->type == T_NAME) {
        bool yes = sl_tpl_is_word(ps, "true") || sl_tpl_is_word(ps, "True"),
             no = sl_tpl_is_word(ps, "false") || sl_tpl_is_word(ps, "False");
        if (yes || no)
            n = constant(ps, (struct val){.type = VAL_BOOL, .b = yes});
        else if (sl_tpl_is_word(ps, "none") || sl_tpl_is_word(ps, "None"))
            n = constant(ps, (struct val){.type = VAL_NONE});
        else
            sl_tpl_set_name(ps, n = sl_tpl_new_node(ps, N_NAME), sl_tpl_str_new(ps->b, t->p, t->n, false));
        ps->t++;
        return n;
    }
    if (t->type == T_STRING)
        return strings(ps);
    if (t->type == T_INT || t->type == T_FLOAT) {
        n = constant(ps, t->type == T_INT ? (struct val){.type = VAL_INT, .i = t->i}
                                          : (struct val){.type = VAL_FLOAT, .f = t->f});
        ps->t++;
        return n;
    }
    if (sl_tpl_skip_op(ps, "(")) {
        n = sl_tpl_tuple(ps, true, true);
        sl_tpl_expect_op(ps, ")");
        return n;
    }
    if (sl_tpl_is_op(ps, "["))
        return list_or_dict(ps, N_LIST, "]");
    if (sl_tpl_is_op(ps, "{"))
        return list_or_dict(ps, N_DICT, "}");
    sl_tpl_parse_fail(ps, "expected an expression");
}

/* Behind "[": one subscript, a slice, or several (a tuple). */
static struct node *subscript(struct parser *ps, struct node *object)
{
    struct node *n = sl_tpl_new_node(ps, N_GETITEM), *parts[3] = {NULL, NULL, NULL};
    size_t part = 0;
    bool slice = false;
    for (;;) {
        if (sl_tpl_skip_op(ps, ":")) {
            slice = true;
            if (++part == 3)
                sl_tpl_parse_fail(ps, "a slice has at most two colons");
        } else if (sl_tpl_skip_op(ps, "]")) {
            break;
        } else if (parts[part]) {
            sl_tpl_parse_fail(ps, "expected \"]\"");
        } else {
            parts[part] = sl_tpl_expression(ps, true);
        }
    }
    n->a = object;
    if (slice) {
        n->type = N_SLICE;
        for (size_t i = 0; i < 3; i++)
            sl_tpl_add_arg(ps, n, parts[i]);
    } else if (!(n->b = parts[0])) {
        sl_tpl_parse_fail(ps, "expected a subscript");
    }
    return n;
}

static struct node *call(struct parser *ps, struct node *callee)
{
    struct node *n = sl_tpl_new_node(ps, N_CALL);
    n->a = callee;
    ps->t++;
    call_args(ps, n);
    return n;
}

static struct node *postfix(struct parser *ps, struct node *n)
{
    for (;;) {
        if (sl_tpl_is_op(ps, "(")) {
            n = call(ps, n);
        } else if (sl_tpl_skip_op(ps, "[")) {
            n = subscript(ps, n);
        } else if (sl_tpl_skip_op(ps, ".")) {
            struct node *get = sl_tpl_new_node(ps, ps->t->type == T_INT ? N_GETITEM : N_GETATTR);
            get->a = n;
            if (ps->t->type == T_INT)
                get->b = primary(ps);
            else
                sl_tpl_set_name(ps, get, sl_tpl_take_name(ps, "expected a name after \".\""));
            n = get;
        } else {
            return n;
        }
    }
}

/* "name" or "name.name" */
static void dotted_name(struct parser *ps, struct node *n, const char *what)
{
    const struct token *first = ps->t;
    sl_tpl_take_name(ps, what);
    while (sl_tpl_skip_op(ps, "."))
        sl_tpl_take_name(ps, what);
    const struct token *last = ps->t - 1;
    size_t len = (size_t)(last->p + last->n - first->p);
    sl_tpl_set_name(ps, n, sl_tpl_str_new(ps->b, first->p, len, false));
}

struct node *sl_tpl_parse_filter(struct parser *ps, struct node *input)
{
    struct node *n = sl_tpl_new_node(ps, N_FILTER);
    n->a = input;
    dotted_name(ps, n, "expected the name of a filter");
    n->builtin = sl_tpl_filter(n->name);
    if (sl_tpl_skip_op(ps, "("))
        call_args(ps, n);
    return n;
}

static struct node *test(struct parser *ps, struct node *input)
{
    struct node *n = sl_tpl_new_node(ps, N_TEST);
    n->a = input;
    n->negated = sl_tpl_skip_word(ps, "not");
    dotted_name(ps, n, "expected the name of a test");
    n->builtin = sl_tpl_test(n->name);
    const struct token *t = ps->t;
    if (sl_tpl_skip_op(ps, "(")) {
        call_args(ps, n);
    } else if (t->type == T_STRING || t->type == T_INT || t->type == T_FLOAT || sl_tpl_is_op(ps, "[") ||
               sl_tpl_is_op(ps, "{") ||
               (t->type == T_NAME && !sl_tpl_is_word(ps, "else") && !sl_tpl_is_word(ps, "or") &&
                !sl_tpl_is_word(ps, "and"))) {
        if (sl_tpl_is_word(ps, "is"))
            sl_tpl_parse_fail(ps, "tests cannot be chained with \"is\"");
        /* `x is divisibleby 3`; not `x is defined if ...`, which Jinja cannot take either */
        struct node *arg = postfix(ps, primary(ps));
        sl_tpl_add_arg(ps, n, arg);
    }
    return n;
}

static struct node *filters(struct parser *ps, struct node *n)
{
    for (;;) {
        if (sl_tpl_skip_op(ps, "|"))
            n = sl_tpl_parse_filter(ps, n);
        else if (sl_tpl_skip_word(ps, "is"))
            n = test(ps, n);
        else if (sl_tpl_is_op(ps, "("))
            n = call(ps, n);
        else
            return n;
    }
}

static struct node *unary(struct parser *ps, bool with_filter)
{
    struct node *n;
    sl_tpl_parse_deeper(ps);
    if (sl_tpl_is_op(ps, "-") || sl_tpl_is_op(ps, "+")) {
        n = sl_tpl_new_node(ps, sl_tpl_is_op(ps, "-") ? N_NEG : N_POS);
        ps->t++;
        n->a = unary(ps, false);
    } else {
        n = primary(ps);
    }
    n = postfix(ps, n);
    if (with_filter)
        n = filters(ps, n);
    ps->depth--;
    return n;
}

/* The binary levels, tightest first. All associate to the left, as in Jinja ("**" too). */
static const struct level {
    struct {
        const char *text;
        enum op op;
    } ops[5];
} levels[] = {
    {{{"**", OP_POW}}},
    {{{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}}},
    {{{"~", OP_ADD}}}, /* N_CONCAT */
    {{{"+", OP_ADD}, {"-", OP_SUB}}},
};

static struct node *binary(struct parser *ps, int level)
{
    if (level < 0)
        return unary(ps, true);
    struct node *left = binary(ps, level - 1);
    for (size_t i = 0; levels[level].ops[i].text;) {
        if (!sl_tpl_is_op(ps, levels[level].ops[i].text)) {
            i++;
            continue;
        }
        struct node *n = sl_tpl_new_node(ps, level == 2 ? N_CONCAT : N_BINARY);
        n->op = levels[level].ops[i].op;
        ps->t++;
        n->a = left;
        n->b = binary(ps, level - 1);
        left = n;
        i = 0;
    }
    return left;
}

static bool compare_op(struct parser *ps, enum op *op)
{
    static const struct {
        const char *text;
        enum op op;
    } ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<=", OP_LE}, {">=", OP_GE}, {"<", OP_LT}, {">", OP_GT}};
    for (size_t i = 0; i < SL_COUNTOF(ops); i++)
        if (sl_tpl_skip_op(ps, ops[i].text)) {
            *op = ops[i].op;
            return true;
        }
    *op = OP_IN;
    if (sl_tpl_skip_word(ps, "in"))
        return true;
    if (!sl_tpl_is_word(ps, "not") || !sl_tpl_token_is(ps->t + 1, T_NAME, "in"))
        return false;
    ps->t += 2;
    *op = OP_NOT_IN;
    return true;
}

static struct node *comparison(struct parser *ps)
{
    const int top = (int)SL_COUNTOF(levels) - 1;
    struct node *left = binary(ps, top), *n = NULL;
    enum op op;
    while (compare_op(ps, &op)) {
        if (!n) {
            n = sl_tpl_new_node(ps, N_COMPARE);
            n->a = left;
        }
        struct node *right = binary(ps, top);
        sl_tpl_add_arg(ps, n, right)->op = op;
    }
    return n ? n : left;
}

static struct node *negation(struct parser *ps)
{
    if (!sl_tpl_is_word(ps, "not"))
        return comparison(ps);
    sl_tpl_parse_deeper(ps);
    struct node *n = sl_tpl_new_node(ps, N_NOT);
    ps->t++;
    n->a = negation(ps);
    ps->depth--;
    return n;
}

static struct node *conjunction(struct parser *ps)
{
    struct node *left = negation(ps);
    while (sl_tpl_is_word(ps, "and")) {
        struct node *n = sl_tpl_new_node(ps, N_AND);
        ps->t++;
        n->a = left;
        n->b = negation(ps);
        left = n;
    }
    return left;
}

static struct node *disjunction(struct parser *ps)
{
    struct node *left = conjunction(ps);
    while (sl_tpl_is_word(ps, "or")) {
        struct node *n = sl_tpl_new_node(ps, N_OR);
        ps->t++;
        n->a = left;
        n->b = conjunction(ps);
        left = n;
    }
    return left;
}

struct node *sl_tpl_expression(struct parser *ps, bool with_condition)
{
    sl_tpl_parse_deeper(ps);
    struct node *n = disjunction(ps);
    while (with_condition && sl_tpl_is_word(ps, "if")) {
        struct node *cond = sl_tpl_new_node(ps, N_COND);
        ps->t++;
        cond->a = n;
        cond->b = disjunction(ps);
        if (sl_tpl_skip_word(ps, "else"))
            cond->c = sl_tpl_expression(ps, true);
        n = cond;
    }
    ps->depth--;
    return n;
}
