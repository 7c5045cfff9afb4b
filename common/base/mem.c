/* common/base/mem.c - the only caller of malloc.
 *
 * The alloc guard is a thread-local name of the phase in which nothing may be allocated; it is compiled in
 * where SL_ALLOC_GUARD is defined (Debug builds, see CMakeLists.txt). Freeing is never guarded.
 *
 * The arena is a chain of zeroed blocks that double from 4 KiB to 256 KiB; what does not fit a block of that
 * size gets one of its own. Its limit counts allocations rounded up to the alignment, so that many tiny ones
 * are bounded too. */
#include "common/base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/log.h"

#define HUGE_PAGE_BYTES   ((size_t)2 << 20)
#define SMALL_PAGE_BYTES  ((size_t)4096)
#define ARENA_ALIGN       ((size_t)16)
#define ARENA_FIRST_BYTES ((size_t)4096)
#define ARENA_BLOCK_MAX   ((size_t)256 << 10)

#ifdef SL_ALLOC_GUARD
static _Thread_local const char *guard_phase;

static void check_guard(size_t bytes)
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
#else
static void check_guard(size_t bytes)
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
    check_guard(bytes);
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
    check_guard(total);
    void *p = calloc(total ? total : 1, 1);
    if (!p)
        die(total);
    return p;
}

void *sl_xrealloc(void *p, size_t bytes)
{
    check_guard(bytes);
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

/* Rounded up to whole pages, huge ones from SL_HUGE_LEAST on; 0 when that overflows. */
static size_t huge_size(size_t bytes)
{
    if (bytes == 0)
        bytes = 1;
    if (bytes < SL_HUGE_LEAST)
        return (bytes + SMALL_PAGE_BYTES - 1) & ~(SMALL_PAGE_BYTES - 1);
    if (bytes > SIZE_MAX - 2 * HUGE_PAGE_BYTES)
        return 0;
    return (bytes + HUGE_PAGE_BYTES - 1) & ~(HUGE_PAGE_BYTES - 1);
}

static bool touch_all(char *p, size_t size)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(p, size, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL) /* EINVAL: a kernel before 5.14 */
        return false;
#endif
    for (size_t i = 0; i < size; i += SMALL_PAGE_BYTES)
        *(volatile char *)(p + i) = 0;
    return true;
}

static void *map_small(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void *map_huge(size_t size)
{
    /* one huge page more than needed, then the ends that are not aligned are given back */
    char *raw = mmap(NULL, size + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    size_t head = (HUGE_PAGE_BYTES - (uintptr_t)raw % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    char *p = raw + head;
    if (head)
        munmap(raw, head);
    munmap(p + size, HUGE_PAGE_BYTES - head);
    madvise(p, size, MADV_HUGEPAGE); /* a wish: without it the memory is only slower */
    return p;
}

void *sl_huge_alloc(size_t bytes, bool prefault)
{
    check_guard(bytes);
    size_t size = huge_size(bytes);
    if (size == 0)
        return NULL;
    void *p = bytes < SL_HUGE_LEAST ? map_small(size) : map_huge(size);
    if (!p)
        return NULL;
    if (prefault && !touch_all(p, size)) {
        munmap(p, size);
        return NULL;
    }
    return p;
}

void sl_huge_free(void *p, size_t bytes)
{
    if (p)
        munmap(p, huge_size(bytes));
}

struct arena_block {
    struct arena_block *next;
    size_t used, size; /* of the bytes behind this header */
};

struct sl_arena {
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
    a->max = round_up(max_bytes);
    a->next_block = ARENA_FIRST_BYTES;
    return a;
}

void sl_arena_free(struct sl_arena *a)
{
    if (!a)
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
    check_guard(size);
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
