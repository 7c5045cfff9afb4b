/* router/admin/metrics_http.c - series are registered once at start, those of service classes when one is first
 * used. Names under "vllm:" are what boards, autoscalers and gateways ask for; they carry vLLM's labels
 * model_name and engine. Names that vLLM has given up since are told beside the new ones. */
#include "router/admin/metrics_http.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/clock.h"
#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/base/memory_info.h"
#include "router/admin/metrics_nodes.h"

#define MAX_LABEL_BYTES 1024

static const double token_bounds[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                      500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
static const double handover_bounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};
static const double error_bounds[] = {0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10};

enum { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELED, FINISH_ERROR, N_FINISH };
static const char *const finish_names[N_FINISH] = {"stop", "length", "canceled", "error"};
static const char *const vllm_finish_names[N_FINISH] = {"stop", "length", "abort", "error"};

/* Series that are told under both prefixes, "sluice_" and "vllm:". */
enum both {
    TTFT,
    ITL,
    TPOT,
    E2E,
    QUEUE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    INFERENCE_TIME,
    PROMPT_SIZE,
    OUTPUT_SIZE,
    MAX_TOKENS,
    N_HISTOGRAMS,
    PROMPT_TOKENS = N_HISTOGRAMS,
    GENERATED_TOKENS,
    CACHED_TOKENS,
    N_HISTOGRAMS_AND_COUNTERS,
    RUNNING = N_HISTOGRAMS_AND_COUNTERS,
    WAITING,
    N_BOTH
};
static const struct both_row {
    const char *name, *vllm_too; /* another name of vLLM's for the same, or NULL */
    const char *help;
} both_rows[N_BOTH] = {
    [TTFT] = {"time_to_first_token_seconds", NULL, "Arrival at the router to the first token."},
    [ITL] = {"inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
             "Time between two tokens of a request at the router."},
    [TPOT] = {"request_time_per_output_token_seconds", NULL,
              "Mean time per token after the first, per request."},
    [E2E] = {"e2e_request_latency_seconds", NULL, "Arrival at the router to the end."},
    [QUEUE_TIME] = {"request_queue_time_seconds", NULL,
                    "Arrival at the router to admission by the first node: waits at both."},
    [PREFILL_TIME] = {"request_prefill_time_seconds", NULL, "Admission to the first token."},
    [DECODE_TIME] = {"request_decode_time_seconds", NULL, "First to last token."},
    [INFERENCE_TIME] = {"request_inference_time_seconds", NULL, "Admission to the last token."},
    [PROMPT_SIZE] = {"request_prompt_tokens", NULL, "Prompt tokens per request."},
    [OUTPUT_SIZE] = {"request_generation_tokens", "vllm:request_max_num_generation_tokens",
                     "Tokens generated per request."},
    [MAX_TOKENS] = {"request_params_max_tokens", NULL, "Tokens that a request may have generated at most."},
    [PROMPT_TOKENS] = {"prompt_tokens_total", NULL, "Prompt tokens of requests that ended."},
    [GENERATED_TOKENS] = {"generation_tokens_total", NULL, "Tokens generated."},
    [CACHED_TOKENS] = {"prompt_tokens_cached_total", NULL, "Prompt tokens found in a prefix cache."},
    [RUNNING] = {"num_requests_running", NULL, "Requests with a place on a node."},
    [WAITING] = {"num_requests_waiting", NULL, "Requests queued on nodes or for one."},
};
#define N_NAMES 3 /* "sluice_", "vllm:", vllm_too */

struct class_counters {
    struct sl_metric *met, *missed, *relegated;
};

struct sl_request_metrics {
    struct sl_metrics *m;
    char *vllm_labels;
    struct sl_node_metrics *nodes;
    struct sl_metric *both[N_BOTH][N_NAMES]; /* unused ones NULL */
    struct sl_metric *finished[N_FINISH], *vllm_finished[N_FINISH];
    struct sl_metric *kv_used, *vllm_kv_used, *vllm_kv_used_too, *cache_config;
    uint32_t config_page_tokens;
    uint64_t config_pages;
    struct sl_metric *arrived, *recovered, *resyncs, *mismatches, *wrong_tokens, *handover;
    struct sl_metric *placed[SL_PLACE_HYBRID + 1], *ttft_error[SL_PLACE_HYBRID + 1],
        *mode[SL_PLACE_HYBRID + 1];
    struct sl_metric *held, *ready, *replays, *cpu, *resident;
    double cpu_last_s;
    struct sl_hashmap *classes; /* name -> struct class_counters */
};

