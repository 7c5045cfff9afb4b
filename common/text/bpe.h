/* common/text/bpe.h - byte-level BPE of one piece: merges neighbours, best rank first, the leftmost among
 * equals.
 *
 * Time O(n log n) in the length of the piece, memory 32 bytes per byte of the longest piece.
 * Threads: struct sl_bpe is immutable; one struct sl_bpe_work per thread. */
#ifndef SLUICE_COMMON_TEXT_BPE_H
#define SLUICE_COMMON_TEXT_BPE_H

#include <stdint.h>
#include "common/base/err.h"

#define SL_BPE_NO_ID UINT32_MAX

struct sl_bpe; /* opaque */

struct sl_bpe_merge {
    uint32_t left, right, merged; /* token ids; the index in the list is the rank */
};

/* byte_ids[b]: the token of the single byte b, or SL_BPE_NO_ID: such a byte is left out of the result, as the
 * reference implementation does. A pair that comes twice keeps its better rank. Copies. */
struct sl_bpe *sl_bpe_new(const uint32_t byte_ids[256], const struct sl_bpe_merge *merges, uint32_t n_merges);
void sl_bpe_free(struct sl_bpe *b); /* takes NULL */

/* Result list; grows up to max. Zero-initialise, set max. */
struct sl_id_list {
    uint32_t *ids;
    size_t n, cap, max;
};
SL_MUST_CHECK enum sl_err sl_id_list_add(struct sl_id_list *l, uint32_t id); /* SL_ETOOBIG past max */

/* Scratch memory, reused from piece to piece. Zero-initialise. */
struct sl_bpe_work {
    void *symbols;
    uint64_t *heap;
    size_t n_symbols, n_heap; /* capacities */
};
void sl_bpe_work_fini(struct sl_bpe_work *w);

/* Appends the tokens of piece[0..n). SL_ETOOBIG (list full, or n over 2^31), SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_bpe_encode(const struct sl_bpe *b, struct sl_bpe_work *w, const char *piece,
                                        size_t n, struct sl_id_list *out);

#endif
