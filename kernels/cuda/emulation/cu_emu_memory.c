/* kernels/cuda/emulation/cu_emu_memory.c - the emulated device's memory: the host's, or guarded.
 *
 * Guarded memory is one stretch of addresses that nobody may touch (PROT_NONE) but while the device runs something. It
 * is given out from front to end and taken back as a whole, when the last of it was freed: a test opens a device, and
 * closes it. While one thread has it open it is open for all, so a stray access beside a kernel goes unseen; one
 * outside, or in a test of one thread, never does. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/mem.h"
#include "kernels/cuda/emulation/cu_emu.h"

#define ARENA_BYTES ((size_t)4 << 30) /* of addresses */
#define ALIGN       ((size_t)256)     /* as cudaMalloc gives */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool asked, on;
    unsigned char *base;
    size_t used, n_live;
    unsigned n_open;
} arena; /* under lock; base is set once */

static void protect(int how)
{
    if (arena.base && arena.used && mprotect(arena.base, arena.used, how) != 0)
        abort();
}

/* Under the lock. */
static bool guarded(void)
{
    if (!arena.asked)
        arena.on = getenv("CU_EMU_GUARD") != NULL;
    arena.asked = true;
    return arena.on;
}

void cu_emu_guard(bool on)
{
    pthread_mutex_lock(&lock);
    arena.asked = true;
    arena.on = on;
    pthread_mutex_unlock(&lock);
}

bool cu_emu_is_device(const void *p)
{
    const unsigned char *at = p;
    pthread_mutex_lock(&lock);
    bool is = arena.base && at >= arena.base && at < arena.base + ARENA_BYTES;
    pthread_mutex_unlock(&lock);
    return is;
}

void cu_emu_memory_open(void)
{
    pthread_mutex_lock(&lock);
    if (arena.n_open++ == 0)
        protect(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&lock);
}

void cu_emu_memory_close(void)
{
    pthread_mutex_lock(&lock);
    if (--arena.n_open == 0)
        protect(PROT_NONE);
    pthread_mutex_unlock(&lock);
}

/* Under the lock. What was freed is the kernel's again, so all is zero. */
static void *arena_alloc(size_t bytes)
{
    bytes = (bytes + ALIGN - 1) & ~(ALIGN - 1);
    if (!arena.base) {
        void *p = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        arena.base = p == MAP_FAILED ? NULL : p;
    }
    if (!arena.base || bytes > ARENA_BYTES - arena.used)
        return NULL;
    void *p = arena.base + arena.used;
    arena.used += bytes;
    arena.n_live++;
    if (arena.n_open)
        protect(PROT_READ | PROT_WRITE);
    return p;
}

void *cu_emu_alloc(size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool in_arena = guarded();
    void *p = in_arena ? arena_alloc(bytes) : NULL;
    pthread_mutex_unlock(&lock);
    /* Exactly as large as asked for, so that AddressSanitizer sees a kernel that goes beyond. */
    if (!in_arena && (p = sl_try_alloc(bytes ? bytes : 1)) != NULL)
        memset(p, 0, bytes);
    return p;
}

void cu_emu_free(void *p)
{
    if (!cu_emu_is_device(p)) {
        sl_free(p);
        return;
    }
    pthread_mutex_lock(&lock);
    if (--arena.n_live == 0) {
        protect(PROT_NONE);
        if (madvise(arena.base, arena.used, MADV_DONTNEED) != 0)
            abort();
        arena.used = 0;
    }
    pthread_mutex_unlock(&lock);
}
