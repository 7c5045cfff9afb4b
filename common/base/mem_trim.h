/* common/base/mem_trim.h - when a program that has done most of its work gives memory back.
 *
 * glibc gives back what lies at the end of a heap. After thousands of requests at once nearly all of the heaps is free and
 * stays in the process all the same, under the few blocks that live on. Walking the heaps gives it back, and holds up
 * whoever wants memory from the heap that is walked: so it is done when little is open, long enough for that not to be
 * a pause between two bursts, which would have to touch the memory anew, and only after enough has been taken. */
#ifndef SLUICE_COMMON_BASE_MEM_TRIM_H
#define SLUICE_COMMON_BASE_MEM_TRIM_H

#include <stdbool.h>
#include <stdint.h>

#define SL_TRIM_GROWN_BYTES (32ull << 20) /* since the last time: less is not worth a walk */
#define SL_TRIM_FEW         8             /* little is open: an eighth of the most since the last time */
#define SL_TRIM_QUIET_MS    20000         /* for so long */

struct sl_mem_trim { /* zeroed at start */
    uint64_t bytes;  /* that the process held after the last time */
    uint64_t quiet_since_ms;
    uint32_t most;
    bool quiet;
};

/* A look, now and then: open things, bytes in memory. True: it is time, and the caller says so when it is done. */
bool sl_mem_trim_due(struct sl_mem_trim *t, uint32_t open, uint64_t resident, uint64_t now_ms);
void sl_mem_trim_done(struct sl_mem_trim *t, uint32_t open, uint64_t resident);

/* A look that does it, and tells the log. */
void sl_mem_trim_look(struct sl_mem_trim *t, uint32_t open);

#endif
