/* A signal while a daemon starts ends it; one that comes later is left for whoever serves. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/start_signals.h"

#define GIVE_UP_S 120 /* a child that nothing ends */

static void block(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void signal_while_starting_ends_the_process(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(signals); i++) {
        int ready[2];
        char byte;
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        if (child == 0) {
            struct sl_start_signals s;
            struct sl_why why = {{0}};
            alarm(GIVE_UP_S);
            block();
            if (sl_start_signals_begin(&s, &why) != SL_OK)
                _exit(1);
            if (write(ready[1], "", 1) != 1)
                _exit(1);
            for (;;)
                pause();
        }
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        int status;
        kill(child, signals[i]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void signal_after_the_start_waits_for_whoever_serves(void **state)
{
    (void)state;
    struct sl_start_signals s;
    struct sl_why why = {{0}};
    sigset_t pending;
    block();
    assert_int_equal(sl_start_signals_begin(&s, &why), SL_OK);
    sl_start_signals_end(&s);
    kill(getpid(), SIGTERM);
    sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGTERM), 1);
}

static void reload_asked_for_while_loading_waits(void **state)
{
    (void)state;
    sigset_t pending;
    sl_start_signals_keep_reload();
    kill(getpid(), SIGHUP);
    sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGHUP), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signal_while_starting_ends_the_process),
        cmocka_unit_test(signal_after_the_start_waits_for_whoever_serves),
        cmocka_unit_test(reload_asked_for_while_loading_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
