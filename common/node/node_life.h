/* common/node/node_life.h - the life of a node daemon: options, start, signals, drain, exit. Both daemons'
 * main() is this. Threads: called in main() only. */
#ifndef SLUICE_COMMON_NODE_NODE_LIFE_H
#define SLUICE_COMMON_NODE_NODE_LIFE_H

#include "common/node/node.h"

/* Runs until it was told to stop; returns the exit status: 0 after a drain or a stop, SL_EXIT_CONFIG when the
 * options or the model are wrong, 1 when the machine does not give what it needs.
 *
 * SIGTERM, SIGINT: drain (option drain_ms), then exit once the routers have the last events; the second one exits at once. SIGHUP: the config file
 * is read again; what of it takes effect is in sl_program.reloads, the rest is told in the log. */
int sl_node_main(int argc, char **argv, const char *name, Sluice__Role prefers,
                 const struct sl_duty_ops *const *duties);

#endif
