/* kernels/cuda/emulation/cu_runtime_emulated.c - the device behind cu_runtime.h, without one.
 *
 * Nothing runs before cu_sync: kernels and copies wait in a queue. Host memory that the backend changes too
 * early, or reads before it waits, then shows as a wrong result, as on a device that is late. */
#include "kernels/cuda/cu_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/mem.h"
#include "kernels/cuda/emulation/cu_emu.h"

/* Few, so that lists of work are short and unequal in tests. */
#define MULTIPROCESSORS 3
/* A stand-in: what a small card has. */
#define MEMORY_FREE ((size_t)8 << 30)

struct command {
    struct cu_launch launch; /* name NULL: a copy */
    void *dst;
    const void *src;
    size_t bytes;
    void *owned; /* bytes taken at the call: the kernel's arguments or what is uploaded */
};

struct cu_stream {
    struct command *queue;
    size_t n, capacity;
};

const char *cu_missing(void)
{
    return NULL;
}

enum sl_err cu_stream_open(struct cu_stream **out, struct sl_why *why)
{
    (void)why;
    *out = sl_xcalloc(1, sizeof **out);
    return SL_OK;
}

void cu_stream_close(struct cu_stream *s)
{
    if (!s)
        return;
    cu_sync(s);
    sl_free(s->queue);
    sl_free(s);
}

unsigned cu_multiprocessors(const struct cu_stream *s)
{
    (void)s;
    return MULTIPROCESSORS;
}

size_t cu_memory_free(const struct cu_stream *s)
{
    (void)s;
    return MEMORY_FREE;
}

void *cu_native_stream(struct cu_stream *s)
{
    (void)s;
    return NULL;
}

/* Exactly as large as asked for, so that AddressSanitizer sees a kernel that goes beyond. */
void *cu_alloc(struct cu_stream *s, size_t bytes)
{
    (void)s;
    void *p = sl_try_alloc(bytes ? bytes : 1);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void *cu_alloc_shared(struct cu_stream *s, size_t bytes)
{
    return cu_alloc(s, bytes);
}

void *cu_alloc_pinned(struct cu_stream *s, size_t bytes)
{
    return cu_alloc(s, bytes);
}

void cu_free(struct cu_stream *s, void *p)
{
    cu_sync(s);
    sl_free(p);
}

static struct command *queue(struct cu_stream *s, const struct command *c)
{
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->queue = sl_xrealloc_array(s->queue, s->capacity, sizeof *s->queue);
    }
    s->queue[s->n] = *c;
    return &s->queue[s->n++];
}

void cu_upload(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    struct command c = {.dst = dst, .bytes = bytes, .owned = sl_xmemdup(src, bytes)};
    c.src = c.owned;
    queue(s, &c);
}

void cu_download(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    queue(s, &(struct command){.dst = dst, .src = src, .bytes = bytes});
}

void cu_copy_pinned(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    queue(s, &(struct command){.dst = dst, .src = src, .bytes = bytes});
}

void cu_launch(struct cu_stream *s, const struct cu_launch *l)
{
    if (l->grid_x == 0 || l->grid_y == 0)
        return;
    struct command *c = queue(s, &(struct command){.launch = *l});
    c->owned = sl_xmemdup(l->args, l->args_bytes);
}

static void run(const struct command *c)
{
    const struct cu_launch *l = &c->launch;
    if (!l->name) {
        memcpy(c->dst, c->src, c->bytes);
        return;
    }
    void (*kernel)(const void *);
    memcpy(&kernel, &l->kernel, sizeof kernel); /* C has no cast from an object's address */
    const char *fault = cu_emu_run(kernel, c->owned, (struct cu_emu_dim){l->grid_x, l->grid_y}, l->n_threads,
                                   l->shared_bytes);
    if (fault) {
        fprintf(stderr, "kernel %s, %s\n", l->name, fault);
        abort();
    }
}

void cu_sync(struct cu_stream *s)
{
    for (size_t i = 0; i < s->n; i++) {
        run(&s->queue[i]);
        sl_free(s->queue[i].owned);
    }
    s->n = 0;
}
