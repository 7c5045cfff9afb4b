/* router/admin/metrics_http.c - series are registered once at start, those of nodes when a node is first
 * seen. */
#include "router/admin/metrics_http.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"

/* vLLM's bounds with finer ones below: its first bucket is above what a small model takes. */
static const double token_bounds[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                      500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
static const double handover_bounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};
static const double error_bounds[] = {0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10};

#define MAX_NODE_VALUES 128 /* per node; names come from outside */

enum { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELED, FINISH_ERROR, N_FINISH };
static const char *const finish_names[N_FINISH] = {"stop", "length", "canceled", "error"};
static const char *const vllm_finish_names[N_FINISH] = {"stop", "length", "abort", "error"};

/* A pair of the same series under both names. */
struct pair {
    struct sl_metric *own, *vllm;
};

/* A number of a node's own; counters are passed on by their growth, since a restarted node begins at 0. */
struct node_value {
    struct sl_metric *series;
    bool counter;
    double last;
};

struct node_gauges {
    struct sl_hashmap *values; /* name -> struct node_value */
    struct sl_metric *up, *free_pages, *total_pages, *running, *waiting, *queued_tokens, *rows, *leases,
        *cost_error;
    struct sl_metric *link_rate[SL_NODE_LINKS];
    char link_peer[SL_NODE_LINKS][SL_NODE_NAME];
};

struct sl_request_metrics {
    struct sl_metrics *m;
    struct pair finished[N_FINISH], prompt_tokens, generated_tokens, ttft, itl, e2e, tpot, prompt_size,
        output_size;
    struct sl_metric *decode_time, *prefill_time, *cached_tokens, *running, *waiting, *kv_usage;
    struct sl_metric *arrived, *recovered, *resyncs, *mismatches, *handover, *placed[4], *ttft_error[4];
    struct sl_hashmap *nodes;   /* name -> struct node_gauges */
    struct sl_hashmap *classes; /* name -> struct class_counters */
};

struct class_counters {
    struct sl_metric *met, *missed, *relegated;
};

static struct pair counters(struct sl_metrics *m, const char *name, const char *own_labels,
                            const char *vllm_labels, const char *help)
{
    char own[96], vllm[96];
    snprintf(own, sizeof own, "sluice_%s", name);
    snprintf(vllm, sizeof vllm, "vllm:%s", name);
    return (struct pair){sl_counter(m, own, own_labels, help), sl_counter(m, vllm, vllm_labels, help)};
}

static struct pair histograms(struct sl_metrics *m, const char *name, const char *help, const double *bounds,
                              size_t n)
{
    char own[96], vllm[96];
    snprintf(own, sizeof own, "sluice_%s", name);
    snprintf(vllm, sizeof vllm, "vllm:%s", name);
    return (struct pair){sl_histogram(m, own, NULL, help, bounds, n),
                         sl_histogram(m, vllm, NULL, help, bounds, n)};
}

static struct pair latency(struct sl_metrics *m, const char *name, const char *help)
{
    return histograms(m, name, help, SL_LATENCY_BOUNDS_S, SL_N_LATENCY_BOUNDS);
}

