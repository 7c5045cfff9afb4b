/* router/api/api.c - the route table, and who may call what.
 *
 * Every path also works without /v1 in front (llama.cpp's habit). Keys: when there are any, all but the
 * public paths ask for one. Pages of other origins: allowed for the OpenAI paths as configured, never for
 * /sluice and /ui, so that a web page a person happens to open cannot switch the mode of a router on loopback (a POST
 * without a body needs no preflight). What is for operators (/metrics, /load, /sluice, what /ui shows) asks for a key
 * that has admin=yes, or stands in its file as it is; where no key is asked for, for a client of this machine. */
#include "router/api/api_internal.h"
#include "router/api/tool_calls.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/http/http_error.h"

#define PUBLIC 1u /* no key needed */
#define JSON   2u /* the body must be JSON */
#define PREFIX 4u /* something may stand behind the path */
#define ADMIN  8u /* for operators */

static const struct route {
    const char *method, *path;
    void (*handle)(struct sl_api *a, struct sl_http_call *c, const char *arg);
    enum sl_http_where where;
    unsigned flags;
} routes[] = {
    {"POST", "/chat/completions", sl_api_chat, SL_HTTP_ON_WORKER, JSON},
    {"POST", "/completions", sl_api_completion, SL_HTTP_ON_WORKER, JSON},
    {"POST", "/responses", sl_api_response, SL_HTTP_ON_WORKER, JSON},
    {"POST", "/tokenize", sl_api_tokenize, SL_HTTP_ON_WORKER, JSON},
    {"POST", "/detokenize", sl_api_detokenize, SL_HTTP_ON_WORKER, JSON},
    {"POST", "/apply-template", sl_api_apply_template, SL_HTTP_ON_WORKER, JSON},
    {"GET", "/models", sl_api_models, SL_HTTP_ON_WORKER, PREFIX},
    {"GET", "/health", sl_api_health, SL_HTTP_HERE, PUBLIC},
    {"GET", "/ping", sl_api_health, SL_HTTP_HERE, PUBLIC},
    {"GET", "/version", sl_api_version, SL_HTTP_HERE, PUBLIC},
    {"GET", "/load", sl_api_load, SL_HTTP_HERE, ADMIN},
    {"GET", "/metrics", sl_api_metrics, SL_HTTP_HERE, ADMIN},
    {"GET", "/ui/state", sl_api_ui_state, SL_HTTP_ON_WORKER, ADMIN},
    {"GET", "/ui/steps", sl_api_ui_steps, SL_HTTP_ON_WORKER, PREFIX | ADMIN},
    {"GET", "/ui", sl_api_ui, SL_HTTP_HERE, PUBLIC | PREFIX},
    {"GET", "/", sl_api_root, SL_HTTP_HERE, PUBLIC},
    {"GET", "/sluice/v1", sl_api_admin_get, SL_HTTP_ON_WORKER, PREFIX | ADMIN},
    {"POST", "/sluice/v1", sl_api_admin_post, SL_HTTP_ON_WORKER, PREFIX | ADMIN},
};

struct sl_api *sl_api_open(const struct sl_api_conf *conf)
{
    struct sl_api *a = sl_xcalloc(1, sizeof *a);
    size_t n_eog;
    const uint32_t *eog = sl_tokenizer_eog(conf->tokenizer, &n_eog);
    a->conf = *conf;
    a->model = (struct sl_oai_model){
        .names = conf->names,
        .n_names = conf->n_names,
        .n_vocab = sl_tokenizer_n_vocab(conf->tokenizer),
        .context_length = conf->context_length,
        .eog = eog,
        .n_eog = n_eog,
    };
    a->prompt = (struct sl_prompt_conf){
        .tokenizer = conf->tokenizer,
        .template = conf->template,
        .template_model = conf->template_model,
        .knows_developer = conf->template_source && strstr(conf->template_source, "developer"),
        .tool_format = sl_tool_format_of(conf->template_source),
        .context_length = conf->context_length,
    };
    a->started_s = sl_wall_s();
    sl_gate_init(&a->gate, conf->flow);
    SL_ASSERT(pthread_mutex_init(&a->unknown_lock, NULL) == 0);
    return a;
}

void sl_api_close(struct sl_api *a)
{
    if (!a)
        return;
    sl_gate_fini(&a->gate);
    for (size_t i = 0; i < a->n_unknown; i++)
        sl_free(a->unknown[i]);
    pthread_mutex_destroy(&a->unknown_lock);
    sl_free(a);
}

