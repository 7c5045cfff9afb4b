/* common/transfer/transfer.h - the door of page transfer: pages pushed by P, placed by D (steps 7 and 8 of
 * the request path).
 *
 * One transfer thread per node owns the link (UCX worker or loop), all sessions and peers. The engine thread
 * talks to it by the calls below, which enqueue and never block, and hears from it through one bounded queue
 * of struct sl_xfer_event.
 *
 * A session is one leg of one request: key (request id, epoch = attempt). P opens a send session, D a receive
 * session; whichever side is first waits for the other: P until the deadline, as D's admission may take long,
 * D for P's announce at most wait_ms, and peer_dead_ms where P has no connection. Nobody writes into another's
 * memory: a page message says (request, epoch, index), and D decides where its bytes land; stale or wild pages
 * are dropped and counted. */
#ifndef SLUICE_COMMON_TRANSFER_TRANSFER_H
#define SLUICE_COMMON_TRANSFER_TRANSFER_H

#include "common/base/digest.h"
#include "common/base/queue.h"
#include "common/base/secret.h"
#include "kernels/backend.h"
#include "kernels/sample.h"

struct sl_xfer; /* opaque */

#define SL_XFER_MAX_ID 64u
struct sl_xfer_key {
    char request[SL_XFER_MAX_ID]; /* NUL-terminated */
    uint32_t epoch;
};

struct sl_xfer_peer {
    char name[64];
    uint64_t boot_id;
    char address[64]; /* host:port of its listener */
};

/* Compared at the handshake; a mismatch refuses the pair with a sentence that names both values. */
struct sl_xfer_identity {
    char name[64];
    uint64_t boot_id;
    struct sl_digest128 model_digest;
    struct sl_kv_geometry geometry;
    uint64_t numerics_id;
    uint32_t tensor_parallel;
    bool exact;         /* refuse another numerics id */
    char transport[16]; /* set by sl_xfer_open() */
};

struct sl_xfer_conf {
    const char *transport; /* "ucx", "nccl", "loop" */
    const char *listen;    /* host:port; port 0 = any. A public address is refused unless trust_network */
    bool trust_network;
    const char *ucx_tls;            /* UCX_TLS, NULL = tcp */
    const char *ucx_devices;        /* NULL = the one that has the address of listen */
    uint32_t cuda_device;           /* of this node, its first: nccl's */
    const struct sl_secret *secret; /* peers prove it before anything else counts; copied; NULL = none */
    struct sl_xfer_identity self;
    void *pool; /* host address of page 0, page i at + i * page_bytes; or NULL, and pages lie on ... */
    struct sl_kv_on_device device; /* ... which outlives this */
    size_t stage_bytes;            /* of pages between the device and the wire; 0 = SL_XFER_STAGE_BYTES */
    size_t page_bytes;
    uint32_t n_pages;
    bool digests; /* per page; off only to show what they catch */
    uint32_t peer_dead_ms, wait_ms, heartbeat_ms;
    uint32_t stall_ms; /* without sl_xfer_progress() for this long all sessions are given up; 0 = never */
    uint32_t max_sessions;
    bool link_test;          /* measure each link when a pair first meets */
    int cpu;                 /* pin the thread, -1 = not */
    struct sl_queue *events; /* receives struct sl_xfer_event *, freed with sl_free */
};

SL_MUST_CHECK enum sl_err sl_xfer_open(const struct sl_xfer_conf *conf, struct sl_xfer **out,
                                       struct sl_why *why);
/* Any thread: the node computes, or has nothing to compute. The transfer thread lives on when the others hang,
 * and answers pings: it is by this that the nodes at the other ends of its sessions hear of it. */
void sl_xfer_progress(struct sl_xfer *x);
void sl_xfer_close(struct sl_xfer *x);                /* BYE to all peers; sessions end without events */
const char *sl_xfer_address(const struct sl_xfer *x); /* host:port really bound */

/* ---- P ---- */
/* Connects to the peer when needed and announces the request. n_tokens = s: the pages are ceil(s /
 * page_tokens), the last perhaps partial. Events: GRANTED, then SEND_DONE exactly once. SL_EAGAIN when
 * max_sessions are open or the command queue is full. */
SL_MUST_CHECK enum sl_err sl_xfer_send_open(struct sl_xfer *x, const struct sl_xfer_key *k,
                                            const struct sl_xfer_peer *to, uint32_t n_tokens,
                                            uint32_t deadline_ms);
/* KV of [0, n_tokens) is final in pages[0 .. ceil(n_tokens / page_tokens)); pages lists all pages of the
 * sequence so far, copied. Finished pages not yet sent go out once granted. They stay referenced by the
 * caller until SEND_DONE. pages is NULL when the grant said that D has all of them: only the commit goes out.
 */
