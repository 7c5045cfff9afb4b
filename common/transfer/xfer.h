/* common/transfer/xfer.h - inside of common/transfer: what the transfer thread owns. Not for other folders.
 *
 * transfer.c  the thread, its commands and events, timers
 * peer.c      connections: handshake, heartbeats, link test
 * kv_send.c   P's sessions        kv_recv.c   D's sessions
 * stage.c     pages of a device, between the pool and the link */
#ifndef SLUICE_COMMON_TRANSFER_XFER_H
#define SLUICE_COMMON_TRANSFER_XFER_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/hashmap.h"
#include "common/base/list.h"
#include "common/base/loop.h"
#include "common/base/thread.h"
#include "common/transfer/kv_wire.h"

#define SL_XFER_MAX_PEERS     256u        /* nodes one node talks to */
#define SL_XFER_MAX_INFLIGHT  (16u << 20) /* payload bytes sent and not completed, per connection ... */
#define SL_XFER_MIN_INFLIGHT  (1u << 20)  /* ... fewer on a slow link, where a queue only delays cancels: */
#define SL_XFER_INFLIGHT_MS   250u        /* as many as the measured rate moves in this time */
#define SL_XFER_MESSAGES      4u  /* one message has 1/4 of them at most, 4 MiB on a fast link, or one page */
#define SL_XFER_TICK_MS       20u /* how late a deadline or heartbeat may be noticed */
#define SL_XFER_IDLE_MS       1000u /* longest time without a tick */
#define SL_XFER_MAX_REJECTS   2u    /* the first is sent again, the second ends the session */
#define SL_XFER_RETRY_MS      1000u /* before a peer that was lost or refused the pair is dialled again ... */
#define SL_XFER_RETRY_MAX_MS  30000u     /* ... doubled each time up to this ... */
#define SL_XFER_FORGET_MS     600000u    /* ... until it has been away for this long */
#define SL_XFER_PROBE_BYTES   (2u << 20) /* payload of the bandwidth probe */
#define SL_XFER_PROBE_ROUNDS  5u         /* small round trips of the latency probe; the fastest counts ... */
#define SL_XFER_PROBE_LARGE   2u         /* ... and large ones; the first also grows socket buffers */
#define SL_XFER_SLOW_MB_PER_S 12u        /* a link below it, about 100 Mbit/s, is warned of */
#define SL_XFER_PROBE_MS      30000u     /* an idle link is measured again after */
#define SL_XFER_DEGRADED_MS   60000u     /* a link that damaged pages is used last for */

/* Of a stage, which pages of a device pass through, both ways and for all peers: */
/* What eight connections may have in flight; pinned and on the device. */
#define SL_XFER_STAGE_BYTES     (128u << 20)
#define SL_XFER_STAGE_MIN_SLOTS 5u /* of a page each, however large: two under way each way, and one kept */
#define SL_XFER_STAGE_KEPT      8u /* one in so many slots is kept for spills: 16 MiB are 0.3 ms of a bus */
#define SL_XFER_STAGE_MAX_SLOTS 1024u /* small pages: as many as fit 32 lists of 80 bytes a slot in 3 MiB */
#define SL_XFER_STAGE_MOVES     16u /* calls of the mover under way; it has 32 tickets and waits for the 33rd */
#define SL_XFER_STAGE_POLL_US   50u /* gathering 4 MiB takes 3 us, the bus 80 us */

enum sl_peer_state { SL_PEER_CONNECTING, SL_PEER_HELLO, SL_PEER_PROVING, SL_PEER_UP, SL_PEER_CLOSED };

