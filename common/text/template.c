/* common/text/template.c - compiling and rendering from the outside: arenas, limits, errors, and the result's
 * spans. */
#include "common/text/template_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/text/utf8.h"

#define COMPILE_MEMORY (512u << 20) /* tokens and nodes of SL_TEMPLATE_MAX_SOURCE_BYTES fit */

SL_NORETURN void sl_tpl_fail(struct base *b, enum sl_err e, const char *fmt, ...)
{
    char text[SL_WHY_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    b->err = e;
    if (b->line > 0)
        sl_why_set(b->why, e, "chat template, line %d: %s", b->line, text);
    else
        sl_why_set(b->why, e, "%s", text);
    longjmp(b->fail, 1);
}

void *sl_tpl_alloc(struct base *b, size_t bytes)
{
    void *p = sl_arena_alloc(b->arena, bytes);
    if (!p)
        sl_tpl_fail(b, SL_ETOOBIG,
                    "it needs more than %u MiB of memory; make the template or the request smaller",
                    SL_TEMPLATE_MAX_MEMORY >> 20);
    return p;
}

const struct str *sl_tpl_str_new(struct base *b, const char *p, size_t n, bool untrusted)
{
    struct str *s = sl_tpl_alloc(b, sizeof *s);
    *s = (struct str){.p = p, .n = n, .untrusted = untrusted};
    return s;
}

void sl_tpl_charge(struct cx *cx, size_t bytes)
{
    size_t steps = 1 + bytes / 16;
    if (steps > SL_TEMPLATE_MAX_STEPS - cx->steps)
        sl_tpl_fail(&cx->base, SL_ETOOBIG,
                    "it takes more than %u steps; make the template or the request smaller",
                    SL_TEMPLATE_MAX_STEPS);
    cx->steps += (uint32_t)steps;
}

void sl_tpl_enter(struct cx *cx)
{
    sl_tpl_charge(cx, 0);
    if (++cx->depth > SL_TEMPLATE_MAX_DEPTH)
        sl_tpl_fail(&cx->base, SL_ETOOBIG, "macros, loops or data are nested more than %d deep",
                    SL_TEMPLATE_MAX_DEPTH);
}

void sl_tpl_leave(struct cx *cx)
{
    cx->depth--;
}

/* Jinja reads any line end as \n and drops one at the end of the source. */
static char *normalise(const char *src, size_t len, struct sl_arena *arena, size_t *out_n)
{
    char *p = sl_arena_alloc(arena, len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        p[n++] = src[i] == '\r' ? '\n' : src[i];
        if (src[i] == '\r' && i + 1 < len && src[i + 1] == '\n')
            i++;
    }
    if (n && p[n - 1] == '\n')
        n--;
    *out_n = n;
    return p;
}

enum sl_err sl_template_compile(const char *src, size_t len, struct sl_template **out, struct sl_why *why)
{
    if (len > SL_TEMPLATE_MAX_SOURCE_BYTES)
        return sl_why_set(why, SL_ETOOBIG, "the chat template has %zu bytes, at most %u are allowed", len,
                          SL_TEMPLATE_MAX_SOURCE_BYTES);
    if (sl_utf8_valid_prefix(src, len) != len)
        return sl_why_set(why, SL_EPARSE, "the chat template is not UTF-8 (byte %zu)",
                          sl_utf8_valid_prefix(src, len));
    struct sl_arena *arena = sl_arena_new(COMPILE_MEMORY);
    struct base *b =
        sl_xcalloc(1, sizeof *b); /* on the heap: what longjmp passes by must not be in registers */
    b->arena = arena;
    b->why = why;
    if (setjmp(b->fail) == 0) {
        size_t n = 0;
        const char *text = normalise(src, len, arena, &n);
        const struct token *tokens = sl_tpl_lex(b, text, n);
        struct sl_template *t = sl_tpl_alloc(b, sizeof *t);
        t->arena = arena;
        t->body = sl_tpl_parse(b, tokens);
        *out = t;
    } else {
        sl_arena_free(arena);
    }
    enum sl_err e = b->err;
    sl_free(b);
    return e;
}

void sl_template_free(struct sl_template *t)
{
    if (t)
        sl_arena_free(t->arena);
}

static void add_spans(const struct sb *sb, size_t offset, struct sl_spans *spans)
{
    for (size_t i = 0; i < sb->n;) {
        const uint8_t *from = memchr(sb->marks + i, 1, sb->n - i);
        if (!from)
            return;
        size_t start = (size_t)(from - sb->marks);
        const uint8_t *to = memchr(from, 0, sb->n - start);
        i = to ? (size_t)(to - sb->marks) : sb->n;
        sl_spans_add(spans, offset + start, offset + i);
    }
}

enum sl_err sl_template_render(const struct sl_template *t, const struct sl_template_args *args,
                               struct sl_buf *out, struct sl_spans *untrusted, struct sl_why *why)
{
    struct cx *cx = sl_xcalloc(1, sizeof *cx);
    struct sb *result = sl_xcalloc(1, sizeof *result);
    cx->base.arena = sl_arena_new(SL_TEMPLATE_MAX_MEMORY);
    cx->base.why = why;
    cx->args = args;
    cx->out = result;
    sl_tpl_sb_init(result, cx);
    if (setjmp(cx->base.fail) == 0) {
        sl_tpl_run(cx, t->body);
        size_t offset = out->len;
        if (result->n > out->max - offset)
            sl_tpl_fail(&cx->base, SL_ETOOBIG,
                        "the text has %zu bytes, at most %zu are allowed; make the request smaller",
                        result->n, out->max - offset);
        if (result->n)
            sl_buf_append(out, result->p, result->n);
        add_spans(result, offset, untrusted);
    }
    enum sl_err e = cx->base.err;
    if (cx->locale)
        freelocale(cx->locale);
    sl_arena_free(cx->base.arena);
    sl_free(result);
    sl_free(cx);
    return e;
}
