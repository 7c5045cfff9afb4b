/* router/admin/metrics_nodes.c - tables say all: what heartbeats tell of a node and of its links, and what a node
 * counts itself. A series is registered when its node or link is first seen. */
#include "router/admin/metrics_nodes.h"

#include <math.h>
#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"

#define MAX_LABEL_BYTES 1024 /* of two names with every byte escaped, and a state */
#define MS              1e-3 /* nodes count milliseconds, Prometheus wants seconds */

struct named {
    const char *name, *help;
};

/* ---- the tables ---- */

enum told {
    PAGES_FREE,
    PAGES,
    PAGES_CACHED,
    RUNNING,
    WAITING,
    QUEUED_TOKENS,
    DECODE_ROWS,
    TRANSFERS,
    COST_ERROR,
    UP,
    N_TOLD
};
static const struct named told_names[N_TOLD] = {
    [PAGES_FREE] = {"sluice_node_kv_pages_free", "KV pages free or evictable."},
    [PAGES] = {"sluice_node_kv_pages", "KV pages of the pool."},
    [PAGES_CACHED] = {"sluice_node_kv_pages_cached", "KV pages that the prefix cache holds."},
    [RUNNING] = {"sluice_node_sequences_running", "Sequences with a place."},
    [WAITING] = {"sluice_node_sequences_waiting", "Sequences queued for admission, a grant or a peer."},
    [QUEUED_TOKENS] = {"sluice_node_queued_prompt_tokens", "Prompt tokens still to compute."},
    [DECODE_ROWS] = {"sluice_node_decode_rows", "Sequences that decode."},
    [TRANSFERS] = {"sluice_node_transfers_open", "Page transfers open."},
    [COST_ERROR] = {"sluice_node_cost_model_error", "Running relative error of predicted step times."},
    [UP] = {"sluice_node_up", "1 while the node takes work."},
};

#define N_STATES (SL_NODE_DEAD + 1)

enum link_gauge { LINK_UP, LINK_RATE, LINK_LATENCY, N_LINK_GAUGES };
static const struct named link_gauges[N_LINK_GAUGES] = {
    [LINK_UP] = {"sluice_link_up", "1 while pages can be sent over the link."},
    [LINK_RATE] = {"sluice_link_bytes_per_second", "Measured rate of a page link; 0 = unknown or down."},
    [LINK_LATENCY] = {"sluice_link_latency_seconds", "Measured latency of a page link; 0 = unknown or down."},
};

enum link_counter { LINK_BYTES, LINK_PAGES, LINK_REJECTS, N_LINK_COUNTERS };
static const struct named link_counters[N_LINK_COUNTERS] = {
    [LINK_BYTES] = {"sluice_link_sent_bytes_total", "Bytes of KV pages sent over the link."},
    [LINK_PAGES] = {"sluice_link_sent_pages_total", "KV pages sent over the link."},
    [LINK_REJECTS] = {"sluice_link_rejects_total", "Page commits that the receiver rejected."},
};

/* What nodes count themselves (common/node/node_stats.c). A name that ends in _total is a counter; what has a
 * name of vLLM's is summed over nodes under it. */
