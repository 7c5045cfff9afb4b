/* common/sched/preempt.c - see preempt.h. */
#include "common/sched/preempt.h"

static bool better(const struct sl_preempt_seq *a, const struct sl_preempt_seq *b)
{
    if (a->granted != b->granted)
        return !a->granted;
    if (a->lost_tokens != b->lost_tokens)
        return a->lost_tokens < b->lost_tokens;
    return a->order > b->order;
}

uint32_t sl_preempt_pick(const struct sl_preempt_seq *seqs, uint32_t n, bool ungranted_only)
{
    uint32_t oldest = SL_PREEMPT_NONE, victim = SL_PREEMPT_NONE;
    for (uint32_t i = 0; i < n; i++)
        if (seqs[i].granted && (oldest == SL_PREEMPT_NONE || seqs[i].order < seqs[oldest].order))
            oldest = i;
    for (uint32_t i = 0; i < n; i++) {
        const struct sl_preempt_seq *s = &seqs[i];
        if (s->pinned || s->gain_pages == 0 || i == oldest || (ungranted_only && s->granted))
            continue;
        if (victim == SL_PREEMPT_NONE || better(s, &seqs[victim]))
            victim = i;
    }
    return victim;
}
