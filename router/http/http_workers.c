/* router/http/http_workers.c - the queues are bounded together by max_waiting; a worker that is busy with one
 * call counts as free, which is right enough: calls take microseconds, and the few that take longer are why
 * there is more than one worker. */
#include "router/http/http_workers.h"

#include <stdatomic.h>
#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/queue.h"
#include "common/base/thread.h"
#include "router/http/http_call.h"

#define WAIT_MS     1000               /* a missed wake-up costs this much at shutdown */
#define LARGE_BYTES ((size_t)64 << 10) /* a body that may take longer than some 10 ms */

struct worker {
    struct sl_http_workers *all;
    struct sl_queue *queue;
    struct sl_thread thread;
    _Atomic uint32_t n_large; /* given to it and not done */
};

struct sl_http_workers {
    void (*run)(struct sl_http_call *c);
    _Atomic bool stop;
    uint32_t n;
    struct worker *workers; /* the first takes no large bodies */
};

static bool is_large(const struct sl_http_call *c)
{
    return c->body.len > LARGE_BYTES;
}

static void worker_main(void *arg)
{
    struct worker *w = arg;
    for (;;) {
        struct sl_http_call *c = sl_queue_pop(w->queue);
        if (c) {
            bool large = is_large(c);
            w->all->run(c);
            atomic_fetch_sub(&w->n_large, large);
        } else if (atomic_load(&w->all->stop)) {
            return;
        } else {
            sl_queue_wait(w->queue, WAIT_MS);
        }
    }
}

enum sl_err sl_http_workers_open(uint32_t n, uint32_t max_waiting, void (*run)(struct sl_http_call *c),
                                 struct sl_http_workers **out)
{
    struct sl_http_workers *w = sl_xcalloc(1, sizeof *w);
    w->run = run;
    n++;
    w->n = n;
    w->workers = sl_xcalloc(n, sizeof *w->workers);
    for (uint32_t i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "api-%u", i);
        w->workers[i].all = w;
        w->workers[i].queue = sl_queue_new(max_waiting / n + 1);
        enum sl_err err = sl_thread_start(&w->workers[i].thread, name, worker_main, &w->workers[i]);
        if (err) {
            sl_http_workers_close(w);
            return err;
        }
    }
    *out = w;
    return SL_OK;
}

void sl_http_workers_close(struct sl_http_workers *w)
{
    if (!w)
        return;
    atomic_store(&w->stop, true);
    for (uint32_t i = 0; i < w->n; i++) {
        if (!w->workers[i].queue)
            continue;
        sl_queue_wake(w->workers[i].queue);
        sl_thread_join(&w->workers[i].thread);
        sl_queue_free(w->workers[i].queue);
    }
    sl_free(w->workers);
    sl_free(w);
}

enum sl_err sl_http_workers_give(struct sl_http_workers *w, struct sl_http_call *c)
{
    bool large = is_large(c);
    struct worker *best = &w->workers[large];
    for (uint32_t i = 1; i < w->n && sl_queue_len(best->queue) > 0; i++) {
        struct worker *k = &w->workers[i];
        if ((large || atomic_load(&k->n_large) == 0) && sl_queue_len(k->queue) < sl_queue_len(best->queue))
            best = k;
    }
    atomic_fetch_add(&best->n_large, large);
    enum sl_err err = sl_queue_push(best->queue, c);
    if (err)
        atomic_fetch_sub(&best->n_large, large);
    return err;
}
