/* common/transfer/kv_wire.h - the bytes of the page protocol: little-endian headers of fixed length and short
 * control payloads.
 *
 * Everything that arrives is checked here against its limits before anyone believes it; what follows is
 * checked by the session. */
#ifndef SLUICE_COMMON_TRANSFER_KV_WIRE_H
#define SLUICE_COMMON_TRANSFER_KV_WIRE_H

#include "common/transfer/link.h"
#include "common/transfer/transfer.h"

#define SL_KV_PROTOCOL   1u
#define SL_KV_MAX_PAGES  65536u /* of one session: 2M tokens at 32 a page */
#define SL_KV_MAX_COMMIT 1024u  /* pages of one commit: 8 KiB of digests */
#define SL_KV_MAX_WHY    160u

enum sl_kv_type {
    SL_KV_HELLO = 1, /* P -> D, first message; value: the boot id it wants to reach; payload: identity, and a
                        nonce when P has a cluster secret */
    SL_KV_HELLO_ACK, /* D -> P: flag 1 = accepted; payload: identity, why, and after CHALLENGE D's proof */
    SL_KV_ANNOUNCE,  /* P -> D: n_tokens, deadline_ms */
    SL_KV_GRANT, /* D -> P: index = have_pages, count = pages; payload: a bit per page, set where a run of D's
                    pages begins */
    SL_KV_PAGES, /* P -> D: index, count; payload: the pages */
    SL_KV_COMMIT, /* P -> D: index, count, n_tokens; payload: digests; flag 1 = last, 2 = has first, 4 = ended
                   */
    SL_KV_ANSWER, /* D -> P: flag 1 = committed up to index; else index = first bad page, count = how many
                     rejects that makes */
    SL_KV_ABORT,  /* either -> other: payload: why */
    SL_KV_BYE,
    SL_KV_PING,
    SL_KV_PONG,
    SL_KV_PROBE, /* P -> D: payload is measured and dropped */
    SL_KV_PROBE_ACK,
    SL_KV_CHALLENGE, /* D -> P, between HELLO and HELLO_ACK when both have a cluster secret: D's nonce */
    SL_KV_PROOF,     /* P -> D: the answer to it */
    SL_KV_PROBS, /* P -> D, before the last COMMIT: log-probabilities of the first token, where the request wants
                    any. A release that does not know it drops it */
    SL_KV_N_TYPES
};

#define SL_KV_FLAG_OK    1u
#define SL_KV_FLAG_LAST  1u
#define SL_KV_FLAG_FIRST 2u
#define SL_KV_FLAG_ENDED 4u

/* The header of every message; fields a type does not use are 0. */
struct sl_kv_header {
    uint8_t type, flags;
    struct sl_xfer_key key;
    uint32_t index, count, n_tokens, deadline_ms;
    int32_t token;
    uint64_t value; /* HELLO: boot id; COMMIT: logits digest of the first token; PING, PROBE: echoed */
};

#define SL_KV_HEADER_BYTES 108u /* 4 + 4 + 64 + 5 * 4 + 8, and 8 in reserve */

void sl_kv_header_pack(const struct sl_kv_header *h, unsigned char out[SL_KV_HEADER_BYTES]);
/* SL_EPROTO: wrong length, unknown type; id not terminated, not printable ASCII, or empty where the type
 * needs one; counts over their limits. */
SL_MUST_CHECK enum sl_err sl_kv_header_unpack(const void *bytes, size_t n, struct sl_kv_header *out);

#define SL_KV_IDENTITY_BYTES 160u
struct sl_kv_hello {
    uint32_t protocol;
    struct sl_xfer_identity id;
};
/* unpack refuses a name that is empty or not printable ASCII. */
void sl_kv_hello_pack(const struct sl_kv_hello *h, unsigned char out[SL_KV_IDENTITY_BYTES]);
SL_MUST_CHECK enum sl_err sl_kv_hello_unpack(const void *bytes, size_t n, struct sl_kv_hello *out);

/* Log-probabilities of a first token: float32 bits and the number of top entries, then token and bits of each. pack
 * returns how many bytes it wrote; unpack refuses (SL_EPROTO) another length than the number says, and more entries
 * than there may be. */
#define SL_KV_PROBS_MAX_BYTES (8u + 8u * SL_PICK_MAX_TOP)
size_t sl_kv_probs_pack(const struct sl_xfer_first *t, unsigned char out[SL_KV_PROBS_MAX_BYTES]);
SL_MUST_CHECK enum sl_err sl_kv_probs_unpack(const void *bytes, size_t n, struct sl_xfer_first *out);

/* Copies a sentence that came from a peer (or from here) for logs and reports: at most n - 1 bytes, what is
 * not printable ASCII becomes '?'. text may be NULL when len is 0. */
void sl_kv_text(char *out, size_t n, const void *text, size_t len);

/* Whether the two may pair; else *why names what differs and both values. */
SL_MUST_CHECK enum sl_err sl_kv_identity_match(const struct sl_kv_hello *mine,
                                               const struct sl_kv_hello *theirs, struct sl_why *why);

#endif
