/* common/kv/kv_prefix.c - one node per page of the pool, indexed by page id; a hash map from chain hash to
 * node.
 *
 * In use: a node's `busy` is 1 for references other than the cache's, plus the number of children that are
 * busy. busy == 0 says: nobody reads this page or one behind it, so it and all behind it can go. A change
 * climbs to the parent only when busy becomes or stops being 0, so a sequence that takes or drops its pages
 * pays a constant per page. evictable = cached nodes with busy == 0.
 *
 * A sequence may use a cached page without holding its ancestors (it computed equal pages itself while
 * another one cached them first): the climb covers that too.
 *
 * Victims: `idle` lists the leaves with busy == 0, oldest first. An evicted leaf often uncovers its parent,
 * which is as old as the leaf was, so insertion looks from the old end then and from the new end otherwise.
 *
 * Nothing is allocated here but inside the map. Rejected: a radix tree over tokens (variable edges and
 * splits, for hits below page size that transfer and sharing by page cannot use). */
#include "common/kv/kv_prefix.h"

#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/kv/kv_hash.h"

struct node {
    bool cached;
    uint32_t parent; /* page id, or SL_KV_NO_PAGE */
    uint32_t n_children, busy;
    uint64_t hash, salt, used; /* used: tick of the last use */
    struct sl_list idle;       /* in c->idle while an evictable leaf */
    struct sl_list newest;     /* in c->newest while cached */
};

struct sl_kv_prefix {
    struct sl_kv_pool *pool;
    uint32_t page_tokens, n_cached, n_evictable;
    uint64_t tick;
    struct node *nodes; /* [total pages] */
    int32_t *tokens;    /* [total pages, page_tokens] */
    struct sl_hashmap *by_hash;
    struct sl_list idle;   /* oldest first */
    struct sl_list newest; /* newest first */
};

struct sl_kv_prefix *sl_kv_prefix_new(struct sl_kv_pool *pool, uint32_t page_tokens)
{
    SL_ASSERT(page_tokens > 0);
    uint32_t n = sl_kv_pool_total_pages(pool);
    struct sl_kv_prefix *c = sl_xcalloc(1, sizeof *c);
    c->pool = pool;
    c->page_tokens = page_tokens;
    c->nodes = sl_xcalloc(n, sizeof *c->nodes);
    /* All of it is touched now, as the pages are: a node does not grow while its cache fills. */
    size_t tokens_bytes = (size_t)n * page_tokens * sizeof *c->tokens;
    c->tokens = sl_xalloc(tokens_bytes);
    memset(c->tokens, 0, tokens_bytes);
    c->by_hash = sl_hashmap_new();
    sl_hashmap_reserve(c->by_hash, n);
    sl_list_init(&c->idle);
    sl_list_init(&c->newest);
    for (uint32_t i = 0; i < n; i++) {
        sl_list_init(&c->nodes[i].idle);
        sl_list_init(&c->nodes[i].newest);
    }
    return c;
}

void sl_kv_prefix_free(struct sl_kv_prefix *c)
{
    if (!c)
        return;
    SL_LIST_FOREACH_SAFE (pos, next, &c->newest) {
        struct node *n = SL_CONTAINER_OF(pos, struct node, newest);
        sl_kv_pool_unref(c->pool, (uint32_t)(n - c->nodes));
    }
    sl_hashmap_free(c->by_hash);
    sl_free(c->tokens);
    sl_free(c->nodes);
    sl_free(c);
}

static uint32_t page_of(const struct sl_kv_prefix *c, const struct node *n)
{
    return (uint32_t)(n - c->nodes);
}

/* Puts an evictable leaf among the idle ones in order of last use. */
static void idle_add(struct sl_kv_prefix *c, struct node *n, bool from_old_end)
{
    struct sl_list *at;
    if (from_old_end) {
        for (at = c->idle.next; at != &c->idle; at = at->next)
            if (SL_CONTAINER_OF(at, struct node, idle)->used >= n->used)
                break;
    } else {
        for (at = c->idle.prev; at != &c->idle; at = at->prev)
            if (SL_CONTAINER_OF(at, struct node, idle)->used <= n->used)
                break;
        at = at->next;
    }
    sl_list_add_tail(at, &n->idle); /* before at */
}

