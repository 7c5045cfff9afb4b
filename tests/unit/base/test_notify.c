/* tests/unit/base/test_notify.c - what a service manager receives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/notify.h"

static int manager(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    memcpy(at.sun_path, name, strlen(name));
    if (name[0] == '@')
        at.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(
        bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
        0);
    assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
    return fd;
}

static void heard(int fd, const char *want)
{
    char text[2 * SL_NOTIFY_MAX];
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    assert_true(n >= 0);
    text[n] = '\0';
    assert_string_equal(text, want);
}

static void state_reaches_a_path_and_an_abstract_socket(void **s)
{
    (void)s;
    char names[2][64];
    snprintf(names[0], sizeof names[0], "/tmp/sluice-notify-%d", (int)getpid());
    snprintf(names[1], sizeof names[1], "@sluice-notify-%d", (int)getpid());
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        int fd = manager(names[i]);
        sl_notify("READY=1\nSTATUS=loaded %d %%", 42);
        heard(fd, "READY=1\nSTATUS=loaded 42 %");
        close(fd);
    }
    unlink(names[0]);
}

static void state_that_is_too_long_is_cut(void **s)
{
    (void)s;
    char name[64], long_text[2 * SL_NOTIFY_MAX], want[SL_NOTIFY_MAX];
    snprintf(name, sizeof name, "@sluice-notify-%d", (int)getpid());
    int fd = manager(name);
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    sl_notify("%s", long_text);
    memset(want, 'x', sizeof want - 1);
    want[sizeof want - 1] = '\0';
    heard(fd, want);
    close(fd);
}

static void nobody_to_tell_is_no_error(void **s)
{
    (void)s;
    static const char *const names[] = {"/nonexistent/socket", "relative", "", "@nobody-listens-here"};
    unsetenv("NOTIFY_SOCKET");
    sl_notify("READY=1");
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        setenv("NOTIFY_SOCKET", names[i], 1);
        sl_notify("READY=1");
    }
    unsetenv("NOTIFY_SOCKET");
}

static void watchdog_is_of_this_process_only(void **s)
{
    (void)s;
    char pid[24];
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    assert_int_equal(sl_notify_watchdog_ms(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    assert_int_equal(sl_notify_watchdog_ms(), 30000);
    setenv("WATCHDOG_PID", "1", 1);
    assert_int_equal(sl_notify_watchdog_ms(), 0);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(sl_notify_watchdog_ms(), 30000);
    setenv("WATCHDOG_USEC", "soon", 1);
    assert_int_equal(sl_notify_watchdog_ms(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_reaches_a_path_and_an_abstract_socket),
        cmocka_unit_test(state_that_is_too_long_is_cut),
        cmocka_unit_test(nobody_to_tell_is_no_error),
        cmocka_unit_test(watchdog_is_of_this_process_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
