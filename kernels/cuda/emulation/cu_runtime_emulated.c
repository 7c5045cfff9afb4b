/* kernels/cuda/emulation/cu_runtime_emulated.c - the device behind cu_runtime.h, without one.
 *
 * Nothing runs before cu_sync: kernels and copies wait in a queue. Host memory that the backend changes too
 * early, or reads before it waits, then shows as a wrong result, as on a device that is late. Streams run only as
 * far as somebody waits for them, or asks twice whether they got there; in the reverse schedule whoever waits for one
 * first lets all others of its thread run to their ends, so that what should join a stream and does not shows in one
 * of the two. A graph is a list of commands.
 *
 * What a library queues (cu_emu_call) may wait for other streams; each then has to be waited for by its own thread. */
#include "kernels/cuda/cu_runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/list.h"
#include "common/base/mem.h"
#include "kernels/cuda/emulation/cu_emu.h"

/* Few, so that lists of work are short and unequal in tests. */
#define MULTIPROCESSORS 3
/* A stand-in: what a small card has. */
#define MEMORY_FREE ((size_t)8 << 30)

struct command {
    struct cu_launch launch; /* name NULL: a copy, a call, a graph or a join */
    void *dst;
    const void *src;
    size_t bytes, dst_stride, src_stride, n; /* n runs of bytes */
    void *owned;                             /* bytes taken at the call: arguments or what is uploaded */
    void (*call)(const void *arg);
    const struct cu_graph *graph;
    struct cu_stream *join; /* wait until it has run join_at commands */
    uint64_t join_at;
};

struct commands {
    struct command *all;
    size_t n, capacity;
};

struct cu_stream {
    struct sl_list node; /* in streams */
    pthread_t owner;     /* who queued last */
    unsigned device;
    struct commands queue;
    size_t head;           /* of the queue: what runs next */
    uint64_t n_run;        /* since it was opened */
    struct cu_graph *into; /* being captured, or NULL */
    bool spoiled;
};

struct cu_graph {
    struct commands recorded;
};

struct cu_event {
    struct cu_stream *stream; /* NULL = never recorded */
    uint64_t at;
    bool asked;
};

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sl_list streams = {&streams, &streams};
static _Thread_local bool waiting;
static atomic_uint captures_to_fail;
static atomic_bool captures_are_refused;

void cu_emu_fail_captures(unsigned n, bool refused)
{
    atomic_store(&captures_are_refused, refused);
    atomic_store(&captures_to_fail, n);
}

const char *cu_missing(void)
{
    return NULL;
}

unsigned cu_devices(void)
{
    return CU_EMU_DEVICES;
}

enum sl_err cu_stream_open(unsigned device, struct cu_stream **out, struct sl_why *why)
{
    if (device >= CU_EMU_DEVICES)
        return sl_why_set(why, SL_EDEVICE, "There is no emulated device %u.", device);
    *out = sl_xcalloc(1, sizeof **out);
    (*out)->device = device;
    (*out)->owner = pthread_self();
    pthread_mutex_lock(&streams_lock);
    sl_list_add_tail(&streams, &(*out)->node);
    pthread_mutex_unlock(&streams_lock);
    return SL_OK;
}

void cu_stream_use(struct cu_stream *s)
{
    (void)s;
}

void cu_reach(struct cu_stream *s, struct cu_stream *other)
{
    (void)s, (void)other;
}

void cu_stream_close(struct cu_stream *s)
{
    if (!s)
        return;
    cu_sync(s);
    pthread_mutex_lock(&streams_lock);
    sl_list_remove(&s->node);
    pthread_mutex_unlock(&streams_lock);
    sl_free(s->queue.all);
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
    return s;
}

unsigned cu_emu_stream_device(const void *stream)
{
    return ((const struct cu_stream *)stream)->device;
}

void *cu_alloc(struct cu_stream *s, size_t bytes)
{
    return cu_emu_alloc(s->device, bytes);
}

void *cu_alloc_pinned(struct cu_stream *s, size_t bytes)
{
    (void)s;
    return cu_emu_own(bytes);
}

static void *own(size_t bytes)
{
    void *p = cu_emu_own(bytes);
    SL_ASSERT(p);
    return p;
}

static void *own_copy(const void *src, size_t bytes)
{
    return memcpy(own(bytes), src, bytes);
}

static bool refused(struct cu_stream *s)
{
    s->spoiled |= s->into != NULL;
    return s->into != NULL;
}

void cu_free(struct cu_stream *s, void *p)
{
    cu_sync(s);
    cu_emu_free(p);
}

static void add(struct commands *l, const struct command *c)
{
    if (l->n == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 64;
        struct command *all = own(l->capacity * sizeof *all);
        if (l->n)
            memcpy(all, l->all, l->n * sizeof *all);
        sl_free(l->all);
        l->all = all;
    }
    l->all[l->n++] = *c;
}

static void queue(struct cu_stream *s, const struct command *c)
{
    if (!pthread_equal(s->owner, pthread_self())) {
        pthread_mutex_lock(&streams_lock);
        s->owner = pthread_self();
        pthread_mutex_unlock(&streams_lock);
    }
    add(s->into ? &s->into->recorded : &s->queue, c);
}

void cu_upload(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    if (refused(s))
        return;
    struct command c = {.dst = dst, .bytes = bytes, .n = 1, .owned = own_copy(src, bytes)};
    c.src = c.owned;
    queue(s, &c);
}

void cu_download(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    if (!refused(s))
        queue(s, &(struct command){.dst = dst, .src = src, .bytes = bytes, .n = 1});
}

void cu_copy_pinned(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    queue(s, &(struct command){.dst = dst, .src = src, .bytes = bytes, .n = 1});
}

