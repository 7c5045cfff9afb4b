/* common/text/template_parse.c - statements: tokens to tree, by recursive descent.
 *
 * Depth is bounded by SL_TEMPLATE_MAX_NESTING. Statements inside a block are a chain by `next`. */
#include "common/text/template_parser.h"

static struct node *body(struct parser *ps, const char *const *ends);

/* A name, a tuple of targets, or (set only) namespace.attribute. */
static struct node *target(struct parser *ps, bool allow_namespace, bool allow_tuple)
{
    struct node *first;
    sl_tpl_parse_deeper(ps);
    if (sl_tpl_skip_op(ps, "(")) {
        first = target(ps, false, true);
        sl_tpl_expect_op(ps, ")");
    } else {
        first = sl_tpl_new_node(ps, N_NAME);
        sl_tpl_set_name(ps, first, sl_tpl_take_name(ps, "expected a name to assign to"));
        if (allow_namespace && sl_tpl_skip_op(ps, ".")) {
            struct node *attr = sl_tpl_new_node(ps, N_GETATTR);
            attr->a = first;
            sl_tpl_set_name(ps, attr, sl_tpl_take_name(ps, "expected a name after \".\""));
            first = attr;
        }
    }
    if (allow_tuple && sl_tpl_is_op(ps, ",")) {
        struct node *n = sl_tpl_new_node(ps, N_TUPLE);
        sl_tpl_add_arg(ps, n, first);
        while (sl_tpl_skip_op(ps, ",") && !sl_tpl_ends_tuple(ps)) {
            struct node *next = target(ps, false, false);
            sl_tpl_add_arg(ps, n, next);
        }
        first = n;
    }
    ps->depth--;
    return first;
}

static void end_block(struct parser *ps)
{
    if (ps->t->type != T_BLOCK_END)
        sl_tpl_parse_fail(ps, "expected the end of the tag");
    ps->t++;
}

static bool at_tag(struct parser *ps, const char *const *words)
{
    if (ps->t->type != T_BLOCK_BEGIN)
        return false;
    for (; *words; words++)
        if (sl_tpl_token_is(ps->t + 1, T_NAME, *words))
            return true;
    return false;
}

/* Takes "{% word %}". */
static void end_of(struct parser *ps, const char *word)
{
    ps->t++;
    if (!sl_tpl_skip_word(ps, word))
        sl_tpl_parse_fail(ps, "expected the end of a block");
    end_block(ps);
}

static struct node *block_body(struct parser *ps, const char *end)
{
    const char *ends[] = {end, NULL};
    end_block(ps);
    struct node *n = body(ps, ends);
    end_of(ps, end);
    return n;
}

/* Behind "if" or "elif". */
static struct node *parse_if(struct parser *ps)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct node *first = NULL, **at = &first;
    for (;;) {
        struct node *n = sl_tpl_new_node(ps, N_IF);
        n->a = sl_tpl_tuple(ps, false, false);
        end_block(ps);
        n->body = body(ps, ends);
        *at = n;
        at = &n->orelse;
        ps->t++;
        if (!sl_tpl_skip_word(ps, "elif"))
            break;
    }
    if (sl_tpl_skip_word(ps, "else")) {
        end_block(ps);
        *at = body(ps, last);
        ps->t++;
    }
    if (!sl_tpl_skip_word(ps, "endif"))
        sl_tpl_parse_fail(ps, "expected endif");
    end_block(ps);
    return first;
}

static struct node *parse_for(struct parser *ps)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *n = sl_tpl_new_node(ps, N_FOR);
    n->a = target(ps, false, true);
    if (!sl_tpl_skip_word(ps, "in"))
        sl_tpl_parse_fail(ps, "expected \"in\"");
    n->b = sl_tpl_tuple(ps, false, false);
    if (sl_tpl_skip_word(ps, "if"))
        n->c = sl_tpl_expression(ps, true);
    n->recursive = sl_tpl_skip_word(ps, "recursive");
    end_block(ps);
    ps->loops++;
    n->body = body(ps, ends);
    ps->loops--;
    if (sl_tpl_token_is(ps->t + 1, T_NAME, "else")) {
        ps->t += 2;
        n->orelse = block_body(ps, "endfor");
    } else {
        end_of(ps, "endfor");
    }
    return n;
}

static struct node *filter_chain(struct parser *ps, struct node *input)
{
    struct node *n = sl_tpl_parse_filter(ps, input);
    while (sl_tpl_skip_op(ps, "|"))
        n = sl_tpl_parse_filter(ps, n);
    return n;
}

static struct node *parse_set(struct parser *ps)
{
    struct node *n = sl_tpl_new_node(ps, N_SET);
    n->a = target(ps, true, true);
    if (sl_tpl_skip_op(ps, "=")) {
        n->b = sl_tpl_tuple(ps, true, false);
        end_block(ps);
        return n;
    }
    n->type = N_SET_BLOCK;
    if (sl_tpl_skip_op(ps, "|"))
        n->b = filter_chain(ps, NULL);
    n->body = block_body(ps, "endset");
    return n;
}

