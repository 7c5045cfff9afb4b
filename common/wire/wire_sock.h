/* common/wire/wire_sock.h - the control plane's sockets: nng aio on one side, bounded queues on the other.
 * The only user of nng.
 *
 * What may pass is the guard's: with a cluster secret every message over the network is sealed (wire_seal.c),
 * and one without a right seal, or that was sent before, is refused in words before it is read. ipc and inproc
 * are guarded by the rights of files and need no seal.
 *
 * nng's callbacks only enqueue; whoever owns the queue handles messages in its own thread. Nothing blocks: a
 * call that waits for an answer hands the answer, or its failure, to a queue too. */
#ifndef SLUICE_COMMON_WIRE_WIRE_SOCK_H
#define SLUICE_COMMON_WIRE_WIRE_SOCK_H

#include "common/base/queue.h"
#include "common/base/secret.h"
#include "common/wire/wire_msg.h"

/* What sockets of one program share. Borrowed by every socket and by the requests that were taken from it. */
struct sl_wire_guard {
    const struct sl_secret *secret; /* NULL = none asked for */
    /* (optional, all or none) for tls+tcp:// addresses: both sides show a certificate of this authority (PEM), and
     * that of the side that is dialled names the host in its address, as DNS name. With them no address is
     * listened on or dialled over the network without TLS. */
    const char *tls_ca_file, *tls_cert_file, *tls_key_file;
};
/* SL_ECONFIG: files that are missing or are none; a library without TLS. At the start, before any socket. */
SL_MUST_CHECK enum sl_err sl_wire_guard_check(const struct sl_wire_guard *guard, struct sl_why *why);

/* Whether url can be an address at all: SL_ECONFIG and a sentence that names the option key when it is not. */
SL_MUST_CHECK enum sl_err sl_wire_url_check(const char *key, const char *url, struct sl_why *why);

/* What a queue receives. The receiver frees it with sl_wire_in_free(). */
enum sl_wire_kind {
    SL_WIRE_REQUEST, /* from a server: must be answered once with sl_wire_reply() */
    SL_WIRE_ANSWER,  /* to sl_wire_call(): err says whether msg is there */
    SL_WIRE_EVENT    /* from a pull socket */
};
struct sl_wire_in {
    enum sl_wire_kind kind;
    enum sl_err err;       /* SL_WIRE_ANSWER: SL_OK, SL_EPEER (no answer in time, connection lost), SL_EPROTO,
                        SL_EMISMATCH (not sealed with our cluster secret) */
    Sluice__Envelope *msg; /* NULL when err */
    uint64_t tag;          /* of sl_wire_call(), or of sl_wire_pull_open()/sl_wire_server_open() */
    void *internal;
};
void sl_wire_in_free(struct sl_wire_in *in); /* an unanswered request is answered with SL_EBUG */

/* All opens: guard NULL = none.
 *
 * REP: listens on url (tcp://127.0.0.1:7001, ipc:///run/sluice/admin.sock); n_contexts requests may be open
 * at once. Requests go to queue; when it is full the peer is answered SL_EAGAIN at once; bytes that do not
 * unpack are answered in words. */
struct sl_wire_server;
SL_MUST_CHECK enum sl_err sl_wire_server_open(const char *url, const struct sl_wire_guard *guard,
                                              uint32_t n_contexts, struct sl_queue *queue, uint64_t tag,
                                              struct sl_wire_server **out, struct sl_why *why);
void sl_wire_server_close(struct sl_wire_server *s);
/* The address really bound (port 0 asked for a free one); static in s. */
const char *sl_wire_server_url(const struct sl_wire_server *s);
/* Sealed messages that were not taken because they had been sent before, or to a former life: those of whoever heard
 * them, and of a sender that lost its connection or outlived the server. s NULL: 0. Any thread. */
uint64_t sl_wire_server_refused(const struct sl_wire_server *s);
/* Answers in with reply and frees in. Any thread. */
void sl_wire_reply(struct sl_wire_in *in, Sluice__Envelope *reply);

/* REQ: dials url (never blocks, reconnects by itself). Up to n_contexts calls in flight, more wait in line up
 * to max_waiting, then SL_EAGAIN. Each call ends with exactly one SL_WIRE_ANSWER carrying tag, after
 * timeout_ms at the latest. */
struct sl_wire_client;
SL_MUST_CHECK enum sl_err sl_wire_client_open(const char *url, const struct sl_wire_guard *guard,
                                              uint32_t n_contexts, uint32_t max_waiting,
                                              struct sl_queue *queue, struct sl_wire_client **out,
                                              struct sl_why *why);
void sl_wire_client_close(struct sl_wire_client *c); /* calls in flight end with SL_EPEER before it returns */
SL_MUST_CHECK enum sl_err sl_wire_call(struct sl_wire_client *c, Sluice__Envelope *msg, uint64_t tag,
                                       uint32_t timeout_ms);
/* The same and waits: for sluicectl and start-up. *answer is freed with sl_wire_free(). */
SL_MUST_CHECK enum sl_err sl_wire_call_wait(const char *url, const struct sl_wire_guard *guard,
                                            Sluice__Envelope *msg, uint32_t timeout_ms,
                                            Sluice__Envelope **answer, struct sl_why *why);

/* PULL: listens; each message goes to queue as SL_WIRE_EVENT with tag. When the queue is full receiving
 * pauses (the sender's bounded buffer fills in turn). */
struct sl_wire_pull;
SL_MUST_CHECK enum sl_err sl_wire_pull_open(const char *url, const struct sl_wire_guard *guard,
                                            struct sl_queue *queue, uint64_t tag, struct sl_wire_pull **out,
                                            struct sl_why *why);
void sl_wire_pull_close(struct sl_wire_pull *p);
const char *sl_wire_pull_url(const struct sl_wire_pull *p);

/* PUSH: dials. sl_wire_push_send() enqueues in order; SL_EAGAIN when max_waiting messages wait (the receiver
 * finds the gap and asks for a resync). */
struct sl_wire_push;
SL_MUST_CHECK enum sl_err sl_wire_push_open(const char *url, const struct sl_wire_guard *guard,
                                            uint32_t max_waiting, struct sl_wire_push **out,
                                            struct sl_why *why);
void sl_wire_push_close(struct sl_wire_push *p);
SL_MUST_CHECK enum sl_err sl_wire_push_send(struct sl_wire_push *p, Sluice__Envelope *msg);

#endif
