/* common/node/node_notify.h - what systemd hears: ready, stopping, alive. Nothing happens without systemd. */
#ifndef SLUICE_COMMON_NODE_NODE_NOTIFY_H
#define SLUICE_COMMON_NODE_NODE_NOTIFY_H

#include <stdint.h>

/* state as of sd_notify(3), "READY=1\nSTATUS=..." */
void sl_notify(const char *state);
/* Milliseconds between two signs of life that systemd wants, 0 = none. */
uint32_t sl_notify_watchdog_ms(void);

#endif
