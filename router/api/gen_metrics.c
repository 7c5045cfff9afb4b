/* router/api/gen_metrics.c - a request is "waiting" until its first token and "running" after: the router's
 * view. What waits inside a node and what computes there is in the flow's and the nodes' own series. vLLM's
 * bucket bounds are kept as a subset where dashboards compute quantiles; the finer ones below come from
 * SL_LATENCY_BOUNDS_S. */
#include "router/api/gen_metrics.h"

#include <string.h>

#include "common/base/mem.h"

enum ended { BY_STOP, BY_LENGTH, BY_ABORT, BY_ERROR, N_ENDED };
static const char *const ended_words[] = {"stop", "length", "abort", "error"};

enum { NATIVE, VLLM, N_NAMES };
struct pair {
    struct sl_metric *m[N_NAMES];
};

struct sl_gen_metrics {
    struct pair waiting, running, ttft, itl, e2e, prompt_tokens, generated_tokens, ended[N_ENDED];
    struct sl_metric *cached_tokens;
};

static void add(const struct pair *p, double v)
{
    for (int i = 0; i < N_NAMES; i++)
        sl_metric_add(p->m[i], v);
}

static void observe(const struct pair *p, double seconds)
{
    for (int i = 0; i < N_NAMES; i++)
        sl_metric_observe(p->m[i], seconds);
}

/* The value of a label: backslash, quote and newline escaped. */
static char *label_value(const char *s)
{
    struct sl_buf b;
    sl_buf_init(&b, SIZE_MAX);
    for (; *s; s++) {
        if (*s == '\\' || *s == '"')
            sl_buf_putc(&b, '\\');
        if (*s == '\n')
            sl_buf_puts(&b, "\\n");
        else
            sl_buf_putc(&b, *s);
    }
    return sl_buf_steal(&b);
}

struct sl_gen_metrics *sl_gen_metrics_new(struct sl_metrics *m, const char *model_name)
{
    struct sl_gen_metrics *g = sl_xcalloc(1, sizeof *g);
    char *value = label_value(model_name);
    char *labels = sl_xasprintf("model_name=\"%s\",engine=\"0\"", value);
    const struct {
        struct pair *to;
        const char *native, *vllm, *help;
    } gauges[] =
        {
            {&g->waiting, "sluice_api_requests_waiting", "vllm:num_requests_waiting",
             "Accepted requests without a token yet."},
            {&g->running, "sluice_api_requests_running", "vllm:num_requests_running",
             "Requests whose tokens are flowing."},
        },
      counters[] =
          {
              {&g->prompt_tokens, "sluice_api_prompt_tokens_total", "vllm:prompt_tokens_total",
               "Prompt tokens of finished requests."},
              {&g->generated_tokens, "sluice_api_generation_tokens_total", "vllm:generation_tokens_total",
               "Tokens generated."},
          },
      histograms[] = {
          {&g->ttft, "sluice_api_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
           "From the complete request to its first token."},
          {&g->itl, "sluice_api_inter_token_latency_seconds", "vllm:inter_token_latency_seconds",
           "Between two tokens of a request."},
          {&g->e2e, "sluice_api_request_latency_seconds", "vllm:e2e_request_latency_seconds",
           "From the complete request to its end."},
      };
    for (size_t i = 0; i < SL_COUNTOF(gauges); i++) {
        gauges[i].to->m[NATIVE] = sl_gauge(m, gauges[i].native, NULL, gauges[i].help);
        gauges[i].to->m[VLLM] = sl_gauge(m, gauges[i].vllm, labels, gauges[i].help);
    }
    for (size_t i = 0; i < SL_COUNTOF(counters); i++) {
        counters[i].to->m[NATIVE] = sl_counter(m, counters[i].native, NULL, counters[i].help);
        counters[i].to->m[VLLM] = sl_counter(m, counters[i].vllm, labels, counters[i].help);
    }
    for (size_t i = 0; i < SL_COUNTOF(histograms); i++) {
        histograms[i].to->m[NATIVE] = sl_histogram(m, histograms[i].native, NULL, histograms[i].help,
                                                   SL_LATENCY_BOUNDS_S, SL_N_LATENCY_BOUNDS);
        histograms[i].to->m[VLLM] = sl_histogram(m, histograms[i].vllm, labels, histograms[i].help,
                                                 SL_LATENCY_BOUNDS_S, SL_N_LATENCY_BOUNDS);
    }
    for (int i = 0; i < N_ENDED; i++) {
        char *native = sl_xasprintf("finished_reason=\"%s\"", ended_words[i]);
        char *vllm = sl_xasprintf("%s,%s", labels, native);
        g->ended[i].m[NATIVE] =
            sl_counter(m, "sluice_api_requests_total", native, "Accepted requests, by how they ended.");
        g->ended[i].m[VLLM] =
            sl_counter(m, "vllm:request_success_total", vllm, "Accepted requests, by how they ended.");
        sl_free(native);
        sl_free(vllm);
    }
    g->cached_tokens =
        sl_counter(m, "sluice_api_cached_tokens_total", NULL, "Prompt tokens found in a prefix cache.");
    sl_free(labels);
    sl_free(value);
    return g;
}

void sl_gen_metrics_free(struct sl_gen_metrics *g)
{
    sl_free(g);
}

void sl_gen_metrics_accepted(struct sl_gen_metrics *g, struct sl_gen_clock *c, uint64_t arrived_us)
{
    c->arrived_us = arrived_us;
    c->open = true;
    add(&g->waiting, 1);
}

static void end(struct sl_gen_metrics *g, struct sl_gen_clock *c, enum ended how)
{
    if (!c->open)
        return;
    c->open = false;
    add(c->first_us ? &g->running : &g->waiting, -1);
    add(&g->ended[how], 1);
}

static double seconds(uint64_t from_us, uint64_t to_us)
{
    return (double)(to_us - from_us) * 1e-6;
}

void sl_gen_metrics_event(struct sl_gen_metrics *g, struct sl_gen_clock *c, const struct sl_gen_event *ev,
                          uint64_t now_us)
{
    if (!c->open)
        return;
    if (ev->kind == SL_GEN_TOKEN && ev->token >= 0) {
        add(&g->generated_tokens, 1);
        if (c->first_us) {
            observe(&g->itl, seconds(c->last_us, now_us));
        } else {
            c->first_us = now_us;
            observe(&g->ttft, seconds(c->arrived_us, now_us));
            add(&g->waiting, -1);
            add(&g->running, 1);
        }
        c->last_us = now_us;
    } else if (ev->kind == SL_GEN_DONE) {
        observe(&g->e2e, seconds(c->arrived_us, now_us));
        add(&g->prompt_tokens, ev->usage.prompt_tokens);
        sl_metric_add(g->cached_tokens, ev->usage.cached_tokens);
        end(g, c, strcmp(ev->finish_reason, "length") == 0 ? BY_LENGTH : BY_STOP);
    } else if (ev->kind == SL_GEN_ERROR) {
        end(g, c, ev->err == SL_ECANCELED ? BY_ABORT : BY_ERROR);
    }
}

void sl_gen_metrics_left(struct sl_gen_metrics *g, struct sl_gen_clock *c)
{
    end(g, c, BY_ABORT);
}
