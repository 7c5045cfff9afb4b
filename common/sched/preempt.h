/* common/sched/preempt.h - whose pages go when there are too few. A pure function.
 *
 * Victims lose computed KV and recompute it later, bit-equal. Never a pinned one (a transfer of its pages is
 * open), never the oldest (it always ends, so the pool always empties). Sequences without a grant go first,
 * then who loses least work, then the youngest. */
#ifndef SLUICE_COMMON_SCHED_PREEMPT_H
#define SLUICE_COMMON_SCHED_PREEMPT_H

#include "common/base/err.h"
#include <stdint.h>

struct sl_preempt_seq {
    uint64_t order;       /* of opening: the smallest is the oldest */
    uint32_t lost_tokens; /* computed KV in pages that nobody else uses */
    uint32_t gain_pages;  /* that become free or evictable */
    bool pinned, granted;
};

#define SL_PREEMPT_NONE UINT32_MAX
/* Index of the victim. With ungranted_only every sequence without a grant may go, also the oldest. */
uint32_t sl_preempt_pick(const struct sl_preempt_seq *seqs, uint32_t n, bool ungranted_only);

#endif
