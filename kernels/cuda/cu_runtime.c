/* kernels/cuda/cu_runtime.c - the device behind cu_runtime.h: CUDA's runtime. */
#include "kernels/cuda/cu_runtime.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/base/mem.h"

/* A block may use this much shared memory without asking; more must be allowed per kernel. */
#define SHARED_BYTES_UNASKED ((size_t)48 << 10)

struct cu_stream {
    cudaStream_t stream;
    int device, multiprocessors;
    bool capturing, spoiled; /* spoiled: what is captured cannot be used */
};

struct cu_event {
    cudaEvent_t event;
};

struct cu_graph {
    cudaGraphExec_t exec;
};

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    SL_ERROR(
        "the CUDA device failed; this process ends, start it again and look at nvidia-smi doing=%s error=%s",
        what, cudaGetErrorString(e));
    abort();
}

/* An error while a graph is captured costs the graph, not the process. */
static void check_queued(struct cu_stream *s, cudaError_t e, const char *what)
{
    if (!s->capturing)
        check(e, what);
    else if (e != cudaSuccess)
        s->spoiled = true;
}

/* True, and the capture is spoiled, when the stream captures: this cannot be recorded. */
static bool refused(struct cu_stream *s)
{
    s->spoiled |= s->capturing;
    return s->capturing;
}

const char *cu_missing(void)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0)
        return NULL;
    return e == cudaSuccess ? "no CUDA device is there" : cudaGetErrorString(e);
}

unsigned cu_devices(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? (unsigned)n : 0;
}

enum sl_err cu_stream_open(unsigned device, struct cu_stream **out, struct sl_why *why)
{
    cudaStream_t stream;
    int n = 0;
    cudaError_t e = cudaSetDevice((int)device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, (int)device);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e != cudaSuccess)
        return sl_why_set(why, SL_EDEVICE, "CUDA device %u could not be opened (%s); see nvidia-smi.", device,
                          cudaGetErrorString(e));
    struct cu_stream *s = sl_xcalloc(1, sizeof *s);
    s->stream = stream;
    s->device = (int)device;
    s->multiprocessors = n;
    *out = s;
    return SL_OK;
}

void cu_stream_close(struct cu_stream *s)
{
    if (!s)
        return;
    check(cudaStreamDestroy(s->stream), "closing the stream");
    sl_free(s);
}

/* The runtime's current device is the thread's, NCCL and the driver change it behind its back, and a call for the one
 * that is current already costs nothing to speak of. */
void cu_stream_use(struct cu_stream *s)
{
    check(cudaSetDevice(s->device), "choosing the device");
}

void cu_reach(struct cu_stream *s, struct cu_stream *other)
{
    const int pairs[2][2] = {{s->device, other->device}, {other->device, s->device}};
    for (int i = 0; i < 2; i++) {
        int can = 0;
        if (cudaSetDevice(pairs[i][0]) == cudaSuccess &&
            cudaDeviceCanAccessPeer(&can, pairs[i][0], pairs[i][1]) == cudaSuccess && can)
            (void)cudaDeviceEnablePeerAccess(pairs[i][1], 0); /* or it is already */
    }
    (void)cudaGetLastError();
}

unsigned cu_multiprocessors(const struct cu_stream *s)
{
    return (unsigned)s->multiprocessors;
}

size_t cu_memory_free(const struct cu_stream *s)
{
    size_t left = 0, all = 0;
    check(cudaSetDevice(s->device), "choosing the device");
    check(cudaMemGetInfo(&left, &all), "asking for free memory");
    return left;
}

void *cu_native_stream(struct cu_stream *s)
{
    return s->stream;
}

/* Zeroes what was just allocated, or forgets the error of an allocation that failed. */
static void *zeroed(struct cu_stream *s, cudaError_t e, void *p, size_t bytes)
{
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    if (refused(s))
        check(cudaMemset(p, 0, bytes), "zeroing memory");
    else
        check(cudaMemsetAsync(p, 0, bytes, s->stream), "zeroing memory");
    return p;
}

void *cu_alloc(struct cu_stream *s, size_t bytes)
{
    void *p = NULL;
    cu_stream_use(s);
    cudaError_t e = cudaMalloc(&p, bytes);
    return zeroed(s, e, p, bytes);
}