/* One connection and who is behind it. P's are dialled, D's accepted. */
struct sl_peer {
    struct sl_xfer *x;
    struct sl_conn *conn; /* NULL once closed */
    struct sl_list node;  /* x->peers */
    enum sl_peer_state state;
    bool dialled, bye, refused;
    bool fenced; /* dialled, and another took its place: freed when it has closed, and told of no more */
    struct sl_xfer_peer ref; /* who we want (dialled) or who said HELLO */
    uint64_t last_heard_ms, next_ping_ms, retry_ms, connect_since_ms, degraded_until_ms;
    uint64_t down_since_ms; /* 0 = not lost since it was up */
    uint32_t retry_wait_ms;
    uint64_t inflight_bytes, max_inflight_bytes;
    uint64_t spilt_bytes; /* landing here beside the slots of the stage */
    struct sl_peer_nonces {
        unsigned char p[SL_NONCE_BYTES], d[SL_NONCE_BYTES]; /* of this connection's handshake */
    } nonces;
    unsigned char hello[SL_KV_IDENTITY_BYTES]; /* of an accepted one, until its proof has come */
    uint64_t wanted_boot_id;                   /* and whom it wants */
    /* link test */
    uint32_t probe_round;
    uint64_t probe_sent_us, next_probe_ms;
    bool probing;
    double small_us, large_us; /* fastest round trips of this test */
    double latency_us, bytes_per_s;
    struct sl_xfer_totals count;
    char transport[32];
    char why[SL_KV_MAX_WHY]; /* the connection, or the last one, ended; "" while all is well */
    bool why_is_old;         /* of the try before this one */
};

enum sl_send_state { SL_SEND_CONNECT, SL_SEND_ANNOUNCED, SL_SEND_GRANTED, SL_SEND_CLOSING };

struct sl_send {
    struct sl_xfer_key key;
    struct sl_list node; /* x->sends */
    uint64_t id;         /* token of its payload sends */
    struct sl_peer *peer;
    enum sl_send_state state;
    uint32_t n_tokens, n_pages;
    uint32_t have_pages;
    unsigned char *run_starts; /* bitmap from the grant */
    uint32_t *pages;           /* source page ids known so far */
    uint32_t n_known;
    uint32_t ready_pages; /* final pages of pages[] */
    uint32_t next_page;   /* first not yet under way: sent, or on its way to the stage ... */
    uint32_t sent_page;   /* ... and first not yet sent */
    uint64_t *digest;     /* [n_pages] of pages sent through a stage; else NULL */
    uint32_t commit_page; /* first not yet in a commit */
    uint32_t committed;   /* answered by D */
    uint32_t n_inflight;  /* payload sends open */
    uint64_t inflight_bytes;
    uint32_t n_rejects, resends, moved;
    bool last_commit_sent, has_first;
    struct sl_xfer_first first;
    enum sl_err err; /* of SL_SEND_CLOSING */
    bool silent;     /* only there to tell D of an abort: no event at the end, no place in n_sessions */
    char why[SL_KV_MAX_WHY];
    uint64_t deadline_ms;
    uint64_t ready_us, bytes_after_ready, closing_since_ms;
};

enum sl_recv_state { SL_RECV_WAIT, SL_RECV_GRANTED, SL_RECV_CLOSING };
enum sl_page_state { SL_PAGE_ABSENT, SL_PAGE_PENDING, SL_PAGE_ARRIVED, SL_PAGE_COMMITTED };

struct sl_recv {
    struct sl_xfer_key key;
    struct sl_list node; /* x->recvs */
    uint64_t id;
    struct sl_peer *peer; /* NULL until P announced */
    struct sl_xfer_peer from;
    enum sl_recv_state state;
    uint32_t n_tokens, n_pages, have_pages;
    uint32_t *pages;
    uint8_t *page_state; /* enum sl_page_state */
    uint64_t *digest;    /* per page, from commits */
    uint64_t *placed;    /* per page, of what came through a stage; else NULL */
    uint32_t commit_to;  /* pages covered by commits received */
    uint32_t committed;  /* leading pages committed */
    uint32_t answered;   /* last committed told to P */
    uint32_t n_pending;  /* receives into pages open here */
    bool rejected;       /* pages from commit_to on are to come again, and nothing else is taken before */
    uint32_t rejects, moved;
    bool last, has_first;
    struct sl_xfer_first first;
    enum sl_err err;
    char why[SL_KV_MAX_WHY];
    uint64_t deadline_ms, announce_by_ms, closing_since_ms, granted_us;
    uint64_t absent_since_ms; /* SL_RECV_WAIT: P was not connected since then */
};

