/* common/transfer/nccl_pair.c - see nccl_pair.h.
 *
 * Slots are a ring, and their numbers only grow; each stage of a slot's life is one counter:
 *
 *   rank 0   done <= launched <= posted <= gathered <= filled         rank 1   done <= arrived <= launched <= posted
 *
 *   filled    copies into the slot are queued                    posted    part of a group given to NCCL
 *   gathered  they have ended                                    launched  NCCL has put the group on the stream
 *                                                                arrived   received; copies out of it are queued
 *
 * A communicator that does not block takes one group at a time: until ncclCommGetAsyncError says that the
 * last call is through, nothing else may be called on it, and an event recorded now would not be behind it. */
#include "common/transfer/nccl_pair.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"

#define STEP_MS     50u    /* of a longer pause the rest is not counted as waiting: this thread was away */
#define MAX_REAPING 16u    /* aborts that do not end; more pairs would use up the device */
#define MAX_GROUPS  65536u /* told by the peer and not posted: a group has a page at least (SL_KV_MAX_PAGES) */

struct told {
    struct sl_list node;
    struct sl_nccl_group g;
};

struct sl_nccl_pair {
    int rank;
    void *comm, *stream, *copies;
    sl_cuda_ptr staging;
    struct sl_nccl_slot slots[SL_NCCL_SLOTS];
    uint64_t filled, gathered, posted, launched, arrived, done;
    bool starting, launching;
    struct sl_list told; /* rank 1: groups of the peer that are not posted here */
    uint32_t n_told;
    uint32_t patience_ms;
    uint64_t last_step_ms, waited_ms; /* without anything moving */
    int failed;                       /* CUDA result of a call that has no error to give back */
    struct sl_nccl_pair_events events;
    void *arg;
};

static atomic_uint n_reaping;

static struct sl_nccl_slot *slot(struct sl_nccl_pair *p, uint64_t number)
{
    return &p->slots[number % SL_NCCL_SLOTS];
}

static void note(struct sl_nccl_pair *p, int cuda)
{
    if (cuda != SL_CUDA_SUCCESS && p->failed == SL_CUDA_SUCCESS)
        p->failed = cuda;
}

static enum sl_err failed_cuda(int rc, struct sl_why *why)
{
    return sl_why_set(why, SL_EPEER, "CUDA said: %s", sl_cuda_text(rc));
}

static enum sl_err failed_nccl(int rc, struct sl_why *why)
{
    return sl_why_set(why, SL_EPEER, "NCCL said: %s", sl_nccl.ncclGetErrorString(rc));
}

/* ---- open and close ---- */

static void free_all(struct sl_nccl_pair *p)
{
    if (p->comm)
        sl_nccl.ncclCommAbort(p->comm);
    for (size_t i = 0; i < SL_NCCL_SLOTS; i++)
        if (p->slots[i].event)
            sl_nccl.cuEventDestroy(p->slots[i].event);
    if (p->stream)
        sl_nccl.cuStreamDestroy(p->stream);
    if (p->copies)
        sl_nccl.cuStreamDestroy(p->copies);
    if (p->staging)
        sl_nccl.cuMemFree(p->staging);
    sl_free(p);
}

static void reap(void *arg)
{
    sl_nccl.cuCtxSetCurrent(sl_nccl_context);
    free_all(arg);
    atomic_fetch_sub(&n_reaping, 1);
}

/* ncclCommAbort waits for its own threads and for the device, which has been seen to take for ever. */
void sl_nccl_pair_close(struct sl_nccl_pair *p)
{
    struct sl_thread t = {0};
    if (!p)
        return;
    if (p->copies)
        sl_nccl.cuStreamSynchronize(p->copies);
    SL_LIST_FOREACH_SAFE (n, tmp, &p->told)
        sl_free(SL_CONTAINER_OF(n, struct told, node));
    atomic_fetch_add(&n_reaping, 1);
    if (sl_thread_start(&t, "sl-nccl-abort", reap, p) == SL_OK) {
        pthread_detach(t.handle);
        return;
    }
    SL_ERROR("no thread could be started to abort a communicator: its memory is lost");
}

void sl_nccl_pair_reap(uint32_t max_ms)
{
    for (uint64_t end = sl_now_ms() + max_ms; atomic_load(&n_reaping) > 0 && sl_now_ms() < end;)
        usleep(1000);
}

static int make_streams(struct sl_nccl_pair *p)
{
    int rc = sl_nccl.cuCtxSetCurrent(sl_nccl_context);
    if (rc == SL_CUDA_SUCCESS)
        rc = sl_nccl.cuStreamCreate(&p->stream, SL_CUDA_NON_BLOCKING);
    if (rc == SL_CUDA_SUCCESS)
        rc = sl_nccl.cuStreamCreate(&p->copies, SL_CUDA_NON_BLOCKING);
    if (rc == SL_CUDA_SUCCESS)
        rc = sl_nccl.cuMemAlloc(&p->staging, (size_t)SL_NCCL_SLOTS * SL_NCCL_SLOT_BYTES);
    for (size_t i = 0; i < SL_NCCL_SLOTS && rc == SL_CUDA_SUCCESS; i++) {
        p->slots[i].at = p->staging + i * SL_NCCL_SLOT_BYTES;
        rc = sl_nccl.cuEventCreate(&p->slots[i].event, SL_CUDA_NO_TIMING);
    }
    return rc;
}

