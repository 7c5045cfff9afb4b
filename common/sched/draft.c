/* common/sched/draft.c - one scan backwards, no index.
 *
 * The scan reads 4 bytes per token of context where the attention of the same step reads kilobytes, so an
 * index (memory per sequence, rebuilt after a migration) would save nothing that can be seen. */
#include "common/sched/draft.h"

/* How many tokens before `at` and before n agree, at most SL_DRAFT_MAX_MATCH. */
static uint32_t agreement(const int32_t *tokens, uint32_t at, uint32_t n)
{
    uint32_t k = 0;
    while (k < at && k < SL_DRAFT_MAX_MATCH && tokens[at - 1 - k] == tokens[n - 1 - k])
        k++;
    return k;
}

uint32_t sl_draft_lookup(int32_t *tokens, uint32_t n, uint32_t n_draft)
{
    uint32_t best = SL_DRAFT_MIN_MATCH - 1, from = 0;
    for (uint32_t at = n > 0 ? n - 1 : 0; at > best && best < SL_DRAFT_MAX_MATCH; at--) {
        if (tokens[at - 1] != tokens[n - 1])
            continue;
        uint32_t k = agreement(tokens, at, n);
        if (k > best) {
            best = k;
            from = at;
        }
    }
    if (!from)
        return 0;
    for (uint32_t i = 0; i < n_draft; i++)
        tokens[n + i] = tokens[from + i];
    return best;
}
