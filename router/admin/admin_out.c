/* router/admin/admin_out.c - an arena, and arrays in it that double when full. */
#include "router/admin/admin_out.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/text/utf8.h"

#define MAX_BYTES  (12u << 20) /* of a reply; less than a message may have */
#define FIRST_ROWS 16u
#define MAX_CELL   1024

void sl_admin_out_init(struct sl_admin_out *o)
{
    memset(o, 0, sizeof *o);
    o->arena = sl_arena_new(MAX_BYTES);
    sluice__admin_reply__init(&o->reply);
    o->reply.code = SL_OK;
    o->reply.tables = o->tables;
}

void sl_admin_out_fini(struct sl_admin_out *o)
{
    sl_arena_free(o->arena);
    o->arena = NULL;
}

static char *format(struct sl_admin_out *o, const char *fmt, va_list ap) SL_PRINTF(2, 0);
static char *format(struct sl_admin_out *o, const char *fmt, va_list ap)
{
    char text[MAX_CELL];
    int n = vsnprintf(text, sizeof text, fmt, ap);
    if (n < 0)
        return (char *)"-";
    sl_utf8_repair(text); /* no peer takes anything else */
    char *s = sl_arena_strndup(o->arena, text, strlen(text));
    return s ? s : (char *)"-";
}

void sl_admin_say(struct sl_admin_out *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    o->reply.text = format(o, fmt, ap);
    va_end(ap);
}

void sl_admin_refuse(struct sl_admin_out *o, enum sl_err code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    o->reply.text = format(o, fmt, ap);
    va_end(ap);
    o->reply.code = code;
}

void sl_admin_table(struct sl_admin_out *o, const char *title, const char *columns)
{
    SL_ASSERT(o->reply.n_tables < SL_ADMIN_MAX_TABLES);
    Sluice__AdminTable *t = sl_arena_alloc(o->arena, sizeof *t);
    size_t n = 1;
    for (const char *p = columns; *p; p++)
        n += *p == ',';
    char **cols = sl_arena_alloc(o->arena, n * sizeof *cols);
    if (!t || !cols)
        return;
    sluice__admin_table__init(t);
    t->title = (char *)title;
    t->columns = cols;
    for (const char *p = columns;;) {
        size_t len = strcspn(p, ",");
        char *name = sl_arena_strndup(o->arena, p, len);
        cols[t->n_columns++] = name ? name : (char *)"-";
        if (!p[len])
            break;
        p += len + 1;
    }
    o->tables[o->reply.n_tables++] = t;
    o->cap_rows = 0;
}

static Sluice__AdminTable *last_table(struct sl_admin_out *o)
{
    return o->reply.n_tables ? o->tables[o->reply.n_tables - 1] : NULL;
}

void sl_admin_row(struct sl_admin_out *o)
{
    Sluice__AdminTable *t = last_table(o);
    o->at_cell = SIZE_MAX; /* cells of a row that does not fit are let go */
    if (!t || t->n_rows >= SL_ADMIN_MAX_ROWS)
        return;
    if (t->n_rows == o->cap_rows) {
        size_t cap = o->cap_rows ? 2 * o->cap_rows : FIRST_ROWS;
        Sluice__AdminRow **rows = sl_arena_alloc(o->arena, cap * sizeof *rows);
        if (!rows)
            return;
        if (t->n_rows)
            memcpy(rows, t->rows, t->n_rows * sizeof *rows);
        t->rows = rows;
        o->cap_rows = cap;
    }
    Sluice__AdminRow *r = sl_arena_alloc(o->arena, sizeof *r);
    char **cells = sl_arena_alloc(o->arena, t->n_columns * sizeof *cells);
    if (!r || !cells)
        return;
    sluice__admin_row__init(r);
    r->cells = cells;
    for (size_t i = 0; i < t->n_columns; i++)
        cells[i] = (char *)"-";
    r->n_cells = t->n_columns;
    t->rows[t->n_rows++] = r;
    o->at_cell = 0;
}

static void put_cell(struct sl_admin_out *o, char *text)
{
    Sluice__AdminTable *t = last_table(o);
    if (!t || o->at_cell >= t->n_columns)
        return;
    t->rows[t->n_rows - 1]->cells[o->at_cell++] = *text ? text : (char *)"-";
}

void sl_admin_cell(struct sl_admin_out *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put_cell(o, format(o, fmt, ap));
    va_end(ap);
}

void sl_admin_pair(struct sl_admin_out *o, const char *key, const char *fmt, ...)
{
    sl_admin_row(o);
    sl_admin_cell(o, "%s", key);
    va_list ap;
    va_start(ap, fmt);
    put_cell(o, format(o, fmt, ap));
    va_end(ap);
}

Sluice__AdminReply *sl_admin_out_copy(const struct sl_admin_out *o)
{
    size_t n = sluice__admin_reply__get_packed_size(&o->reply);
    uint8_t *bytes = sl_xalloc(n);
    sluice__admin_reply__pack(&o->reply, bytes);
    Sluice__AdminReply *copy = sluice__admin_reply__unpack(NULL, n, bytes);
    sl_free(bytes);
    return copy;
}
