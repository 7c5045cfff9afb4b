/* kernels/cpu/cpu_pool.c - items for whoever has time.
 *
 * A forward pass is hundreds of runs of some microseconds. If each had to hear from every thread, a thread
 * that lost its core to somebody else's process would hold up every run by a time slice, though its share was
 * long done by the others. So a thread that comes late finds nothing and hurts nobody; only one that lost its
 * core in the middle of an item is waited for.
 *
 * One word says it all: run number, number of items, next item. A thread takes an item by adding 1; the word
 * it gets back tells whether that was an item, and of a run that cannot be over before this item is: so `fn`
 * and `arg`, which are plain, may be read then. A late thread may take an item of a newer run than the one it
 * woke for: that is as good. `left` counts items not done; a thread takes off all that it did when it finds
 * no more.
 *
 * Waiting is a spin, then sleep (common/base/spin_wait.h). No wake is lost: the sleeper counts itself before the kernel
 * compares, the waker changes the word before it looks at the count. */
#include "kernels/cpu/cpu_pool.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/spin_wait.h"
#include "common/base/thread.h"

#define MAX_THREADS 1024
#define LINE        64

struct worker {
    struct sl_cpu_pool *pool;
    unsigned index;
    struct sl_thread thread;
};

struct sl_cpu_pool {
    _Alignas(LINE) _Atomic uint64_t state; /* run << 48 | n_items << 24 | next item */
    _Alignas(LINE) _Atomic uint32_t left;
    _Atomic uint32_t caller_sleeps;
    _Alignas(LINE) _Atomic uint32_t run; /* what idle workers sleep on */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    /* plain: written before state is, read by who took an item */
    _Alignas(LINE) sl_cpu_item_fn *fn;
    void *arg;
    unsigned n_threads, n_started;
    struct worker *workers;
    void *raw; /* what was allocated, before alignment */
};

static uint32_t n_items_of(uint64_t state)
{
    return state >> 24 & 0xffffff;
}

static uint32_t next_of(uint64_t state)
{
    return state & 0xffffff;
}

static void do_items(struct sl_cpu_pool *p, unsigned worker)
{
    uint32_t done = 0;
    /* looked at before it is added to: an idle thread must not count the word up without end */
    uint64_t s = atomic_load_explicit(&p->state, memory_order_relaxed);
    while (next_of(s) < n_items_of(s)) {
        s = atomic_fetch_add_explicit(&p->state, 1, memory_order_acq_rel);
        if (next_of(s) >= n_items_of(s))
            break;
        p->fn(p->arg, next_of(s), worker);
        done++;
    }
    if (done > 0 && atomic_fetch_sub(&p->left, done) == done && atomic_load(&p->caller_sleeps))
        sl_word_wake(&p->left);
}

static void worker_main(void *arg)
{
    struct worker *w = arg;
    struct sl_cpu_pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        if (!sl_word_spin(&p->run, seen)) {
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->run) == seen)
                sl_word_sleep(&p->run, seen);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen = atomic_load(&p->run);
        if (atomic_load_explicit(&p->stop, memory_order_acquire))
            return;
        do_items(p, w->index);
    }
}

static void wake_workers(struct sl_cpu_pool *p)
{
    atomic_fetch_add(&p->run, 1);
    if (atomic_load(&p->sleepers))
        sl_word_wake(&p->run);
}

static void wait_for_items(struct sl_cpu_pool *p)
{
    uint32_t left;
    while ((left = atomic_load_explicit(&p->left, memory_order_acquire)) != 0) {
        if (sl_word_spin(&p->left, left))
            continue;
        atomic_store(&p->caller_sleeps, 1);
        while ((left = atomic_load(&p->left)) != 0)
            sl_word_sleep(&p->left, left);
        atomic_store(&p->caller_sleeps, 0);
    }
}

void sl_cpu_pool_run(struct sl_cpu_pool *p, uint32_t n_items, sl_cpu_item_fn *fn, void *arg)
{
    if (p->n_threads == 1 || n_items <= 1) {
        for (uint32_t i = 0; i < n_items; i++)
            fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->left, n_items, memory_order_relaxed);
    uint64_t run = (atomic_load_explicit(&p->state, memory_order_relaxed) >> 48) + 1;
    atomic_store_explicit(&p->state, run << 48 | (uint64_t)n_items << 24, memory_order_release);
    wake_workers(p);
    do_items(p, 0);
    wait_for_items(p);
}

static enum sl_err start_worker(struct sl_cpu_pool *p, unsigned i, const int *cpus, size_t n_cpus)
{
    struct worker *w = &p->workers[i];
    char name[16];
    w->pool = p;
    w->index = i;
    snprintf(name, sizeof name, "sl-cpu-%u", i);
    enum sl_err e = sl_thread_start(&w->thread, name, worker_main, w);
    if (e != SL_OK)
        return e;
    p->n_started++;
    if (n_cpus == 0)
        return SL_OK;
    int cpu = cpus[i % n_cpus];
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return SL_EINVAL;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    return pthread_setaffinity_np(w->thread.handle, sizeof set, &set) == 0 ? SL_OK : SL_EINVAL;
}

enum sl_err sl_cpu_pool_open(unsigned n_threads, const int *cpus, size_t n_cpus, struct sl_cpu_pool **out)
{
    if (n_threads == 0 || n_threads > MAX_THREADS)
        return SL_EINVAL;
    void *raw = sl_xcalloc(1, sizeof(struct sl_cpu_pool) + LINE);
    struct sl_cpu_pool *p = (struct sl_cpu_pool *)(((uintptr_t)raw + LINE - 1) & ~(uintptr_t)(LINE - 1));
    p->raw = raw;
    p->n_threads = n_threads;
    p->n_started = 1; /* the caller */
    p->workers = sl_xcalloc(n_threads, sizeof *p->workers);
    for (unsigned i = 1; i < n_threads; i++) {
        enum sl_err e = start_worker(p, i, cpus, n_cpus);
        if (e != SL_OK) {
            sl_cpu_pool_close(p);
            return e;
        }
    }
    *out = p;
    return SL_OK;
}

void sl_cpu_pool_close(struct sl_cpu_pool *p)
{
    if (!p)
        return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    wake_workers(p);
    for (unsigned i = 1; i < p->n_started; i++)
        sl_thread_join(&p->workers[i].thread);
    sl_free(p->workers);
    sl_free(p->raw);
}
