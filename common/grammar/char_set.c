/* common/grammar/char_set.c - a range of code points is cut where the length of its UTF-8 changes, and then until each
 * byte runs from one value to another whatever the others are. */
#include "common/grammar/char_set.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define FIRST_SURROGATE 0xD800u
#define LAST_SURROGATE  0xDFFFu

void sl_char_set_add(struct sl_char_set *s, uint32_t lo, uint32_t hi)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 4;
        s->ranges = sl_xrealloc_array(s->ranges, s->cap, sizeof *s->ranges);
    }
    s->ranges[s->n++] = (struct sl_char_range){.lo = lo, .hi = hi};
}

static int by_lo(const void *a, const void *b)
{
    const struct sl_char_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void sl_char_set_settle(struct sl_char_set *s)
{
    uint32_t n = s->n, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct sl_char_range *r = &s->ranges[i];
        if (r->lo <= LAST_SURROGATE && r->hi > LAST_SURROGATE) {
            uint32_t hi = r->hi;
            r->hi = LAST_SURROGATE;
            sl_char_set_add(s, LAST_SURROGATE + 1, hi);
            r = &s->ranges[i];
        }
        if (r->hi >= FIRST_SURROGATE && r->hi <= LAST_SURROGATE)
            r->hi = FIRST_SURROGATE - 1; /* empty when lo is one too */
    }
    if (s->n)
        qsort(s->ranges, s->n, sizeof *s->ranges, by_lo);
    for (uint32_t i = 0; i < s->n; i++) {
        struct sl_char_range r = s->ranges[i];
        if (r.lo > r.hi)
            continue;
        if (kept && r.lo <= s->ranges[kept - 1].hi + 1) {
            if (r.hi > s->ranges[kept - 1].hi)
                s->ranges[kept - 1].hi = r.hi;
        } else {
            s->ranges[kept++] = r;
        }
    }
    s->n = kept;
}

void sl_char_set_negate(struct sl_char_set *s)
{
    struct sl_char_set out = {0};
    uint32_t from = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].lo > from)
            sl_char_set_add(&out, from, s->ranges[i].lo - 1);
        from = s->ranges[i].hi + 1;
    }
    if (from <= SL_CHAR_MAX)
        sl_char_set_add(&out, from, SL_CHAR_MAX);
    sl_char_set_settle(&out);
    sl_char_set_fini(s);
    *s = out;
}

bool sl_char_set_equal(const struct sl_char_set *a, const struct sl_char_set *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->ranges, b->ranges, a->n * sizeof *a->ranges) == 0);
}

void sl_char_set_fini(struct sl_char_set *s)
{
    sl_free(s->ranges);
    *s = (struct sl_char_set){0};
}

static void add_text(struct sl_char_texts *out, struct sl_char_bytes b)
{
    if (out->n == out->cap) {
        out->cap = out->cap ? 2 * out->cap : 16;
        out->at = sl_xrealloc_array(out->at, out->cap, sizeof *out->at);
    }
    out->at[out->n++] = b;
}

static uint8_t encode(uint32_t c, uint8_t to[4])
{
    if (c < 0x80) {
        to[0] = (uint8_t)c;
        return 1;
    }
    uint8_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (uint8_t i = n; i-- > 1; c >>= 6)
        to[i] = (uint8_t)(0x80 | (c & 0x3F));
    to[0] = (uint8_t)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

static void add_utf8(struct sl_char_texts *out, uint32_t lo, uint32_t hi)
{
    static const uint32_t longest[] = {0x7F, 0x7FF, 0xFFFF};
    for (unsigned i = 0; i < 3; i++)
        if (lo <= longest[i] && hi > longest[i]) {
            add_utf8(out, lo, longest[i]);
            add_utf8(out, longest[i] + 1, hi);
            return;
        }
    for (unsigned bits = 6; hi >= 0x80 && bits <= 18;
         bits += 6) { /* the last bytes run through, or are the same */
        uint32_t low = (1u << bits) - 1;
        if ((lo & ~low) == (hi & ~low))
            break;
        if (lo & low) {
            add_utf8(out, lo, lo | low);
            add_utf8(out, (lo | low) + 1, hi);
            return;
        }
        if ((hi & low) != low) {
            add_utf8(out, lo, (hi & ~low) - 1);
            add_utf8(out, hi & ~low, hi);
            return;
        }
    }
    struct sl_char_bytes b = {0};
    b.n = encode(lo, b.lo);
    (void)encode(hi, b.hi);
    add_text(out, b);
}

static void add_escape(struct sl_char_texts *out, char c)
{
    add_text(out, (struct sl_char_bytes){.n = 2, .lo = {'\\', (uint8_t)c}, .hi = {'\\', (uint8_t)c}});
}

/* The letter of a control's own escape, 0: it has none. */
static char letter_of(uint32_t c)
{
    return c == '\b' ? 'b' : c == '\t' ? 't' : c == '\n' ? 'n' : c == '\f' ? 'f' : c == '\r' ? 'r' : '\0';
}

static void add_controls(struct sl_char_texts *out, uint32_t lo, uint32_t hi)
{
    static const char digits[] = "0123456789abcdef";
    while (lo <= hi) {
        uint32_t to = lo;
        if (letter_of(lo)) {
            add_escape(out, letter_of(lo));
        } else { /* \u00XX; the last digit runs on among digits or among letters */
            while (to < hi && !letter_of(to + 1) && (to + 1) % 16 != 0 && (to + 1) % 16 != 10)
                to++;
            struct sl_char_bytes b = {.n = 6, .lo = "\\u00", .hi = "\\u00"};
            b.lo[4] = b.hi[4] = (uint8_t)digits[lo / 16];
            b.lo[5] = (uint8_t)digits[lo % 16];
            b.hi[5] = (uint8_t)digits[to % 16];
            add_text(out, b);
        }
        lo = to + 1;
    }
}

void sl_char_set_texts(const struct sl_char_set *s, bool escaped, struct sl_char_texts *out)
{
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t lo = s->ranges[i].lo, hi = s->ranges[i].hi;
        if (escaped && lo < ' ') {
            add_controls(out, lo, hi < ' ' ? hi : ' ' - 1);
            lo = ' ';
        }
        for (const char *c = "\"\\"; escaped && *c; c++) {
            uint32_t here = (unsigned char)*c;
            if (lo > here || hi < here)
                continue;
            if (lo < here)
                add_utf8(out, lo, here - 1);
            add_escape(out, *c);
            lo = here + 1;
        }
        if (lo <= hi)
            add_utf8(out, lo, hi);
    }
}

uint32_t sl_char_next(const char *s, uint32_t *n_bytes)
{
    const uint8_t *b = (const uint8_t *)s;
    *n_bytes = b[0] < 0x80 ? 1 : b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : 4;
    uint32_t c = *n_bytes == 1 ? b[0] : b[0] & (0x7Fu >> *n_bytes);
    for (uint32_t i = 1; i < *n_bytes; i++)
        c = c << 6 | (b[i] & 0x3F);
    return c;
}
