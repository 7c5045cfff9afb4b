/* kernels/cuda/emulation/cu_emu_memory.c - the emulated devices' memory: the host's, or guarded.
 *
 * Guarded, each device's is a stretch of addresses that nobody may touch (PROT_NONE) but while that device runs
 * something, and one device runs at a time: a kernel that reads another's memory dies as the host does. It is given
 * out from front to end and taken back as a whole, when the last of it was freed: a test opens a device, and closes
 * it. While one thread has it open it is open for all, so a stray access of the host beside a kernel goes unseen; one
 * outside, or in a test of one thread, never does. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/alloc_guard.h"
#include "common/base/mem.h"
#include "kernels/cuda/emulation/cu_emu.h"

#define ARENA_BYTES ((size_t)4 << 30) /* of addresses */
#define ALIGN       ((size_t)256)     /* as cudaMalloc gives */

struct arena {
    unsigned char *base; /* set once */
    size_t used, n_live;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* Under the lock. */
static bool asked, on;
static struct arena arenas[CU_EMU_DEVICES];
static unsigned running, n_running; /* the device that runs, and how many threads let it */
static uint64_t next_turn, turn;    /* threads come in as they came: none waits for ever */

static void protect(const struct arena *a, int how)
{
    if (a->base && a->used && mprotect(a->base, a->used, how) != 0)
        abort();
}

/* Under the lock. */
static bool guarded(void)
{
    if (!asked)
        on = getenv("CU_EMU_GUARD") != NULL;
    asked = true;
    return on;
}

void cu_emu_guard(bool guard)
{
    pthread_mutex_lock(&lock);
    asked = true;
    on = guard;
    pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static int device_of(const void *p)
{
    const unsigned char *at = p;
    for (unsigned i = 0; i < CU_EMU_DEVICES; i++)
        if (arenas[i].base && at >= arenas[i].base && at < arenas[i].base + ARENA_BYTES)
            return (int)i;
    return -1;
}

int cu_emu_device_of(const void *p)
{
    pthread_mutex_lock(&lock);
    int device = device_of(p);
    pthread_mutex_unlock(&lock);
    return device;
}

void cu_emu_memory_open(unsigned device)
{
    pthread_mutex_lock(&lock);
    for (uint64_t mine = next_turn++; turn != mine || (n_running > 0 && running != device);)
        pthread_cond_wait(&changed, &lock);
    turn++;
    running = device;
    if (n_running++ == 0)
        protect(&arenas[device], PROT_READ | PROT_WRITE);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void cu_emu_memory_close(void)
{
    pthread_mutex_lock(&lock);
    if (--n_running == 0)
        protect(&arenas[running], PROT_NONE);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Under the lock. What was freed is the kernel's again, so all is zero. */
static void *arena_alloc(unsigned device, size_t bytes)
{
    struct arena *a = &arenas[device];
    bytes = (bytes + ALIGN - 1) & ~(ALIGN - 1);
    if (!a->base) {
        void *p = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        a->base = p == MAP_FAILED ? NULL : p;
    }
    if (!a->base || bytes > ARENA_BYTES - a->used)
        return NULL;
    void *p = a->base + a->used;
    a->used += bytes;
    a->n_live++;
    if (n_running && running == device)
        protect(a, PROT_READ | PROT_WRITE);
    return p;
}

void *cu_emu_own(size_t bytes)
{
    const char *phase = sl_alloc_guard_pause();
    void *p = sl_try_alloc(bytes ? bytes : 1);
    if (p)
        memset(p, 0, bytes);
    sl_alloc_guard_on(phase);
    return p;
}

void *cu_emu_alloc(unsigned device, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool in_arena = guarded();
    void *p = in_arena ? arena_alloc(device, bytes) : NULL;
    pthread_mutex_unlock(&lock);
    /* Exactly as large as asked for, so that AddressSanitizer sees a kernel that goes beyond. */
    return in_arena ? p : cu_emu_own(bytes);
}

void cu_emu_free(void *p)
{
    pthread_mutex_lock(&lock);
    int device = device_of(p);
    if (device >= 0 && --arenas[device].n_live == 0) {
        struct arena *a = &arenas[device];
        protect(a, PROT_NONE);
        if (madvise(a->base, a->used, MADV_DONTNEED) != 0)
            abort();
        a->used = 0;
    }
    pthread_mutex_unlock(&lock);
    if (device < 0)
        sl_free(p);
}

static void copy_rows(char *dst, size_t dst_stride, const char *src, size_t src_stride, size_t bytes,
                      size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(dst + i * dst_stride, src + i * src_stride, bytes);
}

/* One side after the other: two devices are never open at once. */
void cu_emu_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t bytes,
                      size_t n)
{
    int to = cu_emu_device_of(dst), from = cu_emu_device_of(src);
    char *between = cu_emu_own(bytes * n);
    SL_ASSERT(between);
    if (from >= 0)
        cu_emu_memory_open((unsigned)from);
    copy_rows(between, bytes, src, src_stride, bytes, n);
    if (from >= 0)
        cu_emu_memory_close();
    if (to >= 0)
        cu_emu_memory_open((unsigned)to);
    copy_rows(dst, dst_stride, between, bytes, bytes, n);
    if (to >= 0)
        cu_emu_memory_close();
    sl_free(between);
}
