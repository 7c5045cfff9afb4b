/* common/text/special_match.c - a byte trie with sibling lists.
 *
 * Vocabularies have up to some thousand such tokens with long common beginnings, so lists are short; a table
 * of first bytes keeps ordinary text out of it. */
#include "common/text/special_match.h"

#include <string.h>

#include "common/base/mem.h"

#define NO_ID UINT32_MAX

struct node {
    uint32_t child, sibling; /* 0 = none: the root is nobody's child */
    uint32_t id;             /* NO_ID when no token ends here */
    uint8_t byte;
};

struct sl_special {
    struct node *nodes;
    uint32_t n, cap;
    bool first[256];
    unsigned n_first;
    uint8_t only; /* the first byte, when all begin with the same */
};

static uint32_t add_node(struct sl_special *s, uint8_t byte)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->nodes = sl_xrealloc_array(s->nodes, s->cap, sizeof *s->nodes);
    }
    s->nodes[s->n] = (struct node){.id = NO_ID, .byte = byte};
    return s->n++;
}

struct sl_special *sl_special_new(void)
{
    struct sl_special *s = sl_xcalloc(1, sizeof *s);
    add_node(s, 0);
    return s;
}

void sl_special_free(struct sl_special *s)
{
    if (!s)
        return;
    sl_free(s->nodes);
    sl_free(s);
}

static uint32_t child_of(const struct sl_special *s, uint32_t node, uint8_t byte)
{
    uint32_t c = s->nodes[node].child;
    while (c && s->nodes[c].byte != byte)
        c = s->nodes[c].sibling;
    return c;
}

void sl_special_add(struct sl_special *s, const char *text, size_t n, uint32_t id)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = child_of(s, at, (uint8_t)text[i]);
        if (!c) {
            c = add_node(s, (uint8_t)text[i]);
            s->nodes[c].sibling = s->nodes[at].child;
            s->nodes[at].child = c;
        }
        at = c;
    }
    if (s->nodes[at].id == NO_ID)
        s->nodes[at].id = id;
    s->n_first += !s->first[(uint8_t)text[0]];
    s->first[(uint8_t)text[0]] = true;
    s->only = (uint8_t)text[0];
}

bool sl_special_next(const struct sl_special *s, const char *text, size_t len, uint32_t *node, size_t *n,
                     uint32_t *id)
{
    if (*node == 0)
        *n = 0;
    while (*n < len) {
        uint32_t c = child_of(s, *node, (uint8_t)text[*n]);
        if (!c)
            return false;
        *node = c;
        ++*n;
        if (s->nodes[c].id != NO_ID) {
            *id = s->nodes[c].id;
            return true;
        }
    }
    return false;
}

size_t sl_special_seek(const struct sl_special *s, const char *text, size_t len, size_t at)
{
    if (s->n_first == 0 || at >= len)
        return len;
    if (s->n_first == 1) { /* nearly always "<" */
        const char *hit = memchr(text + at, s->only, len - at);
        return hit ? (size_t)(hit - text) : len;
    }
    while (at < len && !s->first[(uint8_t)text[at]])
        at++;
    return at;
}
