/* tests/support/fake_nccl/fake_nccl.c - NCCL's functions that nccl_load.h names, for two ranks of one machine, or
 * one that sends to itself: a unique id is the name of an abstract Unix socket, and its connection carries what the ranks send.
 * Ranks of one process, any number of them, also gather: there the id is found in a list.
 *
 * A communicator does not block, as the real one with blocking = 0: starting takes a thread, a group is
 * launched some polls after ncclGroupEnd. When the peer goes, ncclCommGetAsyncError says so and what was
 * launched hangs until ncclCommAbort, as the real kernels do.
 *
 * FAKE_NCCL_FAULT = KIND:RANK:N, read when a communicator starts, breaks rank RANK:
 *
 *   delay         starting and each transfer take N ms          error   the N-th group ends in an asynchronous error
 *   start_hang    it never starts                               stall   the N-th group moves nothing
 *   abort_hang    ncclCommAbort takes N ms                      lost    the connection breaks at the N-th group
 *   launch_hang   the N-th group never gets on its stream
 *
 * FAKE_NCCL_VERSION is what ncclGetVersion says. */
#include "tests/support/fake_nccl/fake_gpu.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/alloc_guard.h"
#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/transfer/nccl_load.h"

#define SYSTEM_ERROR     2
#define INVALID_ARGUMENT 4
#define REMOTE_ERROR     6
#define LAUNCH_POLLS     2 /* of ncclCommGetAsyncError before a group is on the stream */
#define MAX_GROUP        16
#define MAX_RANKS        8
#define VERSION          22809

/* A socket that listens for the peer of an id that was given out here. */
struct listener {
    struct sl_list node;
    struct sl_nccl_id id;
    int fd;
};

struct fault {
    char kind[16];
    int rank, n;
};

/* The communicators of one id in this process, and the all-gather they are in. */
struct clique {
    struct sl_list node;
    struct sl_nccl_id id;
    int n_ranks, n_comms, n_joined;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct op *ops[MAX_RANKS]; /* of those who are there */
    int n_there, n_through;
    uint64_t meeting; /* goes up when all are there */
};

struct comm {
    int rank, n_ranks, sock, abort_fd;
    int device; /* that was current when it started */
    struct sl_nccl_id id;
    atomic_int state; /* of ncclCommGetAsyncError */
    pthread_t starter;
    struct op *group[MAX_GROUP]; /* ended and not launched */
    int n_group, polls, n_groups;
    struct fault fault;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int n_ops; /* on streams, under the mutex */
    struct clique *clique;
    bool aborted; /* under the clique's mutex */
};

struct op {
    struct comm *comm;
    void *stream;
    char *p;
    const char *from; /* of a receive from itself: what is sent */
    bool send, gathers;
    /* What both ranks must have in common. */
    struct head {
        uint64_t bytes;
        uint32_t group, index, of, captured; /* captured: recorded in a graph, by all ranks or none */
    } head;
};

static pthread_mutex_t listeners_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sl_list listeners = {&listeners, &listeners};
static pthread_mutex_t cliques_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sl_list cliques = {&cliques, &cliques};
static _Thread_local struct op *grouped[MAX_GROUP];
static _Thread_local int n_grouped, depth;

static bool has_fault(const struct comm *c, const char *kind)
{
    return c->fault.rank == c->rank && strcmp(c->fault.kind, kind) == 0;
}

static void nap(const struct comm *c)
{
    if (has_fault(c, "delay"))
        usleep((useconds_t)c->fault.n * 1000);
}

static socklen_t address_of(const struct sl_nccl_id *id, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(a->sun_path + 1, id->bytes, 32); /* the name in front of it is empty: no file */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 33);
}

int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    const char *text = getenv("FAKE_NCCL_VERSION");
    *version = text ? (int)strtol(text, NULL, 10) : VERSION;
    return SL_NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result)
{
    switch (result) {
    case SYSTEM_ERROR:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case REMOTE_ERROR:
        return "remote process exited or there was a network error";
    default:
        return "an error of the fake";
    }
}

