/* common/base/log.h - one line per event on stderr, "<N>" priority first so that journald sorts it.
 *
 * Fixed sentence first, then key=value, always req= or peer= where there is one:
 *     SL_WARN("page rejected by the receiver req=%s page=%u", ...);
 * error: a person must act; warn: work was lost; info: life cycle; debug: per request; trace: per step.
 * Any thread. A line is written with one write(2), or lost where who reads the log hangs. Default level: info, or the
 * environment's SLUICE_LOG. */
#ifndef SLUICE_COMMON_BASE_LOG_H
#define SLUICE_COMMON_BASE_LOG_H

#include "common/base/err.h"

enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG, SL_LOG_TRACE };

void sl_log_set_level(enum sl_log_level level);

/* "error" .. "trace"; SL_EINVAL on another word. */
SL_MUST_CHECK enum sl_err sl_log_level_parse(const char *word, enum sl_log_level *out);

bool sl_log_on(enum sl_log_level level);
void sl_log(enum sl_log_level level, const char *fmt, ...) SL_PRINTF(2, 3);

/* True at most once per period_ms for one static limiter; the caller then logs. *suppressed counts what was
 * held back since the last line. */
struct sl_log_limit {
    unsigned long long next_ms;
    unsigned suppressed;
};
bool sl_log_allow(struct sl_log_limit *l, unsigned period_ms, unsigned *suppressed);

#define SL_ERROR(...) sl_log(SL_LOG_ERROR, __VA_ARGS__)
#define SL_WARN(...)  sl_log(SL_LOG_WARN, __VA_ARGS__)
#define SL_INFO(...)  sl_log(SL_LOG_INFO, __VA_ARGS__)
#define SL_DEBUG(...) (sl_log_on(SL_LOG_DEBUG) ? sl_log(SL_LOG_DEBUG, __VA_ARGS__) : (void)0)
#define SL_TRACE(...) (sl_log_on(SL_LOG_TRACE) ? sl_log(SL_LOG_TRACE, __VA_ARGS__) : (void)0)

#endif
