/* router/ctl/ctl_print.c - an answer for a person or a program. Cells come from nodes and clients: control
 * bytes are not let through to a terminal. */
#include "router/ctl/ctl.h"

#include <ctype.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"

#define MAX_JSON (64u << 20)

static bool is_hidden(const char *hidden, const char *column)
{
    size_t n = strlen(column);
    for (const char *p = hidden; p && *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, column, n) == 0)
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

/* Columns on the screen: bytes that begin a character. */
static size_t width(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static void put(const char *s, size_t pad_to, bool upper, FILE *out)
{
    for (const char *p = s; *p; p++) {
        unsigned char c = (unsigned char)*p;
        fputc(c < 0x20 || c == 0x7f ? '?' : upper ? toupper(c) : c, out);
    }
    for (size_t w = width(s); w < pad_to; w++)
        fputc(' ', out);
}

static const char *cell(const Sluice__AdminRow *r, size_t i)
{
    return i < r->n_cells ? r->cells[i] : "-";
}

static void print_table(const Sluice__AdminTable *t, const char *hidden, bool headers, FILE *out)
{
    size_t n = t->n_columns, last = 0;
    size_t *w = sl_xcalloc(n ? n : 1, sizeof *w);
    for (size_t c = 0; c < n; c++) {
        if (is_hidden(hidden, t->columns[c]))
            continue;
        last = c;
        w[c] = headers ? width(t->columns[c]) : 1;
        for (size_t r = 0; r < t->n_rows; r++) {
            size_t k = width(cell(t->rows[r], c));
            w[c] = k > w[c] ? k : w[c];
        }
    }
    for (size_t r = 0; r <= t->n_rows; r++) {
        if (r == 0 && !headers)
            continue;
        for (size_t c = 0; c < n; c++) {
            if (w[c] == 0)
                continue;
            put(r ? cell(t->rows[r - 1], c) : t->columns[c], c == last ? 0 : w[c], r == 0, out);
            fputs(c == last ? "\n" : "  ", out);
        }
    }
    sl_free(w);
}

void sl_ctl_print_tables(const Sluice__AdminReply *reply, const char *hidden, bool headers, FILE *out)
{
    if (reply->text && *reply->text) {
        put(reply->text, 0, false, out);
        fputc('\n', out);
    }
    for (size_t i = 0; i < reply->n_tables; i++) {
        const Sluice__AdminTable *t = reply->tables[i];
        if (t->n_rows == 0 && reply->text && *reply->text)
            continue; /* the sentence says it */
        if (i || (reply->text && *reply->text))
            fputc('\n', out);
        if (reply->n_tables > 1) {
            put(t->title, 0, false, out);
            fputc('\n', out);
        }
        print_table(t, hidden, headers, out);
    }
}

static void json_string(struct sl_buf *b, const char *s)
{
    sl_buf_putc(b, '"');
    sl_buf_json_escape(b, s, strlen(s));
    sl_buf_putc(b, '"');
}

static void json_strings(struct sl_buf *b, char **s, size_t n)
{
    sl_buf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            sl_buf_putc(b, ',');
        json_string(b, s[i]);
    }
    sl_buf_putc(b, ']');
}

void sl_ctl_print_json(const Sluice__AdminReply *reply, FILE *out)
{
    struct sl_buf b;
    sl_buf_init(&b, MAX_JSON);
    sl_buf_puts(&b, "{\"code\":");
    json_string(&b, sl_err_name((enum sl_err)reply->code));
    sl_buf_puts(&b, ",\"text\":");
    json_string(&b, reply->text ? reply->text : "");
    sl_buf_puts(&b, ",\"tables\":[");
    for (size_t i = 0; i < reply->n_tables; i++) {
        const Sluice__AdminTable *t = reply->tables[i];
        sl_buf_puts(&b, i ? ",{\"title\":" : "{\"title\":");
        json_string(&b, t->title);
        sl_buf_puts(&b, ",\"columns\":");
        json_strings(&b, t->columns, t->n_columns);
        sl_buf_puts(&b, ",\"rows\":[");
        for (size_t r = 0; r < t->n_rows; r++) {
            if (r)
                sl_buf_putc(&b, ',');
            json_strings(&b, t->rows[r]->cells, t->rows[r]->n_cells);
        }
        sl_buf_puts(&b, "]}");
    }
    sl_buf_puts(&b, "]}\n");
    fwrite(b.data, 1, b.len, out);
    sl_buf_fini(&b);
}
