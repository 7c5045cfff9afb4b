/* common/base/mem.c - the only caller of malloc.
 *
 * The alloc guard is a thread-local name of the phase in which nothing may be allocated; it is compiled in
 * where SL_ALLOC_GUARD is defined (Debug builds, see CMakeLists.txt). Freeing is never guarded.
 *
 * The arena is a chain of zeroed blocks that double from 4 KiB to 256 KiB; what does not fit a block of that
 * size gets one of its own. Its limit counts allocations rounded up to the alignment, so that many tiny ones
 * are bounded too. */
#include "common/base/mem.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/alloc_guard.h"
#include "common/base/log.h"

#define HEAPS             4           /* of all threads; none of them allocates within a step */
#define LARGE_BYTES       (128 << 10) /* glibc's own first value */
#define ARENA_ALIGN       ((size_t)16)
#define ARENA_FIRST_BYTES ((size_t)4096)
#define ARENA_BLOCK_MAX   ((size_t)256 << 10)

void sl_mem_bound_heaps(void)
{
    /* a sanitizer's malloc has no such options */
    (void)mallopt(M_ARENA_MAX, HEAPS);
    (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, LARGE_BYTES);
}

void sl_mem_give_back(void)
{
    (void)malloc_trim(0);
}

#ifdef SL_ALLOC_GUARD
static _Thread_local const char *guard_phase;

void sl_alloc_guard_check(size_t bytes)
{
    if (!guard_phase)
        return;
    SL_ERROR("allocation where none is allowed phase=%s bytes=%zu", guard_phase, bytes);
    abort();
}

void sl_alloc_guard_on(const char *phase)
{
    guard_phase = phase;
}

void sl_alloc_guard_off(void)
{
    guard_phase = NULL;
}

const char *sl_alloc_guard_pause(void)
{
    const char *phase = guard_phase;
    guard_phase = NULL;
    return phase;
}
#else
void sl_alloc_guard_check(size_t bytes)
{
    (void)bytes;
}

void sl_alloc_guard_on(const char *phase)
{
    (void)phase;
}

void sl_alloc_guard_off(void)
{
}

const char *sl_alloc_guard_pause(void)
{
    return NULL;
}
#endif

SL_NORETURN static void die(size_t bytes)
{
    SL_ERROR("out of memory bytes=%zu", bytes);
    abort();
}

static size_t checked_product(size_t n, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n, bytes, &total)) {
        SL_ERROR("allocation size overflows n=%zu bytes=%zu", n, bytes);
        abort();
    }
    return total;
}

void *sl_try_alloc(size_t bytes)
{
    sl_alloc_guard_check(bytes);
    return malloc(bytes ? bytes : 1);
}

void *sl_xalloc(size_t bytes)
{
    void *p = sl_try_alloc(bytes);
    if (!p)
        die(bytes);
    return p;
}

void *sl_xcalloc(size_t n, size_t bytes)
{
    size_t total = checked_product(n, bytes);
    sl_alloc_guard_check(total);
    void *p = calloc(total ? total : 1, 1);
    if (!p)
        die(total);
    return p;
}

void *sl_xrealloc(void *p, size_t bytes)
{
    sl_alloc_guard_check(bytes);
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q)
        die(bytes);
    return q;
}

void *sl_xrealloc_array(void *p, size_t n, size_t bytes)
{
    return sl_xrealloc(p, checked_product(n, bytes));
}

void *sl_xmemdup(const void *p, size_t n)
{
    void *q = sl_xalloc(n);
    if (n)
        memcpy(q, p, n);
    return q;
}

char *sl_xstrndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *q = sl_xalloc(len + 1);
    memcpy(q, s, len);
    q[len] = '\0';
    return q;
}

char *sl_xstrdup(const char *s)
{
    return sl_xmemdup(s, strlen(s) + 1);
}

char *sl_xasprintf(const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    SL_ASSERT(n >= 0);
    char *s = sl_xalloc((size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

void sl_free(void *p)
{
    free(p);
}

struct arena_block {
    struct arena_block *next;
    size_t used, size; /* of the bytes behind this header */
};

struct sl_arena {
    atomic_uint owners;
    struct arena_block *blocks; /* the first one is filled; those of big allocations stand behind it */
    size_t taken, max;
    size_t next_block;
};

#define BLOCK_HEADER ((sizeof(struct arena_block) + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1))

static size_t round_up(size_t n)
{
    return n > SIZE_MAX - ARENA_ALIGN ? SIZE_MAX & ~(ARENA_ALIGN - 1)
                                      : (n + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
}

struct sl_arena *sl_arena_new(size_t max_bytes)
{
    struct sl_arena *a = sl_xcalloc(1, sizeof *a);
    atomic_init(&a->owners, 1);
    a->max = round_up(max_bytes);
    a->next_block = ARENA_FIRST_BYTES;
    return a;
}

void sl_arena_ref(struct sl_arena *a)
{
    atomic_fetch_add_explicit(&a->owners, 1, memory_order_relaxed);
}

void sl_arena_free(struct sl_arena *a)
{
    if (!a || atomic_fetch_sub_explicit(&a->owners, 1, memory_order_acq_rel) != 1)
        return;
    for (struct arena_block *b = a->blocks; b;) {
        struct arena_block *next = b->next;
        sl_free(b);
        b = next;
    }
    sl_free(a);
}

static struct arena_block *block_new(size_t size)
{
    if (size > SIZE_MAX - BLOCK_HEADER)
        return NULL;
    sl_alloc_guard_check(size);
    struct arena_block *b = calloc(1, BLOCK_HEADER + size);
    if (b)
        b->size = size;
    return b;
}

void *sl_arena_alloc(struct sl_arena *a, size_t bytes)
{
    size_t need = round_up(bytes ? bytes : 1);
    if (need > a->max - a->taken)
        return NULL;
    struct arena_block *b = a->blocks;
    if (!b || need > b->size - b->used) {
        bool alone = need > a->next_block / 2;
        b = block_new(alone ? need : a->next_block);
        if (!b)
            return NULL;
        if (alone && a->blocks) {
            /* behind the first, which has room left */
            b->next = a->blocks->next;
            a->blocks->next = b;
        } else {
            b->next = a->blocks;
            a->blocks = b;
        }
        if (!alone && a->next_block < ARENA_BLOCK_MAX)
            a->next_block *= 2;
    }
    void *p = (char *)b + BLOCK_HEADER + b->used;
    b->used += need;
    a->taken += need;
    return p;
}

char *sl_arena_strndup(struct sl_arena *a, const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *p = sl_arena_alloc(a, len + 1);
    if (p)
        memcpy(p, s, len);
    return p;
}
