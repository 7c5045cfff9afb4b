/* common/base/parallel.c - threads take items from one counter. */
#include "common/base/parallel.h"

#include <stdatomic.h>

#include "common/base/mem.h"
#include "common/base/thread.h"

struct loop {
    atomic_size_t next;
    size_t n_items;
    void (*fn)(void *arg, size_t item);
    void *arg;
};

static void work(void *arg)
{
    struct loop *l = arg;
    for (size_t i; (i = atomic_fetch_add(&l->next, 1)) < l->n_items;)
        l->fn(l->arg, i);
}

void sl_parallel_run(unsigned n_threads, size_t n_items, void (*fn)(void *arg, size_t item), void *arg)
{
    struct loop l = {.n_items = n_items, .fn = fn, .arg = arg};
    size_t n = n_threads < n_items ? n_threads : n_items, started = 0;
    struct sl_thread *threads = sl_xcalloc(n + 1, sizeof *threads);
    while (started + 1 < n && sl_thread_start(&threads[started], "sl-load", work, &l) == SL_OK)
        started++;
    work(&l);
    for (size_t i = 0; i < started; i++)
        sl_thread_join(&threads[i]);
    sl_free(threads);
}
