/* router/api/api.h - the HTTP API: which path takes what, who may, and what answers. Sits between http_server
 * and the flow.
 *
 * Threads: sl_api_check() and sl_api_handle() are http_server's callbacks (http thread, workers); the rest is
 * main's. */
#ifndef SLUICE_ROUTER_API_API_H
#define SLUICE_ROUTER_API_API_H

#include "common/base/conf.h"
#include "router/api/api_keys.h"
#include "router/api/prompt.h"
#include "router/api/slo_class.h"
#include "router/flow/request_flow.h"
#include "router/http/http_server.h"

struct sl_api; /* opaque */

struct sl_api_conf {
    struct sl_flow *flow; /* taken: closed by sl_api_close_flow() or sl_api_close() */
    const struct sl_tokenizer *tokenizer;
    const struct sl_template *template; /* or NULL */
    const char *template_source;        /* or NULL; looked at for the roles it knows */
    const json_t *template_model;       /* bos_token, eos_token */
    const char *const *names;           /* served model names, the first is shown */
    size_t n_names;
    const char *root; /* of /v1/models: the model file's name */
    uint32_t context_length;
    const struct sl_api_keys *keys; /* NULL: no key is asked for */
    bool open_admin;                /* what is for operators is for everyone while no key is asked for */
    bool cache_per_key;             /* prefixes cached for one key are not found by another */
    const struct sl_conf_list *cors_origins; /* "*" = any; empty = no page of another origin */
    uint64_t max_unread_bytes;
    uint32_t default_deadline_ms;
    struct sl_slo_classes slo_classes;
    const struct sl_conf_list *key_weights; /* borrowed; NULL = all keys are equal */
    struct sl_metrics *metrics;
};

/* All pointers are borrowed but flow. */
struct sl_api *sl_api_open(const struct sl_api_conf *conf);
/* After the HTTP server is closed. Takes NULL. */
void sl_api_close(struct sl_api *a);

enum sl_http_where sl_api_check(void *api, struct sl_http_call *call);
void sl_api_handle(void *api, struct sl_http_call *call);

/* No new generation from here on (503); *open_requests counts what runs. May be called again. */
void sl_api_drain(struct sl_api *a, uint32_t *open_requests);
/* Ends every generation with an error, then the flow. Calls that come later are answered 503. */
void sl_api_close_flow(struct sl_api *a);

#endif
