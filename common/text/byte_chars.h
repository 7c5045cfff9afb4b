/* common/text/byte_chars.h - GPT-2's byte alphabet: one printable character for each byte value.
 *
 * Byte-level vocabularies are written in it. Printable bytes stand for themselves, the others for U+0100
 * onwards in order. */
#ifndef SLUICE_COMMON_TEXT_BYTE_CHARS_H
#define SLUICE_COMMON_TEXT_BYTE_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_BYTE_CHARS 324 /* all are below this code point */

struct sl_byte_chars {
    uint8_t byte_of[SL_BYTE_CHARS]; /* character -> byte */
    bool known[SL_BYTE_CHARS];
    char text[256][4]; /* byte -> UTF-8 */
    uint8_t len[256];
};

void sl_byte_chars_init(struct sl_byte_chars *a);

/* Writes the bytes that s[0..n) stands for, never more than n; false when it is not in the alphabet, and n_out stays. */
bool sl_byte_chars_decode(const struct sl_byte_chars *a, const char *s, size_t n, char *out, size_t *n_out);

#endif
