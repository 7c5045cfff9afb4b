/* common/base/mem_huge.c - memory in huge pages.
 *
 * Large pieces are mappings of their own: whole huge pages, and small ones for the rest behind the last. What
 * is smaller than a few huge pages would waste most of its last one, and a model has hundreds of such
 * matrices and vectors; they are cut off slabs one after the other. A slab is given back when its last piece
 * is freed, and freed room is never cut again, so every piece is zero as it comes from the kernel. Slabs are
 * aligned to their size, so that a piece finds its slab. */
#include "common/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES  ((size_t)2 << 20)
#define SMALL_PAGE_BYTES ((size_t)4096)
#define SLAB_BYTES       ((size_t)64 << 20)
/* A vector loop may read so far behind its last element. */
#define OVERREAD_BYTES ((size_t)64)
#ifdef __SANITIZE_ADDRESS__
#define PIECE_MAX_BYTES ((size_t)0) /* a neighbour in a slab would hide what runs over an end */
#else
#define PIECE_MAX_BYTES ((size_t)8 << 20)
#endif

struct slab {
    size_t used, n_pieces;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab *current; /* under lock: where the next piece is cut off */
static atomic_size_t total;

/* Rounded up to whole small pages; 0 when that overflows. */
static size_t mapped_size(size_t bytes)
{
    if (bytes > SIZE_MAX - OVERREAD_BYTES - SLAB_BYTES)
        return 0;
    return (bytes + OVERREAD_BYTES + SMALL_PAGE_BYTES - 1) & ~(SMALL_PAGE_BYTES - 1);
}

static void *map_aligned(size_t size, size_t align)
{
    /* more than needed, then the ends that are not aligned are given back */
    char *raw =
        mmap(NULL, size + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    size_t head = (align - (uintptr_t)raw % align) % align;
    char *p = raw + head;
    if (head)
        munmap(raw, head);
    if (align - head)
        munmap(p + size, align - head);
    madvise(p, size, MADV_HUGEPAGE); /* a wish: without it the memory is only slower */
    return p;
}

/* Under lock. */
static void slab_unref(struct slab *s)
{
    if (--s->n_pieces == 0 && s != current)
        munmap(s, SLAB_BYTES);
}

static void *cut_piece(size_t size)
{
    void *p = NULL;
    pthread_mutex_lock(&lock);
    if (!current || current->used + size > SLAB_BYTES) {
        struct slab *fresh = map_aligned(SLAB_BYTES, SLAB_BYTES), *old = current;
        if (!fresh)
            goto unlock;
        fresh->used = SMALL_PAGE_BYTES; /* behind this header */
        current = fresh;
        if (old && old->n_pieces == 0)
            munmap(old, SLAB_BYTES);
    }
    p = (char *)current + current->used;
    current->used += size;
    current->n_pieces++;
unlock:
    pthread_mutex_unlock(&lock);
    return p;
}

static void give_back(void *p, size_t size)
{
    if (size > PIECE_MAX_BYTES) {
        munmap(p, size);
        return;
    }
    pthread_mutex_lock(&lock);
    slab_unref((struct slab *)((uintptr_t)p & ~(uintptr_t)(SLAB_BYTES - 1)));
    pthread_mutex_unlock(&lock);
}

bool sl_huge_touch(void *p, size_t bytes)
{
    char *first = (char *)((uintptr_t)p & ~(uintptr_t)(SMALL_PAGE_BYTES - 1));
    size_t size = (size_t)((char *)p + bytes - first);
#ifdef MADV_POPULATE_WRITE
    if (madvise(first, (size + SMALL_PAGE_BYTES - 1) & ~(SMALL_PAGE_BYTES - 1), MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL) /* EINVAL: a kernel before 5.14 */
        return false;
#endif
    for (size_t i = 0; i < size; i += SMALL_PAGE_BYTES) {
        /* at once, since others may write there */
        atomic_fetch_or_explicit((_Atomic char *)(first + i), 0, memory_order_relaxed);
    }
    return true;
}

void *sl_huge_alloc(size_t bytes, bool prefault)
{
    sl_alloc_guard_check(bytes);
    size_t size = mapped_size(bytes);
    if (size == 0)
        return NULL;
    void *p = size > PIECE_MAX_BYTES ? map_aligned(size, HUGE_PAGE_BYTES) : cut_piece(size);
    if (p && prefault && !sl_huge_touch(p, bytes ? bytes : 1)) {
        give_back(p, size);
        return NULL;
    }
    if (p)
        atomic_fetch_add_explicit(&total, size, memory_order_relaxed);
    return p;
}

void sl_huge_free(void *p, size_t bytes)
{
    if (!p)
        return;
    size_t size = mapped_size(bytes);
    atomic_fetch_sub_explicit(&total, size, memory_order_relaxed);
    give_back(p, size);
}

size_t sl_huge_total(void)
{
    return atomic_load_explicit(&total, memory_order_relaxed);
}
