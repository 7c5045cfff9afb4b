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
 * Looking up pairs in a table of hundred thousands is what the time goes into, so the table is small: one
 * 64-bit word per pair, open addressing, built once. The word names the result: merges that make the same
 * token with the same rank share a number, and the numbers go up with the ranks. Nearly always they are the
 * ranks; only where different tokens share a rank (scores of SentencePiece) a list says which. */
#include "common/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define NONE      UINT32_MAX
#define SHORT     32
#define ID_BITS   21
#define NUM_BITS  22
#define NUM_MASK  ((1u << NUM_BITS) - 1)
#define FREE_SLOT UINT64_MAX

struct sl_bpe {
    uint64_t *slots; /* left, right, number of the result: 21, 21 and 22 bits */
    size_t mask;
    uint32_t *merged; /* [number] the token */
    uint32_t *ranks;  /* [number] NULL: the number is the rank */
};

struct symbol {
    uint32_t id;
    uint32_t prev, next;   /* NONE at the ends */
    uint32_t rank, number; /* of the merge with next; rank NONE when there is none or this symbol is gone */
};

static size_t hash_pair(uint64_t pair)
{
    pair *= 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio */
    return (size_t)(pair ^ pair >> 32);
}

static size_t slot_of(const struct sl_bpe *b, uint64_t pair)
{
    size_t i = hash_pair(pair) & b->mask;
    while (b->slots[i] >> NUM_BITS != pair && b->slots[i] != FREE_SLOT)
        i = (i + 1) & b->mask;
    return i;
}

/* The rank of the merge and the number of its result; NONE when there is none. */
static inline uint32_t find(const struct sl_bpe *b, uint32_t left, uint32_t right, uint32_t *number)
{
    uint64_t slot = b->slots[slot_of(b, (uint64_t)left << ID_BITS | right)];
    if (slot == FREE_SLOT)
        return NONE;
    *number = (uint32_t)slot & NUM_MASK;
    return b->ranks ? b->ranks[*number] : *number;
}

static int result_cmp(const void *a, const void *b)
{
    const struct sl_bpe_merge *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->merged > y->merged) - (x->merged < y->merged);
}

/* Gives each result its number, and the merges in m their result's in place of merged. */
static void number_results(struct sl_bpe *b, struct sl_bpe_merge *m, size_t n)
{
    struct sl_bpe_merge *sorted = sl_xcalloc(n + 1, sizeof *sorted);
    uint32_t count = 0;
    bool shared = false;
    for (size_t i = 0; i < n; i++)
        sorted[i] = (struct sl_bpe_merge){(uint32_t)i, 0, m[i].merged, m[i].rank};
    qsort(sorted, n, sizeof *sorted, result_cmp);
    b->merged = sl_xcalloc(n + 1, sizeof *b->merged);
    b->ranks = sl_xcalloc(n + 1, sizeof *b->ranks);
    for (size_t i = 0; i < n; i++) {
        const struct sl_bpe_merge *k = &sorted[i];
        if (i == 0 || result_cmp(k - 1, k) != 0) {
            shared = shared || (count && b->ranks[count - 1] == k->rank);
            b->merged[count] = k->merged;
            b->ranks[count++] = k->rank;
        }
        m[k->left].merged = count - 1;
    }
    if (!shared) {
        sl_free(b->ranks);
        b->ranks = NULL;
    }
    sl_free(sorted);
}

struct sl_bpe *sl_bpe_new(const struct sl_bpe_merge *merges, size_t n_merges)
{
    SL_ASSERT(n_merges <= SL_BPE_MAX_MERGES);
    struct sl_bpe *b = sl_xcalloc(1, sizeof *b);
    struct sl_bpe_merge *m = n_merges ? sl_xmemdup(merges, n_merges * sizeof *m) : NULL;
    size_t cap = 16;
    while (cap < n_merges + n_merges / 2)
        cap *= 2;
    b->mask = cap - 1;
    b->slots = sl_xcalloc(cap, sizeof *b->slots);
    memset(b->slots, 0xFF, cap * sizeof *b->slots);
    number_results(b, m, n_merges);
    for (size_t i = 0; i < n_merges; i++) {
        SL_ASSERT(m[i].left < SL_BPE_MAX_IDS && m[i].right < SL_BPE_MAX_IDS);
        uint64_t pair = (uint64_t)m[i].left << ID_BITS | m[i].right;
        size_t at = slot_of(b, pair);
        if (b->slots[at] == FREE_SLOT)
            b->slots[at] = pair << NUM_BITS | m[i].merged;
    }
    sl_free(m);
    return b;
}

void sl_bpe_free(struct sl_bpe *b)
{
    if (!b)
        return;
    sl_free(b->slots);
    sl_free(b->merged);
    sl_free(b->ranks);
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
    uint32_t rank[SHORT], number[SHORT]; /* of the pair (i, i + 1) */
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = find(b, ids[i], ids[i + 1], &number[i]);
    while (n > 1) {
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[at])
                at = i;
        if (rank[at] == NONE)
            break;
        ids[at] = b->merged[number[at]];
        for (size_t i = at + 1; i + 1 < n; i++) {
            ids[i] = ids[i + 1];
            rank[i - 1] = rank[i];
            number[i - 1] = number[i];
        }
        n--;
        for (size_t i = at ? at - 1 : 0; i <= at && i + 1 < n; i++)
            rank[i] = find(b, ids[i], ids[i + 1], &number[i]);
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
    sym[i].rank = find(b, sym[i].id, sym[sym[i].next].id, &sym[i].number);
    if (sym[i].rank != NONE)
        heap_push(heap, n_heap, (uint64_t)sym[i].rank << 32 | i);
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
        sym[i].id = b->merged[sym[i].number];
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
