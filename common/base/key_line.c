/* common/base/key_line.c - see key_line.h. */
#include "common/base/key_line.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <nettle/sha2.h>

#include "common/base/rand.h"

static const char scheme[] = "sha256:";

void sl_key_digest(const unsigned char salt[SL_KEY_SALT_BYTES], const void *key, size_t n,
                   unsigned char out[SL_KEY_DIGEST_BYTES])
{
    struct sha256_ctx h;
    sha256_init(&h);
    sha256_update(&h, SL_KEY_SALT_BYTES, salt);
    sha256_update(&h, n, key);
    sha256_digest(&h, SL_KEY_DIGEST_BYTES, out);
}

bool sl_key_name_is_valid(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!word && (!c || !strchr(".-_", c)))
            return false;
    }
    return n > 0 && n <= SL_KEY_MAX_NAME;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *text, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(text[2 * i]), low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

static void write_hex(char *out, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* s stands behind "NAME:sha256:". */
static bool read_hashed(const char *s, size_t n, struct sl_key_line *out)
{
    const size_t n_salt = 2 * SL_KEY_SALT_BYTES, n_hash = n_salt + 1 + 2 * SL_KEY_DIGEST_BYTES;
    if (n < n_hash || !read_hex(s, out->salt, SL_KEY_SALT_BYTES) || s[n_salt] != ':' ||
        !read_hex(s + n_salt + 1, out->digest, SL_KEY_DIGEST_BYTES) ||
        (n > n_hash && !strchr(" \t", s[n_hash])))
        return false;
    out->limits = s + n_hash;
    out->n_limits = n - n_hash;
    return true;
}

enum sl_err sl_key_line_parse(const char *line, struct sl_key_line *out, struct sl_why *why)
{
    const char *s = line + strspn(line, " \t");
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n", s[n - 1]))
        n--;
    if (n == 0 || s[0] == '#')
        return SL_ENOTFOUND;
    const char *colon = memchr(s, ':', n);
    *out = (struct sl_key_line){.name = s, .n_name = colon ? (size_t)(colon - s) : 0};
    const char *key = colon ? colon + 1 : s;
    size_t n_key = n - (size_t)(key - s);
    if (colon && n_key >= sizeof scheme - 1 && memcmp(key, scheme, sizeof scheme - 1) == 0) {
        if (!sl_key_name_is_valid(s, out->n_name))
            return sl_why_set(why, SL_ECONFIG,
                              "the name of a key has 1 to %u letters, digits, dots, dashes or underscores",
                              SL_KEY_MAX_NAME);
        if (!read_hashed(key + sizeof scheme - 1, n_key - (sizeof scheme - 1), out))
            return sl_why_set(
                why, SL_ECONFIG,
                "expected NAME:sha256:SALT:DIGEST with %u and %u hex digits, as `sluicectl keys "
                "add NAME` writes it",
                2 * SL_KEY_SALT_BYTES, 2 * SL_KEY_DIGEST_BYTES);
        return SL_OK;
    }
    if (n_key == 0 || n_key > SL_KEY_MAX_BYTES)
        return sl_why_set(why, SL_ECONFIG, "a key must have 1 to %d bytes", SL_KEY_MAX_BYTES);
    out->key = key;
    out->n_key = n_key;
    return SL_OK;
}

void sl_key_line_new(const char *name, char key[SL_KEY_NEW_BYTES], char line[SL_KEY_LINE_BYTES])
{
    unsigned char bytes[(SL_KEY_NEW_BYTES - 4) / 2], salt[SL_KEY_SALT_BYTES], digest[SL_KEY_DIGEST_BYTES];
    char salt_hex[2 * SL_KEY_SALT_BYTES + 1], digest_hex[2 * SL_KEY_DIGEST_BYTES + 1];
    sl_random_bytes(bytes, sizeof bytes);
    sl_random_bytes(salt, sizeof salt);
    memcpy(key, "sk-", 3);
    write_hex(key + 3, bytes, sizeof bytes);
    sl_key_digest(salt, key, strlen(key), digest);
    write_hex(salt_hex, salt, sizeof salt);
    write_hex(digest_hex, digest, sizeof digest);
    snprintf(line, SL_KEY_LINE_BYTES, "%s:%s%s:%s", name, scheme, salt_hex, digest_hex);
    explicit_bzero(bytes, sizeof bytes);
}
