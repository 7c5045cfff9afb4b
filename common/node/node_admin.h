/* common/node/node_admin.h - what an administrator asks of one node, forwarded by a router: AdminRequest in,
 * AdminReply out.
 *
 *   config            every key with its value
 *   set KEY VALUE     a key that can change while the node runs; until the next start
 *   reload            the config file is read again, as at SIGHUP
 *   retest            links are measured anew, those that are down tried at once
 *
 * Engine thread only. */
#ifndef SLUICE_COMMON_NODE_NODE_ADMIN_H
#define SLUICE_COMMON_NODE_NODE_ADMIN_H

#include "common/node/node.h"

/* Answers in, which holds an AdminRequest. */
void sl_node_admin(struct sl_node *n, struct sl_wire_in *in);

#endif
