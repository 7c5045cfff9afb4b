/* common/text/bpe.c - ranked merges with a heap over a linked list of symbols.
 *
 * Every pair of neighbours that has a merge goes into a binary heap keyed by (rank, position of the left
 * one), 64 bits. An entry is not removed when its pair changes; it is stale when the pair that now stands at
 * its position has another rank, which is seen in the symbol itself. Each merge makes at most two new pairs,
 * so the heap never holds more than twice the bytes of the piece and the work is O(n log n) for any input;
 * scanning all pairs after every merge would be quadratic, and one long run of letters is enough to make that
 * hurt.
 *
 * The merges are an open-addressing table keyed by (left, right). It is built once, so no deletion and at
 * most half full. */
#include "common/text/bpe.h"

#include <string.h>

#include "common/base/mem.h"

#define NONE UINT32_MAX

struct slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* NONE = empty */
};

struct sl_bpe {
    uint32_t byte_ids[256];
    uint32_t *merged; /* [n_merges] by rank */
    struct slot *slots;
    size_t mask;
};

struct symbol {
    uint32_t id;
    uint32_t prev, next; /* NONE at the ends */
    uint32_t rank;       /* of the merge with next; NONE when there is none or this symbol is gone */
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

struct sl_bpe *sl_bpe_new(const uint32_t byte_ids[256], const struct sl_bpe_merge *merges, uint32_t n_merges)
{
    struct sl_bpe *b = sl_xcalloc(1, sizeof *b);
    memcpy(b->byte_ids, byte_ids, sizeof b->byte_ids);
    size_t cap = 16;
    while (cap < 2 * (size_t)n_merges)
        cap *= 2;
    b->mask = cap - 1;
    b->slots = sl_xcalloc(cap, sizeof *b->slots);
    for (size_t i = 0; i < cap; i++)
        b->slots[i].rank = NONE;
    b->merged = sl_xcalloc((size_t)n_merges + 1, sizeof *b->merged);
    for (uint32_t rank = 0; rank < n_merges; rank++) {
        b->merged[rank] = merges[rank].merged;
        struct slot *s = &b->slots[find(b, merges[rank].left, merges[rank].right) - b->slots];
        if (s->rank == NONE)
            *s = (struct slot){(uint64_t)merges[rank].left << 32 | merges[rank].right, rank};
    }
    return b;
}

void sl_bpe_free(struct sl_bpe *b)
{
    if (!b)
        return;
    sl_free(b->slots);
    sl_free(b->merged);
    sl_free(b);
}

enum sl_err sl_id_list_add(struct sl_id_list *l, uint32_t id)
{
    if (l->n >= l->max)
        return SL_ETOOBIG;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->ids = sl_xrealloc_array(l->ids, l->cap, sizeof *l->ids);
    }
    l->ids[l->n++] = id;
    return SL_OK;
}

void sl_bpe_work_fini(struct sl_bpe_work *w)
{
    sl_free(w->symbols);
    sl_free(w->heap);
    *w = (struct sl_bpe_work){0};
}

/* The sizes come from a client's text, so the allocation may fail. */
static enum sl_err reserve(struct sl_bpe_work *w, size_t n)
{
    if (n <= w->n_symbols)
        return SL_OK;
    size_t cap = n < 256 ? 256 : n;
    sl_bpe_work_fini(w);
    w->symbols = sl_try_alloc(cap * sizeof(struct symbol));
    w->heap = sl_try_alloc(2 * cap * sizeof *w->heap);
    if (!w->symbols || !w->heap) {
        sl_bpe_work_fini(w);
        return SL_ENOMEM;
    }
    w->n_symbols = cap;
    w->n_heap = 2 * cap;
    return SL_OK;
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
    sym[i].rank = find(b, sym[i].id, sym[sym[i].next].id)->rank;
    if (sym[i].rank != NONE)
        heap_push(heap, n_heap, (uint64_t)sym[i].rank << 32 | i);
}

enum sl_err sl_bpe_encode(const struct sl_bpe *b, struct sl_bpe_work *w, const char *piece, size_t n,
                          struct sl_id_list *out)
{
    if (n > INT32_MAX)
        return SL_ETOOBIG;
    enum sl_err e = reserve(w, n);
    if (e)
        return e;
    struct symbol *sym = w->symbols;
    uint32_t n_sym = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = b->byte_ids[(uint8_t)piece[i]];
        if (id == SL_BPE_NO_ID)
            continue;
        sym[n_sym] = (struct symbol){id, n_sym - 1, n_sym + 1, NONE}; /* 0 - 1 is NONE */
        n_sym++;
    }
    if (n_sym == 0)
        return SL_OK;
    sym[n_sym - 1].next = NONE;
    size_t n_heap = 0;
    for (uint32_t i = 0; i + 1 < n_sym; i++)
        consider(b, sym, i, w->heap, &n_heap);
    while (n_heap) {
        uint64_t top = heap_pop(w->heap, &n_heap);
        uint32_t i = (uint32_t)top, rank = (uint32_t)(top >> 32);
        if (sym[i].rank != rank)
            continue;
        uint32_t gone = sym[i].next;
        sym[i].id = b->merged[rank];
        sym[i].next = sym[gone].next;
        sym[gone].rank = NONE;
        if (sym[i].next != NONE)
            sym[sym[i].next].prev = i;
        consider(b, sym, i, w->heap, &n_heap);
        if (sym[i].prev != NONE)
            consider(b, sym, sym[i].prev, w->heap, &n_heap);
    }
    for (uint32_t i = 0; i != NONE && !e; i = sym[i].next) /* the first symbol is never merged away */
        e = sl_id_list_add(out, sym[i].id);
    return e;
}
