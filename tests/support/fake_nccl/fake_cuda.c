/* tests/support/fake_nccl/fake_cuda.c - the CUDA driver's functions that nccl_load.h names, on host memory. */
#include "tests/support/fake_nccl/fake_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/transfer/nccl_load.h"

#define INVALID   1
#define NO_DEVICE 101 /* CUDA_ERROR_INVALID_DEVICE */
#define DEVICES   8

struct task {
    struct sl_list node;
    fake_task_fn *fn;
    void *arg;
};

struct stream {
    struct sl_list node;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct sl_list tasks;
    bool busy, stop;
};

struct event {
    atomic_int pending, refs;
};

struct memory {
    struct sl_list node;
    char *p;
    size_t bytes;
};

static pthread_mutex_t memory_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sl_list memories = {&memories, &memories};
static struct sl_list streams = {&streams, &streams}; /* under the same mutex */

void fake_misuse(const char *what)
{
    fprintf(stderr, "fake nccl: %s\n", what);
    abort();
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&s->mutex);
    while (!s->stop || !sl_list_empty(&s->tasks)) {
        if (sl_list_empty(&s->tasks)) {
            pthread_cond_wait(&s->changed, &s->mutex);
            continue;
        }
        struct task *t = SL_CONTAINER_OF(s->tasks.next, struct task, node);
        sl_list_remove(&t->node);
        s->busy = true;
        pthread_mutex_unlock(&s->mutex);
        t->fn(t->arg);
        sl_free(t);
        pthread_mutex_lock(&s->mutex);
        s->busy = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

void fake_stream_push(void *stream, fake_task_fn *fn, void *arg)
{
    struct stream *s = stream;
    struct task *t = sl_xcalloc(1, sizeof *t);
    t->fn = fn;
    t->arg = arg;
    pthread_mutex_lock(&s->mutex);
    sl_list_add_tail(&s->tasks, &t->node);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

bool fake_is_device(const void *p, size_t bytes)
{
    const char *at = p;
    bool found = false;
    pthread_mutex_lock(&memory_mutex);
    SL_LIST_FOREACH (n, &memories) {
        const struct memory *m = SL_CONTAINER_OF(n, struct memory, node);
        found |= at >= m->p && at < m->p + m->bytes && bytes <= (size_t)(m->p + m->bytes - at);
    }
    pthread_mutex_unlock(&memory_mutex);
    return found;
}

bool fake_is_stream(const void *stream)
{
    bool found = false;
    pthread_mutex_lock(&memory_mutex);
    SL_LIST_FOREACH (n, &streams)
        found |= stream == SL_CONTAINER_OF(n, struct stream, node);
    pthread_mutex_unlock(&memory_mutex);
    return found;
}

void fake_copy(void *dst, const void *src, size_t bytes)
{
    if (cu_emu_copy_rows)
        cu_emu_copy_rows(dst, bytes, src, bytes, bytes, 1);
    else
        memcpy(dst, src, bytes);
}

int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    (void)flags;
    return SL_CUDA_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < (cu_devices ? (int)cu_devices() : DEVICES) ? SL_CUDA_SUCCESS : NO_DEVICE;
}

static int contexts[DEVICES]; /* only their addresses are of use */
static _Thread_local int *current;

int fake_current_device(void)
{
    return current ? (int)(current - contexts) : -1;
}

int cuDevicePrimaryCtxRetain(void **c, int device);
int cuDevicePrimaryCtxRetain(void **c, int device)
{
    *c = &contexts[device];
    return SL_CUDA_SUCCESS;
}

int cuCtxSetCurrent(void *c);
int cuCtxSetCurrent(void *c)
{
    current = c;
    return SL_CUDA_SUCCESS;
}

int cuGetErrorString(int result, const char **text);
int cuGetErrorString(int result, const char **text)
{
    (void)result;
    *text = "an error of the fake";
    return SL_CUDA_SUCCESS;
}

int cuStreamCreate(void **out, unsigned flags);
int cuStreamCreate(void **out, unsigned flags)
{
    struct stream *s = sl_xcalloc(1, sizeof *s);
    if (!current || flags != SL_CUDA_NON_BLOCKING)
        fake_misuse("a stream was made without a context, or one that waits for others");
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    sl_list_init(&s->tasks);
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0)
        fake_misuse("no thread for a stream");
    pthread_mutex_lock(&memory_mutex);
    sl_list_add_tail(&streams, &s->node);
    pthread_mutex_unlock(&memory_mutex);
    *out = s;
    return SL_CUDA_SUCCESS;
}

