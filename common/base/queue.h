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

struct sl_queue *sl_queue_new(size_t max_items);
void sl_queue_free(struct sl_queue *q); /* takes NULL; the items left are the caller's: pop them first */
SL_MUST_CHECK enum sl_err sl_queue_push(struct sl_queue *q, void *item); /* SL_EAGAIN when full */
void *sl_queue_pop(struct sl_queue *q); /* NULL when empty; clears the eventfd then */
size_t sl_queue_len(struct sl_queue *q);
int sl_queue_fd(const struct sl_queue *q);
/* Waits until something is there or timeout_ms passed (0 = look only); true when something is there. */
bool sl_queue_wait(struct sl_queue *q, uint32_t timeout_ms);
/* Makes the fd readable without an item: wakes the receiver. */
void sl_queue_wake(struct sl_queue *q);

#endif
