/* common/grammar/constraint.h - which tokens may come next in a text that has to fit a program.
 *
 * A pure function of the program and the tokens taken so far: the same on every node, in every mode, after
 * every fault. One thread of execution, but for the set that sl_constraint_allowed() gave: any may read it.
 */
#ifndef SLUICE_COMMON_GRAMMAR_CONSTRAINT_H
#define SLUICE_COMMON_GRAMMAR_CONSTRAINT_H

#include "common/grammar/grammar.h"
#include "common/grammar/token_bytes.h"

struct sl_constraint; /* opaque */

/* tokens outlives it; takes program. ends: tokens that end a text; where it may end they are allowed, and
 * where nothing else is. mark: the token without bytes that SL_INSN_MARK means, -1 = none; others without bytes
 * may stand in free text and are passed over there. */
struct sl_constraint *sl_constraint_new(const struct sl_token_bytes *tokens, struct sl_grammar *program,
                                        const int32_t *ends, uint32_t n_ends, int32_t mark);
void sl_constraint_free(struct sl_constraint *c); /* takes NULL */

/* The set of allowed tokens, bit t % 64 of word t / 64: [(n_vocab + 63) / 64], until the next take. Never
 * empty when there are ends. Costs a walk over the vocabulary when the state of the text is a new one. */
const uint64_t *sl_constraint_allowed(struct sl_constraint *c);
/* The text goes on with a token. After one that was not allowed, or an end, only ends are. */
void sl_constraint_take(struct sl_constraint *c, int32_t token);

#endif