struct sl_request_metrics *sl_request_metrics_new(struct sl_metrics *m)
{
    struct sl_request_metrics *s = sl_xcalloc(1, sizeof *s);
    s->m = m;
    s->nodes = sl_hashmap_new();
    s->classes = sl_hashmap_new();
    for (size_t i = 0; i < N_FINISH; i++) {
        char own[48], vllm[48];
        snprintf(own, sizeof own, "finish=\"%s\"", finish_names[i]);
        snprintf(vllm, sizeof vllm, "finished_reason=\"%s\"", vllm_finish_names[i]);
        s->finished[i].own =
            sl_counter(m, "sluice_requests_finished_total", own, "Requests that ended, by how.");
        s->finished[i].vllm =
            sl_counter(m, "vllm:request_success_total", vllm, "Requests that ended, by how.");
    }
    s->prompt_tokens =
        counters(m, "prompt_tokens_total", NULL, NULL, "Prompt tokens of requests that ended.");
    s->generated_tokens = counters(m, "generation_tokens_total", NULL, NULL, "Tokens generated.");
    s->ttft = latency(m, "time_to_first_token_seconds", "Arrival at the router to the first token.");
    s->itl = latency(m, "inter_token_latency_seconds", "Time between two tokens of a request at the router.");
    s->tpot = latency(m, "request_time_per_output_token_seconds",
                      "Mean time per token after the first, per request.");
    s->e2e = latency(m, "e2e_request_latency_seconds", "Arrival at the router to the end.");
    s->prompt_size = histograms(m, "request_prompt_tokens", "Prompt tokens per request.", token_bounds,
                                SL_COUNTOF(token_bounds));
    s->output_size = histograms(m, "request_generation_tokens", "Tokens generated per request.", token_bounds,
                                SL_COUNTOF(token_bounds));
    s->prefill_time = sl_histogram(m, "vllm:request_prefill_time_seconds", NULL,
                                   "Placement to the first token.", SL_LATENCY_BOUNDS_S, SL_N_LATENCY_BOUNDS);
    s->decode_time = sl_histogram(m, "vllm:request_decode_time_seconds", NULL, "First to last token.",
                                  SL_LATENCY_BOUNDS_S, SL_N_LATENCY_BOUNDS);
    s->cached_tokens =
        sl_counter(m, "vllm:prompt_tokens_cached_total", NULL, "Prompt tokens found in a prefix cache.");
    s->running = sl_gauge(m, "vllm:num_requests_running", NULL, "Requests with a place on a node.");
    s->waiting = sl_gauge(m, "vllm:num_requests_waiting", NULL, "Requests queued on nodes or for one.");
    s->kv_usage =
        sl_gauge(m, "vllm:kv_cache_usage_perc", NULL, "Share of the decode nodes' KV pages in use, 0 to 1.");
    s->arrived = sl_counter(m, "sluice_requests_total", NULL, "Requests accepted by the router.");
    s->recovered = sl_counter(m, "sluice_requests_placed_again_total", NULL,
                              "Placements repeated after a fault or a refusal.");
    s->resyncs = sl_counter(m, "sluice_resyncs_total", NULL, "Times missing tokens were asked for.");
    s->mismatches = sl_counter(m, "sluice_token_mismatches_total", NULL,
                               "Tokens of one position that differed between nodes; must stay 0.");
    s->handover =
        sl_histogram(m, "sluice_handover_seconds", NULL,
                     "First to second token of pd requests, less one decode step and the bytes unsent.",
                     handover_bounds, SL_COUNTOF(handover_bounds));
    for (unsigned i = SL_PLACE_PD; i <= SL_PLACE_HYBRID; i++) {
        char label[32];
        snprintf(label, sizeof label, "mode=\"%s\"", sl_place_mode_name((enum sl_place_mode)i));
        s->placed[i] = sl_counter(m, "sluice_placements_total", label, "Placements by what they came to.");
        s->ttft_error[i] = sl_histogram(m, "sluice_placement_ttft_error", label,
                                        "|predicted - real| / real time from placement to the first token.",
                                        error_bounds, SL_COUNTOF(error_bounds));
    }
    return s;
}

void sl_request_metrics_free(struct sl_request_metrics *s)
{
    if (!s)
        return;
    size_t it = 0;
    void *g, *v;
    while (sl_hashmap_next(s->nodes, &it, &g)) {
        size_t k = 0;
        struct sl_hashmap *values = ((struct node_gauges *)g)->values;
        while (sl_hashmap_next(values, &k, &v))
            sl_free(v);
        sl_hashmap_free(values);
        sl_free(g);
    }
    sl_hashmap_free(s->nodes);
    it = 0;
    while (sl_hashmap_next(s->classes, &it, &v))
        sl_free(v);
    sl_hashmap_free(s->classes);
    sl_free(s);
}

static void observe(const struct pair *p, double v)
{
    sl_metric_observe(p->own, v);
    sl_metric_observe(p->vllm, v);
}

static void add(const struct pair *p, double v)
{
    sl_metric_add(p->own, v);
    sl_metric_add(p->vllm, v);
}

void sl_request_metrics_arrived(struct sl_request_metrics *s, const struct sl_gen_req *req)
{
    (void)req;
    sl_metric_add(s->arrived, 1);
}

void sl_request_metrics_token(struct sl_request_metrics *s, const struct sl_decision *d, uint32_t index,
                              uint32_t gap_us)
{
    add(&s->generated_tokens, 1);
    if (index == 0)
        observe(&s->ttft, (double)(d->first_us - d->arrived_us) / 1e6);
    else
        observe(&s->itl, gap_us / 1e6);
}

static struct class_counters *class_of(struct sl_request_metrics *s, const char *name)
{
    struct class_counters *c = sl_hashmap_get(s->classes, name, strlen(name));
    if (c)
        return c;
    static const char help[] = "Finished requests that wished for times, by class and by what came of it";
    char labels[96];
    c = sl_xcalloc(1, sizeof *c);
    snprintf(labels, sizeof labels, "class=\"%s\",outcome=\"met\"", name);
    c->met = sl_counter(s->m, "sluice_slo_requests_total", labels, help);
    snprintf(labels, sizeof labels, "class=\"%s\",outcome=\"missed\"", name);
    c->missed = sl_counter(s->m, "sluice_slo_requests_total", labels, help);
    snprintf(labels, sizeof labels, "class=\"%s\"", name);
    c->relegated = sl_counter(s->m, "sluice_slo_relegated_total", labels,
                              "Requests served behind the others since their wishes could not be met");
    sl_hashmap_put(s->classes, name, strlen(name), c);
    return c;
}