void sl_api_drain(struct sl_api *a, uint32_t *open_requests)
{
    atomic_store(&a->draining, true);
    sl_gate_drain(&a->gate, open_requests);
}

void sl_api_close_flow(struct sl_api *a)
{
    sl_gate_close(&a->gate);
}

/* ---- routes ---- */

static const char *without_v1(const char *path)
{
    return strncmp(path, "/v1/", 4) == 0 ? path + 3 : path;
}

static bool path_matches(const struct route *r, const char *path, const char **arg)
{
    size_t n = strlen(r->path);
    if (strncmp(path, r->path, n) != 0)
        return false;
    if (path[n] == '\0' || (r->flags & PREFIX && path[n] == '/')) {
        *arg = path[n] ? path + n + 1 : "";
        return true;
    }
    return false;
}

static bool is_ui(const char *path)
{
    return strncmp(path, "/ui", 3) == 0;
}

/* What a page of another origin may not read, whatever cors_origins says. */
static bool is_admin(const char *path)
{
    return strncmp(path, "/sluice/", 8) == 0 || is_ui(path);
}

/* Whether a web page asks that may not. A browser names the origin of what asks, also where it is this router's
 * own page; that one may read /ui. */
static bool is_strange_page(const struct sl_http_call *c, const char *path)
{
    const char *origin = sl_http_header(c, "Origin"), *host = sl_http_header(c, "Host");
    if (!origin || !is_admin(path))
        return false;
    const char *name = strstr(origin, "://");
    return !is_ui(path) || !name || !host || strcasecmp(name + 3, host) != 0;
}

/* *others: the path exists with another method. */
static const struct route *find_route(const char *method, const char *path, const char **arg,
                                      const struct route **other)
{
    *other = NULL;
    for (size_t i = 0; i < SL_COUNTOF(routes); i++) {
        const struct route *r = &routes[i];
        bool head = strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0;
        if (!path_matches(r, path, arg))
            continue;
        if (head || strcmp(method, r->method) == 0)
            return r;
        *other = r;
    }
    return NULL;
}

/* ---- who may ---- */

static bool origin_allowed(const struct sl_api *a, const char *origin)
{
    const struct sl_conf_list *list = a->conf.cors_origins;
    for (size_t i = 0; list && i < list->n; i++)
        if (strcmp(list->items[i], "*") == 0 || strcmp(list->items[i], origin) == 0)
            return true;
    return false;
}

static void add_cors(const struct sl_api *a, struct sl_http_call *c, const char *path)
{
    const char *origin = sl_http_header(c, "Origin");
    if (!origin || is_admin(path) || !origin_allowed(a, origin))
        return;
    sl_http_add_header(c, "Access-Control-Allow-Origin", origin);
    sl_http_add_header(c, "Vary", "Origin");
    sl_http_add_header(c, "Access-Control-Expose-Headers", "x-request-id, x-sluice-request-id, retry-after");
}

