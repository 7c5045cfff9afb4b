/* common/grammar/token_bytes.h - the bytes of each token of a vocabulary, in an order in which beginnings are
 * shared. */
#ifndef SLUICE_COMMON_GRAMMAR_TOKEN_BYTES_H
#define SLUICE_COMMON_GRAMMAR_TOKEN_BYTES_H

#include <stddef.h>
#include <stdint.h>

#define SL_TOKEN_MAX_BYTES 512 /* of one token; longer ones count as without text */

/* The bytes of a token, n = 0: it stands for no text (control tokens). */
typedef const char *sl_token_bytes_fn(const void *arg, uint32_t id, size_t *n);

struct sl_token_bytes {
    uint32_t n_vocab, n;
    uint32_t *ids;    /* [n] tokens with text, by their bytes */
    uint16_t *shared; /* [n] leading bytes shared with the token before */
    uint32_t *at;     /* [n_vocab + 1] where the bytes of each token start in bytes */
    char *bytes;
};

/* Asks `of` for each of n_vocab tokens, twice, and copies. The caller's; only read afterwards, by any thread. */
struct sl_token_bytes *sl_token_bytes_new(uint32_t n_vocab, sl_token_bytes_fn *of, const void *arg);
void sl_token_bytes_free(struct sl_token_bytes *t); /* takes NULL */

#endif
