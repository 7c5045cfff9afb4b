/* router/ctl/ctl_data.c - an answer for a program: JSON, or YAML with the same shape. Strings are JSON's in
 * both, and hold nothing that a terminal would obey. */
#include "router/ctl/ctl.h"

#include "common/base/buf.h"

#define MAX_BYTES (64u << 20)

void sl_ctl_json_string(struct sl_buf *b, const char *s)
{
    sl_buf_putc(b, '"');
    while (*s) {
        uint32_t code;
        bool shown;
        size_t n = sl_ctl_character(s, &code, &shown);
        if (!shown && code > 0xffff) /* JSON has no longer form than a pair of halves */
            sl_buf_printf(b, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + (code & 0x3ff));
        else if (!shown && *s == '\n')
            sl_buf_puts(b, "\\n");
        else if (!shown)
            sl_buf_printf(b, "\\u%04x", code);
        else if (*s == '"' || *s == '\\')
            sl_buf_printf(b, "\\%c", *s);
        else
            sl_buf_append(b, s, n);
        s += n;
    }
    sl_buf_putc(b, '"');
}

static void strings(struct sl_buf *b, char **s, size_t n)
{
    sl_buf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            sl_buf_putc(b, ',');
        sl_ctl_json_string(b, s[i]);
    }
    sl_buf_putc(b, ']');
}

static void flush(struct sl_buf *b, FILE *out)
{
    fwrite(b->data, 1, b->len, out);
    sl_buf_fini(b);
}

void sl_ctl_print_json(const Sluice__AdminReply *reply, FILE *out)
{
    struct sl_buf b;
    sl_buf_init(&b, MAX_BYTES);
    sl_buf_puts(&b, "{\"code\":");
    sl_ctl_json_string(&b, sl_err_name((enum sl_err)reply->code));
    sl_buf_puts(&b, ",\"text\":");
    sl_ctl_json_string(&b, reply->text ? reply->text : "");
    sl_buf_puts(&b, ",\"tables\":[");
    for (size_t i = 0; i < reply->n_tables; i++) {
        const Sluice__AdminTable *t = reply->tables[i];
        sl_buf_puts(&b, i ? ",{\"title\":" : "{\"title\":");
        sl_ctl_json_string(&b, t->title);
        sl_buf_puts(&b, ",\"columns\":");
        strings(&b, t->columns, t->n_columns);
        sl_buf_puts(&b, ",\"rows\":[");
        for (size_t r = 0; r < t->n_rows; r++) {
            if (r)
                sl_buf_putc(&b, ',');
            strings(&b, t->rows[r]->cells, t->rows[r]->n_cells);
        }
        sl_buf_puts(&b, "]}");
    }
    sl_buf_puts(&b, "]}\n");
    flush(&b, out);
}

void sl_ctl_print_yaml(const Sluice__AdminReply *reply, FILE *out)
{
    struct sl_buf b;
    sl_buf_init(&b, MAX_BYTES);
    sl_buf_puts(&b, "---\ncode: ");
    sl_ctl_json_string(&b, sl_err_name((enum sl_err)reply->code));
    sl_buf_puts(&b, "\ntext: ");
    sl_ctl_json_string(&b, reply->text ? reply->text : "");
    sl_buf_puts(&b, reply->n_tables ? "\ntables:\n" : "\ntables: []\n");
    for (size_t i = 0; i < reply->n_tables; i++) {
        const Sluice__AdminTable *t = reply->tables[i];
        sl_buf_puts(&b, "- title: ");
        sl_ctl_json_string(&b, t->title);
        sl_buf_puts(&b, "\n  columns: ");
        strings(&b, t->columns, t->n_columns);
        sl_buf_puts(&b, t->n_rows ? "\n  rows:\n" : "\n  rows: []\n");
        for (size_t r = 0; r < t->n_rows; r++) {
            sl_buf_puts(&b, "  - ");
            strings(&b, t->rows[r]->cells, t->rows[r]->n_cells);
            sl_buf_putc(&b, '\n');
        }
    }
    flush(&b, out);
}