SL_MUST_CHECK enum sl_err sl_xfer_send_ready(struct sl_xfer *x, const struct sl_xfer_key *k,
                                             const uint32_t *pages, uint32_t n_tokens);
/* The first token, sent with the last commit. Call before the sl_xfer_send_ready() that completes s. ended:
 * the request is over with it. Log-probabilities where the request wants them: what D is asked for later, it tells
 * as P would have. */
struct sl_xfer_first {
    int32_t token;
    bool ended, has_logprobs;
    uint64_t logits_digest;
    float logprob;
    uint32_t n_top; /* at most SL_PICK_MAX_TOP */
    int32_t top_token[SL_PICK_MAX_TOP];
    float top_logprob[SL_PICK_MAX_TOP];
};
SL_MUST_CHECK enum sl_err sl_xfer_send_first(struct sl_xfer *x, const struct sl_xfer_key *k,
                                             const struct sl_xfer_first *t);
/* Gives up: D is told; SEND_DONE with SL_ECANCELED follows. Also for a session that was never opened: D is
 * told all the same. */
SL_MUST_CHECK enum sl_err sl_xfer_send_abort(struct sl_xfer *x, const struct sl_xfer_key *k,
                                             const struct sl_xfer_peer *to, const char *why);

/* ---- D ---- */
/* D's pages for [0, n_tokens): pages[0 .. have_pages) are there already (prefix hit), the rest will be
 * written by arriving bytes until RECV_DONE. Grants P as soon as it announces. */
SL_MUST_CHECK enum sl_err sl_xfer_recv_open(struct sl_xfer *x, const struct sl_xfer_key *k,
                                            const struct sl_xfer_peer *from, const uint32_t *pages,
                                            uint32_t n_tokens, uint32_t have_pages, uint32_t deadline_ms);
/* Ends it: P is told; RECV_DONE with SL_ECANCELED follows once no receive into the pages is pending here. */
SL_MUST_CHECK enum sl_err sl_xfer_recv_cancel(struct sl_xfer *x, const struct sl_xfer_key *k);

enum sl_xfer_event_kind {
    SL_XFER_GRANTED,    /* P: have_pages leading pages need not be sent */
    SL_XFER_SEND_DONE,  /* P: err SL_OK = all committed; pages may be reused. Else why it ended: SL_ECANCELED
                           (here or by D), SL_EPEER, SL_EMISMATCH, SL_EDIGEST, SL_EDEADLINE */
    SL_XFER_RECV_READY, /* D: [0, n_tokens) committed and checked; not told of the last pages, RECV_DONE is */
    /* D: SL_OK = complete (first is valid when has_first); else n_tokens are committed and the rest is D's to
     * compute: SL_EPEER (P gave up, is gone or never came), SL_EDIGEST, SL_EDEADLINE, SL_EPROTO,
     * SL_ECANCELED. Pages are D's alone again. */
    SL_XFER_RECV_DONE
};
struct sl_xfer_event {
    enum sl_xfer_event_kind kind;
    struct sl_xfer_key key;
    enum sl_err err;
    uint32_t have_pages, n_tokens;
    bool has_first;
    struct sl_xfer_first first;
    uint32_t pages_moved, resends;
    uint64_t bytes_after_ready; /* P: unsent when the last page became ready */
    double transfer_ms;         /* P: last page ready -> end; D: grant -> end */
    char why[160];
};

/* Snapshot of all links for heartbeats; any thread. */
struct sl_link_report {
    char peer[64];
    uint64_t peer_boot_id;
    char transport[32];
    const char *state; /* "testing" "up" "degraded" "down" "refused" */
    double bytes_per_s, latency_us;
    uint64_t pages_sent, bytes_sent, pages_received, rejects, dropped;
    char why[160];
};
/* All dialled links: those this node prefills for. */
size_t sl_xfer_links(struct sl_xfer *x, struct sl_link_report *out, size_t max);
/* Counted since the start over all peers, dialled or not, also those gone; any thread. */
struct sl_xfer_totals {
    uint64_t pages_sent, bytes_sent, pages_received;
    uint64_t rejects; /* pages that came damaged, here or there */
    uint64_t dropped; /* messages that were wild, stale or broken */
};
struct sl_xfer_totals sl_xfer_totals(struct sl_xfer *x);
/* Measures every link anew when it is idle, and dials those that are down now. SL_EAGAIN. */
SL_MUST_CHECK enum sl_err sl_xfer_retest(struct sl_xfer *x);
uint32_t sl_xfer_open_sessions(struct sl_xfer *x); /* any thread */
/* Pages that are in the stage now: 0 when no session is open. Any thread. */
uint32_t sl_xfer_staged_pages(struct sl_xfer *x);

#endif
