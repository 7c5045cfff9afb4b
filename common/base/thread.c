/* common/base/thread.c - named threads, pinning, and the compute pool.
 *
 * The pool: the caller publishes (fn, arg), then raises `epoch`; workers spin on it for SPIN_NS and then
 * sleep on it (futex). `pending` counts workers that have not returned; the caller runs its own share and
 * waits for 0 the same way. An engine step is hundreds of runs a few microseconds apart, so the spin normally
 * wins; when a core is taken away the spinning side gives up its own after SPIN_NS and the pool is slow but
 * never stuck in a spin.
 *
 * No wake is lost: the sleeper counts itself in `sleepers` before the kernel compares `epoch`; the caller
 * raises `epoch` before it reads `sleepers` (both sequentially consistent), so one of the two sees the other.
 * The same holds for `pending` and `caller_sleeps`. Rejected: condition variables (a lock hand-over per
 * worker and run) a barrier per run (pool size 1 must cost nothing), and
 * sched_yield() in the spin: beside a busy stranger it costs a time slice of milliseconds, and two threads of
 * an unpinned pool that land on one core and yield to each other stay there (measured: one start in five). */
#include "common/base/thread.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define SPIN_NS          40000 /* two to three times the wake-up of a futex */
#define PAUSES_PER_CHECK 16
#define MAX_THREADS      1024
#define CACHE_LINE       64

struct start {
    void (*fn)(void *);
    void *arg;
    char name[16];
};

static void *thread_main(void *p)
{
    struct start s = *(struct start *)p;
    sl_free(p);
    pthread_setname_np(pthread_self(), s.name);
    s.fn(s.arg);
    return NULL;
}

enum sl_err sl_thread_start(struct sl_thread *t, const char *name, void (*fn)(void *), void *arg)
{
    struct start *s = sl_xcalloc(1, sizeof *s);
    s->fn = fn;
    s->arg = arg;
    snprintf(s->name, sizeof s->name, "%s", name);
    sigset_t all, before;
    sigfillset(&all);
    /* faults belong to the thread that made them: blocked, they would kill without the sanitizer's report */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    for (size_t i = 0; i < SL_COUNTOF(faults); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&t->handle, NULL, thread_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    t->started = rc == 0;
    if (rc == 0)
        return SL_OK;
    SL_ERROR("thread not started name=%s errno=%d", s->name, rc);
    sl_free(s);
    return SL_ENOMEM;
}

void sl_thread_join(struct sl_thread *t)
{
    if (!t->started)
        return;
    pthread_join(t->handle, NULL);
    t->started = false;
}

/* A number below CPU_SETSIZE at *s; moves *s behind it. */
static bool parse_cpu(const char **s, int *out)
{
    const char *c = *s;
    int v = 0;
    for (; *c >= '0' && *c <= '9'; c++) {
        v = v * 10 + (*c - '0');
        if (v >= CPU_SETSIZE)
            return false;
    }
    if (c == *s)
        return false;
    *s = c;
    *out = v;
    return true;
}

enum sl_err sl_cpu_list_parse(const char *cpus, int **out, size_t *n)
{
    if (!cpus || !*cpus) {
        *out = NULL;
        *n = 0;
        return SL_OK;
    }
    int *list = NULL;
    size_t len = 0;
    for (const char *s = cpus;;) {
        int first, last;
        if (!parse_cpu(&s, &first))
            goto bad;
        last = first;
        if (*s == '-') {
            s++;
            if (!parse_cpu(&s, &last) || last < first)
                goto bad;
        }
        if (len + (size_t)(last - first) + 1 > MAX_THREADS)
            goto bad;
        list = sl_xrealloc_array(list, len + (size_t)(last - first) + 1, sizeof *list);
        for (int c = first; c <= last; c++)
            list[len++] = c;
        if (*s == '\0')
            break;
        if (*s++ != ',')
            goto bad;
    }
    *out = list;
    *n = len;
    return SL_OK;
bad:
    sl_free(list);
    return SL_EPARSE;
}

static enum sl_err pin(pthread_t thread, int cpu)
{
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return SL_EINVAL;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0 ? SL_OK : SL_EINVAL;
}

enum sl_err sl_thread_pin(int cpu)
{
    return pin(pthread_self(), cpu);
}

struct sl_pool {
    /* written by the caller before epoch, read by the workers after it */
    sl_pool_fn *fn;
    void *arg;
    bool stop;
    _Alignas(CACHE_LINE) _Atomic uint32_t epoch;
    _Atomic uint32_t sleepers;
    _Alignas(CACHE_LINE) _Atomic uint32_t pending;
    _Atomic uint32_t caller_sleeps;
    _Alignas(CACHE_LINE) unsigned n_threads;
    unsigned n_started;
    void *raw; /* what sl_xcalloc gave, before alignment */
    struct worker *workers;
};

struct worker {
    struct sl_pool *pool;
    unsigned index;
    struct sl_thread thread;
};

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

static void futex_wait(_Atomic uint32_t *at, uint32_t while_equal)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, while_equal, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *at)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Spins until *at != value; false when SPIN_NS passed. */
static bool spin_while(_Atomic uint32_t *at, uint32_t value)
{
    uint64_t until = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_CHECK; i++) {
            if (atomic_load_explicit(at, memory_order_acquire) != value)
                return true;
            cpu_relax();
        }
        uint64_t now = sl_now_ns();
        if (until == 0)
            until = now + SPIN_NS;
        else if (now >= until)
            return false;
    }
}

