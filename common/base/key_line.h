/* common/base/key_line.h - one line of the router's file of API keys, as sluice-router reads it and `sluicectl
 * keys` writes it:
 *
 *   NAME:sha256:SALT:DIGEST [LIMIT=VALUE ...]   the key itself is written nowhere
 *   NAME:KEY or KEY                             the key as it is
 *
 * SALT is 16 random bytes and DIGEST the SHA-256 of SALT and key, both as hex. Keys are long random texts, so
 * one round of a fast hash is enough: there is nothing to guess. # begins a comment line. */
#ifndef SLUICE_COMMON_BASE_KEY_LINE_H
#define SLUICE_COMMON_BASE_KEY_LINE_H

#include "common/base/err.h"

#define SL_KEY_MAX_BYTES    256
#define SL_KEY_MAX_NAME     63u
#define SL_KEY_SALT_BYTES   16u
#define SL_KEY_DIGEST_BYTES 32u
#define SL_KEY_NEW_BYTES    52u  /* of a new key with its NUL: "sk-" and 192 random bits as hex */
#define SL_KEY_LINE_BYTES   1024 /* of a line, limits included */

struct sl_key_line {
    const char *name; /* n_name bytes of the line; 0 = none */
    size_t n_name;
    const char *key; /* n_key bytes of the line as it is; NULL = hashed */
    size_t n_key;
    unsigned char salt[SL_KEY_SALT_BYTES], digest[SL_KEY_DIGEST_BYTES]; /* when hashed */
    const char *limits; /* n_limits bytes behind a hashed key: LIMIT=VALUE ... */
    size_t n_limits;
};

/* SL_OK with *out pointing into line; SL_ENOTFOUND for a blank or comment line; SL_ECONFIG with a sentence. */
SL_MUST_CHECK enum sl_err sl_key_line_parse(const char *line, struct sl_key_line *out, struct sl_why *why);
void sl_key_digest(const unsigned char salt[SL_KEY_SALT_BYTES], const void *key, size_t n,
                   unsigned char out[SL_KEY_DIGEST_BYTES]);
/* Letters, digits, dots, dashes and underscores. */
bool sl_key_name_is_valid(const char *name, size_t n);
/* A new key and its line, without line end. name is valid. */
void sl_key_line_new(const char *name, char key[SL_KEY_NEW_BYTES], char line[SL_KEY_LINE_BYTES]);

#endif
