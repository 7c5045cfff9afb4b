/* common/wire/wire_seal.c - the cluster secret on the control plane: every message over the network ends with
 * a seal, which only who knows the secret can make, and is checked before anything of the message is read.
 *
 * A seal is the envelope's last field, so that a peer without a secret can name what it found:
 *
 *   key of field 1000, length | "SLSEAL01" | nonce | HMAC over the message before it, the nonce, and of an
 *                                                    answer the seal of what it answers
 *
 * An old answer does not count for a new request. A request heard on the wire can be sent again as it is: the
 * commands are idempotent by their ids, and against who reads and writes on the wire stands TLS. */
#include <string.h>

#include "common/base/rand.h"
#include "common/wire/wire_nng.h"

static const unsigned char head[] = {
    0xc2, 0x3e, 8 + SL_NONCE_BYTES + SL_PROOF_BYTES, 'S', 'L', 'S', 'E', 'A', 'L', '0', '1'};
_Static_assert(sizeof head + SL_NONCE_BYTES + SL_PROOF_BYTES == SL_SEAL_BYTES, "a seal has no other parts");

static const char *const purposes[] = {
    [SL_SEAL_REQUEST] = "sluice control request",
    [SL_SEAL_ANSWER] = "sluice control answer",
    [SL_SEAL_EVENT] = "sluice control event",
};

static void prove(const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                  const void *bytes, size_t n, const unsigned char *nonce, unsigned char out[SL_PROOF_BYTES])
{
    const struct sl_proof_part parts[] = {
        {bytes, n},
        {nonce, SL_NONCE_BYTES},
        {asked ? asked->bytes : NULL, asked ? SL_SEAL_BYTES : 0},
    };
    sl_secret_prove(s, purposes[kind], parts, SL_COUNTOF(parts), out);
}

void sl_seal_make(const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                  const void *bytes, size_t n, struct sl_seal *out)
{
    unsigned char *nonce = out->bytes + sizeof head;
    memcpy(out->bytes, head, sizeof head);
    sl_random_bytes(nonce, SL_NONCE_BYTES);
    prove(s, kind, asked, bytes, n, nonce, nonce + SL_NONCE_BYTES);
}

enum sl_err sl_seal_check(const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                          const void *bytes, size_t *n, struct sl_seal *out, struct sl_why *why)
{
    unsigned char proof[SL_PROOF_BYTES];
    const unsigned char *seal =
        *n >= SL_SEAL_BYTES ? (const unsigned char *)bytes + (*n - SL_SEAL_BYTES) : NULL;
    bool sealed = seal && memcmp(seal, head, sizeof head) == 0;
    if (!sealed && !s)
        return SL_OK;
    if (!sealed && kind == SL_SEAL_ANSWER)
        return sl_why_set(
            why, SL_EMISMATCH,
            "the answer proves no cluster secret, so the other program has none or another; give "
            "both the same cluster_secret_file, and run the same release");
    if (!sealed)
        return sl_why_set(why, SL_EMISMATCH,
                          "the message proves no cluster secret and this program asks for it; set "
                          "cluster_secret_file at the sender, and run the same release");
    if (!s)
        return sl_why_set(why, SL_EMISMATCH,
                          "the message proves a cluster secret and this program has none; set "
                          "cluster_secret_file here too");
    *n -= SL_SEAL_BYTES;
    prove(s, kind, asked, bytes, *n, seal + sizeof head, proof);
    if (!sl_secret_equal(proof, seal + sizeof head + SL_NONCE_BYTES, sizeof proof))
        return sl_why_set(why, SL_EMISMATCH,
                          "the message is sealed with another cluster secret; give both programs the same "
                          "cluster_secret_file");
    memcpy(out->bytes, seal, SL_SEAL_BYTES);
    return SL_OK;
}
