/* common/text/byte_chars.c - the tables of GPT-2's byte alphabet. */
#include "common/text/byte_chars.h"

#include "common/text/utf8.h"

static bool byte_is_plain(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

void sl_byte_chars_init(struct sl_byte_chars *a)
{
    uint32_t next = 256;
    *a = (struct sl_byte_chars){0};
    for (unsigned b = 0; b < 256; b++) {
        uint32_t c = byte_is_plain(b) ? b : next++;
        a->byte_of[c] = (uint8_t)b;
        a->known[c] = true;
        a->len[b] = (uint8_t)sl_utf8_encode(c, a->text[b]);
    }
}

bool sl_byte_chars_decode(const struct sl_byte_chars *a, const char *s, size_t n, char *out, size_t *n_out)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t used = 0;
        if (sl_utf8_next(s + i, n - i, &cp, &used) != SL_UTF8_VALID || cp >= SL_BYTE_CHARS || !a->known[cp])
            return false;
        out[n_bytes++] = (char)a->byte_of[cp];
        i += used;
    }
    *n_out = n_bytes;
    return true;
}
