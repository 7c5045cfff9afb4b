/* common/base/mem.h - all memory comes from here.
 *
 * sl_xalloc family: for sizes we choose; never NULL, the process dies with a clear line when there is none.
 * sl_try_alloc: for sizes an outsider chooses; may be NULL. Everything from either is freed by sl_free.
 * Arena: many small things with one lifetime (one per request in the router).
 * Guard: while on in this thread, an allocation through this file aborts in debug builds (inside an engine
 * step). */
#ifndef SLUICE_COMMON_BASE_MEM_H
#define SLUICE_COMMON_BASE_MEM_H

#include <stdint.h>
#include "common/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

void *sl_xalloc(size_t bytes);            /* uninitialised */
void *sl_xcalloc(size_t n, size_t bytes); /* zeroed; overflow dies */
void *sl_xrealloc(void *p, size_t bytes);
void *sl_xrealloc_array(void *p, size_t n, size_t bytes); /* overflow dies */
char *sl_xstrdup(const char *s);
char *sl_xstrndup(const char *s, size_t n);
void *sl_xmemdup(const void *p, size_t n);
char *sl_xasprintf(const char *fmt, ...) SL_PRINTF(1, 2);
void *sl_try_alloc(size_t bytes);
void sl_free(void *p); /* takes NULL */

/* Anonymous zeroed memory in huge pages where the kernel gives them (madvise), aligned to a page. NULL when
 * there is none. Give back with the same size. prefault touches every page now: the first touch is slow. Any
 * thread. */
void *sl_huge_alloc(size_t bytes, bool prefault);
void sl_huge_free(void *p, size_t bytes);
/* Touches every page of a part of a piece, whatever it holds, also while others use it; false when there is
 * no memory for it. */
SL_MUST_CHECK bool sl_huge_touch(void *p, size_t bytes);
/* Bytes of all pieces of this process. */
size_t sl_huge_total(void);

struct sl_arena; /* opaque */
/* max_bytes bounds the sum of all allocations. */
struct sl_arena *sl_arena_new(size_t max_bytes);
void sl_arena_ref(struct sl_arena *a);  /* one owner more; what is in it is then only read */
void sl_arena_free(struct sl_arena *a); /* takes NULL; the last owner's frees all that is in it */
void *sl_arena_alloc(struct sl_arena *a, size_t bytes); /* zeroed, 16-byte aligned; NULL past max_bytes */
char *sl_arena_strndup(struct sl_arena *a, const char *s, size_t n); /* NULL past max_bytes */

/* Before the first thread: what the process holds stays near what it uses. Threads share a few heaps instead of each
 * growing one of its own to its own peak, which with messages that are freed by another thread than allocates them goes
 * on for hours; and large blocks go back to the system when they are freed, where glibc would from then on take blocks
 * of that size from a heap, and leave holes of them. */
void sl_mem_bound_heaps(void);
/* Free memory of all heaps goes back to the system: 0.2 ms a MiB, in which nobody gets memory from the heap that is
 * walked. mem_trim.h says when. */
void sl_mem_give_back(void);

void sl_alloc_guard_on(const char *phase);
void sl_alloc_guard_off(void);
void sl_alloc_guard_check(size_t bytes); /* aborts while the guard is on: for allocators */

#ifdef __cplusplus
}
#endif
#endif
