/* common/base/buf.h - a growing byte buffer with a named maximum; also the string builder.
 *
 * Over the maximum nothing is appended and the buffer remembers it: build first, check sl_buf_failed() once.
 * data is always NUL-terminated one past len once anything was appended. */
#ifndef SLUICE_COMMON_BASE_BUF_H
#define SLUICE_COMMON_BASE_BUF_H

#include <stdint.h>
#include "common/base/err.h"

struct sl_buf {
    char *data; /* NULL while empty and never grown */
    size_t len, cap, max;
    bool failed;
};

void sl_buf_init(struct sl_buf *b, size_t max_bytes);
void sl_buf_fini(struct sl_buf *b);  /* takes a zeroed one */
void sl_buf_clear(struct sl_buf *b); /* keeps the memory; forgets a failure */
bool sl_buf_append(struct sl_buf *b, const void *p, size_t n);
bool sl_buf_puts(struct sl_buf *b, const char *s);
bool sl_buf_putc(struct sl_buf *b, char c);
bool sl_buf_printf(struct sl_buf *b, const char *fmt, ...) SL_PRINTF(2, 3);
/* Appends s as the inside of a JSON string (no quotes): escapes ", \, controls; bytes that are not UTF-8
 * become U+FFFD. */
bool sl_buf_json_escape(struct sl_buf *b, const char *s, size_t n);
/* Drops the first n bytes. */
void sl_buf_consume(struct sl_buf *b, size_t n);
/* Hands the memory to the caller (sl_free); the buffer is empty afterwards. Never NULL. */
char *sl_buf_steal(struct sl_buf *b);
static inline bool sl_buf_failed(const struct sl_buf *b)
{
    return b->failed;
}

#endif
