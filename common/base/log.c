/* common/base/log.c - formats into a stack buffer and writes once.
 *
 * No allocation, so that it works while the alloc guard is on and when memory has run out. Texts of outsiders
 * may stand in a line: control bytes become '?', so that nobody can forge a second line.
 *
 * Who reads the log may hang, and every thread writes to it: a line waits a moment for its reader, and is lost and
 * counted then, as are those behind it until there is room again. One thread looks for room and writes at a time, or
 * another could take the room that was seen. */
#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"

#define LINE_MAX_BYTES 2048 /* below PIPE_BUF (4096) */
#define LEVEL_UNSET    (-1)
#define READER_MS      100 /* a reader that is only slow takes the next lines by then */

static _Atomic int current_level = LEVEL_UNSET;

static const char *const level_words[] = {"error", "warn", "info", "debug", "trace"};
/* syslog priorities: err, warning, info, debug, debug */
static const char priorities[] = {'3', '4', '6', '7', '7'};

enum sl_err sl_log_level_parse(const char *word, enum sl_log_level *out)
{
    for (size_t i = 0; i < SL_COUNTOF(level_words); i++)
        if (strcmp(word, level_words[i]) == 0) {
            *out = (enum sl_log_level)i;
            return SL_OK;
        }
    return SL_EINVAL;
}

void sl_log_set_level(enum sl_log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

bool sl_log_on(enum sl_log_level level)
{
    int cur = atomic_load_explicit(&current_level, memory_order_relaxed);
    if (cur == LEVEL_UNSET) {
        enum sl_log_level from_env = SL_LOG_INFO;
        const char *env = getenv("SLUICE_LOG");
        if (env && sl_log_level_parse(env, &from_env) != SL_OK)
            from_env = SL_LOG_INFO;
        /* a sl_log_set_level() of another thread that came in between wins */
        if (atomic_compare_exchange_strong(&current_level, &cur, (int)from_env))
            cur = (int)from_env;
    }
    return (int)level <= cur;
}

static void write_line(const char *line, size_t len)
{
    ssize_t written;
    do
        written = write(STDERR_FILENO, line, len);
    while (written < 0 && errno == EINTR);
}

/* Whether a line goes at once: what poll() calls writable takes PIPE_BUF bytes. */
static bool has_room(int wait_ms)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    int rv;
    do
        rv = poll(&p, 1, wait_ms);
    while (rv < 0 && errno == EINTR);
    return rv != 0; /* an error is write(2)'s to find */
}

static void put(const char *line, size_t len)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static unsigned n_lost;
    pthread_mutex_lock(&lock);
    bool room = has_room(n_lost ? 0 : READER_MS);
    if (room && n_lost) {
        char loss[96];
        int n = snprintf(loss, sizeof loss, "<4>the reader of the log hung, lines were lost n=%u\n", n_lost);
        write_line(loss, (size_t)n);
        n_lost = 0;
        room = has_room(READER_MS);
    }
    if (room)
        write_line(line, len);
    else
        n_lost++;
    pthread_mutex_unlock(&lock);
}

void sl_log(enum sl_log_level level, const char *fmt, ...)
{
    if (!sl_log_on(level))
        return;
    int saved_errno = errno;
    char line[LINE_MAX_BYTES];
    line[0] = '<';
    line[1] = priorities[level];
    line[2] = '>';
    const size_t room = sizeof line - 4; /* less the priority and the newline */
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + 3, room + 1, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n;
    if (len > room) {
        len = room;
        memcpy(line + 3 + room - 3, "...", 3);
    }
    for (size_t i = 3; i < 3 + len; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = line[i] == '\t' ? '\t' : '?';
    len += 3;
    line[len++] = '\n';
    put(line, len);
    errno = saved_errno;
}

bool sl_log_allow(struct sl_log_limit *l, unsigned period_ms, unsigned *suppressed)
{
    unsigned long long now = sl_now_ms();
    unsigned long long next = __atomic_load_n(&l->next_ms, __ATOMIC_RELAXED);
    if (now < next || !__atomic_compare_exchange_n(&l->next_ms, &next, now + period_ms, false,
                                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&l->suppressed, 1, __ATOMIC_RELAXED);
        return false;
    }
    *suppressed = __atomic_exchange_n(&l->suppressed, 0, __ATOMIC_RELAXED);
    return true;
}