/* Classes are named in the router's config: few. */
static void count_wishes(struct sl_request_metrics *s, const struct sl_decision *d)
{
    if (!d->slo_ttft_ms && !d->slo_tpot_ms)
        return;
    struct class_counters *c = class_of(s, d->slo_class[0] ? d->slo_class : "none");
    sl_metric_add(sl_decision_slo_met(d) ? c->met : c->missed, 1);
    if (d->relegated)
        sl_metric_add(c->relegated, 1);
}

void sl_request_metrics_done(struct sl_request_metrics *s, const struct sl_decision *d)
{
    size_t finish = FINISH_ERROR;
    for (size_t i = 0; i < N_FINISH; i++)
        if (strcmp(d->finish, finish_names[i]) == 0)
            finish = i;
    add(&s->finished[finish], 1);
    count_wishes(s, d);
    const struct sl_decision_attempt *a = sl_decision_last(d);
    if (a && (unsigned)a->mode < SL_COUNTOF(s->placed) && s->placed[a->mode])
        sl_metric_add(s->placed[a->mode], d->n_attempts);
    if (finish != FINISH_STOP && finish != FINISH_LENGTH)
        return;
    add(&s->prompt_tokens, d->n_prompt);
    observe(&s->prompt_size, d->n_prompt);
    observe(&s->output_size, d->n_generated);
    observe(&s->e2e, (double)(d->done_us - d->arrived_us) / 1e6);
    if (!d->first_us)
        return;
    double decode_s = (double)(d->done_us - d->first_us) / 1e6;
    sl_metric_observe(s->prefill_time, (double)(d->first_us - d->placed_us) / 1e6);
    sl_metric_observe(s->decode_time, decode_s);
    if (d->n_generated > 1)
        observe(&s->tpot, decode_s / (d->n_generated - 1));
    const struct sl_decision_leg *leg = a && a->p[0] ? &d->p : &d->d;
    if (leg->reported && leg->report.has_cached_tokens)
        sl_metric_add(s->cached_tokens, leg->report.cached_tokens);
    double handover_ms, error;
    if (sl_decision_handover_ms(d, &handover_ms))
        sl_metric_observe(s->handover, handover_ms > 0 ? handover_ms / 1e3 : 0);
    if (sl_decision_ttft_error(d, &error) && (unsigned)a->mode < SL_COUNTOF(s->ttft_error))
        sl_metric_observe(s->ttft_error[a->mode], error);
}

void sl_request_metrics_recovered(struct sl_request_metrics *s)
{
    sl_metric_add(s->recovered, 1);
}

void sl_request_metrics_resync(struct sl_request_metrics *s)
{
    sl_metric_add(s->resyncs, 1);
}

void sl_request_metrics_mismatch(struct sl_request_metrics *s)
{
    sl_metric_add(s->mismatches, 1);
}

/* A node's name as a label value; names come from outside. */
static void node_label(char *out, size_t size, const char *node, const char *peer)
{
    struct sl_buf b;
    sl_buf_init(&b, size - 1);
    sl_buf_puts(&b, "node=\"");
    sl_buf_json_escape(&b, node, strlen(node));
    if (peer) {
        sl_buf_puts(&b, "\",peer=\"");
        sl_buf_json_escape(&b, peer, strlen(peer));
    }
    sl_buf_puts(&b, "\"");
    snprintf(out, size, "%s", sl_buf_failed(&b) || !b.data ? "node=\"?\"" : b.data);
    sl_buf_fini(&b);
}

static struct node_gauges *gauges_of(struct sl_request_metrics *s, const char *node)
{
    struct node_gauges *g = sl_hashmap_get(s->nodes, node, strlen(node));
    if (g)
        return g;
    g = sl_xcalloc(1, sizeof *g);
    g->values = sl_hashmap_new();
    char label[512];
    node_label(label, sizeof label, node, NULL);
    g->up = sl_gauge(s->m, "sluice_node_up", label, "1 while the node takes work.");
    g->free_pages = sl_gauge(s->m, "sluice_node_kv_pages_free", label, "KV pages free or evictable.");
    g->total_pages = sl_gauge(s->m, "sluice_node_kv_pages", label, "KV pages of the pool.");
    g->running = sl_gauge(s->m, "sluice_node_sequences_running", label, "Sequences with a place.");
    g->waiting = sl_gauge(s->m, "sluice_node_sequences_waiting", label, "Sequences queued.");
    g->queued_tokens =
        sl_gauge(s->m, "sluice_node_queued_prompt_tokens", label, "Prompt tokens still to compute.");
    g->rows = sl_gauge(s->m, "sluice_node_decode_rows", label, "Sequences that decode.");
    g->leases = sl_gauge(s->m, "sluice_node_transfers_open", label, "Page transfers open.");
    g->cost_error = sl_gauge(s->m, "sluice_node_cost_model_error", label,
                             "Running relative error of predicted step times.");
    sl_hashmap_put(s->nodes, node, strlen(node), g);
    return g;
}

