/* common/transfer/nccl_group.c - see nccl_group.h.
 *
 * Communicators do not block, as in nccl_pair.c: a rank looks for an error while it waits, and so hears of a device
 * that fails instead of hanging in a call. What NCCL never gets done is no error of its own, so each wait for it has a
 * limit. A group that has met one is lost: ncclCommAbort may wait for what hangs, and is left to the end of the process.
 * At the close a thread of its own calls it, which is waited for for a while.
 * That another rank's device never comes is not seen here: then nobody computes, which the node's watchdog sees, and
 * which its stop does not wait for. */
#include "common/transfer/nccl_group.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/transfer/nccl_load.h"

#define JOIN_MS  120000u /* NCCL joins the cards of a machine in seconds; a cold start may load for a minute */
#define QUEUE_MS JOIN_MS /* an all-gather is queued in microseconds, but the first may connect the cards */
#define CLOSE_MS 5000u   /* an abort that works takes milliseconds; a node that stops has 20 s and more */
#define SPIN_MS  1u      /* before the looks get rarer: an all-gather is queued by then */
#define LOOK_US  1000u   /* between two looks from there on */

struct rank {
    void *context, *comm;
};

struct nccl_group {
    struct sl_rank_group group;
    struct sl_nccl_limits limits;
    atomic_int refs; /* at the close: its caller's, and the thread's */
    atomic_bool aborted;
    struct rank of[]; /* [n_ranks] */
};

static enum sl_err failed_cuda(int rc, struct sl_why *why)
{
    return sl_why_set(why, SL_EPEER, "CUDA said: %s", sl_cuda_text(rc));
}

static enum sl_err failed_nccl(int rc, struct sl_why *why)
{
    return sl_why_set(why, SL_EPEER, "NCCL said: %s", sl_nccl.ncclGetErrorString(rc));
}

static bool is_good(int rc)
{
    return rc == SL_NCCL_SUCCESS || rc == SL_NCCL_IN_PROGRESS;
}

/* Whether the communicator is through with its last call; an error ends the wait. */
static enum sl_err poll_comm(const struct rank *r, bool *through, struct sl_why *why)
{
    int state = SL_NCCL_SUCCESS, rc = sl_nccl.ncclCommGetAsyncError(r->comm, &state);
    if (rc != SL_NCCL_SUCCESS || !is_good(state))
        return failed_nccl(rc != SL_NCCL_SUCCESS ? rc : state, why);
    *through = state == SL_NCCL_SUCCESS;
    return SL_OK;
}

/* Until end_ms of sl_now_ms(), when it is SL_EDEVICE. what: NCCL has not ... */
static enum sl_err wait_comm(const struct nccl_group *g, uint32_t rank, uint64_t end_ms, const char *what,
                             struct sl_why *why)
{
    uint64_t spin_end_ms = sl_now_ms() + SPIN_MS;
    for (;;) {
        bool through = false;
        enum sl_err e = poll_comm(&g->of[rank], &through, why);
        uint64_t now = sl_now_ms();
        if (e != SL_OK || through)
            return e;
        if (now >= end_ms)
            return sl_why_set(why, SL_EDEVICE,
                              "NCCL has not %s rank %u with the others of %u; see nvidia-smi for cards that "
                              "hang, and what NCCL_DEBUG=INFO says",
                              what, rank, g->group.n_ranks);
        if (now < spin_end_ms)
            sched_yield();
        else
            usleep(LOOK_US);
    }
}

static enum sl_err all_gather(struct sl_rank_group *group, uint32_t rank, void *stream, void *parts,
                              size_t bytes, struct sl_why *why)
{
    const struct nccl_group *g = (struct nccl_group *)group;
    const struct rank *r = &g->of[rank];
    int rc = sl_nccl.cuCtxSetCurrent(r->context);
    if (rc != SL_CUDA_SUCCESS)
        return failed_cuda(rc, why);
    rc = sl_nccl.ncclAllGather((char *)parts + rank * bytes, parts, bytes, SL_NCCL_UINT8, r->comm, stream);
    if (!is_good(rc))
        return failed_nccl(rc, why);
    /* only then is the stream's next thing behind it */
    return wait_comm(g, rank, sl_now_ms() + g->limits.queue_ms, "queued an all-gather of", why);
}

static void unref(struct nccl_group *g)
{
    if (atomic_fetch_sub(&g->refs, 1) == 1)
        sl_free(g);
}

