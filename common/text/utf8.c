/* common/text/utf8.c - a strict decoder by the table of well-formed sequences (Unicode 15, table 3-7). */
#include "common/text/utf8.h"

#include <string.h>

enum sl_utf8_state sl_utf8_next(const char *str, size_t n, uint32_t *cp, size_t *used)
{
    const uint8_t *s = (const uint8_t *)str;
    uint8_t lead = s[0];
    uint8_t lo = 0x80, hi = 0xBF; /* allowed for the second byte */
    size_t need;
    uint32_t v;
    *used = 1;
    if (lead < 0x80) {
        *cp = lead;
        return SL_UTF8_VALID;
    } else if (lead >= 0xC2 && lead <= 0xDF) {
        need = 2;
        v = lead & 0x1Fu;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        need = 3;
        v = lead & 0x0Fu;
        lo = lead == 0xE0 ? 0xA0 : 0x80;
        hi = lead == 0xED ? 0x9F : 0xBF;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        need = 4;
        v = lead & 0x07u;
        lo = lead == 0xF0 ? 0x90 : 0x80;
        hi = lead == 0xF4 ? 0x8F : 0xBF;
    } else {
        return SL_UTF8_INVALID;
    }
    for (size_t i = 1; i < need; i++) {
        if (i >= n) {
            *used = n;
            return SL_UTF8_INCOMPLETE;
        }
        if (s[i] < lo || s[i] > hi) {
            *used = i;
            return SL_UTF8_INVALID;
        }
        v = v << 6 | (s[i] & 0x3Fu);
        lo = 0x80;
        hi = 0xBF;
    }
    *used = need;
    *cp = v;
    return SL_UTF8_VALID;
}

size_t sl_utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        size_t used;
        if ((uint8_t)s[i] < 0x80) {
            i++;
            continue;
        }
        if (sl_utf8_next(s + i, n - i, &cp, &used) != SL_UTF8_VALID)
            break;
        i += used;
    }
    return i;
}

size_t sl_utf8_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        cp = SL_UTF8_REPLACEMENT;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t sl_utf8_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((uint8_t)s[i] & 0xC0) != 0x80;
    return count;
}

void sl_utf8_repair(char *s)
{
    size_t n = strlen(s);
    for (size_t at = sl_utf8_valid_prefix(s, n); at < n; at += sl_utf8_valid_prefix(s + at, n - at))
        s[at] = '?';
}
