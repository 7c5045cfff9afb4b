/* router/admin/metrics_nodes.h - the series of nodes and links in GET /metrics, and vLLM's sums over nodes.
 *
 * A node's counters are passed on by their growth within one life (boot id), so a restart never takes a series
 * back. The series of a node go when the node table forgets it, so their number is bounded by the table's.
 *
 * Threads: flow thread. */
#ifndef SLUICE_ROUTER_ADMIN_METRICS_NODES_H
#define SLUICE_ROUTER_ADMIN_METRICS_NODES_H

#include "common/base/metrics.h"
#include "router/fleet/node_table.h"

struct sl_node_metrics; /* opaque */
/* m is borrowed. vllm_labels: of the series under vLLM's names, copied. */
struct sl_node_metrics *sl_node_metrics_new(struct sl_metrics *m, const char *vllm_labels);
void sl_node_metrics_free(struct sl_node_metrics *s);

/* What heartbeats told: gauges of all nodes, their states and links. *waiting: sequences queued on them;
 * *kv_used: the decode nodes' share of KV pages in use, 0 to 1. */
void sl_node_metrics_take(struct sl_node_metrics *s, const struct sl_node_table *t, uint32_t *waiting,
                          double *kv_used);
/* A number that node n told of itself (StatsReply); names that are not in the table of metrics_nodes.c are
 * for sluicectl alone. */
void sl_node_metrics_value(struct sl_node_metrics *s, const struct sl_node *n, const char *name,
                           double value);

#endif
