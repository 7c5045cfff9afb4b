/* common/node/node_notify.c - libsystemd where the build has it. */
#include "common/node/node_notify.h"

#ifdef SL_HAVE_SYSTEMD
#include <systemd/sd-daemon.h>

void sl_notify(const char *state)
{
    sd_notify(0, state);
}

uint32_t sl_notify_watchdog_ms(void)
{
    uint64_t us = 0;
    if (sd_watchdog_enabled(0, &us) <= 0)
        return 0;
    return us / 1000 > UINT32_MAX ? UINT32_MAX : (uint32_t)(us / 1000);
}
#else
void sl_notify(const char *state)
{
    (void)state;
}

uint32_t sl_notify_watchdog_ms(void)
{
    return 0;
}
#endif
