/* common/text/template_internal.h - what the files of the Jinja interpreter share: tokens, tree, values.
 *
 * Reading order: template_lex.c (source to tokens), template_parse.c (tokens to tree), template_value.c
 * (strings with trust marks, comparison, printing), template_eval.c (tree to text), then the tables of things
 * templates can name: template_filters.c, template_tests.c, template_methods.c, with template_format.c
 * (tojson, %, format) beside them.
 *
 * Memory: a compiled template is one arena, a rendering another; nothing is freed one by one.
 * Errors: sl_tpl_fail() leaves by longjmp to the one setjmp of the compilation or the rendering. That is safe
 * because neither holds anything but its arena, and it keeps two hundred small functions free of error
 * plumbing. */
#ifndef SLUICE_COMMON_TEXT_TEMPLATE_INTERNAL_H
#define SLUICE_COMMON_TEXT_TEMPLATE_INTERNAL_H

#include <locale.h>
#include <setjmp.h>
#include "common/base/mem.h"
#include "common/text/template.h"

/* --- values --- */

enum val_type {
    VAL_UNDEFINED,
    VAL_NONE,
    VAL_BOOL,
    VAL_INT,
    VAL_FLOAT,
    VAL_STR,
    VAL_LIST,
    VAL_TUPLE,
    VAL_DICT,
    VAL_NAMESPACE,
    VAL_LOOP,
    VAL_MACRO,
    VAL_FUNC,
    VAL_CYCLER,
    VAL_JOINER,
    VAL_MISSING /* an argument that was not given; never seen by templates */
};

/* Immutable, valid UTF-8. marks says for each byte whether it came from the request; NULL when all are alike.
 */
struct str {
    const char *p;
    size_t n;
    const uint8_t *marks;
    bool untrusted; /* with marks NULL: all bytes */
    bool markup;    /* escaped text: `+` escapes its other side */
};

struct val {
    enum val_type type;
    union {
        bool b;
        int64_t i;
        double f;
        const struct str *s;
        struct list *l; /* list and tuple */
        struct dict *d; /* dict and namespace */
        struct loop *loop;
        const struct macro *macro;
        const struct func *fn;
        struct counter *counter; /* cycler, joiner */
        const char *name;        /* undefined: what was looked for, or NULL */
    };
};

struct list {
    struct val *items;
    size_t n, cap;
};

struct entry {
    struct val key, val;
};

struct dict {
    struct entry *items; /* in order of insertion */
    size_t n, cap;
};

struct counter {
    struct list *items; /* cycler */
    const struct str *sep;
    size_t at;
};

/* --- tree --- */

enum node_type {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,    /* args: key, value, key, value */
    N_GETATTR, /* a.name */
    N_GETITEM, /* a[b] */
    N_SLICE,   /* a: object; args: start, stop, step, NULL where absent */
    N_CALL,    /* a(args) */
    N_FILTER,  /* a | name(args); a NULL inside a filter block */
    N_TEST,    /* a is name(args) */
    N_NOT,
    N_AND,
    N_OR,
    N_NEG,
    N_POS,
    N_BINARY,  /* a op b */
    N_CONCAT,  /* a ~ b */
    N_COMPARE, /* a, then args with their ops */
    N_COND,    /* a if b else c (c may be NULL) */
    /* statements */
    N_TEXT,
    N_PRINT,        /* a */
    N_IF,           /* a, body, orelse */
    N_FOR,          /* target a in b if c, body, orelse, recursive */
    N_SET,          /* target a = b */
    N_SET_BLOCK,    /* target a, filters b (or NULL), body */
    N_MACRO,        /* name, params, body */
    N_CALL_BLOCK,   /* call a, params, body */
    N_FILTER_BLOCK, /* filters b, body */
    N_WITH,         /* args: target, value, ...; body */
    N_SCOPE,        /* body */
    N_BREAK,
    N_CONTINUE
};

enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
};

enum arg_kind { ARG_POS, ARG_KEYWORD, ARG_SPREAD, ARG_SPREAD_DICT };

struct arg {
    struct node *value; /* for a macro parameter: its default or NULL */
    const struct str *name;
    enum arg_kind kind;
    enum op op; /* N_COMPARE */
};

struct node {
    enum node_type type;
    enum op op;
    int line;
    bool recursive, negated; /* N_FOR; N_TEST `is not` */
    struct node *a, *b, *c;
    const struct str *name;
    const char *c_name; /* the same, NUL-terminated, for messages */
    struct val value;   /* N_CONST, N_TEXT */
    struct arg *args;
    size_t n_args;
    struct node *body, *orelse; /* first of a chain by next */
    struct node *next;
    const struct builtin *builtin; /* N_FILTER, N_TEST: NULL when the name is unknown */
};

/* --- tokens --- */

enum token_type {
    T_TEXT,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP,
    T_EOF
};

