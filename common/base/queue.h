/* common/base/queue.h - bounded queue of pointers between threads, with an eventfd to wait on.
 *
 * Many senders, one receiver. Full is SL_EAGAIN and travels back to whoever asked; nothing is ever dropped
 * silently. The receiver waits on sl_queue_fd() (readable while something is there) in its epoll set, or in
 * sl_queue_wait(). */
#ifndef SLUICE_COMMON_BASE_QUEUE_H
#define SLUICE_COMMON_BASE_QUEUE_H

#include <stdint.h>
#include "common/base/err.h"

struct sl_queue; /* opaque */

struct sl_queue *sl_queue_new(size_t max_items); /* max_items > 0 */
void sl_queue_free(struct sl_queue *q); /* takes NULL; the items left are the caller's: pop them first */
/* item may not be NULL. SL_EAGAIN when full. */
SL_MUST_CHECK enum sl_err sl_queue_push(struct sl_queue *q, void *item);
/* NULL when empty; only that clears the eventfd, so the fd may be readable once with nothing there. */
void *sl_queue_pop(struct sl_queue *q);
size_t sl_queue_len(struct sl_queue *q);
int sl_queue_fd(const struct sl_queue *q);
/* Waits until something is there or timeout_ms passed (0 = look only); true when something is there.
 * sl_queue_wake() ends it early with false. */
bool sl_queue_wait(struct sl_queue *q, uint32_t timeout_ms);
/* Makes the fd readable without an item: wakes the receiver. */
void sl_queue_wake(struct sl_queue *q);

#endif
