/* common/node/node.h - what both node daemons share: one engine thread that serves routers and the two
 * duties.
 *
 * The engine thread runs an event loop over the end of a step, events of page transfer, commands and answers
 * of routers, and timers. After each round it collects what the engine says, starts the next step, and sends
 * one message per router.
 *
 * A duty (prefill, decode) is a small table of functions that plug into the loop; every node has both,
 * `roles` says which it may do. What a duty does for one placement of one request is a leg (node_leg.h).
 *
 * Threads: engine thread only, except sl_node_stop(). */
#ifndef SLUICE_COMMON_NODE_NODE_H
#define SLUICE_COMMON_NODE_NODE_H

#include "common/base/hashmap.h"
#include "common/base/list.h"
#include "common/base/loop.h"
#include "common/engine/engine.h"
#include "common/node/node_conf.h"
#include "common/node/node_order.h"
#include "common/transfer/transfer.h"
#include "common/wire/wire_sock.h"

struct sl_leg;
struct sl_node;
struct sl_node_router;

struct sl_duty_ops {
    const char *name; /* "prefill", "decode" */
    Sluice__Role role;
    Sluice__Envelope__BodyCase command; /* the message that asks for it */
    size_t leg_bytes;                   /* of its own leg, whose first member is struct sl_leg */
    /* Opens the sequence, and what else the leg needs. On error nothing is left open; the router gets the
     * code. */
    enum sl_err (*accept)(struct sl_leg *l, const struct sl_order *o, struct sl_why *why);
    /* (optional) The order was refused, here or before accept: tell whoever else waits for it. */
    void (*refused)(struct sl_node *n, const struct sl_order *o, const char *why);
    /* Not called for legs that have ended. */
    void (*on_engine)(struct sl_leg *l, const struct sl_engine_event *ev);
    /* The last event of a transfer (SEND_DONE, RECV_DONE) comes after leg->xfer was set to over. */
    void (*on_xfer)(struct sl_leg *l, const struct sl_xfer_event *ev);
    /* Gives up the open transfer; its last event follows. SL_EAGAIN is tried again. */
    enum sl_err (*cancel_xfer)(struct sl_leg *l, const char *why);
};

struct sl_legs {
    struct sl_hashmap *by_request; /* (role, request id) -> newest leg */
    struct sl_list active;         /* not released: they hold a sequence or a transfer */
    struct sl_list finished;       /* released, oldest first; kept for late duplicates and resyncs */
    uint32_t n_active, n_finished;
    uint32_t n_constrained; /* of the active ones: their text has to fit a schema */
    size_t finished_bytes;
    struct sl_hashmap *tombstones; /* request id -> struct tombstone */
    struct sl_list tombstone_order;
    uint32_t n_tombstones;
    struct sl_timer *retry; /* transfers whose cancel found a full queue */
};

struct sl_node_counters {
    uint64_t accepted, refused, duplicates, superseded, canceled, expired, peers_lost, tokens_sent,
        batches_sent, batches_lost, resyncs;
};

struct sl_node {
    const struct sl_node_conf *conf;
    const struct sl_duty_ops *const *duties; /* NULL-terminated */
    struct sl_node_conf *live; /* conf, where the program that runs the node lets it change; else NULL */
    uint64_t boot_id;
    struct sl_engine *engine;
    struct sl_node_words *words;
    struct sl_xfer *xfer;
    struct sl_loop *loop;
    struct sl_queue *commands, *answers, *xfer_events;
    struct sl_wire_guard guard; /* of all control sockets */
    struct sl_wire_server *server;
    struct sl_node_router **routers;
    size_t n_routers;
    struct sl_legs legs;
    struct sl_node_counters counters;
    char *command_url, *transfer_address; /* as others reach them */
    bool draining;
    bool leaving; /* told to stop: draining cannot be taken back */
    uint64_t
        last_words_ms; /* since then it is idle for good and asks whether routers have the last events; 0: not yet */
    uint32_t n_results; /* prompt chunks and tokens of the engine, for fault_hold_after */
    bool hold_over;
    struct sl_timer *drain_timer, *look_timer;
    struct sl_seq *blocking; /* what sl_engine_blocking() said last; only compared */
    uint64_t layers_seen;    /* sl_engine_progress() at the last look */
    _Atomic int stop;
    /* (optional) called after every round, for who runs the node */
    void (*after_round)(void *arg);
    void *after_round_arg;
};

/* Loads the model, listens, and goes to the routers. conf and duties are borrowed. why says what to do. */
SL_MUST_CHECK enum sl_err sl_node_open(const struct sl_node_conf *conf,
                                       const struct sl_duty_ops *const *duties, struct sl_node **out,
                                       struct sl_why *why);
void sl_node_run(struct sl_node *n);  /* until sl_node_stop() */
void sl_node_stop(struct sl_node *n); /* any thread */
/* Ends what still runs with SL_EDRAINING. */
void sl_node_close(struct sl_node *n);

/* No new work while on; after deadline_ms (0 = never) what still runs is ended with SL_EDRAINING. */
void sl_node_drain(struct sl_node *n, bool on, uint32_t deadline_ms);
/* Ends what fault_hold_after holds, for good. */
void sl_node_end_hold(struct sl_node *n);
/* True when no sequence and no transfer is left. */
bool sl_node_idle(const struct sl_node *n);
/* Of an idle node that stops: true when every router that it is registered with has taken its last events. */
bool sl_node_last_words(struct sl_node *n);
/* Ends every leg: DONE_ERROR with this code. */
void sl_node_end_all(struct sl_node *n, enum sl_err code, const char *why);

bool sl_node_may(const struct sl_node *n, Sluice__Role role);

#endif