/* What is remembered of a key that has no session at D: the side that came first waits for the other, and a
 * side that gave up leaves word for it. */
enum sl_early_kind {
    SL_EARLY_ANNOUNCED, /* P is here, D's engine is not yet */
    SL_EARLY_ABORTED,   /* P gave up before D's engine came */
    SL_EARLY_ENDED      /* D gave up before P came: its ANNOUNCE is answered with ABORT */
};
struct sl_early {
    struct sl_xfer_key key;
    struct sl_list node; /* x->earlies, oldest first */
    enum sl_early_kind kind;
    struct sl_peer *peer; /* who announced or aborted; NULL when its connection is gone */
    char from[64];        /* the name of P */
    uint64_t boot_id;
    uint32_t n_tokens;
    uint64_t until_ms;
    char why[SL_KV_MAX_WHY];
};

/* A payload of pages of a device: in slots of the stage, or in host memory until there are some. */
struct sl_staged {
    struct sl_list node; /* of the stage, while it waits for the mover or is moved */
    struct sl_flight *flight;
    uint32_t *pages, *n_tokens; /* [count of the flight] */
    uint64_t *digests;          /* the same, of the pages moved */
    uint32_t slot, n_slots;     /* 0 = it has none */
    uint32_t n_moving, n_moved; /* pages */
    uint64_t ticket;
    bool on_device;       /* the payload lies in the device's slots */
    unsigned char *spill; /* the payload outside of slots, or NULL */
    bool has_landed;      /* of a payload that is received */
};

/* One payload under way: its address is the link's token. */
struct sl_flight {
    struct sl_list node;  /* x->flights */
    struct sl_peer *peer; /* NULL once the peer is gone */
    uint64_t session;     /* id of the send or receive session; 0 = a probe */
    uint32_t index, count;
    uint64_t bytes, value; /* bytes: of a payload that is sent; value: of a probe, or rejects when it began */
    void *copy;            /* freed with it */
    struct sl_staged *staged; /* the same; NULL when its pages are the host's */
};

struct sl_xfer {
    struct sl_xfer_conf conf;
    struct sl_secret secret; /* conf.secret points here, or is NULL */
    const struct sl_link_ops *ops;
    struct sl_link *link;
    struct sl_stage *stage; /* NULL: pages are the host's */
    struct sl_loop *loop;
    struct sl_timer *tick;
    bool active,
        tick_far; /* something happened since the last tick; the next one is further than a tick away */
    atomic_uint n_progress; /* calls of sl_xfer_progress() ... */
    uint32_t progress_seen; /* ... at the last look, */
    uint64_t progressed_ms; /* and when they moved last */
    uint64_t next_due_ms;   /* of the tick that runs: when the next one has something to do */
    struct sl_thread thread;
    struct sl_queue *commands;
    atomic_bool stop;
    bool pump_wanted; /* a session may have something to send: sl_send_pump() in this round */
    struct sl_list peers, sends, recvs, earlies;
    uint32_t n_sends, n_recvs, n_earlies, n_peers;
    atomic_uint n_sessions, n_staged;
    uint64_t next_id;
    struct sl_hashmap *send_by_key, *recv_by_key, *send_by_id, *recv_by_id;
    struct sl_list flights;
    struct sl_list backlog;               /* events that did not fit the queue */
    void *probe_bytes;                    /* SL_XFER_PROBE_BYTES to send, and to receive into */
    uint64_t flip_bit_page, n_pages_sent; /* the fault shown in docs/benchmarks.md */
    pthread_mutex_t report_mutex; /* guards reports and totals: written by the thread, read by anyone */
    struct sl_link_report *reports;
    size_t n_reports;
    struct sl_xfer_totals gone, totals; /* of peers freed; of all, with the reports */
};