enum sl_err sl_nccl_pair_open(const struct sl_nccl_id *id, int rank, uint32_t patience_ms,
                              const struct sl_nccl_pair_events *events, void *arg, struct sl_nccl_pair **out,
                              struct sl_why *why)
{
    struct sl_nccl_config config = {sizeof config, SL_NCCL_CONFIG_MAGIC, SL_NCCL_MIN_VERSION, 0};
    if (atomic_load(&n_reaping) >= MAX_REAPING)
        return sl_why_set(why, SL_EPEER,
                          "%u communicators were aborted and do not end; start this node again", MAX_REAPING);
    struct sl_nccl_pair *p = sl_xcalloc(1, sizeof *p);
    p->rank = rank;
    p->patience_ms = patience_ms;
    p->events = *events;
    p->arg = arg;
    p->starting = true;
    p->last_step_ms = sl_now_ms();
    sl_list_init(&p->told);
    int rc = make_streams(p);
    if (rc != SL_CUDA_SUCCESS) {
        enum sl_err e = failed_cuda(rc, why);
        sl_nccl_pair_close(p);
        return e;
    }
    rc = sl_nccl.ncclCommInitRankConfig(&p->comm, 2, *id, rank, &config);
    if (rc != SL_NCCL_SUCCESS && rc != SL_NCCL_IN_PROGRESS) {
        enum sl_err e = failed_nccl(rc, why);
        sl_nccl_pair_close(p);
        return e;
    }
    *out = p;
    return SL_OK;
}

/* ---- copies ---- */

struct sl_nccl_slot *sl_nccl_pair_room(struct sl_nccl_pair *p)
{
    if (p->starting || p->filled - p->done == SL_NCCL_SLOTS)
        return NULL;
    struct sl_nccl_slot *s = slot(p, p->filled);
    s->bytes = s->n_ends = 0;
    return s;
}

uint32_t sl_nccl_slot_room(const struct sl_nccl_slot *s)
{
    return SL_NCCL_SLOT_BYTES - s->bytes;
}

void sl_nccl_pair_gather(struct sl_nccl_pair *p, struct sl_nccl_slot *s, const void *from, uint32_t bytes)
{
    SL_ASSERT(bytes <= sl_nccl_slot_room(s));
    note(p, sl_nccl.cuMemcpyAsync(s->at + s->bytes, (sl_cuda_ptr)(uintptr_t)from, bytes, p->copies));
    s->bytes += bytes;
}

void sl_nccl_pair_filled(struct sl_nccl_pair *p, struct sl_nccl_slot *s)
{
    note(p, sl_nccl.cuEventRecord(s->event, p->copies));
    p->filled++;
}

bool sl_nccl_pair_expect(struct sl_nccl_pair *p, const struct sl_nccl_group *g)
{
    bool good = p->rank == 1 && g->n > 0 && g->n <= SL_NCCL_SLOTS && p->n_told < MAX_GROUPS;
    for (uint32_t i = 0; good && i < g->n; i++)
        good = g->bytes[i] > 0 && g->bytes[i] <= SL_NCCL_SLOT_BYTES;
    if (!good)
        return false;
    struct told *t = sl_xcalloc(1, sizeof *t);
    t->g = *g;
    sl_list_add_tail(&p->told, &t->node);
    p->n_told++;
    return true;
}

void sl_nccl_pair_scatter(struct sl_nccl_pair *p, struct sl_nccl_slot *s, uint32_t at, void *to,
                          uint32_t bytes)
{
    SL_ASSERT(at + bytes <= s->bytes);
    note(p, sl_nccl.cuMemcpyAsync((sl_cuda_ptr)(uintptr_t)to, s->at + at, bytes, p->copies));
}

/* ---- steps ---- */

/* Whether the communicator takes a call. */
static enum sl_err poll_comm(struct sl_nccl_pair *p, bool *moved, struct sl_why *why)
{
    int state = SL_NCCL_SUCCESS, rc = sl_nccl.ncclCommGetAsyncError(p->comm, &state);
    if (rc != SL_NCCL_SUCCESS)
        return failed_nccl(rc, why);
    if (state != SL_NCCL_SUCCESS && state != SL_NCCL_IN_PROGRESS)
        return failed_nccl(state, why);
    if (state == SL_NCCL_IN_PROGRESS || (!p->starting && !p->launching))
        return SL_OK;
    p->starting = p->launching = false;
    for (; p->launched < p->posted; p->launched++)
        note(p, sl_nccl.cuEventRecord(slot(p, p->launched)->event, p->stream));
    *moved = true;
    return SL_OK;
}

