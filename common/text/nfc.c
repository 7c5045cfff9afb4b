/* common/text/nfc.c - copies what is normal already, decomposes and composes around what may not be.
 *
 * A text is taken in stretches: from the character before a careful one (nfc_table.h) to the next character
 * that neither changes nor joins to the one before it. Stretches do not influence each other, and nearly all
 * text lies outside of them and is copied.
 * Marks are ordered by their combining class with a counting sort, since a text may hold a million of them on
 * one letter. */
#include "common/text/nfc.h"

#include "common/base/mem.h"
#include "common/text/nfc_table.h"
#include "common/text/utf8.h"

#define S_BASE  0xAC00u /* Hangul: syllables, leading consonants, vowels, trailing consonants */
#define L_BASE  0x1100u
#define V_BASE  0x1161u
#define T_BASE  0x11A7u
#define L_COUNT 19u
#define V_COUNT 21u
#define T_COUNT 28u
#define S_COUNT (L_COUNT * V_COUNT * T_COUNT)

#define MAX_DECOMPOSED 4 /* of one character, all the way down */

struct mark {
    uint32_t cp;
    uint8_t class;
};

struct stretch {
    struct mark *items, *sorted; /* [cap] */
    size_t n, cap;
};

static bool is_careful(uint32_t cp)
{
    size_t lo = 0, hi = SL_COUNTOF(nfc_careful);
    if (cp < nfc_careful[0][0] || (cp >= 0x3400 && cp < 0xA66F)) /* ideographs, Yi: none of them is */
        return false;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (nfc_careful[mid][1] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < SL_COUNTOF(nfc_careful) && nfc_careful[lo][0] <= cp;
}

static uint8_t class_of(uint32_t cp)
{
    size_t lo = 0, hi = SL_COUNTOF(nfc_class);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (nfc_class[mid][1] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < SL_COUNTOF(nfc_class) && nfc_class[lo][0] <= cp ? (uint8_t)nfc_class[lo][2] : 0;
}

static size_t decompose(uint32_t cp, uint32_t out[MAX_DECOMPOSED])
{
    if (cp - S_BASE < S_COUNT) {
        uint32_t s = cp - S_BASE, t = s % T_COUNT;
        out[0] = L_BASE + s / (V_COUNT * T_COUNT);
        out[1] = V_BASE + s / T_COUNT % V_COUNT;
        out[2] = T_BASE + t;
        return t ? 3 : 2;
    }
    size_t lo = 0, hi = SL_COUNTOF(nfc_decomposition);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (nfc_decomposition[mid][0] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == SL_COUNTOF(nfc_decomposition) || nfc_decomposition[lo][0] != cp) {
        out[0] = cp;
        return 1;
    }
    size_t n = decompose(nfc_decomposition[lo][1], out); /* only the first one decomposes further */
    if (nfc_decomposition[lo][2])
        out[n++] = nfc_decomposition[lo][2];
    return n;
}

/* 0 when they do not compose. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a - S_BASE < S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE && b - T_BASE < T_COUNT)
        return a + (b - T_BASE);
    size_t lo = 0, hi = SL_COUNTOF(nfc_composition);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const uint32_t *row = nfc_decomposition[nfc_composition[mid]];
        if (row[1] < a || (row[1] == a && row[2] < b))
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == SL_COUNTOF(nfc_composition))
        return 0;
    const uint32_t *row = nfc_decomposition[nfc_composition[lo]];
    return row[1] == a && row[2] == b ? row[0] : 0;
}

static enum sl_err add(struct stretch *s, uint32_t cp)
{
    uint32_t parts[MAX_DECOMPOSED];
    size_t n = decompose(cp, parts);
    if (s->n + n > s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        struct mark *items = sl_try_alloc(cap * sizeof *items), *sorted = sl_try_alloc(cap * sizeof *sorted);
        for (size_t i = 0; i < s->n && items; i++)
            items[i] = s->items[i];
        sl_free(s->items);
        sl_free(s->sorted);
        s->items = items;
        s->sorted = sorted;
        if (!items || !sorted)
            return SL_ENOMEM;
        s->cap = cap;
    }
    for (size_t i = 0; i < n; i++)
        s->items[s->n++] = (struct mark){parts[i], class_of(parts[i])};
    return SL_OK;
}

/* Orders the marks from..to by class; equal ones stay in order. */
static void sort_marks(struct stretch *s, size_t from, size_t to)
{
    size_t start[257] = {0};
    bool ordered = true;
    for (size_t i = from + 1; i < to && ordered; i++)
        ordered = s->items[i - 1].class <= s->items[i].class;
    if (ordered)
        return;
    for (size_t i = from; i < to; i++)
        start[s->items[i].class + 1]++;
    for (size_t c = 1; c < SL_COUNTOF(start); c++)
        start[c] += start[c - 1];
    for (size_t i = from; i < to; i++)
        s->sorted[start[s->items[i].class]++] = s->items[i];
    for (size_t i = from; i < to; i++)
        s->items[i] = s->sorted[i - from];
}

static void sort_all(struct stretch *s)
{
    for (size_t i = 0, end; i < s->n; i = end) {
        end = i + 1;
        if (s->items[i].class == 0)
            continue;
        while (end < s->n && s->items[end].class)
            end++;
        sort_marks(s, i, end);
    }
}

/* A mark joins the last starter unless one of its own class or a higher one stands between. */
static void compose_all(struct stretch *s)
{
    size_t n = 0, starter = SIZE_MAX;
    unsigned between = 0; /* class of the last one kept behind the starter */
    for (size_t i = 0; i < s->n; i++) {
        struct mark m = s->items[i];
        uint32_t joined = 0;
        if (starter != SIZE_MAX && (n == starter + 1 || (between && between < m.class)))
            joined = compose(s->items[starter].cp, m.cp);
        if (joined) {
            s->items[starter].cp = joined;
            continue;
        }
        if (m.class == 0)
            starter = n;
        between = m.class;
        s->items[n++] = m;
    }
    s->n = n;
}

static bool flush(struct stretch *s, struct sl_buf *out)
{
    char utf8[4];
    bool ok = true;
    sort_all(s);
    compose_all(s);
    for (size_t i = 0; i < s->n && ok; i++)
        ok = sl_buf_append(out, utf8, sl_utf8_encode(s->items[i].cp, utf8));
    s->n = 0;
    return ok;
}

enum sl_err sl_nfc_append(const char *text, size_t n, struct sl_buf *out)
{
    struct stretch s = {0};
    enum sl_err e = SL_OK;
    size_t copied = 0, before = 0; /* before: the last character that is not careful */
    bool inside = false;
    for (size_t i = 0; i < n && !e;) {
        uint32_t cp = 0, previous = 0;
        size_t used = 0;
        if ((uint8_t)text[i] < 0xCC && !inside) { /* below U+0300 */
            before = i;
            i += (uint8_t)text[i] < 0x80 ? 1 : 2;
            continue;
        }
        sl_utf8_next(text + i, n - i, &cp, &used);
        if (is_careful(cp)) {
            if (!inside) {
                if (!sl_buf_append(out, text + copied, before - copied))
                    e = SL_ETOOBIG;
                else if (before < i) {
                    sl_utf8_next(text + before, i - before, &previous, &used);
                    e = add(&s, previous);
                    sl_utf8_next(text + i, n - i, &cp, &used);
                }
            }
            inside = true;
            if (!e)
                e = add(&s, cp);
        } else {
            if (inside && !flush(&s, out))
                e = SL_ETOOBIG;
            if (inside)
                copied = i;
            inside = false;
            before = i;
        }
        i += used;
    }
    if (!e && inside && !flush(&s, out))
        e = SL_ETOOBIG;
    if (!e && !inside && !sl_buf_append(out, text + copied, n - copied))
        e = SL_ETOOBIG;
    sl_free(s.items);
    sl_free(s.sorted);
    return e;
}
