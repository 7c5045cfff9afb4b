/* common/base/log.c - formats into a stack buffer and writes once.
 *
 * No lock: write(2) of one line under PIPE_BUF does not interleave. No allocation either, so that it works
 * while the alloc guard is on and when memory has run out. Texts of outsiders may stand in a line: control
 * bytes become '?', so that nobody can forge a second line. */
#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"

#define LINE_MAX_BYTES 2048 /* below PIPE_BUF (4096) */
#define LEVEL_UNSET    (-1)

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
    ssize_t written;
    do
        written = write(STDERR_FILENO, line, len);
    while (written < 0 && errno == EINTR);
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
