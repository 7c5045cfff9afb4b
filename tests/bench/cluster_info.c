/* tests/bench/cluster_info.c - see cluster_info.h. */
#include "tests/bench/cluster_info.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/bench/client.h"

#define MAX_INFO_BYTES (8u << 20)

static enum sl_err fetch_json(const struct sl_router_ref *r, const char *path, json_t **out,
                              struct sl_why *why)
{
    struct sl_buf b;
    sl_buf_init(&b, MAX_INFO_BYTES);
    long status = sl_client_fetch(r->url, r->api_key, path, NULL, &b);
    enum sl_err e = SL_OK;
    if (status == 0)
        e = sl_why_set(why, SL_EPEER, "no router answers at %s; start one, or give its address with --url",
                       r->url);
    else if (status != 200)
        e = sl_why_set(why, SL_EPROTO, "GET %s answered %ld: %.200s", path, status, b.data ? b.data : "");
    else if (!(*out = json_loadb(b.data, b.len, 0, NULL)))
        e = sl_why_set(why, SL_EPROTO, "GET %s answered something that is no JSON", path);
    sl_buf_fini(&b);
    return e;
}

enum sl_err sl_info_model(const struct sl_router_ref *r, struct sl_model_ref *out, struct sl_why *why)
{
    json_t *doc;
    enum sl_err e = fetch_json(r, "/v1/models", &doc, why);
    if (e)
        return e;
    json_t *m = json_array_get(json_object_get(doc, "data"), 0);
    const char *id = json_string_value(json_object_get(m, "id"));
    if (id) {
        snprintf(out->id, sizeof out->id, "%s", id);
        out->max_model_len = (uint32_t)json_integer_value(json_object_get(m, "max_model_len"));
        out->n_vocab = (uint32_t)json_integer_value(json_object_get(json_object_get(m, "meta"), "n_vocab"));
        out->page_tokens =
            (uint32_t)json_integer_value(json_object_get(json_object_get(m, "meta"), "page_tokens"));
    } else {
        e = sl_why_set(why, SL_EPROTO, "the router at %s lists no model", r->url);
    }
    json_decref(doc);
    return e;
}

enum sl_err sl_info_tables(const struct sl_router_ref *r, const char *op, json_t **out, struct sl_why *why)
{
    char *path = sl_xasprintf("/sluice/v1/%s", op);
    enum sl_err e = fetch_json(r, path, out, why);
    sl_free(path);
    return e;
}

static json_t *find_table(json_t *tables, const char *title)
{
    size_t i;
    json_t *t;
    if (json_is_object(tables))
        tables = json_object_get(tables, "tables");
    json_array_foreach (tables, i, t) {
        const char *name = json_string_value(json_object_get(t, "title"));
        if (name && strcmp(name, title) == 0)
            return t;
    }
    return NULL;
}

const char *sl_info_value(json_t *tables, const char *title, const char *key)
{
    size_t i;
    json_t *row;
    json_array_foreach (json_object_get(find_table(tables, title), "rows"), i, row) {
        const char *k = json_string_value(json_array_get(row, 0));
        if (k && strcmp(k, key) == 0)
            return json_string_value(json_array_get(row, 1));
    }
    return NULL;
}

static int column_of(json_t *table, const char *name)
{
    size_t i;
    json_t *c;
    json_array_foreach (json_object_get(table, "columns"), i, c) {
        if (strcmp(json_string_value(c), name) == 0)
            return (int)i;
    }
    return -1;
}

const char *sl_info_cell(json_t *tables, const char *title, size_t row, const char *column)
{
    json_t *t = find_table(tables, title);
    int c = t ? column_of(t, column) : -1;
    return c < 0 ? NULL
                 : json_string_value(
                       json_array_get(json_array_get(json_object_get(t, "rows"), row), (size_t)c));
}

char *sl_info_fingerprint(const struct sl_router_ref *r, uint32_t min_nodes, double wait_s,
                          struct sl_why *why)
{
    static const char *const wanted[] = {"node",    "boot", "prefers", "permits",
                                         "threads", "cpus", "backend", "state"};
    uint64_t end = sl_now_ms() + (uint64_t)(wait_s * 1e3);
    for (;;) {
        json_t *tables;
        enum sl_err e = sl_info_tables(r, "nodes", &tables, why);
        if (e == SL_OK) {
            json_t *t = find_table(tables, "nodes");
            json_t *rows = json_object_get(t, "rows"), *row;
            if (json_array_size(rows) >= min_nodes) {
                struct sl_buf b;
                sl_buf_init(&b, MAX_INFO_BYTES);
                size_t i;
                json_array_foreach (rows, i, row) {
                    for (size_t w = 0; w < SL_COUNTOF(wanted); w++) {
                        int c = column_of(t, wanted[w]);
                        if (c >= 0)
                            sl_buf_printf(&b, "%s=%s ", wanted[w],
                                          json_string_value(json_array_get(row, (size_t)c)));
                    }
                    sl_buf_puts(&b, "\n");
                }
                json_decref(tables);
                return sl_buf_steal(&b);
            }
            sl_why_set(why, SL_ENOTREADY, "the router knows %zu nodes, %u are needed", json_array_size(rows),
                       min_nodes);
            json_decref(tables);
        }
        if (sl_now_ms() >= end)
            return NULL;
        usleep(100 * 1000);
    }
}
