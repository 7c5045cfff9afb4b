/* common/text/utf8.h - UTF-8: decode, check, repair. Strict: no surrogates, no overlong forms, nothing over
 * U+10FFFF. */
#ifndef SLUICE_COMMON_TEXT_UTF8_H
#define SLUICE_COMMON_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_UTF8_REPLACEMENT     0xFFFDu
#define SL_UTF8_REPLACEMENT_STR "\xEF\xBF\xBD"

enum sl_utf8_state {
    SL_UTF8_VALID,     /* one whole character */
    SL_UTF8_INVALID,   /* these bytes can never become one: they count as one U+FFFD */
    SL_UTF8_INCOMPLETE /* all bytes there are a proper beginning of one */
};

/* Looks at the first character of s[0..n), n > 0. *used is the number of bytes it takes (for INVALID the
 * maximal subpart, at least 1; for INCOMPLETE all of them, at most 3). *cp is set when VALID. */
enum sl_utf8_state sl_utf8_next(const char *s, size_t n, uint32_t *cp, size_t *used);

/* Bytes from s that are valid, n when all are. */
size_t sl_utf8_valid_prefix(const char *s, size_t n);

/* Puts a question mark for every byte of a string that is in no character: of text that was cut, or is another's. */
void sl_utf8_repair(char *s);

/* Writes 1 to 4 bytes, returns how many. A cp that is no character is written as U+FFFD. */
size_t sl_utf8_encode(uint32_t cp, char out[4]);

/* Characters in a valid string. */
size_t sl_utf8_count(const char *s, size_t n);

#endif
