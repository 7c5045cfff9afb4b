/* common/wire/wire_seal.c - the cluster secret on the control plane: every message over the network ends with
 * a seal, which only who knows the secret can make, and is checked before anything of the message is read.
 *
 * A seal is the envelope's last field, so that a peer without a secret can name what it found:
 *
 *   key of field 1000, length | "SLSEAL02" | stamp | HMAC over the message before it, the stamp, and of an
 *                                                    answer the seal of what it answers
 *
 * A stamp says from which life of a socket, to which one, and a number that only grows. So what was heard on
 * the wire and is sent again does not count: a request is taken once (wire_fresh.c), an answer counts for its
 * request's seal only, and an event's batch has a number of its own, of which the router takes each once. */
#include <string.h>

#include "common/base/rand.h"
#include "common/wire/wire_nng.h"

static const unsigned char head[] = {
    0xc2, 0x3e, 8 + SL_STAMP_BYTES + SL_PROOF_BYTES, 'S', 'L', 'S', 'E', 'A', 'L', '0', '2'};
_Static_assert(sizeof head + SL_STAMP_BYTES + SL_PROOF_BYTES == SL_SEAL_BYTES, "a seal has no other parts");

static const char *const purposes[] = {
    [SL_SEAL_REQUEST] = "sluice control request",
    [SL_SEAL_ANSWER] = "sluice control answer",
    [SL_SEAL_EVENT] = "sluice control event",
};

static void put_u64(unsigned char *p, uint64_t v)
{
    for (size_t i = 0; i < sizeof v; i++)
        p[i] = (unsigned char)(v >> 8 * i);
}

static uint64_t get_u64(const unsigned char *p)
{
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof v; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static void prove(const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                  const void *bytes, size_t n, const unsigned char *stamp, unsigned char out[SL_PROOF_BYTES])
{
    const struct sl_proof_part parts[] = {
        {bytes, n},
        {stamp, SL_STAMP_BYTES},
        {asked ? asked->bytes : NULL, asked ? SL_SEAL_BYTES : 0},
    };
    sl_secret_prove(s, purposes[kind], parts, SL_COUNTOF(parts), out);
}

void sl_seal_make(const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                  const struct sl_stamp *stamp, const void *bytes, size_t n, struct sl_seal *out)
{
    unsigned char *at = out->bytes + sizeof head;
    memcpy(out->bytes, head, sizeof head);
    put_u64(at, stamp->from);
    put_u64(at + 8, stamp->to);
    put_u64(at + 16, stamp->number);
    prove(s, kind, asked, bytes, n, at, at + SL_STAMP_BYTES);
}

struct sl_stamp sl_seal_stamp(const struct sl_seal *seal)
{
    const unsigned char *at = seal->bytes + sizeof head;
    return (struct sl_stamp){.from = get_u64(at), .to = get_u64(at + 8), .number = get_u64(at + 16)};
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
    if (!sl_secret_equal(proof, seal + sizeof head + SL_STAMP_BYTES, sizeof proof))
        return sl_why_set(why, SL_EMISMATCH,
                          "the message is sealed with another cluster secret; give both programs the same "
                          "cluster_secret_file");
    memcpy(out->bytes, seal, SL_SEAL_BYTES);
    return SL_OK;
}

uint64_t sl_seal_new_id(void)
{
    uint64_t id;
    do
        id = sl_random_u64();
    while (id == 0); /* says "not known yet" */
    return id;
}