int ncclGetUniqueId(struct sl_nccl_id *id);
int ncclGetUniqueId(struct sl_nccl_id *id)
{
    struct sockaddr_un a;
    uint64_t random[2];
    struct listener *l = sl_xcalloc(1, sizeof *l);
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return SYSTEM_ERROR;
    snprintf(l->id.bytes, sizeof l->id.bytes, "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = address_of(&l->id, &a);
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&a, len) != 0 || listen(l->fd, 1) != 0)
        return SYSTEM_ERROR;
    *id = l->id;
    pthread_mutex_lock(&listeners_mutex);
    sl_list_add_tail(&listeners, &l->node);
    pthread_mutex_unlock(&listeners_mutex);
    return SL_NCCL_SUCCESS;
}

/* The socket of an id, which is then the caller's; -1 when it was given out elsewhere. */
static int take_listener(const struct sl_nccl_id *id)
{
    int fd = -1;
    pthread_mutex_lock(&listeners_mutex);
    SL_LIST_FOREACH_SAFE (n, tmp, &listeners) {
        struct listener *l = SL_CONTAINER_OF(n, struct listener, node);
        if (memcmp(&l->id, id, sizeof *id) != 0)
            continue;
        fd = l->fd;
        sl_list_remove(&l->node);
        sl_free(l);
    }
    pthread_mutex_unlock(&listeners_mutex);
    return fd;
}

/* Waits for the descriptor. False: the communicator is aborted. */
static bool wait_fd(const struct comm *c, int fd, short events)
{
    struct pollfd p[2] = {{.fd = c->abort_fd, .events = POLLIN}, {.fd = fd, .events = events}};
    while (poll(p, 2, -1) < 0 && errno == EINTR)
        ;
    return p[0].revents == 0;
}

/* All bytes, or false: the peer is gone, or this communicator is aborted. */
static bool move(const struct comm *c, bool send_it, void *at, size_t n)
{
    for (char *p = at; n > 0;) {
        if (!wait_fd(c, c->sock, send_it ? POLLOUT : POLLIN))
            return false;
        ssize_t k =
            send_it ? send(c->sock, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(c->sock, p, n, MSG_DONTWAIT);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k == 0 || (errno != EAGAIN && errno != EINTR)) {
            return false;
        }
    }
    return true;
}

static struct clique *join_clique(const struct sl_nccl_id *id, int n_ranks)
{
    struct clique *q = NULL;
    pthread_mutex_lock(&cliques_mutex);
    SL_LIST_FOREACH (n, &cliques) {
        struct clique *other = SL_CONTAINER_OF(n, struct clique, node);
        q = memcmp(&other->id, id, sizeof *id) == 0 ? other : q;
    }
    if (!q) {
        q = sl_xcalloc(1, sizeof *q);
        q->id = *id;
        q->n_ranks = n_ranks;
        pthread_mutex_init(&q->mutex, NULL);
        pthread_cond_init(&q->changed, NULL);
        sl_list_add_tail(&cliques, &q->node);
    }
    q->n_comms++;
    pthread_mutex_unlock(&cliques_mutex);
    return q;
}

static void leave_clique(struct clique *q)
{
    pthread_mutex_lock(&cliques_mutex);
    bool last = --q->n_comms == 0;
    if (last)
        sl_list_remove(&q->node);
    pthread_mutex_unlock(&cliques_mutex);
    if (!last)
        return;
    pthread_mutex_destroy(&q->mutex);
    pthread_cond_destroy(&q->changed);
    sl_free(q);
}

/* Waits until all ranks have started. False: aborted. */
static bool meet_clique(struct comm *c)
{
    struct clique *q = c->clique;
    pthread_mutex_lock(&q->mutex);
    q->n_joined++;
    pthread_cond_broadcast(&q->changed);
    while (q->n_joined < q->n_ranks && !c->aborted)
        pthread_cond_wait(&q->changed, &q->mutex);
    bool ok = !c->aborted;
    pthread_mutex_unlock(&q->mutex);
    return ok;
}

static void hang(struct comm *c)
{
    wait_fd(c, -1, 0);
}