void *cu_alloc_pinned(struct cu_stream *s, size_t bytes)
{
    void *p = NULL;
    cu_stream_use(s);
    cudaError_t e = cudaMallocHost(&p, bytes);
    return zeroed(s, e, p, bytes);
}

void cu_free(struct cu_stream *s, void *p)
{
    if (!p)
        return;
    cu_sync(s); /* does not wait while a graph is captured, nor do kernels run then */
    struct cudaPointerAttributes at;
    cu_stream_use(s);
    check(cudaPointerGetAttributes(&at, p), "looking up memory to free");
    check(at.type == cudaMemoryTypeHost ? cudaFreeHost(p) : cudaFree(p), "freeing memory");
}

void cu_upload(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    if (refused(s))
        return;
    /* out of pageable memory, CUDA has its own copy of the bytes when this returns */
    check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->stream), "copying to the device");
}

void cu_download(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    if (!refused(s))
        check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->stream), "copying from the device");
}

void cu_copy_pinned(struct cu_stream *s, void *dst, const void *src, size_t bytes)
{
    check_queued(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->stream), "copying to the device");
}

void cu_copy_rows(struct cu_stream *s, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                  size_t bytes, size_t n)
{
    check_queued(s,
                 cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, n, cudaMemcpyDefault, s->stream),
                 "copying runs of bytes");
}

void cu_sync(struct cu_stream *s)
{
    if (!refused(s))
        check(cudaStreamSynchronize(s->stream), "running kernels");
}

void cu_launch(struct cu_stream *s, const struct cu_launch *l)
{
    if (l->grid_x == 0 || l->grid_y == 0)
        return;
    cu_stream_use(s);
    if (l->shared_bytes > SHARED_BYTES_UNASKED)
        check_queued(s,
                     cudaFuncSetAttribute(l->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)l->shared_bytes),
                     l->name);
    void *args[] = {(void *)(uintptr_t)l->args};
    struct dim3 grid = {l->grid_x, l->grid_y, 1}, block = {l->n_threads, 1, 1};
    check_queued(s, cudaLaunchKernel(l->kernel, grid, block, args, l->shared_bytes, s->stream), l->name);
}

struct cu_event *cu_event_new(struct cu_stream *s)
{
    cu_stream_use(s);
    struct cu_event *e = sl_xcalloc(1, sizeof *e);
    check(cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming), "making an event");
    return e;
}

void cu_event_free(struct cu_event *e)
{
    if (e)
        check(cudaEventDestroy(e->event), "freeing an event");
    sl_free(e);
}

void cu_event_record(struct cu_event *e, struct cu_stream *s)
{
    check(cudaEventRecord(e->event, s->stream), "recording an event");
}

void cu_event_join(const struct cu_event *e, struct cu_stream *s)
{
    check(cudaStreamWaitEvent(s->stream, e->event, 0), "joining streams");
}

int cu_event_done(struct cu_event *e)
{
    cudaError_t err = cudaEventQuery(e->event);
    if (err != cudaErrorNotReady)
        check(err, "running kernels");
    return err == cudaSuccess;
}

void cu_event_wait(struct cu_event *e)
{
    check(cudaEventSynchronize(e->event), "running kernels");
}

bool cu_capture_begin(struct cu_stream *s)
{
    cu_stream_use(s);
    /* relaxed: other threads may allocate meanwhile */
    cudaError_t e = cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeRelaxed);
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    s->capturing = e == cudaSuccess;
    s->spoiled = false;
    return s->capturing;
}

struct cu_graph *cu_capture_end(struct cu_stream *s)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t e = cudaStreamEndCapture(s->stream, &graph);
    s->capturing = false;
    if (e == cudaSuccess && !s->spoiled)
        e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (e != cudaSuccess || s->spoiled) {
        (void)cudaGetLastError(); /* of the capture; the stream works on */
        return NULL;
    }
    struct cu_graph *g = sl_xcalloc(1, sizeof *g);
    g->exec = exec;
    return g;
}

void cu_graph_launch(struct cu_stream *s, struct cu_graph *g)
{
    cu_stream_use(s);
    check(cudaGraphLaunch(g->exec, s->stream), "launching a graph");
}

void cu_graph_free(struct cu_graph *g)
{
    if (g)
        check(cudaGraphExecDestroy(g->exec), "freeing a graph");
    sl_free(g);
}
