/* common/text/alphabet.h - what BPE starts from: the symbols of a text.
 *
 * Two kinds: every byte is a symbol (byte-level BPE), or every character is (SentencePiece and its like). A
 * character that no token has falls back to its bytes, or to the unknown token when the vocabulary has none
 * for them.
 *
 * A SentencePiece vocabulary may have tokens with a character that is no token alone. Such a character gets
 * an id behind the vocabulary's, so that it can merge; what is left of them after merging is written by
 * sl_alphabet_emit().
 *
 * Threads: immutable once filled. */
#ifndef SLUICE_COMMON_TEXT_ALPHABET_H
#define SLUICE_COMMON_TEXT_ALPHABET_H

#include <stdint.h>
#include "common/base/err.h"

struct sl_alphabet; /* opaque */

struct sl_alphabet_conf {
    bool bytes;             /* byte-level */
    uint32_t n_vocab;       /* ids from here on are characters without a token */
    uint32_t unk;           /* SL_VOCAB_NO_ID: what has no symbol is left out, as the reference does */
    uint32_t byte_ids[256]; /* of a byte, or of the token that stands for one; SL_VOCAB_NO_ID = none */
};

struct sl_alphabet *sl_alphabet_new(const struct sl_alphabet_conf *conf);
void sl_alphabet_free(struct sl_alphabet *a); /* takes NULL */

/* Not byte-level: the character's token. The first one given stays. */
void sl_alphabet_add_char(struct sl_alphabet *a, uint32_t cp, uint32_t id);
/* The character's id, which it gets now if it has none. */
uint32_t sl_alphabet_char_id(struct sl_alphabet *a, uint32_t cp);

/* All ids are below: those of the vocabulary and of characters without a token. */
uint32_t sl_alphabet_n_ids(const struct sl_alphabet *a);

/* Characters a and b stand beside each other in a token that merges can make; text may only be cut (below)
 * where no such pair is. */
void sl_alphabet_join(struct sl_alphabet *a, uint32_t left, uint32_t right);

/* Not byte-level. The end of the first part of text[0..n), n > 0, across whose end no merge can reach; parts
 * can be encoded one by one. text must be valid UTF-8. */
size_t sl_alphabet_part(const struct sl_alphabet *a, const char *text, size_t n);

/* Writes the symbols of valid UTF-8 text[0..n) to ids, at most one per byte, and returns how many. */
size_t sl_alphabet_symbols(const struct sl_alphabet *a, const char *text, size_t n, uint32_t *ids);

/* The token of a byte, or of the token that stands for it; SL_VOCAB_NO_ID = none. */
uint32_t sl_alphabet_byte(const struct sl_alphabet *a, uint8_t byte);

/* The tokens for a symbol behind the vocabulary, at most 4; returns how many. */
size_t sl_alphabet_emit(const struct sl_alphabet *a, uint32_t id, uint32_t ids[4]);

#endif
