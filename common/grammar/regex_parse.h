/* common/grammar/regex_parse.h - a regular expression -> a tree.
 *
 * The dialect is ECMA 262's with its u flag, as JSON schema has it: \d, \w and \s are its sets, . is anything but ends of
 * lines. Of what other dialects read otherwise nothing is guessed: it is refused. */
#ifndef SLUICE_COMMON_GRAMMAR_REGEX_PARSE_H
#define SLUICE_COMMON_GRAMMAR_REGEX_PARSE_H

#include <stddef.h>

#include "common/base/err.h"
#include "common/grammar/char_set.h"

#define SL_REGEX_MAX_BYTES  4096 /* of one expression */
#define SL_REGEX_MAX_DEPTH  64   /* groups inside each other */
#define SL_REGEX_MAX_REPEAT 1024 /* in braces */
#define SL_REGEX_NO_END     UINT32_MAX

enum sl_re_op {
    SL_RE_EMPTY,
    SL_RE_SET,    /* a: one character of that set */
    SL_RE_CAT,    /* a, then b */
    SL_RE_OR,     /* a or b */
    SL_RE_REPEAT, /* a, min to max times */
    SL_RE_START,  /* ^ */
    SL_RE_END,    /* $ */
    SL_RE_LOOK    /* what follows begins with a, or (negated) does not */
};

enum sl_re_takes { SL_RE_NOTHING, SL_RE_MAYBE, SL_RE_SOMETHING }; /* of the text */

struct sl_re_node {
    enum sl_re_op op;
    enum sl_re_takes takes;
    bool plain; /* no ^, $ or look in it */
    bool negated;
    uint32_t a, b, min, max;
};

/* Zero it before its first use; several expressions share it. */
struct sl_re_tree {
    struct sl_re_node *nodes;
    uint32_t n_nodes, cap_nodes;
    struct sl_char_set *sets; /* settled, all different */
    uint32_t n_sets, cap_sets;
};

/* text is UTF-8. *root is a node. SL_EINVAL, SL_EUNSUPPORTED, SL_ETOOBIG: *why says what was found where. */
SL_MUST_CHECK enum sl_err sl_re_parse(struct sl_re_tree *t, const char *text, size_t n, uint32_t *root,
                                      struct sl_why *why);
/* A tree that reads the text itself. */
uint32_t sl_re_literal(struct sl_re_tree *t, const char *text, size_t n);
uint32_t sl_re_or(struct sl_re_tree *t, uint32_t a, uint32_t b);
uint32_t sl_re_set(struct sl_re_tree *t, struct sl_char_set *s); /* takes s, settled */
void sl_re_tree_fini(struct sl_re_tree *t);

#endif
