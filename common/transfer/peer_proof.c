/* common/transfer/peer_proof.c - what the two ends of a connection prove to each other of the cluster secret.
 *
 * Both nonces are in both proofs, so an old proof does not count again; names and boot ids of both are in
 * them, so a proof that one node gave does not count as another's or to another; the purposes differ, so a
 * proof cannot be sent back to who made it. P, who dials, proves first: whoever reaches D's port without the
 * secret gets nothing to try passwords on. The connection itself is not sealed: against someone who changes
 * what travels on it stands the network (docs/operations.md, WireGuard). */
#include <string.h>

#include "common/transfer/xfer.h"

void sl_peer_prove_p(const struct sl_peer *p, const unsigned char *p_id, const char *d_name,
                     uint64_t d_boot_id, unsigned char out[SL_PROOF_BYTES])
{
    unsigned char boot_id[8];
    for (unsigned i = 0; i < sizeof boot_id; i++)
        boot_id[i] = (unsigned char)(d_boot_id >> (8 * i));
    const struct sl_proof_part parts[] = {
        {p->nonces.p, SL_NONCE_BYTES}, {p->nonces.d, SL_NONCE_BYTES}, {p_id, SL_KV_IDENTITY_BYTES},
        {d_name, strlen(d_name)},      {boot_id, sizeof boot_id},
    };
    sl_secret_prove(p->x->conf.secret, "sluice pages P to D", parts, SL_COUNTOF(parts), out);
}

void sl_peer_prove_d(const struct sl_peer *p, const unsigned char *p_id, const unsigned char *d_id,
                     unsigned char out[SL_PROOF_BYTES])
{
    const struct sl_proof_part parts[] = {
        {p->nonces.p, SL_NONCE_BYTES},
        {p->nonces.d, SL_NONCE_BYTES},
        {p_id, SL_KV_IDENTITY_BYTES},
        {d_id, SL_KV_IDENTITY_BYTES},
    };
    sl_secret_prove(p->x->conf.secret, "sluice pages D to P", parts, SL_COUNTOF(parts), out);
}
