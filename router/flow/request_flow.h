/* router/flow/request_flow.h - the life of a request in the router (steps 3 and 11 of the request path):
 * placed, watched, recovered, turned into text. One flow thread owns every request, the journal and the node
 * table's decisions.
 *
 * Threads: sl_flow_submit(), sl_flow_cancel(), sl_flow_admin() and the read-only calls may come from any
 * thread; they enqueue or read atomics. */
#ifndef SLUICE_ROUTER_FLOW_REQUEST_FLOW_H
#define SLUICE_ROUTER_FLOW_REQUEST_FLOW_H

#include "common/base/metrics.h"
#include "common/text/tokenizer.h"
#include "router/flow/gen_req.h"

struct sl_admin_out; /* router/admin/admin_out.h */
struct sl_flow;      /* opaque */

/* What happens to a request that no placement is predicted to give the times it wishes. */
enum sl_slo_miss {
    SL_SLO_SERVE,
    SL_SLO_RELEGATE, /* behind the others; counted */
    SL_SLO_REFUSE    /* SL_EAGAIN (429) */
};

struct sl_flow_conf {
    const char *register_url;          /* REP: nodes register here */
    const char *event_url;             /* PULL: nodes send events here; port 0 = any */
    const char *admin_url;             /* REP: sluicectl */
    const struct sl_wire_guard *guard; /* of all these and of the sockets to nodes; borrowed; NULL = none */
    int mode;                          /* Sluice__Mode at start */
    uint32_t max_requests; /* open at once; more are refused with SL_EAGAIN (429). The last eighth is kept
                                 for requests that go before the others (priority below 0) */
    uint32_t heartbeat_ms, node_dead_ms, node_stall_ms, command_timeout_ms;
    uint32_t default_deadline_ms;
    uint64_t boot_id;
    const struct sl_tokenizer *tokenizer; /* borrowed */
    uint32_t context_length;
    const uint8_t *model_digest; /* 16 bytes or NULL: nodes with another digest are refused */
    bool exact;                  /* nodes with another numerics id do not pair */
    enum sl_slo_miss slo_miss;
    uint32_t hold_ms;     /* work ahead at nodes beyond which requests wait at the router; 0 = never */
    uint32_t max_wait_ms; /* more predicted waiting is refused with SL_EAGAIN; 0 = only beyond the deadline */
    struct sl_metrics *metrics; /* borrowed */
    /* (optional) The router's own options as a table; flow thread. */
    void (*tell_config)(void *arg, struct sl_admin_out *out);
    void *tell_config_arg;
    const char *model_name, *version; /* labels of metrics: as clients know the model; the router's version */
};

SL_MUST_CHECK enum sl_err sl_flow_open(const struct sl_flow_conf *conf, struct sl_flow **out,
                                       struct sl_why *why);
/* Ends every request with SL_EDRAINING, then the thread. */
void sl_flow_close(struct sl_flow *f);

/* Takes req (also on error: then freed). on_event is called until its last event. SL_EAGAIN (too many),
 * SL_ENOTREADY (no node set can serve; why), SL_EDRAINING. The id of the request was set in req->id by the
 * caller with sl_flow_new_id(). */
SL_MUST_CHECK enum sl_err sl_flow_submit(struct sl_flow *f, struct sl_gen_req *req, sl_gen_event_fn *on_event,
                                         void *arg, struct sl_why *why);
/* The client left: everything is freed on all nodes. on_event is not called after this returns. */
void sl_flow_cancel(struct sl_flow *f, const char *id);
/* Writes "<prefix><boot id hex>-<counter hex>" into id[64]. */
void sl_flow_new_id(struct sl_flow *f, const char *prefix, char id[64]);

/* True when a compatible, verified set of nodes exists for at least one mode; else why says what is missing.
 */
bool sl_flow_ready(struct sl_flow *f, struct sl_why *why);
/* Stop taking new requests; *open_requests counts what still runs. */
void sl_flow_drain(struct sl_flow *f, uint32_t *open_requests);
uint32_t sl_flow_open_requests(struct sl_flow *f);
/* The admin operations as JSON text for GET /sluice/v1/<op> and sluicectl's source: same tables as
 * AdminReply. Waits for the flow thread at most timeout_ms. *reply is freed with
 * sluice__admin_reply__free_unpacked(reply, NULL). */
SL_MUST_CHECK enum sl_err sl_flow_admin(struct sl_flow *f, const char *op, const char *const *args,
                                        size_t n_args, uint32_t timeout_ms, Sluice__AdminReply **reply);
/* Steps and transfers after number `after` as JSON (router/admin/step_log.h). For some seconds after a call nodes
 * are asked for them. */
void sl_flow_steps(struct sl_flow *f, uint64_t after, struct sl_buf *out);

#endif
