/* router/api/flow_gate.h - the flow as the front may call it: from any thread, also while it is being closed.
 * After the close everything answers SL_EDRAINING instead of touching what is gone. */
#ifndef SLUICE_ROUTER_API_FLOW_GATE_H
#define SLUICE_ROUTER_API_FLOW_GATE_H

#include <pthread.h>
#include "router/flow/request_flow.h"

struct sl_flow_gate {
    pthread_rwlock_t lock; /* held shared for each call, alone for the close */
    struct sl_flow *flow;  /* NULL once closed */
};

void sl_gate_init(struct sl_flow_gate *g, struct sl_flow *flow); /* takes flow */
void sl_gate_close(struct sl_flow_gate *g);                      /* ends all requests; may be called twice */
void sl_gate_fini(struct sl_flow_gate *g);

/* As the functions of request_flow.h. */
SL_MUST_CHECK enum sl_err sl_gate_submit(struct sl_flow_gate *g, struct sl_gen_req *req,
                                         sl_gen_event_fn *on_event, void *arg, struct sl_why *why);
void sl_gate_cancel(struct sl_flow_gate *g, const char *id);
void sl_gate_new_id(struct sl_flow_gate *g, const char *prefix, char id[64]);
bool sl_gate_ready(struct sl_flow_gate *g, struct sl_why *why);
void sl_gate_drain(struct sl_flow_gate *g, uint32_t *open_requests);
SL_MUST_CHECK enum sl_err sl_gate_admin(struct sl_flow_gate *g, const char *op, const char *const *args,
                                        size_t n_args, uint32_t timeout_ms, Sluice__AdminReply **reply);
/* SL_EDRAINING when it is closed. */
SL_MUST_CHECK enum sl_err sl_gate_steps(struct sl_flow_gate *g, uint64_t after, struct sl_buf *out);

#endif