static void *start(void *arg)
{
    struct comm *c = arg;
    struct sockaddr_un a;
    socklen_t len = address_of(&c->id, &a);
    nap(c);
    if (has_fault(c, "start_hang")) {
        hang(c);
        return NULL;
    }
    if (c->n_ranks == 1) {
        atomic_store(&c->state, SL_NCCL_SUCCESS);
        return NULL;
    }
    if (c->n_ranks > 2) {
        atomic_store(&c->state, meet_clique(c) ? SL_NCCL_SUCCESS : REMOTE_ERROR);
        return NULL;
    }
    if (c->rank == 0) {
        int l = take_listener(&c->id);
        if (l < 0)
            fake_misuse("rank 0 did not make the id");
        if (wait_fd(c, l, POLLIN))
            c->sock = accept4(l, NULL, NULL, SOCK_CLOEXEC);
        close(l);
    } else {
        c->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->sock >= 0 && connect(c->sock, (struct sockaddr *)&a, len) != 0) {
            close(c->sock);
            c->sock = -1;
        }
    }
    char mine = (char)c->rank, theirs = 2;
    bool ok = c->sock >= 0 && move(c, true, &mine, 1) && move(c, false, &theirs, 1) && theirs == 1 - mine;
    atomic_store(&c->state, ok ? SL_NCCL_SUCCESS : REMOTE_ERROR);
    return NULL;
}

int ncclCommInitRankConfig(void **out, int n_ranks, struct sl_nccl_id id, int rank,
                           struct sl_nccl_config *config);
int ncclCommInitRankConfig(void **out, int n_ranks, struct sl_nccl_id id, int rank,
                           struct sl_nccl_config *config)
{
    const char *fault = getenv("FAKE_NCCL_FAULT");
    if (n_ranks < 1 || n_ranks > MAX_RANKS || rank < 0 || rank >= n_ranks || config->size < sizeof *config ||
        config->magic != SL_NCCL_CONFIG_MAGIC || config->version < SL_NCCL_MIN_VERSION)
        return INVALID_ARGUMENT;
    if (config->blocking != 0)
        fake_misuse("a communicator that blocks");
    struct comm *c = sl_xcalloc(1, sizeof *c);
    c->rank = rank;
    c->n_ranks = n_ranks;
    c->device = fake_current_device();
    c->id = id;
    c->sock = -1;
    c->clique = join_clique(&id, n_ranks);
    c->fault.rank = -1;
    if (fault && sscanf(fault, "%15[a-z_]:%d:%d", c->fault.kind, &c->fault.rank, &c->fault.n) != 3)
        fake_misuse("FAKE_NCCL_FAULT is not KIND:RANK:N");
    c->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_store(&c->state, SL_NCCL_IN_PROGRESS);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, NULL);
    if (c->abort_fd < 0 || pthread_create(&c->starter, NULL, start, c) != 0)
        fake_misuse("no descriptor or thread for a communicator");
    *out = c;
    return SL_NCCL_IN_PROGRESS;
}

static void op_over(struct op *o)
{
    struct comm *c = o->comm;
    pthread_mutex_lock(&c->mutex);
    c->n_ops--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    sl_free(o);
}

/* Copies what the others have once all are there, and goes on once all have copied. False: aborted. */
static bool gather(struct op *o)
{
    struct comm *c = o->comm;
    struct clique *q = c->clique;
    size_t bytes = o->head.bytes;
    pthread_mutex_lock(&q->mutex);
    uint64_t meeting = q->meeting;
    q->ops[c->rank] = o;
    if (++q->n_there == q->n_ranks) {
        q->n_there = 0;
        q->n_through = 0;
        q->meeting++;
        pthread_cond_broadcast(&q->changed);
    }
    while (q->meeting == meeting && !c->aborted)
        pthread_cond_wait(&q->changed, &q->mutex);
    for (int r = 0; r < q->n_ranks && !c->aborted; r++) {
        if (memcmp(&q->ops[r]->head, &o->head, sizeof o->head) != 0)
            fake_misuse("the ranks gather different things");
        if (r != c->rank)
            fake_copy(o->p + (size_t)r * bytes, q->ops[r]->p + (size_t)r * bytes, bytes);
    }
    q->n_through++;
    pthread_cond_broadcast(&q->changed);
    while (q->n_through < q->n_ranks && q->meeting == meeting + 1 && !c->aborted)
        pthread_cond_wait(&q->changed, &q->mutex);
    bool ok = !c->aborted;
    pthread_mutex_unlock(&q->mutex);
    return ok;
}

static void run_gather(struct op *o)
{
    struct comm *c = o->comm;
    nap(c);
    if (has_fault(c, "stall") && (int)o->head.group >= c->fault.n)
        hang(c);
    else
        (void)gather(o);
}

/* On a stream of an emulated device, which has the bytes of the op; perhaps again and again, in a graph. */
static void run_gather_there(const void *arg)
{
    struct op o = *(const struct op *)arg;
    run_gather(&o);
}

