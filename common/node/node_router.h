/* common/node/node_router.h - the node's side of one router: registered, heartbeats, events in batches.
 *
 *     unregistered --Register accepted--> registered --unknown or another boot id--> unregistered
 *     registered   --silent for router_dead_ms--> its legs are canceled; heartbeats go on
 *
 * Engine thread only. */
#ifndef SLUICE_COMMON_NODE_NODE_ROUTER_H
#define SLUICE_COMMON_NODE_NODE_ROUTER_H

#include "common/node/node_leg.h"

SL_MUST_CHECK enum sl_err sl_node_router_open(struct sl_node *n, const char *url, size_t index,
                                              struct sl_node_router **out, struct sl_why *why);
void sl_node_router_close(struct sl_node_router *r);
/* The router that this boot id belongs to, NULL when none is registered with it. */
struct sl_node_router *sl_node_router_find(struct sl_node *n, uint64_t boot_id);
/* An answer that belongs to it. */
void sl_node_router_answer(struct sl_node_router *r, const struct sl_wire_in *in);
/* It was heard of: a command came. */
void sl_node_router_heard(struct sl_node_router *r);
/* A heartbeat now: something changed that placement wants to know. */
void sl_node_router_beat(struct sl_node_router *r);
/* Registers anew soon: what the node says of itself has changed. */
void sl_node_router_tell_info(struct sl_node_router *r);
bool sl_node_router_registered(const struct sl_node_router *r);
/* It has all that was told, or nobody can tell. */
bool sl_node_router_is_told(const struct sl_node_router *r);

/* What happened in this round; sent by sl_node_router_flush() as one message. Silently dropped for a router
 * that is gone. */
void sl_node_tell_token(struct sl_leg *l, uint32_t at);
void sl_node_tell_state(struct sl_leg *l);
void sl_node_tell_done(struct sl_leg *l);
void sl_node_router_flush(struct sl_node_router *r);

/* The wire's form of a token or an end kept in a leg; points into the leg. top arrays too. */
void sl_leg_token_event(const struct sl_leg *l, uint32_t at, Sluice__TokenEvent *out);
void sl_leg_done_event(const struct sl_leg *l, Sluice__DoneEvent *out);

/* The tag of a call: which router, which kind. */
size_t sl_node_router_of_tag(uint64_t tag);

#endif