/* "key=\"value\"" with vLLM's labels behind it; sl_free. */
static char *vllm_labels(const struct sl_request_metrics *s, const char *key, const char *value)
{
    struct sl_buf b;
    sl_buf_init(&b, MAX_LABEL_BYTES);
    sl_metrics_label(&b, key, value);
    sl_buf_printf(&b, ",%s", s->vllm_labels);
    return sl_buf_steal(&b);
}

static struct sl_metric *both_series(struct sl_request_metrics *s, enum both i, const char *name,
                                     const char *labels)
{
    const char *help = both_rows[i].help;
    if (i >= N_HISTOGRAMS_AND_COUNTERS)
        return sl_gauge(s->m, name, labels, help);
    if (i >= N_HISTOGRAMS)
        return sl_counter(s->m, name, labels, help);
    bool tokens = i == PROMPT_SIZE || i == OUTPUT_SIZE || i == MAX_TOKENS;
    return sl_histogram(s->m, name, labels, help, tokens ? token_bounds : SL_LATENCY_BOUNDS_S,
                        tokens ? SL_COUNTOF(token_bounds) : SL_N_LATENCY_BOUNDS);
}

static void open_both(struct sl_request_metrics *s)
{
    for (enum both i = 0; i < N_BOTH; i++) {
        char own[96], vllm[96];
        snprintf(own, sizeof own, "sluice_%s", both_rows[i].name);
        snprintf(vllm, sizeof vllm, "vllm:%s", both_rows[i].name);
        s->both[i][0] = both_series(s, i, own, NULL);
        s->both[i][1] = both_series(s, i, vllm, s->vllm_labels);
        if (both_rows[i].vllm_too)
            s->both[i][2] = both_series(s, i, both_rows[i].vllm_too, s->vllm_labels);
    }
}

static void open_finished(struct sl_request_metrics *s)
{
    for (size_t i = 0; i < N_FINISH; i++) {
        char own[48], *vllm = vllm_labels(s, "finished_reason", vllm_finish_names[i]);
        snprintf(own, sizeof own, "finish=\"%s\"", finish_names[i]);
        s->finished[i] =
            sl_counter(s->m, "sluice_requests_finished_total", own, "Requests that ended, by how.");
        s->vllm_finished[i] =
            sl_counter(s->m, "vllm:request_success_total", vllm, "Requests that ended, by how.");
        sl_free(vllm);
    }
}

static void open_modes(struct sl_request_metrics *s)
{
    for (unsigned i = SL_PLACE_PD; i <= SL_PLACE_HYBRID; i++) {
        char label[32];
        snprintf(label, sizeof label, "mode=\"%s\"", sl_place_mode_name((enum sl_place_mode)i));
        s->mode[i] = sl_gauge(s->m, "sluice_mode", label, "1 for the mode that is on.");
        s->placed[i] = sl_counter(s->m, "sluice_placements_total", label, "Placements by what they came to.");
        s->ttft_error[i] = sl_histogram(s->m, "sluice_placement_ttft_error", label,
                                        "|predicted - real| / real time from placement to the first token.",
                                        error_bounds, SL_COUNTOF(error_bounds));
    }
}

static void open_process(struct sl_request_metrics *s, const char *version)
{
    struct sl_buf label;
    sl_buf_init(&label, MAX_LABEL_BYTES);
    sl_metrics_label(&label, "version", version);
    sl_metric_set(sl_gauge(s->m, "sluice_build_info", label.data, "The router's version."), 1);
    sl_buf_fini(&label);
    sl_metric_set(sl_gauge(s->m, "process_start_time_seconds", NULL, "Start of the router, Unix time."),
                  (double)sl_wall_s());
    s->cpu = sl_counter(s->m, "process_cpu_seconds_total", NULL, "Processor time of the router.");
    s->resident = sl_gauge(s->m, "process_resident_memory_bytes", NULL, "Resident memory of the router.");
}