static void run_op(void *arg)
{
    struct op *o = arg;
    struct comm *c = o->comm;
    struct head theirs = o->head;
    if (o->gathers) {
        run_gather(o);
        op_over(o);
        return;
    }
    nap(c);
    if (o->from) {
        memcpy(o->p, o->from, o->head.bytes);
        op_over(o);
        return;
    }
    bool stalls = has_fault(c, "stall") && (int)o->head.group >= c->fault.n, ok = false;
    if (has_fault(c, "lost") && (int)o->head.group == c->fault.n)
        shutdown(c->sock, SHUT_RDWR);
    if (!stalls && atomic_load(&c->state) != REMOTE_ERROR)
        ok = move(c, o->send, &theirs, sizeof theirs);
    if (ok && memcmp(&theirs, &o->head, sizeof theirs) != 0)
        fake_misuse("the ranks' groups differ");
    ok = ok && move(c, o->send, o->p, o->head.bytes);
    if (!ok) {
        if (!stalls)
            atomic_store(&c->state, REMOTE_ERROR);
        hang(c);
    }
    op_over(o);
}

/* To itself: the n-th receive of a group takes what its n-th send gives; the sends are done with that. */
static void match_self(struct comm *c)
{
    int n = 0, next = 0;
    for (int i = 0; i < c->n_group; i++) {
        struct op *o = c->group[i];
        if (o->send)
            continue;
        while (next < c->n_group && !c->group[next]->send)
            next++;
        if (next == c->n_group || c->group[next]->head.bytes != o->head.bytes)
            fake_misuse("a rank receives from itself what it does not send");
        o->from = c->group[next++]->p;
    }
    for (int i = 0; i < c->n_group; i++) {
        if (c->group[i]->send)
            sl_free(c->group[i]);
        else
            c->group[n++] = c->group[i];
    }
    c->n_group = n;
}

static void launch(struct comm *c)
{
    if (c->n_ranks == 1 && !c->group[0]->gathers)
        match_self(c);
    for (int i = 0; i < c->n_group; i++) {
        struct op *o = c->group[i];
        if (!fake_is_stream(o->stream)) {
            if (!o->gathers)
                fake_misuse("a send or receive on a stream that computes");
            o->head.captured = cu_emu_is_capturing(o->stream);
            cu_emu_call(o->stream, run_gather_there, o, sizeof *o);
            sl_free(o);
            continue;
        }
        pthread_mutex_lock(&c->mutex);
        c->n_ops++;
        pthread_mutex_unlock(&c->mutex);
        fake_stream_push(o->stream, run_op, o);
    }
    c->n_group = 0;
}

int ncclCommGetAsyncError(void *comm, int *result);
int ncclCommGetAsyncError(void *comm, int *result)
{
    struct comm *c = comm;
    bool hangs = has_fault(c, "launch_hang") && c->n_groups >= c->fault.n;
    if (c->n_group > 0 && !hangs && --c->polls == 0) {
        int busy = SL_NCCL_IN_PROGRESS;
        bool breaks = has_fault(c, "error") && c->n_groups == c->fault.n;
        if (atomic_compare_exchange_strong(&c->state, &busy, breaks ? SYSTEM_ERROR : SL_NCCL_SUCCESS) &&
            !breaks)
            launch(c);
    }
    *result = atomic_load(&c->state);
    return SL_NCCL_SUCCESS;
}

int ncclGroupStart(void);
int ncclGroupStart(void)
{
    depth++;
    return SL_NCCL_SUCCESS;
}

/* What stands in grouped[] is a group now, to be launched some polls later. */
static int end_group(void)
{
    struct comm *c = grouped[0]->comm;
    int idle = SL_NCCL_SUCCESS;
    if (!atomic_compare_exchange_strong(&c->state, &idle, SL_NCCL_IN_PROGRESS) && idle != REMOTE_ERROR)
        fake_misuse("a group was given to a communicator that is busy");
    c->n_groups++;
    for (int i = 0; i < n_grouped; i++) {
        grouped[i]->head.group = (uint32_t)c->n_groups;
        grouped[i]->head.index = (uint32_t)i;
        grouped[i]->head.of = (uint32_t)n_grouped;
        c->group[i] = grouped[i];
    }
    c->n_group = n_grouped;
    c->polls = LAUNCH_POLLS;
    n_grouped = 0;
    return SL_NCCL_IN_PROGRESS;
}

