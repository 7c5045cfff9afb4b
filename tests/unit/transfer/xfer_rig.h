/* tests/unit/transfer/xfer_rig.h - nodes for tests of page transfer: a pool, a queue of events, a transfer
 * thread.
 *
 * The test thread plays the engine. Waits end with the event, or fail the test after a time that only a
 * broken build needs. */
#ifndef SLUICE_TESTS_UNIT_TRANSFER_XFER_RIG_H
#define SLUICE_TESTS_UNIT_TRANSFER_XFER_RIG_H

#include "common/transfer/transfer.h"

/* Nodes whose names begin with one of these letters have their pages on the emulated CUDA device, in memory that the
 * host may not touch (cu_emu_guard()); at first RIG_DEVICES of the environment, else "". Of use in programs that
 * have the emulation. */
void rig_set_devices(const char *letters);

#define RIG_PAGE_TOKENS 4u
#define RIG_PAGES       64u /* of a pool, unless opts say more */
#define RIG_WAIT_MS     300000u
#define RIG_NEVER_MS    (2 * RIG_WAIT_MS) /* of times that a test does not speak of: a wait fails before */
#define RIG_DEADLINE_MS RIG_NEVER_MS

struct rig_opts {
    const char *transport; /* NULL = "loop" */
    const char *listen;    /* NULL = 127.0.0.1:0 */
    const char *ucx_tls;   /* NULL = the default, tcp */
    const char *name;      /* NULL = "node" */
    const char *secret;    /* up to SL_SECRET_BYTES characters; NULL = none */
    uint64_t boot_id;      /* 0 = 1 */
    uint32_t n_pages;      /* 0 = RIG_PAGES */
    uint32_t head_dim;     /* 0 = 8: pages of 256 bytes */
    uint32_t wait_ms;      /* 0 = RIG_NEVER_MS */
    uint32_t peer_dead_ms; /* 0 = RIG_NEVER_MS */
    uint32_t heartbeat_ms; /* 0 = 100 */
    uint32_t stall_ms;     /* 0 = never */
    uint32_t max_sessions; /* 0 = 256 */
    uint32_t max_events;   /* 0 = 4096 */
    size_t stage_bytes;    /* 0 = the default */
    bool link_test, no_digests;
    /* changes the identity before the node opens */
    void (*edit)(struct sl_xfer_identity *id);
    /* the mover of pages on a device, made of the backend's; NULL = that one */
    const struct sl_kv_mover_ops *(*mover)(const struct sl_kv_mover_ops *of);
};

struct rig_node {
    struct sl_xfer *x;
    struct sl_queue *events;
    struct sl_xfer_event *kept; /* popped and not asked for yet */
    size_t n_kept, cap_kept;
    unsigned char *pool; /* NULL: on the device */
    const struct sl_backend_ops *ops;
    struct sl_kv_on_device device;
    unsigned char *scratch; /* a page of the device's */
    size_t page_bytes;
    uint32_t n_pages;
    struct sl_xfer_peer peer; /* how others reach it */
};

/* The identity all nodes of a test share: model, geometry, numerics. */
void rig_identity(struct sl_xfer_identity *id);
/* The cluster secret that opts name by this text. */
void rig_secret(const char *text, struct sl_secret *out);
void rig_open(struct rig_node *n, const struct rig_opts *o);
void rig_close(struct rig_node *n); /* takes one that is closed */

struct sl_xfer_key rig_key(const char *request, uint32_t epoch);

/* Pages of the pool as test data: what page index of request seed must hold. */
unsigned char *rig_page(const struct rig_node *n,
                        uint32_t page); /* of a device: a copy, until the next call */
void rig_fill(struct rig_node *n, uint32_t page, uint32_t seed, uint32_t index);
bool rig_page_is(const struct rig_node *n, uint32_t page, uint32_t seed, uint32_t index);
void rig_clear(struct rig_node *n);
/* pages[i] = first + i */
void rig_iota(uint32_t *pages, uint32_t n, uint32_t first);

/* The next event of this kind and key; others wait for their turn. */
struct sl_xfer_event rig_wait(struct rig_node *n, enum sl_xfer_event_kind kind, const struct sl_xfer_key *k);
/* RECV_READY of at least n_tokens. */
void rig_wait_ready(struct rig_node *n, const struct sl_xfer_key *k, uint32_t n_tokens);
/* True when an event of this kind and key has come. Does not wait. */
bool rig_has(struct rig_node *n, enum sl_xfer_event_kind kind, const struct sl_xfer_key *k);
/* Drops all events that have come. */
void rig_forget(struct rig_node *n);
/* The report of the link to that peer in this state. */
struct sl_link_report rig_wait_link(struct rig_node *n, const char *peer, const char *state);
void rig_wait_sessions(struct rig_node *n, uint32_t sessions);
void rig_wait_unstaged(struct rig_node *n); /* no page is in its stage */
/* Until this many messages were dropped at n. */
void rig_wait_dropped(struct rig_node *n, uint64_t dropped);

#endif
