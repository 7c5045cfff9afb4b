/* router/admin/metrics_http.h - the series of requests and nodes in GET /metrics: the router's own names and
 * those of vLLM that boards and autoscalers ask for. What HTTP does is counted by router/http.
 *
 * Threads: flow thread. Every latency histogram counts a request (or a gap) exactly once. */
#ifndef SLUICE_ROUTER_ADMIN_METRICS_HTTP_H
#define SLUICE_ROUTER_ADMIN_METRICS_HTTP_H

#include "common/base/metrics.h"
#include "router/fleet/node_table.h"
#include "router/flow/gen_req.h"
#include "router/place/decision.h"

struct sl_request_metrics; /* opaque */
/* m is borrowed. model_name: as clients know it; version: of the router. */
struct sl_request_metrics *sl_request_metrics_new(struct sl_metrics *m, const char *model_name,
                                                  const char *version);
void sl_request_metrics_free(struct sl_request_metrics *s);

void sl_request_metrics_arrived(struct sl_request_metrics *s, const struct sl_gen_req *req);
/* Token `index` of a request; gap_us to the one before it. */
void sl_request_metrics_token(struct sl_request_metrics *s, const struct sl_decision *d, uint32_t index,
                              uint32_t gap_us);
/* d is complete. */
void sl_request_metrics_done(struct sl_request_metrics *s, const struct sl_decision *d);
void sl_request_metrics_recovered(struct sl_request_metrics *s);
void sl_request_metrics_resync(struct sl_request_metrics *s);
void sl_request_metrics_mismatch(struct sl_request_metrics *s);
void sl_request_metrics_wrong_token(struct sl_request_metrics *s);
/* What is so now; the flow tells it several times a second. */
struct sl_request_gauges {
    const struct sl_node_table *nodes;
    enum sl_place_mode mode;
    bool ready;
    uint32_t n_running, n_held; /* requests with a place, and without */
    uint64_t n_replays;         /* control messages not taken, in this life */
};
void sl_request_metrics_now(struct sl_request_metrics *s, const struct sl_request_gauges *now);
/* A number that n told of itself. */
void sl_request_metrics_node_value(struct sl_request_metrics *s, const struct sl_node *n, const char *name,
                                   double value);

#endif