static void set_busy(struct sl_kv_prefix *c, struct node *n)
{
    for (;;) {
        if (n->busy++)
            return;
        c->n_evictable--;
        sl_list_remove(&n->idle);
        if (n->parent == SL_KV_NO_PAGE)
            return;
        n = &c->nodes[n->parent];
    }
}

static void clear_busy(struct sl_kv_prefix *c, struct node *n)
{
    for (;;) {
        SL_ASSERT(n->busy > 0);
        if (--n->busy)
            return;
        c->n_evictable++;
        if (!n->n_children)
            idle_add(c, n, false);
        if (n->parent == SL_KV_NO_PAGE)
            return;
        n = &c->nodes[n->parent];
    }
}

void sl_kv_prefix_hold(struct sl_kv_prefix *c, uint32_t page)
{
    sl_kv_pool_ref(c->pool, page);
    struct node *n = &c->nodes[page];
    if (n->cached && sl_kv_pool_refs(c->pool, page) == 2)
        set_busy(c, n);
}

void sl_kv_prefix_drop(struct sl_kv_prefix *c, uint32_t page)
{
    sl_kv_pool_unref(c->pool, page);
    struct node *n = &c->nodes[page];
    if (!n->cached || sl_kv_pool_refs(c->pool, page) != 1)
        return;
    n->used = ++c->tick;
    clear_busy(c, n);
}

static bool holds(const struct sl_kv_prefix *c, const struct node *n, uint32_t parent,
                  const struct sl_kv_chain *chain, uint32_t i)
{
    return n->parent == parent && n->salt == chain->salt &&
           memcmp(&c->tokens[(size_t)page_of(c, n) * c->page_tokens],
                  &chain->tokens[(size_t)i * c->page_tokens], c->page_tokens * sizeof(int32_t)) == 0;
}

/* The node of chain page i under parent, or NULL; *taken: another prefix has this hash. */
static struct node *find(const struct sl_kv_prefix *c, const struct sl_kv_chain *chain, uint32_t i,
                         uint32_t parent, bool *taken)
{
    struct node *n = sl_hashmap_get_u64(c->by_hash, chain->hashes[i]);
    bool same = n && holds(c, n, parent, chain, i);
    *taken = n && !same;
    return same ? n : NULL;
}

uint32_t sl_kv_prefix_match(const struct sl_kv_prefix *c, const struct sl_kv_chain *chain)
{
    uint32_t parent = SL_KV_NO_PAGE;
    bool taken;
    for (uint32_t i = 0; i < chain->n_pages; i++) {
        const struct node *n = find(c, chain, i, parent, &taken);
        if (!n)
            return i;
        parent = page_of(c, n);
    }
    return chain->n_pages;
}

static void touch(struct sl_kv_prefix *c, struct node *n)
{
    n->used = ++c->tick;
    sl_list_remove(&n->newest);
    sl_list_add_head(&c->newest, &n->newest);
}

uint32_t sl_kv_prefix_take(struct sl_kv_prefix *c, const struct sl_kv_chain *chain, uint32_t *pages)
{
    uint32_t parent = SL_KV_NO_PAGE;
    bool taken;
    for (uint32_t i = 0; i < chain->n_pages; i++) {
        struct node *n = find(c, chain, i, parent, &taken);
        if (!n)
            return i;
        parent = pages[i] = page_of(c, n);
        sl_kv_prefix_hold(c, pages[i]);
        touch(c, n);
    }
    return chain->n_pages;
}

static void add(struct sl_kv_prefix *c, const struct sl_kv_chain *chain, uint32_t i, uint32_t parent,
                uint32_t page)
{
    struct node *n = &c->nodes[page];
    sl_kv_pool_ref(c->pool, page);
    n->cached = true;
    n->parent = parent;
    n->n_children = 0;
    n->busy = 0;
    n->hash = chain->hashes[i];
    n->salt = chain->salt;
    memcpy(&c->tokens[(size_t)page * c->page_tokens], &chain->tokens[(size_t)i * c->page_tokens],
           c->page_tokens * sizeof(int32_t));
    sl_hashmap_put_u64(c->by_hash, n->hash, n);
    c->n_cached++;
    c->n_evictable++;
    if (parent != SL_KV_NO_PAGE) {
        struct node *up = &c->nodes[parent];
        up->n_children++;
        sl_list_remove(&up->idle); /* no leaf any more */
    }
    touch(c, n);
    set_busy(c, n); /* the caller's reference */
}

