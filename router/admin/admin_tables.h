/* router/admin/admin_tables.h - the tables of sluicectl's read-only operations.
 *
 * Column and key names are an interface: sluice-bench and scripts read them. Threads: flow thread. */
#ifndef SLUICE_ROUTER_ADMIN_ADMIN_TABLES_H
#define SLUICE_ROUTER_ADMIN_ADMIN_TABLES_H

#include "router/admin/admin_out.h"
#include "router/admin/cluster_events.h"
#include "router/fleet/node_table.h"
#include "router/flow/request_table.h"
#include "router/place/decision.h"

struct sl_admin_state {
    enum sl_place_mode mode;
    bool draining;
    uint64_t boot_id, now_ms, now_us;
    const struct sl_node_table *nodes;
    const struct sl_request_table *requests;
    const struct sl_decisions *decisions;
    const struct sl_cluster_events *events;
};

/* What is wrong and what to do, then the numbers. Also sets the reply's code when the cluster cannot serve:
 * SL_ENOTREADY. */
void sl_admin_status(struct sl_admin_out *o, const struct sl_admin_state *s);
void sl_admin_nodes(struct sl_admin_out *o, const struct sl_admin_state *s);
/* One node as it sees itself: the parts of requests it has, and its counters. */
void sl_admin_node(struct sl_admin_out *o, const char *node, const Sluice__StatsReply *reply);
void sl_admin_links(struct sl_admin_out *o, const struct sl_admin_state *s);
/* The oldest n_open open ones, then up to n_recent that ended. */
void sl_admin_requests(struct sl_admin_out *o, const struct sl_admin_state *s, uint32_t n_open,
                       uint32_t n_recent);
/* The record of a request by its id, the client's own X-Request-Id, or "last", the newest. NULL: o says that
 * there is none. */
const struct sl_decision *sl_admin_find(struct sl_admin_out *o, const struct sl_admin_state *s,
                                        const char *id);
/* Classes of requests: how many of those that ended lately had what they wished for. */
void sl_admin_slo(struct sl_admin_out *o, const struct sl_admin_state *s);
/* A time line: spans by lane, and every token. */
void sl_admin_trace(struct sl_admin_out *o, const struct sl_admin_state *s, const char *id);
/* id: of the request, or the client's own X-Request-Id; "last" is the newest. */
void sl_admin_explain(struct sl_admin_out *o, const struct sl_admin_state *s, const char *id);

#endif
