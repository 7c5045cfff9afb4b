/* router/http/http_workers.h - threads that run handle() where it may take a while, so that long prompts
 * being tokenised do not hold up other clients' tokens. One bounded queue each; a call goes to the shortest. One thread
 * more than asked for takes no large bodies, and small ones go to no thread that has one: what takes seconds, such as
 * many megabytes of JSON, holds up only its like. */
#ifndef SLUICE_ROUTER_HTTP_HTTP_WORKERS_H
#define SLUICE_ROUTER_HTTP_HTTP_WORKERS_H

#include "router/http/http_server.h"

struct sl_http_workers; /* opaque */

/* n + 1 threads; max_waiting: of all. run is called with each call given; what it does with it is its business. */
SL_MUST_CHECK enum sl_err sl_http_workers_open(uint32_t n, uint32_t max_waiting,
                                               void (*run)(struct sl_http_call *c),
                                               struct sl_http_workers **out);
/* http thread. Runs what waits, then joins. Takes NULL. */
void sl_http_workers_close(struct sl_http_workers *w);
/* http thread. SL_EAGAIN when all queues that may take it are full. */
SL_MUST_CHECK enum sl_err sl_http_workers_give(struct sl_http_workers *w, struct sl_http_call *c);

#endif
