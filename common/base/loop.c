/* common/base/loop.c - epoll for fds, a binary heap for timers.
 *
 * A callback may remove, change or close any fd while other events of the same epoll_wait() still wait in the
 * array: each registration has a generation, carried in the event next to the fd, and an event whose
 * generation is not the current one is dropped. What was dropped wrongly (an fd changed while it was ready)
 * is reported again by epoll.
 *
 * A round runs only timers armed before its timer phase began, so that a timer that arms itself with 0 cannot
 * keep the fds waiting. A firing timer is out of the heap before its callback, and not touched after it. */
#include "common/base/loop.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define EVENTS_PER_ROUND 64
#define NOT_ARMED        SIZE_MAX
#define NS_PER_MS        1000000u

struct fd_slot {
    sl_loop_fd_fn *fn; /* NULL: not registered */
    void *arg;
    uint32_t generation;
};

struct sl_timer {
    struct sl_loop *loop;
    sl_loop_timer_fn *fn;
    void *arg;
    uint64_t due_ns;
    uint64_t armed_no; /* order of sl_timer_set calls; breaks ties */
    size_t at;         /* in the heap, or NOT_ARMED */
};

struct sl_loop {
    int epoll_fd, wake_fd;
    _Atomic int stop;
    struct fd_slot *slots; /* by fd */
    size_t n_slots;
    uint32_t last_generation;
    struct sl_timer **heap;
    size_t n_heap, heap_cap;
    uint64_t next_armed_no;
};

static void on_wake(void *arg, uint32_t events)
{
    struct sl_loop *l = arg;
    eventfd_t n;
    (void)events;
    eventfd_read(l->wake_fd, &n);
}

enum sl_err sl_loop_open(struct sl_loop **out)
{
    struct sl_loop *l = sl_xcalloc(1, sizeof *l);
    l->epoll_fd = l->wake_fd = -1;
    if ((l->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
        (l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0 ||
        sl_loop_add(l, l->wake_fd, EPOLLIN, on_wake, l) != SL_OK) {
        SL_ERROR("event loop not opened errno=%d", errno);
        sl_loop_close(l);
        return SL_EIO;
    }
    *out = l;
    return SL_OK;
}

void sl_loop_close(struct sl_loop *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->n_heap; i++)
        l->heap[i]->at = NOT_ARMED; /* so that freeing the timer later does not look for the loop */
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    sl_free(l->heap);
    sl_free(l->slots);
    sl_free(l);
}

enum sl_err sl_loop_add(struct sl_loop *l, int fd, uint32_t events, sl_loop_fd_fn *fn, void *arg)
{
    SL_ASSERT(fn);
    if (fd < 0)
        return SL_EINVAL;
    size_t at = (size_t)fd;
    if (at >= l->n_slots) {
        size_t n = at + 1 > 2 * l->n_slots ? at + 1 : 2 * l->n_slots;
        l->slots = sl_xrealloc_array(l->slots, n, sizeof *l->slots);
        memset(l->slots + l->n_slots, 0, (n - l->n_slots) * sizeof *l->slots);
        l->n_slots = n;
    }
    uint32_t generation = ++l->last_generation;
    struct epoll_event ev = {.events = events, .data.u64 = (uint64_t)generation << 32 | (uint32_t)fd};
    /* an fd closed without sl_loop_remove() left epoll by itself: what the slot says is a guess */
    bool known = l->slots[at].fn != NULL;
    int rc = epoll_ctl(l->epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev);
    if (rc != 0 && errno == (known ? ENOENT : EEXIST))
        rc = epoll_ctl(l->epoll_fd, known ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &ev);
    if (rc != 0)
        return SL_EIO;
    l->slots[at] = (struct fd_slot){.fn = fn, .arg = arg, .generation = generation};
    return SL_OK;
}

void sl_loop_remove(struct sl_loop *l, int fd)
{
    if (fd < 0 || (size_t)fd >= l->n_slots || !l->slots[fd].fn)
        return;
    l->slots[fd] = (struct fd_slot){0};
    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* fails when already closed: gone either way */
}

static bool earlier(const struct sl_timer *a, const struct sl_timer *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->armed_no < b->armed_no;
}

static void heap_put(struct sl_loop *l, size_t at, struct sl_timer *t)
{
    l->heap[at] = t;
    t->at = at;
}

/* t belongs at `at` or above it. */
static void sift_up(struct sl_loop *l, size_t at, struct sl_timer *t)
{
    while (at > 0 && earlier(t, l->heap[(at - 1) / 2])) {
        heap_put(l, at, l->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(l, at, t);
}

static void sift_down(struct sl_loop *l, size_t at, struct sl_timer *t)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= l->n_heap)
            break;
        if (child + 1 < l->n_heap && earlier(l->heap[child + 1], l->heap[child]))
            child++;
        if (!earlier(l->heap[child], t))
            break;
        heap_put(l, at, l->heap[child]);
        at = child;
    }
    heap_put(l, at, t);
}

