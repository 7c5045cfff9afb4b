/* common/base/buf.c - growth by doubling, cut at the maximum; one byte more is kept for the NUL. */
#include "common/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

#define FIRST_BYTES 64

void sl_buf_init(struct sl_buf *b, size_t max_bytes)
{
    *b = (struct sl_buf){.max = max_bytes};
}

void sl_buf_fini(struct sl_buf *b)
{
    sl_free(b->data);
    *b = (struct sl_buf){.max = b->max};
}

void sl_buf_clear(struct sl_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

/* Room for n bytes and the NUL, or false and failed. After a failure everything is refused: half a text with
 * its middle missing is worse than none. */
static bool reserve(struct sl_buf *b, size_t n)
{
    if (b->failed || n > b->max - b->len) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need == 0) { /* max is SIZE_MAX and so was the sum */
        b->failed = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    size_t cap = b->cap < FIRST_BYTES ? FIRST_BYTES : b->cap > SIZE_MAX / 2 ? SIZE_MAX : b->cap * 2;
    if (cap > b->max && b->max < SIZE_MAX)
        cap = b->max + 1;
    if (cap < need)
        cap = need;
    b->data = sl_xrealloc(b->data, cap);
    b->cap = cap;
    return true;
}

bool sl_buf_append(struct sl_buf *b, const void *p, size_t n)
{
    if (!reserve(b, n))
        return false;
    if (n)
        memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = '\0';
    return true;
}

bool sl_buf_puts(struct sl_buf *b, const char *s)
{
    return sl_buf_append(b, s, strlen(s));
}

bool sl_buf_putc(struct sl_buf *b, char c)
{
    return sl_buf_append(b, &c, 1);
}

bool sl_buf_printf(struct sl_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t room = b->cap - b->len;
    int n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
    va_end(ap);
    SL_ASSERT(n >= 0);
    bool ok = reserve(b, (size_t)n);
    if (!ok) {
        if (room)
            b->data[b->len] = '\0'; /* what the first try wrote is no part of the text */
    } else {
        if ((size_t)n >= room)
            vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return ok;
}

/* Length of the UTF-8 character at s, or minus the number of bytes to replace by one U+FFFD (the longest
 * start of a well-formed character, at least 1: the Unicode standard's recommended practice). */
static int utf8_len(const unsigned char *s, size_t n)
{
    unsigned char lo = 0x80, hi = 0xbf; /* allowed second byte */
    int want;
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf) {
        want = 2;
    } else if (s[0] >= 0xe0 && s[0] <= 0xef) {
        want = 3;
        if (s[0] == 0xe0)
            lo = 0xa0; /* shorter forms exist */
        if (s[0] == 0xed)
            hi = 0x9f; /* surrogates */
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        want = 4;
        if (s[0] == 0xf0)
            lo = 0x90;
        if (s[0] == 0xf4)
            hi = 0x8f; /* past U+10FFFF */
    } else {
        return -1;
    }
    for (int i = 1; i < want; i++) {
        if ((size_t)i >= n || s[i] < lo || s[i] > hi)
            return -i;
        lo = 0x80;
        hi = 0xbf;
    }
    return want;
}

bool sl_buf_json_escape(struct sl_buf *b, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *p = (const unsigned char *)s;
    size_t start = b->len;
    bool ok = sl_buf_append(b, "", 0);
    size_t i = 0, plain = 0; /* [plain, i) is copied as it stands */
    while (ok && i < n) {
        char esc[6] = {'\\', 0, '0', '0', 0, 0};
        size_t esc_len = 2, used = 1;
        switch (p[i]) {
        case '"':
        case '\\':
            esc[1] = (char)p[i];
            break;
        case '\n':
            esc[1] = 'n';
            break;
        case '\r':
            esc[1] = 'r';
            break;
        case '\t':
            esc[1] = 't';
            break;
        default:
            if (p[i] < 0x20) {
                esc[1] = 'u';
                esc[4] = hex[p[i] >> 4];
                esc[5] = hex[p[i] & 15];
                esc_len = 6;
                break;
            }
            int len = utf8_len(p + i, n - i);
            if (len > 0) {
                i += (size_t)len;
                continue;
            }
            memcpy(esc, "\xef\xbf\xbd", 3);
            esc_len = 3;
            used = (size_t)-len;
        }
        ok = sl_buf_append(b, s + plain, i - plain) && sl_buf_append(b, esc, esc_len);
        i += used;
        plain = i;
    }
    ok = ok && sl_buf_append(b, s + plain, i - plain);
    if (!ok && b->data) {
        b->len = start;
        b->data[start] = '\0';
    }
    return ok;
}

void sl_buf_consume(struct sl_buf *b, size_t n)
{
    if (n == 0)
        return;
    SL_ASSERT(n <= b->len);
    b->len -= n;
    memmove(b->data, b->data + n, b->len);
    b->data[b->len] = '\0';
}

char *sl_buf_steal(struct sl_buf *b)
{
    char *s = b->data ? b->data : sl_xstrdup("");
    *b = (struct sl_buf){.max = b->max};
    return s;
}
