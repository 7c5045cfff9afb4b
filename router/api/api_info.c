/* router/api/api_info.c - what is served and how it is: models, health, version, load, metrics. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/api/api_internal.h"
#include "router/http/http_error.h"

#define METRICS_MAX_BYTES (16u << 20)
#define STATUS_TIMEOUT_MS 500u

/* A number of the table "status"; 0 when it is not known. */
static long long status_number(struct sl_api *a, const char *key)
{
    Sluice__AdminReply *reply = NULL;
    long long v = 0;
    if (sl_gate_admin(&a->gate, "status", NULL, 0, STATUS_TIMEOUT_MS, &reply) != SL_OK)
        return 0;
    for (size_t t = 0; t < reply->n_tables; t++)
        for (size_t i = 0; i < reply->tables[t]->n_rows; i++) {
            const Sluice__AdminRow *row = reply->tables[t]->rows[i];
            if (row->n_cells == 2 && strcmp(row->cells[0], key) == 0)
                v = strtoll(row->cells[1], NULL, 10);
        }
    sluice__admin_reply__free_unpacked(reply, NULL);
    return v;
}

static json_t *model_json(struct sl_api *a, const char *name, long long page_tokens)
{
    json_t *meta = json_object(), *m = json_object();
    json_object_set_new(meta, "n_vocab", json_integer(a->model.n_vocab));
    json_object_set_new(meta, "n_ctx_train", json_integer(a->conf.context_length));
    if (page_tokens > 0) /* known once a node is there */
        json_object_set_new(meta, "page_tokens", json_integer(page_tokens));
    json_object_set_new(m, "id", json_string(name));
    json_object_set_new(m, "object", json_string("model"));
    json_object_set_new(m, "created", json_integer(a->started_s));
    json_object_set_new(m, "owned_by", json_string("sluice"));
    json_object_set_new(m, "root", json_string(a->conf.root));
    json_object_set_new(m, "parent", json_null());
    json_object_set_new(m, "max_model_len", json_integer(a->conf.context_length));
    json_object_set_new(m, "permission", json_array());
    json_object_set_new(m, "meta", meta);
    return m;
}

void sl_api_models(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    struct sl_fault fault = {0};
    if (arg[0] && !sl_oai_check_model(&a->model, arg, &fault)) {
        sl_api_answer_fault(c, &fault);
        return;
    }
    long long page_tokens = status_number(a, "page_tokens");
    if (arg[0]) {
        sl_api_answer_json(c, model_json(a, arg, page_tokens));
        return;
    }
    json_t *list = json_array(), *answer = json_object();
    for (size_t i = 0; i < a->conf.n_names; i++)
        json_array_append_new(list, model_json(a, a->conf.names[i], page_tokens));
    json_object_set_new(answer, "object", json_string("list"));
    json_object_set_new(answer, "data", list);
    sl_api_answer_json(c, answer);
}

void sl_api_health(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    struct sl_why why = {0};
    (void)arg;
    bool draining = atomic_load(&a->draining); /* balancers go elsewhere while streams end */
    if (draining)
        sl_why_set(&why, SL_EDRAINING, "The router is stopping.");
    if (draining || !sl_gate_ready(&a->gate, &why)) {
        sl_http_answer_error(c, &(struct sl_http_error){.err = SL_ENOTREADY, .message = why.text});
        return;
    }
    json_t *answer = json_object();
    json_object_set_new(answer, "status", json_string("ok"));
    sl_api_answer_json(c, answer);
}

void sl_api_version(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    json_t *answer = json_object();
    (void)a;
    (void)arg;
    json_object_set_new(answer, "version", json_string(SLUICE_VERSION));
    sl_api_answer_json(c, answer);
}

void sl_api_load(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    json_t *answer = json_object();
    (void)arg;
    json_object_set_new(answer, "server_load", json_integer(atomic_load(&a->n_generating)));
    sl_api_answer_json(c, answer);
}

void sl_api_metrics(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    struct sl_buf body;
    (void)arg;
    sl_buf_init(&body, METRICS_MAX_BYTES);
    sl_metrics_render(a->conf.metrics, &body);
    sl_http_answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
    sl_buf_fini(&body);
}
