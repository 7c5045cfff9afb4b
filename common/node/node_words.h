/* common/node/node_words.h - the bytes of the model's tokens, which constraints (common/grammar) need. Read
 * from the model file by a thread of its own while the node already serves: no start waits for them. */
#ifndef SLUICE_COMMON_NODE_NODE_WORDS_H
#define SLUICE_COMMON_NODE_NODE_WORDS_H

#include "common/base/err.h"
#include "common/grammar/token_bytes.h"

struct sl_node_words; /* opaque */

/* Begins to read; model is borrowed. n_vocab: as many as the model has logits; a vocabulary that is shorter stands
 * for no text beyond its end. */
struct sl_node_words *sl_node_words_open(const char *model, uint32_t n_vocab);
void sl_node_words_close(struct sl_node_words *w); /* takes NULL; waits for the reading */

/* Waits for the reading when it is not over: some 0.1 s after the start at most. The words live as long as w.
 * An error when the model's files have no vocabulary that can be read; why says it. */
SL_MUST_CHECK enum sl_err sl_node_words_get(struct sl_node_words *w, const struct sl_token_bytes **out,
                                            struct sl_why *why);

#endif
