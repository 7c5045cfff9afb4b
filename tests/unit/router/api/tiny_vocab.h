/* tests/unit/router/api/tiny_vocab.h - a vocabulary small enough to reason about: token id = byte, plus four
 * control tokens. */
#ifndef SLUICE_TESTS_UNIT_ROUTER_API_TINY_VOCAB_H
#define SLUICE_TESTS_UNIT_ROUTER_API_TINY_VOCAB_H

#include "common/text/tokenizer.h"

enum { TINY_IM_START = 256, TINY_IM_END, TINY_ENDOFTEXT, TINY_TILDES, TINY_TOOL_CALLS, TINY_N_VOCAB };

struct sl_tokenizer *tiny_tokenizer(void);

/* SmolLM2's chat template in shape. */
extern const char tiny_template[];

#endif
