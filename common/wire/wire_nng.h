/* common/wire/wire_nng.h - what the files of the sockets share. Private to common/wire. */
#ifndef SLUICE_COMMON_WIRE_WIRE_NNG_H
#define SLUICE_COMMON_WIRE_WIRE_NNG_H

#include <nng/nng.h>

#include "common/wire/wire_sock.h"

/* A message of nng with e packed into it. SL_ETOOBIG, SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_nng_pack(Sluice__Envelope *e, nng_msg **out);
/* A message that says only a code and a sentence. */
nng_msg *sl_nng_refusal(enum sl_err code, const char *why);
/* A new queue item; msg is taken. */
struct sl_wire_in *sl_nng_in_new(enum sl_wire_kind kind, enum sl_err err, Sluice__Envelope *msg,
                                 uint64_t tag);
/* Options every socket gets before it listens or dials. */
void sl_nng_set_options(nng_socket s);
/* Listens and finds the address really bound; *url is the caller's (sl_free). */
SL_MUST_CHECK enum sl_err sl_nng_listen(nng_socket s, const char *url, char **bound, struct sl_why *why);
/* Dials without waiting; nng goes on trying. */
SL_MUST_CHECK enum sl_err sl_nng_dial(nng_socket s, const char *url, struct sl_why *why);

/* Closes within bounds. nng 1.5.2 now and then never returns from closing a socket whose dialer is connecting
 * at that moment; such a socket is left to a thread of its own. Stop the aios that use the socket before. */
void sl_nng_close(nng_socket s);

/* of wire_server.c: answers with a refusal; in->internal becomes NULL */
void sl_nng_server_drop(struct sl_wire_in *in);

#endif
