/* router/api/api_internal.h - what the endpoints share. Not for other folders. */
#ifndef SLUICE_ROUTER_API_API_INTERNAL_H
#define SLUICE_ROUTER_API_API_INTERNAL_H

#include <stdatomic.h>
#include "router/api/api.h"
#include "router/api/flow_gate.h"

#define SL_MAX_UNKNOWN_LOGGED 256 /* names of unknown members remembered; more are no longer told */

struct sl_api {
    struct sl_api_conf conf;
    struct sl_oai_model model;
    struct sl_prompt_conf prompt;
    struct sl_flow_gate gate;
    int64_t started_s; /* "created" of the model */
    _Atomic uint32_t n_generating;
    _Atomic bool draining;

    pthread_mutex_t unknown_lock;
    char *unknown[SL_MAX_UNKNOWN_LOGGED];
    size_t n_unknown;
};

/* Handlers, one per route; arg: what stands behind the route's path, "" when nothing does. */
void sl_api_chat(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_completion(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_response(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_tokenize(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_detokenize(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_apply_template(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_models(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_health(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_version(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_load(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_metrics(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_admin_get(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_admin_post(struct sl_api *a, struct sl_http_call *c, const char *arg);

void sl_api_ui(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_root(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_ui_state(struct sl_api *a, struct sl_http_call *c, const char *arg);
void sl_api_ui_steps(struct sl_api *a, struct sl_http_call *c, const char *arg);

/* The body as a JSON object; NULL after answering with what is wrong. */
json_t *sl_api_body(struct sl_http_call *c);
void sl_api_answer_fault(struct sl_http_call *c, const struct sl_fault *fault);
/* The key the call presents, or NULL: no keys are asked for, or it is none of ours. */
const struct sl_api_key *sl_api_key(const struct sl_api *a, const struct sl_http_call *c);
/* Takes j. */
void sl_api_answer_json(struct sl_http_call *c, json_t *j);
/* [{"title","columns":[...],"rows":[[...]]}] */
json_t *sl_api_tables_json(const Sluice__AdminReply *reply);
/* Unknown members, told once per name. */
void sl_api_log_unknown(struct sl_api *a, const struct sl_oai_request *r);

#endif
