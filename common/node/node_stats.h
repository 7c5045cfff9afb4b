/* common/node/node_stats.h - what a node says of itself: load, links, cost model, counters. Engine thread
 * only. */
#ifndef SLUICE_COMMON_NODE_NODE_STATS_H
#define SLUICE_COMMON_NODE_NODE_STATS_H

#include "common/base/mem.h"
#include "common/node/node.h"

void sl_node_load(struct sl_node *n, Sluice__NodeLoad *out);
/* Everything else takes its memory from the arena; NULL or 0 when that is full. */
Sluice__CostModel *sl_node_cost(struct sl_node *n, struct sl_arena *a);
size_t sl_node_links(struct sl_node *n, struct sl_arena *a, Sluice__LinkReport ***out);
Sluice__NodeInfo *sl_node_info(struct sl_node *n, struct sl_arena *a);
size_t sl_node_prefix_hashes(struct sl_node *n, struct sl_arena *a, uint64_t **out);
/* Load, and the steps after number `after`. */
void sl_node_steps_reply(struct sl_node *n, struct sl_arena *a, uint64_t after, Sluice__StatsReply *out);
void sl_node_stats_reply(struct sl_node *n, struct sl_arena *a, bool sequences, Sluice__StatsReply *out);

#endif