int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    if (depth == 0)
        fake_misuse("a group ends that did not begin");
    if (--depth > 0 || n_grouped == 0)
        return SL_NCCL_SUCCESS;
    return end_group();
}

/* Memory of the rank's own device, and a stream of it. */
static void check_device(const struct comm *c, void *stream, const char *p, size_t bytes)
{
    if (fake_is_stream(stream)) {
        if (!fake_is_device(p, bytes))
            fake_misuse("memory that is not the device's was given to NCCL");
        return;
    }
    if (!cu_emu_call || (int)cu_emu_stream_device(stream) != c->device)
        fake_misuse("a stream that is not of the communicator's device");
    for (size_t i = 0; i < bytes; i += bytes - 1 ? bytes - 1 : 1) {
        int device = cu_emu_device_of(p + i); /* -1: memory is not guarded */
        if (device >= 0 && device != c->device)
            fake_misuse("memory of another device was given to NCCL");
    }
}

/* Also within a step. */
static struct op *op_new(void)
{
    const char *phase = sl_alloc_guard_pause();
    struct op *o = sl_xcalloc(1, sizeof *o);
    sl_alloc_guard_on(phase);
    return o;
}

static int add(bool send_it, const void *p, size_t count, int type, int peer, void *comm, void *stream)
{
    struct comm *c = comm;
    if (depth == 0 || n_grouped == MAX_GROUP || (n_grouped > 0 && grouped[0]->comm != c))
        fake_misuse("a send or receive outside of a group, or one too many");
    if (peer != (c->n_ranks == 1 ? 0 : 1 - c->rank) || type != SL_NCCL_UINT8 || count == 0)
        return INVALID_ARGUMENT;
    check_device(c, stream, p, count);
    struct op *o = op_new();
    *o = (struct op){.comm = c, .stream = stream, .p = (char *)(uintptr_t)p, .send = send_it};
    o->head.bytes = count;
    grouped[n_grouped++] = o;
    return SL_NCCL_SUCCESS;
}

int ncclSend(const void *p, size_t count, int type, int peer, void *comm, void *stream);
int ncclSend(const void *p, size_t count, int type, int peer, void *comm, void *stream)
{
    return add(true, p, count, type, peer, comm, stream);
}

int ncclRecv(void *p, size_t count, int type, int peer, void *comm, void *stream);
int ncclRecv(void *p, size_t count, int type, int peer, void *comm, void *stream)
{
    return add(false, p, count, type, peer, comm, stream);
}

/* In place only, and a group of its own. */
int ncclAllGather(const void *own, void *parts, size_t count, int type, void *comm, void *stream);
int ncclAllGather(const void *own, void *parts, size_t count, int type, void *comm, void *stream)
{
    struct comm *c = comm;
    if (depth > 0)
        fake_misuse("an all-gather inside of a group");
    if (type != SL_NCCL_UINT8 || count == 0)
        return INVALID_ARGUMENT;
    check_device(c, stream, parts, count * (size_t)c->n_ranks);
    if (own != (const char *)parts + count * (size_t)c->rank)
        fake_misuse("a part that is not the rank's own was given to NCCL");
    struct op *o = op_new();
    *o = (struct op){.comm = c, .stream = stream, .p = parts, .gathers = true};
    o->head.bytes = count;
    grouped[n_grouped++] = o;
    return end_group();
}

int ncclCommAbort(void *comm);
int ncclCommAbort(void *comm)
{
    struct comm *c = comm;
    uint64_t one = 1;
    if (write(c->abort_fd, &one, sizeof one) != sizeof one)
        fake_misuse("an abort that nobody hears");
    pthread_mutex_lock(&c->clique->mutex);
    c->aborted = true;
    pthread_cond_broadcast(&c->clique->changed);
    pthread_mutex_unlock(&c->clique->mutex);
    pthread_join(c->starter, NULL);
    if (has_fault(c, "abort_hang"))
        usleep((useconds_t)c->fault.n * 1000);
    pthread_mutex_lock(&c->mutex);
    while (c->n_ops > 0)
        pthread_cond_wait(&c->changed, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
    for (int i = 0; i < c->n_group; i++)
        sl_free(c->group[i]);
    if (c->sock >= 0)
        close(c->sock);
    close(take_listener(&c->id)); /* of a rank 0 that never came so far */
    close(c->abort_fd);
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->changed);
    leave_clique(c->clique);
    sl_free(c);
    return SL_NCCL_SUCCESS;
}
