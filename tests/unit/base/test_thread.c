/* Threads, CPU lists and the compute pool of common/base/thread. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/thread.h"

struct seen {
    char name[32];
    bool blocks_term, blocks_segv;
    pthread_t self;
};

static void look_at_itself(void *arg)
{
    struct seen *s = arg;
    sigset_t set;
    pthread_getname_np(pthread_self(), s->name, sizeof s->name);
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    s->blocks_term =
        sigismember(&set, SIGTERM) == 1 && sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGHUP) == 1;
    s->blocks_segv = sigismember(&set, SIGSEGV) == 1;
    s->self = pthread_self();
}

static void start_thread_is_named_and_takes_no_signals(void **state)
{
    (void)state;
    struct sl_thread t = {0};
    struct seen s = {.name = ""};
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(sl_thread_start(&t, "a-name-that-is-far-too-long", look_at_itself, &s), SL_OK);
    assert_true(t.started);
    sl_thread_join(&t);
    assert_false(t.started);
    sl_thread_join(&t);
    assert_string_equal(s.name, "a-name-that-is-");
    assert_true(s.blocks_term);
    assert_false(s.blocks_segv);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
}

static void cpu_list_table(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum sl_err err;
        size_t n;
        int cpus[6];
    } table[] = {
        {NULL, SL_OK, 0, {0}},
        {"", SL_OK, 0, {0}},
        {"0", SL_OK, 1, {0}},
        {"0,2-3", SL_OK, 3, {0, 2, 3}},
        {"7-7,1,1023", SL_OK, 3, {7, 1, 1023}},
        {"4-8,0", SL_OK, 6, {4, 5, 6, 7, 8, 0}},
        {"3-2", SL_EPARSE, 0, {0}},
        {"1024", SL_EPARSE, 0, {0}},
        {"99999999999999999999", SL_EPARSE, 0, {0}},
        {"0,", SL_EPARSE, 0, {0}},
        {",0", SL_EPARSE, 0, {0}},
        {"0-", SL_EPARSE, 0, {0}},
        {"-1", SL_EPARSE, 0, {0}},
        {"0 1", SL_EPARSE, 0, {0}},
        {"0, 1", SL_EPARSE, 0, {0}},
        {"a", SL_EPARSE, 0, {0}},
        {"1-2-3", SL_EPARSE, 0, {0}},
        {"0-1023,0", SL_EPARSE, 0, {0}}, /* more than any pool takes */
    };
    for (size_t i = 0; i < SL_COUNTOF(table); i++) {
        int untouched, *cpus = &untouched;
        size_t n = 77;
        assert_int_equal(sl_cpu_list_parse(table[i].text, &cpus, &n), table[i].err);
        if (table[i].err != SL_OK) {
            assert_ptr_equal(cpus, &untouched);
            assert_int_equal(n, 77);
            continue;
        }
        assert_int_equal(n, table[i].n);
        for (size_t c = 0; c < n; c++)
            assert_int_equal(cpus[c], table[i].cpus[c]);
        sl_free(cpus);
    }
}

static int first_allowed_cpu(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET((size_t)c, &set))
            return c;
    return -1;
}

static void pin_self(void *arg)
{
    int *cpu = arg;
    *cpu = sl_thread_pin(*cpu) == SL_OK ? sched_getcpu() : -1;
}

static void pin_allowed_cpu_runs_there_others_refused(void **state)
{
    (void)state;
    int cpu = first_allowed_cpu(), ran_on = cpu;
    struct sl_thread t = {0};
    assert_int_equal(sl_thread_start(&t, "pinned", pin_self, &ran_on), SL_OK);
    sl_thread_join(&t);
    assert_int_equal(ran_on, cpu);
    assert_int_equal(sl_thread_pin(-1), SL_EINVAL);
    assert_int_equal(sl_thread_pin(CPU_SETSIZE), SL_EINVAL);
    if (sysconf(_SC_NPROCESSORS_CONF) < CPU_SETSIZE)
        assert_int_equal(sl_thread_pin(CPU_SETSIZE - 1), SL_EINVAL);
}

enum { MAX_WORKERS = 9 };

struct job {
    pthread_t caller;
    unsigned n_workers;
    _Atomic unsigned calls[MAX_WORKERS];
    int plain[MAX_WORKERS]; /* no atomics: the pool itself must order these */
    int input;
    _Atomic bool wrong;
};

static void work(void *arg, unsigned worker, unsigned n_workers)
{
    struct job *j = arg;
    if (n_workers != j->n_workers || worker >= n_workers ||
        (worker == 0) != (pthread_equal(pthread_self(), j->caller) != 0)) {
        atomic_store(&j->wrong, true);
        return;
    }
    atomic_fetch_add(&j->calls[worker], 1);
    j->plain[worker] = j->input + (int)worker;
}

