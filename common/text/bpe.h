/* common/text/bpe.h - byte pair encoding of one piece: merges neighbours, best rank first, the leftmost among
 * equals.
 *
 * Works on ids; what they are at the start (bytes, characters) is alphabet.h's business.
 * Time O(n log n) in the length of the piece, memory 36 bytes per symbol of the longest piece.
 * Threads: struct sl_bpe is immutable; one struct sl_bpe_work per thread. */
#ifndef SLUICE_COMMON_TEXT_BPE_H
#define SLUICE_COMMON_TEXT_BPE_H

#include <stdint.h>
#include "common/base/err.h"

#define SL_BPE_MAX_IDS    (1u << 21)
#define SL_BPE_MAX_MERGES ((1u << 22) - 1)

struct sl_bpe; /* opaque */

struct sl_bpe_merge {
    uint32_t left, right, merged, rank; /* rank < UINT32_MAX; different pairs may have the same one */
};

/* A pair that comes twice keeps its first entry. Copies. Ids and n_merges within the limits above. */
struct sl_bpe *sl_bpe_new(const struct sl_bpe_merge *merges, size_t n_merges);
void sl_bpe_free(struct sl_bpe *b); /* takes NULL */

/* Scratch memory, reused from piece to piece. Zero-initialise. */
struct sl_bpe_work {
    uint32_t *ids;
    size_t n_ids;
    void *symbols;
    uint64_t *heap;
    size_t n_symbols;
};
void sl_bpe_work_fini(struct sl_bpe_work *w);

/* Room for n ids in w, for the caller to fill; NULL when there is no memory. */
uint32_t *sl_bpe_ids(struct sl_bpe_work *w, size_t n);

/* Merges ids[0..*n) where they stand and sets *n to how many are left. SL_ETOOBIG (*n over 2^31), SL_ENOMEM.
 */
SL_MUST_CHECK enum sl_err sl_bpe_merge(const struct sl_bpe *b, struct sl_bpe_work *w, uint32_t *ids,
                                       size_t *n);

#endif