void sl_kv_prefix_insert(struct sl_kv_prefix *c, const struct sl_kv_chain *chain, const uint32_t *pages)
{
    /* The caller's own cached page vouches for its way from the root: start behind the last one. */
    uint32_t i = chain->n_pages, parent = SL_KV_NO_PAGE;
    while (i > 0 && !c->nodes[pages[i - 1]].cached)
        i--;
    if (i > 0)
        parent = pages[i - 1];
    for (; i < chain->n_pages; i++) {
        bool taken;
        struct node *n = find(c, chain, i, parent, &taken);
        if (taken)
            return;
        if (!n)
            add(c, chain, i, parent, pages[i]);
        parent = n ? page_of(c, n) : pages[i];
    }
}

static void evict_one(struct sl_kv_prefix *c, struct node *n)
{
    uint32_t page = page_of(c, n);
    sl_list_remove(&n->idle);
    sl_list_remove(&n->newest);
    SL_ASSERT(sl_hashmap_del_u64(c->by_hash, n->hash) == n);
    n->cached = false;
    c->n_cached--;
    c->n_evictable--;
    if (n->parent != SL_KV_NO_PAGE) {
        struct node *up = &c->nodes[n->parent];
        if (--up->n_children == 0 && up->busy == 0)
            idle_add(c, up, true);
    }
    sl_kv_pool_unref(c->pool, page);
}

uint32_t sl_kv_prefix_evict(struct sl_kv_prefix *c, uint32_t n)
{
    uint32_t done = 0;
    for (; done < n && !sl_list_empty(&c->idle); done++)
        evict_one(c, SL_CONTAINER_OF(c->idle.next, struct node, idle));
    return done;
}

bool sl_kv_prefix_cached(const struct sl_kv_prefix *c, uint32_t page)
{
    return c->nodes[page].cached;
}

uint32_t sl_kv_prefix_cached_pages(const struct sl_kv_prefix *c)
{
    return c->n_cached;
}

uint32_t sl_kv_prefix_evictable_pages(const struct sl_kv_prefix *c)
{
    return c->n_evictable;
}

size_t sl_kv_prefix_newest(const struct sl_kv_prefix *c, uint64_t *out, size_t n)
{
    size_t got = 0;
    for (struct sl_list *pos = c->newest.next; pos != &c->newest && got < n; pos = pos->next)
        out[got++] = SL_CONTAINER_OF(pos, struct node, newest)->hash;
    return got;
}

enum sl_err sl_kv_prefix_check(const struct sl_kv_prefix *c, struct sl_why *why)
{
    uint32_t total = sl_kv_pool_total_pages(c->pool), n_cached = 0, n_evictable = 0, n_idle = 0,
             n_idle_real = 0;
    uint32_t *busy = sl_xcalloc(total, sizeof *busy), *children = sl_xcalloc(total, sizeof *children);
    enum sl_err err = SL_OK;
    for (uint32_t i = 0; i < total; i++) {
        const struct node *n = &c->nodes[i];
        if (!n->cached)
            continue;
        n_cached++;
        n_evictable += n->busy == 0;
        n_idle += n->busy == 0 && n->n_children == 0;
        busy[i] += sl_kv_pool_refs(c->pool, i) > 1;
        if (n->parent == SL_KV_NO_PAGE)
            continue;
        children[n->parent]++;
        busy[n->parent] += n->busy > 0;
    }
    for (const struct sl_list *pos = c->idle.next; pos != &c->idle; pos = pos->next)
        n_idle_real++;
    for (uint32_t i = 0; i < total && err == SL_OK; i++)
        if (c->nodes[i].cached && (busy[i] != c->nodes[i].busy || children[i] != c->nodes[i].n_children))
            err = sl_why_set(why, SL_EBUG, "cached page %u counts %u users and %u children, found %u and %u",
                             i, c->nodes[i].busy, c->nodes[i].n_children, busy[i], children[i]);
    if (err == SL_OK && (n_cached != c->n_cached || n_evictable != c->n_evictable || n_idle != n_idle_real))
        err = sl_why_set(why, SL_EBUG,
                         "prefix cache counts %u pages, %u evictable, %u idle leaves, found %u, %u, %u",
                         c->n_cached, c->n_evictable, n_idle_real, n_cached, n_evictable, n_idle);
    sl_free(children);
    sl_free(busy);
    return err;
}
