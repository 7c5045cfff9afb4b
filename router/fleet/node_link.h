/* router/fleet/node_link.h - the router's commands to nodes, each with an answer: a REQ client per node, and
 * the book of calls in flight.
 *
 * Every command is idempotent, so a call without an answer is made once more by whoever sent it (struct
 * sl_node_call counts tries). Threads: flow thread only; answers come through the queue. */
#ifndef SLUICE_ROUTER_FLEET_NODE_LINK_H
#define SLUICE_ROUTER_FLEET_NODE_LINK_H

#include "common/wire/wire_sock.h"

enum sl_node_command {
    SL_CMD_SUBMIT,
    SL_CMD_PREFILL,
    SL_CMD_CANCEL,
    SL_CMD_DRAIN,
    SL_CMD_STATS,
    SL_CMD_STEPS, /* StatsRequest with steps_after */
    SL_CMD_RESYNC,
    SL_CMD_ADMIN
};

/* What a call was about; returned with its answer. */
struct sl_node_call {
    enum sl_node_command command;
    char node[SL_WIRE_MAX_NAME + 1];
    uint64_t boot_id;
    char request_id[SL_WIRE_MAX_ID + 1]; /* "" for drain and stats */
    uint32_t attempt;
    uint32_t from_index; /* resync */
    uint32_t tries;      /* 0 for the first */
    void *user;          /* drain, stats, admin: who waits for it */
};

struct sl_node_calls; /* opaque: calls in flight, of all nodes */
struct sl_node_calls *sl_node_calls_new(struct sl_queue *answers, const struct sl_wire_guard *guard,
                                        uint32_t timeout_ms);
void sl_node_calls_free(struct sl_node_calls *c); /* calls left are forgotten */
/* The call that an answer (kind SL_WIRE_ANSWER) belongs to; false when it is not known any more. */
bool sl_node_calls_take(struct sl_node_calls *c, uint64_t tag, struct sl_node_call *out);

struct sl_node_link; /* opaque */
SL_MUST_CHECK enum sl_err sl_node_link_open(struct sl_node_calls *calls, const char *command_url,
                                            struct sl_node_link **out, struct sl_why *why);
/* Calls in flight are answered with SL_EPEER before it returns. Takes NULL. */
void sl_node_link_close(struct sl_node_link *l);
/* Sends; what is copied. The answer, or SL_EPEER after the timeout, comes exactly once. SL_EAGAIN: too many
 * wait for this node. */
SL_MUST_CHECK enum sl_err sl_node_link_send(struct sl_node_link *l, Sluice__Envelope *msg,
                                            const struct sl_node_call *what);

#endif
