/* common/sched/draft.h - guesses the next tokens of a sequence from its own text: prompt lookup. A pure
 * function.
 *
 * Where the last tokens occurred before, what followed then may follow again: copied text, lists, code, a
 * model in a loop. A wrong guess costs a row of the next step, never a token (speculate.h). */
#ifndef SLUICE_COMMON_SCHED_DRAFT_H
#define SLUICE_COMMON_SCHED_DRAFT_H

#include <stdint.h>

#define SL_DRAFT_MIN_MATCH 2u  /* tokens that must agree: one alone recurs anywhere */
#define SL_DRAFT_MAX_MATCH 16u /* more agreement tells nothing more */

/* Finds the earlier place that agrees with the longest end of tokens[0, n), of equally long ones the latest,
 * and writes what followed there to tokens[n, n + n_draft): where the text ends it repeats what it wrote, so
 * a loop goes on. Returns how many tokens agree; 0 = nothing found, nothing written. */
uint32_t sl_draft_lookup(int32_t *tokens, uint32_t n, uint32_t n_draft);

#endif
