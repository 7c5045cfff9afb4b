/* router/api/gen_metrics.h - what clients felt, on the router's clock: the only one that sees a request from
 * its arrival to its last token. Each value goes to its sluice_ name and to the vllm: name that dashboards
 * and autoscalers ask for. Any thread. */
#ifndef SLUICE_ROUTER_API_GEN_METRICS_H
#define SLUICE_ROUTER_API_GEN_METRICS_H

#include "common/base/metrics.h"
#include "router/flow/gen_req.h"

struct sl_gen_metrics; /* opaque */

struct sl_gen_metrics *sl_gen_metrics_new(struct sl_metrics *m, const char *model_name);
void sl_gen_metrics_free(struct sl_gen_metrics *g); /* takes NULL */

/* The clock of one request. Zero-initialise. */
struct sl_gen_clock {
    uint64_t arrived_us, first_us, last_us;
    bool open;
};

void sl_gen_metrics_accepted(struct sl_gen_metrics *g, struct sl_gen_clock *c, uint64_t arrived_us);
/* Each event of the request. */
void sl_gen_metrics_event(struct sl_gen_metrics *g, struct sl_gen_clock *c, const struct sl_gen_event *ev,
                          uint64_t now_us);
/* The client left before the end. Harmless after the last event. */
void sl_gen_metrics_left(struct sl_gen_metrics *g, struct sl_gen_clock *c);

#endif
