/* common/grammar/char_set.h - sets of Unicode characters, as ranges of code points. Surrogates are no characters: they are
 * in no set. */
#ifndef SLUICE_COMMON_GRAMMAR_CHAR_SET_H
#define SLUICE_COMMON_GRAMMAR_CHAR_SET_H

#include <stdbool.h>
#include <stdint.h>

#define SL_CHAR_MAX 0x10FFFFu

struct sl_char_range {
    uint32_t lo, hi;
};

/* Zero it before its first use. */
struct sl_char_set {
    struct sl_char_range *ranges;
    uint32_t n, cap;
};

void sl_char_set_add(struct sl_char_set *s, uint32_t lo, uint32_t hi);
/* Ranges in order, apart from each other, without surrogates: due before anything below. */
void sl_char_set_settle(struct sl_char_set *s);
void sl_char_set_negate(struct sl_char_set *s); /* takes and gives a settled one */
bool sl_char_set_equal(const struct sl_char_set *a, const struct sl_char_set *b);
void sl_char_set_fini(struct sl_char_set *s);

/* Texts that stand for the characters of a settled set: bytes from lo to hi, one after the other. */
#define SL_CHAR_MAX_BYTES 6 /* \u00XX */
struct sl_char_bytes {
    uint8_t n, lo[SL_CHAR_MAX_BYTES], hi[SL_CHAR_MAX_BYTES];
};
struct sl_char_texts {
    struct sl_char_bytes *at;
    uint32_t n, cap;
};

/* Appends them in UTF-8, or, escaped, as they stand in a JSON string: what has to be escaped there in its shortest
 * escape with small letters, anything else as itself. */
void sl_char_set_texts(const struct sl_char_set *s, bool escaped, struct sl_char_texts *out);
/* The next character of UTF-8 that is valid, and its bytes. */
uint32_t sl_char_next(const char *s, uint32_t *n_bytes);

#endif
