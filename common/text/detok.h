/* common/text/detok.h - tokens to text one by one, never cutting a UTF-8 character (step 11 of the request
 * path).
 *
 * A token may end in the middle of a character; those bytes (at most 3) are held back until the rest comes.
 * What can no longer become a character is U+FFFD. The text is the same however the tokens are grouped.
 * Threads: one per choice of a request, one thread. */
#ifndef SLUICE_COMMON_TEXT_DETOK_H
#define SLUICE_COMMON_TEXT_DETOK_H

#include "common/text/tokenizer.h"

struct sl_detok {
    const struct sl_tokenizer *tok;
    bool specials;
    char held[4];
    size_t n_held;
};

/* Keeps tok, which must outlive it. specials: control tokens are shown by name. Nothing to finish. */
void sl_detok_init(struct sl_detok *d, const struct sl_tokenizer *tok, bool specials);
/* Appends what became complete. False when out is full (sl_buf_failed). */
bool sl_detok_push(struct sl_detok *d, uint32_t id, struct sl_buf *out);
/* The generation is over: what is held back is written as U+FFFD. */
bool sl_detok_end(struct sl_detok *d, struct sl_buf *out);

/* The same for raw bytes. */
bool sl_detok_push_bytes(struct sl_detok *d, const char *p, size_t n, struct sl_buf *out);

#endif
