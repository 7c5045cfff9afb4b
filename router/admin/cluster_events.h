/* router/admin/cluster_events.h - what happened to the cluster lately, for `sluicectl events`: nodes that
 * came, went or were refused, links, readiness, switches, requests that were placed again or failed.
 *
 * The last SL_CLUSTER_EVENTS are kept, numbered from 1 since the router's start. Threads: flow thread. */
#ifndef SLUICE_ROUTER_ADMIN_CLUSTER_EVENTS_H
#define SLUICE_ROUTER_ADMIN_CLUSTER_EVENTS_H

#include "router/admin/admin_out.h"
#include "router/fleet/node_table.h"

#define SL_CLUSTER_EVENTS      2048u /* events kept: 0.9 MiB, days of a cluster that is well */
#define SL_CLUSTER_EVENTS_SAME 32u   /* last events that are looked at for the same words */

struct sl_cluster_event {
    uint64_t seq;
    uint64_t wall_ms;           /* since 1970 */
    uint64_t at_ms;             /* sl_now_ms() */
    const char *level;          /* "info", "warning", "error" */
    const char *kind;           /* "node", "link", "router", "request" */
    char subject[SL_NODE_NAME]; /* of whom: a node, or a request's id; "" = the cluster */
    char text[352];
};

struct sl_cluster_events; /* opaque */
struct sl_cluster_events *sl_cluster_events_new(void);
void sl_cluster_events_free(struct sl_cluster_events *e);

/* level and kind are static. A text with "refused" in it that was said of the same subject among the last
 * SL_CLUSTER_EVENTS_SAME is not said again: that one's at_ms is renewed. Who is refused comes again every few
 * seconds. */
void sl_cluster_event(struct sl_cluster_events *e, const char *level, const char *kind, const char *subject,
                      const char *fmt, ...) SL_PRINTF(5, 6);
/* Newest first: 0 is the last. NULL past the end. */
const struct sl_cluster_event *sl_cluster_events_nth(const struct sl_cluster_events *e, uint32_t n);

/* Compares states of nodes and links with those of the last call, and tells what changed. */
void sl_cluster_events_watch(struct sl_cluster_events *e, const struct sl_node_table *nodes);

/* Oldest first. after: only later ones, when it is a number that was given already; else the last n. */
void sl_admin_events(struct sl_admin_out *o, const struct sl_cluster_events *e, uint32_t n);
void sl_admin_events_after(struct sl_admin_out *o, const struct sl_cluster_events *e, uint64_t after);

#endif