/* The event of a slot has come. */
static bool is_over(struct sl_nccl_pair *p, uint64_t number)
{
    int rc = sl_nccl.cuEventQuery(slot(p, number)->event);
    if (rc != SL_CUDA_NOT_READY)
        note(p, rc);
    return rc == SL_CUDA_SUCCESS;
}

/* Slots [posted, posted + n) as one group. */
static enum sl_err post(struct sl_nccl_pair *p, uint32_t n, struct sl_why *why)
{
    int rc = sl_nccl.ncclGroupStart(), last = SL_NCCL_SUCCESS;
    if (rc != SL_NCCL_SUCCESS)
        return failed_nccl(rc, why);
    for (uint32_t i = 0; i < n && (last == SL_NCCL_SUCCESS || last == SL_NCCL_IN_PROGRESS); i++) {
        struct sl_nccl_slot *s = slot(p, p->posted + i);
        void *at = (void *)(uintptr_t)s->at;
        last = p->rank == 0 ? sl_nccl.ncclSend(at, s->bytes, SL_NCCL_UINT8, 1, p->comm, p->stream)
                            : sl_nccl.ncclRecv(at, s->bytes, SL_NCCL_UINT8, 0, p->comm, p->stream);
    }
    rc = sl_nccl.ncclGroupEnd(); /* also after an error: a group left open would swallow the next one */
    if (last != SL_NCCL_SUCCESS && last != SL_NCCL_IN_PROGRESS)
        return failed_nccl(last, why);
    if (rc != SL_NCCL_SUCCESS && rc != SL_NCCL_IN_PROGRESS)
        return failed_nccl(rc, why);
    p->posted += n;
    p->launching = true;
    return SL_OK;
}

static enum sl_err step_sender(struct sl_nccl_pair *p, bool *moved, struct sl_why *why)
{
    struct sl_nccl_group g = {0};
    for (; p->done < p->launched && is_over(p, p->done); *moved = true)
        p->events.done(p->arg, slot(p, p->done++));
    for (; p->gathered < p->filled && is_over(p, p->gathered); *moved = true)
        p->gathered++;
    if (p->starting || p->launching || p->posted == p->gathered)
        return SL_OK;
    for (uint64_t i = p->posted; i < p->gathered; i++)
        g.bytes[g.n++] = slot(p, i)->bytes;
    *moved = true;
    if (!p->events.posted(p->arg, &g))
        return sl_why_set(why, SL_EPEER, "the peer cannot be told of a group");
    return post(p, g.n, why);
}

static enum sl_err step_receiver(struct sl_nccl_pair *p, bool *moved, struct sl_why *why)
{
    for (; p->done < p->arrived && is_over(p, p->done); *moved = true)
        p->events.done(p->arg, slot(p, p->done++));
    for (; p->arrived < p->launched && is_over(p, p->arrived); *moved = true) {
        struct sl_nccl_slot *s = slot(p, p->arrived++);
        if (!p->events.arrived(p->arg, s))
            return sl_why_set(why, SL_EPROTO, "the peer sent more bytes than it had announced");
        note(p, sl_nccl.cuEventRecord(s->event, p->copies));
    }
    if (p->starting || p->launching || sl_list_empty(&p->told))
        return SL_OK;
    struct told *t = SL_CONTAINER_OF(p->told.next, struct told, node);
    struct sl_nccl_group g = t->g;
    if (p->posted + g.n - p->done > SL_NCCL_SLOTS)
        return SL_OK;
    sl_list_remove(&t->node);
    sl_free(t);
    p->n_told--;
    for (uint32_t i = 0; i < g.n; i++) {
        slot(p, p->posted + i)->bytes = g.bytes[i];
        slot(p, p->posted + i)->n_ends = 0;
    }
    *moved = true;
    return post(p, g.n, why);
}

bool sl_nccl_pair_waits(const struct sl_nccl_pair *p)
{
    return p->starting || p->launching || p->done < (p->rank == 0 ? p->filled : p->posted);
}

enum sl_err sl_nccl_pair_step(struct sl_nccl_pair *p, bool *moved, struct sl_why *why)
{
    uint64_t now = sl_now_ms(), since = now - p->last_step_ms;
    bool mine = false;
    p->last_step_ms = now;
    enum sl_err e = poll_comm(p, &mine, why);
    if (!e)
        e = p->rank == 0 ? step_sender(p, &mine, why) : step_receiver(p, &mine, why);
    if (!e && p->failed != SL_CUDA_SUCCESS)
        e = failed_cuda(p->failed, why);
    *moved |= mine;
    p->waited_ms = mine || !sl_nccl_pair_waits(p) ? 0 : p->waited_ms + (since < STEP_MS ? since : STEP_MS);
    if (!e && p->waited_ms > p->patience_ms)
        e = sl_why_set(why, SL_EPEER,
                       "NCCL moved nothing for %u ms; check NCCL_SOCKET_IFNAME, run with NCCL_DEBUG=INFO",
                       p->patience_ms);
    return e;
}
