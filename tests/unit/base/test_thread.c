/* Threads and CPU lists of common/base/thread. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_thread_is_named_and_takes_no_signals),
        cmocka_unit_test(cpu_list_table),
        cmocka_unit_test(pin_allowed_cpu_runs_there_others_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
