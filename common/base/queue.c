/* common/base/queue.c - a ring under a mutex, and an eventfd that is written only when the queue stops being
 * empty.
 *
 * The eventfd is cleared by the pop that finds nothing, not by the one that takes the last item: under load
 * the next item is usually there by then and both system calls are saved. The price is one look in vain. It
 * is written and cleared under the mutex: outside, a clear could overtake a write and leave the fd readable
 * for ever. */
#include "common/base/queue.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

struct sl_queue {
    pthread_mutex_t lock;
    int fd;
    bool raised; /* the eventfd is readable */
    bool woken;  /* by sl_queue_wake(), not seen by sl_queue_wait() yet */
    size_t head, len, max;
    void *ring[];
};

struct sl_queue *sl_queue_new(size_t max_items)
{
    SL_ASSERT(max_items > 0 && max_items <= (SIZE_MAX - sizeof(struct sl_queue)) / sizeof(void *));
    struct sl_queue *q = sl_xcalloc(1, sizeof *q + max_items * sizeof(void *));
    q->max = max_items;
    q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (q->fd < 0) {
        SL_ERROR("no eventfd for a queue; raise the limit of open files errno=%d", errno);
        SL_ASSERT(q->fd >= 0);
    }
    SL_ASSERT(pthread_mutex_init(&q->lock, NULL) == 0);
    return q;
}

void sl_queue_free(struct sl_queue *q)
{
    if (!q)
        return;
    close(q->fd);
    pthread_mutex_destroy(&q->lock);
    sl_free(q);
}

/* Both under the lock. */
static void raise_fd(struct sl_queue *q)
{
    if (q->raised)
        return;
    SL_ASSERT(eventfd_write(q->fd, 1) == 0);
    q->raised = true;
}

static void clear_fd(struct sl_queue *q)
{
    if (!q->raised)
        return;
    eventfd_t n;
    SL_ASSERT(eventfd_read(q->fd, &n) == 0);
    q->raised = false;
}

enum sl_err sl_queue_push(struct sl_queue *q, void *item)
{
    SL_ASSERT(item);
    pthread_mutex_lock(&q->lock);
    enum sl_err err = SL_EAGAIN;
    if (q->len < q->max) {
        size_t at = q->head + q->len;
        q->ring[at >= q->max ? at - q->max : at] = item;
        q->len++;
        raise_fd(q);
        err = SL_OK;
    }
    pthread_mutex_unlock(&q->lock);
    return err;
}

void *sl_queue_pop(struct sl_queue *q)
{
    void *item = NULL;
    pthread_mutex_lock(&q->lock);
    if (q->len) {
        item = q->ring[q->head];
        q->head = q->head + 1 == q->max ? 0 : q->head + 1;
        q->len--;
    } else {
        clear_fd(q);
        q->woken = false;
    }
    pthread_mutex_unlock(&q->lock);
    return item;
}

size_t sl_queue_len(struct sl_queue *q)
{
    pthread_mutex_lock(&q->lock);
    size_t len = q->len;
    pthread_mutex_unlock(&q->lock);
    return len;
}

int sl_queue_fd(const struct sl_queue *q)
{
    return q->fd;
}

bool sl_queue_wait(struct sl_queue *q, uint32_t timeout_ms)
{
    const uint64_t start = sl_now_ms();
    for (;;) {
        pthread_mutex_lock(&q->lock);
        bool any = q->len > 0, woken = q->woken;
        if (!any) {
            clear_fd(q);
            q->woken = false;
        }
        pthread_mutex_unlock(&q->lock);
        if (any || woken)
            return any;
        uint64_t waited = sl_now_ms() - start;
        if (waited >= timeout_ms)
            return false;
        uint64_t left = timeout_ms - waited;
        struct pollfd pfd = {.fd = q->fd, .events = POLLIN};
        poll(&pfd, 1, left > INT32_MAX ? INT32_MAX : (int)left);
    }
}

void sl_queue_wake(struct sl_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->woken = true;
    raise_fd(q);
    pthread_mutex_unlock(&q->lock);
}