struct sl_timer *sl_timer_new(struct sl_loop *l, sl_loop_timer_fn *fn, void *arg)
{
    struct sl_timer *t = sl_xcalloc(1, sizeof *t);
    *t = (struct sl_timer){.loop = l, .fn = fn, .arg = arg, .at = NOT_ARMED};
    return t;
}

void sl_timer_free(struct sl_timer *t)
{
    if (!t)
        return;
    sl_timer_clear(t);
    sl_free(t);
}

void sl_timer_set(struct sl_timer *t, uint64_t after_ms)
{
    struct sl_loop *l = t->loop;
    sl_timer_clear(t);
    uint64_t now = sl_now_ns();
    t->due_ns = after_ms > (UINT64_MAX - now) / NS_PER_MS ? UINT64_MAX : now + after_ms * NS_PER_MS;
    t->armed_no = l->next_armed_no++;
    if (l->n_heap == l->heap_cap) {
        l->heap_cap = l->heap_cap ? 2 * l->heap_cap : 16;
        l->heap = sl_xrealloc_array(l->heap, l->heap_cap, sizeof *l->heap);
    }
    sift_up(l, l->n_heap++, t);
}

void sl_timer_clear(struct sl_timer *t)
{
    if (t->at == NOT_ARMED)
        return;
    struct sl_loop *l = t->loop;
    size_t at = t->at;
    struct sl_timer *last = l->heap[--l->n_heap];
    t->at = NOT_ARMED;
    if (last == t)
        return;
    if (at > 0 && earlier(last, l->heap[(at - 1) / 2]))
        sift_up(l, at, last);
    else
        sift_down(l, at, last);
}

uint64_t sl_timer_late_ms(const struct sl_timer *t)
{
    uint64_t now = sl_now_ns();
    return now > t->due_ns ? (now - t->due_ns) / NS_PER_MS : 0;
}

/* Milliseconds epoll may sleep, rounded up so that a timer is due when it ends; -1 = until something happens.
 */
static int sleep_ms(const struct sl_loop *l, uint32_t max_wait_ms)
{
    uint64_t wait = max_wait_ms;
    if (l->n_heap) {
        uint64_t now = sl_now_ns(), due = l->heap[0]->due_ns;
        uint64_t until = due <= now ? 0 : (due - now - 1) / NS_PER_MS + 1;
        if (until < wait)
            wait = until;
    }
    if (wait == UINT32_MAX)
        return -1;
    return wait > INT32_MAX ? INT32_MAX : (int)wait;
}

static void run_timers(struct sl_loop *l)
{
    const uint64_t now = sl_now_ns(), first_of_next_round = l->next_armed_no;
    while (l->n_heap) {
        struct sl_timer *t = l->heap[0];
        if (t->due_ns > now || t->armed_no >= first_of_next_round)
            return;
        sl_timer_clear(t);
        t->fn(t->arg); /* may free t */
    }
}

void sl_loop_once(struct sl_loop *l, uint32_t max_wait_ms)
{
    struct epoll_event events[EVENTS_PER_ROUND];
    int n = epoll_wait(l->epoll_fd, events, EVENTS_PER_ROUND, sleep_ms(l, max_wait_ms));
    SL_ASSERT(n >= 0 || errno == EINTR);
    for (int i = 0; i < n; i++) {
        size_t fd = (uint32_t)events[i].data.u64;
        uint32_t generation = (uint32_t)(events[i].data.u64 >> 32);
        const struct fd_slot s = l->slots[fd];
        if (s.fn && s.generation == generation)
            s.fn(s.arg, events[i].events);
    }
    run_timers(l);
}

void sl_loop_run(struct sl_loop *l)
{
    while (!atomic_load(&l->stop))
        sl_loop_once(l, UINT32_MAX);
    atomic_store(&l->stop, 0);
}

void sl_loop_stop(struct sl_loop *l)
{
    atomic_store(&l->stop, 1);
    sl_loop_wake(l);
}

void sl_loop_wake(struct sl_loop *l)
{
    eventfd_write(l->wake_fd, 1); /* full means it is readable already */
}
