/* common/base/thread.c - see thread.h. */
#include "common/base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"

#define MAX_THREADS 1024

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
