/* common/base/mem_trim.c - see mem_trim.h. */
#include "common/base/mem_trim.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/memory_info.h"

bool sl_mem_trim_due(struct sl_mem_trim *t, uint32_t open, uint64_t resident, uint64_t now_ms)
{
    if (open > t->most)
        t->most = open;
    bool quiet = open <= t->most / SL_TRIM_FEW;
    if (!quiet || !t->quiet)
        t->quiet_since_ms = now_ms;
    t->quiet = quiet;
    return quiet && now_ms - t->quiet_since_ms >= SL_TRIM_QUIET_MS && resident > t->bytes &&
           resident - t->bytes >= SL_TRIM_GROWN_BYTES;
}

void sl_mem_trim_done(struct sl_mem_trim *t, uint32_t open, uint64_t resident)
{
    *t = (struct sl_mem_trim){.bytes = resident, .most = open};
}

void sl_mem_trim_look(struct sl_mem_trim *t, uint32_t open)
{
    uint64_t before = sl_memory_resident(), since_us = sl_now_us();
    if (!sl_mem_trim_due(t, open, before, since_us / 1000))
        return;
    sl_mem_give_back();
    uint64_t us = sl_now_us() - since_us, after = sl_memory_resident();
    sl_mem_trim_done(t, open, after);
    SL_INFO("free memory given back before_mib=%" PRIu64 " after_mib=%" PRIu64 " took_us=%" PRIu64,
            before >> 20, after >> 20, us);
}
