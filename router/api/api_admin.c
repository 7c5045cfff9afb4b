/* router/api/api_admin.c - /sluice/v1: the tables of sluicectl as JSON, and its switches, over HTTP. For
 * tools that compare modes (sluice-bench) and for clusters whose admin socket is out of reach.
 *
 *   GET  /sluice/v1/{status,nodes,nodes/NODE,links,requests,mode,split,slo,explain/ID,trace/ID,events,events/N}
 *                                                                           [{"title","columns":[...],"rows":[[...]]}]
 *   POST /sluice/v1/{mode/MODE,split/N,cancel/ID,drain/NODE,undrain/NODE}   {"text","tables":[...]} */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/api/api_internal.h"
#include "router/http/http_error.h"

#define ADMIN_TIMEOUT_MS 3000u

static const struct admin_op {
    const char *method, *name;
    enum { NO_ARG, MAY_HAVE_ARG, NEEDS_ARG } arg;
} ops[] = {
    {"GET", "status", NO_ARG},     {"GET", "nodes", MAY_HAVE_ARG},  {"GET", "links", NO_ARG},
    {"GET", "requests", NO_ARG},   {"GET", "mode", NO_ARG},         {"GET", "explain", NEEDS_ARG},
    {"GET", "slo", NO_ARG},        {"GET", "split", NO_ARG},        {"POST", "split", NEEDS_ARG},
    {"GET", "trace", NEEDS_ARG},   {"GET", "events", MAY_HAVE_ARG}, {"POST", "mode", NEEDS_ARG},
    {"POST", "cancel", NEEDS_ARG}, {"POST", "drain", NEEDS_ARG},    {"POST", "undrain", NEEDS_ARG},
};

static json_t *strings_json(char *const *s, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_string(s[i]);
        json_array_append_new(list, one ? one : json_string("")); /* not UTF-8: a node sent it */
    }
    return list;
}

json_t *sl_api_tables_json(const Sluice__AdminReply *reply)
{
    json_t *tables = json_array();
    for (size_t t = 0; t < reply->n_tables; t++) {
        const Sluice__AdminTable *from = reply->tables[t];
        json_t *table = json_object(), *rows = json_array();
        for (size_t i = 0; i < from->n_rows; i++)
            json_array_append_new(rows, strings_json(from->rows[i]->cells, from->rows[i]->n_cells));
        json_object_set_new(table, "title", json_string(from->title));
        json_object_set_new(table, "columns", strings_json(from->columns, from->n_columns));
        json_object_set_new(table, "rows", rows);
        json_array_append_new(tables, table);
    }
    return tables;
}

static const struct admin_op *find_op(const char *method, const char *name, size_t n_name)
{
    for (size_t i = 0; i < SL_COUNTOF(ops); i++)
        if (strcmp(ops[i].method, method) == 0 && strlen(ops[i].name) == n_name &&
            memcmp(ops[i].name, name, n_name) == 0)
            return &ops[i];
    return NULL;
}

static void run(struct sl_api *a, struct sl_http_call *c, const char *method, const char *arg)
{
    size_t n_name = strcspn(arg, "/");
    const char *rest = arg[n_name] ? arg + n_name + 1 : "";
    const struct admin_op *op = find_op(method, arg, n_name);
    bool has_arg = rest[0] != '\0';
    if (!op || (has_arg && op->arg == NO_ARG) || (!has_arg && op->arg == NEEDS_ARG)) {
        char text[400];
        snprintf(
            text, sizeof text,
            "There is no %s %.100s here; GET status, nodes, nodes/NODE, links, requests, mode, split, slo, "
            "explain/ID, trace/ID, events, events/N and POST mode/MODE, split/N, cancel/ID, drain/NODE, "
            "undrain/NODE are.",
            method, sl_http_path(c));
        sl_http_answer_error(c, &(struct sl_http_error){.err = SL_ENOTFOUND, .message = text});
        return;
    }
    Sluice__AdminReply *reply = NULL;
    enum sl_err err = sl_gate_admin(&a->gate, op->name, &rest, has_arg ? 1 : 0, ADMIN_TIMEOUT_MS, &reply);
    if (err) {
        sl_http_answer_error(
            c, &(struct sl_http_error){.err = err,
                                       .message = "The router did not answer in time or is stopping."});
        return;
    }
    /* status has a code (not ready) and tables: the tables are the answer */
    if (reply->code != SL_OK && reply->n_tables == 0) {
        sl_http_answer_error(
            c, &(struct sl_http_error){.err = reply->code < SL_N_ERR ? (enum sl_err)reply->code : SL_EBUG,
                                       .message = reply->text});
    } else if (strcmp(method, "GET") == 0) {
        sl_api_answer_json(c, sl_api_tables_json(reply));
    } else {
        json_t *answer = json_object();
        json_t *text = json_string(reply->text ? reply->text : "");
        json_object_set_new(answer, "text", text ? text : json_string(""));
        json_object_set_new(answer, "tables", sl_api_tables_json(reply));
        sl_api_answer_json(c, answer);
    }
    sluice__admin_reply__free_unpacked(reply, NULL);
}

void sl_api_admin_get(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    run(a, c, "GET", arg);
}

void sl_api_admin_post(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    run(a, c, "POST", arg);
}
