/* common/text/tokenizer.h - text to token ids and back: byte pair encoding over bytes (GGUF model "gpt2") or
 * characters (SentencePiece: "llama"; Hugging Face files: "bpe").
 *
 * Part of step 2 (prompt) and step 11 (output) of the request path.
 * Text is cut at special tokens where they may be recognised; what lies between is made ready (normalise.h),
 * cut into pieces (pretoken.h), and each piece goes through the merges (bpe.h). The rules are those that the
 * model file names or has itself; unknown ones are refused. A space in front of a text (SentencePiece) is put
 * in front of each stretch between special tokens, as llama.cpp and tokenizer.json have it, unless the file
 * says "first".
 *
 * What a user writes never becomes a control token: encode recognises them only with SL_TOK_PARSE_SPECIAL,
 * and then only outside the spans given as untrusted; a match that touches such a span does not count. The
 * text stays one text for the pre-tokeniser, so that harmless input gets the same ids as from the reference
 * implementations.
 *
 * Threads: immutable after open; any thread. */
#ifndef SLUICE_COMMON_TEXT_TOKENIZER_H
#define SLUICE_COMMON_TEXT_TOKENIZER_H

#include "common/base/buf.h"
#include "common/text/span.h"
#include "common/text/vocab.h"

struct sl_tokenizer; /* opaque */

/* Copies what it needs from src. Errors: SL_EUNSUPPORTED (model, pre-tokeniser or a pattern unknown),
 * SL_EINVAL (merges, scores, types or ids that do not fit), SL_ETOOBIG, SL_ENOMEM; *why says it in a
 * sentence. *out untouched on error. */
SL_MUST_CHECK enum sl_err sl_tokenizer_open(const struct sl_vocab_src *src, struct sl_tokenizer **out,
                                            struct sl_why *why);
void sl_tokenizer_close(struct sl_tokenizer *t); /* takes NULL */

enum {
    SL_TOK_ADD_SPECIAL = 1,  /* bos in front, eos behind, where the model file asks for them */
    SL_TOK_PARSE_SPECIAL = 2 /* recognise control tokens outside untrusted spans. Chat templates write bos
                                themselves: give this one alone for their output */
};

struct sl_encode_in {
    const char *text; /* bytes that are not UTF-8 count as U+FFFD */
    size_t len;
    unsigned flags;
    const struct sl_span *untrusted; /* ascending, disjoint; only looked at with SL_TOK_PARSE_SPECIAL */
    size_t n_untrusted;
    size_t max_tokens;
};

/* On SL_OK *ids is the caller's (sl_free), never NULL. SL_ETOOBIG: more than max_tokens; found early for
 * texts that cannot fit, so the work is bounded by max_tokens. SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_tokenizer_encode(const struct sl_tokenizer *t, const struct sl_encode_in *in,
                                              uint32_t **ids, size_t *n_ids, struct sl_why *why);

uint32_t sl_tokenizer_n_vocab(const struct sl_tokenizer *t);
uint32_t sl_tokenizer_bos(const struct sl_tokenizer *t); /* SL_VOCAB_NO_ID when there is none; so for eos */
uint32_t sl_tokenizer_eos(const struct sl_tokenizer *t);
bool sl_tokenizer_adds_bos(const struct sl_tokenizer *t);

/* Tokens that end a generation: eos, eot and those known by name (<|im_end|>, <|endoftext|>, ...), ascending.
 */
const uint32_t *sl_tokenizer_eog(const struct sl_tokenizer *t, size_t *n);
bool sl_tokenizer_is_eog(const struct sl_tokenizer *t, uint32_t id);
bool sl_tokenizer_is_control(const struct sl_tokenizer *t, uint32_t id); /* false for ids out of range */

/* The bytes of a token, not NUL-terminated, maybe part of a character; control tokens and ids out of range
 * have none
 * (*n = 0) unless specials is true, which gives a control token its name. Never NULL. */
const char *sl_tokenizer_piece(const struct sl_tokenizer *t, uint32_t id, bool specials, size_t *n);
/* The token whose name or bytes are exactly these; SL_VOCAB_NO_ID when there is none. Control tokens
 * included. */
uint32_t sl_tokenizer_find(const struct sl_tokenizer *t, const char *bytes, size_t n);

/* Appends the bytes of all ids, repaired to UTF-8 (what is no character becomes U+FFFD), less the space that
 * encoding put in front. False when out is full. */
bool sl_tokenizer_decode(const struct sl_tokenizer *t, const uint32_t *ids, size_t n, bool specials,
                         struct sl_buf *out);

#endif