static void answer_options(struct sl_http_call *c)
{
    const char *wanted = sl_http_header(c, "Access-Control-Request-Headers");
    sl_http_add_header(c, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    sl_http_add_header(c, "Access-Control-Allow-Headers", wanted ? wanted : "authorization, content-type");
    sl_http_add_header(c, "Access-Control-Max-Age", "600");
    sl_http_answer(c, 204, NULL, NULL);
}

const struct sl_api_key *sl_api_key(const struct sl_api *a, const struct sl_http_call *c)
{
    const char *auth = sl_http_header(c, "Authorization");
    const char *key = sl_http_header(c, "X-Api-Key");
    if (auth && strncasecmp(auth, "Bearer ", 7) == 0)
        key = auth + 7 + strspn(auth + 7, " ");
    return a->conf.keys && key ? sl_api_keys_find(a->conf.keys, key) : NULL;
}

static bool may_operate(const struct sl_api *a, const struct sl_http_call *c)
{
    const struct sl_api_key *key = sl_api_key(a, c);
    return a->conf.keys ? key && key->limits.admin : a->conf.open_admin || sl_http_is_owner(c);
}

static bool is_json(struct sl_http_call *c)
{
    const char *type = sl_http_header(c, "Content-Type");
    if (!type)
        return false;
    size_t n = strcspn(type, "; ");
    return (n == 16 && strncasecmp(type, "application/json", n) == 0) ||
           (n > 5 && strncasecmp(type, "application/", 12) == 0 &&
            strncasecmp(type + n - 5, "+json", 5) == 0);
}

enum sl_http_where sl_api_check(void *api, struct sl_http_call *c)
{
    struct sl_api *a = api;
    const char *method = sl_http_method(c), *path = without_v1(sl_http_path(c)), *arg;
    const struct route *other;
    add_cors(a, c, path);
    if (strcmp(method, "OPTIONS") == 0) {
        answer_options(c);
        return SL_HTTP_HERE;
    }
    const struct route *r = find_route(method, path, &arg, &other);
    if (a->conf.keys && !(r && r->flags & PUBLIC) && !sl_api_key(a, c)) {
        sl_http_answer_error(
            c,
            &(struct sl_http_error){
                .err = SL_EDENIED,
                .message = "Invalid API key. Give a key of this router as \"Authorization: Bearer KEY\"."});
    } else if (!r && other) {
        sl_http_add_header(c, "Allow", other->method);
        char text[64];
        snprintf(text, sizeof text, "This path takes %s.", other->method);
        sl_http_answer_error(c, &(struct sl_http_error){.err = SL_EINVAL, .status = 405, .message = text});
    } else if (!r) {
        char text[320];
        snprintf(text, sizeof text,
                 "There is no %.150s here; clients' paths are /v1/chat/completions, /v1/responses, "
                 "/v1/completions, /v1/models, /tokenize, /detokenize and /apply-template.",
                 sl_http_path(c));
        sl_http_answer_error(c, &(struct sl_http_error){.err = SL_ENOTFOUND, .message = text});
    } else if (r->flags & ADMIN && !may_operate(a, c)) {
        sl_http_answer_error(
            c,
            &(struct sl_http_error){
                .err = SL_EDENIED,
                .status = 403,
                .message = a->conf.keys ? "This is for operators: give a key that has admin=yes."
                                        : "This is for operators: ask on the router's own machine as root or "
                                          "as the router's user, by an address or as localhost, or set "
                                          "api_key_file or open_admin."});
    } else if (is_strange_page(c, path)) {
        sl_http_answer_error(
            c, &(struct sl_http_error){
                   .err = SL_EDENIED,
                   .status = 403,
                   .message =
                       "Pages of web browsers may not use /sluice, and /ui is for the router's own page."});
    } else if (r->flags & JSON && !is_json(c)) {
        sl_http_answer_error(c,
                             &(struct sl_http_error){
                                 .err = SL_EINVAL,
                                 .status = 415,
                                 .message = "The body must be JSON: send Content-Type: application/json."});
    } else {
        sl_http_set_note(c, r);
        return r->where;
    }
    return SL_HTTP_HERE;
}

void sl_api_handle(void *api, struct sl_http_call *c)
{
    const struct route *r = sl_http_note(c);
    const char *arg = "";
    path_matches(r, without_v1(sl_http_path(c)), &arg);
    r->handle(api, c, arg);
}

/* ---- for the handlers ---- */

void sl_api_answer_fault(struct sl_http_call *c, const struct sl_fault *fault)
{
    sl_http_answer_error(c, &(struct sl_http_error){.err = fault->err,
                                                    .status = fault->status,
                                                    .message = fault->message,
                                                    .param = fault->param[0] ? fault->param : NULL,
                                                    .extra = fault->extra[0] ? fault->extra : NULL});
}

json_t *sl_api_body(struct sl_http_call *c)
{
    struct sl_fault fault = {0};
    const char *bytes;
    size_t n;
    sl_http_body(c, &bytes, &n);
    json_t *body = sl_json_body(bytes, n, &fault);
    if (!body)
        sl_api_answer_fault(c, &fault);
    return body;
}

void sl_api_answer_json(struct sl_http_call *c, json_t *j)
{
    struct sl_buf body;
    sl_buf_init(&body, SIZE_MAX);
    sl_json_write(j, JSON_COMPACT | JSON_ENCODE_ANY, &body);
    json_decref(j);
    sl_http_answer(c, 200, "application/json", &body);
    sl_buf_fini(&body);
}

void sl_api_log_unknown(struct sl_api *a, const struct sl_oai_request *r)
{
    for (size_t i = 0; i < r->n_unknown; i++) {
        bool known = false;
        pthread_mutex_lock(&a->unknown_lock);
        for (size_t k = 0; k < a->n_unknown && !known; k++)
            known = strcmp(a->unknown[k], r->unknown[i]) == 0;
        if (a->n_unknown == SL_MAX_UNKNOWN_LOGGED)
            known = true;
        if (!known)
            a->unknown[a->n_unknown++] = sl_xstrndup(r->unknown[i], 128);
        pthread_mutex_unlock(&a->unknown_lock);
        if (!known)
            SL_INFO("a request has a member that is not known here and is ignored; said once member=%.128s",
                    r->unknown[i]);
    }
}
