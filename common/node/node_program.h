/* common/node/node_program.h - what the two node daemons tell about themselves. */
#ifndef SLUICE_COMMON_NODE_NODE_PROGRAM_H
#define SLUICE_COMMON_NODE_NODE_PROGRAM_H

#include "common/base/program.h"
#include "proto/sluice.pb-c.h"

/* name is borrowed. */
struct sl_program sl_node_program(const char *name, Sluice__Role prefers);

#endif
