/* tests/bench/cluster_info.h - what the bench asks the router about itself: its tables, its model, its
 * decision records. */
#ifndef SLUICE_TESTS_BENCH_CLUSTER_INFO_H
#define SLUICE_TESTS_BENCH_CLUSTER_INFO_H

#include <jansson.h>
#include <stdint.h>

#include "common/base/err.h"

struct sl_router_ref {
    const char *url;
    const char *api_key; /* NULL = none */
};

struct sl_model_ref {
    char id[128];
    uint32_t max_model_len;
    uint32_t n_vocab;     /* 0 when the server does not say (meta.n_vocab) */
    uint32_t page_tokens; /* of a KV page; 0 when no node is there or the server is not Sluice */
};

/* The one model served. SL_EPEER with a sentence when the router does not answer. */
SL_MUST_CHECK enum sl_err sl_info_model(const struct sl_router_ref *r, struct sl_model_ref *out,
                                        struct sl_why *why);

/* A table of GET /sluice/v1/<op>: [{"title", "columns", "rows"}]; the whole document, json_decref'd by the
 * caller. */
SL_MUST_CHECK enum sl_err sl_info_tables(const struct sl_router_ref *r, const char *op, json_t **out,
                                         struct sl_why *why);

/* The cell of a key/value table titled title, or NULL. */
const char *sl_info_value(json_t *tables, const char *title, const char *key);

/* The cell of a row under a column, or NULL. */
const char *sl_info_cell(json_t *tables, const char *title, size_t row, const char *column);

/* Nodes, threads and cores in one line: arms may be compared only while it stays the same. Freed with
 * sl_free; NULL + why on error. Waits up to wait_s for at least min_nodes ready nodes. */
char *sl_info_fingerprint(const struct sl_router_ref *r, uint32_t min_nodes, double wait_s,
                          struct sl_why *why);

#endif
