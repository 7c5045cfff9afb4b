/* common/wire/wire_nng.h - what the files of the sockets share. Private to common/wire. */
#ifndef SLUICE_COMMON_WIRE_WIRE_NNG_H
#define SLUICE_COMMON_WIRE_WIRE_NNG_H

#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#include "common/wire/wire_sock.h"

enum sl_seal_kind { SL_SEAL_REQUEST, SL_SEAL_ANSWER, SL_SEAL_EVENT };
#define SL_SEAL_BYTES (11u + SL_NONCE_BYTES + SL_PROOF_BYTES)
struct sl_seal {
    unsigned char bytes[SL_SEAL_BYTES];
};

/* The seal of n bytes; asked: of an answer, the request's. */
void sl_seal_make(const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                  const void *bytes, size_t n, struct sl_seal *out);
/* Whether the n bytes end with the right seal: cuts it off *n and gives it out. s NULL: there must be none.
 * SL_EMISMATCH with the reason. */
SL_MUST_CHECK enum sl_err sl_seal_check(const struct sl_secret *s, enum sl_seal_kind kind,
                                        const struct sl_seal *asked, const void *bytes, size_t *n,
                                        struct sl_seal *out, struct sl_why *why);

/* The secret that guards a socket of this address, or NULL. */
const struct sl_secret *sl_nng_secret(const struct sl_wire_guard *guard, const char *url);
/* A message of nng with e packed into it, sealed when s is not NULL. *seal (may be NULL) is what was made.
 * SL_ETOOBIG, SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_nng_pack(Sluice__Envelope *e, const struct sl_secret *s, enum sl_seal_kind kind,
                                      const struct sl_seal *asked, struct sl_seal *seal, nng_msg **out);
/* The way back: sl_seal_check(), then sl_wire_unpack(). The message stays the caller's. */
SL_MUST_CHECK enum sl_err sl_nng_unpack(nng_msg *m, const struct sl_secret *s, enum sl_seal_kind kind,
                                        const struct sl_seal *asked, struct sl_seal *seal,
                                        Sluice__Envelope **out, struct sl_why *why);
/* An answer that says only a code and a sentence. */
nng_msg *sl_nng_refusal(const struct sl_secret *s, const struct sl_seal *asked, enum sl_err code,
                        const char *why);
/* A new queue item; msg is taken. */
struct sl_wire_in *sl_nng_in_new(enum sl_wire_kind kind, enum sl_err err, Sluice__Envelope *msg,
                                 uint64_t tag);
/* Options every socket gets before it listens or dials. */
void sl_nng_set_options(nng_socket s);
/* Listens and finds the address really bound; *url is the caller's (sl_free). */
SL_MUST_CHECK enum sl_err sl_nng_listen(nng_socket s, const char *url, const struct sl_wire_guard *guard,
                                        char **bound, struct sl_why *why);
/* Dials without waiting; nng goes on trying. */
SL_MUST_CHECK enum sl_err sl_nng_dial(nng_socket s, const char *url, const struct sl_wire_guard *guard,
                                      struct sl_why *why);

/* of wire_tls.c: what TLS needs for this address; *out is NULL where it takes none. Freed with
 * nng_tls_config_free(). */
SL_MUST_CHECK enum sl_err sl_nng_tls(const struct sl_wire_guard *guard, const char *url, bool listens,
                                     nng_tls_config **out, struct sl_why *why);

/* Closes within bounds. nng 1.5.2 now and then never returns from closing a socket whose dialer is connecting
 * at that moment; such a socket is left to a thread of its own. Stop the aios that use the socket before. */
void sl_nng_close(nng_socket s);

/* of wire_server.c: answers with a refusal; in->internal becomes NULL */
void sl_nng_server_drop(struct sl_wire_in *in);

#endif
