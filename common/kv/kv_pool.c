/* common/kv/kv_pool.c - a bitmap of free pages and a reference count per page.
 *
 * The bitmap makes runs visible: taking n pages looks for the smallest run that holds them, so that large
 * runs stay whole for long prompts; a fragmented pool gives the longest runs it has. A scan reads 64 pages at
 * a time (a pool of 100000 pages is 1600 words, about a microsecond). Rejected: a free list (contiguous only
 * by luck) and a buddy allocator (rounds prompts up to powers of two). */
#include "common/kv/kv_pool.h"

#include "common/base/mem.h"

#define WORD_PAGES 64u

struct sl_kv_pool {
    uint32_t n_pages, n_free, n_words;
    uint64_t *free_bits; /* bit set = free; bits past n_pages are 0 */
    uint32_t *refs;
};

struct run {
    uint32_t first, n;
};

static bool is_free(const struct sl_kv_pool *p, uint32_t page)
{
    return page < p->n_pages && (p->free_bits[page / WORD_PAGES] >> (page % WORD_PAGES) & 1);
}

enum sl_err sl_kv_pool_open(uint32_t n_pages, struct sl_kv_pool **out)
{
    if (n_pages == 0 || n_pages == SL_KV_NO_PAGE)
        return SL_EINVAL;
    uint32_t n_words = n_pages / WORD_PAGES + (n_pages % WORD_PAGES != 0);
    struct sl_kv_pool *p = sl_try_alloc(sizeof *p);
    uint64_t *bits = sl_try_alloc(n_words * sizeof *bits);
    uint32_t *refs = sl_try_alloc((size_t)n_pages * sizeof *refs);
    if (!p || !bits || !refs) {
        sl_free(refs);
        sl_free(bits);
        sl_free(p);
        return SL_ENOMEM;
    }
    for (uint32_t i = 0; i < n_pages; i++)
        refs[i] = 0;
    for (uint32_t w = 0; w < n_words; w++)
        bits[w] = UINT64_MAX;
    if (n_pages % WORD_PAGES)
        bits[n_words - 1] = (UINT64_C(1) << (n_pages % WORD_PAGES)) - 1;
    *p = (struct sl_kv_pool){
        .n_pages = n_pages, .n_free = n_pages, .n_words = n_words, .free_bits = bits, .refs = refs};
    *out = p;
    return SL_OK;
}

void sl_kv_pool_close(struct sl_kv_pool *p)
{
    if (!p)
        return;
    sl_free(p->refs);
    sl_free(p->free_bits);
    sl_free(p);
}

uint32_t sl_kv_pool_total_pages(const struct sl_kv_pool *p)
{
    return p->n_pages;
}

uint32_t sl_kv_pool_free_pages(const struct sl_kv_pool *p)
{
    return p->n_free;
}

/* The first run of free pages at or behind page `from`; n = 0 when there is none. */
static struct run next_run(const struct sl_kv_pool *p, uint32_t from)
{
    uint32_t w = from / WORD_PAGES;
    if (w >= p->n_words)
        return (struct run){0};
    uint64_t bits = p->free_bits[w] & (UINT64_MAX << (from % WORD_PAGES));
    while (!bits) {
        if (++w == p->n_words)
            return (struct run){0};
        bits = p->free_bits[w];
    }
    uint32_t first = w * WORD_PAGES + (uint32_t)__builtin_ctzll(bits);
    uint64_t used = ~p->free_bits[w] & (UINT64_MAX << (first % WORD_PAGES));
    while (!used) {
        if (++w == p->n_words)
            return (struct run){first, p->n_pages - first};
        used = ~p->free_bits[w];
    }
    uint32_t end = w * WORD_PAGES + (uint32_t)__builtin_ctzll(used);
    return (struct run){first, end - first};
}

/* The smallest run of at least n pages, else the longest there is. */
static struct run best_run(const struct sl_kv_pool *p, uint32_t n)
{
    struct run best = {0};
    for (struct run r = next_run(p, 0); r.n; r = next_run(p, r.first + r.n)) {
        bool better = best.n < n ? r.n > best.n : r.n >= n && r.n < best.n;
        if (better)
            best = r;
        if (best.n == n)
            break;
    }
    return best;
}

static void take_one(struct sl_kv_pool *p, uint32_t page, uint32_t *out)
{
    p->free_bits[page / WORD_PAGES] &= ~(UINT64_C(1) << (page % WORD_PAGES));
    p->refs[page] = 1;
    p->n_free--;
    *out = page;
}

enum sl_err sl_kv_pool_take(struct sl_kv_pool *p, uint32_t n, uint32_t after, uint32_t *out)
{
    if (n > p->n_free)
        return SL_ENOPAGES;
    uint32_t got = 0;
    if (after != SL_KV_NO_PAGE)
        while (got < n && is_free(p, after + 1 + got)) {
            take_one(p, after + 1 + got, &out[got]);
            got++;
        }
    while (got < n) {
        struct run r = best_run(p, n - got);
        for (uint32_t i = 0; i < r.n && got < n; i++, got++)
            take_one(p, r.first + i, &out[got]);
    }
    return SL_OK;
}

void sl_kv_pool_ref(struct sl_kv_pool *p, uint32_t page)
{
    SL_ASSERT(page < p->n_pages && p->refs[page] > 0);
    p->refs[page]++;
}

void sl_kv_pool_unref(struct sl_kv_pool *p, uint32_t page)
{
    SL_ASSERT(page < p->n_pages && p->refs[page] > 0);
    if (--p->refs[page])
        return;
    p->free_bits[page / WORD_PAGES] |= UINT64_C(1) << (page % WORD_PAGES);
    p->n_free++;
}

uint32_t sl_kv_pool_refs(const struct sl_kv_pool *p, uint32_t page)
{
    SL_ASSERT(page < p->n_pages);
    return p->refs[page];
}
