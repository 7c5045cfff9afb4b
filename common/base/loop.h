/* common/base/loop.h - the event loop of one thread: epoll and timers. Used by the flow, engine and transfer
 * threads.
 *
 * Everything here belongs to the thread that calls sl_loop_run() or sl_loop_once(), except sl_loop_stop() and
 * sl_loop_wake(), which any thread may call. */
#ifndef SLUICE_COMMON_BASE_LOOP_H
#define SLUICE_COMMON_BASE_LOOP_H

#include <stdint.h>
#include "common/base/err.h"

struct sl_loop;  /* opaque */
struct sl_timer; /* opaque */

typedef void sl_loop_fd_fn(void *arg, uint32_t epoll_events);
typedef void sl_loop_timer_fn(void *arg);

SL_MUST_CHECK enum sl_err sl_loop_open(struct sl_loop **out);
/* takes NULL; fds and timers stay the caller's: timers are disarmed and may still be freed, not set */
void sl_loop_close(struct sl_loop *l);

/* events: EPOLLIN ...; level-triggered unless EPOLLET is given. Adding an fd that is there changes it. */
SL_MUST_CHECK enum sl_err sl_loop_add(struct sl_loop *l, int fd, uint32_t events, sl_loop_fd_fn *fn,
                                      void *arg);
void sl_loop_remove(struct sl_loop *l, int fd); /* safe inside a callback, also for another fd */

/* A timer that is not armed. sl_timer_set arms it once, after_ms from now (0 = next round); it may be set
 * again from its own callback. sl_timer_free is safe inside its own callback. */
struct sl_timer *sl_timer_new(struct sl_loop *l, sl_loop_timer_fn *fn, void *arg);
void sl_timer_free(struct sl_timer *t); /* takes NULL */
void sl_timer_set(struct sl_timer *t, uint64_t after_ms);
void sl_timer_clear(struct sl_timer *t);
/* Inside t's callback, before it is set again: how much later than asked it is called. For so long this
 * thread did not run, as when the process or the machine was stopped, or it was busy; see sl_heard_ms(). */
uint64_t sl_timer_late_ms(const struct sl_timer *t);

/* One round: waits at most max_wait_ms (or until the next timer), runs what is due. */
void sl_loop_once(struct sl_loop *l, uint32_t max_wait_ms);
void sl_loop_run(struct sl_loop *l); /* until sl_loop_stop */
void sl_loop_stop(struct sl_loop *l);
void sl_loop_wake(struct sl_loop *l);

#endif
