/* router/flow/flow_core.h - what the files of the flow share. Not for others: request_flow.h is the door.
 *
 *   books.c          accounts of keys, output lengths of classes
 *   hold.c           who waits at the router while nodes are full, and who goes next
 *   flow_thread.c    open and close, the loop, queues, membership and health
 *   request_flow.c   the life of a request: its states and every step between them
 *   flow_events.c    tokens, ends and gaps as nodes report them
 *   flow_commands.c  messages to nodes, and their answers
 *   flow_admin.c     sluicectl's operations
 *
 * Threads: everything here belongs to the flow thread unless it says otherwise. */
#ifndef SLUICE_ROUTER_FLOW_FLOW_CORE_H
#define SLUICE_ROUTER_FLOW_FLOW_CORE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/thread.h"
#include "common/sched/admission.h"
#include "router/admin/cluster_events.h"
#include "router/admin/metrics_http.h"
#include "router/admin/step_log.h"
#include "router/fleet/node_link.h"
#include "router/flow/flow_door.h"
#include "common/base/log.h"
#include "router/flow/recover.h"
#include "router/flow/request_flow.h"
#include "router/flow/request_table.h"
#include "router/place/fair_share.h"

struct sl_flow {
    struct sl_flow_conf conf; /* strings and digest owned */
    uint8_t model_digest[16];
    struct sl_loop *loop;
    struct sl_thread thread;
    struct sl_timer *tick;
    struct sl_queue *inbox;    /* struct sl_flow_item *, from other threads */
    struct sl_queue *requests; /* struct sl_wire_in *: register, heartbeat, admin */
    struct sl_queue *events;   /* struct sl_wire_in *: event batches */
    struct sl_queue *answers;  /* struct sl_wire_in *: of commands */
    struct sl_wire_server *register_server, *admin_server;
    struct sl_wire_pull *pull;
    uint64_t n_events_repeated; /* batches */
    struct sl_log_limit repeated_told, wrong_told, mismatch_told;

    struct sl_door *door;
    struct sl_node_table *nodes;
    struct sl_node_calls *calls;
    struct sl_request_table *table;
    struct sl_decisions *decisions;
    struct sl_cluster_events *events_log;
    struct sl_request_metrics *metrics;
    struct sl_node_view *view; /* scratch of placement */
    enum sl_place_mode mode;
    uint32_t split; /* of prompts that are longer, in mode hybrid; 0 = by rule */
    uint64_t next_stats_ms;
    struct sl_step_log *steps; /* has its own lock */
    struct sl_share share;
    struct sl_share_entry *held; /* [conf.max_requests] */
    uint32_t n_waiting;          /* of held */
    bool room;                   /* a node has less to do than before: see who may go */
    struct sl_hashmap *accounts; /* key name -> struct sl_account */
    struct sl_hashmap *outputs;  /* class name -> struct sl_output_mean */

    /* any thread */
    atomic_uint open_requests; /* submitted and not ended */
    atomic_uint_fast64_t next_id;
    atomic_uint_fast64_t watched_until_ms; /* somebody looks at the steps */
    atomic_bool draining, stop;
    pthread_mutex_t ready_lock;
    bool ready;
    struct sl_why not_ready;
};

enum sl_flow_item_kind { SL_ITEM_SUBMIT, SL_ITEM_ADMIN };
struct sl_flow_item {
    enum sl_flow_item_kind kind;
    struct sl_gen_req *req;
    struct sl_door_entry *door;
    struct sl_admin_wait *admin;
};

/* ---- request_flow.c ---- */
void sl_flow_begin(struct sl_flow *f, struct sl_gen_req *req, struct sl_door_entry *door);
/* Something went wrong with a leg or the request; may end r: it may not be touched afterwards. */
void sl_flow_trouble(struct sl_flow *f, struct sl_request *r, const struct sl_trouble_in *t, const char *why);
/* A token of this attempt in its turn (index == n_received). False when the request is over with it: r may be
 * gone. */
bool sl_flow_deliver(struct sl_flow *f, struct sl_request *r, const Sluice__TokenEvent *ev);
/* Tokens that r may generate at most, over all attempts. */
uint32_t sl_flow_longest(const struct sl_flow *f, const struct sl_request *r);
/* All tokens are here. reason: "stop" or "length". r may be gone afterwards. */
void sl_flow_end(struct sl_flow *f, struct sl_request *r, const char *reason);
/* A leg became SL_LEG_DONE while r is SL_REQ_ENDING: ends it for good when it was the last. */
void sl_flow_settle(struct sl_flow *f, struct sl_request *r);
void sl_flow_fail(struct sl_flow *f, struct sl_request *r, enum sl_err err, const char *why);
void sl_flow_client_left(struct sl_flow *f, struct sl_request *r);
/* Arms r's timer for what comes first: deadline, gap, retry, settle. */
void sl_flow_arm(struct sl_flow *f, struct sl_request *r);
/* The node has it: it said so, or told of it. Nothing happens when that was known. */
void sl_flow_leg_accepted(struct sl_flow *f, struct sl_request *r, struct sl_leg *leg);
void sl_flow_leg_done(struct sl_flow *f, struct sl_leg *leg);