int cuStreamDestroy_v2(void *stream);
int cuStreamDestroy_v2(void *stream)
{
    struct stream *s = stream;
    pthread_mutex_lock(&memory_mutex);
    sl_list_remove(&s->node);
    pthread_mutex_unlock(&memory_mutex);
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    sl_free(s);
    return SL_CUDA_SUCCESS;
}

int cuStreamSynchronize(void *stream);
int cuStreamSynchronize(void *stream)
{
    struct stream *s = stream;
    pthread_mutex_lock(&s->mutex);
    while (s->busy || !sl_list_empty(&s->tasks))
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return SL_CUDA_SUCCESS;
}

static void unref(struct event *e)
{
    if (atomic_fetch_sub(&e->refs, 1) == 1)
        sl_free(e);
}

int cuEventCreate(void **out, unsigned flags);
int cuEventCreate(void **out, unsigned flags)
{
    struct event *e = sl_xcalloc(1, sizeof *e);
    (void)flags;
    atomic_store(&e->refs, 1);
    *out = e;
    return SL_CUDA_SUCCESS;
}

int cuEventDestroy_v2(void *event);
int cuEventDestroy_v2(void *event)
{
    unref(event);
    return SL_CUDA_SUCCESS;
}

static void happen(void *arg)
{
    struct event *e = arg;
    atomic_fetch_sub(&e->pending, 1);
    unref(e);
}

int cuEventRecord(void *event, void *stream);
int cuEventRecord(void *event, void *stream)
{
    struct event *e = event;
    atomic_fetch_add(&e->refs, 1);
    atomic_fetch_add(&e->pending, 1);
    fake_stream_push(stream, happen, e);
    return SL_CUDA_SUCCESS;
}

int cuEventQuery(void *event);
int cuEventQuery(void *event)
{
    struct event *e = event;
    return atomic_load(&e->pending) > 0 ? SL_CUDA_NOT_READY : SL_CUDA_SUCCESS;
}

int cuMemAlloc_v2(sl_cuda_ptr *p, size_t bytes);
int cuMemAlloc_v2(sl_cuda_ptr *p, size_t bytes)
{
    struct memory *m = sl_xcalloc(1, sizeof *m);
    m->p = sl_xalloc(bytes);
    m->bytes = bytes;
    pthread_mutex_lock(&memory_mutex);
    sl_list_add_tail(&memories, &m->node);
    pthread_mutex_unlock(&memory_mutex);
    *p = (sl_cuda_ptr)(size_t)m->p;
    return SL_CUDA_SUCCESS;
}

int cuMemFree_v2(sl_cuda_ptr p);
int cuMemFree_v2(sl_cuda_ptr p)
{
    struct memory *found = NULL;
    pthread_mutex_lock(&memory_mutex);
    SL_LIST_FOREACH (n, &memories) {
        struct memory *m = SL_CONTAINER_OF(n, struct memory, node);
        if ((sl_cuda_ptr)(size_t)m->p == p)
            found = m;
    }
    if (found)
        sl_list_remove(&found->node);
    pthread_mutex_unlock(&memory_mutex);
    if (!found)
        return INVALID;
    sl_free(found->p);
    sl_free(found);
    return SL_CUDA_SUCCESS;
}

int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags);
int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    (void)p;
    (void)bytes;
    (void)flags;
    return SL_CUDA_SUCCESS;
}

int cuMemHostUnregister(void *p);
int cuMemHostUnregister(void *p)
{
    (void)p;
    return SL_CUDA_SUCCESS;
}

struct copy {
    char *dst;
    const char *src;
    size_t bytes;
};

static void run_copy(void *arg)
{
    struct copy *c = arg;
    fake_copy(c->dst, c->src, c->bytes);
    sl_free(c);
}

/* Memory of cuMemAlloc here is staging; the other side is the host's, or an emulated device's. */
int cuMemcpyAsync(sl_cuda_ptr dst, sl_cuda_ptr src, size_t bytes, void *stream);
int cuMemcpyAsync(sl_cuda_ptr dst, sl_cuda_ptr src, size_t bytes, void *stream)
{
    struct copy *c = sl_xcalloc(1, sizeof *c);
    *c = (struct copy){(void *)(size_t)dst, (const void *)(size_t)src, bytes};
    bool into = fake_is_device(c->dst, bytes), out = fake_is_device(c->src, bytes);
    if (into == out || fake_is_device(into ? c->src : c->dst, 1))
        fake_misuse("a copy does not go into staging or out of it");
    fake_stream_push(stream, run_copy, c);
    return SL_CUDA_SUCCESS;
}