static const struct value_row {
    const char *told, *name;
    double unit;
    const char *vllm, *help;
} value_rows[] = {
    {"steps_total", "sluice_node_steps_total", 1, NULL, "Steps of the engine."},
    {"layers_total", "sluice_node_layers_total", 1, NULL, "Layers computed."},
    {"prompt_tokens_total", "sluice_node_prompt_tokens_total", 1, NULL, "Prompt tokens computed."},
    {"decode_tokens_total", "sluice_node_decode_tokens_total", 1, NULL,
     "Tokens sampled by decoding sequences."},
    {"sampled_tokens_total", "sluice_node_sampled_tokens_total", 1, NULL, "Tokens sampled."},
    {"drafted_tokens_total", "sluice_node_drafted_tokens_total", 1, "vllm:spec_decode_num_draft_tokens_total",
     "Tokens guessed and verified beside decode rows."},
    {"accepted_tokens_total", "sluice_node_accepted_tokens_total", 1,
     "vllm:spec_decode_num_accepted_tokens_total", "Guessed tokens that were sampled."},
    {"preemptions_total", "sluice_node_preemptions_total", 1, "vllm:num_preemptions_total",
     "Sequences that lost their pages to others."},
    {"prefix_queries_tokens_total", "sluice_node_prefix_queries_tokens_total", 1,
     "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."},
    {"prefix_hits_tokens_total", "sluice_node_prefix_hits_tokens_total", 1, "vllm:prefix_cache_hits_total",
     "Prompt tokens found in the prefix cache."},
    {"step_busy_ms_total", "sluice_node_step_busy_seconds_total", MS, NULL, "Time in steps."},
    {"step_predicted_ms_total", "sluice_node_step_predicted_seconds_total", MS, NULL,
     "Time that the cost model predicted for these steps."},
    {"step_error_p50", "sluice_node_step_error_p50", 1, NULL,
     "Median of |predicted - actual| / actual over all steps."},
    {"step_error_p90", "sluice_node_step_error_p90", 1, NULL,
     "90th percentile of |predicted - actual| / actual over all steps."},
    {"memory_weights_bytes", "sluice_node_memory_weights_bytes", 1, NULL, "Memory of the weights."},
    {"memory_kv_bytes", "sluice_node_memory_kv_bytes", 1, NULL, "Memory of the KV pages."},
    {"memory_scratch_bytes", "sluice_node_memory_scratch_bytes", 1, NULL,
     "Memory of activations and logits."},
    {"memory_resident_bytes", "sluice_node_memory_resident_bytes", 1, NULL,
     "Resident memory of the process."},
    {"max_batch_tokens", "sluice_node_max_batch_tokens", 1, NULL, "Most rows of a step."},
    {"max_sequences", "sluice_node_max_sequences", 1, NULL, "Most sequences with a place."},
    {"page_tokens", "sluice_node_page_tokens", 1, NULL, "Tokens of a KV page."},
    {"page_bytes", "sluice_node_page_bytes", 1, NULL, "Bytes of a KV page."},
    {"legs_active", "sluice_node_legs_active", 1, NULL, "Parts of requests at the node."},
    {"requests_accepted_total", "sluice_node_requests_accepted_total", 1, NULL,
     "Parts of requests accepted."},
    {"requests_refused_total", "sluice_node_requests_refused_total", 1, NULL, "Parts of requests refused."},
    {"requests_duplicate_total", "sluice_node_requests_duplicate_total", 1, NULL,
     "Commands that came twice."},
    {"requests_superseded_total", "sluice_node_requests_superseded_total", 1, NULL,
     "Parts of requests replaced by a later attempt."},
    {"requests_canceled_total", "sluice_node_requests_canceled_total", 1, NULL,
     "Parts of requests canceled."},
    {"requests_expired_total", "sluice_node_requests_expired_total", 1, NULL,
     "Parts of requests past their deadline."},
    {"peers_lost_total", "sluice_node_peers_lost_total", 1, NULL, "Times the peer of a transfer was lost."},
    {"tokens_sent_total", "sluice_node_tokens_sent_total", 1, NULL, "Tokens sent to routers."},
    {"batches_sent_total", "sluice_node_batches_sent_total", 1, NULL, "Event batches sent to routers."},
    {"batches_lost_total", "sluice_node_batches_lost_total", 1, NULL,
     "Event batches that could not be sent; routers ask again."},
    {"resyncs_total", "sluice_node_resyncs_total", 1, NULL, "Times a router asked for missing tokens."},
    {"control_replays_total", "sluice_node_control_replays_total", 1, NULL,
     "Control messages that came a second time or for a former life, and were not taken."},
};
#define N_VALUES SL_COUNTOF(value_rows)

/* ---- state ---- */

/* A counter that somebody else counts, who begins at 0 again in a new life. */
struct grown {
    struct sl_metric *series;
    double last;
};

struct link_series {
    char peer[SL_NODE_NAME];
    uint64_t peer_boot_id;
    struct sl_metric *gauges[N_LINK_GAUGES];
    struct grown counters[N_LINK_COUNTERS];
};

struct node_series {
    char name[SL_NODE_NAME];
    uint64_t boot_id;
    bool seen; /* in the node table as it is now */
    struct sl_metric *told[N_TOLD], *states[N_STATES];
    struct grown values[N_VALUES];
    struct link_series links[SL_NODE_LINKS];
    uint32_t n_links;
};

struct sl_node_metrics {
    struct sl_metrics *m;
    struct sl_hashmap *nodes; /* name -> struct node_series */
    struct sl_metric *vllm[N_VALUES];
};

static bool is_counter(const char *name)
{
    size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, "_total") == 0;
}

struct sl_node_metrics *sl_node_metrics_new(struct sl_metrics *m, const char *vllm_labels)
{
    struct sl_node_metrics *s = sl_xcalloc(1, sizeof *s);
    s->m = m;
    s->nodes = sl_hashmap_new();
    for (size_t i = 0; i < N_VALUES; i++)
        if (value_rows[i].vllm)
            s->vllm[i] = sl_counter(m, value_rows[i].vllm, vllm_labels, value_rows[i].help);
    return s;
}