static void wait_for_epoch(struct sl_pool *p, uint32_t seen)
{
    if (spin_while(&p->epoch, seen))
        return;
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->epoch) == seen)
        futex_wait(&p->epoch, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void worker_main(void *arg)
{
    struct worker *w = arg;
    struct sl_pool *p = w->pool;
    for (uint32_t seen = 0;; seen++) {
        wait_for_epoch(p, seen);
        if (p->stop)
            return;
        p->fn(p->arg, w->index, p->n_threads);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_sleeps))
            futex_wake_all(&p->pending);
    }
}

static void release_workers(struct sl_pool *p)
{
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleepers))
        futex_wake_all(&p->epoch);
}

static void wait_for_workers(struct sl_pool *p)
{
    uint32_t left;
    while ((left = atomic_load_explicit(&p->pending, memory_order_acquire)) != 0) {
        if (spin_while(&p->pending, left))
            continue;
        atomic_store(&p->caller_sleeps, 1);
        while ((left = atomic_load(&p->pending)) != 0)
            futex_wait(&p->pending, left);
        atomic_store(&p->caller_sleeps, 0);
    }
}

enum sl_err sl_pool_open(unsigned n_threads, const int *cpus, size_t n_cpus, struct sl_pool **out)
{
    if (n_threads == 0 || n_threads > MAX_THREADS)
        return SL_EINVAL;
    void *raw = sl_xcalloc(1, sizeof(struct sl_pool) + CACHE_LINE);
    struct sl_pool *p = (struct sl_pool *)(((uintptr_t)raw + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    p->raw = raw;
    p->n_threads = n_threads;
    p->n_started = 1; /* the caller */
    p->workers = sl_xcalloc(n_threads, sizeof *p->workers);
    enum sl_err err = SL_OK;
    for (unsigned i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->index = i;
        char name[16];
        snprintf(name, sizeof name, "sl-pool-%u", i);
        err = sl_thread_start(&w->thread, name, worker_main, w);
        if (err != SL_OK)
            goto close;
        p->n_started++;
        if (n_cpus && (err = pin(w->thread.handle, cpus[i % n_cpus])) != SL_OK)
            goto close;
    }
    *out = p;
    return SL_OK;
close:
    sl_pool_close(p);
    return err;
}

void sl_pool_close(struct sl_pool *p)
{
    if (!p)
        return;
    p->stop = true;
    release_workers(p);
    for (unsigned i = 1; i < p->n_started; i++)
        sl_thread_join(&p->workers[i].thread);
    sl_free(p->workers);
    sl_free(p->raw);
}

unsigned sl_pool_size(const struct sl_pool *p)
{
    return p->n_threads;
}

void sl_pool_run(struct sl_pool *p, sl_pool_fn *fn, void *arg)
{
    if (p->n_threads > 1) {
        p->fn = fn;
        p->arg = arg;
        atomic_store_explicit(&p->pending, p->n_threads - 1, memory_order_relaxed);
        release_workers(p);
    }
    fn(arg, 0, p->n_threads);
    if (p->n_threads > 1)
        wait_for_workers(p);
}
