/* common/base/start_signals.c - a thread waits for a signal or for the end of the start. */
#include "common/base/start_signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/log.h"

static void watch(void *arg)
{
    struct sl_start_signals *s = arg;
    struct pollfd p[] = {{.fd = s->over[0], .events = POLLIN}, {.fd = s->signal_fd, .events = POLLIN}};
    while (poll(p, 2, -1) < 0 && errno == EINTR)
        ;
    if (p[0].revents)
        return;
    SL_INFO("stopped while it was starting");
    _exit(0);
}

void sl_start_signals_keep_reload(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

enum sl_err sl_start_signals_begin(struct sl_start_signals *s, struct sl_why *why)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    memset(s, 0, sizeof *s);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (s->signal_fd < 0)
        return sl_why_set(why, SL_EIO, "signals cannot be received: %s", strerror(errno));
    if (pipe2(s->over, O_CLOEXEC) != 0) {
        close(s->signal_fd);
        return sl_why_set(why, SL_EIO, "no pipe: %s", strerror(errno));
    }
    if (sl_thread_start(&s->thread, "start-signals", watch, s) == SL_OK)
        return SL_OK;
    close(s->signal_fd);
    close(s->over[0]);
    close(s->over[1]);
    return sl_why_set(why, SL_EIO, "no thread for signals");
}

void sl_start_signals_end(struct sl_start_signals *s)
{
    close(s->over[1]);
    sl_thread_join(&s->thread);
    close(s->over[0]);
    close(s->signal_fd);
}
