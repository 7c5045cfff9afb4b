/* common/wire/wire_nng.h - what the files of the sockets share. Private to common/wire. */
#ifndef SLUICE_COMMON_WIRE_WIRE_NNG_H
#define SLUICE_COMMON_WIRE_WIRE_NNG_H

#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>

#include "common/wire/wire_sock.h"

enum sl_seal_kind { SL_SEAL_REQUEST, SL_SEAL_ANSWER, SL_SEAL_EVENT };
#define SL_STAMP_BYTES 24u
#define SL_SEAL_BYTES  (11u + SL_STAMP_BYTES + SL_PROOF_BYTES)
struct sl_seal {
    unsigned char bytes[SL_SEAL_BYTES];
};

/* What is in a seal: from and to are ids of sockets, new in each life; to is 0 while the other is not known.
 * number: of a request or event its own, from 1 on; of an answer its request's, or SL_NOT_TAKEN. */
struct sl_stamp {
    uint64_t from, to, number;
};
#define SL_NOT_TAKEN 0u

uint64_t sl_seal_new_id(void);
/* The seal of n bytes; asked: of an answer, the request's. */
void sl_seal_make(const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                  const struct sl_stamp *stamp, const void *bytes, size_t n, struct sl_seal *out);
struct sl_stamp sl_seal_stamp(const struct sl_seal *seal);
/* Whether the n bytes end with the right seal: cuts it off *n and gives it out. s NULL: there must be none.
 * SL_EMISMATCH with the reason. */
SL_MUST_CHECK enum sl_err sl_seal_check(const struct sl_secret *s, enum sl_seal_kind kind,
                                        const struct sl_seal *asked, const void *bytes, size_t *n,
                                        struct sl_seal *out, struct sl_why *why);

/* of wire_fresh.c: what a server has taken. Any thread. */
enum sl_fresh_verdict {
    SL_FRESH_TAKEN,   /* the first time */
    SL_FRESH_AGAIN,   /* on the same connection: its answer comes there */
    SL_FRESH_REFUSED, /* to be sealed anew, for the id given out */
};
struct sl_fresh;
struct sl_fresh *sl_fresh_new(void);
void sl_fresh_free(struct sl_fresh *f); /* takes NULL */
/* stamp: of a seal that is right; pipe: the connection's number, not 0. *id: the server's. */
enum sl_fresh_verdict sl_fresh_take(struct sl_fresh *f, const struct sl_stamp *stamp, uint32_t pipe,
                                    uint64_t *id);
/* Refused so far, but for those of clients that had not met the server. */
uint64_t sl_fresh_refused(struct sl_fresh *f);

/* The secret that guards a socket of this address, or NULL. */
const struct sl_secret *sl_nng_secret(const struct sl_wire_guard *guard, const char *url);
/* A message of nng with e packed into it, and room for a seal. SL_ETOOBIG, SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_nng_pack(Sluice__Envelope *e, nng_msg **out);
/* Puts a seal behind the message; s NULL: none. */
void sl_nng_seal(nng_msg *m, const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                 const struct sl_stamp *stamp, struct sl_seal *out);
/* The way back: sl_seal_check(), then sl_wire_unpack(). The message stays the caller's. */
SL_MUST_CHECK enum sl_err sl_nng_unpack(nng_msg *m, const struct sl_secret *s, enum sl_seal_kind kind,
                                        const struct sl_seal *asked, struct sl_seal *seal,
                                        Sluice__Envelope **out, struct sl_why *why);
/* An answer that says only a code and a sentence; not sealed yet. */
nng_msg *sl_nng_refusal(enum sl_err code, const char *why);
/* A new queue item; msg is taken. */
struct sl_wire_in *sl_nng_in_new(enum sl_wire_kind kind, enum sl_err err, Sluice__Envelope *msg,
                                 uint64_t tag);
/* Options every socket gets before it listens or dials. */
void sl_nng_set_options(nng_socket s);
/* Listens and finds the address really bound; *url is the caller's (sl_free). */
SL_MUST_CHECK enum sl_err sl_nng_listen(nng_socket s, const char *url, const struct sl_wire_guard *guard,
                                        char **bound, struct sl_why *why);
enum sl_err sl_nng_url_error(int rv, const char *verb, const char *url, struct sl_why *why);

/* of wire_dial.c: dials without waiting, and for as long as it takes, and anew where nothing gets through. The
 * socket is borrowed until sl_dial_close() closes it; on error it stays the caller's to close, after which nothing
 * of the dial is left. */
struct sl_dial;
SL_MUST_CHECK enum sl_err sl_dial_open(nng_socket s, const char *url, const struct sl_wire_guard *guard,
                                       struct sl_dial **out, struct sl_why *why);
/* Stop the aios that use the socket before. Waits as sl_nng_close_later() does; closed(arg), in a thread of its own,
 * once nng calls nobody any more, which may be never: what it may still call into is freed there (closed NULL: there
 * is nothing). */
void sl_dial_close(struct sl_dial *d, void (*closed)(void *arg), void *arg);
/* Around whatever is handed to nng to get to the peer: before, and once it got there or nng gave it up. While something
 * is under way and nothing gets through for SL_UNANSWERED_MS, though nng says that there is a connection, the
 * connection is replaced when the peer takes a plain one; ever rarer until something gets through. Any thread. */
/* Sent seven times more (RESEND_MS), in vain; a peer that is only slow has answered. */
#define SL_UNANSWERED_MS 15000
void sl_dial_begin(struct sl_dial *d);
void sl_dial_end(struct sl_dial *d, bool got_through);

/* of wire_tls.c: what TLS needs for this address; *out is NULL where it takes none. Freed with
 * nng_tls_config_free(). */
SL_MUST_CHECK enum sl_err sl_nng_tls(const struct sl_wire_guard *guard, const char *url, bool listens,
                                     nng_tls_config **out, struct sl_why *why);

/* of wire_close.c. Stop the aios that use the socket before. Waits 2 s at most: false = it is left behind, and nng may
 * still call into what it knows of. */
bool sl_nng_close(nng_socket s);
/* Waits a moment, but not where nng stands still; closed as at sl_dial_close(). dialer: the one not closed yet. */
void sl_nng_close_later(nng_socket s, nng_dialer dialer, void (*closed)(void *arg), void *arg);
/* How many are being closed, or stay behind. */
unsigned sl_nng_n_closing(void);

/* of wire_server.c: answers with a refusal; in->internal becomes NULL */
void sl_nng_server_drop(struct sl_wire_in *in);

#endif