/* "(a, b=1)" of macros and call blocks. */
static void params(struct parser *ps, struct node *n)
{
    sl_tpl_expect_op(ps, "(");
    while (!sl_tpl_skip_op(ps, ")")) {
        if (n->n_args)
            sl_tpl_expect_op(ps, ",");
        const struct str *name = sl_tpl_take_name(ps, "expected the name of an argument");
        struct arg *arg = sl_tpl_add_arg(ps, n, NULL);
        size_t at = n->n_args - 1;
        arg->name = name;
        if (sl_tpl_skip_op(ps, "=")) {
            struct node *dflt = sl_tpl_expression(ps, true);
            n->args[at].value = dflt;
        } else if (at && n->args[at - 1].value) {
            sl_tpl_parse_fail(ps, "an argument without default follows one with");
        }
    }
}

/* Macro bodies are called from elsewhere: a break inside does not belong to a loop outside. */
static struct node *macro_body(struct parser *ps, const char *end)
{
    unsigned loops = ps->loops;
    ps->loops = 0;
    struct node *n = block_body(ps, end);
    ps->loops = loops;
    return n;
}

static struct node *parse_macro(struct parser *ps)
{
    struct node *n = sl_tpl_new_node(ps, N_MACRO);
    sl_tpl_set_name(ps, n, sl_tpl_take_name(ps, "expected the name of the macro"));
    params(ps, n);
    n->body = macro_body(ps, "endmacro");
    return n;
}

static struct node *parse_call(struct parser *ps)
{
    struct node *n = sl_tpl_new_node(ps, N_CALL_BLOCK);
    static const struct str caller = {.p = "caller", .n = 6};
    sl_tpl_set_name(ps, n, &caller);
    if (sl_tpl_is_op(ps, "("))
        params(ps, n);
    n->a = sl_tpl_expression(ps, true);
    if (n->a->type != N_CALL)
        sl_tpl_parse_fail(ps, "expected a call");
    n->body = macro_body(ps, "endcall");
    return n;
}

static struct node *parse_with(struct parser *ps)
{
    struct node *n = sl_tpl_new_node(ps, N_WITH);
    while (ps->t->type != T_BLOCK_END) {
        if (n->n_args)
            sl_tpl_expect_op(ps, ",");
        struct node *to = target(ps, false, false);
        sl_tpl_expect_op(ps, "=");
        struct node *value = sl_tpl_expression(ps, true);
        sl_tpl_add_arg(ps, n, to);
        sl_tpl_add_arg(ps, n, value);
    }
    n->body = block_body(ps, "endwith");
    return n;
}

static struct node *loop_control(struct parser *ps, enum node_type type)
{
    struct node *n = sl_tpl_new_node(ps, type);
    if (ps->loops == 0)
        sl_tpl_parse_fail(ps, "break or continue outside a loop");
    end_block(ps);
    return n;
}

static struct node *statement(struct parser *ps)
{
    struct node *n;
    if (sl_tpl_skip_word(ps, "if"))
        return parse_if(ps);
    if (sl_tpl_skip_word(ps, "for"))
        return parse_for(ps);
    if (sl_tpl_skip_word(ps, "set"))
        return parse_set(ps);
    if (sl_tpl_skip_word(ps, "macro"))
        return parse_macro(ps);
    if (sl_tpl_skip_word(ps, "call"))
        return parse_call(ps);
    if (sl_tpl_skip_word(ps, "with"))
        return parse_with(ps);
    if (sl_tpl_skip_word(ps, "break"))
        return loop_control(ps, N_BREAK);
    if (sl_tpl_skip_word(ps, "continue"))
        return loop_control(ps, N_CONTINUE);
    if (sl_tpl_skip_word(ps, "filter")) {
        n = sl_tpl_new_node(ps, N_FILTER_BLOCK);
        n->b = filter_chain(ps, NULL);
        n->body = block_body(ps, "endfilter");
        return n;
    }
    if (sl_tpl_skip_word(ps, "generation")) { /* marks the assistant's text for training; shows as its body */
        n = sl_tpl_new_node(ps, N_SCOPE);
        n->body = block_body(ps, "endgeneration");
        return n;
    }
    sl_tpl_parse_fail(ps, "expected a known tag");
}

/* Statements up to, not with, a tag whose word is in ends (NULL: the end of the template). */
static struct node *body(struct parser *ps, const char *const *ends)
{
    struct node *first = NULL, **at = &first;
    sl_tpl_parse_deeper(ps);
    while (ps->t->type != T_EOF && !(ends && at_tag(ps, ends))) {
        struct node *n;
        if (ps->t->type == T_TEXT) {
            n = sl_tpl_new_node(ps, N_TEXT);
            n->value = (struct val){.type = VAL_STR, .s = sl_tpl_str_new(ps->b, ps->t->p, ps->t->n, false)};
            ps->t++;
        } else if (ps->t->type == T_VAR_BEGIN) {
            n = sl_tpl_new_node(ps, N_PRINT);
            ps->t++;
            n->a = sl_tpl_tuple(ps, true, false);
            if (ps->t->type != T_VAR_END)
                sl_tpl_parse_fail(ps, "expected \"}}\"");
            ps->t++;
        } else {
            ps->t++;
            n = statement(ps);
        }
        *at = n;
        at = &n->next;
    }
    if (ends && ps->t->type == T_EOF)
        sl_tpl_parse_fail(ps, "a block is not closed");
    ps->depth--;
    return first;
}

struct node *sl_tpl_parse(struct base *b, const struct token *tokens)
{
    struct parser ps = {.b = b, .t = tokens};
    return body(&ps, NULL);
}
