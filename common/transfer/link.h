/* common/transfer/link.h - the table a transport implements: connections, small messages, page payloads.
 *
 * A message is a header (at most SL_LINK_MAX_HEADER bytes) and a payload. The receiver sees the header first
 * and then says where the payload lands, or says nothing and it is dropped: nobody writes into another's
 * memory. Messages of one connection are announced in the order sent; a payload may complete later than a
 * message announced after it.
 *
 * Threads: one transfer thread calls everything. Callbacks run inside progress(). */
#ifndef SLUICE_COMMON_TRANSFER_LINK_H
#define SLUICE_COMMON_TRANSFER_LINK_H

#include "common/base/err.h"
#include <stdbool.h>
#include <stdint.h>

#define SL_LINK_MAX_HEADER 192u /* bytes; the fixed part of every message fits */

struct sl_link;    /* opaque: an open transport */
struct sl_conn;    /* opaque: a connection */
struct sl_link_rx; /* opaque: a payload waiting for its place; valid inside on_message only */

struct sl_link_conf {
    const char *listen;  /* host:port, port 0 = any */
    const char *tls;     /* UCX_TLS */
    const char *devices; /* UCX_NET_DEVICES, NULL = the one of listen's address */
    void *pool;          /* memory of payloads, registered once; NULL = none */
    size_t pool_bytes;
    bool pool_on_device;  /* it is the CUDA device's, which takes_device() said yes to */
    uint32_t cuda_device; /* that nccl stages payloads on */
    uint32_t
        patience_ms; /* how long the transport may move nothing before it ends a connection, 0 = its own */
};

struct sl_link_events {
    /* A peer connected. It is not trusted before its HELLO. */
    void (*on_accept)(void *arg, struct sl_conn *c);
    /* The connection is gone, whoever ended it; called once. Sends and receives still open complete with an
     * error, some of them after this. c stays valid until the callback returns and all of them completed. */
    void (*on_closed)(void *arg, struct sl_conn *c);
    /* A message: payload_len bytes may be fetched with recv(); data points to them when they are here
     * already, else NULL. */
    void (*on_message)(void *arg, struct sl_conn *c, const void *header, size_t header_len, const void *data,
                       size_t payload_len, struct sl_link_rx *rx);
    void (*on_sent)(void *arg, struct sl_conn *c, uint64_t token, enum sl_err e);
    void (*on_received)(void *arg, struct sl_conn *c, uint64_t token, enum sl_err e);
};

struct sl_link_ops {
    const char *name; /* "ucx", "nccl", "loop" */
    /* (optional) Whether links opened so take payloads in memory of the CUDA device; none do without it. */
    bool (*takes_device)(const struct sl_link_conf *conf);
    enum sl_err (*open)(const struct sl_link_conf *conf, const struct sl_link_events *events, void *arg,
                        struct sl_link **out, struct sl_why *why);
    /* Force-closes what is open. No callback runs in it or after it; what was sent or received is gone from
     * memory's point of view: the caller may free its buffers. */
    void (*close)(struct sl_link *l);
    const char *(*address)(const struct sl_link *l);
    /* Runs callbacks. True: stopped after a bounded amount of work, call again soon (busy peers may not keep
     * the caller from its timers). False: nothing is left to do and fd() is armed: wait on it. */
    bool (*progress)(struct sl_link *l);
    int (*fd)(const struct sl_link *l);
    /* Starts connecting, and waits for nobody; failure is told by on_closed. Until the peer's name is resolved send()
     * says SL_EPEER. */
    enum sl_err (*connect)(struct sl_link *l, const char *address, struct sl_conn **out, struct sl_why *why);
    /* (optional) The peer has shown who it is, and is worth what a connection costs beyond messages. */
    void (*admit)(struct sl_conn *c);
    /* The header is copied; the payload must stay until on_sent(token). control: small, kept in order,
     * payload copied too, no on_sent. Else on_sent follows, perhaps at once. Returns SL_EPEER when the
     * connection is closed (no on_sent then). */
    enum sl_err (*send)(struct sl_conn *c, const void *header, size_t header_len, const void *payload,
                        size_t payload_len, bool control, uint64_t token);
    /* Inside on_message: lets the payload land in dst (payload_len bytes); on_received(token) follows,
     * perhaps at once, and never before bytes could still be written into dst. What on_message gave data of goes to
     * memory of the host only. */
    void (*recv)(struct sl_conn *c, struct sl_link_rx *rx, void *dst, size_t len, uint64_t token);
    /* Ends it at once: the only way to cancel what is in flight. on_closed follows in the next progress(). */
    void (*disconnect)(struct sl_conn *c);
    void (*set_user)(struct sl_conn *c, void *user);
    void *(*user)(const struct sl_conn *c);
    /* (optional) In on_closed: why the transport ended it, as a clause, or NULL. */
    const char *(*why)(const struct sl_conn *c);
    const char *(*transport)(const struct sl_conn *c); /* "ucx tcp", "nccl" */
};

extern const struct sl_link_ops sl_link_ucx, sl_link_nccl, sl_link_loop;

/* By its name; NULL when unknown. */
const struct sl_link_ops *sl_link_find(const char *name);

/* "host:port" or "[v6]:port" in two. SL_ECONFIG when it is neither. */
struct sl_link_address {
    char host[64], port[8];
};
SL_MUST_CHECK enum sl_err sl_link_address_split(const char *text, struct sl_link_address *out,
                                                struct sl_why *why);

#endif