void sl_node_metrics_free(struct sl_node_metrics *s)
{
    if (!s)
        return;
    size_t it = 0;
    void *n;
    while (sl_hashmap_next(s->nodes, &it, &n))
        sl_free(n);
    sl_hashmap_free(s->nodes);
    sl_free(s);
}

/* key and value may be NULL. */
static void labels_of(struct sl_buf *out, const char *node, const char *key, const char *value)
{
    sl_buf_init(out, MAX_LABEL_BYTES);
    sl_metrics_label(out, "node", node);
    if (key)
        sl_metrics_label(out, key, value);
    SL_ASSERT(!sl_buf_failed(out));
}

static struct node_series *series_of(struct sl_node_metrics *s, const struct sl_node *n)
{
    struct node_series *g = sl_hashmap_get(s->nodes, n->name, strlen(n->name));
    if (!g) {
        struct sl_buf label;
        g = sl_xcalloc(1, sizeof *g);
        memcpy(g->name, n->name, sizeof g->name);
        g->boot_id = n->boot_id;
        labels_of(&label, n->name, NULL, NULL);
        for (size_t i = 0; i < N_TOLD; i++)
            g->told[i] = sl_gauge(s->m, told_names[i].name, label.data, told_names[i].help);
        sl_buf_fini(&label);
        for (size_t i = 0; i < N_STATES; i++) {
            labels_of(&label, n->name, "state", sl_node_state_name((enum sl_node_state)i));
            g->states[i] = sl_gauge(s->m, "sluice_node_state", label.data, "1 for the state the node is in.");
            sl_buf_fini(&label);
        }
        sl_hashmap_put(s->nodes, g->name, strlen(g->name), g);
    }
    if (g->boot_id != n->boot_id) {
        g->boot_id = n->boot_id;
        for (size_t i = 0; i < N_VALUES; i++)
            g->values[i].last = 0;
        for (uint32_t i = 0; i < g->n_links; i++)
            for (size_t k = 0; k < N_LINK_COUNTERS; k++)
                g->links[i].counters[k].last = 0;
    }
    return g;
}

/* By how much it grew since it was last told. */
static double grow(struct grown *g, double value)
{
    double by = value >= g->last ? value - g->last : value;
    sl_metric_add(g->series, by);
    g->last = value;
    return by;
}

static void drop_link(struct sl_node_metrics *s, struct link_series *l)
{
    for (size_t i = 0; i < N_LINK_GAUGES; i++)
        sl_metrics_drop(s->m, l->gauges[i]);
    for (size_t i = 0; i < N_LINK_COUNTERS; i++)
        sl_metrics_drop(s->m, l->counters[i].series);
}

static void drop_node(struct sl_node_metrics *s, struct node_series *g)
{
    for (size_t i = 0; i < N_TOLD; i++)
        sl_metrics_drop(s->m, g->told[i]);
    for (size_t i = 0; i < N_STATES; i++)
        sl_metrics_drop(s->m, g->states[i]);
    for (size_t i = 0; i < N_VALUES; i++)
        sl_metrics_drop(s->m, g->values[i].series);
    for (uint32_t i = 0; i < g->n_links; i++)
        drop_link(s, &g->links[i]);
    sl_hashmap_del(s->nodes, g->name, strlen(g->name));
    sl_free(g);
}

/* ---- heartbeats ---- */

/* A peer that was started again may be told of twice for a while: the link that is up, else the newest. */
static const struct sl_node_peer *find_peer(const struct sl_node *n, const char *name)
{
    const struct sl_node_peer *found = NULL;
    for (uint32_t i = 0; i < n->n_peers; i++) {
        const struct sl_node_peer *p = &n->peers[i];
        if (strcmp(p->peer, name) == 0 &&
            (!found || strcmp(p->state, "up") == 0 || strcmp(found->state, "up") != 0))
            found = p;
    }
    return found;
}

/* Of the peer; a new one takes the place of one that is not told of any more when all are taken. NULL: none. */
static struct link_series *link_of(struct sl_node_metrics *s, struct node_series *g, const struct sl_node *n,
                                   const struct sl_node_peer *p)
{
    struct link_series *l = NULL;
    for (uint32_t i = 0; i < g->n_links; i++) {
        if (strcmp(g->links[i].peer, p->peer) == 0)
            return &g->links[i];
        if (g->n_links == SL_NODE_LINKS && !find_peer(n, g->links[i].peer))
            l = &g->links[i];
    }
    if (l)
        drop_link(s, l);
    else if (g->n_links == SL_NODE_LINKS)
        return NULL;
    else
        l = &g->links[g->n_links++];
    *l = (struct link_series){.peer_boot_id = p->peer_boot_id};
    memcpy(l->peer, p->peer, sizeof l->peer);
    struct sl_buf label;
    labels_of(&label, n->name, "peer", p->peer);
    for (size_t i = 0; i < N_LINK_GAUGES; i++)
        l->gauges[i] = sl_gauge(s->m, link_gauges[i].name, label.data, link_gauges[i].help);
    for (size_t i = 0; i < N_LINK_COUNTERS; i++)
        l->counters[i].series = sl_counter(s->m, link_counters[i].name, label.data, link_counters[i].help);
    sl_buf_fini(&label);
    return l;
}