/* transfer.c */
void sl_xfer_emit(struct sl_xfer *x, const struct sl_xfer_event *ev);
/* Inside a tick: true when at_ms has come, else the next tick is not later than it. */
static inline bool sl_xfer_due(struct sl_xfer *x, uint64_t at_ms, uint64_t now_ms)
{
    if (at_ms < x->next_due_ms)
        x->next_due_ms = at_ms;
    return now_ms >= at_ms;
}
static inline void *sl_xfer_page(const struct sl_xfer *x, uint32_t id)
{
    return (char *)x->conf.pool + (size_t)id * x->conf.page_bytes;
}
static inline uint32_t sl_xfer_pages_of(const struct sl_xfer *x, uint32_t n_tokens)
{
    uint32_t pt = x->conf.self.geometry.page_tokens;
    return n_tokens / pt + (n_tokens % pt != 0);
}
/* Valid tokens of page index in a session of n_tokens. */
static inline uint32_t sl_xfer_page_valid(const struct sl_xfer *x, uint32_t index, uint32_t n_tokens)
{
    uint32_t pt = x->conf.self.geometry.page_tokens, left = n_tokens - index * pt;
    return left < pt ? left : pt;
}

struct sl_flight *sl_flight_new(struct sl_xfer *x, struct sl_peer *p, uint64_t session);
void sl_flight_free(struct sl_xfer *x, struct sl_flight *f);
/* P: a payload has left, or will not. Frees f. */
void sl_flight_departed(struct sl_xfer *x, struct sl_flight *f, enum sl_err e);

/* stage.c: only where x->stage is set. A payload of f->count pages from f->index on, of a session of n_tokens. */
/* on_device: the link takes the device's slots. */
SL_MUST_CHECK enum sl_err sl_stage_open(struct sl_xfer *x, bool on_device, struct sl_why *why);
void sl_stage_stop(struct sl_xfer *x);  /* ends what is under way; no callback follows. Takes none */
void sl_stage_close(struct sl_xfer *x); /* after all flights are freed. Takes none */
bool sl_stage_step(struct sl_xfer *x);  /* true when something happened */
/* Host memory of payloads, for a link to register; NULL where payloads lie on the device. */
void *sl_stage_memory(const struct sl_xfer *x, size_t *bytes);
/* P: how many pages, at most n, could be fetched now as one payload. */
uint32_t sl_stage_room(const struct sl_xfer *x, uint32_t n);
/* P: fetches so many into f's slots; sl_send_fetched() follows. */
void sl_stage_fetch(struct sl_xfer *x, struct sl_flight *f, const uint32_t *pages, uint32_t n_tokens);
/* D: memory for f's payload to land in; NULL when its peer sends more than its window has. */
void *sl_stage_receive(struct sl_xfer *x, struct sl_flight *f, const uint32_t *pages, uint32_t n_tokens,
                       bool is_here);
/* D: the payload is there and goes to its pages; sl_recv_landed() follows, and f is freed. */
void sl_stage_place(struct sl_xfer *x, struct sl_flight *f);
void *sl_stage_payload(const struct sl_xfer *x, const struct sl_flight *f); /* where it lies */
/* More has landed than there is room for: peers are to wait, and the mover makes room without the link. */
bool sl_stage_is_full(const struct sl_xfer *x);
bool sl_stage_is_host(const struct sl_xfer *x);                /* the host may read it */
void sl_stage_release(struct sl_xfer *x, struct sl_flight *f); /* frees f->staged */

/* peer.c */
struct sl_peer *sl_peer_dial(struct sl_xfer *x, const struct sl_xfer_peer *to, struct sl_why *why);
void sl_peer_accept(struct sl_xfer *x, struct sl_conn *c);
void sl_peer_closed(struct sl_peer *p);
void sl_peer_free(struct sl_peer *p);
void sl_peer_disconnect(struct sl_peer *p, const char *why);
void sl_peer_message(struct sl_peer *p, const struct sl_kv_header *h, const void *data, size_t len,
                     struct sl_link_rx *rx); /* HELLO, HELLO_ACK, BYE, PING, PONG, PROBE, PROBE_ACK */