static void run_checked(struct sl_pool *p, struct job *j, unsigned runs, useconds_t pause_us)
{
    for (unsigned r = 1; r <= runs; r++) {
        j->input = (int)r * 100;
        sl_pool_run(p, work, j);
        assert_false(atomic_load(&j->wrong));
        for (unsigned w = 0; w < j->n_workers; w++) {
            assert_int_equal(atomic_load(&j->calls[w]), r);
            assert_int_equal(j->plain[w], j->input + (int)w);
        }
        if (pause_us)
            usleep(pause_us);
    }
}

static void pool_every_worker_runs_once_per_run(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= MAX_WORKERS; n++) { /* most of them more than there are cores */
        struct sl_pool *p = NULL;
        assert_int_equal(sl_pool_open(n, NULL, 0, &p), SL_OK);
        assert_int_equal(sl_pool_size(p), n);
        struct job j = {.caller = pthread_self(), .n_workers = n};
        run_checked(p, &j, n <= 2 ? 2000 : 100, 0);
        sl_pool_close(p);
    }
    sl_pool_close(NULL);
}

static void pool_workers_that_fell_asleep_wake_up(void **state)
{
    (void)state;
    struct sl_pool *p = NULL;
    assert_int_equal(sl_pool_open(3, NULL, 0, &p), SL_OK);
    struct job j = {.caller = pthread_self(), .n_workers = 3};
    run_checked(p, &j, 50, 2000); /* far beyond the spin */
    sl_pool_close(p);
}

static void slow_on_workers(void *arg, unsigned worker, unsigned n_workers)
{
    (void)n_workers;
    if (worker)
        usleep(2000);
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void pool_caller_that_fell_asleep_wakes_up(void **state)
{
    (void)state;
    struct sl_pool *p = NULL;
    assert_int_equal(sl_pool_open(3, NULL, 0, &p), SL_OK);
    _Atomic int done = 0;
    for (int r = 1; r <= 30; r++) {
        sl_pool_run(p, slow_on_workers, &done);
        assert_int_equal(atomic_load(&done), 3 * r);
    }
    sl_pool_close(p);
}

struct elsewhere {
    struct sl_pool *pool;
    struct job *job;
};

static void run_elsewhere(void *arg)
{
    struct elsewhere *e = arg;
    e->job->caller = pthread_self();
    e->job->input = 5;
    sl_pool_run(e->pool, work, e->job);
}

static void pool_runs_from_a_thread_that_did_not_open_it(void **state)
{
    (void)state;
    struct sl_pool *p = NULL;
    assert_int_equal(sl_pool_open(2, NULL, 0, &p), SL_OK);
    struct job j = {.n_workers = 2};
    struct elsewhere e = {.pool = p, .job = &j};
    struct sl_thread t = {0};
    assert_int_equal(sl_thread_start(&t, "engine", run_elsewhere, &e), SL_OK);
    sl_thread_join(&t);
    assert_false(atomic_load(&j.wrong));
    assert_int_equal(j.plain[0], 5);
    assert_int_equal(j.plain[1], 6);
    sl_pool_close(p);
}

static void note_cpu(void *arg, unsigned worker, unsigned n_workers)
{
    (void)n_workers;
    ((int *)arg)[worker] = sched_getcpu();
}

static void pool_workers_are_pinned_and_the_caller_is_not(void **state)
{
    (void)state;
    int cpu = first_allowed_cpu(), ran_on[3] = {-1, -1, -1};
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    struct sl_pool *p = NULL;
    assert_int_equal(sl_pool_open(3, &cpu, 1, &p), SL_OK);
    sl_pool_run(p, note_cpu, ran_on);
    assert_int_equal(ran_on[1], cpu);
    assert_int_equal(ran_on[2], cpu);
    sl_pool_close(p);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static void pool_impossible_wishes_are_refused(void **state)
{
    (void)state;
    struct sl_pool *p = NULL;
    const int no_cpu[] = {0, CPU_SETSIZE};
    assert_int_equal(sl_pool_open(0, NULL, 0, &p), SL_EINVAL);
    assert_int_equal(sl_pool_open(100000, NULL, 0, &p), SL_EINVAL);
    assert_int_equal(sl_pool_open(3, no_cpu, 2, &p), SL_EINVAL);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_thread_is_named_and_takes_no_signals),
        cmocka_unit_test(cpu_list_table),
        cmocka_unit_test(pin_allowed_cpu_runs_there_others_refused),
        cmocka_unit_test(pool_every_worker_runs_once_per_run),
        cmocka_unit_test(pool_workers_that_fell_asleep_wake_up),
        cmocka_unit_test(pool_caller_that_fell_asleep_wakes_up),
        cmocka_unit_test(pool_runs_from_a_thread_that_did_not_open_it),
        cmocka_unit_test(pool_workers_are_pinned_and_the_caller_is_not),
        cmocka_unit_test(pool_impossible_wishes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