struct sl_request_metrics *sl_request_metrics_new(struct sl_metrics *m, const char *model_name,
                                                  const char *version)
{
    struct sl_request_metrics *s = sl_xcalloc(1, sizeof *s);
    struct sl_buf labels;
    s->m = m;
    sl_buf_init(&labels, MAX_LABEL_BYTES);
    sl_metrics_label(&labels, "model_name", model_name);
    sl_metrics_label(&labels, "engine", "0"); /* of vLLM's data-parallel engines: a cluster looks like one */
    s->vllm_labels = sl_buf_steal(&labels);
    s->nodes = sl_node_metrics_new(m, s->vllm_labels);
    s->classes = sl_hashmap_new();
    open_both(s);
    open_finished(s);
    open_modes(s);
    open_process(s, version);
    static const char used[] = "Share of the decode nodes' KV pages in use, 0 to 1.";
    s->kv_used = sl_gauge(m, "sluice_kv_cache_usage_ratio", NULL, used);
    s->vllm_kv_used = sl_gauge(m, "vllm:kv_cache_usage_perc", s->vllm_labels, used);
    s->vllm_kv_used_too = sl_gauge(m, "vllm:gpu_cache_usage_perc", s->vllm_labels, used);
    s->held = sl_gauge(m, "sluice_requests_held", NULL, "Requests that wait at the router for their turn.");
    s->ready = sl_gauge(m, "sluice_ready", NULL, "1 while nodes are there that can serve.");
    s->replays = sl_counter(m, "sluice_control_replays_total", NULL,
                            "Control messages that came a second time or for a former life, and were not "
                            "taken: sent again by who lost a connection, or by who heard them.");
    s->arrived = sl_counter(m, "sluice_requests_total", NULL, "Requests accepted by the router.");
    s->recovered = sl_counter(m, "sluice_requests_placed_again_total", NULL,
                              "Placements repeated after a fault or a refusal.");
    s->resyncs = sl_counter(m, "sluice_resyncs_total", NULL, "Times missing tokens were asked for.");
    s->mismatches = sl_counter(m, "sluice_token_mismatches_total", NULL,
                               "Tokens of one position that differed between nodes; must stay 0.");
    s->wrong_tokens = sl_counter(m, "sluice_wrong_tokens_total", NULL,
                                 "Times a node lost its part of a request since it told a token that cannot "
                                 "be: behind the last one, or of no vocabulary; must stay 0.");
    s->handover =
        sl_histogram(m, "sluice_handover_seconds", NULL,
                     "First to second token of pd requests, less one decode step and the bytes unsent.",
                     handover_bounds, SL_COUNTOF(handover_bounds));
    return s;
}

void sl_request_metrics_free(struct sl_request_metrics *s)
{
    if (!s)
        return;
    size_t it = 0;
    void *v;
    while (sl_hashmap_next(s->classes, &it, &v))
        sl_free(v);
    sl_hashmap_free(s->classes);
    sl_node_metrics_free(s->nodes);
    sl_free(s->vllm_labels);
    sl_free(s);
}

/* Under all its names. */
static void observe(struct sl_request_metrics *s, enum both i, double v)
{
    for (size_t k = 0; k < N_NAMES && s->both[i][k]; k++)
        sl_metric_observe(s->both[i][k], v);
}

static void add(struct sl_request_metrics *s, enum both i, double v)
{
    for (size_t k = 0; k < N_NAMES && s->both[i][k]; k++)
        sl_metric_add(s->both[i][k], v);
}

static void set(struct sl_request_metrics *s, enum both i, double v)
{
    for (size_t k = 0; k < N_NAMES && s->both[i][k]; k++)
        sl_metric_set(s->both[i][k], v);
}

void sl_request_metrics_arrived(struct sl_request_metrics *s, const struct sl_gen_req *req)
{
    sl_metric_add(s->arrived, 1);
    observe(s, MAX_TOKENS, req->sampling.max_tokens);
}

