/* common/text/alphabet.c - code points to ids by pages of 256, and a bitmap of what may stand side by side.
 *
 * The bitmap is kept small by looking at the last byte of the left character and the first byte of the right
 * one only: it may say "may merge" too often, which costs time, never too seldom. The character for a space
 * is so frequent and shares its first byte with so much punctuation that it has a row and a column of its
 * own, 0xFF, which no UTF-8 text has: so text is nearly always cut at words. */
#include "common/text/alphabet.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/text/utf8.h"
#include "common/text/vocab.h"

#define SPACE      0x2581u
#define SPACE_BYTE 0xFF
#define N_PAGES    0x1100 /* of 256 code points */

struct sl_alphabet {
    struct sl_alphabet_conf conf;
    uint32_t *pages[N_PAGES]; /* id + 1; 0 = none. NULL = an empty page */
    uint32_t *extra;          /* [n_extra] code points with the ids n_vocab onwards */
    uint32_t n_extra, extra_cap;
    uint8_t joined[256][32]; /* [last byte of the left one] bit: first byte of the right one */
};

struct sl_alphabet *sl_alphabet_new(const struct sl_alphabet_conf *conf)
{
    struct sl_alphabet *a = sl_xcalloc(1, sizeof *a);
    a->conf = *conf;
    return a;
}

void sl_alphabet_free(struct sl_alphabet *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < N_PAGES; i++)
        sl_free(a->pages[i]);
    sl_free(a->extra);
    sl_free(a);
}

static uint32_t lookup(const struct sl_alphabet *a, uint32_t cp)
{
    const uint32_t *page = a->pages[cp >> 8];
    return page && page[cp & 255] ? page[cp & 255] - 1 : SL_VOCAB_NO_ID;
}

void sl_alphabet_add_char(struct sl_alphabet *a, uint32_t cp, uint32_t id)
{
    uint32_t **page = &a->pages[cp >> 8];
    if (!*page)
        *page = sl_xcalloc(256, sizeof **page);
    if (!(*page)[cp & 255])
        (*page)[cp & 255] = id + 1;
}

uint32_t sl_alphabet_char_id(struct sl_alphabet *a, uint32_t cp)
{
    uint32_t id = lookup(a, cp);
    if (id != SL_VOCAB_NO_ID)
        return id;
    if (a->n_extra == a->extra_cap) {
        a->extra_cap = a->extra_cap ? 2 * a->extra_cap : 64;
        a->extra = sl_xrealloc_array(a->extra, a->extra_cap, sizeof *a->extra);
    }
    id = a->conf.n_vocab + a->n_extra;
    a->extra[a->n_extra++] = cp;
    sl_alphabet_add_char(a, cp, id);
    return id;
}

uint32_t sl_alphabet_n_ids(const struct sl_alphabet *a)
{
    return a->conf.n_vocab + a->n_extra;
}

static uint8_t first_byte(uint32_t cp)
{
    char s[4];
    sl_utf8_encode(cp, s);
    return cp == SPACE ? SPACE_BYTE : (uint8_t)s[0];
}

static uint8_t last_byte(uint32_t cp)
{
    char s[4];
    size_t n = sl_utf8_encode(cp, s);
    return cp == SPACE ? SPACE_BYTE : (uint8_t)s[n - 1];
}

void sl_alphabet_join(struct sl_alphabet *a, uint32_t left, uint32_t right)
{
    uint8_t b = first_byte(right);
    a->joined[last_byte(left)][b >> 3] |= (uint8_t)(1u << (b & 7));
}

size_t sl_alphabet_part(const struct sl_alphabet *a, const char *text, size_t n)
{
    const uint8_t *s = (const uint8_t *)text;
    uint8_t last = 0;
    for (size_t i = 0; i < n;) {
        uint8_t first = s[i];
        size_t len = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
        bool space = len == 3 && memcmp(s + i, SL_VOCAB_SPACE, 3) == 0;
        if (space)
            first = SPACE_BYTE;
        if (i && !(a->joined[last][first >> 3] >> (first & 7) & 1))
            return i;
        i += len;
        last = space ? SPACE_BYTE : s[i - 1];
    }
    return n;
}

static size_t unknown(const struct sl_alphabet *a, uint32_t *ids, size_t n)
{
    if (a->conf.unk == SL_VOCAB_NO_ID)
        return n;
    ids[n] = a->conf.unk;
    return n + 1;
}

/* The bytes of a character without a token, or the unknown token. */
static size_t fall_back(const struct sl_alphabet *a, const char *s, size_t len, uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < len; i++)
        if (a->conf.byte_ids[(uint8_t)s[i]] == SL_VOCAB_NO_ID)
            return unknown(a, ids, n);
    for (size_t i = 0; i < len; i++)
        ids[n + i] = a->conf.byte_ids[(uint8_t)s[i]];
    return n + len;
}

size_t sl_alphabet_symbols(const struct sl_alphabet *a, const char *text, size_t n, uint32_t *ids)
{
    size_t count = 0;
    if (a->conf.bytes) {
        for (size_t i = 0; i < n; i++) {
            uint32_t id = a->conf.byte_ids[(uint8_t)text[i]];
            if (id == SL_VOCAB_NO_ID)
                count = unknown(a, ids, count);
            else
                ids[count++] = id;
        }
        return count;
    }
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t used = 0;
        sl_utf8_next(text + i, n - i, &cp, &used);
        uint32_t id = lookup(a, cp);
        if (id == SL_VOCAB_NO_ID)
            count = fall_back(a, text + i, used, ids, count);
        else
            ids[count++] = id;
        i += used;
    }
    return count;
}

uint32_t sl_alphabet_byte(const struct sl_alphabet *a, uint8_t byte)
{
    return a->conf.byte_ids[byte];
}

size_t sl_alphabet_emit(const struct sl_alphabet *a, uint32_t id, uint32_t ids[4])
{
    char s[4];
    SL_ASSERT(id >= a->conf.n_vocab && id - a->conf.n_vocab < a->n_extra);
    return fall_back(a, s, sl_utf8_encode(a->extra[id - a->conf.n_vocab], s), ids, 0);
}
