/* common/text/template_parser.h - shared by the two halves of the parser: template_parse.c (statements) and
 * template_parse_expr.c (expressions). */
#ifndef SLUICE_COMMON_TEXT_TEMPLATE_PARSER_H
#define SLUICE_COMMON_TEXT_TEMPLATE_PARSER_H

#include "common/text/template_internal.h"

struct parser {
    struct base *b;
    const struct token *t; /* current token */
    unsigned depth;
    unsigned loops; /* for loops around, for break and continue */
};

/* "what, found ..." at the current token. */
SL_NORETURN void sl_tpl_parse_fail(struct parser *ps, const char *what);
/* Counts nesting, where the parser calls itself; the caller takes ps->depth back. */
void sl_tpl_parse_deeper(struct parser *ps);

bool sl_tpl_token_is(const struct token *t, enum token_type type, const char *text);
bool sl_tpl_is_op(struct parser *ps, const char *op);
bool sl_tpl_is_word(struct parser *ps, const char *word);
/* Take the token if it is this one. */
bool sl_tpl_skip_op(struct parser *ps, const char *op);
bool sl_tpl_skip_word(struct parser *ps, const char *word);
void sl_tpl_expect_op(struct parser *ps, const char *op);

struct node *sl_tpl_new_node(struct parser *ps, enum node_type type);
/* The result is good until the next call for n. */
struct arg *sl_tpl_add_arg(struct parser *ps, struct node *n, struct node *value);
const struct str *sl_tpl_take_name(struct parser *ps, const char *what);
void sl_tpl_set_name(struct parser *ps, struct node *n, const struct str *name);

struct node *sl_tpl_expression(struct parser *ps, bool with_condition);
/* expression [, expression]*: one alone is itself, a comma makes a tuple. */
struct node *sl_tpl_tuple(struct parser *ps, bool with_condition, bool parenthesised);
bool sl_tpl_ends_tuple(struct parser *ps);
/* Behind "|". */
struct node *sl_tpl_parse_filter(struct parser *ps, struct node *input);

#endif