void sl_request_metrics_token(struct sl_request_metrics *s, const struct sl_decision *d, uint32_t index,
                              uint32_t gap_us)
{
    add(s, GENERATED_TOKENS, 1);
    if (index == 0)
        observe(s, TTFT, (double)(d->first_us - d->arrived_us) / 1e6);
    else
        observe(s, ITL, gap_us / 1e6);
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

/* When the first node admitted it, as far as that is known; never after its first token. */
static uint64_t admitted_us(const struct sl_decision *d, const struct sl_decision_leg *first)
{
    uint64_t at = d->placed_us;
    if (first->reported && first->report.has_queue_ms && first->report.queue_ms > 0)
        at += (uint64_t)((double)first->report.queue_ms * 1e3);
    return at < d->first_us ? at : d->first_us;
}

/* Of a request that ended well and had a token. */
static void observe_times(struct sl_request_metrics *s, const struct sl_decision *d,
                          const struct sl_decision_leg *first)
{
    uint64_t admitted = admitted_us(d, first);
    double decode_s = (double)(d->done_us - d->first_us) / 1e6;
    observe(s, QUEUE_TIME, (double)(admitted - d->arrived_us) / 1e6);
    observe(s, PREFILL_TIME, (double)(d->first_us - admitted) / 1e6);
    observe(s, INFERENCE_TIME, (double)(d->done_us - admitted) / 1e6);
    observe(s, DECODE_TIME, decode_s);
    if (d->n_generated > 1)
        observe(s, TPOT, decode_s / (d->n_generated - 1));
}

void sl_request_metrics_done(struct sl_request_metrics *s, const struct sl_decision *d)
{
    size_t finish = FINISH_ERROR;
    for (size_t i = 0; i < N_FINISH; i++)
        if (strcmp(d->finish, finish_names[i]) == 0)
            finish = i;
    sl_metric_add(s->finished[finish], 1);
    sl_metric_add(s->vllm_finished[finish], 1);
    count_wishes(s, d);
    const struct sl_decision_attempt *a = sl_decision_last(d);
    bool has_mode = a && (unsigned)a->mode < SL_COUNTOF(s->placed) && s->placed[a->mode];
    if (has_mode)
        sl_metric_add(s->placed[a->mode], d->n_attempts);
    if (finish != FINISH_STOP && finish != FINISH_LENGTH)
        return;
    add(s, PROMPT_TOKENS, d->n_prompt);
    observe(s, PROMPT_SIZE, d->n_prompt);
    observe(s, OUTPUT_SIZE, d->n_generated);
    observe(s, E2E, (double)(d->done_us - d->arrived_us) / 1e6);
    if (!d->first_us)
        return;
    const struct sl_decision_leg *first = a && a->p[0] ? &d->p : &d->d;
    observe_times(s, d, first);
    if (first->reported && first->report.has_cached_tokens)
        add(s, CACHED_TOKENS, first->report.cached_tokens);
    double handover_ms, error;
    if (sl_decision_handover_ms(d, &handover_ms))
        sl_metric_observe(s->handover, handover_ms > 0 ? handover_ms / 1e3 : 0);
    if (has_mode && sl_decision_ttft_error(d, &error))
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

void sl_request_metrics_wrong_token(struct sl_request_metrics *s)
{
    sl_metric_add(s->wrong_tokens, 1);
}

/* Page size and number are labels there: another value is another series. */
static void tell_cache_config(struct sl_request_metrics *s, const struct sl_node_table *t)
{
    uint32_t page_tokens = 0;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < sl_node_table_len(t); i++) {
        const struct sl_node *n = sl_node_table_at(t, i);
        if (n->state == SL_NODE_DEAD || !n->may_decode)
            continue;
        page_tokens = n->model.page_tokens;
        pages += n->load.total_pages;
    }
    if (page_tokens == s->config_page_tokens && pages == s->config_pages)
        return;
    sl_metrics_drop(s->m, s->cache_config);
    s->cache_config = NULL;
    s->config_page_tokens = page_tokens;
    s->config_pages = pages;
    if (!pages)
        return;
    char number[24];
    snprintf(number, sizeof number, "%u", page_tokens);
    char *block = vllm_labels(s, "block_size", number);
    char *labels = sl_xasprintf("num_gpu_blocks=\"%" PRIu64 "\",%s", pages, block);
    s->cache_config = sl_gauge(s->m, "vllm:cache_config_info", labels,
                               "Tokens of a KV page and pages of all nodes that decode.");
    sl_metric_set(s->cache_config, 1);
    sl_free(labels);
    sl_free(block);
}

static void tell_process(struct sl_request_metrics *s)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) == 0) {
        double cpu_s = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
        if (cpu_s > s->cpu_last_s) {
            sl_metric_add(s->cpu, cpu_s - s->cpu_last_s);
            s->cpu_last_s = cpu_s;
        }
    }
    sl_metric_set(s->resident, (double)sl_memory_resident());
}

void sl_request_metrics_now(struct sl_request_metrics *s, const struct sl_request_gauges *now)
{
    uint32_t queued;
    double kv_used;
    sl_node_metrics_take(s->nodes, now->nodes, &queued, &kv_used);
    set(s, RUNNING, now->n_running);
    set(s, WAITING, now->n_held + queued);
    sl_metric_set(s->held, now->n_held);
    sl_metric_set(s->ready, now->ready);
    sl_metric_add(s->replays, (double)now->n_replays - sl_metric_value(s->replays));
    for (unsigned i = SL_PLACE_PD; i <= SL_PLACE_HYBRID; i++)
        sl_metric_set(s->mode[i], now->mode == (enum sl_place_mode)i);
    sl_metric_set(s->kv_used, kv_used);
    sl_metric_set(s->vllm_kv_used, kv_used);
    sl_metric_set(s->vllm_kv_used_too, kv_used);
    tell_cache_config(s, now->nodes);
    tell_process(s);
}

void sl_request_metrics_node_value(struct sl_request_metrics *s, const struct sl_node *n, const char *name,
                                   double value)
{
    sl_node_metrics_value(s->nodes, n, name, value);
}
