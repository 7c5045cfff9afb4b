/* common/text/bpe.c - ranked merges: by looking at all pairs in a short piece, with a heap over a linked list
 * in a long one.
 *
 * Words are short, and there the next merge is found quickest by looking at every rank: no links, no heap. A
 * long run of letters would make that quadratic. So beyond SHORT symbols every pair of neighbours that has a
 * merge goes into a binary heap keyed by (rank, position of the left one), 64 bits. An entry is not removed
 * when its pair changes; it is stale when the pair that now stands at its position has another rank, which is
 * seen in the symbol itself. Each merge makes at most two new pairs, so the heap never holds more than twice
 * the symbols of the piece and the work is O(n log n) for any input.
 *
 * The merges are an open-addressing table keyed by (left, right). It is built once, so no deletion and at
 * most half full. */
#include "common/text/bpe.h"

#include <string.h>

#include "common/base/mem.h"

#define NONE  UINT32_MAX
#define SHORT 32

struct slot {
    uint64_t pair;         /* left << 32 | right */
    uint32_t rank, merged; /* rank NONE = empty */
};

struct sl_bpe {
    struct slot *slots;
    size_t mask;
};

struct symbol {
    uint32_t id;
    uint32_t prev, next;   /* NONE at the ends */
    uint32_t rank, merged; /* of the merge with next; rank NONE when there is none or this symbol is gone */
};

static size_t hash_pair(uint64_t pair)
{
    pair *= 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio */
    return (size_t)(pair ^ pair >> 32);
}

static const struct slot *find(const struct sl_bpe *b, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t i = hash_pair(pair) & b->mask;
    while (b->slots[i].rank != NONE && b->slots[i].pair != pair)
        i = (i + 1) & b->mask;
    return &b->slots[i];
}

struct sl_bpe *sl_bpe_new(const struct sl_bpe_merge *merges, size_t n_merges)
{
    struct sl_bpe *b = sl_xcalloc(1, sizeof *b);
    size_t cap = 16;
    while (cap < 2 * n_merges)
        cap *= 2;
    b->mask = cap - 1;
    b->slots = sl_xcalloc(cap, sizeof *b->slots);
    for (size_t i = 0; i < cap; i++)
        b->slots[i].rank = NONE;
    for (size_t i = 0; i < n_merges; i++) {
        const struct sl_bpe_merge *m = &merges[i];
        struct slot *s = &b->slots[find(b, m->left, m->right) - b->slots];
        if (s->rank == NONE)
            *s = (struct slot){(uint64_t)m->left << 32 | m->right, m->rank, m->merged};
    }
    return b;
}

void sl_bpe_free(struct sl_bpe *b)
{
    if (!b)
        return;
    sl_free(b->slots);
    sl_free(b);
}

void sl_bpe_work_fini(struct sl_bpe_work *w)
{
    sl_free(w->ids);
    sl_free(w->symbols);
    sl_free(w->heap);
    *w = (struct sl_bpe_work){0};
}

/* The sizes come from a client's text, so the allocations may fail. */
uint32_t *sl_bpe_ids(struct sl_bpe_work *w, size_t n)
{
    if (n > w->n_ids) {
        size_t cap = n < 256 ? 256 : n;
        sl_free(w->ids);
        w->ids = sl_try_alloc(cap * sizeof *w->ids);
        w->n_ids = w->ids ? cap : 0;
    }
    return w->ids;
}

static enum sl_err reserve(struct sl_bpe_work *w, size_t n)
{
    if (n <= w->n_symbols)
        return SL_OK;
    size_t cap = n < 256 ? 256 : n;
    sl_free(w->symbols);
    sl_free(w->heap);
    w->symbols = sl_try_alloc(cap * sizeof(struct symbol));
    w->heap = sl_try_alloc(2 * cap * sizeof *w->heap);
    w->n_symbols = w->symbols && w->heap ? cap : 0;
    return w->n_symbols ? SL_OK : SL_ENOMEM;
}

static size_t merge_short(const struct sl_bpe *b, uint32_t *ids, size_t n)
{
    uint32_t rank[SHORT], merged[SHORT]; /* of the pair (i, i + 1) */
    for (size_t i = 0; i + 1 < n; i++) {
        const struct slot *s = find(b, ids[i], ids[i + 1]);
        rank[i] = s->rank;
        merged[i] = s->merged;
    }
    while (n > 1) {
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[at])
                at = i;
        if (rank[at] == NONE)
            break;
        ids[at] = merged[at];
        for (size_t i = at + 1; i + 1 < n; i++) {
            ids[i] = ids[i + 1];
            rank[i - 1] = rank[i];
            merged[i - 1] = merged[i];
        }
        n--;
        for (size_t i = at ? at - 1 : 0; i <= at && i + 1 < n; i++) {
            const struct slot *s = find(b, ids[i], ids[i + 1]);
            rank[i] = s->rank;
            merged[i] = s->merged;
        }
    }
    return n;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t i = (*n)++;
    while (i && heap[(i - 1) / 2] > key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], key = heap[--*n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < *n) {
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= key)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
    return top;
}

/* Looks up the pair that starts at i and queues it. */
static void consider(const struct sl_bpe *b, struct symbol *sym, uint32_t i, uint64_t *heap, size_t *n_heap)
{
    sym[i].rank = NONE;
    if (sym[i].next == NONE)
        return;
    const struct slot *s = find(b, sym[i].id, sym[sym[i].next].id);
    sym[i].rank = s->rank;
    sym[i].merged = s->merged;
    if (s->rank != NONE)
        heap_push(heap, n_heap, (uint64_t)s->rank << 32 | i);
}

static size_t merge_long(const struct sl_bpe *b, struct sl_bpe_work *w, uint32_t *ids, uint32_t n)
{
    struct symbol *sym = w->symbols;
    for (uint32_t i = 0; i < n; i++)
        sym[i] = (struct symbol){ids[i], i - 1, i + 1, NONE, NONE}; /* 0 - 1 is NONE */
    sym[n - 1].next = NONE;
    size_t n_heap = 0, left = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        consider(b, sym, i, w->heap, &n_heap);
    while (n_heap) {
        uint64_t top = heap_pop(w->heap, &n_heap);
        uint32_t i = (uint32_t)top, rank = (uint32_t)(top >> 32);
        if (sym[i].rank != rank)
            continue;
        uint32_t gone = sym[i].next;
        sym[i].id = sym[i].merged;
        sym[i].next = sym[gone].next;
        sym[gone].rank = NONE;
        if (sym[i].next != NONE)
            sym[sym[i].next].prev = i;
        consider(b, sym, i, w->heap, &n_heap);
        if (sym[i].prev != NONE)
            consider(b, sym, sym[i].prev, w->heap, &n_heap);
    }
    for (uint32_t i = 0; i != NONE; i = sym[i].next) /* the first symbol is never merged away */
        ids[left++] = sym[i].id;
    return left;
}

enum sl_err sl_bpe_merge(const struct sl_bpe *b, struct sl_bpe_work *w, uint32_t *ids, size_t *n)
{
    if (*n <= SHORT) {
        *n = merge_short(b, ids, *n);
        return SL_OK;
    }
    if (*n > INT32_MAX)
        return SL_ETOOBIG;
    enum sl_err e = reserve(w, *n);
    if (!e)
        *n = merge_long(b, w, ids, (uint32_t)*n);
    return e;
}