static void abort_ranks(void *arg)
{
    struct nccl_group *g = arg;
    for (uint32_t i = 0; i < g->group.n_ranks; i++) {
        struct rank *r = &g->of[i];
        if (r->context)
            sl_nccl.cuCtxSetCurrent(r->context);
        if (r->comm)
            sl_nccl.ncclCommAbort(r->comm);
    }
    atomic_store(&g->aborted, true);
    unref(g);
}

static void group_close(struct sl_rank_group *group)
{
    struct nccl_group *g = (struct nccl_group *)group;
    struct sl_thread t = {0};
    atomic_store(&g->refs, 2);
    if (sl_thread_start(&t, "sl-nccl-abort", abort_ranks, g) != SL_OK) {
        SL_ERROR("no thread could be started to abort the ranks' communicators: their memory is lost");
        return;
    }
    pthread_detach(t.handle);
    for (uint64_t end = sl_now_ms() + g->limits.close_ms; !atomic_load(&g->aborted) && sl_now_ms() < end;)
        usleep(LOOK_US);
    if (!atomic_load(&g->aborted))
        SL_WARN("NCCL does not let go of the ranks and is left behind ranks=%u waited_ms=%u",
                g->group.n_ranks, g->limits.close_ms);
    unref(g);
}

static enum sl_err rank_make(struct rank *r, uint32_t number, struct sl_why *why)
{
    int device = 0, rc = sl_nccl.cuDeviceGet(&device, (int)number);
    if (rc == SL_CUDA_SUCCESS)
        rc = sl_nccl.cuDevicePrimaryCtxRetain(&r->context, device);
    if (rc == SL_CUDA_SUCCESS)
        return SL_OK;
    return sl_why_set(why, SL_ECONFIG, "CUDA device %u cannot be used (%s); see nvidia-smi", number,
                      sl_cuda_text(rc));
}

/* One thread starts all communicators, so as one group: a call alone would wait for the other ranks. */
static enum sl_err join(struct nccl_group *g, struct sl_why *why)
{
    struct sl_nccl_config config = {sizeof config, SL_NCCL_CONFIG_MAGIC, SL_NCCL_MIN_VERSION, 0};
    struct sl_nccl_id id;
    int n = (int)g->group.n_ranks, rc = sl_nccl.ncclGetUniqueId(&id);
    if (rc != SL_NCCL_SUCCESS || (rc = sl_nccl.ncclGroupStart()) != SL_NCCL_SUCCESS)
        return failed_nccl(rc, why);
    for (int i = 0; i < n && is_good(rc); i++) {
        sl_nccl.cuCtxSetCurrent(g->of[i].context);
        rc = sl_nccl.ncclCommInitRankConfig(&g->of[i].comm, n, id, i, &config);
    }
    int end = sl_nccl.ncclGroupEnd(); /* also after an error: a group left open would swallow the next one */
    if (!is_good(rc) || !is_good(end))
        return failed_nccl(is_good(rc) ? end : rc, why);
    uint64_t end_ms = sl_now_ms() + g->limits.join_ms;
    enum sl_err e = SL_OK;
    for (uint32_t i = 0; i < g->group.n_ranks && e == SL_OK; i++)
        e = wait_comm(g, i, end_ms, "joined", why);
    return e;
}

enum sl_err sl_nccl_group_open_within(const struct sl_nccl_limits *limits, uint32_t first_device,
                                      uint32_t n_ranks, struct sl_rank_group **out, struct sl_why *why)
{
    enum sl_err e = sl_nccl_load(first_device, why);
    if (e != SL_OK)
        return e;
    struct nccl_group *g = sl_xcalloc(1, sizeof *g + n_ranks * sizeof g->of[0]);
    g->group = (struct sl_rank_group){n_ranks, true, all_gather, group_close};
    g->limits = *limits;
    for (uint32_t i = 0; i < n_ranks && e == SL_OK; i++)
        e = rank_make(&g->of[i], first_device + i, why);
    if (e != SL_OK) {
        group_close(&g->group);
        return e;
    }
    e = join(g, why);
    if (e == SL_OK)
        *out = &g->group;
    return e;
}

enum sl_err sl_nccl_group_open(uint32_t first_device, uint32_t n_ranks, struct sl_rank_group **out,
                               struct sl_why *why)
{
    const struct sl_nccl_limits limits = {JOIN_MS, QUEUE_MS, CLOSE_MS};
    return sl_nccl_group_open_within(&limits, first_device, n_ranks, out, why);
}
