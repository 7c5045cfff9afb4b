/* tests/unit/router/api/fake_flow.h - sl_flow_*() without nodes: each request is played by a thread of its
 * own.
 *
 * What is played stands in the request's cache_salt: NULL = max_tokens tokens "a", "b", ... then "length";
 * "hang" = nothing until it is cancelled or the flow closes; "busy" = refused; "fail" = an error before the
 * first token; "break" = two tokens, then an error; "flood" = tokens of 4 KiB without end. */
#ifndef SLUICE_TESTS_UNIT_ROUTER_API_FAKE_FLOW_H
#define SLUICE_TESTS_UNIT_ROUTER_API_FAKE_FLOW_H

#include <stdatomic.h>
#include "router/flow/request_flow.h"

struct sl_flow *fake_flow_new(void);
/* Facts about it, valid after its close too, until fake_flow_new() is called again. */
extern _Atomic int fake_canceled, fake_open;
extern _Atomic bool fake_ready;

#endif