/* The placement of r as things are now, into *choice; f->view holds the state. */
SL_MUST_CHECK enum sl_err sl_flow_choose(struct sl_flow *f, struct sl_request *r,
                                         struct sl_place_choice *choice, struct sl_why *why);
/* Sends r where it was chosen to go; may end r. */
void sl_flow_go(struct sl_flow *f, struct sl_request *r, const struct sl_place_choice *choice);
/* As nodes are told it. */
int32_t sl_flow_priority(const struct sl_request *r);

/* ---- books.c ---- */
struct sl_account *sl_flow_account(struct sl_flow *f, const struct sl_gen_req *req);
struct sl_output_mean *sl_flow_outputs(struct sl_flow *f, const struct sl_gen_req *req);
void sl_flow_free_books(struct sl_flow *f);

/* ---- hold.c ---- */
/* Whether r, chosen so, has to wait at the router for its turn. */
bool sl_flow_must_wait(const struct sl_flow *f, const struct sl_request *r,
                       const struct sl_place_choice *choice);
/* Holds r back, or refuses it where it would wait longer than it may: then it is gone. */
void sl_flow_hold(struct sl_flow *f, struct sl_request *r, const struct sl_place_choice *choice);
/* Something came free: lets go whose turn it is, as many as nodes have room for. */
void sl_flow_let_go(struct sl_flow *f);
/* r waits no longer; nothing happens when it did not. */
void sl_flow_unhold(struct sl_flow *f, struct sl_request *r);

/* ---- flow_events.c ---- */
void sl_flow_on_batch(struct sl_flow *f, const Sluice__EventBatch *b);
void sl_flow_on_resync_reply(struct sl_flow *f, const struct sl_node_call *call,
                             const Sluice__ResyncReply *reply);
void sl_flow_ask_resync(struct sl_flow *f, struct sl_request *r);
/* No answer came, or none was asked for; the caller arms the request. */
void sl_flow_resync_failed(struct sl_request *r);

/* ---- flow_commands.c ---- */
/* SL_EAGAIN, SL_EPEER: it did not even leave. */
/* Milliseconds left of the wish for the first token, at least 1; 0 = no wish. */
uint32_t sl_flow_ttft_left_ms(const struct sl_request *r);
SL_MUST_CHECK enum sl_err sl_flow_send_submit(struct sl_flow *f, struct sl_request *r, uint32_t tries);
SL_MUST_CHECK enum sl_err sl_flow_send_prefill(struct sl_flow *f, struct sl_request *r, uint32_t tries);
/* To the leg's node when it may still know the request; never fails: a node that is not told has its own
 * deadline. */
void sl_flow_send_cancel(struct sl_flow *f, struct sl_request *r, struct sl_leg *leg, const char *reason);
/* To the node of that name, whatever its life. */
void sl_flow_send_cancel_to(struct sl_flow *f, const struct sl_node_call *what, uint32_t tombstone_ms,
                            const char *reason);
SL_MUST_CHECK enum sl_err sl_flow_send_resync(struct sl_flow *f, struct sl_request *r, uint32_t tries);
SL_MUST_CHECK enum sl_err sl_flow_send_drain(struct sl_flow *f, struct sl_node *n, bool on, uint32_t tries,
                                             void *user);
/* user NULL: for /metrics, nobody waits. */
SL_MUST_CHECK enum sl_err sl_flow_send_stats(struct sl_flow *f, struct sl_node *n, uint32_t tries,
                                             void *user);
/* The steps that are not in the step log yet; nothing happens while an answer is under way. */
void sl_flow_ask_steps(struct sl_node *n);
/* An administrator's question to one node. */
SL_MUST_CHECK enum sl_err sl_flow_send_admin(struct sl_flow *f, struct sl_node *n, const char *op,
                                             char **args, size_t n_args, void *user);
/* An answer of a command, or its failure; frees in. */
void sl_flow_on_answer(struct sl_flow *f, struct sl_wire_in *in);

/* ---- flow_thread.c ---- */
struct sl_node *sl_flow_leg_node(const struct sl_flow *f,
                                 const struct sl_leg *leg); /* NULL: that life of it is over */
void sl_flow_node_died(struct sl_flow *f, const char *name, uint64_t boot_id, const char *how);
void sl_flow_refresh_ready(struct sl_flow *f);

/* ---- flow_admin.c ---- */
void sl_flow_on_admin_wire(struct sl_flow *f, struct sl_wire_in *in);
void sl_flow_on_admin_item(struct sl_flow *f, struct sl_admin_wait *w);
void sl_flow_on_drain_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                             const char *why);
void sl_flow_on_admin_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                             const char *why, const Sluice__AdminReply *reply);
void sl_flow_on_stats_answer(struct sl_flow *f, const struct sl_node_call *call, enum sl_err err,
                             const Sluice__StatsReply *reply);

#endif
