/* common/base/notify.c - one datagram to the socket that NOTIFY_SOCKET names (sd_notify(3) documents both the
 * variables and the text). libsystemd would do the same and bring five libraries along. */
#include "common/base/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void sl_notify(const char *fmt, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof to.sun_path)
        return;
    memcpy(to.sun_path, path, strlen(path));
    if (path[0] == '@')
        to.sun_path[0] = '\0'; /* the abstract name space */
    char state[SL_NOTIFY_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(state, sizeof state, fmt, ap);
    va_end(ap);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    /* Nobody to tell when it fails, and no thread of a daemon waits for a manager that does not read: systemd finds
     * out by its own timeouts. */
    if (n >= 0)
        (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&to, len);
    close(fd);
}

uint32_t sl_notify_watchdog_ms(void)
{
    const char *us_text = getenv("WATCHDOG_USEC"), *pid_text = getenv("WATCHDOG_PID");
    if (!us_text || (pid_text && strtoll(pid_text, NULL, 10) != (long long)getpid()))
        return 0;
    char *end;
    unsigned long long us = strtoull(us_text, &end, 10);
    if (*end || us / 1000 > UINT32_MAX)
        return 0;
    return (uint32_t)(us / 1000);
}
