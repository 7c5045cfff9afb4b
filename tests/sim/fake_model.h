/* tests/sim/fake_model.h - stands in for common/model and the backends: KV is a hash of the tokens before it,
 * so that one wrong page, stale position or lost byte changes every token after it.
 *
 * Linked as objects into a test, it replaces sl_model_*() and sl_backend_find(); sampler and engine are the
 * real ones. KV of a position depends on its token and on the KV of several earlier positions, read from the
 * pages. */
#ifndef SLUICE_TESTS_SIM_FAKE_MODEL_H
#define SLUICE_TESTS_SIM_FAKE_MODEL_H

#include "common/model/model.h"

#define FAKE_VOCAB   64u
#define FAKE_CONTEXT 512u

/* Tokens that the model may choose from: few make its text repeat itself. 1..FAKE_VOCAB, which it is at
 * first. */
void fake_alphabet(uint32_t n);
/* The clock of a test's engine: it goes on when the test says so, a millisecond at a time. Steps take no time
 * then, and no plan depends on the machine. */
uint64_t fake_clock_us(void);
uint64_t fake_tick_us(void);
/* KV of positions [0, n) of these tokens. */
void fake_kv(const int32_t *tokens, uint32_t n, uint64_t *kv);
/* The greedy token after the position with this KV. */
int32_t fake_next_token(uint64_t kv);
size_t fake_page_bytes(uint32_t page_tokens);
uint64_t fake_page_get(const void *base, uint32_t page_tokens, uint32_t page, uint32_t slot);
void fake_page_set(void *base, uint32_t page_tokens, uint32_t page, uint32_t slot, uint64_t kv);

/* While held, forward passes wait before they begin. fake_release() lets all go on. */
void fake_hold(void);
void fake_release(void);
/* Rows of the largest and of all passes since the last call. */
void fake_rows(uint32_t *largest, uint64_t *all);

#endif
