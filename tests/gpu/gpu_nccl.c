/* tests/gpu/gpu_nccl.c - what common/transfer needs of NCCL, on one card: the functions of nccl_load.h, a
 * communicator that does not block, groups of sends and receives, abort.
 *
 * NCCL refuses two ranks on one card, so the communicator has one rank that sends to itself: this shows that
 * the calls are made as NCCL wants them and what they cost, not how fast a wire is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/transfer/nccl_load.h"

#define SLOTS      4u
#define SLOT_BYTES (4u << 20) /* as in common/transfer/nccl_pair.h */
#define ROUNDS     50u
#define LIMIT_MS   60000u

struct rig {
    void *comm, *stream, *event;
    sl_cuda_ptr from, to;
    unsigned char *host;
};

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "gpu_nccl: %s: %s\n", what, why);
    exit(1);
}

static void cuda(int rc, const char *what)
{
    if (rc != SL_CUDA_SUCCESS)
        die(what, sl_cuda_text(rc));
}

static void nccl(int rc, const char *what)
{
    if (rc != SL_NCCL_SUCCESS && rc != SL_NCCL_IN_PROGRESS)
        die(what, sl_nccl.ncclGetErrorString(rc));
}

static void wait_comm(struct rig *r, const char *what)
{
    int state = SL_NCCL_IN_PROGRESS;
    for (uint64_t end = sl_now_ms() + LIMIT_MS; state == SL_NCCL_IN_PROGRESS; usleep(20)) {
        nccl(sl_nccl.ncclCommGetAsyncError(r->comm, &state), what);
        nccl(state, what);
        if (sl_now_ms() > end)
            die(what, "does not end");
    }
}

static void wait_stream(struct rig *r, const char *what)
{
    int rc;
    cuda(sl_nccl.cuEventRecord(r->event, r->stream), what);
    for (uint64_t end = sl_now_ms() + LIMIT_MS; (rc = sl_nccl.cuEventQuery(r->event)) == SL_CUDA_NOT_READY;)
        if (sl_now_ms() > end)
            die(what, "does not end");
    cuda(rc, what);
}

static void start(struct rig *r)
{
    struct sl_nccl_config config = {sizeof config, SL_NCCL_CONFIG_MAGIC, SL_NCCL_MIN_VERSION, 0};
    struct sl_nccl_id id;
    cuda(sl_nccl.cuCtxSetCurrent(sl_nccl_context), "context");
    cuda(sl_nccl.cuStreamCreate(&r->stream, SL_CUDA_NON_BLOCKING), "stream");
    cuda(sl_nccl.cuEventCreate(&r->event, SL_CUDA_NO_TIMING), "event");
    cuda(sl_nccl.cuMemAlloc(&r->from, SLOTS * SLOT_BYTES), "memory");
    cuda(sl_nccl.cuMemAlloc(&r->to, SLOTS * SLOT_BYTES), "memory");
    uint64_t at = sl_now_us();
    nccl(sl_nccl.ncclGetUniqueId(&id), "id");
    nccl(sl_nccl.ncclCommInitRankConfig(&r->comm, 1, id, 0, &config), "communicator");
    double called_ms = (double)(sl_now_us() - at) * 1e-3;
    wait_comm(r, "communicator");
    printf("nccl.start                    %8.1f ms, of which the calls held the thread %.1f ms\n",
           (double)(sl_now_us() - at) * 1e-3, called_ms);
}

static void send_group(struct rig *r)
{
    nccl(sl_nccl.ncclGroupStart(), "group");
    for (size_t i = 0; i < SLOTS; i++) {
        void *from = (void *)(uintptr_t)(r->from + i * SLOT_BYTES),
             *to = (void *)(uintptr_t)(r->to + i * SLOT_BYTES);
        nccl(sl_nccl.ncclSend(from, SLOT_BYTES, SL_NCCL_UINT8, 0, r->comm, r->stream), "send");
        nccl(sl_nccl.ncclRecv(to, SLOT_BYTES, SL_NCCL_UINT8, 0, r->comm, r->stream), "receive");
    }
    nccl(sl_nccl.ncclGroupEnd(), "group");
    wait_comm(r, "group");
}

static void check_bytes(struct rig *r)
{
    size_t n = SLOTS * SLOT_BYTES;
    unsigned char *back = sl_xalloc(n);
    for (size_t i = 0; i < n; i++)
        r->host[i] = (unsigned char)(i * 2654435761u >> 24);
    cuda(sl_nccl.cuMemcpyAsync(r->from, (sl_cuda_ptr)(uintptr_t)r->host, n, r->stream), "copy");
    send_group(r);
    cuda(sl_nccl.cuMemcpyAsync((sl_cuda_ptr)(uintptr_t)back, r->to, n, r->stream), "copy");
    wait_stream(r, "group");
    if (memcmp(back, r->host, n) != 0)
        die("group", "what arrived is not what was sent");
    sl_free(back);
    printf("nccl.group                    bytes arrive as sent\n");
}

static void measure(struct rig *r)
{
    uint64_t at = sl_now_us();
    for (unsigned i = 0; i < ROUNDS; i++)
        send_group(r);
    wait_stream(r, "groups");
    double s = (double)(sl_now_us() - at) * 1e-6;
    printf("nccl.self                     %8.1f GB/s, %.0f us a group of %u times %u MiB\n",
           (double)ROUNDS * SLOTS * SLOT_BYTES / s * 1e-9, s / ROUNDS * 1e6, SLOTS, SLOT_BYTES >> 20);
}

static void end(struct rig *r)
{
    uint64_t at = sl_now_us();
    nccl(sl_nccl.ncclCommAbort(r->comm), "abort");
    printf("nccl.abort                    %8.1f ms\n", (double)(sl_now_us() - at) * 1e-3);
    sl_nccl.cuEventDestroy(r->event);
    sl_nccl.cuStreamDestroy(r->stream);
    sl_nccl.cuMemFree(r->from);
    sl_nccl.cuMemFree(r->to);
}

int main(void)
{
    struct sl_why why = {0};
    struct rig r = {.host = sl_xalloc(SLOTS * SLOT_BYTES)};
    if (sl_nccl_load(0, &why) != SL_OK)
        die("load", why.text);
    printf("nccl.version                  %8d\n", sl_nccl_version);
    start(&r);
    check_bytes(&r);
    measure(&r);
    end(&r);
    sl_free(r.host);
    return 0;
}