void cu_copy_rows(struct cu_stream *s, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                  size_t bytes, size_t n)
{
    queue(s, &(struct command){.dst = dst,
                               .src = src,
                               .bytes = bytes,
                               .dst_stride = dst_stride,
                               .src_stride = src_stride,
                               .n = n});
}

bool cu_emu_is_capturing(const void *stream)
{
    return ((const struct cu_stream *)stream)->into != NULL;
}

void cu_emu_call(void *stream, void (*fn)(const void *arg), const void *arg, size_t bytes)
{
    queue(stream, &(struct command){.call = fn, .owned = own_copy(arg, bytes)});
}

void cu_launch(struct cu_stream *s, const struct cu_launch *l)
{
    if (l->grid_x == 0 || l->grid_y == 0)
        return;
    queue(s, &(struct command){.launch = *l, .owned = own_copy(l->args, l->args_bytes)});
}

static void run_until(struct cu_stream *s, uint64_t at);

/* Between the device and the host, or, where the hardware does it, another device. */
static void copy(const struct cu_stream *s, const struct command *c)
{
    const int own = (int)s->device, to = cu_emu_device_of(c->dst), from = cu_emu_device_of(c->src);
    if ((to >= 0 && to != own) || (from >= 0 && from != own)) {
        cu_emu_memory_close();
        cu_emu_copy_rows(c->dst, c->dst_stride, c->src, c->src_stride, c->bytes, c->n);
        cu_emu_memory_open(s->device);
        return;
    }
    for (size_t i = 0; i < c->n; i++)
        memcpy((char *)c->dst + i * c->dst_stride, (const char *)c->src + i * c->src_stride, c->bytes);
}

/* With the stream's device open. */
static void run(const struct cu_stream *s, const struct command *c)
{
    const struct cu_launch *l = &c->launch;
    if (c->graph) {
        for (size_t i = 0; i < c->graph->recorded.n; i++)
            run(s, &c->graph->recorded.all[i]);
        return;
    }
    if (c->join || c->call) {
        cu_emu_memory_close();
        if (c->join)
            run_until(c->join, c->join_at);
        else
            c->call(c->owned);
        cu_emu_memory_open(s->device);
        return;
    }
    if (!l->name) {
        copy(s, c);
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

static void run_until(struct cu_stream *s, uint64_t at)
{
    if (s->n_run >= at)
        return;
    cu_emu_memory_open(s->device);
    while (s->n_run < at) {
        struct command c = s->queue.all[s->head++];
        run(s, &c);
        sl_free(c.owned);
        s->n_run++;
    }
    cu_emu_memory_close();
    if (s->head == s->queue.n)
        s->head = s->queue.n = 0;
}

static uint64_t n_queued(const struct cu_stream *s)
{
    return s->n_run + (s->queue.n - s->head);
}

/* One of this thread's that has something to run, other than s. */
static struct cu_stream *other_stream(const struct cu_stream *s)
{
    struct cu_stream *found = NULL;
    pthread_mutex_lock(&streams_lock);
    SL_LIST_FOREACH (n, &streams) {
        struct cu_stream *other = SL_CONTAINER_OF(n, struct cu_stream, node);
        if (other != s && pthread_equal(other->owner, pthread_self()) && other->head < other->queue.n)
            found = other;
    }
    pthread_mutex_unlock(&streams_lock);
    return found;
}

static void wait_for(struct cu_stream *s, uint64_t at)
{
    if (cu_emu_schedule() == CU_EMU_REVERSE && s->n_run < at && !waiting) {
        waiting = true;
        for (struct cu_stream *other; (other = other_stream(s)) != NULL;)
            run_until(other, n_queued(other));
        waiting = false;
    }
    run_until(s, at);
}

void cu_sync(struct cu_stream *s)
{
    if (!refused(s))
        wait_for(s, n_queued(s));
}

struct cu_event *cu_event_new(struct cu_stream *s)
{
    (void)s;
    return own(sizeof(struct cu_event));
}

void cu_event_free(struct cu_event *e)
{
    sl_free(e);
}

void cu_event_record(struct cu_event *e, struct cu_stream *s)
{
    *e = (struct cu_event){.stream = s, .at = n_queued(s)};
}

void cu_event_join(const struct cu_event *e, struct cu_stream *s)
{
    if (e->stream)
        queue(s, &(struct command){.join = e->stream, .join_at = e->at});
}

int cu_event_done(struct cu_event *e)
{
    if (e->asked)
        cu_event_wait(e);
    e->asked = true;
    return !e->stream || e->stream->n_run >= e->at;
}

void cu_event_wait(struct cu_event *e)
{
    if (e->stream)
        wait_for(e->stream, e->at);
}

bool cu_capture_begin(struct cu_stream *s)
{
    unsigned left = atomic_load(&captures_to_fail);
    while (left > 0 && !atomic_compare_exchange_weak(&captures_to_fail, &left, left - 1))
        ;
    if (left > 0 && atomic_load(&captures_are_refused))
        return false;
    s->into = own(sizeof *s->into);
    s->spoiled = left > 0;
    return true;
}

void cu_graph_free(struct cu_graph *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->recorded.n; i++)
        sl_free(g->recorded.all[i].owned);
    sl_free(g->recorded.all);
    sl_free(g);
}

struct cu_graph *cu_capture_end(struct cu_stream *s)
{
    struct cu_graph *g = s->into;
    s->into = NULL;
    if (!s->spoiled)
        return g;
    cu_graph_free(g);
    return NULL;
}

void cu_graph_launch(struct cu_stream *s, struct cu_graph *g)
{
    queue(s, &(struct command){.graph = g});
}