static void take_links(struct sl_node_metrics *s, struct node_series *g, const struct sl_node *n)
{
    for (uint32_t i = 0; i < n->n_peers; i++) {
        const struct sl_node_peer *p = &n->peers[i];
        struct link_series *l = find_peer(n, p->peer) == p ? link_of(s, g, n, p) : NULL;
        if (!l)
            continue;
        const double counts[N_LINK_COUNTERS] = {[LINK_BYTES] = (double)p->bytes_sent,
                                                [LINK_PAGES] = (double)p->pages_sent,
                                                [LINK_REJECTS] = (double)p->rejects};
        for (size_t k = 0; k < N_LINK_COUNTERS; k++) {
            if (l->peer_boot_id != p->peer_boot_id)
                l->counters[k].last = 0;
            grow(&l->counters[k], counts[k]);
        }
        l->peer_boot_id = p->peer_boot_id;
    }
    for (uint32_t i = 0; i < g->n_links; i++) {
        struct link_series *l = &g->links[i];
        const struct sl_node_peer *p = n->state == SL_NODE_DEAD ? NULL : find_peer(n, l->peer);
        bool up = p && strcmp(p->state, "up") == 0;
        sl_metric_set(l->gauges[LINK_UP], up);
        sl_metric_set(l->gauges[LINK_RATE], up ? p->bytes_per_s : 0);
        sl_metric_set(l->gauges[LINK_LATENCY], up ? p->latency_us / 1e6 : 0);
    }
}

void sl_node_metrics_take(struct sl_node_metrics *s, const struct sl_node_table *t, uint32_t *waiting,
                          double *kv_used)
{
    double used = 0, total = 0;
    *waiting = 0;
    for (uint32_t i = 0; i < sl_node_table_len(t); i++) {
        const struct sl_node *n = sl_node_table_at(t, i);
        struct node_series *g = series_of(s, n);
        bool dead = n->state == SL_NODE_DEAD;
        const struct sl_node_load none = {0}, *l = dead ? &none : &n->load;
        const double told[N_TOLD] = {
            [PAGES_FREE] = l->free_pages,     [PAGES] = l->total_pages,
            [PAGES_CACHED] = l->cached_pages, [RUNNING] = l->running,
            [WAITING] = l->waiting,           [QUEUED_TOKENS] = (double)l->queued_prompt_tokens,
            [DECODE_ROWS] = l->decode_rows,   [TRANSFERS] = l->leases,
            [COST_ERROR] = n->cost.error,     [UP] = n->state == SL_NODE_UP};
        for (size_t k = 0; k < N_TOLD; k++)
            sl_metric_set(g->told[k], told[k]);
        for (size_t k = 0; k < N_STATES; k++)
            sl_metric_set(g->states[k], n->state == (enum sl_node_state)k);
        take_links(s, g, n);
        if (n->may_decode && l->total_pages >= l->free_pages) {
            used += l->total_pages - l->free_pages;
            total += l->total_pages;
        }
        *waiting += l->waiting;
        g->seen = true;
    }
    *kv_used = total > 0 ? used / total : 0;
    size_t it = 0;
    void *at;
    while (sl_hashmap_next(s->nodes, &it, &at)) {
        struct node_series *g = at;
        if (!g->seen)
            drop_node(s, g);
        else
            g->seen = false;
    }
}

/* ---- what nodes count ---- */

void sl_node_metrics_value(struct sl_node_metrics *s, const struct sl_node *n, const char *name, double value)
{
    size_t i = 0;
    while (i < N_VALUES && strcmp(value_rows[i].told, name) != 0)
        i++;
    if (i == N_VALUES || !isfinite(value) || value < 0)
        return;
    const struct value_row *row = &value_rows[i];
    struct grown *v = &series_of(s, n)->values[i];
    bool counter = is_counter(row->name);
    if (!v->series) {
        struct sl_buf label;
        labels_of(&label, n->name, NULL, NULL);
        v->series = counter ? sl_counter(s->m, row->name, label.data, row->help)
                            : sl_gauge(s->m, row->name, label.data, row->help);
        sl_buf_fini(&label);
    }
    if (!counter) {
        sl_metric_set(v->series, value * row->unit);
        return;
    }
    double by = grow(v, value * row->unit);
    if (s->vllm[i])
        sl_metric_add(s->vllm[i], by);
}
