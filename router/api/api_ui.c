/* router/api/api_ui.c - /ui/: one page that shows the cluster live, its files out of the program, and what it asks
 * for. It only reads; switching and draining stay with sluicectl.
 *
 *   GET /ui/                            the page, /ui/ui.css, /ui/ui.js
 *   GET /ui/state                       {"text","model","version","tables"}: what sluicectl shows of nodes, links,
 *                                       requests, events, status
 *   GET /ui/steps/NUMBER                steps and transfers after it (router/admin/step_log.h)
 *
 * The page itself is public and says nothing of the cluster, as a browser cannot send a key with an address; what it
 * asks for is for operators, as /metrics is, and it asks the person for the key. Nothing is loaded from elsewhere, and
 * nothing may be. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/api/api_internal.h"
#include "router/http/http_error.h"
#include "router/ui/ui_files.h"

#define STATE_TIMEOUT_MS 3000u /* the page asks again by then */
#define MAX_STEPS_BYTES                                                                                      \
    (8u << 20) /* eight times what SL_STEP_READ_MAX steps and all transfers kept come to */
#define CONTENT_SECURITY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "    \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

static void answer_file(struct sl_http_call *c, const struct sl_ui_file *file)
{
    struct sl_buf body;
    sl_buf_init(&body, file->n_bytes);
    sl_buf_append(&body, file->bytes, file->n_bytes);
    sl_http_add_header(c, "Content-Security-Policy", CONTENT_SECURITY);
    sl_http_add_header(c, "X-Content-Type-Options", "nosniff");
    sl_http_add_header(c, "Referrer-Policy", "no-referrer");
    sl_http_add_header(c, "Cache-Control", "no-cache");
    sl_http_answer(c, 200, file->content_type, &body);
    sl_buf_fini(&body);
}

/* Who opens the router's address in a browser wants to see the cluster. */
void sl_api_root(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    (void)a;
    (void)arg;
    sl_http_add_header(c, "Location", "ui/");
    sl_http_answer(c, 301, NULL, NULL);
}

void sl_api_ui(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    const char *path = sl_http_path(c);
    if (path[strlen(path) - 1] != '/' && !arg[0]) { /* names of files count from the folder */
        sl_api_root(a, c, arg);
        return;
    }
    for (size_t i = 0; i < sl_n_ui_files; i++)
        if (strcmp(arg[0] ? arg : "index.html", sl_ui_files[i].name) == 0) {
            answer_file(c, &sl_ui_files[i]);
            return;
        }
    sl_http_answer_error(c, &(struct sl_http_error){.err = SL_ENOTFOUND, .message = "The page is at /ui/."});
}

void sl_api_ui_state(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    (void)arg;
    Sluice__AdminReply *reply = NULL;
    enum sl_err err = sl_gate_admin(&a->gate, "ui", NULL, 0, STATE_TIMEOUT_MS, &reply);
    if (err) {
        sl_http_answer_error(
            c, &(struct sl_http_error){.err = err,
                                       .message = "The router did not answer in time or is stopping."});
        return;
    }
    json_t *answer = json_object();
    json_object_set_new(answer, "text", json_string(reply->text ? reply->text : ""));
    json_object_set_new(answer, "model", json_string(a->conf.names[0]));
    json_object_set_new(answer, "version", json_string(SLUICE_VERSION));
    json_object_set_new(answer, "tables", sl_api_tables_json(reply));
    sluice__admin_reply__free_unpacked(reply, NULL);
    sl_api_answer_json(c, answer);
}

void sl_api_ui_steps(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    char *end;
    errno = 0;
    uint64_t after = strtoull(arg, &end, 10);
    if (arg[0] < '0' || arg[0] > '9' || *end || errno) {
        sl_http_answer_error(
            c, &(struct sl_http_error){
                   .err = SL_EINVAL,
                   .message = "Steps are asked for as /ui/steps/NUMBER: those after it, 0 = all."});
        return;
    }
    struct sl_buf body;
    sl_buf_init(&body, MAX_STEPS_BYTES);
    enum sl_err err = sl_gate_steps(&a->gate, after, &body);
    if (err || sl_buf_failed(&body))
        sl_http_answer_error(
            c, &(struct sl_http_error){.err = err ? err : SL_ENOMEM,
                                       .message = "The router is stopping or short of memory."});
    else
        sl_http_answer(c, 200, "application/json", &body);
    sl_buf_fini(&body);
}