void sl_peer_tick(struct sl_peer *p, uint64_t now_ms, uint64_t late_ms); /* see sl_timer_late_ms() */
enum sl_err sl_peer_send(struct sl_peer *p, const struct sl_kv_header *h, const void *payload, size_t len);
void sl_peer_saw_rate(struct sl_peer *p, uint64_t bytes, double us);
/* A page came damaged twice: the link is used last for a while. */
void sl_peers_retest(struct sl_xfer *x);
void sl_peer_degrade(struct sl_peer *p);
bool sl_peer_is(const struct sl_peer *p, const char *name, uint64_t boot_id);
/* That start of a node has a connection to here that is up: as P. */
bool sl_peer_is_here(const struct sl_xfer *x, const struct sl_xfer_peer *who);
void sl_count_add(struct sl_xfer_totals *to, const struct sl_xfer_totals *n);
void sl_peer_report(const struct sl_peer *p, struct sl_link_report *out);

/* peer_proof.c: what each side of a connection proves of the cluster secret; id: as packed by
 * sl_kv_hello_pack() */
void sl_peer_prove_p(const struct sl_peer *p, const unsigned char *p_id, const char *d_name,
                     uint64_t d_boot_id, unsigned char out[SL_PROOF_BYTES]);
void sl_peer_prove_d(const struct sl_peer *p, const unsigned char *p_id, const unsigned char *d_id,
                     unsigned char out[SL_PROOF_BYTES]);

/* kv_send.c: P */
void sl_send_open(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *to,
                  uint32_t n_tokens, uint32_t deadline_ms);
void sl_send_ready(struct sl_xfer *x, const struct sl_xfer_key *k, const uint32_t *pages, uint32_t n_tokens);
void sl_send_first(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_first *t);
void sl_send_abort(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *to,
                   const char *why);
void sl_send_message(struct sl_xfer *x, struct sl_peer *p, const struct sl_kv_header *h, const void *data,
                     size_t len);
void sl_send_departed(struct sl_xfer *x, const struct sl_flight *f, enum sl_err e);
void sl_send_fetched(struct sl_xfer *x, struct sl_flight *f);
void sl_send_peer_up(struct sl_xfer *x, struct sl_peer *p);
void sl_send_peer_gone(struct sl_xfer *x, struct sl_peer *p, enum sl_err e, const char *why);
void sl_send_tick(struct sl_xfer *x, uint64_t now_ms);
void sl_send_give_up_all(struct sl_xfer *x, const char *why);
bool sl_send_idle(const struct sl_xfer *x, const struct sl_peer *p); /* no session uses it */
void sl_send_pump(struct sl_xfer *x);
void sl_send_free_all(struct sl_xfer *x);

/* kv_recv.c: D */
void sl_recv_open(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *from,
                  const uint32_t *pages, uint32_t n_tokens, uint32_t have_pages, uint32_t deadline_ms);
void sl_recv_cancel(struct sl_xfer *x, const struct sl_xfer_key *k);
void sl_recv_message(struct sl_xfer *x, struct sl_peer *p, const struct sl_kv_header *h, const void *data,
                     size_t len, struct sl_link_rx *rx);
void sl_recv_landed(struct sl_xfer *x, const struct sl_flight *f, enum sl_err e);
/* was_here: p was up, as P of sessions here. */
void sl_recv_peer_gone(struct sl_xfer *x, struct sl_peer *p, bool was_here, const char *why);
/* Sessions that wait for p's ANNOUNCE would do so in vain. p has proven the secret, where there is one. */
void sl_recv_peer_refused(struct sl_xfer *x, const struct sl_peer *p, const char *why);
void sl_recv_tick(struct sl_xfer *x, uint64_t now_ms);
void sl_recv_give_up_all(struct sl_xfer *x, const char *why);
void sl_recv_free_all(struct sl_xfer *x);

#endif