struct token {
    enum token_type type;
    int line;
    const char *p; /* text, name, string after escapes, operator */
    size_t n;
    int64_t i;
    double f;
};

/* --- contexts --- */

/* Shared by compiling and rendering: where memory comes from and where errors go. */
struct base {
    struct sl_arena *arena;
    struct sl_why *why;
    enum sl_err err;
    int line;
    jmp_buf fail;
};

struct var {
    const struct str *name;
    struct val val;
    struct var *next;
};

struct scope {
    struct scope *up;
    struct var *vars;
};

struct sb; /* below */

struct cx {
    struct base base;
    const struct sl_template_args *args;
    struct scope context; /* what was taken from args so far, converted */
    struct sb *out;
    uint32_t steps;
    unsigned depth;
    locale_t locale; /* for upper and lower; 0 until needed */
};

struct macro {
    const struct node *node;
    struct scope *scope; /* where it was defined */
};

/* A call's arguments. */
struct args {
    struct val *pos;
    size_t n_pos;
    struct kwarg {
        const struct str *name;
        struct val val;
    } * kw;
    size_t n_kw;
};

/* Something with a name that templates can call: filter, test, method, global function. params names the
 * arguments after self, separated by commas; the call is bound to slots by position or keyword, and absent
 * ones are VAL_MISSING. params NULL: takes raw arguments. */
struct builtin {
    const char *name;
    struct val (*fn)(struct cx *cx, struct val self, const struct val *slots, const struct args *raw);
    const char *params;
    unsigned n_required;
};
#define SL_TPL_MAX_PARAMS 5

struct func {
    const struct builtin *builtin;
    struct val self;
};

struct loop {
    const struct node *node;
    struct scope *scope;
    struct list *items;
    size_t at;
    unsigned depth0;
    struct val changed; /* VAL_MISSING before the first call */
};

struct sl_template {
    struct sl_arena *arena;
    struct node *body;
};

/* --- template.c --- */

SL_NORETURN void sl_tpl_fail(struct base *b, enum sl_err e, const char *fmt, ...) SL_PRINTF(3, 4);
/* Never NULL: running out fails with SL_ETOOBIG. Zeroed. */
void *sl_tpl_alloc(struct base *b, size_t bytes);
const struct str *sl_tpl_str_new(struct base *b, const char *p, size_t n, bool untrusted); /* does not copy */
/* Counts work; fails past SL_TEMPLATE_MAX_STEPS. */
void sl_tpl_charge(struct cx *cx, size_t bytes);
/* Around everything that calls itself. */
void sl_tpl_enter(struct cx *cx);
void sl_tpl_leave(struct cx *cx);

/* --- template_lex.c, template_parse.c --- */

const struct token *sl_tpl_lex(struct base *b, const char *src, size_t n); /* ends with T_EOF */
struct node *sl_tpl_parse(struct base *b, const struct token *tokens);

/* --- template_value.c --- */

/* A string under construction; also the output. */
struct sb {
    struct cx *cx;
    char *p;
    uint8_t *marks;
    size_t n, cap;
};

void sl_tpl_sb_init(struct sb *sb, struct cx *cx);
void sl_tpl_sb_bytes(struct sb *sb, const char *p, size_t n, bool untrusted);
void sl_tpl_sb_puts(struct sb *sb, const char *s); /* trusted */
void sl_tpl_sb_str(struct sb *sb, const struct str *s, size_t from, size_t to);
void sl_tpl_sb_all(struct sb *sb, const struct str *s);
void sl_tpl_sb_cp(struct sb *sb, uint32_t cp, bool untrusted);
struct val sl_tpl_sb_done(struct sb *sb);

struct val sl_tpl_undefined(const char *name); /* name must outlive the rendering */
struct val sl_tpl_none(void);
struct val sl_tpl_bool(bool b);
struct val sl_tpl_int(int64_t i);
struct val sl_tpl_float(double f);
struct val sl_tpl_cstr(struct cx *cx, const char *s); /* trusted; does not copy */
struct val sl_tpl_sub(struct cx *cx, const struct str *s, size_t from, size_t to);
struct val sl_tpl_list(struct cx *cx, enum val_type type, struct list **out);
void sl_tpl_list_add(struct cx *cx, struct list *l, struct val v);
struct val sl_tpl_dict(struct cx *cx, enum val_type type, struct dict **out);
void sl_tpl_dict_set(struct cx *cx, struct dict *d, struct val key, struct val v);
void sl_tpl_need_hashable(struct cx *cx, struct val key); /* lists and dicts cannot be keys */
const struct val *sl_tpl_dict_get(struct cx *cx, const struct dict *d, struct val key); /* NULL when absent */
const struct val *sl_tpl_dict_get_str(struct cx *cx, const struct dict *d, const struct str *key);
struct val sl_tpl_from_json(struct cx *cx, const json_t *j, bool untrusted);

