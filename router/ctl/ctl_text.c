/* router/ctl/ctl_text.c - text that others wrote, made fit for a terminal. */
#include <string.h>

#include "common/base/mem.h"
#include "router/ctl/ctl.h"

/* C0, DEL and C1 controls, marks of direction, what takes no column, other line ends. */
static bool is_hidden(uint32_t c)
{
    static const struct {
        uint32_t from, to;
    } rows[] = {{0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},
                {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f},
                {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0xe0000, 0xe0fff}};
    for (size_t i = 0; i < SL_COUNTOF(rows); i++)
        if (c >= rows[i].from && c <= rows[i].to)
            return true;
    return false;
}

size_t sl_ctl_character(const char *s, uint32_t *code, bool *shown)
{
    const unsigned char *p = (const unsigned char *)s;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc0 ? 2 : 0;
    uint32_t c = n == 1 ? p[0] : n ? p[0] & (0x7fu >> n) : 0;
    bool good = n > 0 && p[0] < 0xf5;
    for (size_t i = 1; good && i < n; i++) {
        good = (p[i] & 0xc0) == 0x80; /* false at the end, too */
        c = c << 6 | (p[i] & 0x3f);
    }
    if (!good || c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) {
        *code = 0xfffd;
        *shown = false;
        return 1;
    }
    *code = c;
    *shown = !is_hidden(c);
    return n;
}

size_t sl_ctl_clean(const char *s, size_t max_columns, char *out, size_t size)
{
    size_t columns = 0, at = 0;
    while (*s && columns < max_columns) {
        uint32_t code;
        bool shown;
        size_t n = sl_ctl_character(s, &code, &shown);
        if (at + (shown ? n : 1) >= size)
            break;
        if (shown)
            memcpy(out + at, s, n);
        else
            out[at] = '?';
        at += shown ? n : 1;
        s += n;
        columns++;
    }
    out[at] = '\0';
    return columns;
}
