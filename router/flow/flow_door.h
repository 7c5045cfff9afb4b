/* router/flow/flow_door.h - where the flow thread and the threads of clients meet: who may still be called,
 * who has left.
 *
 * on_event runs on the flow thread under the door's lock, so that "not called after sl_flow_cancel() returns"
 * holds without waiting for the flow thread's work. Cancels are kept in a list that has room by construction:
 * an entry is in it at most once.
 *
 * Threads: any. */
#ifndef SLUICE_ROUTER_FLOW_FLOW_DOOR_H
#define SLUICE_ROUTER_FLOW_FLOW_DOOR_H

#include "common/base/queue.h"
#include "router/flow/gen_req.h"

struct sl_door;       /* opaque */
struct sl_door_entry; /* opaque: one open request */

struct sl_door *sl_door_new(void);
void sl_door_free(struct sl_door *d);

/* Lets a request in: *out is set, then item pushed to q, both before anyone can shut the door. SL_EDRAINING
 * (shut), SL_EINVAL (the id is there already), SL_EAGAIN (q is full); *out is NULL then. */
SL_MUST_CHECK enum sl_err sl_door_enter(struct sl_door *d, const char *id, sl_gen_event_fn *on_event,
                                        void *arg, struct sl_queue *q, void *item,
                                        struct sl_door_entry **out);
/* The flow thread is done with it; frees it. */
void sl_door_leave(struct sl_door *d, struct sl_door_entry *e);
/* Calls on_event unless the client left. False when it did. Flow thread. */
bool sl_door_call(struct sl_door *d, struct sl_door_entry *e, const struct sl_gen_event *ev);
/* False when the client left. Flow thread. */
bool sl_door_is_open(struct sl_door *d, const struct sl_door_entry *e);
/* The client left: on_event is never called again. False when the id is not (or no longer) open. May be
 * called inside on_event. */
bool sl_door_cancel(struct sl_door *d, const char *id);
/* Ids cancelled since the last call, one by one; false when there is none left. Flow thread. */
bool sl_door_next_canceled(struct sl_door *d, char id[64]);
/* Nothing goes in from now on, and all that did is in the queue. */
void sl_door_shut(struct sl_door *d);
bool sl_door_is_shut(struct sl_door *d);

#endif
