/* common/base/hashmap.c - linear probing over a power of two slots, deletions leave tombstones.
 *
 * Tombstones, not backward shifting, because a walk may delete the entry it was just given: no entry ever
 * moves except in a put. A put that finds live + dead over 3/4 rebuilds the table, at the same size when most
 * of it is dead. Keys up to 16 bytes (all u64 and most ids) stay in the slot, longer ones are copied to the
 * heap. */
#include "common/base/hashmap.h"

#include <string.h>

#include "common/base/digest.h"
#include "common/base/mem.h"
#include "common/base/rand.h"

#define FIRST_SLOTS      16
#define INLINE_KEY_BYTES 16
#define NO_SLOT          SIZE_MAX

struct slot {
    void *value; /* NULL: free; &tombstone: deleted */
    uint64_t hash;
    size_t key_len;
    union {
        unsigned char bytes[INLINE_KEY_BYTES];
        unsigned char *heap;
    } key;
};

struct sl_hashmap {
    struct slot *slots;
    size_t n_slots; /* power of two */
    size_t live, dead;
    uint64_t seed;
};

static char tombstone;

static bool slot_live(const struct slot *s)
{
    return s->value && s->value != &tombstone;
}

static const void *slot_key(const struct slot *s)
{
    return s->key_len <= INLINE_KEY_BYTES ? s->key.bytes : s->key.heap;
}

struct sl_hashmap *sl_hashmap_new(void)
{
    struct sl_hashmap *m = sl_xcalloc(1, sizeof *m);
    m->n_slots = FIRST_SLOTS;
    m->slots = sl_xcalloc(m->n_slots, sizeof *m->slots);
    m->seed = sl_random_u64();
    return m;
}

void sl_hashmap_free(struct sl_hashmap *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_slots; i++)
        if (slot_live(&m->slots[i]) && m->slots[i].key_len > INLINE_KEY_BYTES)
            sl_free(m->slots[i].key.heap);
    sl_free(m->slots);
    sl_free(m);
}

void sl_hashmap_reserve(struct sl_hashmap *m, size_t n)
{
    SL_ASSERT(m->live == 0 && m->dead == 0);
    while (m->n_slots / 2 <= n) /* rebuild() doubles at a half */
        m->n_slots *= 2;
    sl_free(m->slots);
    m->slots = sl_xalloc(m->n_slots * sizeof *m->slots);
    memset(m->slots, 0, m->n_slots * sizeof *m->slots);
}

size_t sl_hashmap_len(const struct sl_hashmap *m)
{
    return m->live;
}

static size_t find(const struct sl_hashmap *m, const void *key, size_t key_len, uint64_t hash)
{
    size_t mask = m->n_slots - 1;
    for (size_t i = hash & mask; m->slots[i].value; i = (i + 1) & mask) {
        const struct slot *s = &m->slots[i];
        if (s->value != &tombstone && s->hash == hash && s->key_len == key_len &&
            (key_len == 0 || memcmp(slot_key(s), key, key_len) == 0))
            return i;
    }
    return NO_SLOT; /* a free slot always exists, see put */
}

static void rebuild(struct sl_hashmap *m)
{
    size_t old_n = m->n_slots;
    struct slot *old = m->slots;
    if (m->live >= old_n / 2)
        m->n_slots *= 2;
    m->slots = sl_xcalloc(m->n_slots, sizeof *m->slots);
    m->dead = 0;
    size_t mask = m->n_slots - 1;
    for (size_t i = 0; i < old_n; i++) {
        if (!slot_live(&old[i]))
            continue;
        size_t to = old[i].hash & mask;
        while (m->slots[to].value)
            to = (to + 1) & mask;
        m->slots[to] = old[i];
    }
    sl_free(old);
}

void *sl_hashmap_put(struct sl_hashmap *m, const void *key, size_t key_len, void *value)
{
    SL_ASSERT(value);
    uint64_t hash = sl_digest64(key, key_len, m->seed);
    size_t at = find(m, key, key_len, hash);
    if (at != NO_SLOT) {
        void *before = m->slots[at].value;
        m->slots[at].value = value;
        return before;
    }
    if (m->live + m->dead >= m->n_slots / 4 * 3)
        rebuild(m);
    size_t mask = m->n_slots - 1;
    at = hash & mask;
    while (slot_live(&m->slots[at]))
        at = (at + 1) & mask;
    struct slot *s = &m->slots[at];
    if (s->value == &tombstone)
        m->dead--;
    s->value = value;
    s->hash = hash;
    s->key_len = key_len;
    if (key_len > INLINE_KEY_BYTES)
        s->key.heap = sl_xmemdup(key, key_len);
    else if (key_len)
        memcpy(s->key.bytes, key, key_len);
    m->live++;
    return NULL;
}

void *sl_hashmap_get(const struct sl_hashmap *m, const void *key, size_t key_len)
{
    size_t at = find(m, key, key_len, sl_digest64(key, key_len, m->seed));
    return at == NO_SLOT ? NULL : m->slots[at].value;
}

void *sl_hashmap_del(struct sl_hashmap *m, const void *key, size_t key_len)
{
    size_t at = find(m, key, key_len, sl_digest64(key, key_len, m->seed));
    if (at == NO_SLOT)
        return NULL;
    struct slot *s = &m->slots[at];
    void *value = s->value;
    if (s->key_len > INLINE_KEY_BYTES)
        sl_free(s->key.heap);
    m->live--;
    if (m->slots[(at + 1) & (m->n_slots - 1)].value) {
        s->value = &tombstone;
        m->dead++;
    } else {
        s->value = NULL; /* the end of its run: no probe has to pass here */
    }
    return value;
}

void *sl_hashmap_put_u64(struct sl_hashmap *m, uint64_t key, void *value)
{
    return sl_hashmap_put(m, &key, sizeof key, value);
}

void *sl_hashmap_get_u64(const struct sl_hashmap *m, uint64_t key)
{
    return sl_hashmap_get(m, &key, sizeof key);
}

void *sl_hashmap_del_u64(struct sl_hashmap *m, uint64_t key)
{
    return sl_hashmap_del(m, &key, sizeof key);
}

bool sl_hashmap_next(const struct sl_hashmap *m, size_t *it, void **value)
{
    while (*it < m->n_slots) {
        const struct slot *s = &m->slots[(*it)++];
        if (slot_live(s)) {
            *value = s->value;
            return true;
        }
    }
    return false;
}
