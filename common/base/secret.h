/* common/base/secret.h - what all programs of one cluster know and nobody else does: read from a file, proven
 * to each other without being told.
 *
 * A proof is HMAC-SHA256 over a purpose and parts, each behind its length. The purpose is another one for
 * every place that asks for a proof, so that none counts at another. */
#ifndef SLUICE_COMMON_BASE_SECRET_H
#define SLUICE_COMMON_BASE_SECRET_H

#include "common/base/err.h"

#define SL_SECRET_BYTES      32u   /* of the key made from the file: SHA-256 */
#define SL_SECRET_MIN_CHARS  32u   /* of the file: 128 bits as hex */
#define SL_SECRET_MAX_CHARS  1024u /* ... white space at its end not counted */
#define SL_PROOF_BYTES       32u
#define SL_CREDENTIAL_SECRET "sluice.cluster-secret"
#define SL_NONCE_BYTES       16u /* random, fresh for every connection or message */

struct sl_secret {
    unsigned char key[SL_SECRET_BYTES];
};

struct sl_proof_part {
    const void *bytes;
    size_t n;
};

/* Reads the secret. SL_ECONFIG with a sentence: no such file, readable by others than its owner (but for one
 * that systemd passed, which it protects itself), too short or too long. */
SL_MUST_CHECK enum sl_err sl_secret_load(const char *path, struct sl_secret *out, struct sl_why *why);

void sl_secret_prove(const struct sl_secret *s, const char *purpose, const struct sl_proof_part *parts,
                     size_t n_parts, unsigned char out[SL_PROOF_BYTES]);
/* Compares without telling by its time where the first difference is. */
bool sl_secret_equal(const void *a, const void *b, size_t n);

/* The path of the credential of this name that systemd passed (systemd.exec(5), LoadCredential), the
 * caller's, or NULL. */
char *sl_credential(const char *name);

/* True for HOST:PORT and URLs that only this machine reaches: 127.0.0.0/8, ::1, localhost, ipc, inproc. */
bool sl_address_is_local(const char *address);

#endif