static void set_links(struct sl_request_metrics *s, struct node_gauges *g, const struct sl_node *n)
{
    for (uint32_t i = 0; i < n->n_peers; i++) {
        uint32_t k = 0;
        while (k < SL_NODE_LINKS && g->link_rate[k] && strcmp(g->link_peer[k], n->peers[i].peer) != 0)
            k++;
        if (k == SL_NODE_LINKS)
            return;
        if (!g->link_rate[k]) {
            char label[1024];
            node_label(label, sizeof label, n->name, n->peers[i].peer);
            snprintf(g->link_peer[k], sizeof g->link_peer[k], "%s", n->peers[i].peer);
            g->link_rate[k] = sl_gauge(s->m, "sluice_link_bytes_per_second", label,
                                       "Measured rate of a page link; 0 = unknown or down.");
        }
        sl_metric_set(g->link_rate[k], strcmp(n->peers[i].state, "up") == 0 ? n->peers[i].bytes_per_s : 0);
    }
}

void sl_request_metrics_nodes(struct sl_request_metrics *s, const struct sl_node_table *t, uint32_t n_running,
                              uint32_t n_waiting)
{
    double used = 0, total = 0;
    for (uint32_t i = 0; i < sl_node_table_len(t); i++) {
        const struct sl_node *n = sl_node_table_at(t, i);
        struct node_gauges *g = gauges_of(s, n->name);
        bool dead = n->state == SL_NODE_DEAD;
        sl_metric_set(g->up, n->state == SL_NODE_UP);
        sl_metric_set(g->free_pages, dead ? 0 : n->load.free_pages);
        sl_metric_set(g->total_pages, dead ? 0 : n->load.total_pages);
        sl_metric_set(g->running, dead ? 0 : n->load.running);
        sl_metric_set(g->waiting, dead ? 0 : n->load.waiting);
        sl_metric_set(g->queued_tokens, dead ? 0 : (double)n->load.queued_prompt_tokens);
        sl_metric_set(g->rows, dead ? 0 : n->load.decode_rows);
        sl_metric_set(g->leases, dead ? 0 : n->load.leases);
        sl_metric_set(g->cost_error, n->cost.error);
        set_links(s, g, n);
        if (!dead && n->may_decode && n->load.total_pages >= n->load.free_pages) {
            used += n->load.total_pages - n->load.free_pages;
            total += n->load.total_pages;
        }
        n_waiting += dead ? 0 : n->load.waiting;
    }
    sl_metric_set(s->running, n_running);
    sl_metric_set(s->waiting, n_waiting);
    sl_metric_set(s->kv_usage, total > 0 ? used / total : 0);
}

/* What heartbeats bring already, under names of their own. */
static bool is_known_otherwise(const char *name)
{
    static const char *const names[] = {"pages_total",       "pages_free",  "sequences_waiting",
                                        "sequences_running", "decode_rows", "transfers_open"};
    for (size_t i = 0; i < SL_COUNTOF(names); i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static struct node_value *value_of(struct sl_request_metrics *s, const char *node, const char *name)
{
    struct node_gauges *g = gauges_of(s, node);
    struct node_value *v = sl_hashmap_get(g->values, name, strlen(name));
    if (v || sl_hashmap_len(g->values) >= MAX_NODE_VALUES)
        return v;
    char series[128], label[512];
    size_t n = strlen(name);
    snprintf(series, sizeof series, "sluice_node_%s", name);
    node_label(label, sizeof label, node, NULL);
    v = sl_xcalloc(1, sizeof *v);
    v->counter = n > 6 && strcmp(name + n - 6, "_total") == 0;
    v->series = v->counter ? sl_counter(s->m, series, label, "As counted by the node.")
                           : sl_gauge(s->m, series, label, "As told by the node.");
    sl_hashmap_put(g->values, name, n, v);
    return v;
}

void sl_request_metrics_node_value(struct sl_request_metrics *s, const char *node, const char *name,
                                   double value)
{
    bool good = name[0] && strlen(name) < 96 && value >= 0 && value < 1e300 && !is_known_otherwise(name);
    for (const char *p = name; *p; p++)
        good = good && ((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9' && p > name) || *p == '_');
    struct node_value *v = good ? value_of(s, node, name) : NULL;
    if (!v)
        return;
    if (v->counter)
        sl_metric_add(v->series, value >= v->last ? value - v->last : value);
    else
        sl_metric_set(v->series, value);
    v->last = value;
}