bool sl_tpl_str_eq(const struct str *a, const struct str *b);
bool sl_tpl_str_is(const struct str *a, const char *b);
bool sl_tpl_untrusted(const struct str *s); /* any byte */
bool sl_tpl_truth(struct val v);
bool sl_tpl_eq(struct cx *cx, struct val a, struct val b);
int sl_tpl_cmp(struct cx *cx, struct val a, struct val b); /* fails where Python does */
bool sl_tpl_contains(struct cx *cx, struct val container, struct val v);
bool sl_tpl_is_number(struct val v); /* int, float, bool */
double sl_tpl_as_float(struct val v);
const char *sl_tpl_type_name(struct val v); /* Python's */
/* The items of anything that can be iterated; fails otherwise. */
struct list *sl_tpl_iter(struct cx *cx, struct val v);
/* str(v) and repr(v) */
const struct str *sl_tpl_text(struct cx *cx, struct val v);
void sl_tpl_print(struct sb *sb, struct val v);
void sl_tpl_repr(struct sb *sb, struct val v);
void sl_tpl_repr_float(char out[40], double f);
/* Python's rules for white space. */
bool sl_tpl_is_space(uint32_t cp);
/* The character at s[at..n) of valid UTF-8, its size in *used. */
uint32_t sl_tpl_cp(const char *s, size_t at, size_t n, size_t *used);
/* Byte range of s without leading / trailing characters of set (NULL: white space). */
void sl_tpl_strip(const struct str *s, const struct str *set, bool left, bool right, size_t *from,
                  size_t *to);
size_t sl_tpl_length(struct cx *cx, const struct str *s); /* characters */
/* Byte offset of needle in s[from..to), SIZE_MAX when absent. */
size_t sl_tpl_find(const struct str *s, size_t from, size_t to, const struct str *needle);

/* --- template_eval.c, template_ops.c --- */

void sl_tpl_run(struct cx *cx, const struct node *body);
struct val sl_tpl_call(struct cx *cx, struct val callee, const struct args *args);
struct val sl_tpl_call_builtin(struct cx *cx, const struct builtin *b, struct val self,
                               const struct args *args);
struct val sl_tpl_getattr(struct cx *cx, struct val obj, const struct str *name);
struct val sl_tpl_getitem(struct cx *cx, struct val obj, struct val key);
/* attribute="a.b.0" of filters; dflt (or NULL) stands in for each part that is undefined. */
struct val sl_tpl_get_path(struct cx *cx, struct val obj, struct val path, const struct val *dflt);
/* obj[start:stop:step], none where absent */
struct val sl_tpl_slice(struct cx *cx, struct val obj, const struct val parts[3]);
struct val sl_tpl_binary(struct cx *cx, enum op op, struct val a, struct val b);
bool sl_tpl_compare(struct cx *cx, enum op op, struct val a, struct val b);

/* --- tables --- */

const struct builtin *sl_tpl_filter(const struct str *name);
const struct builtin *sl_tpl_test(const struct str *name);
const struct builtin *sl_tpl_method(struct val self, const struct str *name);
const struct builtin *sl_tpl_global(const struct str *name);
const struct builtin *sl_tpl_lookup(const struct builtin *table, size_t n, const struct str *name);
bool sl_tpl_run_test(struct cx *cx, const struct builtin *test, struct val v, const struct args *args);

/* Integer argument: slot, or dflt when it is missing; fails for other types. */
int64_t sl_tpl_int_arg(struct cx *cx, struct val slot, int64_t dflt, const char *what);
/* String argument, NULL when missing or none. */
const struct str *sl_tpl_str_arg(struct cx *cx, struct val slot, const char *what);

/* --- template_strings.c --- */

/* v as a string; fails with "what must be a string". */
const struct str *sl_tpl_need_str(struct cx *cx, struct val v, const char *what);
uint32_t sl_tpl_map_case(struct cx *cx, uint32_t cp, bool upper);
/* The last place of needle in s[0..to), SIZE_MAX when absent. Pays for each comparison, as there is no fast
 * search from the end. */
size_t sl_tpl_find_last(struct cx *cx, const struct str *s, size_t to, const struct str *needle);

struct val sl_tpl_replace(struct cx *cx, const struct str *s, const struct str *old, const struct str *new_,
                          int64_t count);
enum case_how { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP };
struct val sl_tpl_change_case(struct cx *cx, const struct str *s, enum case_how how);
struct val sl_tpl_join(struct cx *cx, const struct str *sep, const struct list *items);
struct val sl_tpl_escape(struct cx *cx, const struct str *s); /* gives markup */
struct val sl_tpl_as_markup(struct cx *cx, struct val string);

/* --- template_format.c, template_json.c --- */

struct val sl_tpl_percent(struct cx *cx, const struct str *format, struct val args);
struct val sl_tpl_format(struct cx *cx, const struct str *format, const struct args *args);
struct val sl_tpl_tojson(struct cx *cx, struct val v, const struct val *slots);

#endif
