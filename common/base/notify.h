/* common/base/notify.h - what systemd hears: ready, stopping, alive. Nothing happens without systemd. Any
 * thread. */
#ifndef SLUICE_COMMON_BASE_NOTIFY_H
#define SLUICE_COMMON_BASE_NOTIFY_H

#include <stdint.h>

#include "common/base/err.h"

/* state as of sd_notify(3), "READY=1\nSTATUS=..."; cut at SL_NOTIFY_MAX bytes. */
void sl_notify(const char *fmt, ...) SL_PRINTF(1, 2);
/* Milliseconds between two signs of life that systemd wants, 0 = none. */
uint32_t sl_notify_watchdog_ms(void);

#define SL_NOTIFY_MAX 512

#endif
