/* router/ctl/ctl_print.c - an answer for a person: aligned columns. */
#include "router/ctl/ctl.h"

#include <ctype.h>
#include <string.h>

#include "common/base/mem.h"

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

/* Columns on the screen. */
static size_t width(const char *s)
{
    size_t n = 0;
    uint32_t code;
    bool shown;
    for (; *s; n++)
        s += sl_ctl_character(s, &code, &shown);
    return n;
}

static void put(const char *s, size_t pad_to, bool upper, FILE *out)
{
    size_t w = 0;
    for (; *s; w++) {
        uint32_t code;
        bool shown;
        size_t n = sl_ctl_character(s, &code, &shown);
        if (!shown)
            fputc('?', out);
        else if (n == 1)
            fputc(upper ? toupper(*s) : *s, out);
        else
            fwrite(s, 1, n, out);
        s += n;
    }
    for (; w < pad_to; w++)
        fputc(' ', out);
}

static const char *cell(const Sluice__AdminRow *r, size_t i)
{
    return i < r->n_cells ? r->cells[i] : "-";
}

static bool shows_any(const Sluice__AdminTable *t, const char *hidden)
{
    for (size_t c = 0; c < t->n_columns; c++)
        if (!is_hidden(hidden, t->columns[c]))
            return true;
    return false;
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
    bool sentence = reply->text && *reply->text, first = true;
    if (sentence) {
        put(reply->text, 0, false, out);
        fputc('\n', out);
    }
    for (size_t i = 0; i < reply->n_tables; i++) {
        const Sluice__AdminTable *t = reply->tables[i];
        if ((t->n_rows == 0 && sentence) || !shows_any(t, hidden))
            continue; /* the sentence says it */
        if (!first || sentence)
            fputc('\n', out);
        first = false;
        if (reply->n_tables > 1) {
            put(t->title, 0, false, out);
            fputc('\n', out);
        }
        print_table(t, hidden, headers, out);
    }
}

const Sluice__AdminTable *sl_ctl_table(const Sluice__AdminReply *reply, const char *title)
{
    for (size_t i = 0; i < reply->n_tables; i++)
        if (strcmp(reply->tables[i]->title, title) == 0)
            return reply->tables[i];
    return NULL;
}

const char *sl_ctl_cell(const Sluice__AdminTable *t, size_t row, const char *column)
{
    for (size_t c = 0; t && c < t->n_columns && row < t->n_rows; c++)
        if (strcmp(t->columns[c], column) == 0)
            return cell(t->rows[row], c);
    return "-";
}
